"""Exact, fuzzy, semantic and perceptual deduplication, of texts, images, sounds and videos, as steps of a pipeline."""

from tamis.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, {"groups": ["Groups"], "index": ["Index"]})
