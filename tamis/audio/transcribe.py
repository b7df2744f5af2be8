"""Speech to text.

on a CPU   audio --decode--> pieces of at most 30 s --sorted by length, in batches--> recognizer --> transcript
on a GPU   audio --AudioSamples, CPU workers--> samples ==packets==> recognizer, GPU worker --> transcript
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.audio.decode import RATE, AudioStep, Recording, recordings
from tamis.audio.neural import ACTIVATION_BYTES
from tamis.batch import Batch, Column
from tamis.context import Context
from tamis.errors import AudioError, ParameterError, TamisError, did_you_mean
from tamis.models import onnx
from tamis.models.devices import Device, choose, why_not_gpu
from tamis.models.files import ModelFiles, with_files
from tamis.models.recognizers import NOTHING, Heard, Recognizer, Wish, find_recognizer, joined, open_recognizer, pieces
from tamis.models.text_model import RUNTIME, open_runtime, runtime_bytes
from tamis.operators import Map, Operator, Resources, operator

WORDS = pa.list_(
    pa.struct(
        [
            pa.field("text", pa.string()),
            pa.field("start", pa.float64()),
            pa.field("end", pa.float64()),
            pa.field("confidence", pa.float64()),
        ]
    )
)
"""The type of a column of words with times in seconds."""

HELD_SAMPLES = 16 * 30 * RATE
"""On a CPU, pieces of recordings are collected up to this many samples before they are sorted by length and run."""

MAX_SAMPLES_S = 3600.0
"""The longest recording that is passed to a GPU worker as a whole."""

GPU_BATCH_BYTES = 192_000_000
"""Samples of a batch for a GPU worker: 200 clips of 30 s."""

GPU_ROOM_BYTES = 1_500_000_000
"""GPU memory beside weights of 16 bits: four clips at a time of Whisper large-v3. More are transcribed where there is more."""

WORKERS_PER_GPU = 3
"""Decoders compute a token with a thousand small kernels, whose starts leave a GPU idle: other workers use it meanwhile, also
if the network is large."""


@operator(reads="audio", writes="samples")
class AudioSamples(AudioStep, Map):
    """Add the samples of each recording as a network reads them: mono, 16 kHz, 16 bits, little-endian, as binary.

    A run on a GPU adds this step before `Transcribe`, so that CPU workers decode while the GPU computes. The samples of
    a row without sound are null. A recording of more than an hour fails: cut it into segments first.

        AudioSamples()
    """

    column: str = "audio"
    output: str = "samples"
    as_part: bool = False
    """Added by a run, in place of work that the next step would do itself."""

    @property
    def decides(self) -> bool:
        return not self.as_part

    def writes(self) -> tuple[str, ...]:
        return (self.output,)

    def apply(self, batch: Batch) -> dict[str, Column]:
        found = [None if row is None else _samples(row) for row in recordings(batch, "audio")]
        return {self.output: pa.array(found, pa.binary())}


def _samples(recording: Recording) -> bytes:
    if recording.duration > MAX_SAMPLES_S:
        raise AudioError(
            "too long", f"it has {recording.duration:,.0f} s", hint="cut it into segments first, with SpeechSegments"
        )
    parts = [np.rint(np.clip(block, -1, 1) * 32767).astype("<i2") for block in recording.blocks()]
    return np.concatenate(parts).tobytes() if parts else b""


@operator(reads="audio", writes=("transcript", "transcript_confidence", "transcript_language"))
class Transcribe(AudioStep, Map):
    """Add the text that is spoken in each recording.

    moonshine-tiny    Moonshine tiny (Jeffries et al. 2024; MIT): English, the default. No times. Needs
                      `tamis[audio,onnx]` and its files.
    whisper-tiny.en   Whisper tiny (Radford et al. 2022; MIT), converted for CTranslate2: English. Needs
                      `tamis[audio,audio-models]` and its files.
    a folder          of Whisper (transformers, or CTranslate2 with tokenizer.json), of a network with a CTC head
                      (wav2vec 2.0, HuBERT, WavLM, ...; transformers), or of Moonshine (ONNX)

    `transcript_confidence` is the geometric mean of the probabilities of the tokens. `transcript_language` is the
    language that the model recognized, or the one given as `language`, which it must know. With `times`, the column
    `words` has the words with their begin, end (in seconds from the begin of the row) and confidence; Whisper folders
    of transformers have longer pieces there, and Moonshine has none (null).

    Recordings longer than 30 s (60 s for CTC) are cut at quiet places; their memory does not depend on their length.
    The transcript of a row without sound is null. Transcripts do not depend on the other rows of a batch, except for
    rounding with transformers.

        Transcribe(times=True, model="models/whisper-large-v3", language="de")
    """

    model: str | Path = "moonshine-tiny"
    column: str = "audio"
    output: str = "transcript"
    language: str | None = None
    times: bool = False
    beams: int = 1
    max_tokens: int = 224
    batch_size: int | None = None
    """Clips at a time; None for as many as suit the network and its memory."""
    device: Device = "auto"
    samples: str | None = None
    """A column that `AudioSamples` wrote, which is then read in place of the recording and removed."""

    cost = 20_000.0
    tolerance = 1e-3
    incidental = frozenset({"batch_size", "device", "samples"})

    def check(self) -> None:
        for name in ("beams", "max_tokens", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ParameterError(f"`{name}` of `{self.name}` must be at least 1, got {value}")
        found = find_recognizer(self.model)
        if self.device == "gpu" and found.kind == "moonshine":
            raise ParameterError(f'`device="gpu"`: {self.model} runs on the CPU only', hint='use device="auto"')
        choose(self.device)

    def packages(self) -> Mapping[str, str]:
        return {**super().packages(), **find_recognizer(self.model).packages}

    def identity(self) -> dict[str, Any]:
        return with_files(super().identity(), find_recognizer(self.model))

    def parts(self) -> Sequence[Operator]:
        if self.samples or not self._on_gpu():
            return [self]
        output = f"samples for {self.name} (of this run)"  # replaces no column of the user
        return [AudioSamples(self.column, output, as_part=True), self.changed(samples=output)]

    def _on_gpu(self) -> bool:
        if self.device == "cpu" or why_not_gpu("torch"):
            return False
        try:
            found = find_recognizer(self.model)
        except TamisError:  # `check` reports it
            return False
        return found.kind == "transformers" or (found.kind == "ctranslate2" and self.device == "gpu")

    def reads(self) -> tuple[str, ...]:
        return (self.samples or "audio",)

    def real_names(self) -> dict[str, str]:
        return {self.samples: self.samples} if self.samples else super().real_names()

    def removes(self, columns: Sequence[str]) -> tuple[str, ...]:
        return (self.samples,) if self.samples else ()

    def writes(self) -> tuple[str, ...]:
        named = (self.output, f"{self.output}_confidence", f"{self.output}_language")
        return (*named, "words") if self.times else named

    @property
    def row_bytes(self) -> int:
        return 0 if self.samples else super().row_bytes

    @property
    def batch_bytes(self) -> int | None:
        return GPU_BATCH_BYTES if self.samples else None

    @property
    def resources(self) -> Resources:
        try:
            found = find_recognizer(self.model)
        except TamisError:
            return Resources()
        return recognizer_resources(found, self._on_gpu())

    def open(self, context: Context) -> Transcriber:
        device = context.device if self._on_gpu() else "cpu"
        wish = Wish(self.language, self.times, self.beams, self.batch_size, self.max_tokens)
        recognizer = open_shared(find_recognizer(self.model), context, device)
        known = recognizer.languages
        if self.language is not None and known is not None and self.language not in known:
            raise ParameterError(
                f"`language`: {self.model} does not know {self.language!r}",
                hint=did_you_mean(self.language.lower(), known) or f"it knows {', '.join(sorted(known))}",
            )
        return Transcriber(self, recognizer, wish)


def recognizer_resources(found: ModelFiles, on_gpu: bool) -> Resources:
    """What a step needs that runs a recognizer."""
    key = found.key("recognizer")
    converted = found.kind in ("moonshine", "ctranslate2")
    if converted:
        # Files, what the library makes of them, and the weights of the fast decoder of Moonshine.
        shared = {key: onnx.RUNTIME_BYTES + 3 * found.num_bytes}
    else:
        shared = {RUNTIME: runtime_bytes("gpu" if on_gpu else "cpu"), key: found.num_bytes}
    if on_gpu:
        return Resources(
            gpus=1 / WORKERS_PER_GPU,
            gpu_memory=found.num_bytes // 2 + GPU_ROOM_BYTES,
            memory=5 * GPU_BATCH_BYTES,  # as float32, and 256 clips padded to 30 s
            shared=shared,
        )
    return Resources(memory=(1 if converted else 2) * ACTIVATION_BYTES, shared=shared)


def open_shared(found: ModelFiles, context: Context, device: str) -> Recognizer:
    """A recognizer, loaded once per worker."""
    if found.kind == "transformers":
        context.shared(RUNTIME, lambda: open_runtime(context))
    return context.shared(found.key("recognizer"), lambda: open_recognizer(found, device))


@dataclass(frozen=True)
class _Piece:
    row: int
    begin: float
    samples: np.ndarray


class Transcriber:
    """Runs `Transcribe`; other steps use `hear`."""

    def __init__(self, step: Transcribe, recognizer: Recognizer, wish: Wish) -> None:
        self._step, self._recognizer, self._wish = step, recognizer, wish

    def apply(self, batch: Batch) -> dict[str, Column]:
        step = self._step
        if step.samples:
            heard = self.hear([None if each is None else [_floats(each)] for each in batch[step.samples].to_pylist()])
        else:
            heard = self.hear([None if row is None else row.blocks() for row in recordings(batch, "audio")])
        columns: dict[str, Column] = {
            step.output: pa.array([each and each.text for each in heard], pa.string()),
            f"{step.output}_confidence": pa.array([each and each.confidence for each in heard], pa.float64()),
            f"{step.output}_language": pa.array([each and each.language for each in heard], pa.string()),
        }
        if step.times:
            columns["words"] = pa.array([None if each is None else as_words(each) for each in heard], WORDS)
        return columns

    def hear(self, rows: Sequence[Any]) -> list[Heard | None]:
        """What is said in each row: blocks of samples, or None for a row without sound."""
        parts: list[list[tuple[float, int, Heard]]] = [[] for _ in rows]
        waiting: list[_Piece] = []
        for row, blocks in enumerate(rows):
            if blocks is None:
                continue
            for begin, samples in pieces(blocks, self._recognizer.max_s):
                waiting.append(_Piece(row, begin, samples))
                if self._step.samples is None and sum(len(piece.samples) for piece in waiting) >= HELD_SAMPLES:
                    self._run(waiting, parts)
                    waiting = []
        self._run(waiting, parts)
        return [
            None if blocks is None else joined(found) if found else NOTHING
            for blocks, found in zip(rows, parts, strict=True)
        ]

    def _run(self, waiting: Sequence[_Piece], parts: list[list[tuple[float, int, Heard]]]) -> None:
        ordered = sorted(waiting, key=lambda piece: -len(piece.samples))  # sorting is stable, so ties keep their order
        heard = self._recognizer.transcribe([piece.samples for piece in ordered], self._wish)
        for piece, each in zip(ordered, heard, strict=True):
            parts[piece.row].append((piece.begin, len(piece.samples), each))
        for found in parts:
            found.sort(key=lambda part: part[0])


def _floats(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<i2").astype(np.float32) / 32767


def as_words(heard: Heard) -> list[dict[str, Any]] | None:
    """Words as a value of the type `WORDS`."""
    return None if heard.words is None else [vars(word).copy() for word in heard.words]
