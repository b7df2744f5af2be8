"""A file that is being downloaded: its bytes so far, and what the server said about the whole.

    .tamis/partial/<digest of the URL>         the bytes so far
    .tamis/partial/<digest of the URL>.state   validator and length of the whole, and how many bytes are on disk for certain

The state is written when the bytes it counts are synced. After a crash, bytes that it does not count are cut off, and those
that it counts are compared with its checksum, so that a part which the disk has lost is never continued.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from pathlib import Path
from typing import IO, Any

from tamis.logs import format_line, parse_line
from tamis.operators import digest
from tamis.parameters import fits

CHECKPOINT_BYTES = 64 * 2**20
"""The most that is downloaded again after a crash."""
_CHUNK_BYTES = 2**20
_STATE = {"url": str, "validator": str | None, "total": int | None, "size": int, "checksum": int}


class Partial:
    """The bytes of one URL on a local disk. `open` continues what an earlier attempt left."""

    def __init__(self, folder: Path, url: str, algorithm: str | None = None, most: int = 2**62) -> None:
        """`algorithm` is that of a checksum which the file is compared with: md5, sha1 or another of hashlib.

        A file of more than `most` bytes is refused.
        """
        self.url, self.most = url, most
        self.path = folder / digest(url)
        self._state = folder / f"{digest(url)}.state"
        self._algorithm = algorithm
        self.size = 0
        self.total: int | None = None
        """The length of the whole, if the server said it."""
        self.validator: str | None = None
        """A strong ETag or a date, by which the server knows whether the file is still the same."""
        self._file: IO[bytes] | None = None
        self._begin()

    def open(self) -> None:
        """Open the file at the last byte that is known to be good."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+b")
        state = self._read_state()
        if state is not None and self._take_up(state["size"]) and self._crc == state["checksum"]:
            self.validator, self.total = state["validator"], state["total"]
        else:
            self.restart()

    def _begin(self) -> None:
        self.size = self._synced = self._crc = 0
        self._sha256 = hashlib.sha256()
        self._listed = hashlib.new(self._algorithm, usedforsecurity=False) if self._algorithm else None

    def _read_state(self) -> dict[str, Any] | None:
        try:
            state = parse_line(self._state.read_bytes().strip())
        except FileNotFoundError:
            return None
        if state is None or not all(name in state and fits(state[name], kind) for name, kind in _STATE.items()):
            return None
        return state if state["url"] == self.url else None

    def _take_up(self, size: int) -> bool:
        """Read the first `size` bytes again, for the checksums, and cut off what follows; False if there are fewer."""
        assert self._file is not None
        self._begin()
        self._file.seek(0)
        while self.size < size and (chunk := self._file.read(min(_CHUNK_BYTES, size - self.size))):
            self._count(chunk)
        self._file.truncate(self.size)
        self._synced = self.size
        return self.size == size

    def _count(self, chunk: bytes) -> None:
        self.size += len(chunk)
        self._crc = zlib.crc32(chunk, self._crc)
        self._sha256.update(chunk)
        if self._listed is not None:
            self._listed.update(chunk)

    def restart(self) -> None:
        """Discard everything: the file at the source is another one, or the server does not send parts."""
        assert self._file is not None
        self._begin()
        self.validator = self.total = None
        self._state.unlink(missing_ok=True)
        self._file.truncate(0)

    def write(self, chunk: bytes) -> None:
        assert self._file is not None
        self._file.write(chunk)  # appends, wherever the file was read
        self._count(chunk)
        if self.size - self._synced >= CHECKPOINT_BYTES:
            self.save()

    def save(self) -> None:
        """Have the bytes on disk, and then a state that counts them."""
        if self._file is None:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        self._synced = self.size
        state = {"url": self.url, "validator": self.validator, "total": self.total}
        line = format_line({**state, "size": self.size, "checksum": self._crc})
        temporary = self._state.with_suffix(".new")
        with temporary.open("wb") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._state)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        self.close()
        self._state.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    @property
    def checksum(self) -> str:
        """As `tamis.store.checksum_of`."""
        return f"{self._crc:08x}"

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    @property
    def listed(self) -> str | None:
        """The checksum by the algorithm of the list."""
        return self._listed.hexdigest() if self._listed is not None else None


def parts_in(folder: Path) -> dict[str, int]:
    """The bytes of each part, by its name."""
    return {each.name: each.stat().st_size for each in folder.iterdir() if not each.suffix}
