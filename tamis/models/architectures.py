"""Networks of published classifiers that transformers does not define. Importing this module imports PyTorch.

    FirstTokenHead   model.* (DeBERTa v3), fc.*                    quality, domain, multilingual domain, content type
    PooledHeads      backbone.* (DeBERTa v3), head_0.fc.* ...      prompt task and complexity
    DataGuard        input_layer.*, hidden_layer_0.* to _2.*       Instruction Data Guard, on the last hidden state of Aegis
    Aegis            LlamaGuard with the weights of a LoRA adapter added; returns the tokens that it generates

`build` takes a folder as it is published, finds out which of them it holds, and loads the weights strictly: a weight that is
missing or left over is an error. Each network takes token ids and a mask, padded on the right, and returns one row of numbers
per text. Facts about layouts and formulas are from the model cards on Hugging Face and the NeMo Curator documentation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tamis.errors import TamisError, is_shortage, require
from tamis.models.files import ModelError, find_folder
from tamis.models.network import map_safetensors

BACKBONES: dict[str, dict[str, Any]] = {
    name: {
        "model_type": "deberta-v2",
        "vocab_size": vocabulary,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "max_position_embeddings": 512,
        "max_relative_positions": -1,
        "position_buckets": 256,
        "relative_attention": True,
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "layer_norm_eps": 1e-7,
        "type_vocab_size": 0,
        "hidden_act": "gelu",
    }
    for name, vocabulary in (("microsoft/deberta-v3-base", 128_100), ("microsoft/mdeberta-v3-base", 251_000))
}
"""The sizes of published backbones (He et al. 2021): the folders of classifiers name their backbone and not its sizes."""

MAX_NEW_TOKENS = 100
"""The longest answer of Aegis, as in NeMo Curator. An answer is a few tokens and ends with the end-of-text token."""


def build(folder: Path, config: Mapping[str, Any]) -> nn.Module:
    """The network in a folder of one of the published layouts, with its weights, ready to run."""
    if "target_sizes" in config:
        sizes = config["target_sizes"]
        network: nn.Module = _without_values(lambda: PooledHeads(_backbone(folder, config), list(sizes.values())))
    elif "input_dim" in config:
        network = _without_values(lambda: DataGuard(int(config["input_dim"])))
    elif "base_model" in config and "id2label" in config:
        labels = len(config["id2label"])
        network = _without_values(lambda: FirstTokenHead(_backbone(folder, config), labels))
    else:
        raise ModelError(
            f"{folder / 'config.json'} describes none of the networks that Tamis defines",
            hint="it has either `base_model` and `id2label`, `target_sizes`, or `input_dim`",
        )
    load_strictly(network, [folder / "model.safetensors"])
    return network.eval()


class FirstTokenHead(nn.Module):
    """One linear layer on the hidden state of the first token. Returns logits."""

    def __init__(self, backbone: Any, outputs: int) -> None:
        super().__init__()
        self.model = backbone
        self.fc = nn.Linear(backbone.config.hidden_size, outputs)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return self.fc(hidden[:, 0])


class _Head(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.fc = nn.Linear(inputs, outputs)

    def forward(self, pooled: Tensor) -> Tensor:
        return self.fc(pooled)


class PooledHeads(nn.Module):
    """Several linear layers on the mean of all hidden states. Returns the logits of all heads side by side."""

    def __init__(self, backbone: Any, outputs: Sequence[int]) -> None:
        super().__init__()
        self.backbone = backbone
        self._names = [f"head_{number}" for number in range(len(outputs))]
        for name, size in zip(self._names, outputs, strict=True):
            self.add_module(name, _Head(backbone.config.hidden_size, size))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return torch.cat([getattr(self, name)(pooled) for name in self._names], dim=1)


class DataGuard(nn.Module):
    """Four layers on a hidden state of unit length. Returns the logit that a text is poisoned."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.input_layer = nn.Linear(inputs, inputs)
        self.hidden_layer_0 = nn.Linear(inputs, 2000)
        self.hidden_layer_1 = nn.Linear(2000, 500)
        self.hidden_layer_2 = nn.Linear(500, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        found = nn.functional.normalize(hidden.float(), dim=-1)
        for layer in (self.input_layer, self.hidden_layer_0, self.hidden_layer_1):
            found = layer(found).relu()
        return self.hidden_layer_2(found)


# ------------------------------------------------------------------------------------------------------- Aegis ----------


class Aegis(nn.Module):
    """Generates the answer of LlamaGuard to a prompt, greedily. Returns token ids, and -1 after the end of the answer."""

    def __init__(self, language_model: Any, max_new_tokens: int = MAX_NEW_TOKENS) -> None:
        super().__init__()
        self.language_model = language_model
        self._max_new_tokens = max_new_tokens
        end = language_model.config.eos_token_id
        self._ends = [end] if isinstance(end, int) else list(end or [])

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        lengths = attention_mask.sum(1)
        rows = torch.arange(len(input_ids), device=input_ids.device)
        found = torch.full((len(input_ids), self._max_new_tokens), -1, dtype=torch.long, device=input_ids.device)
        ends = torch.tensor(self._ends, device=input_ids.device, dtype=torch.long)
        open_rows = torch.ones(len(input_ids), dtype=torch.bool, device=input_ids.device)
        positions = (attention_mask.cumsum(1) - 1).clamp(min=0)
        answer = self.language_model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=positions, use_cache=True
        )
        # Padding is on the right, so the last token of each prompt is at its own position; what follows ignores the padding.
        logits = answer.logits[rows, (lengths - 1).clamp(min=0)]
        mask = attention_mask
        broken = torch.zeros_like(open_rows)
        for step in range(self._max_new_tokens):
            token = logits.argmax(-1)
            broken |= open_rows & torch.isnan(logits).any(-1)
            open_rows = open_rows & ~torch.isin(token, ends)
            found[:, step] = torch.where(open_rows, token, -1)
            if step + 1 == self._max_new_tokens or not bool(open_rows.any()):
                break
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
            answer = self.language_model(
                input_ids=token[:, None],
                attention_mask=mask,
                position_ids=(lengths + step)[:, None],
                past_key_values=answer.past_key_values,
                use_cache=True,
            )
            logits = answer.logits[:, -1]
        # Where a logit is not a number, the token is arbitrary. The row is marked, so that it fails.
        return found.float().masked_fill(broken[:, None], math.nan)


