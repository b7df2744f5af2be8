"""What the tests of Ray and of Dask share: pipelines whose outcome is compared with that of one machine, and faults."""

from __future__ import annotations

import importlib
import json
import mmap
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

from tamis import JsonlReader, JsonlWriter, Map, Pipeline, Resources, Rows, operator
from tamis.batch import Batch
from tamis.context import Context
from tamis.dedup import FuzzyDedup, SemanticDedup
from tamis.errors import OperatorError
from tamis.events import CallsFinished, Event, Note, PartitionCommitted, WorkerDied
from tamis.text.quality import WordCount

WORDS = [f"{number:x}{number * 7919 % 10007:x}" for number in range(20_000)]


def write_source(folder: Path) -> Path:
    """Texts of which many are nearly the same, and some lines that are not JSON."""
    generator = random.Random(5)
    texts = [" ".join(generator.choices(WORDS, k=generator.randrange(3, 60))) for _ in range(300)]
    for number in range(4):
        with (folder / f"{number}.jsonl").open("w") as file:
            for row in range(300):
                words = generator.choice(texts).split()
                if generator.random() < 0.5:
                    words[generator.randrange(len(words))] = "changed"
                file.write(json.dumps({"id": f"{number}-{row}", "text": " ".join(words)}) + "\n")
                if generator.random() < 0.01:
                    file.write('{"id": broken\n')
    return folder


def breaks_on_some(row: dict[str, Any]) -> dict[str, Any]:
    if row["id"].endswith("77"):
        raise RuntimeError("a row with 77")
    return {"length": len(row["text"])}


def keep_after(path: Path) -> Callable[[dict[str, Any]], bool]:
    """A filter that keeps every row, once a file exists."""

    def waits(row: dict[str, Any]) -> bool:
        await_in_step(lambda: [] if path.exists() else [path])
        return True

    return waits


def keep_once_at_work(folder: Path, nodes: int) -> Callable[[dict[str, Any]], bool]:
    """A filter that keeps every row, once so many nodes have rows. The folder is empty."""

    def meets(row: dict[str, Any]) -> bool:
        meet(folder, str(os.getppid()), nodes)  # the fork server of the node
        return True

    return meets


def meet(folder: Path, name: str, nodes: int) -> None:
    """Wait in a step until so many nodes are at work: the first to start would otherwise finish before the others join."""
    (folder / name).touch()
    await_in_step(lambda: [f"{nodes} nodes"] if len(list(folder.iterdir())) < nodes else [])


def await_in_step(missing: Callable[[], list[Any]]) -> None:
    """Wait in a step until nothing is missing. If that takes too long, the run ends; another error would only fail the row."""
    try:
        await_none(missing, most_s=400)
    except AssertionError as error:
        raise OperatorError(f"a step of a test still waits for {missing()}") from error


def dedup(source: Path, output: Path, *middle: Any, blocksize: str = "20kB", **options: Any) -> dict[str, Any]:
    """Everything that a run with filters and fuzzy deduplication decides."""
    report = Pipeline(
        JsonlReader(source, blocksize=blocksize),
        WordCount(min_words=5),
        breaks_on_some,
        *middle,
        FuzzyDedup(threshold=0.6),
        JsonlWriter(output),
    ).run(on_error="isolate", rejects=True, **options)
    return outcome_in(output) | {"account": (report.read, report.kept, report.dropped, report.failed)}


def outcome_in(output: Path) -> dict[str, Any]:
    rows = [line for file in sorted(output.glob("part-*")) for line in file.read_text().splitlines()]
    failed = sorted(line for file in (output / ".tamis" / "failed").iterdir() for line in file.read_text().splitlines())
    rejects = [row for file in (output / ".tamis" / "rejects").iterdir() for row in pq.read_table(file).to_pylist()]
    groups = pq.read_table(output / ".tamis" / "groups").to_pylist()
    return {"rows": rows, "failed": failed, "rejects": sorted(map(str, rejects)), "groups": sorted(map(str, groups))}


def semantic(output: Path, **options: Any) -> list[str]:
    """The rows that semantic deduplication keeps."""
    generator = np.random.default_rng(3)
    originals = generator.normal(size=(60, 8))
    vectors = originals[generator.integers(0, 60, 200)] + 0.02 * generator.normal(size=(200, 8))
    rows = [{"id": number, "embedding": vector.tolist()} for number, vector in enumerate(vectors)]
    Pipeline(Rows(rows, rows_per_partition=50), SemanticDedup(threshold=0.9), JsonlWriter(output)).run(**options)
    kept = [json.loads(line)["id"] for file in sorted(output.glob("part-*")) for line in file.read_text().splitlines()]
    assert 40 < len(kept) < 150
    return kept


