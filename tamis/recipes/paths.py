"""Paths in recipes: what they are relative to, which reader fits an input, and which writer follows it."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from tamis.errors import ParameterError, RecipeError, SourceError
from tamis.formats import CODECS, FORMATS
from tamis.registry import find_operator
from tamis.sources.files import detect_format, list_files
from tamis.sources.git import holds_repositories

NamedStep: TypeAlias = tuple[str, Mapping[str, Any]]

MIX = "mix"
_NAMED = re.compile(r"([A-Za-z][\w.-]*)=(.+)")

_INPUT, _OUTPUT = "file_paths", "path"
"""The parameter of every reader of files, and of every writer, that holds their location."""


def reader_step(paths: list[str], named: NamedStep | None, steps: Iterable[NamedStep] = ()) -> NamedStep:
    """The step that reads `paths`; it replaces the reader of the recipe, if there is one, and keeps its parameters.

    Paths with names, `web=crawl/web/`, are the sources of a mix. Videos are read for their sound if that is what the `steps`
    of the recipe read.
    """
    sources = named_sources(paths)
    if sources:
        kept = named[1] if named is not None and named[0] == MIX else {}
        return MIX, {**kept, "sources": sources}
    options = named[1].get("storage_options") if named is not None else None
    try:
        if named is not None and named[0] == "git_reader" and holds_repositories(paths):
            name = named[0]
        else:
            form = detect_format(paths, options)
            name = FORMATS[form].reader
            if named is not None and form in getattr(find_operator(named[0]), "other_formats", ()):
                name = named[0]
            if named is None and form == "video" and _are_about(steps) == {"audio"}:
                name = FORMATS["audio"].reader
    except SourceError:
        if named is None or _INPUT not in _fields(named[0]):
            raise
        name = named[0]  # the file names have no known suffix, and the recipe has a reader
    where = paths[0] if len(paths) == 1 else paths
    if named is None:
        return name, {_INPUT: where}
    kept = {key: value for key, value in named[1].items() if key != _INPUT}
    lost = [key for key in kept if key not in _fields(name)]
    if lost:
        raise ParameterError(
            f"the input is read by `{name}`, which has no {_listed(lost)}",
            hint=f"take {_listed(lost)} out of the recipe, or give an input that `{named[0]}` reads",
        )
    return name, {_INPUT: where, **kept}


def _are_about(steps: Iterable[NamedStep]) -> set[str]:
    """The kinds of media that steps read."""
    read = [name for step, given in steps for name in (given.get("column"), *find_operator(step).declared_reads)]
    return {name for name in read if isinstance(name, str) and name in FORMATS and FORMATS[name].is_media}


def named_sources(paths: list[str]) -> dict[str, str | list[str]]:
    """The paths of each name, if all have one; a name that occurs twice has two paths.

    >>> named_sources(["web=a/", "code=b/", "web=c/"])
    {'web': ['a/', 'c/'], 'code': 'b/'}
    """
    found: dict[str, list[str]] = {}
    for path in paths:
        match = _NAMED.fullmatch(path)
        if match is not None and not os.path.exists(path):  # noqa: PTH110 - it may be too long for a path
            found.setdefault(match[1], []).append(match[2])
    if found and sum(map(len, found.values())) < len(paths):
        raise ParameterError("some inputs have a name and others have none", hint="--input web=web/ --input code=code/")
    return {name: each[0] if len(each) == 1 else each for name, each in found.items()}


def writer_step(folder: str, named: NamedStep | None, reader: NamedStep | None) -> NamedStep:
    """The step that writes to `folder`: the writer of the recipe, or else one for the format of the input."""
    if named is not None:
        if _OUTPUT not in _fields(named[0]):
            raise ParameterError(f"`{named[0]}` does not write to a folder", hint="leave out --output")
        return named[0], {**named[1], _OUTPUT: folder}
    if reader is None:
        raise RecipeError(
            "the recipe has no reader, so the format of the output is unknown",
            hint="add --input PATH, or a writer: - parquet_writer: {path: ...}",
        )
    form = next((form for form in FORMATS.values() if form.reader == reader[0]), None)
    parameters = {_OUTPUT: folder}
    if form is None or form.writer is None:
        return "jsonl_writer", parameters
    if form.compressible:
        compression = _compression(form.name, reader[1])
        if compression:
            parameters["compression"] = compression
    return form.writer, parameters


def _compression(form: str, reader: Mapping[str, Any]) -> str | None:
    """The compression suffix that all files of the input share."""
    files = list_files(_as_list(reader.get(_INPUT)), form, reader.get("storage_options"))
    suffixes = {f".{file.path.rpartition('.')[2].lower()}" for file in files}
    return suffixes.pop()[1:] if len(suffixes) == 1 and suffixes <= set(CODECS) else None


def located(value: Any, folder: Path, *, is_file: bool) -> Any:
    """A path, or a list of paths, as found from `folder`; absolute paths and URLs are unchanged.

    A model or tokenizer may also be given by a name that is no path (`is_file=False`): one such as "model.bin" or "org/name"
    is a path only if there is such a file or folder.
    """
    if isinstance(value, (list, tuple)):
        return [located(item, folder, is_file=is_file) for item in value]
    if not isinstance(value, str) or not value or "://" in value or folder == Path():
        return value
    if value.startswith("@"):
        return "@" + located(value[1:], folder, is_file=is_file)
    path = Path(value).expanduser()
    is_name = not is_file and value.count("/") < 2 and not value.startswith((".", "/"))
    if path.is_absolute() or (is_name and not (folder / path).exists()):
        return value
    joined = os.path.normpath(folder / path)
    return joined + "/" if value.endswith("/") else joined


def located_sources(sources: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The sources of a mix, paths or steps of readers by name, as found from `folder`."""
    found: dict[str, Any] = {}
    for name, given in sources.items():
        if isinstance(given, Mapping):
            found[name] = {
                step: {
                    key: located(value, folder, is_file=True) if key in find_operator(step).path_parameters else value
                    for key, value in (parameters or {}).items()
                }
                for step, parameters in given.items()
            }
        else:
            found[name] = located(given, folder, is_file=True)
    return found


def _as_list(paths: object) -> list[str]:
    if paths is None:
        return []
    return [str(paths)] if isinstance(paths, (str, Path)) else [str(path) for path in paths]  # type: ignore[attr-defined]


def _fields(name: str) -> list[str]:
    return [spec.name for spec in dataclasses.fields(find_operator(name))]


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
