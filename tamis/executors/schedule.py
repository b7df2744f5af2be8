"""How a partition is tried again after a worker ran out of memory over it, or died: policies, without processes.

    out of memory    in a worker that had processed rows before     the same rows in a new worker
                     over several rows                              cut the rows; the suspects apart, one at a time
                     over one row, alone in a new worker            once more, with the whole budget, and then the row fails
                     and still full without any row                 parts of half the rows that filled it, each in a new worker
    death            once                                           the same rows again: it may have been killed from outside
                     again                                          cut the rows, as above
                     of a row that is alone, twice                  the row fails

Each piece is processed by a new worker, so a step that leaks memory makes progress, and no row fails that passes alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tamis.errors import WorkerError
from tamis.executors.segments import Segment
from tamis.executors.tasks import Task

MAX_BLAMED = 10
"""Rows of one partition that may fail because workers died over them; with more, the rows are not the cause."""

MAX_KILLS = 10
"""Deaths by a signal before any row of a partition; each time less memory is used."""

CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE")
MAX_CRASHES = 3
"""Crashes while reading the same piece of a file before the piece fails as damaged: the first may be chance, the second
lack of memory."""

MAX_CALL_DEATHS = 3
"""Deaths over one call of `map`, or by an exit before any row of a partition."""

MAX_COMPILED = 200
"""Times one partition or call may be repeated because kernels were compiled; there are fewer kernels than that."""


@dataclass(frozen=True)
class Trouble:
    """What stopped an attempt: the rows in progress (none while reading) and the error."""

    first: int
    rows: int
    error: str
    used_worker: bool = False
    """The worker had processed other rows before this task."""
    one_worker: bool = False
    """The worker had the whole budget."""
    full: bool = False
    """The worker still held most of its memory after it had dropped all rows: a step leaks."""


def after_overflow(task: Task, trouble: Trouble) -> list[Task] | None:
    """The tasks to run instead of one that ran out of memory; None if other rows make no difference."""
    if trouble.used_worker and trouble.rows != 1:
        return [replace(task, new_worker=True)]
    if trouble.full:
        if trouble.rows != 1 and not task.careful:
            return [replace(task, new_worker=True, careful=True)]
        if trouble.first > task.start:
            return _share_out(task, trouble.first)
    suspects = _suspects(task, trouble)
    if suspects is None:
        if trouble.first <= task.start:
            return None
        return _cut(task, trouble.first, trouble.first, halve=True)
    first, stop = suspects
    if (first, stop) != (task.start, task.stop):
        return _cut(task, first, stop, halve=not trouble.used_worker)
    if stop - first > 1:
        return _one_at_a_time(task)
    if task.last_attempt:
        return [_failed(task, first, trouble)]
    return [replace(task, new_worker=True, last_attempt=True)]


def after_death(task: Task, trouble: Trouble) -> list[Task]:
    """The tasks to run instead of one whose worker died."""
    task = replace(task, deaths=task.deaths + 1)
    suspects = _suspects(task, trouble)
    if task.deaths == 1 or suspects is None:
        return [replace(task, new_worker=True)]
    first, stop = suspects
    if (first, stop) != (task.start, task.stop):
        return _cut(task, first, stop, halve=True, deaths=1)
    if stop - first > 1:
        return _one_at_a_time(task)
    if task.last_attempt or trouble.one_worker:
        return [_failed(task, first, trouble)]
    return [replace(task, new_worker=True, last_attempt=True)]


def _failed(task: Task, row: int, trouble: Trouble) -> Task:
    return replace(task, poison={row: trouble.error}, last_attempt=False)


def _suspects(task: Task, trouble: Trouble) -> tuple[int, int] | None:
    """The rows in progress that belong to the task; None while it was reading."""
    first, stop = max(task.start, trouble.first), trouble.first + trouble.rows
    if task.stop is not None:
        stop = min(stop, task.stop)
    return (first, stop) if first < stop else None


def _cut(task: Task, first: int, stop: int, *, halve: bool, deaths: int = 0) -> list[Task]:
    """The rows before the suspects, in two pieces if they may have filled the worker; the suspects; and the rows after."""
    before = task.start + (first - task.start) // 2 if halve else first
    bounds: list[tuple[int, int | None]] = [(task.start, before), (before, first), (first, stop), (stop, task.stop)]
    tasks = []
    for start, end in bounds:
        if end is None or start < end:
            piece = replace(task, start=start, stop=end, new_worker=True, careful=False, deaths=0)
            if (start, end) == (first, stop):
                piece = replace(piece, careful=stop - first > 1, last_attempt=stop - first == 1, deaths=deaths)
            if end != task.stop:
                piece = replace(piece, max_rows=None)
            tasks.append(piece)
    return tasks


def _share_out(task: Task, first: int) -> list[Task]:
    """Parts of half the rows that filled a worker, so that each of the next workers stays well below."""
    rows = max(1, (first - task.start) // 2)
    piece = replace(task, new_worker=True, careful=False, deaths=0, max_rows=None)
    return [
        replace(piece, stop=task.start + rows),
        replace(piece, start=task.start + rows, stop=first, max_rows=rows),
        replace(piece, start=first, max_rows=rows),
    ]


def _one_at_a_time(task: Task) -> list[Task]:
    """The same rows, each noted before it is processed; halves if that has not told the row."""
    if not task.careful:
        return [replace(task, new_worker=True, careful=True)]
    assert task.stop is not None
    middle = (task.start + task.stop) // 2
    piece = replace(task, new_worker=True, deaths=0)
    return [replace(piece, stop=middle), replace(piece, start=middle)]


@dataclass
class Progress:
    """How far a partition is."""

    open_tasks: int = 1
    segments: dict[int, Segment] = field(default_factory=dict)
    """By first row: what is done of a partition that was divided."""
    deaths: int = 0
    deaths_while_reading: int = 0
    crashes: Counter[int] = field(default_factory=Counter)
    """By piece: crashes while it was read."""
    blamed: int = 0
    """Rows that failed because workers died over them."""

    def replaced(self, tasks: Iterable[Task]) -> None:
        self.open_tasks += len(list(tasks)) - 1

    def add(self, task: Task, segment: Segment) -> list[Segment] | None:
        """Add what was done; all segments in source order once nothing is missing."""
        self.segments[task.start] = segment
        if segment.next_row is None:
            self.open_tasks -= 1
        return [self.segments[start] for start in sorted(self.segments)] if not self.open_tasks else None

    def restart(self) -> None:
        """Forget what was done: rows are about to be counted in another way."""
        for segment in self.segments.values():
            segment.discard()
        self.segments.clear()
        self.open_tasks = 1


def count_compiled(times: Counter[int], number: int, what: str) -> None:
    """Count how often work was handed back because kernels were compiled for it, and give up if that does not end."""
    times[number] += 1
    if times[number] > MAX_COMPILED:
        raise WorkerError(
            f"kernels were compiled {times[number]} times for {what}, and were not found on disk afterwards",
            hint="check that the folder of compiled kernels can be written and has room; NUMBA_CACHE_DIR names another",
        )
