"""Reading a source without a pipeline, and compressing bytes in every way that can be read."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

from tamis.batch import Failure
from tamis.operators import Layout, Reading, Source


@dataclass
class Found:
    """Everything a source gave, in order."""

    layout: Layout
    rows: list[dict[str, Any]] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    types: dict[str, set[str]] = field(default_factory=dict)


def _read_all(
    source: Source, *, blocksize: int = 10**9, batch_bytes: int = 10**7, columns: tuple[str, ...] | None = None
) -> Found:
    source.check()
    layout = source.layout(blocksize)
    found = Found(layout)
    for partition in layout.partitions:
        damaged: set[str] = set()
        while True:  # as workers do: a partition in which damage is found is read again
            before = len(damaged)
            failures: list[Failure] = []
            reading = Reading(columns, layout.schema, batch_bytes, failures.append, damaged=frozenset(damaged))
            batches = list(source.read(partition, replace(reading, on_damage=damaged.add)))
            if len(damaged) == before:
                break
        found.failures += failures
        for batch in batches:
            assert len(batch) > 0
            found.rows += batch.rows()
            found.addresses += [batch.origin.address(row) for row in range(len(batch))]
            found.batches.append(len(batch))
            for spec in batch.table.schema:
                found.types.setdefault(spec.name, set()).add(str(spec.type))
    return found


class _Kept(io.BytesIO):
    def close(self) -> None:
        """Arrow closes what it wrote to; the bytes are still wanted."""


def _compress(codec: str, data: bytes) -> bytes:
    if codec in ("zst", "lz4"):
        sink = _Kept()
        with pa.CompressedOutputStream(pa.PythonFile(sink, "w"), {"zst": "zstd", "lz4": "lz4"}[codec]) as stream:
            stream.write(data)
        return sink.getvalue()
    return {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[codec](data)


@pytest.fixture(scope="session")
def read_all() -> Callable[..., Found]:
    return _read_all


@pytest.fixture(scope="session")
def compress() -> Callable[[str, bytes], bytes]:
    return _compress
