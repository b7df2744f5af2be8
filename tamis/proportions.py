"""Which rows of a group are used how often, so that all groups have exactly their sizes.

    sizes of groups -> shares: whole copies of a group, and the size of a rest -> limits: the rest is the rows with smaller keys

A group that is needed 2.5 times has two copies of each row and a third one of those with the smallest random keys, as many as
fit. Nothing is sorted: sizes are summed by the first bits of keys, then by the next bits of those at the limit, and so on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import as_array
from tamis.operators import Decide, Observations, Work
from tamis.sampling import DIGIT_BITS

NOT_CHOSEN = "not in the mix"
_PRESENT, _NULL = "v", "n"
"""First characters of the names of groups, so that a null is not the text "null"."""


@dataclass(frozen=True)
class Share:
    """How often a group is used: copies of all of its rows, and the size of a part that is used once more."""

    copies: int
    rest: int


def exact(number: float) -> Fraction:
    """A number as it was written: 0.1 is a tenth."""
    return Fraction(str(number))


def whole_numbers(amounts: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """Whole numbers with the same sum, rounded down: what is left over goes to the largest fractions.

    >>> {name: int(number) for name, number in whole_numbers(dict.fromkeys("abc", Fraction(10, 3))).items()}
    {'a': 4, 'b': 3, 'c': 3}
    """
    found = {name: Fraction(int(amount)) for name, amount in amounts.items()}
    left = int(sum(amounts.values())) - int(sum(found.values()))
    for name in sorted(amounts, key=lambda name: (found[name] - amounts[name], name))[:left]:
        found[name] += 1
    return found


@dataclass(frozen=True)
class _Facts:
    """The rows of a partition: which group each belongs to, its key, and its size."""

    names: list[str]
    group: np.ndarray
    keys: np.ndarray
    sizes: np.ndarray

    @staticmethod
    def of(observed: Observations, partition: int) -> _Facts:
        facts = observed[partition]
        if "group" not in facts.column_names:
            return _Facts([], np.empty(0, np.int32), np.empty(0, np.uint64), np.empty(0, np.int64))
        values = as_array(facts.column("group"))
        known = pc.if_else(
            pc.is_null(values), _NULL, pc.binary_join_element_wise(_PRESENT, pc.fill_null(values, ""), "")
        )
        encoded = known.dictionary_encode()
        return _Facts(
            encoded.dictionary.to_pylist(),
            encoded.indices.to_numpy(zero_copy_only=False),
            facts.column("key").to_numpy(),
            facts.column("size").to_numpy(),
        )


def sizes_of(observed: Observations, partition: int) -> dict[str, int]:
    facts = _Facts.of(observed, partition)
    return {name: int(facts.sizes[facts.group == number].sum()) for number, name in enumerate(facts.names)}


@dataclass
class _Search:
    """Where the limit of a group is: its first bits, and what may still be chosen of the keys that begin with them."""

    left: int
    prefix: int = 0
    limit: int | None = None


def find_limits(
    observed: Observations, work: Work, rest: Mapping[str, int], sizes: Mapping[str, int]
) -> dict[str, int]:
    """For each group the key below which rows are chosen, so that their sizes are as large as possible and not above `rest`.

    Works as `find_smallest` does.
    """
    searches = {name: _Search(left) for name, left in rest.items()}
    for name, search in searches.items():
        if not search.left or not sizes[name]:
            search.limit = 0
    for shift in range(64 - DIGIT_BITS, -1, -DIGIT_BITS):
        searched = {name: search.prefix for name, search in searches.items() if search.limit is None}
        if not searched:
            break
        items = [(observed, number, searched, shift) for number in range(len(observed))]
        totals = {name: np.zeros((2, 2**DIGIT_BITS), np.int64) for name in searched}
        for part in work.map(f"choose rows, bits from {shift}", _digits, items):
            for name, found in part.items():
                for digit, rows, size in found:
                    totals[name][:, digit] += (rows, size)
        for name, (rows, amounts) in totals.items():
            search = searches[name]
            ends = np.cumsum(amounts)
            digit = int(np.searchsorted(ends, search.left, side="right"))
            if digit == 2**DIGIT_BITS:  # all of them fit
                search.limit = (search.prefix + 1) << (shift + DIGIT_BITS)
                continue
            search.left -= int(ends[digit] - amounts[digit])
            search.prefix = search.prefix << DIGIT_BITS | digit
            if rows[digit] == 1 or not shift:
                search.limit = search.prefix << shift
    return {name: search.limit or 0 for name, search in searches.items()}


def _digits(
    observed: Observations, partition: int, searched: Mapping[str, int], shift: int
) -> dict[str, list[tuple[int, int, int]]]:
    """By group, (digit, rows, size) of the keys that begin with the bits that were found."""
    facts = _Facts.of(observed, partition)
    result = {}
    for number, name in enumerate(facts.names):
        if name not in searched:
            continue
        mine = facts.group == number
        keys, sizes = facts.keys[mine], facts.sizes[mine]
        if shift + DIGIT_BITS < 64:
            same = keys >> np.uint64(shift + DIGIT_BITS) == np.uint64(searched[name])
            keys, sizes = keys[same], sizes[same]
        digits = (keys >> np.uint64(shift) & np.uint64(2**DIGIT_BITS - 1)).astype(np.int64)
        rows = np.bincount(digits, minlength=2**DIGIT_BITS)
        amounts = np.zeros(2**DIGIT_BITS, np.int64)
        np.add.at(amounts, digits, sizes)
        result[name] = [(int(each), int(rows[each]), int(amounts[each])) for each in np.flatnonzero(rows)]
    return result


def decide_copies(
    observed: Observations, decide: Decide, partition: int, chosen: Mapping[str, tuple[int, int]], repeats: bool
) -> None:
    facts = _Facts.of(observed, partition)
    copies = np.zeros(len(facts.keys), np.int32)
    for number, name in enumerate(facts.names):
        whole, limit = chosen[name]
        mine = facts.group == number
        below = facts.keys[mine] < np.uint64(limit) if limit < 2**64 else np.ones(int(mine.sum()), np.bool_)
        copies[mine] = whole + below
    decide(partition, copies == 0, NOT_CHOSEN, pa.array(copies) if repeats else None)
