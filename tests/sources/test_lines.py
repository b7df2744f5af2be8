"""Every line exactly once, wherever a file is cut, plain or compressed."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tamis.sources.compression import decoded_chunks
from tamis.sources.lines import BOM, Frame, Lines, Text, Unread, head, join_texts, plain_chunks, some_of, whole_lines

CODECS = {"gz": "gzip", "zst": "zstd", "bz2": "bz2", "xz": "xz", "lz4": "lz4"}

contents = st.builds(
    lambda bom, lines, end: bom + b"".join(lines) + end,
    st.sampled_from([b"", BOM]),
    st.lists(
        st.builds(
            lambda text, end: text.encode() + end,
            st.text(st.sampled_from('ab{}",: é😀\t'), max_size=12) | st.just("x" * 150),
            st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\n \t\n"]),
        ),
        max_size=20,
    ),
    st.sampled_from([b"", b"last", b"  ", b"\n"]),
)


def naive(data: bytes) -> list[tuple[int, bytes]]:
    """(offset, line) of each line that is not blank."""
    skip = len(BOM) if data.startswith(BOM) else 0
    result, offset = [], skip
    for line in data[skip:].split(b"\n"):
        if line.strip():
            result.append((offset, line))
        offset += len(line) + 1
    return result


def read(texts) -> list[tuple[str, bytes]]:
    result = []
    for text in texts:
        assert isinstance(text, Text)
        lines = Lines.of(text)
        result += [(lines.address(index), lines.line(index)) for index in range(len(lines))]
    return result


@settings(max_examples=300, deadline=None)
@given(contents, st.integers(1, 400), st.integers(1, 200))
def test_plain_pieces_give_each_line_once_for_any_cut(data, step, batch_bytes):
    found = []
    for start in range(0, len(data), step):
        stop = min(len(data), start + step)
        chunks = plain_chunks(io.BytesIO(data), "p", start, stop, batch_bytes)
        found += read(
            whole_lines(chunks, skip_first=start > 0, owns_stop=False, batch_bytes=batch_bytes, max_line_bytes=10**6)
        )
    assert found == [(f"p:{offset}", line) for offset, line in naive(data)]


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=contents,
    cuts=st.lists(st.integers(0, 300), max_size=5),
    split=st.integers(1, 4),
    batch_bytes=st.integers(1, 200),
)
def test_pieces_of_frames_give_each_line_once_for_any_cut(codec, compress, data, cuts, split, batch_bytes):
    bounds = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    frames = [data[a:b] for a, b in itertools.pairwise(bounds)] or [b""]
    packed = [compress(codec, frame) for frame in frames]
    starts = [sum(map(len, packed[:i])) for i in range(len(packed) + 1)]
    blob = b"".join(packed)
    entries = [*starts[:-1:split], starts[-1]]
    found = []
    for start, stop in itertools.pairwise(entries):
        chunks = decoded_chunks(io.BytesIO(blob), "p", CODECS[codec], start, stop)
        found += read(
            whole_lines(chunks, skip_first=start > 0, owns_stop=True, batch_bytes=batch_bytes, max_line_bytes=10**6)
        )
    expected = []
    for offset, line in naive(data):
        frame = max(i for i, bound in enumerate(bounds[:-1]) if bound <= offset)
        place = "p" if frame == 0 else f"p@{starts[frame]}"
        expected.append((f"{place}:{offset - bounds[frame]}", line))
    assert found == expected


@pytest.mark.parametrize("batch_bytes", [1, 7, 100, 10_000])
def test_a_line_that_is_too_long_is_reported_with_its_size_and_not_held(batch_bytes):
    data = b"a\n" + b"x" * 5000 + b"\nb\n" + b"y" * 3000
    chunks = plain_chunks(io.BytesIO(data), "p", 0, len(data), batch_bytes)
    got = list(whole_lines(chunks, skip_first=False, owns_stop=False, batch_bytes=batch_bytes, max_line_bytes=1000))
    long = [item for item in got if isinstance(item, Unread)]
    if batch_bytes < 5000:
        assert [(item.position, "5,000" in item.error or "3,000" in item.error) for item in long] == [
            (2, True),
            (5005, True),
        ]
        assert [line for _, line in read([i for i in got if isinstance(i, Text)])] == [b"a", b"b"]


def test_texts_of_small_files_are_joined_and_keep_their_addresses():
    one = Text(b"a\nb", 0, 3, (Frame(0, 0, "one"),))
    two = Text(b"??c\n", 2, 4, (Frame(-10, -10, "two"),))
    (joined,) = join_texts([one, two], 100)
    assert read([joined]) == [("one:0", b"a"), ("one:2", b"b"), ("two:12", b"c")]
    assert len(list(join_texts([one, two], 3))) == 2


def test_a_limit_counts_lines_that_are_not_blank():
    text = Text(b"a\n\n \nb\nc\n", 0, 9, (Frame(0, 0, "p"),))
    assert [line for _, line in read(some_of([text, text], 0, 4))] == [b"a", b"b", b"c", b"a"]
    assert read([head(Lines.of(text), 2)]) == [("p:0", b"a"), ("p:5", b"b")]


def test_many_short_and_few_long_lines_are_found_alike(tmp_path: Path):
    for size in (3, 5000):
        data = b"".join(b"%d" % i + b"z" * size + b"\n" for i in range(200_000 // size))
        lines = Lines.of(Text(data, 0, len(data), (Frame(0, 0, "p"),)))
        assert [lines.line(i) for i in range(len(lines))] == data.split(b"\n")[:-1]
