"""The exchange: named blobs that pass between the stages of a run and through a Gather.

    worker    with exchange.writing("bands/4-000001.spill") as path: ...      a draft, under a name of this attempt
    driver    draft.publish()                                                 the draft becomes the blob
    worker    exchange.file("bands/4-000001.spill")                           a local path, to map or to read

Facts, fates, spilled rows, buckets, pairs and parts of an index are blobs. An exchange is a folder (`FolderExchange`) or an
object store (`StoreExchange`). Nothing outside of it knows where a blob is.

A task or call may be tried again while an earlier attempt, given up by the driver, is still running. Each attempt therefore
writes drafts under names of its own and reports them, and the driver publishes the drafts of one attempt. An attempt that
continues after that can overwrite nothing. Outside of an attempt, in the driver, a blob is published when it is complete.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import psutil
import pyarrow as pa

from tamis.errors import SinkError, TamisError
from tamis.remote import open_store

COPIES_BYTES = 4_000_000_000
"""Local copies of blobs in an object store that a process keeps; a single one may be larger."""

WHOLE_BYTES = 8_000_000
"""A blob of up to this size is downloaded as a whole even if only a part of it is read."""

_PROCESS = "tamis-process-"
_DRAFT = re.compile(r"\.draft-[0-9a-f]+$")


@runtime_checkable
class Exchange(Protocol):
    """Named blobs. Names are relative, with `/` between parts. Cheap to pickle and to send to a worker."""

    def writing(self, name: str) -> Writing:
        """A local path to write to; the file becomes the blob `name` if the block ends without an error."""
        ...

    def file(self, name: str) -> Path:
        """A local path of a published blob, to map or read at once; raises FileNotFoundError if there is none."""
        ...

    def open(self, name: str) -> pa.NativeFile:
        """A published blob, to read parts of it."""
        ...

    def has(self, name: str) -> bool:
        """Whether a blob is published."""
        ...

    def names(self) -> list[str]:
        """The published blobs directly in this exchange, sorted, without those in parts of it."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Give a published blob another name."""
        ...

    def delete(self, name: str = "") -> None:
        """Delete a blob, or a part with everything in it; without a name, everything. It may be missing."""
        ...

    def delete_drafts(self) -> None:
        """Delete what attempts left that were killed or given up; called when none is running."""
        ...

    def sub(self, name: str) -> Exchange:
        """A part of this exchange: its blob `x` is the blob `name/x` of this one."""
        ...

    def scratch(self) -> Path:
        """A local folder for unnamed files of this process, on the disk where blobs are written."""
        ...

    def free_bytes(self) -> int:
        """Free space on that disk."""
        ...

    def reachable(self, folder: Path, name: str) -> Exchange:
        """A local folder of files as an exchange for workers; copied to the part `name` if they cannot reach the folder."""
        ...

    def publish_draft(self, draft: Draft, name: str) -> None: ...

    def discard_draft(self, draft: Draft) -> None: ...


@dataclass(frozen=True)
class Draft:
    """A complete blob that only the attempt which wrote it knows, until the driver publishes it."""

    exchange: Exchange
    name: str
    attempt: str

    def publish(self, name: str | None = None) -> None:
        """Make the draft the blob of its name, or of another name in the same exchange."""
        self.exchange.publish_draft(self, name or self.name)

    def discard(self) -> None:
        self.exchange.discard_draft(self)


@dataclass(frozen=True)
class Blob:
    """The name of a blob in an exchange, whether it is written yet or not."""

    exchange: Exchange
    name: str

    def writing(self) -> Writing:
        return self.exchange.writing(self.name)

    def file(self) -> Path:
        return self.exchange.file(self.name)

    def open(self) -> pa.NativeFile:
        return self.exchange.open(self.name)

    def delete(self) -> None:
        self.exchange.delete(self.name)

    def with_suffix(self, suffix: str) -> Blob:
        return Blob(self.exchange, str(Path(self.name).with_suffix(suffix)))


# ------------------------------------------------------------------------------------------------------------ attempts


