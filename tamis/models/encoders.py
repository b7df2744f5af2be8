"""Modules that turn token ids into one vector per text: an encoder of transformers, pooling, and the layers after it.

    sentence-transformers folder     modules.json: Transformer, Pooling, Dense, Normalize
    transformers folder              the encoder, and the mean over tokens

Vectors are not normalized here: the operator does it, after the windows of a long text are averaged.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tamis.errors import require
from tamis.models.files import ModelError
from tamis.models.network import load_weights, transformers_module

POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU")


def encoder(folder: Path, config: dict[str, Any]) -> Any:
    """The module of an embedding model: token ids to float[rows, dimensions]."""
    torch = require("torch", extra="models", purpose="running a model")
    steps = sentence_modules(folder)
    inner = transformers_module(folder / steps[0][1], "MODEL_MAPPING")
    poolings = ["mean"]
    rest: list[Any] = []
    for kind, path in steps[1:]:
        if kind == "Pooling":
            poolings = _poolings(folder / path)
        elif kind == "Dense":
            rest.append(_dense(torch, folder / path))

    class Encoder(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.rest = inner, torch.nn.Sequential(*rest)

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            hidden = self.inner(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            parts = [pooled(torch, hidden.float(), attention_mask, pooling) for pooling in poolings]
            return self.rest(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))

    return Encoder()


def sentence_modules(folder: Path) -> list[tuple[str, str]]:
    """(kind, folder) of each module of a sentence-transformers folder; one Transformer if there is no modules.json."""
    path = folder / "modules.json"
    if not path.is_file():
        return [("Transformer", "")]
    try:
        found = [(str(each["type"]).rpartition(".")[2], str(each["path"])) for each in json.loads(path.read_bytes())]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} is not a list of modules: {error}", hint="download the model again") from error
    known = ("Transformer", "Pooling", "Dense", "Normalize", "Dropout")
    strange = [kind for kind, _ in found if kind not in known]
    if strange or not found or found[0][0] != "Transformer":
        raise ModelError(
            f"{folder} has a module {strange[0] if strange else 'list that does not begin with a Transformer'}",
            hint=f"the modules {', '.join(known)} of sentence-transformers are supported",
        )
    if any(Path(part).is_absolute() or ".." in Path(part).parts for _, part in found):
        raise ModelError(f"{path} names a folder outside of its own", hint="download the model again")
    return found


def _poolings(folder: Path) -> list[str]:
    path = folder / "config.json"
    try:
        settings = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}", hint="download the model again") from error
    if isinstance(settings.get("pooling_mode"), str):
        return [settings["pooling_mode"].removesuffix("_tokens")]
    chosen = [kind for name, kind in POOLINGS.items() if settings.get(name)]
    if not chosen:
        raise ModelError(f"{path} chooses no pooling", hint=f"one of {', '.join(POOLINGS)} must be true")
    return chosen


def pooled(torch: Any, hidden: Any, mask: Any, pooling: str) -> Any:
    """One vector per text from the vectors of its tokens, float[rows, tokens, dimensions]; padding is on the right."""
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "lasttoken":
        last = mask.sum(dim=1).clamp(min=1) - 1
        return hidden[torch.arange(len(hidden), device=hidden.device), last]
    if pooling == "max":
        return hidden.masked_fill(weights == 0, -1e9).max(dim=1).values
    if pooling == "weightedmean":
        weights = weights * torch.arange(1, hidden.shape[1] + 1, device=hidden.device).unsqueeze(-1)
    totals, counts = (hidden * weights).sum(dim=1), weights.sum(dim=1).clamp(min=1e-9)
    if pooling in ("mean", "weightedmean"):
        return totals / counts
    if pooling == "mean_sqrt_len":
        return totals / counts.sqrt()
    raise ModelError(f"the pooling {pooling!r} is not supported")


def _dense(torch: Any, folder: Path) -> Any:
    try:
        settings = json.loads((folder / "config.json").read_bytes())
        tensors = load_weights((folder / "model.safetensors",))
        layer = torch.nn.Linear(
            settings["in_features"], settings["out_features"], bias=bool(settings.get("bias", True))
        )
        layer.load_state_dict({name.removeprefix("linear."): value.float() for name, value in tensors.items()})
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(
            f"the dense layer in {folder} cannot be loaded: {error}", hint="download the model again"
        ) from error
    activation = str(settings.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if activation not in ACTIVATIONS:
        raise ModelError(f"the activation {activation} in {folder} is not supported")
    return torch.nn.Sequential(layer, getattr(torch.nn, activation)())
