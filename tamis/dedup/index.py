"""What has been seen, on disk, for the next dataset to be compared with.

    index/
      index.json                      what kind of digest, under which settings
      <generation>/                   the rows that one run kept; a run that is repeated replaces its own
        content                       a checksum of the parts
        entries-000000.arrow          per kept row: its address, its id, and what is needed to compare it
        keys-000000.arrow             key -> entry, in the order of the keys

A generation appears at once, by renaming its folder, or in an object store by its `content`, which is written last. Nothing
is loaded: keys are mapped and searched by range. What is in an object store is first copied beside the run, and checked.
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
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tamis.dedup.shuffle import Unfinished, link, make_sure_of_room, numbers
from tamis.errors import ParameterError, TamisError
from tamis.operators import Work, digest
from tamis.parameters import as_text
from tamis.store import Store

VERSION = 2
OWN = "index"
"""Where an output folder remembers its generation, under `.tamis/`."""
Options: TypeAlias = Mapping[str, Any] | None
"""How an object store is reached."""
_ABOUT, _KEYS, _ENTRIES, _CONTENT, _UNFINISHED = "index.json", "keys-", "entries-", "content", ".unfinished"


@dataclass(frozen=True)
class Index:
    """An index as a run sees it: the generations that were there when it began, less its own."""

    path: str
    generations: tuple[str, ...] = ()
    copies: str | None = None
    """Where its files were copied to, if it is in an object store."""

    @staticmethod
    def open(
        path: str,
        kind: str,
        settings: Mapping[str, Any],
        options: Options = None,
        *,
        own: str = "",
        create: bool = False,
        look: bool = False,
    ) -> Index:
        """The index at `path`, after making sure that it was made in the same way; only to `look`, none is created."""
        store = Store(path, options)
        described = {"kind": kind, "version": VERSION, "settings": json.loads(json.dumps(as_text(settings)))}
        about = store.read(_ABOUT)
        if about is None:
            if not create:
                raise ParameterError(f"there is no index at {path}", hint="update=True makes one from this dataset")
            if store.names():
                raise ParameterError(f"{path} is not empty and not an index", hint="name another folder in against=")
            if look:
                return Index(path)
            about = json.dumps(described, indent=2).encode()
            if store.local:
                with Unfinished(store.path / _ABOUT) as temporary:
                    temporary.write_bytes(about)
            else:
                store.write(_ABOUT, about)
        check_settings(path, _described(path, about), described)
        return Index(path, tuple(name for name in _contents(store) if name != own))

    def for_work(self, folder: Path, options: Options = None, *, pin: bool = False) -> Index:
        """This index for work in `folder`: with its files on this machine, beside the work if it is in an object store.

        With `pin` it is as it was when the work began: a run that adds to an index is the same run whatever others add
        meanwhile, and when resumed sees what it saw before. Any other run is another one when the index changes.
        """
        names = self.generations
        if pin:
            file = folder / "generations.json"
            if not file.exists():
                with Unfinished(file) as temporary:
                    temporary.write_text(json.dumps(names))
            names = tuple(json.loads(file.read_text()))
        store = Store(self.path, options)
        if store.local:
            return Index(self.path, names)
        contents = _contents(store)
        copies = folder / "index-copies" / digest([contents.get(name) for name in names])
        for name in names:
            if not (copies / name).exists():
                _fetch(store, name, contents.get(name), copies / name)
        return Index(self.path, names, str(copies))

    @cached_property
    def _listing(self) -> tuple[list[tuple[Path, int]], int]:
        result, before = [], 0
        for generation in self.generations:
            folder = Path(self.copies or self.path.removeprefix("file://")) / generation
            for file in sorted(folder.glob(f"{_ENTRIES}*.arrow")):
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


def _contents(store: Store) -> dict[str, str]:
    """The generations that are complete, and what each holds, in short."""
    names = [name for name in store.names() if name != _ABOUT and not name.endswith(_UNFINISHED)]
    found = {name: store.read(f"{name}/{_CONTENT}") for name in names}
    return {name: content.decode() for name, content in found.items() if content is not None}


def _fetch(store: Store, name: str, content: str | None, target: Path) -> None:
    """Copy a generation from an object store, and make sure that it is all of it."""
    unfinished = target.with_name(f"{name}{_UNFINISHED}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for file in store.names(name):
        if file != _CONTENT:
            make_sure_of_room(unfinished, store.size(f"{name}/{file}") or 0)
            store.fetch(f"{name}/{file}", unfinished / file)
    if _content(unfinished) != content:
        raise TamisError(
            f"the index {store.root} changed while it was read", hint="run the same command again when that is done"
        )
    unfinished.rename(target)


def _described(path: str, about: bytes) -> dict[str, Any]:
    try:
        found = json.loads(about)
        return {name: found[name] for name in ("kind", "version", "settings")}
    except (ValueError, KeyError, TypeError) as error:
        raise ParameterError(f"{path}/{_ABOUT} is damaged", hint="make the index again, in another folder") from error


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


def write_part(folder: Path, number: int, entries: pa.Table, keys: np.ndarray, more: Mapping[str, np.ndarray]) -> None:
    """Write kept rows as one part; keys uint64[rows] or [rows, keys per row], `more` beside each key."""
    per_row = keys.shape[1] if keys.ndim == 2 else 1
    flat = keys.reshape(-1)
    order = np.argsort(flat, kind="stable")
    columns = {"key": flat[order], **{name: values[order] for name, values in more.items()}}
    columns["entry"] = (order // per_row).astype(np.uint32)
    for prefix, table in ((_ENTRIES, entries), (_KEYS, pa.table(columns))):
        path = folder / f"{prefix}{number:06d}.arrow"
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


def add_generation(path: str, name: str, folder: Path, options: Options = None) -> None:
    """Put the parts in `folder` into the index as one generation, in place of an earlier one of that name."""
    store, content = Store(path, options), _content(folder)
    files = sorted(folder.glob("*.arrow"))
    if not store.local:
        store.remove(f"{name}/{_CONTENT}")  # nobody sees the generation from here on, until all of it is there
        store.remove(name)
        for file in files:
            copy = file.with_suffix(".copy")
            copy.unlink(missing_ok=True)
            link(file, copy)
            store.publish(copy, f"{name}/{file.name}")
        store.write(f"{name}/{_CONTENT}", content.encode())
        return
    target = store.path / name
    unfinished = target.with_name(f"{name}{_UNFINISHED}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for file in files:
        with file.open("rb") as written:
            os.fsync(written.fileno())
        link(file, unfinished / file.name)
    (unfinished / _CONTENT).write_text(content)
    shutil.rmtree(target, ignore_errors=True)
    unfinished.rename(target)


def _content(folder: Path) -> str:
    """A checksum of the parts in a folder."""
    content = 0
    for file in sorted(folder.glob("*.arrow")):
        content = zlib.crc32(f"{file.name} {_checksum(file)}".encode(), content)
    return f"{content:08x}"


def _checksum(file: Path) -> int:
    checksum = 0
    with file.open("rb") as opened:
        while part := opened.read(2**22):
            checksum = zlib.crc32(part, checksum)
    return checksum


def content_of(path: str, options: Options = None) -> list[str]:
    """What an index holds, in short: other rows, another list."""
    return [f"{name} {content}" for name, content in _contents(Store(path, options)).items()]


def describe(path: str) -> dict[str, Any]:
    """What an index on a local disk holds: kind, settings, rows by generation."""
    store = Store(path)
    about = store.read(_ABOUT)
    if about is None:
        raise TamisError(f"there is no index at {path}")
    return _described(path, about) | {"rows": {name: Index(path, (name,)).total for name in _contents(store)}}
