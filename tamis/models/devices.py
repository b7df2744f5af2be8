"""Which device models and kernels run on, and the GPU memory that one process may hold.

    gpu_count, choose     in the driver: cheap, without opening a device or importing a GPU library
    open_torch, open_cupy in a worker: the library, held to the worker's share of GPU memory

PyTorch and CuPy each keep the memory they have freed, so that in one process either could run out while the other has
gigabytes to spare. As soon as both are in use, CuPy takes its memory from PyTorch. So does RMM if a library such as cuDF has
loaded it; without PyTorch, RMM gets a pool of the worker's share, and CuPy uses that.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tamis.context import Context
from tamis.errors import ParameterError, require
from tamis.parameters import format_bytes

if TYPE_CHECKING:
    import pyarrow as pa

Device: TypeAlias = Literal["auto", "cpu", "gpu"]
Library: TypeAlias = Literal["torch", "cupy"]

CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
NO_DEVICE = "-1"

GPU_OPENING_BYTES = 3_000_000_000
"""Private memory that a process may map when it opens a GPU, beyond what it uses: with PyTorch and CuPy it maps 1.8 GB in the
end, and more for a moment (benchmarks/gpu_placement.py)."""

GPU_HOST_BYTES = 600_000_000
"""Memory that a process with PyTorch and CuPy holds once it has opened a GPU, without pages of mapped files: 0.55 GB."""

TOLERATED_CROWDING = 0.1
"""The part of a share of GPU memory that may be missing before other processes are to blame for a shortage."""

CROWDED_WAIT_S = 60.0
"""How long a worker waits for GPU memory that other processes use before the run ends."""

CROWDED_LOOK_S = 0.25

POOL_ALIGNMENT = 256
"""RMM rounds the sizes of pools and blocks to this."""

GPU_RUNNING_BYTES = 1_000_000_000
"""The same afterwards, for kernels and libraries that CUDA loads when they are first used."""


_on_nodes: list[Sequence[str] | None] = []


@contextmanager
def on_nodes(names: Sequence[str] | None) -> Iterator[None]:
    """In the block, steps are planned for nodes of a cluster that have these GPUs; with None, for this machine."""
    _on_nodes.append(names)
    try:
        yield
    finally:
        _on_nodes.remove(names)


def visible_gpus(root: Path = Path("/")) -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; or those of `on_nodes`. Reads device files only.

    As CUDA does, ignores everything after the first name that does not exist.
    """
    if _on_nodes and _on_nodes[-1] is not None:
        return list(_on_nodes[-1])
    count = _device_files(root)
    chosen = os.environ.get(CUDA_VISIBLE_DEVICES)
    if chosen is None or not count:
        return [str(number) for number in range(count)]
    found: list[str] = []
    for name in (part.strip() for part in chosen.split(",")):
        known = int(name) < count if name.isdigit() else name.startswith(("GPU-", "MIG-"))
        if not known:
            break
        found.append(name)
    return found


def _device_files(root: Path) -> int:
    """The number of NVIDIA GPUs of this machine or container; inside WSL, where it cannot be seen, 1."""
    folder = root / "dev"
    if (folder / "dxg").exists():
        return 1
    return sum(bool(re.fullmatch(r"nvidia\d+", path.name)) for path in folder.glob("nvidia*"))


def gpu_count() -> int:
    """How many GPUs this process may use."""
    return len(visible_gpus())


def choose(device: Device, library: Library | None = "torch") -> Literal["cpu", "gpu"]:
    """Where a step with this `device` parameter runs: "auto" is a GPU if there is one that `library` can use.

    >>> choose("cpu")
    'cpu'
    """
    if device == "cpu":
        return "cpu"
    reason = why_not_gpu(library)
    if device == "gpu" and reason is not None:
        raise ParameterError(f'device="gpu": {reason[0]}', hint=reason[1])
    return "cpu" if reason is not None else "gpu"


