"""Rows that leave a run on the side: dropped ones with their reasons, failed ones with their errors."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import HIDDEN, LINE, Batch, Failure


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


def failure_record(failure: Failure) -> dict[str, Any]:
    """A failed row as JSON can hold it; bytes that are not UTF-8 as base64."""
    row: object = failure.row
    if isinstance(failure.row, bytes):
        try:
            row = failure.row.decode()
        except UnicodeDecodeError:
            row = {"base64": b64encode(failure.row).decode()}
    record = {"address": failure.address, "step": failure.step, "error": failure.error, "row": row}
    return record if failure.rows == 1 else record | {"rows": failure.rows}
