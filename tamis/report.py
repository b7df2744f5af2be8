"""The account of a run: rows read = kept + dropped by reason + failed, per operator and in all.

Each committed partition leaves an `Account` in the ledger; the report is their sum, so a run that was interrupted and
resumed reports the same as one that was not.

    Account (partition, stage) --+--> stage --+--> Report
                                 +            +
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tamis.errors import LedgerError
from tamis.parameters import format_bytes


@dataclass
class OperatorAccount:
    """What one step did: rows in and out, how long it took, and the fates it decided."""

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
    """The most it held on top of what was there, when profiled."""
    setup_bytes: int = 0
    """What it took before its first batch."""

    def add(self, other: OperatorAccount) -> None:
        for name in ("rows_in", "rows_out", "seconds", "num_bytes", "created", "failed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)
        self.setup_bytes = max(self.setup_bytes, other.setup_bytes)
        for reason, count in other.dropped.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + count


@dataclass
class Account:
    """The fates of the rows of one partition, or the sum over many."""

    operators: list[OperatorAccount] = field(default_factory=list)
    read: int = 0
    kept: int = 0
    seconds: float = 0.0
    num_bytes: int = 0
    """Bytes read, decompressed."""
    peak_memory_bytes: int = 0
    """The most a worker held beyond what it held before the partition."""
    splits: int = 0
    """Batches that were halved because an operator ran out of memory."""
    damaged_files: dict[str, str] = field(default_factory=dict)
    """Files that could not be read, or not to their end, with the first error of each."""

    @property
    def failed(self) -> int:
        return sum(op.failed for op in self.operators)

    @property
    def created(self) -> int:
        return sum(op.created for op in self.operators)

    @property
    def dropped(self) -> dict[str, int]:
        return _merge(op.dropped for op in self.operators)

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

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Account:
        values = dict(data)
        operators = [OperatorAccount(**op) for op in values.pop("operators")]
        return Account(operators=operators, **values)


@dataclass
class Report:
    """What a run did. `read + created == kept + sum(dropped.values()) + failed`, always."""

    read: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    failed: int = 0
    created: int = 0
    seconds: float = 0.0
    peak_memory_bytes: int = 0
    num_bytes: int = 0
    operators: list[dict[str, Any]] = field(default_factory=list)
    damaged_files: dict[str, str] = field(default_factory=dict)
    """Input files that could not be read, or not to their end, with the first error of each."""
    output: str | None = None
    state: str = "finished"
    """finished, interrupted, or unchanged (there was nothing to do)"""
    sample: dict[str, Any] | None = None
    """Set if only a share of the rows was processed because all would not fit: the share and the weight of a row."""
    memory: dict[str, Any] = field(default_factory=dict)
    """The budget, what was done to stay inside it, and what was learnt."""
    notes: list[str] = field(default_factory=list)
    """What was done again and why, and other things worth a sentence."""

    @staticmethod
    def of(stages: list[Account], *, seconds: float, peak_memory_bytes: int, output: str | None) -> Report:
        """The report of a run from the accounts of its stages, each being handed what the one before kept."""
        steps = [op for stage in stages for op in stage.operators]
        busy = sum(op.seconds for op in steps) or 1.0
        return Report(
            read=stages[0].read if stages else 0,
            kept=stages[-1].kept if stages else 0,
            dropped=_merge(stage.dropped for stage in stages),
            failed=sum(stage.failed for stage in stages),
            created=sum(stage.created for stage in stages),
            seconds=round(seconds, 3),
            peak_memory_bytes=peak_memory_bytes,
            num_bytes=stages[0].num_bytes if stages else 0,
            operators=[_operator_row(op, busy) for op in steps],
            damaged_files={path: why for stage in reversed(stages) for path, why in stage.damaged_files.items()},
            output=output,
        )

    @property
    def balances(self) -> bool:
        return self.read + self.created == self.kept + sum(self.dropped.values()) + self.failed

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def as_text(self) -> bytes:
        """As it stands in report.json."""
        return json.dumps(self.as_dict(), indent=2, ensure_ascii=False).encode()

    @staticmethod
    def load(output: str | Path) -> Report:
        """The report of a finished or interrupted run, from its output folder."""
        found = _stored(output, "report")
        try:
            return Report(**found)
        except TypeError as error:
            raise LedgerError(f"the report in {output} is damaged or of another version: {error}") from error

    def __repr__(self) -> str:
        return f"<Report {self.state}>\n{self}"

    def __str__(self) -> str:
        lines = [f"read     {self.read:>14,}", f"kept     {self.kept:>14,}{_percent(self.kept, self.read)}"]
        if self.created:
            lines.insert(1, f"created  {self.created:>14,}")
        lines.append(f"dropped  {sum(self.dropped.values()):>14,}{_percent(sum(self.dropped.values()), self.read)}")
        for reason, count in sorted(self.dropped.items(), key=lambda item: (-item[1], item[0])):
            lines.append(f"  {count:>21,}{_percent(count, self.read)}  {reason}")
        lines.append(f"failed   {self.failed:>14,}{_percent(self.failed, self.read)}")
        if self.sample is not None:
            lines.append(
                f"of {self.sample['share']:.2%} of the rows, since all did not fit; each stands for {self.sample['weight']:.0f}"
            )
        if self.state == "unchanged":
            lines.insert(0, "unchanged: nothing to do, an earlier run wrote this output")
        rate = self.num_bytes / self.seconds if self.seconds else 0
        lines.append(
            f"in {self.seconds:.1f} s ({format_bytes(rate)}/s), at most {format_bytes(self.peak_memory_bytes)} of memory"
        )
        return "\n".join(lines)


def _operator_row(op: OperatorAccount, busy: float) -> dict[str, Any]:
    rate = op.num_bytes / op.seconds / 1e6 if op.seconds else None
    return {
        "name": op.name,
        "kind": op.kind,
        "rows_in": op.rows_in,
        "rows_out": op.rows_out,
        "dropped": op.dropped,
        "failed": op.failed,
        "created": op.created,
        "seconds": round(op.seconds, 4),
        "share": round(op.seconds / busy, 4),
        "mb_per_s": round(rate, 1) if rate is not None else None,
        "num_bytes": op.num_bytes,
        "peak_bytes": op.peak_bytes,
        "setup_bytes": op.setup_bytes,
    }


def _merge(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    result: dict[str, int] = {}
    for part in counts:
        for reason, count in part.items():
            result[reason] = result.get(reason, 0) + count
    return result


def _percent(part: int, whole: int) -> str:
    return f"  {100 * part / whole:5.1f} %" if whole else ""


def load_manifest(output: str | Path) -> dict[str, Any]:
    """What a run recorded of its settings, its machine and its reasons."""
    return _stored(output, "manifest")


def _stored(output: str | Path, what: str) -> dict[str, Any]:
    from tamis.store import INTERNAL, Store  # the store knows operators, and those need not know reports

    try:
        data = Store(str(output)).read(f"{INTERNAL}/{what}.json")
    except NotADirectoryError:
        data = None
    if data is None:
        hint = f"name the output folder of a run; it holds {INTERNAL}/{what}.json"
        raise LedgerError(f"there is no {what} in {output}", hint=hint)
    try:
        found = json.loads(data)
    except ValueError as error:
        raise LedgerError(f"the {what} in {output} is damaged or of another version: {error}") from error
    if not isinstance(found, dict):
        raise LedgerError(f"the {what} in {output} is damaged or of another version: {type(found).__name__}")
    return found
