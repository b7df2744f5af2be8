"""Measure every operator by itself, in one process: `python benchmarks/operators.py [NAME ...]`.

Writes benchmarks/operators.json, which scripts/make_docs.py shows beside each operator, and benchmarks/operators.md. With
names, only these are measured again. Operators whose model is not installed are left out, like sources and sinks (engine.md).

text     the included sample, 3,954 documents of 2.2 MB
images   photographs of scikit-image as JPEG, 640 x 480
sound    five seconds of speech, 16 kHz
video    4 seconds of 320 x 240 pixels, 25 frames per second, H.264
"""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tamis.batch import Batch  # noqa: E402
from tamis.errors import TamisError  # noqa: E402
from tamis.executors.opening import opened  # noqa: E402
from tamis.executors.steps import apply_step, observed  # noqa: E402
from tamis.operators import ALL, Gather, Operator, Sink, Source  # noqa: E402
from tamis.registry import build_operator, registered  # noqa: E402
from tests.audio.sounds import sound  # noqa: E402
from tests.audio.speech import speech  # noqa: E402
from tests.image.photographs import photograph  # noqa: E402
from tests.video.make_videos import scene, video  # noqa: E402

RESULTS = Path(__file__).with_suffix(".json")
DATA = ROOT / "tests" / "text" / "data"
TOKENIZER = {"tokenizer": str(DATA / "tokenizer.json")}
PARAMETERS: dict[str, dict[str, Any]] = {
    "sample": {"rows": 1000},
    "sample_by_group": {"by": "president", "rows": 1000},
    "diverse": {"rows": 1000},
    "outliers": {"share": 0.1},
    "substring": {"substring": "A"},
    "regex": {"pattern": "[0-9]+"},
    "regex_replacement": {"pattern": "[0-9]+", "replacement": "0"},
    "histogram": {"path": str(DATA / "histogram.txt")},
    "token_count": TOKENIZER,
    "token_ids": TOKENIZER,
    "tokenizer_fertility": TOKENIZER,
    "balance": {"by": "president", "temperature": 2.0},
    "general_comment_to_code": {"language": "shell"},
    "id_filter": {"ids": str(DATA / "ids.txt")},
    "per_extension": {"language": "python", "extension": "py", "metadata_file": str(DATA / "code_meta.csv")},
    "fast_text_score": {"model": "lid.176.ftz", "label": "__label__en"},
    "fast_text_quality": {"model": "lid.176.ftz", "label": "__label__en"},
    "fast_text_label": {"model": "lid.176.ftz"},
    "decontaminate": {"benchmarks": str(DATA / "benchmark.jsonl")},
    "image_convert": {"format": "PNG"},
    "image_crop": {"width": 400, "height": 300},
    "image_format": {"keep": ["JPEG"]},
    "image_resize": {"width": 256, "height": 256},
    "image_mode": {"keep": ["RGB"]},
    "faces": {"max_faces": 0},
    "audio_codec": {"keep": ["flac"]},
    "video_codec": {"keep": ["h264"]},
    "frame_filter": {"step": {"image_brightness": {}}, "number": 2},
    "frame_columns": {"step": {"image_hash": {}}, "number": 2},
}
SKIPPED = {  # need other input, or have pages of their own: crawl.md, documents.md, semantic.md, shuffle.md, spans.md
    *("to_backend", "download", "rows", "read_media", "media_reference", "document_join", "license"),
    *("html_extract", "wikitext_extract", "document_extract", "latex_extract", "pdf_extract"),
    *("semantic_dedup", "diverse", "outliers", "shuffle", "substring_dedup", "sentence_dedup", "paragraph_dedup"),
}
ENOUGH_S = 0.4
"""A measurement of at least this length is long enough."""


@cache
def texts() -> list[dict[str, Any]]:
    rows = []
    for name in ("speeches", "scraped"):
        raw = gzip.decompress((ROOT / "tamis" / "recipes" / f"{name}.jsonl.gz").read_bytes()).decode()
        rows += [json.loads(line) for line in raw.splitlines() if line.endswith("}")]
    vectors = np.random.default_rng(0).normal(size=(len(rows), 64)).astype(np.float32)
    return [
        {"president": "", **row, "url": f"https://example.org/{n}", "embedding": vectors[n].tolist()}
        for n, row in enumerate(rows)
    ]


@cache
def images() -> list[dict[str, Any]]:
    rows = []
    for name in ("chelsea.png", "coffee.png", "astronaut.png", "rocket.jpg"):
        target = io.BytesIO()
        Image.open(photograph(name)).convert("RGB").resize((640, 480)).save(target, "JPEG", quality=90)
        rows.append({"image": {"bytes": target.getvalue(), "path": name}, "text": "a picture of something"})
    return rows * 8


