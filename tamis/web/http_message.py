"""HTTP replies as crawlers store them: the status, the headers and the body as the server meant it.

Bodies are decoded within a limit: a few kilobytes can be a gigabyte once they are decompressed.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

_STATUS = re.compile(rb"HTTP/\d(?:\.\d)? +(\d{3})")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_MOST_HEAD = 65_536
_GZIP = b"\x1f\x8b"
_MOST_MEMBERS = 100
_ARROW_CODECS = {"br": "brotli", "zstd": "zstd"}


class BadBody(Exception):
    """A body that cannot be decoded, or that is too large when it is."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply: `headers` has lower-case names; of equal names the first counts."""

    status: int | None
    headers: Mapping[str, str]
    body: bytes


def parse_reply(data: bytes) -> Reply | None:
    """The parts of a stored reply; None if it does not begin with a status line.

    >>> parse_reply(b"HTTP/1.1 200 OK\\r\\nContent-Type: text/html\\r\\n\\r\\n<p>")
    Reply(status=200, headers={'content-type': 'text/html'}, body=b'<p>')
    """
    status = _STATUS.match(data)
    if status is None:
        return None
    end = _HEAD_END.search(data, 0, _MOST_HEAD)
    head, body = (data[: end.start()], data[end.end() :]) if end else (data[:_MOST_HEAD], b"")
    return Reply(int(status[1]), parse_headers(head.split(b"\n")[1:]), body)


def parse_headers(lines: list[bytes]) -> dict[str, str]:
    """Header lines by lower-case name; a line that begins with a space continues the one before."""
    found: dict[str, str] = {}
    name = ""
    for line in lines:
        if line[:1] in (b" ", b"\t") and name:
            found[name] += " " + line.strip().decode("utf-8", "replace")
            continue
        key, colon, value = line.partition(b":")
        if colon:
            name = key.strip().decode("latin-1").lower()
            found.setdefault(name, value.strip().decode("utf-8", "replace"))
    return found


def decoded_body(reply: Reply, most: int) -> bytes:
    """The body without its transfer and content encodings; raises `BadBody`.

    Crawlers often decode the body and leave the header: a body that is not in the encoding the header names is returned
    as it is, if it cannot be one that is damaged.
    """
    body = reply.body
    if "chunked" in reply.headers.get("transfer-encoding", "").lower():
        body = _without_chunks(body)
    codings = [each.strip().lower() for each in reply.headers.get("content-encoding", "").split(",")]
    for coding in reversed(codings):
        body = _decompressed(body, coding.removeprefix("x-"), most)
    if len(body) > most:
        raise BadBody(f"the body has {len(body):,} bytes, more than the limit of {most:,}")
    return body


_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]{0,500})?\r?\n")
_CUT_CHUNK = re.compile(rb"[0-9A-Fa-f]{0,8}[ \t]*(?:;[^\r\n]{0,500})?\r?")
_LINE_END = re.compile(rb"\r?\n|\r\Z")
_NOT_PROSE = re.compile(rb"<|[^\0-\x08\x0e-\x1f]{0,1024}[\0-\x08\x0e-\x1f]")  # as compressed data


def _without_chunks(body: bytes) -> bytes:
    """The content of a chunked body, up to where it is cut off; a body that is not chunked throughout is returned as it is.

    A body that was decoded already may begin with a number, too. One that would be cut off in its first chunk is therefore
    chunked only if a page or compressed data follows the number.
    """
    parts: list[bytes] = []
    position = 0
    while found := _CHUNK.match(body, position):
        size, begin = int(found[1], 16), found.end()
        if not size:
            return b"".join(parts) if parts or not body[begin:].strip(b"\r\n") else body
        parts.append(body[begin : begin + size])
        position = begin + size
        if position > len(body) and len(parts) == 1:
            return parts[0] if found[0].endswith(b"\r\n") and _NOT_PROSE.match(parts[0]) else body
        if position >= len(body):
            return b"".join(parts)
        line_end = _LINE_END.match(body, position)
        if line_end is None:
            return body
        position = line_end.end()
    return b"".join(parts) if parts and _CUT_CHUNK.fullmatch(body, position) else body


def _decompressed(body: bytes, coding: str, most: int) -> bytes:
    if coding == "gzip" and body.startswith(_GZIP):
        return _inflated(body, (31,), most)
    if coding == "deflate" and body:  # with the header of zlib, as RFC 9110 says, or without, as some servers do
        return _inflated(body, (15, -15), most)
    if coding in _ARROW_CODECS and body:
        return _by_arrow(body, coding, most)
    return body


def _inflated(body: bytes, formats: tuple[int, ...], most: int) -> bytes:
    for wbits in formats:
        try:
            return _members(body, wbits, most)
        except zlib.error:
            continue
    if formats == (31,):
        raise BadBody("the body is damaged: it is not valid gzip")
    return body  # not compressed, whatever its header says


def _members(body: bytes, wbits: int, most: int) -> bytes:
    """The decompressed content, of all members if it is gzip; one that is cut off is used as far as it goes, as browsers do."""
    parts: list[bytes] = []
    size, rest = 0, body
    while not parts or rest.startswith(_GZIP):
        decoder = zlib.decompressobj(wbits)
        try:
            parts.append(decoder.decompress(rest, most + 1 - size))
        except zlib.error:
            if not parts:
                raise
            break
        size += len(parts[-1])
        if size > most:
            raise BadBody(f"the body has more than the limit of {most:,} bytes when it is decompressed")
        if len(parts) > _MOST_MEMBERS:
            raise BadBody(f"the body has more than {_MOST_MEMBERS} gzip members")
        rest = decoder.unused_data if wbits == 31 else b""
    return b"".join(parts)


def _by_arrow(body: bytes, coding: str, most: int) -> bytes:
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), _ARROW_CODECS[coding]) as stream:
            result = stream.read(most + 1)
    except (OSError, pa.ArrowInvalid):
        return body if _looks_like_text(body) else _bad(coding)
    if len(result) > most:
        raise BadBody(f"the body has more than the limit of {most:,} bytes when it is decompressed")
    return bytes(result)


def _looks_like_text(body: bytes) -> bool:
    return b"<" in body[:1024] and b"\0" not in body[:1024]


def _bad(coding: str) -> bytes:
    raise BadBody(f"the body is damaged: it is not valid {coding}")
