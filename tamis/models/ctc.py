"""Networks with a CTC head (Graves et al. 2006), such as wav2vec 2.0, HuBERT and WavLM: transcripts and alignments.

    16 kHz --normalized--> network --> log-probabilities [frames, characters]
                                        --best path--> words with times
                                        --with a text, Viterbi--> when each of its characters is said, and how likely it is

Networks that normalize over the whole clip (`feat_extract_norm="group"`) see padding, so their clips are run one at a
time; for others padding is masked and clips of similar length are run together.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from tamis.errors import require
from tamis.kernels.ctc import align
from tamis.models import mel
from tamis.models.files import ModelError, ModelFiles
from tamis.models.network import transformers_module

MIN_SAMPLES = 400
"""The receptive field of wav2vec 2.0: shorter clips have no frame."""


class Ctc:
    """A network and its characters."""

    def __init__(self, found: ModelFiles, device: str = "cpu") -> None:
        self._torch = require("torch", extra="models", purpose=f"running {found.name}")
        self.device = device
        self._module = transformers_module(found.folder, "MODEL_FOR_CTC_MAPPING").eval().to(device)
        settings = found.json("preprocessor_config.json")
        self._normalize = bool(settings.get("do_normalize", True))
        self._masked = bool(settings.get("return_attention_mask", False))
        vocabulary = _vocabulary(found)
        names = found.json("tokenizer_config.json")
        self._space = str(names.get("word_delimiter_token") or "|")
        self.blank = int(self._module.config.pad_token_id or 0)
        self._ids = vocabulary
        self._characters = {number: name for name, number in vocabulary.items()}
        special = {
            str(names.get(key)) for key in ("unk_token", "bos_token", "eos_token", "pad_token") if names.get(key)
        }
        self._special = {
            number for name, number in vocabulary.items() if name in special | {"<s>", "</s>", "<unk>", "<pad>"}
        }
        self._lower = not any(name.isupper() for name in vocabulary if len(name) == 1 and name.isalpha())

    def logarithms(self, clips: Sequence[np.ndarray], batch_size: int = 8) -> list[np.ndarray]:
        """[frames, characters] for each clip."""
        result: list[np.ndarray] = [np.empty((0, len(self._ids)), np.float32)] * len(clips)
        order = sorted(
            (row for row in range(len(clips)) if len(clips[row]) >= MIN_SAMPLES), key=lambda row: len(clips[row])
        )
        size = batch_size if self._masked else 1
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            for row, found in zip(rows, self._run([clips[row] for row in rows]), strict=True):
                result[row] = found
        return result

    def _run(self, clips: Sequence[np.ndarray]) -> list[np.ndarray]:
        torch = self._torch
        given = np.zeros((len(clips), max(map(len, clips))), np.float32)
        mask = np.zeros(given.shape, np.int64)
        for row, clip in enumerate(clips):
            given[row, : len(clip)] = _standard(clip) if self._normalize else clip
            mask[row, : len(clip)] = 1
        inputs = {"input_values": torch.from_numpy(given).to(self.device)}
        if self._masked:
            inputs["attention_mask"] = torch.from_numpy(mask).to(self.device)
        with torch.inference_mode():
            found = torch.log_softmax(self._module(**inputs).logits.float(), dim=-1).cpu().numpy()
        if not np.isfinite(found).all():
            raise ValueError("the model returned a value that is not a number")
        lengths = self._module._get_feat_extract_output_lengths(torch.tensor([len(clip) for clip in clips]))
        return [each[: int(length)] for each, length in zip(found, lengths, strict=True)]

    def decode(
        self, clips: Sequence[np.ndarray], batch_size: int = 8
    ) -> list[tuple[list[tuple[str, float, float, float]], float | None]]:
        """For each clip, its words (text, start, end, confidence), and its confidence."""
        return [
            self._words(found, len(clip) / mel.RATE)
            for clip, found in zip(clips, self.logarithms(clips, batch_size), strict=True)
        ]

    def _words(self, found: np.ndarray, duration: float) -> tuple[list[tuple[str, float, float, float]], float | None]:
        if not len(found):
            return [], None
        best = found.argmax(axis=1)
        sure = found.max(axis=1)
        begins = np.flatnonzero((best != self.blank) & np.concatenate([[True], best[1:] != best[:-1]]))
        said = [
            (place, self._characters[int(best[place])]) for place in begins if int(best[place]) not in self._special
        ]
        step = duration / len(found)
        words: list[tuple[str, float, float, float]] = []
        letters: list[tuple[int, str]] = []
        ends = [(len(found), self._space)]
        for place, letter in said + ends:
            if letter != self._space:
                letters.append((int(place), letter))
            elif letters:
                places = [each for each, _ in letters]
                end = min(places[-1] + 1, len(found))
                text = "".join(letter for _, letter in letters)
                words.append((text, places[0] * step, end * step, float(np.exp(np.mean(sure[places])))))
                letters = []
        return words, float(np.exp(sure.mean()))

    def align(self, found: np.ndarray, text: str, duration: float) -> list[tuple[str, float, float, float]] | None:
        """The words of a text, (text, start, end, probability of its characters); None if they cannot be aligned.

        Characters that the network does not know are left out. A text with more characters than there are frames cannot
        be aligned.
        """
        words = text.split()
        ids: list[int] = []
        owners: list[int] = []
        for number, word in enumerate(words):
            letters = [
                self._ids[letter] for letter in (word.lower() if self._lower else word.upper()) if letter in self._ids
            ]
            if letters and ids and self._space in self._ids:
                ids.append(self._ids[self._space])
                owners.append(-1)
            ids += letters
            owners += [number] * len(letters)
        if not ids:
            return None
        path = np.full(len(found), -1, np.int64)
        if not len(found) or not align(found, np.array(ids, np.int64), self.blank, path):
            return None
        owner = np.array(owners)
        step = duration / len(found)
        result = []
        for number, word in enumerate(words):
            frames = np.flatnonzero((path >= 0) & (owner[path] == number))
            if len(frames):
                chosen = np.array(ids)[path[frames]]
                likely = float(np.exp(found[frames, chosen].mean()))
                result.append((word, float(frames[0] * step), float((frames[-1] + 1) * step), likely))
        return result

    def close(self) -> None:
        self._module = None


def _standard(clip: np.ndarray) -> np.ndarray:
    """Mean 0 and variance 1, as Wav2Vec2FeatureExtractor does."""
    return (clip - clip.mean()) / np.sqrt(clip.var() + 1e-7)


def _vocabulary(found: ModelFiles) -> dict[str, int]:
    table = found.json("vocab.json")
    if not table:
        raise ModelError(f"the model folder {found.folder} has no vocab.json", hint=f"put it into {found.folder}")
    if all(isinstance(value, dict) for value in table.values()):  # one table per language, as in MMS
        table = table[sorted(table)[0]]
    try:
        return {str(name): int(number) for name, number in table.items()}
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"{found.folder / 'vocab.json'} is not a table of characters: {json.dumps(str(error))}"
        ) from error
