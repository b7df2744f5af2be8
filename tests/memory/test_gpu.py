import os
import sys
from types import SimpleNamespace

import pytest

from tamis.memory import gpu
from tamis.memory.alerts import AlertRules, Thresholds
from tamis.memory.gpu import (
    MIB,
    GpuMemory,
    GpuShare,
    NvmlReader,
    SmiReader,
    find_reader,
    own_shares,
    parse_smi,
    read_torch,
    with_shares,
)
from tamis.memory.monitor import MemoryMonitor
from tamis.models import gpu_owners
from tamis.models.gpu_owners import add_owned, forget_owners, owner

GPUS = """\
0, GPU-aaa, NVIDIA H200, 1024, 143771
1, GPU-bbb, NVIDIA H200, [N/A], 143771
2, GPU-ccc, "Odd, name", 2, 10
"""
PROCESSES = """\
GPU-aaa, 41, 512
GPU-aaa, 42, [N/A]
GPU-ccc, 43, 1
"""


class Torch:
    """As much of torch as is looked at: two devices, and memory that a test sets."""

    def __init__(self, uuids=("", "")):
        self.uuids, self.allocated, self.peak = uuids, [0, 0], [0, 0]
        self.opened = True
        self.cuda = SimpleNamespace(
            is_initialized=lambda: self.opened,
            device_count=lambda: 2,
            memory_allocated=lambda device: self.allocated[device],
            memory_reserved=lambda device: 2 * self.allocated[device],
            max_memory_allocated=lambda device: self.peak[device],
            reset_peak_memory_stats=lambda device: self.peak.__setitem__(device, self.allocated[device]),
            mem_get_info=lambda device: (60, 100),
            get_device_name=lambda device: "H200",
            get_device_properties=lambda device: SimpleNamespace(uuid=self.uuids[device]),
        )

    def take(self, num_bytes, device=0):
        self.allocated[device] += num_bytes
        self.peak[device] = max(self.peak[device], self.allocated[device])


@pytest.fixture
def torch(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    torch = Torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    forget_owners()
    yield torch
    forget_owners()


@pytest.fixture
def no_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    forget_owners()
    yield
    forget_owners()


def test_what_nvidia_smi_says_is_understood():
    first, third = parse_smi(GPUS, PROCESSES)
    assert first == GpuMemory(
        0, "NVIDIA H200", 1024 * MIB, 143771 * MIB, (GpuShare(41, 512 * MIB), GpuShare(42, None)), "GPU-aaa"
    )
    assert (third.index, third.name, third.shares) == (2, "Odd, name", (GpuShare(43, MIB),))
    assert third.percent == 20.0
    assert parse_smi("No devices were found\n", "") == ()


def test_nvidia_smi_is_asked_again_only_after_a_while(tmp_path):
    command, calls, now = tmp_path / "nvidia-smi", tmp_path / "calls", [0.0]
    command.write_text(
        f"#!/bin/sh\necho x >> {calls}\n"
        'case "$1" in --query-gpu*) echo "0, GPU-aaa, H200, 1, 2";; *) echo "GPU-aaa, 7, 1";; esac\n'
    )
    command.chmod(0o755)
    reader = SmiReader(str(command), every_s=5.0, clock=lambda: now[0])
    assert reader() == reader() == (GpuMemory(0, "H200", MIB, 2 * MIB, (GpuShare(7, MIB),), "GPU-aaa"),)
    assert len(calls.read_text().split()) == 2
    now[0] = 6.0
    reader()
    assert len(calls.read_text().split()) == 4


def test_a_broken_nvidia_smi_means_no_gpus(tmp_path):
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed' >&2\nexit 9\n")
    command.chmod(0o755)
    assert SmiReader(str(command))() == ()
    assert SmiReader(str(tmp_path / "missing"))() == ()


def test_the_driver_s_library_is_read():
    class NVMLError(Exception):
        pass

    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=30, total=100),
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [SimpleNamespace(pid=7, usedGpuMemory=20)],
        nvmlDeviceGetName=lambda handle: b"H200",
        nvmlDeviceGetUUID=lambda handle: "GPU-aaa",
    )
    assert NvmlReader(nvml)() == (GpuMemory(0, "H200", 30, 100, (GpuShare(7, 20),), "GPU-aaa"),)

    def gone():
        raise NVMLError

    nvml.nvmlDeviceGetCount = gone
    assert NvmlReader(nvml)() == ()


