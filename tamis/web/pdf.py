"""PDF to text: characters with their places on the page, put into lines, columns and paragraphs.

    PDFium: characters and boxes  -->  pieces of lines  -->  columns (`_ordered`)  -->  lines  -->  paragraphs of all pages

A PDF says where each character is and not in which order to read it. Lines that most pages have at their edges are running
headers, footers and page numbers, and are removed. Words that are divided at the end of a line are joined.

This module runs in a process of its own (`alone.py`), because PDFium is a program of a million lines that decodes whatever is
in a file. It imports no more than it needs.
"""

from __future__ import annotations

import ctypes
import itertools
import re
import statistics
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tamis.errors import require

_MOST_CHARS = 1_000_000
"""Of one page. A page of a newspaper has 50,000."""
_HYPHENS = "-\u00ad\u2010\u0002\ufffe"
_DIVIDED = re.compile(rf"([^\W\d_]{{2,}})[{_HYPHENS}]$")
_BEGINS_LOWER = re.compile(r"([^\W\d_]+)")
_ROMAN = re.compile(r"[-\s]*[ivxlc]{1,8}[-\s]*")
_COUNTER = re.compile(r"^\W{0,3}(\d{1,6})\b|\b(\d{1,6})\W{0,3}$|\bpage\s+(\d{1,6})\b", re.IGNORECASE)
_ENDS = re.compile('[].!?:;\u3002\uff01\uff1f\u00bb\u201d")]$')
_BULLET = re.compile("^[\u2022\u25e6\u25aa\u2023\u2219\u00b7\u25cf\u25cb\u25a0\u2013\u2014*-]\\s+")
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\ufffe\uffff]")
_NUMBERED = re.compile(r"^\(?\d{1,3}[.)]\s")
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_EDGE_LINES, _PAGES_WITH_EDGE = 2, 3
_PASSWORD = 4
"""PDFium's code for a file that needs a password."""


@dataclass(slots=True)
class Line:
    """A line, or a piece of one, and its box in points; `top` is more than `bottom`."""

    text: str
    left: float
    right: float
    bottom: float
    top: float
    height: float
    """The mean height of its characters, which follows from the size of the font."""


@dataclass(slots=True)
class _Paragraph:
    height: float
    """The height of its first line."""
    pieces: list[str]


def extract_pdf(request: dict[str, Any], data: bytes) -> dict[str, Any]:
    """The text of a PDF: {"outcome", "text", "title", "pages"}."""
    pdfium = require("pypdfium2", extra="web", purpose="reading PDF files")
    try:
        document = pdfium.PdfDocument(data)
    except pdfium.PdfiumError as error:
        encrypted = getattr(error, "err_code", None) == _PASSWORD or "assword" in str(error)
        return {"outcome": "encrypted" if encrypted else "damaged"}
    try:
        count = len(document)
        if count > request["max_pages"]:
            return {"outcome": f"more than {request['max_pages']:,} pages", "pages": count}
        pages: list[list[Line]] = []
        damaged = 0
        for number in range(count):
            try:
                lines = _read_page(pdfium, document, number)
            except pdfium.PdfiumError:
                damaged += 1
                lines = []
            if lines is None:
                return {"outcome": f"more than {_MOST_CHARS:,} characters on a page", "pages": count}
            pages.append(lines)
        title = _UNSEEN.sub("", str(document.get_metadata_dict().get("Title") or "")).strip() or None
    finally:
        document.close()
    if not count or damaged == count:
        return {"outcome": "damaged", "pages": count}
    text = text_of_pages(pages, markdown=request["format"] == "markdown")
    return {"outcome": "ok" if text else "no text", "text": text, "title": title, "pages": count}


# -------------------------------------------------------------------------------------------------------------- characters


def _read_page(pdfium: Any, document: Any, number: int) -> list[Line] | None:
    """The pieces of lines of a page, in the order of the file; None if there are too many characters."""
    raw = pdfium.raw
    page = document[number]
    try:
        text = page.get_textpage()
        try:
            count = text.count_chars()
            if count > _MOST_CHARS:
                return None
            return _pieces(raw, text.raw, count)
        finally:
            text.close()
    finally:
        page.close()


