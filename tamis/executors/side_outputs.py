"""Rows that leave a run on the side: dropped ones with their reasons, failed ones with their errors."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import HIDDEN, LINE, Batch, Failure
from tamis.sinks.streams import synced


def rejected_rows(batch: Batch, step: str, reason: str, scores: dict[str, pa.Array]) -> pa.Table:
    """Dropped rows as they are kept: their columns, and why and where each was dropped."""
    rows = len(batch)
    table = batch.table
    if LINE in batch:
        line = pc.utf8_rtrim(batch[LINE].cast(pa.string()), "\r\n")
        table = table.append_column("_line", line)
    table = table.drop_columns([name for name in table.column_names if name.startswith(HIDDEN)])
    marks = {
        "_reason": pa.array([reason] * rows),
        "_step": pa.array([step] * rows),
        "_address": pa.array(batch.origin.addresses()),
        # As text, since each step has scores of its own and a file has one set of columns.
        "_scores": pa.array(
            [json.dumps(row, default=str) for row in pa.table(scores).to_pylist()] if scores else [None] * rows,
            pa.string(),
        ),
    }
    for name, values in marks.items():
        table = table.append_column(name, values)
    return table


class FailureLog:
    """Failed rows as JSON lines, written as they come: a source may fail any number of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._file: IO[str] | None = None

    def write(self, record: Mapping[str, Any]) -> None:
        if self._file is None:
            self._file = self.path.open("w", encoding="utf-8")
        self._file.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")
        self.count += 1

    def close(self) -> Path | None:
        """The file, synced to disk; None if no row failed."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()
            synced(self.path)
        return self.path if self.count else None

    def records(self) -> Iterator[dict[str, Any]]:
        """What was written, one record at a time. Nothing can be written afterwards."""
        if (path := self.close()) is not None:
            with path.open(encoding="utf-8") as lines:
                yield from map(json.loads, lines)


def failure_record(failure: Failure) -> dict[str, Any]:
    """A failed row as JSON can hold it. Of binary values it has the size and the hash, by which they can be found."""
    row = _line_text(failure.row) if isinstance(failure.row, bytes) else _by_reference(failure.row)
    record = {"address": failure.address, "step": failure.step, "error": failure.error, "row": row}
    return record if failure.rows == 1 else record | {"rows": failure.rows}


def _line_text(line: bytes) -> object:
    """The line a row was read from; as base64 if it is not UTF-8."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(line).decode()}


def _by_reference(value: object) -> object:
    if isinstance(value, bytes):
        return {"size": len(value), "sha256": sha256(value).hexdigest()}
    if isinstance(value, dict):
        return {str(key): _by_reference(item) for key, item in value.items()}
    return [_by_reference(item) for item in value] if isinstance(value, (list, tuple)) else value


def deferred_record(failure: Failure) -> dict[str, Any]:
    """A failure that may be counted later, as JSON can hold it; `Failure(**record)` restores it."""
    return asdict(failure) | {"row": failure_record(failure)["row"]}
