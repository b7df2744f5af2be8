"""The one data noun: some rows as an Arrow table, and where each of them came from.

    Batch
      table     the columns, each one contiguous Arrow array
      origin    for each row: the place (file, or frame of a compressed file) and the position in it
      memo      facts about a column that several operators share (word boundaries, statistics)

A row is known by its address, `place:position`, never by its order of arrival, so that the same row has the
same name whatever the number of workers or the size of the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

Column: TypeAlias = pa.Array
HIDDEN = "_tamis_"
"""Columns whose names begin so belong to the engine and are never written or shown."""

LINE = "_tamis_line"
"""A hidden column: the line of text a row was read from, its line end included, to be written again as it is."""

Facts: TypeAlias = dict[str, np.ndarray]
"""Named arrays with one entry per row; they shrink with the batch when rows are dropped."""


@dataclass(frozen=True)
class Origin:
    """Where the rows of a batch came from: an index into `places`, and a position there."""

    places: tuple[str, ...]
    place: np.ndarray  # int32, one per row
    position: np.ndarray  # int64, one per row: byte offset or row number, whichever the format has

    @staticmethod
    def of(place: str, position: np.ndarray | Iterable[int]) -> Origin:
        positions = np.asarray(position, dtype=np.int64)
        return Origin((place,), np.zeros(len(positions), dtype=np.int32), positions)

    @staticmethod
    def concat(origins: Sequence[Origin]) -> Origin:
        places: dict[str, int] = {}
        parts = []
        for origin in origins:
            index = np.array([places.setdefault(name, len(places)) for name in origin.places], dtype=np.int32)
            parts.append(index[origin.place] if len(index) else origin.place)
        return Origin(
            tuple(places),
            np.concatenate(parts) if parts else np.empty(0, np.int32),
            np.concatenate([o.position for o in origins]) if parts else np.empty(0, np.int64),
        )

    def __len__(self) -> int:
        return len(self.position)

    def select(self, index: np.ndarray | slice) -> Origin:
        """The rows of a boolean mask, of row numbers, or of a slice."""
        return Origin(self.places, self.place[index], self.position[index])

    def address(self, row: int) -> str:
        return f"{self.places[self.place[row]]}:{self.position[row]}"


class Batch:
    """Rows on their way through a stage. Immutable: each change gives a new batch that shares its columns."""

    __slots__ = ("_names", "memo", "needed", "origin", "table")

    def __init__(
        self,
        table: pa.Table,
        origin: Origin | None = None,
        *,
        memo: dict[tuple[str, str], Facts] | None = None,
        needed: dict[tuple[str, str], object] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.table = table
        self.origin = origin if origin is not None else Origin.of("rows", np.arange(table.num_rows))
        self.memo = memo if memo is not None else {}
        self.needed = needed if needed is not None else {}
        self._names = names or {}  # column name here -> name in the memo, where an operator sees another name
        assert len(self.origin) == table.num_rows, "one origin per row"

    @staticmethod
    def from_rows(rows: Sequence[Mapping[str, object]]) -> Batch:
        """A batch of Python rows, for tests and small things.

        >>> Batch.from_rows([{"text": "a"}, {"text": "b"}])["text"].to_pylist()
        ['a', 'b']
        """
        return Batch(table_from_rows(rows))

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        table = pa.concat_tables([b.table for b in batches], promote_options="permissive")
        return Batch(table.combine_chunks(), Origin.concat([b.origin for b in batches]))

    def __len__(self) -> int:
        return self.table.num_rows

    def __repr__(self) -> str:
        return f"Batch({len(self)} rows; {', '.join(self.table.column_names)})"

    @property
    def columns(self) -> list[str]:
        return self.table.column_names

    @property
    def num_bytes(self) -> int:
        return bytes_of(self.table)

    def __getitem__(self, column: str) -> Column:
        """The column as one contiguous array."""
        return contiguous(self.table.column(column))

    def __contains__(self, column: str) -> bool:
        return column in self.table.column_names

    def facts(self, column: str, compute: Callable[..., Facts]) -> Facts:
        """What `compute` finds about a column, found once however many operators ask.

        If `compute` has an attribute `needs`, that is called with the column and its result handed to `compute` as a second
        argument. The result is kept too, but only as long as the batch has all its rows.
        """
        key = self._key(column, compute)
        if key not in self.memo:
            needs = getattr(compute, "needs", None)
            if needs is None:
                self.memo[key] = compute(self[column])
            else:
                needed = self._key(column, needs)
                if needed not in self.needed:
                    self.needed[needed] = needs(self[column])
                self.memo[key] = compute(self[column], self.needed[needed])
        return self.memo[key]

    def _key(self, column: str, compute: Callable[..., object]) -> tuple[str, str]:
        return self._names.get(column, column), f"{compute.__module__}.{compute.__qualname__}"

    def view(self, names: Mapping[str, str]) -> Batch:
        """The columns `names` lists, each under the name an operator knows it by, facts shared."""
        table = pa.table({seen: self.table.column(real) for seen, real in names.items()})
        if not names:  # a table without columns has no rows; keep their number in a column nobody asked for
            table = pa.table({"": pa.nulls(len(self))})
        return Batch(table, self.origin, memo=self.memo, needed=self.needed, names=dict(names))

    def select(self, index: np.ndarray | slice) -> Batch:
        """The rows of a boolean mask, of row numbers, or of a slice, with their facts."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            assert step == 1, "slices are contiguous"
            table = self.table.slice(start, max(0, stop - start))
        elif index.dtype == np.bool_:
            table = self.table.filter(pa.array(index))
        else:
            table = self.table.take(pa.array(index))
        memo = {key: {name: array[index] for name, array in facts.items()} for key, facts in self.memo.items()}
        return Batch(table, self.origin.select(index), memo=memo)

    def with_columns(self, columns: Mapping[str, Column | np.ndarray]) -> Batch:
        """This batch with columns added or replaced; facts about the replaced ones are forgotten."""
        table = self.table
        for name, values in columns.items():
            array = as_array(values)
            if name in table.column_names:
                table = table.set_column(table.column_names.index(name), name, array)
            elif table.num_columns:
                table = table.append_column(name, array)
            else:
                table = pa.table({name: array})
        memo = {key: facts for key, facts in self.memo.items() if key[0] not in columns}
        needed = {key: found for key, found in self.needed.items() if key[0] not in columns}
        return Batch(table, self.origin, memo=memo, needed=needed)

    def without(self, columns: Sequence[str]) -> Batch:
        """This batch without some of its columns."""
        if not columns:
            return self
        table = self.table.drop_columns(list(columns))
        memo = {key: facts for key, facts in self.memo.items() if key[0] not in columns}
        needed = {key: found for key, found in self.needed.items() if key[0] not in columns}
        return Batch(table, self.origin, memo=memo, needed=needed)

    def rows(self) -> list[dict[str, Any]]:
        """The rows as Python dicts: slow, for functions of the user, messages and tests."""
        return self.table.to_pylist()


