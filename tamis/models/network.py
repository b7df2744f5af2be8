"""Networks behind one small interface: torch modules on a CPU or a GPU, and ONNX graphs.

    start(ids, lengths) -> wait          begins a batch, on a GPU without waiting for it
    wait() -> float32[rows, outputs]

Weights are read from safetensors files that are mapped read-only: the workers of a machine share their pages, and they do not
count against the memory cap of a worker. transformers builds the module and assigns these tensors without copying them.
"""

from __future__ import annotations

import json
import mmap
import pickle
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from tamis.errors import is_shortage, require
from tamis.models.deberta import fuse
from tamis.models.devices import assigned, keep_to_share
from tamis.models.files import ModelError, weights_in
from tamis.models.gpu_owners import owner

Build: TypeAlias = Callable[[Path, dict[str, Any]], Any]
"""A function from the folder and the configuration of a model to a torch module, whose `forward(input_ids, attention_mask)`
returns float[rows, outputs]."""


class Network(Protocol):
    """A network that turns token ids into numbers."""

    vocabulary: int | None
    """The number of tokens that it knows; None if that cannot be seen."""

    def start(self, ids: np.ndarray, lengths: np.ndarray) -> Callable[[], np.ndarray]:
        """Begin a batch: int64[rows, width], and the number of tokens of each row. The result waits for the outputs."""

    def close(self) -> None: ...


# ---------------------------------------------------------------------------------------------------------------- weights

_TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


LFS_POINTER = b"version https://git-lfs"
"""How a file begins that was cloned without Git LFS."""


def map_safetensors(path: Path) -> dict[str, Any]:
    """The tensors of a safetensors file as torch tensors over a read-only mapping; they must not be written to.

    The library safetensors maps files privately and writable, which counts as memory of the process.
    """
    torch = require("torch", extra="models", purpose="loading a model")
    refuse = lambda why: ModelError(f"{path} is not a safetensors file, or is damaged: {why}", hint="download it again")  # noqa: E731
    size = path.stat().st_size
    if size < 8:
        raise refuse(f"it has {size} bytes")
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if data[: len(LFS_POINTER)] == LFS_POINTER:
        raise ModelError(f"{path} is a pointer of Git LFS, not the weights", hint=f"run git lfs pull in {path.parent}")
    header_bytes = int.from_bytes(data[:8], "little")
    if header_bytes > size - 8:
        raise refuse("the header is longer than the file")
    try:
        header: Mapping[str, Mapping[str, Any]] = json.loads(data[8 : 8 + header_bytes])
        header = {name: entry for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, AttributeError) as error:
        raise refuse(str(error)) from error
    begin = 8 + header_bytes
    tensors = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that the buffer cannot be written to
        for name, entry in header.items():
            try:
                kind = getattr(torch, _TYPES[entry["dtype"]])
                shape = [int(length) for length in entry["shape"]]
                first, last = (int(offset) for offset in entry["data_offsets"])
            except (KeyError, TypeError, ValueError) as error:
                raise refuse(f"tensor {name}: {error!r}") from error
            count = int(np.prod(shape, dtype=np.int64)) if shape else 1
            if (
                not 0 <= first <= last <= size - begin
                or last - first != count * kind.itemsize
                or min(shape, default=0) < 0
            ):
                raise refuse(f"tensor {name} is not within the file; it may be truncated")
            if (begin + first) % kind.itemsize or not count:  # a copy, which is aligned
                content = bytearray(data[begin + first : begin + last]) or bytearray(kind.itemsize)
                flat = torch.frombuffer(content, dtype=kind)[:count]
            else:
                flat = torch.frombuffer(data, dtype=kind, count=count, offset=begin + first)
            tensors[name] = flat.reshape(shape)
    return tensors


def load_weights(files: tuple[Path, ...]) -> dict[str, Any]:
    """The tensors of the weight files of a model by name: safetensors, or PyTorch files that contain nothing but tensors."""
    torch = require("torch", extra="models", purpose="loading a model")
    tensors: dict[str, Any] = {}
    for path in files:
        if path.suffix == ".safetensors":
            tensors |= map_safetensors(path)
            continue
        try:
            # Files of old versions of PyTorch, which are no zip archives, cannot be mapped.
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        except Exception as error:  # unpickling a damaged file can fail in any way
            if is_shortage(error):
                raise
            # What torch says of pickles advises to load them nevertheless.
            why = "it contains more than tensors" if isinstance(error, pickle.UnpicklingError) else _first_line(error)
            raise ModelError(
                f"{path} cannot be loaded safely: {why}",
                hint="only tensors are loaded from PyTorch files, never code: use the model.safetensors of this model",
            ) from error
        if not isinstance(found, dict) or not all(torch.is_tensor(value) for value in found.values()):
            raise ModelError(
                f"{path} does not contain a table of tensors", hint="use the model.safetensors of this model"
            )
        tensors |= found
    return tensors


