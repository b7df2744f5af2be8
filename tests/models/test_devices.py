"""Which device a step runs on."""

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
