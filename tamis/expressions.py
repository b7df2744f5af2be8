"""Conditions on columns, as text: parsed here, and computed by Arrow. Nothing is evaluated as Python.

    language == 'en' and words >= 50 and not (max(toxic.score) > 0.5 or url matches '^https?://spam\\.')

    expression    or of and of not of comparison
    comparison    ==  !=  <  <=  >  >=  in [..]  not in [..]  contains '..'  matches '..'  is null  is not null
    value         + - * /   number  'text'  true  false  null  column  column.field  list[0]  function(..)
    function      length count lower abs min max sum mean round covered

A name with other characters is in backticks: `my column`. A null makes a comparison null, and a condition that is null is not
true. `field` of a list of structs is the list of these fields. Regular expressions are those of RE2, whose time is linear.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.errors import OperatorError, ParameterError, did_you_mean

Columns: TypeAlias = Mapping[str, pa.Array]
Compute: TypeAlias = Callable[[Columns], Any]
"""From columns to an array, or to a scalar for a constant."""

MOST_CHARACTERS, MOST_DEPTH = 10_000, 50
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
  | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
  | (?P<name>[A-Za-z_]\w*|`[^`]+`)
  | (?P<sign>==|!=|<=|>=|[<>()\[\].,+\-*/])
  | (?P<end>$)
  )""",
    re.VERBOSE,
)
_WORDS = frozenset({"and", "or", "not", "in", "is", "contains", "matches", "null", "true", "false"})
_COMPARE = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}


@dataclass(frozen=True)
class Expression:
    """A parsed expression: the columns it reads, and how to compute it."""

    text: str
    columns: tuple[str, ...]
    compute: Compute

    def condition(self, columns: Columns, rows: int) -> np.ndarray:
        """Where the expression is true, as a mask of the rows."""
        try:
            found = self.compute(columns)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError, IndexError) as error:
            types = ", ".join(f"{name}: {columns[name].type}" for name in self.columns)
            raise OperatorError(f"cannot compute {self.text!r}: {error}", hint=f"the columns are {types}") from error
        if pa.types.is_null(found.type):
            return np.zeros(rows, np.bool_)
        if not pa.types.is_boolean(found.type):
            raise OperatorError(f"{self.text!r} is a {found.type}, not a condition", hint="compare it: ... > 0")
        if isinstance(found, pa.Scalar):
            return np.full(rows, bool(found.as_py()), np.bool_)
        return np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False), np.bool_)


