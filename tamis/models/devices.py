"""Which device models and kernels run on, and the GPU memory that one process may hold.

    gpu_count, choose     in the driver: cheap, without opening a device or importing a GPU library
    open_torch, open_cupy in a worker: the library, held to the worker's share of GPU memory

PyTorch and CuPy each keep the memory they have freed, so that in one process either could run out while the other has
gigabytes to spare. As soon as both are in use, CuPy takes its memory from PyTorch, or both take it from RMM if a library
such as cuDF has loaded that.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeAlias

from tamis.context import Context
from tamis.errors import ParameterError, require

Device: TypeAlias = Literal["auto", "cpu", "gpu"]
Library: TypeAlias = Literal["torch", "cupy"]

CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


def visible_gpus(root: Path = Path("/")) -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them. Reads device files only.

    As CUDA does, ignores everything after the first name that does not exist.
    """
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
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, gpu_memory_bytes / total), 0)
    if cupy is None:
        return
    if rmm is not None:
        from rmm.allocators.cupy import rmm_cupy_allocator

        cupy.cuda.set_allocator(rmm_cupy_allocator)
    elif torch is not None:
        cupy.cuda.set_allocator(cupy.cuda.PythonFunctionAllocator(*_torch_allocator(torch, cupy)).malloc)
        cupy.get_default_memory_pool().free_all_blocks()  # of the pool that is no longer used
    elif gpu_memory_bytes is not None:
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
        except torch.OutOfMemoryError as error:
            raise cupy.cuda.memory.OutOfMemoryError(size, torch.cuda.memory_reserved(device)) from error

    def free(pointer: int, device: int) -> None:
        torch.cuda.caching_allocator_delete(pointer)

    return allocate, free


def release_cached() -> None:
    """Return GPU memory that libraries have freed but kept, so that other processes can use it."""
    torch, cupy = _loaded("torch"), _loaded("cupy")
    if cupy is not None:
        cupy.get_default_memory_pool().free_all_blocks()
    if torch is not None and torch.version.cuda is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
