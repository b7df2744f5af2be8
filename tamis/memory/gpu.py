"""GPU memory: of each device, by process, and within this process by owner (weights, activations, buffers).

    pynvml, if installed        used, total, per process
    nvidia-smi, if on the PATH  the same, but slow: called at most every few seconds
    torch, if imported already  used and total, of the devices this process has opened

This module never imports torch and never opens a device.
"""

from __future__ import annotations

import csv
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from tamis.models.gpu_owners import opened_torch, owned_bytes

MIB = 2**20

SMI_EVERY_S = 5.0
"""Each call of `nvidia-smi` takes a large part of a second of CPU time."""

SMI_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class GpuShare:
    """What one process holds on one GPU."""

    pid: int
    used_bytes: int | None = None
    """As the driver counts it; None where it does not report it."""
    reserved_bytes: int | None = None
    """Reserved by torch's allocator."""
    allocated_bytes: int | None = None
    """The part of it that tensors use."""
    owners: dict[str, int] = field(default_factory=dict)
    """Bytes by owner, as declared with `owner`."""

    @property
    def reported_bytes(self) -> int:
        """What the process itself knows of: what torch has reserved, or what its owners hold outside of torch."""
        return max(self.reserved_bytes or 0, sum(self.owners.values()))


@dataclass(frozen=True)
class GpuMemory:
    """One GPU at one moment."""

    index: int
    """The driver's number, independent of CUDA_VISIBLE_DEVICES."""
    name: str
    used_bytes: int
    total_bytes: int
    shares: tuple[GpuShare, ...] = ()
    uuid: str = ""

    @property
    def percent(self) -> float:
        return 100 * self.used_bytes / self.total_bytes if self.total_bytes else 0.0

    def held_by(self, pids: Collection[int]) -> int:
        """What some processes hold, as the driver counts it, or else as they report it themselves."""
        shares = [share for share in self.shares if share.pid in pids]
        return sum(share.reported_bytes if share.used_bytes is None else share.used_bytes for share in shares)

    def owners(self) -> dict[str, int]:
        """Bytes by owner, of all processes that report them."""
        total: dict[str, int] = {}
        for share in self.shares:
            for name, size in share.owners.items():
                total[name] = total.get(name, 0) + size
        return total


@dataclass
class GpuPeak:
    """The most that was in use on one GPU during a run; the figures may be of different moments."""

    index: int
    name: str = ""
    total_bytes: int = 0
    used_bytes: int = 0
    """By all processes."""
    own_bytes: int = 0
    """By the processes of the run."""
    other_bytes: int = 0
    """By other processes."""
    owners: dict[str, int] = field(default_factory=dict)

    def note(self, gpu: GpuMemory, pids: Collection[int]) -> None:
        """Add a reading of the GPU; `pids` are the processes of the run."""
        own = gpu.held_by(pids)
        self.name, self.total_bytes = gpu.name, gpu.total_bytes
        self.used_bytes = max(self.used_bytes, gpu.used_bytes)
        self.other_bytes = max(self.other_bytes, gpu.used_bytes - own)
        self.note_own(replace(gpu, shares=tuple(share for share in gpu.shares if share.pid in pids)))

    def note_own(self, gpu: GpuMemory) -> None:
        """Add what processes of the run hold; they may exit before the GPU is read again."""
        self.own_bytes = max(self.own_bytes, gpu.held_by({share.pid for share in gpu.shares}))
        for name, size in gpu.owners().items():
            self.owners[name] = max(self.owners.get(name, 0), size)


class GpuReader(Protocol):
    """Reads all GPUs of the machine; empty if there are none or they cannot be read."""

    def __call__(self) -> tuple[GpuMemory, ...]: ...


# ------------------------------------------------------------------------------------------------------------- readers


def find_reader() -> GpuReader:
    """The best available reader for this machine's GPUs."""
    return _nvml_reader() or _smi_reader() or read_torch


def _nvml_reader() -> GpuReader | None:
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None  # the package without a driver
    return NvmlReader(nvml)


