"""Where the steps of a run take place: on the CPU or on GPUs, fused in one worker or in workers of their own.

place           the two that follow
placed_on       run(device=...) and ToBackend, applied to the steps
choose_budget   memory, workers and GPUs, and whether operators get workers of their own
resource_runs   which neighbours share a worker
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal, get_args

from tamis.backends import ToBackend
from tamis.errors import BudgetError, ParameterError, TamisError
from tamis.executors.executor import Streaming
from tamis.memory.budget import Budget, Machine, make_budget, stream_budget, usable_cpus
from tamis.memory.governor import Learned, gpu_need, pool_needs
from tamis.memory.slots import DEFAULT_GPU_SHARE, GpuDevice, gpu_devices, gpu_slots, limited
from tamis.models.devices import GPU_HOST_BYTES, Device, choose, gpu_count
from tamis.operators import Gather, Operator, Sink, Source
from tamis.parameters import format_bytes, parse_bytes, plural

HEAVY_BYTES = 200_000_000
"""Operators that declare at least this much memory get workers of their own if there is not enough for one in each worker."""


def placed_on(steps: Sequence[Operator], device: Device) -> Sequence[Operator]:
    """The steps, with `device` set in those that can run on either a CPU or a GPU, and divided into their parts.

    What `ToBackend` says about the steps after it comes first, up to the next one or to the next Gather.
    """
    if device not in get_args(Device):
        raise ParameterError(f"there is no device {device!r}", hint=f"devices: {', '.join(get_args(Device))}")
    if device == "gpu":
        if not any(getattr(step, "device", None) == "auto" or step.resources.uses_gpu for step in steps):
            raise ParameterError("none of these steps can run on a GPU", hint="leave --device at auto")
        choose("gpu", library=None)  # raises if there is none
    found: list[Operator] = []
    here = device
    num_bytes = _input_bytes(steps) if device == "auto" else None
    for step in steps:
        if isinstance(step, ToBackend):
            moved = step.changed(device=device) if step.device == "auto" else step
            found.append(moved)
            here = device if device == "cpu" else "cpu" if not step.to_gpu else "gpu" if moved.is_on_gpu else device
            continue
        mine = "cpu" if here == "auto" and not _is_worth_a_gpu(step, num_bytes) else here
        found.append(step.changed(device=mine) if mine != "auto" and getattr(step, "device", None) == "auto" else step)
        if isinstance(step, Gather):
            here = device
    return _divided(found)


def _divided(steps: Sequence[Operator]) -> list[Operator]:
    """The parts of the steps. What the first step after a move to a GPU has done by CPU workers comes before the move."""
    found: list[Operator] = []
    for step in steps:
        *before, last = step.parts()
        if found[len(found) - len(before) :] == before:
            before = []  # the steps are those that a run has recorded, and were divided then
        moved = found.pop() if before and found and isinstance(found[-1], ToBackend) else None
        found += [*before, *([moved] if moved is not None else []), last]
    return found


def _is_worth_a_gpu(step: Operator, num_bytes: int | None) -> bool:
    cores = step.cores_like_a_gpu
    few_cores = cores is None or usable_cpus() < cores * max(1, gpu_count())
    return few_cores and step.worth_gpu_bytes <= (num_bytes or 0)


def _input_bytes(steps: Sequence[Operator]) -> int | None:
    """The size of the input, if that matters and is known."""
    if not any(step.worth_gpu_bytes for step in steps) or not gpu_count():
        return None
    source = next((step for step in steps if isinstance(step, Source)), None)
    try:
        return source.input_bytes() if source is not None else None
    except TamisError:
        return None  # the plan will raise it, with the number of the step


def place(
    steps: Sequence[Operator],
    learned: Learned,
    streaming: Streaming,
    *,
    memory: int | str | None,
    workers: int | Literal["auto"],
    caller_bytes: int,
    device: Device = "auto",
    gpu_memory: int | str | None = None,
    machine: Machine | None = None,
) -> tuple[Sequence[Operator], Budget]:
    """The steps on their devices, and the budget of a run.

    If there is not enough memory for workers on a GPU, and neither a GPU nor GPU memory was requested, all steps run on the
    CPU. On a cluster, `machine` is the smallest node.
    """

    def attempt(device: Device) -> tuple[Sequence[Operator], Budget]:
        placed = placed_on(steps, device)
        found = choose_budget(
            placed,
            learned,
            streaming,
            memory=memory,
            workers=workers,
            caller_bytes=caller_bytes,
            device=device,
            gpu_memory=gpu_memory,
            machine=machine,
        )
        return placed, found

    try:
        return attempt(device)
    except BudgetError as error:
        movable = any(getattr(step, "device", None) == "auto" and step.resources.uses_gpu for step in steps)
        if device != "auto" or gpu_memory is not None or not movable:
            raise
        placed, budget = attempt("cpu")
        why = f"CPU, although there is a GPU: {error.message}"
        return placed, replace(budget, reasons=budget.reasons | {"device": why})


def choose_budget(
    steps: Sequence[Operator],
    learned: Learned,
    streaming: Streaming,
    *,
    memory: int | str | None,
    workers: int | Literal["auto"],
    caller_bytes: int,
    device: str = "auto",
    gpu_memory: int | str | None = None,
    machine: Machine | None = None,
) -> Budget:
    """Derive the budget, and decide whether operators that need much memory or a GPU get workers of their own.

    They do if there is not enough memory to load them in every worker.
    """
    gpu_bytes = parse_bytes(gpu_memory) if gpu_memory is not None else None
    on_gpu = []
    for number, step in enumerate(steps, start=1):
        with naming(number, step):
            on_gpu += [(number, step)] if step.resources.uses_gpu else []
    may_use_gpu = any(getattr(step, "device", None) in ("auto", "gpu") for step in steps)
    gpus: tuple[GpuDevice, ...] = ()
    if on_gpu or may_use_gpu:
        here = machine is None
        gpus = gpu_devices(gpu_memory, device) if here else _gpus_of(machine, gpu_bytes, device)
    for number, step in on_gpu:
        with naming(number, step):
            check_gpus(step, len(gpus), device)

    def budget_for(chosen: Sequence[Operator], most_workers: int | None = None) -> Budget:
        least = GPU_HOST_BYTES if any(step in chosen for _, step in on_gpu) else 0
        found = make_budget(
            memory=memory,
            workers=workers,
            operator_bytes=max(least, Learned().setup_bytes(chosen)),
            learned_bytes=max(least, learned.setup_bytes(chosen)),
            caller_bytes=caller_bytes,
            most_workers=most_workers,
            machine=machine,
        )
        reasons = {"gpu_memory": _gpu_reason(gpus, gpu_memory)} if on_gpu else {}
        return replace(
            found, gpus=gpus, gpu_bytes=gpu_bytes, hides_gpus=device == "cpu", reasons=found.reasons | reasons
        )

    fused = budget_for(steps)
    heavy_bytes = HEAVY_BYTES if streaming == "auto" else 1
    heavy = [step for step in steps if not isinstance(step, (Source, Gather, Sink)) and is_heavy(step, heavy_bytes)]
    if on_gpu and streaming == "never":  # every worker has all steps, so there are no more workers than places on GPUs
        largest = [gpu_slots(gpus, [gpu_need(run)], [fused.workers])[0] for run in _between_gathers(steps, ends=True)]
        return budget_for(steps, min(len(slots) for slots in largest if slots))
    if streaming == "never" or not (heavy or on_gpu):
        return fused
    if streaming == "auto" and fused.workers >= fused.wanted_workers and not on_gpu:
        return fused
    light = budget_for([step for step in steps if step not in heavy])
    reasons = light.reasons | {
        "max_row_bytes": fused.reasons["max_row_bytes"],
        "queue": "rows between stages that run at the same time wait in packets, within the budget",
    }
    divided = replace(light, heavy_bytes=heavy_bytes, max_row_bytes=fused.max_row_bytes, reasons=reasons)
    try:
        for operators in _between_gathers(steps, ends=True):
            end = operators.pop() if operators and isinstance(operators[-1], Gather) else None
            runs = resource_runs(operators, heavy_bytes, end)
            if len(runs) > 1:
                stream_budget(divided, pool_needs(runs, learned, end))
    except BudgetError:
        if streaming == "always" or on_gpu:
            raise
        return fused
    return divided


def _between_gathers(steps: Sequence[Operator], *, ends: bool = False) -> Iterator[list[Operator]]:
    """The operators between two Gathers; with `ends`, each with the Gather that follows."""
    found: list[Operator] = []
    for step in steps:
        if isinstance(step, Gather):
            yield [*found, step] if ends else found
            found = []
        elif not isinstance(step, (Source, Sink)):
            found.append(step)
    yield found


@contextmanager
def naming(number: int, step: Operator) -> Iterator[None]:
    """An error names the step and its number."""
    try:
        yield
    except TamisError as error:
        start = f"step {number}, "
        error.message = error.message if error.message.startswith(start) else f"{start}`{step.name}`: {error.message}"
        raise


def _gpus_of(machine: Machine | None, gpu_bytes: int | None, device: str) -> tuple[GpuDevice, ...]:
    """The GPUs that a run may use on a node."""
    if machine is None or device == "cpu":
        return ()
    return tuple(limited(gpu, gpu_bytes) for gpu in machine.gpus)


def check_gpus(step: Operator, count: int, device: str = "auto") -> None:
    """Raise if a step needs more GPUs than the run may use."""
    wanted = step.resources.gpus
    if not count and device == "cpu":
        raise ParameterError("it needs a GPU, and the run uses none", hint='leave `device` at "auto"')
    if wanted > count or not count:
        needs = f"{wanted:g} GPUs" if wanted > 1 else "a GPU"
        raise ParameterError(f"it needs {needs}, and there {'is' if count < 2 else 'are'} {count or 'none'} here")


def _gpu_reason(gpus: Sequence[GpuDevice], gpu_memory: int | str | None) -> str:
    """What a run may use of each GPU, and why."""
    sizes = sorted({gpu.budget_bytes for gpu in gpus if gpu.budget_bytes is not None})
    if not sizes:
        return "no limit: the size of the GPUs is unknown"
    shown = " to ".join(dict.fromkeys(format_bytes(size) for size in (sizes[0], sizes[-1])))
    why = "requested" if gpu_memory is not None else f"{100 * DEFAULT_GPU_SHARE:.0f} % of what is free"
    return f"{shown} on each of {plural(len(gpus), 'GPU')}: {why}; divided among the workers on it"


def resource_runs(
    operators: Sequence[Operator], heavy_bytes: int, end: Operator | None = None
) -> list[tuple[Operator, ...]]:
    """Neighbours that can share a worker: every other run is heavy. The first and the last are light, and may be empty.

    Consecutive operators that need a GPU, or much memory, share a worker, as do all that follow a `ToBackend("gpu")`. A Gather
    at the `end` that needs a GPU makes the last run a heavy one.
    """
    runs: list[list[Operator]] = [[]]
    on_gpu = False
    for op in operators:
        if isinstance(op, ToBackend):
            on_gpu = op.is_on_gpu
        if (on_gpu or is_heavy(op, heavy_bytes)) != (len(runs) % 2 == 0):
            runs.append([])
        runs[-1].append(op)
    heavy_end = isinstance(end, Gather) and end.resources.uses_gpu
    if (len(runs) % 2 == 0) != heavy_end:
        runs.append([])
    return [tuple(run) for run in runs]


def is_heavy(op: Operator, heavy_bytes: int) -> bool:
    """Whether an operator needs a GPU, or so much memory that it should have workers of its own."""
    return op.resources.uses_gpu or op.resources.memory_bytes >= heavy_bytes
