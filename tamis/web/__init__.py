"""From the web to text: what crawled pages, wikis, papers and other documents say."""

from tamis.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
