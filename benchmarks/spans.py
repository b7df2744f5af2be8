"""Benchmarks of deduplication inside documents: substrings in a fixed memory budget, and sentences against datatrove.

    python benchmarks/spans.py substrings 1GB --memory 2GB        seconds, peak memory and disk space
    python benchmarks/spans.py compare 100MB --peer PEER/bin/python     the same files, one core each, results compared

`--peer` is the Python of an environment with datatrove:
    python -m venv X; X/bin/pip install "datatrove[processing,io]" spacy xxhash orjson
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from corpus import vocabulary

from tamis import JsonlReader, JsonlWriter, Pipeline
from tamis.dedup import Groups, ParagraphDedup, SentenceDedup, SubstringDedup
from tamis.parameters import parse_bytes

FILE_BYTES = 64_000_000
TEMPLATES = 500


def make_documents(folder: Path, num_bytes: int) -> int:
    """Write JSON Lines of about 3 kB per document, unless they exist; return their size.

    A third of the documents end with one of 500 templates of 400 to 1,600 bytes, a tenth quote 300 to 3,000 bytes of an
    earlier document of their file, and a twentieth are copies. Everything else is random words in sentences.
    """
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        words, rng = vocabulary(), np.random.default_rng(11)
        templates = [prose(words, rng, int(rng.integers(400, 1600))) for _ in range(TEMPLATES)]
        for number in range(-(-num_bytes // FILE_BYTES)):
            write_file(
                folder / f"{number:04d}.jsonl", min(FILE_BYTES, num_bytes - number * FILE_BYTES), words, templates, rng
            )
        (folder / "complete").touch()
    return sum(file.stat().st_size for file in folder.glob("*.jsonl"))


def prose(words: list[str], rng: np.random.Generator, size: int) -> str:
    """Sentences of random words, in lines of a few sentences, of about this many bytes."""
    picks = (len(words) ** rng.random(size // 6 + 1)).astype(int) - 1
    lengths = rng.integers(5, 25, len(picks))
    out, at, number = [], 0, 0
    while at < len(picks):
        sentence = " ".join(words[pick] for pick in picks[at : at + lengths[number]])
        out.append(sentence.capitalize() + (".\n" if number % 4 == 3 else ". "))
        at, number = at + lengths[number], number + 1
    return "".join(out)


def write_file(path: Path, size: int, words: list[str], templates: list[str], rng: np.random.Generator) -> None:
    known: list[str] = []
    with path.open("w") as file:
        written = 0
        while written < size:
            text = prose(words, rng, int(rng.gamma(2, 1200)) + 200)
            kind = rng.random()
            if known and kind < 0.05:
                text = known[rng.integers(len(known))]
            elif known and kind < 0.15:
                other, start = known[rng.integers(len(known))], int(rng.integers(1000))
                text = (
                    text[: len(text) // 2]
                    + other[start : start + int(rng.integers(300, 3000))]
                    + text[len(text) // 2 :]
                )
            elif kind < 0.48:
                text += templates[rng.integers(TEMPLATES)]
            if len(known) < 5000:
                known.append(text)
            line = json.dumps({"id": f"{path.stem}-{written}", "text": text}) + "\n"
            written += len(line)
            file.write(line)


class DiskPeak:
    """Measures the largest size of a folder while a block runs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.most, self._stop = folder, 0, threading.Event()

    def __enter__(self) -> DiskPeak:
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            sizes = subprocess.run(["du", "-sb", str(self.folder)], capture_output=True, text=True, check=False)
            self.most = max(self.most, int(sizes.stdout.split()[0]) if sizes.stdout else 0)


STEPS = {"substrings": SubstringDedup(), "sentences": SentenceDedup(), "paragraphs": ParagraphDedup()}


def budget(arguments: argparse.Namespace) -> None:
    """Run one step within a budget, and print what it took."""
    folder = Path(arguments.folder)
    size = make_documents(folder / arguments.size, parse_bytes(arguments.size))
    out = folder / "out"
    print(
        f"{'step':<12}{'MB':>8}{'budget':>8}{'seconds':>10}{'peak MB':>9}{'disk MB':>9}{'cut MB':>8}{'rows':>10}{'kept':>10}"
    )
    for name in arguments.step:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        start = time.perf_counter()
        with DiskPeak(out) as disk:
            report = Pipeline(JsonlReader(str(folder / arguments.size)), STEPS[name], JsonlWriter(str(out))).run(
                memory=arguments.memory, workers=arguments.workers, progress=False
            )
        seconds = time.perf_counter() - start
        summary = Groups.load(out).summary
        print(
            f"{name:<12}{size / 1e6:>8.0f}{arguments.memory:>8}{seconds:>10.1f}{report.peak_memory_bytes / 1e6:>9.0f}"
            f"{disk.most / 1e6:>9.0f}{summary['cut_bytes'] / 1e6:>8.1f}{report.read:>10,}{report.kept:>10,}",
            flush=True,
        )


