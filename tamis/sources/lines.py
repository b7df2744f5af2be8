"""From chunks of bytes to blocks of whole lines, each line exactly once wherever a file was split.

    chunks of a piece        |...|.....|..      stop  ..|..
                                                 |
    whole_lines   skips the line that the piece before finishes, and reads past its stop to finish its last line
                                                 v
    Text          whole lines, and the frames (files, or members of a compressed file) their bytes come from
                                                 v
    Lines         start, end and address of each line that is not blank

Plain and compressed files need different rules, because only in a plain file can the byte before a split be read.
A plain piece [start, stop) owns the lines whose first byte is in it. A piece of frames owns the lines that begin after
its first byte, including one that begins at the first byte of the next piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import IO, TypeAlias

import numpy as np
import pyarrow as pa

from tamis.batch import Origin
from tamis.sources.files import is_local, read_exactly

BOM = b"\xef\xbb\xbf"
KEPT_OF_BAD_ROW = 1_000_000
"""Bytes of an unreadable row to keep with its failure."""
_BEYOND_BYTES = 65_536
_SCAN_BYTES = 262_144


@dataclass(frozen=True, slots=True)
class Chunk:
    """The first `size` bytes of `data`, from `offset` on in the frame `place`."""

    place: str
    offset: int
    data: bytes
    size: int
    is_damaged: bool = False
    """The frame is known to be damaged: its rows are counted but not read."""


@dataclass(frozen=True, slots=True)
class Unread:
    """Something that could not be read: a line that is too long, or damage that ends a file."""

    place: str
    position: int
    error: str
    row: bytes | None = None
    rows: int = 1
    """How many rows are known to be lost."""
    damaged_file: str | None = None


class Stop:
    """In a stream of chunks: the end of the piece. The chunks that follow belong to the next one."""


STOP = Stop()
Chunks: TypeAlias = Iterable["Chunk | Stop | Unread"]


@dataclass(frozen=True, slots=True)
class Frame:
    """From byte `at` of a text on, bytes come from `place`, whose first byte would be at `origin` (may be negative)."""

    at: int
    origin: int
    place: str


@dataclass(frozen=True, slots=True)
class Text:
    """Whole lines, the bytes [begin, end) of `data`, and the frames they come from, in order."""

    data: bytes
    begin: int
    end: int
    frames: tuple[Frame, ...]

    def __len__(self) -> int:
        return self.end - self.begin


# ---------------------------------------------------------------------------------------------------------- plain files


def plain_chunks(file: IO[bytes], path: str, start: int, stop: int, chunk_bytes: int) -> Iterator[Chunk | Stop]:
    """The bytes [start - 1, stop) and, after a Stop, those that follow. The first shows whether a line begins at start."""
    position = max(0, start - 1)
    seekable = is_local(path)
    file.seek(position)
    while position < stop:
        data = read_exactly(file, min(chunk_bytes, stop - position))
        if not data:
            break
        size = len(data)
        # A chunk that ends with a line is used without a copy; the rest is in the page cache.
        if seekable and position + size < stop and 2 * (cut := data.rfind(b"\n") + 1) > size:
            size = cut
            file.seek(position + size)
        yield Chunk(path, position, data, size)
        position += size
    yield STOP
    while data := read_exactly(file, _BEYOND_BYTES):
        yield Chunk(path, position, data, len(data))
        position += len(data)


# -------------------------------------------------------------------------------------------------------- cutting lines


def whole_lines(
    chunks: Chunks, *, skip_first: bool, owns_stop: bool, batch_bytes: int, max_line_bytes: int, verify: bool = False
) -> Iterator[Text | Unread]:
    """The lines that a piece owns, in texts of about `batch_bytes`; a longer line is a text of its own.

    With `verify`, a frame of the next piece that holds the end of the last line is decoded to its end, where its
    checksum is.
    """
    cutter = _Cutter(skip_first, max_line_bytes)
    lost: _LostLines | None = None
    beyond = False
    chunks = iter(chunks)
    for chunk in chunks:
        if isinstance(chunk, Stop):
            if cutter.skipping or not (owns_stop or cutter.in_line):
                break
            beyond = True
        elif isinstance(chunk, Unread):
            yield from cutter.flush(whole_only=True)
            if beyond and lost is None and not cutter.in_line:
                return  # the next piece begins with the damage and reports it
            rest = cutter.rest()
            rows = lost.end() if lost is not None else int(bool(rest.strip()))
            if not (beyond and lost is not None and rows == 0):
                yield replace(chunk, row=rest[:KEPT_OF_BAD_ROW], rows=rows)
            return
        elif chunk.is_damaged:
            if lost is None:
                yield from cutter.flush(whole_only=True)
                lost = _LostLines(
                    cutter.skipping, bool(cutter.rest().strip()) or cutter.long_line >= 0, first_only=beyond
                )
            lost.push(chunk.data[: chunk.size])
        else:
            finished = -1
            if beyond:
                finished = chunk.data.find(b"\n", 0, chunk.size) + 1
                if finished:
                    chunk = Chunk(chunk.place, chunk.offset, chunk.data, finished)
            yield from cutter.push(chunk)
            if cutter.held + chunk.size > batch_bytes:
                yield from cutter.flush(whole_only=True)
            if finished > 0:
                if verify:
                    _read_to_end_of_frame(chunks, chunk.place)
                break
    yield from cutter.flush(whole_only=False)


def _read_to_end_of_frame(chunks: Chunks, place: str) -> None:
    for chunk in chunks:
        if not isinstance(chunk, Chunk) or chunk.place != place:
            return


class _LostLines:
    """Counts the lines of a damaged frame that are not blank, those it shares with its neighbours included."""

    def __init__(self, skipping: bool, in_line: bool, *, first_only: bool) -> None:
        self.skipping, self.in_line, self.first_only = skipping, in_line, first_only
        self.rows = self.ended = 0

    def push(self, data: bytes) -> None:
        *ended, rest = data.split(b"\n")
        for part in ended:
            if not self.skipping and not (self.first_only and self.ended):
                self.rows += self.in_line or bool(part.strip())
            self.skipping = self.in_line = False
            self.ended += 1
        self.in_line |= bool(rest.strip())

    def end(self) -> int:
        last = self.in_line and not self.skipping and not (self.first_only and self.ended)
        return self.rows + last


class _Cutter:
    """Collects the bytes of a block. Offsets count from the first byte pushed."""

    def __init__(self, skip_first: bool, max_line_bytes: int) -> None:
        self.skipping = skip_first
        self.max_line_bytes = max_line_bytes
        self.parts: list[tuple[bytes, int, int]] = []
        self.frames: list[tuple[int, str]] = []
        self.block_start = 0
        self.line_start = 0
        self.position = 0
        self.long_line = -1  # start of a line that is too long, or -1

    @property
    def held(self) -> int:
        return self.position - self.block_start if self.parts else 0

    @property
    def in_line(self) -> bool:
        return self.position > self.line_start or self.long_line >= 0

    def push(self, chunk: Chunk) -> Iterator[Text | Unread]:
        begin, first = self.position, 0
        frame = (begin - chunk.offset, chunk.place)
        if not self.frames or self.frames[-1] != frame:
            self.frames.append(frame)
        self.position += chunk.size
        if self.skipping or self.long_line >= 0:
            first = chunk.data.find(b"\n", 0, chunk.size) + 1
            if not first:
                return
            if self.long_line >= 0:
                yield self._too_long(begin + first - 1)
            self.skipping, self.long_line = False, -1
            self.block_start = self.line_start = begin + first
        if first < chunk.size:
            self.parts.append((chunk.data, first, chunk.size))
            if cut := chunk.data.rfind(b"\n", first, chunk.size) + 1:
                self.line_start = begin + cut
        if self.position - self.line_start > self.max_line_bytes:
            yield from self.flush(whole_only=True)
            self.long_line = self.line_start
            self.parts = []

    def flush(self, *, whole_only: bool) -> Iterator[Text | Unread]:
        """The collected bytes as one text, up to the end of the last line or, at the end of a file, all of them."""
        if self.long_line >= 0:
            if not whole_only:
                yield self._too_long(self.position)
            return
        stop = self.line_start if whole_only else self.position
        if stop <= self.block_start or not self.parts:
            return
        rest = self.position - stop
        data, start, end = self.parts[-1]
        if len(self.parts) > 1 or end - start < rest:
            data = b"".join(memoryview(data)[start:end] for data, start, end in self.parts)
            start, end = 0, len(data)
        shift = self.block_start - start  # stream offset of data[0]
        frames = tuple(Frame(offset - shift, offset - shift, place) for offset, place in self.frames)
        skip = 3 if self.block_start == 0 == self.frames[0][0] and data.startswith(BOM, start) else 0
        yield Text(data, start + skip, end - rest, frames)
        self.parts = [(data, end - rest, end)] if rest else []
        self.block_start = stop
        self.frames = self.frames[-1:] if rest == 0 else _since(self.frames, stop)

    def rest(self) -> bytes:
        """The beginning of the unfinished line."""
        return b"".join(data[start:end] for data, start, end in self.parts)

    def _too_long(self, end: int) -> Unread:
        offset, place = _since(self.frames, self.long_line)[0]
        size = end - self.long_line
        return Unread(
            place,
            self.long_line - offset,
            line_too_long(size, self.max_line_bytes),
        )


def line_too_long(num_bytes: int, limit: int) -> str:
    return f"the line is {num_bytes:,} bytes long, more than the limit of {limit:,}"


def _since(frames: list[tuple[int, str]], position: int) -> list[tuple[int, str]]:
    """The frames from the one that contains `position` on."""
    first = max((i for i, (offset, _) in enumerate(frames) if offset <= position), default=0)
    return frames[first:]


def join_texts(texts: Iterable[Text | Unread], batch_bytes: int) -> Iterator[Text | Unread]:
    """The same lines in fewer texts: small files share a batch."""
    held: list[Text] = []
    size = 0
    for text in texts:
        if isinstance(text, Text):
            if size and size + len(text) > batch_bytes:
                yield _joined(held)
                held, size = [], 0
            held.append(text)
            size += len(text)
            if 2 * size > batch_bytes:  # before a second block is read
                yield _joined(held)
                held, size = [], 0
        else:
            yield text
    if held:
        yield _joined(held)


def _joined(texts: list[Text]) -> Text:
    if len(texts) == 1:
        return texts[0]
    parts: list[bytes | memoryview] = []
    frames: list[Frame] = []
    size = 0
    for text in texts:
        move = size - text.begin
        for frame in text.frames:
            if frame.at < text.end:
                frames.append(Frame(max(frame.at, text.begin) + move, frame.origin + move, frame.place))
        parts.append(memoryview(text.data)[text.begin : text.end])
        size += len(text)
        if text.data[text.end - 1] != 10:
            parts.append(b"\n")
            size += 1
    return Text(b"".join(parts), 0, size, tuple(frames))


# ---------------------------------------------------------------------------------------------------------- found lines


@dataclass(frozen=True)
class Lines:
    """The lines of a text that are not blank: line i is data[starts[i]:ends[i]]."""

    text: Text
    starts: np.ndarray
    ends: np.ndarray
    clean: bool = field(default=False)
    """Apart from line ends and blanks, the text contains nothing but these lines."""

    @staticmethod
    def of(text: Text) -> Lines:
        newlines = _newlines(text.data, text.begin, text.end)
        if len(text) and text.data[text.end - 1] != 10:
            newlines = np.append(newlines, text.end)
        starts = np.empty_like(newlines)
        if len(newlines):
            starts[0] = text.begin
            np.add(newlines[:-1], 1, out=starts[1:])
        full = newlines > starts
        if not full.all():
            starts, newlines = starts[full], newlines[full]
        view = np.frombuffer(text.data, np.uint8)
        perhaps_blank = np.flatnonzero(view[starts] <= 32)
        if len(perhaps_blank):
            blank = [i for i in perhaps_blank if not text.data[starts[i] : newlines[i]].strip()]
            starts, newlines = np.delete(starts, blank), np.delete(newlines, blank)
        return Lines(text, starts, newlines, clean=True)

    def __len__(self) -> int:
        return len(self.starts)

    def line(self, index: int) -> bytes:
        return self.text.data[self.starts[index] : self.ends[index]]

    def with_ends(self) -> pa.Array:
        """The lines with their line ends, as in the text; not copied if they are contiguous."""
        data = self.text.data
        unbroken = np.array_equal(self.starts[1:], self.ends[:-1] + 1)
        if not unbroken or self.ends[-1] >= len(data) or data[self.ends[-1]] != 10:
            return pa.array([self.line(index) + b"\n" for index in range(len(self))], pa.binary())
        offsets = np.append(self.starts, self.ends[-1] + 1).astype(np.int32)
        return pa.Array.from_buffers(pa.binary(), len(self), [None, pa.py_buffer(offsets), pa.py_buffer(data)])

    def select(self, index: np.ndarray | slice) -> Lines:
        return Lines(self.text, self.starts[index], self.ends[index])

    def origin(self) -> Origin:
        frames = self.text.frames
        place = np.searchsorted(np.array([frame.at for frame in frames], dtype=np.int64), self.starts, side="right") - 1
        origins = np.array([frame.origin for frame in frames], dtype=np.int64)
        return Origin(tuple(frame.place for frame in frames), place.astype(np.int32), self.starts - origins[place])

    def address(self, index: int) -> str:
        return self.select(np.array([index])).origin().address(0)


def _newlines(data: bytes, begin: int, end: int) -> np.ndarray:
    """Positions of line feeds. memchr is three times as fast as numpy on long lines, and half as fast on short ones."""
    if data.count(b"\n", begin, min(end, begin + 65_536)) > 128:
        view = np.frombuffer(data, np.uint8)
        same = np.empty(_SCAN_BYTES, dtype=np.bool_)  # small enough to stay in the cache
        parts = []
        for start in range(begin, end, _SCAN_BYTES):
            part = view[start : min(end, start + _SCAN_BYTES)]
            parts.append(np.flatnonzero(np.equal(part, 10, out=same[: len(part)])) + start)
        return np.concatenate(parts)
    found: list[int] = []
    append, find = found.append, data.find
    position = find(b"\n", begin, end)
    while position >= 0:
        append(position)
        position = find(b"\n", position + 1, end)
    return np.array(found, dtype=np.int64)


def head(lines: Lines, count: int) -> Text:
    """A text with the first `count` lines."""
    end = int(lines.ends[count - 1])
    end += end < lines.text.end
    return Text(lines.text.data, lines.text.begin, end, lines.text.frames)


def some_of(texts: Iterable[Text | Unread], skip: int, limit: int | None) -> Iterator[Text | Unread]:
    """The first `limit` rows after `skip` others; unreadable rows count."""
    left = limit
    for text in texts:
        if left is not None and left <= 0:
            return
        if not skip and left is None:
            yield text
        elif isinstance(text, Text):
            lines = Lines.of(text)
            skipped, skip = min(skip, len(lines)), max(0, skip - len(lines))
            taken = len(lines) - skipped if left is None else min(left, len(lines) - skipped)
            if taken:
                end = head(lines, skipped + taken).end if skipped + taken < len(lines) else text.end
                yield Text(text.data, int(lines.starts[skipped]) if skipped else text.begin, end, text.frames)
            left = None if left is None else left - taken
        else:
            skipped, skip = min(skip, text.rows), max(0, skip - text.rows)
            if skipped < text.rows or not text.rows:
                yield replace(text, rows=text.rows - skipped)
            left = None if left is None else left - (text.rows - skipped)
