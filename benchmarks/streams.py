"""Stages that run at the same time: how busy the heavy one is, and whether kills lose or double a row.

python benchmarks/streams.py busy          many light readers, one operator of 1 GB, light writers, at 3 GB on this machine
python benchmarks/streams.py kills 200     kills of driver, server and workers of each stage, each followed by a resumed run
--save                                     write the results into streams.md
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil

from tamis import JsonlReader, JsonlWriter, LocalExecutor, Map, Pipeline, Resources, operator, step
from tamis.text.quality import WordCount

PAGE = Path(__file__).with_suffix(".md")


@operator(reads="text", writes="score", resources=Resources(memory="1GB"))
class Heavy(Map):
    """Holds a gigabyte, and takes some milliseconds for each row."""

    passes: int = 30

    def open(self, context):
        return HeavyRunner(self.passes)


class HeavyRunner:
    """The gigabyte, and the work."""

    def __init__(self, passes: int) -> None:
        self.table = np.ones(1_000_000_000, np.uint8)
        self.passes = passes

    def apply(self, batch):
        found = []
        for text in batch["text"].to_pylist():
            data = np.frombuffer(text.encode(), np.uint8)
            total = 0
            for number in range(self.passes):
                total += int(self.table[data.astype(np.int64) * (number + 1) * 101 % len(self.table)].sum())
            found.append(total)
        return {"score": np.array(found)}


def shout(row):
    return {"shout": row["text"][:40].upper()}


def make_input(folder: Path, megabytes: int, files: int = 8) -> Path:
    folder.mkdir(parents=True)
    words = ["reader", "writer", "heavy", "light", "batch", "packet", "stage", "worker", "memory", "budget"]
    generator = random.Random(1)
    for number in range(files):
        with (folder / f"{number}.jsonl").open("w") as file:
            for row in range(megabytes * 1_000_000 // files // 2_000):
                text = " ".join(generator.choices(words, k=300))
                file.write(json.dumps({"id": number * 1_000_000 + row, "text": text}) + "\n")
    return folder


def pipeline(source: Path, output: Path, passes: int = 30, blocksize: str = "4MB") -> Pipeline:
    return Pipeline(
        JsonlReader(source, blocksize=blocksize),
        WordCount(min_words=5),
        Heavy(passes=passes),
        step(shout, version=1),
        JsonlWriter(output),
    )


def busy(folder: Path, megabytes: int) -> list[str]:
    source = make_input(folder / "in", megabytes)
    size = sum(file.stat().st_size for file in source.iterdir()) / 1e6
    report = pipeline(source, folder / "out").run(memory="3GB", executor=LocalExecutor(workers=2, streaming="always"))
    (group,) = report.streams
    heavy = group["stages"][1]
    inside = next(op["seconds"] for op in report.operators if op["name"] == "heavy")
    share = heavy["busy_s"] / heavy["span_s"]
    alone = _heavy_alone(source)
    return [
        f"- input: {size:.0f} MB of JSON lines, `--memory 3GB`, 2 cores; one worker of 1 GB between light ones",
        f"- heavy stage busy {share:.1%} of the time from its first packet to its last ({heavy['busy_s']:.1f} of "
        f"{heavy['span_s']:.1f} s), {heavy['waiting_for_output_s']:.1f} s waiting for output; {inside:.1f} s in the operator",
        f"- {size / heavy['span_s']:.2f} MB/s through it; the operator alone in one process: {size / alone:.2f} MB/s "
        f"(ratio {alone / heavy['span_s']:.2f})",
        f"- peak memory {report.peak_memory_bytes / 1e6:,.0f} MB of 3,000",
        f"- slowest stage named by the report: `{group['bottleneck']}`",
    ]


def _heavy_alone(source: Path) -> float:
    """Seconds of the operator over all rows, read before."""
    from tamis.batch import Batch

    rows = [json.loads(line) for file in sorted(source.iterdir()) for line in file.open()]
    runner = Heavy().open(None)
    batches = [Batch.from_rows(rows[start : start + 2000]) for start in range(0, len(rows), 2000)]
    began = time.perf_counter()
    for batch in batches:
        runner.apply(batch)
    return time.perf_counter() - began


# --------------------------------------------------------------------------------------------------------------- kills

RUN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from benchmarks.streams import pipeline
from tamis import LocalExecutor
pipeline(Path(sys.argv[1]), Path(sys.argv[2]), passes=1, blocksize="200kB").run(
    memory="4GB", executor=LocalExecutor(workers=2, streaming="always"), progress=False
)
"""


