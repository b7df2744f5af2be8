"""Open what media columns refer to: files on disks and in stores, byte ranges, and members of archives. See `media.py`."""

from __future__ import annotations

import functools
import io
import os
import posixpath
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any
from urllib.parse import unquote

from tamis.errors import MediaError, is_shortage
from tamis.media_paths import MediaAccess, Reference, folder_of, is_chained, is_remote, joined
from tamis.segments import check_times

MAX_BYTES = 2**31 - 2
"""Arrow counts the bytes of a binary column in 32 bits."""

LARGE_BYTES = 16_000_000
"""Larger members of zip archives are decompressed while they are read, and sinks copy larger files in pieces."""

PIECE_BYTES = 4_000_000
"""How much of a large file is read at a time."""

_INDEXED_ARCHIVES = 16


class Files:
    """Reads references. The file read last stays open, because neighbouring rows often refer to the same archive."""

    def __init__(self, access: MediaAccess) -> None:
        self.access = access
        self._path: str | None = None
        self._file: IO[bytes] | None = None
        self._zip: zipfile.ZipFile | None = None
        self._roots = functools.cache(self._local_roots)
        self._real = functools.lru_cache(maxsize=64)(os.path.realpath)

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._path = self._file = self._zip = None

    def read(self, path: str, place: str) -> bytes:
        """The bytes that a reference in a row of `place` leads to."""
        reference = Reference.parse(path)
        full = self.allowed(reference.file, place, path)
        with explained(path):
            file = self.opened(full)
            if reference.start is not None and reference.length is not None:
                return _range(file, reference.start, reference.length)
            if reference.member is not None:
                return self._member(file, full, reference)
            return _range(file, 0, None)

    def part(self, reference: Reference, place: str, path: str) -> IO[bytes]:
        """What a reference leads to, as a file; valid until the next call, or until this object is closed."""
        full = self.allowed(reference.file, place, path)
        file = self.opened(full)
        if reference.start is not None and reference.length is not None:
            return Window(file, reference.start, reference.length).buffered()
        if reference.member is None:
            file.seek(0)
            return file
        if _is_zip(reference):
            archive = self._archive(file)
            info = _zip_info(archive, reference.member)
            if info.file_size > LARGE_BYTES:
                return archive.open(info)  # going back in it begins again, but nothing is held
            return io.BytesIO(_zip_member(archive, info))
        return Window(file, *self.member_range(file, full, reference.member)).buffered()

    def size(self, reference: Reference, place: str, path: str) -> int:
        """How many bytes a reference leads to."""
        if reference.length is not None:
            return reference.length
        full = self.allowed(reference.file, place, path)
        file = self.opened(full)
        if reference.member is None:
            return file.seek(0, os.SEEK_END)
        if _is_zip(reference):
            return _zip_info(self._archive(file), reference.member).file_size
        return self.member_range(file, full, reference.member)[1]

    def allowed(self, file: str, place: str, path: str) -> str:
        """The full path of a file that a reference may reach."""
        check_times(path)
        if "\0" in file or is_chained(file, "" if posixpath.isabs(file) else place):
            raise MediaError(f"`{path!r:.200}` is not a path to a file")
        if is_remote(file):
            self._check_url(file, place, path)
            return file
        if not posixpath.isabs(file.removeprefix("file://")):
            found = joined(file, place)
            if found is None:
                raise _outside(path, place)
            if is_remote(found):
                return found
            file = found
        file = file.removeprefix("file://")
        real = self._real(file)
        if not any(_is_in(real, root) for root in self._roots(place)):
            named = os.path.abspath(file)  # noqa: PTH100
            raise _leads_out(path, real) if _is_in(named, folder_of(place)) else _outside(path, place)
        return real

    def _check_url(self, url: str, place: str, path: str) -> None:
        folder = [f"{folder_of(place)}/"] if is_remote(place) else []
        steps = unquote(unquote(url)).replace("\\", "/").split("/")
        for root in (*folder, *self.access.roots):
            whole = root if root.endswith("/") else f"{root}/"
            if is_remote(root) and url.startswith(whole) and ".." not in steps:
                return
        raise _outside(path, place)

    def _local_roots(self, place: str) -> list[str]:
        folders = [] if is_remote(place) else [folder_of(place)]
        folders += [root.removeprefix("file://") for root in self.access.roots if not is_remote(root)]
        return [os.path.realpath(folder) for folder in folders]

    def opened(self, path: str) -> IO[bytes]:
        if self._path != path or self._file is None:
            self._close()
            self._file = _open_remote(path, self.access) if is_remote(path) else _open_local(path)
            self._path = path
        return self._file

    def _member(self, file: IO[bytes], path: str, reference: Reference) -> bytes:
        assert reference.member is not None
        if _is_zip(reference):
            archive = self._archive(file)
            return _zip_member(archive, _zip_info(archive, reference.member))
        return _range(file, *self.member_range(file, path, reference.member))

    def _archive(self, file: IO[bytes]) -> zipfile.ZipFile:
        if self._zip is None:
            self._zip = zipfile.ZipFile(file)
        return self._zip

    def members(self, file: IO[bytes], path: str) -> dict[str, tuple[int, int]]:
        size = file.seek(0, os.SEEK_END)
        stamp = os.fstat(file.fileno()).st_mtime_ns if not is_remote(path) else 0
        return _tar_index(path, size, stamp, _Unhashed(file))

    def member_range(self, file: IO[bytes], path: str, member: str) -> tuple[int, int]:
        index = self.members(file, path)
        if member not in index:
            raise MediaError(f"{path} has no member {member!r}")
        return index[member]