@operator(reads=("text", "id"), writes="weight", resources=Resources(memory="10MB"))
class HeavyOnClustersForTests(Map):
    """A step that declares memory, and so gets workers of its own."""

    def apply(self, batch: Batch) -> dict[str, Any]:
        return {"weight": np.array([len(text) for text in batch["text"].to_pylist()])}


def divided(source: Path, output: Path, **options: Any) -> dict[str, Any]:
    """The outcome of a pipeline whose stages run at the same time."""
    return dedup(source, output, HeavyOnClustersForTests(), lambda row: {"double": 2 * row["weight"]}, **options)


def breaks_its_worker(row: dict[str, Any]) -> bool:
    """Three rows are too much for any worker: it is killed, does not get the memory, or holds memory that no cap counts."""
    if row["n"] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if row["n"] == 3:
        np.ones(1_000_000_000)
    if row["n"] == 5:
        held = mmap.mmap(-1, 700_000_000)
        for start in range(0, len(held), 4096):
            held[start] = 1
        signal.pause()
    return True


def broken(output: Path, **options: Any) -> tuple[list[int], dict[int, str]]:
    """The rows that are left by a step that some rows break, and the errors of those."""
    rows = Rows([{"n": number} for number in range(6)], rows_per_partition=2)
    report = Pipeline(rows, breaks_its_worker, JsonlWriter(output)).run(memory="600MB", **options)
    assert report.balances
    kept = [json.loads(line)["n"] for file in sorted(output.glob("part-*")) for line in file.read_text().splitlines()]
    failed = [
        json.loads(line) for file in (output / ".tamis/failed").iterdir() for line in file.read_text().splitlines()
    ]
    return kept, {each["row"]["n"]: re.sub(r"[\d.,]+ ([KMG]?B)", r"N \1", each["error"]) for each in failed}


@operator(reads="text", writes="colour")
class ColourForTests(Map):
    """A step that needs a module of its own, which its worker imports when it starts."""

    module: str = "colorsys"

    def open(self, context: Context) -> Map:
        importlib.import_module(self.module)
        return self

    def apply(self, batch: Batch) -> dict[str, Any]:
        return {"colour": np.array([len(text) % 3 for text in batch["text"].to_pylist()])}


def without_module(folder: Path, module: str) -> dict[str, str]:
    """An environment in which Python finds every module but one."""
    (folder / "sitecustomize.py").write_text(
        f"""
import sys

class Without:
    @staticmethod
    def find_spec(name, *rest):
        if name == {module!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Without)
"""
    )
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(Path.cwd())])}


@contextmanager
def ray_nodes(*nodes: dict[str, Any]) -> Iterator[Any]:
    """A Ray cluster on this machine, with a small object store on each node."""
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        for options in nodes:
            cluster.add_node(wait=False, object_store_memory=80_000_000, include_dashboard=False, **options)
            cluster.wait_for_nodes(300)  # by itself, Ray waits for 30 seconds
        yield cluster
    finally:
        cluster.shutdown()


def hosts_listened_on(executor: Any) -> set[str]:
    """The addresses at which a driver waits for the nodes of a run."""
    found: set[str] = set()
    before = {each.laddr for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_LISTEN}

    def look(event: Event) -> None:
        listening = [each for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_LISTEN]
        found.update(each.laddr.ip for each in listening if each.laddr not in before)

    report = Pipeline(Rows([{"n": 1}, {"n": 2}]), lambda row: row["n"] > 1).run(executor=executor, on_event=look)
    assert report.kept == 1
    return found


# --------------------------------------------------------------------------------------------------------------- faults


