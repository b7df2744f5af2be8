"""Embeddings of texts: one vector per document.

transformers or sentence-transformers folder   a torch module, on a CPU or a GPU
ONNX file                                      onnxruntime, on a CPU
static vectors (WordLlama)                     the mean of the vectors of its tokens, without a network
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow.compute as pc

from tamis.batch import Batch, Column
from tamis.context import Context
from tamis.models import static
from tamis.models.devices import Device, choose
from tamis.models.encoders import encoder
from tamis.models.files import ModelFiles, find, with_files
from tamis.models.outputs import vectors
from tamis.models.text_model import TextModel
from tamis.models.tokens import LongTexts
from tamis.operators import Map, Operator, Resources, operator
from tamis.text.clean import strings
from tamis.text.neural import (
    ReadsTokens,
    check_lengths,
    check_place,
    known,
    network_resources,
    onnx_resources,
    open_network,
    tokenized_before,
)


@operator(reads="text", writes="embedding")
class Embed(ReadsTokens, Map):
    """Add a vector for each document, as a fixed-size list of float32 or float16.

    `model` is one of the defaults below, a folder of transformers or sentence-transformers, an ONNX file, or a Hugging Face
    name in the local cache.

    minilm             all-MiniLM-L6-v2, English, 384 dimensions, at most 256 tokens; needs `tamis[models,embeddings]`
    wordllama          mean of static vectors, English, 256 dimensions, very fast; needs `tamis[embeddings]`
    use-multilingual   Universal Sentence Encoder, 16 languages, 512 dimensions; needs `tamis[onnx]` and its file

    Vectors have length 1 unless `normalize` is False. A text that is longer than `max_tokens` is cut, or read with
    `long_texts="head_tail"` or "windows", whose vectors are averaged. The default prompt of a sentence-transformers folder, if
    it has one, precedes each text. The vector of a null text is null. Vectors may differ by 1e-5 with the rows that are
    processed together, and by 0.002 on a GPU, which computes in bfloat16.

        Embed("minilm", dtype="float16")
    """

    model: str | Path = "minilm"
    column: str = "text"
    output: str = "embedding"
    dtype: Literal["float32", "float16"] = "float32"
    normalize: bool = True
    max_tokens: int | None = None
    max_chars: int | None = None
    long_texts: LongTexts = "truncate"
    batch_size: int | None = None
    device: Device = "auto"
    tokens: str | None = None
    """A column that `Tokenize` wrote, which is then read in place of the text and removed."""

    cost = 1000.0
    tolerance = 1e-5
    incidental = frozenset({"batch_size", "device", "tokens"})

    def check(self) -> None:
        check_lengths(self.name, max_tokens=self.max_tokens, max_chars=self.max_chars, batch_size=self.batch_size)
        check_place(self._found(), self.device, self.tokens)
        choose(self.device)

    def packages(self) -> Mapping[str, str]:
        return self._found().packages

    def identity(self) -> dict[str, Any]:
        return with_files(super().identity(), self._found())

    def parts(self) -> Sequence[Operator]:
        return tokenized_before(self, self.model, self.device, self.column)

    def writes(self) -> tuple[str, ...]:
        return (self.output,)

    @property
    def resources(self) -> Resources:
        found = known(self.model)
        if found is None:
            return Resources()
        if found.kind == "static":
            return Resources(shared={static.key_of(found): static.memory_bytes(found)})
        if found.kind == "onnx":
            return onnx_resources(found)
        return network_resources(found, self.device, encoder)

    def open(self, context: Context) -> Embedder:
        return Embedder(self, open_vectors(self, self._found(), context))

    def _found(self) -> ModelFiles:
        return find(self.model)


class VectorModel(Protocol):
    """A model that returns a vector for each text."""

    def predict(self, texts: Column) -> np.ndarray:
        """float32[rows, dimensions]; a null is treated as an empty text."""

    def close(self) -> None: ...


def open_vectors(step: Embed, found: ModelFiles, context: Context) -> VectorModel:
    """The model of a step, loaded once per worker."""
    if found.kind == "static":
        return static.StaticTexts.open(found, context, step.max_tokens, step.max_chars, step.long_texts)
    return open_network(
        found,
        context,
        encoder,
        max_tokens=step.max_tokens,
        max_chars=step.max_chars,
        long_texts=step.long_texts,
        batch_size=step.batch_size,
    )


class Embedder:
    """Runs `Embed`; other steps use `vectors` to embed texts themselves."""

    def __init__(self, step: Embed, model: VectorModel) -> None:
        self._step, self._model = step, model

    def vectors(self, texts: Column) -> np.ndarray:
        """A vector for each text, float32[rows, dimensions], of length 1 if the step normalizes."""
        return self._normalized(self._model.predict(strings(texts)))

    def _normalized(self, found: np.ndarray) -> np.ndarray:
        if not self._step.normalize:
            return found
        return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)

    def apply(self, batch: Batch) -> dict[str, Column]:
        step, model = self._step, self._model
        column = batch[step.tokens or "text"]
        empty = np.asarray(pc.is_null(column).to_numpy(zero_copy_only=False), np.bool_)
        if step.tokens:
            assert isinstance(model, TextModel)
            found = self._normalized(model.predict_tokens(column))
        else:
            found = self.vectors(column)
        return {step.output: vectors(found, empty, step.dtype)}

    def take_limits(self) -> dict[str, int]:
        return self._model.take_limits() if isinstance(self._model, TextModel) else {}

    def close(self) -> None:
        self._model.close()
