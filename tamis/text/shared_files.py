"""Files that operators load in each worker: models, tokenizers, lists. Steps of a stage that use the same file share it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from tamis.context import Context, file_key
from tamis.errors import TamisError
from tamis.models import fasttext, heads, language_model, linear, tfidf
from tamis.models.fasttext import FastText, find_model, with_model
from tamis.models.heads import Head
from tamis.models.language_model import LanguageModel
from tamis.models.linear import LinearModel
from tamis.models.outputs import check_names
from tamis.models.tfidf import TfidfClassifier
from tamis.operators import Operator, Resources

_T = TypeVar("_T")


@dataclass(frozen=True)
class SharedFile(Generic[_T]):
    """A kind of file: where it is found, how it is loaded, and the memory that loading it needs."""

    kind: str
    load: Callable[[Path], _T]
    memory_bytes: Callable[[Path], int]
    find: Callable[[str | Path], Path] = find_model

    def open(self, name: str | Path, context: Context) -> _T:
        """The content of a file, loaded once per worker and stage."""
        path = self.find(name)
        return context.shared(file_key(self.kind, path), lambda: self.load(path))

    def resources(self, *names: str | Path) -> Resources:
        """What a step that loads these files needs. A missing file counts nothing: `check` reports it."""
        needs = {}
        for name in names:
            try:
                path = self.find(name)
                needs[file_key(self.kind, path)] = self.memory_bytes(path)
            except (TamisError, OSError):
                continue
        return Resources(shared=needs)


FASTTEXT = SharedFile("fasttext", FastText.open, fasttext.memory_bytes)
LINEAR = SharedFile("linear", LinearModel.load, linear.memory_bytes)
HEAD = SharedFile("embedding classifier", Head.load, heads.memory_bytes)
TFIDF = SharedFile("words", TfidfClassifier.load, tfidf.memory_bytes)
LANGUAGE_MODEL = SharedFile(
    "language model", lambda path: LanguageModel.load(path).with_table(), language_model.memory_bytes
)


class ModelFileStep(Operator):
    """A step with a model in one file."""

    model: str | Path
    model_file: ClassVar[SharedFile[Any]]

    def check(self) -> None:
        check_names(self.name, self.writes(), self.real_names().values())
        find_model(self.model)

    def identity(self) -> dict[str, Any]:
        return with_model(super().identity(), find_model(self.model))

    @property
    def resources(self) -> Resources:
        return self.model_file.resources(self.model)
