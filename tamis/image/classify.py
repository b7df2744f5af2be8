"""Labels of images: any image-classification folder, tags of ImageNet, watermarks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column
from tamis.context import Context
from tamis.errors import ParameterError, TamisError
from tamis.image.neural import NetworkStep
from tamis.models.devices import Device
from tamis.models.files import ModelFiles
from tamis.models.image_model import ImageBuild, ImageModel
from tamis.models.outputs import Task, check_labels, check_names, label_scores, sigmoid, softmax, task_of
from tamis.models.vision import image_classifier
from tamis.operators import Filter, Rule, Scores, at_most, between, one_of, operator
from tamis.text.neural import AnyOf

IMAGENET = Path(__file__).parent / "imagenet.txt"
"""The names of the 1,000 classes of ImageNet (Russakovsky et al. 2015), in the order of their WordNet numbers."""


@functools.cache
def imagenet_labels() -> tuple[str, ...]:
    return tuple(IMAGENET.read_text().splitlines())


def labels_of_model(found: ModelFiles) -> tuple[Task, list[str]]:
    """What a classifier predicts, and the names of its outputs."""
    return ("single", list(imagenet_labels())) if found.kind == "efficientnet" else task_of(found)


@operator(reads="image", writes=("label", "score"))
class ImageClassifier(NetworkStep, Filter):
    """Add the label that an image-classification model gives each image, and keep only some labels if requested.

    `model` is a folder with config.json, preprocessor_config.json and safetensors weights, or a Hugging Face name in the
    local cache. Labels and scores depend on the configuration of the model as those of `Classifier` do for texts: the most
    probable label and its probability, a list of the labels with at least 0.5, or the output of a regression.

    `filter_by` keeps images with one of these labels. `min_score` and `max_score` bound the score. `probabilities` names
    a column for the probabilities of all labels, as a fixed-size list. A row without image has no label, and a filter
    drops it. Needs `tamis[image,models]`.

        ImageClassifier("models/photo-or-drawing", filter_by=["photo"])
    """

    model: str | Path
    column: str = "image"
    label_field: str = "label"
    score_field: str = "score"
    probabilities: str | None = None
    filter_by: Sequence[str] = ()
    min_score: float | None = None
    max_score: float | None = None
    batch_size: int | None = None
    device: Device = "auto"
    pixels: str | None = None
    """A column that `ImageTensor` wrote, which is then read in place of the image and removed."""

    verdict_parameters = frozenset({"filter_by"})

    @property
    def adds_scores(self) -> bool:
        return True

    def build(self) -> ImageBuild:
        return image_classifier

    def check(self) -> None:
        super().check()
        task, labels = labels_of_model(self.found())
        if self.filter_by and task == "regression":
            raise ParameterError(
                f"{self.model} has no labels to filter by: it is a regression", hint="use `min_score` and `max_score`"
            )
        check_labels(self.model, self.filter_by, labels)
        check_names(self.name, self.writes(), self.real_names().values())

    def open(self, context: Context) -> _Labeler:
        return _Labeler(self, self.open_model(context), *labels_of_model(self.found()))

    def rules(self) -> list[Rule]:
        rules = []
        if self.filter_by:
            several = labels_of_model(self.found())[0] == "multi"
            rules.append(AnyOf("label", allowed=tuple(self.filter_by)) if several else one_of("label", self.filter_by))
        if self.min_score is not None or self.max_score is not None:
            rules.append(between("score", self.min_score, self.max_score))
        return rules

    def score_columns(self) -> dict[str, str]:
        names = {"score": self.score_field}
        if self._task() != "regression":
            names = {"label": self.label_field, **names}
            if self.probabilities is not None:
                names["probabilities"] = self.probabilities
        return names

    def _task(self) -> Task:
        try:
            return labels_of_model(self.found())[0]
        except TamisError:  # which `check` reports
            return "single"


class _Labeler:
    def __init__(self, step: ImageClassifier, model: ImageModel, task: Task, labels: list[str]) -> None:
        self._step, self._model, self._task = step, model, task
        self._labels = pa.array(labels, pa.string())

    def score(self, batch: Batch) -> Scores:
        missing, logits = self._step.outputs(self._model, batch)
        found = label_scores(logits, missing, self._task, self._labels, str(self._step.model))
        return {name: values for name, values in found.items() if name in self._step.score_columns()}


# ------------------------------------------------------------------------------------------------------------------ tags


@operator(reads="image", writes=("tags", "tag_score"))
class ImageTags(NetworkStep, Filter):
    """Add the most probable labels of each image as a list, and keep or drop images by their tags.

    A tag is one of the `max_tags` most probable labels, with a probability of at least `min_probability`; the most
    probable comes first. `tag_score` is the highest probability. `keep` keeps images that have one of these tags, `drop`
    drops them. The default model is EfficientNet-lite0 with the 1,000 classes of ImageNet (75.1 % of its photos are
    labelled correctly, by its authors): things, animals and plants, but no people. Needs
    `tamis[image,models,image-models]`; about 30 images per second and core. Any other image-classification folder works
    too.

        ImageTags(drop=["web site", "comic book"])
    """

    model: str | Path = "efficientnet-lite0"
    column: str = "image"
    max_tags: int = 5
    min_probability: float = 0.1
    keep: Sequence[str] = ()
    drop: Sequence[str] = ()
    batch_size: int | None = None
    device: Device = "auto"
    pixels: str | None = None
    """A column that `ImageTensor` wrote, which is then read in place of the image and removed."""

    measuring_parameters = frozenset({"max_tags", "min_probability"})
    verdict_parameters = frozenset({"keep", "drop"})

    @property
    def adds_scores(self) -> bool:
        return True

    def build(self) -> ImageBuild:
        return image_classifier

    def check(self) -> None:
        super().check()
        if self.max_tags < 1:
            raise ParameterError(f"`max_tags` must be at least 1, got {self.max_tags}")
        task, labels = labels_of_model(self.found())
        if task == "regression":
            raise ParameterError(f"{self.model} has no labels: it is a regression")
        check_labels(self.model, [*self.keep, *self.drop], labels)

    def open(self, context: Context) -> _Tagger:
        return _Tagger(self, self.open_model(context), *labels_of_model(self.found()))

    def rules(self) -> list[Rule]:
        rules: list[Rule] = [AnyOf("tags", allowed=tuple(self.keep))] if self.keep else []
        return [*rules, NoneOf("tags", allowed=tuple(self.drop))] if self.drop else rules


@dataclass(frozen=True)
class NoneOf(Rule):
    """Keeps a row if a list of labels has none of those given."""

    @property
    def met(self) -> str:
        return f"{self.score} has none of {', '.join(self.allowed or ())}"

    def verdicts(self, values: Column) -> list[tuple[str, np.ndarray]]:
        missing = np.asarray(pc.is_null(values).to_numpy(zero_copy_only=False), np.bool_)
        result = [(f"{self.score} is missing", missing)] if missing.any() else []
        found = missing.copy()
        for label in self.allowed or ():
            has = np.array([label in (tags or ()) for tags in values.to_pylist()], np.bool_) & ~found
            result.append((f"{self.score} has {label}", has))
            found |= has
        return result


class _Tagger:
    def __init__(self, step: ImageTags, model: ImageModel, task: Task, labels: list[str]) -> None:
        self._step, self._model, self._task, self._labels = step, model, task, labels

    def score(self, batch: Batch) -> Scores:
        step = self._step
        missing, logits = step.outputs(self._model, batch)
        probabilities = sigmoid(logits) if self._task == "multi" else softmax(logits)
        tags = [None if gone else self._tags(row) for gone, row in zip(missing, probabilities, strict=True)]
        return {
            "tags": pa.array(tags, pa.list_(pa.string())),
            "tag_score": pa.array(probabilities.max(axis=1), mask=missing),
        }

    def _tags(self, probabilities: np.ndarray) -> list[str]:
        best = np.argsort(-probabilities, kind="stable")[: self._step.max_tags]
        return [self._labels[number] for number in best if probabilities[number] >= self._step.min_probability]


# ------------------------------------------------------------------------------------------------------------- watermarks


@operator(reads="image", writes="watermark")
class Watermark(NetworkStep, Filter):
    """Keep images that have a visible watermark with a probability of at most 0.5, by a classifier.

    `model` is an image-classification folder one of whose labels is `label`; no such model is included. The bound is that
    of the data of Stable Diffusion 1.2 (Rombach et al. 2022, model card). A row without image is dropped. Needs
    `tamis[image,models]`.

        Watermark("models/watermark-detector", max_watermark=0.8)
    """

    model: str | Path
    label: str = "watermark"
    column: str = "image"
    max_watermark: float = 0.5
    batch_size: int | None = None
    device: Device = "auto"
    pixels: str | None = None
    """A column that `ImageTensor` wrote, which is then read in place of the image and removed."""

    def build(self) -> ImageBuild:
        return image_classifier

    def check(self) -> None:
        super().check()
        check_labels(self.model, [self.label], labels_of_model(self.found())[1])

    def open(self, context: Context) -> _WatermarkScorer:
        return _WatermarkScorer(self, self.open_model(context))

    def rules(self) -> list[Rule]:
        return [at_most("watermark", self.max_watermark)]


class _WatermarkScorer:
    def __init__(self, step: Watermark, model: ImageModel) -> None:
        self._step, self._model = step, model
        self._task, labels = labels_of_model(step.found())
        self._number = labels.index(step.label)

    def score(self, batch: Batch) -> Scores:
        missing, logits = self._step.outputs(self._model, batch)
        probabilities = softmax(logits) if self._task == "single" else sigmoid(logits)
        return {"watermark": pa.array(probabilities[:, self._number], mask=missing)}