class NvmlReader:
    """Reads through NVML, the driver's library; well under a millisecond per GPU."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml

    def __call__(self) -> tuple[GpuMemory, ...]:
        nvml = self._nvml
        found = []
        try:
            for index in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                memory = nvml.nvmlDeviceGetMemoryInfo(handle)
                shares = tuple(
                    GpuShare(process.pid, process.usedGpuMemory)
                    for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                )
                name, uuid = _text(nvml.nvmlDeviceGetName(handle)), _text(nvml.nvmlDeviceGetUUID(handle))
                found.append(GpuMemory(index, name, memory.used, memory.total, shares, uuid))
        except nvml.NVMLError:
            return ()  # a device is lost, or the driver is being replaced
        return tuple(found)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # old versions of pynvml return bytes


def _smi_reader() -> GpuReader | None:
    path = shutil.which("nvidia-smi")
    return SmiReader(path) if path else None


class SmiReader:
    """Reads through the command `nvidia-smi`; calls in quick succession return the last result."""

    def __init__(self, path: str, *, every_s: float = SMI_EVERY_S, clock: Callable[[], float] = time.monotonic) -> None:
        self.path, self.every_s, self._clock = path, every_s, clock
        self._last: tuple[float, tuple[GpuMemory, ...]] | None = None

    def __call__(self) -> tuple[GpuMemory, ...]:
        now = self._clock()
        if self._last is None or now - self._last[0] >= self.every_s:
            self._last = now, self._read()
        return self._last[1]

    def _read(self) -> tuple[GpuMemory, ...]:
        try:
            gpus = self._ask("--query-gpu=index,uuid,name,memory.used,memory.total")
            processes = self._ask("--query-compute-apps=gpu_uuid,pid,used_memory")
        except (OSError, subprocess.SubprocessError):
            return ()
        return parse_smi(gpus, processes)

    def _ask(self, query: str) -> str:
        command = [self.path, query, "--format=csv,noheader,nounits"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=True, stdin=subprocess.DEVNULL
        )
        return done.stdout


def parse_smi(gpus: str, processes: str) -> tuple[GpuMemory, ...]:
    """Parse the output of the two queries of `nvidia-smi`; sizes are in MiB, or "[N/A]"."""
    shares: dict[str, list[GpuShare]] = {}
    for uuid, pid, used in _cells(processes, 3):
        if pid.isdigit():
            shares.setdefault(uuid, []).append(GpuShare(int(pid), int(used) * MIB if used.isdigit() else None))
    return tuple(
        GpuMemory(int(index), name, int(used) * MIB, int(total) * MIB, tuple(shares.get(uuid, ())), uuid)
        for index, uuid, name, used, total in _cells(gpus, 5)
        if index.isdigit() and used.isdigit() and total.isdigit()
    )


def _cells(text: str, width: int) -> list[list[str]]:
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return [[cell.strip() for cell in row] for row in rows if len(row) == width]


def read_torch() -> tuple[GpuMemory, ...]:
    """The devices that torch sees, if this process already uses it."""
    torch = opened_torch()
    if torch is None:
        return ()
    found = []
    for device in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(device)
        number = _driver_index(torch, device, ())
        found.append(GpuMemory(number, torch.cuda.get_device_name(device), total - free, total))
    return tuple(found)


# ------------------------------------------------------------------------------------------ this process and its owners


def own_shares(gpus: Iterable[GpuMemory] = ()) -> dict[int, GpuShare]:
    """What this process holds, by the driver's number of the GPU; can be sent to another process."""
    torch = opened_torch()
    owned = owned_bytes()
    for device, num_bytes in _cupy_pools().items():
        owned["kernels", device] = owned.get(("kernels", device), 0) + num_bytes
    if torch is None and not owned:
        return {}
    known = tuple(gpus)
    devices = set(range(torch.cuda.device_count())) if torch is not None else set()
    devices |= {device for _, device in owned}
    shares = {}
    for device in sorted(devices):
        owners = {name: size for (name, where), size in sorted(owned.items()) if where == device}
        shares[_driver_index(torch, device, known)] = GpuShare(
            os.getpid(),
            None,
            torch.cuda.memory_reserved(device) if torch is not None else None,
            torch.cuda.memory_allocated(device) if torch is not None else None,
            owners,
        )
    return shares


def _cupy_pools() -> dict[int, int]:
    """What CuPy holds in a pool of its own, by device; nothing where it takes its memory from torch."""
    cupy = sys.modules.get("cupy")
    if not hasattr(cupy, "get_default_memory_pool"):
        return {}
    pool = cupy.get_default_memory_pool()  # type: ignore[union-attr]
    held = pool.total_bytes()
    return {0: held} if held else {}


def _driver_index(torch: Any, device: int, gpus: tuple[GpuMemory, ...]) -> int:
    """The driver's number for `device`, which CUDA_VISIBLE_DEVICES may renumber."""
    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", "")) if torch is not None else ""
    for gpu in gpus:
        if uuid and gpu.uuid.removeprefix("GPU-") == uuid.removeprefix("GPU-"):
            return gpu.index
    visible = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if device < len(visible) and visible[device].isdigit():
        return int(visible[device])
    return device


def with_shares(gpus: tuple[GpuMemory, ...], told: Iterable[Mapping[int, GpuShare]]) -> tuple[GpuMemory, ...]:
    """The GPUs, with what processes report about themselves added to what the driver reports."""
    mine: dict[int, dict[int, GpuShare]] = {}
    for shares in told:
        for index, share in shares.items():
            mine.setdefault(index, {})[share.pid] = share
    result = []
    for gpu in gpus:
        rest = dict(mine.get(gpu.index, {}))
        merged = [
            replace(rest.pop(share.pid), used_bytes=share.used_bytes) if share.pid in rest else share
            for share in gpu.shares
        ]
        result.append(replace(gpu, shares=(*merged, *rest.values())))
    return tuple(result)


# ------------------------------------------------------------------------------------------------ for `tamis memory PID`


def _shares_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"tamis-gpus-{os.getuid()}"


def publish_shares(shares: Mapping[int, GpuShare]) -> None:
    """Let other processes of the same user read what this one holds on GPUs; with nothing, no longer."""
    folder = _shares_folder()
    file = folder / f"{os.getpid()}.json"
    with suppress(OSError):
        if not shares:
            file.unlink(missing_ok=True)
            return
        folder.mkdir(mode=0o700, exist_ok=True)
        draft = folder / f".{os.getpid()}.unfinished"
        draft.write_text(json.dumps({str(index): asdict(share) for index, share in shares.items()}))
        draft.replace(file)


def published_shares() -> dict[int, dict[int, GpuShare]]:
    """What running processes of this user have published, by process id."""
    found: dict[int, dict[int, GpuShare]] = {}
    folder = _shares_folder()
    if not folder.is_dir() or folder.stat().st_uid != os.getuid():
        return {}
    for file in folder.glob("*.json"):
        pid = int(file.stem)
        with suppress(OSError, ValueError, TypeError):
            if not Path(f"/proc/{pid}").exists():
                file.unlink()  # it was killed
                continue
            shares = json.loads(file.read_text())
            found[pid] = {int(index): GpuShare(**share) for index, share in shares.items()}
    return found
