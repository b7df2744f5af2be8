"""Equal digests in one range of digests: who stays, and in whose favour the others go.

    pieces   -> the best of each digest, so far          held: what is different in the range, at most twice
    pieces   -> each row against the best of its digest  held: one piece

A range fits into memory by what is different in it. Where one digest is repeated so often that the range does not fit, it comes
in several pieces, twice; otherwise it is one piece and is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

import numpy as np

from tamis.dedup.settle import Homes
from tamis.dedup.shuffle import Files, bounds_of, duplicated, numbers, read_bucket

Columns: TypeAlias = dict[str, np.ndarray]
"""high and low (the digest), row, seen (0 for entries of an index), and what else decides who stays: source, order, unit."""

_BEST_LAST = ("unit", "row", "order", "source", "seen")


@dataclass
class Equals:
    """Finds equal digests. `none`: every copy goes; `across`: only what another source has goes; rows from `total` on stay."""

    total: int
    none: bool = False
    across: bool = False
    sizes: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """After `find`: the sizes of the groups."""

    def find(self, read: Callable[[], Iterator[Columns]]) -> Iterator[Columns]:
        """Rows that go, with `twin` and, if rows have units, `kept_unit`; `read` gives all pieces each time it is called."""
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
        gone = np.zeros(len(best["row"]), np.int64)
        for piece in [_repeated(first)] if second is None else read():
            found = self._against(best, other, piece, gone)
            if len(found["row"]):
                yield found
        self.sizes = gone[gone > 0] + (0 if self.none else 1)

    def _leaders(self, columns: Columns) -> Columns:
        """Of each digest the best row and, if every copy goes, the best of the others."""
        names = [name for name in _BEST_LAST if name in columns]
        order = np.lexsort([columns[name] for name in (*names, "low", "high")])
        ordered = {name: values[order] for name, values in columns.items()}
        begins = _begins(ordered)
        chosen = begins.copy()
        if self.none and len(begins):
            first = np.flatnonzero(begins)[np.cumsum(begins) - 1]
            others = ~begins
            if self.across:
                others &= ~_same_source(ordered, np.arange(len(begins)), ordered, first)
            seconds = np.flatnonzero(others)
            # The first of the others in each group: those before it belong to another group.
            chosen[seconds[np.append(True, first[seconds[1:]] != first[seconds[:-1]])] if len(seconds) else seconds] = (
                True
            )
        return {name: values[chosen] for name, values in ordered.items()}

    def _best(self, leaders: Columns) -> tuple[Columns, np.ndarray]:
        """(the best row of each digest, and for each the leader that stands for its copies, or -1)."""
        begins = _begins(leaders)
        firsts = np.flatnonzero(begins)
        following = np.append(firsts[1:], len(begins))
        other = np.where(following - firsts > 1, firsts + 1, -1)
        best = {name: values[firsts] for name, values in leaders.items()}
        best["other_row"] = np.where(other >= 0, leaders["row"][other], -1)
        return best, other

    def _against(self, best: Columns, other: np.ndarray, piece: Columns, gone: np.ndarray) -> Columns:
        at = np.searchsorted(best["high"], piece["high"])
        while True:  # digests that share their first half follow each other
            wrong = (best["low"][at] != piece["low"]) & (best["high"][at] == piece["high"])
            if not wrong.any():
                break
            at = at + wrong
        is_best = best["row"][at] == piece["row"]
        if "unit" in piece:
            is_best &= best["unit"][at] == piece["unit"]
        same = _same_source(piece, np.arange(len(at)), best, at) if self.across else is_best
        goes = ~same & (piece["row"] < self.total)
        twin = best["row"][at]
        if self.none:
            goes |= same & (other[at] >= 0) & (piece["row"] < self.total)
            twin = np.where(same, best["other_row"][at], twin)
        np.add.at(gone, at[goes], 1)
        found = {"row": piece["row"][goes], "twin": twin[goes]}
        if "unit" in piece:
            found |= {"unit": piece["unit"][goes], "kept_unit": best["unit"][at][goes]}
        return found


def _repeated(columns: Columns) -> Columns:
    """Rows that may have a copy: most have none, and sorting the rest is what takes time."""
    chosen = duplicated(columns["high"])
    return {name: values[chosen] for name, values in columns.items()}


def _begins(ordered: Columns) -> np.ndarray:
    high, low = ordered["high"], ordered["low"]
    begins = np.ones(len(high), np.bool_)
    begins[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    return begins


def _same_source(left: Columns, i: np.ndarray, right: Columns, j: np.ndarray) -> np.ndarray:
    return (left["source"][i] == right["source"][j]) & (left["seen"][i] == right["seen"][j])


def read_digests(
    homes: Homes, scattered: Files, bucket: int, num_buckets: int, more: Sequence[str]
) -> Iterator[Columns]:
    """The digests of one range, file by file, and then those of the index."""
    rows, index = homes.rows, homes.index
    some = False
    for part, file in enumerate(scattered):
        for batch in read_bucket(file, bucket, num_buckets):
            some = True
            columns = {name: numbers(batch.column(name)) for name in ("high", "low", *more)}
            columns["row"] = numbers(batch.column("local")).astype(np.int64) + rows.offsets[part]
            yield columns | {"seen": np.ones(batch.num_rows, np.uint8)}
    if index is not None and some:
        for before, batch in index.keys_between(*bounds_of(bucket, num_buckets)):
            columns = {"high": numbers(batch.column("key")), "low": numbers(batch.column("low"))}
            columns |= {name: np.zeros(batch.num_rows, np.uint64) for name in more}
            columns["row"] = numbers(batch.column("entry")).astype(np.int64) + before + rows.total
            yield columns | {"seen": np.zeros(batch.num_rows, np.uint8)}
