"""Embeddings as facts: how a Gather stores the vector of each row, and reads it back as a unit vector.

float32, float64 and integers    scaled to length 1, stored in float32
float16                          scaled by a power of two, which is exact, stored in float16; scaled to length 1 when read

A column of facts is named after its dimension and type. Where rows have vectors of different dimensions, the facts have several
of these columns, and each row has a value in at most one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tamis.batch import Column, contiguous
from tamis.dedup.rows import RowNumbers
from tamis.dedup.shuffle import column_to_matrix, handles_shortage, matrix_to_column
from tamis.errors import OperatorError

_PREFIX = "vector"


def vector_facts(column: Column, name: str, wanted: int | None = None) -> dict[str, Column]:
    """The vectors of a column, for `observe`. A row without a vector, or with one of length 0, has none.

    Raises ValueError for a vector with a value that is not a finite number, or of another dimension than `wanted`.
    """
    kind = column.type
    if pa.types.is_null(kind) or (column.null_count == len(column) and not pa.types.is_nested(kind)):
        return {}
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise OperatorError(
            f"`{name}` is {kind}, not a list of numbers",
            hint="add embeddings with tamis.text.Embed, or name the column that has them, column=...",
        )
    inner = kind.value_type
    # The values are of type null if all lists are empty.
    if not (pa.types.is_floating(inner) or pa.types.is_integer(inner) or pa.types.is_null(inner)):
        raise OperatorError(
            f"`{name}` is a list of {inner}, not of numbers", hint="name a column of embeddings, column=..."
        )
    facts = {}
    for dimension, rows, values in _by_dimension(column):
        if wanted is not None and dimension != wanted:
            raise ValueError(f"`{name}` has {dimension} values, not {wanted}")
        half = values.dtype == np.float16
        values = values.astype(np.float64)
        largest = np.maximum(values.max(axis=1, initial=0), -values.min(axis=1, initial=0))
        if not np.isfinite(largest).all():
            raise ValueError(f"`{name}` has a value that is not a finite number")
        usable = largest > 0
        # Squares of values far from 1 are infinite or 0.
        rows, values = rows[usable], np.ldexp(values[usable], -np.frexp(largest[usable])[1][:, None])
        length = np.sqrt(np.einsum("ij,ij->i", values, values))
        scale = np.exp2(-np.ceil(np.log2(length))) if half else 1.0 / length
        stored = np.zeros((len(column), dimension), np.float16 if half else np.float32)
        stored[rows] = values * scale[:, None]
        valid = np.zeros(len(column), np.bool_)
        valid[rows] = True
        facts[f"{_PREFIX} {dimension} {stored.dtype.name}"] = _with_nulls(stored, valid)
    return facts


def _by_dimension(column: Column) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """(dimension, rows, their values) for each dimension that occurs."""
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_fixed_size_list(column.type):
        size = column.type.list_size
        if not size:
            return
        values = _numbers(column.values.slice(column.offset * size, len(column) * size)).reshape(len(column), size)
        rows = np.flatnonzero(valid)
        yield size, rows, values if len(rows) == len(column) else values[rows]
        return
    offsets = column.offsets.to_numpy()
    sizes = np.where(valid, np.diff(offsets), 0)
    values = _numbers(column.values)
    for size in np.unique(sizes[sizes > 0]):
        rows = np.flatnonzero(sizes == size)
        yield int(size), rows, values[offsets[rows][:, None] + np.arange(size)]


def _numbers(values: pa.Array) -> np.ndarray:
    """The values of lists; missing ones are NaN."""
    if not pa.types.is_floating(values.type):
        values = values.cast(pa.float64(), safe=False)
    return values.to_numpy(zero_copy_only=False)


def _with_nulls(matrix: np.ndarray, valid: np.ndarray) -> pa.FixedSizeBinaryArray:
    kind = pa.binary(matrix.shape[1] * matrix.itemsize)
    bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.FixedSizeBinaryArray.from_buffers(kind, len(matrix), [bits, pa.py_buffer(matrix)])


# ------------------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class VectorKind:
    """The vectors that a step compares: their dimension, and whether all of them are stored in float16."""

    dimension: int
    half: bool

    @property
    def stored(self) -> pa.DataType:
        return pa.binary(self.dimension * (2 if self.half else 4))

    @property
    def columns(self) -> list[str]:
        """The names of the columns of facts."""
        return [f"{_PREFIX} {self.dimension} {kind}" for kind in ("float32", "float16")]

    def of(self, facts: pa.Table) -> tuple[np.ndarray, pa.FixedSizeBinaryArray]:
        """(the rows of a table of facts that have a vector, these vectors as they are stored)"""
        if not facts.num_rows:
            return np.empty(0, np.int64), pa.array([], self.stored)
        found = {name: contiguous(facts.column(name)) for name in self.columns if name in facts.column_names}
        valid = {name: column.is_valid().to_numpy(zero_copy_only=False) for name, column in found.items()}
        if len(found) == 1:
            ((name, column),) = found.items()
            if column.type == self.stored:
                rows = np.flatnonzero(valid[name])
                return rows, column if len(rows) == len(column) else column.take(pa.array(rows))
        matrix, any_valid = np.zeros((facts.num_rows, self.dimension), np.float32), np.zeros(facts.num_rows, np.bool_)
        for name, column in found.items():
            matrix[valid[name]] = self.unit(column)[valid[name]]
            any_valid |= valid[name]
        rows = np.flatnonzero(any_valid)
        return rows, matrix_to_column(matrix[rows])

    def unit(self, column: pa.Array | pa.ChunkedArray) -> np.ndarray:
        """A column of stored vectors as float32 of length 1; not copied if it is stored like that."""
        column = contiguous(column)
        if column.type.byte_width == 4 * self.dimension:
            return column_to_matrix(column, np.float32)
        stored = column_to_matrix(column, np.float16).astype(np.float32)
        exact = np.sqrt(np.einsum("ij,ij->i", stored, stored, dtype=np.float64))
        stored /= np.where(exact > 0, exact, 1.0).astype(np.float32)[:, None]
        return stored


@handles_shortage
def count_vectors(rows: RowNumbers, partition: int) -> dict[str, int]:
    """How many vectors a partition has, by column of facts."""
    return vectors_in(rows.observed[partition])


def vectors_in(facts: pa.Table) -> dict[str, int]:
    """How many vectors each column of a table of facts has."""
    names = [name for name in facts.column_names if name.startswith(f"{_PREFIX} ")]
    return {name: len(facts) - facts.column(name).null_count for name in names}


def most_frequent(counts: Iterable[Mapping[str, int]]) -> tuple[VectorKind | None, int, int]:
    """(the kind of most vectors, how many are of it, how many have another dimension)"""
    totals: dict[int, dict[str, int]] = {}
    for part in counts:
        for name, count in part.items():
            _, dimension, kind = name.split()
            found = totals.setdefault(int(dimension), {"float16": 0, "float32": 0})
            found[kind] += count
    sizes = {dimension: sum(found.values()) for dimension, found in totals.items()}
    if not any(sizes.values()):
        return None, 0, 0
    best = max(sizes, key=lambda dimension: (sizes[dimension], dimension))
    return VectorKind(best, totals[best]["float32"] == 0), sizes[best], sum(sizes.values()) - sizes[best]
