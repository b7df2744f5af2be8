"""The text of Office files: docx, pptx, xlsx (ECMA-376) and odt, odp, ods (ISO/IEC 26300).

Each part is parsed in one pass. Headers, footers, comments, deleted text and notes of speakers are left out; footnotes follow
the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tamis.web.blocks import Blocks
from tamis.web.packages import Package, parse

_HEADING = re.compile(r"heading (\d)", re.IGNORECASE)
_TRUE = ("1", "true", "on", None)
_MOST_SPACES = 100
"""An element of OpenDocument stands for any number of spaces."""


@dataclass(frozen=True)
class Text:
    """The text and the title of a document."""

    text: str
    title: str | None = None
    pages: int | None = None


def office_to_text(package: Package, kind: str, *, markdown: bool, max_depth: int, max_pages: int) -> Text:
    """The text of an Office file of this kind."""
    blocks = Blocks(markdown=markdown)
    pages = None
    if kind == "docx":
        _Word(package, blocks, markdown, max_depth).read()
    elif kind == "pptx":
        pages = _read_slides(package, blocks, max_depth, max_pages)
    elif kind == "xlsx":
        pages = _read_sheets(package, blocks, max_depth, max_pages)
    else:
        _OpenDocument(blocks, kind).read(package.read("content.xml"), max_depth)
    return Text(str(blocks), _title(package, kind), pages)


def _title(package: Package, kind: str) -> str | None:
    found: list[str] = []
    inside = False

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal inside
        inside = tag == "title"

    def text(data: str) -> None:
        if inside:
            found.append(data)

    def end(tag: str) -> None:
        nonlocal inside
        inside = False

    parse(package.read("meta.xml" if kind[:2] == "od" else "docProps/core.xml"), start, end, text)
    return " ".join("".join(found).split()) or None


# -------------------------------------------------------------------------------------------------------------------- docx


@dataclass
class _Paragraph:
    parts: list[str] = field(default_factory=list)
    heading: int = 0
    item: int = 0


class _Word:
    def __init__(self, package: Package, blocks: Blocks, markdown: bool, max_depth: int) -> None:
        self._package, self._blocks, self._markdown, self._max_depth = package, blocks, markdown, max_depth
        self._headings = self._styles()
        self._paragraphs: list[_Paragraph] = []  # those that are open: a text box is within another one
        self._skipped = 0
        self._tables: list[list[list[str]]] = []
        self._bold = self._italic = False
        self._in_text = False

    def _styles(self) -> dict[str, int]:
        """The levels of styles that are headings, by identifier, whatever their name in the language of the author."""
        found: dict[str, int] = {}
        here = ""

        def start(tag: str, attributes: dict[str, str]) -> None:
            nonlocal here
            if tag == "style":
                here = attributes.get("styleId", "")
            elif tag == "name" and here:
                name = attributes.get("val", "")
                match = _HEADING.fullmatch(name)
                if match or name.lower() == "title":
                    found[here] = int(match[1]) if match else 1
            elif tag == "outlineLvl" and here and attributes.get("val", "9") in "012345":
                found.setdefault(here, int(attributes["val"]) + 1)

        parse(self._package.read("word/styles.xml"), start)
        return found

    def read(self) -> None:
        for part in ("word/document.xml", "word/footnotes.xml", "word/endnotes.xml"):
            self._paragraphs, self._tables, self._skipped = [], [], 0
            parse(self._package.read(part), self._start, self._end, self._text, self._max_depth)

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if self._skipped or tag in ("Fallback", "del", "moveFrom", "instrText"):
            self._skipped += 1
            return
        paragraph = self._paragraphs[-1] if self._paragraphs else None
        if tag == "p":
            self._paragraphs.append(_Paragraph())
        elif tag == "tbl":
            self._tables.append([])
        elif tag == "tr" and self._tables:
            self._tables[-1].append([])
        elif tag == "tc" and self._tables and self._tables[-1]:
            self._tables[-1][-1].append("")
        elif tag == "r":
            self._bold = self._italic = False
        elif paragraph is None:
            return
        elif tag == "t":
            self._in_text = True
        elif tag in ("tab", "br", "cr"):
            paragraph.parts.append("\n" if tag != "tab" else " ")
        elif tag == "noBreakHyphen":
            paragraph.parts.append("-")
        elif tag == "pStyle":
            paragraph.heading = self._headings.get(attributes.get("val", ""), 0)
        elif tag == "ilvl":
            paragraph.item = (
                int(attributes.get("val", "0")[:1] or 0) + 1 if attributes.get("val", "").isdecimal() else 1
            )
        elif tag == "numPr":
            paragraph.item = paragraph.item or 1
        elif tag == "b":
            self._bold = attributes.get("val") in _TRUE
        elif tag == "i":
            self._italic = attributes.get("val") in _TRUE

    def _text(self, data: str) -> None:
        if self._in_text and not self._skipped:
            mark = "**" * self._bold + "*" * self._italic if self._markdown and data.strip() else ""
            # Spaces within marks are no marks in Markdown.
            begin, end = len(data) - len(data.lstrip()), len(data.rstrip())
            shown = f"{data[:begin]}{mark}{data[begin:end]}{mark}{data[end:]}" if mark else data
            self._paragraphs[-1].parts.append(shown)

    def _end(self, tag: str) -> None:
        if self._skipped:
            self._skipped -= 1
        elif tag == "t":
            self._in_text = False
        elif tag == "p" and self._paragraphs:
            self._end_paragraph(self._paragraphs.pop())
        elif tag == "tbl" and self._tables:
            rows = self._tables.pop()
            if self._tables and self._tables[-1] and self._tables[-1][-1]:  # a table in a cell
                self._tables[-1][-1][-1] += " " + " ".join(cell for row in rows for cell in row)
            else:
                self._blocks.table(rows)

    def _end_paragraph(self, paragraph: _Paragraph) -> None:
        text = "".join(paragraph.parts).replace("****", "")
        if self._tables and self._tables[-1] and self._tables[-1][-1]:
            self._tables[-1][-1][-1] += f" {text}"
        elif paragraph.heading:
            self._blocks.heading(paragraph.heading, text.replace("*", ""))
        elif paragraph.item:
            self._blocks.item(paragraph.item, text)
        else:
            self._blocks.paragraph(text)


# -------------------------------------------------------------------------------------------------------------------- pptx


def _read_slides(package: Package, blocks: Blocks, max_depth: int, max_pages: int) -> int:
    """Slides in the order of the presentation."""
    relations = package.relations("ppt/presentation.xml")
    order: list[str] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        if tag == "sldId" and attributes.get("id") in relations:
            order.append(relations[attributes["id"]])

    parse(_with_one_id(package.read("ppt/presentation.xml")), start)
    for part in order[:max_pages]:
        _read_slide(package.read(part), blocks, max_depth)
    return len(order)


def _with_one_id(data: bytes) -> bytes:
    """`<p:sldId id="256" r:id="rId2"/>` has two attributes with the same local name; the second is needed."""
    return re.sub(rb"(<(?:\w+:)?sldId\s[^>]*?)(?<![\w:])id=\"\d+\"", rb"\1", data)


def _read_slide(data: bytes, blocks: Blocks, max_depth: int) -> None:
    parts: list[str] = []
    rows: list[list[str]] = []
    title = inside = False
    level = 1

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal title, inside, level
        if tag == "sp":
            title = False
        elif tag == "ph":
            title = attributes.get("type") in ("title", "ctrTitle")
        elif tag == "pPr":
            given = attributes.get("lvl", "0")
            level = int(given) + 1 if given in "012345678" else 1
        elif tag == "p":
            parts.clear()
            level = 1
        elif tag == "br":
            parts.append("\n")
        elif tag == "tr":
            rows.append([])
        elif tag == "tc" and rows:
            rows[-1].append("")
        inside = tag == "t"

    def text(data: str) -> None:
        if inside:
            parts.append(data)

    def end(tag: str) -> None:
        nonlocal inside
        inside = False
        if tag == "tbl":
            blocks.table(rows)
            rows.clear()
        elif tag == "p":
            shown = "".join(parts)
            parts.clear()
            if rows and rows[-1]:
                rows[-1][-1] += f" {shown}"
            elif title:
                blocks.heading(2, shown.replace("\n", " "))
            elif level > 1:
                blocks.item(level, shown)
            else:
                blocks.paragraph(shown)

    parse(data, start, end, text, max_depth)


# -------------------------------------------------------------------------------------------------------------------- xlsx


def _read_sheets(package: Package, blocks: Blocks, max_depth: int, max_pages: int) -> int:
    relations = package.relations("xl/workbook.xml")
    sheets: list[tuple[str, str]] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        if (
            tag == "sheet"
            and attributes.get("id") in relations
            and attributes.get("state") not in ("hidden", "veryHidden")
        ):
            sheets.append((attributes.get("name", ""), relations[attributes["id"]]))

    parse(package.read("xl/workbook.xml"), start)
    shared = _shared_strings(package.read("xl/sharedStrings.xml"))
    for name, part in sheets[:max_pages]:
        rows = _rows_of_sheet(package.read(part), shared, max_depth)
        if rows:
            blocks.heading(2, name)
            blocks.table(rows)
    return len(sheets)


def _shared_strings(data: bytes) -> list[str]:
    found: list[str] = []
    parts: list[str] = []
    inside = False
    phonetic = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal inside, phonetic
        phonetic += tag == "rPh"
        inside = tag == "t" and not phonetic
        if tag == "si":
            parts.clear()

    def text(value: str) -> None:
        if inside:
            parts.append(value)

    def end(tag: str) -> None:
        nonlocal inside, phonetic
        inside = False
        phonetic -= tag == "rPh"
        if tag == "si":
            found.append("".join(parts))

    parse(data, start, end, text)
    return found


def _rows_of_sheet(data: bytes, shared: list[str], max_depth: int) -> list[list[str]]:
    rows: list[list[str]] = []
    value: list[str] = []
    kind, inside = "", False

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal kind, inside
        if tag == "row":
            rows.append([])
        elif tag == "c":
            kind = attributes.get("t", "n")
            value.clear()
        inside = tag in ("v", "t")

    def text(data: str) -> None:
        if inside:
            value.append(data)

    def end(tag: str) -> None:
        nonlocal inside
        inside = False
        if tag == "c" and rows:
            shown = "".join(value)
            if kind == "s":
                shown = shared[int(shown)] if shown.isdecimal() and int(shown[:9]) < len(shared) else ""
            rows[-1].append(shown)

    parse(data, start, end, text, max_depth)
    return [row for row in rows if any(row)]


# ------------------------------------------------------------------------------------------------------------ OpenDocument


class _OpenDocument:
    def __init__(self, blocks: Blocks, kind: str) -> None:
        self._blocks, self._kind = blocks, kind
        self._paragraphs: list[tuple[int, list[str]]] = []  # (level of the heading, parts)
        self._notes: list[str] = []
        self._tables: list[list[list[str]]] = []
        self._lists = self._skipped = self._in_notes = 0

    def read(self, data: bytes, max_depth: int) -> None:
        parse(data, self._start, self._end, self._text, max_depth)
        for note in self._notes:
            self._blocks.paragraph(note)

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if self._skipped or tag in (
            "annotation",
            "tracked-changes",
            "note-citation",
            "notes",
            "forms",
            "automatic-styles",
        ):
            self._skipped += 1
        elif tag in ("p", "h"):
            level = attributes.get("outline-level", "1")
            heading = (int(level) if level in "123456" else 6) if tag == "h" else 0
            self._paragraphs.append((heading, []))
        elif tag == "list":
            self._lists += 1
        elif tag == "note-body":
            self._in_notes += 1
        elif tag == "table":
            self._tables.append([])
        elif tag == "table-row" and self._tables:
            self._tables[-1].append([])
        elif tag in ("table-cell", "covered-table-cell") and self._tables and self._tables[-1]:
            self._tables[-1][-1].append("")
        elif self._paragraphs and tag in ("s", "tab", "line-break"):
            count = attributes.get("c", "1")
            spaces = min(int(count[:4]), _MOST_SPACES) if count.isdecimal() else 1
            self._paragraphs[-1][1].append("\n" if tag == "line-break" else " " * spaces)

    def _text(self, data: str) -> None:
        if self._paragraphs and not self._skipped:
            self._paragraphs[-1][1].append(data.replace("\n", " "))

    def _end(self, tag: str) -> None:
        if self._skipped:
            self._skipped -= 1
        elif tag in ("p", "h") and self._paragraphs:
            heading, parts = self._paragraphs.pop()
            self._end_paragraph(heading, "".join(parts))
        elif tag == "list":
            self._lists -= 1
        elif tag == "note-body":
            self._in_notes -= 1
        elif tag == "table" and self._tables:
            rows = self._tables.pop()
            if self._tables and self._tables[-1] and self._tables[-1][-1]:
                self._tables[-1][-1][-1] += " " + " ".join(cell for row in rows for cell in row)
            else:
                self._blocks.table(rows)

    def _end_paragraph(self, heading: int, text: str) -> None:
        if self._in_notes:
            self._notes.append(text)
        elif self._tables and self._tables[-1] and self._tables[-1][-1]:
            self._tables[-1][-1][-1] += f" {text}"
        elif heading:
            self._blocks.heading(heading, text)
        elif self._lists and self._kind == "odt":
            self._blocks.item(self._lists, text)
        else:
            self._blocks.paragraph(text)
