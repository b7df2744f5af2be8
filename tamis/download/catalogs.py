"""Lists of files: the snapshots of Common Crawl, the dumps of Wikipedia, the sources of arXiv, and files with URLs."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from tamis.download.session import MOST_LIST_BYTES, LookUp, RemoteFile
from tamis.errors import ParameterError, SourceError


@dataclass(frozen=True)
class CommonCrawl:
    """The files of snapshots of Common Crawl, in the order of its lists.

    `snapshot` is the name of a crawl (`CC-MAIN-2024-10` or `2024-10`), a month of news (`CC-NEWS-2024-03`), or `latest`.
    """

    snapshot: str = "latest"
    kind: Literal["warc", "wet", "wat"] = "warc"
    limit: int | None = None
    skip: int = 0
    base: str = "https://data.commoncrawl.org"
    index: str = "https://index.commoncrawl.org/collinfo.json"

    def files(self, look_up: LookUp) -> list[RemoteFile]:
        name = self.snapshot
        if name == "latest":
            name = look_up.once("common-crawl latest", lambda: self._latest(look_up))
        listed = look_up.read(f"{self.base}/crawl-data/{self._folder(name)}/{self.kind}.paths.gz")
        paths = _decompressed(listed).decode("utf-8", "replace").split()
        return [RemoteFile(f"{self.base}/{path.lstrip('/')}") for path in _chosen(paths, self.skip, self.limit)]

    def _latest(self, look_up: LookUp) -> str:
        return str(_found(lambda: json.loads(look_up.read(self.index))[0]["id"], self.index))

    def _folder(self, name: str) -> str:
        if re.fullmatch(r"\d{4}-\d{2}", name):
            name = f"CC-MAIN-{name}"
        news = re.fullmatch(r"CC-NEWS-(\d{4})-(\d{2})", name)
        if news and self.kind == "warc":
            return f"CC-NEWS/{news[1]}/{news[2]}"
        if not re.fullmatch(r"CC-MAIN-\d{4}-\d{2}(-[A-Z]+)?|CC-MAIN-\d{4}", name):
            raise ParameterError(
                f"{name!r} is not a snapshot of Common Crawl" + (" with this kind of file" if news else ""),
                hint="--snapshot CC-MAIN-2024-10, 2024-10, CC-NEWS-2024-03 (WARC only) or latest",
            )
        return name


@dataclass(frozen=True)
class WikipediaDump:
    """The files of a dump of Wikipedia, or of another wiki of Wikimedia, with their checksums.

    `language` is a code such as `en`; `wiki` names another wiki (`enwiktionary`). `date` is that of a dump (`20240301`), or
    `latest`, the newest one that is complete.
    """

    language: str = "en"
    date: str = "latest"
    wiki: str | None = None
    limit: int | None = None
    skip: int = 0
    base: str = "https://dumps.wikimedia.org"

    def files(self, look_up: LookUp) -> list[RemoteFile]:
        wiki = self.wiki or f"{self.language.replace('-', '_')}wiki"
        if not re.fullmatch(r"[a-z0-9_]+", wiki) or not re.fullmatch(r"\d{8}|latest", self.date):
            raise ParameterError(f"{wiki} {self.date} is not a dump", hint="--language en --date 20240301, or latest")
        date = self.date
        if date == "latest":
            date = look_up.once(f"wikipedia {wiki} latest", lambda: self._latest(look_up, wiki))
        found = self._job(look_up, wiki, date)
        if found is None:
            raise SourceError(f"the dump {date} of {wiki} is not complete", hint="choose an earlier --date, or latest")
        files = _found(
            lambda: [
                RemoteFile(f"{self.base}{about['url']}", name, int(about["size"]), f"sha1:{about['sha1']}")
                for name, about in sorted(found.items(), key=lambda item: _by_number(item[0]))
                if "-index" not in name
            ],
            self._status(wiki, date),
        )
        return _chosen(files, self.skip, self.limit)

    def _latest(self, look_up: LookUp, wiki: str) -> str:
        page = look_up.read(f"{self.base}/{wiki}/").decode("utf-8", "replace")
        for date in sorted(set(re.findall(r'href="(\d{8})/?"', page)), reverse=True):
            if self._job(look_up, wiki, date) is not None:
                return date
        raise SourceError(f"{self.base}/{wiki}/ has no complete dump", hint="name one with --date")

    def _job(self, look_up: LookUp, wiki: str, date: str) -> dict[str, Any] | None:
        """The files of the multistream dump by name; None if it is not complete."""
        url = self._status(wiki, date)
        job = _found(lambda: json.loads(look_up.read(url))["jobs"]["articlesmultistreamdump"], url)
        found: dict[str, Any] | None = _found(lambda: job["files"] if job.get("status") == "done" else None, url)
        return found

    def _status(self, wiki: str, date: str) -> str:
        return f"{self.base}/{wiki}/{date}/dumpstatus.json"


@dataclass(frozen=True)
class ArxivSources:
    """The archives with the LaTeX sources of arXiv, with their checksums.

    arXiv provides them in a bucket of which the requester pays for the transfer, so credentials of AWS are needed:
    `Limits(storage_options={"requester_pays": True})`. `base` names a mirror, by HTTP or in another store. `months` (`2403`)
    selects archives of some months.
    """

    limit: int | None = None
    skip: int = 0
    months: tuple[str, ...] = ()
    base: str = "s3://arxiv"

    def files(self, look_up: LookUp) -> list[RemoteFile]:
        url = f"{self.base}/src/arXiv_src_manifest.xml"
        data = look_up.read(url)
        if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
            raise SourceError(f"{url} is not a manifest of arXiv")
        root = _found(lambda: ElementTree.fromstring(data), url)
        entries = [{part.tag: (part.text or "").strip() for part in each} for each in root.iter("file")]
        chosen = [each for each in entries if not self.months or each.get("yymm") in self.months]
        files = _found(
            lambda: [
                RemoteFile(f"{self.base}/{each['filename']}", "", int(each["size"]), f"md5:{each['md5sum']}")
                for each in sorted(chosen, key=lambda each: each["filename"])
            ],
            url,
        )
        return _chosen(files, self.skip, self.limit)


@dataclass(frozen=True)
class UrlList:
    """The URLs in a text file: one per line, with a checksum (`sha256:...`) after it if that is known; # begins a comment."""

    path: str | Path
    limit: int | None = None
    skip: int = 0

    def files(self, look_up: LookUp) -> list[RemoteFile]:
        try:
            lines = Path(self.path).read_text(encoding="utf-8-sig").splitlines()
        except OSError as error:
            raise SourceError(f"the list {self.path} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise SourceError(f"the list {self.path} is not UTF-8 text") from error
        files = []
        for number, line in enumerate(lines, start=1):
            parts = line.split()
            if not parts or parts[0].startswith("#"):
                continue
            if len(parts) > 2 or "://" not in parts[0]:
                raise SourceError(
                    f"line {number} of {self.path} is not a URL: {line.strip()[:80]!r}",
                    hint="one URL per line, with sha256:... after it if its checksum is known",
                )
            files.append(RemoteFile(parts[0], checksum=parts[1] if len(parts) == 2 else None))
        if not files:
            raise SourceError(f"the list {self.path} is empty", hint="one URL per line; # begins a comment")
        return _chosen(files, self.skip, self.limit)


def _chosen(items: list[Any], skip: int, limit: int | None) -> list[Any]:
    if skip < 0 or (limit is not None and limit < 1):
        raise ParameterError("`skip` must not be negative, and `limit` at least 1")
    return items[skip : None if limit is None else skip + limit]


def _by_number(name: str) -> list[object]:
    """Sorts multistream9 before multistream10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name)]


def _found(look: Any, url: str) -> Any:
    try:
        return look()
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, ElementTree.ParseError) as error:
        raise SourceError(f"{url} is not in the expected form: {error!r}") from error


def _decompressed(data: bytes) -> bytes:
    decoder = zlib.decompressobj(wbits=31)
    try:
        text = decoder.decompress(data, MOST_LIST_BYTES)
    except zlib.error as error:
        raise SourceError(f"the list of files is not compressed with gzip: {error}") from error
    if not decoder.eof:
        raise SourceError("the list of files is cut off, or too large")
    return text
