"""An output folder, on a local disk or in an object store.

Files appear atomically: on a local disk a file is written under another name, synced and renamed; an object store shows
an object only when its upload is complete.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from stat import S_ISDIR
from typing import Any

import psutil

from tamis.errors import ParameterError, SinkError, TamisError
from tamis.operators import digest
from tamis.remote import clock_ahead_s, is_remote, open_store, put_if, read_tagged, writes_conditionally

INTERNAL = ".tamis"
"""The folder in an output folder that holds no data: ledger, report, failed and rejected rows."""

TABLE, LINES = ".table", ".rows"
"""Suffixes of Parquet files and of JSON lines in that folder. They differ from those of data, so that patterns such as
`**/*.parquet` match data only."""

CHUNK_BYTES = 2**20

REMOVALS = 20
"""How often the removal of a folder is repeated while others create files in it."""

_FOLDER = re.compile(r"part-\d{6,}(-\d{4})?(\.moving)?")


class Store:
    """A folder of named files. Names are relative, with `/` between parts, and cannot lead out of the folder."""

    def __init__(
        self,
        root: str,
        storage_options: Mapping[str, Any] | None = None,
        scratch: str | Path | None = None,
        part: str = "",
    ) -> None:
        """`part` names one of several runs that write to the folder at the same time; each has unfinished files of its own."""
        self.root, self.part = root, part
        self._scratch = Path(scratch).absolute() if scratch is not None else None
        self.storage_options = dict(storage_options or {})
        self._conditional: bool | None = None
        self.local = not is_remote(root)
        if self.local:
            self.path = Path(root.removeprefix("file://")).absolute()
        else:
            self._fs, self._prefix = open_store(root.rstrip("/"), self.storage_options, SinkError)

    def __reduce__(self) -> tuple[object, ...]:
        return (Store, (self.root, self.storage_options, self._scratch, self.part))

    @property
    def work_name(self) -> str:
        """The name of the folder of this output where several outputs have their intermediate files."""
        return f"tamis-{digest(str(self.path) if self.local else self.root)}"

    def scratch(self) -> Path:
        """A local folder for unfinished files, the same for every run with this output and scratch folder."""
        if self.local:
            return self.path / INTERNAL / "tmp" / self.part  # on the disk of the output, because files are renamed
        return self._own_scratch() / self.part

    @property
    def attempts(self) -> str:
        """The folder in an object store with files that attempts uploaded, before the driver gives them their names."""
        return f"{INTERNAL}/attempts/{self.part}".rstrip("/")

    def work(self) -> Path:
        """A local folder for rows and facts that pass between stages."""
        if self.local and self._scratch is None:
            return self.path / INTERNAL / "work"
        return self._own_scratch() / self.part / "work"

    def default_scratch(self) -> Path | None:
        """The temporary folder, if it is used because no other scratch folder was given."""
        return None if self.local or self._scratch is not None else Path(tempfile.gettempdir())

    def _own_scratch(self) -> Path:
        return (self._scratch or Path(tempfile.gettempdir())) / self.work_name

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
        finally:
            self._fs.invalidate_cache()  # other machines write too
        return sorted({item.rstrip("/").rpartition("/")[2] for item in found} - {""})

    def size(self, name: str) -> int | None:
        """The size of a file in bytes, or that of all files in a local folder; None if it does not exist."""
        try:
            if not self.local:
                return int(self._fs.size(self._remote(name)))
            status = self._local(name).stat()
            return sum(map(_size, _files_of(self._local(name)))) if S_ISDIR(status.st_mode) else status.st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, name: str) -> bytes | None:
        try:
            return self._local(name).read_bytes() if self.local else self._fs.cat_file(self._remote(name))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read_all(self, names: Sequence[str]) -> list[bytes]:
        """The contents of files that exist, read at the same time from an object store."""
        if self.local or not names:
            return [self._local(name).read_bytes() for name in names]
        keys = [self._remote(name) for name in names]
        found = self._fs.cat(keys)
        return [found[key] for key in keys]

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

    def upload(self, file: Path, name: str) -> None:
        """Copy a local file to its place in an object store."""
        self._fs.put_file(str(file), self._remote(name))

    def publish(self, file: Path, name: str) -> None:
        """Move a finished local file, or a folder, to its place."""
        if not self.local:
            self.upload(file, name)
            file.unlink()
            return
        target = self._local(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        file.replace(target)
        sync_folder(target.parent)

    # ----------------------------------------------------------------------------- conditional writes of small objects

    def writes_conditionally(self) -> bool:
        """Whether `create` and `replace` are atomic: the store knows conditional writes and its server heeds them."""
        if self._conditional is None:
            key = f"{INTERNAL}/conditional-{uuid.uuid4().hex}"
            self._conditional = not self.local and writes_conditionally(self._fs, self._remote(key))
        return self._conditional

    def create(self, name: str, data: bytes) -> str | None:
        """Write an object if it does not exist; returns its tag, or None if it does."""
        return put_if(self._fs, self._remote(name), data, IfNoneMatch="*")

    def replace(self, name: str, data: bytes, tag: str) -> str | None:
        """Write an object if it still has a tag; returns its new tag, or None if it has another one."""
        return put_if(self._fs, self._remote(name), data, IfMatch=tag)

    def read_tagged(self, name: str) -> tuple[bytes, str] | None:
        """(content, tag) of an object, or None if it does not exist."""
        return read_tagged(self._fs, self._remote(name))

    def clock_ahead_s(self) -> float:
        """How far the clock of an object store is ahead of the one of this machine; 0 if the store does not say."""
        return clock_ahead_s(self._fs, self._remote(""))

    # ----------------------------------------------------------------------------------------------------------- names

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

    def remove_shard(self, name: str) -> None:
        """Remove a file of rows, or a folder of such files, which has the name of a partition without a suffix."""
        (self.remove_folder if _FOLDER.fullmatch(name) else self.remove)(name)

    def remove_folder(self, name: str) -> None:
        """Remove a folder of this store and everything in it, or a file."""
        if not self.local:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm(self._remote(_below(name)), recursive=True)
            return
        path = self._inside(name)
        if path.is_dir() and not path.is_symlink():
            _remove_tree(path)
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


def _remove_tree(folder: Path) -> None:
    """Remove a folder, also while another process creates or removes a file in it: a shard that starts, and then gives up."""
    for last in (*[False] * REMOVALS, True):
        try:
            shutil.rmtree(folder)
            return
        except FileNotFoundError:
            if not folder.exists():
                return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or last:
                raise


def checksum_of(file: Path) -> str:
    """CRC-32 of the bytes of a local file: 4 GB/s, and detects any damage of up to 32 consecutive bits.

    For a folder, that of the names and checksums of its files.
    """
    if file.is_dir():
        return _checksum(f"{each.relative_to(file)}\0{checksum_of(each)}\n".encode() for each in _files_of(file))
    with file.open("rb") as opened:
        return _checksum(iter(lambda: opened.read(CHUNK_BYTES), b""))


def _files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _size(file: Path) -> int:
    return file.stat().st_size


def _checksum(chunks: Iterable[bytes]) -> str:
    value = 0
    for chunk in chunks:
        value = zlib.crc32(chunk, value)
    return f"{value:08x}"


def make_scratch(folder: str | Path) -> Path:
    """Create a folder for scratch files, or raise an error that says why that is not possible."""
    path = Path(folder).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError(13, "permission denied")
    except OSError as error:
        raise ParameterError(
            f"cannot write to the scratch folder {folder}: {error.strerror}", hint="name a folder on a local disk"
        ) from error
    return path


def scratch_notes(store: Store) -> list[str]:
    """A note if intermediate files are kept in memory, because the temporary folder is."""
    folder = store.default_scratch()
    if folder is None or not _in_memory(folder):
        return []
    return [f"intermediate files are in {folder}, which is in memory; --scratch DIR names a folder on a disk"]


def _in_memory(folder: Path) -> bool:
    """Whether a folder is on a file system without a disk."""
    kinds = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    real = folder.resolve()
    return next((kinds[place] for place in (real, *real.parents) if place in kinds), "") in ("tmpfs", "ramfs")


def link_or_copy(file: Path, target: Path) -> None:
    """Hard-link a file; copy it if the file system does not allow links, or if the target is on another one."""
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)


@contextlib.contextmanager
def writing(file: str | Path) -> Iterator[Path]:
    """The path of a file to write in the block, in a folder that exists; what the system refuses is an error with a hint."""
    path = Path(file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        yield path
    except OSError as error:
        raise SinkError(
            f"{path} cannot be written: {error.strerror or error}", hint="choose another file, or fix its permissions"
        ) from error


def check_writable(file: str | Path) -> None:
    """Raise now if a file that will be written after a long computation cannot be."""
    with writing(file) as path:
        existed = path.exists()
        path.open("ab").close()
        if not existed:
            path.unlink()


def text_checksum(data: bytes) -> str:
    return _checksum([data])


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
