"""What has been seen, on disk, for the next dataset to be compared with.

    index/
      index.json                      what kind of digest, under which settings
      <generation>/                   the rows that one run kept; a run that is repeated replaces its own
        content                       a checksum of the parts
        entries-000000.arrow          per kept row: its address, its id, and what is needed to compare it
        keys-000000.arrow             key -> entry, in the order of the keys

A generation appears at once, by renaming its folder. Nothing is loaded: keys are mapped and searched by range.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.dedup.shuffle import Unfinished, link, numbers
from tamis.errors import ParameterError, TamisError
from tamis.operator import Work
from tamis.parameters import as_text

VERSION = 2
OWN = "index"
"""Where an output folder remembers its generation, under `_tamis/`."""
_KEYS, _ENTRIES, _CONTENT = "keys-", "entries-", "content"


@dataclass(frozen=True)
class Index:
    """An index as a run sees it: the generations that were there when it began, less its own."""

    path: str
    generations: tuple[str, ...] = ()

    @staticmethod
    def open(
        path: str, kind: str, settings: Mapping[str, Any], *, own: str = "", create: bool = False, look: bool = False
    ) -> Index:
        """The index at `path`, after making sure that it was made in the same way; only to `look`, none is created."""
        if "://" in path:
            raise ParameterError(f"an index lies on a local disk, not at {path}", hint="copy it to a local folder")
        folder = Path(path)
        described = {"kind": kind, "version": VERSION, "settings": json.loads(json.dumps(as_text(settings)))}
        about = folder / "index.json"
        if not about.exists():
            if not create:
                raise ParameterError(f"there is no index at {path}", hint="update=True makes one from this dataset")
            if folder.exists() and any(folder.iterdir()):
                raise ParameterError(f"{path} is not empty and not an index", hint="name another folder in against=")
            if look:
                return Index(path)
            with Unfinished(about) as temporary:
                temporary.write_text(json.dumps(described, indent=2))
        check_settings(path, _described(about), described)
        found = (child.name for child in folder.iterdir() if child.is_dir() and not child.name.endswith(".unfinished"))
        return Index(path, tuple(sorted(name for name in found if name != own)))

    def pinned(self, folder: Path) -> Index:
        """This index as it was when work in `folder` began: a run that is resumed sees what it saw before."""
        file = folder / "generations.json"
        if not file.exists():
            with Unfinished(file) as temporary:
                temporary.write_text(json.dumps(self.generations))
        return Index(self.path, tuple(json.loads(file.read_text())))

    @cached_property
    def _listing(self) -> tuple[list[tuple[Path, int]], int]:
        result, before = [], 0
        for generation in self.generations:
            for file in sorted((Path(self.path) / generation).glob(f"{_ENTRIES}*.arrow")):
                result.append((file, before))
                before += pa.ipc.open_file(pa.memory_map(str(file))).get_batch(0).num_rows
        return result, before

    @property
    def parts(self) -> list[tuple[Path, int]]:
        """(file of entries, how many come before it), in a fixed order."""
        return self._listing[0]

    @property
    def total(self) -> int:
        """How many rows it holds."""
        return self._listing[1]

    def keys_between(self, low: int, high: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """(number of the first entry of the part, rows of its keys with low <= key < high)."""
        for entries, before in self.parts:
            file = entries.with_name(entries.name.replace(_ENTRIES, _KEYS))
            batch = pa.ipc.open_file(pa.memory_map(str(file))).get_batch(0)
            keys = numbers(batch.column("key"))
            first = np.searchsorted(keys, np.uint64(low)) if low else 0
            last = np.searchsorted(keys, np.uint64(high)) if high < 2**64 else len(keys)
            if last > first:
                yield before, batch.slice(first, last - first)

    def entries(self) -> Iterator[tuple[int, pa.Table]]:
        for number, (_, before) in enumerate(self.parts):
            yield before, self.part(number)

    def part(self, number: int) -> pa.Table:
        """The entries of one part."""
        return pa.ipc.open_file(pa.memory_map(str(self.parts[number][0]))).read_all()


def _described(about: Path) -> dict[str, Any]:
    try:
        found = json.loads(about.read_text())
        return {name: found[name] for name in ("kind", "version", "settings")}
    except (ValueError, KeyError, TypeError) as error:
        raise ParameterError(f"{about} is damaged", hint="make the index again, in another folder") from error


def check_settings(path: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse an index whose digests mean something else, naming every difference."""
    if found["kind"] != wanted["kind"]:
        raise ParameterError(
            f"{path} is an index for {found['kind']} duplicates, this step looks for {wanted['kind']} ones",
            hint="each has an index of its own",
        )
    if found["version"] != wanted["version"]:
        raise ParameterError(
            f"{path} is of version {found['version']}, this is {wanted['version']}", hint="make it again"
        )
    names = sorted(set(found["settings"]) | set(wanted["settings"]))
    differences = [
        f"{name} is {found['settings'].get(name)!r} there and {wanted['settings'].get(name)!r} here"
        for name in names
        if found["settings"].get(name) != wanted["settings"].get(name)
    ]
    if differences:
        raise ParameterError(
            f"{path} was made with other settings: {'; '.join(differences)}",
            hint="use the settings of the index, or another index",
        )