def _pieces(raw: Any, page: Any, count: int) -> list[Line]:
    """Characters up to the end of a line or a wide gap, as PDFium orders them."""
    lines: list[Line] = []
    box = raw.FS_RECTF()
    where = ctypes.byref(box)
    unicode_of, box_of = raw.FPDFText_GetUnicode, raw.FPDFText_GetLooseCharBox
    chars: list[str] = []
    left = right = bottom = top = heights = 0.0
    boxes = 0

    def end() -> None:
        if chars:
            lines.append(Line("".join(chars), left, right, bottom, top, heights / boxes))
            chars.clear()

    for index in range(count):
        code = unicode_of(page, index)
        if code == 10 or code == 13:
            end()
            continue
        char = chr(code) if code <= 0x10FFFF else "\ufffd"
        if char.isspace():
            if chars:
                chars.append(" ")
            continue
        if not box_of(page, index, where) or box.right <= box.left:
            if chars:
                chars.append(char)
            continue
        if chars:
            height = heights / boxes
            apart = box.left - right > 2.5 * height or box.left < left - height
            # After a hyphen, PDFium continues with the next line.
            lower = box.left < right - height and box.bottom + box.top < 2 * bottom + 0.6 * height
            if apart or lower or min(top, box.top) - max(bottom, box.bottom) < -0.2 * height:
                end()
        if not chars:
            left, right, bottom, top, heights, boxes = box.left, box.right, box.bottom, box.top, 0.0, 0
        else:
            right, bottom, top = max(right, box.right), min(bottom, box.bottom), max(top, box.top)
        heights += box.top - box.bottom
        boxes += 1
        chars.append(char)
    end()
    for line in lines:
        line.text = " ".join(_joined_surrogates(line.text).split())
    return [line for line in lines if line.text]