@dataclass
class Attempt:
    """One attempt at a task or call: its id, and the drafts it has completed."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    drafts: dict[tuple[str, str], Draft] = field(default_factory=dict)

    @property
    def draft_suffix(self) -> str:
        """The end of the names of all files and folders that belong to the attempt."""
        return f".draft-{self.id}"


_current: ContextVar[Attempt | None] = ContextVar("attempt", default=None)


@contextmanager
def attempt() -> Iterator[Attempt]:
    """Make every blob that is written in the block a draft of one attempt."""
    this = Attempt()
    token = _current.set(this)
    try:
        yield this
    except BaseException:
        for draft in this.drafts.values():
            draft.discard()
        raise
    finally:
        _current.reset(token)


@dataclass(frozen=True)
class Attempted:
    """A function that returns (result, drafts it wrote). Each call, also the repetition of one, is an attempt of its own."""

    function: Callable[..., Any]

    @property
    def __name__(self) -> str:
        return self.function.__name__

    def __call__(self, *arguments: Any) -> tuple[Any, list[Draft]]:
        with attempt() as this:
            return self.function(*arguments), list(this.drafts.values())


class Writing:
    """The context manager of `Exchange.writing`. Its draft can be published once it is complete."""

    def __init__(self, exchange: _Drafting, name: str) -> None:
        self._exchange, self._attempt = exchange, _current.get()
        self.draft = Draft(exchange, name, (self._attempt or Attempt()).id)
        self.path = exchange.draft_path(self.draft)

    def __enter__(self) -> Path:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return self.path

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is not None:
            self.path.unlink(missing_ok=True)
            return
        self._exchange.complete(self.draft, self.path)
        if self._attempt is None:
            self.draft.publish()
        else:
            self._attempt.drafts[str(self._exchange), self.draft.name] = self.draft


class _Drafting(Exchange, Protocol):
    """What `Writing` needs of an exchange."""

    def draft_path(self, draft: Draft) -> Path:
        """Where a draft is written."""
        ...

    def complete(self, draft: Draft, path: Path) -> None:
        """Put a draft where the driver can publish it."""
        ...


# ------------------------------------------------------------------------------------------------------------- a folder


@dataclass(frozen=True)
class FolderExchange:
    """An exchange in a folder that the driver and all workers share. Publishing is renaming; nothing is copied."""

    folder: Path

    def __str__(self) -> str:
        return str(self.folder)

    def writing(self, name: str) -> Writing:
        return Writing(self, name)

    def file(self, name: str) -> Path:
        return self._path(name)

    def open(self, name: str) -> pa.NativeFile:
        return pa.OSFile(str(self._path(name)))

    def has(self, name: str) -> bool:
        return self._path(name).is_file()

    def names(self) -> list[str]:
        if not self.folder.is_dir():
            return []
        return sorted(path.name for path in self.folder.iterdir() if not _DRAFT.search(path.name) and path.is_file())

    def rename(self, old: str, new: str) -> None:
        self._path(old).replace(self._path(new))

    def delete(self, name: str = "") -> None:
        path = self._path(name) if name else self.folder
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def delete_drafts(self) -> None:
        for path in [path for path in self.folder.rglob("*.draft-*") if _DRAFT.search(path.name)]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def sub(self, name: str) -> FolderExchange:
        return FolderExchange(self._path(name))

    def scratch(self) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder

    def free_bytes(self) -> int:
        return shutil.disk_usage(_existing(self.folder)).free

    def reachable(self, folder: Path, name: str) -> FolderExchange:
        return FolderExchange(folder)

    def draft_path(self, draft: Draft) -> Path:
        return self._path(f"{draft.name}.draft-{draft.attempt}")

    def complete(self, draft: Draft, path: Path) -> None:
        """The draft is where it has to be."""

    def publish_draft(self, draft: Draft, name: str) -> None:
        self.draft_path(draft).replace(self._path(name))

    def discard_draft(self, draft: Draft) -> None:
        self.draft_path(draft).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.folder / _checked(name)


# -------------------------------------------------------------------------------------------------------------- a store


class StoreExchange:
    """An exchange in an object store, for workers that share no folder with the driver.

        bands/4-000001.spill.draft-3f...      the bytes, uploaded by an attempt
        bands/4-000001.spill                  a small object with the name of the draft that was published

    A store cannot rename, so publishing writes the small object and copies nothing. A blob is downloaded once per process to
    the local folder of the process, which keeps the copies used last, up to `COPIES_BYTES`. A worker may be on another machine:
    its folder is below `$TAMIS_SCRATCH` there, or in the temporary folder.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None, scratch: Path | None = None) -> None:
        self.url, self.storage_options, self._scratch = url.rstrip("/"), dict(storage_options or {}), scratch
        self._fs, self._root = open_store(self.url.rstrip("/"), self.storage_options, SinkError)

    def __reduce__(self) -> tuple[object, ...]:
        return (StoreExchange, (self.url, self.storage_options))  # the scratch folder is that of this process

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoreExchange) and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __str__(self) -> str:
        return self.url

    def writing(self, name: str) -> Writing:
        return Writing(self, name)

    def file(self, name: str) -> Path:
        key = self._draft_key(name)
        return self._local.copy(key, lambda path: self._fs.get_file(key, str(path)))

    def open(self, name: str) -> pa.NativeFile:
        key = self._draft_key(name)
        if not self._local.has(key) and self._fs.size(key) > WHOLE_BYTES:
            return pa.PythonFile(self._fs.open(key, "rb", cache_type="readahead", block_size=2**20), mode="r")
        return pa.OSFile(str(self.file(name)))

    def has(self, name: str) -> bool:
        key = self._key(name)
        return key in _published() or bool(self._fs.exists(key))

    def names(self) -> list[str]:
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(self._root, detail=True)
        except FileNotFoundError:
            return []
        finally:
            self._fs.invalidate_cache()  # drivers and workers on other machines write too
        names = (item["name"].rpartition("/")[2] for item in found if item["type"] == "file")
        return sorted(name for name in names if name and not _DRAFT.search(name))

    def rename(self, old: str, new: str) -> None:
        self._publish(self._draft_key(old), new)
        _published().pop(self._key(old), None)
        self._fs.rm_file(self._key(old))

    def delete(self, name: str = "") -> None:
        """Delete the small object first: without it, the draft is not found, and removed with the other drafts."""
        key = self._key(name) if name else self._root
        _published().clear()
        self._fs.invalidate_cache()
        if not name or self._fs.isdir(key):
            with suppress(FileNotFoundError):
                self._fs.rm(key, recursive=True)
        elif self._fs.exists(key):
            draft = self._draft_key(name)
            _published().clear()
            self._fs.rm_file(key)
            with suppress(FileNotFoundError):
                self._fs.rm_file(draft)

    def delete_drafts(self) -> None:
        self._fs.invalidate_cache()
        found = self._fs.find(self._root)
        names = [key for key in found if not _DRAFT.search(key)]
        used = {content.decode() for content in (self._fs.cat(names) if names else {}).values()}
        unused = [key for key in found if _DRAFT.search(key) and key not in used]
        if unused:
            self._fs.rm(unused)

    def sub(self, name: str) -> StoreExchange:
        return StoreExchange(f"{self.url}/{_checked(name)}", self.storage_options, self._scratch)

    def scratch(self) -> Path:
        return self._local.folder

    def free_bytes(self) -> int:
        return shutil.disk_usage(_existing(scratch_root(self._scratch))).free

    def reachable(self, folder: Path, name: str) -> StoreExchange:
        target = self.sub(name)
        known = set(target.names())
        for file in sorted(folder.iterdir() if folder.is_dir() else ()):
            if file.is_file() and file.name not in known:
                with target.writing(file.name) as path:
                    shutil.copyfile(file, path)
        return target

    def draft_path(self, draft: Draft) -> Path:
        return self._local.folder / draft.attempt / draft.name.replace("/", "_")

    def complete(self, draft: Draft, path: Path) -> None:
        self._fs.put_file(str(path), self._key(f"{draft.name}.draft-{draft.attempt}"))
        path.unlink()

    def publish_draft(self, draft: Draft, name: str) -> None:
        self._publish(self._key(f"{draft.name}.draft-{draft.attempt}"), name)

    def discard_draft(self, draft: Draft) -> None:
        with suppress(FileNotFoundError):
            self._fs.rm_file(self._key(f"{draft.name}.draft-{draft.attempt}"))

    def _publish(self, draft_key: str, name: str) -> None:
        key = self._key(name)
        self._fs.pipe_file(key, draft_key.encode())
        _published()[key] = draft_key

    def _draft_key(self, name: str) -> str:
        """The object with the bytes of a blob."""
        key = self._key(name)
        if key not in _published():
            _published()[key] = self._fs.cat_file(key).decode()
        return _published()[key]

    def _key(self, name: str) -> str:
        return f"{self._root}/{_checked(name)}"

    @property
    def _local(self) -> _ProcessFolder:
        return _process_folder(scratch_root(self._scratch))