def _is_zip(reference: Reference) -> bool:
    """By the name that was given: a link may lead to a file without an extension, as in the cache of a hub."""
    return reference.file.lower().endswith(".zip")


class Window(io.RawIOBase):
    """A range of bytes of a file, as a file."""

    def __init__(self, file: IO[bytes], start: int, length: int) -> None:
        size = file.seek(0, os.SEEK_END)
        if start + length > size:
            raise MediaError(f"bytes {start:,} to {start + length:,} are beyond its end at {size:,}")
        self._file, self._start, self._length, self._position = file, start, length, 0

    def buffered(self) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._length}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, target: Any) -> int:
        left = max(0, self._length - self._position)
        self._file.seek(self._start + self._position)
        data = self._file.read(min(len(target), left))
        target[: len(data)] = data
        self._position += len(data)
        return len(data)


def _open_local(path: str) -> IO[bytes]:
    # Not blocking, so that a named pipe does not stop the worker before its kind is known.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise MediaError(f"{path} is not a regular file")
    return os.fdopen(descriptor, "rb")


def _open_remote(url: str, access: MediaAccess) -> IO[bytes]:
    from fsspec.core import url_to_fs  # slow to import, and local files do not need it

    system, path = url_to_fs(url, **access.storage_options)
    opened: IO[bytes] = system.open(path, "rb", block_size=PIECE_BYTES)  # what is read ahead; 50 MB on S3 by default
    return opened


def _range(file: IO[bytes], start: int, length: int | None) -> bytes:
    size = file.seek(0, os.SEEK_END)
    if length is None:
        length = size - start
    if length > MAX_BYTES:
        raise MediaError(f"it has {length:,} bytes, and a value can hold {MAX_BYTES:,}")
    if start + length > size:
        raise MediaError(f"bytes {start:,} to {start + length:,} are beyond its end at {size:,}")
    file.seek(start)
    data = file.read(length)
    if len(data) < length:
        raise MediaError(f"it ends after {len(data):,} of {length:,} bytes")
    return data


def _zip_info(archive: zipfile.ZipFile, member: str) -> zipfile.ZipInfo:
    try:
        info = archive.getinfo(member)
    except KeyError:
        raise MediaError(f"the archive has no member {member!r}") from None
    if info.is_dir() or info.file_size > MAX_BYTES:
        raise MediaError(f"member {member!r} is a folder, or larger than {MAX_BYTES:,} bytes")
    return info


def _zip_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    with archive.open(info) as opened:
        data = opened.read(info.file_size + 1)  # an entry may lie about its size
    if len(data) != info.file_size:
        raise MediaError(f"member {info.filename!r} has another size than the archive says")
    return data


class _Unhashed:
    """An argument that does not count for a cache."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Unhashed)


@functools.lru_cache(maxsize=_INDEXED_ARCHIVES)
def _tar_index(path: str, size: int, stamp: int, opened: _Unhashed) -> dict[str, tuple[int, int]]:
    """(start, length) of the regular files in a tar archive; the last of several with one name counts."""
    opened.file.seek(0)
    with tarfile.open(fileobj=opened.file, mode="r:") as archive:
        return {
            member.name.removeprefix("./"): (member.offset_data, member.size)
            for member in archive
            if member.isreg() and not member.issparse()
        }


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _leads_out(path: str, real: str) -> MediaError:
    folder = os.path.dirname(real)  # noqa: PTH120
    return MediaError(
        f"`{path:.200}` is a link, or in a linked folder, and leads out of its folder, to {real:.200}; "
        f'allow that folder with media_roots=["{folder:.200}"] of the reader'
    )


def _outside(path: str, place: str) -> MediaError:
    return MediaError(
        f"`{path:.200}` is outside the folder of its source file, {folder_of(place)}; "
        "allow other folders and URLs with media_roots=[...] of the reader"
    )


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Turn errors of reading a reference into one that names it."""
    try:
        yield
    except MediaError as error:
        if error.message.startswith(f"`{path:.200}`"):
            raise
        raise MediaError(f"`{path:.200}` cannot be read: {error.message}") from error
    except (OSError, EOFError, ValueError, RuntimeError, NotImplementedError, zlib.error) as error:
        if is_shortage(error):
            raise
        raise MediaError(f"`{path:.200}` cannot be read: {_why(error)}") from error
    except (tarfile.TarError, zipfile.BadZipFile) as error:
        raise MediaError(f"`{path:.200}` cannot be read: the archive is damaged ({error})") from error


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
