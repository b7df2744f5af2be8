"""Download a list of files to a folder, each exactly once.

    list --> not in the ledger --> Partial --transfer, again and again--> size, checksum --> ledger --> its name in the folder

A file is complete, checked and synced before the ledger records it, and gets its name after. If a run ends in between, the next
one gives it its name. A file that is in the ledger, and in the folder with the recorded size, is not requested again, unless
its list has another size or SHA-256 for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from tamis.download.limits import NoSpace, Pace, Space
from tamis.download.partial import Partial, parts_in
from tamis.download.transfer import Changed, Transfers
from tamis.errors import ParameterError, SourceError
from tamis.ledger import Downloaded, Ledger
from tamis.operators import digest
from tamis.parameters import format_bytes, parse_bytes, plural
from tamis.sources.http import OK, Again, FetchSettings, Refused
from tamis.store import INTERNAL, Store, sync_folder

_T = TypeVar("_T")
MOST_LIST_BYTES = 512 * 2**20
"""A list of files that is larger, also when it is decompressed, is refused; that of a snapshot has about 15 MB."""
_MAX_NAME = 200
"""Bytes of a file name; file systems allow 255."""


@dataclass(frozen=True)
class RemoteFile:
    """A file to download, and what its list says about it."""

    url: str
    name: str = ""
    """The name in the folder; by default the last part of the URL."""
    size: int | None = None
    checksum: str | None = None
    """`md5:...`, `sha1:...` or another algorithm of hashlib."""


@dataclass(frozen=True)
class Limits:
    """How fast, how much and how politely to download."""

    concurrency: int = 4
    per_host: int = 2
    """Requests to one host at a time; dumps.wikimedia.org allows two."""
    rate: int | str | None = None
    """Bytes per second of all transfers together."""
    disk: int | str | None = None
    """The most bytes that the folder may have."""
    max_file: int | str = "1TB"
    timeout_s: float = 60.0
    """Without a byte, or with less than 1 kB/s, for this long, a reply has stalled."""
    retries: int = 8
    """Attempts in a row that bring no byte."""
    retry_wait_s: float = 1.0
    max_wait_s: float = 600.0
    """A server whose Retry-After asks for more is not asked again."""
    user_agent: str = "tamis/1.0"
    robots: bool = True
    opt_out: Sequence[str] = ("noai", "tdm-reservation")
    allow_private: bool = False
    storage_options: dict[str, Any] = field(default_factory=dict)
    """For files in object stores: {"requester_pays": True}."""

    def check(self) -> None:
        for name, least in (
            ("concurrency", 1),
            ("per_host", 1),
            ("retries", 0),
            ("retry_wait_s", 0),
            ("max_wait_s", 0),
        ):
            if getattr(self, name) < least:
                raise ParameterError(f"`{name}` must be at least {least}")
        if not self.timeout_s > 0:
            raise ParameterError("`timeout_s` must be more than 0")
        if self.rate is not None and parse_bytes(self.rate) < 1000:
            raise ParameterError("`rate` must be at least 1 kB per second", hint="--rate 20MB")
        if not self.user_agent.strip() or not self.user_agent.isascii() or not self.user_agent.isprintable():
            raise ParameterError("`user_agent` must be a line of ASCII text", hint='"examplebot/1.0 (+https://...)"')

    def settings(self) -> FetchSettings:
        return FetchSettings(
            concurrency=self.concurrency,
            per_host=self.per_host,
            timeout_s=self.timeout_s,
            retries=self.retries,
            retry_wait_s=self.retry_wait_s,
            max_bytes=parse_bytes(self.max_file),
            user_agent=self.user_agent,
            robots=self.robots,
            opt_out=tuple(self.opt_out),
            private=self.allow_private,
            max_wait_s=self.max_wait_s,
        )


@dataclass
class DownloadReport:
    """What became of each file: complete before, downloaded now, failed with a reason, or left for lack of space."""

    folder: str
    listed: int = 0
    present: int = 0
    downloaded: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    num_bytes: int = 0
    """Of the files that were downloaded now."""
    resumed_bytes: int = 0
    """Bytes among them that an earlier run had transferred."""

    @property
    def ok(self) -> bool:
        return not self.failed and not self.left

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"ok": self.ok}

    def __str__(self) -> str:
        lines = [
            f"{plural(self.listed, 'file')}: {self.downloaded:,} downloaded ({format_bytes(self.num_bytes)}), "
            f"{self.present:,} already complete, {len(self.failed):,} failed, {len(self.left):,} left"
        ]
        lines += [f"failed: {url} ({why})" for url, why in self.failed.items()]
        for why in sorted(set(self.left.values())):
            lines.append(f"left: {plural(list(self.left.values()).count(why), 'file')} ({why})")
        return "\n".join(lines)


class Catalog(Protocol):
    """A list of files that must be looked up first."""

    def files(self, look_up: LookUp) -> list[RemoteFile]: ...


class LookUp:
    """What a catalog may do: read small files, and remember what a name such as `latest` meant."""

    def __init__(self, transfers: Transfers, ledger: Ledger) -> None:
        self._transfers, self._ledger = transfers, ledger

    def read(self, url: str) -> bytes:
        """The bytes at a URL; raises a SourceError if there are none."""
        folder = self._ledger.store.scratch()
        folder.mkdir(parents=True, exist_ok=True)
        partial = Partial(folder, url, most=MOST_LIST_BYTES)
        partial.open()
        try:
            partial.restart()  # lists change
            outcome = self._transfers.run(transferred(self._transfers, partial, None, None))
            if outcome != OK:
                raise SourceError(
                    f"the list of files at {url} cannot be read: {outcome}",
                    hint="check the name, and whether the host can be reached from here",
                )
            partial.save()
            return partial.path.read_bytes()
        finally:
            partial.remove()

    def once(self, request: str, find: Callable[[], str]) -> str:
        """What a request meant when it was first made for this folder."""
        if request not in self._ledger.catalogs:
            self._ledger.append([{"kind": "catalog", "request": request, "meaning": find()}])
        return self._ledger.catalogs[request]


async def transferred(transfers: Transfers, partial: Partial, size: int | None, checksum: str | None) -> str:
    """Transfer a file with as many attempts as it takes; returns "ok" or the reason why it failed.

    Attempts that bring bytes are not counted, since a file of a day may be cut many times. Those that begin again are, because
    a server that changes a file all the time, or ignores ranges and always cuts, would never be done.
    """
    settings = transfers.settings
    idle, begun_again, attempt = 0, 0, 0
    while True:
        before, after_s = partial.size, None
        try:
            await transfers.fill(partial, has_checksum=checksum is not None)
            wrong = _mismatch(partial, size, checksum)
            if wrong is None:
                return OK
            partial.restart()
            outcome, begun_again = wrong, begun_again + 1
        except Changed as change:
            outcome, begun_again = str(change), begun_again + 1
        except Again as problem:
            outcome, after_s = problem.outcome, problem.after_s
            begun_again += partial.size < before
        except Refused as refusal:
            return str(refusal)
        gained = partial.size > before
        idle, attempt = (0, 0) if gained else (idle + 1, attempt + 1)
        if max(idle, begun_again) > settings.retries or (after_s or 0) > settings.max_wait_s:
            return outcome
        wait = settings.retry_wait_s * 2 ** min(attempt, 20) * random.uniform(0.5, 1.5)
        await asyncio.sleep(min(settings.max_wait_s, max(wait, after_s or 0)))


def _mismatch(partial: Partial, size: int | None, checksum: str | None) -> str | None:
    if size is not None and partial.size != size:
        return f"{partial.size:,} bytes instead of the {size:,} that are listed"
    if checksum is not None and partial.listed != checksum.partition(":")[2].lower():
        return "does not match its checksum"
    return None


# ---------------------------------------------------------------------------------------------------------- a whole folder


def download(
    files: Catalog | Sequence[RemoteFile | str],
    folder: str | Path,
    limits: Limits | None = None,
    *,
    on_file: Callable[[str, str, int], None] = lambda name, outcome, size: None,
) -> DownloadReport:
    """Download files to a folder, each exactly once; rerun it to resume.

    `files` are URLs, or a catalog: `CommonCrawl("CC-MAIN-2024-10", limit=10)`. Only one process
    downloads to a folder at a time. `on_file` is called with the name, the outcome and the size of each file that is done.

    >>> download(["https://example.org/a.warc.gz"], "crawl/").ok          # doctest: +SKIP
    True
    """
    limits = limits or Limits()
    limits.check()
    store = Store(str(folder))
    store.make()
    with Ledger(store) as ledger:
        session = _Session(ledger, limits, on_file)
        try:
            return session.run(files)
        finally:
            session.close()


class _Session:
    """One run of a download."""

    def __init__(self, ledger: Ledger, limits: Limits, on_file: Callable[[str, str, int], None]) -> None:
        self._ledger, self._store, self._limits, self._on_file = ledger, ledger.store, limits, on_file
        store = ledger.store
        self._folder = (store.path / INTERNAL if store.local else store.scratch()) / "partial"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._report = DownloadReport(store.root)
        pace = Pace(None if limits.rate is None else parse_bytes(limits.rate))
        self._transfers = Transfers(limits.settings(), pace, None, dict(limits.storage_options))
        self._full: str | None = None
        self._tasks: list[asyncio.Future[None]] = []

    def run(self, files: Catalog | Sequence[RemoteFile | str]) -> DownloadReport:
        self._finish_names()
        if isinstance(files, Sequence):
            wanted = [RemoteFile(each) if isinstance(each, str) else each for each in files]
        else:
            wanted = files.files(LookUp(self._transfers, self._ledger))
        wanted = list({each.url: each for each in wanted}.values())
        for each in wanted:
            _check_checksum(each)
        self._forget_others(wanted)
        held = sum(each.size for each in self._ledger.downloads.values())
        most = None if self._limits.disk is None else parse_bytes(self._limits.disk)
        self._transfers.space = Space(self._folder, most, held, parts_in(self._folder))
        missing = [each for each in wanted if each.url not in self._ledger.downloads]
        self._report.listed, self._report.present = len(wanted), len(wanted) - len(missing)
        self._transfers.run(self._all(self._named(missing)))
        return self._report

    def close(self) -> None:
        """Wait until every transfer has saved what it has, also after Ctrl-C."""
        self._transfers.run(self._ended())
        self._transfers.close()

    async def _ended(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _finish_names(self) -> None:
        """Give files that the ledger records their names, if a run ended before; forget those that were removed since."""
        gone = []
        for each in self._ledger.downloads.values():
            part = self._folder / digest(each.url)
            if self._store.size(each.name) == each.size:
                continue
            if part.exists() and part.stat().st_size == each.size:
                self._publish(part, each.name)
            else:
                gone.append({"kind": "forget download", "url": each.url})
        self._ledger.append(gone)

    def _forget_others(self, wanted: Sequence[RemoteFile]) -> None:
        """Forget files of which the list now says something else, so that they are downloaded again."""
        known = self._ledger.downloads
        changed = [each.url for each in wanted if each.url in known and _contradicts(each, known[each.url])]
        self._ledger.append({"kind": "forget download", "url": url} for url in changed)

    def _publish(self, part: Path, name: str) -> None:
        self._store.publish(part, name)
        part.with_name(f"{part.name}.state").unlink(missing_ok=True)

    def _named(self, files: Sequence[RemoteFile]) -> Iterator[tuple[RemoteFile, str]]:
        """Each file with its name in the folder. Of two with one name, the second has a digest of its URL in it."""
        used = {each.name for each in self._ledger.downloads.values()}
        for each in files:
            name = safe_file_name(each.name or _last_part(each.url))
            if name in used:
                stem, dot, rest = name.partition(".")
                name = f"{stem}-{digest(each.url)[:10]}{dot}{rest}"
            used.add(name)
            yield each, name

    async def _all(self, files: Iterator[tuple[RemoteFile, str]]) -> None:
        self._tasks = [asyncio.ensure_future(self._work(files)) for _ in range(self._limits.concurrency)]
        await asyncio.gather(*self._tasks)

    async def _work(self, files: Iterator[tuple[RemoteFile, str]]) -> None:
        for file, name in files:
            if self._full is not None:
                self._report.left[file.url] = self._full
                continue
            if self._store.size(name) is not None and name not in self._ledger.replaceable:
                self._report.failed[file.url] = f"{name} exists, and the ledger does not know it"
                continue
            await self._one(file, name)

    async def _one(self, file: RemoteFile, name: str) -> None:
        partial = Partial(self._folder, file.url, file.checksum.partition(":")[0] if file.checksum else None)
        space = self._transfers.space
        assert space is not None
        try:
            partial.open()
            resumed = partial.size
            outcome = await transferred(self._transfers, partial, file.size, file.checksum)
            if outcome == OK:
                self._complete(partial, name)
                self._report.downloaded += 1
                self._report.num_bytes += partial.size
                self._report.resumed_bytes += resumed
            else:
                self._report.failed[file.url] = outcome
            space.settle(partial.path.name, partial.size, is_complete=outcome == OK)
            self._on_file(name, outcome, partial.size)
        except NoSpace as problem:
            self._full = str(problem)
            self._report.left[file.url] = self._full
            space.settle(partial.path.name, partial.size, is_complete=False)
        finally:
            if partial.size and partial.path.exists():
                partial.save()
            partial.close()

    def _complete(self, partial: Partial, name: str) -> None:
        """Record a file, and then give it its name."""
        partial.save()
        sync_folder(self._folder)
        record = Downloaded(
            partial.url, name, partial.size, partial.checksum, partial.sha256, partial.validator
        ).record()
        self._ledger.append([record])
        partial.close()
        self._publish(partial.path, name)


def _contradicts(listed: RemoteFile, found: Downloaded) -> bool:
    """Whether a file that was downloaded is not the one that the list means."""
    algorithm, _, value = (listed.checksum or "").partition(":")
    return listed.size not in (None, found.size) or (algorithm == "sha256" and value.lower() != found.sha256)


def _last_part(url: str) -> str:
    try:
        return unquote(urlsplit(url).path).rpartition("/")[2]
    except ValueError:  # the transfer refuses it
        return ""


def _check_checksum(file: RemoteFile) -> None:
    algorithm, _, value = (file.checksum or "md5:0").partition(":")
    if algorithm not in hashlib.algorithms_guaranteed or algorithm.startswith("shake") or not value:
        raise ParameterError(
            f"the checksum {file.checksum!r} of {file.url} is not one",
            hint="write it as md5:..., sha1:... or sha256:...",
        )


def safe_file_name(name: str) -> str:
    """A name that is a file in the folder itself, and that readers of the folder do not skip.

    >>> safe_file_name("../../etc/passwd"), safe_file_name("_a b.warc.gz"), safe_file_name("")
    ('passwd', 'a b.warc.gz', 'index')
    """
    name = re.sub(r"[\x00-\x1f\x7f\\:*?\"<>|]", "_", name.rpartition("/")[2]).lstrip("._ ").rstrip(". ")
    data = os.fsencode(name.encode("utf-8", "replace").decode())
    if len(data) > _MAX_NAME:
        stem, dot, rest = name.rpartition(".")
        keep = data[: _MAX_NAME - 20].decode("utf-8", "ignore")
        name = f"{keep}-{digest(name)[:10]}{dot + rest if stem and len(rest) < 8 else ''}"
    return name or "index"
