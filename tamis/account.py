"""What happened to the rows of a partition, a stage or a run, by step: read + created = kept + dropped + failed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

MAX_MESSAGES = 10
"""If one kind of error has more different messages in a step, they are counted together."""

MAX_ERROR_CHARS = 200


@dataclass
class OperatorAccount:
    """Rows in and out of one step, its time, and the rows it dropped or failed."""

    name: str
    kind: str
    rows_in: int = 0
    rows_out: int = 0
    seconds: float = 0.0
    num_bytes: int = 0
    """Bytes of the columns it was given."""
    created: int = 0
    failed: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    peak_bytes: int = 0
    """Peak memory on top of what was allocated before; measured only when profiling."""
    setup_bytes: int = 0
    """Memory allocated before the first batch."""
    counts: dict[str, float] = field(default_factory=dict)
    """What the step itself counts, such as requests and tokens."""

    def add(self, other: OperatorAccount) -> None:
        for name in ("rows_in", "rows_out", "seconds", "num_bytes", "created", "failed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)
        self.setup_bytes = max(self.setup_bytes, other.setup_bytes)
        for reason, count in other.dropped.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + count
        self.count(other.counts)

    def count(self, counts: Mapping[str, float]) -> None:
        for name, number in counts.items():
            self.counts[name] = self.counts.get(name, 0) + number


@dataclass
class ErrorCount:
    """Rows that failed in one step with the same error, and the address of the first one."""

    step: str
    error: str
    rows: int
    example: str
    kind: str
    """Errors are counted together by kind if their messages differ too much."""
    various: bool = False
    """Whether this counts messages of the same kind together."""


class ErrorCounts:
    """Failed rows by step and error.

    Bounded: long messages are shortened, and once one kind of error has more than `MAX_MESSAGES` different messages in
    a step, they become one entry. The result does not depend on the order in which counts are added, except for the
    examples, which come from the first rows added.

    >>> counts = ErrorCounts()
    >>> counts.add("lambda", "KeyError: 'typo' (clean.py:3)", "in/a.jsonl:0")
    >>> counts.add("lambda", "KeyError: 'typo' (clean.py:3)", "in/a.jsonl:12")
    >>> [(each.error, each.rows, each.example) for each in counts.entries]
    [("KeyError: 'typo' (clean.py:3)", 2, 'in/a.jsonl:0')]
    """

    def __init__(self, entries: Iterable[ErrorCount] = ()) -> None:
        self.entries: list[ErrorCount] = []
        for entry in entries:
            self._add(entry)

    def add(self, step: str, error: str, example: str, rows: int = 1) -> None:
        text = shortened_error(error)
        self._add(ErrorCount(step, text, rows, example, kind=error_kind(text)))

    def update(self, entries: Iterable[ErrorCount]) -> None:
        for entry in entries:
            self._add(entry)

    def commonest(self) -> list[ErrorCount]:
        """The entries, those with the most rows first."""
        return sorted(self.entries, key=lambda entry: (-entry.rows, entry.step, entry.error))

    def _add(self, new: ErrorCount) -> None:
        alike = [entry for entry in self.entries if (entry.step, entry.kind) == (new.step, new.kind)]
        for entry in alike:
            if entry.various or (entry.error == new.error and not new.various):
                entry.rows += new.rows
                return
        self.entries.append(ErrorCount(**vars(new)))
        if alike and (new.various or len(alike) == MAX_MESSAGES):
            first = alike[0]
            first.rows = new.rows + sum(entry.rows for entry in alike)
            first.various = True
            merged = {id(entry) for entry in (*alike[1:], self.entries[-1])}
            self.entries = [entry for entry in self.entries if id(entry) not in merged]


def shortened_error(error: str) -> str:
    """The first line of an error, shortened in the middle: its end says where the error was raised."""
    text = (error.splitlines() or [""])[0]
    if len(text) <= MAX_ERROR_CHARS:
        return text
    end = text[-60:]
    return f"{text[: MAX_ERROR_CHARS - len(end) - 5]} ... {end}"


def error_kind(error: str) -> str:
    """The type of an error: what precedes the first colon, numbers left out, but not those of `UTF-8` and `\\u0000`."""
    return re.sub(r"(?<!\d)(?<!UTF-)(?<!\\u)\d+", "N", error.partition(":")[0])[:60]


@dataclass
class Account:
    """What happened to the rows of one partition, or the sum over many."""

    operators: list[OperatorAccount] = field(default_factory=list)
    read: int = 0
    kept: int = 0
    seconds: float = 0.0
    num_bytes: int = 0
    """Bytes read, decompressed."""
    peak_memory_bytes: int = 0
    """Peak memory of a worker beyond what it held before the partition."""
    splits: int = 0
    """Batches that were halved because an operator ran out of memory."""
    damaged_files: dict[str, str] = field(default_factory=dict)
    """Files that could not be read, or not to their end, with the first error of each."""
    errors: list[ErrorCount] = field(default_factory=list)
    """The errors of failed rows."""
    limits: dict[str, int] = field(default_factory=dict)
    """What steps learned about what fits in memory, for later runs."""

    @property
    def failed(self) -> int:
        return sum(op.failed for op in self.operators)

    @property
    def created(self) -> int:
        return sum(op.created for op in self.operators)

    @property
    def dropped(self) -> dict[str, int]:
        return merged_counts(op.dropped for op in self.operators)

    @property
    def balances(self) -> bool:
        return self.read + self.created == self.kept + sum(self.dropped.values()) + self.failed

    def add(self, other: Account) -> None:
        """Add the account of another partition of the same stage."""
        if not self.operators:
            self.operators = [OperatorAccount(op.name, op.kind) for op in other.operators]
        for mine, theirs in zip(self.operators, other.operators, strict=True):
            mine.add(theirs)
        self.read += other.read
        self.kept += other.kept
        self.seconds += other.seconds
        self.num_bytes += other.num_bytes
        self.splits += other.splits
        self.peak_memory_bytes = max(self.peak_memory_bytes, other.peak_memory_bytes)
        for path, error in other.damaged_files.items():
            self.damaged_files.setdefault(path, error)
        self.errors = ErrorCounts([*self.errors, *other.errors]).entries
        self.limits |= other.limits

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Account:
        values = dict(data)
        operators = [OperatorAccount(**op) for op in values.pop("operators")]
        errors = [ErrorCount(**error) for error in values.pop("errors")]
        return Account(operators=operators, errors=errors, **values)


def merged_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    result: dict[str, int] = {}
    for part in counts:
        for reason, count in part.items():
            result[reason] = result.get(reason, 0) + count
    return result
