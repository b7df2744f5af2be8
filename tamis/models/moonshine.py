"""Speech to text with Moonshine (Jeffries et al. 2024), as ONNX graphs.

    16 kHz --encoder--> states [1, time, width] --decoder, one token at a time--> tokens --tokenizer--> text

The published graphs are quantised: they scale their numbers by the largest value in a batch. Clips would change each
other's transcripts, so they are run one at a time, on one thread. Keys and values of the encoder are computed once per
clip and stay inside onnxruntime.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tamis.errors import require
from tamis.models.files import ModelError, ModelFiles
from tamis.models.onnx import open_graph

MAX_S = 64.0
"""The longest clip that the model was trained for."""

MIN_S = 0.1
TOKENS_PER_S = 6.5
"""More tokens per second of speech are an endless repetition (Jeffries et al. 2024, section 3.2)."""

_START, _END = 1, 2


class Moonshine:
    """The graphs and the tokenizer of one model."""

    def __init__(self, found: ModelFiles) -> None:
        runtime = require("onnxruntime", extra="onnx", purpose=f"running {found.name}")
        tokenizers = require("tokenizers", extra="onnx", purpose=f"running {found.name}")
        files = {path.stem: path for path in found.weights}
        self._encoder = open_graph(_part(files, "encoder_model", found), found.name)
        self._decoder = open_graph(_part(files, "decoder_model_merged", found), found.name)
        self._tokenizer = tokenizers.Tokenizer.from_file(str(found.others[0]))
        self._value = runtime.OrtValue.ortvalue_from_numpy
        self._encoder_mask = any(given.name == "attention_mask" for given in self._encoder.get_inputs())
        given = {each.name: each.shape for each in self._decoder.get_inputs()}
        self._decoder_mask = "encoder_attention_mask" in given
        self._past = {name: (0, shape[1], 1, shape[3]) for name, shape in given.items() if name.startswith("past_")}
        self._outputs = [each.name for each in self._decoder.get_outputs()]
        self._changing = [name for name in self._outputs if ".encoder." not in name]

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
        states, mask = self._encoded(samples)
        fixed = {"encoder_hidden_states": states} | ({"encoder_attention_mask": mask} if self._decoder_mask else {})
        past = {name: self._value(np.zeros(shape, np.float32)) for name, shape in self._past.items()}
        tokens, logarithms, last = [], [], _START
        for step in range(max(8, int(len(samples) / 16_000 * TOKENS_PER_S))):
            wanted = self._changing if step else self._outputs
            inputs = {
                "input_ids": self._value(np.array([[last]], np.int64)),
                "use_cache_branch": self._value(np.array([step > 0])),
            }
            found = self._decoder.run_with_ort_values(wanted, fixed | past | inputs)
            logits = found[0].numpy()[0, -1]
            last = int(logits.argmax())
            logarithms.append(-float(np.log(np.exp(logits - logits[last]).sum())))
            if last == _END:
                break
            tokens.append(last)
            for name, value in zip(wanted[1:], found[1:], strict=True):
                past[name.replace("present", "past_key_values")] = value
        return tokens, logarithms

    def close(self) -> None:
        self._encoder = self._decoder = None


def _part(files: dict[str, Path], name: str, found: ModelFiles) -> Path:
    if name not in files:
        raise ModelError(f"the model {found.name} has no {name}.onnx", hint=f"put it into {found.folder}")
    return files[name]
