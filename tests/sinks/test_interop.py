"""What the sinks write is read back, row for row, by the tools people use."""

import json
import math
import os
import shutil
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tamis import JsonlReader, ParquetReader, Pipeline, Report, Rows
from tamis.card import card_text
from tamis.dedup.exact import ExactDedup
from tamis.errors import ParameterError, SinkError
from tamis.formats import format_of
from tamis.sinks.tables import ArrowWriter, CsvWriter, JsonlWriter, ParquetWriter
from tamis.text.quality import WordCount

os.environ.setdefault("HF_HUB_OFFLINE", "1")
datasets = pytest.importorskip("datasets")

datasets.disable_progress_bars()

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
    return datasets.load_dataset(
        kind, data_files=[str(p) for p in paths], cache_dir=str(cache), split="train"
    ).to_list()


def write(sink, folder, tables):
    """One shard for each table, widened so that they agree, as a run leaves them."""
    shards = []
    for index, table in enumerate(tables):
        writer = sink.open_shard(folder, f"part-{index}", table.schema)
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
    writer = JsonlWriter(tmp_path, compression=compression).open_shard(tmp_path, "part", table.schema)
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
    # Other readers do not distinguish a null from an empty text in CSV.
    expected = [{**row, "text": row["text"] or None} for row in flat.to_pylist()]
    assert [{**row, "text": row["text"] or None} for row in rows_of(read[library]())] == expected


# ------------------------------------------------------------------------------------------------------- whole folders

KEPT = [{"n": n, "text": f"{'word ' * n}{n}"} for n in range(3, 9)]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("in")
    rows = [{"n": n, "text": f"{'word ' * n}{n}"} for n in range(9)]
    for number, part in enumerate((rows[:5], [*rows[5:], rows[7]])):
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part) + "broken\n")
    return folder


def outputs(source, writer, **more):
    """A run that leaves everything that can be beside its rows: rejects, scores, groups, failures, facts."""
    steps = [JsonlReader(source, files_per_partition=1), WordCount(min_words=4), ExactDedup(), writer]
    options = {"rejects": True, "scores": True, "keep_work": True, **more}
    Pipeline(*steps).run(executor="inline", on_error="isolate", max_failed="100%", **options)
    folder = Path(writer.path)
    names = {path.relative_to(folder / ".tamis").parts[0] for path in (folder / ".tamis").rglob("*") if path.is_file()}
    assert {"rejects", "scores", "groups", "failed", "work", "memory.table", "ledger.log"} <= names
    return folder


@pytest.fixture(scope="module")
def parquet(source, tmp_path_factory):
    return outputs(source, ParquetWriter(tmp_path_factory.mktemp("parquet") / "out"))


@pytest.fixture(scope="module")
def jsonl(source, tmp_path_factory):
    return outputs(source, JsonlWriter(tmp_path_factory.mktemp("jsonl") / "out"))


@pytest.fixture(scope="module")
def carded(source, parquet, tmp_path_factory):
    """The same with a dataset card."""
    folder = tmp_path_factory.mktemp("carded") / "out"
    shutil.copytree(parquet, folder)
    return outputs(source, ParquetWriter(folder), card=True, license="odc-by")


FOLDERS = {
    "pyarrow": lambda out, cache: pq.read_table(out).to_pylist(),
    "pandas": lambda out, cache: pd.read_parquet(out).to_dict("records"),
    "polars": lambda out, cache: pl.read_parquet(out / "*.parquet").to_dicts(),
    "duckdb": lambda out, cache: duck(f"select * from '{out}/*.parquet'"),
    "duckdb, all folders": lambda out, cache: duck(f"select * from '{out}/**/*.parquet'"),
    "datasets": lambda out, cache: datasets.load_dataset(str(out), cache_dir=str(cache), split="train").to_list(),
    "datasets, by format": lambda out, cache: datasets.load_dataset(
        "parquet", data_dir=str(out), cache_dir=str(cache), split="train"
    ).to_list(),
}


@pytest.mark.parametrize("library", FOLDERS)
def test_a_folder_of_parquet_is_read_as_its_rows(library, parquet, tmp_path):
    assert sorted(FOLDERS[library](parquet, tmp_path), key=lambda row: row["n"]) == KEPT


JSONL_FOLDERS = {
    "duckdb": lambda out, cache: duck(f"select * from '{out}/*.jsonl'"),
    "duckdb, all folders": lambda out, cache: duck(f"select * from '{out}/**/*.jsonl'"),
    "polars": lambda out, cache: pl.scan_ndjson(f"{out}/*.jsonl").collect().to_dicts(),
    "datasets": lambda out, cache: datasets.load_dataset(str(out), cache_dir=str(cache), split="train").to_list(),
    "datasets, by format": lambda out, cache: datasets.load_dataset(
        "json", data_dir=str(out), cache_dir=str(cache), split="train"
    ).to_list(),
}