def digest_of(output: Path) -> str:
    found = hashlib.sha256()
    for file in sorted(output.glob("part-*")):
        found.update(file.name.encode() + file.read_bytes())
    return found.hexdigest()


def kills(folder: Path, count: int) -> list[str]:
    source = make_input(folder / "in", 24)
    root = str(Path(__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": root}

    def start(output: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", RUN, str(source), str(output), root], env=environment, stderr=subprocess.DEVNULL
        )

    assert start(folder / "whole").wait() == 0
    wanted = digest_of(folder / "whole")
    generator = random.Random(2)
    killed: Counter[str] = Counter()
    runs = wrong = 0
    while sum(killed.values()) < count:
        output = folder / f"out-{runs}"
        runs += 1
        while True:
            process = start(output)
            while process.poll() is None and sum(killed.values()) < count:
                role = _kill_one(process, generator)
                killed.update([role] if role is not None else [])
            if process.wait() == 0:
                break
        if digest_of(output) != wanted:
            wrong += 1
            print(f"run {runs} differs, kept in {output}", flush=True)
        else:
            shutil.rmtree(output)
        print(f"{sum(killed.values())} kills, {runs} runs, {wrong} wrong", flush=True)
    left = [name for name in Path("/dev/shm").glob("tamis-*") if time.time() - name.stat().st_mtime > 60]
    by_role = ", ".join(f"{role} {times}" for role, times in sorted(killed.items()))
    return [
        f"- {sum(killed.values())} kills ({by_role}) in {runs} runs of 120 partitions, each resumed until it finished",
        f"- outputs that differ from that of an undisturbed run in any byte: {wrong}",
        f"- folders left in shared memory: {len(left)}",
    ]


def _kill_one(process: subprocess.Popen[bytes], generator: random.Random) -> str | None:
    """Kill a random process of a run at a random moment; returns its role."""
    until = time.monotonic() + generator.uniform(0.2, 2.0)
    while time.monotonic() < until and process.poll() is None:
        time.sleep(0.02)
    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError, IndexError):
        tree = psutil.Process(process.pid).children(recursive=True)
        servers = [each for each in tree if each.ppid() == process.pid]
        workers = sorted((each for each in tree if each.ppid() in {s.pid for s in servers}), key=lambda each: each.pid)
        role = generator.choice(["driver", "server", "worker", "worker", "worker", "worker", "all"])
        if process.poll() is not None:
            return None
        victims = {
            "driver": [process.pid],
            "server": [servers[0].pid],
            "worker": [generator.choice(workers).pid],
            "all": [process.pid, *(each.pid for each in tree)],
        }[role]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        return role
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["busy", "kills"])
    parser.add_argument("count", type=int, nargs="?", help="megabytes of input, or kills")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tamis-streams-") as folder:
        if options.what == "busy":
            lines = busy(Path(folder), options.count or 100)
        else:
            lines = kills(Path(folder), options.count or 200)
    print("\n".join(lines))
    if options.save:
        _save(options.what, lines)


def _save(what: str, lines: list[str]) -> None:
    titles = {"busy": "A heavy operator between light ones", "kills": "Kills"}
    text = PAGE.read_text() if PAGE.exists() else "# Stages that run at the same time\n"
    head, _, _ = text.partition(f"\n## {titles[what]}\n")
    others = text.removeprefix(head)
    rest = others.partition(f"\n## {titles[what]}\n")[2]
    following = rest[rest.index("\n## ") :] if "\n## " in rest else ""
    command = f"`python benchmarks/streams.py {what}`"
    body = "\n".join(lines)
    PAGE.write_text(f"{head}\n## {titles[what]}\n\n{command}, 2 cores, 24 GB.\n\n{body}\n{following}")


if __name__ == "__main__":
    main()
