"""The published classifiers that NeMo Curator names, with their labels, columns and defaults.

    texts --cut, prompt--> TextModel --logits--> labels and scores --filter_by--> kept rows

Each step adds its columns to every row it keeps. Weights are not part of Tamis: a step finds them as `tamis.models.files`
describes, and an error names the files wanted and where to put them. The networks are in `tamis.models.architectures`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column
from tamis.context import Context
from tamis.errors import ParameterError, did_you_mean
from tamis.models.devices import Device, choose
from tamis.models.files import ModelError, ModelFiles, find, labels_of, with_files
from tamis.models.network import Build, sequence_classifier
from tamis.models.outputs import check_names, softmax, vectors
from tamis.models.text_model import TextModel
from tamis.models.tokens import LongTexts
from tamis.operators import Filter, Operator, Resources, Rule, Scores, one_of, operator
from tamis.text.clean import strings
from tamis.text.neural import ReadsTokens, check_lengths, network_resources, tokenized_before

EDU_LABELS = ("high_quality", "low_quality")
EDU_THRESHOLD = 2.5
"""A text that the network gives 2.5 of 5 points is of high quality, as in NeMo Curator."""

COMPLEXITY_WEIGHTS = {
    "creativity_scope": 0.35,
    "reasoning": 0.25,
    "constraint_ct": 0.15,
    "domain_knowledge": 0.15,
    "contextual_knowledge": 0.05,
    "number_of_few_shots": 0.05,
}
"""From the model card of nvidia/prompt-task-and-complexity-classifier."""

Columns = Mapping[str, "np.ndarray | Column"]


def _first_token_head(folder: Path, config: dict[str, Any]) -> Any:
    from tamis.models import architectures

    return architectures.build(folder, config)


@dataclass(frozen=True, kw_only=True)
class PublishedClassifier(ReadsTokens, Filter):
    """What the classifiers below share. Its subclasses say which columns they make of the outputs of their network."""

    column: str = "text"
    filter_by: Sequence[str] = ()
    max_chars: int | None = None
    model_inference_batch_size: int | None = None
    device: Device = "auto"
    tokens: str | None = None
    """A column that `Tokenize` wrote, which is then read in place of the text and removed."""

    cost = 1000.0
    tolerance = 1e-4
    max_tokens = 512
    long_texts: ClassVar[LongTexts] = "truncate"
    measuring_parameters = frozenset({"max_chars"})
    verdict_parameters = frozenset({"filter_by"})
    incidental = frozenset({"model_inference_batch_size", "device", "tokens"})
    path_parameters = frozenset({"model", "base_model", "aegis_variant"})
    reads_texts_as_they_are: ClassVar[bool] = True
    """Whether a tokenizer can read the texts before this step, without a prompt around them or a part of them cut out."""

    @property
    def adds_scores(self) -> bool:
        return True

    def check(self) -> None:
        check_lengths(self.name, max_chars=self.max_chars, model_inference_batch_size=self.model_inference_batch_size)
        check_names(self.name, self.writes(), {self.column})
        choose(self.device)
        found = self.files()
        if found.kind != "transformers":
            raise ModelError(
                f"`{self.name}` needs config.json and model.safetensors, and {found.name} is another kind of model",
                hint="use `Classifier` for ONNX graphs",
            )
        self.build()
        known = self.labels()
        for label in self.filter_by:
            if label not in known:
                raise ParameterError(
                    f"`{self.name}` has no label {label!r}",
                    hint=did_you_mean(str(label), map(str, known)) or f"it has {', '.join(map(str, known))}",
                )

    def files(self) -> ModelFiles:
        """The folder with the tokenizer and the configuration of the network."""
        return find(getattr(self, "model"))  # noqa: B009 - each subclass has the field, with its own default

    def build(self) -> Build:
        """The function that makes the network."""
        return sequence_classifier

    def labels(self) -> Sequence[str]:
        """What `filter_by` may contain."""
        raise NotImplementedError

    def texts(self, column: Column) -> Column:
        """The texts for the network."""
        return column

    def columns(self, outputs: np.ndarray) -> Columns:
        """The columns of rows with these outputs, by the names in `score_columns`."""
        raise NotImplementedError

    def packages(self) -> Mapping[str, str]:
        return self.files().packages

    def identity(self) -> dict[str, Any]:
        return with_files(super().identity(), self.files())

    def parts(self) -> Sequence[Operator]:
        if not self.reads_texts_as_they_are:
            return [self]
        return tokenized_before(self, getattr(self, "model"), self.device, self.column)  # noqa: B009

    @property
    def resources(self) -> Resources:
        try:
            return network_resources(self.files(), self.device, self.build())
        except ModelError:  # `check` reports it
            return Resources()

    def open(self, context: Context) -> ClassifierRunner:
        model = TextModel.open(
            self.files(),
            context,
            build=self.build(),
            max_tokens=self.max_tokens,
            max_chars=self.max_chars,
            batch_size=self.model_inference_batch_size,
        )
        return ClassifierRunner(model, self.texts, self.columns, self.tokens)

    def rules(self) -> list[Rule]:
        return [one_of(self.declared_writes[0], self.filter_by)] if self.filter_by else []


class ClassifierRunner:
    def __init__(
        self,
        model: TextModel,
        texts: Callable[[Column], Column],
        columns: Callable[[np.ndarray], Columns],
        tokens: str | None = None,
    ) -> None:
        self._model, self._texts, self._columns, self._tokens = model, texts, columns, tokens

    def score(self, batch: Batch) -> Scores:
        given = batch[self._tokens] if self._tokens else strings(batch["text"])
        found = self._model.predict_tokens(given) if self._tokens else self._model.predict(self._texts(given))
        missing = np.asarray(pc.is_null(given).to_numpy(zero_copy_only=False), np.bool_)
        rows = pa.array(np.arange(len(given)), mask=missing)
        # A null text has no label and no score.
        return {name: pa.array(values).take(rows) if isinstance(values, np.ndarray) else values.take(rows)
                for name, values in self._columns(found).items()}  # fmt: skip

    def take_limits(self) -> dict[str, int]:
        return self._model.take_limits()

    def close(self) -> None:
        self._model.close()


# -------------------------------------------------------------------------------------------------------- one of several


@dataclass(frozen=True, kw_only=True)
class LabelClassifier(PublishedClassifier):
    """DeBERTa v3 with one linear layer on the first token: one label of several."""

    score_field: str | None = None

    def build(self) -> Build:
        return _first_token_head

    def labels(self) -> Sequence[str]:
        found = self.files()
        labels = labels_of(found.config)
        if labels is None:
            raise ModelError(
                f"{found.folder / 'config.json'} has no names of labels",
                hint="it needs `id2label` with all numbers from 0",
            )
        return labels

    def score_columns(self) -> dict[str, str]:
        label = self.declared_writes[0]
        columns = {label: str(getattr(self, "label_field"))}  # noqa: B009
        return columns | ({"probabilities": self.score_field} if self.score_field is not None else {})

    def columns(self, outputs: np.ndarray) -> Columns:
        labels = pa.array(self.labels(), pa.string())
        probabilities = softmax(outputs)
        found: dict[str, np.ndarray | Column] = {
            self.declared_writes[0]: labels.take(pa.array(probabilities.argmax(axis=1)))
        }
        if self.score_field is not None:
            found["probabilities"] = vectors(probabilities)
        return found


@operator(reads="text", writes="quality_pred")
class QualityClassifier(LabelClassifier):
    """Add the quality of each document, "High", "Medium" or "Low", and keep only some of them if `filter_by` is given.

    nvidia/quality-classifier-deberta: DeBERTa v3 base, trained on 22,828 Common Crawl texts labelled by people. It reads the
    first `max_chars` characters and at most 1,024 tokens. `score_field` names a column for the three probabilities. A null
    text has no label, and a filter drops it. Needs `tamis[models]`.

    >>> QualityClassifier(filter_by=["High", "Medium"]).rules()[0].allowed
    ('High', 'Medium')
    """

    model: str | Path = "nvidia/quality-classifier-deberta"
    label_field: str = "quality_pred"
    max_chars: int | None = 6000

    max_tokens = 1024


@operator(reads="text", writes="domain_pred")
class DomainClassifier(LabelClassifier):
    """Add the domain of each English document, one of 26 such as "Finance" and "Health", and keep some of them on request.

    nvidia/domain-classifier: DeBERTa v3 base on the first `max_chars` characters and at most 512 tokens. `filter_by` keeps
    documents of these domains. `score_field` names a column for the probabilities of all domains. Needs `tamis[models]`.

    >>> DomainClassifier(filter_by=["Finance"]).writes()
    ('domain_pred',)
    """

    model: str | Path = "nvidia/domain-classifier"
    label_field: str = "domain_pred"
    max_chars: int | None = 2000


@operator(reads="text", writes="multilingual_domain_pred")
class MultilingualDomainClassifier(LabelClassifier):
    """Add the domain of each document in one of 52 languages, and keep some of them on request.

    nvidia/multilingual-domain-classifier: mDeBERTa v3 base with the labels of `DomainClassifier`. Needs `tamis[models]`.
    """

    model: str | Path = "nvidia/multilingual-domain-classifier"
    label_field: str = "multilingual_domain_pred"
    max_chars: int | None = 2000


@operator(reads="text", writes="content_pred")
class ContentTypeClassifier(LabelClassifier):
    """Add the type of each document, one of 11 such as "News" and "Reviews", and keep some of them on request.

    nvidia/content-type-classifier-deberta: DeBERTa v3 base on the first `max_chars` characters and at most 1,024 tokens.
    Needs `tamis[models]`.
    """

    model: str | Path = "nvidia/content-type-classifier-deberta"
    label_field: str = "content_pred"
    max_chars: int | None = 6000

    max_tokens = 1024


# -------------------------------------------------------------------------------------------------------- points, 0 to 5


@dataclass(frozen=True, kw_only=True)
class EduClassifier(PublishedClassifier):
    """BERT with one output: points for educational value."""

    def labels(self) -> Sequence[str]:
        return EDU_LABELS

    def score_columns(self) -> dict[str, str]:
        names = (getattr(self, name) for name in ("label_field", "float_score_column", "int_score_column"))
        return dict(zip(self.declared_writes, names, strict=True))

    def columns(self, outputs: np.ndarray) -> Columns:
        points = _single_output(self.name, outputs)
        kept = np.clip(points, 0, 5)
        label = pa.array(EDU_LABELS).take(pa.array((points < EDU_THRESHOLD).astype(np.int8)))
        values = (label, kept, np.rint(kept).astype(np.int64))
        return dict(zip(self.declared_writes, values, strict=True))


@operator(reads="text", writes=("fineweb-edu-score-label", "fineweb-edu-score-float", "fineweb-edu-score-int"))
class FineWebEduClassifier(EduClassifier):
    """Add the educational value of each document, from 0 to 5, and "high_quality" if it is at least 2.5.

    HuggingFaceFW/fineweb-edu-classifier (Penedo et al. 2024): the output of a regression, clipped to 0 to 5, and rounded.
    FineWeb-Edu keeps documents with 3 points. Reads the first 512 tokens. Needs `tamis[models]`.

    >>> FineWebEduClassifier(filter_by=["high_quality"]).writes()
    ('fineweb-edu-score-label', 'fineweb-edu-score-float', 'fineweb-edu-score-int')
    """

    model: str | Path = "HuggingFaceFW/fineweb-edu-classifier"
    label_field: str = "fineweb-edu-score-label"
    float_score_column: str = "fineweb-edu-score-float"
    int_score_column: str = "fineweb-edu-score-int"


@operator(
    reads="text",
    writes=("fineweb-mixtral-edu-score-label", "fineweb-mixtral-edu-score-float", "fineweb-mixtral-edu-score-int"),
)
class FineWebMixtralEduClassifier(EduClassifier):
    """Like `FineWebEduClassifier`, trained on annotations of Mixtral 8x22B Instruct.

    nvidia/nemocurator-fineweb-mixtral-edu-classifier, used for Nemotron-CC (Su et al. 2024).
    """

    model: str | Path = "nvidia/nemocurator-fineweb-mixtral-edu-classifier"
    label_field: str = "fineweb-mixtral-edu-score-label"
    float_score_column: str = "fineweb-mixtral-edu-score-float"
    int_score_column: str = "fineweb-mixtral-edu-score-int"


@operator(
    reads="text",
    writes=("fineweb-nemotron-edu-score-label", "fineweb-nemotron-edu-score-float", "fineweb-nemotron-edu-score-int"),
)
class FineWebNemotronEduClassifier(EduClassifier):
    """Like `FineWebEduClassifier`, trained on annotations of Nemotron-4 340B Instruct.

    nvidia/nemocurator-fineweb-nemotron-4-edu-classifier, used for Nemotron-CC (Su et al. 2024).
    """

    model: str | Path = "nvidia/nemocurator-fineweb-nemotron-4-edu-classifier"
    label_field: str = "fineweb-nemotron-edu-score-label"
    float_score_column: str = "fineweb-nemotron-edu-score-float"
    int_score_column: str = "fineweb-nemotron-edu-score-int"


@operator(reads="text", writes=("finemath_scores", "finemath_int_scores"))
class FineMathClassifier(PublishedClassifier):
    """Add the value of each document for learning mathematics, from 0 to 5, as a number and rounded.

    HuggingFaceTB/finemath-classifier (Allal et al. 2025). Of long documents it reads the middle: up to `center_crop_chars`
    characters on both sides of it, of which the network takes the first 512 tokens. Needs `tamis[models]`.
    """

    model: str | Path = "HuggingFaceTB/finemath-classifier"
    float_score_column: str = "finemath_scores"
    int_score_column: str = "finemath_int_scores"
    center_crop_chars: int | None = 10_000

    reads_texts_as_they_are = False

    def check(self) -> None:
        check_lengths(self.name, center_crop_chars=self.center_crop_chars)
        super().check()

    def labels(self) -> Sequence[str]:
        return ()

    def texts(self, column: Column) -> Column:
        half = self.center_crop_chars
        if half is None or not len(column):
            return column
        # Most texts are shorter than what is kept, so only the others are cut one by one.
        long = pc.fill_null(pc.greater(pc.utf8_length(column), 2 * half), False)
        if not pc.any(long).as_py():
            return column
        middles = [text[len(text) // 2 - half : len(text) // 2 + half] for text in column.filter(long).to_pylist()]
        return pc.replace_with_mask(column, long, pa.array(middles, column.type))

    def score_columns(self) -> dict[str, str]:
        return {"finemath_scores": self.float_score_column, "finemath_int_scores": self.int_score_column}

    def columns(self, outputs: np.ndarray) -> Columns:
        points = np.clip(_single_output(self.name, outputs), 0, 5)
        return {"finemath_scores": points, "finemath_int_scores": np.rint(points).astype(np.int64)}


def _single_output(name: str, outputs: np.ndarray) -> np.ndarray:
    if outputs.shape[1] != 1:
        raise ModelError(
            f"the model of `{name}` has {outputs.shape[1]} outputs, and a regression has one",
            hint="use `Classifier` for a model with labels",
        )
    return outputs[:, 0]


# ---------------------------------------------------------------------------------------------------------------- prompts

_TASK_COLUMNS = (
    "prompt_complexity_score", "task_type_1", "task_type_2", "task_type_prob", "creativity_scope", "reasoning",
    "contextual_knowledge", "number_of_few_shots", "domain_knowledge", "no_label_reason", "constraint_ct",
)  # fmt: skip


@operator(reads="text", writes=_TASK_COLUMNS)
class PromptTaskComplexityClassifier(PublishedClassifier):
    """Add what kind of task each prompt sets, and how complex it is, in eleven columns.

    nvidia/prompt-task-and-complexity-classifier: DeBERTa v3 base with eight linear layers on the mean of all tokens, at most
    512. `task_type_1` and `task_type_2` are the two most probable of the task types in its configuration; the second is "NA"
    if its probability, rounded to 3 digits, is below 0.1. `task_type_prob` is the probability of the first. Each dimension is
    an average of the levels in the configuration, weighted by their probabilities and divided by a maximum; few-shot values
    below 0.05 are 0. `prompt_complexity_score` is 0.35 creativity + 0.25 reasoning + 0.15 constraints + 0.15 domain
    knowledge + 0.05 contextual knowledge + 0.05 few shots. It has no labels to filter by. Needs `tamis[models]`.
    """

    model: str | Path = "nvidia/prompt-task-and-complexity-classifier"

    def check(self) -> None:
        if self.filter_by:
            raise ParameterError(
                f"`{self.name}` has no `filter_by`: it writes several columns",
                hint="filter by one of them in another step",
            )
        super().check()
        self._dimensions()

    def build(self) -> Build:
        return _first_token_head

    def labels(self) -> Sequence[str]:
        return ()

    def score_columns(self) -> dict[str, str]:
        return {name: name for name in _TASK_COLUMNS}

    def columns(self, outputs: np.ndarray) -> Columns:
        config, start = self._dimensions(), 0
        found: dict[str, np.ndarray | Column] = {}
        for target, size in config["target_sizes"].items():
            chances = softmax(outputs[:, start : start + size].astype(np.float64))
            start += size
            if target == "task_type":
                found |= _two_best(chances, config["task_type_map"])
            else:
                score = chances @ np.asarray(config["weights_map"][target], np.float64) / config["divisor_map"][target]
                found[target] = np.round(score, 4)
        few = found["number_of_few_shots"]
        found["number_of_few_shots"] = np.where(few >= 0.05, few, 0.0)
        total = sum(weight * found[name] for name, weight in COMPLEXITY_WEIGHTS.items())
        found["prompt_complexity_score"] = np.round(total, 5)
        return {name: found[name] for name in _TASK_COLUMNS}

    def _dimensions(self) -> dict[str, Any]:
        found = self.files()
        config, wanted = found.config, {"task_type", *_TASK_COLUMNS[4:]}
        sizes, weights, divisors = (config.get(f"{name}") for name in ("target_sizes", "weights_map", "divisor_map"))
        fits = (
            isinstance(sizes, dict)
            and isinstance(weights, dict)
            and isinstance(divisors, dict)
            and sizes.keys() == wanted
            and all(len(weights.get(name, ())) == sizes[name] and divisors.get(name) for name in wanted - {"task_type"})
            and {str(number) for number in range(sizes["task_type"])} <= set(config.get("task_type_map", ()))
        )
        if not fits:
            raise ModelError(
                f"{found.folder / 'config.json'} does not describe the heads of a task and complexity classifier",
                hint=f"`target_sizes` names {', '.join(sorted(wanted))}, and "
                "`task_type_map`, `weights_map` and `divisor_map` have their values",
            )
        return config


def _two_best(chances: np.ndarray, names: Mapping[str, str]) -> dict[str, np.ndarray | Column]:
    rows = np.arange(len(chances))
    order = np.argsort(-chances, axis=1, kind="stable")
    first, second = order[:, 0], order[:, min(1, chances.shape[1] - 1)]
    tasks = pa.array([names[str(number)] for number in range(chances.shape[1])] + ["NA"])
    unsure = np.round(chances[rows, second], 3) < 0.1
    return {
        "task_type_1": tasks.take(pa.array(first)),
        "task_type_2": tasks.take(pa.array(np.where(unsure, chances.shape[1], second))),
        "task_type_prob": np.round(chances[rows, first], 3),
    }
