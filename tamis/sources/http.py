"""Fetch many URLs at a time, politely, and say of each what came of it.

    URLs --> robots.txt of the host --> a place among `concurrency` --> GET --> opt-out headers --> bytes, at most `max_bytes`
                                             ^                           |
                                             +-- wait, longer each time -+   429, 5xx, time-outs, resets, half replies

URLs come from data and are not trusted. Addresses that are not public are refused when a name is resolved, for redirects
too, so that a URL cannot reach the machines around a worker. Redirects are followed here, not by the library, for the same
reason.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

from tamis.errors import require
from tamis.parameters import format_bytes
from tamis.sources import robots
from tamis.sources.robots import Robots, opted_out, product_token

_T = TypeVar("_T")
OK = "ok"
REDIRECTS = (301, 302, 303, 307, 308)
MOST_REDIRECTS = 5
AGAIN = (408, 425, 429, 500, 502, 503, 504)
_MAX_URL = 8192
_KNOWN_RULES_BYTES = 20_000_000
_CHUNK_BYTES = 65_536


@dataclass(frozen=True)
class FetchSettings:
    """How to fetch, and what not to."""

    concurrency: int
    per_host: int
    timeout_s: float
    retries: int
    retry_wait_s: float
    max_bytes: int
    user_agent: str
    robots: bool
    opt_out: tuple[str, ...]
    private: bool
    max_wait_s: float = 60.0
    """A server that asks for more is not asked again."""

    @property
    def token(self) -> str:
        """The name under which robots.txt knows this crawler."""
        return product_token(self.user_agent)


@dataclass(frozen=True)
class Fetched:
    """What came of a URL: `outcome` is "ok", or the reason why there are no bytes."""

    outcome: str
    data: bytes | None = None


class Refused(Exception):
    """A URL that is not fetched, or not again."""


_NO_RULES = Refused("robots.txt cannot be read")
"""If a robots.txt cannot be read because of the server, nothing may be fetched (RFC 9309, 2.3.1.4)."""


class Again(Exception):
    """An attempt that may succeed if it is repeated."""

    def __init__(self, outcome: str, after_s: float | None = None) -> None:
        super().__init__(outcome)
        self.outcome, self.after_s = outcome, after_s


class _PrivateAddress(OSError):
    """A name that leads to an address that is not public."""


class Fetcher:
    """Fetches URLs in the event loop of a thread, which starts with the first of them."""

    def __init__(self, settings: FetchSettings) -> None:
        self._aiohttp = require("aiohttp", extra="download", purpose="a step that downloads")
        self._yarl = require("yarl", extra="download", purpose="a step that downloads")
        self.settings = settings
        self._thread: threading.Thread | None = None
        self._rules: OrderedDict[str, asyncio.Task[Robots | Refused]] = OrderedDict()
        self._places: dict[str, tuple[asyncio.Semaphore, int]] = {}

    def fetch(self, urls: Sequence[str | None]) -> list[Fetched]:
        """One result per URL. Equal URLs are fetched once."""
        self._start()
        return self._run(self._all(urls))

    def close(self) -> None:
        if self._thread is not None:
            self._run(self._session.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._thread = None
            self._rules.clear()

    # -------------------------------------------------------------------------------------------------------- the thread

    def _start(self) -> None:
        if self._thread is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="tamis-download", daemon=True)
            self._thread.start()
            self._run(self._connect())

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def _connect(self) -> None:
        aiohttp, settings = self._aiohttp, self.settings
        resolver = aiohttp.ThreadedResolver()
        if not settings.private:
            resolver = _public_resolver(aiohttp)
        self._session = aiohttp.ClientSession(
            headers={"User-Agent": settings.user_agent, "Accept-Encoding": "identity"},
            timeout=aiohttp.ClientTimeout(total=settings.timeout_s),  # of the whole reply, not of each byte
            connector=aiohttp.TCPConnector(limit=0, resolver=resolver),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # a small reply could become a large one
        )

    # ---------------------------------------------------------------------------------------------------------- all URLs

    async def _all(self, urls: Sequence[str | None]) -> list[Fetched]:
        found: dict[str | None, Fetched] = {None: Fetched("no URL")}
        waiting = iter(dict.fromkeys(url for url in urls if url is not None))
        await asyncio.gather(*(self._work(waiting, found) for _ in range(min(self.settings.concurrency, len(urls)))))
        return [found[url] for url in urls]

    async def _work(self, waiting: Iterator[str], found: dict[str | None, Fetched]) -> None:
        for url in waiting:
            try:
                found[url] = Fetched(OK, await self._repeated(url))
            except Refused as refusal:
                found[url] = Fetched(str(refusal))

    async def _repeated(self, url: str) -> bytes:
        """The bytes at a URL, after as many attempts as are allowed."""
        for attempt in range(self.settings.retries + 1):
            try:
                return await self._followed(url, obey=self.settings.robots)
            except Again as problem:
                wait = self.settings.retry_wait_s * 2**attempt * random.uniform(0.5, 1.5)
                if attempt == self.settings.retries or (problem.after_s or 0) > self.settings.max_wait_s:
                    raise Refused(problem.outcome) from problem
                await asyncio.sleep(min(self.settings.max_wait_s, max(wait, problem.after_s or 0)))
        raise AssertionError("the last attempt returns or raises")

    async def _followed(self, url: str, *, obey: bool, most: int | None = None) -> bytes:
        """The bytes at a URL, or at the one it redirects to."""
        for _ in range(MOST_REDIRECTS + 1):
            host = self._checked(url)
            if obey and not (await self._robots(url, host)).allows(url):
                raise Refused("robots.txt")
            async with self._place(host):
                reply = await self._got(url, most or self.settings.max_bytes, whole=most is None)
            if isinstance(reply, bytes):
                return reply
            url = joined(url, reply)
        raise Refused("too many redirects")

    @asynccontextmanager
    async def _place(self, host: str) -> AsyncIterator[None]:
        """One of the places for requests to a host. Waiting for it does not count as time of a reply."""
        place, waiting = self._places.get(host) or (asyncio.Semaphore(self.settings.per_host), 0)
        self._places[host] = (place, waiting + 1)
        try:
            async with place:
                yield
        finally:
            waiting = self._places[host][1] - 1
            self._places[host] = (place, waiting)
            if not waiting:
                del self._places[host]

    def _checked(self, url: str) -> str:
        """The scheme, host and port of a URL that may be fetched."""
        try:
            parts = urlsplit(url)
            port = parts.port
            host = str(self._yarl.URL(url).raw_host or "") if parts.hostname else ""  # to which the library connects
        except ValueError:
            raise Refused("not a URL") from None
        good = parts.scheme in ("http", "https") and host and not parts.username and len(url) <= _MAX_URL
        if not good or any(c.isspace() or not c.isprintable() for c in url):
            raise Refused("not a URL")
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            if host.replace(".", "").isdigit():  # 127.1, which the library connects to without resolving it
                raise Refused("not a URL") from None
        else:
            if not self.settings.private and not is_public(address):
                raise Refused("private address")
        return f"{parts.scheme}://{host}:{port or ''}"

    # ----------------------------------------------------------------------------------------------------------- one reply

    async def _got(self, url: str, most: int, *, whole: bool) -> bytes | str:
        """The bytes of a reply, or where it redirects to. If not `whole`, only the first `most` bytes are of interest."""
        with as_outcomes(self._aiohttp):
            async with self._session.get(url, allow_redirects=False) as reply:
                if reply.status in REDIRECTS and reply.headers.get("Location"):
                    return str(reply.headers["Location"])
                if reply.status in AGAIN:
                    raise Again(f"HTTP {reply.status}", retry_after_s(reply.headers.get("Retry-After")))
                if reply.status not in (200, 203):
                    raise Refused(f"HTTP {reply.status}")
                if reply.headers.get("Content-Encoding", "identity").lower() not in ("identity", ""):
                    raise Refused("compressed reply")
                if whole:
                    self._check_headers(reply, most)
                return await self._body(reply, most, whole=whole)

    def _check_headers(self, reply: Any, most: int) -> None:
        directive = opted_out(reply.headers.items(), self.settings.opt_out, self.settings.token)
        if directive is not None:
            raise Refused(f"opt-out: {directive}")
        if (reply.content_length or 0) > most:
            raise Refused(f"larger than {format_bytes(most)}")

    async def _body(self, reply: Any, most: int, *, whole: bool) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for chunk in reply.content.iter_chunked(_CHUNK_BYTES):
            parts.append(chunk)
            size += len(chunk)
            if size > most:
                if whole:
                    raise Refused(f"larger than {format_bytes(most)}")
                return b"".join(parts)[:most]
        if whole and not size:
            raise Refused("empty reply")
        return b"".join(parts)

    # ---------------------------------------------------------------------------------------------------------- robots.txt

    async def _robots(self, url: str, host: str) -> Robots:
        """The rules of a host, which are read once."""
        if host not in self._rules:
            self._rules[host] = asyncio.ensure_future(self._read_robots(urljoin(url, "/robots.txt")))
        self._rules.move_to_end(host)
        rules = await asyncio.shield(self._rules[host])
        self._forget_rules()
        if isinstance(rules, Refused):
            raise Refused(str(rules))
        return rules

    async def _read_robots(self, url: str) -> Robots | Refused:
        """RFC 9309: without a robots.txt everything is allowed, and nothing if it cannot be reached."""
        for attempt in range(self.settings.retries + 1):
            try:
                data = await self._followed(url, obey=False, most=robots.MAX_BYTES)
                return Robots.parse(data.decode("utf-8-sig", "replace"), self.settings.token)
            except Refused as refusal:
                if str(refusal) == "private address":
                    return refusal
                return Robots() if str(refusal).startswith(("HTTP 4", "too many")) else _NO_RULES
            except Again:
                await asyncio.sleep(min(self.settings.max_wait_s, self.settings.retry_wait_s * 2**attempt))
        return _NO_RULES

    def _forget_rules(self) -> None:
        """Forget the rules of hosts that were not used for the longest time, if all rules together are too large."""
        done = {host: _size(task.result()) for host, task in self._rules.items() if task.done()}
        held = sum(done.values())
        for host, size in done.items():
            if held <= _KNOWN_RULES_BYTES:
                return
            del self._rules[host]
            held -= size


def joined(url: str, moved: str) -> str:
    """The URL that a reply redirects to; raises `Refused` if it is none.

    >>> joined("https://example.org/a", "/b")
    'https://example.org/b'
    """
    try:
        return urljoin(url, moved)
    except ValueError:
        raise Refused("not a URL") from None


def _size(rules: Robots | Refused) -> int:
    return rules.size if isinstance(rules, Robots) else 0


def is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an address, and one that is written within it, is on the internet.

    >>> [is_public(ipaddress.ip_address(text)) for text in ("93.184.216.34", "10.0.0.1", "::ffff:127.0.0.1", "64:ff9b::7f00:1")]
    [True, False, False, False]
    """
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is None and address in ipaddress.ip_network("64:ff9b::/96"):
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not address.is_multicast