def parse(text: str) -> Expression:
    """Parse an expression, or say what is wrong with it and where.

    >>> parse("words >= 50 and language == 'en'").columns
    ('language', 'words')
    """
    if len(text) > MOST_CHARACTERS:
        raise ParameterError(f"an expression has at most {MOST_CHARACTERS:,} characters, got {len(text):,}")
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(self._tokens())
        self.place = self.depth = 0
        self.columns: set[str] = set()

    def _tokens(self) -> Any:
        at = 0
        while True:
            match = _TOKEN.match(self.text, at)
            if match is None:
                raise self._wrong("cannot be understood", at + len(self.text[at:]) - len(self.text[at:].lstrip()))
            kind = str(match.lastgroup)
            yield kind, match[kind], match.start(kind)
            if kind == "end":
                return
            at = match.end()

    def _wrong(self, why: str, at: int) -> ParameterError:
        return ParameterError(f"the expression {self.text!r} {why} at character {at + 1}: {self.text[at : at + 20]!r}")

    def _fail(self, why: str) -> ParameterError:
        return self._wrong(why, self.tokens[self.place][2])

    def whole(self) -> Expression:
        found = self.either()
        if self.tokens[self.place][0] != "end":
            raise self._fail("is not complete")
        return Expression(self.text, tuple(sorted(self.columns)), found)

    # ------------------------------------------------------------------------------------------------------------ tokens

    def word(self, *words: str) -> bool:
        """Take the next tokens if they are these words."""
        following = [value for kind, value, _ in self.tokens[self.place : self.place + len(words)] if kind == "name"]
        if following != list(words):
            return False
        self.place += len(words)
        return True

    def sign(self, *signs: str) -> str | None:
        """Take the next token if it is one of these signs."""
        kind, value, _ = self.tokens[self.place]
        if kind != "sign" or value not in signs:
            return None
        self.place += 1
        return str(value)

    def expect(self, sign: str) -> None:
        if self.sign(sign) is None:
            raise self._fail(f"needs {sign!r}")

    # ----------------------------------------------------------------------------------------------------------- grammar

    def either(self) -> Compute:
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise self._fail("is nested too deeply")
        found = self.both()
        while self.word("or"):
            found = _binary(pc.or_kleene, found, self.both())
        self.depth -= 1
        return found

    def both(self) -> Compute:
        found = self.negated()
        while self.word("and"):
            found = _binary(pc.and_kleene, found, self.negated())
        return found

    def negated(self) -> Compute:
        turns = 0
        while self.word("not"):
            turns += 1
        found = self.comparison()
        return _unary(pc.invert, found) if turns % 2 else found

    def comparison(self) -> Compute:
        left = self.sum()
        if (sign := self.sign(*_COMPARE)) is not None:
            return _binary(_COMPARE[sign], left, self.sum())
        if self.word("is", "not", "null"):
            return _unary(pc.is_valid, left)
        if self.word("is", "null"):
            return _unary(pc.is_null, left)
        if self.word("not", "in"):
            return _unary(pc.invert, self._is_in(left))
        if self.word("in"):
            return self._is_in(left)
        if self.word("contains"):
            wanted = self._literal("contains")
            return _unary(lambda values: pc.match_substring(values, wanted), left)
        if self.word("matches"):
            return self._matches(left)
        return left

    def _literal(self, after: str) -> str:
        kind, value, _ = self.tokens[self.place]
        if kind != "text":
            raise self._fail(f"needs a text in quotes after `{after}`")
        self.place += 1
        return _unquoted(value)

    def _matches(self, left: Compute) -> Compute:
        at, pattern = self.place, self._literal("matches")
        try:
            pc.match_substring_regex(pa.array([""]), pattern)
        except pa.ArrowInvalid as error:
            self.place = at
            raise self._fail(f"has a regular expression that is not valid ({error})") from error
        return _unary(lambda values: pc.match_substring_regex(values, pattern), left)

    def _is_in(self, left: Compute) -> Compute:
        self.expect("[")
        items = []
        while self.sign("]") is None:
            items.append(self._constant())
            if self.sign(",") is None and self.tokens[self.place][1] != "]":
                raise self._fail("needs ',' or ']'")
        return _unary(lambda values: pc.if_else(pc.is_null(values), None, _in(values, items)), left)

    def _constant(self) -> Any:
        kind, value, _ = self.tokens[self.place]
        sign = -1 if self.sign("-") else 1
        kind, value, _ = self.tokens[self.place]
        if kind == "number":
            self.place += 1
            return sign * _number(value)
        if kind == "text":
            self.place += 1
            return _unquoted(value)
        if kind == "name" and value in ("true", "false"):
            self.place += 1
            return value == "true"
        raise self._fail("needs a number or a text in quotes")

    def sum(self) -> Compute:
        found = self.product()
        while (sign := self.sign("+", "-")) is not None:
            found = _binary(_exact(pc.add_checked if sign == "+" else pc.subtract_checked), found, self.product())
        return found

    def product(self) -> Compute:
        found = self.signed()
        while (sign := self.sign("*", "/")) is not None:
            found = _binary(_exact(pc.multiply_checked) if sign == "*" else _divide, found, self.signed())
        return found

    def signed(self) -> Compute:
        turns = 0
        while self.sign("-"):
            turns += 1
        found = self.value()
        return _unary(_exact(pc.negate_checked), found) if turns % 2 else found

    def value(self) -> Compute:
        kind, value, _ = self.tokens[self.place]
        if kind in ("number", "text") or (kind == "name" and value in ("true", "false", "null")):
            if value == "null":
                self.place += 1
                return lambda columns: pa.scalar(None)
            constant = pa.scalar(self._constant())
            return lambda columns: constant
        if self.sign("("):
            found = self.either()
            self.expect(")")
            return self._parts(found)
        if kind != "name" or value in _WORDS:
            raise self._fail("needs a value")
        self.place += 1
        if not value.startswith("`") and self.sign("("):
            return self._parts(self._call(value))
        name = value.strip("`")
        self.columns.add(name)
        return self._parts(lambda columns: columns[name])

    def _call(self, name: str) -> Compute:
        if name not in _FUNCTIONS:
            self.place -= 2
            hint = did_you_mean(name, _FUNCTIONS) or f"functions are {', '.join(sorted(_FUNCTIONS))}"
            error = self._fail(f"has an unknown function `{name}`")
            raise ParameterError(error.message, hint=hint)
        argument = self.either()
        self.expect(")")
        return _unary(_FUNCTIONS[name], argument)

    def _parts(self, found: Compute) -> Compute:
        """Fields and elements of a value."""
        while True:
            if self.sign("."):
                kind, value, _ = self.tokens[self.place]
                if kind != "name":
                    raise self._fail("needs the name of a field")
                self.place += 1
                found = _unary(_field(value.strip("`")), found)
            elif self.sign("["):
                kind, value, _ = self.tokens[self.place]
                if kind != "number" or not value.isdigit():
                    raise self._fail("needs the number of an element")
                self.place += 1
                self.expect("]")
                found = _unary(_element(int(value)), found)
            else:
                return found


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[0]), text[1:-1])


def _number(text: str) -> int | float:
    return int(text) if text.isdigit() and len(text) < 19 else float(text)