# ---------------------------------------------------------------------------------------------- modules of transformers


def _transformers() -> Any:
    found = require("transformers", extra="models", purpose="running a model")
    found.utils.logging.disable_progress_bar()
    return found


def load_config(folder: Path) -> Any:
    """The configuration of a model, for an architecture that transformers has."""
    transformers = _transformers()
    try:
        return transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        own_code = "auto_map" in (folder / "config.json").read_text(errors="replace")
        raise ModelError(
            f"the configuration in {folder} cannot be used: "
            + ("the model needs code of its own" if own_code else _first_line(error)),
            hint="the architecture must be one that the installed transformers has; code in model folders is never run",
        ) from error


def assemble(kind: Any, config: Any, tensors: Mapping[str, Any], folder: Path, *, unused: str | None = None) -> Any:
    """A module of transformers with these tensors as its weights.

    All weights must be there and have the right shape, except in the part `unused`, by its name.
    """
    torch = require("torch", extra="models", purpose="running a model")
    transformers = _transformers()
    try:
        with only_errors():  # what it would print is checked below
            module, info = kind.from_pretrained(
                None,
                config=config,
                state_dict=dict(tensors),
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported below
                **{_dtype(transformers): torch.float32},
            )
    except Exception as error:
        if is_shortage(error):
            raise
        raise ModelError(
            f"the weights in {folder} do not fit {kind.__name__}: {_first_line(error)}",
            hint="config.json and the weights must be of the same model",
        ) from error
    is_used = lambda name: unused is None or unused not in name.split(".")  # noqa: E731
    other = sorted((name, tuple(found), tuple(wanted)) for name, found, wanted in info["mismatched_keys"])
    for name, found, wanted in other:
        if is_used(name):
            raise ModelError(
                f"the weights in {folder} do not fit its config.json: {name} has the shape {found}, not {wanted}",
                hint=_mismatch_hint(config, found, wanted),
            )
    missing = sorted(name for name in map(str, info["missing_keys"]) if is_used(name))
    if missing:
        raise ModelError(
            f"the weights in {folder} lack {missing[0]}" + (f" and {len(missing) - 1} more" if missing[1:] else ""),
            hint="config.json and the weights must be of the same model, and complete",
        )
    return module.eval()