class _ProcessFolder:
    """The local folder of one process: unfinished drafts, and copies of blobs in an object store."""

    def __init__(self, root: Path) -> None:
        self.folder = root / f"{_PROCESS}{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._copies: dict[str, tuple[Path, int]] = {}
        self._bytes = 0
        for left in root.glob(f"{_PROCESS}*"):
            if not _is_running(int(left.name.removeprefix(_PROCESS).partition("-")[0])):
                shutil.rmtree(left, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)

    def has(self, key: str) -> bool:
        return key in self._copies

    def copy(self, key: str, fetch: Callable[[Path], object]) -> Path:
        """The copy of an object; those not used for longest are removed. A removed file that is still mapped stays readable."""
        if key in self._copies:
            self._copies[key] = self._copies.pop(key)  # now the last one used
            return self._copies[key][0]
        path = self.folder / uuid.uuid4().hex / key.rpartition("/")[2]
        path.parent.mkdir(parents=True)
        fetch(path)
        self._copies[key] = (path, path.stat().st_size)
        self._bytes += self._copies[key][1]
        while self._bytes > COPIES_BYTES and len(self._copies) > 1:
            oldest, size = self._copies.pop(next(iter(self._copies)))
            self._bytes -= size
            shutil.rmtree(oldest.parent, ignore_errors=True)
        return path


