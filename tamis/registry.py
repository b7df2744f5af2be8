"""Operators by name: how a recipe entry becomes an operator.

`names.py` says which module defines a name, so that no other module is imported.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from tamis.curator_names import parameter_hint
from tamis.errors import ParameterError, RecipeError, did_you_mean
from tamis.names import OPERATORS
from tamis.operators import Operator, known_operators
from tamis.parameters import as_text, type_name


@functools.cache
def _load_plugins() -> None:
    """Import the operators that other packages register under the entry point group `tamis.operators`."""
    from importlib import metadata

    for entry in metadata.entry_points(group="tamis.operators"):
        entry.load()


def registered() -> dict[str, type[Operator]]:
    """Every operator by its recipe name, including those of other packages (entry point group `tamis.operators`)."""
    for place in OPERATORS.values():
        import_module(place.partition(":")[0])
    _load_plugins()
    return dict(sorted(known_operators.items()))


def known_names() -> list[str]:
    """The recipe name of every operator, without importing those of Tamis."""
    _load_plugins()
    return sorted({*OPERATORS, *known_operators})


def find_operator(name: str) -> type[Operator]:
    """The operator with the recipe name `name`, or an error that suggests the closest name."""
    if name in OPERATORS:
        import_module(OPERATORS[name].partition(":")[0])
    elif name not in known_operators:
        _load_plugins()
    if name not in known_operators:
        hint = did_you_mean(name, known_names()) or "`tamis ops` lists them"
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
    """The name, type and default of each parameter, for listings: first what is required, last what many operators have.

    >>> from tamis.text import WordCount
    >>> [parameter["name"] for parameter in describe_parameters(WordCount)][:2]
    ['min_words', 'max_words']
    """
    hints = typing.get_type_hints(cls)
    declared = [inspect.get_annotations(each) for each in cls.__mro__]
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
    return sorted(
        result, key=lambda each: (not each["required"], [each["name"] in names for names in declared].index(True))
    )
