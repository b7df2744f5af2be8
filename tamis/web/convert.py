"""The kind of a document, by its content, and its text. Runs in a worker or in a process of its own."""

from __future__ import annotations

import codecs
import re
from typing import Any

from tamis.parameters import format_bytes
from tamis.web import fast_html
from tamis.web.packages import Package, Unacceptable
from tamis.web.submission import GZIP, gunzipped, is_old_tar, is_withdrawn, unpack

OFFICE = ("docx", "pptx", "xlsx", "odt", "odp", "ods")
KINDS = ("pdf", "html", "epub", *OFFICE, "latex", "text")
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_HTML = re.compile(rb"<(?:!doctype\s+html|html|head|body|title|p|div|h1|table)\b", re.IGNORECASE)
_PREFIX = 4096
_NAMED = (".pdf", ".html", ".htm", ".txt", ".tex", ".ps", ".docx", ".epub")


def kind_of(data: bytes | memoryview, name: str = "", max_bytes: int = 2**31) -> str:
    """The kind of a document. Its content decides; the name only says whether a text is LaTeX.

    >>> kind_of(b"%PDF-1.7"), kind_of(b"<!DOCTYPE html><html>", "a.pdf"), kind_of(b"MZ" + bytes(9)), kind_of(b"Hello")
    ('pdf', 'html', 'binary', 'text')
    """
    start = bytes(data[:_PREFIX])
    if b"%PDF-" in start[:1024]:
        return "pdf"
    if start[:4] in (b"PK\3\4", b"PK\5\6"):
        return Package(data, max_bytes).kind()
    if start.startswith(_OLE):
        return "encrypted" if "EncryptedPackage".encode("utf-16-le") in bytes(data) else "old Office file"
    if start.startswith(b"{\\rtf"):
        return "rtf"
    if start[257:262] == b"ustar" or is_old_tar(start):
        return "tar"
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        start = start.decode("utf-16", "replace").encode()
    if b"\0" in start:
        return "binary"
    if name.lower().endswith((".tex", ".ltx", ".latex")) or re.search(
        rb"^[^%\n]*\\document(?:class|style)", start, re.MULTILINE
    ):
        return "latex"
    return "html" if _HTML.search(start) and start.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"<") else "text"


def convert(request: dict[str, Any], data: bytes | memoryview) -> dict[str, Any]:
    """The text of a document: {"outcome", "kind", "text", "title", "pages"}; `outcome` is "ok", or why there is no text."""
    kind, name = "", request["name"]
    try:
        if bytes(data[:2]) == GZIP:
            data = gunzipped(bytes(data), request["max_unpacked"])
            name = re.sub(r"(?:\.tar)?\.gz$|\.tgz$", "", name, flags=re.IGNORECASE)
            name += (
                "" if name.lower().endswith(_NAMED) else ".tex"
            )  # most files in the archives of arXiv have no suffix
        kind = kind_of(data, name, request["max_bytes"])
        if kind == "tar" and "latex" in request["kinds"]:
            kind = "latex"  # all files of a paper
        if kind not in request["kinds"]:
            only = request["kinds"][0] if len(request["kinds"]) == 1 else ""
            shown = {"pdf": "PDF", "latex": "LaTeX"}.get(only)
            what = "encrypted" if kind == "encrypted" else f"not {shown}" if shown else f"no document: {kind}"
            return {"outcome": what, "kind": kind}
        found = _text_of(kind, request, data)
    except Unacceptable as error:
        return {"outcome": str(error), "kind": kind}
    if found.get("outcome", "ok") == "ok" and not found.get("text", "").strip():
        found["outcome"] = "no text"
    return {"outcome": "ok", "kind": kind, **found}


def _text_of(kind: str, request: dict[str, Any], data: bytes | memoryview) -> dict[str, Any]:
    markdown = request["format"] == "markdown"
    if kind == "pdf":
        from tamis.web.pdf import extract_pdf

        return extract_pdf(request, bytes(data))
    if kind == "latex":
        return _latex(request, data)
    if kind in ("html", "text"):
        return _page(kind, request, bytes(data))
    package = Package(data, request["max_unpacked"])
    limits = {"max_depth": request["max_depth"], "max_pages": request["max_pages"]}
    if kind == "epub":
        from tamis.web.epub import epub_to_text

        found = epub_to_text(package, markdown=markdown, **limits)
    else:
        from tamis.web.office import office_to_text

        found = office_to_text(package, kind, markdown=markdown, **limits)
    if found.pages is not None and found.pages > request["max_pages"]:
        return {"outcome": f"more than {request['max_pages']:,} pages", "pages": found.pages}
    return {"text": found.text, "title": found.title, "pages": found.pages}


def _latex(request: dict[str, Any], data: bytes | memoryview) -> dict[str, Any]:
    from tamis.web.latex import MOST_NESTED, Options, TooDeep, TooFar, is_latex, latex_to_text

    paper = unpack(data, request["max_unpacked"])
    if is_withdrawn(paper.source):
        return {"outcome": "withdrawn"}
    if not is_latex(paper.source):
        return {"outcome": "not LaTeX"}
    options = Options(request["format"] == "markdown", request["tables"], request["max_expansion"])
    try:
        found = latex_to_text(paper.source, options, paper.files)
    except TooFar:
        return {"outcome": "macros expand too far"}
    except TooDeep:
        return {"outcome": f"nested deeper than {MOST_NESTED}"}
    return {"text": found.text, "title": found.title}


def _page(kind: str, request: dict[str, Any], data: bytes) -> dict[str, Any]:
    from tamis.web.charset import decode_page

    source = decode_page(data)[0]
    if kind == "text":
        return {"text": source.replace("\r\n", "\n").replace("\0", "")}
    page = fast_html.parse(source)
    if page.depth > request["max_depth"]:
        return {"outcome": f"nested deeper than {request['max_depth']}"}
    text = fast_html.main_text(page, markdown=request["format"] == "markdown")
    return {"text": text, "title": page.meta.get("og:title") or page.title}


def too_large(size: int, most: int) -> str | None:
    """Why a document of this size is dropped; None if it is not."""
    return f"larger than {format_bytes(most)}" if size > most else None