PATIENCE = {"SILENT_S": 60.0, "NO_NODE_S": 300.0}
"""In seconds; see tamis/executors/nodes.py."""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node is given up, and no run without nodes, because the machine is busy. The end of a node ends its connection."""
    for name, value in PATIENCE.items():
        monkeypatch.setattr(f"tamis.executors.nodes.{name}", value)


class Faults:
    """Subscribes to a run, and does something at certain moments: "map" when rows are read, "calls" while a Gather decides,
    "refused" when a node gets no work. An action that returns False found nothing to do, and is tried again at the next one."""

    def __init__(self, **actions: Callable[[], object]) -> None:
        self.left = dict(actions)
        self.notes: list[str] = []
        self.deaths: list[str] = []

    def __call__(self, event: Event) -> None:
        moment = ""
        if isinstance(event, Note):
            self.notes.append(event.text)
            moment = "refused" if "gets no work" in event.text else ""
        elif isinstance(event, WorkerDied):
            self.deaths.append(event.how)
        elif isinstance(event, PartitionCommitted):
            moment = "map" if event.stage == 0 else "write"
        elif isinstance(event, CallsFinished):
            moment = "calls"
        if moment in self.left and self.left[moment]() is not False:
            del self.left[moment]


def servers_of(parents: Iterator[int] | list[int]) -> list[psutil.Process]:
    """The fork servers below some processes: each has an agent as its parent and workers as its children."""
    found = []
    for parent in parents:
        try:
            below = psutil.Process(parent).children(recursive=True)
        except psutil.NoSuchProcess:
            continue
        for process in below:
            try:
                if process.status() != psutil.STATUS_ZOMBIE and any(
                    "forkserver" in word for word in process.cmdline()[:3]
                ):
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
    servers = {process.pid for process in found}
    # Workers have the same command line.
    return [process for process in found if _parent(process) not in {None, *servers}]


def _parent(process: psutil.Process) -> int | None:
    """The process id of its parent; None if it has ended."""
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return None


def at_work(servers: list[psutil.Process]) -> list[psutil.Process]:
    """Those that have workers: the driver knows their nodes, which is uncertain for an agent that has only just started."""
    return [server for server in servers if workers_of([server])]


def workers_of(servers: list[psutil.Process]) -> list[psutil.Process]:
    """The workers that the driver is connected to; it closes the connection of one that is to exit."""
    found = []
    for server in servers:
        with suppress(psutil.NoSuchProcess):
            for worker in server.children():
                with suppress(psutil.NoSuchProcess):
                    connections = getattr(worker, "net_connections", None) or worker.connections  # before psutil 6
                    states = {each.status for each in connections("tcp")}
                    found += [worker] if psutil.CONN_ESTABLISHED in states else []
    return found


def kill_one(processes: list[psutil.Process]) -> bool:
    """Kill the first process that has not ended; returns whether there was one."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                process.kill()
                return True
    return False


def end(process: subprocess.Popen[Any]) -> None:
    """Ask a process to end, and kill it if it does not."""
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def await_none(find: Callable[[], object], most_s: float = 300.0) -> None:
    """Wait until nothing is found any more."""
    until = time.monotonic() + most_s
    while find():
        assert time.monotonic() < until, find()
        time.sleep(0.05)


DRIVER = """
import sys
from pathlib import Path
from tests.executors import clusters
from tamis.executors import nodes
import tamis

vars(nodes).update(clusters.PATIENCE)

def show(event):
    if type(event).__name__ == "PartitionCommitted":
        print("committed", flush=True)

executor = getattr(tamis, sys.argv[1])(sys.argv[2])
clusters.dedup(Path(sys.argv[3]), Path(sys.argv[4]), executor=executor, memory="1GB", on_event=show, blocksize="4kB")
"""


def kill_a_driver(executor: str, address: str, source: Path, output: Path) -> Path:
    """Begin a run in another process, and kill that when it has committed something; returns its output."""
    return run_driver(
        lambda folder: ["-c", DRIVER, executor, address, str(source), str(folder)], output, kill_at="committed\n"
    )[0]


def run_driver(
    arguments: Callable[[Path], list[str]], output: Path, kill_at: str | None = None, **environment: str
) -> tuple[Path, str]:
    """Run Python in another process, until it ends or prints a line; returns the folder of its output and what it has printed.

    With several clusters on the machine, Ray sometimes ends a driver while it connects. If it has written nothing, it is
    started again, with another folder.
    """
    found = []
    for number in range(3):
        folder, errors = output / str(number), output / f"{number}.txt"
        output.mkdir(exist_ok=True)
        with (
            errors.open("wb") as file,
            subprocess.Popen(
                [sys.executable, *arguments(folder)],
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env={**os.environ, "PYTHONPATH": str(Path.cwd()), **environment},
            ) as process,
        ):
            assert process.stdout is not None
            overdue = threading.Timer(900, process.kill)
            overdue.start()
            lines = []
            try:
                for line in process.stdout:
                    lines.append(line)
                    if line == kill_at:
                        process.kill()
                process.wait()
            finally:
                overdue.cancel()
        if kill_at in lines or (kill_at is None and not process.returncode):
            return folder, "".join(lines)
        found.append((process.returncode, lines, errors.read_text()))
        if folder.exists():
            break
    raise AssertionError(found)
