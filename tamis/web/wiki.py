"""The text of wiki pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Column
from tamis.errors import ParameterError
from tamis.operators import Map, operator
from tamis.parameters import parse_bytes
from tamis.web.wikitext import Options, wikitext_to_text


@operator(reads="wikitext", writes="text")
class WikitextExtract(Map):
    """Make text of the markup of MediaWiki, in column `text`.

    Links become their labels, formulas `$...$`; references, templates, files, categories, links to other wikis and empty
    sections are removed. Templates that show a text (`{{lang|fr|...}}`, `{{convert|5|km}}`) become it. `tables="text"` and
    `infoboxes="text"` keep these as lines; `format="markdown"` keeps headings, lists and emphasis. A page of more than
    `max_bytes` fails.

    >>> from tamis import Pipeline, Rows
    >>> Pipeline(Rows([{"wikitext": "'''Rye''' is a [[cereal|grain]]."}]), WikitextExtract()).collect()["text"].to_pylist()
    ['Rye is a grain.']
    """

    format: Literal["text", "markdown"] = "text"
    tables: Literal["drop", "text"] = "drop"
    infoboxes: Literal["drop", "text"] = "drop"
    max_bytes: int | str = "20MB"
    column: str = "wikitext"
    to: str = "text"

    cost = 20.0

    def check(self) -> None:
        if parse_bytes(self.max_bytes) < 1:
            raise ParameterError(f"`max_bytes` of `{self.name}` must be at least 1")

    def writes(self) -> tuple[str, ...]:
        return (self.to,)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        options = Options(self.format == "markdown", self.tables == "text", self.infoboxes == "text")
        most = parse_bytes(self.max_bytes)
        texts: list[str | None] = []
        for source in batch["wikitext"].to_pylist():
            if source is not None and len(source) > most:
                raise ValueError(f"the page has {len(source):,} characters, more than `max_bytes` allows")
            texts.append(None if source is None else wikitext_to_text(source, options))
        return {self.to: pa.array(texts, pa.string())}
