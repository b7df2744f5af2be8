"""Speech to text: one interface for the recognizers that Tamis runs.

moonshine     ONNX graphs (`moonshine.py`), English, on a CPU; text and confidence
ctranslate2   Whisper converted by CTranslate2, on a CPU or a GPU; words with times
whisper       a Whisper folder of transformers, on a CPU or a GPU; segments with times
ctc           a folder of wav2vec 2.0, HuBERT, WavLM, ... with a CTC head (`ctc.py`); words with times

Clips are float32 at 16 kHz. A recognizer takes clips of up to `max_s` seconds; longer recordings are cut at quiet
places (`pieces`).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tamis.errors import require
from tamis.models import mel
from tamis.models.allocator import reusing_freed_memory
from tamis.models.devices import assigned, release_cached
from tamis.models.files import AUDIO_DEFAULTS, ModelError, ModelFiles, find, weights_in
from tamis.models.moonshine import MAX_S, MIN_S, Moonshine
from tamis.models.network import load_config, only_errors, transformers_module

CPU_BATCH, GPU_BATCH = 8, 64
"""Clips at a time where memory does not decide."""

MOST_CLIPS = 256
"""More at a time are hardly faster on an H200 (benchmarks/audio_models.md)."""

FEATURE_BYTES = 30_000_000
"""GPU memory for the spectrogram of a clip of 30 s while it is computed, and for the states of the encoder."""


@dataclass(frozen=True)
class Word:
    """A word or a longer piece of text, with its times in seconds."""

    text: str
    start: float
    end: float
    confidence: float | None = None


@dataclass(frozen=True)
class Heard:
    """What a recognizer understood."""

    text: str
    confidence: float | None
    """The geometric mean of the probabilities of its tokens."""
    language: str | None = None
    words: list[Word] | None = None
    """None if the recognizer has no times."""


NOTHING = Heard("", None)


class Recognizer(Protocol):
    """A loaded model."""

    max_s: float
    """The longest clip."""
    languages: Sequence[str] | None
    """The languages that can be requested; None if the model does not say."""

    def transcribe(self, clips: Sequence[np.ndarray], wish: Wish) -> list[Heard]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Wish:
    """What a step wants of a recognizer."""

    language: str | None = None
    times: bool = False
    beams: int = 1
    batch_size: int | None = None
    """Clips at a time; None for as many as suit the network and the device."""
    max_tokens: int = 224
    """Half of the length of Whisper's decoder, as in its own code."""


# -------------------------------------------------------------------------------------------------------------- finding


