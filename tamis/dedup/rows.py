"""Row numbers: all observed rows, numbered in source order.

    row number   0 ... n0-1 | n0 ... n0+n1-1 | ...  | N ...           entries of an index follow the rows
    partition        0      |       1        |

Ties are broken by row number, and thus by source order, however the input is partitioned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column, contiguous
from tamis.mapped import release_pages
from tamis.operators import Observations

MAX_MAPPED_BYTES = 16_000_000
"""Bytes of mapped files that are read before their pages are released."""

FAULT_BYTES = 2**17
"""What the operating system maps for a single row: sixteen pages around each page that is touched."""


def address_facts(batch: Batch) -> dict[str, Column]:
    """The address of each row, for `observe`: its place, run-end encoded, its position and its child numbers; and its id."""
    places = pa.array(batch.origin.places, pa.string())
    facts = {"place": _runs(places, batch.origin.place), "position": pa.array(batch.origin.position)}
    if batch.origin.children:
        facts["children"] = batch.origin.child_lists()
    if "id" in batch:
        facts["id"] = _as_text(batch["id"])
    return facts


def _runs(values: pa.Array, index: np.ndarray) -> pa.RunEndEncodedArray:
    """`values.take(index)`, run-end encoded."""
    ends = np.flatnonzero(np.append(index[1:] != index[:-1], True)) if len(index) else np.empty(0, np.int64)
    return pa.RunEndEncodedArray.from_arrays(pa.array((ends + 1).astype(np.int32)), values.take(pa.array(index[ends])))


def _as_text(column: Column) -> Column:
    try:
        return column.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.array([None if value is None else str(value) for value in column.to_pylist()], pa.string())


class RowNumbers:
    """The observations with the row number at which each partition begins; can be sent to a worker."""

    def __init__(self, observed: Observations) -> None:
        self.observed = observed
        sizes = [observed.num_rows(number) for number in range(len(observed))]
        self.offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(sizes, np.int64))])

    @property
    def total(self) -> int:
        return int(self.offsets[-1])

    @property
    def num_partitions(self) -> int:
        return len(self.offsets) - 1

    def partition_of(self, rows: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.offsets, rows, side="right") - 1

    def chunks(self, partition: int, columns: list[str], max_rows: int) -> Iterator[tuple[int, pa.Table]]:
        """(number of the first row, facts) for each chunk of at most `max_rows` rows of a partition."""
        facts = self.observed[partition]
        facts = facts.select([name for name in columns if name in facts.column_names])
        first = int(self.offsets[partition])
        touched = 0
        for start in range(0, facts.num_rows, max_rows):
            part = facts.slice(start, max_rows)
            yield first + start, part
            touched += part.nbytes
            if touched > MAX_MAPPED_BYTES:
                release_pages()
                touched = 0


def names_of(facts: pa.Table, local: np.ndarray) -> tuple[pa.Array, pa.Array]:
    """(address, id) of some rows of a table made with `address_facts`; the id is null if the data has none."""
    return address_of(facts, local), _id_of(facts, local)


def address_of(facts: pa.Table, local: np.ndarray) -> pa.Array:
    """The addresses of some rows of a table made with `address_facts`."""
    places, run = _places(facts, local)
    positions = contiguous(facts.column("position")).take(pa.array(local)).cast(pa.string())
    found = pc.binary_join_element_wise(places.take(pa.array(run)), positions, ":")
    if "children" not in facts.column_names:
        return found
    numbers = contiguous(facts.column("children")).take(pa.array(local)).cast(pa.list_(pa.string()))
    path = pc.fill_null(pc.binary_join(numbers, "/"), "")  # null where no row of a batch was expanded
    return pc.if_else(pc.equal(path, ""), found, pc.binary_join_element_wise(found, path, "/"))


def _places(facts: pa.Table, local: np.ndarray) -> tuple[pa.Array, np.ndarray]:
    """(place of each run, run of each of the given rows)"""
    column = contiguous(facts.column("place"))
    ends = column.run_ends.to_numpy(zero_copy_only=False)
    return column.values, np.searchsorted(ends, local + column.offset, side="right")


def address_facts_of(facts: pa.Table, local: np.ndarray) -> dict[str, pa.Array]:
    """The addresses and ids of some rows, in the form of `address_facts`."""
    places, run = _places(facts, local)
    result = {"place": _runs(places, run), "position": contiguous(facts.column("position")).take(pa.array(local))}
    if "children" in facts.column_names:
        result["children"] = contiguous(facts.column("children")).take(pa.array(local))
    if "id" in facts.column_names:
        result["id"] = _id_of(facts, local)
    return result


def _id_of(facts: pa.Table, local: np.ndarray) -> pa.Array:
    if "id" not in facts.column_names:
        return pa.nulls(len(local), pa.string())
    return contiguous(facts.column("id")).take(pa.array(local))


def column_or_zeros(facts: pa.Table | Mapping[str, pa.Array], name: str, rows: int) -> np.ndarray:
    """A column of numbers, or zeros if it was not observed because the keep policy does not need it."""
    names = facts.column_names if isinstance(facts, pa.Table) else list(facts)
    if name not in names:
        return np.zeros(rows, np.uint64)
    return contiguous(facts[name]).to_numpy(zero_copy_only=False).astype(np.uint64)


def take_mapped(batches: Sequence[pa.RecordBatch], order: np.ndarray, step: int) -> pa.Table:
    """Some rows of mapped batches, in this order. At most `step` are read before pages are released.

    Arrow's own `take` would copy all of a chunked column first.
    """
    ends = np.cumsum([batch.num_rows for batch in batches])
    inside = np.searchsorted(ends, order, side="right")
    by_batch = np.argsort(inside, kind="stable")
    parts = []
    for start in range(0, len(order), step):
        some = by_batch[start : start + step]
        for number in np.unique(inside[some]):
            places = order[some[inside[some] == number]] - (ends[number] - batches[number].num_rows)
            parts.append(batches[number].take(pa.array(places)))
        release_pages()
    back = np.empty(len(order), np.int64)
    back[by_batch] = np.arange(len(order))
    return pa.Table.from_batches(parts, batches[0].schema).combine_chunks().take(pa.array(back))
