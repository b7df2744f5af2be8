"""Decoded bytes in order, with the place of each, in whatever chunks they come."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.sources.bytestream import ByteStream, StreamDamage
from tamis.sources.lines import STOP, Chunk, Unread


def chunks_of(place, data, sizes, *, damaged=False):
    at = 0
    while at < len(data):
        size = next(sizes)
        yield Chunk(place, at, data[at : at + size], len(data[at : at + size]), damaged)
        at += size


@given(st.lists(st.integers(1, 9), min_size=1), st.integers(1, 40))
def test_matches_are_found_wherever_chunks_end(sizes, most):
    data = b"....<a>..</a>......<a>....</a>." * 3
    stream = ByteStream(chunks_of("f", data, iter(sizes * len(data))))
    found = []
    while stream.go_to(re.compile(b"<a>"), 3):
        found.append(stream.here()[1])
        end = stream.find(re.compile(b"</a>"), most)
        expected = data.index(b"</a>", found[-1]) + 4 - found[-1]
        assert end == (expected if expected <= most else None)
        stream.skip(3)
    assert found == [match.start() for match in re.finditer(b"<a>", data)]


def test_only_bytes_that_are_consumed_count_as_damaged():
    good, bad = chunks_of("f", b"one two ", iter([1] * 8)), chunks_of("f@9", b"three", iter([1] * 5), damaged=True)
    stream = ByteStream([*good, STOP, *bad])
    assert (stream.peek(13), stream.read(8), stream.damaged, stream.is_mine()) == (
        b"one two three",
        b"one two ",
        False,
        False,
    )
    assert (stream.here(), stream.read(1), stream.damaged) == (("f@9", 0), b"t", True)


def test_damage_is_raised_after_the_bytes_before_it():
    stream = ByteStream([*chunks_of("f", b"abcdef", iter([2] * 3)), Unread("f", 6, "corrupt")])
    assert stream.find(re.compile(b"f"), 100) == 6
    assert stream.read(6) == b"abcdef"
    with pytest.raises(StreamDamage, match="corrupt"):
        stream.read(1)
