"""The first rows, a random sample, and the rows that match a pattern, of any file or output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.errors import ParameterError, first_line
from tamis.inert import inert, one_line
from tamis.looking.rows import Seen

BEFORE, AFTER = 40, 120
"""Bytes shown around a match."""


def first(seen: Iterable[Seen], count: int) -> Iterator[tuple[Seen, int]]:
    """The first rows."""
    left = count
    for each in seen:
        for number in range(min(left, each.table.num_rows)):
            yield each, number
        left -= each.table.num_rows
        if left <= 0:
            return


def sampled(seen: Iterable[Seen], count: int, seed: int) -> list[tuple[Seen, int]]:
    """A random sample without replacement, in the order of the rows; the same for the same rows and seed.

    Reads all rows, and holds `count` of them (reservoir sampling).
    """
    chance = np.random.Generator(np.random.PCG64(seed))
    held: list[tuple[int, Seen]] = []
    total = 0
    for each in seen:
        rows = each.table.num_rows
        order = total + np.arange(rows)
        places = np.floor(chance.random(rows) * (order + 1)).astype(np.int64)
        places[order < count] = order[order < count]
        for row in np.flatnonzero(places < count):
            one = (int(order[row]), _alone(each, int(row)))
            if places[row] < len(held):
                held[places[row]] = one
            else:
                held.append(one)
        total += rows
    return [(each, 0) for _, each in sorted(held, key=lambda item: item[0])]


def _alone(seen: Seen, row: int) -> Seen:
    """One row in memory of its own, so that its batch can be released."""
    address = seen.addresses(row)
    copy = pa.Table.from_batches(seen.table.slice(row, 1).to_batches())
    return Seen(seen.fate, copy.take(pa.array([0])), lambda number: address)


@dataclass(frozen=True)
class Match:
    """A row that matches, and where."""

    seen: Seen
    number: int
    column: str
    excerpt: str


@dataclass(frozen=True)
class Pattern:
    """What to search for: a regular expression in the syntax of RE2, whose time grows with the text alone, or fixed text."""

    pattern: str
    ignore_case: bool = False
    fixed: bool = False
    columns: Sequence[str] | None = None
    """Where to search; by default in all columns of text, and in ids."""

    def check(self) -> None:
        """Raise for a pattern that cannot be compiled."""
        try:
            self._find(pa.array([""]))
        except pa.ArrowInvalid as error:
            reason = first_line(error)
            raise ParameterError(
                f"the pattern cannot be compiled: {inert(reason, 300)}",
                hint="use --fixed to search for the text itself",
            ) from error

    def matches(self, seen: Iterable[Seen]) -> Iterator[Match]:
        """The rows in which a column matches, each once, for its first column that does."""
        columns: dict[str, None] = {}
        for each in seen:
            columns |= dict.fromkeys(each.table.column_names)
            found: dict[int, tuple[str, int]] = {}
            for name in self._searched(each.table):
                for row, at in self._in_column(each.table.column(name)):
                    found.setdefault(row, (name, at))
            for row in sorted(found):
                name, at = found[row]
                yield Match(each, row, name, self._excerpt(each, row, name, at))
        missing = [name for name in self.columns or () if name not in columns]
        if missing and columns:
            raise ParameterError(
                f"there is no column `{inert(missing[0], 100)}`",
                hint=f"columns: {', '.join(inert(name, 100) for name in columns)}",
            )

    def _searched(self, table: pa.Table) -> list[str]:
        if self.columns is not None:
            return [name for name in self.columns if name in table.column_names]
        return [
            each.name
            for each in table.schema
            if _is_text(each.type) or (each.name == "id" and not pa.types.is_nested(each.type))
        ]

    def _in_column(self, column: pa.ChunkedArray) -> Iterator[tuple[int, int]]:
        """(row, byte offset of the match) for each row that matches."""
        first = 0
        for chunk in column.chunks:
            texts = _as_text(chunk)
            at = self._find(texts) if texts is not None else None
            if at is not None:
                places = pc.fill_null(at, -1).to_numpy(zero_copy_only=False)
                for row in np.flatnonzero(places >= 0):
                    yield first + int(row), int(places[row])
            first += len(chunk)

    def _find(self, texts: pa.Array) -> pa.Array:
        if self.fixed:
            return pc.find_substring(texts, self.pattern, ignore_case=self.ignore_case)
        return pc.find_substring_regex(texts, self.pattern, ignore_case=self.ignore_case)

    def _excerpt(self, seen: Seen, row: int, name: str, at: int) -> str:
        texts = _as_text(seen.table.column(name).slice(row, 1).chunk(0))
        data = texts[0].as_buffer().to_pybytes() if texts is not None else b""
        start = max(0, at - BEFORE)
        while start > 0 and data[start] & 0xC0 == 0x80:  # inside a character
            start -= 1
        part = data[start : at + AFTER].decode("utf-8", "ignore" if at + AFTER < len(data) else "backslashreplace")
        return ("..." if start else "") + one_line(part) + ("..." if at + AFTER < len(data) else "")


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _as_text(chunk: pa.Array) -> pa.Array | None:
    """An array as text; None if it is not a column of plain values."""
    if pa.types.is_nested(chunk.type):
        return None
    if pa.types.is_string(chunk.type) or pa.types.is_large_string(chunk.type):
        return chunk
    try:
        return chunk.cast(pa.large_string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