def write_part(
    folder: Path, partition: int, entries: pa.Table, keys: np.ndarray, more: Mapping[str, np.ndarray]
) -> None:
    """Write the kept rows of one partition; keys uint64[rows] or [rows, keys per row], `more` beside each key."""
    per_row = keys.shape[1] if keys.ndim == 2 else 1
    flat = keys.reshape(-1)
    order = np.argsort(flat, kind="stable")
    columns = {"key": flat[order], **{name: values[order] for name, values in more.items()}}
    columns["entry"] = (order // per_row).astype(np.uint32)
    for prefix, table in ((_ENTRIES, entries), (_KEYS, pa.table(columns))):
        path = folder / f"{prefix}{partition:06d}.arrow"
        with Unfinished(path) as temporary, pa.ipc.new_file(temporary, table.schema) as writer:
            batches = table.combine_chunks().to_batches()
            writer.write_batch(batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema))


def own_generation(work: Work) -> str:
    """The name of the generation that belongs to this output folder, whoever writes there: a repeated run replaces its own.

    It is kept in the folder, and not made of its path, so that another output that is later written to the same place does not
    replace what this one had.
    """
    for name in work.published(OWN):
        return name
    name = uuid.uuid4().hex[:16]
    file = work.folder / name
    file.touch()
    work.publish(f"{OWN}/{name}", file)
    return name


def add_generation(path: str, name: str, folder: Path) -> None:
    """Put the parts in `folder` into the index as one generation, in place of an earlier one of that name."""
    target = Path(path) / name
    unfinished = target.with_name(f"{name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    content = 0
    for file in sorted(folder.glob("*.arrow")) if folder.is_dir() else []:
        with file.open("rb") as written:
            os.fsync(written.fileno())
        link(file, unfinished / file.name)
        content = zlib.crc32(f"{file.name} {_checksum(file)}".encode(), content)
    (unfinished / _CONTENT).write_text(f"{content:08x}")
    shutil.rmtree(target, ignore_errors=True)
    unfinished.rename(target)


def _checksum(file: Path) -> int:
    checksum = 0
    with file.open("rb") as opened:
        while part := opened.read(2**22):
            checksum = zlib.crc32(part, checksum)
    return checksum


def content_of(path: str) -> list[str]:
    """What an index holds, in short: other rows, another list."""
    files = sorted(Path(path).glob(f"*/{_CONTENT}"))
    return [f"{file.parent.name} {file.read_text()}" for file in files if file.parent.suffix != ".unfinished"]


def describe(path: str) -> dict[str, Any]:
    """What an index holds: kind, settings, rows by generation."""
    about = Path(path) / "index.json"
    if not about.exists():
        raise TamisError(f"there is no index at {path}")
    names = [entry.split()[0] for entry in content_of(path)]
    return _described(about) | {"rows": {name: Index(path, (name,)).total for name in names}}
