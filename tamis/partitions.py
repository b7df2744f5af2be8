"""What sources read and sinks write: pieces of files, partitions, and shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from tamis.batch import Failure


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a file that can be read on its own: a range of bytes or of row groups."""

    path: str
    start: int
    stop: int
    size: int = 0
    """Estimated bytes in memory."""
    limit: int | None = None
    """The maximum number of rows to read, after those that are skipped."""
    skip: int = 0
    """Rows at the beginning that are not read."""


@dataclass(frozen=True)
class Partition:
    """Consecutive pieces that are read, processed and committed together."""

    index: int
    pieces: tuple[Piece, ...]
    identity: str
    """Changes when the content of the pieces changes."""

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)


@dataclass(frozen=True)
class Reading:
    """How a source reads: which columns, how many bytes at a time, and where to report bad rows."""

    columns: tuple[str, ...] | None
    schema: pa.Schema
    batch_bytes: int
    fail: Callable[[Failure], None]
    keep_lines: bool = False
    """Add the line that each row was read from, in the column `tamis.batch.LINE`."""
    max_row_bytes: int | None = None
    """Larger rows fail with an error that gives their size, because they do not fit in memory."""
    damaged: frozenset[str] = frozenset()
    """Frames of compressed files, by place, that an earlier attempt found to be damaged: their rows are failed."""
    on_damage: Callable[[str], None] | None = None
    """Called with the place of each damaged frame that is not in `damaged`; what was read is then read again."""
    unreadable: Mapping[int, str] = field(default_factory=dict)
    """Pieces of the partition, by number, that crash their reader, and how: they are failed and not read."""
    on_piece: Callable[[int], None] = lambda number: None
    """Called with the number of each piece before it is read."""
    chosen: np.ndarray | None = None
    """The rows to read, as a mask by row number; only for sources that `can_choose_rows`, and if no row is bad."""


@dataclass(frozen=True)
class Layout:
    """The columns and partitions of a source, and the reasons for them."""

    schema: pa.Schema
    partitions: tuple[Partition, ...]
    reasons: Mapping[str, str] = field(default_factory=dict)
    num_files: int = 0
    num_bytes: int = 0
    damaged_files: Mapping[str, str] = field(default_factory=dict)
    """Files that could not be opened or understood, with the error of each; no partition reads them."""
    num_rows: int | None = None
    """If the source knows it without reading the rows."""


@dataclass(frozen=True)
class Shard:
    """An output file, as recorded in the ledger."""

    name: str
    rows: int
    size: int
    schema: str = ""
    """Its columns and types, as a base64-encoded Arrow schema; empty for formats without types."""
    checksum: str = ""
    """Of the bytes of the file, as `tamis.store.checksum_of` computes it."""


class ShardWriter(Protocol):
    """Writes the rows of one partition to one or more files in a folder."""

    def write(self, table: pa.Table) -> None: ...

    def close(self) -> list[Shard]: ...


class CopyingWriter(ShardWriter, Protocol):
    """A writer of a sink that `can_copy_rows`."""

    def as_stored(self, table: pa.Table) -> pa.Table:
        """Rows in the form of `Sink.stored_rows`."""
        ...

    def append(self, table: pa.Table) -> None:
        """Append rows in that form."""
        ...
