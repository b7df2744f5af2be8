"""Zip archives, read entry by entry through their directory.

    content of entry 1, content of entry 2, ...      each after a local header
    directory                                        name, compression, sizes and place of each entry
    end                                              where the directory begins; with zip64, a second one for large archives

Nothing is extracted to a disk, and nothing that the archive says is trusted: an entry is decompressed up to the size that the
directory states, and its checksum is compared. The directory is read as a stream, because it can have millions of entries. The
format is that of PKWARE's APPNOTE 6.3.10.
"""

from __future__ import annotations

import bz2
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from tamis.sources.tar import ByteWindow

_END, _END64, _LOCATOR64 = b"PK\5\6", b"PK\6\6", b"PK\6\7"
_ENTRY, _LOCAL = b"PK\1\2", b"PK\3\4"
_LONGEST_COMMENT = 65_535
_READ_BYTES = 65_536
MOST_EXPANSION = 1032
"""Deflate cannot expand further. An archive of which the directory says more has entries that overlap."""

STORED, DEFLATED, BZIP2 = 0, 8, 12
_ENCRYPTED, _UTF8 = 0x1, 0x800


class ZipDamage(Exception):
    """The archive cannot be read, or not any further."""


class BadEntry(Exception):
    """One entry cannot be read; others can."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the directory."""

    name: str
    place: int
    """The byte at which it begins in the directory."""
    stop: int
    """The byte at which the next one begins."""
    method: int
    flags: int
    checksum: int
    packed: int
    size: int
    header: int
    """The byte at which its local header begins."""
    mode: int
    """The kind of file on Unix; 0 if another system made the archive."""

    @property
    def is_folder(self) -> bool:
        return self.name.endswith("/")

    @property
    def is_link(self) -> bool:
        return self.mode & 0o170000 == 0o120000

    @property
    def is_encrypted(self) -> bool:
        return bool(self.flags & _ENCRYPTED)


@dataclass(frozen=True, slots=True)
class Directory:
    """Where the entries are."""

    start: int
    stop: int
    count: int
    shift: int
    """Bytes before the archive: those of a program that unpacks itself."""


def find_directory(file: IO[bytes]) -> Directory:
    """Where the directory of an archive is."""
    size = file.seek(0, 2)
    tail_start = max(0, size - _LONGEST_COMMENT - 22)
    file.seek(tail_start)
    tail = file.read(size - tail_start)
    at = len(tail)
    while (at := tail.rfind(_END, 0, at)) >= 0:
        if len(tail) >= at + 22 and at + 22 + struct.unpack_from("<H", tail, at + 20)[0] <= len(tail):
            break
    else:
        raise ZipDamage("it is not a zip archive, or is truncated: it has no directory")
    end = tail_start + at
    _, _, _, count, length, start = struct.unpack_from("<4H2I", tail, at + 4)
    if at >= 20 and tail[at - 20 : at - 16] == _LOCATOR64:
        count, length, start, end = _find_directory64(file, struct.unpack_from("<Q", tail, at - 12)[0], end - 20)
    shift = end - length - start
    if shift < 0 or length < 46 * count:
        raise ZipDamage("its directory is damaged")
    return Directory(start + shift, start + shift + length, count, shift)


def _find_directory64(file: IO[bytes], stated: int, before: int) -> tuple[int, int, int, int]:
    for at in (stated, before - 56):  # the second, if something precedes the archive
        if 0 <= at <= before - 56:
            file.seek(at)
            data = file.read(56)
            if data[:4] == _END64:
                _, count, length, start = struct.unpack_from("<4Q", data, 24)
                return count, length, start, at
    raise ZipDamage("its directory is damaged: the zip64 record is missing")


