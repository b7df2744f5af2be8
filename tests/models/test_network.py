"""Loading weights safely and without copies, and running networks."""

import json
import pickle
import struct

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from tamis.models.encoders import encoder
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


def test_a_pointer_of_git_lfs_is_named(tmp_path):
    (tmp_path / "a.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 12345\n")
    with pytest.raises(ModelError, match=r"is a pointer of Git LFS, not the weights[\s\S]*git lfs pull"):
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
    with pytest.raises(ModelError, match="cannot be loaded safely: it contains more than tensors"):
        sequence_classifier(folder, {})
    torch.save([torch.zeros(2)], folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="does not contain a table of tensors"):
        sequence_classifier(folder, {})
    assert "executed" not in capsys.readouterr().out


def test_weights_that_do_not_fit_in_memory_are_not_taken_for_damaged(folder, monkeypatch):
    def no_memory(*args, **kwargs):
        raise MemoryError

    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    monkeypatch.setattr(torch, "load", no_memory)
    with pytest.raises(MemoryError):
        sequence_classifier(folder, {})


def test_code_in_a_model_folder_is_never_run(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "modeling_own.py").write_text("raise SystemExit('executed')")
    config |= {
        "model_type": "own",
        "auto_map": {"AutoConfig": "modeling_own.OwnConfig", "AutoModel": "modeling_own.Own"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"needs code of its own[\s\S]*code in model folders is never run"):
        sequence_classifier(folder, {})


def test_weights_of_another_model_are_refused(folder, tmp_path):
    other = write_classifier(tmp_path / "other", num_hidden_layers=3)
    (folder / "config.json").write_bytes((other / "config.json").read_bytes())
    with pytest.raises(ModelError, match=r"lack bert\.encoder\.layer\.2|lack .*layer\.2"):
        sequence_classifier(folder, {})


@pytest.mark.parametrize("architecture", ["bert", "deberta-v2"])
def test_a_pooler_may_be_missing_only_where_it_is_not_used(tmp_path, architecture):
    folder = write_classifier(tmp_path / "model", architecture)
    tensors = load_weights((folder / "model.safetensors",))
    rest = {name: value.clone() for name, value in tensors.items() if "pooler" not in name}
    assert len(rest) == len(tensors) - 2
    save_file(rest, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"lack .*pooler\.dense\.bias and 1 more"):
        sequence_classifier(folder, {})
    encoder(folder, {})


@pytest.mark.parametrize("names", [2, 5])
def test_labels_that_do_not_fit_the_outputs_are_named(folder, names):
    config = json.loads((folder / "config.json").read_text())
    config |= {"id2label": {str(number): f"label {number}" for number in range(names)}, "label2id": {}}
    (folder / "config.json").write_text(json.dumps(config))
    message = (
        rf"classifier\.bias has the shape \(3,\), not \({names},\)[\s\S]*name the 3 outputs .* it has {names} names"
    )
    with pytest.raises(ModelError, match=message):
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


SMALL = {
    "vocab_size": 60, "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "embedding_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "head_dim": 8, "d_kv": 8,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "d_ff": 48,
    "hidden_dim": 48, "d_inner": 48, "intra_bottleneck_size": 32, "true_hidden_size": 32, "max_position_embeddings": 64,
    "n_positions": 64, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""Names of sizes in configurations of transformers."""

OTHER = {"t5": {"decoder_start_token_id": 0}, "funnel": {"block_sizes": [1, 1], "d_head": 8}}


def write_network(folder, kind, table):
    """A small network of a type in a table of transformers, with random weights."""
    known = transformers.CONFIG_MAPPING[kind]().to_dict()
    sizes = {name: size for name, size in SMALL.items() if name in known}
    config = transformers.CONFIG_MAPPING[kind](**sizes, **OTHER.get(kind, {}))
    torch.manual_seed(1)
    made = getattr(transformers, table)[type(config)]
    network = (made[0] if isinstance(made, tuple) else made)(config)
    for weights in network.parameters():
        torch.nn.init.normal_(weights, std=0.3) if weights.dim() > 1 else None
    network.eval().save_pretrained(folder)
    return network


def outputs_of(network, texts):
    lengths = np.array([len(text) for text in texts])
    ids = np.zeros((len(texts), lengths.max()), np.int64)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = text
    return network.start(ids, lengths)()


TOKENS = [np.append(np.arange(5, 5 + count) % 55 + 3, 2) for count in (7, 30, 7, 3)]
"""The token ids of texts, each with the end-of-text token."""

CLASSIFIERS = {
    "roberta": "positions from the padding token",
    "distilbert": "no token types",
    "deberta-v2": "relative positions",
    "gpt2": "the last token, and no padding token",
    "llama": "the last token, rotary positions",
    "bart": "the end-of-text token, seen by a decoder",
    "t5": "the end-of-text token, relative positions",
    "xlnet": "the last position, padding on the left",
    "convbert": "convolutions",
    "fnet": "no mask",
    "mobilebert": "neighbouring tokens",
    "nystromformer": "means over parts of the text",
    "yoso": "random hashes",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CLASSIFIERS, ids=CLASSIFIERS.get)
def test_a_classifier_of_any_convention_gives_the_logits_of_each_text_alone(kind, tmp_path):
    reference = write_network(tmp_path, kind, "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING")
    with torch.inference_mode():
        expected = [reference(input_ids=torch.from_numpy(text[None])).logits[0].numpy() for text in TOKENS]
    found = outputs_of(TorchNetwork(sequence_classifier(tmp_path, {})), TOKENS)
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)


ENCODERS = {
    "mpnet": "positions from the padding token",
    "qwen3": "a decoder",
    "mbart": "a decoder that starts with the last token",
    "t5": "an encoder without its decoder",
    "funnel": "one of several networks",
    "xlnet": "padding on the left",
    "convbert": "convolutions",
    "fnet": "no mask",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ENCODERS, ids=ENCODERS.get)
def test_an_encoder_of_any_convention_gives_the_vector_of_each_text_alone(kind, tmp_path):
    write_network(tmp_path, kind, "MODEL_MAPPING")
    network = TorchNetwork(encoder(tmp_path, {}))
    alone = np.concatenate([outputs_of(network, [text]) for text in TOKENS])
    assert np.abs(alone - alone[0]).max(axis=1).argmax() > 0
    np.testing.assert_allclose(outputs_of(network, TOKENS), alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("padding", [-1, 100, None])
def test_an_encoder_may_have_no_padding_token_that_it_knows(padding, tmp_path):
    write_network(tmp_path, "gpt2", "MODEL_MAPPING")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"pad_token_id": padding}))
    network = TorchNetwork(encoder(tmp_path, {}))
    alone = np.concatenate([outputs_of(network, [text]) for text in TOKENS])
    np.testing.assert_allclose(outputs_of(network, TOKENS), alone, atol=1e-4, rtol=1e-4)


def test_linear_layers_of_onednn_give_the_same_outputs(folder):
    module = sequence_classifier(folder, {}).eval()
    ids, mask = torch.randint(5, 60, (3, 20)), torch.ones((3, 20), dtype=torch.long)
    with torch.inference_mode():
        expected = module(ids, mask)
        layers = sum(type(layer) is torch.nn.Linear for layer in module.modules())
        assert use_onednn(module) in (0, layers)
        torch.testing.assert_close(module(ids, mask), expected, atol=1e-5, rtol=1e-5)
