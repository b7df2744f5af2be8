"""Memory of a worker that opens a GPU, with PyTorch, CuPy and both: resident, mapped, and on the device.

python benchmarks/gpu_placement.py            prints a table; needs a GPU, PyTorch and CuPy

Each line is a process of its own. `VmData` is what RLIMIT_DATA limits. `room` is the smallest limit above what was mapped
before the libraries were imported with which the same work succeeds, of the sizes tried.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

MODES = ("torch", "cupy", "torch, cupy", "cupy, torch")
ROOMS_GB = (0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12)
FIELDS = ("VmRSS", "RssAnon", "RssFile", "RssShmem", "VmData")


def status() -> dict[str, int]:
    lines = (line.partition(":") for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(value.split()[0]) * 1024 for name, _, value in lines if name in FIELDS}


def device_bytes() -> int:
    """Memory in use on all GPUs, as another process sees it; without nvidia-smi, with the context of that process."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    unit = 2**20
    if shutil.which("nvidia-smi") is None:
        code = "import torch; free, total = torch.cuda.mem_get_info(); print(total - free)"
        command, unit = [sys.executable, "-c", code], 1
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return sum(int(line) for line in done.stdout.split() if line.isdigit()) * unit


def steps_of(mode: str) -> list[tuple[str, Callable[[], object]]]:
    kept: dict[str, object] = {}

    def import_torch() -> None:
        import torch

        kept["torch"] = torch

    def torch_multiply() -> None:
        import torch

        left = torch.ones((4096, 4096), device="cuda", dtype=torch.bfloat16)
        kept["product"] = (left @ left).sum().item()

    def torch_pinned() -> None:
        import torch

        kept["pinned"] = torch.ones(256_000_000, dtype=torch.uint8).pin_memory()

    def torch_allocate() -> None:
        import torch

        kept["tensor"] = torch.zeros(4_000_000_000, dtype=torch.uint8, device="cuda")

    def import_cupy() -> None:
        import cupy

        kept["cupy"] = cupy

    def cupy_kernel() -> None:
        import cupy

        kept["sum"] = int(cupy.arange(1_000_000).sum())
        kernel = cupy.RawKernel('extern "C" __global__ void f(int* a) { a[threadIdx.x] = threadIdx.x; }', "f")
        kernel((1,), (32,), (cupy.zeros(32, "int32"),))

    def cupy_sort() -> None:
        import cupy

        kept["sorted"] = cupy.sort(cupy.random.random(1_000_000))

    torch_steps = [
        ("import torch", import_torch),
        ("matrix product", torch_multiply),
        ("256 MB pinned", torch_pinned),
        ("4 GB tensor", torch_allocate),
    ]
    cupy_steps = [("import cupy", import_cupy), ("own kernel", cupy_kernel), ("sort", cupy_sort)]
    found = []
    for name in mode.split(", "):
        found += torch_steps if name == "torch" else cupy_steps
    return found


def measure(mode: str) -> None:
    before_gpu = device_bytes()

    def show(step: str) -> None:
        found = status()
        sizes = " ".join(f"{found[name] / 1e6:>9,.0f}" for name in FIELDS)
        print(f"{mode:<12} {step:<16} {sizes} {(device_bytes() - before_gpu) / 1e6:>9,.0f}", flush=True)  # noqa: T201

    show("start")
    for step, run in steps_of(mode):
        run()
        show(step)


def with_room(mode: str, room_gb: float) -> None:
    """Do the same with a limit on private memory; raises if that does not suffice."""
    limit = status()["VmData"] + int(room_gb * 1e9)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
    for _, run in steps_of(mode):
        run()


def main() -> None:
    print(f"{'process':<12} {'after':<16} {' '.join(f'{name:>9}' for name in FIELDS)} {'device':>9}   (MB)")  # noqa: T201
    for mode in MODES:
        subprocess.run([sys.executable, __file__, "measure", mode], check=True)
    for mode in MODES:
        for room in ROOMS_GB:
            command = [sys.executable, __file__, "room", mode, str(room)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
            last = (done.stderr.strip().splitlines() or [""])[-1][:120]
            print(f"room {mode:<12} {room:>5} GB: {'ok' if done.returncode == 0 else last or done.returncode}")  # noqa: T201
            if done.returncode == 0:
                break


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    elif sys.argv[1] == "measure":
        measure(sys.argv[2])
    else:
        with_room(sys.argv[2], float(sys.argv[3]))
