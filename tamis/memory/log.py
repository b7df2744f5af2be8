"""Keeps alerts about memory, and the actions that followed, for the report of a run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from tamis.events import Event, MemoryAction, MemoryAlert

MAX_ENTRIES = 200
"""The first and the last hundred are kept."""


class MemoryLog:
    """A subscriber that keeps alerts and actions with their times.

    An entry has a time (ISO 8601, UTC), a kind (that of the alert: budget, machine, gpu, exhaustion or leak; or that of the
    action: recycle, shrink, pause, split, restart, ...), a level (warning, critical, cleared, or action), a text, and the
    action taken in response to an alert.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._first: list[dict[str, Any]] = []
        self._last: deque[dict[str, Any]] = deque(maxlen=MAX_ENTRIES // 2)

    @property
    def entries(self) -> list[dict[str, Any]]:
        return [*self._first, *self._last]

    def __call__(self, event: Event) -> None:
        if isinstance(event, MemoryAlert):
            self._add(event.kind, event.level, event.text, event.action)
        elif isinstance(event, MemoryAction):
            self._add(event.kind, "action", event.text, None)

    def _add(self, kind: str, level: str, text: str, action: str | None) -> None:
        when = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="seconds")
        entry = {"time": when, "kind": kind, "level": level, "text": text, "action": action}
        (self._first if len(self._first) < MAX_ENTRIES // 2 else self._last).append(entry)
