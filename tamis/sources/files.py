"""The files a source reads: from paths, folders, globs and lists of paths, local or on any fsspec file system.

"crawl/*.jsonl.zst", "s3://bucket/raw/", "@files.txt"
       |
       |  list_files     one listing per folder, no request per file
       v
File(path, size, stamp)  in the order of the arguments, each argument's files in string order
       |
       |  fingerprint    size, time or ETag, and a hash of head and tail: part of a partition's identity
       v
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeAlias

from tamis.errors import DamagedFile, SourceError, did_you_mean
from tamis.formats import FORMATS, format_of, media_kind
from tamis.remote import open_store
from tamis.sources import hub
from tamis.sources.listing import listed_once

Paths: TypeAlias = str | Path | Sequence[str | Path]
Options: TypeAlias = Mapping[str, Any] | None

NOTES = frozenset({"readme", "license", "licence", "notice", "changelog", "citation", "authors"})
"""Names, without extension, of text files that describe the data beside them."""

_EDGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class File:
    """An input file, as listed."""

    path: str
    size: int
    stamp: str
    """Modification time in nanoseconds or, in an object store, the ETag or an equivalent."""


# ---------------------------------------------------------------------------------------------------- names and formats


def detect_format(paths: Paths, storage_options: Options = None) -> str:
    """The format of all files in `paths`, by its name in `FORMATS`.

    Images, sounds, videos and documents beside tables belong to the rows of these, but those beside a tar archive do not, since
    it holds its own. What img2dataset writes beside an archive belongs to it: `00000.parquet` and `00000_stats.json` beside
    `00000.tar`. Beside other data, `README.md` and the like are not data, and text files are captions or notes if there are at
    least as many images, sounds or videos.
    """
    listed = list_files(paths, None, storage_options)
    files = [file for file in listed if not _is_note(file.path)] or listed
    others = [file for file in files if format_of(file.path) != "text"]
    if len(files) - len(others) <= sum(media_kind(file.path) is not None for file in others):
        files = others
    found = sorted({format_of(file.path) or "" for file in files})
    tables = [name for name in found if name and not (FORMATS[name].is_media or FORMATS[name].is_document)]
    if tables != ["tar"]:
        found = tables or found
    if "tar" in found and len(found) > 1 and _is_beside_archives(files):
        return "tar"
    if found == [""] or not found:
        kinds = _extensions(file.path for file in files)
        raise SourceError(
            f"the format of {_shown(paths)} cannot be inferred from the file names ({kinds})",
            hint="known extensions: " + ", ".join(suffix for form in FORMATS.values() for suffix in form.suffixes),
        )
    found = [name for name in found if name]
    if len(found) > 1:
        most = max(found, key=[format_of(file.path) for file in files].count)
        raise SourceError(
            f"{_shown(paths)} contains files of several formats: {', '.join(found)}",
            hint=f"select the files of one format with a glob, for example *{FORMATS[most].suffixes[0]}",
        )
    return found[0]


def _is_note(path: str) -> bool:
    """Whether a file describes the data beside it."""
    return format_of(path) == "text" and PurePosixPath(path).stem.lower() in NOTES


def _is_beside_archives(files: Sequence[File]) -> bool:
    """Whether each table has the name of a tar archive in its folder, as img2dataset names them."""
    stems = {file.path.removesuffix(".tar") for file in files if format_of(file.path) == "tar"}
    others = [file.path for file in files if format_of(file.path) not in (None, "tar")]
    return all(re.sub(r"(_stats)?\.[^./]+$", "", path) in stems for path in others)


def _extensions(paths: Iterable[str]) -> str:
    counts: dict[str, int] = {}
    for path in paths:
        name = PurePosixPath(path).name
        kind = "".join(PurePosixPath(name).suffixes[-2:]) or "no extension"
        counts[kind] = counts.get(kind, 0) + 1
    shown = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:6]
    return ", ".join(f"{count} x {kind}" for kind, count in shown) or "no files"


def _shown(paths: Paths) -> str:
    if isinstance(paths, (str, Path)):
        return str(paths)
    shown = ", ".join(map(str, paths[:3]))
    return shown + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


# ------------------------------------------------------------------------------------------------------------- listing


def list_files(paths: Paths, format: str | None, storage_options: Options = None) -> list[File]:
    """The files of `format` in `paths`. A file given by its path is read whatever its extension.

    In folders and globs, names that begin with `_` or `.` are skipped, so that the output of a run, which keeps its
    records in `.tamis/`, can be read back.
    """
    arguments = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if not arguments:
        raise SourceError("no path was given", hint='file_paths="crawl/*.jsonl", or a list of paths')
    files: list[File] = []
    for argument in arguments:
        files.extend(_expand(str(argument), format, storage_options))
    seen: set[str] = set()
    for file in files:
        if not _is_text(file.path):
            raise SourceError(
                f"the name of {file.path.encode('utf-8', 'surrogateescape')!r} is not UTF-8",
                hint="rename the file, or exclude it with a glob",
            )
        name = _full_name(file.path)
        if name in seen:
            raise SourceError(
                f"{file.path} is listed twice",
                hint="its rows would be read twice; make sure that each file matches only one path",
            )
        seen.add(name)
    return files


@functools.lru_cache(maxsize=64)
def named_places(paths: tuple[str, ...], working_folder: str) -> tuple[str, ...]:
    """What the user allows references and links to reach by naming it as input: folders, and files that are links.

    The copy of a repository of the Hub is one of these folders: names in it are links to files elsewhere in it.
    """
    found = []
    for path in paths:
        if path.startswith(hub.PREFIX):
            found += [str(folder)] if (folder := hub.folder_in_cache(path)) is not None else []
        elif is_local(path) and not path.startswith("@"):
            full = os.path.join(working_folder, local_path(path))  # noqa: PTH118
            root = _glob_root(full) if is_glob(full) and not os.path.lexists(full) else full
            found += [root] if os.path.isdir(root) or os.path.islink(root) else []  # noqa: PTH112, PTH114
    return tuple(found)


def _is_text(path: str) -> bool:
    """Whether a name can be written: names of local files may be any bytes."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def leads_to(paths: Paths, path: str, format: str) -> bool:
    """Whether `list_files` would include a file of this name if it existed."""
    name = _real_name(path)
    for argument in map(str, [paths] if isinstance(paths, (str, Path)) else paths):
        whole = _real_name(argument)
        if argument.startswith("@"):
            continue  # a list of paths is written by hand
        if is_glob(argument) and not os.path.isdir(whole):  # noqa: PTH112
            root, found = _glob_root(whole), glob_matcher(whole)(name)
        else:
            root, found = whole, name.startswith(f"{whole}/") and format_of(name) == format
        hidden = any(part.startswith(("_", ".")) for part in name[len(root) :].split("/") if part)
        if found and not hidden:
            return True
    return False


