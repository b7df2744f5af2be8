"""Compare the outputs of two runs: settings, counts, and the rows that each kept.

    output 1 --rows--> (hash of the key, fate or reason, number) --+--> buckets on disk --> join, bucket by bucket
    output 2 --rows--> (hash of the key, fate or reason, number) --+

Rows are matched by a key: the column `id` if both outputs have it, or else their text. Memory does not grow with the data: a
bucket holds a few million rows. Dropped rows are known if the runs were given `--rejects`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import MISSING as MISSING_DEFAULT
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from tamis.batch import Batch, Failure
from tamis.errors import ParameterError
from tamis.inert import html_facts, html_table, inert
from tamis.looking.rows import Seen, dropped_rows, failed_rows, has_data, reader_of, rows_of_reader, shown_value
from tamis.parameters import plural
from tamis.registry import registered
from tamis.report import Report, load_manifest
from tamis.store import Store

ROWS_PER_BUCKET = 2_000_000
MOST_BUCKETS = 512
EXAMPLES = 5
KEPT, MISSING = "kept", "not recorded"
_RECORD = np.dtype([("key", "<u8"), ("fate", "<i4"), ("number", "<i8")])


@dataclass
class Change:
    """Rows that have another fate in the second output than in the first."""

    first: str
    """kept, the reason of a drop, failed, or not recorded"""
    second: str
    rows: int
    examples: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Comparison:
    """The differences between two outputs. `print` shows them; `as_dict` is for JSON."""

    outputs: tuple[str, str]
    settings: dict[str, tuple[Any, Any]]
    """Parameters and versions that differ, by name."""
    counts: dict[str, tuple[int, int]]
    """Rows read, kept, dropped, by reason, and failed."""
    key: str
    """What rows are matched by."""
    same: int = 0
    """Rows that both kept."""
    changes: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def only_in_first(self) -> int:
        return sum(change.rows for change in self.changes if change.first == KEPT)

    @property
    def only_in_second(self) -> int:
        return sum(change.rows for change in self.changes if change.second == KEPT)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"only_in_first": self.only_in_first, "only_in_second": self.only_in_second}

    def as_text(self, width: int = 100) -> str:
        """The differences as lines of text."""
        lines = [f"1: {inert(self.outputs[0])}", f"2: {inert(self.outputs[1])}", "", "settings"]
        lines += [f"  {inert(name)}: {_short(a)} -> {_short(b)}" for name, (a, b) in self.settings.items()] or [
            "  the same"
        ]
        lines += ["", f"{'rows':>14}{'1':>12}{'2':>14}{'difference':>14}"]
        lines += [
            f"{a:>26,}{b:>14,}{b - a:>+14,}  {inert(name, 200)}"
            if a != b
            else f"{a:>26,}{b:>14,}{'':>14}  {inert(name, 200)}"
            for name, (a, b) in self.counts.items()
        ]
        lines += ["", f"rows matched by {inert(self.key)}", f"{self.same:>14,}  kept by both"]
        for change in self.changes:
            lines.append(f"{change.rows:>14,}  1: {inert(change.first, 200)}, 2: {inert(change.second, 200)}")
            for example in change.examples:
                lines.append(f"{'':16}{_example(example, (change.first, change.second), width - 16)}")
        return "\n".join([*lines, *(f"note: {inert(note)}" for note in self.notes)])

    def __str__(self) -> str:
        return self.as_text()

    def _repr_html_(self) -> str:
        settings = html_facts(
            {name: f"{_short(a)} -> {_short(b)}" for name, (a, b) in self.settings.items()}, "settings"
        )
        counts = html_table(
            ["rows", self.outputs[0], self.outputs[1]],
            [[name, f"{a:,}", f"{b:,}"] for name, (a, b) in self.counts.items()],
            right=[1, 2],
        )
        rows = [[change.first, change.second, f"{change.rows:,}"] for change in self.changes]
        return (
            settings
            + counts
            + html_table(
                [self.outputs[0], self.outputs[1], "rows"],
                [[KEPT, KEPT, f"{self.same:,}"], *rows],
                right=[2],
                caption=f"rows matched by {self.key}",
            )
        )


def compare(first: str, second: str, *, key: str | None = None, examples: int = EXAMPLES) -> Comparison:
    """Compare two outputs. `key` is the column by which rows are matched: by default `id`, or the text if there is none."""
    outputs = (str(first), str(second))
    reports = [Report.load(output) for output in outputs]
    manifests = [load_manifest(output) for output in outputs]
    sides = [_Side(output, report) for output, report in zip(outputs, reports, strict=True)]
    name = key if key is not None else _common_key(sides)
    found = Comparison(outputs, _settings(*manifests), _counts(*reports), f"`{name}`" if name else "their content")
    for side, manifest in zip(sides, manifests, strict=True):
        if not manifest.get("rejects") and side.report.dropped:
            found.notes.append(f"{side.output} does not contain the rows that it dropped; run it with --rejects")
    rows = max(report.read + report.created for report in reports)
    with tempfile.TemporaryDirectory(prefix="tamis-") as folder:
        buckets = min(MOST_BUCKETS, 1 + rows // ROWS_PER_BUCKET)
        for number, side in enumerate(sides):
            side.spill(Path(folder), number, buckets, name)
            if side.unread:
                failure = side.unread[0]
                found.notes.append(
                    f"some rows of {side.output} cannot be read and are missing here; "
                    f"the first: {failure.address}: {failure.error}"
                )
        _join(found, sides, Path(folder), buckets, examples)
    for number, side in enumerate(sides):
        _fetch(found, side, number)
    found.changes.sort(key=lambda change: (-change.rows, change.first, change.second))
    return found


# ------------------------------------------------------------------------------------------------------------ settings


def _settings(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    one, two = _flat_settings(first), _flat_settings(second)
    pairs = {
        name: (one.get(name, _default(name)), two.get(name, _default(name))) for name in dict.fromkeys([*one, *two])
    }
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b}


def _default(setting: str) -> Any:
    """The default of a parameter, such as `word_count.min_words`, which recipes leave out."""
    step, _, parameter = setting.partition(".")
    operator = registered().get(step.partition("#")[0])
    for spec in fields(operator) if operator is not None and is_dataclass(operator) else ():
        if spec.name == parameter and spec.default is not MISSING_DEFAULT:
            return spec.default
    return "not set"


def _flat_settings(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters by step, `name#2` for the second of a name.

    The path of the output, which always differs, and the block size, which changes no row, are left out.
    """
    found: dict[str, Any] = {}
    seen: dict[str, int] = {}
    steps = [item for step in manifest["recipe"]["steps"] for item in step.items()]
    found["steps"] = " > ".join(name for name, _ in steps)
    for number, (name, given) in enumerate(steps):
        seen[name] = seen.get(name, 0) + 1
        label = name if seen[name] == 1 else f"{name}#{seen[name]}"
        for parameter, value in given.items():
            if (number, parameter) not in ((len(steps) - 1, "path"), (0, "blocksize")):
                found[f"{label}.{parameter}"] = value
    for group in ("versions", "hardware"):
        found |= {f"{group}.{name}": value for name, value in manifest.get(group, {}).items()}
    return found