def why_not_gpu(library: Library | None = None) -> tuple[str, str] | None:
    """Why no GPU can be used, and a hint; None if one can."""
    if _on_nodes and _on_nodes[-1] is not None:  # which libraries they have is not known here
        missing = "no node of the cluster has a GPU", 'device="auto" uses a GPU if there is one'
        return None if gpu_count() else missing
    if not gpu_count():
        hidden = os.environ.get(CUDA_VISIBLE_DEVICES) is not None and _device_files(Path("/"))
        if hidden:
            return "CUDA_VISIBLE_DEVICES hides all GPUs", 'device="auto" uses a GPU if there is one'
        return "this machine has no GPU", 'device="auto" uses a GPU if there is one'
    if library == "torch" and not torch_has_cuda():
        return (
            "the installed PyTorch cannot use the GPU of this machine",
            "install a build of PyTorch with CUDA: https://pytorch.org/get-started",
        )
    if library == "cupy" and importlib.util.find_spec("cupy") is None:
        return "the package `cupy` is not installed", "pip install 'tamis[gpu]'"
    return None


@functools.cache
def torch_has_cuda() -> bool:
    """Whether PyTorch is installed with CUDA, from its version file; importing it would take seconds."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return torch.version.cuda is not None
    found = importlib.util.find_spec("torch")
    folders = found.submodule_search_locations if found is not None else None
    for folder in folders or ():
        file = Path(folder) / "version.py"
        if file.is_file():
            return re.search(r"^cuda\b[^=]*=\s*['\"]", file.read_text(), re.MULTILINE) is not None
    return False


# --------------------------------------------------------------------------------------------------------- in a worker


@dataclass(frozen=True)
class Assigned:
    """The device of this process, and how much it may allocate there."""

    device: str = "cpu"
    """"cpu", or "cuda:0"."""
    gpu_memory_bytes: int | None = None


_assigned = Assigned()


def assign(names: str | None, gpu_memory_bytes: int | None = None) -> Assigned:
    """Show this process some GPUs, or none, from now on. Has no effect on libraries that have opened a device."""
    os.environ[CUDA_VISIBLE_DEVICES] = NO_DEVICE if names is None else names  # read when a library first uses CUDA
    return set_assigned(Assigned("cpu" if names is None else "cuda:0", gpu_memory_bytes))


def set_assigned(found: Assigned) -> Assigned:
    """Record the device of this process."""
    global _assigned
    _assigned = found
    return found


@contextmanager
def hidden() -> Iterator[None]:
    """Hide all GPUs from libraries that this process uses for the first time in the block."""
    before = os.environ.get(CUDA_VISIBLE_DEVICES)
    os.environ[CUDA_VISIBLE_DEVICES] = NO_DEVICE
    try:
        yield
    finally:
        if before is None:
            del os.environ[CUDA_VISIBLE_DEVICES]
        else:
            os.environ[CUDA_VISIBLE_DEVICES] = before


def assigned() -> Assigned:
    """What the engine assigned to this process; for functions that are called in workers without a `Context`."""
    return _assigned


def vectors_on_device(column: pa.Array) -> dict[str, Any]:
    """A column of vectors of one size as a tensor on the device of this process, under "vectors".

    A fact of batches: `batch.facts("embedding", vectors_on_device)`. A step that has computed the vectors on the device hands
    them on with `batch.hand_on("embedding", vectors_on_device, {"vectors": tensor})`, so that the next step need not copy
    them there again. Nulls are not allowed.
    """
    torch = require("torch", extra="models", purpose="vectors on a GPU")
    size = column.type.list_size
    values = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), size)
    tensor = torch.from_numpy(values if values.flags.writeable else values.copy())
    return {"vectors": tensor.to(_assigned.device)}


def missing_room() -> str | None:
    """Why this process cannot have its share of GPU memory, if that is because of other processes; else None."""
    torch = _loaded("torch")
    share = _assigned.gpu_memory_bytes
    if _assigned.device == "cpu" or share is None or torch is None or not torch.cuda.is_initialized():
        return None
    free, _ = torch.cuda.mem_get_info(0)
    left = share - torch.cuda.memory_reserved(0)
    if free >= left * (1 - TOLERATED_CROWDING):
        return None
    return (
        f"other processes use the GPU: {format_bytes(free)} is free, and this worker has {format_bytes(left)} left of its "
        f"share of {format_bytes(share)}"
    )


def wait_for_room() -> str | None:
    """Wait until other processes leave this one its share of GPU memory; returns why not, if they still do not."""
    end = time.monotonic() + CROWDED_WAIT_S
    while (why := missing_room()) is not None and time.monotonic() < end:
        time.sleep(CROWDED_LOOK_S)
    return why


def open_torch(context: Context) -> ModuleType:
    """PyTorch, held to the worker's share of GPU memory, which it shares with CuPy if that is loaded.

    On the CPU, only imports it.
    """
    torch = require("torch", extra="models", purpose="running a model")
    if context.device != "cpu":
        keep_to_share(context.gpu_memory_bytes)
    return torch


def open_cupy(context: Context) -> ModuleType:
    """CuPy, held to the worker's share of GPU memory, which it takes from PyTorch if that is loaded."""
    cupy = require("cupy", extra="gpu", purpose="kernels on a GPU")
    keep_to_share(context.gpu_memory_bytes)
    return cupy


