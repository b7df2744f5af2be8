"""Compare byte set bitmaps with reference implementations."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.kernels.jit import kernel
from tamis.kernels.masks import LANES, lowest, matcher, ones

SETS = (b"a", b"\n", range(128, 256), [0, 1, 2, 9, 200, 255], range(256))
_match = matcher(*SETS)


@kernel
def match_at(data, at):  # type: ignore[no-untyped-def]
    return _match(data.ctypes.data + at)


@kernel
def count_and_find(bits):  # type: ignore[no-untyped-def]
    return ones(bits), lowest(bits)


@settings(deadline=None)
@given(st.binary(min_size=LANES, max_size=LANES), st.integers(0, 5))
def test_a_bit_is_set_where_a_byte_is_in_the_set(window: bytes, before: int) -> None:
    data = np.frombuffer(b"a" * before + window + b"a", np.uint8)
    for found, members in zip(match_at(data, before), SETS, strict=True):
        assert found == sum(1 << index for index, byte in enumerate(window) if byte in set(members))


@settings(deadline=None)
@given(st.integers(1, 2**64 - 1))
def test_bits_are_counted_and_the_lowest_is_found(bits: int) -> None:
    assert count_and_find(np.uint64(bits)) == (bits.bit_count(), (bits & -bits).bit_length() - 1)
