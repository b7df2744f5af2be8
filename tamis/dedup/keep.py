"""The keep policy: which of several duplicates to keep, expressed as numbers to sort by."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column
from tamis.errors import OperatorError, ParameterError

Keep: TypeAlias = Literal["first", "longest", "newest", "best", "none"]

_FRAME = re.compile(r"@\d+$")
_WORST = np.uint64(2**64 - 1)


@dataclass(frozen=True)
class KeepPolicy:
    """Prefers rows by source, then by `keep`, then in source order. Numbers are compared as 64-bit floats."""

    keep: Keep = "first"
    by: str | None = None
    prefer: Sequence[str] | None = None
    prefer_column: str | None = None
    across_sources: bool = False

    def check(self) -> None:
        if self.keep in ("newest", "best") and self.by is None:
            example = "date" if self.keep == "newest" else "score"
            raise ParameterError(f'keep="{self.keep}" needs a column', hint=f'keep="{self.keep}", by="{example}"')
        if self.by is not None and self.keep not in ("newest", "best"):
            raise ParameterError(f'`by` has no effect with keep="{self.keep}"', hint='keep="newest" or keep="best"')
        if self.prefer_column is not None and not self.prefer:
            raise ParameterError("`prefer_column` needs `prefer`", hint='prefer=["books", "web"], best first')
        if self.across_sources and not self.prefer:
            raise ParameterError(
                "`across_sources` needs `prefer`, a list of sources, best first", hint='prefer=["books", "web"]'
            )

    def columns(self) -> tuple[str, ...]:
        """The columns that the policy reads."""
        return tuple(name for name in (self.by, self.prefer_column) if name is not None)

    def facts(self, batch: Batch, lengths: np.ndarray) -> dict[str, np.ndarray]:
        """For `observe`: `order` and `source`, smaller is better; each only if the policy uses it."""
        facts = {}
        if self.keep == "longest":
            facts["order"] = _WORST - lengths.astype(np.uint64)
        elif self.by is not None:
            values = batch[self.by]
            facts["order"] = _descending(
                _moments(values, self.by) if self.keep == "newest" else _scores(values, self.by)
            )
        if self.prefer:
            facts["source"] = self._sources(batch)
        return facts

    def _sources(self, batch: Batch) -> np.ndarray:
        assert self.prefer is not None
        if self.prefer_column is None:
            ranks = np.array([self._rank_of_place(place) for place in batch.origin.places], np.uint16)
            return ranks[batch.origin.place] if len(batch) else np.empty(0, np.uint16)
        column = batch[self.prefer_column]
        if pa.types.is_nested(column.type):
            raise OperatorError(
                f"`{self.prefer_column}` is {column.type}, which cannot name a source", hint="use a column of text"
            )
        values = column.cast(pa.string())
        found = pc.index_in(values, value_set=pa.array(list(self.prefer), pa.string()))
        return pc.fill_null(found, len(self.prefer)).to_numpy(zero_copy_only=False).astype(np.uint16)

    def _rank_of_place(self, place: str) -> int:
        assert self.prefer is not None
        path = _FRAME.sub("", place)  # crawl/b.jsonl.zst@1048576 is a frame of a compressed file
        for rank, source in enumerate(self.prefer):
            if fnmatchcase(path, source) or f"/{source.strip('/')}/" in f"/{path.strip('/')}/":
                return rank
        return len(self.prefer)


def _scores(values: Column, name: str) -> np.ndarray:
    kind = values.type
    if not (
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)
    ):
        raise OperatorError(
            f"`{name}` is {kind}, but rows are ranked by a number", hint="name a column of numbers in by="
        )
    if pa.types.is_null(kind):
        return np.full(len(values), np.nan)
    return pc.cast(values, pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float64)


def _moments(values: Column, name: str) -> np.ndarray:
    """Dates, timestamps, numbers or ISO 8601 text as numbers. Text without a time zone is in UTC."""
    kind = values.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _scores(values.cast(pa.timestamp("us"), safe=False).cast(pa.int64()), name)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.array([_parse(text, name) for text in values.to_pylist()], np.float64)
    return _scores(values, name)


def _parse(text: str | None, name: str) -> float:
    if not text:
        return np.nan
    try:
        moment = datetime.datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise ValueError(f"`{name}` is {text!r}, which is not an ISO 8601 date") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp() * 1e6


def _descending(values: np.ndarray) -> np.ndarray:
    """Numbers as uint64 that sort in descending order, with NaN last."""
    return np.where(np.isnan(values), _WORST, ~ascending(values))


def ascending(values: np.ndarray) -> np.ndarray:
    """Numbers other than NaN as uint64 in the same order."""
    bits = np.ascontiguousarray(values + 0.0, np.float64).view(np.uint64)
    high = np.uint64(1) << np.uint64(63)
    return np.where(bits & high, ~bits, bits | high)
