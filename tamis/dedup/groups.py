"""What a deduplication found, to be questioned: who went in whose favour, how alike they are, and who just stayed."""

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

from tamis.dedup.decisions import DETAILS, GROUP_SCHEMA, GROUPS, NEAR_MISSES, stage_number
from tamis.errors import TamisError
from tamis.store import INTERNAL, TABLE, Store

_PAIR = (
    "id",
    "kept_id",
    "address",
    "kept_address",
    "similarity",
    "bands",
    "short",
    "index",
    "unit",
    "kept_unit",
    "bytes",
)


@dataclass(frozen=True)
class Groups:
    """The groups of duplicates in the output of a run. Reads Parquet in a stream; nothing is loaded to stay.

    >>> Groups.load("clean/").explain("doc-17")                  # doctest: +SKIP
    """

    store: Store
    summaries: dict[str, dict[str, Any]]
    """What each deduplicating step of the pipeline found in all, by stage."""

    @staticmethod
    def load(output: str | Path, storage_options: Mapping[str, Any] | None = None) -> Groups:
        """The groups of the last deduplication in an output folder, on a local disk or in an object store."""
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

    @property
    def summary(self) -> dict[str, Any]:
        """What the last step found in all."""
        return list(self.summaries.values())[-1]

    def table(self) -> pa.Table:
        """All rows that went, with their twins."""
        found = self._dataset(GROUPS)
        return found.to_table() if found is not None else pa.table({})

    def explain(self, name: str) -> list[dict[str, Any]]:
        """What became of the row with this id or address: why it went, what went in its favour, what it nearly went for."""
        entries = []
        for folder, fate in ((GROUPS, "dropped"), (NEAR_MISSES, "near miss")):
            found = self._dataset(folder)
            if found is None:
                continue
            for columns, role in ((("id", "address"), fate), (("kept_id", "kept_address"), "kept")):
                if role == "kept" and folder == NEAR_MISSES:
                    continue
                names_of = [pc.field(column) == name for column in columns if column in found.schema.names]
                condition = names_of[0] if len(names_of) == 1 else names_of[0] | names_of[1]
                rows = found.to_table(filter=condition).to_pylist()
                entries += [{"fate": role} | {key: row[key] for key in _PAIR if key in row} for row in rows]
        return entries

    def closest(self, count: int = 10) -> dict[str, list[dict[str, Any]]]:
        """The closest calls: rows that went with the lowest similarity, and rows that stayed with the highest."""
        result = {}
        for side, folder, order in (("above", GROUPS, "ascending"), ("below", NEAR_MISSES, "descending")):
            found = self._dataset(folder)
            rows: list[dict[str, Any]] = []
            if found is not None and "similarity" in found.schema.names:
                keys = [("similarity", order), ("address", "ascending")]
                best: pa.Table | None = None
                for batch in found.to_batches():
                    table = pa.Table.from_batches([batch])
                    both = pa.concat_tables([best, table], promote_options="permissive") if best is not None else table
                    best = both.take(pc.sort_indices(both, sort_keys=keys)[:count])
                rows = best.to_pylist() if best is not None else []
            result[side] = [{key: row[key] for key in _PAIR if key in row} for row in rows]
        return result

    def largest(self, count: int = 10) -> list[dict[str, Any]]:
        """The rows in whose favour most others went: address (and id), and the size of the group."""
        found = self._dataset(GROUPS)
        if found is None:
            return []
        keys = ["kept_address", *(["kept_id"] if "kept_id" in found.schema.names else [])]
        counted = found.to_table(columns=keys).group_by(keys).aggregate([([], "count_all")])
        order = pc.sort_indices(counted, sort_keys=[("count_all", "descending"), ("kept_address", "ascending")])
        return [
            {"size": row["count_all"] + 1} | {key: row[key] for key in keys}
            for row in counted.take(order[:count]).to_pylist()
        ]

    def histogram(self) -> dict[int, int]:
        """How many groups there are of each size, the row that stays counted."""
        return {int(size): count for size, count in self.summary.get("group_sizes", {}).items()}

    def _dataset(self, name: str) -> ds.Dataset | None:
        folders = [f"{INTERNAL}/{GROUPS}"]
        if name == NEAR_MISSES:
            folders = [f"{INTERNAL}/{DETAILS}/{stage}/{NEAR_MISSES}" for stage in self.summaries]
        found = [f"{folder}/{file}" for folder in folders for file in self.store.names(folder)]
        from fsspec.core import url_to_fs

        system, root = url_to_fs(self.store.root, **self.store.storage_options)
        files = [f"{root.rstrip('/')}/{file}" for file in found if file.endswith(TABLE)]
        if not files:
            return None
        # Some files of the input may have ids and others not.
        names_of = any("id" in pq.read_schema(file, filesystem=system).names for file in files)
        schema = pa.schema([spec for spec in GROUP_SCHEMA if names_of or not spec.name.endswith("id")])
        return ds.dataset(files, schema=schema, filesystem=system, format="parquet")
