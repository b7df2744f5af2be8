"""Lance datasets: fragments and row ranges as pieces, versions, deleted rows, damage."""

import signal
import subprocess
import sys

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tamis import LanceReader, ParquetWriter, Pipeline
from tamis.errors import MissingExtra, ParameterError, SourceError
from tamis.formats import FORMATS
from tamis.sources.files import detect_format
from tamis.text import WordCount


def table(count, first=0):
    return pa.table(
        {"text": [f"text {i} " * 30 for i in range(first, first + count)], "n": list(range(first, first + count))}
    )


@pytest.fixture
def dataset(tmp_path):
    path = tmp_path / "a.lance"
    lance.write_dataset(table(1000), path, max_rows_per_file=300)
    return path


@pytest.mark.parametrize("blocksize", [1000, 60_000, 10**9])
@pytest.mark.parametrize("batch_bytes", [1000, 10**7])
def test_rows_and_addresses_do_not_depend_on_the_division(blocksize, batch_bytes, dataset, read_all):
    found = read_all(LanceReader(dataset, blocksize=blocksize), batch_bytes=batch_bytes)
    assert found.rows == table(1000).to_pylist()
    assert found.addresses[500] == f"{dataset}@1:500"
    assert found.layout.num_rows == 1000
    assert (len(found.layout.partitions) > 1) == (blocksize < 10**9)
    if blocksize == 10**9:
        assert (len(found.batches) > 1) == (batch_bytes == 1000)


def test_small_fragments_make_full_batches(tmp_path, read_all):
    lance.write_dataset(table(100), tmp_path / "a.lance", max_rows_per_file=10)
    found = read_all(LanceReader(tmp_path / "a.lance", blocksize="1MB"))
    assert (found.batches, len(found.layout.partitions)) == ([100], 1)


def test_only_the_columns_that_are_needed_are_read(dataset, read_all):
    assert read_all(LanceReader(dataset, fields=["n"])).rows[:2] == [{"n": 0}, {"n": 1}]
    assert read_all(LanceReader(dataset, columns={"body": "text"}), columns=("body",)).rows[0] == {
        "body": "text 0 " * 30
    }
    assert sum(read_all(LanceReader(dataset), columns=()).batches) == 1000


def test_deleted_rows_are_not_read_and_skip_and_limit_count_the_others(dataset, read_all):
    lance.dataset(dataset).delete("n % 2 = 0")
    assert [row["n"] for row in read_all(LanceReader(dataset)).rows] == list(range(1, 1000, 2))
    found = read_all(LanceReader(dataset, skip=140, limit=20))
    assert [row["n"] for row in found.rows] == list(range(281, 321, 2))
    assert found.addresses[0] == f"{dataset}@2:140"
    assert len(read_all(LanceReader(dataset, dataset_version=1)).rows) == 1000


def test_a_plan_reads_the_version_it_was_made_for(dataset, read_all):
    source = LanceReader(dataset)
    before = source.layout(10**9)
    lance.write_dataset(table(5, 1000), dataset, mode="append")
    after = source.layout(10**9)
    assert before.partitions[0].pieces[0].path.endswith("@1")
    assert after.partitions[0].pieces[0].path.endswith("@2")
    assert before.partitions[0].identity != after.partitions[0].identity
    assert source.layout(10**9).partitions[0].identity == after.partitions[0].identity


def test_a_dataset_that_is_written_again_is_another_one(dataset):
    before = LanceReader(dataset).layout(10**9).partitions[0].identity
    dataset.rename(f"{dataset}.old")
    lance.write_dataset(table(1000), dataset, max_rows_per_file=300)
    assert LanceReader(dataset).layout(10**9).partitions[0].identity != before


def test_datasets_of_a_folder_are_read_together(tmp_path, read_all):
    lance.write_dataset(pa.table({"x": pa.array([1], pa.int32())}), tmp_path / "a.lance")
    lance.write_dataset(pa.table({"x": [2.5], "y": ["b"]}), tmp_path / "b.lance")
    found = read_all(LanceReader(tmp_path))
    assert found.rows == [{"x": 1.0, "y": None}, {"x": 2.5, "y": "b"}]
    lance.write_dataset(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "empty.lance")
    assert read_all(LanceReader(tmp_path / "empty.lance")).rows == []


def test_the_rows_of_a_damaged_fragment_fail(dataset, read_all):
    second = lance.dataset(dataset).get_fragments()[1].metadata.files[0].path
    (dataset / "data" / second).write_bytes(b"\0" * 100)
    found = read_all(LanceReader(dataset))
    assert [row["n"] for row in found.rows] == [*range(300), *range(600, 1000)]
    (failure,) = found.failures
    assert (failure.rows, failure.address) == (300, f"{dataset}@1:300")
    assert "fragment 1 is damaged, 300 rows are lost" in failure.error


def test_wrong_paths_and_parameters_are_explained(tmp_path, dataset, monkeypatch):
    with pytest.raises(SourceError, match="is not a Lance dataset that can be read"):
        LanceReader(tmp_path / "none.lance").layout(10**9)
    with pytest.raises(SourceError, match="version 7 of"):
        LanceReader(dataset, dataset_version=7).layout(10**9)
    with pytest.raises(SourceError, match="is no Lance dataset and has none in it"):
        LanceReader(dataset / "data").layout(10**9)
    with pytest.raises(SourceError, match="listed twice"):
        LanceReader([dataset, dataset]).layout(10**9)
    with pytest.raises(ParameterError, match="at least 1"):
        LanceReader(dataset, dataset_version=0).check()
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(MissingExtra, match="needs the package `lance`"):
        LanceReader(dataset).layout(10**9)


def test_the_reader_of_a_dataset_is_found_by_its_name(dataset):
    assert detect_format(str(dataset)) == "lance"
    assert FORMATS["lance"].reader == LanceReader(dataset).name


def test_workers_write_what_one_process_writes(dataset, tmp_path):
    steps = LanceReader(dataset, blocksize="20kB"), WordCount(min_words=1)
    Pipeline(*steps, ParquetWriter(tmp_path / "out")).run(workers=2)
    assert pq.read_table(tmp_path / "out").to_pylist() == Pipeline(*steps).collect(executor="inline").to_pylist()


KILLED = """
import os, signal, sys
from tamis import LanceReader, ParquetWriter, Pipeline
def once(row):
    if row["n"] == 700 and not os.path.exists(sys.argv[3]):
        open(sys.argv[3], "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return row
Pipeline(LanceReader(sys.argv[1], blocksize="20kB"), once, ParquetWriter(sys.argv[2])).run(executor="inline", progress=False)
"""


def test_a_killed_run_is_resumed_and_writes_each_row_once(dataset, tmp_path):
    command = [sys.executable, "-c", KILLED, str(dataset), str(tmp_path / "out"), str(tmp_path / "mark")]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert list((tmp_path / "out").glob("part-*"))
    subprocess.run(command, check=True)
    rows = pq.read_table(tmp_path / "out").to_pylist()
    assert rows == table(1000).to_pylist()
