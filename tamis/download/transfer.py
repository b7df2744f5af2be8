"""Transfer one file by HTTP, or from an object store, from where an earlier attempt ended.

    URL --> robots.txt --> a place at the host --> GET, Range + If-Range --> 206: append   200: begin again   416: begin again
                                                                          429, 5xx, cut, stalled: later, by range

A part is only continued if the server knows the file by a strong ETag or a date, and says that it is still the same. The length
that the server gives, if it gives one, must be that of the bytes that come.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any, NoReturn
from urllib.parse import urlsplit

from tamis.download.limits import Pace, Space
from tamis.download.partial import Partial
from tamis.errors import DiskFull, SourceError, is_full_disk
from tamis.remote import open_store
from tamis.sources.http import (
    AGAIN,
    MOST_REDIRECTS,
    REDIRECTS,
    Again,
    Fetcher,
    FetchSettings,
    Refused,
    as_outcomes,
    joined,
    retry_after_s,
)
from tamis.sources.robots import opted_out

STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "hf"})
"""Schemes of URLs that fsspec opens; none of them leads to a file of this machine."""
LEAST_RATE = 1000
"""Bytes per second; a reply that is slower for `timeout_s` has stalled."""
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_BLOCK_BYTES = 8 * 2**20
"""What is read from an object store at a time."""


class Changed(Exception):
    """The file at the source is not the one of which there is a part; the part was discarded."""


class Transfers(Fetcher):
    """Transfers files within the limits that they share."""

    def __init__(
        self, settings: FetchSettings, pace: Pace, space: Space | None, storage_options: dict[str, Any]
    ) -> None:
        super().__init__(settings)
        self._pace, self.space, self._options = pace, space, storage_options
        self._quiet_until: dict[str, float] = {}
        """By host, when it may be asked again, as its Retry-After says."""

    def run(self, work: Any) -> Any:
        """The result of a coroutine, in the thread of the transfers."""
        self._start()
        return self._run(work)

    async def fill(self, partial: Partial, *, has_checksum: bool) -> None:
        """Append the bytes that are missing; raises `Again`, `Refused`, `Changed` or `NoSpace` if that does not succeed."""
        try:
            if partial.url.partition("://")[0].lower() in STORES:
                return await self._from_store(partial)
            await self._from_web(partial, has_checksum)
        except OSError as error:
            if is_full_disk(error):
                raise _disk_full(partial) from error
            raise

    # -------------------------------------------------------------------------------------------------------------- HTTP

    async def _from_web(self, partial: Partial, has_checksum: bool) -> None:
        url = partial.url
        for _ in range(MOST_REDIRECTS + 1):
            host = self._checked(url)
            if self.settings.robots and not (await self._robots(url, host)).allows(url):
                raise Refused("robots.txt")
            await self._until_quiet_ends(host)
            async with self._place(host):
                moved = await self._reply(url, host, partial, has_checksum)
            if moved is None:
                return
            url = joined(url, moved)
        raise Refused("too many redirects")

    async def _until_quiet_ends(self, host: str) -> None:
        while (wait := self._quiet_until.get(host, 0.0) - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        self._quiet_until.pop(host, None)

    async def _reply(self, url: str, host: str, partial: Partial, has_checksum: bool) -> str | None:
        """Append a reply; returns where it redirects to, if it does."""
        headers = {}
        if partial.size and (partial.validator is not None or has_checksum):
            headers["Range"] = f"bytes={partial.size}-"
            if partial.validator is not None:
                headers["If-Range"] = partial.validator
        elif partial.size:
            partial.restart()  # nothing would show that the rest belongs to the same file
        limit = self._aiohttp.ClientTimeout(total=None, sock_connect=self.settings.timeout_s)
        with as_outcomes(self._aiohttp):
            async with asyncio.timeout(self.settings.timeout_s):
                reply = await self._session.get(url, allow_redirects=False, headers=headers, timeout=limit)
            async with reply:
                if reply.status in REDIRECTS and reply.headers.get("Location"):
                    return str(reply.headers["Location"])
                if reply.status in AGAIN:
                    after_s = retry_after_s(reply.headers.get("Retry-After"))
                    if after_s:
                        self._quiet_until[host] = time.monotonic() + min(after_s, self.settings.max_wait_s)
                    raise Again(f"HTTP {reply.status}", after_s)
                self._check_status(reply, partial)
                await self._append(reply, partial, has_checksum)
        return None

    def _check_status(self, reply: Any, partial: Partial) -> None:
        """Compare what the reply says about the file with what is known about the part."""
        if reply.status == 416:
            _discard(partial, "HTTP 416")
        if reply.status not in (200, 203, 206):
            raise Refused(f"HTTP {reply.status}")
        directive = opted_out(reply.headers.items(), self.settings.opt_out, self.settings.token)
        if directive is not None:
            raise Refused(f"opt-out: {directive}")
        encoding = reply.headers.get("Content-Encoding", "identity").lower()
        archive = urlsplit(partial.url).path.endswith((".gz", ".tgz")) and encoding in ("gzip", "x-gzip")
        if encoding not in ("identity", "") and not archive:  # servers say so of files that are compressed themselves
            raise Refused("compressed reply")
        validator = _validator(reply)
        if reply.status == 206:
            found = _CONTENT_RANGE.fullmatch(reply.headers.get("Content-Range", "").strip())
            if found is None or int(found[1]) != partial.size:
                _discard(partial, "the server sent another range")
            total = None if found[3] == "*" else int(found[3])
            if (partial.total or total) != total or (partial.validator or validator) != validator:
                _discard(partial, "the file has changed")
            return
        if partial.size:
            partial.restart()
        partial.validator, partial.total = validator, reply.content_length

    async def _append(self, reply: Any, partial: Partial, has_checksum: bool) -> None:
        total = partial.total
        ends = total is not None or "chunked" in reply.headers.get("Transfer-Encoding", "").lower()
        if not ends and not has_checksum:
            raise Refused("the reply has no length, so that a cut would not be noticed")
        most = self._most(partial)
        if (total or 0) > most:
            raise Refused(f"larger than {most:,} bytes")
        self._claim(partial, total or 0)
        waited_s, received = 0.0, 0
        try:
            while True:
                began = time.monotonic()
                async with asyncio.timeout(self.settings.timeout_s):
                    chunk = await reply.content.readany()
                now = time.monotonic()
                waited_s, received = waited_s + now - began, received + len(chunk)
                if not chunk:
                    break
                if partial.size + len(chunk) > (most if total is None else total):
                    raise Refused(
                        "more bytes than the server said" if total is not None else f"larger than {most:,} bytes"
                    )
                self._claim(partial, partial.size + len(chunk))
                partial.write(chunk)
                if waited_s >= self.settings.timeout_s:
                    if received < LEAST_RATE * waited_s:
                        raise Again("stalled")
                    waited_s, received = 0.0, 0
                await asyncio.sleep(self._pace.delay_s(len(chunk), now))
        finally:
            reply.close()
        if total is not None and partial.size != total:
            raise Again("reply cut off")

    def _most(self, partial: Partial) -> int:
        return min(self.settings.max_bytes, partial.most)

    def _claim(self, partial: Partial, num_bytes: int) -> None:
        if self.space is not None:
            self.space.claim(partial.path.name, max(num_bytes, partial.total or 0), partial.size)

    # ------------------------------------------------------------------------------------------------------ object stores

    async def _from_store(self, partial: Partial) -> None:
        """Append blocks of an object. Its ETag, or what the store has instead, is its validator."""
        try:
            system, path = await asyncio.to_thread(open_store, partial.url, self._options, SourceError)
            info = await asyncio.to_thread(system.info, path, refresh=True)
            tag = next(
                (str(info[key]) for key in ("ETag", "etag", "md5Hash", "blob_id", "mtime") if info.get(key)), None
            )
            if partial.size and (tag is None or partial.validator != tag or partial.total != info["size"]):
                partial.restart()
            partial.validator, partial.total = tag, int(info["size"])
            if partial.total > self._most(partial):
                raise Refused(f"larger than {self._most(partial):,} bytes")
            self._claim(partial, partial.total)
            while partial.size < partial.total:
                stop = min(partial.total, partial.size + _BLOCK_BYTES)
                async with asyncio.timeout(self.settings.timeout_s + (stop - partial.size) / LEAST_RATE):
                    block = await asyncio.to_thread(system.cat_file, path, start=partial.size, end=stop)
                if len(block) != stop - partial.size:
                    raise Again("reply cut off")
                partial.write(block)
                await asyncio.sleep(self._pace.delay_s(len(block), time.monotonic()))
        except FileNotFoundError:
            raise Refused("does not exist") from None
        except PermissionError:
            raise Refused("permission denied") from None
        except TimeoutError:
            raise Again("time-out") from None
        except ValueError:  # the name of a bucket or a repository that cannot exist
            raise Refused("not a URL") from None
        except SourceError as error:
            raise Again(error.message) from error
        except OSError as error:
            if is_full_disk(error):
                raise
            raise Again(f"the store failed: {error}") from error


def _discard(partial: Partial, why: str) -> NoReturn:
    partial.restart()
    raise Changed(why)


def _validator(reply: Any) -> str | None:
    """What If-Range accepts: a strong ETag, or else the date of the last change."""
    tag = reply.headers.get("ETag", "")
    return tag if tag.startswith('"') else reply.headers.get("Last-Modified")


def _disk_full(partial: Partial) -> DiskFull:
    return DiskFull(
        f"the disk is full while {partial.url} is downloaded",
        hint="free some space, then rerun the same command: it continues where it stopped",
    )
