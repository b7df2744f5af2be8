"""Modules that turn token ids into one vector per text: an encoder of transformers, pooling, and the layers after it.

    sentence-transformers folder     modules.json: Transformer, Pooling, Dense, Normalize
    transformers folder              the encoder, and the mean over tokens

The vectors that result are not normalized here: the operator does it, after the windows of a long text are averaged. A
Normalize that precedes a Dense is applied.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tamis.errors import require
from tamis.models.files import PROMPTS_FILE, ModelError, json_object
from tamis.models.network import SEES_PADDING, by_length, load_encoder, load_weights, padding_token
from tamis.models.onnx import GraphPooling
from tamis.models.tokens import default_prompt

POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""The poolings of sentence-transformers by their older names, in the order in which their vectors are concatenated."""

ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU")


def encoder(folder: Path, config: dict[str, Any]) -> Any:
    """The module of an embedding model: token ids to float[rows, dimensions]."""
    torch = require("torch", extra="models", purpose="running a model")
    steps = sentence_modules(folder)
    inner = load_encoder(folder / steps[0][1])
    poolings = ["mean"]
    rest: list[Any] = []
    last_dense = max((number for number, (kind, _) in enumerate(steps) if kind == "Dense"), default=0)
    for number, (kind, path) in enumerate(steps):
        if kind == "Pooling":
            poolings = _poolings(folder / path, folder)
        elif kind == "Dense":
            rest.append(_dense(torch, folder / path))
        elif kind == "Normalize" and number < last_dense:
            rest.append(_normalize(torch, folder / path))
    fill = padding_token(inner) or 0
    dimensions = dimensions_of(folder)

    class Encoder(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.rest = inner, torch.nn.Sequential(*rest)

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            given = input_ids.masked_fill(attention_mask == 0, fill)
            hidden = self.inner(input_ids=given, attention_mask=attention_mask).last_hidden_state
            parts = [pooled(torch, hidden.float(), attention_mask, pooling) for pooling in poolings]
            return self.rest(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))[:, :dimensions]

    return by_length(Encoder()) if inner.config.model_type in SEES_PADDING else Encoder()


def graph_pooling(folder: Path) -> GraphPooling:
    """How the vectors of tokens that an ONNX graph returns become the vector of a text; the mean if its folder does not say."""
    steps = sentence_modules(folder)
    pooling = [_poolings(folder / path, folder) for kind, path in steps if kind == "Pooling"]
    if any(kind == "Dense" for kind, _ in steps) or pooling not in ([], [["mean"]], [["cls"]]):
        raise ModelError(
            f"the ONNX graph in {folder} returns the vectors of tokens, and modules.json has steps after it that are "
            "not supported",
            hint="export the graph with the output `sentence_embedding`, or use model.safetensors",
        )
    return "cls" if pooling == [["cls"]] else "mean"


def dimensions_of(folder: Path) -> int | None:
    """How many values of each vector sentence-transformers keeps; None for all."""
    path = folder / PROMPTS_FILE
    found = json_object(path).get("truncate_dim")
    if found is None or (isinstance(found, int) and found > 0):
        return found
    raise ModelError(
        f"`truncate_dim` in {path} is {found!r}, not a number of dimensions", hint="download the model again"
    )


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


def _poolings(folder: Path, model: Path) -> list[str]:
    path = folder / "config.json"
    settings = _settings(path)
    if settings.get("include_prompt") is False and default_prompt(model):
        raise ModelError(
            f"{path} excludes the prompt from pooling, which is not supported",
            hint=f"set `default_prompt_name` to null in {model / PROMPTS_FILE}, and put the prompt into the texts",
        )
    mode = settings.get("pooling_mode")
    chosen = [mode] if isinstance(mode, str) else mode
    if chosen is None:
        chosen = [kind for name, kind in POOLINGS.items() if settings.get(name)]
    if not isinstance(chosen, list) or not chosen:
        raise ModelError(f"{path} chooses no pooling", hint=f"`pooling_mode` is one of {', '.join(POOLINGS.values())}")
    chosen = [str(kind).removesuffix("_tokens") for kind in chosen]
    for kind in chosen:
        if kind not in POOLINGS.values():
            raise ModelError(
                f"the pooling {kind!r} in {path} is not supported", hint=f"it is one of {', '.join(POOLINGS.values())}"
            )
    return chosen


def _settings(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}", hint="download the model again") from error
    return found


def _check_columns(settings: dict[str, Any], path: Path) -> None:
    """Raise if a module reads or writes something else than the vector of a text."""
    for name in ("module_input_name", "module_output_name"):
        if settings.get(name) not in (None, "sentence_embedding"):
            raise ModelError(
                f"`{name}` in {path} is {settings[name]!r}", hint="only modules over `sentence_embedding` are supported"
            )


def _normalize(torch: Any, folder: Path) -> Any:
    _check_columns(json_object(folder / "config.json"), folder / "config.json")

    class Normalize(torch.nn.Module):
        def forward(self, values: Any) -> Any:
            return torch.nn.functional.normalize(values, p=2, dim=-1)

    return Normalize()


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
    raise AssertionError(pooling)


def _dense(torch: Any, folder: Path) -> Any:
    settings = _settings(folder / "config.json")
    _check_columns(settings, folder / "config.json")
    if settings.get("use_residual"):
        raise ModelError(f"the dense layer in {folder} adds its input to its output, which is not supported")
    try:
        tensors = load_weights((folder / "model.safetensors",))
        layer = torch.nn.Linear(
            settings["in_features"], settings["out_features"], bias=bool(settings.get("bias", True))
        )
        layer.load_state_dict({name.removeprefix("linear."): value.float() for name, value in tensors.items()})
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(
            f"the dense layer in {folder} cannot be loaded: {error}", hint="download the model again"
        ) from error
    stated = str(settings.get("activation_function", "torch.nn.modules.activation.Tanh"))
    activation = stated.rpartition(".")[2]
    if activation not in ACTIVATIONS or not stated.startswith("torch."):
        raise ModelError(f"the activation {stated} in {folder} is not supported")
    return torch.nn.Sequential(layer, getattr(torch.nn, activation)())
