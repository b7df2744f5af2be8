"""Blocks of memory that a network frees and allocates again."""

import ctypes
import mmap
import multiprocessing
import resource
from concurrent.futures import ProcessPoolExecutor

import pytest

from tamis.memory.process import own_bytes, trim
from tamis.models.allocator import reusing_freed_memory

BLOCK = 48 * 2**20

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]


def fill_and_free() -> None:
    block = libc.malloc(BLOCK)
    ctypes.memset(block, 1, BLOCK)
    libc.free(block)


@pytest.fixture(autouse=True)
def _returned():
    yield
    trim()


def test_a_large_block_is_allocated_from_one_that_was_freed():
    with reusing_freed_memory():
        fill_and_free()
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        for _ in range(3):
            fill_and_free()
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
    assert faults < BLOCK // mmap.PAGESIZE


def test_large_blocks_are_returned_to_the_system_again_afterwards():
    # In a process of its own: one that has run other tests may have space for the block between others.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(held_afterwards).result() < BLOCK // 2


def held_afterwards() -> int:
    with reusing_freed_memory():
        fill_and_free()
    trim()
    before = own_bytes()
    fill_and_free()
    return own_bytes() - before
