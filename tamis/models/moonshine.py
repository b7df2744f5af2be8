"""Speech to text with Moonshine (Jeffries et al. 2024), as ONNX graphs.

    16 kHz --encoder--> states [1, time, width] --decoder, one token at a time--> tokens --tokenizer--> text

The published graphs are quantised: they scale their numbers by the largest value in a batch. Clips would change each
other's transcripts, so they are run one at a time, on one thread. The encoder and the first token are computed by onnxruntime,
all other tokens by `moonshine_decoder.py`, unless it does not know the graph, which onnxruntime then runs to the end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tamis.errors import require
from tamis.models.files import ModelError, ModelFiles
from tamis.models.moonshine_decoder import Decoder, UnknownGraph
from tamis.models.onnx import open_graph

MAX_S = 64.0
"""The longest clip that the model was trained for."""

MIN_S = 0.1
TOKENS_PER_S = 6.5
"""More tokens per second of speech are an endless repetition, the limit in the code of its authors."""

_START, _END = 1, 2


class Moonshine:
    """The graphs and the tokenizer of one model."""

    def __init__(self, found: ModelFiles) -> None:
        runtime = require("onnxruntime", extra="onnx", purpose=f"running {found.name}")
        tokenizers = require("tokenizers", extra="onnx", purpose=f"running {found.name}")
        files = {path.stem: path for path in found.weights}
        self._path = _part(files, "decoder_model_merged", found)
        self._encoder = open_graph(_part(files, "encoder_model", found), found.name, arena=True)
        self._graph = open_graph(self._path, found.name, arena=True)
        self._tokenizer = tokenizers.Tokenizer.from_file(str(found.others[0]))
        self._value = runtime.OrtValue.ortvalue_from_numpy
        self._encoder_mask = any(given.name == "attention_mask" for given in self._encoder.get_inputs())
        given = {each.name: each.shape for each in self._graph.get_inputs()}
        self._graph_mask = "encoder_attention_mask" in given
        self._past = {name: (0, shape[1], 1, shape[3]) for name, shape in given.items() if name.startswith("past_")}
        self._outputs = [each.name for each in self._graph.get_outputs()]
        self._changing = [name for name in self._outputs if ".encoder." not in name]

    @functools.cached_property
    def _decoder(self) -> Decoder | None:
        """The fast decoder, if it knows the graph."""
        _, heads, _, size = next(iter(self._past.values()))
        try:
            return Decoder(self._path, len(self._past) // 4, heads, size)
        except UnknownGraph:
            return None

    def transcribe(self, samples: np.ndarray) -> tuple[str, float]:
        """The text of a clip, and how likely its tokens were: the geometric mean of their probabilities."""
        tokens, logarithms = self._tokens(samples)
        text = self._tokenizer.decode(tokens, skip_special_tokens=True).strip()
        return text, float(np.exp(np.mean(logarithms))) if logarithms else 0.0

    def states(self, samples: np.ndarray) -> np.ndarray:
        """What the encoder hears, float32[time, width]."""
        states, _ = self._encoded(samples)
        return np.asarray(states.numpy()[0], np.float32)

    def _encoded(self, samples: np.ndarray) -> tuple[Any, Any]:
        """The states of the encoder, and the mask of all samples."""
        values = np.ascontiguousarray(samples, np.float32)[None]
        mask = self._value(np.ones(values.shape, np.int64))
        given = {"input_values": self._value(values)} | ({"attention_mask": mask} if self._encoder_mask else {})
        (states,) = self._encoder.run_with_ort_values(["last_hidden_state"], given)
        return states, mask

    def _tokens(self, samples: np.ndarray) -> tuple[list[int], list[float]]:
        most = max(8, int(len(samples) / 16_000 * TOKENS_PER_S))
        logits, following = self._begin(samples, most)
        tokens, logarithms = [], []
        while True:
            token = int(logits.argmax())
            logarithms.append(-float(np.log(np.exp(logits - logits[token]).sum())))
            if token == _END:
                break
            tokens.append(token)
            if len(tokens) == most:
                break
            logits = following(token)
        return tokens, logarithms

    def _begin(self, samples: np.ndarray, most: int) -> tuple[np.ndarray, Callable[[int], np.ndarray]]:
        """The scores of all first tokens, and a function that returns those after one more token."""
        states, mask = self._encoded(samples)
        given = {"encoder_hidden_states": states} | ({"encoder_attention_mask": mask} if self._graph_mask else {})
        given |= {name: self._value(np.zeros(shape, np.float32)) for name, shape in self._past.items()}
        logits, present = self._run(_START, given, self._outputs, first=True)
        if self._decoder is not None:
            text = self._decoder.start({name: value.numpy() for name, value in present.items()}, most)
            return logits, text.next

        def following(token: int) -> np.ndarray:
            nonlocal present
            given.update((name.replace("present", "past_key_values"), value) for name, value in present.items())
            scores, present = self._run(token, given, self._changing, first=False)
            return scores

        return logits, following

    def _run(
        self, token: int, given: dict[str, Any], wanted: list[str], *, first: bool
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """The scores of all next tokens, and keys and values, by the graph."""
        inputs = {
            "input_ids": self._value(np.array([[token]], np.int64)),
            "use_cache_branch": self._value(np.array([not first])),
        }
        found = self._graph.run_with_ort_values(wanted, given | inputs)
        return found[0].numpy()[0, -1], dict(zip(wanted[1:], found[1:], strict=True))

    def close(self) -> None:
        self._encoder = self._graph = None
        vars(self).pop("_decoder", None)


def _part(files: dict[str, Path], name: str, found: ModelFiles) -> Path:
    if name not in files:
        raise ModelError(f"the model {found.name} has no {name}.onnx", hint=f"put it into {found.folder}")
    return files[name]
