"""A file server on loopback that understands ranges, and misbehaves as a script says. Use as a context manager.

Each file has an ETag. `server.script[path]` lists what happens to the next requests of a path; after that all is well:

    ("status", 503, {"Retry-After": "0"})    a reply without the file
    ("cut", 1000)                            the first bytes of the body, then the connection is closed
    ("stall", 1000), ("drip", 1000)          the first bytes, then nothing, or one byte now and then
    ("claim", 5000)                          a Content-Length that is not true
    ("change", b"other content")             the file is replaced, then sent
    ("ignore range",), ("wrong range",)      a whole file, or another part, in place of the part that was requested
    ("no etag",), ("chunked",), ("no length",), ("redirect", "http://...")
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import defaultdict
from urllib.parse import urlsplit

from tests.loopback import LoopbackServer


class FileServer(LoopbackServer):
    def __init__(self, files: dict[str, bytes], robots: str | None = None) -> None:
        super().__init__()
        self.files = dict(files)
        if robots is not None:
            self.files["/robots.txt"] = robots.encode()
        self.script: dict[str, list[tuple]] = defaultdict(list)
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.held = threading.Event()
        """Set when a reply stalls."""

    def asked(self, path: str) -> list[str | None]:
        """The Range header of each request of a path."""
        return [headers.get("range") for where, headers in self.requests if where == path]

    async def _reply(self, head: str, writer: asyncio.StreamWriter) -> None:
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        path = urlsplit(first.split(" ")[1]).path
        self.requests.append((path, headers))
        act = self.script[path].pop(0) if self.script[path] else ("ok",)
        if act[0] == "status":
            return _send(writer, act[1], b"no", act[2] if len(act) > 2 else {})
        if act[0] == "redirect":
            return _send(writer, 302, b"", {"Location": act[1]})
        if act[0] == "change":
            self.files[path] = act[1]
        if path not in self.files:
            return _send(writer, 404, b"no", {})
        data = self.files[path]
        tag = f'"{hashlib.md5(data).hexdigest()}"'
        fields = {} if act[0] == "no etag" else {"ETag": tag}
        status, body = 200, data
        asked = headers.get("range")
        same = headers.get("if-range", tag) == tag
        if asked is not None and same and act[0] != "ignore range":
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= len(data):
                return _send(writer, 416, b"", {"Content-Range": f"bytes */{len(data)}"})
            start = 0 if act[0] == "wrong range" else start
            status, body = 206, data[start:]
            fields["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        if act[0] == "chunked":
            writer.write(_head(status, {**fields, "Transfer-Encoding": "chunked"}))
            writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
            return await writer.drain()
        if act[0] == "no length":
            writer.write(_head(status, {**fields, "Connection": "close"}) + body)
            await writer.drain()
            raise ConnectionError
        length = act[1] if act[0] == "claim" else len(body)
        writer.write(_head(status, {**fields, "Content-Length": str(length)}))
        if act[0] in ("cut", "stall", "drip"):
            writer.write(body[: act[1]])
            await writer.drain()
            if act[0] == "cut":
                raise ConnectionError
            self.held.set()
            for at in range(act[1], len(body)):
                await asyncio.sleep(0.05 if act[0] == "drip" else 3600)
                writer.write(body[at : at + 1])
                await writer.drain()
        writer.write(body)
        await writer.drain()
        if act[0] == "claim":
            raise ConnectionError


def _head(status: int, fields: dict[str, str]) -> bytes:
    return f"HTTP/1.1 {status} X\r\n".encode() + b"".join(f"{n}: {v}\r\n".encode() for n, v in fields.items()) + b"\r\n"


def _send(writer: asyncio.StreamWriter, status: int, body: bytes, fields: dict[str, str]) -> None:
    writer.write(_head(status, {"Content-Length": str(len(body)), **fields}) + body)
