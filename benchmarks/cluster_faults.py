"""Real faults on clusters of three nodes: whether rows, reasons, groups and accounts stay the same, and all processes end.

    python benchmarks/cluster_faults.py [--engines ray,dask] [--seed 1] [--rounds 2] [--save]

A round is seven runs of each engine, and each run has a fault in each of four phases; together they cover every kind of fault
in every phase. The pipeline has filters, exact and fuzzy deduplication, in every other run in stages that run at the same time.

    worker, server, agent     SIGKILL to a worker, the fork server of a node, or the Ray actor or Dask worker above it
    node                      SIGKILL to all processes of a node; another node joins
    driver                    SIGKILL, and the same command again
    slow                      SIGSTOP to a node for a second
    silent                    SIGSTOP to a node for longer than the driver waits; it continues after it was given up

The seed decides about kinds, moments and victims. A moment is a time after an event of the run, within the time that the phase
took in an undisturbed run.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parent))
from cluster_nodes import MARK, DaskNodes, RayNodes, cluster, kill, marked, servers, signal_all
from pages import save

from tamis import JsonlReader, JsonlWriter, Map, Pipeline, Resources, operator
from tamis.dedup import ExactDedup, FuzzyDedup
from tamis.events import CallsFinished, Event, Note, PartitionCommitted, RunFinished, StageStarted, WorkerDied
from tamis.text.quality import WordCount

PAGE = Path(__file__).parent / "cluster.md"
PHASES = ("map", "exchange", "resolve", "apply")
KINDS = ("worker", "server", "agent", "node", "driver", "slow", "silent")
SILENT_S = 6.0
"""Given to the driver: how long a node may be silent. The default of 15 seconds would only make the benchmark longer."""
NODES = 3
MOST_STARTS = 10
STREAMING = ("never", "always")
EVENT = "event: "
"""Begins the lines of a driver that are meant for this script; Ray prints others."""
WORDS = [f"{number:x}{number * 7919 % 10007:x}" for number in range(20_000)]


# --------------------------------------------------------------------------------------------------------------- the run


def write_source(folder: Path) -> Path:
    """Texts of which many are equal or nearly so, some that are too short, and lines that are not JSON."""
    folder.mkdir()
    generator = random.Random(5)
    texts = [" ".join(generator.choices(WORDS, k=generator.randrange(3, 150))) for _ in range(2000)]
    for number in range(4):
        with (folder / f"{number}.jsonl").open("w") as file:
            for row in range(1500):
                words = generator.choice(texts).split()
                if generator.random() < 0.5:
                    words[generator.randrange(len(words))] = "changed"
                file.write(json.dumps({"id": f"{number}-{row}", "text": " ".join(words)}) + "\n")
                if generator.random() < 0.01:
                    file.write('{"id": broken\n')
    return folder


def length_of(row: dict[str, Any]) -> dict[str, Any]:
    """A step that fails for some rows."""
    if row["id"].endswith("77"):
        raise RuntimeError("a row with 77")
    return {"length": len(row["text"])}


@operator(reads="text", writes="letters", resources=Resources(memory="50MB"))
class Letters(Map):
    """A step that declares memory, and so gets workers of its own with streaming."""

    def apply(self, batch: Any) -> dict[str, Any]:
        return {"letters": np.array([sum(map(str.isalpha, text)) for text in batch["text"].to_pylist()])}


def drive(engine: str, address: str, source: str, output: str, streaming: str) -> None:
    """Run the pipeline, and print its events, each with where it belongs in the order of the run."""
    import tamis
    from tamis.executors import nodes

    nodes.SILENT_S = SILENT_S
    executor: Any = "inline"
    if engine != "inline":
        kind = tamis.RayExecutor if engine == "ray" else tamis.DaskExecutor
        executor = kind(address, streaming=streaming)
    Pipeline(
        JsonlReader(source, blocksize="60kB"),
        WordCount(min_words=5),
        Letters(),
        length_of,
        ExactDedup(),
        FuzzyDedup(threshold=0.6),
        JsonlWriter(output),
    ).run(
        executor=executor,
        on_error="isolate",
        rejects=True,
        memory=None if engine == "inline" else "1500MB",
        on_event=Events(),
        progress=False,
    )


class Events:
    """Prints the events that faults are timed by."""

    def __init__(self) -> None:
        self._committed: Counter[int] = Counter()

    def __call__(self, event: Event) -> None:
        match event:
            case StageStarted():
                self._committed[event.stage] = event.committed
                self._print(at=[2 * event.stage, 0, ""], stage=event.stage)
            case PartitionCommitted():
                self._committed[event.stage] += 1
                self._print(at=[2 * event.stage, self._committed[event.stage], ""], stage=event.stage)
            case CallsFinished():
                self._print(at=[2 * event.stage + 1, 0, event.name.split(",")[0]])
            case RunFinished():
                self._print(at=[1000, 0, ""])
            case Note():
                self._print(note=event.text)
            case WorkerDied():
                self._print(died=event.how, step=event.step, call=event.partition is None)

    def _print(self, **content: Any) -> None:
        sys.stdout.write(f"{EVENT}{json.dumps(content)}\n")  # as a whole: a thread of Ray prints too
        sys.stdout.flush()


def outcome(output: Path) -> dict[str, Any]:
    """Everything that a run decided."""
    internal = output / ".tamis"
    report = json.loads((internal / "report.json").read_text())
    rejects = [row for file in (internal / "rejects").iterdir() for row in pq.read_table(file).to_pylist()]
    return {
        "rows": [line for file in sorted(output.glob("part-*")) for line in file.read_text().splitlines()],
        "reasons": sorted(map(str, rejects)),
        "failed": sorted(line for file in (internal / "failed").iterdir() for line in file.read_text().splitlines()),
        "groups": sorted(map(str, pq.read_table(internal / "groups").to_pylist())),
        "account": {name: report[name] for name in ("read", "kept", "dropped", "failed")},
    }


# -------------------------------------------------------------------------------------------------------------- moments

CALLS = [
    *("digests by range", "bands by range", "groups", "candidate pairs", "components"),
    *("candidates", "comparisons", "survivors", "decisions"),
]
"""The phases of a Gather, in their order."""


def order(at: list[Any]) -> tuple[int, int, int]:
    """Where an event belongs in a run, also in one that was resumed and does not have all of them."""
    stage, number, name = at
    return stage, number, CALLS.index(name) if name in CALLS else -1


def phase_of(at: list[Any]) -> str:
    """The phase that ends with an event."""
    stage, _, name = at
    if name:
        return "exchange" if name.endswith("by range") else "resolve"
    return "map" if stage == 0 else "apply"


@dataclass(frozen=True)
class Moment:
    """A time in a run: so many seconds after an event."""

    after: tuple[int, int, int]
    delay_s: float


def choose_moment(events: list[tuple[float, list[Any]]], phase: str, generator: random.Random) -> Moment:
    """A random moment of a phase, given the events of an undisturbed run with their times."""
    spans = [(before, after) for before, after in pairwise(events) if phase_of(after[1]) == phase]
    before, after = generator.choices(spans, weights=[after[0] - before[0] + 1e-3 for before, after in spans])[0]
    return Moment(order(before[1]), generator.uniform(0, after[0] - before[0]))


# --------------------------------------------------------------------------------------------------------------- faults


@dataclass
class Fault:
    """Something to do to a run."""

    phase: str
    kind: str
    moment: Moment
    seed: int
    hit: str = ""
    """What it hit; empty if the run was over before."""


@dataclass
class Attempt:
    """A run with its faults, in the order of their moments."""

    nodes: RayNodes | DaskNodes
    command: list[str]
    faults: list[Fault]
    events: list[tuple[float, list[Any]]] = field(default_factory=list)
    said: list[dict[str, Any]] = field(default_factory=list)
    starts: int = 0
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)
    """With which the driver ended, if it was not killed."""

    def run(self) -> None:
        """Start the driver as often as it is killed, or ends with an error that says how to resume."""
        began = time.monotonic()
        while self._start():
            pass
        self.seconds = time.monotonic() - began

    def _start(self) -> int:
        self.starts += 1
        began = time.monotonic()
        with tempfile.TemporaryFile("w+") as errors:
            with subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=errors, text=True) as driver:
                assert driver.stdout is not None
                for line in driver.stdout:
                    if line.startswith(EVENT) and line.endswith("\n"):  # the driver may be killed in the middle
                        content, _ = json.JSONDecoder().raw_decode(line.removeprefix(EVENT))
                        self.said.append(content)
                        if "at" in content:
                            self.events.append((time.monotonic() - began, content["at"]))
                            self._strike(driver, order(content["at"]))
            if driver.returncode not in (0, -signal.SIGKILL):
                errors.seek(0)
                text = errors.read()
                if "rerun the same command to resume" not in text or self.starts > MOST_STARTS:
                    raise RuntimeError(f"the run ended with {driver.returncode}:\n{text[-4000:]}")
                self.errors.append(text[text.rindex("Error: ") :].splitlines()[0])
        return driver.returncode

    def _strike(self, driver: subprocess.Popen[str], at: tuple[int, int, int]) -> None:
        while self.faults and not self.faults[0].hit and at >= self.faults[0].moment.after and driver.poll() is None:
            fault = self.faults.pop(0)
            time.sleep(fault.moment.delay_s)
            fault.hit = strike(fault, self.nodes, driver)
            if fault.kind == "driver":
                return


def strike(fault: Fault, nodes: RayNodes | DaskNodes, driver: subprocess.Popen[str]) -> str:
    """Do it to a process that the seed of the fault chooses; returns what was hit."""
    generator = random.Random(fault.seed)
    if fault.kind == "driver":
        driver.kill()
        return f"driver {driver.pid}"
    until = time.monotonic() + 10
    while time.monotonic() < until and driver.poll() is None:
        with suppress(psutil.NoSuchProcess, IndexError):
            return _strike_node(fault.kind, nodes, generator)
        time.sleep(0.01)  # between two workers
    return ""


def _strike_node(kind: str, nodes: RayNodes | DaskNodes, generator: random.Random) -> str:
    root = generator.choice([root for root in nodes.roots() if servers(root)])
    server = servers(root)[0]
    agent = psutil.Process(server.ppid())
    if kind == "worker":
        victim = generator.choice(server.children())
        kill([victim])
        return f"worker {victim.pid}"
    if kind in ("server", "agent"):
        victim = server if kind == "server" else agent
        kill([victim])
        return f"{kind} {victim.pid}"
    if kind == "node":
        nodes.kill(root)
        nodes.add()
        return f"node {root}"
    processes = [agent, server, *server.children()]
    signal_all(processes, signal.SIGSTOP)
    time.sleep(1.0 if kind == "slow" else SILENT_S + 1.5)
    signal_all(processes, signal.SIGCONT)
    return f"node {root}"


# ----------------------------------------------------------------------------------------------------------------- main


def planned(events: list[tuple[float, list[Any]]], number: int, seed: int) -> list[Fault]:
    """The faults of a run: one in each phase. Seven runs have each kind once in each phase."""
    generator = random.Random(seed * 1000 + number)
    faults = [
        Fault(
            phase, KINDS[(number + 2 * index) % len(KINDS)], choose_moment(events, phase, generator), generator.random()
        )
        for index, phase in enumerate(PHASES)
    ]
    return sorted(faults, key=lambda fault: fault.moment.after)


def await_end(nodes: RayNodes | DaskNodes) -> int:
    """How many fork servers are still there 30 seconds after a run."""
    until = time.monotonic() + 30
    while left := sum(len(servers(root)) for root in nodes.roots()):
        if time.monotonic() > until:
            break
        time.sleep(0.1)
    return left


@dataclass
class Found:
    """What the runs of one engine showed."""

    faults: list[Fault] = field(default_factory=list)
    runs: int = 0
    starts: int = 0
    wrong: int = 0
    left: int = 0
    steps: Counter[str] = field(default_factory=Counter)
    """Where workers were killed or lost."""

    def add(self, run: Attempt, faults: list[Fault], *, same: bool, left: int) -> None:
        self.faults += [fault for fault in faults if fault.hit]
        self.runs, self.starts = self.runs + 1, self.starts + run.starts
        self.wrong, self.left = self.wrong + (not same), self.left + left
        self.steps.update("a call" if each["call"] else "a partition" for each in run.said if "died" in each)


def run_engine(engine: str, options: argparse.Namespace, folder: Path, source: Path, wanted: dict[str, Any]) -> Found:
    found = Found()
    with cluster(engine, NODES, folder / engine) as nodes:

        def attempt(output: Path, streaming: str, faults: list[Fault]) -> Attempt:
            arguments = ["--drive", engine, nodes.address, str(source), str(output), streaming]
            return Attempt(nodes, [sys.executable, __file__, *arguments], list(faults))

        calm = {}
        for streaming in STREAMING:
            calm[streaming] = attempt(folder / "calm", streaming, [])
            calm[streaming].run()
            assert outcome(folder / "calm") == wanted, "the undisturbed run differs from that of one process"
            shutil.rmtree(folder / "calm")
            print(f"{engine}, streaming {streaming}: undisturbed {calm[streaming].seconds:.1f} s", flush=True)
        for number in range(options.rounds * len(KINDS)):
            streaming = STREAMING[number % 2]
            faults = planned(calm[streaming].events, number, options.seed)
            output = folder / f"{engine}-{number}"
            run = attempt(output, streaming, faults)
            run.run()
            same = outcome(output) == wanted
            found.add(run, faults, same=same, left=await_end(nodes))
            hits = ", ".join(f"{fault.phase}: {fault.kind}{'' if fault.hit else ' (missed)'}" for fault in faults)
            says = "same" if same else f"DIFFERENT, kept in {output}"
            print(
                f"  run {number}, streaming {streaming}: {run.seconds:5.1f} s, {says}; {hits}", *run.errors, flush=True
            )
            if same:
                shutil.rmtree(output)
    return found


def lines_of(found: dict[str, Found], left: list[str]) -> list[str]:
    lines = ["| engine | " + " | ".join(KINDS) + " | runs | outcomes that differ | processes left |"]
    lines.append("|---" * (len(KINDS) + 4) + "|")
    for engine, each in found.items():
        kinds = Counter(fault.kind for fault in each.faults)
        counts = " | ".join(str(kinds[kind]) for kind in KINDS)
        lines.append(f"| {engine} | {counts} | {each.runs} | {each.wrong} | {each.left} |")
    faults = [fault for each in found.values() for fault in each.faults]
    phases = Counter(fault.phase for fault in faults)
    by_phase = ", ".join(f"{phase} {phases[phase]}" for phase in PHASES)
    steps = sum((each.steps for each in found.values()), Counter())
    died = ", ".join(f"{count} in {where}" for where, count in sorted(steps.items()))
    lines += ["", f"- {len(faults)} faults: {by_phase}; workers that died at work: {died}"]
    lines.append(f"- processes left after the clusters were stopped: {len(left)}")
    return lines


def main() -> None:
    if sys.argv[1:2] == ["--drive"]:
        drive(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="ray,dask")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--save", action="store_true", help=f"write the results into {PAGE.name}")
    options = parser.parse_args()
    os.environ[MARK] = mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.environ["TAMIS_SCRATCH"] = str(folder / "scratch")
        source = write_source(folder / "in")
        drive_inline = [sys.executable, __file__, "--drive", "inline", "", str(source), str(folder / "whole"), "never"]
        subprocess.run(drive_inline, check=True, stdout=subprocess.DEVNULL)
        wanted = outcome(folder / "whole")
        print(f"expected: {wanted['account']}, {len(wanted['groups'])} in groups", flush=True)
        found = {engine: run_engine(engine, options, folder, source, wanted) for engine in options.engines.split(",")}
        scratch = [str(path) for path in (folder / "scratch").rglob("*") if path.is_file()]
        print(f"files left in scratch folders: {len(scratch)} {scratch[:5]}")
    until = time.monotonic() + 30
    while (left := marked(mark)) and time.monotonic() < until:
        time.sleep(0.2)
    print("\n".join(left))
    lines = lines_of(found, left)
    print("\n".join(lines))
    if options.save:
        command = f"`python benchmarks/cluster_faults.py --rounds {options.rounds} --seed {options.seed}`"
        head = f"{command}, {NODES} nodes of one core on one machine, {wanted['account']['read']} rows, 72 partitions."
        save(PAGE, "Faults", [head, "", *lines])


if __name__ == "__main__":
    main()