def _counts(first: Report, second: Report) -> dict[str, tuple[int, int]]:
    counts = {name: (getattr(first, name), getattr(second, name)) for name in ("read", "created", "kept", "failed")}
    reasons = dict.fromkeys([*first.dropped, *second.dropped])
    counts |= {
        f"dropped: {reason}": (first.dropped.get(reason, 0), second.dropped.get(reason, 0)) for reason in reasons
    }
    return {name: pair for name, pair in counts.items() if any(pair) or name in ("read", "kept")}


# ---------------------------------------------------------------------------------------------------------------- rows


class _Side:
    """The rows of one output."""

    def __init__(self, output: str, report: Report) -> None:
        self.output, self.report, self.store = output, report, Store(output)
        self.fates: list[str] = [KEPT]
        """Fates and reasons, by their number in records."""
        self.unread: list[Failure] = []
        """Rows and files that could not be read while records were written."""

    def kept(self, on_bad: Callable[[Failure], None] = lambda failure: None) -> Iterator[Seen]:
        if has_data(self.store):
            yield from rows_of_reader(reader_of(self.output), "kept", on_bad)

    def rows(self, on_bad: Callable[[Failure], None] = lambda failure: None) -> Iterator[Seen]:
        yield from self.kept(on_bad)
        yield from dropped_rows(self.store, on_bad)
        yield from failed_rows(self.store)

    def columns(self) -> list[str] | None:
        """The columns of the shards; None if there are no rows."""
        first = next((seen for seen in self.kept() if seen.table.num_rows), None)
        return first.table.column_names if first is not None else None

    def spill(self, folder: Path, number: int, buckets: int, key: str | None) -> None:
        """Write a record for each row to the bucket of its key."""
        with ExitStack() as stack:
            files = [stack.enter_context(_file(folder, number, bucket).open("wb")) for bucket in range(buckets)]
            row = 0
            for seen in self.rows(self.unread.append):
                records = np.zeros(seen.table.num_rows, _RECORD)
                records["key"] = _hashes(seen, key)
                records["fate"] = self._fates_of(seen)
                records["number"] = row + np.arange(len(records))
                row += len(records)
                places = records["key"] % np.uint64(buckets)
                for bucket in np.unique(places):
                    files[int(bucket)].write(records[places == bucket].tobytes())

    def _fates_of(self, seen: Seen) -> np.ndarray:
        if seen.fate == "kept":
            return np.zeros(seen.table.num_rows, np.int32)
        if seen.fate == "failed":
            return np.full(seen.table.num_rows, self._number("failed"), np.int32)
        reasons = seen.table.column("_reason").to_pylist()
        numbers = {reason: self._number(f"dropped: {reason}") for reason in set(reasons)}
        return np.array([numbers[reason] for reason in reasons], np.int32)

    def _number(self, fate: str) -> int:
        if fate not in self.fates:
            self.fates.append(fate)
        return self.fates.index(fate)


