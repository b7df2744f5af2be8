"""The charset of a page, and its text: by byte order mark, validity as UTF-8, header, meta element, and detection.

The order is that of the HTML standard ("determining the character encoding"), with one exception: bytes that are valid UTF-8
and not ASCII are UTF-8, whatever is declared. Text in another charset is hardly ever valid UTF-8, and declarations are often
wrong. Names of charsets mean what they mean to browsers: `iso-8859-1` is windows-1252.
"""

from __future__ import annotations

import codecs
import re
from functools import cache
from typing import Any

from tamis.errors import require

_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_META = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_:.\-]{2,40})", re.IGNORECASE)
_XML = re.compile(rb"\s*<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([A-Za-z0-9_.\-]{2,40})", re.IGNORECASE)
_HEADER = re.compile(r"charset\s*=\s*[\"']?\s*([A-Za-z0-9_:.\-]{2,40})", re.IGNORECASE)
_PRESCAN_BYTES = 4096
_DETECTED_BYTES = 65_536
_STATEFUL = ("iso-2022-jp", "iso2022_jp", "hz", "utf-7", "iso-2022-kr")
"""Charsets whose text is ASCII bytes only."""

_WIDER = {"shift_jis": "cp932", "gbk": "gb18030", "euc_kr": "cp949", "big5": "big5hkscs"}
"""Python's names for the supersets that browsers use."""

_NOT_TEXT = (
    b"PK\x03\x04",
    b"%PDF",
    b"\x89PNG",
    b"GIF8",
    b"\xff\xd8\xff",
    b"\x1f\x8b",
    b"Rar!",
    b"7z\xbc\xaf",
    b"\x7fELF",
)
"""The first bytes of archives, images and other files that servers send as pages."""
_MAGIC_BYTES = 1024
_ASCII = bytes(range(128))


@cache
def _encoding() -> Any:
    return require("resiliparse.parse.encoding", extra="web", purpose="reading pages in other charsets than UTF-8")


def check_installed() -> None:
    """Raise if the package that knows and detects charsets is missing."""
    _encoding()


@cache
def python_codec(label: str) -> str | None:
    """The codec for the name of a charset in a page; None if there is no such charset.

    >>> python_codec("ISO-8859-1"), python_codec("x-sjis"), python_codec("klingon")
    ('cp1252', 'cp932', None)
    """
    name = _encoding().map_encoding_to_html5(label.strip().lower(), False)
    return _WIDER.get(name, name) if name else None


def declared_in_header(content_type: str | None) -> str | None:
    found = _HEADER.search(content_type or "")
    return found[1] if found else None


def declared_in_page(data: bytes) -> str | None:
    """The charset that a meta element or an XML declaration names."""
    found = _XML.match(data[:_PRESCAN_BYTES]) or _META.search(data[:_PRESCAN_BYTES])
    return found[1].decode("ascii") if found else None


def is_text(data: bytes | str) -> bool:
    """Whether data may be a page or another text: its beginning does not say that it is something else.

    >>> is_text(b"<p>A page"), is_text(b"PK\\x03\\x04"), is_text("%PDF-1.4"), is_text(b"BM\\0\\0")
    (True, False, False, False)
    """
    start = data[:_MAGIC_BYTES]
    if isinstance(start, str):
        return not start.encode("latin-1", "replace").lstrip().startswith(_NOT_TEXT)
    start = start.lstrip()
    utf_16 = start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return not start.startswith(_NOT_TEXT) and (utf_16 or b"\0" not in start)


def decode_page(data: bytes, content_type: str | None = None) -> tuple[str, str]:
    """The text of a page and its charset. Bytes that do not fit are replaced, if no charset fits all of them."""
    for mark, name in _BOMS:
        if data.startswith(mark):
            return data[len(mark) :].decode(name, "replace"), name
    in_page = declared_in_page(data)
    if in_page is not None and (python_codec(in_page) or "").startswith("utf-16"):
        in_page = "utf-8"  # its bytes could not be read as those of a declaration; HTML standard, 13.2.3.2
    declared = [label for label in (declared_in_header(content_type), in_page) if label]
    if data.isascii() and not any(label.lower() in _STATEFUL for label in declared):
        return data.decode("ascii"), "utf-8"
    try:
        if not data.isascii():
            return data.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        pass
    # A declaration of UTF-8 is wrong here, unless only some characters are.
    candidates = [codec for label in declared if (codec := python_codec(label)) and codec != "utf-8"]
    for candidate in candidates:
        try:
            return data.decode(candidate), candidate
        except (UnicodeDecodeError, ValueError):
            continue
    if not candidates and declared and is_nearly_utf8(data):
        return data.decode("utf-8", "replace"), "utf-8"
    detected = python_codec(_encoding().detect_encoding(data[:_DETECTED_BYTES]) or "utf-8") or "utf-8"
    chosen = candidates[0] if candidates and detected in ("utf-8", "ascii") else detected
    return data.decode(chosen, "replace"), chosen


def is_nearly_utf8(data: bytes) -> bool:
    """Whether at least two of three characters that are not ASCII are UTF-8, as hardly ever by chance.

    >>> is_nearly_utf8("äöü".encode() + bytes([0xA0])), is_nearly_utf8("äöü".encode("cp1252"))
    (True, False)
    """
    text = data.decode("utf-8", "replace")
    wrong = text.count("\N{REPLACEMENT CHARACTER}")
    ascii_bytes = len(data) - len(data.translate(None, _ASCII))
    return len(text) - wrong - ascii_bytes >= 2 * wrong
