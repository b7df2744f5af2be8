"""Frames: their positions, damage, and splitting of large files."""

from __future__ import annotations

import io
import random

import pyarrow as pa
import pytest

from tamis.errors import SourceError
from tamis.sources.compression import decoded_chunks, entries, frame_starts
from tamis.sources.lines import Chunk, Stop, Unread

CODECS = {"gz": "gzip", "zst": "zstd", "bz2": "bz2", "xz": "xz", "lz4": "lz4"}
SKIPPABLE = (0x184D2A53).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"abcde"


def text(size: int, seed: int = 0) -> bytes:
    """Bytes that compress about as text does."""
    random.seed(seed)
    words = [bytes(random.choices(b"abcdefghij", k=5)) for _ in range(300)]
    return b"\n".join(random.choices(words, k=size // 6))[:size]


def decode(blob: bytes, codec: str, start: int = 0, stop: int | None = None) -> tuple[bytes, list]:
    """The bytes inside the piece, and whatever else the stream said."""
    inside, others, beyond = [], [], False
    for item in decoded_chunks(io.BytesIO(blob), "p", codec, start, len(blob) if stop is None else stop):
        if isinstance(item, Chunk):
            inside.append(item.data[: item.size] if not beyond else b"")
        elif isinstance(item, Stop):
            beyond = True
        else:
            others.append(item)
    return b"".join(inside), others


@pytest.mark.parametrize("codec", CODECS)
def test_many_frames_are_decoded_as_one_stream(codec, compress):
    parts = [text(70_000, seed) for seed in range(4)]
    assert decode(b"".join(compress(codec, part) for part in parts), CODECS[codec]) == (b"".join(parts), [])


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("exact", [True, False])
def test_files_are_entered_only_where_a_frame_begins(codec, exact, compress):
    packed = [compress(codec, text(100_000, seed)) for seed in range(12)]
    starts = {sum(map(len, packed[:i])) for i in range(12)}
    blob = b"".join(packed)
    found = entries(io.BytesIO(blob), CODECS[codec], len(blob), len(blob) // 5, exact=exact)
    assert found[0] == 0
    assert set(found) <= starts
    assert 4 <= len(found) <= 6
    parts = [decode(blob, CODECS[codec], a, b)[0] for a, b in zip(found, [*found[1:], len(blob)], strict=True)]
    assert b"".join(parts) == b"".join(text(100_000, seed) for seed in range(12))


@pytest.mark.parametrize("codec", CODECS)
def test_a_file_of_one_frame_is_entered_at_its_beginning_only(codec, compress):
    blob = compress(codec, text(500_000))
    assert entries(io.BytesIO(blob), CODECS[codec], len(blob), 10_000, exact=True) == [0]


@pytest.mark.parametrize("codec", ["zst", "lz4"])
def test_walks_find_frames_and_pass_over_skippable_ones(codec, compress):
    one, two = compress(codec, text(300_000)), compress(codec, b"")
    blob = one + SKIPPABLE + two + one
    expected = [0, len(one), len(one) + len(SKIPPABLE), len(one) + len(SKIPPABLE) + len(two)]
    assert frame_starts(io.BytesIO(blob), CODECS[codec], len(blob)) == expected
    assert decode(blob, CODECS[codec]) == (2 * text(300_000), [])


def test_a_zstd_block_of_one_repeated_byte_is_walked():
    blob = pa.Codec("zstd").compress(b"a" * 10**6).to_pybytes()
    assert frame_starts(io.BytesIO(blob * 3), "zstd", 3 * len(blob)) == [0, len(blob), 2 * len(blob)]
    assert decode(blob * 3, "zstd") == (b"a" * (3 * 10**6), [])


def test_a_zstd_frame_with_a_checksum_is_walked_and_checked():
    # header with the checksum flag, one raw block of 6 bytes, a checksum that is wrong
    blob = bytes.fromhex("28b52ffd 0400 310000") + b"hello\n" + b"\0\0\0\0"
    assert frame_starts(io.BytesIO(blob + blob), "zstd", 2 * len(blob)) == [0, len(blob)]
    data, others = decode(blob, "zstd")
    assert data == b"hello\n"
    assert "corrupt" in others[0].error


@pytest.mark.parametrize("codec", CODECS)
def test_a_truncated_file_gives_all_before_the_end_and_one_clear_word(codec, compress):
    whole = text(400_000)
    blob = compress(codec, whole[:200_000]) + compress(codec, whole[200_000:])
    data, others = decode(blob[:-40], CODECS[codec])
    assert len(data) >= 200_000
    assert whole.startswith(data)
    assert [type(item) for item in others] == [Unread]
    assert "ends in the middle of a" in others[0].error


@pytest.mark.parametrize("codec", ["gz", "bz2", "xz"])
def test_a_wrong_checksum_is_reported_and_loses_nothing(codec, compress):
    whole = text(300_000)
    blob = bytearray(compress(codec, whole))
    blob[-6] ^= 0xFF
    data, others = decode(bytes(blob), CODECS[codec])
    assert data == whole
    assert len(others) == 1
    assert "corrupt" in others[0].error


@pytest.mark.parametrize("codec", CODECS)
def test_data_of_another_format_is_reported(codec):
    data, others = decode(b"this is no compressed file at all, is it", CODECS[codec])
    assert data == b""
    assert len(others) == 1


@pytest.mark.parametrize("codec", CODECS)
def test_garbage_after_the_last_frame_is_reported(codec, compress):
    data, others = decode(compress(codec, b"fine\n") + b"garbage, twelve bytes", CODECS[codec])
    assert data == b"fine\n"
    assert len(others) == 1


@pytest.mark.parametrize("codec", ["gz", "xz"])
def test_zeros_between_members_are_padding(codec, compress):
    blob = compress(codec, b"a\n") + b"\0" * 512 + compress(codec, b"b\n") + b"\0" * 8
    assert decode(blob, CODECS[codec]) == (b"a\nb\n", [])


@pytest.mark.parametrize("codec", CODECS)
def test_a_piece_that_ends_within_a_frame_is_an_error_not_a_loss(codec, compress):
    blob = compress(codec, text(100_000)) + compress(codec, text(100_000))
    with pytest.raises(SourceError, match="where this partition ends"):
        decode(blob, CODECS[codec], 0, 100)


def test_an_empty_file_has_no_frames():
    assert decode(b"", "gzip") == (b"", [])
    assert frame_starts(io.BytesIO(b""), "zstd", 0) == []