def _file(folder: Path, side: int, bucket: int) -> Path:
    return folder / f"{side}-{bucket:04d}"


def _common_key(sides: Sequence[_Side]) -> str | None:
    known = [names for side in sides if (names := side.columns()) is not None]
    return next((name for name in ("id", "text") if known and all(name in names for names in known)), None)


def _hashes(seen: Seen, key: str | None) -> np.ndarray:
    """A hash of the key of each row: of a column, or of the whole row."""
    names = seen.table.column_names
    if key is not None and key in names:
        column = Batch(seen.table.select([key])).shown_rows()
        values: list[object] = [row[key] for row in column]
    elif "_line" in names or seen.fate == "failed":
        lines = seen.table.column("_line" if "_line" in names else "row").to_pylist()
        values = [_of_line(line, key) for line in lines]
    elif key is None:
        own = [name for name in names if not name.startswith("_")]
        values = [json.dumps(row, default=str, sort_keys=True) for row in Batch(seen.table.select(own)).shown_rows()]
    else:
        raise ParameterError(f"there is no column `{inert(key, 100)}`", hint=f"columns: {', '.join(map(inert, names))}")
    return np.array([_hash(value) for value in values], np.uint64)


def _of_line(line: object, key: str | None) -> object:
    try:
        row = json.loads(line) if isinstance(line, str) else {}
    except ValueError:
        return line
    return row.get(key) if isinstance(row, dict) and key is not None else line


