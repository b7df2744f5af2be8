"""Damaged files: what is lost is counted, and no row is kept that differs from what was written."""

from __future__ import annotations

import io
import itertools
import random
import struct
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tamis.errors import TamisError
from tamis.operators import Reading
from tamis.sources.compression import decoded_chunks
from tamis.sources.lines import Chunk, Unread, whole_lines
from tamis.sources.tables import ArrowReader, CsvReader, JsonlReader, ParquetReader, TextReader

zstandard = pytest.importorskip("zstandard")
CODECS = ["gz", "bz2", "xz", "zst", "lz4"]
LINES = [f"line {number} " + " ".join(f"{number * 7919 % 997 + i * i}" for i in range(12)) for number in range(90)]


def xxh32(data: bytes) -> int:
    """The checksum of lz4 frames (XXH32 with seed 0)."""
    one, two, three, four, five = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    mask, at = 2**32 - 1, 0

    def rotated(value: int, by: int) -> int:
        return (value << by | value >> 32 - by) & mask

    total = five
    if len(data) >= 16:
        lanes = [(one + two) & mask, two, 0, -one & mask]
        while at + 16 <= len(data):
            for lane, word in enumerate(struct.unpack_from("<4I", data, at)):
                lanes[lane] = rotated((lanes[lane] + word * two) & mask, 13) * one & mask
            at += 16
        total = sum(rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & mask
    total = (total + len(data)) & mask
    while at + 4 <= len(data):
        total = rotated((total + struct.unpack_from("<I", data, at)[0] * three) & mask, 17) * four & mask
        at += 4
    for byte in data[at:]:
        total = rotated((total + byte * five) & mask, 11) * one & mask
    total = (total ^ total >> 15) * two & mask
    total = (total ^ total >> 13) * three & mask
    return total ^ total >> 16


def checked(codec: str, data: bytes, compress) -> bytes:
    """A member or frame with a checksum."""
    if codec == "zst":
        return zstandard.ZstdCompressor(write_checksum=True).compress(data)
    if codec == "lz4":  # blocks that are stored, not compressed
        descriptor = bytes([0x64, 0x40])
        blocks = [data[i : i + 1000] for i in range(0, len(data), 1000)]
        body = b"".join(struct.pack("<I", len(block) | 0x80000000) + block for block in blocks)
        head = struct.pack("<I", 0x184D2204) + descriptor + bytes([xxh32(descriptor) >> 8 & 255])
        return head + body + bytes(4) + struct.pack("<I", xxh32(data))
    return compress(codec, data)


def packed(codec: str, lines: list[str], compress, members: int = 3) -> bytes:
    """Members of equal size; lines cross from one to the next."""
    data = "".join(line + "\n" for line in lines).encode()
    bounds = [len(data) * i // members for i in range(members + 1)]
    return b"".join(checked(codec, data[a:b], compress) for a, b in itertools.pairwise(bounds))


@pytest.mark.parametrize("codec", CODECS)
def test_files_with_checksums_are_read_whole(codec, compress, tmp_path, read_all):
    (tmp_path / f"a.txt.{codec}").write_bytes(packed(codec, LINES, compress))
    for blocksize in (100, 10**9):
        found = read_all(TextReader(tmp_path), blocksize=blocksize)
        assert [row["text"] for row in found.rows] == LINES
        assert found.failures == []


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("blocksize", [100, 10**9])
def test_no_altered_row_is_kept_from_a_file_with_checksums(codec, blocksize, compress, tmp_path, read_all):
    whole, path = packed(codec, LINES, compress), tmp_path / f"a.txt.{codec}"
    originals = set(LINES)
    for seed in range(25):
        chance, data = random.Random(seed), bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        try:
            found = read_all(TextReader(path), blocksize=blocksize)
        except TamisError:
            continue  # a frame whose header moved its end; the run ends with a clear error
        kept = [row["text"] for row in found.rows]
        assert set(kept) <= originals, seed
        assert len(set(kept)) == len(kept), seed
        assert len(kept) == len(LINES) or found.failures, seed


def test_rows_of_a_member_that_fails_its_checksum_fail(compress, tmp_path, read_all):
    members = [checked("gz", "".join(f"{n}\n" for n in part).encode(), compress) for part in (range(5), range(5, 9))]
    broken = bytearray(members[1])
    broken[-6] ^= 1
    path = tmp_path / "a.txt.gz"
    path.write_bytes(members[0] + broken)
    found = read_all(TextReader(path))
    assert [row["text"] for row in found.rows] == ["0", "1", "2", "3", "4"]
    (failure,) = found.failures
    assert (failure.address, failure.rows, failure.damaged_file) == (f"{path}@{len(members[0])}:8", 4, str(path))
    assert "incorrect data check" in failure.error
    assert 'on_damage="keep"' in failure.error
    kept = read_all(TextReader(path, on_damage="keep"))
    assert [row["text"] for row in kept.rows] == [str(n) for n in range(9)]
    assert [failure.rows for failure in kept.failures] == [0]


@pytest.mark.parametrize("blocksize", [1, 10**9])
def test_a_line_that_ends_in_a_damaged_member_fails(blocksize, compress, tmp_path, read_all):
    first, second = checked("gz", b"one\ntwo\nthr", compress), bytearray(checked("gz", b"ee\nfour\n", compress))
    second[-6] ^= 1
    path = tmp_path / "a.txt.gz"
    path.write_bytes(first + second)
    found = read_all(TextReader(path, blocksize=blocksize))
    assert [row["text"] for row in found.rows] == ["one", "two"]
    assert sum(failure.rows for failure in found.failures) == 2


def test_a_truncated_member_keeps_the_rows_before_its_end(compress, tmp_path, read_all):
    path, lines = tmp_path / "a.txt.gz", [random.Random(n).randbytes(30).hex() for n in range(3000)]
    blob = packed("gz", lines, compress, members=1)
    path.write_bytes(blob[: len(blob) // 2])
    found = read_all(TextReader(path))
    kept = [row["text"] for row in found.rows]
    assert kept == lines[: len(kept)]
    assert len(kept) > 1000
    (failure,) = found.failures
    assert failure.damaged_file == str(path)
    assert f"near byte {path.stat().st_size:,} of the file" in failure.error


@pytest.mark.parametrize("codec", CODECS)
def test_rows_of_a_csv_file_in_a_damaged_member_fail(codec, compress, tmp_path, read_all):
    rows = [f'{n},"text {n}\nsecond line"' for n in range(100)]
    blob = packed(codec, ["n,text", *rows], compress, members=2)
    path = tmp_path / f"a.csv.{codec}"
    for seed in range(15):
        data = bytearray(blob)
        data[random.Random(seed).randrange(len(data))] ^= 0x10
        path.write_bytes(data)
        try:
            found = read_all(CsvReader(path))
        except TamisError:
            continue
        assert [dict(row) for row in found.rows] == [
            {"n": str(n), "text": f"text {n}\nsecond line"} for n in range(len(found.rows))
        ], seed
        assert len(found.rows) == 100 or found.failures, seed


# ------------------------------------------------------------------------------------------------ Arrow and Parquet


def table() -> pa.Table:
    texts = [f"row {n} " + "x" * (n % 5) for n in range(30)]
    return pa.table(
        {"text": texts, "n": np.arange(30), "kind": pa.array(texts).dictionary_encode(), "list": [[t] for t in texts]}
    )


def write(path, suffix: str) -> None:
    rows = table()
    if suffix == "parquet":
        pq.write_table(rows, path, row_group_size=10)
        return
    new = pa.ipc.new_file if suffix == "file" else pa.ipc.new_stream
    with new(path, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=10)


@pytest.mark.parametrize("suffix", ["file", "stream", "parquet"])
def test_a_mutated_columnar_file_never_crashes_and_yields_valid_rows(suffix, tmp_path, read_all):
    path = tmp_path / ("a.parquet" if suffix == "parquet" else "a.arrow")
    write(path, suffix)
    whole = path.read_bytes()
    reader = ParquetReader if suffix == "parquet" else ArrowReader
    for seed in range(80):
        chance, data = random.Random(seed), bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        try:
            found = read_all(reader(path))
        except TamisError:
            continue
        assert len(found.rows) + sum(failure.rows for failure in found.failures) <= 60, seed
        assert len(set(found.addresses)) == len(found.addresses), seed


# ------------------------------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize("codec", CODECS)
def test_a_long_line_is_never_assembled(codec, compress):
    blob = checked("gz", bytes(3 * 10**6), compress) if codec == "gz" else compress(codec, bytes(3 * 10**6))
    name = {"gz": "gzip", "zst": "zstd"}.get(codec, codec)
    chunks = list(decoded_chunks(io.BytesIO(blob), "a", name, 0, len(blob)))
    assert max(chunk.size for chunk in chunks if isinstance(chunk, Chunk)) <= 65_536
    limits = {"skip_first": False, "owns_stop": True, "batch_bytes": 10**6, "max_line_bytes": 100_000}
    (found,) = whole_lines(chunks, **limits)
    assert isinstance(found, Unread)
    assert found.error == "the line is 3,000,000 bytes long, more than the limit of 100,000"


def test_a_row_over_the_limit_of_the_memory_budget_says_how_to_read_it(tmp_path, read_all):
    (tmp_path / "a.jsonl").write_text('{"text": "' + "x" * 5000 + '"}\n{"text": "short"}\n')
    source, failures = JsonlReader(tmp_path), []
    layout = source.layout(10**6)
    reading = replace(Reading(None, layout.schema, 10**6, failures.append), max_row_bytes=1000)
    (batch,) = source.read(layout.partitions[0], reading)
    assert batch.rows() == [{"text": "short"}]
    assert "more than the limit of 1,000 that --memory allows; more memory" in failures[0].error
