"""Parameters of operators: byte sizes as text, and values checked against annotations."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tamis.errors import ParameterError

_UNITS = {
    "": 1, "B": 1,
    "K": 10**3, "KB": 10**3, "M": 10**6, "MB": 10**6, "G": 10**9, "GB": 10**9, "T": 10**12, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip


def parse_bytes(size: int | str) -> int:
    """Bytes in "256MB" (decimal), "1GiB" (binary) or a plain number.

    >>> parse_bytes("256MB"), parse_bytes("1GiB"), parse_bytes("1.5kB"), parse_bytes(7)
    (256000000, 1073741824, 1500, 7)
    """
    if isinstance(size, int) and not isinstance(size, bool):
        number, unit = float(size), ""
    else:
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", str(size))
        if not match or match[2].upper() not in _UNITS:
            raise ParameterError(f"{size!r} is not a size", hint="write a size as 256MB, 1GiB or a number of bytes")
        number, unit = float(match[1]), match[2].upper()
    result = int(number * _UNITS[unit])
    if result <= 0:
        raise ParameterError(f"a size must be positive, got {size!r}")
    return result


def format_bytes(size: float) -> str:
    """A readable size: 1.5 GB, 20 MB, 17 B."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def plural(number: int, noun: str) -> str:
    """A number with its noun.

    >>> plural(1, "file"), plural(2_000, "row"), plural(0, "process"), plural(3, "batch"), plural(2, "entry")
    ('1 file', '2,000 rows', '0 processes', '3 batches', '2 entries')
    """
    if number == 1:
        return f"{number:,} {noun}"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{number:,} {noun[:-1]}ies"
    return f"{number:,} {noun}{'es' if noun.endswith(('s', 'x', 'ch', 'sh')) else 's'}"


def type_name(annotation: object) -> str:
    """An annotation as a user would write it: int, str, list[str], int or None."""
    if annotation is type(None):
        return "None"
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " or ".join(type_name(arg) for arg in typing.get_args(annotation))
    if typing.get_origin(annotation) is typing.Literal:
        return "one of " + ", ".join(repr(arg) for arg in typing.get_args(annotation))
    if typing.get_origin(annotation) is not None:
        text = str(annotation).replace("collections.abc.", "").replace("typing.", "")
        return text.replace("pathlib._local.", "pathlib.")  # where Python 3.13 keeps it
    return getattr(annotation, "__name__", str(annotation))


def fits(value: object, annotation: object) -> bool:
    """Whether `value` has the annotated type, including the items of containers."""
    if annotation is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation is str:
        return isinstance(value, str)
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in (Any, object) or isinstance(annotation, typing.TypeVar):
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, arg) for arg in args)
    if origin is typing.Literal:
        return value in args
    if origin in (Callable, typing.get_origin(Callable[..., int])):
        return callable(value)
    if annotation is type(None):
        return value is None
    if origin is not None and isinstance(origin, type):
        if isinstance(value, (str, bytes)) or not isinstance(value, origin):
            return False
        if issubclass(origin, Mapping) and len(args) == 2:
            return all(
                fits(k, args[0]) and fits(v, args[1]) for k, v in typing.cast("Mapping[Any, Any]", value).items()
            )
        if issubclass(origin, Sequence) and args:
            return all(fits(item, args[0]) for item in typing.cast("Sequence[Any]", value))
        return True
    return isinstance(value, annotation) if isinstance(annotation, type) else True


def check_parameters(owner: str, instance: Any) -> None:
    """Raise if a field of the dataclass `instance` has a value that its annotation does not allow."""
    hints = typing.get_type_hints(type(instance))
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if not fits(value, hints[field.name]):
            raise ParameterError(f"`{field.name}` of `{owner}` must be {type_name(hints[field.name])}, got {value!r}")
        bounds = f"min_{field.name[4:]}" if field.name.startswith("max_") else None
        low = getattr(instance, bounds, None) if bounds else None
        if isinstance(value, (int, float)) and isinstance(low, (int, float)) and low > value:
            raise ParameterError(f"`{bounds}` of `{owner}` is {low}, which is greater than `{field.name}`, {value}")


def as_text(value: object) -> object:
    """A parameter value in a form that JSON and YAML can store; used for recipes, manifests and identities."""
    if isinstance(value, Mapping):
        return {str(key): as_text(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_text(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_text(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return repr(value)
