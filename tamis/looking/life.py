"""The life of one document: what each step of a run measured and decided about it, from what the output records.

.tamis/report.json       the steps, in order
.tamis/rejects/          the step that dropped it, with reason and scores    (runs with --rejects)
.tamis/failed/           the step that failed, with the error
.tamis/groups/           its duplicates, and the row kept instead
.tamis/scores/           its scores in all filters, and so what dropped it   (runs with --scores)
the shards               the row as it was written
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Failure
from tamis.dedup.explain import Explanation, alignment, explain_row, explanation_text
from tamis.dedup.groups import Groups
from tamis.errors import SourceError, TamisError, first_line
from tamis.inert import html_table, inert, one_line
from tamis.looking.rows import dropped_rows, full_name, reader_of, rows_of_reader, shown_value
from tamis.looking.scores import StoredScores, score_files, scores_at, scores_of_written
from tamis.operators import Filter, reason_to_invert
from tamis.registry import build_operator
from tamis.report import Report, load_manifest
from tamis.store import Store

MOST_LIVES = 20
"""Rows of the output with the same id that are shown: parts of a split document may share one."""

_PARTITION = re.compile(r"(part-\d{6,})")
_ADDRESS_UNKNOWN = (
    "Scores are stored by address, which an id leads to only if all steps are filters and maps. "
    "Give the address (FILE:POSITION) to see them."
)
_Kept: TypeAlias = tuple[dict[str, Any], StoredScores | None]


@dataclass
class Stop:
    """What one step did with the document."""

    step: str
    kind: str
    outcome: str
    """passed, dropped, failed, kept (by a step that removes duplicates), written, not reached, or unknown"""
    scores: dict[str, Any] = field(default_factory=dict)
    rules: list[str] = field(default_factory=list)
    """What the step requires of its scores."""
    detail: str = ""
    """The reason of a drop, the error, or the duplicates that were found."""
    twins: list[dict[str, Any]] = field(default_factory=list)
    """Rows that the step took for duplicates of this one."""


@dataclass
class Life:
    """The steps that a document passed, and its fate."""

    name: str
    address: str | None
    id: str | None
    fate: str
    """kept, dropped, failed or unknown"""
    stops: list[Stop] = field(default_factory=list)
    row: dict[str, Any] = field(default_factory=dict)
    """The row as it was written or dropped, if it is stored."""
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def as_text(self, width: int = 100) -> str:
        """The life of the document as lines of text."""
        title = (
            self.address
            if self.id in (None, self.address)
            else f"{self.id} ({self.address})"
            if self.address
            else self.id
        )
        lines = [f"{inert(title or self.name, 300)}: {self.fate}"]
        wide = max((len(stop.step) for stop in self.stops), default=0)
        for stop in self.stops:
            lines.append(
                f"  {inert(stop.step):<{wide}}  {stop.outcome}"
                + (f": {inert(stop.detail, 500)}" if stop.detail else "")
            )
            required = {rule.split()[0]: rule.partition(" ")[2] for rule in stop.rules}
            for name, value in stop.scores.items():
                limit = f"   ({required[name]})" if name in required else ""
                lines.append(f"  {'':{wide}}    {inert(name)} = {_number(value)}{limit}")
            for twin in stop.twins[:10]:
                lines.append(f"  {'':{wide}}    {inert(_twin_text(twin), 300)}")
        for name, value in self.row.items():
            if value is not None and not name.startswith("_"):
                lines.append(f"  {inert(name, 40)}: {shown_value(value, max(20, width - len(name) - 4))}")
        return "\n".join([*lines, *(f"  note: {inert(note)}" for note in self.notes)])

    def __str__(self) -> str:
        return self.as_text()

    def __repr__(self) -> str:
        return f"<Life of {inert(self.name, 200)}>\n{self}"

    def _repr_html_(self) -> str:
        rows = [
            [
                stop.step,
                stop.outcome,
                "; ".join([*([stop.detail] if stop.detail else []), *map(_twin_text, stop.twins[:10])]),
                ", ".join(f"{name} = {_number(value)}" for name, value in stop.scores.items()),
                ", ".join(stop.rules),
            ]
            for stop in self.stops
        ]
        return html_table(
            ["step", "outcome", "", "scores", "required"],
            rows,
            caption=f"{self.id or self.address or self.name}: {self.fate}",
        )


def why(output: str, name: str) -> list[Life]:
    """The lives of the rows with an id or address: one for each of them that is recorded or in the output, and one that says
    so if there is none.

    To find an id, all rows of the output are read.
    """
    with explaining_damage(output):
        return _lives(output, name)


@contextmanager
def explaining_damage(output: str) -> Iterator[None]:
    """Raise a clear error if groups, scores or rejects of a run cannot be read."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise SourceError(
            f"what {output} records about its rows cannot be read: {first_line(error)}",
            hint="a run with --fresh records everything again",
        ) from error


