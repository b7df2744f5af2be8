"""The index: rows kept by earlier runs, on disk, to compare the next dataset with.

    index/
      index.json                      kind of digest and settings
      <generation>/                   the rows that one run kept; a repeated run replaces its own generation
        content                       checksum of the parts
        entries-000000.arrow          for each kept row its address, its id, and what is needed to compare it
        keys-000000.arrow             key -> entry, sorted by key

A generation appears atomically: its folder is renamed or, in an object store, `content` is written last. Keys are mapped and
searched by range, never loaded as a whole. An index in an object store is first copied to the run's exchange and verified.
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

from tamis.dedup.shuffle import as_numpy, check_free_space
from tamis.errors import ParameterError, TamisError
from tamis.exchange import Blob, Exchange, FolderExchange
from tamis.operators import Work, digest
from tamis.parameters import as_text
from tamis.store import Store, link_or_copy

VERSION = 2
OWN = "index"
"""The folder under `.tamis/` that records the name of the output's own generation."""
Options: TypeAlias = Mapping[str, Any] | None
"""Options for fsspec."""
_ABOUT, _KEYS, _ENTRIES, _CONTENT, _UNFINISHED = "index.json", "keys-", "entries-", "content", ".unfinished"
_PINNED = "generations.json"


@dataclass(frozen=True)
class Index:
    """An index as a run sees it: the generations that existed when the run began, without its own."""

    path: str
    generations: tuple[str, ...] = ()
    places: tuple[Exchange, ...] = ()
    """Where workers read each generation; if not given, in the folder of the index."""

    @staticmethod
    def open(
        path: str,
        kind: str,
        settings: Mapping[str, Any],
        options: Options = None,
        *,
        own: str = "",
        create: bool = False,
        check_only: bool = False,
    ) -> Index:
        """The index at `path`; raises if its settings differ. With `check_only`, a missing index is not created."""
        store = Store(path, options)
        described = {"kind": kind, "version": VERSION, "settings": json.loads(json.dumps(as_text(settings)))}
        about = store.read(_ABOUT)
        if about is None:
            if not create:
                raise ParameterError(f"there is no index at {path}", hint="update=True creates one from this dataset")
            if store.names():
                raise ParameterError(
                    f"{path} is not an index, and not empty", hint="name an index or an empty folder in against="
                )
            if check_only:
                return Index(path)
            about = json.dumps(described, indent=2).encode()
            if store.local:
                with FolderExchange(store.path).writing(_ABOUT) as path_of_about:
                    path_of_about.write_bytes(about)
            else:
                store.write(_ABOUT, about)
        check_settings(path, _described(path, about), described)
        return Index(path, tuple(name for name in _contents(store) if name != own))

    def for_work(self, exchange: Exchange, options: Options = None, *, pin: bool = False) -> Index:
        """This index for a run with this exchange. An index that workers cannot reach as files is copied to the exchange.

        With `pin`, the generations are recorded when the work begins, and a resumed run sees the same ones. A run that adds
        to an index needs this, because its identity does not depend on what others add meanwhile. The identity of any other
        run changes with the index.
        """
        names = self.generations
        if pin:
            if not exchange.has(_PINNED):
                with exchange.writing(_PINNED) as path:
                    path.write_text(json.dumps(names))
            names = tuple(json.loads(exchange.file(_PINNED).read_text()))
        store = Store(self.path, options)
        contents = _contents(store)
        copies = f"index-copies/{digest([contents.get(name) for name in names])}"
        places = []
        for name in names:
            copy = f"{copies}/{name}"
            if store.local:
                places.append(exchange.reachable(store.path / name, copy))
                continue
            places.append(exchange.sub(copy))
            if not places[-1].has(_CONTENT):
                _download(store, name, contents.get(name), places[-1])
        return Index(self.path, names, tuple(places))

    @cached_property
    def _listing(self) -> tuple[list[tuple[Blob, int]], int]:
        result, before = [], 0
        for place in self.places or [FolderExchange(Store(self.path).path / name) for name in self.generations]:
            for name in place.names():
                if name.startswith(_ENTRIES):
                    result.append((Blob(place, name), before))
                    before += _open(result[-1][0]).get_batch(0).num_rows
        return result, before

    @property
    def parts(self) -> list[tuple[Blob, int]]:
        """(entries, number of entries before them), in a fixed order."""
        return self._listing[0]

    @property
    def total(self) -> int:
        """The number of entries."""
        return self._listing[1]

    def keys_between(self, low: int, high: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """(number of the part's first entry, its keys with low <= key < high) for each part that has any."""
        for entries, before in self.parts:
            batch = _open(Blob(entries.exchange, entries.name.replace(_ENTRIES, _KEYS))).get_batch(0)
            keys = as_numpy(batch.column("key"))
            first = np.searchsorted(keys, np.uint64(low)) if low else 0
            last = np.searchsorted(keys, np.uint64(high)) if high < 2**64 else len(keys)
            if last > first:
                yield before, batch.slice(first, last - first)

    def entries(self) -> Iterator[tuple[int, pa.Table]]:
        for number, (_, before) in enumerate(self.parts):
            yield before, self.part(number)

    def part(self, number: int) -> pa.Table:
        """The entries of one part."""
        return _open(self.parts[number][0]).read_all()


def _open(blob: Blob) -> pa.RecordBatchFileReader:
    return pa.ipc.open_file(pa.memory_map(str(blob.file())))


def _contents(store: Store) -> dict[str, str]:
    """The checksum of each complete generation."""
    names = [name for name in store.names() if name != _ABOUT and not name.endswith(_UNFINISHED)]
    found = {name: store.read(f"{name}/{_CONTENT}") for name in names}
    return {name: content.decode() for name, content in found.items() if content is not None}


def _download(store: Store, name: str, content: str | None, target: Exchange) -> None:
    """Copy a generation from an object store and verify its checksum. `content` is written last."""
    for file in store.names(name):
        if file != _CONTENT:
            check_free_space(target, store.size(f"{name}/{file}") or 0)
            with target.writing(file) as path:
                store.fetch(f"{name}/{file}", path)
    if _content(target) != content:
        target.delete()
        raise TamisError(
            f"the index {store.root} changed while it was read",
            hint="rerun the same command when the other run is done",
        )
    with target.writing(_CONTENT) as path:
        path.write_text(content)


def _described(path: str, about: bytes) -> dict[str, Any]:
    try:
        found = json.loads(about)
        return {name: found[name] for name in ("kind", "version", "settings")}
    except (ValueError, KeyError, TypeError) as error:
        raise ParameterError(f"{path}/{_ABOUT} is damaged", hint="rebuild the index in another folder") from error


def check_settings(path: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise if the index was made with other settings, naming all differences."""
    if found["kind"] != wanted["kind"]:
        raise ParameterError(
            f"{path} is an index for {found['kind']} duplicates, but this step finds {wanted['kind']} ones",
            hint="use a separate index for each kind",
        )
    if found["version"] != wanted["version"]:
        raise ParameterError(
            f"{path} has index version {found['version']}, but version {wanted['version']} is needed",
            hint="rebuild the index in another folder",
        )
    names = sorted(set(found["settings"]) | set(wanted["settings"]))
    differences = [
        f"{name} is {found['settings'].get(name)!r} in the index and {wanted['settings'].get(name)!r} here"
        for name in names
        if found["settings"].get(name) != wanted["settings"].get(name)
    ]
    if differences:
        raise ParameterError(
            f"{path} has other settings: {'; '.join(differences)}",
            hint="use the settings of the index, or another index",
        )


def write_part(
    parts: Exchange, number: int, entries: pa.Table, keys: np.ndarray, more: Mapping[str, np.ndarray]
) -> None:
    """Write kept rows as one part; keys uint64[rows] or [rows, keys per row], `more` columns per key."""
    per_row = keys.shape[1] if keys.ndim == 2 else 1
    flat = keys.reshape(-1)
    order = np.argsort(flat, kind="stable")
    columns = {"key": flat[order], **{name: values[order] for name, values in more.items()}}
    columns["entry"] = (order // per_row).astype(np.uint32)
    for prefix, table in ((_ENTRIES, entries), (_KEYS, pa.table(columns))):
        with (
            parts.writing(f"{prefix}{number:06d}.arrow") as path,
            pa.ipc.new_file(path, table.schema) as writer,
        ):
            batches = table.combine_chunks().to_batches()
            writer.write_batch(batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema))


def own_generation(work: Work) -> str:
    """The name of the generation that belongs to this output folder; a repeated run replaces it.

    The name is stored in the folder instead of derived from its path, so that another output written to the same path later
    does not replace this one's generation.
    """
    for name in work.published(OWN):
        return name
    name = uuid.uuid4().hex[:16]
    work.publish(f"{OWN}/{name}", b"")
    return name


def add_generation(path: str, name: str, parts: Exchange, options: Options = None) -> None:
    """Add parts to the index as a generation, replacing one of the same name."""
    store, content = Store(path, options), _content(parts)
    if not store.local:
        store.remove(f"{name}/{_CONTENT}")  # hides the generation until it is complete
        store.remove(name)
        for part in _part_names(parts):
            store.upload(parts.file(part), f"{name}/{part}")
        store.write(f"{name}/{_CONTENT}", content.encode())
        return
    target = store.path / name
    unfinished = target.with_name(f"{name}{_UNFINISHED}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for part in _part_names(parts):
        file = parts.file(part)
        with file.open("rb") as written:
            os.fsync(written.fileno())
        link_or_copy(file, unfinished / part)
    (unfinished / _CONTENT).write_text(content)
    shutil.rmtree(target, ignore_errors=True)
    unfinished.rename(target)


def _part_names(parts: Exchange) -> list[str]:
    return [name for name in parts.names() if name.endswith(".arrow")]


def _content(parts: Exchange) -> str:
    """A checksum of parts."""
    content = 0
    for name in _part_names(parts):
        content = zlib.crc32(f"{name} {_checksum(parts.file(name))}".encode(), content)
    return f"{content:08x}"


def _checksum(file: Path) -> int:
    checksum = 0
    with file.open("rb") as opened:
        while part := opened.read(2**22):
            checksum = zlib.crc32(part, checksum)
    return checksum


def contents_of(path: str, options: Options = None) -> list[str]:
    """The name and checksum of each generation of an index."""
    return [f"{name} {content}" for name, content in _contents(Store(path, options)).items()]


def describe(path: str) -> dict[str, Any]:
    """Kind, settings and rows per generation of an index on a local disk."""
    store = Store(path)
    about = store.read(_ABOUT)
    if about is None:
        raise TamisError(f"there is no index at {path}")
    return _described(path, about) | {"rows": {name: Index(path, (name,)).total for name in _contents(store)}}
