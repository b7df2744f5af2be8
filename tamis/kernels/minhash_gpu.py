"""N-grams, band keys and digests of texts on a GPU, bit-identical to `minhash.py` and `digests.py` (CUDA C++ through CuPy).

texts --pinned--> GPU: digest; hashes of words -> n-grams -> minima -> band keys; sorted and packed n-grams --pinned--> facts
"""

from __future__ import annotations

import functools
import math
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tamis.errors import require
from tamis.kernels import minhash, sets
from tamis.kernels.unicode_tables import ALPHANUMERIC, CONTROL, DIGIT, PUNCTUATION, SPACE, SYMBOL, UNSPACED
from tamis.models.devices import choose

_THREADS = 128
CHUNK_BYTES = 256
"""Bytes of a text that one thread reads, as in minhash.cu."""
SMALL_BYTES = 65_536
"""Pinned memory is not worth it for arrays below this size."""
MAX_HASHES = 10_000
"""The minima of a text must fit in the shared memory of a block: 40 kB of 48."""


@functools.cache
def available() -> bool:
    """Whether this machine has a usable GPU. Imports CuPy only if there is one."""
    if choose("auto", "cupy") == "cpu":
        return False
    try:
        return int(_cupy().cuda.runtime.getDeviceCount()) > 0
    except RuntimeError:  # no driver, or one that is too old
        return False


def release() -> None:
    """Return the memory that CuPy has freed but kept, on the GPU and pinned."""
    cupy = _cupy()
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.get_default_pinned_memory_pool().free_all_blocks()


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


@dataclass(frozen=True)
class Signed:
    """What is known about the texts of a batch; see `minhash.sign`."""

    content: np.ndarray
    """uint64[rows], the first half of the digest of each text"""
    counts: np.ndarray
    keys: np.ndarray
    compared: np.ndarray
    """The n-grams of all rows (uint32), or the packed n-grams (uint8)."""
    spans: np.ndarray
    """Offsets of the rows in `compared`."""


def sign(
    data: np.ndarray,
    offsets: np.ndarray,
    *,
    by_characters: bool,
    n: int,
    options: int,
    factors: np.ndarray,
    num_bands: int,
    packed: bool,
) -> Signed | None:
    """The n-grams, whole or packed, the band keys and the digests of texts; None if they must be computed on the CPU.

    That is the case if a word is longer than 4000 bytes, or if the GPU does not have enough memory.
    """
    cupy = _cupy()
    if not len(offsets) - 1 or len(factors) > MAX_HASHES:
        return None
    try:
        return _sign(cupy, data, offsets, by_characters, n, options, factors, num_bands, packed)
    except cupy.cuda.memory.OutOfMemoryError as error:
        traceback.clear_frames(error.__traceback__)  # they hold what was allocated
    cupy.get_default_memory_pool().free_all_blocks()
    return None