def _is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


_process_folders: dict[tuple[int, Path], _ProcessFolder] = {}
_known_names: dict[int, dict[str, str]] = {}


def _published() -> dict[str, str]:
    """What this process knows about published names: the object with their bytes.

    The driver changes it and runs no call meanwhile that reads these names, so what a worker knows stays true.
    """
    return _known_names.setdefault(os.getpid(), {})


def _process_folder(root: Path) -> _ProcessFolder:
    """The folder of this process below `root`; a forked process has one of its own."""
    key = (os.getpid(), root)
    if key not in _process_folders:
        _process_folders[key] = _ProcessFolder(root)
    return _process_folders[key]


def forget_names() -> None:
    """Look up published names again, because another driver may have published since."""
    _known_names.pop(os.getpid(), None)


def remove_local_copies(below: Path | None = None) -> None:
    """Remove what this process keeps of exchanges in object stores, at the end of a run or of a worker.

    With `below`, only what is in that folder: another thread of the process may still be running another run.
    """
    forget_names()
    mine = [key for key in list(_process_folders) if key[0] == os.getpid()]
    for key in [key for key in mine if below is None or key[1].is_relative_to(below)]:
        shutil.rmtree(_process_folders.pop(key).folder, ignore_errors=True)


def scratch_root(given: Path | None = None) -> Path:
    """Where a process keeps local files: the given folder, `$TAMIS_SCRATCH`, or the temporary folder."""
    return given or Path(os.environ.get("TAMIS_SCRATCH") or tempfile.gettempdir())


def _existing(folder: Path) -> Path:
    """The folder, or the one in which it will be created."""
    while not folder.exists():
        folder = folder.parent
    return folder


def _checked(name: str) -> str:
    """`name` if it does not lead out of the exchange."""
    if not name or name.startswith("/") or ".." in Path(name).parts:
        raise TamisError(f"{name!r} is not the name of a blob")
    return name
