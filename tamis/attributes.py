"""Attributes: scores and spans that are stored beside the data by id, and steps that decide by them later.

    tag       reader -> filters with score_only, PersonalDataSpans, ... -> ParquetWriter("attributes/", fields=["id", ...])
    decide    reader -> JoinAttributes("attributes/") -> Where(include=..., exclude=...) -> ReplaceSpans(...) -> writer

A run that decides reads the attributes of each batch by the ids of its rows, which an index on disk finds. If rows are in the
order in which they were tagged, each file of attributes is read once.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tamis.batch import Batch, Column, as_array
from tamis.context import Context
from tamis.errors import ParameterError, SourceError
from tamis.expressions import Expression, merged, parse
from tamis.operators import Filter, Map, Resources, Rule, Scores, digest, operator
from tamis.sources.files import File, fingerprint, list_files, open_file
from tamis.sources.id_lists import NAME, IdList, digests_of_ids, once, write_sorted

CACHE_BYTES = 64_000_000
"""Attributes that a worker keeps of the files it used last."""
_ROW_BITS = 36
"""Bits for the row in the number of a place; the others are for the row group."""

_parsed = functools.lru_cache(maxsize=256)(parse)


@dataclass(frozen=True)
class Condition(Rule):
    """Keeps a row if its score is not 0, with a reason of its own."""

    reason: str = ""

    def verdicts(self, values: Column) -> list[tuple[str, np.ndarray]]:
        return [(self.reason, np.asarray(pc.equal(values, 0).to_numpy(zero_copy_only=False), np.bool_))]


@operator()
class Where(Filter):
    """Keep rows for which all expressions of `include` are true and none of `exclude` is.

    Expressions compare columns with numbers and texts: `words >= 50 and language in ['en', 'de']`, `max(toxic.score) > 0.5`,
    `url matches '^https://'`, `title is null`, `covered(spans) / length(text) > 0.3`. They are parsed, and nothing is evaluated
    as Python; the functions are length, count, lower, abs, round, min, max, sum, mean and covered. A comparison with a null is
    not true. The expression is the reason for a drop.

    >>> from tamis import Pipeline, Rows
    >>> rows = [{"words": 80, "language": "en"}, {"words": 20, "language": "en"}, {"words": 90, "language": "xx"}]
    >>> report = Pipeline(Rows(rows), Where(include="words >= 50", exclude=["language == 'xx'"])).run()
    >>> report.dropped
    {'not words >= 50': 1, "language == 'xx'": 1}
    """

    include: str | Sequence[str] = ()
    exclude: str | Sequence[str] = ()

    def check(self) -> None:
        if not self._all():
            raise ParameterError("`where` has no expressions", hint='Where(include="words >= 50")')

    def _all(self) -> list[tuple[str, bool, Expression]]:
        """(name of the score, whether it must be true, expression)"""
        given = (("include", self.include), ("exclude", self.exclude))
        return [
            (f"{what}_{number}", what == "include", _parsed(text))
            for what, texts in given
            for number, text in enumerate([texts] if isinstance(texts, str) else texts, start=1)
        ]

    def reads(self) -> tuple[str, ...]:
        return tuple(sorted({name for _, _, each in self._all() for name in each.columns}))

    def score_columns(self) -> dict[str, str]:
        return {name: name for name, _, _ in self._all()}

    def score(self, batch: Batch) -> Scores:
        columns = {name: batch[name] for name in self.reads()}
        return {
            name: np.where(each.condition(columns, len(batch)), np.int8(wanted), np.int8(not wanted))
            for name, wanted, each in self._all()
        }

    def rules(self) -> list[Rule]:
        return [
            Condition(name, minimum=1, reason=f"not {each.text}" if wanted else each.text)
            for name, wanted, each in self._all()
        ]


@operator(reads="text", version=2)
class ReplaceSpans(Map):
    """Replace parts of a text by `replacement`, or remove them, as a column of spans says.

    A span is a struct with start, end and score, or a list of these three as dolma writes them; start and end count characters.
    Only spans with a score from `min_score` to `max_score` count, and those without a score. Spans that overlap are
    replaced as one. Spans that end behind the text end with it. `{}` in `replacement` stands for the part itself, as in dolma:
    "[EMAIL]{}[/EMAIL]" keeps it between marks.

    >>> from tamis import Pipeline, Rows
    >>> rows = [{"text": "call 555-1234 now", "phones": [{"start": 5, "end": 13, "score": 0.9}]}]
    >>> Pipeline(Rows(rows), ReplaceSpans(spans="phones", replacement="[PHONE]")).collect()["text"].to_pylist()
    ['call [PHONE] now']
    """

    spans: str
    replacement: str = ""
    min_score: float | None = None
    max_score: float | None = None
    column: str = "text"

    def reads(self) -> tuple[str, ...]:
        return ("text", self.spans)

    def writes(self) -> tuple[str, ...]:
        return (self.column,)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        texts, spans = as_array(batch["text"]), as_array(batch[self.spans])
        if pa.types.is_null(spans.type):
            return {self.column: texts}
        if not (pa.types.is_list(spans.type) or pa.types.is_large_list(spans.type)):
            raise ParameterError(f"column `{self.spans}` has type {spans.type}, not a list of spans")
        affected = pc.and_(pc.greater(pc.fill_null(pc.list_value_length(spans), 0), 0), pc.is_valid(texts))
        if not pc.any(affected).as_py():
            return {self.column: texts}
        pairs = zip(texts.filter(affected).to_pylist(), spans.filter(affected).to_pylist(), strict=True)
        replaced = pa.array([self._replaced(text, found) for text, found in pairs], texts.type)
        return {self.column: pc.replace_with_mask(texts, affected, replaced)}

    def _replaced(self, text: str, spans: Sequence[Any]) -> str:
        parts, at = [], 0
        for start, end in merged([span for span in spans if span is not None and self._counts(span)]):
            if start >= len(text):
                break
            parts += [text[at:start], self.replacement.replace("{}", text[start:end])]
            at = end
        return "".join([*parts, text[at:]])

    def _counts(self, span: Any) -> bool:
        score = span.get("score") if isinstance(span, Mapping) else span[2] if len(span) > 2 else None
        if score is None:
            return True
        return (self.min_score is None or score >= self.min_score) and (
            self.max_score is None or score <= self.max_score
        )


# ------------------------------------------------------------------------------------------------------ joining by id


@operator()
class JoinAttributes(Map):
    """Add columns from Parquet files that were written beside the data, by the id of each row.

    `paths` are files or folders of any earlier run, such as one with filters that only score. `fields` are the columns to add;
    by default all but `id`, none of which the rows may have already. A row without an entry gets nulls, and the report counts
    such rows; of several entries with one id, the first counts. Ids are compared as texts.

    An index of the ids is written to the scratch folder of the run once per machine: 24 bytes per entry. Fast if rows are in
    the order in which the attributes were written: each row group is then read once. Otherwise a batch may need many row
    groups, of which a worker keeps those used last, up to 64 MB.

        JoinAttributes("attributes/quality/", fields=["words", "toxic"])
    """

    paths: str | Path | Sequence[str | Path]
    fields: Sequence[str] | None = None
    id: str = "id"
    storage_options: Mapping[str, Any] | None = None

    incidental = frozenset({"paths", "storage_options"})
    declared_resources = Resources(memory=2 * CACHE_BYTES)

    def files(self) -> list[File]:
        return list_files(self.paths, "parquet", self.storage_options)

    def check(self) -> None:
        known = self._schema().names
        for name in (self.id, *(self.fields or ())):
            if name not in known:
                raise ParameterError(
                    f"the attributes in {self.paths} have no column `{name}`", hint=f"they have {', '.join(known)}"
                )

    def _schema(self) -> pa.Schema:
        files = self.files()
        if not files:
            raise SourceError(
                f"there are no Parquet files in {self.paths}", hint="name the output of the run that tagged"
            )
        with open_file(files[0].path, self.storage_options) as opened:
            return pq.read_schema(opened)

    def reads(self) -> tuple[str, ...]:
        return (self.id,)

    def writes(self) -> tuple[str, ...]:
        if self.fields is not None:
            return tuple(self.fields)
        return tuple(name for name in self._schema().names if name != self.id)

    def adds(self) -> tuple[str, ...]:
        return self.writes() if self.fields is None else ()

    def identity(self) -> dict[str, Any]:
        return super().identity() | {"files": digest([fingerprint(file) for file in self.files()])}

    def open(self, context: Context) -> _Joining:
        return _Joining(self, Lookup.of(context, self.files(), self.id, self.writes(), self.storage_options))


class _Joining:
    def __init__(self, step: JoinAttributes, lookup: Lookup) -> None:
        self._step, self._lookup = step, lookup
        self._missing = 0

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        found, known = self._lookup.find(as_array(batch[self._step.id]))
        self._missing += int(np.count_nonzero(~known))
        return {name: found[name] for name in self._step.writes()}

    def take_counts(self) -> dict[str, float]:
        taken, self._missing = self._missing, 0
        return {"rows_without_attributes": float(taken)} if taken else {}


class Lookup:
    """Finds rows of Parquet files by a key. Of several rows with one key, the first counts.

    An index on disk says in which row group and row each key is. The row groups that were used last are kept in memory.
    """

    def __init__(
        self,
        files: Sequence[File],
        key: str,
        columns: Sequence[str],
        folder: Path,
        storage_options: Mapping[str, Any] | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """Of several processes with one `folder`, the first writes the index there."""
        self._files, self._key, self._columns = list(files), key, list(columns)
        self._options, self._most_bytes = storage_options, cache_bytes
        self._kept: OrderedDict[int, pa.Table] = OrderedDict()
        self._kept_bytes = 0
        self._places: list[tuple[int, int]] = []
        self._num_rows = 0
        schemas = []
        for number, file in enumerate(self._files):
            with open_file(file.path, storage_options) as opened:
                found = pq.ParquetFile(opened)
                self._places += [(number, group) for group in range(found.num_row_groups)]
                self._num_rows += found.metadata.num_rows
                schemas.append(found.schema_arrow)
        unified = pa.unify_schemas(schemas, promote_options="permissive") if schemas else pa.schema([])
        self.schema = pa.schema([unified.field(name) for name in self._columns]).remove_metadata()
        once(folder, lambda: self._write_index(folder))
        self._index = IdList(folder / NAME, numbers=1)

    @staticmethod
    def of(
        context: Context,
        files: Sequence[File],
        key: str,
        columns: Sequence[str],
        storage_options: Mapping[str, Any] | None = None,
    ) -> Lookup:
        """A lookup whose index is shared by the workers of a machine."""
        name = digest([key, [fingerprint(file) for file in files]])
        return Lookup(files, key, columns, context.shared_folder() / f"places-{name}", storage_options)

    def _write_index(self, folder: Path) -> None:
        write_sorted(self._records(), folder, self._num_rows, numbers=1)

    def _records(self) -> Iterator[np.ndarray]:
        """The digest of each key, and where it is."""
        for number, (file, group) in enumerate(self._places):
            with open_file(self._files[file].path, self._options) as opened:
                at = number << _ROW_BITS
                for batch in pq.ParquetFile(opened).iter_batches(row_groups=[group], columns=[self._key]):
                    digests, known = digests_of_ids(batch.column(0).cast(pa.large_string()))
                    rows = np.arange(at, at + len(digests), dtype=np.uint64)
                    yield np.column_stack([digests, rows])[known]
                    at += len(digests)

    def find(self, keys: pa.Array) -> tuple[dict[str, pa.Array], np.ndarray]:
        """The columns for each key, null where there is no entry, and which keys have one."""
        at = self._index.numbers(keys.cast(pa.large_string()))
        known = at >= 0
        order = np.argsort(at, kind="stable")[np.count_nonzero(~known) :]
        borders = np.flatnonzero(np.diff(at[order] >> _ROW_BITS, prepend=-1))
        pieces = [self.schema.empty_table()]
        for rows in np.split(order, borders[1:]) if len(order) else []:
            unit = self._unit(int(at[rows[0]] >> _ROW_BITS))
            pieces.append(unit.take(pa.array(at[rows] & ((1 << _ROW_BITS) - 1))))
        entries = pa.concat_tables(pieces, promote_options="permissive").cast(self.schema).combine_chunks()
        position = np.full(len(keys), -1, np.int64)
        position[order] = np.arange(len(order))
        index = pa.array(position, mask=~known)
        return {name: as_array(entries.column(name)).take(index) for name in self._columns}, known

    def _unit(self, number: int) -> pa.Table:
        """The entries of a row group."""
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        file, group = self._places[number]
        with open_file(self._files[file].path, self._options) as opened:
            stored = pq.ParquetFile(opened)
            names = [name for name in self._columns if name in stored.schema_arrow.names]
            table = stored.read_row_group(group, columns=names or [self._key])
        for name in self._columns:
            if name not in names:
                table = table.append_column(name, pa.nulls(len(table), self.schema.field(name).type))
        unit = table.select(self._columns).replace_schema_metadata(None)
        self._kept[number] = unit
        self._kept_bytes += unit.nbytes
        while self._kept_bytes > self._most_bytes and len(self._kept) > 1:
            self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes
        return unit