def first_within(files: Iterable[File], folder: str) -> str | None:
    """The first of the files that is in a folder or below it."""
    outer, inner = _real_name(folder) + "/", functools.cache(_real_name)
    return next((file.path for file in files if f"{inner(posixpath.dirname(file.path))}/".startswith(outer)), None)


def _full_name(path: str) -> str:
    return os.path.abspath(local_path(path)) if is_local(path) else path.rstrip("/")  # noqa: PTH100


def _real_name(path: str) -> str:
    """The full name with links resolved; names that do not exist, and patterns, are allowed."""
    return os.path.realpath(local_path(path)) if is_local(path) else path.rstrip("/")


def _expand(argument: str, format: str | None, options: Options) -> list[File]:
    if argument.startswith("@"):
        return _manifest(argument[1:], format, options)
    try:
        found, is_folder = _listed(argument, options)
    except PermissionError as error:
        where = error.filename or argument
        raise _not_allowed(str(where)) from error
    except NotADirectoryError as error:
        raise SourceError(f"a parent of {argument} is not a folder") from error
    if is_folder:
        fitting = [file for file in found if format_of(file.path)] if format is None else _of_format(found, format)
        if not fitting:
            raise _nothing_fits(argument, found, format)
        found = fitting
    return sorted(found, key=lambda file: file.path)