def _unary(function: Callable[[Any], Any], value: Compute) -> Compute:
    return lambda columns: function(value(columns))


def _binary(function: Callable[[Any, Any], Any], left: Compute, right: Compute) -> Compute:
    return lambda columns: function(left(columns), right(columns))


# ------------------------------------------------------------------------------------------------------------- functions


def _exact(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that computes integers with 64 bits. A row whose result needs more fails."""

    def compute(*values: Any) -> Any:
        wide = [value.cast(pa.int64()) if pa.types.is_integer(value.type) else value for value in values]
        try:
            return function(*wide)
        except pa.ArrowInvalid as error:
            if "overflow" in str(error):
                raise OverflowError(f"a result has more than 64 bits ({error})") from error
            raise

    return compute


def _divide(left: Any, right: Any) -> Any:
    return pc.divide(left.cast(pa.float64()), right.cast(pa.float64()))  # division by zero is infinite, not an error


def _in(values: Any, items: Sequence[Any]) -> Any:
    if pa.types.is_integer(values.type) and all(isinstance(item, (int, float)) for item in items):
        least, most = _range_of(values.type)
        items = [int(item) for item in items if least <= item <= most and item == int(item)]
    return pc.is_in(values, value_set=pa.array(items, None if items else values.type).cast(values.type, safe=False))


def _range_of(kind: pa.DataType) -> tuple[int, int]:
    """The smallest and the largest integer of a type."""
    if pa.types.is_unsigned_integer(kind):
        return 0, 2**kind.bit_width - 1
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1


def _is_list(values: Any) -> bool:
    return (
        pa.types.is_list(values.type) or pa.types.is_large_list(values.type) or pa.types.is_fixed_size_list(values.type)
    )


def _field(name: str) -> Callable[[Any], Any]:
    def get(values: Any) -> Any:
        if not _is_list(values):
            return pc.struct_field(values, name)
        lists = values.cast(pa.large_list(values.type.value_type))
        inner = pc.struct_field(lists.values, name)
        return pa.LargeListArray.from_arrays(lists.offsets, inner, mask=pc.is_null(values))

    return get


def _element(number: int) -> Callable[[Any], Any]:
    return lambda values: _elements(values, number)


def _elements(values: Any, number: int) -> Any:
    """The element with this number of each list; null where there is none."""
    if not _is_list(values):
        raise pa.ArrowInvalid(f"[{number}] needs a list, got {values.type}")
    lists = values.cast(pa.large_list(values.type.value_type))
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    starts = lists.offsets.to_numpy()[:-1]
    places = np.where(lengths > number, starts + number, -1)
    return lists.values.take(pa.array(places, pa.int64(), mask=places < 0))


def _reduced(reduce: str) -> Callable[[Any], Any]:
    """A function of the numbers in each list, without nulls; null for an empty list, but 0 for its sum."""

    def compute(values: Any) -> Any:
        if not _is_list(values):
            raise pa.ArrowInvalid(f"{reduce}() needs a list, got {values.type}")
        lists = values.cast(pa.large_list(pa.float64()))
        parents = pc.list_parent_indices(lists)
        table = pa.table({"row": parents, "value": pc.list_flatten(lists)})
        grouped = table.group_by("row").aggregate([("value", reduce)])
        nothing = 0.0 if reduce == "sum" else np.nan
        result = np.full(len(values), nothing)
        result[grouped["row"].to_numpy()] = pc.fill_null(grouped[f"value_{reduce}"], nothing).to_numpy()
        missing = pc.is_null(values).to_numpy(zero_copy_only=False) | np.isnan(result)
        return pa.array(result, mask=missing)

    return compute


def _covered(values: Any) -> pa.Array:
    """How many characters spans cover, each counted once."""
    found = [
        None if spans is None else sum(end - start for start, end in merged(spans)) for spans in values.to_pylist()
    ]
    return pa.array(found, pa.int64())


def merged(spans: Sequence[Any]) -> list[tuple[int, int]]:
    """The parts of a text that spans cover, in order, as (start, end). A span is a struct or a list: start, end, score.

    >>> merged([{"start": 4, "end": 9}, [0, 3, 1.0], [8, 12]])
    [(0, 3), (4, 12)]
    """
    found: list[tuple[int, int]] = []
    for start, end in sorted(bounds(span) for span in spans if span is not None):
        if found and start < found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif end > start:
            found.append((start, end))
    return found


def bounds(span: Any) -> tuple[int, int]:
    """Start and end of a span."""
    start, end = (span["start"], span["end"]) if isinstance(span, Mapping) else (span[0], span[1])
    return max(0, int(start)), int(end)


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "length": pc.utf8_length,
    "count": pc.list_value_length,
    "lower": pc.utf8_lower,
    "abs": _exact(pc.abs_checked),
    "round": pc.round,
    "covered": _covered,
    **{name: _reduced(name) for name in ("min", "max", "sum", "mean")},
}
