import json
import os
import subprocess
import sys

import pytest

from tamis.errors import ParameterError
from tamis.memory import commands
from tamis.memory.commands import largest_processes, memory_text, show_memory
from tamis.memory.gpu import GpuMemory, GpuShare
from tamis.memory.tree import ProcessMemory, Snapshot, SystemMemory


def test_the_tree_of_a_process_is_shown(child):
    pages = []
    show_memory(os.getpid(), print_result=pages.append)
    (page,) = pages
    assert page.startswith("machine    ")
    assert "tree       " in page
    assert any(line.split()[:2] == [str(os.getpid()), "driver"] for line in page.splitlines())
    assert any(line.split()[:1] == [str(child.pid)] for line in page.splitlines())


def test_without_a_process_the_largest_are_shown():
    pages = []
    show_memory(None, print_result=pages.append)
    assert "pid  name" in pages[0]
    sizes = [process.rss_bytes for process in largest_processes(3)]
    assert 1 <= len(sizes) <= 3


def test_json_is_one_object(child):
    pages = []
    show_memory(child.pid, as_json=True, print_result=pages.append)
    (page,) = pages
    found = json.loads(page)
    assert set(found) == {"time", "system", "processes", "held_bytes", "gpus"}
    (process,) = found["processes"]
    assert process["pid"] == child.pid
    assert process["held_bytes"] == found["held_bytes"] > 40_000_000


def test_watching_continues_until_the_process_ends(child):
    lines, waits = [], []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            child.kill()
            child.wait()

    show_memory(child.pid, as_json=True, watch_s=2.0, print_result=lines.append, wait=wait)
    assert waits == [2.0] * 3
    assert len(lines) == 3
    assert all(json.loads(line)["processes"] for line in lines)
    assert all("\n" not in line for line in lines)


@pytest.mark.parametrize("pid", [0, -1, 2**22 + 5])
def test_a_missing_process_is_an_error(pid):
    with pytest.raises(ParameterError, match=f"there is no process {pid}"):
        show_memory(pid, print_result=lambda text: None)


@pytest.mark.parametrize("watch_s", [0, -1.0])
def test_the_interval_must_be_positive(watch_s):
    with pytest.raises(ParameterError, match="`--watch` must be a positive number"):
        show_memory(None, watch_s=watch_s, print_result=lambda text: None)


def test_the_table_has_container_gpus_and_swap():
    gpus = (GpuMemory(0, "H200", 30_000_000_000, 150_000_000_000, (GpuShare(7, 20_000_000),)),)
    system = SystemMemory(16_000_000_000, 4_000_000_000, 75.0, 8_000_000_000, 2_000_000_000)
    process = ProcessMemory(7, "worker 0", 300_000_000, 200_000_000, 150_000_000, 400_000_000, 1_000_000)
    snapshot = Snapshot(0.0, 0.0, system, (process,), gpus)
    assert memory_text(snapshot, [process], tree=True).splitlines() == [
        "machine    16.0 GB, 4.0 GB available, 75 % in use",
        "container  8.0 GB, 2.0 GB counted, 25 %",
        "GPU 0      150 GB, 30.0 GB in use, 20 % (H200)",
        "tree       200 MB in 1 process",
        "",
        "pid  role        held  resident  private    peak    swap      gpu",
        "  7  worker 0  200 MB    300 MB   150 MB  400 MB  1.0 MB  20.0 MB",
    ]


def test_importing_the_module_imports_nothing_heavy():
    code = "import sys, tamis.memory.commands; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "pyarrow", "psutil", "rich"} & set(loaded)
    assert commands.LARGEST == 10
