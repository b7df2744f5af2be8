"""Places for workers on GPUs: how many fit, on which device, and how much memory each of them may use there.

    gpu_devices   GPUs that a run may use, with its budget on each
    gpu_slots     for each of several stages that run at the same time, a slot per worker

By default a worker has a GPU to itself. Workers share one if they ask for a fraction, if they only declare memory, or if there
are more stages than GPUs. The budget of a device is divided among the workers on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tamis.errors import BudgetError, ParameterError
from tamis.models import devices
from tamis.parameters import format_bytes, parse_bytes

DEFAULT_GPU_SHARE = 0.9
"""The default budget on a device, as a share of the memory that is free there."""

CUDA_CONTEXT_BYTES = 600_000_000
"""What a process takes on a device beside what its libraries allocate, for the CUDA context and loaded kernels: 0.57 GB on an
H200 (benchmarks/gpu_placement.py)."""

SMALLEST_GPU_BYTES = 100_000_000
"""The least that a worker gets that does not declare how much it needs."""

_LOAD_TOLERANCE = 1e-6


@dataclass(frozen=True)
class GpuDevice:
    """A GPU that a run may use."""

    name: str
    """As in CUDA_VISIBLE_DEVICES."""
    budget_bytes: int | None = None
    """What the run may hold there; None if the device does not say how much it has."""


@dataclass(frozen=True)
class GpuNeed:
    """What one worker of a stage needs of GPUs."""

    gpus: float = 0.0
    gpu_bytes: int | None = None
    """Declared by the operators; None if none of them does."""

    @property
    def any(self) -> bool:
        return self.gpus > 0 or self.gpu_bytes is not None

    @property
    def least_bytes(self) -> int:
        """Memory on the device, with the context."""
        declared = SMALLEST_GPU_BYTES if self.gpu_bytes is None else self.gpu_bytes
        return CUDA_CONTEXT_BYTES + declared

    @property
    def width(self) -> int:
        """The number of devices."""
        return max(1, math.ceil(self.gpus))

    @property
    def load(self) -> float:
        """The share of each of these devices that a worker keeps busy; 0 if only its memory counts."""
        return min(1.0, self.gpus)


@dataclass(frozen=True)
class GpuSlot:
    """The place of one worker."""

    names: str
    """One or more devices, as in CUDA_VISIBLE_DEVICES."""
    gpu_bytes: int | None = None
    """What libraries may allocate on each of them; None for no limit."""


def usable_gpus() -> list[str]:
    """The GPUs that workers may use, as CUDA_VISIBLE_DEVICES names them."""
    return devices.visible_gpus()


def gpu_devices(gpu_memory: int | str | None = None, device: str = "auto") -> tuple[GpuDevice, ...]:
    """The GPUs that a run may use, each with its budget: what was requested, or most of what is free."""
    names = usable_gpus() if device != "cpu" else []
    if not names:
        return ()
    wanted = parse_bytes(gpu_memory) if gpu_memory is not None else None
    known = _memory_by_name()
    found = []
    for name in names:
        total, used = known.get(_key(name), (None, 0))
        if wanted is not None:
            found.append(GpuDevice(name, wanted if total is None else min(wanted, total)))
        else:
            found.append(GpuDevice(name, None if total is None else int(DEFAULT_GPU_SHARE * max(0, total - used))))
    return tuple(found)


def limited(gpu: GpuDevice, gpu_bytes: int | None) -> GpuDevice:
    """A GPU with the budget that was requested, if there was one."""
    if gpu_bytes is None:
        return gpu
    known = gpu.budget_bytes
    return GpuDevice(gpu.name, gpu_bytes if known is None else min(gpu_bytes, known))


def _memory_by_name() -> dict[str, tuple[int | None, int]]:
    """(total, used) of each device, by number and by UUID."""
    from tamis.memory.gpu import find_reader

    found: dict[str, tuple[int | None, int]] = {}
    for gpu in find_reader()():
        found[str(gpu.index)] = found[_key(gpu.uuid)] = gpu.total_bytes, gpu.used_bytes
    return found


def _key(name: str) -> str:
    return name.removeprefix("GPU-")


def gpu_slots(
    given: Sequence[GpuDevice], needs: Sequence[GpuNeed], most: Sequence[int]
) -> tuple[tuple[GpuSlot, ...], ...]:
    """For each stage, the slots of its workers, up to `most`; none for a stage that needs no GPU.

    Every stage gets one first, on the device that is least in use. Then they get more, as long as there are devices that are
    not busy and have memory left. Memory that nobody declared is divided evenly.

    >>> devices = [GpuDevice("0", 20_000_000_000)]
    >>> [slot.gpu_bytes for slot in gpu_slots(devices, [GpuNeed(0.5)], [8])[0]]
    [9400000000, 9400000000]
    """
    table = _Table(given)
    for number, need in enumerate(needs):
        if need.any:
            table.place_first(number, need)
    grows = True
    while grows:
        grows = False
        for number, need in enumerate(needs):
            if need.any and len(table.placed[number]) < most[number]:
                grows = table.place_more(number, need) or grows
    return tuple(table.slots(number) for number in range(len(needs)))


class _Table:
    """Which workers are on which devices."""

    def __init__(self, given: Sequence[GpuDevice]) -> None:
        self.devices = given
        self.left = [math.inf if device.budget_bytes is None else device.budget_bytes for device in given]
        self.load = [0.0] * len(given)
        self.on: list[list[GpuNeed]] = [[] for _ in given]
        self.placed: dict[int, list[tuple[GpuNeed, list[int]]]] = {}

    def place_first(self, stage: int, need: GpuNeed) -> None:
        self.placed[stage] = []
        if need.width > len(self.devices):
            raise ParameterError(f"a worker needs {need.width} GPUs, and the run may use {len(self.devices)}")
        found = self._candidates(need, any_load=True)
        if len(found) < need.width:
            budgets = [device.budget_bytes for device in self.devices if device.budget_bytes is not None]
            raise BudgetError(
                f"a worker needs {format_bytes(need.least_bytes)} of GPU memory, with {format_bytes(CUDA_CONTEXT_BYTES)} for "
                f"CUDA itself, and {format_bytes(int(max(self.left)))} of the {format_bytes(max(budgets))} that the run may "
                "use on a GPU is left",
                hint="raise `gpu_memory`, use a smaller model, or end other processes that use the GPU",
            )
        self._put(stage, need, found)

    def place_more(self, stage: int, need: GpuNeed) -> bool:
        found = self._candidates(need, any_load=False)
        # Without a budget, nothing says how many workers that declare only memory fit.
        unknown = not need.load and any(math.isinf(self.left[number]) for number in found)
        if len(found) < need.width or unknown:
            return False
        self._put(stage, need, found)
        return True

    def _candidates(self, need: GpuNeed, *, any_load: bool) -> list[int]:
        fits = [
            number
            for number, left in enumerate(self.left)
            if left >= need.least_bytes and (any_load or self.load[number] + need.load <= 1 + _LOAD_TOLERANCE)
        ]
        return sorted(fits, key=lambda number: (self.load[number], -self.left[number], number))[: need.width]

    def _put(self, stage: int, need: GpuNeed, where: list[int]) -> None:
        for number in where:
            self.left[number] -= need.least_bytes
            self.load[number] += need.load
            self.on[number].append(need)
        self.placed[stage].append((need, where))

    def slots(self, stage: int) -> tuple[GpuSlot, ...]:
        return tuple(
            GpuSlot(
                ",".join(self.devices[number].name for number in sorted(where)),
                min((self._bytes(need, number) for number in where), key=lambda size: size or 0),
            )
            for need, where in self.placed.get(stage, [])
        )

    def _bytes(self, need: GpuNeed, device: int) -> int | None:
        """What a worker may allocate: what it declares, and a share of what nobody does."""
        if self.devices[device].budget_bytes is None:
            return None
        open_ended = [other for other in self.on[device] if other.gpu_bytes is None]
        sharing = open_ended or self.on[device]
        extra = int(self.left[device]) // len(sharing) if need.gpu_bytes is None or not open_ended else 0
        return need.least_bytes - CUDA_CONTEXT_BYTES + extra
