"""The ways to find the text of a page, by name: trafilatura, resiliparse, and our own."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from tamis.errors import require
from tamis.web import fast_html
from tamis.web.by_trafilatura import trafilatura_extract

_DATES = (
    *("article:published_time", "datepublished", "og:published_time", "publishdate", "pubdate", "date", "dc.date"),
    *(
        "dc.date.issued",
        "dcterms.created",
        "dcterms.date",
        "sailthru.date",
        "parsely-pub-date",
        "article:modified_time",
    ),
)
_DAY = re.compile(r"(?<!\d)((?:19|20)\d\d)-?(0[1-9]|1[0-2])-?(0[1-9]|[12]\d|3[01])(?!\d)")


@dataclass(frozen=True)
class Settings:
    """How to extract."""

    extractor: str
    format: str
    favor: str
    deduplicate: bool


def extract_of(settings: Settings) -> Callable[[str], str]:
    """The function that extracts."""
    if settings.extractor == "trafilatura":
        return trafilatura_extract(
            favor=settings.favor, deduplicate=settings.deduplicate, markdown=settings.format == "markdown"
        )
    if settings.extractor == "resiliparse":
        return _by_resiliparse()
    markdown = settings.format == "markdown"
    return lambda page: fast_html.main_text(fast_html.parse(page), markdown=markdown)


def _by_resiliparse() -> Callable[[str], str]:
    module = require("resiliparse.extract.html2text", extra="web", purpose='extractor="resiliparse"')

    def extract(page: str) -> str:
        return str(module.extract_plain_text(page, main_content=True, alt_texts=False, list_bullets=False))

    return extract


_ready: dict[Settings, Callable[[str], str]] = {}


def extract_alone(request: dict[str, Any]) -> str:
    """`extract_of` for a process of its own."""
    settings = Settings(**request["settings"])
    if settings not in _ready:
        _ready[settings] = extract_of(settings)
    return _ready[settings](request["page"])


def request_of(settings: Settings, page: str) -> dict[str, Any]:
    return {"settings": asdict(settings), "page": page}


def published(page: fast_html.Page) -> str | None:
    """The day on which a page was published, as its head or a time element says: `2026-11-18`."""
    for text in (*(page.meta[name] for name in _DATES if name in page.meta), *page.times[:3]):
        found = _DAY.search(text)
        if found:
            return "-".join(found.groups())
    return None


def title_of(page: fast_html.Page) -> str | None:
    return page.meta.get("og:title") or page.title


def language_of(page: fast_html.Page) -> str | None:
    """The language that a page declares, without its region: `en`."""
    declared = page.language or page.meta.get("og:locale") or page.meta.get("language")
    found = re.match(r"[A-Za-z]{2,3}(?![A-Za-z])", declared or "")
    return found[0].lower() if found else None
