"""Which device a step runs on."""

import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest

from tamis.errors import ParameterError
from tamis.models import devices


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with device files for some GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def made(*names: str):
        (tmp_path / "dev").mkdir()
        for name in names:
            (tmp_path / "dev" / name).touch()
        return tmp_path

    return made


def test_gpus_are_counted_by_device_files(machine):
    root = machine("null", "nvidiactl", "nvidia-uvm", "nvidia0", "nvidia3", "nvidia-caps")
    assert devices.visible_gpus(root) == ["0", "1"]


def test_a_machine_without_device_files_has_no_gpu(machine, monkeypatch):
    root = machine("null")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert devices.visible_gpus(root) == []


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("", []),
        ("-1", []),
        ("1", ["1"]),
        (" 1 , 0 ", ["1", "0"]),
        ("0,7,1", ["0"]),  # CUDA stops at the first name that does not exist
        ("GPU-8f2a,MIG-77", ["GPU-8f2a", "MIG-77"]),
        ("NoDevFiles", []),
    ],
)
def test_the_variable_chooses_among_them(machine, monkeypatch, chosen, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert devices.visible_gpus(machine("nvidia0", "nvidia1")) == expected


def test_auto_is_the_cpu_without_a_gpu_and_gpu_is_an_error(monkeypatch):
    monkeypatch.setattr(devices, "visible_gpus", list)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert devices.choose("auto") == devices.choose("cpu") == "cpu"
    with pytest.raises(ParameterError, match="no GPU") as caught:
        devices.choose("gpu")
    assert caught.value.hint is not None


def test_a_library_without_cuda_is_not_used_on_a_gpu(monkeypatch):
    monkeypatch.setattr(devices, "visible_gpus", lambda: ["0"])
    monkeypatch.setattr(devices, "torch_has_cuda", lambda: False)
    assert devices.choose("auto") == "cpu"
    assert devices.choose("auto", library=None) == "gpu"
    with pytest.raises(ParameterError, match="PyTorch cannot use the GPU"):
        devices.choose("gpu")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cuda: Optional[str] = '12.8'\n", True),
        ("cuda: Optional[str] = None\nhip = '1'\n", False),
        ("cuda = '13.0'\n", True),
    ],
)
def test_the_version_file_of_pytorch_says_whether_it_has_cuda(tmp_path, monkeypatch, text, expected):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "version.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(devices.sys.modules, "torch", raising=False)
    devices.torch_has_cuda.cache_clear()
    try:
        assert devices.torch_has_cuda() is expected
    finally:
        devices.torch_has_cuda.cache_clear()


class Libraries:
    """As much of PyTorch, CuPy and RMM as limits their memory."""

    def __init__(self):
        self.fractions, self.limits, self.allocators, self.freed = {}, [], [], 0
        cuda = SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: 2,
            get_device_properties=lambda device: SimpleNamespace(total_memory=1000),
            set_per_process_memory_fraction=lambda share, device: self.fractions.__setitem__(device, share),
            caching_allocator_alloc=lambda size, device, stream: 4096 + size,
            caching_allocator_delete=lambda pointer: None,
            current_device=lambda: 0,
            OutOfMemoryError=MemoryError,
        )
        self.torch = SimpleNamespace(__version__="2", version=SimpleNamespace(cuda="13"), cuda=cuda)
        pool = SimpleNamespace(free_all_blocks=self._free, set_limit=lambda size: self.limits.append(size))
        self.cupy = SimpleNamespace(
            __version__="14",
            get_default_memory_pool=lambda: pool,
            cuda=SimpleNamespace(
                set_allocator=self.allocators.append,
                get_current_stream=lambda: SimpleNamespace(ptr=0),
                PythonFunctionAllocator=lambda malloc, free: SimpleNamespace(malloc=malloc),
            ),
        )
        self.resources = [None]
        self.rmm = SimpleNamespace(
            __version__="26",
            mr=SimpleNamespace(
                CudaMemoryResource=SimpleNamespace,
                PoolMemoryResource=type(
                    "Pool", (), {"__init__": lambda self, upstream, **sizes: vars(self).update(sizes)}
                ),
                CallbackMemoryResource=type(
                    "Callback", (), {"__init__": lambda self, take, free: vars(self).update(take=take)}
                ),
                get_current_device_resource=lambda: self.resources[-1],
                set_current_device_resource=self.resources.append,
            ),
        )

    def _free(self):
        self.freed += 1


