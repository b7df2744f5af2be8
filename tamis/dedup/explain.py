"""Explain what happened to one row of a run, from everything that its output folder records.

.tamis/groups/, .tamis/dedup/   what each deduplication step found about the row
.tamis/rejects/                 the filter that dropped it and the reason, if the run kept dropped rows
.tamis/failed/                  the step at which it failed and the error
the output itself               whether a row with this id was kept
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from tamis.dedup.groups import Groups
from tamis.parameters import plural
from tamis.store import INTERNAL, LINES, TABLE, Store

_Record: TypeAlias = tuple[Literal["dropped", "failed"], str, str | None, str, str]
"""(outcome, address, id, step, reason or error)"""
_ADDRESS = re.compile(r":\d+$")


@dataclass
class Explanation:
    """What is known about a row."""

    name: str
    """The id or address that was asked about."""
    address: str | None = None
    id: str | None = None
    outcome: Literal["kept", "dropped", "failed", "unknown"] = "unknown"
    step: str | None = None
    """The step that dropped or failed the row."""
    reason: str | None = None
    """The reason of the drop, or the error."""
    findings: list[dict[str, Any]] = field(default_factory=list)
    """What each deduplication step found, in order: step, threshold, and the entries of `Groups.explain`."""
    missing: bool = False
    """Whether the output has ids, and not this one."""
    unrecorded: dict[str, int] = field(default_factory=dict)
    """Filters that may have dropped the row without a record, with the number of rows each dropped."""


def explain_row(groups: Groups, name: str) -> list[Explanation]:
    """Explain the rows with an id or address: one explanation for each address that is known, or a single one if none is."""
    store = groups.store
    entries = groups.explain(name)
    side = [*_rejected(store, name), *_failed(store, name)]
    found: dict[str, Explanation] = {}
    for entry in entries:
        own = "kept_" if entry["fate"] == "kept" else ""
        row = found.setdefault(entry[f"{own}address"], Explanation(name, entry[f"{own}address"]))
        row.id = row.id or entry.get(f"{own}id")
    for outcome, address, row_id, step, reason in side:
        row = found.setdefault(address, Explanation(name, address))
        row.id, row.outcome, row.step, row.reason = row.id or row_id, outcome, step, reason
    steps = _steps(store)
    for row in found.values():
        _add_findings(row, groups, entries, steps)
        if row.outcome == "unknown":
            _decide(row, groups)
    return list(found.values()) or [_not_recorded(groups, name)]


def _add_findings(row: Explanation, groups: Groups, entries: list[dict[str, Any]], steps: list[dict[str, Any]]) -> None:
    """Add what each deduplication step found, up to the step that dropped or failed the row."""
    names = [step["name"] for step in steps]
    last = names.index(row.step) if row.step in names else len(names)
    places = _places(groups, names)
    for (stage, summary), place in zip(groups.summaries.items(), places, strict=True):
        mine = [
            entry
            for entry in entries
            if entry["stage"] == stage
            and entry["kept_address" if entry["fate"] == "kept" else "address"] == row.address
        ]
        dropped = [entry for entry in mine if entry["fate"] == "dropped"]
        # With keep="none", a dropped row is also named as the duplicate of others.
        if mine or place < last:
            row.findings.append(_finding(summary, dropped or mine))
        if dropped:
            row.outcome, row.step = "dropped", summary["step"]
            return


def _places(groups: Groups, names: list[str]) -> list[int]:
    """The position of each deduplication step among the steps, where it is listed twice: in its stage and in the next one."""
    seen: dict[str, int] = {}
    places = []
    for summary in groups.summaries.values():
        step = summary["step"]
        positions = [number for number, name in enumerate(names) if name == step]
        places.append(positions[min(2 * seen.get(step, 0), len(positions) - 1)] if positions else 0)
        seen[step] = seen.get(step, 0) + 1
    return places


def _finding(summary: Mapping[str, Any], entries: list[dict[str, Any]]) -> dict[str, Any]:
    found = {"step": summary["step"], "threshold": summary.get("threshold"), "entries": entries}
    return found | ({"radius": summary["radius"]} if "radius" in summary else {})


def _decide(row: Explanation, groups: Groups) -> None:
    """Whether a row that all deduplication steps kept reached the output."""
    row.unrecorded = _unrecorded_drops(groups.store)
    if not row.unrecorded or (row.id is not None and _in_output(groups.store, row.id)):
        row.outcome, row.unrecorded = "kept", {}


def _not_recorded(groups: Groups, name: str) -> Explanation:
    row = Explanation(name, unrecorded=_unrecorded_drops(groups.store))
    in_output = _in_output(groups.store, name)
    if in_output:
        row.id, row.outcome, row.unrecorded = name, "kept", {}
        row.findings = [_finding(summary, []) for summary in groups.summaries.values()]
    row.missing = in_output is False and not _ADDRESS.search(name)
    return row


def _unrecorded_drops(store: Store) -> dict[str, int]:
    """The steps other than deduplications that dropped rows, if the run did not keep dropped rows."""
    if store.names(f"{INTERNAL}/rejects"):
        return {}
    drops = {step["name"]: sum(step["dropped"].values()) for step in _steps(store) if step["kind"] != "gather"}
    return {name: count for name, count in drops.items() if count}


def _steps(store: Store) -> list[dict[str, Any]]:
    """The steps of the run in order, as in its report."""
    report = json.loads(store.read(f"{INTERNAL}/report.json") or b"{}")
    return [dict(step) for step in report.get("operators", ())]


# ------------------------------------------------------------------------------------------------------- recorded rows


def _rejected(store: Store, name: str) -> Iterator[_Record]:
    """The dropped rows with this id or address."""
    for file in _files(store, f"{INTERNAL}/rejects", TABLE):
        with store_file(store, file) as opened:
            parquet = pq.ParquetFile(opened)
            wanted = ("_address", "_step", "_reason", "id", "_line")
            columns = [column for column in wanted if column in parquet.schema_arrow.names]
            for batch in parquet.iter_batches(1_000, columns=columns):
                for row in _mentioning(pa.Table.from_batches([batch]), name).to_pylist():
                    row_id = _id_of(row, row.get("_line"))
                    if name in (row["_address"], row_id):
                        yield "dropped", row["_address"], row_id, row["_step"], row["_reason"]


def _mentioning(table: pa.Table, name: str) -> pa.Table:
    """The rows that may have this id or address, without parsing all lines."""
    found = pc.equal(table.column("_address"), name)
    if "id" in table.column_names:
        found = pc.or_kleene(found, pc.equal(table.column("id").cast(pa.string()), name))
    if "_line" in table.column_names:
        inside = json.dumps(name)[1:-1].encode()  # a line may escape other characters than this
        plain = inside == name.encode()
        found = pc.or_kleene(found, pc.match_substring(table.column("_line"), name) if plain else True)
    return table.filter(pc.fill_null(found, False))


def _failed(store: Store, name: str) -> Iterator[_Record]:
    """The failed rows with this id or address."""
    for file in _files(store, f"{INTERNAL}/failed", LINES):
        with store_file(store, file) as opened:
            for line in opened:
                row = json.loads(line)
                content = row.get("row")
                row_id = _id_of(content, None) if isinstance(content, dict) else _id_of({}, content)
                if name in (row["address"], row_id):
                    yield "failed", row["address"], row_id, row["step"], row["error"]


def _files(store: Store, folder: str, suffix: str) -> list[str]:
    return [f"{folder}/{file}" for file in store.names(folder) if file.endswith(suffix)]


def store_file(store: Store, name: str) -> Any:
    """A file of an output folder, opened for reading."""
    from fsspec.core import url_to_fs

    system, root = url_to_fs(store.root, **store.storage_options)
    return system.open(f"{root.rstrip('/')}/{name}", "rb")


def _id_of(row: Mapping[str, Any], line: Any) -> str | None:
    """The id of a row, or of the JSON line that it was."""
    if "id" not in row and isinstance(line, (str, bytes)):
        try:
            parsed = json.loads(line)
        except ValueError:
            return None
        row = parsed if isinstance(parsed, dict) else {}
    return None if row.get("id") is None else str(row["id"])


def _in_output(store: Store, row_id: str) -> bool | None:
    """Whether a shard of the output has a row with this id; None if no shard has ids."""
    has_ids = False
    for file in store.names():
        for ids in _ids_in(store, file) if not file.startswith(".") else ():
            if row_id in ids:
                return True
            has_ids |= bool(ids)
    return False if has_ids else None


def _ids_in(store: Store, file: str) -> Iterator[set[str]]:
    """The ids of a shard, some at a time; none if it has no column `id`."""
    suffixes = file.lower().split(".")[1:]
    if not {"parquet", "arrow", "csv", "jsonl"} & set(suffixes):
        return
    with store_file(store, file) as opened:
        if "parquet" in suffixes:
            parquet = pq.ParquetFile(opened)
            if "id" in parquet.schema_arrow.names:
                yield from map(_ids, parquet.iter_batches(columns=["id"]))
            return
        codec = {"gz": "gzip", "zst": "zstd", "bz2": "bz2", "lz4": "lz4"}.get(suffixes[-1])
        stream = pa.CompressedInputStream(opened, codec) if codec else opened
        if "arrow" in suffixes:
            yield from map(_ids, pa.ipc.open_file(stream).read_all().to_batches())
        elif "csv" in suffixes:
            yield from map(_ids, pyarrow.csv.open_csv(stream))
        else:
            for line in io.BufferedReader(stream) if codec else stream:
                yield {row_id} if (row_id := _id_of({}, line)) is not None else set()


def _ids(batch: pa.RecordBatch) -> set[str]:
    return {str(value) for value in batch.column("id").to_pylist()} if "id" in batch.schema.names else set()


# --------------------------------------------------------------------------------------------------------- in sentences

SHOWN = 10
"""Duplicates of a row, or units cut out of it, that are listed."""


def explanation_text(row: Explanation) -> str:
    """An explanation as a few lines of text."""
    lines = [f"{_title(row.id, row.address or row.name)} {_OUTCOMES[row.outcome].format(step=row.step)}"]
    if row.reason and not any(entry["fate"] == "dropped" for finding in row.findings for entry in finding["entries"]):
        lines.append(f"  {'error' if row.outcome == 'failed' else 'reason'}: {row.reason}")
    for finding in row.findings:
        lines += [f"  {line}" for line in _finding_lines(finding)]
    if row.outcome == "unknown":
        lines += _unknown_lines(row)
    return "\n".join(lines)


_OUTCOMES = {
    "kept": "was kept",
    "dropped": "was dropped by {step}",
    "failed": "failed in {step}",
    "unknown": "has no record of its own in this run",
}


def _title(row_id: str | None, address: str) -> str:
    return address if row_id is None or row_id == address else f"{row_id} ({address})"


def _finding_lines(finding: Mapping[str, Any]) -> list[str]:
    step, entries = finding["step"], finding["entries"]
    by_fate = {
        fate: [entry for entry in entries if entry["fate"] == fate] for fate in ("dropped", "cut", "kept", "near miss")
    }
    if by_fate["dropped"] and by_fate["dropped"][0].get("unit") is not None:
        return [f"{step}: too much of its text repeats other rows", *_unit_lines(by_fate["dropped"])]
    if by_fate["dropped"]:
        (entry,) = by_fate["dropped"][:1]
        where = f" in the index {entry['index']}" if entry.get("index") else ""
        other = _title(entry.get("kept_id"), entry["kept_address"])
        return [f"{step}: duplicate of {other}{where}", f"  {_measures(entry)}"]
    lines = []
    if by_fate["cut"]:
        lines += [f"{step}: kept, without the text that repeats other rows", *_unit_lines(by_fate["cut"])]
    if by_fate["kept"] and by_fate["kept"][0].get("unit") is None:
        others = by_fate["kept"]
        lines.append(f"{step}: kept, in a group of {len(others) + 1:,} rows; dropped as duplicates of it:")
        for entry in others[:SHOWN]:
            lines += [f"  {_title(entry.get('id'), entry['address'])}", f"    {_measures(entry)}"]
        if len(others) > SHOWN:
            lines.append(f"  and {len(others) - SHOWN:,} more")
    elif by_fate["kept"] and not lines:
        lines.append(f"{step}: kept; {len(by_fate['kept']):,} repeats of its text were cut elsewhere")
    if by_fate["near miss"]:
        entry = max(by_fate["near miss"], key=lambda each: each["similarity"])
        where = f" in the index {entry['index']}" if entry.get("index") else ""
        other = _title(entry.get("kept_id"), entry["kept_address"])
        lines.append(f"{step}: kept, but close to {other}{where}")
        radius = finding.get("radius")
        limit = (
            f"beyond the radius of {radius}"
            if radius is not None
            else f"below the threshold of {finding['threshold']:g}"
        )
        lines.append(f"  {_similarity(entry)}, {limit}")
    return lines or [f"{step}: no duplicate found"]


def _measures(entry: Mapping[str, Any]) -> str:
    """How similar a dropped row is to the one kept instead, and how far it is from the centre of its cluster."""
    distance = entry.get("distance")
    return _similarity(entry) + (f", distance to its centre {distance:.4f}" if distance is not None else "")


def _similarity(entry: Mapping[str, Any]) -> str:
    if entry.get("distance") is not None:
        return f"cosine similarity {entry['similarity']:.4f}"
    if entry.get("offset") is not None:
        return alignment(entry)
    if entry.get("bits") is not None:
        return f"hashes that differ in {plural(entry['bits'], 'bit')}"
    if entry.get("bands") is None:
        return "the same content"
    text = f"similarity {entry['similarity']:.3f}"
    return f"{text}, exact match of a short text" if entry.get("short") else text


def alignment(entry: Mapping[str, Any]) -> str:
    """How two sounds or videos agree, and where; an offset is that of the beginning of the row in the one kept instead."""
    offset, share = entry["offset"], f"{entry['similarity']:.1%} of the shorter one agrees"
    where = f"{abs(offset):.2f} s {'after' if offset >= 0 else 'before'} the beginning of the other one"
    return f"{share}, {entry['error']:.1%} of its bits differ; it begins {where}"


def _unit_lines(entries: list[dict[str, Any]]) -> list[str]:
    lines = [f"  {_unit(entry)} {_title(entry.get('kept_id'), entry['kept_address'])}" for entry in entries[:SHOWN]]
    return [*lines, f"  and {len(entries) - SHOWN:,} more"] if len(entries) > SHOWN else lines


def _unit(entry: Mapping[str, Any]) -> str:
    """What was cut, and where its first occurrence is."""
    if entry.get("start") is not None:
        start, kept, size = entry["start"], entry["kept_start"], entry["bytes"]
        return f"bytes {start:,} to {start + size:,} repeat bytes {kept:,} to {kept + size:,} of"
    unit = f"unit {entry['unit']} ({entry['bytes']:,} bytes)"
    if entry.get("kept_unit") is None:
        return f"{unit}: {entry['similarity']:.0%} of its n-grams occur before, the first of them in"
    return f"{unit} repeats unit {entry['kept_unit']} of"


def _unknown_lines(row: Explanation) -> list[str]:
    if not row.unrecorded and row.missing:
        return ["  No step dropped or failed it, and it is not in the output: it is not a row of the input."]
    if not row.unrecorded:
        return [
            "  No step dropped or failed it. It was kept, or it is not a row of the input; "
            "a run does not record the addresses of the rows that it keeps."
        ]
    kept = "It is not in the output. One" if row.missing else "It was kept, or one"
    steps = ", ".join(f"{name} ({plural(count, 'row')})" for name, count in row.unrecorded.items())
    return [
        f"  {kept} of these steps dropped it, or it is not a row of the input: {steps}.",
        "  This run did not keep dropped rows. Run it with --rejects to record them.",
    ]
