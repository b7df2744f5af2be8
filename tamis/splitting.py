"""Train, validation and test parts that share no group: the part of a row follows from a hash of its group."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tamis.attributes import CACHE_BYTES, Lookup
from tamis.batch import Batch, Column, Origin, as_array
from tamis.context import Context
from tamis.errors import LedgerError, ParameterError
from tamis.gathering import GROUPS
from tamis.looking.corpus import domains_of
from tamis.operators import Map, Resources, digest, operator
from tamis.report import load_manifest
from tamis.sampling import salt_of
from tamis.sources.files import File, fingerprint, is_local, list_files, local_path, open_file
from tamis.sources.id_lists import once
from tamis.store import INTERNAL, Store

MOST_LINKS = 8
"""Deduplications that may follow each other in one run: a row kept by the first may be dropped by the second."""
_AFTER_FOLDER = r"[^/]*:\d+(?:/\d+)*$"
"""The end of an address: the name of a file, the position in it, and the numbers of children."""


@operator(version=2)
class Split(Map):
    """Add a column that assigns each row to a part, such as train and validation, so that no group is in two parts.

    The part follows from a hash of the group and `seed`, so it does not change if other rows are added. `shares` are those of
    the groups; with large groups, the shares of rows differ. The group of a row is

    - by default the row itself
    - the value of column `by`; a null is a group of its own
    - with `domain`, the host of the URL in column `by`
    - with `groups`, the group of near-duplicates that a deduplication of the same input recorded in this output folder.
      `FuzzyDedup(verify="none")` groups all that are linked, also through others. The paths of the input may be written in
      another way; if files have been moved or copied since, their rows have no groups

    The report counts rows by part, and rows in folders in which no row is in a group. `Where(include="split == 'train'")` keeps
    one of the parts.

    >>> from tamis import Pipeline, Rows
    >>> rows = [{"url": f"https://site{n % 50}.org/{n}"} for n in range(1000)]
    >>> split = Split(shares={"train": 0.8, "validation": 0.2}, by="url", domain=True)
    >>> table = Pipeline(Rows(rows), split).collect()
    >>> sites = {(row["url"].split("/")[2], row["split"]) for row in table.to_pylist()}
    >>> len(sites)
    50
    """

    shares: Mapping[str, float] = field(default_factory=lambda: {"train": 0.99, "validation": 0.01})
    by: str | None = None
    domain: bool = False
    groups: str | None = None
    seed: int = 0
    output: str = "split"

    path_parameters = frozenset({"groups"})

    def check(self) -> None:
        if not self.shares or not all(0 <= share < float("inf") for share in self.shares.values()):
            raise ParameterError("`shares` of `split` must not be negative", hint="{train: 0.99, validation: 0.01}")
        if not sum(self.shares.values()) > 0:
            raise ParameterError("all `shares` of `split` are 0")
        if self.domain and self.by is None:
            raise ParameterError("`domain` needs a column of URLs", hint='Split(by="url", domain=True)')
        if self.groups is not None:
            if self.by is not None:
                raise ParameterError("`split` has both `by` and `groups`")
            if not self._files():
                raise ParameterError(
                    f"there are no groups of duplicates in {self.groups}", hint="name the output of a deduplication"
                )

    def _files(self) -> list[File]:
        assert self.groups is not None
        store = Store(self.groups)
        names = [
            f"{self.groups.rstrip('/')}/{INTERNAL}/{GROUPS}/{name}" for name in store.names(f"{INTERNAL}/{GROUPS}")
        ]
        return list_files(names, "parquet", None) if names else []

    def reads(self) -> tuple[str, ...]:
        return () if self.by is None else (self.by,)

    def writes(self) -> tuple[str, ...]:
        return (self.output,)

    @property
    def resources(self) -> Resources:
        return Resources(memory=2 * CACHE_BYTES) if self.groups is not None else Resources()

    def identity(self) -> dict[str, Any]:
        known = super().identity()
        if self.groups is None:
            return known
        parameters = {name: value for name, value in known["parameters"].items() if name != "groups"}
        return known | {"parameters": parameters, "files": digest([fingerprint(file) for file in self._files()])}

    def open(self, context: Context) -> _Splitter:
        if self.groups is None:
            return _Splitter(self, None, None)
        files = self._files()
        named = _folders_in(files, context.shared_folder())
        folders = _Folders(named, self._base(named))
        return _Splitter(self, Lookup.of(context, files, "address", ["kept_address"]), folders)

    def _base(self, named: Sequence[str]) -> str:
        """The folder to which paths in the groups are relative: that in which the deduplication ran, if it has the files."""
        assert self.groups is not None
        manifest: dict[str, Any] = {}
        with suppress(LedgerError):
            manifest = load_manifest(self.groups)
        reader = json.dumps(manifest.get("recipe", {}).get("steps", [])[:1])
        if not named or '"file_paths"' not in reader:  # addresses of other sources are no paths
            return "."
        for base in (str(manifest.get("directory") or "."), "."):
            if any(not is_local(each) or Path(_real(each, base)).is_dir() for each in named):
                return base
        raise ParameterError(
            f"the groups in {self.groups} are of rows in {named[0]}, which does not exist",
            hint="deduplicate the input where it is now",
        )


# ------------------------------------------------------------------------------------------------------ paths in the groups


def _folders_in(files: Sequence[File], shared: Path) -> list[str]:
    """The folders of the rows in groups, as addresses there write them. Of several processes, one reads the groups."""
    folder = shared / f"folders-{digest([fingerprint(file) for file in files])}"

    def write() -> None:
        found: set[str] = set()
        for addresses in _addresses_in(files):
            found.update(pc.unique(_folders_of(addresses)).to_pylist())
        (folder / "folders.json").write_text(json.dumps(sorted(found)))

    once(folder, write)
    return [str(each) for each in json.loads((folder / "folders.json").read_text())]


def _folders_of(addresses: pa.Array) -> pa.Array:
    """
    >>> _folders_of(pa.array(["crawl/a.jsonl.gz@700:5", "/b.jsonl:8/2", "rows:3"])).to_pylist()
    ['crawl/', '/', '']
    """
    return pc.replace_substring_regex(addresses, _AFTER_FOLDER, "")


def _addresses_in(files: Sequence[File]) -> Iterator[pa.Array]:
    for file in files:
        with open_file(file.path) as opened:
            for batch in pq.ParquetFile(opened).iter_batches(columns=["address", "kept_address", "index"]):
                yield batch.column("address")
                yield batch.column("kept_address").filter(batch.column("index").is_null())  # others are in other input


def _real(folder: str, base: str) -> str:
    return os.path.realpath(Path(base) / local_path(folder)) if is_local(folder) else folder


class _Folders:
    """Writes places as the groups do, so that rows are found however the paths of the input are written."""

    def __init__(self, named: Sequence[str], base: str) -> None:
        self._named = {_real(folder, base): folder for folder in named}
        self._find = functools.lru_cache(maxsize=4096)(lambda folder: self._named.get(_real(folder, ".")))
        self.num_others = 0
        """Rows in other folders, whose places are unchanged."""

    def rewritten(self, origin: Origin) -> Origin:
        places = []
        for place, rows in zip(origin.places, np.bincount(origin.place, minlength=len(origin.places)), strict=True):
            folder, slash, name = place.rpartition("/")
            known = self._find(folder + slash)
            self.num_others += int(rows) if known is None else 0
            places.append(place if known is None else known + name)
        return replace(origin, places=tuple(places))


def _prefixed(letter: str, values: pa.Array) -> pa.Array:
    kind = pa.large_string()
    return pc.binary_join_element_wise(pa.scalar(letter, kind), values, pa.scalar("", kind))


class _Splitter:
    def __init__(self, step: Split, lookup: Lookup | None, folders: _Folders | None) -> None:
        self._step, self._lookup, self._folders = step, lookup, folders
        self._names = list(step.shares)
        total = sum(step.shares.values())
        self._ends = np.array(list(accumulate(step.shares.values()))) / total
        self._salt = salt_of(step.seed)
        self._counts: Counter[str] = Counter()

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        groups = self._groups(batch).dictionary_encode()
        hashes = [self._hash(name) for name in groups.dictionary.to_pylist()]
        parts = np.searchsorted(self._ends, np.array(hashes, np.float64), side="right").clip(max=len(self._names) - 1)
        chosen = parts[groups.indices.to_numpy(zero_copy_only=False)] if len(batch) else np.empty(0, np.int64)
        for number, rows in enumerate(np.bincount(chosen, minlength=len(self._names)).tolist()):
            if rows:
                self._counts[f"rows of {self._names[number]}"] += rows
        return {self._step.output: pa.array(self._names, pa.string()).take(pa.array(chosen, pa.int64()))}

    def _hash(self, group: str) -> float:
        found = hashlib.blake2b(group.encode("utf-8", "surrogatepass"), digest_size=8, key=self._salt).digest()
        return int.from_bytes(found, "little") / 2**64

    def _groups(self, batch: Batch) -> pa.Array:
        origin = batch.origin if self._folders is None else self._folders.rewritten(batch.origin)
        own = pa.array(origin.addresses(), pa.large_string())
        if self._lookup is not None:
            return self._linked(own)
        if self._step.by is None:
            return own
        values = as_array(batch[self._step.by])
        found = domains_of(values) if self._step.domain else values
        if pa.types.is_nested(found.type):
            raise ParameterError(f"column `{self._step.by}` has type {found.type}; groups need texts or numbers")
        # A null is a group of its own, and no value can be mistaken for an address: they begin with different characters.
        return pc.coalesce(_prefixed("v", found.cast(pa.large_string())), _prefixed("a", own))

    def _linked(self, rows: pa.Array) -> pa.Array:
        """The row that was kept instead of each, or itself."""
        assert self._lookup is not None
        for _ in range(MOST_LINKS):
            columns, known = self._lookup.find(rows)
            if not known.any():
                break
            rows = pc.coalesce(columns["kept_address"].cast(pa.large_string()), rows)
        return rows

    def take_counts(self) -> dict[str, float]:
        taken, self._counts = self._counts, Counter()
        if self._folders is not None and self._folders.num_others:
            taken["rows in folders without groups"] = self._folders.num_others
            self._folders.num_others = 0
        return {name: float(number) for name, number in taken.items()}
