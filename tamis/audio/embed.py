"""Embeddings of sound: one vector per recording, for semantic deduplication and clustering."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tamis.audio.decode import RATE, AudioStep, recordings
from tamis.batch import Batch, Column
from tamis.context import Context
from tamis.errors import TamisError, require
from tamis.models import mel, onnx
from tamis.models.files import AUDIO_DEFAULTS, PREPROCESSOR_FILES, ModelError, ModelFiles, find, with_files
from tamis.models.moonshine import Moonshine
from tamis.models.network import load_config, transformers_module
from tamis.models.outputs import vectors
from tamis.models.recognizers import pieces
from tamis.models.text_model import RUNTIME, open_runtime, runtime_bytes
from tamis.operators import Map, Resources, operator

_PIECE_S = 30.0
_LEAST = 1600
"""Shorter pieces, in samples, are filled up with silence: networks need a tenth of a second."""


@operator(reads="audio", writes="embedding")
class AudioEmbed(AudioStep, Map):
    """Add a vector for what is heard in each recording, as a fixed-size list of float32 or float16.

    `model` is a folder of wav2vec 2.0, HuBERT, WavLM, Whisper or another encoder of transformers that takes samples or
    Whisper's spectrogram, or moonshine-tiny, the default: the encoder of a recognizer, 288 dimensions. The vector is
    the mean of the states of the last layer over time; recordings longer than 30 s are cut at quiet places and
    averaged. Use `SpeakerEmbed` for voices. Vectors of moonshine-tiny point in similar directions: different sentences of one
    speaker have similarities of 0.96 to 0.97, a copy at another volume 0.9999, so `SemanticDedup` needs a threshold of about
    0.98 with them.

    Vectors have length 1 unless `normalize` is False. The vector of a row without sound is null.

        AudioEmbed("models/wavlm-base", dtype="float16")
    """

    model: str | Path = "moonshine-tiny"
    column: str = "audio"
    output: str = "embedding"
    dtype: Literal["float32", "float16"] = "float32"
    normalize: bool = True

    cost = 5000.0
    tolerance = 1e-4

    def found(self) -> ModelFiles:
        found = find(self.model, (PREPROCESSOR_FILES,), AUDIO_DEFAULTS)
        if found.kind not in ("moonshine", "transformers"):
            raise ModelError(
                f"{self.model} is not an encoder of sound", hint="give a folder of transformers, or moonshine-tiny"
            )
        return found

    def check(self) -> None:
        self.found()

    def packages(self) -> Mapping[str, str]:
        return {**super().packages(), **self.found().packages}

    def identity(self) -> dict[str, Any]:
        return with_files(super().identity(), self.found())

    def writes(self) -> tuple[str, ...]:
        return (self.output,)

    @property
    def resources(self) -> Resources:
        try:
            found = self.found()
        except TamisError:  # `check` reports it
            return Resources()
        if found.kind == "moonshine":
            return Resources(
                memory=100_000_000, shared={found.key("sound encoder"): onnx.RUNTIME_BYTES + 2 * found.num_bytes}
            )
        return Resources(
            memory=300_000_000, shared={RUNTIME: runtime_bytes("cpu"), found.key("sound encoder"): found.num_bytes}
        )

    def open(self, context: Context) -> _Embedder:
        found = self.found()
        if found.kind == "transformers":
            context.shared(RUNTIME, lambda: open_runtime(context))
        return _Embedder(self, context.shared(found.key("sound encoder"), lambda: _Encoder(found)))


class _Encoder:
    """Samples to states [time, width]."""

    def __init__(self, found: ModelFiles) -> None:
        self.states: Callable[[np.ndarray], np.ndarray]
        self.width: int
        if found.kind == "moonshine":
            self.states = Moonshine(found).states
            self.width = self.states(np.zeros(RATE, np.float32)).shape[1]
            return
        torch = require("torch", extra="models", purpose=f"running {found.name}")
        config = load_config(found.folder)
        module = transformers_module(found.folder, "MODEL_MAPPING", unused="pooler").eval()
        normalize = bool(found.json("preprocessor_config.json").get("do_normalize", False))
        self.width = int(getattr(config, "d_model", None) or config.hidden_size)

        def states(samples: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                if config.model_type == "whisper":
                    features = torch.from_numpy(mel.whisper_features(samples, config.num_mel_bins))[None]
                    made = module.get_encoder()(features).last_hidden_state[0]
                    made = made[: max(1, len(samples) // 320)]  # the rest is silence
                else:
                    if normalize:
                        samples = (samples - samples.mean()) / np.sqrt(samples.var() + 1e-7)
                    made = module(torch.from_numpy(np.ascontiguousarray(samples, np.float32))[None]).last_hidden_state[
                        0
                    ]
            return np.asarray(made.float().numpy())

        self.states = states


class _Embedder:
    def __init__(self, step: AudioEmbed, encoder: _Encoder) -> None:
        self._step, self._encoder = step, encoder

    def apply(self, batch: Batch) -> dict[str, Column]:
        rows = recordings(batch, "audio")
        missing = np.zeros(len(rows), np.bool_)
        table = np.zeros((len(rows), self._encoder.width), np.float32)
        for number, row in enumerate(rows):
            total, count = np.zeros(self._encoder.width, np.float64), 0
            for _, samples in pieces(row.blocks(), _PIECE_S) if row is not None else ():
                states = self._encoder.states(np.pad(samples, (0, max(0, _LEAST - len(samples)))))
                total += states.sum(axis=0, dtype=np.float64)
                count += len(states)
            missing[number] = not count
            table[number] = total / max(count, 1)
        if not np.isfinite(table).all():
            raise ValueError("the model returned a value that is not a number")
        if self._step.normalize:
            table /= np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
        return {self._step.output: vectors(table, missing, self._step.dtype)}
