import subprocess
import sys

import pytest

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

PRELUDE = """
import os
import numpy as np
from tamis.memory import process
from tamis.memory.monitor import held_bytes, private_bytes
MB = 1_000_000
"""


def in_a_new_process(code: str) -> None:
    """Run code where no earlier test has left freed memory that an allocation could reuse."""
    done = subprocess.run([sys.executable, "-c", PRELUDE + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@linux
def test_the_peak_outlives_the_memory_and_can_be_reset():
    in_a_new_process(
        """
before = process.reset_peak()
assert before > 0
np.ones(10_000_000)
peak = process.peak_bytes()
assert peak > before + 70 * MB, (peak, before)
process.trim()
process.reset_peak()
assert process.peak_bytes() < peak
"""
    )


@linux
def test_data_bytes_counts_what_is_mapped_for_writing_even_before_it_is_touched():
    in_a_new_process(
        """
before = process.data_bytes()
reserved = np.empty(10_000_000)
assert process.data_bytes() >= before + reserved.nbytes
"""
    )


@linux
def test_trim_gives_small_blocks_back():
    in_a_new_process(
        """
kept = [bytearray(1_000) for _ in range(100_000)]
last = kept.pop()  # the block at the top of the heap, which alone would keep the arena from shrinking
held = private_bytes(os.getpid())
kept.clear()
process.trim()
assert private_bytes(os.getpid()) < held - 50 * MB
assert last
assert held_bytes(os.getpid()) >= private_bytes(os.getpid())
"""
    )
