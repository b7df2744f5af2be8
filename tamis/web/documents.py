"""The text of documents: PDF, LaTeX, EPUB, Office and HTML files.

    document (bytes or a reference)  -->  limits on its size  -->  `convert.py`, in a process of its own  -->  columns

PDF files, and those that are compressed, are always decoded in a process of its own, so that a decoder that crashes, loops or
takes too much memory costs one row. Other documents are if they are large.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pyarrow as pa

from tamis.batch import Batch, Column
from tamis.context import Context
from tamis.errors import ParameterError
from tamis.media import MediaItem, is_media, media_items
from tamis.operators import Filter, Resources, Rule, Scores, operator
from tamis.parameters import parse_bytes
from tamis.sources.download import OutcomeRule
from tamis.web.alone import Alone
from tamis.web.convert import KINDS, convert, too_large

_TYPES = {"pages": pa.int32()}
_MOST_PAGES = 100_000
_ALONE_FROM = (b"%PDF", b"PK\3\4", b"\x1f\x8b")


@dataclass(frozen=True)
class _Extract(Filter):
    """A filter that makes text of documents."""

    format: Literal["text", "markdown"] = "text"
    column: str = "document"
    to: str = "text"
    max_bytes: int | str = "100MB"
    max_unpacked: int | str = "200MB"
    alone_bytes: int | str = "1MB"
    timeout_s: float = 60.0
    max_memory: int | str = "1GB"

    incidental = frozenset({"alone_bytes", "timeout_s", "max_memory"})
    measuring_parameters = frozenset(
        {"max_bytes", "max_unpacked", "max_memory", "max_pages", "max_depth", "max_expansion"}
    )
    declared_resources = Resources(memory="250MB")
    cost = 1000.0
    also_written: ClassVar[tuple[str, ...]] = ("title",)

    @property
    def adds_scores(self) -> bool:
        return True

    def score_columns(self) -> dict[str, str]:
        return {"text": self.to} | {name: name for name in (*self.also_written, "extraction")}

    def writes(self) -> tuple[str, ...]:
        return tuple(self.score_columns().values())

    def check(self) -> None:
        for name in ("max_bytes", "max_unpacked", "alone_bytes", "max_memory"):
            if parse_bytes(getattr(self, name)) < (0 if name == "alone_bytes" else 1):
                raise ParameterError(f"`{name}` of `{self.name}` must be at least 1")
        if not self.timeout_s > 0:
            raise ParameterError(f"`timeout_s` of `{self.name}` must be more than 0")
        if self.to in (*self.also_written, "extraction"):
            raise ParameterError(f"`to` of `{self.name}` cannot be `{self.to}`, which has another meaning")
        pages = getattr(self, "max_pages", 1)
        if not 1 <= pages <= _MOST_PAGES:
            raise ParameterError(f"`max_pages` of `{self.name}` must be from 1 to {_MOST_PAGES:,}")

    def rules(self) -> list[Rule]:
        return [OutcomeRule("extraction")]

    def kinds_read(self) -> Sequence[str]:
        raise NotImplementedError

    def request(self) -> dict[str, Any]:
        """What `convert` needs to know."""
        return {
            "kinds": list(self.kinds_read()),
            "format": self.format,
            "max_bytes": parse_bytes(self.max_bytes),
            "max_unpacked": parse_bytes(self.max_unpacked),
            "max_pages": getattr(self, "max_pages", _MOST_PAGES),
            "max_depth": getattr(self, "max_depth", 512),
            "max_expansion": getattr(self, "max_expansion", 1_000_000),
            "tables": getattr(self, "tables", "text") == "text",
        }

    def packages(self) -> Mapping[str, str]:
        found = {"pypdfium2": "web"} if "pdf" in self.kinds_read() else {}
        return found | ({"resiliparse": "web"} if {"html", "epub", "text"} & set(self.kinds_read()) else {})

    def open(self, context: Context) -> Any:
        return _Extracting(self, context.memory_bytes)


@operator(reads="document", writes=("text", "title", "extraction"))
class LatexExtract(_Extract):
    r"""Make text of LaTeX sources, and drop documents that are none, with the reason.

    Macros that the document defines are expanded, also those with arguments, in text and in formulas. Formulas are kept as
    `$...$` and `$$...$$`; comments, the preamble, the bibliography, references to it and figures are removed, and captions
    and footnotes become paragraphs. `tables="text"` keeps tables; `format="markdown"` keeps headings, lists, emphasis, code and
    links.

    The column holds sources as text, or documents: a TeX file, a compressed one, or a compressed tar file of all files of a
    paper, as `ArxivReader` reads them. Of several files, the one that begins the document is converted, with those that it
    includes. Macros that produce more than `max_expansion` tokens drop the document. Reasons: `not LaTeX`, `no text`,
    `withdrawn`, `macros expand too far`, `nested deeper than 200`, `truncated`, `damaged`, `larger than 100 MB`.

    >>> from tamis import Pipeline, Rows
    >>> source = r"\documentclass{article}\newcommand{\R}{\mathbb{R}}\begin{document}Let $x \in \R$.\end{document}"
    >>> Pipeline(Rows([{"latex": source}]), LatexExtract(column="latex")).collect()["text"].to_pylist()
    ['Let $x \\in \\mathbb{R}$.']
    """

    tables: Literal["drop", "text"] = "drop"
    max_expansion: int = 1_000_000

    cost = 300.0

    def kinds_read(self) -> Sequence[str]:
        return ("latex",)


@operator(reads="document", writes=("text", "title", "pages", "extraction"))
class PdfExtract(_Extract):
    """Make text of PDF files, and drop documents that are none, with the reason.

    Lines are read column by column and become paragraphs; words that are divided at the end of a line are joined; headers,
    footers and page numbers that at least three pages have are removed. `format="markdown"` marks headings, by the size of
    their font, and items. Columns `title` and `pages` come from the file. Pages that are pictures have no text: `no text`.

    Files are read by PDFium in a process of its own, in which a file that crashes it, takes more than `timeout_s` of CPU time,
    or more than `max_memory` or the worker's share of memory, fails. Reasons: `not PDF`, `encrypted`, `damaged`, `no text`,
    `more than 5,000 pages`, `larger than 100 MB`. A file that opens with an empty password is not encrypted for this purpose.

    >>> PdfExtract(format="markdown", max_pages=500).writes()
    ('text', 'title', 'pages', 'extraction')
    """

    max_pages: int = 5_000

    also_written = ("title", "pages")

    def kinds_read(self) -> Sequence[str]:
        return ("pdf",)


@operator(reads="document", writes=("text", "title", "kind", "pages", "extraction"))
class DocumentExtract(_Extract):
    """Make text of documents of any kind: PDF, HTML, EPUB, Office (docx, pptx, xlsx, odt, odp, ods), LaTeX and plain text.

    The content of a document decides about its kind, not its name: a ZIP file that is called a page is dropped as `no document:
    zip`. `kinds` selects some of them. PDF is read as by `PdfExtract`, LaTeX as by `LatexExtract`, HTML by the fast extractor
    of `HtmlExtract`. Of Office files, headers, footers, comments and deleted text are left out; tables are rows with ` | `
    between cells. Books are read in the order of their spine. `format="markdown"` keeps headings, lists and tables.

    Columns: `title`, `kind`, `pages` (of PDF; slides, sheets, chapters). Reasons: `encrypted`, `damaged`, `no text`,
    `no document: binary`, `more than 5,000 pages`, `nested deeper than 512`, `declares entities`,
    `expands more than 250 times`, `larger than 100 MB`, `larger than 200 MB when unpacked`.

    >>> from tamis import Pipeline, Rows
    >>> row = {"document": "<html><title>A</title><body><p>" + "One two three four five. " * 5 + "</p></body></html>"}
    >>> Pipeline(Rows([row]), DocumentExtract()).collect().to_pylist()[0]["kind"]
    'html'
    """

    kinds: Sequence[Literal[*KINDS]] = KINDS  # type: ignore[valid-type]
    max_pages: int = 5_000
    max_depth: int = 512

    also_written = ("title", "kind", "pages")

    def check(self) -> None:
        super().check()
        if not self.kinds:
            raise ParameterError(f"`kinds` of `{self.name}` selects none", hint='kinds=["pdf", "html"]')
        if not 1 <= self.max_depth <= 2_000:
            raise ParameterError(f"`max_depth` of `{self.name}` must be from 1 to 2,000")

    def kinds_read(self) -> Sequence[str]:
        return tuple(self.kinds)


class _Extracting:
    """An `_Extract` in a worker."""

    def __init__(self, step: _Extract, share_bytes: int | None) -> None:
        self._step, self._request = step, step.request()
        memory = parse_bytes(step.max_memory)
        if share_bytes is not None:
            memory = min(memory, max(share_bytes, step.declared_resources.memory_bytes))
        self._most, self._alone_from = parse_bytes(step.max_bytes), parse_bytes(step.alone_bytes)
        self._alone = Alone("tamis.web.convert", "convert", step.timeout_s, memory)
        self._given = ".tex" if self._request["kinds"] == ["latex"] else ""  # of a text without a name
        self._known: dict[
            tuple[str, object], dict[str, Any] | Exception
        ] = {}  # results of a batch that is being divided

    def score(self, batch: Batch) -> Scores:
        names = ("text", *self._step.also_written, "extraction")
        columns: dict[str, list[Any]] = {name: [] for name in names}
        found: dict[tuple[str, object], dict[str, Any] | Exception] = {}
        for row, item in enumerate(_items(batch, "document")):
            address = batch.origin.address(row), _mark(item)
            if address in self._known:
                values = self._known[address]
            else:
                try:
                    values = self._values(item)
                except Exception as error:  # noqa: BLE001  raised again below: other rows are not to be read twice
                    values = error
            found[address] = values
            if not isinstance(values, Exception):
                for name, column in columns.items():
                    column.append(values.get("outcome" if name == "extraction" else name))
        errors = [each for each in found.values() if isinstance(each, Exception)]
        if errors and len(found) > 1:  # the engine comes back with a half of the rows
            self._known |= found
        else:
            self._known = {key: value for key, value in self._known.items() if key not in found}
        if errors:
            raise errors[0]
        return {name: pa.array(values, _TYPES.get(name, pa.string())) for name, values in columns.items()}

    def _values(self, item: str | bytes | MediaItem | None) -> dict[str, Any]:
        if item is None or item in ("", b""):
            return {"outcome": "no document"}
        if isinstance(item, MediaItem):
            with item.open() as file:
                size = file.seek(0, io.SEEK_END)
                reason = too_large(size, self._most)
                if reason is not None:
                    return {"outcome": reason}
                file.seek(0)
                data, name = file.read(), item.name
        else:
            data, name = (item.encode("utf-8", "replace"), "") if isinstance(item, str) else (item, "")
            reason = too_large(len(data), self._most)
            if reason is not None:
                return {"outcome": reason}
        if not data:
            return {"outcome": "no document"}
        request = self._request | {"name": name or self._given}
        if (
            len(data) > self._alone_from
            or data[:4] in _ALONE_FROM
            or data[:2] == b"\x1f\x8b"
            or b"%PDF-" in data[:1024]
        ):
            result = dict(self._alone.call(request, data))
        else:
            result = convert(request, data)
        if result["outcome"] != "ok":
            result["text"] = None
        return result

    def close(self) -> None:
        self._alone.close()


def _mark(item: str | bytes | MediaItem | None) -> object:
    """What distinguishes documents at the same address, without comparing them as a whole."""
    if isinstance(item, MediaItem):
        return item.path, None if item.data is None else len(item.data)
    return hash(item)


def _items(batch: Batch, column: str) -> list[str | bytes | MediaItem | None]:
    """The documents of a column, which holds media, texts or bytes."""
    values: Column = batch[column]
    if is_media(values.type) or pa.types.is_struct(values.type):
        return list(media_items(batch, column))
    return list(values.to_pylist())
