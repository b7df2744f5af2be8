"""A sink that writes no rows: the output folder has only the report and the groups of duplicates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tamis.operators import Shard, ShardWriter, Sink


@dataclass(frozen=True)
class GroupsOnly(Sink):
    """Counts rows without writing them. The report, the groups of duplicates and the ledger are in `path`."""

    path: str
    fields: tuple[str, ...] = ()
    mode: str = "resume"

    needs_rows = False

    @property
    def folder(self) -> str:
        return self.path

    def open_shard(self, folder: Path, stem: str, schema: pa.Schema) -> ShardWriter:
        return _NoShards()


class _NoShards:
    def write(self, table: pa.Table) -> None:
        pass

    def close(self) -> list[Shard]:
        return []
