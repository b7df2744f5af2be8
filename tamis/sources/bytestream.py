"""Decoded bytes of a file, read in order, with the place that each comes from."""

from __future__ import annotations

import re
from typing import IO, NamedTuple

from tamis.operators import Piece
from tamis.sources.lines import Chunk, Chunks, Stop, Unread

_READ_BYTES = 262_144


class StreamDamage(Exception):
    """A record that cannot be read, and so nothing after it in the stream."""

    def __init__(self, place: str, position: int, error: str) -> None:
        super().__init__(error)
        self.place, self.position, self.error = place, position, error


class _Mark(NamedTuple):
    """Where bytes come from: those from `begin` in the data to `stop` follow each other in the frame `place`."""

    begin: int
    stop: int
    place: str
    offset: int
    is_damaged: bool


class ByteStream:
    """Decoded bytes, and the place in the file that each comes from."""

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = iter(chunks)
        self._data, self._at = b"", 0
        self._marks: list[_Mark] = []
        self._passed = 0  # bytes before `_data`
        self._stop: int | None = None
        self._pending: StreamDamage | None = None
        self._met_damage = False
        self.damaged = False
        """Whether any byte that was read or skipped comes from a member that does not match its checksum."""

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
        mark = next(mark for mark in reversed(self._marks) if mark.begin <= self._at)
        return mark.place, mark.offset + self._at - mark.begin

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
            held = len(self._data) - self._at
            if held >= most or not self._pull(max(1, held)):  # twice as much, because all of it is searched again
                return None

    def go_to(self, pattern: re.Pattern[bytes], longest: int) -> bool:
        """Go to the next match, which has at most `longest` bytes; False if there is none."""
        while (end := self.find(pattern, _READ_BYTES)) is None:
            if len(self.peek(_READ_BYTES)) < _READ_BYTES:
                return False
            self._advance(_READ_BYTES - longest)
        found = pattern.search(self._data, self._at, self._at + end)
        assert found is not None
        self._advance(found.start() - self._at)
        return True

    def read(self, size: int) -> bytes:
        if len(self._data) - self._at < size:
            parts, left = [], size
            while left:
                if self._at >= len(self._data) and not self._pull():
                    self._cut_off()
                part = self._data[self._at : self._at + left]
                parts.append(part)
                self._advance(len(part))
                left -= len(part)
            return b"".join(parts)
        self._advance(size)
        return self._data[self._at - size : self._at]

    def skip(self, size: int) -> None:
        while size:
            if self._at >= len(self._data) and not self._pull():
                self._cut_off()
            step = min(size, len(self._data) - self._at)
            self._advance(step)
            size -= step

    def _advance(self, size: int) -> None:
        end = self._at + size
        if self._met_damage:
            self.damaged |= any(m.is_damaged and m.begin < end and m.stop > self._at for m in self._marks)
        self._at = end

    def _cut_off(self) -> None:
        raise StreamDamage("", 0, "truncated: the file ends within the record")

    def _pull(self, size: int = 1) -> bool:
        """Add chunks of at least `size` bytes, or as many as there are before a stop or damage; False at the end."""
        if self._pending is not None:
            raise self._pending
        parts = [self._data[self._at :]]
        at = self._at
        self._marks = [
            _Mark(begin - at, stop - at, place, offset, is_damaged)
            for begin, stop, place, offset, is_damaged in self._marks
            if stop > at
        ]
        self._passed += at
        self._at, held = 0, len(parts[0])
        end = held
        for chunk in self._chunks:
            if isinstance(chunk, Stop):
                self._stop = self._passed + end
                if not held or end > held:
                    break
                continue
            if isinstance(chunk, Unread):
                self._pending = StreamDamage(chunk.place, chunk.position, chunk.error)
                break
            parts.append(chunk.data[: chunk.size])
            self._mark(chunk, end)
            end += chunk.size
            if end >= held + size:
                break
        self._data = b"".join(parts)
        if end == held and self._pending is not None:
            raise self._pending
        return end > held

    def _mark(self, chunk: Chunk, index: int) -> None:
        """Note where the bytes from `index` on come from."""
        self._met_damage |= chunk.is_damaged
        stop = index + chunk.size
        if self._marks:
            begin, _, place, offset, is_damaged = self._marks[-1]
            if (place, offset + index - begin, is_damaged) == (chunk.place, chunk.offset, chunk.is_damaged):
                self._marks[-1] = _Mark(begin, stop, place, offset, is_damaged)
                return
        self._marks.append(_Mark(index, stop, chunk.place, chunk.offset, chunk.is_damaged))


def plain_bytes(file: IO[bytes], piece: Piece) -> Chunks:
    """The bytes of a plain file from `piece.start` on, with a Stop at `piece.stop`."""
    file.seek(piece.start)
    position = piece.start
    while data := file.read(min(_READ_BYTES, piece.stop - position) if position < piece.stop else _READ_BYTES):
        yield Chunk(piece.path, position, data, len(data))
        position += len(data)
        if position == piece.stop:
            yield Stop()


def frame_start(place: str, path: str) -> int:
    """The byte of the file at which a frame begins.

    >>> frame_start("a.xml.bz2", "a.xml.bz2"), frame_start("a.xml.bz2@70", "a.xml.bz2")
    (0, 70)
    """
    return int(place.removeprefix(path)[1:] or 0)
