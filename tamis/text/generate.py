"""Local causal language models: the perplexity of texts, and texts that continue a prompt.

For models that need a server, or many at a time, see `tamis.text.ask`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column
from tamis.context import Context
from tamis.errors import ParameterError
from tamis.models.causal import LOGITS_BYTES, TextGenerator, causal_language_model, token_losses
from tamis.models.devices import Device, choose
from tamis.models.files import ModelError, ModelFiles, find, with_files
from tamis.models.text_model import TextModel
from tamis.models.tokens import LongTexts
from tamis.operators import Filter, Map, Resources, Rule, Scores, between, operator
from tamis.text.ask import Template, filled_prompts
from tamis.text.clean import strings
from tamis.text.neural import ACTIVATION_BYTES, check_lengths, network_resources


def _causal(model: str | Path, step: str) -> ModelFiles:
    """The files of a model that transformers runs."""
    found = find(model)
    if found.kind != "transformers":
        raise ModelError(f"`{step}` needs a causal language model of transformers, and {model} is not one")
    return found


@operator(reads="text", writes="neural_perplexity")
class NeuralPerplexity(Filter):
    """Keep documents whose perplexity under a causal language model, such as Llama, Gemma or GPT-2, is within bounds.

    exp(mean loss per token). `model` is a folder with config.json, safetensors weights and a tokenizer, or a Hugging Face name
    in the local cache. A text of more than `max_tokens` tokens is read in windows of nearly equal size, each on its own, or
    cut with `long_texts="truncate"`. The first token of a window is not predicted, unless the tokenizer puts a start token
    before it. A null and a text without a predicted token have no perplexity and are dropped. Useful bounds depend on the
    model, so there are no defaults.

    The logarithm may differ by 1e-5 with the rows that are processed together, and by more on a GPU, which computes in
    bfloat16. Needs `tamis[models]`. `perplexity` is a faster filter by n-grams.

        NeuralPerplexity("models/gemma-3-270m", max_perplexity=200)
    """

    model: str | Path
    column: str = "text"
    min_perplexity: float | None = None
    max_perplexity: float | None = None
    max_tokens: int = 1024
    long_texts: LongTexts = "windows"
    score_column: str = "neural_perplexity"
    batch_size: int | None = None
    device: Device = "auto"

    cost = 1000.0
    tolerance = 1e-2
    measuring_parameters = frozenset({"max_tokens"})
    incidental = frozenset({"batch_size", "device"})

    def check(self) -> None:
        check_lengths(self.name, max_tokens=self.max_tokens, batch_size=self.batch_size)
        if self.min_perplexity is None and self.max_perplexity is None and not self.score_only:
            raise ParameterError(
                f"`{self.name}` has neither `min_perplexity` nor `max_perplexity`",
                hint="look at the values of a sample with score_only=True",
            )
        choose(self.device)
        self._found()

    def packages(self) -> Mapping[str, str]:
        return self._found().packages

    def identity(self) -> dict[str, Any]:
        return with_files(super().identity(), self._found())

    @property
    def resources(self) -> Resources:
        return _with_logits(network_resources(self._found(), self.device, token_losses))

    def open(self, context: Context) -> _PerplexityScorer:
        model = TextModel.open(
            self._found(),
            context,
            build=token_losses,
            max_tokens=self.max_tokens,
            long_texts=self.long_texts,
            batch_size=self.batch_size,
        )
        return _PerplexityScorer(model)

    def rules(self) -> list[Rule]:
        return [between("neural_perplexity", self.min_perplexity, self.max_perplexity)]

    def score_columns(self) -> dict[str, str]:
        return {"neural_perplexity": self.score_column}

    def _found(self) -> ModelFiles:
        return _causal(self.model, self.name)


class _PerplexityScorer:
    def __init__(self, model: TextModel) -> None:
        self._model = model
        self.close = model.close

    def score(self, batch: Batch) -> Scores:
        texts = strings(batch["text"])
        total, predicted = self._model.predict(texts).astype(np.float64).T
        missing = np.asarray(pc.is_null(texts).to_numpy(zero_copy_only=False), np.bool_) | (predicted == 0)
        with np.errstate(over="ignore"):
            values = np.exp(total / np.where(missing, 1, predicted))
        return {"neural_perplexity": pa.array(values, mask=missing)}


@operator()
class Generate(Map):
    """Let a local language model continue a prompt for each row, and add what it writes as a column.

    `prompt` contains the columns that it names in braces; write `{{` and `}}` for braces. It is given to the model as it is;
    for a model that was trained on conversations, write its marks of turns into the prompt. `model` is a folder with
    config.json, safetensors weights and a tokenizer, or a Hugging Face name in the local cache. The text ends where the model
    ends it, after `max_new_tokens` tokens, or before the first of `stop`. A row in which a column of the prompt is null gets
    a null. A prompt that is too long for the model fails its row.

    With `temperature` 0 the most probable token is taken, as transformers' `generate` does. Above 0, tokens are sampled
    with noise that depends on the prompt and the `seed`. Either way the result does not depend on the other rows, except where
    two tokens are almost equally probable: rounding differs with the batch, and on a GPU, which computes in bfloat16. Needs
    `tamis[models]`. For large models, use `ask` with a server such as vLLM.

        Generate("models/gemma-3-270m", prompt="{text}\\n\\nIn short:", output="summary", stop=["\\n"])
    """

    model: str | Path
    prompt: str
    output: str = "generated"
    max_new_tokens: int = 128
    temperature: float = 0
    seed: int = 0
    stop: Sequence[str] = ()
    device: Device = "auto"

    cost = 10_000.0
    batch_rows = 256
    incidental = frozenset({"device"})

    def reads(self) -> tuple[str, ...]:
        return Template.parse(self.prompt, f"`prompt` of `{self.name}`").columns

    def writes(self) -> tuple[str, ...]:
        return (self.output,)

    def check(self) -> None:
        check_lengths(self.name, max_new_tokens=self.max_new_tokens)
        if not self.reads():
            raise ParameterError(
                f"`prompt` of `{self.name}` names no column, so all rows would get the same text",
                hint="name a column in braces: '{text}\\n\\nIn short:'",
            )
        if not 0 <= self.temperature < float("inf"):
            raise ParameterError(f"`temperature` of `{self.name}` must be at least 0, got {self.temperature}")
        if "" in self.stop:
            raise ParameterError(f"`stop` of `{self.name}` must not contain an empty string")
        choose(self.device)
        self._found()

    def packages(self) -> Mapping[str, str]:
        return self._found().packages

    def identity(self) -> dict[str, Any]:
        return with_files(super().identity(), self._found())

    @property
    def resources(self) -> Resources:
        return _with_logits(network_resources(self._found(), self.device, causal_language_model))

    def open(self, context: Context) -> _Writer:
        generator = TextGenerator(
            self._found(),
            context,
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            seed=self.seed,
        )
        return _Writer(self, generator)

    def _found(self) -> ModelFiles:
        return _causal(self.model, self.name)


class _Writer:
    def __init__(self, step: Generate, generator: TextGenerator) -> None:
        self._step, self._generator = step, generator
        self._template = Template.parse(step.prompt, "prompt")

    def apply(self, batch: Batch) -> dict[str, Column]:
        prompts = filled_prompts(batch, [self._template])
        distinct = list(dict.fromkeys(texts[0] for texts in prompts if texts is not None))
        found = dict(zip(distinct, map(self._ended, self._generator.texts(distinct)), strict=True))
        return {self._step.output: pa.array([texts and found[texts[0]] for texts in prompts], pa.string())}

    def _ended(self, text: str) -> str:
        return text[: min((place for stop in self._step.stop if (place := text.find(stop)) >= 0), default=len(text))]


def _with_logits(needs: Resources) -> Resources:
    if needs.gpus:
        return needs
    return Resources(memory=ACTIVATION_BYTES + 2 * LOGITS_BYTES, shared=needs.shared)
