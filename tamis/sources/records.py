"""Files whose records become rows one at a time: crawls, dumps, documents.

rows      the records of a piece of a file, each a `Row` with its address, or a `Failure`
read      collects them into batches of about `reading.batch_bytes`
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Failure, Origin
from tamis.errors import DamagedFile
from tamis.formats import codec_of
from tamis.media import MAX_BYTES
from tamis.operators import Partition, Piece, Reading
from tamis.sources.bytestream import plain_bytes
from tamis.sources.filesource import ByteSource, end_of
from tamis.sources.lines import Chunks

_READ_BYTES = 262_144
_ROW_BYTES = 200
"""An estimate of what a row takes besides its texts."""


@dataclass(frozen=True, slots=True)
class Row:
    """A record as a row: `place:position` is its address, and columns that are not in `values` are null."""

    place: str
    position: int
    values: Mapping[str, object]
    num_bytes: int = 0
    """What the row holds, or refers to, besides its texts."""


@dataclass(frozen=True)
class RecordSource(ByteSource):
    """A source that reads records in Python, one after the other."""

    def rows(self, piece: Piece, wanted: frozenset[str] | None, reading: Reading | None) -> Iterator[Row | Failure]:
        """The records of a piece. Columns that are not `wanted` need not be made; None means all of them."""
        raise NotImplementedError

    def stream_of(self, file: IO[bytes], piece: Piece, reading: Reading | None) -> Chunks:
        """The decoded bytes of a piece, and of what follows it."""
        if codec_of(piece.path) is None:
            return plain_bytes(file, piece)
        damaged = reading.damaged if reading is not None else frozenset()
        on_damage = reading.on_damage if reading is not None else None
        return self.chunks(file, piece, _READ_BYTES, damaged=damaged, on_damage=on_damage)

    def count_rows(self, piece: Piece, most: int) -> int:
        found = self.rows(piece, frozenset(), None)
        return sum(1 for _ in itertools.islice(found, most))

    def most_bytes(self, reading: Reading | None) -> int:
        """The most bytes that a record may have."""
        return min(MAX_BYTES, (reading.max_row_bytes if reading is not None else None) or MAX_BYTES)

    def read(self, partition: Partition, reading: Reading) -> Iterator[Batch]:
        names = self.wanted(reading)
        schema = self.file_schema(reading.schema)
        held: list[Row] = []
        size = 0
        for piece in self.pieces_to_read(partition, reading):
            try:
                found = self.rows(piece, None if names is None else frozenset(names), reading)
                for each in itertools.islice(found, piece.skip, end_of(piece)):
                    if isinstance(each, Failure):
                        reading.fail(each)
                        continue
                    held.append(each)
                    size += _ROW_BYTES + each.num_bytes
                    size += sum(len(v) for v in each.values.values() if isinstance(v, (str, bytes)))
                    if size >= reading.batch_bytes:
                        yield self._batch(held, schema, names)
                        held, size = [], 0
            except DamagedFile as error:
                self.fail_file(reading, piece.path, error)
        if held:
            yield self._batch(held, schema, names)

    def _batch(self, rows: list[Row], schema: pa.Schema, wanted: Sequence[str] | None) -> Batch:
        specs = [spec for spec in schema if wanted is None or spec.name in wanted]
        columns = {spec.name: pa.array([row.values.get(spec.name) for row in rows], spec.type) for spec in specs}
        places: dict[str, int] = {}
        index = np.array([places.setdefault(row.place, len(places)) for row in rows], np.int32)
        origin = Origin(tuple(places), index, np.array([row.position for row in rows], np.int64))
        return self.batch(pa.table(columns), origin)


def bad_record(step: str, place: str, position: int, error: str, *, damaged: str | None = None) -> Failure:
    """The failure of one record."""
    return Failure(f"{place}:{position}", step, error, damaged_file=damaged)
