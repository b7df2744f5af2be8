"""Packets: how rows pass from a stage to the next stage of its group, as Arrow files that the reader maps.

    worker of stage 1  --- writes a packet ---> /dev/shm or disk --- mapped ---> worker of stage 2
            |                                                                         ^
            +-- name, rows, bytes --> driver: queues, order, permission for more -----+

Files between two stages that both work on single packets lie in shared memory, and their bytes count in the budget: a worker
waits for the driver's permission before it writes more than its share. Files for the last stage are kept until the partition is
committed, so that a worker that dies while it writes shards costs only that writing. They lie in shared memory as far as each
partition's share of it goes, and on disk beyond that.

After a packet that ends with a whole batch of its input, a worker reports a *safe point*: the next row to read, and the account
up to there. If it dies, the next worker begins at the last safe point and skips the rows that were handed on since, because the
rows that a stage returns do not depend on how they are divided into batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from tamis.batch import Batch, bytes_of
from tamis.executors.regroup import joined
from tamis.executors.segments import Segment
from tamis.executors.steps import Applied, Types
from tamis.executors.tasks import PACKET_ROWS, Emission, Packet
from tamis.mapped import SPILL
from tamis.media import MediaAccess
from tamis.memory import spill
from tamis.operators import Layout, Partition, Piece, Reading, Source

METADATA_BYTES = 100_000
"""More than what an Arrow file takes beside its columns."""

ENOUGH = 0.5
"""At the end of a batch of input, rows are handed on if they fill at least this share of a packet."""


class Stream(Protocol):
    """What a worker tells the driver while it hands on rows."""

    def packet(self, packet: Packet) -> None:
        """A packet is complete."""

    def wait(self) -> None:
        """Return once another packet may be written."""

    def safe(self, segment: Segment) -> None:
        """Everything before `segment.next_row` is handed on."""


@dataclass(frozen=True, kw_only=True)
class PacketRows(Source):
    """Reads the packets that the stage before wrote; each is a piece of the partition."""

    internal = True

    access: MediaAccess | None = None

    @property
    def name(self) -> str:
        return PACKET_ROWS

    def layout(self, blocksize: int) -> Layout:
        raise NotImplementedError("packets are made by the stage before")

    def read(self, partition: Partition, reading: Reading) -> Iterator[Batch]:
        for number, piece in enumerate(partition.pieces):
            reading.on_piece(number)
            with pa.memory_map(piece.path) as file:
                reader = pa.ipc.open_file(file)
                for index in range(reader.num_record_batches):
                    yield from spill.batches_of(pa.table(reader.get_batch(index)), reading.batch_bytes, self.access)


def partition_of(index: int, packets: list[Packet]) -> Partition:
    """Packets as a partition for `PacketRows`."""
    pieces = tuple(Piece(packet.path, 0, packet.rows, packet.num_bytes) for packet in packets)
    return Partition(index, pieces, identity="")


class PacketWriter:
    """Hands the rows of a task to the next stage: joins small batches, and cuts large ones."""

    def __init__(self, emission: Emission, stream: Stream, clock: Callable[[], float] = time.perf_counter) -> None:
        self._emission, self._stream, self._clock = emission, stream, clock
        self._waiting: list[Batch] = []
        self._waiting_bytes = self._waiting_rows = 0
        self._number = 0
        self._credits = emission.credits
        self._first_bytes = emission.first_bytes
        self.skip = emission.skip
        self.waited_s = 0.0

    def write(self, batch: Batch) -> None:
        if self.skip:
            skipped = min(self.skip, len(batch))
            self.skip -= skipped
            batch = batch.select(slice(skipped, None))
        if not len(batch):
            return
        if self._waiting and batch.table.schema != self._waiting[0].table.schema:
            self._flush()
        for piece in self._pieces(batch):
            self._waiting.append(piece)
            self._waiting_bytes += piece.num_bytes
            self._waiting_rows += len(piece)
            if self._is_full(1.0):
                self._flush()

    def observe(self, batch: Batch) -> Applied:
        raise AssertionError("a stage that hands on its rows does not end with a Gather")

    def is_safe(self) -> bool:
        """At the end of a batch of input: whether all rows were handed on. Hands on what fills most of a packet."""
        if self._is_full(ENOUGH):
            self._flush()
        return not self._waiting

    def close(self, segment: Segment, schema: pa.Schema | None, types: dict[int, Types]) -> None:
        self._flush()

    def abandon(self) -> None:
        self._waiting = []

    def _is_full(self, share: float) -> bool:
        rows = self._emission.packet_rows
        return self._waiting_bytes >= share * self._emission.packet_bytes or (
            rows is not None and self._waiting_rows >= share * rows
        )

    def _pieces(self, batch: Batch) -> Iterator[Batch]:
        """The batch, in pieces that do not make a packet much larger than it should be."""
        most = max(1, len(batch) * self._emission.packet_bytes // max(1, batch.num_bytes))
        if self._emission.packet_rows is not None:
            most = min(most, self._emission.packet_rows)
        start = 0
        while start < len(batch):
            rows = most
            if self._emission.packet_rows is not None:
                rows = min(rows, self._emission.packet_rows - self._waiting_rows)
            yield batch.select(slice(start, start + rows))
            start += rows

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = spill.with_addresses(joined(self._waiting))
        rows = self._waiting_rows
        self._waiting, self._waiting_bytes, self._waiting_rows = [], 0, 0
        self._await_credit()
        path = Path(self._folder_for(table)) / f"{self._emission.stem}-{self._number:06d}{SPILL}"
        self._number += 1
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
        size = path.stat().st_size
        self._first_bytes -= size
        self._stream.packet(Packet(str(path), rows, size))

    def _folder_for(self, table: pa.Table) -> str:
        first = self._emission.first_folder
        fits = first is not None and bytes_of(table) + METADATA_BYTES <= self._first_bytes
        return first if first is not None and fits else self._emission.folder

    def _await_credit(self) -> None:
        if self._credits is None:
            return
        if not self._credits:
            began = self._clock()
            self._stream.wait()
            self._credits += 1
            self.waited_s += self._clock() - began
        self._credits -= 1
