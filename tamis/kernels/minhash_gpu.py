"""`sign` and `sign_packed` of `minhash.py` on a GPU: same arguments, bit-identical results (CUDA C++ through CuPy).

Batches with a word of more than 4000 bytes, and batches that do not fit in GPU memory, are processed on the CPU.
"""

from __future__ import annotations

import contextlib
import functools
import math
import resource
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from tamis.errors import MissingExtra, ParameterError, require
from tamis.kernels import minhash, sets
from tamis.kernels.unicode_tables import ALPHANUMERIC, CONTROL, DIGIT, PUNCTUATION, SPACE, SYMBOL, UNSPACED

R = TypeVar("R")

_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/nvidia0"), Path("/dev/dxg"))
_THREADS = 128
MAX_HASHES = 10_000
"""The minima of a text must fit in the shared memory of a block: 40 kB of 48."""


OPENING_BYTES = 1_500_000_000
"""Memory that a process maps when it initialises a GPU: 1.4 GB with CuPy 14 and CUDA 13, of which 0.25 GB is used."""


@functools.cache
def fits_in_memory() -> bool:
    """Whether there is a GPU, and initialising it leaves this process at least as much memory as it takes."""
    return _free_bytes() >= 2 * OPENING_BYTES and available()


def _free_bytes() -> float:
    """Memory that the limit of this process allows beyond what it has allocated."""
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit == resource.RLIM_INFINITY:
        return math.inf
    return limit - int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()


@functools.cache
def available() -> bool:
    """Whether this machine has a usable GPU. Imports CuPy only if there is one."""
    if not any(path.exists() for path in _DEVICES):
        return False
    try:
        cupy = _cupy()
        return cupy.cuda.runtime.getDeviceCount() > 0
    except MissingExtra:
        return False
    except RuntimeError:  # no driver, or one that is too old
        return False


def demand() -> None:
    """Raise if there is no usable GPU."""
    if not any(path.exists() for path in _DEVICES):
        raise ParameterError("this machine has no GPU", hint='device="auto" uses a GPU if there is one')
    _cupy()
    if not available():
        raise ParameterError("the GPU of this machine cannot be used", hint="check the output of nvidia-smi")


def _cupy() -> ModuleType:
    return require("cupy", extra="gpu", purpose="kernels on a GPU")


@functools.cache
def _kernels() -> Any:
    source = Path(__file__).with_name("minhash.cu").read_text()
    return _cupy().RawModule(code=source, options=("--std=c++17",))


@functools.cache
def _tables(options: int) -> tuple[Any, ...]:
    from tamis.kernels.unicode_tables import KINDS, POINTS

    cupy = _cupy()
    return tuple(cupy.asarray(np.array(table)) for table in (*minhash.folding_tables(options), POINTS, KINDS))


def sign(*arguments: Any) -> None:
    """See `minhash.sign`."""
    shingles, spans = arguments[-2:]
    signed = _if_it_fits(_sign, *arguments[:-2])
    if signed is None:
        minhash.sign(*arguments)
    else:
        joined, spans[:] = signed
        shingles[: spans[-1]] = joined.get()


def sign_packed(*arguments: Any) -> tuple[np.ndarray, np.ndarray]:
    """See `minhash.sign_packed`."""
    signed = _if_it_fits(_sign, *arguments)
    packed = _if_it_fits(_pack, *signed) if signed is not None else None
    return packed or minhash.sign_packed(*arguments)


def _if_it_fits(function: Callable[..., R | None], *arguments: Any) -> R | None:
    """The result of a function, or None if the GPU does not have enough memory for it."""
    cupy = _cupy()
    with contextlib.suppress(cupy.cuda.memory.OutOfMemoryError):
        return function(cupy, *arguments)
    cupy.get_default_memory_pool().free_all_blocks()  # after the block: the error keeps its allocations alive
    return None