class GuardedAegis(nn.Module):
    """Instruction Data Guard: a small network on the last hidden state of the last token of Aegis. Returns a logit."""

    def __init__(self, language_model: Any, guard: DataGuard) -> None:
        super().__init__()
        self.language_model = language_model
        self.guard = guard

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.language_model.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=(attention_mask.cumsum(1) - 1).clamp(min=0),
            use_cache=False,
        ).last_hidden_state
        last = (attention_mask.sum(1) - 1).clamp(min=0)
        return self.guard(states[torch.arange(len(states), device=states.device), last])


def build_aegis(base: Path, adapter: Path, *, max_new_tokens: int = MAX_NEW_TOKENS) -> nn.Module:
    """LlamaGuard from the folder `base` with the adapter in the folder `adapter`; it generates answers."""
    return Aegis(_with_adapter(base, adapter), max_new_tokens).eval()


def build_guarded_aegis(base: Path, adapter: Path, guard: Path) -> nn.Module:
    """Instruction Data Guard from the folder `guard` on Aegis."""
    network = build(guard, _read_json(guard / "config.json"))
    if not isinstance(network, DataGuard):
        raise ModelError(f"{guard} does not contain Instruction Data Guard", hint="its config.json has `input_dim`")
    return GuardedAegis(_with_adapter(base, adapter), network).eval()


def _with_adapter(base: Path, adapter: Path) -> Any:
    transformers = require("transformers", extra="models", purpose="running LlamaGuard")
    transformers.utils.logging.disable_progress_bar()
    try:
        model, loading = transformers.AutoModelForCausalLM.from_pretrained(
            base,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype="auto",
            output_loading_info=True,
        )
    except Exception as error:
        if is_shortage(error):
            raise
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"the language model in {base} cannot be loaded: {first_line}",
            hint="it needs config.json and complete weights in safetensors files; download it again",
        ) from error
    missing, unexpected = sorted(loading["missing_keys"]), sorted(loading["unexpected_keys"])
    if missing or unexpected:
        raise _wrong_weights(base, missing, unexpected)
    merge_adapter(model, adapter)
    return model


