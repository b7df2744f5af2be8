r"""Steps that split documents into segments and join segments to documents.

    id  text                     id  text  segment                id  text
    7   "a\n\nb"  DocumentSplit  7   "a"   0        DocumentJoin  7   "a\n\nb"
                  ------------>  7   "b"   1        ----------->

Splitting handles each row alone. Joining needs the neighbours of a row, which may be in another batch or partition, so it
is a Gather: it observes all rows in source order before it decides, and gives the same documents for any number of workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column, contiguous
from tamis.errors import ParameterError
from tamis.fields import texts
from tamis.operators import Decide, Expand, Gather, Observations, Work, operator
from tamis.text.clean import Pieces, mask_of, strings


@operator(reads="text")
class DocumentSplit(Expand):
    r"""Split each text at `separator` and make a row of each segment.

    Other columns are repeated, and `segment` numbers the segments of a text from 0. Empty segments become rows too, so that
    `DocumentJoin` with the same separator restores the text. An empty text and a null are one segment.

    >>> from tamis import Pipeline, Rows
    >>> Pipeline(Rows([{"id": 7, "text": "a\n\nb"}]), DocumentSplit()).collect().to_pylist()
    [{'id': 7, 'text': 'a', 'segment': 0}, {'id': 7, 'text': 'b', 'segment': 1}]
    """

    separator: str = "\n\n"
    column: str = "text"
    segment: str = "segment"

    def check(self) -> None:
        _check_separator(self.separator)

    def writes(self) -> tuple[str, ...]:
        return (self.column, self.segment)

    def expand(self, batch: Batch) -> tuple[pa.Table, np.ndarray]:
        text = strings(batch["text"])
        pieces = Pieces(text.fill_null(""), self.separator)
        parents = np.repeat(np.arange(len(text)), np.diff(pieces.offsets))
        number = np.arange(len(parents)) - pieces.offsets[parents]
        segments = pieces.flat
        if text.null_count:
            segments = pc.if_else(pa.array(mask_of(pc.is_null(text))[parents]), None, segments)
        return pa.table({self.column: segments, self.segment: pa.array(number, pa.int64())}), parents


@operator(reads=("text", "id"))
class DocumentJoin(Gather):
    r"""Join the texts of consecutive rows that have the same `key`, with `separator` between them.

    Rows are consecutive if they follow each other in source order, across batches, partitions and files, after earlier
    steps dropped rows. The first row of a run is kept, with its other columns; the rest are dropped with the reason
    "joined to a row before". Rows with the same key that are not consecutive are not joined, nor are rows without a key.
    Nulls add nothing to a text. With `max_chars`, a document that would become longer than this many characters ends, and
    the next segment begins a new row.

    Needs disk space for the texts during the run; all texts pass through one process.

    >>> from tamis import Pipeline, Rows
    >>> rows = [{"id": 7, "text": "a"}, {"id": 7, "text": "b"}, {"id": 8, "text": "c"}]
    >>> Pipeline(Rows(rows), DocumentJoin()).collect().to_pylist()
    [{'id': 7, 'text': 'a\n\nb'}, {'id': 8, 'text': 'c'}]
    """

    separator: str = "\n\n"
    key: str = "id"
    column: str = "text"
    max_chars: int | None = None

    def check(self) -> None:
        _check_separator(self.separator)
        if self.max_chars is not None and self.max_chars < 1:
            raise ParameterError(f"`max_chars` must be positive, got {self.max_chars}")
        if self.key == self.column:
            raise ParameterError(f"`key` and `column` are both `{self.key}`")

    def reads(self) -> tuple[str, ...]:
        return ("text", self.key)

    def writes(self) -> tuple[str, ...]:
        return (self.column,)

    def observe(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        facts = {"text": strings(batch["text"]), "key": texts(batch[self.key])}
        return {name: values.cast(pa.large_string()) for name, values in facts.items()}

    def resolve(self, observed: Observations, decide: Decide, work: Work) -> None:
        carried: _Carried | None = None
        for number, facts in enumerate(observed):
            if not facts.num_rows:
                decide(number, np.zeros(0, np.bool_), _REASON, pa.array([], pa.large_string()))
                continue
            text, key = contiguous(facts.column("text")), contiguous(facts.column("key"))
            begins = self._begins(text, key, carried)
            first = int(np.argmax(begins)) if begins.any() else len(begins)
            if carried is not None:
                carried.add(text.slice(0, first), key, self.separator)
            if first == len(begins):
                decide(number, ~begins, _REASON, pa.nulls(len(begins), pa.large_string()))
                continue
            if carried is not None:
                carried.settle(decide, self.separator)
            carried = _Carried.of(number, text, key, begins, self.separator)
        if carried is not None:
            carried.settle(decide, self.separator)

    def rewrite(self, batch: Batch, payload: Column) -> Mapping[str, Column | np.ndarray]:
        kind = batch["text"].type
        fits = pa.types.is_string(kind) and payload.nbytes < 2**31
        return {self.column: payload.cast(kind) if fits else payload}

    def _begins(self, text: Column, key: Column, carried: _Carried | None) -> np.ndarray:
        """Which rows begin a document, given the document that is still open."""
        before = pa.concat_arrays([pa.array([carried.key if carried else None], key.type), key.slice(0, len(key) - 1)])
        begins = ~mask_of(pc.equal(key, before))
        if self.max_chars is None:
            return begins
        lengths = pc.utf8_length(text).to_pylist()
        total = carried.num_chars if carried else None
        for row, length in enumerate(lengths):
            added = length if total is None or length is None else length + len(self.separator)
            if begins[row] or (total is not None and added is not None and total + added > self.max_chars):
                begins[row], total = True, length
            elif added is not None:
                total = added + (total or 0)
        return begins


_REASON = "joined to a row before"


@dataclass
class _Carried:
    """The partition whose last document is still open: its decisions, and the text of that document so far."""

    partition: int
    begins: np.ndarray
    closed: Column  # the texts of the documents that begin there, except the last
    parts: list[str]
    num_chars: int | None
    key: str | None

    @staticmethod
    def of(partition: int, text: Column, key: Column, begins: np.ndarray, separator: str) -> _Carried:
        starts = np.flatnonzero(begins)
        last = int(starts[-1])
        carried = _Carried(partition, begins, _join_runs(text.slice(0, last), starts, separator), [], None, None)
        carried.add(text.slice(last), key, separator)
        return carried

    def add(self, text: Column, key: Column, separator: str) -> None:
        parts = [part for part in text.to_pylist() if part is not None]
        if parts:
            joined = separator.join(parts)
            self.num_chars = len(joined) + (0 if self.num_chars is None else self.num_chars + len(separator))
            self.parts.append(joined)
        self.key = key[len(key) - 1].as_py()

    def settle(self, decide: Decide, separator: str) -> None:
        """Close the open document and decide about the partition it began in."""
        text = pa.array([separator.join(self.parts) if self.parts else None], pa.large_string())
        documents = pa.concat_arrays([self.closed, text])
        number = pa.array(np.cumsum(self.begins) - 1, mask=~self.begins)
        decide(self.partition, ~self.begins, _REASON, documents.take(number))


def _join_runs(text: Column, starts: np.ndarray, separator: str) -> Column:
    """The texts from each of `starts` up to the next, joined; the last run ends with `text`."""
    valid = mask_of(text.is_valid())
    running = np.concatenate([np.zeros(1, np.int64), np.cumsum(valid, dtype=np.int64)])
    offsets = running[starts]
    empty = np.diff(offsets) == 0
    lists = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), text.drop_null(), mask=pa.array(empty))
    return pc.binary_join(lists, pa.scalar(separator, pa.large_string()))


def _check_separator(separator: str) -> None:
    if not separator:
        raise ParameterError("`separator` must not be empty")
