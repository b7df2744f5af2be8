"""MinHash signatures on a GPU: `sign` and `sign_packed` of `minhash.py`, same arguments, same bits (CUDA C++ through CuPy).

What a GPU cannot do (a word of more than 4000 bytes, a batch that does not fit its memory), the processor does instead.
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
"""Minima of one text are held in the shared memory of a block: 40 kB of 48."""


OPENING_BYTES = 1_500_000_000
"""Memory a process maps when it opens a GPU: 1.4 GB measured with CuPy 14 and CUDA 13, of which 0.25 GB are used."""


@functools.cache
def opens_freely() -> bool:
    """Whether there is a GPU, and opening it leaves this process, whose memory may be limited, as much again to work in."""
    return _room() >= 2 * OPENING_BYTES and available()


def _room() -> float:
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit == resource.RLIM_INFINITY:
        return math.inf
    return limit - int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()


@functools.cache
def available() -> bool:
    """Whether this machine has a GPU that kernels can use; CuPy is imported only where there is one."""
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
    """Raise a clear error if there is no GPU to use."""
    if not any(path.exists() for path in _DEVICES):
        raise ParameterError("there is no GPU here", hint='device="auto" uses one where there is one')
    _cupy()
    if not available():
        raise ParameterError("the GPU here cannot be used", hint="look at what nvidia-smi says")


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
    """Sign each row; see `minhash.sign`."""
    shingles, spans = arguments[-2:]
    signed = _if_it_fits(_sign, *arguments[:-2])
    if signed is None:
        minhash.sign(*arguments)
    else:
        joined, spans[:] = signed
        shingles[: spans[-1]] = joined.get()


def sign_packed(*arguments: Any) -> tuple[np.ndarray, np.ndarray]:
    """Sign each row and pack its n-grams; see `minhash.sign_packed`."""
    signed = _if_it_fits(_sign, *arguments)
    packed = _if_it_fits(_pack, *signed) if signed is not None else None
    return packed or minhash.sign_packed(*arguments)


def _if_it_fits(function: Callable[..., R | None], *arguments: Any) -> R | None:
    """What a function gives, or None if the GPU has too little memory for it."""
    cupy = _cupy()
    with contextlib.suppress(cupy.cuda.memory.OutOfMemoryError):
        return function(cupy, *arguments)
    cupy.get_default_memory_pool().free_all_blocks()  # not before the error is gone, which holds what was allocated
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
    """The n-grams of all rows, left on the GPU, and where those of each row begin; None if a text has a word that must be cut.

    The tables among the arguments are not used: they lie on the GPU already.
    """
    rows, first, last = len(counts), int(offsets[0]), int(offsets[-1])
    if not rows or len(factors) > MAX_HASHES:
        return None
    text = cupy.asarray(data[first:last]) if last > first else cupy.zeros(1, np.uint8)
    ends = cupy.asarray(offsets - first)
    sizes = ends[1:] - ends[:-1]
    places = cupy.zeros(rows + 1, np.int64)  # a word is at least a byte and a separator, or three bytes
    cupy.cumsum(sizes + 1 if by_characters else (sizes + 1) // 2 + 1, out=places[1:])
    found = cupy.empty(int(places[-1]), np.uint32)
    num, marked = cupy.empty(rows, np.int64), cupy.zeros(1, np.int32)
    order = cupy.argsort(-sizes)  # neighbours of one length finish together
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
    """`sets.pack_sets` for all rows at once: one sort, and then each n-gram knows by itself where it goes."""
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
    _, exponents = cupy.frexp(cupy.maximum(counts - 1, 0).astype(np.float64))  # so many bits as count - 1 has
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
