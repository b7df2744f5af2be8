"""Networks of published classifiers: the same numbers as transformers' own modules, and strict loading."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tamis.models import architectures
from tamis.models.files import ModelError
from tests.models.make_networks import (
    QUALITY,
    TARGETS,
    put_in_cache,
    write_adapter,
    write_backbone,
    write_first_token_head,
    write_guard,
    write_llama,
    write_pooled_heads,
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    write_backbone(tmp_path / "hub")
    return tmp_path / "hub"


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def tokens(vocabulary, lengths=(9, 4, 1, 17), seed=0):
    """Random ids, padded on the right, and their mask."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, vocabulary, (len(lengths), max(lengths)), generator=generator)
    mask = (torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]).long()
    return ids * mask, mask


def run(network, ids, mask):
    with torch.inference_mode():
        return network(ids, mask)


class TestEncoders:
    def test_the_head_of_the_first_token_gives_the_logits_of_transformers(self, cache):
        folder = put_in_cache(cache, "nvidia/quality-classifier-deberta")
        backbone = write_first_token_head(folder, QUALITY)
        ids, mask = tokens(backbone.config.vocab_size)
        found = run(architectures.build(folder, config_of(folder)), ids, mask)
        weights = load_file(folder / "model.safetensors")
        with torch.inference_mode():
            states = backbone(input_ids=ids, attention_mask=mask).last_hidden_state
            expected = states[:, 0] @ weights["fc.weight"].T + weights["fc.bias"]
        assert found.shape == (4, 3)
        assert expected.std() > 0.1
        torch.testing.assert_close(found, expected)

    def test_mean_pooled_heads_give_the_logits_of_transformers(self, cache, tmp_path):
        backbone = write_pooled_heads(tmp_path / "m")
        ids, mask = tokens(backbone.config.vocab_size)
        found = run(architectures.build(tmp_path / "m", config_of(tmp_path / "m")), ids, mask)
        weights = load_file(tmp_path / "m" / "model.safetensors")
        expected = []
        with torch.inference_mode():
            for row in range(len(ids)):  # each text alone, so without padding
                length = int(mask[row].sum())
                states = backbone(input_ids=ids[row : row + 1, :length]).last_hidden_state[0]
                heads = range(len(TARGETS))
                expected.append(
                    torch.cat(
                        [weights[f"head_{n}.fc.weight"] @ states.mean(0) + weights[f"head_{n}.fc.bias"] for n in heads]
                    )
                )
        torch.testing.assert_close(found, torch.stack(expected), atol=1e-4, rtol=1e-4)
        assert found.shape == (4, sum(TARGETS.values()))

    def test_the_sizes_of_published_backbones_are_known(self, tmp_path, monkeypatch):
        """The published folders name a backbone and not its sizes; 184 million weights in 768 dimensions."""
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty"))
        with torch.device("meta"):
            network = architectures.FirstTokenHead(
                architectures._backbone(tmp_path, {"base_model": "microsoft/deberta-v3-base"}), 3
            )
        assert sum(value.numel() for value in network.parameters()) == 183_833_859
        names = dict(network.state_dict())
        assert names["model.encoder.rel_embeddings.weight"].shape == (512, 768)
        assert "model.encoder.layer.11.attention.self.query_proj.weight" in names

    def test_an_unknown_backbone_is_an_error_that_names_its_file(self, cache, tmp_path):
        write_first_token_head(tmp_path / "m", QUALITY, base="someone/other")
        with pytest.raises(ModelError, match="someone/other") as caught:
            architectures.build(tmp_path / "m", config_of(tmp_path / "m"))
        assert "config.json" in str(caught.value.hint)

    def test_a_folder_may_give_the_sizes_itself(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty"))
        backbone = write_first_token_head(tmp_path / "m", QUALITY, base="someone/other", sizes=True)
        ids, mask = tokens(backbone.config.vocab_size)
        assert run(architectures.build(tmp_path / "m", config_of(tmp_path / "m")), ids, mask).shape == (4, 3)


class TestStrictLoading:
    @pytest.fixture
    def folder(self, cache, tmp_path):
        write_first_token_head(tmp_path / "m", QUALITY)
        return tmp_path / "m"

    def change(self, folder, change):
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors")

    def test_missing_and_unexpected_weights_are_listed(self, folder):
        self.change(folder, lambda weights: weights.update({"classifier.weight": weights.pop("fc.weight")}))
        with pytest.raises(ModelError, match=r"missing: fc\.weight; not expected: classifier\.weight"):
            architectures.build(folder, config_of(folder))

    def test_stored_positions_are_ignored(self, folder):
        self.change(folder, lambda weights: weights.update({"model.embeddings.position_ids": torch.arange(64)[None]}))
        architectures.build(folder, config_of(folder))

    def test_more_labels_than_outputs(self, folder):
        config = config_of(folder)
        config["id2label"]["3"] = "Perfect"
        with pytest.raises(ModelError, match=r"fc\.weight has the shape \(3, 32\).*asks for \(4, 32\)"):
            architectures.build(folder, config)

    def test_half_a_file(self, folder):
        data = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
        with pytest.raises(ModelError, match="damaged"):
            architectures.build(folder, config_of(folder))

    def test_no_weights(self, folder):
        (folder / "model.safetensors").unlink()
        with pytest.raises(ModelError, match=r"there is no model\.safetensors"):
            architectures.build(folder, config_of(folder))

    def test_another_kind_of_model(self, folder):
        with pytest.raises(ModelError, match="none of the networks"):
            architectures.build(folder, {"model_type": "bert"})


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folder of an Aegis, and its base model."""
    root = tmp_path_factory.mktemp("aegis")
    model = write_llama(root / "base")
    write_adapter(root / "adapter", model)
    return root, model


class TestAegis:
    def merged(self, root, model):
        """The expected model: each adapted layer as a function, without merging weights."""
        weights = load_file(root / "adapter" / "adapter_model.safetensors")
        hooks = []
        for name, layer in model.named_modules():
            key = f"base_model.model.{name}.lora_A.weight"
            if key in weights:
                first, second = weights[key], weights[key.replace("lora_A", "lora_B")]
                hooks.append(
                    layer.register_forward_hook(
                        lambda _, inputs, output, a=first, b=second: output + 4.0 * (inputs[0] @ a.T) @ b.T
                    )
                )
        assert len(hooks) == 4
        return hooks

    def test_merging_an_adapter_equals_running_it_beside_the_model(self, folders):
        root, model = folders
        merged = architectures._with_adapter(root / "base", root / "adapter")
        ids, mask = tokens(model.config.vocab_size, (6, 6))
        with torch.inference_mode():
            plain = model(ids, attention_mask=mask).logits
            hooks = self.merged(root, model)
            expected = model(ids, attention_mask=mask).logits
            [hook.remove() for hook in hooks]
            found = merged(ids, attention_mask=mask).logits
        assert (plain - expected).abs().max() > 0.1
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)

    def test_it_generates_what_transformers_generates(self, folders):
        root, model = folders
        network = architectures.build_aegis(root / "base", root / "adapter", max_new_tokens=12)
        ids, mask = tokens(model.config.vocab_size, (9, 4, 1, 17, 11, 2, 5, 8), seed=2)
        found = run(network, ids, mask).long().tolist()
        hooks = self.merged(root, model)
        for row, answer in enumerate(found):
            length = int(mask[row].sum())
            with torch.inference_mode():
                whole = model.generate(ids[row : row + 1, :length], max_new_tokens=12, do_sample=False, pad_token_id=0)
            expected = [token for token in whole[0, length:].tolist() if token != 2]
            assert [token for token in answer if token >= 0] == expected
        [hook.remove() for hook in hooks]
        assert len({tuple(answer) for answer in found}) > 1

    def test_an_answer_ends_with_the_end_of_text(self, folders):
        root, model = folders
        network = architectures.build_aegis(root / "base", root / "adapter", max_new_tokens=6)
        ids, mask = tokens(model.config.vocab_size, (9, 4))
        free = run(network, ids, mask).long().tolist()
        network._ends = [free[1][0]]
        cut = run(network, ids, mask).long().tolist()
        end = free[0].index(free[1][0]) if free[1][0] in free[0] else 6
        assert cut == [free[0][:end] + [-1] * (6 - end), [-1] * 6]

    def test_a_logit_that_is_not_a_number_marks_its_row(self, folders):
        root, model = folders
        network = architectures.build_aegis(root / "base", root / "adapter", max_new_tokens=3)
        ids, mask = tokens(model.config.vocab_size, (4, 4))
        with torch.no_grad():
            network.language_model.model.embed_tokens.weight[ids[1, 2]] = torch.nan
        assert torch.isnan(run(network, ids, mask)).all(1).tolist() == [False, True]

    def test_data_guard_reads_the_last_state_of_the_last_token(self, folders, tmp_path):
        root, model = folders
        reference = write_guard(tmp_path / "guard")
        network = architectures.build_guarded_aegis(root / "base", root / "adapter", tmp_path / "guard")
        ids, mask = tokens(model.config.vocab_size)
        found = run(network, ids, mask)
        hooks, expected = self.merged(root, model), []
        for row in range(len(ids)):
            length = int(mask[row].sum())
            with torch.inference_mode():
                states = model(ids[row : row + 1, :length], output_hidden_states=True).hidden_states[-1]
                unit = states[0, -1] / states[0, -1].norm()
                expected.append(reference(unit[None])[0])
        [hook.remove() for hook in hooks]
        torch.testing.assert_close(found, torch.stack(expected), atol=1e-4, rtol=1e-3)
        assert np.ptp(found.numpy()) > 1e-3

    @pytest.mark.parametrize(
        ("key", "value"), [("peft_type", "IA3"), ("use_dora", True), ("bias", "all"), ("modules_to_save", ["lm_head"])]
    )
    def test_other_kinds_of_adapter_are_rejected(self, folders, tmp_path, key, value):
        _, model = folders
        write_adapter(tmp_path / "a", model)
        config = json.loads((tmp_path / "a" / "adapter_config.json").read_text()) | {key: value}
        (tmp_path / "a" / "adapter_config.json").write_text(json.dumps(config))
        with pytest.raises(ModelError, match="cannot be merged"):
            architectures.merge_adapter(model, tmp_path / "a")

    def test_a_base_model_that_cannot_be_loaded(self, folders, tmp_path):
        root, _ = folders
        shutil.copytree(root / "base", tmp_path / "base")
        (file,) = (tmp_path / "base").glob("*.safetensors")
        for content in (file.read_bytes()[:1000], b"", None):
            file.unlink() if content is None else file.write_bytes(content)
            with pytest.raises(ModelError, match=r"the language model in .* cannot be loaded"):
                architectures.build_aegis(tmp_path / "base", root / "adapter")

    def test_half_an_adapter(self, folders, tmp_path):
        _, model = folders
        write_adapter(tmp_path / "a", model)
        weights = load_file(tmp_path / "a" / "adapter_model.safetensors")
        del weights["base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"]
        save_file(weights, tmp_path / "a" / "adapter_model.safetensors")
        with pytest.raises(ModelError, match=r"layers\.1\.self_attn\.v_proj"):
            architectures.merge_adapter(model, tmp_path / "a")
