"""Operators by name: which modules define them, and how a recipe entry becomes an operator.

Modules are imported one by one until a name is found, because some load compiled kernels.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from tamis.curator_names import parameter_hint
from tamis.errors import ParameterError, RecipeError, did_you_mean
from tamis.operators import Operator, known_operators
from tamis.parameters import as_text, type_name


@functools.cache
def _load_plugins() -> None:
    """Import the operators that other packages register under the entry point group `tamis.operators`."""
    from importlib import metadata

    for entry in metadata.entry_points(group="tamis.operators"):
        entry.load()


OPERATOR_MODULES = (
    "tamis.sources.tables",
    "tamis.sources.memory",
    "tamis.sources.webdataset",
    "tamis.sources.mediafiles",
    "tamis.sources.references",
    "tamis.sources.download",
    "tamis.sources.warc",
    "tamis.sources.mediawiki",
    "tamis.web.extract",
    "tamis.web.wiki",
    "tamis.sinks.tables",
    "tamis.sinks.webdataset",
    "tamis.sinks.folder",
    "tamis.sinks.audio",
    "tamis.sinks.clips",
    "tamis.text.quality",
    "tamis.text.web",
    "tamis.text.repetition",
    "tamis.text.lists",
    "tamis.text.blocklist",
    "tamis.text.tokens",
    "tamis.text.token_ids",
    "tamis.sinks.tokens",
    "tamis.text.code",
    "tamis.sampling",
    "tamis.backends",
    "tamis.dedup.exact",
    "tamis.dedup.fuzzy",
    "tamis.dedup.semantic",
    "tamis.dedup.images",
    "tamis.dedup.sounds",
    "tamis.dedup.videos",
    "tamis.audio.fingerprint",
    "tamis.video.hashing",
    "tamis.dedup.selection",
    "tamis.fields",
    "tamis.text.clean",
    "tamis.text.lines",
    "tamis.text.pii",
    "tamis.text.documents",
    "tamis.text.language",
    "tamis.text.classify",
    "tamis.text.classifiers",
    "tamis.text.safety",
    "tamis.text.embedding_classifier",
    "tamis.text.toxicity",
    "tamis.text.embed",
    "tamis.text.neural",
    "tamis.text.decontaminate",
    "tamis.text.statistics",
    "tamis.text.ask",
    "tamis.text.generate",
    "tamis.audio.filters",
    "tamis.audio.edit",
    "tamis.audio.segment",
    "tamis.audio.manifests",
    "tamis.audio.transcripts",
    "tamis.audio.speech",
    "tamis.audio.listening",
    "tamis.audio.voices",
    "tamis.audio.rttm",
    "tamis.audio.transcribe",
    "tamis.audio.alignment",
    "tamis.audio.embed",
    "tamis.image.filters",
    "tamis.image.text_share",
    "tamis.image.similarity",
    "tamis.image.neural",
    "tamis.image.faces",
    "tamis.image.nsfw",
    "tamis.image.classify",
    "tamis.image.embed",
    "tamis.image.hashing",
    "tamis.image.appearance",
    "tamis.image.brisque",
    "tamis.image.edit",
    "tamis.image.metadata",
    "tamis.video.filters",
    "tamis.video.appearance",
    "tamis.video.split",
    "tamis.video.cut",
    "tamis.video.frames",
    "tamis.video.previews",
    "tamis.video.transnet",
    "tamis.video.caption",
)


def registered() -> dict[str, type[Operator]]:
    """Every operator by its recipe name, including those of other packages (entry point group `tamis.operators`)."""
    for module in OPERATOR_MODULES:
        import_module(module)
    _load_plugins()
    return dict(sorted(known_operators.items()))


def find_operator(name: str) -> type[Operator]:
    """The operator with the recipe name `name`, or an error that suggests the closest name."""
    for module in OPERATOR_MODULES:
        if name in known_operators:
            break
        import_module(module)
    else:
        known = registered()
        if name not in known:
            hint = did_you_mean(name, known) or "`tamis ops` lists them"
            raise RecipeError(f"there is no operator `{name}`", hint=hint)
    return known_operators[name]


def build_operator(name: str, parameters: Mapping[str, Any]) -> Operator:
    """An operator from its recipe name and parameters, with errors that refer to the recipe."""
    cls = find_operator(name)
    fields = {spec.name: spec for spec in dataclasses.fields(cls)}
    for key in parameters:
        if key not in fields:
            raise ParameterError(f"`{name}` has no parameter `{key}`", hint=parameter_hint(str(key), fields))
    missing = [
        key
        for key, spec in fields.items()
        if spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING and key not in parameters
    ]
    if missing:
        raise ParameterError(f"`{name}` needs `{missing[0]}`", hint=f"- {name}: {{{missing[0]}: ...}}")
    return cls(**dict(parameters))


def describe_parameters(cls: type[Operator]) -> list[dict[str, Any]]:
    """The name, type and default of each parameter, for listings."""
    hints = typing.get_type_hints(cls)
    result = []
    for spec in dataclasses.fields(cls):
        required = spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING
        default = spec.default_factory() if callable(spec.default_factory) else spec.default
        result.append(
            {
                "name": spec.name,
                "type": type_name(hints[spec.name]),
                "required": required,
                "default": None if required else as_text(default),
            }
        )
    return result