def _joined_surrogates(text: str) -> str:
    """Characters beyond the first plane, which PDFium may give as two."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# ------------------------------------------------------------------------------------------------------------------ layout


def ordered(lines: list[Line], depth: int = 0) -> list[list[Line]]:
    """The lines of a page in columns, in the order in which they are read."""
    gutter = _gutter(lines) if depth < 4 and len(lines) >= 8 else None
    if gutter is None:
        return [_rows(lines)] if lines else []
    result: list[list[Line]] = []
    band: list[Line] = []
    full: list[Line] = []

    def end_band() -> None:
        for side in ([line for line in band if line.right <= gutter], [line for line in band if line.right > gutter]):
            result.extend(ordered(side, depth + 1))
        band.clear()

    for line in sorted(lines, key=lambda each: -each.top):
        if line.left < gutter - 1 and line.right > gutter + 1:
            if band:
                end_band()
            full.append(line)
        else:
            if full:
                result.append(_rows(full))
                full = []
            band.append(line)
    if band:
        end_band()
    if full:
        result.append(_rows(full))
    return result


def _gutter(lines: list[Line]) -> float | None:
    """Where a page is divided into columns: hardly any line crosses it, and both sides have running text at the same height."""
    best: tuple[int, float] | None = None
    total = len(lines)
    for start, _ in Counter(round(line.left) for line in lines).most_common(12):
        place = start - 2.0
        left = [line for line in lines if line.right <= place + 1]
        right = [line for line in lines if line.left >= place - 1]
        crossing = total - len(left) - len(right)
        if min(len(left), len(right)) < max(3, 0.15 * total) or crossing > 0.35 * total:
            continue
        if min(_mean_chars(left), _mean_chars(right)) < 18:  # cells of a table are read row by row
            continue
        shared = min(max(e.top for e in left), max(e.top for e in right)) - max(
            min(e.bottom for e in left), min(e.bottom for e in right)
        )
        if shared < 3 * statistics.median(line.height for line in lines):
            continue
        if best is None or (crossing, place) < best:
            best = crossing, place
    return None if best is None else best[1]


def _mean_chars(lines: list[Line]) -> float:
    return sum(len(line.text) for line in lines) / len(lines)


def _rows(lines: list[Line]) -> list[Line]:
    """Pieces at the same height as one line, from the top down."""
    rows: list[list[Line]] = []
    for line in sorted(lines, key=lambda each: (-(each.top + each.bottom), each.left)):
        middle = (line.top + line.bottom) / 2
        if rows and rows[-1][0].bottom < middle < rows[-1][0].top:
            rows[-1].append(line)
        else:
            rows.append([line])
    result = []
    for row in rows:
        row.sort(key=lambda each: each.left)
        tallest = max(row, key=lambda each: len(each.text))
        text = " ".join(piece.text for piece in row)
        right = max(each.right for each in row)
        result.append(Line(text, row[0].left, right, tallest.bottom, tallest.top, tallest.height))
    return result


def text_of_pages(pages: list[list[Line]], *, markdown: bool = False) -> str:
    """The text of all pages, one paragraph after the other."""
    columns = _without_edges([ordered(lines) for lines in pages])
    heights = Counter[float]()
    for page in columns:
        for column in page:
            for line in column:
                heights[round(line.height, 1)] += len(line.text)
    body = heights.most_common(1)[0][0] if heights else 1.0
    words = Counter(_WORD.findall(" ".join(line.text for page in pages for line in page).lower()))
    paragraphs: list[_Paragraph] = []
    for page in columns:
        for column in page:
            found = _paragraphs(column, words)
            if found and paragraphs and _continues(paragraphs[-1], found[0]):
                first = found.pop(0)
                _join(paragraphs[-1], first.pieces[0], words)
                paragraphs[-1].pieces += first.pieces[1:]
            paragraphs += found
    shown = (_shown("".join(each.pieces), each.height / (body or 1.0), markdown) for each in paragraphs)
    return "\n\n".join(filter(None, (_UNSEEN.sub("", text).strip() for text in shown)))


# ------------------------------------------------------------------------------------------------------ headers and footers


def _without_edges(pages: list[list[list[Line]]]) -> list[list[list[Line]]]:
    """The columns of pages without running headers, footers and page numbers."""
    counts = Counter[tuple[str, str | int]]()
    edges = [_edges(page) for page in pages]
    for number, found in enumerate(edges):
        counts.update({sign for edge, line in found for sign in _signs(edge, line.text, number)})
    dropped = {
        id(line)
        for number, found in enumerate(edges)
        for edge, line in found
        if any(counts[sign] >= _PAGES_WITH_EDGE for sign in _signs(edge, line.text, number))
    }
    kept = [[[line for line in column if id(line) not in dropped] for column in page] for page in pages]
    return [[column for column in page if column] for page in kept]


def _edges(page: list[list[Line]]) -> list[tuple[str, Line]]:
    """The first and last lines of a page."""
    lines = sorted((line for column in page for line in column), key=lambda each: -each.top)
    found: list[tuple[str, Line]] = []
    for edge, rows in (("top", lines), ("bottom", lines[::-1])):
        rest, passed = rows, 0
        while rest and passed < _EDGE_LINES:
            first = rest[0]
            row = [line for line in rest[:8] if min(line.top, first.top) - max(line.bottom, first.bottom) > 0]
            found += [(edge, line) for line in row]
            rest = [line for line in rest if line not in row]
            passed += 1
    return found


def _signs(edge: str, text: str, page: int) -> list[tuple[str, str | int]]:
    """What lines that belong to each other on several pages have in common: their text, or a number that counts pages."""
    if _ROMAN.fullmatch(text):
        return [(edge, "roman")]
    found: list[tuple[str, str | int]] = [(edge, text.lower())]
    if len(text) <= 120:
        found += [(edge, int(number) - page) for number in sorted({*filter(None, sum(_COUNTER.findall(text), ()))})]
    return found


# --------------------------------------------------------------------------------------------------------------- paragraphs


def _paragraphs(lines: list[Line], words: Counter[str]) -> list[_Paragraph]:
    """Lines of one column as paragraphs, each with the height of its lines."""
    if not lines:
        return []
    left, right = min(line.left for line in lines), max(line.right for line in lines)
    gaps = [one.bottom - other.top for one, other in itertools.pairwise(lines)]
    usual = statistics.median(gaps) if gaps else 0.0
    found: list[_Paragraph] = []
    before: Line | None = None
    for line in lines:
        if before is not None and not _begins(line, before, left, right, usual):
            _join(found[-1], line.text, words)
        else:
            found.append(_Paragraph(line.height, [line.text]))
        before = line
    return found


def _begins(line: Line, before: Line, left: float, right: float, usual: float) -> bool:
    """Whether a paragraph begins with a line."""
    height = max(1.0, before.height)
    if before.bottom - line.top > max(usual, 0.0) + 0.45 * height:
        return True
    if abs(line.height - before.height) > 0.15 * height and min(len(line.text), len(before.text)) > 3:
        return True
    if _BULLET.match(line.text):
        return True
    short = before.right < right - 0.12 * (right - left)
    if short and (_ENDS.search(before.text) or _NUMBERED.match(line.text)):
        return True
    if _NUMBERED.match(line.text) and line.left < before.left - 2:
        return True
    indented = height * 0.7 < line.left - before.left < height * 4
    return indented and _ENDS.search(before.text) is not None


def _continues(last: _Paragraph, first: _Paragraph) -> bool:
    """Whether a paragraph continues on the next page or in the next column."""
    if abs(last.height - first.height) > 0.15 * max(1.0, last.height):
        return False
    return not _ENDS.search(last.pieces[-1]) and first.pieces[0][:1].islower() and sum(map(len, last.pieces[-2:])) > 20


def _join(paragraph: _Paragraph, following: str, words: Counter[str]) -> None:
    """Add a line to a paragraph; a word that is divided becomes whole."""
    pieces, last = paragraph.pieces, paragraph.pieces[-1]
    divided, begins = _DIVIDED.search(last), _BEGINS_LOWER.match(following)
    if divided is None or begins is None or not begins[1][0].islower():
        if not _is_unspaced(last[-1:], following[:1]):
            following = f" {following}"
    else:
        whole, hyphenated = (divided[1] + begins[1]).lower(), f"{divided[1]}-{begins[1]}".lower()
        pieces[-1] = last[:-1] + ("-" if words[hyphenated] > words[whole] else "")
    pieces.append(following)


def _is_unspaced(one: str, other: str) -> bool:
    """Whether both characters are of a script that does not separate words."""
    return all("\u2e80" <= each <= "\u9fff" or "\uff00" <= each <= "\uffef" for each in (one, other) if each)


def _shown(text: str, size: float, markdown: bool) -> str:
    text = text.replace("\u0002", "-").replace("\u00ad", "")
    if not markdown:
        return text
    if _BULLET.match(text):
        return _BULLET.sub("- ", text)
    if size >= 1.15 and len(text) <= 200:
        return f"{'#' if size >= 1.8 else '##' if size >= 1.35 else '###'} {text}"
    return text