def _lives(output: str, name: str) -> list[Life]:
    store = Store(output)
    report, manifest = Report.load(output), load_manifest(output)
    try:
        groups = Groups.load(output)
    except TamisError:
        groups = Groups(store, {})
    steps = _steps(report)
    filters = _filters(manifest)
    explained = explain_row(groups, name)
    by_id = all(found.address != name for found in explained)
    written, more = _written(store, name) if by_id else ([], 0)
    lives = []
    while explained or written:
        found = explained.pop(0) if explained else Explanation(name)
        row: dict[str, Any] = {}
        stored: StoredScores | None = scores_at(store, found.address or name)
        if found.outcome == "dropped":
            row = _rejected(store, found.address) if found.address else {}
        elif found.outcome != "failed":
            kept = _at(found.address, written if by_id or found.id is None else _written(store, found.id)[0])
            if kept is not None:
                row, stored = kept[0], stored or kept[1]
                found.outcome, found.id, found.unrecorded = "kept", found.id or str(row.get("id")), {}
            elif stored is not None and report.state in ("finished", "unchanged"):
                _decide(found, stored, steps, filters)
        address = found.address or (stored.address if stored is not None else None)
        life = Life(name, address, found.id, found.outcome, row=row)
        if found.outcome != "unknown":
            life.stops = list(_stops(found, steps, stored, row, filters))
        life.notes = list(_notes(found, stored, manifest))
        if found.outcome == "kept" and address is None and score_files(store):
            life.notes.append(_ADDRESS_UNKNOWN)
        lives.append(life)
    if more:
        lives[-1].notes.append(f"{more:,} more rows of the output have this id; `tamis grep --in id` shows them.")
    return lives


def _at(address: str | None, written: list[_Kept]) -> _Kept | None:
    """Take the first row that may have this address out of a list."""
    for place, (_, stored) in enumerate(written):
        if address is None or stored is None or stored.address == address:
            return written.pop(place)
    return None


def _steps(report: Report) -> list[dict[str, Any]]:
    """The steps of the run; a Gather, which a report lists in two stages, once, and no reader of stored rows."""
    found: list[dict[str, Any]] = []
    for number, op in enumerate(report.operators):
        if number and op["kind"] == "source":
            continue
        if op["kind"] == "gather" and found and found[-1]["name"] == op["name"]:
            continue
        found.append(op)
    return found


def _filters(manifest: Mapping[str, Any]) -> dict[str, list[Filter]]:
    """By name, the filters of the recipe in order, as far as they can be built."""
    found: dict[str, list[Filter]] = {}
    for step in manifest.get("recipe", {}).get("steps", []):
        for name, given in step.items() if isinstance(step, Mapping) else ():
            try:
                op = build_operator(name, given)
            except (TamisError, TypeError, ValueError):  # a function, or an operator that is not installed
                continue
            if isinstance(op, Filter):
                found.setdefault(name, []).append(op)
    return found


def _required(op: Filter) -> list[str]:
    """What a filter requires of its scores."""
    rules = op.rules()
    return [f"not ({reason_to_invert(op.name, rules)})"] if op.invert else [rule.met for rule in rules]


def _decide(
    found: Explanation,
    stored: StoredScores,
    steps: Sequence[Mapping[str, Any]],
    filters: Mapping[str, Sequence[Filter]],
) -> None:
    """The fate of a measured row that no step recorded as dropped, if its scores are enough to know it."""
    names = [step["name"] for step in steps]
    scored = _scores_by_step(names, stored)
    for number, name in enumerate(names):
        if name not in found.unrecorded:
            continue
        measured, scores = filters.get(name, ()), scored.get(number, {})
        if len(measured) != 1 or any(rule.score not in scores for rule in measured[0].rules()):
            return  # this step may have dropped it
        reason = _reason(measured[0], scores)
        if reason is not None:
            found.outcome, found.step, found.reason = "dropped", name, reason
            return
    found.outcome, found.unrecorded = "kept", {}


def _reason(op: Filter, scores: Mapping[str, Any]) -> str | None:
    """The reason for which a filter drops a row with these scores, if it does."""
    if op.score_only:
        return None
    columns = {
        name: pa.nulls(1, pa.float64()) if value is None else pa.array([value]) for name, value in scores.items()
    }
    rules = op.rules()
    verdicts = (verdict for rule in rules for verdict in rule.verdicts(columns[rule.score]))
    broken = next((reason for reason, mask in verdicts if mask[0]), None)
    if op.invert:
        return reason_to_invert(op.name, rules) if broken is None else None
    return broken