def _listed(argument: str, options: Options) -> tuple[list[File], bool]:
    """The files that a path leads to, and whether it is a folder."""
    if argument.startswith(hub.PREFIX):
        expand: Callable[[str], tuple[list[File], bool]] = functools.partial(_expand_hub, options=options)
    else:
        expand = _expand_local if is_local(argument) else functools.partial(_expand_remote, options=options)
    return listed_once((argument, os.getcwd(), repr(options)), lambda: expand(argument))  # noqa: PTH109


def _of_format(files: list[File], format: str) -> list[File]:
    return [file for file in files if format_of(file.path) == format]


def _nothing_fits(argument: str, found: list[File], format: str | None) -> SourceError:
    wanted = f"files with the suffix {', '.join(FORMATS[format].suffixes)}" if format else "files in a known format"
    others = sorted({format_of(file.path) or "" for file in found} - {""})
    if not found:
        hint = "the folder is empty; names that begin with _ or . are skipped"
    elif others:
        documents = (
            format is not None and FORMATS[format].is_document
        )  # for which a tar file is an archive, not a shard
        readers = {"archive_reader" if documents and name == "tar" else FORMATS[name].reader for name in others}
        hint = f"read it with {' or '.join(sorted(readers))}"
    else:
        hint = 'to read files with another extension, give their paths or a glob: file_paths="folder/*.dump"'
    kinds = _extensions(file.path for file in found)
    return SourceError(f"{argument} has no {wanted} (found: {kinds})", hint=hint)


def _manifest(path: str, format: str | None, options: Options) -> list[File]:
    try:
        with open_file(path, options) as file:
            lines = file.read().decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise SourceError(f"the list of paths {path} is not UTF-8 text") from error
    except DamagedFile as error:
        raise SourceError(f"the list of paths cannot be read: {error.message}") from error
    folder = path.rpartition("/")[0] if not is_local(path) else str(Path(local_path(path)).parent)
    files: list[File] = []
    for line in lines:
        name = line.strip()
        if not name or name.startswith("#"):
            continue
        absolute = "://" in name or Path(name).is_absolute()
        files.extend(_expand(name if absolute else f"{folder}/{name}", format, options))
    if not files:
        raise SourceError(f"the list of paths {path} is empty", hint="one path per line; # begins a comment")
    return files


# -- local folders: one scandir per folder


def is_local(path: str) -> bool:
    return "://" not in path or path.startswith(("file://", "local://"))


def local_path(path: str) -> str:
    path = re.sub(r"^(file|local)://", "", path)
    return os.path.expanduser(path) if path.startswith("~") else path  # noqa: PTH111


def _expand_local(argument: str) -> tuple[list[File], bool]:
    path = re.sub(r"^(\./+)+(?=.)", "", local_path(argument))
    if os.path.isdir(path):  # noqa: PTH112  20,000 Path objects are slow
        return list(_walk(path)), True
    if os.path.exists(path):  # noqa: PTH110
        status = os.stat(path)  # noqa: PTH116
        return [File(path, status.st_size, str(status.st_mtime_ns))], False
    if not is_glob(path):
        raise _missing(path)
    root = _glob_root(path)
    if not os.path.isdir(root or "."):  # noqa: PTH112
        raise _missing(root)
    matches = glob_matcher(path)
    deep = "/" in path[len(root) :].strip("/") or "**" in path
    found = [file for file in _walk(root or ".", deep) if matches(file.path)]
    if not found:
        raise SourceError(f"no file matches {argument}", hint="* matches within a folder, ** across folders")
    return found, False