@dataclass
class Failure:
    """A row that could not be read or processed, with its address and the error."""

    address: str
    step: str
    error: str
    row: bytes | dict[str, Any] | None = field(default=None)
    rows: int = 1
    """How many rows this stands for: a damaged part of a file loses several at once; 0 if nobody knows how many."""
    damaged_file: str | None = None
    """The file that is damaged, if the failure is that of a file and not of a row."""


def table_from_rows(rows: Sequence[Mapping[str, object]]) -> pa.Table:
    """An Arrow table of Python rows, missing keys as nulls, columns in order of first appearance."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})


def contiguous(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """One array, copied only if the column is in several chunks."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks() if column.num_chunks else pa.array([], type=column.type)


def bytes_of(data: pa.Table | pa.ChunkedArray) -> int:
    """The memory its rows take; of views, which pyarrow cannot measure before version 24, what they take as plain text."""
    try:
        return data.nbytes
    except pa.ArrowTypeError:
        if isinstance(data, pa.Table):
            return sum(bytes_of(column) for column in data.columns)
        if pa.types.is_string_view(data.type) or pa.types.is_binary_view(data.type):
            return data.cast(pa.large_string() if pa.types.is_string_view(data.type) else pa.large_binary()).nbytes
        return data.get_total_buffer_size()


def as_array(values: Column | pa.ChunkedArray | np.ndarray | Sequence[object]) -> pa.Array:
    """Whatever an operator returned as a column, as an Arrow array."""
    if isinstance(values, pa.ChunkedArray):
        return contiguous(values)
    return values if isinstance(values, pa.Array) else pa.array(values)
