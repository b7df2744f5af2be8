"""The rules of filters: thresholds as data, from which the reasons for drops are derived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Column, as_array


@dataclass(frozen=True)
class Rule:
    """Keeps a row if its score is within the bounds; the violated bound becomes the reason for the drop."""

    score: str
    minimum: float | None = None
    maximum: float | None = None
    allowed: tuple[str, ...] | None = None
    below: float | None = None
    """An exclusive upper bound, for sources that define it so where many rows lie exactly on the bound."""
    keeps_missing: bool = False
    """Whether rows without the score are kept: the step had nothing to measure them by."""

    def verdicts(self, values: Column) -> list[tuple[str, np.ndarray]]:
        """(reason, mask of the rows that violate it), disjoint, in a fixed order."""
        result = []
        if values.null_count and not self.keeps_missing:
            result.append((f"{self.score} is missing", _mask(pc.is_null(values))))
        if pa.types.is_floating(values.type):
            nan = _mask(pc.is_nan(values))
            if nan.any():
                result.append((f"{self.score} is not a number", nan))
        if self.minimum is not None:
            result.append((f"{self.score} < {_number(self.minimum)}", _mask(pc.less(values, self.minimum))))
        if self.maximum is not None:
            result.append((f"{self.score} > {_number(self.maximum)}", _mask(pc.greater(values, self.maximum))))
        if self.below is not None:
            result.append((f"{self.score} >= {_number(self.below)}", _mask(pc.greater_equal(values, self.below))))
        if self.allowed is not None:
            outside = pc.invert(pc.is_in(values, value_set=pa.array(self.allowed, type=values.type)))
            broken = _mask(outside) & ~_mask(pc.is_null(values))
            result.append((f"{self.score} not in {', '.join(map(str, self.allowed))}", broken))
        return result

    @property
    def met(self) -> str:
        """What holds for a row that the rule keeps.

        >>> Rule("words", minimum=50, maximum=1000).met
        'words from 50 to 1000'
        """
        if self.allowed is not None:
            return f"{self.score} in {', '.join(map(str, self.allowed))}"
        if self.minimum is not None and self.maximum is not None:
            return f"{self.score} from {_number(self.minimum)} to {_number(self.maximum)}"
        if self.minimum is not None:
            return f"{self.score} >= {_number(self.minimum)}"
        if self.maximum is not None:
            return f"{self.score} <= {_number(self.maximum)}"
        return f"{self.score} < {_number(self.below)}" if self.below is not None else f"{self.score} is known"


_SPELLED_RULES = 2
"""More rules than these would make a reason too long to read."""


def reason_to_invert(step: str, rules: Sequence[Rule]) -> str:
    """The reason for which an inverted filter drops a row: it meets all rules.

    >>> reason_to_invert("word_count", [Rule("words", minimum=50), Rule("letters", maximum=9)])
    'words >= 50 and letters <= 9'
    """
    if 0 < len(rules) <= _SPELLED_RULES:
        return " and ".join(rule.met for rule in rules)
    return f"{step}: all rules are met"


def between(score: str, minimum: float | None, maximum: float | None) -> Rule:
    """Keep rows whose score is at least `minimum` and at most `maximum`."""
    return Rule(score, minimum, maximum)


def at_least(score: str, minimum: float) -> Rule:
    return Rule(score, minimum=minimum)


def at_most(score: str, maximum: float, *, keeps_missing: bool = False) -> Rule:
    return Rule(score, maximum=maximum, keeps_missing=keeps_missing)


def less_than(score: str, bound: float | None) -> Rule:
    """Keep rows whose score is below `bound`."""
    return Rule(score, below=bound)


def one_of(score: str, allowed: Sequence[str]) -> Rule:
    return Rule(score, allowed=tuple(allowed))


def _mask(values: pa.Array | pa.ChunkedArray) -> np.ndarray:
    array = as_array(values)
    return np.asarray(pc.fill_null(array, False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
