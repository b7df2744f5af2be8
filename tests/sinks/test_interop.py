"""What the sinks write is read back, row for row, by the tools people use."""

import math
import os

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from tamis.sinks.tables import ArrowWriter, CsvWriter, JsonlWriter, ParquetWriter

os.environ.setdefault("HF_HUB_OFFLINE", "1")
datasets = pytest.importorskip("datasets")

FIRST = pa.table(
    {
        "text": ["plain", "", 'Zoë\n"quoted" \\ \t\x01 👩‍👩‍👧 e\u0301 \u2028', None],
        "n": pa.array([1, None, -(2**40), 4]),
        "score": pa.array([0.1, None, 2.0, 1e300]),
        "ok": pa.array([True, False, None, True]),
        "nothing": pa.nulls(4),
        "meta": pa.array(
            [{"url": "http://a", "tags": ["x", ""]}, None, {"url": None, "tags": []}, {"url": "b", "tags": None}]
        ),
        "turns": pa.array(
            [[{"role": "user", "len": 1}], [], None, [{"role": None, "len": 2}, {"role": "é", "len": None}]]
        ),
    }
)
SECOND = pa.table({"text": ["later"], "score": pa.array([3]), "new": ["only here"]})
ALL_ROWS = [
    *({**row, "new": None} for row in FIRST.to_pylist()),
    {
        **dict.fromkeys(FIRST.column_names),
        "text": "later",
        "score": 3.0,
        "new": "only here",
    },
]


def rows_of(records):
    """Rows as plain Python, whatever the library made of its nulls and lists."""
    return [{key: _plain(value) for key, value in record.items()} for record in records]


def _plain(value):
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, np.ndarray)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if value is pd.NA or (isinstance(value, float) and math.isnan(value)) else value


def duck(query):
    with duckdb.connect() as connection:
        result = connection.execute(query)
        names = [column[0] for column in result.description]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def hugging_face(kind, paths, cache):
    datasets.disable_progress_bars()
    return datasets.load_dataset(
        kind, data_files=[str(p) for p in paths], cache_dir=str(cache), split="train"
    ).to_list()


def write(sink, folder, tables):
    """One shard for each table, widened so that they agree, as a run leaves them."""
    shards = []
    for index, table in enumerate(tables):
        writer = sink.open(folder, f"part-{index}", table.schema)
        writer.write(table)
        shards += writer.close()
    wide = sink.widest([shard.schema for shard in shards])
    for shard in shards:
        if wide and shard.schema != wide:
            path = folder / shard.name
            sink.rewrite(path, wide, folder / "wide.tmp")
            (folder / "wide.tmp").replace(path)
    return [folder / shard.name for shard in shards]


READ_PARQUET = {
    "pandas": lambda paths, tmp: pd.concat([pd.read_parquet(p, dtype_backend="pyarrow") for p in paths]).to_dict(
        "records"
    ),
    "polars": lambda paths, tmp: pl.read_parquet(paths).to_dicts(),
    "duckdb": lambda paths, tmp: duck(f"select * from read_parquet({[str(p) for p in paths]})"),
    "datasets": lambda paths, tmp: hugging_face("parquet", paths, tmp / "cache"),
}


@pytest.mark.parametrize("library", READ_PARQUET)
@pytest.mark.parametrize("tables", [[FIRST], [FIRST, SECOND]], ids=["one shard", "shards that disagreed"])
def test_parquet_is_read_back(library, tables, tmp_path):
    paths = write(ParquetWriter(tmp_path), tmp_path, tables)
    expected = ALL_ROWS if len(tables) == 2 else FIRST.to_pylist()
    assert rows_of(READ_PARQUET[library](paths, tmp_path)) == expected


READ_JSONL = {
    "pandas": lambda paths, tmp: pd.concat([pd.read_json(p, lines=True, dtype=False) for p in paths]).to_dict(
        "records"
    ),
    "polars": lambda paths, tmp: pl.concat(
        [pl.read_ndjson(p, infer_schema_length=None) for p in paths], how="diagonal_relaxed"
    ).to_dicts(),
    "duckdb": lambda paths, tmp: duck(f"select * from read_json({[str(p) for p in paths]}, union_by_name=true)"),
    "datasets": lambda paths, tmp: hugging_face("json", paths, tmp / "cache"),
}


@pytest.mark.parametrize("library", READ_JSONL)
@pytest.mark.parametrize("compression", [None, "gz", "zst"])
def test_jsonl_is_read_back(library, compression, tmp_path):
    paths = write(JsonlWriter(tmp_path, compression=compression), tmp_path, [FIRST])
    assert rows_of(READ_JSONL[library](paths, tmp_path)) == FIRST.to_pylist()


@pytest.mark.parametrize("library", ["pandas", "polars", "duckdb"])
def test_jsonl_with_a_column_in_one_shard_only_is_read_back(library, tmp_path):
    paths = write(JsonlWriter(tmp_path), tmp_path, [FIRST, SECOND])
    assert rows_of(READ_JSONL[library](paths, tmp_path)) == ALL_ROWS


@pytest.mark.parametrize("compression", ["gz", "zst"])
def test_a_large_compressed_file_is_read_to_its_end(compression, tmp_path):
    table = pa.table({"text": [f"{(i * 2654435761) % 2**32:x}" * 8 for i in range(40_000)]})
    writer = JsonlWriter(tmp_path, compression=compression).open(tmp_path, "part", table.schema)
    for start in range(0, 40_000, 5_000):
        writer.write(table.slice(start, 5_000))
    (shard,) = writer.close()
    path = tmp_path / shard.name
    assert len(pd.read_json(path, lines=True, dtype=False)) == 40_000
    assert pl.read_ndjson(path).height == 40_000
    assert duck(f"select count(*) as n from '{path}'") == [{"n": 40_000}]
    assert len(hugging_face("json", [path], tmp_path / "cache")) == 40_000


@pytest.mark.parametrize("library", ["pandas", "polars", "datasets"])
def test_arrow_is_read_back(library, tmp_path):
    paths = write(ArrowWriter(tmp_path), tmp_path, [FIRST, SECOND])
    read = {
        "pandas": lambda: pd.concat([pd.read_feather(p, dtype_backend="pyarrow") for p in paths]).to_dict("records"),
        "polars": lambda: pl.concat([pl.read_ipc(p) for p in paths]).to_dicts(),
        "datasets": lambda: hugging_face("arrow", paths, tmp_path / "cache"),
    }
    assert rows_of(read[library]()) == ALL_ROWS


@pytest.mark.parametrize("library", ["pandas", "polars", "duckdb"])
def test_csv_is_read_back(library, tmp_path):
    flat = FIRST.select(["text", "n", "score"])
    (path,) = write(CsvWriter(tmp_path), tmp_path, [flat])
    read = {
        "pandas": lambda: pd.read_csv(path, dtype_backend="pyarrow").to_dict("records"),
        "polars": lambda: pl.read_csv(path).to_dicts(),
        "duckdb": lambda: duck(f"select * from read_csv('{path}')"),
    }
    # No reader but ours tells a null from an empty text in CSV.
    expected = [{**row, "text": row["text"] or None} for row in flat.to_pylist()]
    assert [{**row, "text": row["text"] or None} for row in rows_of(read[library]())] == expected