@contextmanager
def only_errors() -> Iterator[None]:
    """Keep transformers from printing advice to its programmers, which it repeats for each batch."""
    logging = _transformers().utils.logging
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def _mismatch_hint(config: Any, found: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    if wanted[0] == getattr(config, "num_labels", None) and found[1:] == wanted[1:]:
        return f"`id2label` in config.json must name the {found[0]} outputs of the network; it has {wanted[0]} names"
    return "config.json and the weights must be of the same model"


def _dtype(transformers: Any) -> str:
    """The name of the parameter for the type of weights, which transformers 4.56 renamed."""
    major, minor = (int(part) for part in transformers.__version__.split(".")[:2])
    return "dtype" if (major, minor) >= (4, 56) else "torch_dtype"


def transformers_module(folder: Path, table: str, *, unused: str | None = None) -> Any:
    """The module that transformers has for the configuration of a folder, in one of its tables, with its weights.

    Weights of the part `unused` may be missing: many encoders are published without their pooler.
    """
    settings = load_config(folder)
    return _with_weights(_kind(settings, table, folder), settings, folder, unused)


def load_encoder(folder: Path) -> Any:
    """The encoder in a folder. Of T5 and its relatives, whose decoder does not run by itself, the half that encodes."""
    settings = load_config(folder)
    kind = _kind(settings, "MODEL_MAPPING", folder)
    if getattr(settings, "is_encoder_decoder", False):
        kind = getattr(_transformers(), f"{kind.__name__.removesuffix('Model')}EncoderModel", kind)
    return _with_weights(kind, settings, folder, "pooler")


def _kind(settings: Any, table: str, folder: Path) -> Any:
    kinds = getattr(_transformers(), table)
    if type(settings) not in kinds:
        raise ModelError(f"transformers has no such network for model type {settings.model_type}, in {folder}")
    found = kinds[type(settings)]
    if not isinstance(found, tuple):
        return found
    stated = getattr(settings, "architectures", None) or []
    return next((kind for kind in found if kind.__name__ in stated), found[0])


def _with_weights(kind: Any, settings: Any, folder: Path, unused: str | None) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some architectures use parts of torch that are deprecated
        return assemble(kind, settings, load_weights(tuple(weights_in(folder))), folder, unused=unused)


def padding_token(module: Any) -> int | None:
    """The padding token in the configuration of a module of transformers; None if it has none that it knows."""
    torch = require("torch", extra="models", purpose="running a model")
    stated, size = getattr(module.config.get_text_config(), "pad_token_id", None), _vocabulary(torch, module)
    return stated if isinstance(stated, int) and stated >= 0 and (size is None or stated < size) else None


SEES_PADDING = frozenset({
    "convbert", "cpmant", "fnet", "funnel", "mobilebert", "nystromformer", "reformer", "xlnet", "yoso",
})  # fmt: skip
"""Types of models in transformers whose outputs for a text change with the padding after it: they ignore the mask, mix
neighbouring tokens, or read the last position."""


def by_length(module: Any) -> Any:
    """The module over batches without padding: texts of equal length are processed together."""
    torch = require("torch", extra="models", purpose="running a model")

    class ByLength(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            lengths = attention_mask.sum(dim=1)
            order, parts = [], []
            for length in lengths.unique().tolist():
                rows = torch.nonzero(lengths == length).squeeze(1)
                order.append(rows)
                parts.append(self.module(input_ids[rows, :length], attention_mask[rows, :length]))
            return torch.cat(parts)[torch.cat(order).argsort()]

    return ByLength()


def sequence_classifier(folder: Path, config: dict[str, Any]) -> Any:
    """The module of a sequence-classification folder; its outputs are the logits.

    Decoders such as Llama classify by the last token that is not the padding token, which therefore has to be in the padding.
    """
    torch = require("torch", extra="models", purpose="running a model")
    inner = transformers_module(folder, "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING")
    settings, has_padding = inner.config.get_text_config(), padding_token(inner) is not None

    class SequenceClassifier(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            if not has_padding:
                settings.pad_token_id = self._not_at_an_end(input_ids, attention_mask)
            given = input_ids.masked_fill(attention_mask == 0, settings.pad_token_id)
            return self.inner(input_ids=given, attention_mask=attention_mask).logits

        def _not_at_an_end(self, input_ids: Any, attention_mask: Any) -> int:
            """A token with which no text ends."""
            rows = torch.arange(len(input_ids), device=input_ids.device)
            last = input_ids[rows, (attention_mask.sum(dim=1) - 1).clamp(min=0)]
            tokens = torch.arange(len(rows) + 1, device=input_ids.device)
            return int(tokens[~torch.isin(tokens, last)][0])

    return by_length(SequenceClassifier()) if inner.config.model_type in SEES_PADDING else SequenceClassifier()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# ------------------------------------------------------------------------------------------------------ running on torch


class TorchModule:
    """A torch module on a CPU in float32, or on a GPU with bfloat16 autocast."""

    def __init__(self, module: Any, device: str = "cpu") -> None:
        self._torch = require("torch", extra="models", purpose="running a model")
        self.device = device
        if self.on_gpu:
            keep_to_share(assigned().gpu_memory_bytes)
        with owner("weights"):
            self.module = module.eval().to(device)
        if self.on_gpu:
            fuse(module)
        else:
            use_onednn(module)
        self._copies = self._torch.cuda.Stream(device) if self.on_gpu else None

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    def begin(self, forward: Callable[..., Any], *inputs: np.ndarray) -> Callable[[], np.ndarray]:
        """Begin a batch: `forward` of the inputs. On a GPU, they are copied beside the computation of the batch before."""
        torch = self._torch
        if not self.on_gpu:
            with torch.inference_mode():
                result = forward(*map(torch.from_numpy, inputs)).float().numpy()
            return lambda: result
        with owner("activations", passing=True), torch.inference_mode():
            with torch.cuda.stream(self._copies):
                given = [self._pinned(values).to(self.device, non_blocking=True) for values in inputs]
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(self._copies)
            for values in given:
                values.record_stream(current)
            with torch.autocast("cuda", torch.bfloat16):
                outputs = forward(*given)
            host = torch.empty(outputs.shape, dtype=torch.float32, pin_memory=True)
            host.copy_(outputs.float(), non_blocking=True)
            done = torch.cuda.Event()
            done.record(current)

        def wait() -> np.ndarray:
            done.synchronize()
            return host.numpy()

        return wait

    def _pinned(self, values: np.ndarray) -> Any:
        """A copy in pinned memory, which a GPU reads while the CPU does something else."""
        kind = getattr(self._torch, values.dtype.name)
        made = self._torch.empty(values.shape, dtype=kind, pin_memory=True)
        made.numpy()[...] = values
        return made

    def bytes_of(self, start: Callable[[], Callable[[], np.ndarray]]) -> int:
        """GPU memory that the batch that `start` begins takes while it runs, as measured."""
        torch = self._torch
        torch.cuda.synchronize(self.device)
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        start()()
        return int(torch.cuda.max_memory_allocated(self.device) - before)

    def device_name(self) -> str:
        return str(self._torch.cuda.get_device_name(self.device))

    def free_bytes(self) -> int:
        """GPU memory that this process could still allocate."""
        torch = self._torch
        free, _ = torch.cuda.mem_get_info(self.device)
        kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return int(free + kept)

    def close(self) -> None:
        self.module = None


class TorchNetwork(TorchModule):
    """A module over token ids."""

    def __init__(self, module: Any, device: str = "cpu") -> None:
        super().__init__(module, device)
        self.vocabulary = _vocabulary(self._torch, module)

    def start(self, ids: np.ndarray, lengths: np.ndarray) -> Callable[[], np.ndarray]:
        """Begin a batch: token ids, and the number of them that are not padding."""

        def forward(ids: Any, lengths: Any) -> Any:
            columns = self._torch.arange(ids.shape[1], device=ids.device)
            return self.module(ids, (columns < lengths[:, None]).long())

        return self.begin(forward, ids, lengths)

    def bytes_per_token(self, width: int, rows: int) -> float:
        """GPU memory that a batch of `rows` texts of `width` tokens takes for each token, as measured."""
        ids, lengths = np.zeros((rows, width), np.int64), np.full(rows, width, np.int64)
        return self.bytes_of(lambda: self.start(ids, lengths)) / (rows * width)


def use_onednn(network: Any) -> int:
    """Replace the linear layers of a network on a CPU by calls of oneDNN; returns how many were replaced.

    torch multiplies float32 matrices with MKL, which is slower on processors of other makers than Intel: by 10 to 40 % where
    this was measured. The weights stay where they are, mapped. Does nothing if this build of torch has no such operation.
    """
    torch = require("torch", extra="models", purpose="running a model")
    found = _onednn_linear(torch)
    if found is None:
        return 0
    multiply = found

    class OneDnnLinear(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self, layer: Any) -> None:
            super().__init__()
            self.weight, self.bias = layer.weight, layer.bias

        def forward(self, values: Any) -> Any:
            return multiply(values, self.weight, self.bias)

    replaced = 0
    for parent in list(network.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is torch.nn.Linear and layer.weight.dtype == torch.float32:
                setattr(parent, name, OneDnnLinear(layer))
                replaced += 1
    return replaced


def _onednn_linear(torch: Any) -> Callable[[Any, Any, Any], Any] | None:
    """A linear layer by oneDNN, checked against torch's own; None if it is missing or differs."""
    try:
        operation = torch.ops.mkldnn._linear_pointwise

        def multiply(values: Any, weight: Any, bias: Any) -> Any:
            return operation(values, weight, bias, "none", [], "")

        with torch.inference_mode():
            values, weight = torch.linspace(-1, 1, 24).reshape(2, 4, 3), torch.linspace(-1, 1, 15).reshape(5, 3)
            same = torch.allclose(multiply(values, weight, None), torch.nn.functional.linear(values, weight), atol=1e-5)
    except (AttributeError, RuntimeError, TypeError, NotImplementedError):
        return None
    return multiply if same else None


def _vocabulary(torch: Any, module: Any) -> int | None:
    """The number of tokens that a module has embeddings for: the largest table."""
    sizes = [found.num_embeddings for found in module.modules() if isinstance(found, torch.nn.Embedding)]
    return max(sizes, default=None)
