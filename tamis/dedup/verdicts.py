"""A sink for those who only want to know: rows are counted, nothing is written but what a deduplication found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tamis.operators import Shard, ShardWriter, Sink


@dataclass(frozen=True)
class Verdicts(Sink):
    """Takes rows and writes none; the report, the groups and the record of the run lie in `path`."""

    path: str
    fields: tuple[str, ...] = ()
    mode: str = "resume"

    @property
    def folder(self) -> str:
        return self.path

    def open(self, folder: Path, stem: str, schema: pa.Schema) -> ShardWriter:
        return _Nothing()


class _Nothing:
    def write(self, table: pa.Table) -> None:
        pass

    def close(self) -> list[Shard]:
        return []