@cache
def sounds() -> list[dict[str, Any]]:
    file = {"bytes": sound(speech()[None, : 5 * 16_000]), "path": "a.wav"}
    return [{"audio": file, "reference": file, "text": "what was said", "duration": 5.0, "offset": 0.0}] * 32


@cache
def videos() -> list[dict[str, Any]]:
    file = {"bytes": video([(scene(1, (320, 240)), 50), (scene(2, (320, 240)), 50)]), "path": "a.mp4"}
    return [{"video": file}] * 8


def rows_for(step: Operator) -> tuple[str, list[dict[str, Any]]]:
    columns = {name for name in step.real_names().values() if name != ALL}
    for column, kind, rows in (("image", "images", images), ("audio", "sound", sounds), ("video", "video", videos)):
        if column in columns or type(step).__module__.startswith(f"tamis.{column}"):
            return kind, rows()
    return "text", texts()


SIZES: dict[str, tuple[str, Callable[[list[dict[str, Any]]], float]]] = {
    "text": ("MB/s", lambda rows: sum(len(row["text"].encode()) for row in rows) / 1e6),
    "images": ("images/s", len),
    "sound": ("times real time", lambda rows: 5.0 * len(rows)),
    "video": ("frames/s", lambda rows: 100.0 * len(rows)),
}


def once(step: Operator, runner: Any, rows: list[dict[str, Any]]) -> float:
    """Seconds of processor time for a batch of rows; of a Gather, for the pass over the rows."""
    batch = Batch.from_rows(rows)
    start = time.process_time()
    if isinstance(step, Gather):
        observed(step, batch, runner)
    else:
        apply_step(step, batch, runner=runner)
    return time.process_time() - start


def measure(step: Operator) -> dict[str, Any]:
    kind, rows = rows_for(step)
    unit, size = SIZES[kind]
    with opened(step) as runner:
        once(step, runner, rows[:4])  # compiles kernels, loads the model
        number, seconds = 4, once(step, runner, rows[:4])
        while seconds < ENOUGH_S / 4 and number < len(rows):
            number = min(number * 4, len(rows))
            seconds = once(step, runner, rows[:number])
        if seconds < ENOUGH_S:
            seconds = min(seconds, *(once(step, runner, rows[:number]) for _ in range(3)))
    rate = size(rows[:number]) / max(seconds, 1e-6)
    return {
        "input": kind,
        "unit": unit,
        "rate": float(f"{rate:.3g}"),
        "rows": number,
        "rows_per_s": float(f"{number / max(seconds, 1e-6):.3g}"),
    }


def write_page(machine: str, found: dict[str, dict[str, Any]]) -> None:
    """The results as a table, fastest first within each kind of input."""
    lines = [
        "# Each operator by itself",
        "",
        "`nice python benchmarks/operators.py` (`OMP_NUM_THREADS=1`): processor time of one process for a batch of rows, best",
        f"of four, after kernels were compiled and models loaded. {machine}, with other work running. Operators of a recipe",
        "share facts such as word boundaries, so a recipe is faster than the sum of its steps ([text.md](text.md)). A filter",
        "that needs only a number, or a step that renames, has no meaningful rate in MB/s.",
        "",
    ]
    for kind, (unit, _) in SIZES.items():
        chosen = sorted((item for item in found.items() if item[1]["input"] == kind), key=lambda item: -item[1]["rate"])
        lines += [
            f"## {kind.capitalize()}",
            "",
            f"| operator | {unit} | rows/s | rows measured |",
            "|---|---:|---:|---:|",
        ]
        lines += [
            f"| `{name}` | {entry['rate']:,g} | {entry['rows_per_s']:,g} | {entry['rows']:,} |"
            for name, entry in chosen
        ]
        lines.append("")
    RESULTS.with_suffix(".md").write_text("\n".join(lines))


def main(names: list[str]) -> int:
    found = json.loads(RESULTS.read_text())["operators"] if RESULTS.exists() and names else {}
    found = {name: entry for name, entry in found.items() if name not in SKIPPED}
    for name, cls in registered().items():
        if name in SKIPPED or (names and name not in names) or issubclass(cls, (Source, Sink)):
            continue
        if not cls.__module__.startswith("tamis."):
            continue
        try:
            found[name] = measure(build_operator(name, PARAMETERS.get(name, {})))
        except TamisError as error:
            found.pop(name, None)
            sys.stderr.write(f"{name}: {str(error).splitlines()[:1]}\n")
            continue
        sys.stderr.write(f"{name}: {found[name]['rate']} {found[name]['unit']}\n")
    machine = f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, load {os.getloadavg()[1]:.1f}"
    write_page(machine, found)
    RESULTS.write_text(json.dumps({"machine": machine, "operators": dict(sorted(found.items()))}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