@pytest.fixture
def libraries(monkeypatch):
    found = Libraries()

    def load(*names):
        for name in ("torch", "cupy", "rmm"):
            monkeypatch.delitem(devices.sys.modules, name, raising=False)
        for name in names:
            monkeypatch.setitem(devices.sys.modules, name, getattr(found, name))
        if "rmm" in names:
            module = SimpleNamespace(rmm_cupy_allocator="allocator of RMM")
            monkeypatch.setitem(devices.sys.modules, "rmm.allocators", SimpleNamespace(cupy=module))
            monkeypatch.setitem(devices.sys.modules, "rmm.allocators.cupy", module)
        return found

    return load


def test_each_library_is_held_to_the_share(libraries):
    found = libraries("torch")
    devices.keep_to_share(250)
    assert found.fractions == {0: 0.25, 1: 0.25}
    found = libraries("cupy")
    devices.keep_to_share(250)
    assert found.limits == [250]
    assert found.allocators == []


def test_both_libraries_use_one_pool(libraries):
    found = libraries("torch", "cupy")
    devices.keep_to_share(250)
    (allocate,) = found.allocators
    assert allocate(10, 0) == 4106
    assert found.freed == 1, "what CuPy kept before is returned"
    assert found.limits == []


def test_rmm_takes_its_memory_from_pytorch(libraries):
    found = libraries("torch", "rmm")
    for _ in range(2):
        devices.keep_to_share(250)
    _, resource = found.resources
    assert resource.take(10, SimpleNamespace(__cuda_stream__=lambda: (0, 7))) == 4106


def test_without_pytorch_rmm_has_a_pool_of_the_share_and_cupy_uses_it(libraries):
    found = libraries("cupy", "rmm")
    for _ in range(2):
        devices.keep_to_share(1000)
    _, pool = found.resources
    assert vars(pool) == {"initial_pool_size": 0, "maximum_pool_size": 768}
    assert found.allocators == ["allocator of RMM"] * 2


def test_no_library_is_imported_for_it(libraries):
    libraries()
    devices.keep_to_share(250)
    devices.release_cached()
    assert not {"torch", "cupy", "rmm"} & set(devices.sys.modules)


def test_a_process_sees_the_devices_that_it_was_assigned(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(devices, "_assigned", devices.Assigned())
    assert devices.assign("1", 100) == devices.assigned() == devices.Assigned("cuda:0", 100)
    assert devices.os.environ["CUDA_VISIBLE_DEVICES"] == "1"
    assert devices.assign(None).device == "cpu"
    assert devices.os.environ["CUDA_VISIBLE_DEVICES"] == "-1"


def in_a_new_process(code):
    """Allocators cannot be exchanged once they are in use, so each test has a process of its own."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
def test_pytorch_cupy_and_rmm_share_one_limited_pool_on_a_gpu():
    pytest.importorskip("rmm")
    in_a_new_process(
        """
        import cupy, rmm, torch
        from tamis.models import devices

        devices.keep_to_share(2_000_000_000)
        buffer = rmm.DeviceBuffer(size=700_000_000)
        array = cupy.ones(50_000_000)
        tensor = torch.ones(50_000_000, dtype=torch.float64, device="cuda")
        held = 700_000_000 + array.nbytes + tensor.nbytes
        assert held <= torch.cuda.memory_allocated() <= torch.cuda.memory_reserved() <= 2_000_000_000
        for allocate in (
            lambda: rmm.DeviceBuffer(size=1_000_000_000),
            lambda: cupy.ones(125_000_000),
            lambda: torch.ones(125_000_000, dtype=torch.float64, device="cuda"),
        ):
            try:
                allocate()
            except (MemoryError, torch.cuda.OutOfMemoryError):
                continue
            raise AssertionError("more than the share")
        assert float(array.sum()) == float(tensor.sum()) == 50_000_000
        del buffer
        rmm.DeviceBuffer(size=1_000_000_000)  # in what was released
        """
    )


@pytest.mark.gpu
def test_without_pytorch_cupy_and_rmm_share_one_limited_pool_on_a_gpu():
    pytest.importorskip("rmm")
    in_a_new_process(
        """
        import sys
        import cupy, rmm
        from tamis.models import devices

        devices.keep_to_share(1_000_000_000)
        buffer = rmm.DeviceBuffer(size=500_000_000)
        array = cupy.ones(25_000_000)
        for allocate in (lambda: rmm.DeviceBuffer(size=500_000_000), lambda: cupy.ones(62_500_000)):
            try:
                allocate()
            except MemoryError:
                continue
            raise AssertionError("more than the share")
        assert float(array.sum()) == 25_000_000
        del buffer
        rmm.DeviceBuffer(size=600_000_000)
        assert "torch" not in sys.modules
        """
    )
