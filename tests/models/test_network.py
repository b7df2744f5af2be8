"""Loading weights safely and without copies, and running networks."""

import json
import pickle
import struct

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tamis.models.files import ModelError, find
from tamis.models.network import TorchNetwork, load_weights, map_safetensors, sequence_classifier, use_onednn
from tests.models.make_models import write_classifier, write_tokenizer


@pytest.fixture
def folder(tmp_path):
    return write_classifier(tmp_path / "model")


def test_tensors_equal_those_of_the_library_in_every_type(tmp_path):
    kinds = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]
    tensors = {str(kind): torch.arange(6).reshape(2, 3).to(kind) for kind in kinds}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.zeros((0, 3))}
    save_file(tensors, tmp_path / "a.safetensors")
    found = map_safetensors(tmp_path / "a.safetensors")
    assert found.keys() == tensors.keys()
    for name, expected in tensors.items():
        assert found[name].dtype == expected.dtype
        assert torch.equal(found[name], expected)


def test_weights_are_mapped_and_not_copied(folder):
    module = sequence_classifier(folder, find(folder).config)
    maps = [line.split() for line in open("/proc/self/maps") if str(folder) in line]  # noqa: PTH123, SIM115
    assert [rights for _, rights, *_ in maps] == ["r--s"], "read-only and shared"
    first, last = (int(address, 16) for address in maps[0][0].split("-"))
    assert all(first <= weight.data_ptr() < last for weight in module.parameters())


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it has 0 bytes"),
        (struct.pack("<Q", 10**9) + b"{}", "longer than the file"),
        (struct.pack("<Q", 2) + b"{!", "Expecting"),
        (struct.pack("<Q", 2) + b"[]", "no attribute"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, content, why):
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=why):
        map_safetensors(tmp_path / "a.safetensors")


@pytest.mark.parametrize("offsets", [[0, 400], [-4, 4], [0, 4], [8, 4]])
def test_tensors_outside_of_the_file_are_refused(tmp_path, offsets):
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": offsets}}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(ModelError, match="tensor a is not within the file"):
        map_safetensors(tmp_path / "a.safetensors")


def test_a_truncated_file_is_refused(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match="may be truncated"):
        sequence_classifier(folder, {})


class Harmful:
    def __reduce__(self):
        return (print, ("executed",))


def test_a_pytorch_file_is_loaded_only_if_it_contains_nothing_but_tensors(folder, capsys):
    tensors = load_weights((folder / "model.safetensors",))
    torch.save({name: value.clone() for name, value in tensors.items()}, folder / "pytorch_model.bin")
    expected = sequence_classifier(folder, {}).state_dict()
    (folder / "model.safetensors").unlink()
    found = sequence_classifier(folder, {}).state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Harmful()}))
    with pytest.raises(ModelError, match=r"cannot be loaded safely[\s\S]*use the model\.safetensors"):
        sequence_classifier(folder, {})
    torch.save({"a": Harmful()}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot be loaded safely"):
        sequence_classifier(folder, {})
    torch.save([torch.zeros(2)], folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="does not contain a table of tensors"):
        sequence_classifier(folder, {})
    assert "executed" not in capsys.readouterr().out


def test_code_in_a_model_folder_is_never_run(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "modeling_own.py").write_text("raise SystemExit('executed')")
    config |= {
        "model_type": "own",
        "auto_map": {"AutoConfig": "modeling_own.OwnConfig", "AutoModel": "modeling_own.Own"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"cannot be used[\s\S]*code in model folders is never run"):
        sequence_classifier(folder, {})


def test_weights_of_another_model_are_refused(folder, tmp_path):
    other = write_classifier(tmp_path / "other", num_hidden_layers=3)
    (folder / "config.json").write_bytes((other / "config.json").read_bytes())
    with pytest.raises(ModelError, match=r"lack bert\.encoder\.layer\.2|lack .*layer\.2"):
        sequence_classifier(folder, {})


def test_a_network_that_transformers_lacks_for_a_task_is_named(tmp_path):
    from transformers import CONFIG_MAPPING

    write_tokenizer(tmp_path)
    CONFIG_MAPPING["vit"]().save_pretrained(tmp_path)
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="no such network for model type vit"):
        sequence_classifier(tmp_path, {})


def test_padding_does_not_change_the_outputs(folder):
    network = TorchNetwork(sequence_classifier(folder, {}))
    ids = np.array([[2, 40, 41, 3]])
    alone = network.start(ids, np.array([4]))()
    padded = np.zeros((2, 9), np.int64)
    padded[0, :4] = ids
    padded[1] = 40
    together = network.start(padded, np.array([4, 9]))()
    np.testing.assert_allclose(together[:1], alone, atol=1e-6)
    assert network.vocabulary == find(folder).config["vocab_size"]


def test_linear_layers_of_onednn_give_the_same_outputs(folder):
    module = sequence_classifier(folder, {}).eval()
    ids, mask = torch.randint(5, 60, (3, 20)), torch.ones((3, 20), dtype=torch.long)
    with torch.inference_mode():
        expected = module(ids, mask)
        layers = sum(type(layer) is torch.nn.Linear for layer in module.modules())
        assert use_onednn(module) in (0, layers)
        torch.testing.assert_close(module(ids, mask), expected, atol=1e-5, rtol=1e-5)
