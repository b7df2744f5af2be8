"""WARC and ARC records made by hand, for tests."""

from __future__ import annotations

import gzip


def warc_record(
    kind: str,
    block: bytes,
    *,
    url: str = "https://example.org/",
    number: int = 0,
    length: int | None = None,
    content_type: str | None = None,
    **fields: str,
) -> bytes:
    """A record; `length` is what its header says."""
    known = {
        "response": "application/http; msgtype=response",
        "conversion": "text/plain",
        "metadata": "application/json",
    }
    lines = [
        "WARC/1.0",
        f"WARC-Type: {kind}",
        f"WARC-Record-ID: <urn:uuid:{number:08d}>",
        "WARC-Date: 2026-11-18T00:00:00Z",
        f"WARC-Target-URI: {url}",
        *(f"{name.replace('_', '-')}: {value}" for name, value in fields.items()),
        f"Content-Type: {content_type or known.get(kind, 'text/html')}",
        f"Content-Length: {len(block) if length is None else length}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + block + b"\r\n\r\n"


def reply(body: bytes, content_type: str = "text/html", **headers: str) -> bytes:
    """An HTTP reply."""
    lines = ["HTTP/1.1 200 OK", f"Content-Type: {content_type}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def page(number: int, words: int = 200, **fields: str) -> bytes:
    """The record of a page."""
    text = " ".join(f"word{number}x{word}" for word in range(words))
    body = f"<html><head><title>Page {number}</title></head><body><p>{text}</p></body></html>".encode()
    return warc_record("response", reply(body), url=f"https://example.org/{number}", number=number, **fields)


def packed(records: list[bytes]) -> bytes:
    """One gzip member per record."""
    return b"".join(gzip.compress(record, mtime=0) for record in records)