@pytest.mark.parametrize("library", JSONL_FOLDERS)
def test_a_folder_of_json_lines_is_read_as_its_rows(library, jsonl, tmp_path):
    assert sorted(JSONL_FOLDERS[library](jsonl, tmp_path), key=lambda row: row["n"]) == KEPT


# pyarrow and pandas take every file of a folder for Parquet, README.md included: with a card they need its `*.parquet`.
@pytest.mark.parametrize("library", [name for name in FOLDERS if name not in ("pyarrow", "pandas")])
def test_a_folder_with_a_card_is_read_as_its_rows(library, carded, tmp_path):
    assert sorted(FOLDERS[library](carded, tmp_path), key=lambda row: row["n"]) == KEPT


def test_no_pattern_of_data_matches_internal_files(parquet, jsonl):
    for folder in (parquet, jsonl):
        names = [path.name for path in (folder / ".tamis").rglob("*") if path.is_file()]
        assert not [name for name in names if format_of(name) and not name.endswith((".json", ".md"))]
        assert sorted(name for name in names if name.endswith(".json")) == [
            "learned.json", "manifest.json", "report.json", "run.json", "summary.json"
        ]  # fmt: skip


# -------------------------------------------------------------------------------------------------------- dataset card


def test_a_card_has_counts_reasons_recipe_and_license(carded):
    _, header, body = (carded / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(header) == {
        "license": "odc-by",
        "size_categories": ["n<1K"],
        "tags": ["tamis"],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "part-*.parquet"}]}],
    }
    assert "| kept | 6 |" in body
    assert r"| word\_count | words &lt; 4 | 3 |" in body
    assert "  - word_count:\n" in body or "- word_count: {min_words: 4}" in body
    assert str(carded) not in body


def test_a_card_is_written_again_and_a_readme_of_the_user_is_kept(source, tmp_path):
    def run(**options):
        return Pipeline(JsonlReader(source), WordCount(min_words=4), JsonlWriter(tmp_path)).run(
            executor="inline", on_error="isolate", max_failed="100%", **options
        )

    card = tmp_path / "README.md"
    card.write_text("mine")
    with pytest.raises(SinkError, match=r"README.md in .* was not written by tamis"):
        run(card=True)
    assert not list(tmp_path.glob("part-*"))
    run()
    assert card.read_text() == "mine"
    card.unlink()
    assert run(card=True).state == "unchanged"
    before = card.read_text()
    assert run(card=True, fresh=True).state == "finished"
    assert card.read_text() == before
    card.write_text(before + "edited")
    with pytest.raises(SinkError, match="edited since"):
        run(card=True)
    assert run().state == "unchanged"


def test_text_from_data_cannot_change_the_form_of_a_card():
    report = Report(read=1, operators=[{"name": "a|b", "dropped": {"<img src=x>\n---\n| `x` [y](z) |": 1}}])
    text = card_text("out/`# x`", [{"word_count": {"words": "```\n# title"}}], report, None, None)
    line = next(line for line in text.splitlines() if line.startswith("| a"))
    assert line == r"| a\|b | &lt;img src=x&gt; \-\-\- \| \`x\` \[y\]\(z\) \| | 1 |"
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        r"# \`\# x\`", "## Reasons", "## Recipe", "## Reproduce"
    ]  # fmt: skip


@pytest.mark.parametrize("license", ["odc by", "", "a\nb: c", "x" * 100])
def test_a_license_is_an_identifier(license, source, tmp_path):
    with pytest.raises(ParameterError, match="`license` must be an identifier"):
        Pipeline(JsonlReader(source), JsonlWriter(tmp_path)).run(card=True, license=license)


# ---------------------------------------------------------------------------------------------------------- media rows

FEATURES = {
    "picture": {"_type": "Image"},
    "voice": {"sampling_rate": 16000, "_type": "Audio"},
    "label": {"names": ["cat", "dog"], "_type": "ClassLabel"},
    "n": {"dtype": "int64", "_type": "Value"},
}


@pytest.fixture
def pictures(tmp_path):
    """Two files as `Dataset.to_parquet` writes them, with images, sounds and labels."""
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    (tmp_path / "in").mkdir()
    for number in range(2):
        fields = [("picture", kind), ("voice", kind), ("label", pa.int64()), ("n", pa.int64())]
        schema = pa.schema(
            fields, metadata={"huggingface": json.dumps({"info": {"features": FEATURES}}), "pandas": "{}"}
        )
        values = [{"bytes": bytes([137, 80, number, n]), "path": f"{n}.png"} for n in range(5)]
        columns = [values, [None] * 5, [0, 1, 0, 1, 0], list(range(5 * number, 5 * number + 5))]
        table = pa.table([pa.array(v, k) for v, (_, k) in zip(columns, fields, strict=True)], schema=schema)
        pq.write_table(table, tmp_path / f"in/{number}.parquet")
    return tmp_path


def features(out, cache):
    found = datasets.load_dataset(
        "parquet", data_files=[str(path) for path in out], cache_dir=str(cache), split="train"
    )
    return {name: type(kind).__name__ for name, kind in found.features.items()}


