"""What steps that run a network on sound have in common: the files of the model, and its memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tamis.audio.decode import AudioStep
from tamis.context import Context
from tamis.errors import TamisError
from tamis.models import onnx
from tamis.models.files import AUDIO_DEFAULTS, ModelError, ModelFiles, find, with_files
from tamis.operators import Resources

ACTIVATION_BYTES = 150_000_000
"""What a clip takes while a network runs."""


def find_audio_model(model: str | Path, kind: str) -> ModelFiles:
    """The files of a default model, or of one in the same layout."""
    found = find(model, (), AUDIO_DEFAULTS)
    if found.kind != kind:
        known = [name for name, packaged in AUDIO_DEFAULTS.items() if packaged.kind == kind]
        raise ModelError(f"{model} is not a model for this step", hint=f"use {' or '.join(known)}")
    return found


class ModelStep(AudioStep):
    """A step with a parameter `model`, whose files are found when the pipeline is checked."""

    cost = 2000.0
    runtime_bytes = onnx.RUNTIME_BYTES

    def found(self) -> ModelFiles:
        raise NotImplementedError

    def check(self) -> None:
        self.found()

    def packages(self) -> Mapping[str, str]:
        return {**super().packages(), **self.found().packages}

    def identity(self) -> dict[str, Any]:
        return with_files(super().identity(), self.found())

    @property
    def resources(self) -> Resources:
        try:
            found = self.found()
        except TamisError:  # `check` reports it
            return Resources()
        size = self.runtime_bytes + 2 * found.num_bytes
        return Resources(memory=ACTIVATION_BYTES, shared={self.key(found): size})

    def key(self, found: ModelFiles) -> str:
        return found.key(type(self).__name__)

    def shared(self, context: Context, load: Any) -> Any:
        """The model of this step, loaded once per worker by `load(files)`."""
        found = self.found()
        return context.shared(self.key(found), lambda: load(found))
