"""Places for workers on GPUs."""

import pytest

from tamis.errors import BudgetError, ParameterError
from tamis.memory import slots
from tamis.memory.gpu import GpuMemory
from tamis.memory.slots import CUDA_CONTEXT_BYTES, GpuDevice, GpuNeed, gpu_devices, gpu_slots
from tamis.models import devices

GB = 1_000_000_000
TWO = [GpuDevice("0", 20 * GB), GpuDevice("1", 20 * GB)]


def names(found):
    return [[slot.names for slot in each] for each in found]


def test_a_worker_has_a_gpu_to_itself():
    assert names(gpu_slots(TWO, [GpuNeed(1)], [8])) == [["0", "1"]]


def test_stages_without_a_gpu_get_no_slot():
    assert names(gpu_slots(TWO, [GpuNeed(), GpuNeed(1), GpuNeed()], [8, 8, 8])) == [[], ["0", "1"], []]


def test_fractions_share_a_gpu_and_divide_its_memory():
    (found,) = gpu_slots(TWO, [GpuNeed(0.5)], [8])
    assert sorted(slot.names for slot in found) == ["0", "0", "1", "1"]
    assert {slot.gpu_bytes for slot in found} == {10 * GB - CUDA_CONTEXT_BYTES}


def test_there_are_no_more_slots_than_workers():
    (found,) = gpu_slots(TWO[:1], [GpuNeed(0.25)], [2])
    assert [slot.gpu_bytes for slot in found] == [10 * GB - CUDA_CONTEXT_BYTES] * 2


def test_as_many_workers_share_a_gpu_as_fit_into_its_memory():
    (found,) = gpu_slots(TWO[:1], [GpuNeed(gpu_bytes=6 * GB)], [8])
    assert len(found) == 3  # 6.6 GB each, with the context
    assert sum(slot.gpu_bytes + CUDA_CONTEXT_BYTES for slot in found) <= 20 * GB
    assert all(slot.gpu_bytes >= 6 * GB for slot in found)


def test_a_fraction_that_does_not_fit_gets_fewer_workers():
    (found,) = gpu_slots(TWO[:1], [GpuNeed(0.25, 9 * GB)], [8])
    assert len(found) == 2


def test_several_stages_share_the_only_gpu():
    first, second = gpu_slots(TWO[:1], [GpuNeed(1, 5 * GB), GpuNeed(1)], [8, 8])
    assert names([first, second]) == [["0"], ["0"]]
    assert first[0].gpu_bytes == 5 * GB
    assert second[0].gpu_bytes == 15 * GB - 2 * CUDA_CONTEXT_BYTES


def test_several_stages_get_different_gpus():
    assert names(gpu_slots(TWO, [GpuNeed(1), GpuNeed(1)], [8, 8])) == [["0"], ["1"]]


def test_a_worker_can_have_several_gpus():
    assert names(gpu_slots(TWO, [GpuNeed(2)], [8])) == [["0,1"]]
    with pytest.raises(ParameterError, match="a worker needs 3 GPUs, and the run may use 2"):
        gpu_slots(TWO, [GpuNeed(3)], [8])


def test_too_little_memory_is_an_error_with_the_figures():
    with pytest.raises(BudgetError, match=r"needs 30\.6 GB of GPU memory.* 20\.0 GB of the 20\.0 GB"):
        gpu_slots(TWO, [GpuNeed(1, 30 * GB)], [1])


def test_a_gpu_of_unknown_size_has_no_limit():
    (found,) = gpu_slots([GpuDevice("0")], [GpuNeed(0.5)], [8])
    assert [slot.gpu_bytes for slot in found] == [None, None]
    (found,) = gpu_slots([GpuDevice("0")], [GpuNeed(gpu_bytes=GB)], [8])
    assert len(found) == 1


class TestDevices:
    @pytest.fixture(autouse=True)
    def machine(self, monkeypatch):
        found = (
            GpuMemory(0, "H200", 1 * GB, 21 * GB, uuid="GPU-aaa"),
            GpuMemory(1, "H200", 11 * GB, 21 * GB, uuid="GPU-bbb"),
        )
        monkeypatch.setattr("tamis.memory.gpu.find_reader", lambda: lambda: found)
        monkeypatch.setattr(devices, "visible_gpus", lambda: ["0", "GPU-bbb"])

    def test_the_default_is_most_of_what_is_free(self):
        assert gpu_devices() == (GpuDevice("0", 18 * GB), GpuDevice("GPU-bbb", 9 * GB))

    def test_the_budget_is_per_device_and_no_larger_than_it(self):
        assert [each.budget_bytes for each in gpu_devices("5GB")] == [5 * GB, 5 * GB]
        assert [each.budget_bytes for each in gpu_devices("500GB")] == [21 * GB, 21 * GB]

    def test_a_run_on_the_cpu_has_none(self):
        assert gpu_devices("5GB", "cpu") == ()
        assert slots.usable_gpus() == ["0", "GPU-bbb"]
