"""A web server on loopback that misbehaves as its URLs say. Runs in a thread; use as a context manager.

/ok/NAME        the bytes of NAME
/status/404     a status; /status/429/NAME?times=2 twice, and then NAME
/stall          no reply; /drip one byte at a time, without end
/cut            fewer bytes than the header says; /huge a header of a terabyte; /endless chunks without end
/to?url=...     a redirect; /loop to itself
/noai, /bot     X-Robots-Tag for all, and for another robot; /reserved tdm-reservation
/gzip /empty /garbage /reset
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from urllib.parse import parse_qs, unquote, urlsplit

from tests.loopback import LoopbackServer


class WebServer(LoopbackServer):
    def __init__(self, robots: str | bytes | int = 404) -> None:
        """`robots` is the text of robots.txt, also compressed with gzip, or the status of the reply to a request for it."""
        super().__init__()
        self.robots = robots
        self.requests: list[str] = []
        self.agents: set[str] = set()
        self._seen: Counter[str] = Counter()

    async def _reply(self, head: str, writer: asyncio.StreamWriter) -> None:
        target = head.split(" ")[1]
        self.requests.append(target)
        self.agents |= {line.split(": ", 1)[1] for line in head.split("\r\n") if line.lower().startswith("user-agent")}
        path, query = unquote(urlsplit(target).path), parse_qs(urlsplit(target).query)
        kind, _, name = path.strip("/").partition("/")
        if path == "/robots.txt":
            if isinstance(self.robots, bytes):
                return send(writer, 200, self.robots, {"Content-Encoding": "gzip"})
            status, body = (200, self.robots.encode()) if isinstance(self.robots, str) else (self.robots, b"")
            return send(writer, status, body)
        if kind == "status":
            status, _, name = name.partition("/")
            self._seen[target] += 1
            if not name or self._seen[target] <= int(query.get("times", ["999"])[0]):
                return send(writer, int(status), b"no", {"Retry-After": "0"})
            return send(writer, 200, name.encode())
        if kind == "to":
            return send(writer, 302, b"", {"Location": query["url"][0]})
        if kind == "loop":
            return send(writer, 301, b"", {"Location": "/loop"})
        if kind in ("stall", "drip"):
            while kind == "stall":
                await asyncio.sleep(60)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)
        if kind == "cut":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nonly this")
            raise ConnectionError
        if kind == "huge":
            return send(writer, 200, b"x", {"Content-Length": str(10**12)})
        if kind == "endless":
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                writer.write(b"8000\r\n" + b"x" * 0x8000 + b"\r\n")
                await writer.drain()
        if kind == "garbage":
            writer.write(b"\x00\x01\x02 what is this\r\n\r\n")
            raise ConnectionError
        if kind == "reset":
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise ConnectionError
        headers = {
            "noai": {"X-Robots-Tag": "nofollow, noai"},
            "bot": {"X-Robots-Tag": "otherbot: noai"},
            "reserved": {"tdm-reservation": "1"},
            "gzip": {"Content-Encoding": "gzip"},
        }.get(kind, {})
        return send(
            writer,
            200 if kind in ("ok", "empty", *HEADERS) else 404,
            b"" if kind == "empty" else name.encode(),
            headers,
        )


HEADERS = ("noai", "bot", "reserved", "gzip")


def send(writer: asyncio.StreamWriter, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    fields = {"Content-Length": str(len(body)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    writer.write(f"HTTP/1.1 {status} X\r\n{head}\r\n".encode() + body)