def _public_resolver(aiohttp: Any) -> Any:
    class PublicResolver(aiohttp.ThreadedResolver):
        """Resolves names, and refuses those that lead to an address that is not public."""

        async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> list[Any]:
            found = await super().resolve(host, port, family)
            for each in found:
                if not is_public(ipaddress.ip_address(each["host"].partition("%")[0])):
                    raise _PrivateAddress(f"{host} leads to a private address")
            return list(found)

    return PublicResolver()


@contextmanager
def as_outcomes(aiohttp: Any) -> Iterator[None]:
    """Turn the errors of a request into outcomes."""
    try:
        yield
    except _PrivateAddress:
        raise Refused("private address") from None
    except TimeoutError:
        raise Again("time-out") from None
    except (aiohttp.ClientSSLError, aiohttp.ServerFingerprintMismatch):
        raise Refused("TLS error") from None
    except aiohttp.ClientConnectorDNSError as error:
        if isinstance(error.__cause__, _PrivateAddress):
            raise Refused("private address") from None
        raise Again("host not found") from None
    except (aiohttp.InvalidURL, UnicodeError):
        raise Refused("not a URL") from None
    except aiohttp.ClientPayloadError:
        raise Again("reply cut off") from None
    except aiohttp.ClientResponseError:
        raise Again("invalid reply") from None
    except (aiohttp.ClientError, OSError):
        raise Again("connection failed") from None


def retry_after_s(text: str | None, now: float | None = None) -> float | None:
    """The seconds that a Retry-After header asks to wait, which it says as a number or as a date.

    >>> retry_after_s("120"), retry_after_s("Thu, 01 Jan 1970 00:01:00 GMT", now=20.0), retry_after_s("soon")
    (120.0, 40.0, None)
    """
    if text is None or text.strip().isdecimal():
        return None if text is None else float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - (time.time() if now is None else now))
    except (ValueError, OverflowError):
        return None
