"""Deduplicate rows in memory, and say what happened to each."""

import tempfile
from pathlib import Path

import pyarrow.parquet as pq

from tamis import ParquetWriter, Pipeline, Rows
from tamis.dedup import Groups


def kept_and_pairs(rows, step, per_partition=50, **options):
    """(ids of the kept rows, the groups of the dropped ones as rows)"""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "out")
        pipeline = Pipeline(Rows(rows, rows_per_partition=per_partition), step, ParquetWriter(output))
        assert pipeline.run(**{"executor": "inline", **options}).balances
        files = sorted(output.glob("*.parquet"))
        kept = [name for file in files for name in pq.read_table(file, columns=["id"])["id"].to_pylist()]
        return kept, Groups.load(str(output)).table().to_pylist()
