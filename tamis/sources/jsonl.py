"""JSON lines to Arrow tables. Rows that cannot be parsed are reported one by one.

    Lines --> checks before parsing: UTF-8, NUL bytes, one object per line                              --> bad rows
          --> pyarrow.json with explicit types, so that a date stays a string
                 "... in row N"          line N is bad; continue with N + 1
                 "couldn't parse: 1.5"   an integer column has fractions: it becomes double
                 too few or many rows    several objects on a line: parse line by line
          --> integers beyond 64 bits                                                                   --> bad rows

In the common case, a block is parsed by one call to pyarrow. All other cases are slow and exact.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from tamis.sources.jsontypes import (
    as_strings,
    has_fields,
    huge_integer,
    is_huge,
    lacks_values,
    repaired,
    with_doubles,
    without_nulls,
)
from tamis.sources.lines import Lines

JSON = "json"
"""The declared type of columns whose values are kept as JSON text."""
_ROW = re.compile(r" in row (\d+)$")
_CHANGED = re.compile(r"Column\(/?(.*?)\) changed from (\w+) to (\w+)")
_TWICE = re.compile(r"Column\(/?(.*?)\) was specified twice")
_KINDS = {
    "number": "a number",
    "string": "a string",
    "boolean": "true or false",
    "object": "an object",
    "array": "a list",
}
_ONE_BY_ONE_AFTER = 64
_STACK_BYTES = 65_536
_SPACE = re.compile(r"[ \t\r]*")


@dataclass
class JsonlParser:
    """Parses the blocks of one dataset. Types inferred from a block are used for the next."""

    schema: pa.Schema
    """The known types of the dataset, by the column names in the files."""
    declared: Mapping[str, str] = field(default_factory=dict)
    """Types given by the user. A value that does not fit is a bad row and never changes the type."""
    wanted: Sequence[str] | None = None
    max_line_bytes: int = 2**31 - 2

    def __post_init__(self) -> None:
        self._strict = {
            name: pa.string() if kind == JSON else pa.type_for_alias(kind) for name, kind in self.declared.items()
        }
        self._explicit: dict[str, pa.DataType] = {}
        self._open = self.wanted is None
        for spec in self.schema:
            if not self._wants(spec.name):
                continue
            known = self._strict.get(spec.name) or without_nulls(spec.type)
            if known is not None:
                self._explicit[spec.name] = known
            # If undeclared fields are ignored, pyarrow also drops new fields within objects and columns of unknown
            # type. In that case, everything is parsed and columns that are not needed are dropped afterwards.
            self._open |= known is None or known != spec.type or has_fields(known)
        # If everything is parsed, the declared types of columns that are not needed keep their rows from failing.
        parsed = [name for name in self.declared if self._open or self._wants(name)]
        self._as_json = [name for name in parsed if self.declared[name] == JSON]
        self._as_string = [name for name in parsed if self.declared[name] == "string"]
        for name in parsed:
            self._explicit.setdefault(name, self._strict[name])

    def _wants(self, name: str) -> bool:
        return self.wanted is None or name in self.wanted

    def parse(self, lines: Lines, bad: Callable[[int, str], None]) -> tuple[pa.Table, np.ndarray]:
        """The rows as a table, and the line number of each. `bad(line, error)` is called for all other lines."""
        keep = self._plausible(lines, bad)
        while True:
            table, failed = self._parse(lines, keep, bad)
            if table is not None:
                lost = self._lost_integers(lines, keep, table)
                if not lost:
                    return self._shaped(table, len(keep)), keep
                for row, error in lost.items():
                    bad(int(keep[row]), error)
                failed = set(lost)
            keep = np.delete(keep, sorted(failed))

    # ---------------------------------------------------------------------------------------------- before the parser

    def _plausible(self, lines: Lines, bad: Callable[[int, str], None]) -> np.ndarray:
        """The lines that may be objects: they begin with { and end with }. This also rules out objects that span lines,
        since outside of strings `}` is followed by `{` only at the top level."""
        data, starts, ends = lines.text.data, lines.starts, lines.ends
        view = np.frombuffer(data, np.uint8)
        suspect = np.zeros(len(lines), dtype=np.bool_)
        if len(lines):
            last = view[ends - 1]
            last = np.where(last == 13, view[ends - 2], last)
            suspect |= (view[starts] != 123) | (last != 125) | (ends - starts > self.max_line_bytes)
            if data.find(b"\0", lines.text.begin, lines.text.end) >= 0 or not is_utf8(
                data, lines.text.begin, lines.text.end
            ):
                suspect[:] = True
        errors: dict[int, str] = {}
        for row in np.flatnonzero(suspect).tolist():
            if error := self._implausible(lines.line(row)):
                errors[row] = error
        for row, error in errors.items():
            bad(row, error)
        return np.delete(np.arange(len(lines)), list(errors))

    def _implausible(self, line: bytes) -> str | None:
        if len(line) > self.max_line_bytes:
            return f"the line is {len(line):,} bytes long, more than max_line_bytes={self.max_line_bytes:,}"
        if b"\0" in line:
            return f"a NUL byte at byte {line.index(0)} of the line; JSON writes it as \\u0000"
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as error:
            return f"not UTF-8: {error.reason} at byte {error.start} of the line"
        text = line.strip()
        if not text.startswith(b"{"):
            kind = {91: "a list", 34: "a string"}.get(text[0], "something else")
            return f"a line must be a JSON object {{...}}; this one is {kind}"
        return None if text.endswith(b"}") else "the line does not end with }; the JSON object may be truncated"

    # ---------------------------------------------------------------------------------------------- around the parser

    def _parse(
        self, lines: Lines, keep: np.ndarray, bad: Callable[[int, str], None]
    ) -> tuple[pa.Table | None, set[int]]:
        """The table of the `keep` lines, or the rows among them that cannot be parsed."""
        before = dict(self._explicit)
        try:
            table = self._read(lines, keep)
        except pa.ArrowInvalid as error:
            failed = self._search(lines, keep, str(error))
            if not failed and before == self._explicit:  # no progress: fail a row to avoid an endless loop
                failed = {len(keep) - 1: self._in_words(str(error))}
        else:
            if table.num_rows == len(keep):
                return table, set()
            failed = self._one_by_one(lines, keep, 0)
        for row, reason in failed.items():
            bad(int(keep[row]), reason)
        return None, set(failed)

    def _search(self, lines: Lines, keep: np.ndarray, error: str) -> dict[int, str]:
        """The rows that the parser rejects, found by following its error messages."""
        failed: dict[int, str] = {}
        begin = 0
        while True:
            match = _ROW.search(error)
            if match is None:
                if "Failed to convert JSON" in error:
                    return failed or self._unconverted(lines, keep)
                return failed | self._one_by_one(lines, keep, begin)
            row = begin + int(match[1])
            if row >= len(keep) or not (not self._reads(lines, keep[row : row + 1]) or _CHANGED.search(error)):
                return failed | self._one_by_one(lines, keep, begin)
            failed[row] = self._in_words(error)
            begin = row + 1
            if len(failed) % _ONE_BY_ONE_AFTER == 0 and begin < 2 * len(failed):
                return failed | self._one_by_one(lines, keep, begin)
            if begin >= len(keep):
                return failed
            try:
                self._read(lines, keep[begin:])
            except pa.ArrowInvalid as following:
                error = str(following)
            else:
                return failed

    def _one_by_one(self, lines: Lines, keep: np.ndarray, begin: int) -> dict[int, str]:
        failed = {}
        for row in range(begin, len(keep)):
            try:
                found = self._read(lines, keep[row : row + 1]).num_rows
            except pa.ArrowInvalid as error:
                if "Failed to convert JSON" not in str(error) or not self._is_loose(lines, keep[row : row + 1]):
                    failed[row] = self._in_words(str(error))
            else:
                if found != 1:
                    failed[row] = f"a line must be one JSON object; this one has {found}"
        return failed

    def _is_loose(self, lines: Lines, keep: np.ndarray) -> bool:
        """Whether the lines can be parsed if integer columns may have fractions."""
        return self._reads(lines, keep, self._loose())

    def _reads(self, lines: Lines, keep: np.ndarray, types: dict[str, pa.DataType] | None = None) -> bool:
        try:
            return self._read(lines, keep, types).num_rows == len(keep)
        except pa.ArrowInvalid:
            return False

    def _loose(self) -> dict[str, pa.DataType]:
        return {name: kind if name in self._strict else with_doubles(kind) for name, kind in self._explicit.items()}

    def _unconverted(self, lines: Lines, keep: np.ndarray) -> dict[int, str]:
        """Change integer columns with fractions to double. Integers beyond 64 bits and values that do not fit a declared
        type are bad rows."""
        loose = self._loose()
        try:
            table = self._read(lines, keep, loose)
        except pa.ArrowInvalid:
            failed: dict[int, str] = {}
            self._bisect(lines, keep, 0, len(keep), loose, failed)
            return failed
        lost = self._lost_integers(lines, keep, table)
        if lost:
            return lost
        for name, kind in list(self._explicit.items()):
            # The message does not name the column: it is the one that can only be parsed as double.
            if kind != loose[name] and not self._reads(lines, keep, {**loose, name: kind}):
                self._explicit[name] = loose[name]
        return {}

    def _bisect(
        self,
        lines: Lines,
        keep: np.ndarray,
        begin: int,
        end: int,
        types: dict[str, pa.DataType],
        failed: dict[int, str],
    ) -> None:
        try:
            self._read(lines, keep[begin:end], types)
        except pa.ArrowInvalid as error:
            if end - begin == 1:
                failed[begin] = self._in_words(str(error))
                return
            middle = (begin + end) // 2
            self._bisect(lines, keep, begin, middle, types, failed)
            self._bisect(lines, keep, middle, end, types, failed)

    # ----------------------------------------------------------------------------------------------------- the parser

    def _read(self, lines: Lines, keep: np.ndarray, types: dict[str, pa.DataType] | None = None) -> pa.Table:
        if not len(keep):
            explicit = types or self._explicit
            return pa.schema(list(explicit.items())).empty_table()
        if self._as_json:
            return self._read_buffer(self._quoted(lines, keep, always=self._as_json), types)
        _check_room(int((lines.ends[keep] - lines.starts[keep]).max()))
        try:
            return self._read_buffer(_buffer(lines, keep), types)
        except pa.ArrowInvalid as error:
            match = _CHANGED.search(str(error))
            if match is None or match[1] not in self._as_string:
                raise
            return self._read_buffer(self._quoted(lines, keep, always=[]), types)

    def _read_buffer(self, buffer: pa.Buffer, types: dict[str, pa.DataType] | None) -> pa.Table:
        while True:
            explicit = self._explicit if types is None else types
            table = pj.read_json(
                pa.BufferReader(buffer),
                read_options=pj.ReadOptions(use_threads=False, block_size=buffer.size + 1),
                parse_options=pj.ParseOptions(
                    explicit_schema=pa.schema(list(explicit.items())),
                    unexpected_field_behavior="infer" if self._open else "ignore",
                ),
            )
            learnt = self._misread(table, explicit)
            if not learnt:
                return repaired(table)
            for target in (self._explicit,) if types is None else (self._explicit, types):
                target.update(learnt)

    def _misread(self, table: pa.Table, explicit: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
        """Columns whose type was inferred wrongly, with the type to declare instead.

        pyarrow converts strings such as 2020-01-01 to timestamps; they must stay strings. And it loses nulls at the
        beginning of lists (apache/arrow#51305) unless the type is declared.
        """
        learnt = {}
        for spec, column in zip(table.schema, table.columns, strict=True):
            kind = as_strings(spec.type)
            if spec.name in self._strict or (kind == spec.type and not lacks_values(column)):
                continue
            known = without_nulls(kind)
            if known is not None and known != explicit.get(spec.name):
                learnt[spec.name] = known
        return learnt

    def _quoted(self, lines: Lines, keep: np.ndarray, always: Sequence[str]) -> pa.Buffer:
        """The lines with the values of some columns replaced by JSON strings of their text."""
        parts = []
        for index in keep:
            line = lines.line(index)
            try:
                parts.append(quote_values(line.decode("utf-8"), always, self._as_string).encode("utf-8"))
            except ValueError:
                parts.append(line)  # pyarrow reports the error
        return pa.py_buffer(b"\n".join(parts))

    # ----------------------------------------------------------------------------------------------- after the parser

    def _lost_integers(self, lines: Lines, keep: np.ndarray, table: pa.Table) -> dict[int, str]:
        """Rows with an integer beyond 64 bits, which the parser silently converts to double."""
        lost: dict[int, str] = {}
        for name in table.column_names:
            if name in self._strict or not is_huge(table.column(name)):
                continue
            rows = np.arange(len(keep))
            if pa.types.is_floating(table.schema.field(name).type):
                rows = rows[np.abs(np.nan_to_num(table.column(name).to_numpy())) >= 2.0**63]
            for row in rows:
                if (value := huge_integer(json.loads(lines.line(keep[row])).get(name))) is not None:
                    lost[int(row)] = (
                        f"column `{name}` has the integer {value}, which does not fit 64 bits "
                        f'(types={{"{name}": "string"}} keeps its digits)'
                    )
        return lost

    def _shaped(self, table: pa.Table, num_rows: int) -> pa.Table:
        """The requested columns, those of the schema first and in its order."""
        known = [spec.name for spec in self.schema if self._wants(spec.name)]
        new = [name for name in table.column_names if name not in known and self._wants(name)]
        columns = {}
        for name in known + new:
            there = name in table.column_names
            columns[name] = table.column(name) if there else pa.nulls(num_rows, self.schema.field(name).type)
        return pa.table(columns) if columns else pa.table({"": pa.nulls(num_rows)}).select([])

    def _in_words(self, error: str) -> str:
        text = _ROW.sub("", error.removeprefix("JSON parse error: "))
        if match := _CHANGED.search(text):
            path, expected, found = match.groups()
            name = path.partition("/")[0]
            kind = self._explicit.get(name)
            what = f"{kind} in this dataset" if kind is not None else f"{_KINDS.get(expected, expected)} before"
            inside = f" at {path}" if path != name else ""
            return (
                f"column `{name}` is {what}, this row has {_KINDS.get(found, found)}{inside} "
                f'(types={{"{name}": "string"}} or "json" keeps both)'
            )
        if match := _TWICE.search(text):
            return f"the key `{match[1]}` occurs twice"
        return f"not JSON: {text}"


# --------------------------------------------------------------------------------------------------------------- pieces


def _check_room(line_bytes: int) -> None:
    """Raise a MemoryError if there is too little memory to parse a line of this length.

    The parser copies strings to a stack that grows by half (RapidJSON), and crashes if that fails: a line of 50 MB
    needs 2.5 times its length. Memory that is allocated but not touched costs nothing.
    """
    pa.allocate_buffer(3 * line_bytes + _STACK_BYTES, memory_pool=pa.system_memory_pool())


def is_utf8(data: bytes, begin: int, end: int) -> bool:
    """Whether the bytes are UTF-8; checks several GB/s of ASCII."""
    offsets = pa.py_buffer(np.array([begin, end], dtype=np.int64))
    whole = pa.Array.from_buffers(pa.large_string(), 1, [None, offsets, pa.py_buffer(data)])
    try:
        whole.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _buffer(lines: Lines, keep: np.ndarray) -> pa.Buffer:
    text = lines.text
    if lines.clean and len(keep) == len(lines):
        return pa.py_buffer(text.data).slice(text.begin, len(text))
    if keep[-1] - keep[0] + 1 == len(keep) and lines.clean:
        begin, end = int(lines.starts[keep[0]]), int(lines.ends[keep[-1]])
        return pa.py_buffer(text.data).slice(begin, end - begin)
    view = memoryview(text.data)
    starts, ends = lines.starts[keep], lines.ends[keep]
    return pa.py_buffer(b"\n".join([view[start:end] for start, end in zip(starts, ends, strict=True)]))


def quote_values(line: str, always: Sequence[str], unless_string: Sequence[str]) -> str:
    """The line with the values of top-level keys turned into JSON strings of their own text; null stays null.

    >>> quote_values('{"a": 1.10, "b": "x", "c": null}', ["a", "b", "c"], [])
    '{"a": "1.10", "b": "\\\\"x\\\\"", "c": null}'
    """
    decode = json.JSONDecoder().raw_decode
    parts, done = [], 0
    at = _space(line, 0) + 1
    at = _space(line, at)
    while line[at] != "}":
        key, at = decode(line, at)
        at = _space(line, _space(line, at) + 1)
        value, end = decode(line, at)
        if value is not None and (key in always or (key in unless_string and not isinstance(value, str))):
            parts += [line[done:at], json.dumps(line[at:end], ensure_ascii=False)]
            done = end
        at = _space(line, end)
        if line[at] == ",":
            at = _space(line, at + 1)
    return "".join([*parts, line[done:]])


def _space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    if match.end() >= len(text):
        raise ValueError("the line ends within an object")
    return match.end()
