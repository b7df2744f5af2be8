"""Compressed files as streams of frames, decoded in bounded chunks and split where the format allows it.

    .gz .bz2 .xz    members, decoded by the standard library, which reports where each one ends
    .zst .lz4       frames, decoded by pyarrow, which does not; their block headers are followed to find the end

Here, "frame" also means a member of a gzip, bz2 or xz file. Frame headers are specified in RFC 1952 (gzip), RFC 8878
(zstd) and the LZ4 frame format 1.6. A walk reads only headers and decompresses nothing.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Generator, Iterator
from typing import IO, Protocol

import pyarrow as pa

from tamis.errors import SourceError
from tamis.sources.lines import STOP, Chunk, Stop, Unread

TYPICAL_RATIO = {"gzip": 3.5, "zstd": 4.0, "bz2": 4.5, "xz": 5.0, "lz4": 2.2}
"""Decompressed over compressed bytes of web text, used if there is no sample."""
_MAGIC = {
    "gzip": b"\x1f\x8b\x08",
    "bz2": b"BZh",
    "xz": b"\xfd7zXZ\0",
    "zstd": b"\x28\xb5\x2f\xfd",
    "lz4": b"\x04\x22\x4d\x18",
}
_UNIT = {"gzip": "member", "bz2": "stream", "xz": "stream", "zstd": "frame", "lz4": "frame"}
_INPUT_BYTES = 65_536
_OUTPUT_BYTES = 65_536
_TRIAL_BYTES = 65_536
_WINDOW_BYTES = 4_000_000
_NEAR_BYTES = 1_000_000
_XZ_BYTES = 200_000_000
"""The most memory an xz decoder may use, which the file asks for: `xz -9` needs 65 MB, a damaged header up to 4 GB."""


class Damage(Exception):
    """The compressed data cannot be decoded any further."""

    def __init__(self, message: str, *, all_given: bool = False, truncated: bool = False) -> None:
        super().__init__(message)
        self.all_given = all_given  # every byte before the damage has been handed out already
        self.truncated = truncated  # the file ends too early; what was decoded before is not known to be wrong


# ------------------------------------------------------------------------------------------------------------ the walks

Walk = Generator[tuple[bool, int], bytes, None]
"""Yields (True, n) to read n bytes or (False, n) to skip them, until the frame ends."""


def _walk_zstd() -> Walk:
    magic = int.from_bytes((yield True, 4), "little")
    if magic & 0xFFFFFFF0 == 0x184D2A50:
        yield False, int.from_bytes((yield True, 4), "little")
        return
    if magic != 0xFD2FB528:
        raise Damage("this is not the beginning of a zstd frame")
    descriptor = (yield True, 1)[0]
    single = descriptor >> 5 & 1
    if descriptor & 8:
        raise Damage("a zstd frame header with a reserved bit set")
    yield False, (1 - single) + (0, 1, 2, 4)[descriptor & 3] + (single, 2, 4, 8)[descriptor >> 6]
    last = 0
    while not last:
        header = int.from_bytes((yield True, 3), "little")
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        if kind == 3:
            raise Damage("a zstd block of a reserved type")
        yield False, 1 if kind == 1 else size  # a block of one repeated byte stores that byte once
    if descriptor & 4:
        yield False, 4


def _walk_lz4() -> Walk:
    magic = int.from_bytes((yield True, 4), "little")
    if magic & 0xFFFFFFF0 == 0x184D2A50:
        yield False, int.from_bytes((yield True, 4), "little")
        return
    if magic != 0x184D2204:
        raise Damage("this is not the beginning of an lz4 frame")
    flags = (yield True, 1)[0]
    if flags >> 6 != 1:
        raise Damage("an lz4 frame of an unknown version")
    yield False, 1 + 8 * (flags >> 3 & 1) + 4 * (flags & 1) + 1
    while size := int.from_bytes((yield True, 4), "little"):
        yield False, (size & 0x7FFFFFFF) + 4 * (flags >> 4 & 1)
    if flags & 4:
        yield False, 4


_WALKS = {"zstd": _walk_zstd, "lz4": _walk_lz4}


def frame_starts(file: IO[bytes], codec: str, size: int) -> list[int]:
    """Offsets of the frames of a zstd or lz4 file, up to its end or the first damage. Decompresses nothing."""
    starts, position = [], 0
    while position < size:
        starts.append(position)
        walk = _WALKS[codec]()
        try:
            wanted, count = next(walk)
            while position + count <= size:
                data = b""
                if wanted:
                    file.seek(position)
                    data = file.read(count)
                position += count
                wanted, count = walk.send(data)
        except StopIteration:
            continue
        except Damage:
            pass
        break
    return starts


class _Tap:
    """A file that ends with the frame, for a decoder that would read beyond it."""

    def __init__(self, source: _Input, codec: str) -> None:
        self.source = source
        self.walk = _WALKS[codec]()
        self.wanted, self.count = next(self.walk)
        self.header = b""
        self.ended = self.cut_short = self.closed = False
        self.damage: Damage | None = None

    def read(self, size: int = _INPUT_BYTES) -> bytes:
        if self.ended or self.damage:
            return b""
        data = self.source.read(min(size, _INPUT_BYTES))
        self.cut_short = not data
        end = self._follow(data)
        if end < len(data):
            self.source.unread(data[end:])
        return data[:end]

    def _follow(self, data: bytes) -> int:
        """How much of `data` belongs to the frame."""
        at = 0
        try:
            while at < len(data) or self.count == 0:
                step = min(self.count, len(data) - at)
                if self.wanted:
                    self.header += data[at : at + step]
                at, self.count = at + step, self.count - step
                if self.count == 0:
                    header, self.header = self.header, b""
                    self.wanted, self.count = self.walk.send(header)
        except StopIteration:
            self.ended = True
        except Damage as damage:
            self.damage = damage
        return at

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


# ---------------------------------------------------------------------------------------------------- the decoders


class _Input:
    """A file that tracks its position and takes back what a decoder did not use."""

    def __init__(self, file: IO[bytes], position: int, careful_from: int | None = None) -> None:
        file.seek(position)
        self.file, self.position, self.kept = file, position, b""
        self.careful_from = careful_from  # from here on, read byte by byte, so that a decoder returns all it can

    def read(self, size: int) -> bytes:
        if self.careful_from is not None and self.position >= self.careful_from:
            size = 1
        if self.kept:
            data, self.kept = self.kept[:size], self.kept[size:]
        else:
            data = self.file.read(size)
        self.position += len(data)
        return data

    def peek(self, size: int) -> bytes:
        data = b""
        while len(data) < size and (more := self.read(size - len(data))):
            data += more
        self.unread(data)
        return data

    def unread(self, data: bytes) -> None:
        self.kept = data + self.kept
        self.position -= len(data)

    def skip_zeros(self) -> None:
        while data := self.read(4096):
            if rest := data.lstrip(b"\0"):
                self.unread(rest)
                return


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def needs_input(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gzip:
    """zlib's decompressor with the interface of those of bz2 and xz."""

    def __init__(self) -> None:
        self.inner = zlib.decompressobj(wbits=31)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self.inner.eof

    @property
    def unused_data(self) -> bytes:
        return self.inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        result = self.inner.decompress(self.inner.unconsumed_tail + data, max_length)
        self.needs_input = not self.inner.unconsumed_tail and len(result) < max_length
        return result


