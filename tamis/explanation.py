"""A plan as text and as data, for users who want to know what a run would do."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tamis.executors.estimate import estimate
from tamis.executors.tasks import Group
from tamis.functions import Function
from tamis.inert import html_text, inert
from tamis.memory.budget import StreamBudget, stream_budget
from tamis.memory.governor import Learned
from tamis.operators import Gather, Operator, Reorder
from tamis.parameters import as_text, format_bytes, plural
from tamis.plan import Plan


class Explanation:
    """A plan as text and as data: stages, partitions, memory, and columns to read."""

    def __init__(self, plan: Plan, learned: Learned | None = None) -> None:
        self._plan = plan
        self._learned = learned or Learned()
        self.estimate = estimate(plan.groups, plan.layout, plan.budget, learned)
        self.notes = plan.notes
        self.workers = plan.workers_for(len(plan.layout.partitions), self._learned)
        self.reasons = dict(plan.reasons)
        if self.workers < plan.budget.workers:
            self.reasons["workers"] = f"{self.workers}: one per partition (at most {plan.reasons['workers']})"
        elif self.workers > plan.budget.workers:
            self.reasons["workers"] = f"{self.workers}: those of stages that run at the same time"

    def as_dict(self) -> dict[str, Any]:
        plan = self._plan
        return {
            "stages": [
                {
                    "stage": stage.index + 1,
                    "source": stage.source.name,
                    "operators": [op.name for op in stage.operators],
                    "end": stage.end.name if stage.end else None,
                    "applies": stage.fates_of.name if stage.fates_of else None,
                    "spills_rows": stage.spills_rows,
                    "device": "gpu" if any(each.slots_needed.any for each in group.stages) else "cpu",
                    "moves": moves(group),
                    "pools": self._pools(group),
                }
                for group in plan.groups
                for stage in (group.whole,)
            ],
            "partitions": len(plan.layout.partitions),
            "files": plan.layout.num_files,
            "bytes": plan.layout.num_bytes,
            "columns": list(plan.stages[0].columns) if plan.stages[0].columns is not None else None,
            "schema": {
                name: str(kind) for name, kind in zip(plan.layout.schema.names, plan.layout.schema.types, strict=True)
            },
            "memory_bytes": plan.budget.total_bytes,
            "workers": self.workers,
            "batch_bytes": plan.budget.batch_bytes,
            "blocksize": plan.blocksize,
            "gpus": [{"gpu": gpu.name, "budget_bytes": gpu.budget_bytes} for gpu in plan.budget.gpus],
            "output": plan.store.root if plan.sink else None,
            "estimate": self.estimate.as_dict(),
            "reasons": self.reasons,
            "hints": list(plan.hints),
            "notes": list(plan.notes),
        }

    def __repr__(self) -> str:
        return f"<Explanation>\n{inert(self)}"

    def _repr_html_(self) -> str:
        return html_text(self)

    def __str__(self) -> str:
        plan = self._plan
        lines = [
            f"reads    {plural(plan.layout.num_files, 'file')}, {format_bytes(plan.layout.num_bytes)}, "
            f"in {plural(len(plan.layout.partitions), 'partition')}"
        ]
        if plan.layout.schema.names:
            lines.append(f"columns  {_shorten(plan.layout.schema.names)}")
        for group in plan.groups:
            stage = group.whole
            lines.append(f"stage {stage.index + 1}")
            if stage.only_counts:
                lines.append("  count    rows, by the decisions about them")
            else:
                lines.append(f"  read     {stage.source.name}" + (" (again)" if stage.reads_again else ""))
            if stage.fates_of is not None:
                lines.append(f"  apply    {stage.fates_of.name}")
            lines += [f"  {op.kind:<8} {op.name} {_parameters(op)}".rstrip() for op in stage.operators]
            if stage.end is not None:
                verb = (
                    "sort"
                    if isinstance(stage.end, Reorder)
                    else "observe"
                    if isinstance(stage.end, Gather)
                    else "write"
                )
                lines.append(f"  {verb:<8} {stage.end.name} {_parameters(stage.end)}".rstrip())
            lines += _device_lines(group)
            if group.streams:
                lines += self._pool_lines(group)
        lines.append(str(self.estimate))
        lines += [f"{name:<13} {reason}" for name, reason in self.reasons.items()]
        lines += [f"note: {note}" for note in plan.notes]
        lines += [f"hint: {hint}" for hint in plan.hints]
        return "\n".join(lines)

    def _stream(self, group: Group) -> StreamBudget:
        return stream_budget(self._plan.budget, group.needs(self._learned))

    def _pools(self, group: Group) -> list[dict[str, Any]]:
        """Stages that run at the same time, each with workers of its own."""
        if not group.streams:
            return []
        found = self._stream(group)
        last = len(group.stages) - 1
        last_edge = "shared memory and disk" if found.last_edge_bytes else "disk"
        return [
            {
                "steps": [step.name for step in stage.steps],
                "device": "gpu" if share.slots else "cpu",
                "gpu_slots": [{"gpus": slot.names, "gpu_bytes": slot.gpu_bytes} for slot in share.slots],
                "most_workers": share.most,
                "worker_bytes": share.worker_bytes,
                "hands_on": None if number == last else last_edge if number == last - 1 else "shared memory",
                "packet_bytes": None if number == last else share.packet_bytes,
            }
            for number, (stage, share) in enumerate(zip(group.stages, found.pools, strict=True))
        ]

    def _pool_lines(self, group: Group) -> Iterator[str]:
        yield (
            f"  at the same time, with at most {format_bytes(self._stream(group).edge_bytes)} of rows in shared memory "
            "between them:"
        )
        for pool in self._pools(group):
            line = f"    {' > '.join(pool['steps'])}: up to {plural(pool['most_workers'], 'worker')} "
            line += f"of {format_bytes(pool['worker_bytes'])}"
            if pool["device"] == "gpu":
                line += f" on GPU {_slots_text(pool['gpu_slots'])}"
            if pool["hands_on"]:
                line += f", packets of {format_bytes(pool['packet_bytes'])} through {pool['hands_on']}"
            yield line


def moves(group: Group) -> list[dict[str, Any]]:
    """Where rows go from a CPU worker to a GPU worker or back, by the first step after it."""
    found = []
    for before, after in itertools.pairwise(group.stages):
        here, there = ("gpu" if stage.slots_needed.any else "cpu" for stage in (before, after))
        if here != there:
            following = [step.name for step in (*after.operators, *([after.end] if after.end else []))]
            found.append({"from": here, "to": there, "before": following[0] if following else None})
    return found


def _device_lines(group: Group) -> Iterator[str]:
    """The device of a stage, and each move between devices; nothing if no step can use a GPU."""
    steps = [step for step in group.whole.steps if step.resources.uses_gpu]
    if not steps:
        if any(hasattr(step, "device") for step in group.whole.steps):
            yield "  device   CPU"
        return
    yield f"  device   GPU for {', '.join(dict.fromkeys(step.name for step in steps))}"
    for move in moves(group):
        where = f"before {move['before']}" if move["before"] else "at the end"
        yield f"  move     {move['from'].upper()} to {move['to'].upper()} {where}"


def _slots_text(slots: Sequence[Mapping[str, Any]]) -> str:
    """GPU memory of the workers on each GPU, such as `0 (3 x 9.4 GB), 1 (9.4 GB)`."""
    counts = Counter((slot["gpus"], slot["gpu_bytes"]) for slot in slots)
    found = []
    for (gpus, gpu_bytes), count in counts.items():
        size = "" if gpu_bytes is None else format_bytes(gpu_bytes)
        inside = " x ".join(part for part in (str(count) if count > 1 else "", size) if part)
        found.append(f"{gpus} ({inside})" if inside else str(gpus))
    return ", ".join(found)


def _parameters(op: Operator) -> str:
    parameters: Mapping[str, Any] = op.parameters() if not isinstance(op, Function) else {}
    return ", ".join(f"{name}={as_text(value)!r}" for name, value in parameters.items())


def _shorten(names: Sequence[str], most: int = 12) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown}, ... ({len(names)} in total)"
