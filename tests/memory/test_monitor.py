import os
import subprocess
import sys
import threading

import numpy as np
import pyarrow.parquet as pq
import pytest

from tamis.memory import tree
from tamis.memory.gpu import GpuMemory, GpuShare
from tamis.memory.monitor import MemoryMonitor, held_bytes, private_bytes, trend_of
from tamis.memory.tree import ProcessMemory, Snapshot, TreeReader, descendants, read_process, read_system

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MB = 1_000_000


class Clock:
    """Time that passes when told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def advance(self, seconds):
        self.now += seconds


def test_a_process_that_exited_holds_nothing(child):
    assert held_bytes(child.pid) > 40 * MB
    child.kill()
    child.wait()
    assert held_bytes(child.pid) == private_bytes(child.pid) == 0
    assert read_process(child.pid) is None
    assert descendants(child.pid) == []


def test_processes_that_were_there_before_a_run_are_not_counted_unless_they_have_a_role(child):
    read = TreeReader(os.getpid(), only_new=True)
    assert child.pid not in {process.pid for process in read.read()}
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'], stdin=sys.stdin)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as later:
        found = {process.pid for process in read.read()}
        later.communicate(b"\n")
    assert later.pid in found
    assert child.pid not in found
    assert child.pid in {process.pid for process in TreeReader(os.getpid(), only_new=True).read({child.pid: "server"})}
    assert child.pid in {process.pid for process in TreeReader(os.getpid()).read()}


def test_a_snapshot_has_the_machine_and_each_process_by_role(child):
    monitor = MemoryMonitor(roles=lambda: {child.pid: "worker 0"})
    shot = monitor.sample()
    by_role = {process.role: process for process in shot.processes}
    assert by_role["worker 0"].rss_bytes > 40 * MB
    assert by_role["worker 0"].peak_bytes >= by_role["worker 0"].rss_bytes
    assert shot.held_bytes == sum(process.held_bytes for process in shot.processes)
    assert 0 < shot.system.available_bytes < shot.system.total_bytes
    assert 0 <= shot.system.percent <= 100


@linux
def test_shared_pages_are_counted_by_their_share(child):
    process = read_process(child.pid)
    assert process.private_bytes <= process.pss_bytes <= process.rss_bytes
    assert process.held_bytes == process.pss_bytes


def test_without_roles_this_process_is_the_driver_and_others_go_by_their_name(child):
    first, *others = MemoryMonitor().sample().processes
    assert first.role == "driver"
    assert any(process.pid == child.pid and process.role.startswith("python") for process in others)


def test_a_process_that_ends_between_snapshots_is_no_error(child):
    monitor = MemoryMonitor(child.pid, roles=lambda: {child.pid: "worker", 2**22 + 5: "never there"})
    assert [process.role for process in monitor.sample().processes] == ["worker"]
    child.kill()
    child.wait()
    last = monitor.sample()
    assert last.processes == ()
    assert last.held_bytes == 0
    assert monitor.peak.held_bytes > 40 * MB


@linux
def test_a_process_that_ends_while_it_is_read_is_no_error(child, monkeypatch):
    def end_then_walk(pid):
        child.kill()
        child.wait()
        return real(pid)

    real = tree.walk
    monkeypatch.setattr(tree, "walk", end_then_walk)
    (process,) = TreeReader(child.pid).read()
    assert process.pss_bytes is None
    assert process.held_bytes == process.rss_bytes


@linux
def test_page_tables_are_walked_no_more_than_the_allowance_permits(child, monkeypatch):
    walks, clock, cpu = [], Clock(), Clock()

    def costly_walk(pid):
        walks.append(pid)
        cpu.now += 0.1
        return real(pid)

    real = tree.walk
    monkeypatch.setattr(tree, "walk", costly_walk)
    reader = TreeReader(child.pid, walk_share=0.01, clock=clock, cpu_clock=cpu)
    for _ in range(100):
        (process,) = reader.read()
        clock.now += 0.5
    assert process.pss_bytes > 40 * MB
    assert len(walks) == 5  # 0.1 s each, 50 s at 1 % allow for 0.5 s


@linux
def test_page_tables_that_were_walked_just_now_are_not_walked_again(monkeypatch):
    sizes = iter([100 * MB, 101 * MB, 120 * MB, 120 * MB])
    walks, clock = [], Clock()
    monkeypatch.setattr(tree, "_status", lambda pid: tree._Status("python", next(sizes), 0, 0))
    monkeypatch.setattr(tree, "walk", lambda pid: walks.append(clock.now) or tree.Walked(80 * MB, 70 * MB))
    monkeypatch.setattr(tree, "descendants", lambda pid, without: [])
    reader = TreeReader(1, clock=clock)
    reader.read(exact=True)
    (process,) = reader.read(exact=True)
    assert (process.pss_bytes, len(walks)) == (81 * MB, 1)
    reader.read(exact=True)  # the process has grown since
    clock.now += 1.0
    reader.read(exact=True)
    assert len(walks) == 3


@linux
def test_between_walks_what_changed_is_counted_as_the_process_s_own(monkeypatch):
    sizes = iter([100 * MB, 130 * MB, 60 * MB])
    monkeypatch.setattr(tree, "_status", lambda pid: tree._Status("python", next(sizes), 0, 0))
    monkeypatch.setattr(tree, "walk", lambda pid: tree.Walked(80 * MB, 70 * MB))
    monkeypatch.setattr(tree, "descendants", lambda pid, without: [])
    clock = Clock()
    reader = TreeReader(1, walk_share=0.0, clock=clock, cpu_clock=clock)
    held = [(process.pss_bytes, process.private_bytes) for _ in range(3) for process in reader.read()]
    assert held == [(80 * MB, 70 * MB), (110 * MB, 100 * MB), (40 * MB, 30 * MB)]


def test_where_the_kernel_tells_no_shares_the_resident_size_counts(child, monkeypatch):
    monkeypatch.setattr(tree.sys, "platform", "darwin")
    monkeypatch.setattr(tree, "_children", lambda pid: None)
    monkeypatch.setattr(tree, "walk", lambda pid: None)
    processes = {process.pid: process for process in MemoryMonitor().sample().processes}
    assert processes[child.pid].pss_bytes is None
    assert processes[child.pid].held_bytes == processes[child.pid].rss_bytes > 40 * MB


def test_grandchildren_belong_to_the_tree():
    inner = "import sys; print('here', flush=True); sys.stdin.read()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    with subprocess.Popen([sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert len(descendants(process.pid)) == 1
        process.stdin.close()


def test_the_monitor_watches_from_a_thread_until_the_block_ends():
    seen, enough = [], threading.Event()

    def note(shot):
        seen.append((shot, threading.current_thread().name))
        if len(seen) >= 4:
            enough.set()

    with MemoryMonitor(every_s=0.001, on_snapshot=note) as monitor:
        assert enough.wait(30)
    assert {name for _, name in seen} == {"MainThread", "tamis-memory"}
    assert [shot for shot, _ in seen] == monitor.snapshots
    assert not any(thread.name == "tamis-memory" for thread in threading.enumerate())


def test_the_last_snapshot_is_taken_at_the_end_of_the_block():
    with MemoryMonitor(every_s=1_000) as monitor:
        data = np.ones(50_000_000)
    assert len(monitor.snapshots) == 2
    assert monitor.peak is monitor.snapshots[-1]
    # What is shared with other processes counts by its share, and that changes as they come and go.
    assert monitor.peak.held_bytes - monitor.snapshots[0].held_bytes > 0.7 * data.nbytes


def test_what_a_subscriber_raises_is_raised_at_the_end_of_the_block():
    called = threading.Event()

    def break_in_the_thread(shot):
        if threading.current_thread() is not threading.main_thread():
            called.set()
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"), MemoryMonitor(every_s=0.001, on_snapshot=break_in_the_thread):
        assert called.wait(30)


def test_an_error_of_the_block_is_not_hidden_by_one_of_the_monitor():
    def break_at_the_end(shot):
        if shot.elapsed_s > 0.5:
            raise ValueError("no")

    clock, nothing = Clock(), {}
    with pytest.raises(KeyError), MemoryMonitor(every_s=1_000, on_snapshot=break_at_the_end, clock=clock):
        nothing[clock.advance(1.0)]


def test_old_snapshots_are_thinned_and_the_peak_is_kept():
    clock = Clock()
    monitor = MemoryMonitor(keep=16, clock=clock)
    for second in range(200):
        clock.now = float(second)
        monitor.sample()
    times = [shot.elapsed_s for shot in monitor.snapshots]
    assert len(times) <= 16
    assert times == sorted(times)
    assert times[0] == 0.0
    assert times[-8:] == [float(second) for second in range(192, 200)]
    assert set(np.diff(times[:-8])) == {32.0}
    assert monitor.peak is not None


def test_thinning_is_the_same_every_time():
    def times():
        clock = Clock()
        monitor = MemoryMonitor(keep=8, clock=clock)
        for second in range(50):
            clock.now = float(second)
            monitor.sample()
        return [shot.elapsed_s for shot in monitor.snapshots]

    assert times() == times()


def test_the_file_has_one_row_per_snapshot_and_process(tmp_path, child):
    path = tmp_path / "deep" / "memory.parquet"
    roles = {child.pid: "worker 0"}
    with MemoryMonitor(child.pid, every_s=1_000, path=path, roles=lambda: roles) as monitor:
        monitor.sample()
    table = pq.read_table(path)
    assert table.num_rows == 3
    assert table.column("role").to_pylist() == ["worker 0"] * 3
    assert min(table.column("held_bytes").to_pylist()) > 40 * MB
    assert table.column("tree_bytes").to_pylist() == table.column("held_bytes").to_pylist()
    assert [file.name for file in path.parent.iterdir()] == ["memory.parquet"]


def test_the_file_is_written_now_and_then_while_the_block_runs(tmp_path):
    path, clock, written = tmp_path / "memory.parquet", Clock(), threading.Event()

    def note(shot):
        if path.exists():
            written.set()
        clock.now += 10.0

    with MemoryMonitor(every_s=0.001, path=path, on_snapshot=note, flush_every_s=25, clock=clock):
        assert written.wait(30)
        assert pq.read_table(path).num_rows > 0


def test_a_file_that_cannot_be_written_is_a_problem_and_not_an_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with MemoryMonitor(every_s=1_000, path=tmp_path / "file" / "memory.parquet") as monitor:
        pass
    (problem,) = monitor.problems
    assert problem.startswith("cannot write")


def test_the_trend_is_where_the_memory_goes(child):
    clock = Clock()
    monitor = MemoryMonitor(child.pid, clock=clock)
    assert monitor.trend() is None
    for second in range(20):
        clock.now = float(second)
        monitor.sample()
    assert abs(monitor.trend().slope) < MB
    assert monitor.trend(last_s=2.0) is None


def test_a_trend_is_taken_from_the_last_seconds_and_from_not_too_many_snapshots():
    system = read_system()
    shots = [
        Snapshot(0.0, float(at), system, (ProcessMemory(1, "driver", max(0, at - 500) * MB),)) for at in range(1_000)
    ]
    trend = trend_of(shots, lambda shot: shot.held_bytes, last_s=400)
    assert trend.slope == pytest.approx(MB)
    assert trend.level == pytest.approx(499 * MB)
    assert trend.steady


def test_gpus_are_in_the_snapshot_and_in_the_file_with_what_workers_say_of_them():
    def gpus():
        return (GpuMemory(0, "H200", 30, 100, (GpuShare(7, 20),)),)

    monitor = MemoryMonitor(gpus=gpus)
    monitor.hear(7, {0: GpuShare(7, None, 15, 10, {"weights": 8})})
    (gpu,) = monitor.sample().gpus
    assert gpu.shares == (GpuShare(7, 20, 15, 10, {"weights": 8}),)
    (row,) = [row for row in monitor.table().to_pylist() if row["role"] == "driver"]
    assert row["gpus"] == [
        {
            "index": 0,
            "used_bytes": 30,
            "total_bytes": 100,
            "reserved_bytes": 15,
            "allocated_bytes": 10,
            "owners": [{"owner": "weights", "bytes": 8}],
        }
    ]


def test_the_system_is_read():
    system = read_system()
    assert system.total_bytes > system.available_bytes > 0
    if system.limit_bytes is not None:
        assert 0 <= system.limited_bytes <= system.limit_bytes