def _walk(folder: str, deep: bool = True) -> Iterator[File]:
    prefix = "" if folder == "." else folder.rstrip("/") + "/"
    folders = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(("_", ".")):
                continue
            if entry.is_dir():
                if entry.is_symlink() and f"{os.path.realpath(folder)}/".startswith(f"{os.path.realpath(entry.path)}/"):
                    raise SourceError(
                        f"{entry.path} is a link to a folder that it is in, whose files would be read again and again",
                        hint="remove the link, or exclude it with a glob",
                    )
                folders.append(entry.name)
            else:
                try:
                    status = entry.stat()
                except FileNotFoundError:  # a link to nothing; the reader reports it
                    yield File(prefix + entry.name, 0, "")
                else:
                    yield File(prefix + entry.name, status.st_size, str(status.st_mtime_ns))
    if deep:
        for name in folders:
            yield from _walk(prefix + name)


def _not_allowed(path: str) -> DamagedFile:
    return DamagedFile(f"cannot read {path}: permission denied", hint="check its owner and mode, or your credentials")


def _disappeared(path: str) -> DamagedFile:
    return DamagedFile(f"{path} does not exist", hint="it was moved or deleted after the files were listed")


def _missing(path: str) -> SourceError:
    """The error for a path that does not exist, with a similar one that does."""
    parent = Path(path).parent
    if not parent.is_dir():
        return SourceError(f"{path} does not exist", hint=f"the folder {parent} does not exist either")
    near = did_you_mean(Path(path).name, _similar(path, [entry.name for entry in parent.iterdir()]))
    where = f"the current folder ({Path.cwd()})" if parent == Path() else str(parent)
    return SourceError(f"{path} does not exist", hint=near or f"nothing in {where} has a similar name")


def _similar(path: str, names: Sequence[str]) -> list[str]:
    """The names that are similar without their endings, since nearly all names in a folder may have the same."""
    wanted = Path(path).name.partition(".")[0]
    return [name for name in names if did_you_mean(wanted, [name.partition(".")[0]])]


# -- globs


def is_glob(path: str) -> bool:
    return any(sign in path for sign in "*?[")


def _glob_root(pattern: str) -> str:
    parts = pattern.split("/")
    for index, part in enumerate(parts):
        if is_glob(part):
            return "/".join(parts[:index]) or ("/" if pattern.startswith("/") else "")
    return pattern


_BRACES = re.compile(r"\{([^{}]*)\}")


def expand_braces(path: str) -> list[str]:
    """The paths that a path with ranges or alternatives in braces stands for.

    >>> expand_braces("{train,test}-{08..10}.tar")
    ['train-08.tar', 'train-09.tar', 'train-10.tar', 'test-08.tar', 'test-09.tar', 'test-10.tar']
    """
    found = _BRACES.search(path)
    ranged = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", found[1]) if found else None
    if found is None or (ranged is None and "," not in found[1]):
        return [path]
    if ranged is not None:
        first, last = int(ranged[1]), int(ranged[2])
        width = max(map(len, ranged.groups())) if ranged[1].startswith("0") else 0
        if abs(last - first) >= 1_000_000:
            raise SourceError(f"{path} stands for more than a million files")
        choices = [f"{number:0{width}d}" for number in range(first, last + 1)]
    else:
        choices = found[1].split(",")
    rest = expand_braces(path[found.end() :])
    return [f"{path[: found.start()]}{choice}{end}" for choice in choices for end in rest]


_GLOB_SIGN = re.compile(r"\*|\?|\[!?\]?[^\]]*\]")


def glob_matcher(pattern: str) -> Callable[[str], object]:
    """A function that returns whether a path matches: `*` and `?` within a folder, `**` across folders."""
    parts = pattern.split("/")
    text = ""
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "**":
            text += ".+" if last else "(?:[^/]+/)*"
            continue
        done = 0
        for sign in _GLOB_SIGN.finditer(part):
            text += re.escape(part[done : sign.start()])
            inner = sign[0][1:-1].replace("\\", "\\\\")
            text += {"*": "[^/]*", "?": "[^/]"}.get(
                sign[0]
            ) or f"[{inner.replace('!', '^', 1) if inner[0] == '!' else inner}]"
            done = sign.end()
        text += re.escape(part[done:]) + ("" if last else "/")
    return re.compile(text + r"\Z", re.DOTALL).match