def keep_to_share(gpu_memory_bytes: int | None) -> None:
    """Hold the GPU libraries that this process has loaded to a number of bytes, together.

    Imports none. Call it again after another one was loaded.
    """
    torch, cupy, rmm = (_loaded(name) for name in ("torch", "cupy", "rmm"))
    torch = torch if torch is not None and torch.version.cuda is not None and torch.cuda.is_available() else None
    if torch is not None and gpu_memory_bytes is not None:
        for device in range(torch.cuda.device_count()):
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, gpu_memory_bytes / total), device)
    if torch is not None:
        if rmm is not None:
            _take_from_torch(rmm, torch)
        if cupy is not None:
            cupy.cuda.set_allocator(cupy.cuda.PythonFunctionAllocator(*_torch_allocator(torch, cupy)).malloc)
            cupy.get_default_memory_pool().free_all_blocks()  # of the pool that is no longer used
    elif rmm is not None:
        _limit_pool(rmm, gpu_memory_bytes)
        if cupy is not None:
            from rmm.allocators.cupy import rmm_cupy_allocator

            cupy.cuda.set_allocator(rmm_cupy_allocator)
    elif cupy is not None and gpu_memory_bytes is not None:
        cupy.get_default_memory_pool().set_limit(size=gpu_memory_bytes)


def _loaded(name: str) -> Any:
    """A library that this process has imported completely; else None."""
    found = sys.modules.get(name)
    return found if found is not None and hasattr(found, "__version__") else None


def _torch_allocator(torch: Any, cupy: Any) -> tuple[Any, Any]:
    """(allocate, free) for CuPy, over the allocator of PyTorch."""

    def allocate(size: int, device: int) -> int:
        try:
            return int(torch.cuda.caching_allocator_alloc(size, device, cupy.cuda.get_current_stream().ptr))
        except torch.cuda.OutOfMemoryError as error:
            raise cupy.cuda.memory.OutOfMemoryError(size, torch.cuda.memory_reserved(device)) from error

    def free(pointer: int, device: int) -> None:
        torch.cuda.caching_allocator_delete(pointer)

    return allocate, free


def _take_from_torch(rmm: Any, torch: Any) -> None:
    """Let RMM, and with it cuDF, allocate from PyTorch's pool.

    If PyTorch allocated from RMM's instead, it could neither limit its use nor report it.
    """
    if isinstance(rmm.mr.get_current_device_resource(), rmm.mr.CallbackMemoryResource):
        return

    def allocate(size: int, stream: Any) -> int:
        _, handle = stream.__cuda_stream__()
        try:
            return int(torch.cuda.caching_allocator_alloc(size, torch.cuda.current_device(), handle))
        except torch.cuda.OutOfMemoryError as error:
            raise MemoryError(str(error)) from error

    def free(pointer: int, size: int, stream: Any) -> None:
        torch.cuda.caching_allocator_delete(pointer)

    rmm.mr.set_current_device_resource(rmm.mr.CallbackMemoryResource(allocate, free))


def _limit_pool(rmm: Any, gpu_memory_bytes: int | None) -> None:
    """Give RMM a pool of the share, unless it has one."""
    if gpu_memory_bytes is None or isinstance(rmm.mr.get_current_device_resource(), rmm.mr.PoolMemoryResource):
        return
    rounded = gpu_memory_bytes // POOL_ALIGNMENT * POOL_ALIGNMENT
    pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=0, maximum_pool_size=rounded)
    rmm.mr.set_current_device_resource(pool)


def release_cached() -> None:
    """Return GPU memory that libraries have freed but kept, so that other processes can use it."""
    torch, cupy = _loaded("torch"), _loaded("cupy")
    if cupy is not None:
        cupy.get_default_memory_pool().free_all_blocks()
    if torch is not None and torch.version.cuda is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
