"""The account of a run: rows read = kept + dropped by reason + failed, per operator and in total.

Each committed partition leaves an `Account` in the ledger. The report is their sum, so an interrupted and resumed run
reports the same counts as an uninterrupted one.

    Account (partition, stage) --+--> stage --+--> Report
                                 +            +
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tamis.account import (
    Account,
    ErrorCount,
    ErrorCounts,
    OperatorAccount,
    error_kind,
    merged_counts,
    shortened_error,
)
from tamis.errors import LedgerError, SourceError
from tamis.inert import html_table
from tamis.parameters import format_bytes, plural

if TYPE_CHECKING:
    from tamis.dedup.groups import Groups
    from tamis.looking.life import Life
    from tamis.looking.rows import StoredRows

__all__ = [
    "Account",
    "ErrorCount",
    "ErrorCounts",
    "OperatorAccount",
    "Report",
    "counts_text",
    "damaged_text",
    "error_kind",
    "error_text",
    "load_manifest",
]

SHOWN_FILES = 10
"""Damaged files that a report names; report.json has all of them."""


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
    errors: list[dict[str, Any]] = field(default_factory=list)
    """The errors of failed rows, commonest first: step, error, rows, and the address of the first row."""
    new_rows: int = 0
    """Rows this run read, without those that earlier runs committed."""
    new_bytes: int = 0
    operators: list[dict[str, Any]] = field(default_factory=list)
    damaged_files: dict[str, str] = field(default_factory=dict)
    """Input files that could not be read, or not to their end, with the first error of each."""
    output: str | None = None
    state: str = "finished"
    """finished, interrupted, failed (more rows failed than `max_failed` allows), unchanged (nothing to do), or shard (the
    account of one shard, while others are not complete)"""
    sample: dict[str, Any] | None = None
    """Set if only a share of the rows was processed because all did not fit: the share and the weight of a row."""
    memory: dict[str, Any] = field(default_factory=dict)
    """The budget, how often a run acted to stay within it, and what it measured."""
    memory_events: list[dict[str, Any]] = field(default_factory=list)
    """Alerts about memory and actions to stay within the budget: time, kind, level, text and the action taken."""
    streams: list[dict[str, Any]] = field(default_factory=list)
    """For each group of stages that ran at the same time: how long each was busy and waited, and which one was the slowest."""
    shards: list[dict[str, Any]] = field(default_factory=list)
    """For each shard of a run that was divided into shards: its hosts, time, and peak memory."""
    notes: list[str] = field(default_factory=list)
    """What was redone and why, and other remarks."""

    @staticmethod
    def of(
        stages: list[Account], *, new: Account | None = None, seconds: float, peak_memory_bytes: int, output: str | None
    ) -> Report:
        """The report of a run from the accounts of its stages; each stage reads what the previous one kept.

        `new` is what this run itself read, if earlier runs committed the rest.
        """
        steps = [op for stage in stages for op in stage.operators]
        busy = sum(op.seconds for op in steps) or 1.0
        first = stages[0] if stages else Account()
        new = first if new is None else new
        errors = ErrorCounts(error for stage in stages for error in stage.errors)
        return Report(
            read=first.read,
            kept=stages[-1].kept if stages else 0,
            dropped=merged_counts(stage.dropped for stage in stages),
            failed=sum(stage.failed for stage in stages),
            created=sum(stage.created for stage in stages),
            seconds=round(seconds, 3),
            peak_memory_bytes=peak_memory_bytes,
            num_bytes=first.num_bytes,
            errors=[asdict(error) for error in errors.commonest()],
            new_rows=new.read,
            new_bytes=new.num_bytes,
            operators=[_operator_row(op, busy) for op in steps],
            damaged_files={path: why for stage in reversed(stages) for path, why in stage.damaged_files.items()},
            output=output,
        )

    # ---------------------------------------------------------------------------------------------- rows of the output

    def dropped_rows(self, reason: str | None = None) -> StoredRows:
        """The rows that the run dropped, or those it dropped for one reason, if it was given `rejects=True`.

        >>> report.dropped_rows("words < 50").to_pandas()                # doctest: +SKIP
        """
        from tamis.looking.rows import StoredRows

        return StoredRows(self._folder(), "dropped", reason, self.dropped)

    def failed_rows(self) -> StoredRows:
        """The rows that failed, with step and error."""
        from tamis.looking.rows import StoredRows

        return StoredRows(self._folder(), "failed")

    def kept_rows(self) -> StoredRows:
        """The rows that the run wrote."""
        from tamis.looking.rows import StoredRows

        return StoredRows(self._folder(), "kept")

    def groups(self) -> Groups:
        """The groups of duplicates that the run found."""
        from tamis.dedup.groups import Groups

        return Groups.load(self._folder())

    def why(self, id_or_address: str) -> list[Life]:
        """What happened to a row: the steps it passed, its scores, its fate, and the duplicate kept instead."""
        from tamis.looking.life import why

        return why(self._folder(), str(id_or_address))

    def _folder(self) -> str:
        if self.output is None:
            raise SourceError(
                "the run wrote no output, so its rows are not stored", hint="add a writer to the pipeline"
            )
        return self.output

    @property
    def balances(self) -> bool:
        return self.total == self.kept + sum(self.dropped.values()) + self.failed

    @property
    def total(self) -> int:
        """All rows that were kept, dropped or failed: those read, and those that steps created."""
        return self.read + self.created

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def as_text(self) -> bytes:
        """The content of report.json."""
        return json.dumps(self.as_dict(), indent=2, ensure_ascii=False).encode()

    @staticmethod
    def load(output: str | Path) -> Report:
        """Read the report of a finished or interrupted run from its output folder."""
        found = _stored(output, "report")
        try:
            return Report(**{**found, "output": str(output)})  # the folder may have been moved
        except TypeError as error:
            raise LedgerError(f"the report in {output} is damaged or of another version: {error}") from error

    def __repr__(self) -> str:
        return f"<Report {self.state}>\n{self}"

    def _repr_html_(self) -> str:
        rows: list[tuple[str, str, str]] = [("read", f"{self.read:,}", "")]
        rows += [("created", f"{self.created:,}", "")] if self.created else []
        rows.append(("kept", f"{self.kept:,}", _percent(self.kept, self.total)))
        for reason, count in sorted(self.dropped.items(), key=lambda item: (-item[1], item[0])):
            rows.append((f"dropped: {reason}", f"{count:,}", _percent(count, self.total)))
        rows.append(("failed", f"{self.failed:,}", _percent(self.failed, self.total)))
        rows += [(error_text(error), f"{error['rows']:,}", "") for error in self.errors[:SHOWN_FILES]]
        steps = [
            (
                op["name"],
                f"{op['rows_in']:,}",
                f"{op['rows_out']:,}",
                f"{op['seconds']:.2f}",
                f"{100 * op['share']:.0f} %",
            )
            for op in self.operators
        ]
        text = "; ".join([self.state, *([self._speed()] if self.state != "unchanged" else []), self.output or ""])
        return html_table(["", "rows", ""], rows, right=[1, 2], caption=f"run {text}") + html_table(
            ["step", "rows in", "rows out", "seconds", "share"], steps, right=range(1, 5)
        )

    def __str__(self) -> str:
        lines = [f"read     {self.read:>14,}", f"kept     {self.kept:>14,}{_percent(self.kept, self.total)}"]
        if self.state == "unchanged":
            lines.insert(0, "unchanged: nothing to do, an earlier run wrote this output")
        if self.created:
            lines.insert(1, f"created  {self.created:>14,}")
        lines.append(f"dropped  {sum(self.dropped.values()):>14,}{_percent(sum(self.dropped.values()), self.total)}")
        for reason, count in sorted(self.dropped.items(), key=lambda item: (-item[1], item[0])):
            lines.append(f"  {count:>21,}{_percent(count, self.total)}  {reason}")
        lines.append(f"failed   {self.failed:>14,}{_percent(self.failed, self.total)}")
        for error in self.errors:
            lines.append(f"  {error['rows']:>21,}{_percent(error['rows'], self.total)}  {error_text(error)}")
        lines += [counts_text(op["name"], op["counts"]) for op in self.operators if op.get("counts")]
        lines += damaged_text(self.damaged_files)
        if self.sample is not None:
            lines.append(
                f"based on a random {self.sample['share']:.2%} of the rows, because all rows did not fit; "
                f"each row stands for {self.sample['weight']:.0f}"
            )
        if self.state != "unchanged":
            lines.append(self._speed())
        return "\n".join(lines)

    def _speed(self) -> str:
        rate = self.new_bytes / self.seconds if self.seconds else 0
        part = f" for {plural(self.new_rows, 'row')} read in this run" if self.new_rows < self.read else ""
        memory = format_bytes(self.peak_memory_bytes)
        return f"took {self.seconds:.1f} s ({format_bytes(rate)}/s{part}), peak memory {memory}"


def counts_text(name: str, counts: Mapping[str, float]) -> str:
    """What a step counted, on one line.

    >>> counts_text("ask", {"requests": 1200, "cost": 0.25, "input_tokens": 34567})
    'ask: requests 1,200, cost 0.2500, input tokens 34,567'
    """
    parts = [
        f"{key.replace('_', ' ')} {f'{number:,.4f}' if number % 1 else f'{number:,.0f}'}"
        for key, number in counts.items()
    ]
    return f"{name}: " + ", ".join(parts)


def damaged_text(files: Mapping[str, str], most: int = SHOWN_FILES) -> list[str]:
    """How many input files are damaged, and the first of them with their errors; nothing if there are none."""
    if not files:
        return []
    lines = [f"{plural(len(files), 'damaged file')}, read as far as possible:"]
    lines += [f"  {path}: {shortened_error(error)}" for path, error in list(files.items())[:most]]
    return lines if len(files) <= most else [*lines, f"  and {plural(len(files) - most, 'other')}"]


def error_text(error: Mapping[str, Any]) -> str:
    """One entry of `Report.errors` as a sentence.

    >>> error_text({"step": "f", "error": "KeyError: 'a'", "kind": "KeyError", "various": False, "example": "in:7"})
    "`f`: KeyError: 'a'; first at in:7"
    """
    if error["various"]:
        return f"`{error['step']}`: {error['error']}, and similar errors; first at {error['example']}"
    return f"`{error['step']}`: {error['error']}; first at {error['example']}"


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
        "counts": op.counts,
    }


def _percent(part: int, whole: int) -> str:
    return f"  {100 * part / whole:5.1f} %" if whole else ""


def load_manifest(output: str | Path) -> dict[str, Any]:
    """The settings of a run, its machine, and the reasons for its choices."""
    return _stored(output, "manifest")


def _stored(output: str | Path, what: str) -> dict[str, Any]:
    from tamis.store import INTERNAL, Store  # not at the top: the store imports operators

    try:
        data = Store(str(output)).read(f"{INTERNAL}/{what}.json")
    except NotADirectoryError:
        data = None
    if data is None:
        hint = f"name the output folder of a run; it contains {INTERNAL}/{what}.json"
        raise LedgerError(f"there is no {what} in {output}", hint=hint)
    try:
        found = json.loads(data)
    except ValueError as error:
        raise LedgerError(f"the {what} in {output} is damaged or of another version: {error}") from error
    if not isinstance(found, dict):
        raise LedgerError(f"the {what} in {output} is damaged or of another version: {type(found).__name__}")
    return found
