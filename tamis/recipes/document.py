"""A recipe file as plain values with their line numbers, and back.

Scalars follow YAML 1.2, because 1.1 surprises people who curate text: here `no` is a language and not False, `1e-3` is
a number and not a word, and a date is text. Tags, anchors and repeated keys are refused: nothing is evaluated, nothing
grows while it is read, and no line silently overrules another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from tamis.errors import RecipeError

MAX_BYTES = 1_000_000

_SCALARS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+(?:_[0-9]+)*", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
)


@dataclass(frozen=True, order=True)
class Position:
    """A place in a file; both numbers start at 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


@dataclass(frozen=True)
class Entry:
    """A value, where it begins, for a list the same of each item, and for a mapping the same of each key and value."""

    value: Any
    position: Position
    items: tuple[Entry, ...] = ()
    keys: Mapping[str, Position] = field(default_factory=dict)
    values: Mapping[str, Entry] = field(default_factory=dict)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (the base class declares it so)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _problem("a recipe cannot use anchors (& and *)", event.start_mark)
        if getattr(event, "tag", None):
            raise _problem(f"a recipe cannot use tags ({event.tag})", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _problem("a key must be a single word", key_node.start_mark)
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise _problem(f"`{key}` is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        try:
            return int(node.value)
        except ValueError as error:  # Python refuses numbers of thousands of digits
            raise _problem("a number is too long", node.start_mark) from error

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        return float(node.value.lower().replace(".inf", "inf").replace(".nan", "nan"))


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


class _Inline(dict[str, Any]):
    """A mapping that is written on one line."""


def _write_text(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    # Only double quotes keep every kind of line break as it is.
    style = '"' if any(letter in value for letter in "\n\r\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _write_text)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)
_Dumper.add_representer(
    _Inline, lambda dumper, value: dumper.represent_mapping("tag:yaml.org,2002:map", value, flow_style=True)
)
for _tag, _pattern, _first in _SCALARS:
    for _side in (_Loader, _Dumper):
        _side.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})\\Z"), _first)


def read_document(data: bytes, where: str) -> Entry:
    """A recipe as values with their positions; `where` names the file in errors."""
    if len(data) > MAX_BYTES:
        raise RecipeError(
            f"{where} has {len(data):,} bytes; a recipe has at most {MAX_BYTES:,}", hint="is it a data file?"
        )
    try:
        text = data.decode("utf-8-sig")
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            if root is None:
                raise RecipeError(f"{where} is empty", hint="a recipe has `steps:`, a list of operators")
            if not isinstance(root, yaml.MappingNode):
                raise RecipeError(
                    f"{where} is not a recipe: it holds {_kind(root)}",
                    hint="a recipe is a mapping with `steps:`, a list of operators",
                )
            loader.construct_mapping(root, deep=True)  # refuses keys given twice
            return _entry(loader, root)
        finally:
            loader.dispose()
    except UnicodeDecodeError as error:
        raise RecipeError(f"{where} is not text in UTF-8 (byte {error.start:,})") from None
    except RecursionError:
        raise RecipeError(f"{where} is nested too deeply to be a recipe") from None
    except yaml.MarkedYAMLError as error:
        raise _explained(error, where) from None
    except yaml.YAMLError as error:
        raise RecipeError(f"{where} is not YAML: {str(error).splitlines()[0]}") from None


def read_value(text: str) -> Any:
    """One value as YAML writes it, e.g. from the command line."""
    try:
        return yaml.load(text, Loader=_Loader)
    except RecursionError:
        raise RecipeError("the value is nested too deeply") from None
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or str(error)
        raise RecipeError(f"{text!r} is not a value: {problem}", hint="quote text that holds : { } [ ] or #") from None


def write_yaml(value: Any) -> str:
    """A value as block-style YAML."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False))


def write_document(top: Mapping[str, Any], steps: list[tuple[str, Mapping[str, Any], bool]]) -> str:
    """The YAML of a recipe: one line per step, and one more if it is optional."""
    listed: list[Any] = []
    for name, parameters, optional in steps:
        if optional:
            listed.append({name: _Inline(parameters), "optional": True})
        else:
            listed.append({name: _Inline(parameters)} if parameters else name)
    document = {**top, "steps": listed}
    return str(
        yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=120)
    )


def _entry(loader: _Loader, node: yaml.Node) -> Entry:
    position = _position(node.start_mark)
    if isinstance(node, yaml.SequenceNode):
        items = tuple(_entry(loader, item) for item in node.value)
        return Entry([item.value for item in items], position, items)
    keys, values = {}, {}
    if isinstance(node, yaml.MappingNode):
        keys = {str(key.value): _position(key.start_mark) for key, _ in node.value}
        values = {str(key.value): _entry(loader, value) for key, value in node.value}
    return Entry(loader.construct_object(node, deep=True), position, (), keys, values)


def _position(mark: yaml.Mark) -> Position:
    return Position(mark.line + 1, mark.column + 1)


def _problem(message: str, mark: yaml.Mark | None) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=message, problem_mark=mark)


def _explained(error: yaml.MarkedYAMLError, where: str) -> RecipeError:
    mark = error.problem_mark or error.context_mark
    place = f"{where}, {_position(mark)}" if mark else where
    problem = str(error.problem or error.context)
    if r"'\t'" in problem:
        return RecipeError(f"{place}: a tab stands where only spaces can", hint="indent with spaces")
    if "expected a single document" in str(error.context):
        return RecipeError(f"{place}: a second document begins", hint="one file holds one recipe")
    return RecipeError(f"{place}: {problem}")


def _kind(node: yaml.Node) -> str:
    return "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