def entries(
    file: IO[bytes], directory: Directory, start: int | None = None, stop: int | None = None
) -> Iterator[Entry]:
    """The entries that begin in a range of the directory, by default all."""
    window = ByteWindow.of(file, directory.start if start is None else start)
    end = directory.stop if stop is None else stop
    while window.position < end:
        place = window.position
        file.seek(place + window.num_held)  # reading an entry moves the file
        head = window.read(46)
        if len(head) < 46 or head[:4] != _ENTRY:
            raise ZipDamage(f"its directory is damaged at byte {place:,}")
        system, flags, method, checksum, packed, size, name_bytes, extra_bytes, comment_bytes, attributes, header = (
            head[5],
            *struct.unpack_from("<2H", head, 8),
            *struct.unpack_from("<3I3H", head, 16),
            *struct.unpack_from("<2I", head, 38),
        )
        name = window.read(name_bytes)
        extra = window.read(extra_bytes)
        window.read(comment_bytes)
        if len(name) < name_bytes or len(extra) < extra_bytes or window.position > directory.stop:
            raise ZipDamage(f"its directory is damaged at byte {place:,}")
        packed, size, header = _large(extra, packed, size, header)
        text = name.decode("utf-8" if flags & _UTF8 or _is_utf8(name) else "cp437", "backslashreplace")
        mode = attributes >> 16 if system in (3, 19) else 0
        yield Entry(text, place, window.position, method, flags, checksum, packed, size, header + directory.shift, mode)


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _large(extra: bytes, packed: int, size: int, header: int) -> tuple[int, int, int]:
    """Sizes and place of an entry, which are in the zip64 field if they need more than 32 bits."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        field = extra[at + 4 : at + 4 + length]
        at += 4 + length
        if kind != 1:
            continue
        values = [size, packed, header]
        for index, value in enumerate(values):
            if value == 0xFFFFFFFF:
                if len(field) < 8:
                    raise ZipDamage("its directory is damaged: a zip64 field is too short")
                values[index], field = struct.unpack_from("<Q", field)[0], field[8:]
        return values[1], values[0], values[2]
    return packed, size, header


def content_start(file: IO[bytes], entry: Entry) -> int:
    """The byte at which the content of an entry begins."""
    if entry.header >= entry.place:  # and perhaps more than a position in a file can be
        raise BadEntry("is not where the directory says")
    file.seek(entry.header)
    head = file.read(30)
    if len(head) < 30 or head[:4] != _LOCAL:
        raise BadEntry("is not where the directory says")
    return int(entry.header + 30 + sum(struct.unpack_from("<2H", head, 26)))


def content(file: IO[bytes], entry: Entry) -> bytes:
    """The content of an entry. At most its stated size is decompressed; check that it is acceptable first."""
    if entry.is_encrypted:
        raise BadEntry("is encrypted")
    file.seek(content_start(file, entry))
    if entry.method == STORED:
        data = file.read(entry.size) if entry.packed == entry.size else b""
    elif entry.method in (DEFLATED, BZIP2):
        data = _decompressed(file, entry)
    else:
        raise BadEntry(f"is compressed by method {entry.method}, which is not read")
    if len(data) != entry.size:
        raise BadEntry("is truncated, or has another size than the directory says")
    if zlib.crc32(data) != entry.checksum:
        raise BadEntry("does not match its checksum")
    return data


def _decompressed(file: IO[bytes], entry: Entry) -> bytes:
    """At most one byte more than the directory says."""
    decoder: Any = zlib.decompressobj(-15) if entry.method == DEFLATED else bz2.BZ2Decompressor()
    parts: list[bytes] = []
    left, most = entry.packed, entry.size + 1
    try:
        while left and most and not decoder.eof:
            data = file.read(min(left, _READ_BYTES))
            if not data:
                break
            left -= len(data)
            while data and most and not decoder.eof:
                part = decoder.decompress(data, most)
                parts.append(part)
                most -= len(part)
                data = decoder.unconsumed_tail if entry.method == DEFLATED else b""
            if entry.method == BZIP2:
                while most and not decoder.eof and not decoder.needs_input:
                    part = decoder.decompress(b"", most)
                    parts.append(part)
                    most -= len(part)
    except (zlib.error, OSError, EOFError) as error:
        raise BadEntry(f"cannot be decompressed: {error}") from error
    return b"".join(parts)
