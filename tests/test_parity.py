"""The same rows, reasons and failures for any executor, number of workers, block size, batch size and hash seed."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tamis import JsonlReader, JsonlWriter, Pipeline
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
