"""Read the files of Git repositories as rows, from the objects of a commit: nothing is checked out, no hook or filter runs.

    folder --repositories--> repository, ref --rev-parse--> commit --ls-tree--> regular files, in the order of the tree
                                                                                     |  pieces: ranges of these files
                                                             cat-file --batch <------+
                                                                   |
                              rows: id, repo, commit, path, language, size, license, kind, text

Repositories are not trusted. Only commands that read objects are called, without the configuration of the user, and with all
protocols forbidden, so that a repository which lacks objects cannot have them fetched.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from tamis.batch import Failure
from tamis.errors import DamagedFile, ParameterError, SourceError
from tamis.operators import Layout, Piece, Reading, operator
from tamis.parameters import parse_bytes
from tamis.sources import partitions as division
from tamis.sources.files import File
from tamis.sources.filesource import DamagedFiles
from tamis.sources.languages import language_of
from tamis.sources.records import RecordSource, Row, bad_record
from tamis.text.licenses import detect_files

_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("id", "repo", "commit", "path", "language", "license", "kind", "text")]
    + [("size", pa.int64())]
)
_DEEPEST = 4
"""Folders below the one that is given in which repositories are looked for."""
_LICENSE_FILE = re.compile(r"(?:un)?licen[cs]e(?:[-_.].*)?|copying(?:[-_.].*)?|copyright", re.IGNORECASE)
_MOST_LICENSES, _LICENSE_BYTES = 2000, 100_000
_REGULAR = (b"100644", b"100755")
_USERINFO = re.compile(r"(?<=://)[^/@\s]*@")
_ROW_BYTES = 300


@dataclass(frozen=True, slots=True)
class _Entry:
    """A regular file of a tree."""

    sha: str
    size: int
    path: str


@operator()
class GitReader(RecordSource):
    """Read the files of Git repositories, one row per file of a commit, without checking anything out.

    Columns: `id` (of the blob), `repo`, `commit`, `path`, `language`, `size`, `license`, `kind` and `text`. `file_paths` are
    repositories, also bare ones, or folders of repositories. `ref` is a branch, a tag or a commit. `languages` selects files
    by language ("python", "c++"), as far as their names say it. Links and submodules are no rows.

    `kind` is "text", or why `text` is null: "binary", "not UTF-8", or "too large" for files of more than `max_bytes`.
    `license` is the SPDX expression of the licence files in the folder of the file or in the nearest one above. Needs the
    command `git`.

    >>> GitReader("repos/", ref="v1.0", languages=["python"]).name
    'git_reader'
    """

    ref: str = "HEAD"
    languages: Sequence[str] = ()
    max_bytes: int | str = "1MB"

    format = "git"

    def check(self) -> None:
        super().check()
        parse_bytes(self.max_bytes)
        if shutil.which("git") is None:
            raise ParameterError(f"`{self.name}` needs the command git", hint="install it: apt install git")

    # ----------------------------------------------------------------------------------------------------------- layout

    def list_files(self) -> list[File]:
        given = [self.file_paths] if isinstance(self.file_paths, (str, Path)) else list(self.file_paths)
        found = [each for path in given for each in repositories(str(path))]
        return [File(path, 0, "") for path in dict.fromkeys(found)]

    def input_bytes(self) -> int:
        folders = (Path(file.path) / inner for file in self.list_files() for inner in ("objects", ".git/objects"))
        return sum(map(_size, folders))

    def layout(self, blocksize: int) -> Layout:
        self.check()
        size = self.block_bytes(blocksize)
        files, damaged = self.list_files(), DamagedFiles()
        by_repo = damaged.examine(files, lambda file: self._pieces(file.path, size))
        damaged.raise_if_nothing_is_left([File(file.path, 1, "") for file in files])
        pieces = [piece for file in files for piece in by_repo.get(file.path, ())]
        num_bytes = sum(piece.size for piece in pieces)
        if self.limit is not None or self.skip:
            pieces = division.some_rows(pieces, self.skip, self.limit, self.count_rows)
        per = self.files_per_partition
        groups = division.group(pieces, per) if per is not None else division.pack(pieces, size)
        fingerprints: dict[str, list[object]] = {piece.path: [piece.path] for piece in pieces}
        why = division.explain(
            len(by_repo),
            num_bytes,
            len(groups),
            blocksize=size,
            given=self.blocksize is not None,
            files_per_partition=per,
        )
        return Layout(
            self.seen_schema(_SCHEMA),
            division.partitions_of(groups, fingerprints),
            {"partitions": why.replace("file", "repository" if len(by_repo) == 1 else "repositorie", 1)},
            len(by_repo),
            num_bytes,
            {path: error.message for path, error in damaged.errors.items()},
        )

    def _pieces(self, repo: str, blocksize: int) -> list[Piece]:
        """Ranges of the files of a commit. A range names the commit, so that all workers read the same one."""
        name = f"{repo}@{_commit(repo, self.ref)}"
        most = parse_bytes(self.max_bytes)
        pieces, start, stop, size = [], 0, 0, 0
        for entry in self._entries(name):
            weight = _ROW_BYTES + (entry.size if entry.size <= most else 0)
            if stop > start and size + weight > blocksize and self.files_per_partition is None:
                pieces.append(Piece(name, start, stop, size))
                start, size = stop, 0
            stop, size = stop + 1, size + weight
        return [*pieces, Piece(name, start, stop, size)]

    def count_rows(self, piece: Piece, most: int) -> int:
        return piece.stop - piece.start

    # ---------------------------------------------------------------------------------------------------------- reading

    def _entries(self, name: str, licenses: list[_Entry] | None = None) -> Iterator[_Entry]:
        """The files of a commit that are rows; `licenses` collects the files with licences."""
        repo, _, commit = name.rpartition("@")
        with _running(repo, "ls-tree", "-r", "-z", "-l", "--full-tree", commit) as process:
            assert process.stdout is not None
            for line in _until_null(process.stdout):
                head, _, path = line.partition(b"\t")
                mode, kind, sha, size = head.split()
                if kind != b"blob" or mode not in _REGULAR:
                    continue
                entry = _Entry(sha.decode(), int(size) if size.isdigit() else -1, path.decode("utf-8", "replace"))
                if licenses is not None and len(licenses) < _MOST_LICENSES and _is_license(entry):
                    licenses.append(entry)
                if not self.languages or language_of(entry.path) in self.languages:
                    yield entry

    def rows(self, piece: Piece, wanted: frozenset[str] | None, reading: Reading | None) -> Iterator[Row | Failure]:
        repo, _, commit = piece.path.rpartition("@")
        notices: list[_Entry] = []
        mine: list[_Entry] = []
        for number, entry in enumerate(self._entries(piece.path, notices)):
            if piece.start <= number < piece.stop:
                mine.append(entry)
        most = min(parse_bytes(self.max_bytes), self.most_bytes(reading))
        needs_text = wanted is None or bool({"text", "kind", "language"} & wanted)
        with _Objects(repo) as objects:
            licenses = _licenses(objects, notices) if wanted is None or "license" in wanted else {}
            about = {"repo": _origin(repo), "commit": commit}
            for number, entry in enumerate(mine, start=piece.start):
                values: dict[str, object] = {**about, "id": entry.sha, "path": entry.path, "size": entry.size}
                values["license"] = _nearest(entry.path, licenses)
                try:
                    if needs_text:
                        data = objects.read(entry.sha) if entry.size <= most else None
                        values |= _content(entry.path, data)
                    yield Row(piece.path, number, values)
                except _BadObject as error:
                    yield bad_record(self.name, piece.path, number, f"{entry.path}: {error}")


def _is_license(entry: _Entry) -> bool:
    return entry.size <= _LICENSE_BYTES and _LICENSE_FILE.fullmatch(entry.path.rpartition("/")[2]) is not None


def _content(path: str, data: bytes | None) -> dict[str, object]:
    text, kind = None, "too large"
    if data is not None:
        kind = "binary" if b"\0" in data else "text"
        if kind == "text":
            try:
                text = data.decode("utf-8-sig")
            except UnicodeDecodeError:
                kind = "not UTF-8"
    return {"kind": kind, "text": text, "language": language_of(path, (text or "")[:200].partition("\n")[0])}


def _licenses(objects: _Objects, notices: Sequence[_Entry]) -> dict[str, str | None]:
    """The licence of each folder that has licence files."""
    folders: dict[str, dict[str, str]] = {}
    for entry in notices:
        folder, _, name = entry.path.rpartition("/")
        try:
            folders.setdefault(folder, {})[name] = objects.read(entry.sha).decode("utf-8", "replace")
        except _BadObject:
            continue
    return {folder: detect_files(files) for folder, files in folders.items()}


def _nearest(path: str, licenses: Mapping[str, str | None]) -> str | None:
    folder = path
    while folder:
        folder = folder.rpartition("/")[0]
        if folder in licenses:
            return licenses[folder]
    return None


# -------------------------------------------------------------------------------------------------------- repositories


def repositories(path: str) -> list[str]:
    """The repositories at a path or in the folders below it, sorted."""
    if "://" in path or re.match(r"[\w.-]+@[\w.-]+:", path):
        raise SourceError(f"{path} is not on this machine", hint=f"git clone --bare {path} repos/")
    root = Path(path).expanduser()
    if not root.is_dir():
        raise SourceError(f"{path} is not a folder", hint="name a Git repository, or a folder of repositories")
    found, folders = [], [root]
    for _ in range(_DEEPEST + 1):
        found += [folder for folder in folders if _is_repository(folder)]
        folders = [
            child for each in folders if not _is_repository(each) for child in sorted(each.iterdir()) if _enters(child)
        ]
    if not found:
        raise SourceError(f"{path} contains no Git repository", hint="git clone --bare URL repos/")
    return sorted(map(str, found))


def holds_repositories(paths: Sequence[str]) -> bool:
    """Whether there are repositories at all of these paths, or below them."""
    try:
        return all(map(repositories, paths))
    except SourceError:
        return False


def _enters(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not path.name.startswith((".", "_"))


def _is_repository(path: Path) -> bool:
    return (path / ".git").exists() or ((path / "HEAD").is_file() and (path / "objects").is_dir())


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else 0


def _commit(repo: str, ref: str) -> str:
    done = subprocess.run(
        _command("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"),
        env=_environment(repo),
        capture_output=True,
        text=True,
        check=False,
    )
    found = done.stdout.strip()
    if done.returncode or not re.fullmatch(r"[0-9a-f]{40,64}", found):
        hint = "it has no commits, or the name of the branch, tag or commit is another one"
        raise DamagedFile(f"{repo} has no commit {ref!r}", hint=done.stderr.strip() or hint)
    return found


def _origin(repo: str) -> str:
    """Where a repository was cloned from, without credentials, or its name."""
    command = _command("config", "--get", "remote.origin.url")
    done = subprocess.run(command, env=_environment(repo), capture_output=True, text=True, check=False)
    return _USERINFO.sub("", done.stdout.strip()) or Path(repo).resolve().name.removesuffix(".git")


def _command(*arguments: str) -> list[str]:
    safe = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "--no-pager", "--literal-pathspecs")
    return ["git", *safe, *arguments]


def _environment(repo: str) -> dict[str, str]:
    inner = Path(repo) / ".git"
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_DIR": str((inner if inner.exists() else Path(repo)).absolute()),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_ALLOW_PROTOCOL": "none",
    }


@contextmanager
def _running(repo: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command that reads a repository; raises if it failed, unless it was ended here."""
    process = subprocess.Popen(
        _command(*arguments),
        env=_environment(repo),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    try:
        yield process
        errors = process.communicate()[1]
        if process.returncode:
            raise DamagedFile(f"{repo} cannot be read: {errors.decode('utf-8', 'replace').strip()[:300]}")
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def _until_null(stream: IO[bytes]) -> Iterator[bytes]:
    rest = b""
    while chunk := stream.read(65_536):
        *whole, rest = (rest + chunk).split(b"\0")
        yield from whole


class _BadObject(Exception):
    """An object that cannot be read."""


class _Objects:
    """Reads objects of a repository, one after the other, with one process, which is started again if it ends."""

    def __init__(self, repo: str) -> None:
        self._repo = repo
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> _Objects:
        return self

    def __exit__(self, *_: Any) -> None:
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def read(self, sha: str) -> bytes:
        """The content of a blob."""
        if self._process is None:
            self._process = subprocess.Popen(
                _command("cat-file", "--batch"),
                env=_environment(self._repo),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        given, made = self._process.stdin, self._process.stdout
        assert given is not None
        assert made is not None
        try:
            given.write(f"{sha}\n".encode())
            given.flush()
            parts = made.readline().split()
            if parts[1:] == [b"missing"]:
                raise _BadObject("the object is missing; the clone is not complete")
            size = int(parts[2])
            data = made.read(size + 1)[:-1]
            if len(data) == size:
                return data
        except (OSError, IndexError, ValueError):
            pass
        self._end()
        raise _BadObject(f"the object {sha} is damaged")