# -- object stores and other file systems


def _expand_remote(argument: str, options: Options) -> tuple[list[File], bool]:
    system, path = _system(argument, options)
    if is_glob(path):
        details = system.glob(path, detail=True)
        found = [info for info in details.values() if info["type"] == "file"]
        root = _glob_root(path)
        if not found:
            raise SourceError(f"no file matches {argument}", hint="* matches within a folder, ** across folders")
        return [_remote_file(system, info) for info in found if _visible(info["name"], root)], False
    try:
        info = system.info(path)
    except FileNotFoundError as error:
        raise SourceError(f"{argument} does not exist", hint="check the bucket and the name") from error
    if info["type"] == "file":
        return [_remote_file(system, info)], False
    details = system.find(path, detail=True)
    found = [info for info in details.values() if info["type"] == "file" and not info["name"].endswith("/")]
    return [_remote_file(system, info) for info in found if _visible(info["name"], path)], True


def _expand_hub(argument: str, options: Options) -> tuple[list[File], bool]:
    """The files of a repository of the Hugging Face Hub, or of its copy in the cache if the Hub cannot be reached."""
    problem: SourceError | None = None
    if not hub.is_offline():
        try:
            return _expand_remote(argument, options)
        except SourceError as error:
            if not error.message.startswith("cannot reach"):
                raise
            problem = error
    path = hub.in_cache(argument)
    if path is None:
        raise hub.not_reached(argument, problem) from problem
    return _expand_local(path)


def _visible(name: str, root: str) -> bool:
    inside = name[len(root) :] if name.startswith(root) else name
    return not any(part.startswith(("_", ".")) for part in inside.split("/") if part)


def _remote_file(system: Any, info: Mapping[str, Any]) -> File:
    stamp = next(
        (str(info[key]) for key in ("ETag", "etag", "md5Hash", "mtime", "LastModified", "created") if info.get(key)), ""
    )
    return File(system.unstrip_protocol(info["name"]), int(info["size"] or 0), stamp)


def _system(path: str, options: Options) -> tuple[Any, str]:
    return open_store(path, dict(options or {}), SourceError)


# --------------------------------------------------------------------------------------------- opening and fingerprints


def open_file(path: str, storage_options: Options = None) -> IO[bytes]:
    """Open a file for reading bytes. A local file is opened without fsspec or a buffer."""
    try:
        if is_local(path):
            return io.FileIO(local_path(path))
        system, name = _system(path, storage_options)
        return system.open(name, "rb")
    except FileNotFoundError as error:
        raise _disappeared(path) from error
    except PermissionError as error:
        raise _not_allowed(path) from error
    except IsADirectoryError as error:
        raise DamagedFile(f"{path} is now a folder, not a file") from error


def read_exactly(file: IO[bytes], size: int) -> bytes:
    """Read `size` bytes, fewer only at the end of the file."""
    data = file.read(size)
    if len(data) == size or not data:
        return data
    parts, missing = [data], size - len(data)
    while missing and (data := file.read(missing)):
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)


def fingerprint(file: File) -> list[object]:
    """Values that change with the content of a file. The first and last 4 KB of a local file are read."""
    if not is_local(file.path):
        return [file.path, file.size, file.stamp]
    try:
        handle = os.open(local_path(file.path), os.O_RDONLY)
    except PermissionError as error:
        raise _not_allowed(file.path) from error
    except FileNotFoundError as error:
        raise _disappeared(file.path) from error
    try:
        edges = os.pread(handle, 2 * _EDGE_BYTES if file.size <= 2 * _EDGE_BYTES else _EDGE_BYTES, 0)
        if file.size > 2 * _EDGE_BYTES:
            edges += os.pread(handle, _EDGE_BYTES, file.size - _EDGE_BYTES)
    finally:
        os.close(handle)
    return [file.path, file.size, file.stamp, hashlib.blake2b(edges, digest_size=10).hexdigest()]
