"""What the GPU memory of this process is for: weights, activations, buffers, kernels.

    with owner("weights"):                  counted until it is freed
    with owner("activations", passing=True) the peak above the start

The figures reach the driver of a run, its events, its report and `tamis memory`. Never imports torch and never opens a device.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def opened_torch() -> Any:
    """Torch, if it is imported and has opened a device; else None."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return torch if cuda is not None and cuda.is_initialized() else None


def _allocated() -> dict[int, int]:
    torch = opened_torch()
    if torch is None:
        return {}
    return {device: torch.cuda.memory_allocated(device) for device in range(torch.cuda.device_count())}


_owned: dict[tuple[str, int], int] = {}
_lock = threading.Lock()
_open = threading.local()


def add_owned(name: str, num_bytes: int, device: int = 0) -> None:
    """Add bytes (or remove them, if negative) to what `name` holds on a device; for memory outside of torch."""
    with _lock:
        held = max(0, _owned.get((name, device), 0) + num_bytes)
        if held:
            _owned[name, device] = held
        else:
            _owned.pop((name, device), None)


@contextmanager
def owner(name: str, *, passing: bool = False) -> Iterator[None]:
    """Attribute memory that torch allocates in the block to `name`, except what an inner owner claims.

    Counts what is allocated and kept, less what is freed. With `passing=True` (activations), counts the peak above the start
    of the block instead, and resets torch's peak counter. Does nothing without torch.

        with owner("weights"):
            model.to("cuda")
    """
    inner: list[dict[int, int]] = getattr(_open, "stack", [])
    _open.stack = [*inner, {}]
    before, torch = _allocated(), opened_torch()
    if passing and torch is not None:
        for device in before:
            torch.cuda.reset_peak_memory_stats(device)
    try:
        yield
    finally:
        claimed = _open.stack[-1]
        _open.stack = inner
        after, torch = _allocated(), opened_torch()
        for device, num_bytes in after.items():
            grown = num_bytes - before.get(device, 0)
            mine = grown - claimed.get(device, 0)
            if passing:
                high = torch.cuda.max_memory_allocated(device) - before.get(device, 0)
                mine = max(0, high - _owned.get((name, device), 0))
            add_owned(name, mine, device)
            if inner:
                inner[-1][device] = inner[-1].get(device, 0) + grown


def owned_bytes() -> dict[tuple[str, int], int]:
    """What each owner holds, by name and device."""
    with _lock:
        return dict(_owned)


def forget_owners() -> None:
    """Reset what owners hold."""
    with _lock:
        _owned.clear()
