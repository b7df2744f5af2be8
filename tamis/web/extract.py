"""The text of web pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pyarrow as pa

from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import ParameterError
from tamis.operators import Filter, Resources, Rule, Scores, operator
from tamis.parameters import format_bytes, parse_bytes
from tamis.sources.download import OutcomeRule
from tamis.sources.http import OK
from tamis.web import fast_html
from tamis.web.alone import Alone, TookTooLong
from tamis.web.charset import decode_page, is_text
from tamis.web.extractors import Settings, extract_of, language_of, published, request_of, title_of

_METADATA = {
    "title": pa.string(),
    "page_date": pa.string(),
    "page_language": pa.string(),
    "links": pa.list_(pa.string()),
}
_MOST_LINKS = 10_000


@operator(reads="html", writes=("text", "title", "page_date", "page_language", "links", "extraction"), version=2)
class HtmlExtract(Filter):
    """Extract the text of HTML pages into a column, and drop pages without one, with the reason.

    `extractor`: "trafilatura" (Barbaresi 2021), "resiliparse" (Bevendorff et al. 2018), or "fast", a single pass over the
    tags with the decision tree of Kohlschuetter et al. 2010, which needs no other package. docs/from_crawl_to_trainer.md
    compares them. `format="markdown"` keeps headings, lists and code (not with resiliparse). `favor` and `deduplicate`
    (repeated segments of a page) are options of trafilatura. `metadata` selects columns: `title`, `page_date` (when it was
    published), `page_language` (as it declares), `links`.

    Pages of more than `max_bytes` or with elements nested deeper than `max_depth` are dropped: the same on every machine. Pages
    of more than `alone_bytes` are extracted in a process of its own, and a page that takes more than `timeout_s` of CPU time
    there fails. Reasons: `no HTML`, `not HTML` (an archive, a PDF or another binary file), `no text`, `larger than 10 MB`,
    `nested deeper than 512`.

    >>> from tamis import Pipeline, Rows
    >>> page = "<html><title>A</title><body><nav>Home</nav><p>" + "One two three four five. " * 5 + "</p></body></html>"
    >>> row = Pipeline(Rows([{"html": page}]), HtmlExtract(extractor="fast")).collect().to_pylist()[0]
    >>> row["title"], row["text"][:9]
    ('A', 'One two t')
    """

    extractor: Literal["trafilatura", "resiliparse", "fast"] = "trafilatura"
    format: Literal["text", "markdown"] = "text"
    favor: Literal["balanced", "precision", "recall"] = "balanced"
    deduplicate: bool = False
    metadata: Sequence[Literal["title", "page_date", "page_language", "links"]] = (
        "title",
        "page_date",
        "page_language",
    )
    column: str = "html"
    to: str = "text"
    max_bytes: int | str = "10MB"
    max_depth: int = 512
    alone_bytes: int | str = "1MB"
    timeout_s: float = 60.0

    incidental = frozenset({"alone_bytes", "timeout_s"})
    measuring_parameters = frozenset({"max_bytes", "max_depth"})
    declared_resources = Resources(memory="150MB")
    cost = 300.0

    @property
    def adds_scores(self) -> bool:
        return True

    def score_columns(self) -> dict[str, str]:
        return {"text": self.to} | {name: name for name in self.metadata} | {"extraction": "extraction"}

    def writes(self) -> tuple[str, ...]:
        return tuple(self.score_columns().values())

    def check(self) -> None:
        if self.format == "markdown" and self.extractor == "resiliparse":
            raise ParameterError("resiliparse writes no Markdown", hint='extractor="trafilatura" or "fast"')
        if not 1 <= self.max_depth <= fast_html.MAX_DEPTH:
            raise ParameterError(f"`max_depth` of `{self.name}` must be from 1 to {fast_html.MAX_DEPTH}")
        if not self.timeout_s > 0:
            raise ParameterError(f"`timeout_s` of `{self.name}` must be more than 0")
        if self.to in (*_METADATA, "extraction"):
            raise ParameterError(f"`to` of `{self.name}` cannot be `{self.to}`, which has another meaning")
        parse_bytes(self.max_bytes)
        parse_bytes(self.alone_bytes)

    def rules(self) -> list[Rule]:
        return [OutcomeRule("extraction")]

    def open(self, context: Context) -> Any:
        return _Extracting(self)


class _Extracting:
    """An `HtmlExtract` in a worker."""

    def __init__(self, step: HtmlExtract) -> None:
        self._step = step
        self._settings = Settings(step.extractor, step.format, step.favor, step.deduplicate)
        self._extract = extract_of(self._settings)
        self._alone = Alone("tamis.web.extractors", "extract_alone", step.timeout_s)
        self._most, self._alone_from = parse_bytes(step.max_bytes), parse_bytes(step.alone_bytes)
        self._too_slow: set[int] = set()

    def score(self, batch: Batch) -> Scores:
        columns: dict[str, list[Any]] = {name: [] for name in ("text", *self._step.metadata, "extraction")}
        for page in batch["html"].to_pylist():
            values = self._values(page)
            for name, column in columns.items():
                column.append(values.get(name))
        return {name: pa.array(values, _METADATA.get(name, pa.string())) for name, values in columns.items()}

    def _values(self, page: str | bytes | None) -> dict[str, Any]:
        if page is not None and not is_text(page):
            return {"extraction": "not HTML"}
        if isinstance(page, bytes):
            page = decode_page(page)[0]
        if page is None or not page.strip():
            return {"extraction": "no HTML"}
        if len(page) > self._most:
            return {"extraction": f"larger than {format_bytes(self._most)}"}
        with_links = "links" in self._step.metadata
        fast = self._step.extractor == "fast"
        parsed = fast_html.parse(page) if fast else fast_html.outline(page, links=with_links)
        if parsed.depth > self._step.max_depth:
            return {"extraction": f"nested deeper than {self._step.max_depth}"}
        text = self._text(page, parsed)
        values = {
            "text": text or None,
            "title": title_of(parsed),
            "page_date": published(parsed),
            "page_language": language_of(parsed),
            "extraction": OK if text else "no text",
        }
        return values | ({"links": parsed.links[:_MOST_LINKS]} if with_links else {})

    def _text(self, page: str, parsed: fast_html.Page) -> str:
        if self._step.extractor == "fast":  # linear in the size of the page
            return fast_html.main_text(parsed, markdown=self._step.format == "markdown")
        if len(page) <= self._alone_from:
            return self._extract(page).strip()
        if hash(page) in self._too_slow:  # the batch is being divided to find this row
            raise TookTooLong(f"took more than {self._step.timeout_s:g} s of CPU time")
        try:
            return str(self._alone.call(request_of(self._settings, page))).strip()
        except TookTooLong:
            self._too_slow.add(hash(page))
            raise

    def close(self) -> None:
        self._alone.close()
