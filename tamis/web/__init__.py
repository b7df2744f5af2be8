"""From the web to text: what crawled pages, wikis, papers and other documents say."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tamis.web.extract import HtmlExtract
    from tamis.web.wiki import WikitextExtract

_HOMES = {"HtmlExtract": "extract", "WikitextExtract": "wiki"}

__all__ = ["HtmlExtract", "WikitextExtract"]

if not TYPE_CHECKING:  # a type checker would accept every misspelt name

    def __getattr__(name: str) -> object:
        if name in _HOMES:
            value = getattr(import_module(f"tamis.web.{_HOMES[name]}"), name)
            globals()[name] = value
            return value
        from tamis.curator_names import unknown_name

        raise unknown_name("tamis.web", name)


def __dir__() -> list[str]:
    return __all__
