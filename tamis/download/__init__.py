"""Download files: Common Crawl, Wikipedia, arXiv, or any list of URLs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tamis.download.catalogs import ArxivSources, CommonCrawl, UrlList, WikipediaDump
    from tamis.download.session import DownloadReport, Limits, RemoteFile, download

_HOMES = {
    **dict.fromkeys(["ArxivSources", "CommonCrawl", "UrlList", "WikipediaDump"], "catalogs"),
    **dict.fromkeys(["DownloadReport", "Limits", "RemoteFile", "download"], "session"),
}

__all__ = [
    "ArxivSources",
    "CommonCrawl",
    "DownloadReport",
    "Limits",
    "RemoteFile",
    "UrlList",
    "WikipediaDump",
    "download",
]

if not TYPE_CHECKING:  # a type checker would accept every misspelt name

    def __getattr__(name: str) -> object:
        if name in _HOMES:
            value = getattr(import_module(f"tamis.download.{_HOMES[name]}"), name)
            globals()[name] = value
            return value
        from tamis.curator_names import unknown_name

        raise unknown_name("tamis.download", name)


def __dir__() -> list[str]:
    return __all__
