import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tamis.errors import BudgetError, ParameterError
from tamis.memory.budget import cgroup_memory, make_budget, usable_cpus, usable_memory


def test_a_budget_is_divided_among_the_workers_and_says_why():
    budget = make_budget(memory="8GB", workers=4)
    assert budget.workers == 4
    assert budget.workers * budget.worker_bytes <= 8_000_000_000
    assert budget.reasons["memory"] == "8.0 GB: requested"
    figures = {
        "memory",
        "driver",
        "workers",
        "worker_bytes",
        "fixed_bytes",
        "batch_bytes",
        "max_row_bytes",
        "queue",
        "caches",
    }
    assert set(budget.reasons) == figures


def test_a_small_budget_means_fewer_workers_and_smaller_batches():
    large, small = make_budget(memory="8GB", workers=2), make_budget(memory="400MB")
    assert small.workers == 1
    assert small.batch_bytes < large.batch_bytes


def test_a_budget_that_cannot_work_names_the_smallest_that_can():
    with pytest.raises(BudgetError, match="the smallest budget it can work with is 316 MB"):
        make_budget(memory="50MB")
    make_budget(memory="316MB")


def test_what_the_caller_holds_is_counted_up_to_what_tamis_needs():
    small, large = (
        make_budget(memory="1GB", caller_bytes=100_000_000),
        make_budget(memory="1GB", caller_bytes=3_000_000_000),
    )
    assert small.before_bytes == 0
    assert large.before_bytes == 2_850_000_000
    assert large.driver_bytes - small.driver_bytes == 50_000_000
    assert "2.9 GB that the caller held before" in large.reasons["driver"]


def test_operators_that_need_memory_are_counted():
    with pytest.raises(BudgetError):
        make_budget(memory="400MB", operator_bytes=1_000_000_000)
    budget = make_budget(memory="4GB", workers=2, operator_bytes=1_000_000_000)
    assert budget.workers == 2
    assert budget.fixed_bytes == 1_150_000_000
    assert budget.reasons["fixed_bytes"].endswith("and the 1.0 GB that operators declare")


def test_what_an_earlier_run_saw_decides_the_workers_and_refuses_nothing():
    assert make_budget(memory="2GB", workers=2, learned_bytes=1_200_000_000).workers == 1
    alone = make_budget(memory="400MB", workers=2, learned_bytes=1_200_000_000)
    assert alone.workers == 1
    assert alone.fixed_bytes < alone.worker_bytes
    assert alone.reasons["fixed_bytes"].endswith("and the 1.2 GB that an earlier run measured for operators")


@pytest.mark.parametrize("workers", [0, -1, "two", 1.5, True])
def test_the_number_of_workers_is_checked(workers):
    with pytest.raises(ParameterError, match="`workers` must be"):
        make_budget(workers=workers)


def test_the_machine_is_looked_at():
    assert usable_cpus() >= 1
    assert usable_memory() > 100_000_000


# ----------------------------------------------------------------------------------------------------------- containers