def merge_adapter(model: Any, adapter: Path) -> None:
    """Add the weights of a LoRA adapter to those of a model: W + s B A, with s = alpha / r (Hu et al. 2021)."""
    config = _read_json(adapter / "adapter_config.json")
    kind, rank = config.get("peft_type", "LORA"), int(config.get("r", 0))
    unknown = [name for name in ("use_dora", "modules_to_save", "rank_pattern", "alpha_pattern") if config.get(name)]
    if kind != "LORA" or rank < 1 or config.get("bias", "none") != "none" or unknown:
        raise ModelError(
            f"{adapter / 'adapter_config.json'} describes an adapter that cannot be merged: {', '.join(unknown) or kind}",
            hint="merge it with peft's merge_and_unload, and give the folder of the merged model",
        )
    scale = float(config["lora_alpha"]) / (math.sqrt(rank) if config.get("use_rslora") else rank)
    weights = map_safetensors(adapter / "adapter_model.safetensors")
    parameters = dict(model.named_parameters())
    down: dict[str, Tensor] = {}
    up: dict[str, Tensor] = {}
    strange = []
    for key, value in weights.items():
        name = key.removeprefix("base_model.model.")
        owner, _, part = name.rpartition(".lora_")
        target = f"{owner}.weight"
        if part not in ("A.weight", "B.weight") or target not in parameters:
            strange.append(key)
        else:
            (down if part == "A.weight" else up)[target] = value
    halves = sorted(down.keys() ^ up.keys())
    if strange or halves or not down:
        raise _wrong_weights(adapter, halves if down or up else ["lora_A.weight and lora_B.weight"], strange)
    with torch.no_grad():
        for target, first in down.items():
            weight, second = parameters[target], up[target]
            change = second.float() @ first.float()
            if config.get("fan_in_fan_out"):
                change = change.T
            if change.shape != weight.shape:
                raise ModelError(
                    f"the adapter {adapter} does not fit: {target} is {tuple(weight.shape)}, the change {tuple(change.shape)}",
                    hint="use the base model that the adapter was trained on",
                )
            weight.copy_((weight.float() + scale * change).to(weight.dtype))


# ------------------------------------------------------------------------------------------------------ loading weights


def load_strictly(network: nn.Module, files: Iterable[Path]) -> None:
    """Give a network the weights of safetensors files, each exactly once; its own values are not kept."""
    found: dict[str, Tensor] = {}
    folder = Path()
    for path in files:
        folder = path.parent
        if not path.is_file():
            raise ModelError(
                f"the model folder {folder} is incomplete: there is no {path.name}", hint=f"put it into {folder}"
            )
        found |= map_safetensors(path)
    wanted = network.state_dict()
    # Older versions of transformers stored these numbers 0, 1, 2, ... with the weights.
    found = {name: value for name, value in found.items() if name in wanted or not name.endswith(".position_ids")}
    missing, extra = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing or extra:
        raise _wrong_weights(folder, missing, extra)
    for name, value in wanted.items():
        if value.shape != found[name].shape:
            raise ModelError(
                f"{folder}: {name} has the shape {tuple(found[name].shape)}, "
                f"and the configuration asks for {tuple(value.shape)}",
                hint="config.json and model.safetensors belong to different models",
            )
    network.load_state_dict(found, strict=True, assign=True)
    for parameter in network.parameters():
        parameter.requires_grad_(False)


def _wrong_weights(folder: Path, missing: Sequence[str], extra: Sequence[str]) -> ModelError:
    def some(names: Sequence[str]) -> str:
        return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")

    parts = [f"missing: {some(missing)}"] if missing else []
    parts += [f"not expected: {some(extra)}"] if extra else []
    return ModelError(
        f"the weights in {folder} do not fit the network; {'; '.join(parts)}",
        hint="use the files as they are published, with the config.json of the same model",
    )


def _without_values(make: Any) -> Any:
    """A network without initial values, which would take seconds for a large one and are replaced anyway."""
    with torch.device("meta"):
        network = make()
    for name, buffer in list(network.named_buffers()):
        if not name.endswith("position_ids"):
            raise TamisError(f"this version of transformers has the buffer {name}, which is not known")
        owner = network.get_submodule(name.rpartition(".")[0])
        owner.register_buffer("position_ids", torch.arange(buffer.shape[-1]).expand_as(buffer), persistent=False)
    return network


def _backbone(folder: Path, config: Mapping[str, Any]) -> Any:
    """The encoder that a configuration names: with sizes of its own, those of a local copy, or the published ones."""
    transformers = require("transformers", extra="models", purpose="running a classifier")
    name = str(config.get("base_model", ""))
    if "hidden_size" in config:
        sizes: Mapping[str, Any] = config
    else:
        try:
            sizes = _read_json(find_folder(name, ["config.json"]) / "config.json")
        except TamisError:
            if name not in BACKBONES:
                raise
            sizes = BACKBONES[name]
    own = {key: value for key, value in sizes.items() if key not in ("architectures", "id2label", "label2id")}
    try:
        settings = transformers.AutoConfig.for_model(**own)
        return transformers.AutoModel.from_config(settings, trust_remote_code=False)
    except (ValueError, TypeError, KeyError) as error:
        raise ModelError(
            f"the backbone {name!r} of {folder} cannot be built: {error}", hint="check config.json"
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"the model folder {path.parent} is incomplete: there is no {path.name}") from error
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}", hint="download the model again") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path} does not contain an object", hint="download the model again")
    return found