def test_features_of_a_hugging_face_dataset_are_kept(pictures):
    assert features(sorted((pictures / "in").glob("*.parquet")), pictures / "cache0")["picture"] == "Image"

    def changes(row):
        return {"extra": row["n"] if row["n"] > 4 else row["n"] / 2}  # the shards differ, and are rewritten to agree

    job = [ParquetReader(pictures / "in", files_per_partition=1, columns={"image": "picture"}), changes]
    Pipeline(*job, ExactDedup(column="n"), ParquetWriter(pictures / "out", columns={"image": "photo"})).run(workers=1)
    found = features(sorted((pictures / "out").glob("*.parquet")), pictures / "cache1")
    assert found == {"photo": "Image", "voice": "Audio", "label": "ClassLabel", "n": "Value", "extra": "Value"}
    for file in (pictures / "out").glob("*.parquet"):
        metadata = pq.read_schema(file).metadata
        assert set(metadata) == {b"huggingface"}
    assert (
        Pipeline(*job, ExactDedup(column="n"), ParquetWriter(pictures / "out", columns={"image": "photo"}))
        .run(workers=1)
        .state
        == "unchanged"
    )


def test_features_of_columns_that_are_left_out_are_dropped(pictures):
    writer = ParquetWriter(pictures / "out", fields=["picture"])
    Pipeline(ParquetReader(pictures / "in"), writer).run(executor="inline")
    (text,) = {pq.read_schema(file).metadata[b"huggingface"] for file in (pictures / "out").glob("*.parquet")}
    assert json.loads(text) == {"info": {"features": {"picture": {"_type": "Image"}}}}


def test_a_hugging_face_dataset_in_memory_keeps_its_features(pictures):
    source = datasets.load_dataset(
        "parquet", data_files=str(pictures / "in/0.parquet"), cache_dir=str(pictures / "cache0"), split="train"
    )
    Pipeline(Rows(source), lambda row: row["n"] > 0, ParquetWriter(pictures / "out")).run(executor="inline")
    found = features(sorted((pictures / "out").glob("*.parquet")), pictures / "cache1")
    assert (found["picture"], found["voice"], found["label"]) == ("Image", "Audio", "ClassLabel")
    assert pq.read_table(pictures / "out")["picture"].to_pylist()[0] == {
        "bytes": bytes([137, 80, 0, 1]),
        "path": "1.png",
    }


def test_damaged_features_are_ignored(tmp_path):
    for number, text in enumerate((b"not json", b"[]", b'{"info": {"features": 3}}', b'{"info": 1}', b"[" * 100_000)):
        table = pa.table({"n": [1]}).replace_schema_metadata({b"huggingface": text})
        pq.write_table(table, tmp_path / "in.parquet")
        Pipeline(ParquetReader(tmp_path / "in.parquet"), ParquetWriter(tmp_path / str(number))).run(executor="inline")
        assert pq.read_schema(tmp_path / str(number) / "part-000000.parquet").metadata is None


@pytest.mark.parametrize("embedded", [False, True])
def test_images_read_from_files_are_images_in_datasets(embedded, tmp_path):
    from PIL import Image

    from tamis import ImageReader, ReadMedia

    (tmp_path / "in").mkdir()
    for number in range(3):
        Image.new("L", (4, 4), number).save(tmp_path / "in" / f"{number}.png")
    steps = [ImageReader(tmp_path / "in"), *([ReadMedia()] if embedded else []), ParquetWriter(tmp_path / "out")]
    Pipeline(*steps).run(executor="inline")
    if embedded:
        shutil.rmtree(tmp_path / "in")
    found = datasets.load_dataset(str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache"))
    assert found.features["image"] == datasets.Image()
    assert [row["image"].getpixel((0, 0)) for row in found] == [0, 1, 2]


def test_a_dataset_with_images_passes_through(tmp_path):
    from PIL import Image

    from tamis import WebDatasetReader, WebDatasetWriter

    pictures = [Image.new("L", (4, 4), number) for number in range(3)]
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "caption": datasets.Value("string"),
        }
    )
    given = datasets.Dataset.from_dict(
        {"image": pictures, "label": [0, 1, 0], "caption": list("abc")}, features=features
    )
    Pipeline(Rows(given), ParquetWriter(tmp_path / "out")).run(executor="inline")
    found = datasets.load_dataset(str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache"))
    assert found.features == features
    assert [row["image"].getpixel((0, 0)) for row in found] == [0, 1, 2]
    Pipeline(Rows(given), WebDatasetWriter(tmp_path / "shards")).run(executor="inline")
    rows = Pipeline(WebDatasetReader(tmp_path / "shards")).collect(executor="inline").to_pylist()
    assert [(row["label"], row["caption"]) for row in rows] == [(0, "a"), (1, "b"), (0, "c")]
    assert all(row["image"]["path"].endswith(".png") for row in rows)
