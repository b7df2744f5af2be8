"""A batch: rows as an Arrow table, with the address of each row.

    Batch
      table     the columns, each one contiguous Arrow array
      origin    for each row: the place (a file, or a frame of a compressed file) and the position in it
      memo      facts about columns that several operators share (word boundaries, statistics)

A row is identified by its address, `place:position`, so its name depends neither on the number of workers nor on the size
of blocks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from tamis.inert import html_table

if TYPE_CHECKING:
    from tamis.media import MediaAccess

Column: TypeAlias = pa.Array
HIDDEN = "_tamis_"
"""Prefix of columns that belong to the engine; they are never written or shown."""

LINE = "_tamis_line"
"""A hidden column: the line of text that a row was read from, including its line end, to be written unchanged."""

SHOWN_ROWS = 10
"""Rows that a notebook shows of a batch."""

Facts: TypeAlias = dict[str, np.ndarray]
"""Named arrays with one entry per row; they shrink with the batch when rows are dropped."""


@dataclass(frozen=True)
class Origin:
    """Where the rows of a batch came from: an index into `places`, a position there, and numbers of expanded rows.

    The address of a row is `place:position`. When a row is expanded into several, these append their number: `a.mp4:0/3`, and
    `a.mp4:0/3/1` when a child is expanded again.
    """

    places: tuple[str, ...]
    place: np.ndarray  # int32, one per row
    position: np.ndarray  # int64, one per row: byte offset or row number, whichever the format has
    children: tuple[np.ndarray, ...] = ()
    """For each level of expansion, the number of each row among its siblings, or -1 if it was not expanded there."""

    @staticmethod
    def of(place: str, position: np.ndarray | Iterable[int]) -> Origin:
        positions = np.asarray(position, dtype=np.int64)
        return Origin((place,), np.zeros(len(positions), dtype=np.int32), positions)

    @staticmethod
    def concat(origins: Sequence[Origin]) -> Origin:
        if not origins:
            return Origin((), np.empty(0, np.int32), np.empty(0, np.int64))
        places: dict[str, int] = {}
        parts = []
        for origin in origins:
            index = np.array([places.setdefault(name, len(places)) for name in origin.places], dtype=np.int32)
            parts.append(index[origin.place] if len(index) else origin.place)
        depth = max(len(origin.children) for origin in origins)
        return Origin(
            tuple(places),
            np.concatenate(parts),
            np.concatenate([origin.position for origin in origins]),
            tuple(np.concatenate([origin._level(level) for origin in origins]) for level in range(depth)),
        )

    def _level(self, level: int) -> np.ndarray:
        return self.children[level] if level < len(self.children) else np.full(len(self), -1, np.int64)

    def __len__(self) -> int:
        return len(self.position)

    def select(self, index: np.ndarray | slice) -> Origin:
        """The rows of a boolean mask, of row numbers, or of a slice."""
        children = tuple(level[index] for level in self.children)
        return Origin(self.places, self.place[index], self.position[index], children)

    def expanded(self, parents: np.ndarray, number: np.ndarray) -> Origin:
        """The rows `parents`, each as the child with this number; -1 for a row that keeps its address."""
        rows = self.select(parents)
        return replace(rows, children=(*rows.children, number)) if (number >= 0).any() else rows

    def address(self, row: int) -> str:
        path = "".join(f"/{level[row]}" for level in self.children if level[row] >= 0)
        return f"{self.places[self.place[row]]}:{self.position[row]}{path}"

    def addresses(self) -> list[str]:
        return [self.address(row) for row in range(len(self))]

    def child_lists(self) -> pa.ListArray:
        """The numbers that follow the position in each address."""
        numbers = np.stack(self.children, axis=1) if self.children else np.empty((len(self), 0), np.int64)
        present = numbers >= 0
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(present.sum(axis=1))])
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(numbers[present], pa.int64()))

    @staticmethod
    def children_from(lists: pa.ListArray) -> tuple[np.ndarray, ...]:
        """The levels that `child_lists` was made of."""
        starts = lists.offsets.to_numpy()
        lengths = np.diff(starts)
        values = lists.values.to_numpy()
        levels = []
        for level in range(int(lengths.max(initial=0))):
            number = np.full(len(lists), -1, np.int64)
            deep = lengths > level
            number[deep] = values[starts[:-1][deep] + level]
            levels.append(number)
        return tuple(levels)


class Batch:
    """Rows that pass through a stage. Immutable: each change returns a new batch that shares columns with the old one."""

    __slots__ = ("_names", "access", "handed_on", "memo", "needed", "origin", "table")

    def __init__(
        self,
        table: pa.Table,
        origin: Origin | None = None,
        *,
        memo: dict[tuple[str, str], Facts] | None = None,
        needed: dict[tuple[str, str], object] | None = None,
        handed_on: dict[tuple[str, str], Facts] | None = None,
        names: Mapping[str, str] | None = None,
        access: MediaAccess | None = None,
    ) -> None:
        self.table: pa.Table = table
        self.origin: Origin = origin if origin is not None else Origin.of("rows", np.arange(table.num_rows))
        self.memo: dict[tuple[str, str], Facts] = memo if memo is not None else {}
        self.needed: dict[tuple[str, str], object] = needed if needed is not None else {}
        self.handed_on: dict[tuple[str, str], Facts] = handed_on if handed_on is not None else {}
        self._names = names or {}  # name seen by the operator -> name in the memo
        # What references in media columns may reach; None for the folders of the source files.
        self.access: MediaAccess | None = access
        assert len(self.origin) == table.num_rows, "one origin per row"

    @staticmethod
    def from_rows(rows: Sequence[Mapping[str, object]]) -> Batch:
        """A batch of Python rows, for tests and small data.

        >>> Batch.from_rows([{"text": "a"}, {"text": "b"}])["text"].to_pylist()
        ['a', 'b']
        """
        return Batch(table_from_rows(rows))

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """The rows of several batches as one batch, with the facts that all of them have."""
        tables = [batch.table for batch in batches]
        table = (
            pa.concat_tables(tables, promote_options="permissive")
            if any(each.num_columns for each in tables)
            else without_columns(sum(map(len, batches)))
        )
        known = set.intersection(*(set(batch.memo) for batch in batches))
        memo = {key: _joined_facts([batch.memo[key] for batch in batches]) for key in known}
        origin = Origin.concat([b.origin for b in batches])
        return Batch(table.combine_chunks(), origin, memo=memo, access=batches[0].access)

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
        """The result of `compute` for a column, computed once and shared by all operators.

        If `compute` has an attribute `needs`, it is called with the column, and its result becomes the second argument of
        `compute`. That result is shared too, until rows are removed from the batch.
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

    def hand_on(self, column: str, compute: Callable[..., Any], facts: dict[str, Any]) -> None:
        """Let later steps have `facts` about a column that this step is about to write, instead of computing them.

        For results on a GPU: the next step calls `facts(column, compute)` and gets the arrays that this step left there. An
        Expand leaves facts about its new rows, such as what it measured in parts of a video. `column` is its name in the data.
        """
        self.handed_on[column, self._key(column, compute)[1]] = facts

    def facts_with_origin(self, column: str, compute: Callable[[Column, Origin, MediaAccess | None], Facts]) -> Facts:
        """Like `facts`, for a result that also depends on where the rows came from and what they may refer to."""
        key = self._key(column, compute)
        if key not in self.memo:
            self.memo[key] = compute(self[column], self.origin, self.access)
        return self.memo[key]

    def remembered(self, column: str, name: str, compute: Callable[[], Facts]) -> Facts:
        """Like `facts`, for a result that is identified by a name: everything that decides it must be part of the name."""
        key = (self._names.get(column, column), name)
        if key not in self.memo:
            self.memo[key] = compute()
        return self.memo[key]

    def _key(self, column: str, compute: Callable[..., object]) -> tuple[str, str]:
        return self._names.get(column, column), f"{compute.__module__}.{compute.__qualname__}"

    def view(self, names: Mapping[str, str]) -> Batch:
        """The columns of `names`, renamed for an operator; facts are shared."""
        table = pa.table({seen: self.table.column(real) for seen, real in names.items()})
        if not names:  # a table without columns has no rows: a placeholder column keeps their number
            table = pa.table({"": pa.nulls(len(self))})
        return Batch(
            table,
            self.origin,
            memo=self.memo,
            needed=self.needed,
            handed_on=self.handed_on,
            names=dict(names),
            access=self.access,
        )

    def select(self, index: np.ndarray | slice) -> Batch:
        """The rows of a boolean mask, of row numbers, or of a slice, with their facts."""
        origin = self.origin.select(index)
        if not self.table.num_columns:
            table = without_columns(len(origin))
        elif isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            assert step == 1, "slices are contiguous"
            table = self.table.slice(start, max(0, stop - start))
        elif index.dtype == np.bool_:
            table = self.table.filter(pa.array(index))
        else:
            table = self.table.take(pa.array(index))
        memo = {key: {name: array[index] for name, array in facts.items()} for key, facts in self.memo.items()}
        return Batch(table, origin, memo=memo, access=self.access)

    def with_columns(self, columns: Mapping[str, Column | np.ndarray]) -> Batch:
        """This batch with columns added or replaced, without the facts about replaced columns."""
        fields = {spec.name: spec for spec in self.table.schema}
        arrays = dict(zip(self.table.column_names, self.table.columns, strict=True))
        for name, values in columns.items():
            arrays[name] = as_array(values)
            fields[name] = pa.field(name, arrays[name].type)
        schema = pa.schema(fields.values(), metadata=self.table.schema.metadata)
        table = pa.Table.from_arrays(list(arrays.values()), schema=schema) if arrays else self.table
        memo = {key: facts for key, facts in self.memo.items() if key[0] not in columns}
        memo |= {key: facts for key, facts in self.handed_on.items() if key[0] in columns}
        needed = {key: found for key, found in self.needed.items() if key[0] not in columns}
        return Batch(table, self.origin, memo=memo, needed=needed, access=self.access)

    def without(self, columns: Sequence[str]) -> Batch:
        """This batch without some of its columns."""
        if not columns:
            return self
        table = self.table.drop_columns(list(columns))
        memo = {key: facts for key, facts in self.memo.items() if key[0] not in columns}
        needed = {key: found for key, found in self.needed.items() if key[0] not in columns}
        return Batch(table, self.origin, memo=memo, needed=needed, handed_on=self.handed_on, access=self.access)

    def _repr_html_(self) -> str:
        shown = Batch(self.table.slice(0, SHOWN_ROWS)).shown_rows()
        names = [name for name in self.table.column_names if not name.startswith(HIDDEN)]
        rows = [[self.origin.address(number), *(row[name] for name in names)] for number, row in enumerate(shown)]
        types = {name: self.table.schema.field(name).type for name in names}
        header = ["address", *(f"{name}: {kind}" for name, kind in types.items())]
        return html_table(header, rows, caption=f"{len(self):,} rows, of which the first {len(rows)}")

    def rows(self) -> list[dict[str, Any]]:
        """The rows as Python dicts. Slow: meant for user functions, messages and tests."""
        try:
            return self.table.to_pylist()
        except UnicodeDecodeError as error:
            column = next((name for name in self.columns if _undecodable(self.table.column(name))), "")
            raise ValueError(f"column `{column}` holds text that is not valid UTF-8: {error}") from error

    def shown_rows(self) -> list[dict[str, Any]]:
        """The rows as Python dicts, whatever they hold: bytes that are not UTF-8 are shown as `\\xff`."""
        columns = {name: _shown(self.table.column(name)) for name in self.columns}
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _joined_facts(parts: Sequence[Facts]) -> Facts:
    """Facts about rows that follow each other; arrays on a GPU stay there."""
    return {name: _concatenated([part[name] for part in parts]) for name in parts[0]}


