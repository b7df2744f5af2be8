"""Decoded bytes of a file, read in order, with the place that each comes from."""

from __future__ import annotations

import re
from typing import IO

from tamis.operators import Piece
from tamis.sources.lines import Chunk, Chunks, Stop, Unread

_READ_BYTES = 262_144


class StreamDamage(Exception):
    """A record that cannot be read, and so nothing after it in the stream."""

    def __init__(self, place: str, position: int, error: str) -> None:
        super().__init__(error)
        self.place, self.position, self.error = place, position, error


class ByteStream:
    """Decoded bytes, and the place in the file that each comes from."""

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = iter(chunks)
        self._data, self._at = b"", 0
        self._marks: list[tuple[int, Chunk]] = []  # chunks by the index of their first byte in `_data`
        self._passed = 0  # bytes before `_data`
        self._stop: int | None = None
        self._pending: StreamDamage | None = None
        self.damaged = False
        """Whether any byte of the record comes from a member that does not match its checksum."""

    def is_mine(self) -> bool:
        """Whether the next byte belongs to the piece and not to the one after it."""
        return self._stop is None or self._passed + self._at < self._stop

    def ahead(self, size: int) -> bytes:
        """Like `peek`; damage is raised when its bytes are needed."""
        try:
            return self.peek(size)
        except StreamDamage as damage:
            self._pending = damage
            return self._data[self._at : self._at + size]

    def here(self) -> tuple[str, int]:
        index, chunk = self._mark()
        return chunk.place, chunk.offset + self._at - index

    def peek(self, size: int) -> bytes:
        while len(self._data) - self._at < size and self._pull():
            pass
        return self._data[self._at : self._at + size]

    def find(self, pattern: re.Pattern[bytes], most: int, *, at_start: bool = False) -> int | None:
        """How many bytes there are up to the end of the first match, within `most` bytes; None if there is none."""
        searched = pattern.match if at_start else pattern.search
        while True:
            found = searched(self._data, self._at, self._at + most)
            if found:
                return found.end() - self._at
            if len(self._data) - self._at >= most or not self._pull():
                return None

    def read(self, size: int) -> bytes:
        if len(self._data) - self._at < size:
            parts, left = [], size
            while left:
                if self._at >= len(self._data) and not self._pull():
                    self._cut_off()
                part = self._data[self._at : self._at + left]
                parts.append(part)
                self._at += len(part)
                left -= len(part)
            return b"".join(parts)
        self._at += size
        return self._data[self._at - size : self._at]

    def skip(self, size: int) -> None:
        while size:
            if self._at >= len(self._data) and not self._pull():
                self._cut_off()
            step = min(size, len(self._data) - self._at)
            self._at += step
            size -= step

    def _mark(self) -> tuple[int, Chunk]:
        return next((index, chunk) for index, chunk in reversed(self._marks) if index <= self._at)

    def chunk(self) -> Chunk:
        return self._mark()[1]

    def _cut_off(self) -> None:
        raise StreamDamage("", 0, "truncated: the file ends within the record")

    def _pull(self) -> bool:
        """Add the next chunk; False at the end."""
        if self._pending is not None:
            raise self._pending
        for chunk in self._chunks:
            if isinstance(chunk, Stop):
                self._stop = self._passed + len(self._data)
                if self._at >= len(self._data):
                    return False
                continue
            if isinstance(chunk, Unread):
                raise StreamDamage(chunk.place, chunk.position, chunk.error)
            marks = [(index - self._at, mark) for index, mark in self._marks if index + mark.size > self._at]
            self._passed += self._at
            self._data, self._at = self._data[self._at :] + chunk.data[: chunk.size], 0
            self._marks = [*marks, (len(self._data) - chunk.size, chunk)]
            self.damaged |= chunk.is_damaged
            return True
        return False


def plain_bytes(file: IO[bytes], piece: Piece) -> Chunks:
    """The bytes of a plain file from `piece.start` on, with a Stop at `piece.stop`."""
    file.seek(piece.start)
    position = piece.start
    while data := file.read(min(_READ_BYTES, piece.stop - position) if position < piece.stop else _READ_BYTES):
        yield Chunk(piece.path, position, data, len(data))
        position += len(data)
        if position == piece.stop:
            yield Stop()
