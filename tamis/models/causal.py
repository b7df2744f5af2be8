"""Causal language models of transformers: how probable texts are, and texts that continue prompts.

    token_losses   module: token ids -> the loss of the tokens of each text, for `TextModel`
    TextGenerator  prompts --left padding, batches by tokens--> new tokens --> texts

Logits of all tokens at once would take gigabytes with a large vocabulary, so the loss is computed for a few tokens at a time.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tamis.context import Context
from tamis.errors import is_shortage, require
from tamis.models.batching import plan_batches
from tamis.models.devices import open_torch, release_cached
from tamis.models.files import ModelError, ModelFiles
from tamis.models.network import load_config, transformers_module
from tamis.models.text_model import RUNTIME, key_of
from tamis.models.tokens import TextTokenizer, load_tokenizer, longest_input

LOGITS_BYTES = 64_000_000
"""Logits in memory at a time."""
CPU_TOKENS = 4096
"""Tokens of prompts and answers per batch on a CPU."""
GPU_TOKENS = 262_144


def causal_language_model(folder: Path, config: dict[str, Any]) -> Any:
    """The module of a folder with a causal language model, such as Llama, Gemma, Qwen or GPT-2."""
    settings, transformers = load_config(folder), require("transformers", extra="models", purpose="running a model")
    masked = type(settings) in transformers.MODEL_FOR_MASKED_LM_MAPPING and not settings.is_encoder_decoder
    if masked and not getattr(settings, "is_decoder", True):  # transformers would run it with a warning
        raise ModelError(
            f"{folder} is a model of type {settings.model_type}, which sees the words that it should predict",
            hint="use a causal language model, such as Llama, Gemma, Qwen or GPT-2",
        )
    return transformers_module(folder, "MODEL_FOR_CAUSAL_LM_MAPPING")


def token_losses(folder: Path, config: dict[str, Any]) -> Any:
    """A module that returns for each text (sum of losses / tokens, predicted tokens / tokens).

    `TextModel` averages outputs over the windows of a text, weighted by their tokens, so that the ratio of the two is the mean
    loss over all predicted tokens. The first token of a window is not predicted.
    """
    torch = require("torch", extra="models", purpose="running a model")

    class TokenLosses(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = causal_language_model(folder, config)
            with torch.inference_mode():
                self.plain_head = self._has_plain_head()

        def _has_plain_head(self) -> bool:
            """Whether logits are the last hidden states times a matrix; some architectures scale or cap them."""
            ids = torch.arange(4)[None]
            hidden = self.inner.base_model(input_ids=ids).last_hidden_state
            head = self.inner.get_output_embeddings()
            if head is None:
                return False
            return bool(torch.allclose(head(hidden), self.inner(input_ids=ids).logits, rtol=1e-4, atol=1e-4))

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            predicted = attention_mask[:, 1:].bool()
            if self.plain_head:
                states = self.inner.base_model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
                head = self.inner.get_output_embeddings()
            else:
                states = self.inner(input_ids=input_ids, attention_mask=attention_mask).logits
                head = torch.nn.Identity()
            rows = predicted.nonzero(as_tuple=True)[0]
            states, targets = states[:, :-1][predicted], input_ids[:, 1:][predicted]
            losses = torch.zeros(len(targets), device=states.device)
            step = max(1, LOGITS_BYTES // (4 * int(self.inner.config.get_text_config().vocab_size)))
            for start in range(0, len(targets), step):
                part = slice(start, start + step)
                losses[part] = torch.nn.functional.cross_entropy(
                    head(states[part]).float(), targets[part], reduction="none"
                )
            totals = torch.zeros(len(input_ids), device=states.device).index_add(0, rows, losses)
            lengths = attention_mask.sum(dim=1).clamp(min=1)
            return torch.stack([totals / lengths, predicted.sum(dim=1) / lengths], dim=1)

    return TokenLosses()


@dataclass
class _Loaded:
    """A module and its tokenizer, shared by the steps of a worker."""

    module: Any
    tokenizer: TextTokenizer

    def close(self) -> None:
        self.module = None


def _load(found: ModelFiles, context: Context) -> _Loaded:
    torch = open_torch(context)
    tokenizer = load_tokenizer(found)
    module = causal_language_model(found.folder, found.config)
    known = int(module.get_input_embeddings().num_embeddings)
    if tokenizer.size > known:
        raise ModelError(
            f"the tokenizer of {found.name} has {tokenizer.size} tokens, but the network only {known}",
            hint="tokenizer.json and the weights must be of the same model",
        )
    if context.device != "cpu":
        module = module.to(context.device, torch.bfloat16)
    return _Loaded(module.eval(), tokenizer)


class PromptTooLong(ValueError):
    """A prompt that leaves no space for an answer."""


class TextGenerator:
    """Continues prompts. The same prompt gives the same text whatever others it is processed with, up to rounding."""

    def __init__(
        self, found: ModelFiles, context: Context, *, max_new_tokens: int, temperature: float, seed: int
    ) -> None:
        self._torch = context.shared(RUNTIME, lambda: open_torch(context))
        self._loaded: _Loaded = context.shared(key_of(found, causal_language_model), lambda: _load(found, context))
        self._device, self._temperature, self._seed = context.device, temperature, seed
        self._longest = longest_input(found)
        self._max_new_tokens = max_new_tokens
        self._most_tokens = CPU_TOKENS if context.device == "cpu" else GPU_TOKENS
        ends = found.json("generation_config.json").get("eos_token_id", found.config.get("eos_token_id"))
        self._ends = [ends] if isinstance(ends, int) else [end for end in ends or () if isinstance(end, int)]

    def texts(self, prompts: Sequence[str]) -> list[str]:
        """What the model writes after each prompt, up to its end token or `max_new_tokens`."""
        ids = self._loaded.tokenizer.prompts(prompts)
        lengths = np.array([len(prompt) for prompt in ids], np.int64)
        self._check(lengths)
        found: list[str] = [""] * len(prompts)
        queue = deque(plan_batches(lengths + self._max_new_tokens, self._most_tokens) if len(prompts) else [])
        while queue:
            rows = queue.popleft()
            try:
                made = self._generate([ids[row] for row in rows], [prompts[row] for row in rows])
            except Exception as error:
                if not is_shortage(error) or len(rows) == 1:
                    raise
                error.__traceback__ = None  # its frames hold the memory
                release_cached()
                width = int(lengths[rows].max()) + self._max_new_tokens
                self._most_tokens = max(width, len(rows) * width // 2)
                half = -(-len(rows) // 2)
                queue.extendleft([rows[half:], rows[:half]])
                continue
            for row, text in zip(rows, made, strict=True):
                found[row] = text
        return found

    def _check(self, lengths: np.ndarray) -> None:
        longest = int(lengths.max(initial=0))
        if self._longest is not None and longest + self._max_new_tokens > self._longest:
            raise PromptTooLong(
                f"the prompt has {longest} tokens; with {self._max_new_tokens} new tokens that is more than the "
                f"{self._longest} that the model accepts"
            )

    def _generate(self, ids: Sequence[Sequence[int]], prompts: Sequence[str]) -> list[str]:
        torch = self._torch
        transformers = require("transformers", extra="models", purpose="running a model")
        width = max(map(len, ids))
        padded = np.zeros((len(ids), width), np.int64)
        mask = np.zeros((len(ids), width), np.int64)
        for row, prompt in enumerate(ids):  # on the left, so that all answers begin in the same column
            padded[row, width - len(prompt) :] = prompt
            mask[row, width - len(prompt) :] = 1
        settings = transformers.GenerationConfig(
            do_sample=False,
            max_new_tokens=self._max_new_tokens,
            eos_token_id=self._ends or None,
            pad_token_id=self._ends[0] if self._ends else 0,
        )
        noise = [_Noise(torch, prompts, self._temperature, self._seed, width)] if self._temperature > 0 else []
        broken = _Broken(torch, self._ends, width)
        with torch.inference_mode():
            made = self._loaded.module.generate(
                torch.from_numpy(padded).to(self._device),
                attention_mask=torch.from_numpy(mask).to(self._device),
                generation_config=settings,
                logits_processor=transformers.LogitsProcessorList([broken, *noise]),
            )
        if broken.count:
            raise ValueError(
                f"the model returned a value that is not a number for {broken.count} of {len(ids)} prompts"
            )
        return [self._loaded.tokenizer.text(self._until_end(row)) for row in made[:, width:].tolist()]

    def _until_end(self, ids: list[int]) -> list[int]:
        return ids[: next((place for place, token in enumerate(ids) if token in self._ends), len(ids))]


class _Broken:
    """Notes the rows with a logit that is not a number, whose next token would be arbitrary. Leaves logits as they are."""

    def __init__(self, torch: Any, ends: Sequence[int], width: int) -> None:
        self._torch, self._ends, self._width = torch, ends, width
        self._rows: Any = None

    @property
    def count(self) -> int:
        return 0 if self._rows is None else int(self._rows.sum())

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        torch = self._torch
        ends = torch.tensor(self._ends, dtype=input_ids.dtype, device=input_ids.device)
        has_ended = torch.isin(input_ids[:, self._width :], ends).any(dim=1)
        found = torch.isnan(scores).any(dim=1) & ~has_ended
        self._rows = found if self._rows is None else self._rows | found
        return scores


class _Noise:
    """Samples with the largest of logits / temperature + Gumbel noise, which has the probabilities of a softmax.

    The noise of a row depends on its prompt, the seed and the position only, so the sample does not depend on the batch.
    """

    def __init__(self, torch: Any, prompts: Sequence[str], temperature: float, seed: int, width: int) -> None:
        self._torch, self._temperature, self._width = torch, temperature, width
        keys = [hashlib.sha256(f"{seed} {prompt}".encode("utf-8", "surrogatepass")).digest() for prompt in prompts]
        self._keys = [int.from_bytes(key[:16], "little") for key in keys]

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        position = int(input_ids.shape[1]) - self._width
        noise = np.stack([
            np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, position])).gumbel(size=scores.shape[1])
            for key in self._keys
        ])  # fmt: skip
        return scores / self._temperature + self._torch.from_numpy(noise).to(scores.device, scores.dtype)