def _concatenated(arrays: Sequence[Any]) -> Any:
    if isinstance(arrays[0], np.ndarray):
        return np.concatenate(arrays)
    library = sys.modules[type(arrays[0]).__module__.partition(".")[0]]  # torch or CuPy
    return library.cat(arrays) if hasattr(library, "cat") else library.concatenate(arrays)


def _undecodable(column: pa.ChunkedArray) -> bool:
    try:
        column.to_pylist()
    except UnicodeDecodeError:
        return True
    return False


def _shown(column: pa.ChunkedArray) -> list[Any]:
    try:
        return column.to_pylist()
    except (ValueError, OverflowError, KeyError):  # not UTF-8, a time that Python cannot hold, or an unknown time zone
        return [_shown_value(value) for value in column]


def _shown_value(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (ValueError, OverflowError, KeyError):
        buffer = value.as_buffer() if hasattr(value, "as_buffer") else None
        return buffer.to_pybytes().decode("utf-8", "backslashreplace") if buffer is not None else f"<{value.type}>"


@dataclass
class Failure:
    """A row that could not be read or processed, with its address and the error."""

    address: str
    step: str
    error: str
    row: bytes | str | dict[str, Any] | None = field(default=None)
    """The line that could not be read, or the values of the row."""
    rows: int = 1
    """The number of rows lost: a damaged part of a file loses several at once; 0 if unknown."""
    damaged_file: str | None = None
    """The file that is damaged, if the failure is that of a file and not of a row."""

    def __post_init__(self) -> None:
        # A message may quote half a surrogate pair, which no file can hold.
        self.error = self.error.encode("utf-8", "backslashreplace").decode()


def table_from_rows(rows: Sequence[Mapping[str, object]]) -> pa.Table:
    """An Arrow table of Python rows: missing keys become null, columns are in order of first appearance."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names:
        return without_columns(len(rows))
    return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})


def without_columns(rows: int) -> pa.Table:
    """Rows that have no columns. Arrow's own slices, selections and concatenations of such tables lose or invent rows.

    >>> without_columns(3).num_rows
    3
    """
    return pa.table({"": pa.nulls(rows)}).select([])


def contiguous(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """The column as one array, copied only if it has several chunks."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks() if column.num_chunks else pa.array([], type=column.type)


def bytes_of(data: pa.Table | pa.ChunkedArray) -> int:
    """The size of the rows in memory. View types, which pyarrow before 24 cannot measure, count as plain text."""
    try:
        return data.nbytes
    except pa.ArrowTypeError:
        if isinstance(data, pa.Table):
            return sum(bytes_of(column) for column in data.columns)
        if pa.types.is_string_view(data.type) or pa.types.is_binary_view(data.type):
            return data.cast(pa.large_string() if pa.types.is_string_view(data.type) else pa.large_binary()).nbytes
        return data.get_total_buffer_size()


def as_array(values: Column | pa.ChunkedArray | np.ndarray | Sequence[object]) -> pa.Array:
    """A column returned by an operator, as an Arrow array."""
    if isinstance(values, pa.ChunkedArray):
        return contiguous(values)
    array = values if isinstance(values, pa.Array) else pa.array(values)
    return without_views(array) if _has_views(array.type) else array


def without_views(array: pa.Array) -> pa.Array:
    """The array in types that can be filtered: Arrow has no kernels that select rows of view types."""
    return array.cast(_without_views(array.type))


def _has_views(kind: pa.DataType) -> bool:
    own = pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)
    return own or any(_has_views(kind.field(index).type) for index in range(kind.num_fields))


def _without_views(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_without_views(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(_without_views(kind.key_type), _without_views(kind.item_type))
    if kind.num_fields != 1:
        return kind
    value = kind.value_field.with_type(_without_views(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(value, kind.list_size)
    return pa.large_list(value) if pa.types.is_large_list(kind) else pa.list_(value)
