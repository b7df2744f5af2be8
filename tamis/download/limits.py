"""What all transfers of a download share: a rate, and space on disk."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tamis.errors import DiskFull
from tamis.parameters import format_bytes

RESERVE_BYTES = 256 * 2**20
"""Space that is left free on the disk."""


class Pace:
    """At most `rate` bytes per second, of all transfers together; without a rate, as many as come."""

    def __init__(self, rate: int | None) -> None:
        self._rate = rate
        self._free_at = 0.0

    def delay_s(self, num_bytes: int, now: float) -> float:
        """How long to wait, after `num_bytes` were read, before more is read.

        >>> pace = Pace(1000)
        >>> pace.delay_s(500, now=10.0), pace.delay_s(500, now=10.0), pace.delay_s(500, now=20.0)
        (0.5, 1.0, 0.5)
        """
        if self._rate is None:
            return 0.0
        self._free_at = max(self._free_at, now) + num_bytes / self._rate
        return self._free_at - now


class NoSpace(Exception):
    """A file does not fit into the space that is allowed."""


class Space:
    """The bytes that a folder may have: a limit, and what is free on its disk. Files claim space before it is written."""

    def __init__(self, folder: Path, most: int | None, held: int, parts: Mapping[str, int]) -> None:
        """`held` are the bytes of files that are complete, `parts` those of others, by the name of the part."""
        self._folder, self._most, self._held = folder, most, held
        self._claims = dict(parts)

    def claim(self, part: str, total: int, written: int) -> None:
        """Claim `total` bytes for a file of which `written` are on disk; raises if they are not allowed or not there."""
        before = self._claims.get(part, 0)
        if total <= before:
            return
        self._claims[part] = total
        if self._most is not None and self._held + sum(self._claims.values()) > self._most:
            self._claims[part] = before
            raise NoSpace(f"the limit of {format_bytes(self._most)} for the folder is reached")
        free = shutil.disk_usage(self._folder).free
        if free - (total - written) < RESERVE_BYTES:
            raise DiskFull(
                f"{self._folder} has {format_bytes(free)} of free disk space, and {format_bytes(total - written)} are needed",
                hint="free some space, then rerun the same command: files that are complete are not downloaded again",
            )

    def settle(self, part: str, size: int, *, is_complete: bool) -> None:
        """Replace the claim of a file by its size. What there is of one that is not complete is kept to be continued."""
        self._claims.pop(part, None)
        if is_complete:
            self._held += size
        else:
            self._claims[part] = size
