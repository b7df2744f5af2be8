"""Steps that run a neural network on texts, and the classifier for any sequence-classification folder.

model folder --load once per worker--> TextModel --logits--> labels, scores --filter_by--> kept rows
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column
from tamis.context import Context
from tamis.errors import ParameterError, TamisError
from tamis.models import onnx, text_model
from tamis.models.devices import Device, choose, why_not_gpu
from tamis.models.files import ModelError, ModelFiles, find, with_files
from tamis.models.network import Build, sequence_classifier
from tamis.models.outputs import Task, check_labels, check_names, label_scores, task_of
from tamis.models.text_model import TextModel, input_length, load_onnx
from tamis.models.tokens import LongTexts, TextTokenizer, load_tokenizer, longest_input
from tamis.models.word_cache import CACHE_BYTES
from tamis.operators import Filter, Map, Operator, Resources, Rule, Scores, between, one_of, operator
from tamis.text.clean import strings

ACTIVATION_BYTES = 64_000_000
"""What a batch takes on a CPU: 1,024 tokens at about 30 kB, and the tokens of all rows."""

TOKENIZER_COPIES = 8
"""Memory of a tokenizer, relative to its files."""

WORKERS_PER_GPU = 3
"""Workers that share a GPU if the network is small: while one of them assembles tokens or hands on rows, another computes
(benchmarks/models.md)."""

SMALL_NETWORK_BYTES = 2_000_000_000
"""Larger networks keep a GPU busy with one worker, which loads their weights once. With the 1.2 GB of ViT-L/14, one worker
left it idle for more than half of the time (benchmarks/image_models.md)."""


def network_resources(found: ModelFiles, device: Device, build: Build) -> Resources:
    """What a step needs that runs a network: a GPU if there is one, the weights, and the libraries."""
    place = "cpu" if device == "cpu" or why_not_gpu("torch") else "gpu"
    shared = {text_model.RUNTIME: text_model.runtime_bytes(place), text_model.key_of(found, build): found.num_bytes}
    if place == "gpu":
        gpus = 1 / WORKERS_PER_GPU if found.num_bytes <= SMALL_NETWORK_BYTES else 1
        return Resources(gpus=gpus, shared=shared)
    return Resources(memory=ACTIVATION_BYTES + CACHE_BYTES, shared=shared)


def onnx_resources(found: ModelFiles) -> Resources:
    """What a step needs that runs an ONNX graph."""
    return Resources(memory=ACTIVATION_BYTES, shared={onnx.key_of(found): onnx.RUNTIME_BYTES + 2 * found.num_bytes})


def open_network(
    found: ModelFiles,
    context: Context,
    build: Build,
    *,
    max_tokens: int | None,
    max_chars: int | None,
    long_texts: LongTexts,
    batch_size: int | None,
) -> TextModel | onnx.RawTexts:
    """A network of transformers, made by `build`, or an ONNX graph; loaded once per worker."""
    settings: dict[str, Any] = {
        "max_tokens": max_tokens,
        "max_chars": max_chars,
        "long_texts": long_texts,
        "batch_size": batch_size,
    }
    if found.kind != "onnx":
        return TextModel.open(found, context, build=build, **settings)
    session = onnx.shared_session(found, context)
    if onnx.takes_raw_texts(session):
        return onnx.RawTexts(session, max_chars, long_texts)
    if onnx.scales_by_batch(found):
        settings["batch_size"] = 1
    return TextModel(load_onnx(found, session), context, **settings)


def check_place(found: ModelFiles, device: Device, tokens: str | None) -> None:
    """Raise if a model can neither use a GPU nor read tokens, but has to."""
    if device == "gpu" and found.kind != "transformers":
        raise ParameterError(f'`device="gpu"`: {found.name} runs on the CPU only', hint='use device="auto"')
    if tokens is not None and found.kind != "transformers":
        raise ParameterError(f"`tokens`: {found.name} reads texts", hint="leave out `tokens`")


def known(model: str | Path) -> ModelFiles | None:
    """The files of a model; None if there is none, which `check` reports."""
    try:
        return find(model)
    except TamisError:
        return None


def check_lengths(step: str, **lengths: int | None) -> None:
    """Raise if a limit is not positive."""
    for name, value in lengths.items():
        if value is not None and value < 1:
            raise ParameterError(f"`{name}` of `{step}` must be at least 1, got {value}")


@operator(reads="text", writes="tokens")
class Tokenize(Map):
    """Add the token ids of each document for a model, without special tokens, as a list of int32; null for a null text.

    A run on a GPU adds this step before `Embed` and `Classifier`, so that CPU workers tokenize while the GPU computes. The
    parameters are those of the step that uses the tokens. Needs `tamis[models]`.

        Tokenize("minilm", max_tokens=256)
    """

    model: str | Path
    column: str = "text"
    output: str = "tokens"
    max_tokens: int | None = None
    max_chars: int | None = None
    long_texts: LongTexts = "truncate"
    as_part: bool = False
    """Added by a run, in place of work that the next step would do itself."""

    cost = 20.0

    @property
    def decides(self) -> bool:
        return not self.as_part

    def check(self) -> None:
        check_lengths(self.name, max_tokens=self.max_tokens, max_chars=self.max_chars)
        find(self.model)

    def packages(self) -> Mapping[str, str]:
        return {"tokenizers": "models"}

    def identity(self) -> dict[str, Any]:
        return with_files(super().identity(), find(self.model))

    def writes(self) -> tuple[str, ...]:
        return (self.output,)

    @property
    def resources(self) -> Resources:
        found = known(self.model)
        if found is None:
            return Resources()
        size = sum(path.stat().st_size for path in found.others)
        return Resources(shared={found.key("tokenizer"): TOKENIZER_COPIES * size + CACHE_BYTES})

    def open(self, context: Context) -> _Tokenizer:
        found = find(self.model)
        most = input_length(longest_input(found), self.max_tokens)
        return _Tokenizer(self, context.shared(found.key("tokenizer"), lambda: load_tokenizer(found)), most)


@dataclass(frozen=True)
class _Tokenizer:
    step: Tokenize
    tokenizer: TextTokenizer
    max_tokens: int

    def apply(self, batch: Batch) -> dict[str, Column]:
        step = self.step
        found = self.tokenizer.contents(strings(batch["text"]), self.max_tokens, step.long_texts, step.max_chars)
        return {step.output: found}


def tokenized_before(step: Operator, model: str | Path, device: Device, column: str) -> list[Operator]:
    """On a GPU, a step that tokenizes in CPU workers and the step itself, which reads the tokens; else the step."""
    found = known(model)
    if getattr(step, "tokens", None) or found is None or found.kind != "transformers" or why_not_gpu("torch"):
        return [step]
    if device == "cpu":
        return [step]
    settings = {name: getattr(step, name) for name in ("model", "max_tokens", "max_chars", "long_texts")}
    tokens = f"tokens for {step.name} (of this run)"  # replaces no column of the user
    return [Tokenize(column=column, output=tokens, as_part=True, **settings), step.changed(tokens=tokens)]


class ReadsTokens(Operator):
    """Reads texts, or the column `tokens` that `Tokenize` wrote, which is then removed."""

    tokens: str | None

    def reads(self) -> tuple[str, ...]:
        return (self.tokens or "text",)

    def real_names(self) -> dict[str, str]:
        return {self.tokens: self.tokens} if self.tokens else super().real_names()

    def removes(self, columns: Sequence[str]) -> tuple[str, ...]:
        return (self.tokens,) if self.tokens else ()


@operator(reads="text", writes=("label", "score"))
class Classifier(ReadsTokens, Filter):
    """Add the label that a sequence-classification model gives each document, and keep only some labels if requested.

    `model` is a folder with config.json, safetensors weights and a tokenizer, a Hugging Face name in the local cache, or an
    ONNX file with config.json and tokenizer.json beside it. Its logits equal those of transformers. By the configuration of the
    model:

    task           label_field                                     score_field
    single label   the most probable label                         its probability (softmax)
    several labels list of those with a probability of at least    the highest probability (sigmoid)
                   0.5, in the order of the model
    regression     none                                            the output of the model

    `filter_by` keeps documents with one of these labels. `min_score` and `max_score` bound the score. `probabilities` names a
    column for the probabilities of all labels, as a fixed-size list. A null text has no label, and a filter drops it.

    The network reads the first `max_tokens` tokens; `long_texts="head_tail"` reads a quarter of them from the start and the
    rest from the end, and "windows" reads the whole text in windows and averages the logits. Scores may differ by 1e-5 with
    the rows that are processed together, and by more on a GPU, which computes in bfloat16. Needs `tamis[models]`.

        Classifier("models/toxicity", filter_by=["neutral"])
    """

    model: str | Path
    column: str = "text"
    label_field: str = "label"
    score_field: str = "score"
    probabilities: str | None = None
    filter_by: Sequence[str] = ()
    min_score: float | None = None
    max_score: float | None = None
    max_tokens: int | None = None
    max_chars: int | None = None
    long_texts: LongTexts = "truncate"
    model_inference_batch_size: int | None = None
    device: Device = "auto"
    tokens: str | None = None
    """A column that `Tokenize` wrote, which is then read in place of the text and removed."""

    cost = 1000.0
    tolerance = 1e-5
    measuring_parameters = frozenset({"max_tokens", "max_chars"})
    verdict_parameters = frozenset({"filter_by"})
    incidental = frozenset({"model_inference_batch_size", "device", "tokens"})

    @property
    def adds_scores(self) -> bool:
        return True

    def check(self) -> None:
        check_lengths(self.name, max_tokens=self.max_tokens, max_chars=self.max_chars,
                      model_inference_batch_size=self.model_inference_batch_size)  # fmt: skip
        found = self._found()
        if found.kind not in ("transformers", "onnx"):
            raise ModelError(
                f"`{self.name}` needs a sequence-classification model, and {self.model} is not one",
                hint="give a folder of transformers, or an ONNX file beside its config.json and tokenizer.json",
            )
        check_place(found, self.device, self.tokens)
        choose(self.device)
        task, labels = task_of(found)
        if self.filter_by and task == "regression":
            raise ParameterError(
                f"{self.model} has no labels to filter by: it is a regression", hint="use `min_score` and `max_score`"
            )
        check_labels(self.model, self.filter_by, labels)
        check_names(self.name, self.writes(), {self.column})

    def packages(self) -> Mapping[str, str]:
        return self._found().packages

    def identity(self) -> dict[str, Any]:
        return with_files(super().identity(), self._found())

    def parts(self) -> Sequence[Operator]:
        return tokenized_before(self, self.model, self.device, self.column)

    @property
    def resources(self) -> Resources:
        found = known(self.model)
        if found is None:
            return Resources()
        if found.kind == "onnx":
            return onnx_resources(found)
        return network_resources(found, self.device, sequence_classifier)

    def open(self, context: Context) -> _Labeler:
        found = self._found()
        model = open_network(
            found,
            context,
            sequence_classifier,
            max_tokens=self.max_tokens,
            max_chars=self.max_chars,
            long_texts=self.long_texts,
            batch_size=self.model_inference_batch_size,
        )
        return _Labeler(self, model, *task_of(found))

    def rules(self) -> list[Rule]:
        rules = []
        if self.filter_by:
            several = task_of(self._found())[0] == "multi"
            rules.append(AnyOf("label", allowed=tuple(self.filter_by)) if several else one_of("label", self.filter_by))
        if self.min_score is not None or self.max_score is not None:
            rules.append(between("score", self.min_score, self.max_score))
        return rules

    def score_columns(self) -> dict[str, str]:
        names = {"score": self.score_field}
        found = known(self.model)
        if found is None or task_of(found)[0] != "regression":
            names = {"label": self.label_field, **names}
            if self.probabilities is not None:
                names["probabilities"] = self.probabilities
        return names

    def _found(self) -> ModelFiles:
        return find(self.model)


@dataclass(frozen=True)
class AnyOf(Rule):
    """Keeps a row if a list of labels has one of those allowed."""

    @property
    def met(self) -> str:
        return f"{self.score} has one of {', '.join(self.allowed or ())}"

    def verdicts(self, values: Column) -> list[tuple[str, np.ndarray]]:
        assert self.allowed is not None
        missing = np.asarray(pc.is_null(values).to_numpy(zero_copy_only=False), np.bool_)
        parents = pc.list_parent_indices(values).to_numpy()
        wanted = pc.is_in(pc.list_flatten(values), value_set=pa.array(self.allowed)).to_numpy(zero_copy_only=False)
        found = np.zeros(len(values), np.bool_)
        found[parents[np.asarray(wanted, np.bool_)]] = True
        result = [(f"{self.score} is missing", missing)] if missing.any() else []
        return [*result, (f"{self.score} has none of {', '.join(self.allowed)}", ~found & ~missing)]


class _Labeler:
    def __init__(self, step: Classifier, model: TextModel | onnx.RawTexts, task: Task, labels: list[str]) -> None:
        self._step, self._model, self._task = step, model, task
        self._labels = pa.array(labels, pa.string())

    def score(self, batch: Batch) -> Scores:
        empty, logits = outputs(self._model, batch, self._step.tokens)
        found = label_scores(logits, empty, self._task, self._labels, str(self._step.model))
        return {name: values for name, values in found.items() if name in self._step.score_columns()}

    def take_limits(self) -> dict[str, int]:
        return self._model.take_limits() if isinstance(self._model, TextModel) else {}

    def close(self) -> None:
        self._model.close()


def outputs(model: TextModel | onnx.RawTexts, batch: Batch, tokens: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(which texts are null, the outputs of the network), from texts or from their tokens."""
    column = batch[tokens] if tokens else strings(batch["text"])
    empty = np.asarray(pc.is_null(column).to_numpy(zero_copy_only=False), np.bool_)
    if tokens:
        assert isinstance(model, TextModel)
        return empty, model.predict_tokens(column)
    return empty, model.predict(column)
