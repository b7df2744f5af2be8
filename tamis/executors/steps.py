"""One operator applied to one batch: what comes out, which rows are dropped and why. No state, no accounts.

The worker loop counts and isolates; this module only knows the kinds of operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.batch import HIDDEN, Batch, as_array, bytes_of, table_from_rows
from tamis.errors import OperatorError
from tamis.functions import Function
from tamis.operators import ALL, Expand, Filter, Gather, Map, Operator


@dataclass(frozen=True)
class Applied:
    """What an operator made of `given`: the rows that go on, and for each reason the rows of `given` that do not."""

    batch: Batch
    given: Batch
    verdicts: list[tuple[str, np.ndarray]] = field(default_factory=list)
    created: int = 0
    scores: dict[str, pa.Array] = field(default_factory=dict)
    """What a filter measured of `given`, to be told with the rows it drops."""


def apply_step(op: Operator, batch: Batch) -> Applied:
    """Apply any operator that takes a batch and gives a batch."""
    if isinstance(op, Filter):
        return _filter(op, batch)
    if isinstance(op, Map):
        made = check_lengths(op, op.apply(view(op, batch)), len(batch))
        visible = [name for name in batch.columns if not name.startswith(HIDDEN)]
        return Applied(batch.without(op.removes(visible)).with_columns(made), batch)
    if isinstance(op, Expand):
        table, parents = op.expand(view(op, batch))
        if len(parents) != table.num_rows:
            raise OperatorError(f"`{op.name}` made {table.num_rows} rows but named the origin of {len(parents)}")
        return _grown(op, batch, np.asarray(parents), {name: table.column(name) for name in table.column_names})
    if isinstance(op, Function):
        return _call_batch(op, batch) if op.batch_wise else _call_rows(op, batch)
    raise AssertionError(f"no way to apply {op!r}")


def view(op: Operator, batch: Batch) -> Batch:
    """What an operator is handed: the columns it declared, under the names it knows."""
    names = op.real_names()
    if ALL in names:
        return batch
    missing = [real for real in names.values() if real not in batch]
    if missing:
        # Rows of one file may lack a column that others have; to an operator that is a null, not an error.
        batch = batch.with_columns({name: pa.nulls(len(batch), pa.string()) for name in missing})
    optional = {name: name for name in op.optional_reads() if name in batch and name not in names}
    return batch.view(names | optional)


def facts_of(op: Operator, found: Mapping[str, Any], rows: int) -> pa.Table:
    """What a Gather observed, checked to have one value per row."""
    return pa.table(check_lengths(op, found, rows))


def rewritten(gather: Gather, batch: Batch, payload: pa.Array) -> Batch:
    """Rows that stay, changed as a Gather decided."""
    return batch.with_columns(check_lengths(gather, gather.rewrite(view(gather, batch), payload), len(batch)))


def dropped(batch: Batch, verdicts: list[tuple[str, np.ndarray]], scores: dict[str, pa.Array] | None = None) -> Applied:
    """`batch` without the rows of the verdicts, whose masks are disjoint."""
    if not verdicts:
        return Applied(batch, batch)
    keep = ~np.logical_or.reduce([mask for _, mask in verdicts])
    return Applied(batch.select(keep), batch, verdicts, scores=scores or {})


def check_lengths(op: Operator, found: Mapping[str, Any], rows: int) -> dict[str, pa.Array]:
    """What an operator returned as columns, or an error if there is not one value per row."""
    columns = {name: as_array(values) for name, values in found.items()}
    for name, values in columns.items():
        if len(values) != rows:
            raise OperatorError(f"`{op.name}` returned {len(values)} values of `{name}` for {rows} rows")
    return columns


def filter_rows(op: Filter, batch: Batch, alive: np.ndarray) -> Applied:
    """What a filter that drops rows decides about those that are `alive`; all rows of the batch stay where they are."""
    scores = check_lengths(op, op.score(view(op, batch)), len(batch))
    return Applied(batch, batch, verdicts_of(op, scores, alive), scores=scores)


def verdicts_of(op: Filter, scores: Mapping[str, pa.Array], alive: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """For each reason the rows among those `alive` that are dropped for it; the first rule a row breaks is its reason."""
    keep = alive.copy()
    verdicts: list[tuple[str, np.ndarray]] = []
    for rule in op.rules():
        for reason, broken in rule.verdicts(scores[rule.score]):
            first_broken = broken & keep
            if first_broken.any():
                verdicts.append((reason, first_broken))
                keep &= ~first_broken
    return verdicts


def _filter(op: Filter, batch: Batch) -> Applied:
    if op.score_only:
        scores = check_lengths(op, op.score(view(op, batch)), len(batch))
        names = op.score_columns()
        return Applied(batch.with_columns({names.get(name, name): values for name, values in scores.items()}), batch)
    found = filter_rows(op, batch, np.ones(len(batch), dtype=np.bool_))
    return dropped(batch, found.verdicts, found.scores)


def _grown(op: Operator, batch: Batch, parents: np.ndarray, columns: Mapping[str, Any]) -> Applied:
    """Each row replaced by its children; a row without any is dropped with a reason."""
    children = np.bincount(parents.astype(np.int64), minlength=len(batch))
    childless = children == 0
    grown = batch.select(parents.astype(np.int64))
    grown = Batch(grown.table, grown.origin).with_columns({name: as_array(values) for name, values in columns.items()})
    verdicts = [(f"{op.name}: nothing left", childless)] if childless.any() else []
    return Applied(grown, batch, verdicts, created=int((children[~childless] - 1).sum()))


def _call_batch(op: Function, batch: Batch) -> Applied:
    result = op.function(batch)
    if isinstance(result, Batch):
        result = result.table
    if isinstance(result, pa.Table):
        result = {name: result.column(name) for name in result.column_names}
    if isinstance(result, Mapping):
        return Applied(batch.with_columns(check_lengths(op, result, len(batch))), batch)
    keep = as_array(result)
    if not pa.types.is_boolean(keep.type) or len(keep) != len(batch):
        raise OperatorError(
            f"`{op.name}` returned {type(result).__name__}",
            hint="a batch-wise function returns a mapping of columns, or one boolean per row",
        )
    refused = ~np.asarray(keep.fill_null(False).to_numpy(zero_copy_only=False), dtype=np.bool_)
    return dropped(batch, [(_reason(op), refused)] if refused.any() else [])


def _call_rows(op: Function, batch: Batch) -> Applied:
    refused = np.zeros(len(batch), dtype=np.bool_)
    parents: list[int] = []
    rows: list[dict[str, Any]] = []
    changed = False
    for number, row in enumerate(batch.rows()):
        result = op.function(dict(row))
        if isinstance(result, bool):
            refused[number] = not result
            children = [row] if result else []
        elif isinstance(result, dict):
            changed, children = True, [row | result]
        elif isinstance(result, list):
            changed, children = True, [row | child for child in result]
        else:
            raise TypeError(
                f"{op.name} returned {type(result).__name__}; "
                "a row-wise function returns a dict, True, False or a list of dicts"
            )
        parents += [number] * len(children)
        rows += children
    verdicts = [(_reason(op), refused)] if refused.any() else []
    if not changed:
        return dropped(batch, verdicts)
    table = _like(table_from_rows(rows), batch.table.schema)
    grown = _grown(op, batch, np.asarray(parents, dtype=np.int64), {n: table.column(n) for n in table.column_names})
    childless = [(reason, mask & ~refused) for reason, mask in grown.verdicts]
    verdicts += [(reason, mask) for reason, mask in childless if mask.any()]
    return Applied(grown.batch, batch, verdicts, grown.created)


def _reason(op: Function) -> str:
    return op.reason or f"not {op.name}"


def _like(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """`table`, made of Python rows, with the types its columns had before they became Python."""
    for number, column in enumerate(table.schema):
        known = schema.field(column.name).type if column.name in schema.names else None
        if known is not None and known != column.type:
            try:
                table = table.set_column(number, column.name, table.column(column.name).cast(known))
            except pa.ArrowInvalid:
                continue  # the function changed the type on purpose
    return table


def bytes_read(op: Operator, batch: Batch, alive: np.ndarray | None = None) -> int:
    """The size of the columns an operator looks at, in the rows that are alive."""
    names = set(op.real_names().values())
    chosen = batch.columns if ALL in names else [name for name in batch.columns if name in names]
    whole = sum(bytes_of(batch.table.column(name)) for name in chosen)
    return whole if alive is None else int(whole * np.count_nonzero(alive) / len(alive))