def _hash(value: object) -> int:
    data = str(value).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def _join(found: Comparison, sides: Sequence[_Side], folder: Path, buckets: int, examples: int) -> None:
    """Count the pairs of fates of all keys."""
    changes: dict[tuple[str, str], Change] = {}
    shared = [0, 0]
    wanted: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for bucket in range(buckets):
        every = [np.fromfile(_file(folder, side, bucket), _RECORD) for side in (0, 1)]
        one, two = map(_ordered, every)
        shared = [count + len(each) - len(kept) for count, each, kept in zip(shared, every, (one, two), strict=True)]
        keys = np.union1d(one["key"], two["key"])
        places = [np.searchsorted(side["key"], keys) for side in (one, two)]
        fates = [_fates_at(side, place, keys) for side, place in zip((one, two), places, strict=True)]
        pairs, back, counts = np.unique(np.stack(fates, axis=1), axis=0, return_inverse=True, return_counts=True)
        back = back.reshape(-1)
        for index, ((a, b), count) in enumerate(zip(pairs.tolist(), counts.tolist(), strict=True)):
            first = sides[0].fates[a] if a >= 0 else MISSING
            second = sides[1].fates[b] if b >= 0 else MISSING
            if first == second:
                found.same += count if first == KEPT else 0
                continue
            change = changes.setdefault((first, second), Change(first, second, 0))
            change.rows += count
            here = np.flatnonzero(back == index)[:examples]
            side = 0 if a > 0 or b < 0 else 1  # dropped rows are stored with their scores
            records, at = (one, two)[side], places[side]
            numbers = [(side, int(records["number"][at[position]])) for position in here]
            wanted[first, second] = sorted([*wanted.get((first, second), []), *numbers])[:examples]
    for output, count in zip(found.outputs, shared, strict=True):
        if count:
            verb = "has" if count == 1 else "have"
            found.notes.append(
                f"{plural(count, 'row')} of {output} {verb} the key of another row, and only one row of a key is compared"
            )
    found.changes = list(changes.values())
    for (first, second), rows in wanted.items():
        changes[first, second].examples = [{"side": side, "number": number} for side, number in rows]


def _ordered(records: np.ndarray) -> np.ndarray:
    """The records of a bucket by key. Of rows with the same key, the first one that was kept counts."""
    order = np.lexsort((records["number"], records["fate"] != 0, records["key"]))
    records = records[order]
    first = np.ones(len(records), np.bool_)
    first[1:] = records["key"][1:] != records["key"][:-1]
    return records[first]


def _fates_at(records: np.ndarray, places: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The fate of each key; -1 if no row has it."""
    if not len(records):
        return np.full(len(keys), -1, np.int64)
    inside = np.minimum(places, len(records) - 1)
    return np.where(records["key"][inside] == keys, records["fate"][inside], -1).astype(np.int64)


def _fetch(found: Comparison, side: _Side, number: int) -> None:
    """Read the rows that are shown as examples."""
    wanted = {
        example["number"]: example
        for change in found.changes
        for example in change.examples
        if example.get("side") == number and "number" in example
    }
    row = 0
    for seen in side.rows() if wanted else ():
        for index in [each for each in wanted if row <= each < row + seen.table.num_rows]:
            example = wanted.pop(index)
            del example["number"]
            example["side"] = number + 1
            example["address"] = seen.addresses(index - row)
            example["row"] = {name: _cut(value) for name, value in seen.row(index - row).items()}
        row += seen.table.num_rows
        if not wanted:
            return


def _cut(value: Any, most: int = 1_000) -> Any:
    return value[:most] if isinstance(value, (str, bytes)) else value


def _example(example: Mapping[str, Any], fates: Iterable[str], width: int) -> str:
    """A row with the scores that the reasons name."""
    row = example.get("row", {})
    measured = json.loads(row["_scores"]) if row.get("_scores") else {}
    named = [name for name in measured if any(f" {name} " in fate for fate in fates)]
    shown = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in measured.items()}
    scores = f"({', '.join(f'{name} {shown[name]}' for name in named)}) " if named else ""
    content = row.get("text") or row.get("_line") or row.get("row") or row
    return shown_value(
        f"{row.get('id') or example.get('address')}  {scores}{shown_value(content, width)}", max(20, width)
    )


def _short(value: object) -> str:
    return shown_value(value, 120)
