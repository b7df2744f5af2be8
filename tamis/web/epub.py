"""The text of EPUB books: their chapters in the order of the spine (EPUB 3.3)."""

from __future__ import annotations

import posixpath
import re
from urllib.parse import unquote

from tamis.web import fast_html
from tamis.web.office import Text
from tamis.web.packages import Package, Unacceptable, parse

_FONTS_ONLY = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
"""Ways to encrypt that are used for fonts."""
_EMPTY = re.compile(
    r"<(?!(?:area|base|br|col|embed|hr|img|input|link|meta|param|source|track|wbr)\b)([a-zA-Z][a-zA-Z0-9]{0,20})\b([^<>]{0,2000})/>"
)


def epub_to_text(package: Package, *, markdown: bool, max_depth: int, max_pages: int) -> Text:
    """The text of all chapters."""
    _check_encryption(package)
    book = _book_of(package)
    items: dict[str, str] = {}
    spine: list[str] = []
    title: list[str] = []
    inside = False

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal inside
        inside = tag == "title"
        if (
            tag == "item"
            and "html" in attributes.get("media-type", "")
            and "nav" not in attributes.get("properties", "").split()
        ):
            items[attributes.get("id", "")] = attributes.get("href", "")
        elif tag == "itemref" and attributes.get("linear") != "no":
            spine.append(attributes.get("idref", ""))

    def text(data: str) -> None:
        if inside:
            title.append(data)

    def end(tag: str) -> None:
        nonlocal inside
        inside = False

    parse(package.read(book), start, end, text)
    chapters = []
    names = [
        posixpath.normpath(posixpath.join(posixpath.dirname(book), unquote(items[each])))
        for each in spine
        if each in items
    ]
    if len(names) > max_pages:
        raise Unacceptable(f"more than {max_pages:,} pages")
    for name in names:
        chapters.append(_chapter(package.read(name), markdown, max_depth))
    return Text("\n\n".join(filter(None, chapters)), " ".join("".join(title).split()) or None, len(names))


def _book_of(package: Package) -> str:
    found: list[str] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        if tag == "rootfile" and attributes.get("full-path"):
            found.append(posixpath.normpath(attributes["full-path"]))

    parse(package.read("META-INF/container.xml"), start)
    if not found or found[0] not in package.parts:
        raise Unacceptable("damaged")
    return found[0]


def _check_encryption(package: Package) -> None:
    def start(tag: str, attributes: dict[str, str]) -> None:
        if tag == "EncryptionMethod" and attributes.get("Algorithm") not in _FONTS_ONLY:
            raise Unacceptable("encrypted")

    parse(package.read("META-INF/encryption.xml"), start)


def _chapter(data: bytes, markdown: bool, max_depth: int) -> str:
    from tamis.web.charset import decode_page

    page = fast_html.parse(_EMPTY.sub(r"<\1\2></\1>", decode_page(data)[0]))
    if page.depth > max_depth:
        raise Unacceptable(f"nested deeper than {max_depth}")
    return fast_html.whole_text(page, markdown=markdown)
