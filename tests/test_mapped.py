"""Pages of mapped files can be released and read again."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tamis.mapped import release_pages
from tamis.memory.monitor import held_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="requires /proc/self/maps")


def write_arrow(path, rows, batches):
    """Write record batches with rows of a kilobyte."""
    batch = pa.record_batch({"id": np.arange(rows), "text": ["x" * 1000] * rows})
    with pa.ipc.new_file(path, batch.schema) as writer:
        for _ in range(batches):
            writer.write_batch(batch)


def test_pages_of_an_arrow_file_are_released_and_can_be_read_again(tmp_path):
    write_arrow(tmp_path / "a.arrow", 1000, 60)
    table = pa.ipc.open_file(pa.memory_map(str(tmp_path / "a.arrow"))).read_all()
    before = held_bytes(os.getpid())
    first = pa.compute.sum(pa.compute.count_substring(table["text"], "x"))
    held = held_bytes(os.getpid())
    assert held - before > 40_000_000
    release_pages()
    assert held - held_bytes(os.getpid()) > 40_000_000
    assert pa.compute.sum(pa.compute.count_substring(table["text"], "x")) == first


def test_changes_to_a_mapped_array_are_kept(tmp_path):
    array = np.memmap(tmp_path / "array", np.int64, "w+", shape=(5_000_000,))
    array[:] = np.arange(len(array))
    held = held_bytes(os.getpid())
    release_pages()
    assert held - held_bytes(os.getpid()) > 30_000_000
    assert np.array_equal(array, np.arange(len(array)))


def test_an_arrow_file_in_one_partition_is_read_within_the_budget(tmp_path):
    write_arrow(tmp_path / "in.arrow", 4000, 100)
    recipe = [
        {"arrow_reader": {"file_paths": "in.arrow", "blocksize": "10GB"}},
        {"jsonl_writer": {"path": "out", "compression": "zst"}},
    ]
    (tmp_path / "one.yaml").write_text(json.dumps({"name": "one", "steps": recipe}))
    command = [sys.executable, "-m", "tamis", "run", "one.yaml", "--memory", "512MB", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["kept"] == 400_000
    assert report["peak_memory_bytes"] < 512_000_000 < Path(tmp_path / "in.arrow").stat().st_size + 200_000_000