def _sign(
    cupy: Any,
    data: np.ndarray,
    offsets: np.ndarray,
    by_characters: bool,
    n: int,
    options: int,
    ascii_table: np.ndarray,
    folds: np.ndarray,
    points: np.ndarray,
    kinds: np.ndarray,
    factors: np.ndarray,
    num_bands: int,
    counts: np.ndarray,
    keys: np.ndarray,
) -> tuple[Any, np.ndarray] | None:
    """(n-grams of all rows, on the GPU; offsets of the rows in them), or None if a text has a word longer than the buffer.

    The tables among the arguments are not used, because the GPU has its own copies.
    """
    rows, first, last = len(counts), int(offsets[0]), int(offsets[-1])
    if not rows or len(factors) > MAX_HASHES:
        return None
    text = cupy.asarray(data[first:last]) if last > first else cupy.zeros(1, np.uint8)
    ends = cupy.asarray(offsets - first)
    sizes = ends[1:] - ends[:-1]
    places = cupy.zeros(rows + 1, np.int64)  # a word takes at least a byte and a separator, or three bytes
    cupy.cumsum(sizes + 1 if by_characters else (sizes + 1) // 2 + 1, out=places[1:])
    found = cupy.empty(int(places[-1]), np.uint32)
    num, marked = cupy.empty(rows, np.int64), cupy.zeros(1, np.int32)
    order = cupy.argsort(-sizes)  # neighbouring threads get texts of similar length
    kernels, u32 = _kernels(), np.uint32
    kernels.get_function("shingle")(
        (-(-rows // _THREADS),), (_THREADS,),
        (
            text, ends, order, np.int64(rows), np.int32(by_characters), np.int32(n), np.int32(options), *_tables(options),
            u32(SPACE | CONTROL), u32(PUNCTUATION | SYMBOL), u32(DIGIT), u32(ALPHANUMERIC), u32(UNSPACED),
            places, found, num, marked,
        ),
    )  # fmt: skip
    if int(marked[0]):
        return None
    perms = len(factors)
    made = cupy.empty(keys.shape, np.uint64)
    kernels.get_function("minimise")(
        (rows,), (_THREADS,),
        (found, places, num, cupy.asarray(factors), np.int32(perms), np.int32(num_bands), made),
        shared_mem=4 * perms,
    )  # fmt: skip
    num.get(out=counts)
    made.get(out=keys)
    spans = np.zeros(rows + 1, np.int64)
    np.cumsum(np.abs(counts), out=spans[1:])
    joined = cupy.empty(int(spans[-1]), np.uint32)
    if len(joined):
        kernels.get_function("gather")((rows,), (_THREADS,), (found, places, cupy.asarray(spans), joined))
    return joined, spans


def _pack(cupy: Any, values: Any, spans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`sets.pack_sets` for all rows at once: after one sort, the position of each n-gram is known."""
    rows, size = len(spans) - 1, len(values)
    if not size:
        return np.empty(0, np.uint8), np.zeros(rows + 1, np.int64)
    starts = cupy.bincount(cupy.asarray(spans[1:-1]), minlength=size + 1)[:size]  # rows that begin at each value
    ordered = (cupy.cumsum(starts).astype(np.uint64) << 32) | cupy.maximum(values, 1)
    del starts
    ordered.sort()
    new = cupy.ones(size, np.bool_)
    cupy.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    ordered = ordered[new]
    row = (ordered >> 32).astype(np.int64)
    counts = cupy.bincount(row, minlength=rows)
    _, exponents = cupy.frexp(cupy.maximum(counts - 1, 0).astype(np.float64))  # the number of bits of count - 1
    bits = cupy.minimum(sets.FULL_BITS, sets.SPARE_BITS + exponents)
    places = (ordered & 0xFFFFFFFF).astype(np.int64) >> (sets.FULL_BITS - bits).astype(np.int64)[row]
    gaps = cupy.diff(places, prepend=places[:1])
    ends = cupy.cumsum(counts)
    begin = (ends - counts)[counts > 0]
    gaps[begin] = places[begin]
    stops = cupy.zeros(len(gaps) + 1, np.int64)
    cupy.cumsum(gaps // sets.ESCAPE + 1, out=stops[1:])
    packed = cupy.full(int(stops[-1]), sets.ESCAPE, np.uint8)
    packed[stops[1:] - 1] = (gaps % sets.ESCAPE).astype(np.uint8)
    return packed.get(), np.concatenate([np.zeros(1, np.int64), stops[ends].get()])
