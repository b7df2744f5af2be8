"""An output folder, on a local disk or in an object store.

Files appear atomically: on a local disk a file is written under another name, synced and renamed; an object store shows
an object only when its upload is complete.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tamis.errors import SinkError, TamisError, remote_failure
from tamis.operators import digest

INTERNAL = ".tamis"
"""The folder in an output folder that holds no data: ledger, report, failed and rejected rows."""

TABLE, LINES = ".table", ".rows"
"""Suffixes of Parquet files and of JSON lines in that folder. They differ from those of data, so that patterns such as
`**/*.parquet` match data only."""

CHUNK_BYTES = 2**20


class GuardedFileSystem:
    """An fsspec file system whose methods raise one clear error if the store cannot be reached or refuses access."""

    def __init__(self, system: Any, what: str, kind: type[TamisError]) -> None:
        self._system, self._what, self._kind = system, what, kind

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._system, name)

        def call(*arguments: Any, **options: Any) -> Any:
            try:
                return method(*arguments, **options)
            except Exception as error:
                known = remote_failure(error, self._what, self._kind)
                if known is None:
                    raise
                raise known from error

        return call


class Store:
    """A folder of named files. Names are relative, with `/` between parts, and cannot lead out of the folder."""

    def __init__(self, root: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self.root = root
        self.storage_options = dict(storage_options or {})
        self.local = "://" not in root or root.startswith("file://")
        if self.local:
            self.path = Path(root.removeprefix("file://")).absolute()
        else:
            import fsspec

            system, self._prefix = fsspec.core.url_to_fs(root.rstrip("/"), **self.storage_options)
            self._fs: Any = GuardedFileSystem(system, root, SinkError)

    def __reduce__(self) -> tuple[object, ...]:
        return (Store, (self.root, self.storage_options))

    def scratch(self) -> Path:
        """A local folder for unfinished files, the same for every run with this output."""
        if self.local:
            return self.path / INTERNAL / "tmp"
        return Path(tempfile.gettempdir()) / f"tamis-{digest(self.root)}"

    def work(self) -> Path:
        """A local folder for rows and facts that pass between stages."""
        return self.scratch().parent / "work" if self.local else self.scratch() / "work"

    def make(self) -> None:
        """Create the folder and its scratch space."""
        try:
            self.scratch().mkdir(parents=True, exist_ok=True)
            if self.local and not os.access(self.path, os.W_OK):
                raise PermissionError(13, "permission denied")
        except OSError as error:
            raise SinkError(
                f"cannot write to {self.root}: {error.strerror}", hint="choose another --output or fix its permissions"
            ) from error

    def names(self, under: str = "") -> list[str]:
        """The files and folders directly in a folder, sorted; [] if it does not exist."""
        if self.local:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                return sorted(path.name for path in self._local(under).iterdir())
            return []
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(self._remote(under), detail=False)
        except FileNotFoundError:
            return []
        return sorted({item.rstrip("/").rpartition("/")[2] for item in found} - {""})

    def size(self, name: str) -> int | None:
        """The size of a file in bytes, or None if it does not exist."""
        try:
            return self._local(name).stat().st_size if self.local else int(self._fs.size(self._remote(name)))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, name: str) -> bytes | None:
        try:
            return self._local(name).read_bytes() if self.local else self._fs.cat_file(self._remote(name))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def checksum(self, name: str) -> str:
        """The checksum of a file, read as a stream."""
        if self.local:
            return checksum_of(self._local(name))
        with self._fs.open(self._remote(name), "rb", cache_type="readahead") as file:
            return _checksum(iter(lambda: file.read(CHUNK_BYTES), b""))

    def write(self, name: str, data: bytes) -> None:
        """Write a small file atomically."""
        if not self.local:
            self._fs.pipe_file(self._remote(name), data)
            return
        temporary = self.scratch() / f"{digest(name)}.{os.getpid()}"
        temporary.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self.publish(temporary, name)

    def publish(self, file: Path, name: str) -> None:
        """Move a finished local file to its place."""
        if not self.local:
            self._fs.put_file(str(file), self._remote(name))
            file.unlink()
            return
        target = self._local(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.replace(target)
        sync_folder(target.parent)

    def rename(self, old: str, new: str) -> None:
        if self.local:
            self._inside(old).replace(self._inside(new))
        else:
            self._fs.mv(self._remote(old), self._remote(new))

    def fetch(self, name: str, target: Path) -> None:
        """Copy a file to a local path."""
        if self.local:
            shutil.copyfile(self._local(name), target)
        else:
            self._fs.get_file(self._remote(name), str(target))

    def link(self, source: Store, name: str) -> None:
        """Let this folder have a file of another local folder, as a second link to it or, on another disk, as a copy."""
        file = self.scratch() / f"{digest(name)}.{os.getpid()}"
        file.unlink(missing_ok=True)
        try:
            file.hardlink_to(source._local(name))
        except FileNotFoundError:
            return
        except OSError:
            shutil.copyfile(source._local(name), file)
        self.publish(file, name)

    def local_copy(self, name: str, target: Path) -> Path:
        """A local path at which a file can be read: its own, or `target`, to which it is downloaded."""
        if self.local:
            return self._local(name)
        self.fetch(name, target)
        return target

    def remove(self, name: str) -> None:
        """Remove a file, or a link but not what it points to. Folders and missing files are left as they are."""
        if self.local:
            path = self._inside(name)
            if path.is_symlink() or not path.is_dir():
                path.unlink(missing_ok=True)
            return
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            self._fs.rm_file(self._remote(_below(name)))

    def remove_folder(self, name: str) -> None:
        """Remove a folder of this store and everything in it, or a file."""
        if not self.local:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm(self._remote(_below(name)), recursive=True)
            return
        path = self._inside(name)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def walk(self, under: str = "") -> Iterator[str]:
        """The names of all files in a folder and the folders in it."""
        for name in self.names(under):
            full = f"{under}/{name}" if under else name
            if self._is_folder(full):
                yield from self.walk(full)
            else:
                yield full

    def _is_folder(self, name: str) -> bool:
        if self.local:
            path = self._local(name)
            return path.is_dir() and not path.is_symlink()
        return bool(self._fs.isdir(self._remote(name)))

    def _local(self, name: str) -> Path:
        return self.path / safe_name(name)

    def _inside(self, name: str) -> Path:
        """The path of a file that is changed: below the folder itself, not behind a link."""
        path = self._local(_below(name))
        if not path.parent.resolve().is_relative_to(self.path.resolve()):
            raise SinkError(
                f"{name} in {self.root} is behind a link that leads out of the folder", hint="remove the link"
            )
        return path

    def _remote(self, name: str) -> str:
        return f"{self._prefix}/{safe_name(name)}".rstrip("/")


def safe_name(name: str) -> str:
    """`name` if it does not lead out of the folder it is relative to."""
    if name.startswith(("/", "\\")) or ".." in Path(name).parts or "\0" in name:
        raise TamisError(f"{name!r} is outside the output folder")
    return name


def _below(name: str) -> str:
    """`name` if it is not the folder itself."""
    if not Path(name).parts:
        raise TamisError(f"{name!r} is the output folder itself")
    return name


def checksum_of(file: Path) -> str:
    """CRC-32 of the bytes of a local file: 4 GB/s, and detects any damage of up to 32 consecutive bits."""
    with file.open("rb") as opened:
        return _checksum(iter(lambda: opened.read(CHUNK_BYTES), b""))


def _checksum(chunks: Iterable[bytes]) -> str:
    value = 0
    for chunk in chunks:
        value = zlib.crc32(chunk, value)
    return f"{value:08x}"


def text_checksum(data: bytes) -> str:
    return _checksum([data])


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
