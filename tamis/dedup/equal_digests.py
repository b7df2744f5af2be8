"""Find equal digests in one range of digests, and choose which row of each to keep.

    pass 1   pieces -> the best row of each digest so far         in memory: the distinct digests of the range, at most twice
    pass 2   pieces -> each row with the best row of its digest   in memory: one piece

The distinct digests of a range fit in memory. If one digest is repeated so often that its rows do not, the range is read in
several pieces, twice. Otherwise it is a single piece and is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

import numpy as np

from tamis.dedup.decisions import Blocks
from tamis.dedup.shuffle import NumberedFiles, as_numpy, bounds_of, duplicated, read_bucket

Columns: TypeAlias = dict[str, np.ndarray]
"""high and low (the digest), row, new (0 for entries of an index), and what else the keep policy needs: source, order, unit."""

_SORT_KEYS = ("unit", "row", "order", "source", "new")  # for lexsort: the most significant last


@dataclass
class EqualDigests:
    """Finds rows with equal digests.

    `drop_all` drops every row whose digest is repeated. `across_sources` drops only rows that another source has too. Rows
    numbered from `total` on are entries of the index and are always kept.
    """

    total: int
    drop_all: bool = False
    across_sources: bool = False
    sizes: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """The sizes of the groups, after `find`."""

    def find(self, read: Callable[[], Iterator[Columns]]) -> Iterator[Columns]:
        """Rows to drop, with `survivor` and, if rows have units, `kept_unit`; `read` returns all pieces on each call."""
        begun = read()
        first = next(begun, None)
        if first is None:
            return
        second = next(begun, None)
        leaders = self._leaders(_repeated(first) if second is None else first)
        for piece in chain([] if second is None else [second], begun):
            both = {name: np.concatenate([leaders[name], piece[name]]) for name in piece}
            leaders = self._leaders(both)
        best, other = self._best(leaders)
        dropped = np.zeros(len(best["row"]), np.int64)
        for piece in [_repeated(first)] if second is None else read():
            found = self._match(best, other, piece, dropped)
            if len(found["row"]):
                yield found
        self.sizes = dropped[dropped > 0] + (0 if self.drop_all else 1)

    def _leaders(self, columns: Columns) -> Columns:
        """The best row of each digest and, with `drop_all`, the second best."""
        names = [name for name in _SORT_KEYS if name in columns]
        order = np.lexsort([columns[name] for name in (*names, "low", "high")])
        ordered = {name: values[order] for name, values in columns.items()}
        begins = _begins(ordered)
        chosen = begins.copy()
        if self.drop_all and len(begins):
            first = np.flatnonzero(begins)[np.cumsum(begins) - 1]
            others = ~begins
            if self.across_sources:
                others &= ~_same_source(ordered, np.arange(len(begins)), ordered, first)
            seconds = np.flatnonzero(others)
            # The first of the remaining rows in each group: the one before it belongs to another group.
            chosen[seconds[np.append(True, first[seconds[1:]] != first[seconds[:-1]])] if len(seconds) else seconds] = (
                True
            )
        return {name: values[chosen] for name, values in ordered.items()}

    def _best(self, leaders: Columns) -> tuple[Columns, np.ndarray]:
        """(the best row of each digest, the position in `leaders` of the second best, or -1)."""
        begins = _begins(leaders)
        firsts = np.flatnonzero(begins)
        following = np.append(firsts[1:], len(begins))
        other = np.where(following - firsts > 1, firsts + 1, -1)
        best = {name: values[firsts] for name, values in leaders.items()}
        best["other_row"] = np.where(other >= 0, leaders["row"][other], -1)
        return best, other

    def _match(self, best: Columns, other: np.ndarray, piece: Columns, dropped: np.ndarray) -> Columns:
        """The rows of a piece to drop; adds to `dropped` how many rows are dropped for each of `best`."""
        at = np.searchsorted(best["high"], piece["high"])
        while True:  # digests with the same first half are adjacent
            wrong = (best["low"][at] != piece["low"]) & (best["high"][at] == piece["high"])
            if not wrong.any():
                break
            at = at + wrong
        is_best = best["row"][at] == piece["row"]
        if "unit" in piece:
            is_best &= best["unit"][at] == piece["unit"]
        same = _same_source(piece, np.arange(len(at)), best, at) if self.across_sources else is_best
        drop = ~same & (piece["row"] < self.total)
        survivor = best["row"][at]
        if self.drop_all:
            drop |= same & (other[at] >= 0) & (piece["row"] < self.total)
            survivor = np.where(same, best["other_row"][at], survivor)
        np.add.at(dropped, at[drop], 1)
        found = {"row": piece["row"][drop], "survivor": survivor[drop]}
        if "unit" in piece:
            found |= {"unit": piece["unit"][drop], "kept_unit": best["unit"][at][drop]}
        return found


def _repeated(columns: Columns) -> Columns:
    """Rows whose digest may be repeated. Most are not, and need not be sorted."""
    chosen = duplicated(columns["high"])
    return {name: values[chosen] for name, values in columns.items()}


def _begins(ordered: Columns) -> np.ndarray:
    high, low = ordered["high"], ordered["low"]
    begins = np.ones(len(high), np.bool_)
    begins[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    return begins


def _same_source(left: Columns, i: np.ndarray, right: Columns, j: np.ndarray) -> np.ndarray:
    return (left["source"][i] == right["source"][j]) & (left["new"][i] == right["new"][j])


def read_digests(
    blocks: Blocks, shuffled: NumberedFiles, bucket: int, num_buckets: int, more: Sequence[str]
) -> Iterator[Columns]:
    """The digests of one range, file by file, followed by those of the index."""
    rows, index = blocks.rows, blocks.index
    has_rows = False
    for part, file in enumerate(shuffled):
        for batch in read_bucket(file, bucket, num_buckets):
            has_rows = True
            columns = {name: as_numpy(batch.column(name)) for name in ("high", "low", *more)}
            columns["row"] = as_numpy(batch.column("local")).astype(np.int64) + rows.offsets[part]
            yield columns | {"new": np.ones(batch.num_rows, np.uint8)}
    if index is not None and has_rows:
        for before, batch in index.keys_between(*bounds_of(bucket, num_buckets)):
            columns = {"high": as_numpy(batch.column("key")), "low": as_numpy(batch.column("low"))}
            columns |= {name: np.zeros(batch.num_rows, np.uint64) for name in more}
            columns["row"] = as_numpy(batch.column("entry")).astype(np.int64) + before + rows.total
            yield columns | {"new": np.zeros(batch.num_rows, np.uint8)}