PEER = r"""
import json, sys, time
from pathlib import Path
import loguru
loguru.logger.remove()
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import SentenceDedupFilter, SentenceDedupSignature, SentenceFindDedups
from datatrove.pipeline.dedup.sentence_dedup import SentDedupConfig
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter

source, folder, minimum = sys.argv[1], sys.argv[2], int(sys.argv[3])
config = SentDedupConfig(
    min_doc_words=minimum, min_num_sentences=min(minimum, 3), only_dedup_in_index=False, split_sentences=sys.argv[4] != "line"
)
files = len(list(Path(source).glob("*.jsonl")))
start = time.perf_counter()
stages = [
    ([JsonlReader(source, glob_pattern="*.jsonl"), SentenceDedupSignature(folder + "/sigs", config=config)], files),
    ([SentenceFindDedups(folder + "/sigs", folder + "/dups", config=config)], 1),
    ([JsonlReader(source, glob_pattern="*.jsonl"), SentenceDedupFilter(folder + "/dups", config=config),
      JsonlWriter(folder + "/out", compression=None)], files),
]
for number, (steps, tasks) in enumerate(stages):
    LocalPipelineExecutor(steps, tasks=tasks, workers=1, logging_dir=f"{folder}/logs{number}").run()
print(json.dumps({"seconds": time.perf_counter() - start}))
"""


def texts_in(folder: Path) -> dict[str, str]:
    rows = (json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.open())
    return {row["id"]: row["text"] for row in rows}


def sentences(arguments: argparse.Namespace) -> None:
    """Compare with datatrove: one core each, alternating, with the same thresholds."""
    folder = Path(arguments.folder)
    source = folder / arguments.size
    size = make_documents(source, parse_bytes(arguments.size))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    ratios = []
    for number in range(arguments.rounds):
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            start = time.perf_counter()
            limits = arguments.minimum, min(arguments.minimum, 3)
            step = SentenceDedup(unit=arguments.unit, min_words=limits[0], min_sentences=limits[1])
            Pipeline(JsonlReader(str(source)), step, JsonlWriter(f"{scratch}/ours")).run(workers=1, progress=False)
            ours = time.perf_counter() - start
            command = [
                arguments.peer,
                "-c",
                PEER,
                str(source),
                f"{scratch}/peer",
                str(arguments.minimum),
                arguments.unit,
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            theirs = json.loads(done.stdout.splitlines()[-1])["seconds"]
            ratios.append(theirs / ours)
            print(
                f"round {number}: {size / 1e6:.0f} MB, tamis {ours:.1f} s, datatrove {theirs:.1f} s, {ratios[-1]:.1f} times"
            )
            mine, other = texts_in(Path(scratch) / "ours"), texts_in(Path(scratch) / "peer" / "out")
            equal = sum(
                " ".join(mine[name].split()) == " ".join(other[name].split()) for name in mine.keys() & other.keys()
            )
            print(
                f"rows kept: {len(mine):,} and {len(other):,}; by both {len(mine.keys() & other.keys()):,}, "
                f"of which {equal:,} have the same text",
                flush=True,
            )
    print(f"median: {np.median(ratios):.1f} times")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["substrings", "sentences", "paragraphs", "compare"])
    parser.add_argument("size", help="bytes of input, such as 100MB")
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", default=str(Path(tempfile.gettempdir()) / "tamis-spans"))
    parser.add_argument("--peer", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--unit", choices=["sentence", "line"], default="sentence")
    parser.add_argument("--minimum", type=int, default=0, help="words that must be left of a document")
    arguments = parser.parse_args()
    if arguments.command == "compare":
        sentences(arguments)
    else:
        arguments.step = [arguments.command]
        budget(arguments)


if __name__ == "__main__":
    main()
