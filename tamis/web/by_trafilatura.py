"""trafilatura, with those of its parts replaced that take most of its time and have equal, faster forms.

    selectors.py         XPath expressions on tags and attributes    remembered answers instead of calls from libxml2 to Python
    _classes             the class of each element, by its tag       a table of lxml instead of a Python function per element
    _WithoutControl      characters that XML does not allow          looked for in the bytes of a page
    _compare             readability as a second opinion             without a copy of the page that nobody reads afterwards
    _remove_candidates   elements that readability leaves out        one answer per class and id

Each part gives the result of what it replaces. An expression is replaced if `selectors` knows its form, and a function if its
source is the one that was read; everything else is trafilatura's own.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
import re
from collections.abc import Callable
from typing import Any

from tamis.errors import require
from tamis.web.selectors import selector


def trafilatura_extract(*, favor: str, deduplicate: bool, markdown: bool) -> Callable[[str], str]:
    """A function from a page to its text, "" if there is none."""
    trafilatura = _module("trafilatura")
    seen = _module("trafilatura.deduplication").LRU_TEST
    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)  # what is wrong with a page is the outcome of its row
    _replace_parts()

    def extract(page: str) -> str:
        if deduplicate:
            seen.clear()  # it remembers earlier pages, and the result would depend on their order
        found = trafilatura.extract(
            page,
            include_comments=False,
            favor_precision=favor == "precision",
            favor_recall=favor == "recall",
            deduplicate=deduplicate,
            output_format="markdown" if markdown else "txt",
        )
        return found or ""

    return extract


def _module(name: str) -> Any:
    return require(name, extra="web", purpose='extractor="trafilatura"')


@functools.cache
def _replace_parts() -> None:
    from lxml.etree import XPath

    for expressions in vars(_module("trafilatura.xpaths")).values():
        for index, each in enumerate(expressions if isinstance(expressions, list) else ()):
            if isinstance(each, XPath) and (found := selector(each.path)) is not None:
                expressions[index] = found
    core, readability = _module("trafilatura.core"), _module("trafilatura.readability_lxml")
    _replace(core, "_extract_and_compare", _compare(core))
    _replace(getattr(readability, "Document", None), "remove_unlikely_candidates", _remove_candidates(readability))
    utils = _module("trafilatura.utils")
    utils.HTML_PARSER.set_element_class_lookup(_classes())
    if getattr(utils.INVALID_XML_CHARS, "pattern", None) == _NOT_XML:
        utils.INVALID_XML_CHARS = _WithoutControl(utils.INVALID_XML_CHARS)


_READ = {
    "_extract_and_compare": "f7d056c2118222e8ffb17e32d4796ccbddc452936d7177e27c53fb6d39b8f6e6",
    "remove_unlikely_candidates": "6ef38c8475242af9ce59c705f7496bffe575c01007de5586d3f616f1ecfd207c",
}
"""SHA-256 of the source of the functions that are replaced, of trafilatura 2.3.1."""


def _replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    try:
        source = inspect.getsource(getattr(owner, name))
    except (AttributeError, OSError):  # another version, or an installation without sources
        return
    if hashlib.sha256(source.encode()).hexdigest() == _READ[name]:
        setattr(owner, name, function)


def _compare(core: Any) -> Callable[..., Any]:
    def extract_and_compare(cleaned: Any, backup: Any, tree: Any, options: Any) -> Any:
        body, text = core.extract_content(cleaned, options)
        if not options.fast:
            own = tree if options.focus == "precision" else core.copy(tree)  # only the other steps read the page again
            body, text = core.compare_extraction(backup, own, body, text, options)
        return body, text

    return extract_and_compare


def _remove_candidates(readability: Any) -> Callable[..., None]:
    def remove_unlikely_candidates(document: Any) -> None:
        unlikely = readability.REGEXES["unlikelyCandidatesRe"].search
        maybe = readability.REGEXES["okMaybeItsACandidateRe"].search
        answers: dict[tuple[str | None, str | None], bool] = {}
        for element in list(document.doc.iterdescendants("*")):
            key = element.get("class"), element.get("id")
            answer = answers.get(key)
            if answer is None:
                names = " ".join(filter(None, key)).lower()
                answer = answers[key] = len(names) >= 2 and bool(unlikely(names)) and not maybe(names)
            if answer and element.tag not in readability.FRAME_TAGS:
                element.drop_tree()

    return remove_unlikely_candidates


def _classes() -> Any:
    """The classes of elements that `lxml.html` chooses, chosen by lxml itself."""
    from lxml import etree, html

    others = etree.ElementDefaultClassLookup(
        element=html.HtmlElement,
        comment=html.HtmlComment,
        pi=html.HtmlProcessingInstruction,
        entity=html.HtmlEntity,
    )
    by_tag, chosen = etree.ElementNamespaceClassLookup(others), html.HtmlElementClassLookup()
    classes = {tag: chosen.lookup("element", None, None, tag) for tag in html.defs.tags}
    by_tag.get_namespace(None).update({tag: found for tag, found in classes.items() if found is not html.HtmlElement})
    return by_tag


_NOT_XML = r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]"
_CONTROL = bytes([*range(9), 11, 12, *range(14, 32)])


class _WithoutControl:
    """`re.compile(_NOT_XML).sub`, which goes through the characters only where there may be one."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern

    def sub(self, replacement: str, text: str) -> str:
        data = text.encode("utf-8", "surrogatepass")
        has_one = len(data.translate(None, _CONTROL)) < len(data) or "\ufffe" in text or "\uffff" in text
        return self._pattern.sub(replacement, text) if has_one else text
