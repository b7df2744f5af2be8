"""The same rows, reasons and failures for any executor, number of workers, block size, batch size and hash seed."""

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tamis import JsonlReader, JsonlWriter, ParquetReader, ParquetWriter, Pipeline
from tamis.dedup.exact import ExactDedup
from tamis.media import read_bytes
from tamis.operators import Expand, operator
from tamis.sampling import Sample
from tamis.text.quality import WordCount


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parity")
    generator = random.Random(7)
    for number in range(4):
        with (folder / f"{number}.jsonl").open("w") as file:
            for row in range(700):
                text = " ".join(generator.choices(["eins", "zwei", "drei", "vier"], k=generator.randrange(30)))
                file.write(json.dumps({"id": f"{number}-{row}", "text": text}) + "\n")
                if generator.random() < 0.01:
                    file.write('{"id": broken\n')
    return folder


def breaks_on_some(row):
    if row["id"].endswith("77"):
        raise RuntimeError("a row with 77")
    return {"length": len(row["text"])}


def outcome(source, output, *, blocksize, **options):
    report = Pipeline(
        JsonlReader(source, blocksize=blocksize),
        WordCount(min_words=5),
        breaks_on_some,
        Sample(rows=900),
        JsonlWriter(output),
    ).run(on_error="isolate", rejects=True, **options)
    rows = [line for file in sorted(output.glob("part-*")) for line in file.read_text().splitlines()]
    failed = sorted(line for file in (output / ".tamis" / "failed").iterdir() for line in file.read_text().splitlines())
    return {"rows": rows, "failed": failed, "account": (report.read, report.kept, report.dropped, report.failed)}


@pytest.fixture(scope="module")
def reference(source, tmp_path_factory):
    result = outcome(source, tmp_path_factory.mktemp("reference") / "out", blocksize="10MB", executor="inline")
    assert len(result["rows"]) == 900
    assert len(result["failed"]) > 20
    return result


@pytest.mark.parametrize(
    ("blocksize", "options"),
    [
        ("1kB", {"executor": "inline"}),
        ("20kB", {"workers": 1}),
        ("7kB", {"workers": 3}),
        ("10MB", {"workers": 2, "memory": "1500MB"}),
    ],
    ids=str,
)
def test_nothing_depends_on_how_the_work_is_divided(source, reference, tmp_path, blocksize, options):
    assert outcome(source, tmp_path / "out", blocksize=blocksize, **options) == reference


def test_nothing_depends_on_the_executor(source, reference, tmp_path, executor):
    assert outcome(source, tmp_path / "out", blocksize="20kB", executor=executor) == reference


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Rows with binaries: by value, by reference, missing, and broken."""
    folder = tmp_path_factory.mktemp("pictures")
    generator = random.Random(11)
    for number in range(3):
        rows = []
        for row in range(60):
            data = bytes([generator.randrange(6)]) * generator.choice([0, 10, 3000])
            image = {"bytes": data, "path": f"{row}.bin"}
            if row % 7 == 0:
                (folder / f"{number}-{row}.bin").write_bytes(data)
                image = {"bytes": None, "path": f"{number}-{row}.bin" if row % 14 else "missing.bin"}
            rows.append({"id": f"{number}-{row}", "image": None if row % 11 == 0 else image})
        table = pa.Table.from_pylist(rows)
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=7)
    return folder


@operator(reads="image", writes=("tile", "image", "content"))
class TilesForTests(Expand):
    """Cuts each image into two, and names what each holds."""

    def expand(self, batch):
        found = read_bytes(batch, "image")
        rows = [row for row, data in enumerate(found) if data is not None]
        parents = np.repeat(np.array(rows, dtype=np.int64), 2)
        half = [bytes(found[row]) for row in rows]
        tiles = [part for data in half for part in (data[: len(data) // 2], data[len(data) // 2 :])]
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        columns = {
            "tile": pa.array(np.tile([0, 1], len(rows))),
            "image": pa.array([{"bytes": tile, "path": None} for tile in tiles], kind),
            "content": pa.array([hashlib.sha256(tile).hexdigest() for tile in tiles], pa.string()),
        }
        return pa.table(columns), parents


def breaks_on_some_tiles(row):
    if row["image"]["bytes"][:1] == b"\x03" and row["tile"]:
        raise RuntimeError("a broken tile")
    return True


def outcome_of_pictures(pictures, output, *, blocksize, **options):
    report = Pipeline(
        ParquetReader(pictures, blocksize=blocksize),
        TilesForTests(),
        breaks_on_some_tiles,
        ExactDedup(column="content"),
        ParquetWriter(output),
    ).run(on_error="isolate", rejects=True, max_failed="100%", **options)
    rows = [row for file in sorted(output.glob("part-*")) for row in pq.read_table(file).to_pylist()]
    files = (output / ".tamis" / "failed").iterdir()
    failed = sorted(line for file in files for line in file.read_text().splitlines())
    rejects = [row for file in (output / ".tamis" / "rejects").iterdir() for row in pq.read_table(file).to_pylist()]
    account = (report.read, report.created, report.kept, report.dropped, report.failed)
    return {"rows": rows, "failed": failed, "rejects": sorted(map(str, rejects)), "account": account}


@pytest.fixture(scope="module")
def pictures_reference(pictures, tmp_path_factory):
    output = tmp_path_factory.mktemp("reference") / "out"
    result = outcome_of_pictures(pictures, output, blocksize="10MB", executor="inline")
    assert len(result["rows"]) > 8
    children = [json.loads(line)["address"] for line in result["failed"] if "a broken tile" in line]
    assert all(address.endswith("/1") for address in children)
    assert sum("a broken tile" in line for line in result["failed"]) > 5
    assert sum("No such file" in line for line in result["failed"]) > 5
    return result


@pytest.mark.parametrize(
    ("blocksize", "options"),
    [
        ("1B", {"executor": "inline"}),
        ("10MB", {"workers": 1, "memory": "512MB"}),
        ("20kB", {"workers": 2}),
        ("1B", {"workers": 4, "memory": "1500MB"}),
    ],
    ids=str,
)
def test_binaries_do_not_depend_on_how_the_work_is_divided(pictures, pictures_reference, tmp_path, blocksize, options):
    found = outcome_of_pictures(pictures, tmp_path / "out", blocksize=blocksize, **options)
    assert found == pictures_reference


def test_binaries_do_not_depend_on_the_executor(pictures, pictures_reference, tmp_path, executor):
    assert outcome_of_pictures(pictures, tmp_path / "out", blocksize="20kB", executor=executor) == pictures_reference


SCRIPT = """
import sys
from tests.test_parity import outcome
from pathlib import Path
import json
print(json.dumps(outcome(Path(sys.argv[1]), Path(sys.argv[2]), blocksize="30kB", workers=2)))
"""


def test_nothing_depends_on_the_hash_seed(source, reference, tmp_path):
    for seed in ("0", "12345"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(source), str(tmp_path / seed)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path.cwd())},
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(done.stdout) == json.loads(json.dumps(reference))
