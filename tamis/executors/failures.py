"""Ends a run in which more rows or files fail than `max_failed` allows.

    10% or 0.1   a share: of the rows read so far, from 10,000 rows on; of all rows at the end, from 100 rows on;
                 and of the input files that are damaged, from 10 files on
    20           a number: of failed rows and damaged files together
    0            none

Failed rows are counted while partitions are still in progress, so that a mistake which fails every row ends a run early.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from tamis.errors import ParameterError, TooManyFailed
from tamis.events import Event, PartitionCommitted, PartitionProgress, PartitionStarted, WorkerDied
from tamis.parameters import plural
from tamis.report import Account, ErrorCount, ErrorCounts, damaged_text, error_text

DEFAULT_MAX_FAILED = "10%"

MIN_ROWS = 100
"""A share of the rows is checked at the end of a run only if it read this many: one row of ten is no pattern."""

MIN_ROWS_SO_FAR = 10_000
"""A share of the rows is checked during a run only once it read this many: failures may cluster in the first file."""

MIN_FILES = 10
"""A share of the files is checked only if there are this many."""

SHOWN_ERRORS = 30


@dataclass(frozen=True)
class FailureLimit:
    """The most failures a run may have: a share, or a number."""

    share: float | None = None
    count: int | None = None

    def __str__(self) -> str:
        return f"{self.share:.4%}".rstrip("0%").rstrip(".") + " %" if self.share is not None else f"{self.count:,}"


def parse_max_failed(value: float | str) -> FailureLimit:
    """A limit from "10%", a share from 0.0 to 1.0, or a number of rows and files.

    >>> parse_max_failed("10%"), parse_max_failed(0.1) == parse_max_failed("0.1"), parse_max_failed("20")
    (FailureLimit(share=0.1, count=None), True, FailureLimit(share=None, count=20))
    """
    hint = 'for example "10%", 0.1 or, as a number of rows and files, 20'
    text = str(value).strip()
    try:
        if isinstance(value, bool):
            raise ValueError
        if text.endswith("%"):
            limit = FailureLimit(share=float(text[:-1]) / 100)
        elif isinstance(value, int) or text.isdecimal():
            limit = FailureLimit(count=int(text))
        else:
            limit = FailureLimit(share=float(text))
    except ValueError:
        raise ParameterError(f"`max_failed` must be a share or a number, got {value!r}", hint=hint) from None
    if limit.share is not None and not 0 <= limit.share <= 1:
        raise ParameterError(f"`max_failed` as a share must be between 0 and 1, got {value!r}", hint=hint)
    if limit.count is not None and limit.count < 0:
        raise ParameterError(f"`max_failed` must not be negative, got {value!r}", hint=hint)
    return limit


class FailureWatch:
    """Counts failures from the events of a run; `check` raises if there are too many."""

    def __init__(self, limit: FailureLimit) -> None:
        self.limit = limit
        self.num_files = 0
        self._errors = ErrorCounts()
        self._rows = 0
        self._damaged: dict[str, str] = {}
        self._in_progress: dict[tuple[int, int], tuple[int, tuple[ErrorCount, ...]]] = {}

    def begin(self, num_files: int, damaged: Mapping[str, str], committed: Iterable[tuple[int, Account]]) -> None:
        """Start from the damaged files found while listing the input, and from what earlier runs committed.

        `committed` has the number of a stage with each of its accounts.
        """
        self.num_files = num_files
        self._damaged.update(damaged)
        for stage, account in committed:
            self._add(stage, account)

    def __call__(self, event: Event) -> None:
        match event:
            case PartitionStarted():
                self._in_progress.pop((event.stage, event.partition), None)
            case PartitionProgress():
                rows = event.rows if event.stage == 0 else 0  # later stages read the same rows again
                self._in_progress[event.stage, event.partition] = (rows, event.errors)
            case PartitionCommitted():
                self._in_progress.pop((event.stage, event.partition), None)
                self._add(event.stage, Account.from_dict(event.account))
            case WorkerDied() if event.partition is not None:
                for key in [key for key in self._in_progress if key[1] == event.partition]:
                    del self._in_progress[key]
            case _:
                pass

    def check(self, *, output: str | None, final: bool = False) -> None:
        """Raise if there are too many failures; `final` when all rows are counted."""
        errors = ErrorCounts(self._errors.entries)
        rows = self._rows
        for read, found in self._in_progress.values():
            rows += read
            errors.update(found)
        failed = sum(entry.rows for entry in errors.entries)
        damaged = len(self._damaged)
        so_far = " read so far" if self._in_progress else ""
        share = f" ({100 * failed / rows:.1f} %)" if rows else ""
        rows_text = f"{failed:,} of {plural(rows, 'row')}{so_far} failed{share}"
        files_text = f"{damaged:,} of {plural(self.num_files, 'input file')} {'is' if damaged == 1 else 'are'} damaged"
        problem = None
        if self.limit.count is not None:
            if failed + damaged > self.limit.count:
                problem = " and ".join([rows_text] * bool(failed) + [files_text] * bool(damaged))
        elif self.limit.share is not None:
            if rows >= (MIN_ROWS if final else MIN_ROWS_SO_FAR) and failed > self.limit.share * rows:
                problem = rows_text
            elif self.num_files >= MIN_FILES and damaged > self.limit.share * self.num_files:
                problem = files_text
        if problem is not None:
            raise self._error(problem, errors, output)

    def _add(self, stage: int, account: Account) -> None:
        self._rows += (account.read if stage == 0 else 0) + account.created
        self._errors.update(account.errors)
        self._damaged.update(account.damaged_files)

    def _error(self, problem: str, errors: ErrorCounts, output: str | None) -> TooManyFailed:
        found = errors.commonest()
        lines = [f"{problem}; `max_failed` allows {self.limit}", ""]
        lines += [f"  {entry.rows:>12,}  {error_text(asdict(entry))}" for entry in found[:SHOWN_ERRORS]]
        if found[SHOWN_ERRORS:]:
            lines.append(f"  {'':>12}  and {plural(len(found) - SHOWN_ERRORS, 'other error')}")
        lines += damaged_text(dict(sorted(self._damaged.items())))
        hint = "fix the cause and rerun, or allow more failures with --max-failed 50% (max_failed=0.5 in Python)"
        if output is not None:
            hint += "; a rerun resumes from what is committed"
        return TooManyFailed("\n".join(lines), hint=hint)
