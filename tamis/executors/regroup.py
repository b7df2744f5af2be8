"""Batches of about the size a worker may hold, whatever a step makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from tamis.batch import Batch

TOLERANCE = 2
"""A batch up to this many times the requested size is not cut."""

PROBE_SHARE = 64
"""A step that may create rows first gets 1/64 of a batch, to measure how much it makes of it."""


def regroup(batches: Iterable[Batch], batch_bytes: int) -> Iterator[Batch]:
    """The same rows in the same order: large batches cut, small neighbours joined, to about `batch_bytes` each."""
    waiting: list[Batch] = []
    waiting_bytes = 0
    for batch in batches:
        if not len(batch):
            continue
        size = batch.num_bytes
        if waiting and waiting_bytes + size > batch_bytes:
            yield from _joined(waiting)
            waiting, waiting_bytes = [], 0
        if size > TOLERANCE * batch_bytes:
            yield from _cut(batch, size, batch_bytes)
        else:
            waiting.append(batch)
            waiting_bytes += size
    yield from _joined(waiting)


def joined(batches: Sequence[Batch]) -> Batch:
    """The rows of all batches as one batch."""
    filled = [batch for batch in batches if len(batch)] or batches[:1]
    return filled[0] if len(filled) == 1 else Batch.concat(filled)


def _joined(batches: list[Batch]) -> list[Batch]:
    """The batches as one, unless a function gave them columns whose types have nothing in common."""
    try:
        return [joined(batches)] if batches else []
    except pa.ArrowException:
        return batches


def _cut(batch: Batch, size: int, batch_bytes: int) -> Iterator[Batch]:
    rows = max(1, len(batch) * batch_bytes // size)
    for start in range(0, len(batch), rows):
        yield batch.select(slice(start, start + rows))


class Growth:
    """How many bytes each step makes per byte it is given, as measured so far."""

    def __init__(self) -> None:
        self._ratios: dict[int, float] = {}

    def note(self, step: int, given_bytes: int, made_bytes: int) -> None:
        ratio = made_bytes / max(1, given_bytes)
        self._ratios[step] = max(ratio, (self._ratios.get(step, ratio) + ratio) / 2)

    def rows(self, step: int, batch: Batch, batch_bytes: int, *, creates_rows: bool) -> int:
        """How many rows of `batch` to hand to a step so that it makes about `batch_bytes` of them."""
        ratio = self._ratios.get(step)
        if ratio is None:
            return max(1, len(batch) // PROBE_SHARE) if creates_rows else len(batch)
        made = ratio * batch.num_bytes
        return len(batch) if made <= TOLERANCE * batch_bytes else max(1, int(len(batch) * batch_bytes / made))