def _stops(
    found: Explanation,
    steps: Sequence[Mapping[str, Any]],
    stored: StoredScores | None,
    row: Mapping[str, Any],
    filters: Mapping[str, Sequence[Filter]],
) -> Iterator[Stop]:
    names = [step["name"] for step in steps]
    end = names.index(found.step) if found.step in names else None
    scored = _scores_by_step(names, stored)
    findings = list(found.findings)
    for number, step in enumerate(steps):
        name, kind = step["name"], step["kind"]
        stop = Stop(name, kind, "passed", rules=[rule for op in filters.get(name, ())[:1] for rule in _required(op)])
        stop.scores = scored.get(number, {})
        mine = next((each for each in findings if each["step"] == name), None)
        if mine is not None and kind == "gather":
            findings.remove(mine)
            stop.twins = [entry for entry in mine["entries"] if entry["fate"] != "dropped" or number == end]
        if kind == "source" and number != end:
            stop.outcome = "read"
        elif end is None:
            stop.outcome = _last(found, kind)
        elif number > end:
            stop.outcome = "measured, though dropped before" if stop.scores else "not reached"
        elif number == end:
            stop.outcome, stop.detail = found.outcome, found.reason or ""
            if not stop.scores and isinstance(row.get("_scores"), str):
                stop.scores = json.loads(row["_scores"])
        yield stop


def _last(found: Explanation, kind: str) -> str:
    if found.outcome == "kept":
        return "written" if kind == "sink" else "passed"
    return "unknown"


def _scores_by_step(names: Sequence[str], stored: StoredScores | None) -> dict[int, dict[str, Any]]:
    """By the number of the step: the measured operators follow each other somewhere among the steps."""
    if stored is None:
        return {}
    size = len(stored.steps)
    first = next((at for at in range(len(names)) if tuple(names[at : at + size]) == stored.steps), None)
    if first is None:
        return {}
    result: dict[int, dict[str, Any]] = {}
    for (number, name), value in stored.scores.items():
        result.setdefault(first + number, {})[name] = value
    return result


def _notes(found: Explanation, stored: StoredScores | None, manifest: Mapping[str, Any]) -> Iterator[str]:
    if found.outcome == "unknown":
        yield from (line.strip() for line in explanation_text(found).splitlines()[1:] if line.strip())
    if stored is None and not manifest.get("scores"):
        yield "This run did not keep scores. Run it with --scores to record what every filter measured."


def _rejected(store: Store, address: str) -> dict[str, Any]:
    for seen in dropped_rows(store):
        index = pc.index(seen.table.column("_address"), pa.scalar(address)).as_py()
        if index >= 0:
            return seen.row(index)
    return {}


def _written(store: Store, row_id: str) -> tuple[list[_Kept], int]:
    """The rows with this id in the shards, with their scores if these are stored, and how many more there are."""
    found: list[_Kept] = []
    more = 0
    counts: dict[str, int] = {}
    for name in store.names():  # one by one, because a reader joins small files in one batch
        partition = _PARTITION.match(name)
        if partition is None or name.endswith(".media"):
            continue
        try:
            for seen in rows_of_reader(reader_of(full_name(store, name), store.storage_options), "kept", _ignore):
                if "id" not in seen.table.column_names:
                    return found, more
                same = pc.equal(seen.table.column("id").cast(pa.string()), row_id)
                before = counts.get(partition[1], 0)
                for at in pc.indices_nonzero(pc.fill_null(same, False)).to_pylist():
                    if len(found) < MOST_LIVES:
                        found.append((seen.row(at), scores_of_written(store, partition[1], before + at)))
                    else:
                        more += 1
                counts[partition[1]] = before + seen.table.num_rows
        except (TamisError, pa.ArrowInvalid, pa.ArrowNotImplementedError):  # ids that are not text or numbers
            return found, more
    return found, more


def _ignore(failure: Failure) -> None:
    """Rows that cannot be read are not searched."""


def _twin_text(twin: Mapping[str, Any]) -> str:
    """One entry of the groups of duplicates as a phrase."""
    if twin.get("bits") is not None:
        likeness = f"hashes differ in {twin['bits']} bits"
    elif twin.get("offset") is not None:
        likeness = alignment(twin)
    elif twin.get("similarity") is not None and (twin.get("bands") is not None or twin.get("distance") is not None):
        likeness = f"similarity {twin['similarity']:.3f}"
    else:
        likeness = "the same content"

    def named(prefix: str) -> str:
        row_id, address = twin.get(f"{prefix}id"), twin[f"{prefix}address"]
        return f"{row_id} ({address})" if row_id is not None else str(address)

    if twin["fate"] == "kept":
        return one_line(f"{named('')} was dropped as its duplicate, {likeness}")
    if twin["fate"] == "near miss":
        return one_line(f"almost a duplicate of {named('kept_')}, {likeness}")
    return one_line(f"{twin['fate']}: duplicate of {named('kept_')}, {likeness}")


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else one_line(value, 100)
