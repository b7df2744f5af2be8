"""Datasets of the Hugging Face Hub: from the cache, and without a cache or a network."""

import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tamis import ParquetReader, Pipeline
from tamis.errors import SourceError
from tamis.sources.hub import in_cache


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The cache of a machine to which two revisions of a dataset were downloaded."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    root = tmp_path / "hf" / "hub" / "datasets--org--name"
    for commit, rows in (("a" * 40, [1, 2]), ("b" * 40, [3])):
        folder = root / "snapshots" / commit / "data"
        folder.mkdir(parents=True)
        (root / "blobs").mkdir(exist_ok=True)
        pq.write_table(pa.table({"n": rows}), root / "blobs" / commit)
        (folder / "train.parquet").symlink_to(root / "blobs" / commit)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("a" * 40)
    return root


def numbers(url):
    return Pipeline(ParquetReader(url)).collect(executor="inline")["n"].to_pylist()


@pytest.mark.parametrize(
    ("url", "rows"),
    [
        ("hf://datasets/org/name/data/train.parquet", [1, 2]),
        ("hf://datasets/org/name/**/*.parquet", [1, 2]),
        ("hf://datasets/org/name", [1, 2]),
        (f"hf://datasets/org/name@{'b' * 40}/data", [3]),
    ],
)
def test_offline_the_copy_in_the_cache_is_read(cache, monkeypatch, url, rows):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert numbers(url) == rows


def test_without_network_and_copy_the_error_says_what_to_do(cache, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SourceError, match=r"HF_HUB_OFFLINE is set, and .* has no copy of it") as raised:
        numbers("hf://datasets/org/other/data/*.parquet")
    assert "hf download org/other --repo-type dataset" in raised.value.hint
    assert in_cache("hf://datasets/org/name/../../x") is None
    assert in_cache("hf://org") is None


def test_a_hub_that_cannot_be_reached_is_replaced_by_the_cache(cache, tmp_path):
    """In a process of its own: huggingface_hub reads its settings when it is imported."""
    code = (
        "from tamis import ParquetReader, Pipeline\n"
        "print(Pipeline(ParquetReader('hf://datasets/org/name/data/*.parquet')).collect(executor='inline')['n'].to_pylist())\n"
        "Pipeline(ParquetReader('hf://datasets/org/other/x.parquet')).check()"
    )
    environment = {
        "HF_HOME": str(tmp_path / "hf"),
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "PATH": "/usr/bin",
        "PYTHONPATH": ".",
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "[1, 2]\n", done.stderr
    assert "the Hugging Face Hub cannot be reached" in done.stderr
    assert done.returncode == 1
