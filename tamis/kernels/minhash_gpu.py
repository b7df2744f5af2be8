"""MinHash signatures on a GPU: `sign` of `minhash.py` with the same arguments and the same bits (CUDA C++ through CuPy).

What a GPU cannot do (a word of more than 4000 bytes, a batch that does not fit its memory), the processor does instead.
"""

from __future__ import annotations

import functools
import math
import resource
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tamis.errors import MissingExtra, ParameterError, require
from tamis.kernels import minhash
from tamis.kernels.unicode_tables import ALPHANUMERIC, CONTROL, DIGIT, PUNCTUATION, SPACE, SYMBOL, UNSPACED

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


def sign(
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
    shingles: np.ndarray,
    shingle_offsets: np.ndarray,
) -> None:
    """Sign each row; see `minhash.sign`."""
    cupy = _cupy()
    done = False
    if len(counts) and len(factors) <= MAX_HASHES:
        try:
            done = _sign(
                cupy, data, offsets, by_characters, n, options, factors, num_bands,
                counts, keys, shingles, shingle_offsets,
            )  # fmt: skip
        except cupy.cuda.memory.OutOfMemoryError:
            cupy.get_default_memory_pool().free_all_blocks()
    if not done:
        minhash.sign(
            data, offsets, by_characters, n, options, ascii_table, folds, points, kinds,
            factors, num_bands, counts, keys, shingles, shingle_offsets,
        )  # fmt: skip


def _sign(
    cupy: Any,
    data: np.ndarray,
    offsets: np.ndarray,
    by_characters: bool,
    n: int,
    options: int,
    factors: np.ndarray,
    num_bands: int,
    counts: np.ndarray,
    keys: np.ndarray,
    shingles: np.ndarray,
    shingle_offsets: np.ndarray,
) -> bool:
    """The same on the GPU alone; False if a text has a word that must be cut."""
    rows, first, last = len(counts), int(offsets[0]), int(offsets[-1])
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
        return False
    perms = len(factors)
    made = cupy.empty(keys.shape, np.uint64)
    kernels.get_function("minimise")(
        (rows,), (_THREADS,),
        (found, places, num, cupy.asarray(factors), np.int32(perms), np.int32(num_bands), made),
        shared_mem=4 * perms,
    )  # fmt: skip
    num.get(out=counts)
    made.get(out=keys)
    np.cumsum(np.abs(counts), out=shingle_offsets[1:])
    shingle_offsets[0] = 0
    if len(shingles):
        joined = cupy.empty(max(1, int(shingle_offsets[-1])), np.uint32)
        kernels.get_function("gather")((rows,), (_THREADS,), (found, places, cupy.asarray(shingle_offsets), joined))
        shingles[: shingle_offsets[-1]] = joined[: int(shingle_offsets[-1])].get()
    else:
        shingle_offsets[:] = 0
    return True