_MEMBERS: dict[str, Callable[[], _Decompressor]] = {
    "gzip": _Gzip,
    "bz2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_BYTES),
}
_DECODE_ERRORS = (zlib.error, lzma.LZMAError, OSError, EOFError, pa.ArrowInvalid)


def _decode(source: _Input, codec: str, size: Callable[[], int]) -> Iterator[bytes]:
    """Decode one frame in parts of at most `size()` bytes. Afterwards, `source` is at its end."""
    if codec in _MEMBERS:
        yield from _decode_member(source, codec, size)
        return
    tap = _Tap(source, codec)
    first = source.peek(4)
    if len(first) == 4 and int.from_bytes(first, "little") & 0xFFFFFFF0 == 0x184D2A50:
        while tap.read():  # a skippable frame: metadata, no content
            pass
    else:
        try:
            with pa.CompressedInputStream(pa.PythonFile(tap, mode="r"), codec) as stream:
                while data := stream.read(size()):
                    yield data
        except _DECODE_ERRORS as error:
            if tap.damage is None and not tap.cut_short:
                raise Damage(f"the {codec} data is corrupt: {error}") from error
    if tap.damage is not None:
        raise tap.damage
    if not tap.ended:
        raise Damage(_truncated(codec), truncated=True)


def _decode_member(source: _Input, codec: str, size: Callable[[], int]) -> Iterator[bytes]:
    decoder = _MEMBERS[codec]()
    data = b""
    while not decoder.eof:
        if decoder.needs_input and not (data := source.read(_INPUT_BYTES)):
            raise Damage(_truncated(codec), all_given=True, truncated=True)
        try:
            result = decoder.decompress(data, size())
        except _DECODE_ERRORS as error:
            raise Damage(f"the {codec} data is corrupt: {error}") from error
        data = b""
        if result:
            yield result
    source.unread(decoder.unused_data)


def _truncated(codec: str) -> str:
    article = "an" if codec in ("xz", "lz4") else "a"
    return f"truncated: the file ends in the middle of {article} {codec} {_UNIT[codec]}"


