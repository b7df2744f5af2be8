"""Documents that are zip archives of XML: which kind they are, and their parts, with limits on what is unpacked.

A part is read only if the directory says that it is small enough and does not expand implausibly far; entities are refused, so
that no file can expand further while it is parsed or lead to another one.
"""

from __future__ import annotations

import io
import posixpath
from collections.abc import Callable
from typing import Any
from xml.parsers import expat

from tamis.parameters import format_bytes
from tamis.sources import zip as zips

MOST_PARTS = 20_000
_SMALL = 1_000_000
_MOST_EXPANSION = 250
_MIMETYPES = {
    "application/epub+zip": "epub",
    "application/vnd.oasis.opendocument.text": "odt",
    "application/vnd.oasis.opendocument.presentation": "odp",
    "application/vnd.oasis.opendocument.spreadsheet": "ods",
}
_OFFICE = {"word/document.xml": "docx", "ppt/presentation.xml": "pptx", "xl/workbook.xml": "xlsx"}


class Unacceptable(Exception):
    """Why a document is dropped."""


class Package:
    """The parts of a document."""

    def __init__(self, data: bytes | memoryview, max_bytes: int) -> None:
        self._file = io.BytesIO(data)
        self._left = self._max_bytes = max_bytes
        self.parts: dict[str, zips.Entry] = {}
        try:
            directory = zips.find_directory(self._file)
            if directory.count > MOST_PARTS:
                raise Unacceptable(f"more than {MOST_PARTS:,} parts")
            for entry in zips.entries(self._file, directory):
                if not entry.is_folder:
                    self.parts.setdefault(entry.name, entry)
                if len(self.parts) > MOST_PARTS:
                    raise Unacceptable(f"more than {MOST_PARTS:,} parts")
        except zips.ZipDamage as damage:
            raise Unacceptable("damaged") from damage

    def kind(self) -> str:
        """The kind of document; "zip" for any other archive."""
        if "mimetype" in self.parts and self.parts["mimetype"].size < 200:
            name = self.read("mimetype").decode("ascii", "replace").strip()
            if name in _MIMETYPES:
                return _MIMETYPES[name]
        if "META-INF/container.xml" in self.parts:
            return "epub"
        if "[Content_Types].xml" in self.parts:
            return next((kind for part, kind in _OFFICE.items() if part in self.parts), "zip")
        return "zip"

    def read(self, name: str) -> bytes:
        """The content of a part, or nothing if there is no such part."""
        entry = self.parts.get(name)
        if entry is None:
            return b""
        if entry.size > _SMALL and entry.size > _MOST_EXPANSION * max(1, entry.packed):
            raise Unacceptable(f"expands more than {_MOST_EXPANSION} times")
        self._left -= entry.size
        if self._left < 0:
            raise Unacceptable(f"larger than {format_bytes(self._max_bytes)} when unpacked")
        try:
            return zips.content(self._file, entry)
        except zips.BadEntry as error:
            raise Unacceptable("encrypted" if entry.is_encrypted else "damaged") from error

    def relations(self, part: str) -> dict[str, str]:
        """The parts that a part of an Office file refers to, by identifier."""
        folder, name = posixpath.split(part)
        found: dict[str, str] = {}

        def start(tag: str, attributes: dict[str, str]) -> None:
            if tag == "Relationship" and attributes.get("TargetMode") != "External" and "Target" in attributes:
                target = attributes["Target"]
                where = target.lstrip("/") if target.startswith("/") else posixpath.join(folder, target)
                found[attributes.get("Id", "")] = posixpath.normpath(where)

        parse(self.read(f"{folder}/_rels/{name}.rels".lstrip("/")), start)
        return found


def parse(
    data: bytes,
    start: Callable[[str, dict[str, str]], None],
    end: Callable[[str], None] | None = None,
    text: Callable[[str], None] | None = None,
    max_depth: int = 500,
) -> None:
    """Call a function for each beginning and end of an element, by local names, and for texts."""
    if not data:
        return
    parser: Any = expat.ParserCreate(namespace_separator=" ")
    depth = 0

    def starting(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > max_depth:
            raise Unacceptable(f"nested deeper than {max_depth}")
        start(name.rpartition(" ")[2], {key.rpartition(" ")[2]: value for key, value in attributes.items()})

    def ending(name: str) -> None:
        nonlocal depth
        depth -= 1
        if end is not None:
            end(name.rpartition(" ")[2])

    def entity(*_: object) -> None:
        raise Unacceptable("declares entities")

    parser.StartElementHandler, parser.EndElementHandler = starting, ending
    parser.EntityDeclHandler = entity
    parser.buffer_text = True
    if text is not None:
        parser.CharacterDataHandler = text
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise Unacceptable("damaged") from error