def find_recognizer(model: str | Path) -> ModelFiles:
    """The files of a recognizer: a default, or a folder of transformers, CTranslate2 or Moonshine."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        if (folder / "model.bin").is_file() and not weights_in(folder):
            return _of_ctranslate2(str(model), folder)
        graphs = sorted(path for path in folder.iterdir() if path.stem in ("encoder_model", "decoder_model_merged"))
        if graphs:
            return _of_moonshine(str(model), folder, graphs)
    found = find(model, (("preprocessor_config.json",),), AUDIO_DEFAULTS)
    if found.kind in ("moonshine", "ctranslate2"):
        return found
    kind = found.config.get("model_type")
    names = found.config.get("architectures") or []
    if found.kind != "transformers" or not (kind == "whisper" or any(str(name).endswith("ForCTC") for name in names)):
        raise ModelError(
            f"{model} is not a recognizer of speech: it is of type {kind or found.kind}",
            hint="give a folder of Whisper (transformers or CTranslate2), of a network with a CTC head, or moonshine-tiny",
        )
    return found


def _of_ctranslate2(name: str, folder: Path) -> ModelFiles:
    needed = [folder / file for file in ("config.json", "tokenizer.json")]
    missing = [path.name for path in needed if not path.is_file()]
    if missing:
        raise ModelError(
            f"the model folder {folder} is incomplete: there is no {' and no '.join(missing)}",
            hint=f"put {', '.join(missing)} into {folder}; ct2-transformers-converter --copy_files writes them",
        )
    others = sorted(path for pattern in ("*.json", "*.txt") for path in folder.glob(pattern))
    return ModelFiles(name, folder, "ctranslate2", (folder / "model.bin",), tuple(others))


def _of_moonshine(name: str, folder: Path, graphs: Sequence[Path]) -> ModelFiles:
    tokenizer = folder / "tokenizer.json"
    if len(graphs) < 2 or not tokenizer.is_file():
        raise ModelError(
            f"the model folder {folder} is incomplete: it needs encoder_model, decoder_model_merged and tokenizer.json",
            hint=f"put them into {folder}",
        )
    return ModelFiles(name, folder, "moonshine", tuple(graphs), (tokenizer,))


def is_whisper(found: ModelFiles) -> bool:
    return found.kind == "transformers" and found.config.get("model_type") == "whisper"


def open_recognizer(found: ModelFiles, device: str = "cpu") -> Recognizer:
    """Load a recognizer."""
    if found.kind == "moonshine":
        return _Moonshines(found)
    if found.kind == "ctranslate2":
        return _ConvertedWhisper(found, device)
    if is_whisper(found):
        return _Whisper(found, device)
    from tamis.models.ctc import Ctc

    return CtcRecognizer(Ctc(found, device))


# --------------------------------------------------------------------------------------------------- long recordings


def pieces(blocks: Iterable[np.ndarray], max_s: float) -> Iterator[tuple[float, np.ndarray]]:
    """(begin in seconds, samples) of parts of a recording that are at most `max_s` long, cut at quiet places.

    A part ends in the quietest 20 ms of its last third. Only one part and one block are held.
    """
    size, frame = int(max_s * mel.RATE), mel.RATE // 50
    held, begin = np.empty(0, np.float32), 0
    for block in blocks:
        held = np.concatenate([held, block])
        while len(held) > size:
            first = size * 2 // 3
            frames = held[first : first + (size - first) // frame * frame].reshape(-1, frame)
            cut = first + int(np.square(frames).sum(axis=1).argmin()) * frame + frame // 2
            yield begin / mel.RATE, held[:cut]
            held, begin = held[cut:], begin + cut
    if len(held):
        yield begin / mel.RATE, held


def joined(parts: Sequence[tuple[float, int, Heard]]) -> Heard:
    """What was understood of the parts of a recording: (begin in seconds, samples, heard)."""
    if len(parts) == 1:
        return _shifted(parts[0][2], parts[0][0])
    heard = [_shifted(each, begin) for begin, _, each in parts]
    sure = [(size, each.confidence) for (_, size, _), each in zip(parts, heard, strict=True) if each.confidence]
    confidence = None
    if sure:
        sizes, values = np.array([size for size, _ in sure]), np.array([value for _, value in sure])
        confidence = float(np.exp(np.average(np.log(values), weights=sizes)))
    return Heard(
        " ".join(each.text for each in heard if each.text),
        confidence,
        next((each.language for each in heard if each.language), None),
        [word for each in heard for word in each.words or []]
        if any(each.words is not None for each in heard)
        else None,
    )


def _shifted(heard: Heard, seconds: float) -> Heard:
    if not seconds or heard.words is None:
        return heard
    words = [replace(word, start=word.start + seconds, end=word.end + seconds) for word in heard.words]
    return replace(heard, words=words)


# ------------------------------------------------------------------------------------------------------------ Moonshine


class _Moonshines:
    max_s = 30.0
    """The model takes 64 s, but its transcripts are best up to the length of most clips that it was trained on."""
    languages: Sequence[str] | None = ("en",)

    def __init__(self, found: ModelFiles) -> None:
        assert self.max_s <= MAX_S
        self._model = Moonshine(found)

    def transcribe(self, clips: Sequence[np.ndarray], wish: Wish) -> list[Heard]:
        return [self._one(clip) for clip in clips]

    def _one(self, clip: np.ndarray) -> Heard:
        if len(clip) <= MIN_S * mel.RATE:
            return NOTHING
        text, confidence = self._model.transcribe(clip)
        return Heard(text, confidence, "en")

    def close(self) -> None:
        self._model.close()


# -------------------------------------------------------------------------------------------------------------- Whisper


@dataclass
class _Vocabulary:
    """The special tokens of a Whisper model."""

    tokenizer: Any
    languages: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def of(folder: Path) -> _Vocabulary:
        tokenizers = require("tokenizers", extra="audio-models", purpose="running Whisper")
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        names = {name[2:-2]: number for name, number in tokenizer.get_vocab().items() if _is_language(name)}
        return _Vocabulary(tokenizer, names)

    def id(self, name: str) -> int:
        found = self.tokenizer.token_to_id(name)
        if found is None:
            raise ModelError(f"the tokenizer of the model has no token {name}", hint="it must be the one of Whisper")
        return int(found)

    @functools.cached_property
    def first_time(self) -> int:
        """Tokens from here on are times, in steps of 20 ms."""
        return self.id("<|notimestamps|>") + 1

    def text(self, tokens: Sequence[int]) -> str:
        plain = [token for token in tokens if token < self.id("<|endoftext|>")]
        return str(self.tokenizer.decode(plain)).strip()


def _is_language(name: str) -> bool:
    return name.startswith("<|") and name.endswith("|>") and len(name) in (6, 7) and name[2:-2].isalpha()


class _ConvertedWhisper:
    """Whisper by CTranslate2. Clips are batched; each row of a matrix is quantised by itself, so they do not change
    each other."""

    max_s = float(mel.WHISPER_S)

    def __init__(self, found: ModelFiles, device: str) -> None:
        self._library = require("ctranslate2", extra="audio-models", purpose=f"running {found.name}")
        where, _, index = device.partition(":")
        precision = (
            {"compute_type": "int8"} if where == "cpu" else {"compute_type": "float16", "device_index": int(index or 0)}
        )
        try:
            self._model = self._library.models.Whisper(
                str(found.folder), device=where, intra_threads=1, inter_threads=1, **precision
            )
        except (RuntimeError, ValueError) as error:
            raise ModelError(
                f"{found.folder} cannot be loaded by CTranslate2: {error}", hint="convert it again"
            ) from error
        self._vocabulary = _Vocabulary.of(found.folder)
        self._bands = int(getattr(self._model, "n_mels", 80))
        self.languages: Sequence[str] | None = (
            tuple(self._vocabulary.languages) if self._model.is_multilingual else ("en",)
        )

    def transcribe(self, clips: Sequence[np.ndarray], wish: Wish) -> list[Heard]:
        on_cpu = self._model.device == "cpu"
        size = wish.batch_size or (CPU_BATCH if on_cpu else GPU_BATCH)
        parts = [clips[start : start + size] for start in range(0, len(clips), size)]
        with reusing_freed_memory() if on_cpu else nullcontext():  # a matrix of attention has 54 MB for Whisper tiny
            return [heard for part in parts for heard in self._some(part, wish)]

    def _some(self, clips: Sequence[np.ndarray], wish: Wish) -> list[Heard]:
        words = self._vocabulary
        encoded = self._encoded([mel.whisper_features(clip, self._bands) for clip in clips])
        start, task, plain = words.id("<|startoftranscript|>"), words.id("<|transcribe|>"), words.id("<|notimestamps|>")
        if self._model.is_multilingual:
            languages = [wish.language] * len(clips)
            if wish.language is None:
                languages = [found[0][0][2:-2] for found in self._model.detect_language(encoded)]
            prompts = [[start, words.languages[str(each)], task, plain] for each in languages]
        else:
            languages, prompts = ["en"] * len(clips), [[start, plain]] * len(clips)
        results = self._model.generate(
            encoded, prompts, beam_size=wish.beams, max_length=2 * wish.max_tokens, return_scores=True,
            suppress_blank=True,
        )  # fmt: skip
        heard = []
        for number, (result, clip) in enumerate(zip(results, clips, strict=True)):
            tokens = result.sequences_ids[0]
            confidence = float(np.exp(result.scores[0]))
            times = self._times(encoded, number, prompts[number], tokens, len(clip)) if wish.times else None
            heard.append(Heard(words.text(tokens), confidence, languages[number], times))
        return heard

    def _encoded(self, features: Sequence[np.ndarray]) -> Any:
        """The states of the encoder. On a CPU, clips are encoded one by one: those of several do not fit into its caches, and
        eight at a time take a third more."""
        view = self._library.StorageView.from_array
        if self._model.device != "cpu":
            return self._model.encode(view(np.stack(features)), to_cpu=False)
        return view(np.concatenate([np.array(self._model.encode(view(each[None]))) for each in features]))

    def _times(self, encoded: Any, number: int, prompt: list[int], tokens: list[int], samples: int) -> list[Word]:
        """The words of a clip, by the attention of the decoder to the encoder."""
        end = self._vocabulary.id("<|endoftext|>")
        plain = [token for token in tokens if token < end]
        if not plain:
            return []
        alone = np.array(encoded)[number : number + 1] if encoded.device == "cpu" else None
        given = encoded if alone is None else self._library.StorageView.from_array(np.ascontiguousarray(alone))
        frames = min(3000, max(2, samples * 100 // mel.RATE))
        (found,) = self._model.align(given, prompt[:-1], [plain], frames, median_filter_width=7)
        starts = np.full(len(plain) + 1, frames / 100)
        for token, time in reversed(found.alignments):
            if 0 <= token < len(plain):
                starts[token] = time * 0.02
        return list(_grouped(self._vocabulary, plain, starts, found.text_token_probs))

    def close(self) -> None:
        self._model = None


def _grouped(vocabulary: _Vocabulary, tokens: list[int], starts: np.ndarray, sure: Sequence[float]) -> Iterator[Word]:
    """Words out of tokens: a word begins at a token that begins with a space."""
    begins = [
        place for place, token in enumerate(tokens) if not place or vocabulary.tokenizer.decode([token]).startswith(" ")
    ]
    for begin, stop in zip(begins, [*begins[1:], len(tokens)], strict=True):
        text = vocabulary.tokenizer.decode(tokens[begin:stop]).strip()
        if text:
            yield Word(text, float(starts[begin]), float(starts[stop]), float(np.mean(sure[begin:stop])))


class _Whisper:
    """A Whisper folder of transformers; on a GPU in bfloat16."""

    max_s = float(mel.WHISPER_S)

    def __init__(self, found: ModelFiles, device: str) -> None:
        self._torch = torch = require("torch", extra="models", purpose=f"running {found.name}")
        transformers = require("transformers", extra="models", purpose=f"running {found.name}")
        self._device = device
        module = transformers_module(found.folder, "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING")
        if (found.folder / "generation_config.json").is_file():
            module.generation_config = transformers.GenerationConfig.from_pretrained(found.folder)
        self._type = torch.bfloat16 if device != "cpu" else torch.float32
        self._module = module.eval().to(device=device, dtype=self._type)
        self._vocabulary = _Vocabulary.of(found.folder)
        self._bands = int(load_config(found.folder).num_mel_bins)
        self._multilingual = getattr(self._module.generation_config, "is_multilingual", None)
        # Of many languages, transformers knows names too, and checks them.
        self.languages: Sequence[str] | None = ("en",) if self._multilingual is False else None
        self._most = sys.maxsize  # clips at a time, once memory has run out

    def transcribe(self, clips: Sequence[np.ndarray], wish: Wish) -> list[Heard]:
        heard: list[Heard] = []
        while len(heard) < len(clips):
            size = min(wish.batch_size or self._fitting(wish), self._most)
            part = clips[len(heard) : len(heard) + size]
            try:
                heard += self._some(part, wish)
            except self._torch.cuda.OutOfMemoryError:
                if len(part) == 1:
                    raise
                self._most = len(part) // 2
                release_cached()
        return heard

    def _fitting(self, wish: Wish) -> int:
        """How many clips fit into GPU memory: the decoder keeps keys and values of all layers, in two bytes each."""
        if self._device == "cpu":
            return CPU_BATCH
        config, share = self._module.config, assigned().gpu_memory_bytes
        states = config.max_source_positions + wish.max_tokens
        clip_bytes = 2 * 2 * config.decoder_layers * config.d_model * states * wish.beams + FEATURE_BYTES
        free, _ = self._torch.cuda.mem_get_info()
        room = free if share is None else min(free, share - self._torch.cuda.memory_allocated())
        return max(1, min(MOST_CLIPS, int(room / 2 / clip_bytes)))

    def _some(self, clips: Sequence[np.ndarray], wish: Wish) -> list[Heard]:
        torch, config = self._torch, self._module.generation_config
        sure = _Sure(torch)
        with torch.inference_mode():
            features = self._features(clips)
            options: dict[str, Any] = {"max_new_tokens": wish.max_tokens, "num_beams": wish.beams}
            languages = self._languages(features, wish)
            if self._multilingual:
                options |= {"task": "transcribe", "language": languages}
            if wish.times and getattr(config, "no_timestamps_token_id", None) is not None:
                options["return_timestamps"] = True
            if wish.beams == 1:
                options["logits_processor"] = [sure]
            with only_errors():
                found = self._module.generate(features, **options).cpu().numpy()
        confidence = sure.means(found, self._end) if wish.beams == 1 else [None] * len(clips)
        return [
            self._heard(row.tolist(), each, language, len(clip), wish)
            for row, each, language, clip in zip(found, confidence, languages, clips, strict=True)
        ]

    def _languages(self, features: Any, wish: Wish) -> list[str | None]:
        """The language of each clip: transformers does not return the one that it recognizes."""
        if not self._multilingual:
            return [None if self._multilingual is None else "en"] * len(features)
        if wish.language is not None:
            return [wish.language] * len(features)
        names = {number: name[2:-2] for name, number in self._module.generation_config.lang_to_id.items()}
        return [names[each] for each in self._module.detect_language(features).tolist()]

    def _features(self, clips: Sequence[np.ndarray]) -> Any:
        torch = self._torch
        if self._device == "cpu":
            return torch.from_numpy(np.stack([mel.whisper_features(clip, self._bands) for clip in clips]))
        return mel.whisper_features_on(torch, clips, self._bands, self._device).to(self._type)

    @property
    def _end(self) -> int:
        return self._vocabulary.id("<|endoftext|>")

    def _heard(
        self, tokens: list[int], confidence: float | None, language: str | None, samples: int, wish: Wish
    ) -> Heard:
        words = self._vocabulary
        times = None
        if wish.times:
            times = list(_segments(words, tokens, samples / mel.RATE))
        return Heard(words.text(tokens), confidence, language, times)

    def close(self) -> None:
        self._module = None


def _segments(vocabulary: _Vocabulary, tokens: Sequence[int], duration: float) -> Iterator[Word]:
    """Pieces of text between the tokens of times."""
    first = vocabulary.first_time
    begin: float = 0.0
    text: list[int] = []
    for token in tokens:
        if token < first:
            text.append(token)
            continue
        time = min((token - first) * 0.02, duration)
        if said := vocabulary.text(text):
            yield Word(said, begin, max(begin, time))
        begin, text = time, []
    if said := vocabulary.text(text):
        yield Word(said, begin, duration)


class _Sure:
    """Remembers how likely the most likely token of each step was, without keeping the scores of all tokens."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._steps: list[Any] = []

    def __call__(self, ids: Any, scores: Any) -> Any:
        self._steps.append(self._torch.log_softmax(scores.float(), dim=-1).max(dim=-1).values)
        return scores

    def means(self, tokens: np.ndarray, end: int) -> list[float | None]:
        """The geometric mean of each row, up to its end."""
        if not self._steps:
            return [None] * len(tokens)
        logarithms = self._torch.stack(self._steps, dim=1).cpu().numpy()
        count = logarithms.shape[1]
        result: list[float | None] = []
        for row, values in zip(tokens[:, -count:], logarithms, strict=False):
            stops = np.flatnonzero(row == end)
            length = int(stops[0]) + 1 if len(stops) else count
            result.append(float(np.exp(values[:length].mean())))
        return result


# ------------------------------------------------------------------------------------------------------------------ CTC


class CtcRecognizer:
    """A network with a CTC head; `model` aligns texts too."""

    max_s = 60.0
    """The attention of these networks grows with the square of the length."""
    languages: Sequence[str] | None = None

    def __init__(self, model: Any) -> None:
        self.model = model

    def transcribe(self, clips: Sequence[np.ndarray], wish: Wish) -> list[Heard]:
        size = wish.batch_size or (CPU_BATCH if self.model.device == "cpu" else GPU_BATCH)
        return [self._heard(words, sure, wish) for words, sure in self.model.decode(clips, size)]

    def _heard(self, words: list[tuple[str, float, float, float]], confidence: float | None, wish: Wish) -> Heard:
        text = " ".join(word for word, *_ in words)
        return Heard(text, confidence, wish.language, [Word(*word) for word in words] if wish.times else None)

    def close(self) -> None:
        self.model.close()