def test_without_anything_to_ask_there_are_no_gpus(monkeypatch, no_torch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", "")
    assert find_reader()() == ()
    assert own_shares() == {}
    assert "torch" not in sys.modules


def test_torch_is_asked_only_when_it_has_opened_a_device(torch):
    torch.opened = False
    assert read_torch() == ()
    assert own_shares() == {}
    torch.opened = True
    assert [(each.index, each.used_bytes, each.total_bytes) for each in read_torch()] == [(0, 40, 100), (1, 40, 100)]


def test_this_process_knows_what_it_reserved_and_allocated(torch):
    torch.take(10, device=1)
    share = own_shares()[1]
    assert (share.pid, share.reserved_bytes, share.allocated_bytes) == (os.getpid(), 20, 10)


def test_owners_have_what_was_allocated_in_their_block(torch):
    with owner("weights"):
        torch.take(100)
        torch.take(40, device=1)
    with owner("buffers"):
        torch.take(7)
    assert own_shares()[0].owners == {"buffers": 7, "weights": 100}
    assert own_shares()[1].owners == {"weights": 40}
    with owner("weights"):
        torch.take(-100)
    assert own_shares()[0].owners == {"buffers": 7}


def test_an_inner_owner_takes_its_part_from_the_outer(torch):
    with owner("model"):
        torch.take(10)
        with owner("weights"):
            torch.take(30)
        torch.take(1)
    assert own_shares()[0].owners == {"model": 11, "weights": 30}


def test_what_passes_is_counted_at_its_highest(torch):
    for size in (50, 20):
        with owner("activations", passing=True):
            torch.take(size)
            torch.take(-size)
    assert own_shares()[0].owners == {"activations": 50}


def test_an_owner_is_accounted_even_when_the_block_fails(torch):
    with pytest.raises(MemoryError), owner("weights"):
        torch.take(5) or (_ for _ in ()).throw(MemoryError)
    with pytest.raises(MemoryError), owner("weights"):
        raise MemoryError
    assert gpu_owners._open.stack == []


def test_without_torch_an_owner_does_nothing_and_other_memory_can_be_noted(no_torch):
    with owner("weights"):
        pass
    assert own_shares() == {}
    add_owned("buffers", 64)
    assert own_shares()[0].owners == {"buffers": 64}
    add_owned("buffers", -64)
    assert own_shares() == {}


def test_devices_are_numbered_as_the_driver_does(torch, monkeypatch):
    torch.take(1, device=0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 3")
    assert set(own_shares()) == {5, 3}
    torch.uuids = ("bbb", "aaa")
    known = (GpuMemory(0, "H200", 0, 1, (), "GPU-aaa"), GpuMemory(1, "H200", 0, 1, (), "GPU-bbb"))
    assert own_shares(known)[1].allocated_bytes == 1


def test_what_processes_say_stands_beside_what_the_driver_says():
    gpus = (GpuMemory(0, "H200", 30, 100, (GpuShare(1, 20), GpuShare(2, 5))),)
    told = [{0: GpuShare(1, None, 15, 10, {"weights": 8})}, {0: GpuShare(9, None, 3, 3)}, {4: GpuShare(1)}]
    (merged,) = with_shares(gpus, told)
    assert merged.shares == (GpuShare(1, 20, 15, 10, {"weights": 8}), GpuShare(2, 5), GpuShare(9, None, 3, 3))


# ------------------------------------------------------------------------------------------------------- with a real GPU


def real_torch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    forget_owners()
    return torch


@pytest.mark.gpu
def test_weights_activations_and_buffers_are_measured_separately_on_a_gpu():
    torch = real_torch()
    with owner("weights"):
        model = torch.nn.Linear(4096, 4096, bias=False).cuda()
    with owner("buffers"):
        buffer = torch.zeros(10_000_000, dtype=torch.uint8, device="cuda")
    with owner("activations", passing=True), torch.no_grad():
        model(torch.ones(1024, 4096, device="cuda"))
    (share,) = own_shares().values()
    assert share.owners["weights"] == 4096 * 4096 * 4
    assert 10_000_000 <= share.owners["buffers"] < 10_100_000
    assert share.owners["activations"] >= 2 * 1024 * 4096 * 4
    assert share.reserved_bytes >= share.allocated_bytes >= share.owners["weights"] + share.owners["buffers"]
    del model, buffer


@pytest.mark.gpu
def test_the_monitor_sees_a_gpu_fill_and_the_alert_goes_off():
    torch = real_torch()
    alerts = []
    rules = AlertRules(Thresholds(gpu_percent=1), budget_bytes=10**12)
    with MemoryMonitor(every_s=0.05, on_snapshot=lambda shot: alerts.extend(rules.check(shot))) as monitor:
        before = monitor.sample().gpus[0]
        held = torch.zeros(before.total_bytes // 50, dtype=torch.uint8, device="cuda")
        after = monitor.sample().gpus[0]
    assert after.used_bytes - before.used_bytes >= 0.9 * held.numel()
    assert [alert.kind for alert in alerts if "gpu" in alert.kind]
    assert monitor.table().column("gpu_bytes").to_numpy().max() >= held.numel()
    del held
    torch.cuda.empty_cache()


def test_what_a_process_holds_is_published_for_others(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu.tempfile, "gettempdir", lambda: str(tmp_path))
    share = GpuShare(os.getpid(), None, 300, 200, {"weights": 100})
    gpu.publish_shares({1: share})
    (tmp_path / f"tamis-gpus-{os.getuid()}" / "999999999.json").write_text("{}")  # of a process that was killed
    assert gpu.published_shares() == {os.getpid(): {1: share}}
    gpu.publish_shares({})
    assert gpu.published_shares() == {}


def test_owners_are_distinguished_from_other_processes():
    shares = (GpuShare(1, 600, owners={"weights": 500}), GpuShare(2, None, 100, 50, {"kernels": 30}), GpuShare(3, 200))
    memory = GpuMemory(0, "H200", 1000, 10_000, shares)
    assert memory.held_by({1, 2}) == 700
    assert memory.owners() == {"weights": 500, "kernels": 30}
    peak = gpu.GpuPeak(0)
    peak.note(memory, {1, 2})
    peak.note(GpuMemory(0, "H200", 10, 10_000), {1, 2})
    assert (peak.used_bytes, peak.own_bytes, peak.other_bytes) == (1000, 700, 300)


def test_an_alert_names_other_processes_that_fill_a_gpu():
    rules = AlertRules(Thresholds(budget_percent=None, machine_percent=None, time_to_exhaustion_s=None))
    shares = (GpuShare(os.getpid(), 100), GpuShare(7, 850))
    with MemoryMonitor(gpus=lambda: (GpuMemory(0, "H200", 950, 1000, shares),)) as monitor:
        (alert,) = rules.check(monitor.sample())
    assert alert.message == "GPU 0 (H200) uses 95 % of its 1.0 kB, 850 B of it for other processes"
