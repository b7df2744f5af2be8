"""Packing and splitting: nothing twice, nothing left out, neighbours together."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.errors import SourceError
from tamis.operators import Piece
from tamis.sources.files import File
from tamis.sources.partitions import explain, group, pack, sampled, some_rows, split_bytes
from tamis.sources.schemas import conform, unify


@given(st.lists(st.integers(0, 100), max_size=30), st.integers(1, 120))
def test_packing_keeps_order_and_fills_partitions(sizes, blocksize):
    pieces = [Piece(str(i), 0, size, size) for i, size in enumerate(sizes)]
    groups = pack(pieces, blocksize)
    assert [piece for part in groups for piece in part] == pieces
    for part in groups:
        assert sum(piece.size for piece in part) <= blocksize or len(part) == 1
    for one, two in itertools.pairwise(groups):
        assert sum(piece.size for piece in one) + two[0].size > blocksize


@given(st.integers(0, 10_000), st.integers(1, 5000))
def test_byte_ranges_cover_a_file_without_gap_or_overlap(size, blocksize):
    pieces = split_bytes(File("p", size, ""), blocksize)
    assert pieces[0].start == 0
    assert pieces[-1].stop == size
    assert all(one.stop == two.start for one, two in itertools.pairwise(pieces))
    assert all(piece.size <= blocksize for piece in pieces)


def test_files_are_grouped_by_number():
    pieces = [Piece(str(i), 0, 1) for i in range(5)]
    assert [len(part) for part in group(pieces, 2)] == [2, 2, 1]


def test_a_limit_falls_within_a_piece_and_later_ones_are_not_counted():
    counted = []

    def count(piece: Piece, most: int) -> int:
        counted.append(piece.path)
        return 10

    pieces = some_rows([Piece(name, 0, 1) for name in "abcd"], 0, 15, count)
    assert [(piece.path, piece.limit) for piece in pieces] == [("a", None), ("b", 5)]
    assert counted == ["a", "b"]


def test_a_sample_is_spread_and_begins_with_the_first_file_that_is_not_empty():
    files = [File(str(i), i, "") for i in range(100)]
    names = [file.path for file in sampled(files, 4)]
    assert (names[0], names[-1], len(names)) == ("1", "99", 4)
    assert len(sampled(files[:3], 4)) == 2


def test_the_reason_is_a_sentence():
    text = explain(12, 1_200_000_000, 10, blocksize=128_000_000, given=False, files_per_partition=None)
    assert text == "blocksize 128 MB (default): 12 files of 1.2 GB become 10 partitions"
    text = explain(1, 5, 1, blocksize=128_000_000, given=True, files_per_partition=None)
    assert text == "blocksize 128 MB: 1 file of 5 B becomes 1 partition"
    assert explain(4, 5, 2, blocksize=1, given=False, files_per_partition=2).startswith(
        "files_per_partition 2: 4 files"
    )


def test_schemas_are_widened_or_the_two_files_named():
    one, two = pa.schema([("x", pa.int64())]), pa.schema([("x", pa.float64()), ("y", pa.string())])
    assert unify([("a", one), ("b", two)], "JsonlReader") == two
    with pytest.raises(SourceError, match="column `y` is string in b and bool in c"):
        unify([("a", one), ("b", two), ("c", pa.schema([("y", pa.bool_())]))], "JsonlReader")


def test_a_table_is_brought_to_the_schema_and_new_columns_stay():
    table = pa.table({"new": [1], "x": pa.array([1], pa.int32())})
    shaped = conform(table, pa.schema([("x", pa.int64()), ("y", pa.string())]), None)
    assert shaped.to_pylist() == [{"x": 1, "y": None, "new": 1}]
    assert conform(table, pa.schema([("x", pa.int64())]), ["x"]).column_names == ["x"]
