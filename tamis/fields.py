"""Operators on columns: ids, names, copies, lengths, hashes and arithmetic.

None of them evaluates an expression: each does one thing, and arithmetic operations come from a fixed list.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column
from tamis.errors import OperatorError, ParameterError
from tamis.operators import Map, operator

_NUMERIC = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_null)
_NUMBER = r"\A\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*\z"


def numbers(column: Column) -> Column:
    """A column as numbers: text that is not a number becomes null, true becomes 1.

    >>> numbers(pa.array(["1.5", "two", None])).to_pylist()
    [1.5, None, None]
    """
    kind = column.type
    if pa.types.is_dictionary(kind) or pa.types.is_string_view(kind):
        column, kind = column.cast(pa.large_string()), pa.large_string()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = pc.if_else(pc.match_substring_regex(column, _NUMBER), pc.utf8_trim_whitespace(column), None)
    elif not any(is_kind(kind) for is_kind in _NUMERIC):
        raise OperatorError(f"a column of type {kind} does not hold numbers", hint="choose another column")
    elif pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    return column.cast(pa.float64(), safe=False)


def texts(column: Column) -> Column:
    """A column as text: strings unchanged, numbers and dates as Arrow formats them."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column
    try:
        return column.cast(pa.string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise OperatorError(
            f"a column of type {column.type} cannot be converted to text", hint="choose another column"
        ) from error


def _digests(values: Iterable[bytes | None], prefix: str) -> Column:
    """128 bits of BLAKE2b of each value as hexadecimal digits; null for null."""
    digest = hashlib.blake2b
    return pa.array(
        [None if value is None else prefix + digest(value, digest_size=16).hexdigest() for value in values], pa.string()
    )


# ------------------------------------------------------------------------------------------------------------------- ids


@operator(reads="text")
class AddId(Map):
    """Add an id to each row: `prefix` and 32 hexadecimal digits, the same in every run.

    `by="address"` hashes the address of the row (file and position): it is unique within a source and does not change with the
    text. `by="content"` hashes the text: the same text always has the same id. Rows that already have an id in `into` keep it
    unless `overwrite` is set.

    >>> from tamis import Pipeline, Rows
    >>> rows = [{"text": "a"}, {"text": "b", "id": "mine"}]
    >>> Pipeline(Rows(rows), AddId(prefix="x-", by="content")).collect()["id"].to_pylist()
    ['x-27c35e6e9373877f29e562464e46497e', 'mine']
    """

    prefix: str = ""
    by: Literal["address", "content"] = "address"
    into: str = "id"
    column: str = "text"
    overwrite: bool = False

    def reads(self) -> tuple[str, ...]:
        return ("text",) if self.by == "content" else ()

    def writes(self) -> tuple[str, ...]:
        return (self.into,)

    def optional_reads(self) -> tuple[str, ...]:
        return () if self.overwrite else (self.into,)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        if self.by == "content":
            values: Iterable[bytes | None] = [_bytes(text) for text in texts(batch["text"]).to_pylist()]
            made = _digests((value or b"" for value in values), self.prefix)
        else:
            made = _digests((address.encode() for address in batch.origin.addresses()), self.prefix)
        return {self.into: pc.coalesce(texts(batch[self.into]).cast(pa.string()), made) if self.into in batch else made}


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


# ---------------------------------------------------------------------------------------------------- names and choices


@operator()
class Rename(Map):
    """Rename columns: `columns` maps each new name to the old one, as `columns` of a source does.

    >>> from tamis import Pipeline, Rows
    >>> Pipeline(Rows([{"content": "a", "n": 1}]), Rename({"text": "content"})).collect().to_pylist()
    [{'n': 1, 'text': 'a'}]
    """

    columns: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        if not self.columns:
            raise ParameterError("`columns` of `rename` is empty: there is nothing to rename")
        if len(set(self.columns.values())) < len(self.columns):
            raise ParameterError("`columns` of `rename` gives two names to one column", hint="copy the column first")

    def reads(self) -> tuple[str, ...]:
        return tuple(self.columns.values())

    def writes(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def removes(self, columns: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in self.columns.values() if name in columns)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        return {new: batch[old] for new, old in self.columns.items()}


@operator()
class SelectFields(Map):
    """Keep only these columns.

    >>> from tamis import Pipeline, Rows
    >>> Pipeline(Rows([{"text": "a", "n": 1}]), SelectFields(["text"])).collect().to_pylist()
    [{'text': 'a'}]
    """

    columns: Sequence[str] = ("text",)

    def check(self) -> None:
        if not self.columns:
            raise ParameterError("`columns` of `select_fields` is empty: no column would be kept")

    def reads(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def removes(self, columns: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in columns if name not in self.columns)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        return {}


@operator()
class DropFields(Map):
    """Remove columns; missing ones are ignored.

    >>> from tamis import Pipeline, Rows
    >>> Pipeline(Rows([{"text": "a", "n": 1}]), DropFields(["n"])).collect().to_pylist()
    [{'text': 'a'}]
    """

    columns: Sequence[str] = ()

    def check(self) -> None:
        if not self.columns:
            raise ParameterError("`columns` of `drop_fields` is empty: there is nothing to remove")

    def removes(self, columns: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in columns if name in self.columns)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        return {}


# ------------------------------------------------------------------------------------------------------ computed columns


@operator()
class Constant(Map):
    """Add a column with the same value in every row, such as the name of the dataset.

    >>> from tamis import Pipeline, Rows
    >>> Pipeline(Rows([{"text": "a"}]), Constant("books", into="source")).collect().to_pylist()
    [{'text': 'a', 'source': 'books'}]
    """

    value: str | int | float | bool = ""
    into: str = "constant"

    def writes(self) -> tuple[str, ...]:
        return (self.into,)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        return {self.into: pa.repeat(pa.scalar(self.value), len(batch))}


@operator(reads="text")
class Copy(Map):
    """Copy a column, for example to keep a text as it was before cleaning. No data is copied.

    `field` selects a field of a struct, such as `url` or `page.url`: datatrove writes all but text and id into `metadata`, and
    dolma into `metadata` and `attributes`. The copy is null where the struct is.

    >>> from tamis import Pipeline, Rows
    >>> Pipeline(Rows([{"text": "a"}]), Copy("text", into="raw")).collect().to_pylist()
    [{'text': 'a', 'raw': 'a'}]
    >>> rows = [{"metadata": {"page": {"url": "http://a.org"}}}]
    >>> Pipeline(Rows(rows), Copy("metadata", field="page.url", into="url")).collect()["url"].to_pylist()
    ['http://a.org']
    """

    column: str = "text"
    field: str | None = None
    into: str = "copy"

    def writes(self) -> tuple[str, ...]:
        return (self.into,)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        values = batch["text"]
        for name in self.field.split(".") if self.field else ():
            values = self._field(values, name)
        return {self.into: values}

    def _field(self, values: Column, name: str) -> Column:
        if pa.types.is_null(values.type):
            return values
        if not pa.types.is_struct(values.type) or values.type.get_field_index(name) < 0:
            raise OperatorError(
                f"column `{self.column}` has no field `{self.field}`", hint=f"{values.type} has no field `{name}`"
            )
        return pc.struct_field(values, name)


@operator(reads="text")
class Length(Map):
    """Add the length of a text in characters (code points), bytes (UTF-8), words or lines.

    Words are counted as in `WordCount`. The number of lines is the number of newlines plus one; an empty text has no lines.
    The length of null is null.

    >>> from tamis import Pipeline, Rows
    >>> Pipeline(Rows([{"text": "né ou"}]), Length(), Length(unit="words", into="words")).collect().to_pylist()
    [{'text': 'né ou', 'length': 5, 'words': 2}]
    """

    column: str = "text"
    into: str = "length"
    unit: Literal["characters", "bytes", "words", "lines"] = "characters"

    def writes(self) -> tuple[str, ...]:
        return (self.into,)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        text = texts(batch["text"])
        if self.unit == "words":
            from tamis.text.segment import word_stats  # loads compiled kernels

            words = batch.facts("text", word_stats)["words"]
            return {self.into: pa.array(words, mask=pc.is_null(text).to_numpy(zero_copy_only=False))}
        if self.unit == "lines":
            length = pc.if_else(pc.equal(text, ""), 0, pc.add(pc.count_substring(text, "\n"), 1))
        else:
            length = pc.utf8_length(text) if self.unit == "characters" else pc.binary_length(text)
        return {self.into: length.cast(pa.int64())}


@operator()
class Concat(Map):
    r"""Join the texts of several columns, for example a title and a body.

    Nulls are skipped together with their separator; if all values are null, so is the result. Numbers are converted to text.

    >>> from tamis import Pipeline, Rows
    >>> rows = [{"title": "Rain", "text": "It rained."}, {"title": None, "text": "It did not."}]
    >>> Pipeline(Rows(rows), Concat(["title", "text"], separator="\n", into="text")).collect()["text"].to_pylist()
    ['Rain\nIt rained.', 'It did not.']
    """

    columns: Sequence[str] = ("text",)
    separator: str = " "
    into: str = "concat"

    def reads(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def writes(self) -> tuple[str, ...]:
        return (self.into,)

    def check(self) -> None:
        if not self.columns:
            raise ParameterError("`columns` of `concat` is empty: there is nothing to join")

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        parts = [texts(batch[name]).cast(pa.large_string()) for name in self.columns]
        missing = pc.is_null(pc.coalesce(*parts))
        # Arrow loses rows whose parts are all null (seen in 26.0), so give each a part that is not.
        parts[0] = pc.if_else(missing, "", parts[0])
        separator = pa.scalar(self.separator, pa.large_string())
        joined = pc.if_else(missing, None, pc.binary_join_element_wise(*parts, separator, null_handling="skip"))
        return {self.into: joined.cast(pa.string()) if joined.nbytes < 2**31 else joined}


@operator(reads="text")
class Hash(Map):
    """Add a hash of a column: 32 hexadecimal digits of BLAKE2b, the same on every machine.

    >>> from tamis import Pipeline, Rows
    >>> Pipeline(Rows([{"text": "a"}]), Hash()).collect()["hash"].to_pylist()
    ['27c35e6e9373877f29e562464e46497e']
    """

    column: str = "text"
    into: str = "hash"

    def writes(self) -> tuple[str, ...]:
        return (self.into,)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        return {self.into: _digests((_bytes(text) for text in texts(batch["text"]).to_pylist()), "")}


Operation = Literal["add", "subtract", "multiply", "divide", "power", "min", "max"]


@operator()
class Arithmetic(Map):
    """Compute a column from two others, or from a column and a number.

    Text that represents a number is converted; any other text and null give null, as does a division by zero.

    >>> from tamis import Pipeline, Rows
    >>> rows = [{"words": 6, "lines": 4}, {"words": 0, "lines": 0}]
    >>> Pipeline(Rows(rows), Arithmetic("words", "divide", "lines", into="density")).collect()["density"].to_pylist()
    [1.5, None]
    """

    left: str | float = 0
    operation: Operation = "add"
    right: str | float = 0
    into: str = "result"

    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(side for side in (self.left, self.right) if isinstance(side, str)))

    def writes(self) -> tuple[str, ...]:
        return (self.into,)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        left, right = (
            numbers(batch[side]) if isinstance(side, str) else pa.repeat(pa.scalar(float(side)), len(batch))
            for side in (self.left, self.right)
        )
        if self.operation == "divide":
            right = pc.if_else(pc.equal(right, 0.0), None, right)
        return {self.into: _OPERATIONS[self.operation](left, right)}


_OPERATIONS = {
    "add": pc.add,
    "subtract": pc.subtract,
    "multiply": pc.multiply,
    "divide": pc.divide,
    "power": pc.power,
    "min": lambda left, right: pc.min_element_wise(left, right, skip_nulls=False),
    "max": lambda left, right: pc.max_element_wise(left, right, skip_nulls=False),
}
