"""Batches of about one size, whatever a step makes of its rows."""

import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tamis import JsonlWriter, ParquetWriter, Pipeline, Rows
from tamis.batch import Batch
from tamis.executors.regroup import TOLERANCE, Growth, regroup
from tamis.memory.budget import DEFAULT_BATCH_BYTES
from tamis.operators import Expand, Filter, Map, between, operator
from tests.test_pipeline import read_jsonl


def numbers(count, first=0):
    return Batch(pa.table({"n": pa.array(range(first, first + count), pa.int64())}))


def values(batches):
    return [batch["n"].to_pylist() for batch in batches]


def test_large_batches_are_cut_and_small_ones_joined():
    batches = [numbers(2), numbers(3, 2), numbers(20, 5), numbers(0), numbers(1, 25)]
    found = values(regroup(batches, batch_bytes=8 * 8))
    assert [len(piece) for piece in found] == [5, 8, 8, 4, 1]
    assert [n for piece in found for n in piece] == list(range(26))


def test_batches_without_a_common_type_stay_apart():
    other = Batch(pa.table({"n": ["a", "b"]}))
    assert values(regroup([numbers(2), other], batch_bytes=1000)) == [[0, 1], ["a", "b"]]


def test_the_input_of_a_step_that_grows_rows_is_sliced_once_its_growth_is_known():
    growth, batch = Growth(), numbers(640)
    assert growth.rows(1, batch, 640 * 8, creates_rows=False) == 640
    assert growth.rows(1, batch, 640 * 8, creates_rows=True) == 10
    growth.note(1, given_bytes=80, made_bytes=8000)
    assert growth.rows(1, batch, 640 * 8, creates_rows=True) == 6


SEEN = []


@operator(reads="n", writes="k")
class HundredForTests(Expand):
    """Makes a hundred rows of each."""

    def expand(self, batch):
        SEEN.append(("expand", len(batch)))
        parents = np.repeat(np.arange(len(batch)), 100)
        return pa.table({"k": np.tile(np.arange(100), len(batch))}), parents


@operator(reads="k", writes="odd")
class EvenForTests(Filter):
    """Keeps even numbers."""

    def score(self, batch):
        SEEN.append(("filter", len(batch)))
        return {"odd": batch["k"].to_numpy() % 2}

    def rules(self):
        return [between("odd", None, 0)]


def test_what_an_expand_makes_continues_in_pieces_of_the_batch_size(tmp_path):
    SEEN.clear()
    rows = [{"n": n, "text": "x" * 1000} for n in range(600)]
    report = Pipeline(Rows(rows), HundredForTests(), EvenForTests(), JsonlWriter(tmp_path)).run(
        executor="inline", memory="512MB"
    )
    assert (report.created, report.kept, sum(report.dropped.values())) == (59_400, 30_000, 30_000)
    assert sum(count for step, count in SEEN if step == "expand") == 600
    assert max(count for step, count in SEEN if step == "filter") * 1000 <= TOLERANCE * DEFAULT_BATCH_BYTES
    written = [(row["n"], row["k"]) for row in read_jsonl(tmp_path)]
    assert written == [(n, k) for n in range(600) for k in range(0, 100, 2)]


@operator(reads="n", writes="image")
class DecodeForTests(Map):
    """Turns a kilobyte into a megabyte per row."""

    def apply(self, batch):
        data = [{"bytes": bytes([n % 256]) * 2**20, "path": None} for n in batch["n"].to_pylist()]
        return {"image": pa.array(data, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))}


@operator(reads="n", writes="image")
class FramesForTests(Expand):
    """Makes forty frames of a quarter of a megabyte each."""

    def expand(self, batch):
        parents = np.repeat(np.arange(len(batch)), 40)
        numbers = batch["n"].to_numpy()[parents]
        data = [{"bytes": bytes([n % 256]) * 2**18, "path": None} for n in numbers.tolist()]
        return pa.table({"image": pa.array(data, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))}), parents


def hashed(row):
    return {"digest": zlib.crc32(row["image"]["bytes"]), "image": None}


@pytest.mark.parametrize(("step", "count", "copies"), [(DecodeForTests(), 1500, 1), (FramesForTests(), 100, 40)])
def test_binaries_that_a_step_makes_stay_within_the_budget(step, count, copies, tmp_path):
    """1.5 GB and 1 GB are made by a worker that may hold about 300 MB."""
    rows = [{"n": n, "text": "x" * 1000} for n in range(count)]
    report = Pipeline(Rows(rows), step, hashed, ParquetWriter(tmp_path / "out")).run(workers=1, memory="512MB")
    assert (report.kept, report.failed) == (count * copies, 0)
    assert report.peak_memory_bytes <= 512 * 10**6
    size = 2**20 if copies == 1 else 2**18
    digests = {value: zlib.crc32(bytes([value]) * size) for value in range(256)}
    found = pq.read_table(tmp_path / "out", columns=["n", "digest"]).to_pylist()
    assert found == [{"n": n, "digest": digests[n % 256]} for n in range(count) for _ in range(copies)]
