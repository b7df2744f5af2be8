"""Tar archives, read member by member: from a file that can be sought, or from a stream that is decompressed on the way.

    512 bytes   header: name, kind, size, checksum            ustar, GNU, pax and the old format without a magic number
    n bytes     content, padded to a multiple of 512
    ...
    zeros       the end; archives that were concatenated continue after it

Nothing is extracted, and nothing of a header is trusted: an extended header of more than a megabyte, a wrong checksum or a
member that reaches beyond the end of the file is damage, and ends the archive. The format is that of POSIX.1-2008 (pax) and of
the GNU tar manual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

BLOCK = 512
END = "end"
_MAX_EXTENDED = 2**20
_LOOK_AHEAD = 8192
"""Bytes to read at a time where members are skipped: a header, a small sidecar and the next header."""
_KINDS = dict(
    zip(
        b"123456S",
        ("hard link", "symbolic link", "device", "device", "folder", "named pipe", "sparse file"),
        strict=True,
    )
)


class TarDamage(Exception):
    """The archive cannot be read any further, from byte `position` on; `member` is the one that is cut off, if known."""

    def __init__(self, message: str, position: int, member: Member | None = None) -> None:
        super().__init__(message)
        self.message, self.position, self.member = message, position, member


def cut_off(member: Member) -> TarDamage:
    return TarDamage(f"truncated: the archive ends within its member {member.name!r:.200}", member.header, member)


@dataclass(frozen=True, slots=True)
class Member:
    """An entry of an archive. Only the content of a file is of use."""

    name: str
    kind: str
    """"file", or what else it is: "folder", "symbolic link", "device", ...; "end" for the end of the archive."""
    header: int
    """The byte at which its first header begins."""
    start: int
    """The byte at which its content begins."""
    size: int

    @property
    def end(self) -> int:
        """The byte at which the next header begins."""
        return self.start + -(-self.size // BLOCK) * BLOCK


class ByteWindow:
    """A file or a stream from which bytes are read, looked at and skipped in order."""

    def __init__(
        self, read: Callable[[int], bytes], *, position: int = 0, seek: Callable[[int], object] | None = None
    ) -> None:
        self._read, self._seek = read, seek
        self._held, self._cursor = b"", 0
        self.position = position

    @staticmethod
    def of(file: IO[bytes], position: int = 0) -> ByteWindow:
        """A window on a file that can be sought."""
        file.seek(position)
        return ByteWindow(lambda size: file.read(size), position=position, seek=file.seek)

    @staticmethod
    def over(chunks: Iterator[bytes]) -> ByteWindow:
        """A window on a stream."""
        return ByteWindow(lambda size: next(chunks, b""))

    @property
    def num_held(self) -> int:
        """Bytes that are read from the file and not yet consumed."""
        return len(self._held) - self._cursor

    def peek(self, size: int) -> bytes:
        """The next `size` bytes, fewer only at the end."""
        parts = [self._held[self._cursor :]] if len(self._held) > self._cursor else []
        have = len(parts[0]) if parts else 0
        if have < size:
            while have < size and (data := self._read(max(_LOOK_AHEAD, size - have))):
                parts.append(data)
                have += len(data)
            self._held, self._cursor = b"".join(parts), 0
        return self._held[self._cursor : self._cursor + size]

    def read(self, size: int) -> bytes:
        data = self.peek(size)
        self._cursor += len(data)
        self.position += len(data)
        return data

    def skip_to(self, position: int) -> bool:
        """Continue at a later position; returns False if a stream is known to end before it."""
        distance = position - self.position
        assert distance >= 0
        held = len(self._held) - self._cursor
        if distance <= held:
            self._cursor += distance
        elif self._seek is not None:
            self._seek(position)
            self._held, self._cursor = b"", 0
        else:
            left = distance - held
            self._held, self._cursor = b"", 0
            while left and (data := self._read(left)):
                if len(data) > left:
                    self._held, self._cursor = data, left
                left -= min(left, len(data))
            if left:
                return False
        self.position = position
        return True


def members(window: ByteWindow, size: int | None = None) -> Iterator[Member]:
    """The members from the position of the window on. The content of one can be read before the next is requested.

    The last is the end of the archive, if it has one. `size` is that of the file, if it is known: a member that reaches
    beyond it is damage.
    """
    ended = not window.position  # a file without bytes is an archive without members
    while True:
        header = window.position
        block = window.peek(BLOCK)
        if block and not block.strip(b"\0"):
            ended = True
            yield Member("", END, header, header, 0)
            _skip_zeros(window)
            continue
        if not block:
            if not ended:
                raise TarDamage("truncated: the archive has no end", header)
            return
        ended = False
        member = _next_member(window, header)
        if size is not None and member.start + member.size > size:
            raise cut_off(member)
        yield member
        if not window.skip_to(max(window.position, member.start + member.size)):
            raise cut_off(member)
        window.skip_to(max(window.position, member.end))


def _skip_zeros(window: ByteWindow) -> None:
    """Go to the next block that is not empty, or to the end."""
    while data := window.peek(64 * BLOCK):
        empty = len(data) - len(data.lstrip(b"\0"))
        if empty < len(data):
            window.read(empty // BLOCK * BLOCK)
            return
        window.read(len(data))


def _next_member(window: ByteWindow, header: int) -> Member:
    """The member that begins here, after the extended headers that belong to it."""
    extended: dict[str, str] = {}
    while True:
        at = window.position
        block = window.read(BLOCK)
        if len(block) < BLOCK:
            raise TarDamage("truncated: the archive ends within a header", header)
        name, flag, size = _parse(block, at)
        if flag not in (b"L", b"K", b"x", b"X", b"g"):
            break
        if size > _MAX_EXTENDED:
            raise TarDamage(f"an extended header of {size:,} bytes at byte {at:,}", header)
        content = window.read(-(-size // BLOCK) * BLOCK)
        if len(content) < size:
            raise TarDamage("truncated: the archive ends within a header", header)
        if flag == b"L":
            extended["path"] = _text(content[:size].split(b"\0")[0])
        elif flag in (b"x", b"X"):
            extended |= _pax_records(content[:size], at)
    kind = _KINDS.get(flag[0], "file")
    if any(key.startswith("GNU.sparse") for key in extended):
        kind = "sparse file"
    if "size" in extended:
        if not extended["size"].isdecimal() or len(extended["size"]) > 18:
            raise TarDamage(f"a member with a size of {extended['size']!r:.50}", header)
        size = int(extended["size"])
    name = extended.get("path", name)
    if kind == "file" and name.endswith("/"):
        kind = "folder"
    # Links and the like have no content, whatever their headers say.
    return Member(name, kind, header, window.position, size if kind in ("file", "sparse file") else 0)


def _parse(block: bytes, at: int) -> tuple[str, bytes, int]:
    """(name, kind, size) in a header."""
    stated = _number(block[148:156])
    total = sum(block) - sum(block[148:156]) + 8 * 32
    if stated != total and stated != total - 256 * sum(byte > 127 for byte in block[:148] + block[156:]):
        raise TarDamage(f"not a tar header at byte {at:,}: its checksum is wrong", at)
    size = _number(block[124:136])
    if size is None or size < 0:
        raise TarDamage(f"not a tar header at byte {at:,}: it has no size", at)
    name = block[:100].split(b"\0")[0]
    if block[257:265] == b"ustar\x0000" and (prefix := block[345:500].split(b"\0")[0]):
        name = prefix + b"/" + name
    return _text(name), block[156:157], size


def _number(field: bytes) -> int | None:
    """A number in octal digits or, as an extension, in base 256; None if it is neither."""
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big") - (256 ** (len(field) - 1) if field[0] == 0xFF else 0)
    digits = field.split(b"\0")[0].strip()
    try:
        return int(digits, 8) if digits else 0
    except ValueError:
        return None


def _pax_records(data: bytes, at: int) -> dict[str, str]:
    """The records `length key=value` of an extended header."""
    records = {}
    while data.strip(b"\0"):
        digits, _, _ = data[:20].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        record = data[len(digits) + 1 : length]
        key, equals, value = record.partition(b"=")
        if not equals or not length or length > len(data) or not value.endswith(b"\n"):
            raise TarDamage(f"a damaged extended header at byte {at:,}", at)
        records[_text(key)] = _text(value[:-1])
        data = data[length:]
    return records


def leads_out(name: str) -> bool:
    """Whether the name of a member leads out of the archive."""
    return name.startswith("/") or ".." in name.replace("\\", "/").split("/") or "\0" in name


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
