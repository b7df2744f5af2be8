"""A JSON schema for recipes, made from the operators that are installed, so that editors complete and check YAML.

The schema that ships with the package, `recipe.schema.json`, has the operators of Tamis; `tamis schema` prints one that also
has those of other packages. It is of draft 7, which the language server for YAML supports in full.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tamis.operators import Operator
from tamis.parameters import as_text
from tamis.recipes.load import Settings
from tamis.registry import registered

FILE_NAME = "recipe.schema.json"
COMMENT = f"# yaml-language-server: $schema={FILE_NAME}\n"
"""The first line of a recipe beside a schema, by which editors find it."""

_SETTINGS = {
    "memory": "Memory budget of all processes together, e.g. 8GB.",
    "workers": "Number of worker processes, or auto.",
    "rejects": "Keep dropped rows with their reasons.",
    "card": "Write a dataset card.",
    "license": "The license that the card names, e.g. odc-by.",
    "max_failed": "End the run if more rows or files fail: a share such as 10%, or a number.",
    "alerts": "When to raise alerts about memory, and who receives them.",
    "gpu_memory": "Memory budget on each GPU, e.g. 20GB.",
}


def recipe_schema(operators: Mapping[str, type[Operator]] | None = None) -> dict[str, Any]:
    """The schema of recipes with the given operators; by default all that are installed."""
    known = dict(operators) if operators is not None else registered()
    described = {name: _parameters(cls) for name, cls in known.items()}
    bare = [name for name, parameters in described.items() if "required" not in parameters]
    steps = {
        name: {"description": parameters["description"], "anyOf": [{"$ref": f"#/definitions/{name}"}]}
        | ({} if "required" in parameters else {"anyOf": [{"$ref": f"#/definitions/{name}"}, {"type": "null"}]})
        for name, parameters in described.items()
    }
    step = {
        "type": "object",
        "properties": {
            **steps,
            "optional": {"type": "boolean", "description": "Leave the step out if a package or a model is missing."},
        },
        "additionalProperties": False,
        "minProperties": 1,
        "anyOf": [
            {"maxProperties": 1, "not": {"required": ["optional"]}},
            {"minProperties": 2, "maxProperties": 2, "required": ["optional"]},
        ],
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Recipe of Tamis",
        "type": "object",
        "required": ["steps"],
        "additionalProperties": False,
        "properties": {
            "name": {"type": "string"},
            "description": {"type": "string"},
            **_settings(),
            "steps": {
                "type": "array",
                "minItems": 1,
                "items": {"anyOf": [{"enum": bare}, {"$ref": "#/definitions/step"}]},
            },
        },
        "definitions": {"step": step, **described},
    }


def schema_text(operators: Mapping[str, type[Operator]] | None = None) -> str:
    return json.dumps(recipe_schema(operators), indent=1, ensure_ascii=False) + "\n"


def own_operators() -> dict[str, type[Operator]]:
    """The operators of Tamis itself."""
    return {name: cls for name, cls in registered().items() if cls.__module__.startswith("tamis.")}


def _settings() -> dict[str, Any]:
    hints = typing.get_type_hints(Settings)
    found = {}
    for spec in dataclasses.fields(Settings):
        found[spec.name] = type_schema(hints[spec.name]) | {"description": _SETTINGS.get(spec.name, "")}
    found["workers"] |= {"anyOf": [{"type": "integer", "minimum": 1}, {"const": "auto"}]}
    return found


def _parameters(cls: type[Operator]) -> dict[str, Any]:
    """The parameters of an operator as an object."""
    hints = typing.get_type_hints(cls)
    properties, required = {}, []
    for spec in dataclasses.fields(cls):
        found = type_schema(hints[spec.name])
        if spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            if not (spec.name == "file_paths" and cls.kind == "source") and not (
                spec.name == "path" and cls.kind == "sink"
            ):
                required.append(spec.name)  # --input and --output give the others
        else:
            default = spec.default_factory() if callable(spec.default_factory) else spec.default
            found = {**found, "default": as_text(default)}
        properties[spec.name] = found
    doc = (inspect.getdoc(cls) or "").split("\n\n")[0]
    result: dict[str, Any] = {
        "description": " ".join(doc.split()),
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    return result | ({"required": required} if required else {})


def type_schema(annotation: Any) -> dict[str, Any]:
    """The values of a parameter as YAML writes them: lists for tuples, text for paths."""
    simple = {bool: "boolean", int: "integer", float: "number", str: "string", Path: "string", type(None): "null"}
    if annotation in simple:
        return {"type": simple[annotation]}
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        found: list[dict[str, Any]] = []
        for each in (type_schema(arg) for arg in args):
            if each not in found:
                found.append(each)
        return {} if {} in found else found[0] if len(found) == 1 else {"anyOf": found}
    if origin is typing.Literal:
        return {"enum": list(args)}
    if isinstance(origin, type) and issubclass(origin, collections.abc.Mapping):
        return {"type": "object", "additionalProperties": type_schema(args[1])}
    if isinstance(origin, type) and issubclass(origin, collections.abc.Collection):
        items = [type_schema(arg) for arg in args if arg is not Ellipsis]
        return {"type": "array", "items": items[0] if all(each == items[0] for each in items) else {}}
    if annotation in (dict, collections.abc.Mapping):
        return {"type": "object"}
    return {}