def decoded_chunks(
    file: IO[bytes],
    path: str,
    codec: str,
    start: int,
    stop: int,
    *,
    damaged: frozenset[str] = frozenset(),
    on_damage: Callable[[str], None] | None = None,
) -> Iterator[Chunk | Stop | Unread]:
    """The decoded bytes of the frames in [start, stop) and, after a Stop, of those that follow.

    Damage ends the stream with an Unread, after every byte that can be decoded before it. Only at the end of a frame
    does its checksum show whether the bytes before are right. `on_damage` is called with the place of a frame that is
    corrupt, so that it can be read again as one of `damaged`, whose chunks are marked. A truncated frame is not
    corrupt: the bytes before its end are as they were written.
    """
    source = _Input(file, start)
    beyond = False
    while True:
        source.skip_zeros()  # padding, which gzip and xz allow between members; no frame begins with a zero
        position = source.position
        if not beyond and position >= stop:
            yield STOP
            beyond = True
        if not source.peek(1):
            break
        place = path if position == 0 else f"{path}@{position}"
        known = place in damaged
        offset, read_until = 0, position
        try:
            for data in _decode(source, codec, lambda: _OUTPUT_BYTES):
                yield Chunk(place, offset, data, len(data), known)
                offset += len(data)
                read_until = source.position
        except Damage as damage:
            reached = source.position
            for data in () if damage.all_given else _salvage(file, codec, position, offset, read_until):
                yield Chunk(place, offset, data, len(data), known)
                offset += len(data)
            if on_damage is not None and not known and not (damage.truncated and not _has_end(file, codec, offset)):
                on_damage(place)
            where = f"near byte {reached:,} of the file, after {offset:,} bytes of content"
            yield Unread(place, offset, f"{damage} ({where})", rows=0, damaged_file=path)
            return
        if not beyond and source.position > stop:
            raise SourceError(
                f"{path}: a {codec} {_UNIT[codec]} runs from byte {position} to {source.position}, across {stop}, "
                f"where this partition ends",
                hint="if the file has not changed since the run was planned, read it whole with files_per_partition=1",
            )
    if not beyond:
        yield STOP


def _has_end(file: IO[bytes], codec: str, decoded: int) -> bool:
    """Whether a file that seems truncated ends as a complete one does: then it is corrupt, and its decoder lost its way."""
    end = file.seek(0, 2)
    file.seek(max(0, end - 8))
    tail = file.read(8)
    if codec == "gzip":  # the length of the content; a random one is this close once in 2,000 files
        return abs(int.from_bytes(tail[4:], "little") - decoded % 2**32) < _NEAR_BYTES
    if codec == "xz":
        return end % 4 == 0 and tail.endswith(b"YZ")
    return codec == "lz4" and (tail[:4] == bytes(4) or tail[4:] == bytes(4))


def _salvage(file: IO[bytes], codec: str, position: int, offset: int, read_until: int) -> Iterator[bytes]:
    """The content of a frame between `offset` and its damage, which a decoder discards if it reads in large chunks."""
    seen = 0
    source = _Input(file, position, careful_from=max(position, read_until - 2 * _INPUT_BYTES))
    rest = _decode(source, codec, lambda: max(1, min(_OUTPUT_BYTES, offset - seen)))
    try:
        for data in rest:
            seen += len(data)
            if seen > offset:
                yield data
    except Damage:
        return


# ------------------------------------------------------------------------------------------ where a file can be split


def entries(file: IO[bytes], codec: str, size: int, step: int, *, exact: bool) -> list[int]:
    """Offsets about `step` compressed bytes apart where decoding can begin; the first is 0.

    With `exact`, zstd and lz4 files are walked from the beginning, which seeks a lot and reads little. Otherwise, and
    for formats whose headers do not contain the length, frames are searched by their magic number and accepted if
    their first 64 KB can be decoded. The reader checks them again.
    """
    if exact and codec in _WALKS:
        result = [0]
        for start in frame_starts(file, codec, size):
            if start - result[-1] >= step:
                result.append(start)
        return result
    count = max(1, -(-size // step))
    result = [0]
    for index in range(1, count):
        wanted = max(size * index // count, result[-1] + 1)
        found = _find_frame(file, codec, wanted, min(size, max(wanted, size * (index + 1) // count)))
        if found is not None:
            result.append(found)
    return result


def magic_numbers(file: IO[bytes], codec: str, begin: int, end: int) -> Iterator[int]:
    """Where in [begin, end) the magic number of a frame is, which may be a coincidence."""
    magic = _MAGIC[codec]
    while begin < end:
        file.seek(begin)
        window = file.read(min(end - begin + len(magic) - 1, _WINDOW_BYTES))
        at = window.find(magic)
        while at >= 0:
            yield begin + at
            at = window.find(magic, at + 1)
        begin += max(1, len(window) - len(magic) + 1)


def _find_frame(file: IO[bytes], codec: str, begin: int, end: int) -> int | None:
    file.seek(begin)
    window = file.read(min(end - begin, _WINDOW_BYTES))
    at = window.find(_MAGIC[codec])
    while at >= 0:
        if _decodes(file, codec, begin + at):
            return begin + at
        at = window.find(_MAGIC[codec], at + 1)
    return None


def _decodes(file: IO[bytes], codec: str, position: int) -> bool:
    seen = 0
    source = _Input(file, position)
    try:
        while seen < _TRIAL_BYTES:
            for data in _decode(source, codec, lambda: _OUTPUT_BYTES):
                seen += len(data)
                if seen >= _TRIAL_BYTES:
                    return True
            source.skip_zeros()
            if not source.peek(1):
                return True
    except Damage:
        return False
    return True
