"""The packets between the stages of a group: where they are written, how much memory they take, and who may write more.

    pool 1 -> packets in shared memory -> pool 2 -> packets in shared memory, then on disk -> pool 3

A worker that writes to shared memory needs a credit for each packet, so that packets stay within the budget. Those for the
last stage wait until their partition is complete; they are written to disk once the partition has used its share of memory.
"""

from __future__ import annotations

import uuid
from collections import Counter

from tamis.executors.crew import Crew
from tamis.executors.flows import Flow, Job, Pool, Unit
from tamis.executors.folders import Folders
from tamis.executors.tasks import Emission, Group, Packet
from tamis.memory.budget import StreamBudget


class Edges:
    """The packets of one group; without `stream`, a group of one stage, which has none."""

    def __init__(self, crew: Crew, group: Group, stream: StreamBudget | None, max_flows: int) -> None:
        self.crew, self.group, self.stream, self.max_flows = crew, group, stream, max_flows
        self._shared: Counter[str | None] = Counter()
        """By node, bytes of packets in shared memory, without those for the last stage."""
        self._last_bytes = 0
        """Bytes of packets for the last stage in shared memory."""

    @property
    def shared_bytes(self) -> int:
        return sum(self._shared.values())

    @property
    def memory_bytes(self) -> int:
        return self.shared_bytes + self._last_bytes

    def next_is_shared(self, pool: Pool) -> bool:
        """Whether the packets of a pool lie in shared memory: all but those for the last stage."""
        return pool.stage.pool + 2 < len(self.group.stages)

    def emission(self, pool: Pool, unit: Unit) -> Emission:
        """Where and how a worker writes the packets of a unit."""
        assert self.stream is not None
        shared = self.next_is_shared(pool)
        following = self.group.stages[pool.stage.pool + 1]
        rows = [op.batch_rows for op in following.operators if op.batch_rows is not None]
        folders = self._folders(unit.flow)
        return Emission(
            folder=str(folders.shared if shared else folders.disk),
            first_folder=None if shared else str(folders.shared),
            first_bytes=0 if shared else self._last_bytes_left(unit.flow),
            stem=f"{unit.flow.index:06d}-{pool.stage.pool}-{uuid.uuid4().hex[:12]}",
            packet_bytes=self.stream.pools[pool.stage.pool].packet_bytes,
            packet_rows=min(rows, default=None),
            credits=1 if shared else None,
            skip=unit.skip + unit.handed_on,
        )

    def _last_bytes_left(self, flow: Flow) -> int:
        """What the packets of a partition for the last stage may still take in shared memory: each has an equal share."""
        assert self.stream is not None
        used = sum(packet.num_bytes for _, packet in flow.packets if self._in_memory(flow, packet))
        return max(0, self.stream.last_edge_bytes // self.max_flows - used)

    def _folders(self, flow: Flow) -> Folders:
        assert flow.place is not None
        return self.crew.folders_on(flow.place)

    def _in_memory(self, flow: Flow, packet: Packet) -> bool:
        return self._folders(flow).in_memory(packet.path)

    # -------------------------------------------------------------------------------------------------- adding and removing

    def add_shared(self, flow: Flow, packet: Packet) -> None:
        """Count a packet for a stage before the last."""
        self._shared[flow.place] += packet.num_bytes

    def add_last(self, flow: Flow, key: tuple[int, ...], packet: Packet) -> None:
        """Keep a packet for the last stage, which reads those of a partition together in the order of their keys."""
        flow.packets.append((key, packet))
        self._last_bytes += packet.num_bytes if self._in_memory(flow, packet) else 0

    def remove_shared(self, flow: Flow, packet: Packet) -> None:
        """Remove a packet that its stage has processed."""
        assert flow.place is not None
        self.crew.remove_packets(flow.place, [packet.path])
        self._shared[flow.place] -= packet.num_bytes

    def remove_unreported(self, job: Job) -> None:
        """Remove a packet that a worker was writing when it was killed."""
        emission, node = job.task.emission, job.unit.flow.place
        if emission is not None and node is not None:
            self.crew.remove_other_packets(node, emission.stem, job.reported)

    def discard(self, flow: Flow) -> None:
        """Remove the files of a flow that is abandoned, or complete."""
        if flow.place is not None:
            between = [unit.packet for units in flow.units for unit in units if unit.packet is not None]
            last = [packet for _, packet in flow.packets]
            self._shared[flow.place] -= sum(packet.num_bytes for packet in between)
            self._last_bytes -= sum(packet.num_bytes for packet in last if self._in_memory(flow, packet))
            self.crew.remove_packets(flow.place, [packet.path for packet in [*last, *between]])
        for segment in flow.segments:
            segment.discard()
        flow.packets = []

    def grant(self) -> None:
        """Let workers write more packets as long as they fit."""
        if self.stream is None:
            return
        jobs = [(worker, worker.job) for worker in self.crew.workers if worker.job is not None]
        emitting = [(w, job) for w, job in jobs if job.task.emission and job.task.emission.credits is not None]
        reserved: Counter[str] = Counter()
        sizes = [emission.packet_bytes for _, job in emitting if (emission := job.task.emission) is not None]
        for (worker, job), size in zip(emitting, sizes, strict=True):
            reserved[worker.place] += job.credits * size
        for (worker, job), size in zip(emitting, sizes, strict=True):
            if job.credits or job.unit.flow.abandoned:
                continue
            wanted = self._shared[worker.place] + reserved[worker.place] + size
            fits = wanted <= self.stream.edge_bytes
            # A partition that has nothing on its way may always continue, so that the group cannot come to a standstill.
            if fits or not job.unit.flow.units[job.unit.stage + 1]:
                job.credits += 1
                reserved[worker.place] += size
                worker.send("credit", 1)
