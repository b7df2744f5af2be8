"""Answers in a given form: a part of JSON Schema, the columns it describes, and the values in an answer.

    columns {"score": {"type": "integer", "maximum": 5}} --object_schema--> JSON Schema of the whole answer
    answer  '{"score": 4}'                               --read_answer----> {"score": 4}, or an error

Only keywords that are checked here are accepted, so that no answer passes for lack of a check.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tamis.errors import ParameterError, TamisError, did_you_mean

_TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")
_ANNOTATIONS = frozenset({"title", "description"})
_KEYWORDS: dict[str, frozenset[str]] = {
    "string": frozenset({"minLength", "maxLength", "pattern"}),
    "integer": frozenset({"minimum", "maximum"}),
    "number": frozenset({"minimum", "maximum"}),
    "boolean": frozenset(),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
}
_SIZES = {"minLength": ">=", "minItems": ">=", "maxLength": "<=", "maxItems": "<="}
_BOUNDS = {"minimum": ">=", "maximum": "<="}
MAX_QUOTED_CHARS = 300
"""How much of an answer an error shows."""


class AnswerError(TamisError):
    """An answer that cannot be used; it fails the row."""


def object_schema(columns: Mapping[str, Any], owner: str = "ask") -> dict[str, Any]:
    """The JSON Schema of an object with these properties, all of them required and no others.

    A type can be given by its name alone. A whole schema of an object is accepted too.

    >>> object_schema({"score": "integer"})
    {'type': 'object', 'properties': {'score': {'type': 'integer'}}, 'required': ['score'], 'additionalProperties': False}
    """
    whole = columns.get("type") == "object" and isinstance(columns.get("properties"), Mapping)
    given = columns if whole else {"type": "object", "properties": columns}
    result = _checked(given, f"`schema` of `{owner}`")
    if not result["properties"]:
        raise ParameterError(f"`schema` of `{owner}` names no columns", hint="schema={'score': {'type': 'integer'}}")
    return result


def _checked(given: object, where: str) -> dict[str, Any]:
    """A schema with types in their usual form, or an error for what is not supported."""
    if isinstance(given, str):
        given = {"type": given}
    if not isinstance(given, Mapping):
        raise ParameterError(f"{where} must be a JSON Schema, got {given!r}", hint="such as {'type': 'string'}")
    kind, nullable = _kind(given, where)
    known = _KEYWORDS[kind] | _ANNOTATIONS | {"type", "enum"}
    for keyword in given:
        if keyword not in known:
            hint = did_you_mean(str(keyword), known) or f"supported with {kind}: {', '.join(sorted(known))}"
            raise ParameterError(f"{where} has the keyword `{keyword}`, which is not supported here", hint=hint)
    result: dict[str, Any] = {**given, "type": [kind, "null"] if nullable else kind}
    if kind == "array":
        if "items" not in given:
            raise ParameterError(f"{where} is an array without `items`", hint="{'type': 'array', 'items': 'string'}")
        result["items"] = _checked(given["items"], f"`items` of {where}")
    if kind == "object":
        properties = given.get("properties")
        if not isinstance(properties, Mapping):
            raise ParameterError(f"{where} is an object without `properties`")
        result["properties"] = {
            str(name): _checked(value, f"`{name}` of {where}") for name, value in properties.items()
        }
        missing = [name for name in given.get("required", ()) if name not in result["properties"]]
        if missing:
            raise ParameterError(f"{where} requires `{missing[0]}`, which it does not describe")
        # A property may be null if its type says so; leaving it out is then the same.
        result["required"], result["additionalProperties"] = list(result["properties"]), False
    if "pattern" in given:
        try:
            re.compile(given["pattern"])
        except (re.error, TypeError) as error:
            raise ParameterError(f"{where} has an invalid `pattern`: {error}") from None
    for keyword in (*_SIZES, *_BOUNDS):
        value = given.get(keyword, 0)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ParameterError(f"{where} has `{keyword}` {value!r}, which is not a number")
    if "enum" in given:
        _check_enum(given["enum"], kind, nullable, where)
    return result


def _check_enum(values: object, kind: str, nullable: bool, where: str) -> None:
    """Raise if an answer can have none of these values."""
    if not (isinstance(values, (list, tuple)) and values):
        raise ParameterError(f"{where} has an `enum` that is not a list of values")
    for value in values:
        if not (_is_of(value, kind) or (value is None and nullable)):
            raise ParameterError(
                f"{where} has {value!r} in its `enum`, which is not {_article(kind)}",
                hint="name the type of the values with `type`",
            )


def _kind(given: Mapping[str, Any], where: str) -> tuple[str, bool]:
    """The type that a schema describes, and whether null is allowed too."""
    stated = given.get("type")
    if stated is None and given.get("enum"):
        stated = "string"
    kinds = [stated] if isinstance(stated, str) else stated
    if not isinstance(kinds, (list, tuple)) or not kinds or not all(kind in _TYPES for kind in kinds):
        raise ParameterError(f"{where} has the type {stated!r}", hint=f"types are {', '.join(_TYPES)}")
    others = [kind for kind in kinds if kind != "null"]
    if len(others) != 1:
        raise ParameterError(f"{where} has the type {stated!r}", hint="a column has one type, or one type and null")
    return others[0], "null" in kinds


def arrow_type(schema: Mapping[str, Any]) -> pa.DataType:
    """The type of a column with values of a schema that `object_schema` returned."""
    kind, _ = _kind(schema, "")
    if kind == "array":
        return pa.list_(arrow_type(schema["items"]))
    if kind == "object":
        return pa.struct([(name, arrow_type(value)) for name, value in schema["properties"].items()])
    return {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}[kind]


def instruction(schema: Mapping[str, Any]) -> str:
    """What to add to a prompt so that a model answers in this form, whether or not the server enforces it."""
    return "Answer with one JSON object that matches this JSON Schema, and nothing else:\n" + json.dumps(
        schema, ensure_ascii=False
    )


def read_answer(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The values in an answer, or an `AnswerError` that quotes it.

    >>> read_answer('```json\\n{"score": 4}\\n```', object_schema({"score": "integer"}))
    {'score': 4}
    """
    try:
        found = json.loads(_unfenced(text), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise AnswerError(f"the answer is not JSON ({error}): {quoted(text)}") from None
    problem = _problem(found, schema, "the answer")
    if problem is not None:
        raise AnswerError(f"{problem}: {quoted(text)}")
    result: dict[str, Any] = _completed(found, schema)
    return result


def is_unicode(text: str) -> bool:
    """Whether a text can be encoded: JSON may contain half a surrogate pair.

    >>> is_unicode("\\U0001f600"), is_unicode("\\ud83d")
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def quoted(text: str) -> str:
    """A text on one line, shortened if it is long."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_QUOTED_CHARS else f"{line[:MAX_QUOTED_CHARS]} ..."


def _unfenced(text: str) -> str:
    """The text without the code fence that models put around JSON."""
    match = re.fullmatch(r"\s*```(?:json)?\s*\n(.*?)\n?```\s*", text, flags=re.DOTALL)
    return match[1] if match else text


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _completed(value: Any, schema: Mapping[str, Any]) -> Any:
    """A value with the properties that were left out as null, and whole numbers as integers where that is their type."""
    kind, _ = _kind(schema, "")
    if value is None:
        return None
    if kind == "object":
        return {name: _completed(value.get(name), part) for name, part in schema["properties"].items()}
    if kind == "array":
        return [_completed(item, schema["items"]) for item in value]
    return int(value) if kind == "integer" else float(value) if kind == "number" else value


def _problem(value: Any, schema: Mapping[str, Any], where: str) -> str | None:
    """What is wrong with a value, or None."""
    kind, nullable = _kind(schema, "")
    if value is None and nullable:
        return None
    if not _is_of(value, kind):
        return f"{where} must be {_article(kind)}, got {'null' if value is None else type(value).__name__}"
    if isinstance(value, str) and not is_unicode(value):
        return f"{where} is not valid Unicode"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} must be one of {', '.join(map(str, schema['enum']))}, got {quoted(str(value))}"
    size = len(value) if isinstance(value, (str, list)) else value
    for keyword, sign in (*_SIZES.items(), *_BOUNDS.items()):
        if keyword in schema and (size < schema[keyword] if sign == ">=" else size > schema[keyword]):
            measured = "" if keyword in _BOUNDS else " items" if kind == "array" else " characters"
            return f"{where} must be {sign} {schema[keyword]}{measured}, got {size}"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        return f"{where} does not match {schema['pattern']!r}"
    parts: list[tuple[Any, Mapping[str, Any], str]] = []
    if kind == "object":
        unknown = [name for name in value if name not in schema["properties"]]
        if unknown:
            return f"{where} has `{quoted(unknown[0])}`, which the schema does not describe"
        parts = [(value.get(name), part, f"`{name}`") for name, part in schema["properties"].items()]
    elif kind == "array":
        parts = [(item, schema["items"], f"{where}[{number}]") for number, item in enumerate(value)]
    return next((found for part in parts if (found := _problem(*part)) is not None), None)


def _is_of(value: Any, kind: str) -> bool:
    if kind in ("integer", "number"):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        if kind == "number":  # an integer in JSON may be too large for a float
            return -sys.float_info.max <= value <= sys.float_info.max
        return -(2**63) <= value < 2**63 and value == int(value)
    return isinstance(value, {"string": str, "boolean": bool, "array": list, "object": dict}[kind])


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aio" else f"a {kind}"
