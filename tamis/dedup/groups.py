"""Read the groups of duplicates that a run recorded: dropped rows with the rows kept instead, and near misses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tamis.dedup.decisions import GROUP_SCHEMA, NEAR_MISSES
from tamis.errors import TamisError
from tamis.gathering import DETAILS, GROUPS, stage_number
from tamis.inert import html_table, inert
from tamis.store import INTERNAL, TABLE, Store

_PAIR = (
    "id",
    "kept_id",
    "address",
    "kept_address",
    "similarity",
    "bands",
    "distance",
    "bits",
    "error",
    "offset",
    "short",
    "index",
    "unit",
    "kept_unit",
    "bytes",
    "start",
    "kept_start",
)

_REPEATS = 8
"""A pair of images may be recorded several times, by different parts of their hashes."""


@dataclass(frozen=True)
class Groups:
    """The groups of duplicates in the output of a run, read from disk in a stream.

    Methods with a `stage` look at the deduplication of that stage, or at all of them.

    >>> Groups.load("clean/").explain("doc-17")                  # doctest: +SKIP
    """

    store: Store
    summaries: dict[str, dict[str, Any]]
    """The summary of each deduplication step of the pipeline, by stage, in order."""

    @staticmethod
    def load(output: str | Path, storage_options: Mapping[str, Any] | None = None) -> Groups:
        """The groups in an output folder, on a local disk or in an object store."""
        store = Store(str(output), storage_options)
        details = f"{INTERNAL}/{DETAILS}"
        texts = {
            name: store.read(f"{details}/{name}/summary.json")
            for name in sorted(store.names(details), key=stage_number)
        }
        summaries = {name: json.loads(text) for name, text in texts.items() if text is not None}
        if not summaries:
            raise TamisError(
                f"there are no groups of duplicates in {output}", hint="name the output folder of a deduplication"
            )
        return Groups(store, summaries)

    def __repr__(self) -> str:
        steps = ", ".join(
            f"{each['step']}: {each.get('groups', 0):,} groups, {each.get('dropped', 0):,} rows dropped"
            for each in self.summaries.values()
        )
        return f"<Groups in {inert(self.store.root)}; {inert(steps)}>"

    def _repr_html_(self) -> str:
        rows = [
            (each["step"], f"{each.get('rows', 0):,}", f"{each.get('groups', 0):,}", f"{each.get('dropped', 0):,}")
            for each in self.summaries.values()
        ]
        largest = [
            (f"{group['size']:,}", group.get("kept_id") or "", group["kept_address"]) for group in self.largest(5)
        ]
        return html_table(
            ["step", "rows", "groups", "dropped"], rows, right=[1, 2, 3], caption=f"duplicates in {self.store.root}"
        ) + html_table(["rows", "kept id", "kept address"], largest, right=[0], caption="largest groups")

    @property
    def summary(self) -> dict[str, Any]:
        """The summary of the last deduplication step."""
        return list(self.summaries.values())[-1]

    def table(self, stage: str | None = None) -> pa.Table:
        """All dropped rows, each with the row kept instead."""
        found = self._dataset(GROUPS, stage)
        return found.to_table() if found is not None else pa.table({})

    def explain(self, name: str) -> list[dict[str, Any]]:
        """What each step found about the rows with this id or address, in the order of the steps.

        `fate` is "dropped", "cut" (a unit of the row), "kept" (another row was dropped as its duplicate) or "near miss".
        """
        entries = []
        for stage, summary in self.summaries.items():
            step = {"stage": stage, "step": summary["step"]}
            for row in self._find(GROUPS, stage, name, ""):
                entries.append({"fate": "dropped" if row["dropped"] else "cut", **step, **_pair(row)})
            for row in self._find(GROUPS, stage, name, "kept_"):
                if row["index"] is None:  # addresses of an index belong to another input
                    entries.append({"fate": "kept", **step, **_pair(row)})
            entries += [{"fate": "near miss", **step, **_pair(row)} for row in self._find(NEAR_MISSES, stage, name, "")]
        return entries

    def _find(self, kind: str, stage: str, name: str, prefix: str) -> list[dict[str, Any]]:
        found = self._dataset(kind, stage)
        if found is None:
            return []
        condition = pc.field(f"{prefix}address") == name
        if f"{prefix}id" in found.schema.names:
            condition |= pc.field(f"{prefix}id") == name
        return found.to_table(filter=condition).to_pylist()

    def closest(self, count: int = 10, stage: str | None = None) -> dict[str, list[dict[str, Any]]]:
        """The closest calls: dropped rows with the lowest similarity, and kept rows with the highest."""
        result = {}
        for side, kind, order in (("above", GROUPS, "ascending"), ("below", NEAR_MISSES, "descending")):
            found = self._dataset(kind, stage)
            rows: list[dict[str, Any]] = []
            if found is not None:
                keys = [("similarity", order), ("address", "ascending")]
                best: pa.Table | None = None
                for batch in found.to_batches():
                    table = pa.Table.from_batches([batch])
                    both = pa.concat_tables([best, table], promote_options="permissive") if best is not None else table
                    best = both.take(pc.sort_indices(both, sort_keys=keys)[: _REPEATS * count])
                rows = best.to_pylist() if best is not None else []
            pairs = {(row["address"], row["unit"], row["kept_address"]): _pair(row) for row in reversed(rows)}
            result[side] = list(reversed(pairs.values()))[:count]
        return result

    def members(self, kept_address: str, count: int, stage: str | None = None) -> list[dict[str, Any]]:
        """Some rows that were dropped as duplicates of a kept row, the least similar first."""
        found = self._dataset(GROUPS, stage)
        if found is None:
            return []
        table = found.to_table(filter=pc.field("kept_address") == kept_address)
        order = pc.sort_indices(table, sort_keys=[("similarity", "ascending"), ("row", "ascending")])
        return [_pair(row) for row in table.take(order[:count]).to_pylist()]

    def largest(self, count: int = 10, stage: str | None = None) -> list[dict[str, Any]]:
        """The kept rows with the most duplicates: address (and id), and the size of the group."""
        found = self._dataset(GROUPS, stage)
        if found is None:
            return []
        keys = ["kept_address", *(["kept_id"] if "kept_id" in found.schema.names else [])]
        counted = found.to_table(columns=keys).group_by(keys).aggregate([([], "count_all")])
        order = pc.sort_indices(counted, sort_keys=[("count_all", "descending"), ("kept_address", "ascending")])
        return [
            {"size": row["count_all"] + 1} | {key: row[key] for key in keys}
            for row in counted.take(order[:count]).to_pylist()
        ]

    def histogram(self, stage: str | None = None) -> dict[int, int]:
        """How many groups there are of each size, including the kept row."""
        sizes: dict[int, int] = {}
        for name, summary in self.summaries.items():
            if stage in (None, name):
                for size, count in summary.get("group_sizes", {}).items():
                    sizes[int(size)] = sizes.get(int(size), 0) + count
        return dict(sorted(sizes.items()))

    def _dataset(self, kind: str, stage: str | None) -> ds.Dataset | None:
        stages = [name for name in self.summaries if stage in (None, name)]
        if kind == GROUPS:
            folder = f"{INTERNAL}/{GROUPS}"
            numbers = {stage_number(name) for name in stages}
            names = [f"{folder}/{file}" for file in self.store.names(folder) if stage_number(file) in numbers]
        else:
            folders = [f"{INTERNAL}/{DETAILS}/{name}/{NEAR_MISSES}" for name in stages]
            names = [f"{folder}/{file}" for folder in folders for file in self.store.names(folder)]
        from fsspec.core import url_to_fs

        system, root = url_to_fs(self.store.root, **self.store.storage_options)
        files = [f"{root.rstrip('/')}/{name}" for name in names if name.endswith(TABLE)]
        if not files:
            return None
        # Some files of the input may have ids and others not.
        has_ids = any("id" in pq.read_schema(file, filesystem=system).names for file in files)
        schema = pa.schema([spec for spec in GROUP_SCHEMA if has_ids or not spec.name.endswith("id")])
        return ds.dataset(files, schema=schema, filesystem=system, format="parquet")


def _pair(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in _PAIR if key in row}