def machine(tmp_path, membership, files):
    """A root folder with the files by which a kernel tells of limits."""
    for name, text in {"proc/self/cgroup": membership, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return tmp_path


V1 = "9:name=systemd:/\n4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/"


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/job", {}, (None, 0)),
        ("0::/job", {"job/memory.max": "max", "job/memory.current": 5}, (None, 0)),
        ("0::/job", {"job/memory.max": 1000, "job/memory.current": 300}, (1000, 300)),
        ("0::/job", {"job/memory.max": 1000, "job/memory.current": 300, "job/memory.stat": "inactive_file 100"}, (1000, 200)),
        ("0::/job", {"job/memory.max": 1000, "job/memory.high": 800, "job/memory.current": 300}, (800, 300)),
        ("0::/pod/job", {"pod/memory.max": 700, "pod/memory.current": 1, "pod/job/memory.max": "max"}, (700, 1)),
        # The limit above is larger, and neighbours have used nearly all of it.
        (
            "0::/pod/job",
            {
                "pod/memory.max": 2000,
                "pod/memory.current": 1900,
                "pod/job/memory.max": 1000,
                "pod/job/memory.current": 100,
            },
            (2000, 1900),
        ),
        ("0::/", {"memory.max": 500, "memory.current": 20}, (500, 20)),
        (V1, {"memory/docker/abc/memory.limit_in_bytes": 1000, "memory/docker/abc/memory.usage_in_bytes": 10}, (1000, 10)),
        # Inside a container the folder of the host is not there, and that of the container is the root.
        (V1, {"memory/memory.limit_in_bytes": 900, "memory/memory.usage_in_bytes": 10}, (900, 10)),
        (V1, {"memory/memory.limit_in_bytes": 9223372036854771712, "memory/memory.usage_in_bytes": 10}, (None, 0)),
        (
            V1,
            {
                "memory/memory.limit_in_bytes": 900,
                "memory/memory.usage_in_bytes": 500,
                "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 200",
            },
            (900, 300),
        ),
    ],
)  # fmt: skip
def test_the_limit_of_a_container_counts(tmp_path, membership, files, expected):
    root = machine(tmp_path, membership, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert cgroup_memory(root) == expected


@pytest.mark.parametrize(
    ("membership", "files", "most"),
    [
        ("0::/job", {"job/cpu.max": "max 100000"}, None),
        ("0::/job", {"job/cpu.max": "100000 100000"}, 1),
        ("0::/job", {"job/cpu.max": "250000 100000"}, 3),
        ("0::/pod/job", {"pod/cpu.max": "200000 100000", "pod/job/cpu.max": "600000 100000"}, 2),
        ("0::/job", {"job/cpu.max": "1600000 100000"}, None),
        ("0::/job", {"job/cpu.max": "50000 100000"}, 1),
        (V1, {"cpu,cpuacct/cpu.cfs_quota_us": -1, "cpu,cpuacct/cpu.cfs_period_us": 100000}, None),
        (V1, {"cpu,cpuacct/cpu.cfs_quota_us": 100000, "cpu,cpuacct/cpu.cfs_period_us": 100000}, 1),
    ],
)
def test_a_container_that_may_use_little_time_has_few_cores(tmp_path, monkeypatch, membership, files, most):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    root = machine(tmp_path, membership, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert usable_cpus(root) == (most or 8)


ROOT = Path(__file__).parents[2]

IN_A_CGROUP = """
import os, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
from tamis import JsonlReader, JsonlWriter, Pipeline
report = Pipeline(JsonlReader(sys.argv[2]), JsonlWriter(sys.argv[3], compression="zst")).run(workers=2)
print(report.kept, report.memory["budget_bytes"], report.peak_memory_bytes)
"""


@pytest.fixture
def limited_cgroup():
    """A real control group of 700 MB, where they may be made."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    v1 = next((line.split(":", 2)[2] for line in lines if line.split(":")[1] == "memory"), None)
    base = Path(f"/sys/fs/cgroup/memory{v1}" if v1 is not None else f"/sys/fs/cgroup{lines[-1].split(':', 2)[2]}")
    folder = base / f"tamis-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("control groups cannot be made here")
    try:
        (folder / ("memory.limit_in_bytes" if v1 is not None else "memory.max")).write_text("700000000")
        yield folder
    except OSError:
        pytest.skip("control groups cannot be limited here")
    finally:
        folder.rmdir()


def test_a_run_keeps_to_what_its_container_may_use(tmp_path, limited_cgroup):
    with (tmp_path / "in.jsonl").open("w") as file:
        for number in range(300_000):
            file.write(json.dumps({"id": number, "text": f"some words {number} " * 20}) + "\n")
    command = [
        sys.executable,
        "-c",
        IN_A_CGROUP,
        str(limited_cgroup),
        str(tmp_path / "in.jsonl"),
        str(tmp_path / "out"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kept, budget, peak = map(int, done.stdout.split())
    assert kept == 300_000
    assert 400_000_000 < budget < 0.8 * 700_000_000
    assert peak < budget


OVER_THE_LIMIT = """
import os, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
from tamis import JsonlReader, JsonlWriter, Pipeline
from tests.memory.test_governor import GrowForTests
steps = JsonlReader(sys.argv[2]), GrowForTests(), JsonlWriter(sys.argv[3], fields=["id"])
report = Pipeline(*steps).run(memory="9GB", workers=1)
print(report.kept, report.failed, report.memory["actions"]["restart"], *report.notes)
"""


def test_a_worker_that_the_kernel_kills_for_its_memory_costs_no_row(tmp_path, limited_cgroup):
    """The budget exceeds the limit of the container, so that no cap helps, and rows grow a hundredfold."""
    with (tmp_path / "in.jsonl").open("w") as file:
        for number in range(2000):
            file.write(json.dumps({"id": number, "text": "abcdefghij" * 1000}) + "\n")
    names = [str(limited_cgroup), str(tmp_path / "in.jsonl"), str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", OVER_THE_LIMIT, *names], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    kept, failed, restarts, *note = done.stdout.split()
    assert (int(kept), int(failed)) == (2000, 0)
    assert int(restarts) >= 2
    assert "there may not be enough memory: the budget is 9.0 GB" in " ".join(note)