def _sign(
    cupy: Any,
    data: np.ndarray,
    offsets: np.ndarray,
    by_characters: bool,
    n: int,
    options: int,
    factors: np.ndarray,
    num_bands: int,
    packed: bool,
) -> Signed | None:
    rows, first, size = len(offsets) - 1, int(offsets[0]), int(offsets[-1] - offsets[0])
    kernels, i32, i64, u32 = _kernels(), np.int32, np.int64, np.uint32
    text = _send(cupy, data[first : first + size]) if size else cupy.zeros(1, np.uint8)
    ends = cupy.asarray(offsets - first)
    content = cupy.empty(rows, np.uint64)
    kernels.get_function("digest")((rows,), (32,), (text, ends, i64(rows), np.uint64(0), content))
    # A text is read by many threads, each from white space to white space.
    first_chunks = np.zeros(rows + 1, i64)
    np.cumsum(-(-np.diff(offsets) // CHUNK_BYTES), out=first_chunks[1:])
    chunks = int(first_chunks[-1])
    units = cupy.empty((size if by_characters else size // 2) + rows + 2, np.uint64)
    places, found, marked = cupy.empty(chunks, i64), cupy.empty(chunks, i64), cupy.zeros(1, i64)
    unit_ends = cupy.zeros(chunks + 1, i64)
    first_chunks = cupy.asarray(first_chunks)
    if chunks:
        kernels.get_function("read_units")(
            (-(-chunks // _THREADS),), (_THREADS,),
            (
                text, ends, first_chunks, i64(rows), i64(chunks), i32(by_characters), i32(options), *_tables(options),
                u32(SPACE | CONTROL), u32(PUNCTUATION | SYMBOL), u32(DIGIT), u32(ALPHANUMERIC), u32(UNSPACED),
                units, places, found, marked,
            ),
        )  # fmt: skip
        cupy.cumsum(found, out=unit_ends[1:])
    begins = unit_ends[first_chunks]
    have = begins[1:] - begins[:-1]
    counts = cupy.where(have >= n, have - (n - 1), -(have > 0).astype(i64))
    spans = cupy.zeros(rows + 1, i64)
    cupy.cumsum(cupy.abs(counts), out=spans[1:])
    too_long, num_units, num_ngrams = cupy.concatenate([marked, begins[-1:], spans[-1:]]).get().tolist()
    if too_long:
        return None
    joined = cupy.empty(num_units, np.uint64)
    if num_units:
        kernels.get_function("compact")(
            (-(-chunks // 4),), (32, 4), (units, places, unit_ends[1:], i64(chunks), joined)
        )
    del units, places, unit_ends, text
    shingles = cupy.empty(num_ngrams, np.uint32)
    kernels.get_function("make_ngrams")((rows,), (_THREADS,), (joined, begins, spans, i64(rows), i32(n), shingles))
    del joined
    perms = len(factors)
    keys = cupy.empty((rows, num_bands), np.uint64)
    kernels.get_function("minimise")(
        (rows,), (_THREADS,),
        (shingles, spans, i64(rows), cupy.asarray(factors), i32(perms), i32(num_bands), keys),
        shared_mem=4 * perms,
    )  # fmt: skip
    compared, compared_spans = _pack(cupy, shingles, spans) if packed else (shingles, spans)
    return Signed(*(_fetch(cupy, array) for array in (content, counts, keys, compared, compared_spans)))


def _send(cupy: Any, array: np.ndarray) -> Any:
    """A copy of an array on the GPU, by way of pinned memory, which the GPU reads several times as fast."""
    staged = _pinned(cupy, array.shape, array.dtype)
    staged[...] = array
    result = cupy.empty(array.shape, array.dtype)
    result.set(staged)
    cupy.cuda.get_current_stream().synchronize()  # before `staged` is used again
    return result


def _fetch(cupy: Any, array: Any) -> np.ndarray:
    if array.nbytes < SMALL_BYTES:
        return np.asarray(array.get())
    result = _pinned(cupy, array.shape, array.dtype)
    array.get(out=result)
    return result


def _pinned(cupy: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array in pinned memory; in ordinary memory if there is none.

    CuPy keeps freed blocks by size, so the sizes are powers of two.
    """
    count, itemsize = math.prod(shape), np.dtype(dtype).itemsize
    try:
        memory = cupy.cuda.alloc_pinned_memory(1 << max(16, (count * itemsize - 1).bit_length()))
    except cupy.cuda.runtime.CUDARuntimeError:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, memory)


def _pack(cupy: Any, values: Any, spans: Any) -> tuple[Any, Any]:
    """`sets.pack_sets` for all rows at once: after one sort, the position of each n-gram is known."""
    rows, size = len(spans) - 1, len(values)
    if not size:
        return cupy.empty(0, np.uint8), cupy.zeros(rows + 1, np.int64)
    starts = cupy.bincount(spans[1:-1], minlength=size + 1)[:size]  # rows that begin at each value
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
    return packed, cupy.concatenate([cupy.zeros(1, np.int64), stops[ends]])
