"""ONNX graphs on the CPU, with onnxruntime.

    inputs input_ids, attention_mask, ...   exported from transformers: tokenized here, pooled here if needed (OnnxNetwork)
    one input of strings                    the tokenizer is in the graph, as in the Universal Sentence Encoder (RawTexts)

Graphs of raw texts, and graphs that quantise their inputs as they run, are run on one text at a time: they scale numbers by the
largest value in the batch, so that texts would change each other's vectors.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow.compute as pc

from tamis.batch import Column
from tamis.context import Context
from tamis.errors import is_shortage, require
from tamis.models.files import ModelError, ModelFiles
from tamis.models.tokens import LongTexts

GraphPooling: TypeAlias = Literal["mean", "cls"]

RAW_CHARS = 2_000
"""The longest text, in characters, that a graph of raw texts is given at a time; its memory grows with the square."""

RUNTIME_BYTES = 120_000_000
"""What onnxruntime and its extensions take."""


def open_session(found: ModelFiles, threads: int = 1) -> Any:
    """A session for an ONNX file. Its custom operators are those of onnxruntime-extensions, if that is installed."""
    return open_graph(found.weights[0], found.name, threads)


def open_graph(path: Path, name: str, threads: int = 1, *, arena: bool = False) -> Any:
    """A session for one of several files of a model. With an `arena`, inputs of one size are computed faster."""
    runtime = require("onnxruntime", extra="onnx", purpose=f"running {name}")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_cpu_mem_arena = arena  # it keeps what the longest text needed
    try:
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as plain:
        if is_shortage(plain):
            raise
        extensions = require("onnxruntime_extensions", extra="onnx", purpose=f"running {name}")
        options.register_custom_ops_library(extensions.get_library_path())
        try:
            return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            if is_shortage(error):
                raise
            raise ModelError(
                f"{path} is not an ONNX graph that can be run: {error}", hint="download it again"
            ) from error


_SCALING = (b"DynamicQuantizeLinear", b"DynamicQuantizeMatMul")
"""Operations that divide numbers by the largest one in the batch, as onnxruntime.quantization.quantize_dynamic adds them."""


def scales_by_batch(found: ModelFiles) -> bool:
    """Whether the outputs for a text change with the other texts of its batch, from the operations that a graph names."""
    with found.weights[0].open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return any(content.find(name) >= 0 for name in _SCALING)


def takes_raw_texts(session: Any) -> bool:
    return len(session.get_inputs()) == 1 and session.get_inputs()[0].type == "tensor(string)"


class OnnxNetwork:
    """A graph over token ids. If it returns a vector per token, the vector of the text is their mean, or the first of them."""

    vocabulary: int | None = None
    pooling: GraphPooling = "mean"
    dimensions: int | None = None
    """How many values of each vector are returned; None for all."""

    def __init__(self, session: Any, name: str) -> None:
        self._session = session
        self._inputs = {given.name: given.type for given in session.get_inputs()}
        outputs = session.get_outputs()
        chosen = next((each for each in outputs if each.name == "sentence_embedding"), None)
        # `pooler_output` was trained to predict the next sentence; the vector of a text is made from those of its tokens.
        others = [each for each in outputs if each.name != "pooler_output"] or outputs
        chosen = chosen or next((each for each in others if len(each.shape) == 2), None) or others[0]
        self._output, self.has_token_vectors = chosen.name, len(chosen.shape) == 3
        unknown = self._inputs.keys() - {"input_ids", "attention_mask", "token_type_ids", "position_ids"}
        if unknown or "input_ids" not in self._inputs:
            raise ModelError(
                f"the graph of {name} has the inputs {', '.join(self._inputs)}", hint="it must take `input_ids`"
            )

    def start(self, ids: np.ndarray, lengths: np.ndarray) -> Callable[[], np.ndarray]:
        mask = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64)
        given = {
            "input_ids": ids,
            "attention_mask": mask,
            "token_type_ids": np.zeros_like(ids),
            "position_ids": np.broadcast_to(np.arange(ids.shape[1]), ids.shape),
        }
        feed = {
            name: np.ascontiguousarray(given[name], np.int32 if kind == "tensor(int32)" else np.int64)
            for name, kind in self._inputs.items()
        }
        (found,) = self._session.run([self._output], feed)
        if found.ndim == 3 and self.pooling == "cls":
            found = found[:, 0]
        elif found.ndim == 3:
            found = (found * mask[:, :, None]).sum(axis=1) / np.maximum(mask.sum(axis=1, keepdims=True), 1)
        result = np.asarray(found, np.float32)[:, : self.dimensions]
        return lambda: result

    def close(self) -> None:
        self._session = None


class RawTexts:
    """A graph that takes strings, with the settings of one step."""

    def __init__(self, session: Any, max_chars: int | None, long_texts: LongTexts) -> None:
        self._session, self._max_chars, self._long_texts = session, max_chars, long_texts
        self._input = session.get_inputs()[0].name

    def predict(self, texts: Column) -> np.ndarray:
        """float32[rows, dimensions]; a null is treated as an empty text."""
        if self._max_chars is not None:
            texts = pc.utf8_slice_codeunits(texts, 0, self._max_chars)
        elif self._long_texts == "truncate":
            texts = pc.utf8_slice_codeunits(texts, 0, RAW_CHARS)
        rows = [self._vector(text or "") for text in texts.to_pylist()] or [self._vector("")]
        result = np.stack(rows)[: len(texts)]
        if not np.isfinite(result).all():
            raise ValueError("the model returned a value that is not a number")
        return result

    def _vector(self, text: str) -> np.ndarray:
        if len(text) <= RAW_CHARS:
            parts = [text]
        elif self._long_texts == "head_tail":
            parts = [text[: RAW_CHARS // 4] + " " + text[-RAW_CHARS * 3 // 4 :]]
        elif self._long_texts == "windows":
            parts = list(_windows(text))
        else:
            parts = [text[:RAW_CHARS]]
        found = [self._session.run(None, {self._input: np.array([part], object)})[0][0] for part in parts]
        if len(found) == 1:
            return np.asarray(found[0], np.float32)
        return np.average(found, axis=0, weights=[len(part) for part in parts]).astype(np.float32)

    def close(self) -> None:
        """The session is closed with the stage."""


def _windows(text: str) -> list[str]:
    """Parts of at most `RAW_CHARS` characters, which end at a space if there is one."""
    parts, start = [], 0
    while len(text) - start > RAW_CHARS:
        stop = text.rfind(" ", start + RAW_CHARS // 2, start + RAW_CHARS)
        stop = start + RAW_CHARS if stop < 0 else stop
        parts.append(text[start:stop])
        start = stop
    return [*parts, text[start:]]


def key_of(found: ModelFiles) -> str:
    """The key of a session in `Context.shared`."""
    return found.key("onnx")


def shared_session(found: ModelFiles, context: Context) -> Any:
    """The session of a model, opened once per worker."""
    return context.shared(key_of(found), lambda: open_session(found, context.cpus or 1))
