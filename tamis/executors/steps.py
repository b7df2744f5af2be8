"""Applies one operator to one batch: the resulting rows, the dropped rows and the reasons.

The worker loop counts rows and isolates failures; this module knows the kinds of operator. Columns, rules and names come
from the operator, which describes the step. Its runner, which `open` returned, does the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tamis.batch import HIDDEN, Batch, as_array, bytes_of, contiguous
from tamis.errors import ColumnError, OperatorError, SinkError
from tamis.functions import Function
from tamis.operators import ALL, Expand, Filter, Gather, Map, Operator, reason_to_invert
from tamis.sinks.schemas import conform_array, merge_types, plain_type

Types: TypeAlias = dict[str, pa.DataType]
"""The types of the columns that an operator returned, by name."""


@dataclass(frozen=True)
class Applied:
    """The result of an operator for `given`: the resulting rows, and for each reason the rows of `given` that were dropped."""

    batch: Batch
    given: Batch
    verdicts: list[tuple[str, np.ndarray]] = field(default_factory=list)
    created: int = 0
    scores: dict[str, pa.Array] = field(default_factory=dict)
    """The scores of `given`, to be recorded with the dropped rows."""


def running(op: Operator, runner: Any) -> Any:
    """The object that does the work of a step: its runner, or the step itself if it was not opened."""
    return op if runner is None else runner


def apply_step(op: Operator, batch: Batch, types: Types | None = None, runner: Any = None) -> Applied:
    """Apply any operator that takes a batch and returns a batch. A step without state needs no runner.

    `types` are the types of the columns that this operator returned for earlier batches of the partition; they are
    updated. A value that does not fit the type of its column is an error, so that the first rows of a partition decide.
    """
    known = types if types is not None else {}
    if isinstance(op, Filter):
        return _filter(op, batch, runner)
    if isinstance(op, Map):
        found = running(op, runner).apply(view(op, batch))
        made = reconciled(op, check_lengths(op, found, len(batch)), known)
        visible = [name for name in batch.columns if not name.startswith(HIDDEN)]
        return Applied(batch.without(op.removes(visible)).with_columns(made), batch)
    if isinstance(op, Expand):
        return _expand(op, batch, known, runner)
    if isinstance(op, Function):
        return _call_batch(op, batch, known) if op.batch_wise else _call_rows(op, batch, known)
    raise AssertionError(f"cannot apply {op!r}")


def reconciled(op: Operator, columns: Mapping[str, pa.Array], types: Types) -> dict[str, pa.Array]:
    """The columns in types that hold the earlier values of each column too; `types` is updated."""
    result, wider = {}, {}
    for name, values in columns.items():
        if name.startswith(HIDDEN):
            raise ValueError(f"`{op.name}` returned column `{name}`; names that begin with `{HIDDEN}` are reserved")
        before = types.get(name)
        if before is None or before == values.type:
            result[name] = values
        else:
            try:
                result[name] = conform_array(values, merge_types(before, values.type, name), name)
            except SinkError:
                raise _wrong_type(op, name, before, values.type) from None
        wider[name] = result[name].type
    types.update(wider)
    return result


def _wrong_type(op: Operator, name: str, before: pa.DataType, now: pa.DataType) -> ColumnError:
    return ColumnError(
        f"`{op.name}` returned {now} for column `{name}`, which holds {before}",
        hint="return values of one type for each column",
    )


def view(op: Operator, batch: Batch) -> Batch:
    """The columns that an operator declared, under the names it uses."""
    names = op.real_names()
    if ALL in names:
        return batch
    missing = [real for real in names.values() if real not in batch]
    if missing:
        # The rows of one file may lack a column that others have; an operator sees nulls.
        batch = batch.with_columns({name: pa.nulls(len(batch), pa.string()) for name in missing})
    optional = {name: name for name in op.optional_reads() if name in batch and name not in names}
    return batch.view(names | optional)


def observed(gather: Gather, batch: Batch, runner: Any = None) -> pa.Table:
    """The facts that a Gather observes, checked for one value per row."""
    return pa.table(check_lengths(gather, running(gather, runner).observe(view(gather, batch)), len(batch)))


def rewritten(gather: Gather, batch: Batch, payload: pa.Array, runner: Any = None) -> Batch:
    """Kept rows, rewritten as a Gather decided."""
    made = running(gather, runner).rewrite(view(gather, batch), payload)
    return batch.with_columns(check_lengths(gather, made, len(batch)))


def dropped(
    batch: Batch,
    verdicts: list[tuple[str, np.ndarray]],
    scores: dict[str, pa.Array] | None = None,
    *,
    given: Batch | None = None,
) -> Applied:
    """`batch` without the rows in the masks of the verdicts, which are disjoint.

    `given` are the same rows as the step received them, if it added columns.
    """
    before = batch if given is None else given
    if not verdicts:
        return Applied(batch, before)
    keep = ~np.logical_or.reduce([mask for _, mask in verdicts])
    return Applied(batch.select(keep), before, verdicts, scores=scores or {})


def check_lengths(op: Operator, found: Mapping[str, Any], rows: int) -> dict[str, pa.Array]:
    """The columns that an operator returned, or an error if there is not one value per row."""
    columns = {name: as_array(values) for name, values in found.items()}
    for name, values in columns.items():
        if len(values) != rows:
            raise OperatorError(f"`{op.name}` returned {len(values)} values of `{name}` for {rows} rows")
    return columns


def scores_of(op: Filter, batch: Batch, runner: Any = None) -> dict[str, pa.Array]:
    """The scores of a filter, checked for one value per row."""
    return check_lengths(op, running(op, runner).score(view(op, batch)), len(batch))


def filter_rows(op: Filter, batch: Batch, alive: np.ndarray, runner: Any = None) -> Applied:
    """The verdicts of a filter about the rows that are `alive`; the batch keeps all its rows."""
    scores = scores_of(op, batch, runner)
    return Applied(batch, batch, verdicts_of(op, scores, alive), scores=scores)


def verdicts_of(op: Filter, scores: Mapping[str, pa.Array], alive: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """For each reason the rows among those `alive` that are dropped for it; the first rule a row breaks is its reason.

    An inverted filter drops the rows that break no rule.
    """
    keep = alive.copy()
    verdicts: list[tuple[str, np.ndarray]] = []
    rules = op.rules()
    for rule in rules:
        for reason, broken in rule.verdicts(scores[rule.score]):
            first_broken = broken & keep
            if first_broken.any():
                verdicts.append((reason, first_broken))
                keep &= ~first_broken
    if op.invert:
        return [(reason_to_invert(op.name, rules), keep)] if keep.any() else []
    return verdicts


def with_scores(op: Filter, batch: Batch, scores: Mapping[str, pa.Array]) -> Batch:
    """The batch with the scores as columns, if the filter adds them, and without what it removes."""
    if not op.adds_scores:
        return batch
    names = op.score_columns()
    kept = batch.without(op.removes([name for name in batch.columns if not name.startswith(HIDDEN)]))
    return kept.with_columns({names.get(name, name): values for name, values in scores.items()})


def _filter(op: Filter, batch: Batch, runner: Any) -> Applied:
    scores = scores_of(op, batch, runner)
    alive = np.ones(len(batch), dtype=np.bool_)
    verdicts = [] if op.score_only else verdicts_of(op, scores, alive)
    return dropped(with_scores(op, batch, scores), verdicts, scores, given=batch)


def _expand(op: Expand, batch: Batch, types: Types, runner: Any) -> Applied:
    table, found = running(op, runner).expand(view(op, batch))
    parents = np.asarray(found, dtype=np.int64)
    if len(parents) != table.num_rows:
        raise OperatorError(f"`{op.name}` returned {table.num_rows} rows and the origins of {len(parents)}")
    if (np.diff(parents) < 0).any():
        raise OperatorError(f"`{op.name}` returned rows whose origins are not in ascending order")
    columns = {name: as_array(table.column(name)) for name in table.column_names}
    counts = np.bincount(parents, minlength=len(batch))
    number = np.arange(len(parents)) - (np.cumsum(counts) - counts)[parents]
    if op.keeps_single:
        number[counts[parents] == 1] = -1
    return _grown(op, batch, parents, number, reconciled(op, columns, types), op.removes(batch.columns))


def _grown(
    op: Operator,
    batch: Batch,
    parents: np.ndarray,
    number: np.ndarray,
    columns: Mapping[str, pa.Array],
    removed: Sequence[str] = (),
) -> Applied:
    """Each row replaced by its children, which are numbered; a row without any is dropped with a reason."""
    counts = np.bincount(parents, minlength=len(batch))
    childless = counts == 0
    origin = batch.origin.expanded(parents, number)
    taken = batch.without(removed).table.take(pa.array(parents))
    grown = Batch(taken, origin, handed_on=batch.handed_on, access=batch.access).with_columns(columns)
    verdicts = [(f"{op.name}: nothing left", childless)] if childless.any() else []
    return Applied(grown, batch, verdicts, created=int((counts[~childless] - 1).sum()))


def _call_batch(op: Function, batch: Batch, types: Types) -> Applied:
    result = op.function(batch)
    if isinstance(result, Batch):
        result = result.table
    if isinstance(result, pa.Table):
        result = {name: result.column(name) for name in result.column_names}
    if isinstance(result, Mapping):
        return Applied(batch.with_columns(reconciled(op, check_lengths(op, result, len(batch)), types)), batch)
    keep = as_array(result)
    if not pa.types.is_boolean(keep.type) or len(keep) != len(batch):
        raise OperatorError(
            f"`{op.name}` returned {type(result).__name__}",
            hint="a batch function returns a mapping of columns, or one boolean per row",
        )
    refused = ~np.asarray(keep.fill_null(False).to_numpy(zero_copy_only=False), dtype=np.bool_)
    return dropped(batch, [(_reason(op), refused)] if refused.any() else [])


def _call_rows(op: Function, batch: Batch, types: Types) -> Applied:
    given = batch.rows()
    refused = np.zeros(len(batch), dtype=np.bool_)
    parents: list[int] = []
    numbers: list[int] = []  # among the children of a row, -1 where the function returned no list
    returned: list[Mapping[str, Any]] = []
    for index, row in enumerate(given):
        result = op.function(dict(row))
        if isinstance(result, (bool, np.bool_)):
            refused[index] = not result
            children: list[Mapping[str, Any]] = [{}] if result else []
        elif isinstance(result, dict):
            children = [result]
        elif isinstance(result, list):
            children = result
        else:
            raise TypeError(
                f"{op.name} returned {type(result).__name__}; "
                "a row function returns a dict, True, False or a list of dicts"
            )
        parents += [index] * len(children)
        numbers += range(len(children)) if isinstance(result, list) else [-1] * len(children)
        returned += children
    columns = _changed_columns(op, batch, given, parents, returned)
    columns |= {
        name: pa.nulls(len(parents), kind) for name, kind in types.items() if name not in batch and name not in columns
    }
    schema = batch.table.schema
    kept = {
        name: contiguous(batch.table.column(name))
        for name, kind in zip(schema.names, schema.types, strict=True)
        if name not in columns and types.setdefault(name, kind) != kind
    }
    given_batch, batch = batch, batch.with_columns(reconciled(op, kept, types)) if kept else batch
    columns = reconciled(op, columns, types)
    verdicts = [(_reason(op), refused)] if refused.any() else []
    if len(parents) == len(batch) and max(numbers, default=-1) < 0 and not refused.any():
        return Applied(batch.with_columns(columns) if columns else batch, given_batch)
    grown = _grown(op, batch, np.asarray(parents, np.int64), np.asarray(numbers, np.int64), columns)
    childless = [(reason, mask & ~refused) for reason, mask in grown.verdicts]
    verdicts += [(reason, mask) for reason, mask in childless if mask.any()]
    return Applied(grown.batch, given_batch, verdicts, grown.created)


def _changed_columns(
    op: Function,
    batch: Batch,
    given: Sequence[Mapping[str, Any]],
    parents: Sequence[int],
    returned: Sequence[Mapping[str, Any]],
) -> dict[str, pa.Array]:
    """The columns that a row function added or changed; all others stay as they are in the batch."""
    nested = {spec.name for spec in batch.table.schema if pa.types.is_nested(spec.type)}  # can be changed in place
    changed: dict[str, None] = {}
    for parent, row in zip(parents, returned, strict=True):
        before = given[parent]
        for name, value in row.items():
            if name not in changed and (name in nested or name not in before or value is not before[name]):
                changed[name] = None
    columns = {}
    for name in changed:
        values = [
            row[name] if name in row else given[parent].get(name) for parent, row in zip(parents, returned, strict=True)
        ]
        known = batch.table.schema.field(name).type if name in batch else None
        columns[name] = _as_before(_python_array(op, name, values), known)
    return columns


def _python_array(op: Function, name: str, values: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        before: pa.DataType = pa.null()
        for value in values:
            try:
                now = pa.array([value]).type
            except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as reason:
                kind = type(value).__name__
                raise ColumnError(f"`{op.name}` returned {kind} for column `{name}`: {reason}") from error
            try:
                before = merge_types(before, now, name)
            except SinkError:
                raise _wrong_type(op, name, before, now) from None
        raise ColumnError(
            f"`{op.name}` returned values for column `{name}` that have no common type: {error}"
        ) from error


def _as_before(array: pa.Array, known: pa.DataType | None) -> pa.Array:
    """An array made of Python values, with the type of the column it replaces if that can hold all such values."""
    if known is None or known == array.type:
        return array
    whole, real = pa.types.is_integer(array.type), pa.types.is_floating(array.type)
    narrower = (whole and pa.types.is_integer(known)) or ((whole or real) and pa.types.is_floating(known))
    try:
        if narrower or plain_type(merge_types(known, array.type, "")) == plain_type(known):
            return array.cast(known)
    except (SinkError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass  # the function changed the type
    return array


def _reason(op: Function) -> str:
    return op.reason or f"not {op.name}"


def schema_read(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """The columns that a stage reads; None stands for all of them."""
    return schema if columns is None else pa.schema([spec for spec in schema if spec.name in columns])


def schema_after(
    operators: Sequence[Operator], runners: Sequence[Any], schema: pa.Schema, types: Mapping[int, Types]
) -> pa.Schema:
    """The columns that rows have after the operators of a stage, found without rows."""
    batch = Batch(schema.empty_table())
    for index, (op, runner) in enumerate(zip(operators, runners, strict=True)):
        if not isinstance(op, Filter) or op.adds_scores:
            with suppress(Exception):  # not every operator accepts a batch without rows; its columns are then unknown
                batch = apply_step(op, batch, types.get(index), runner).batch
    return visible(batch.table.schema)


def visible(schema: pa.Schema) -> pa.Schema:
    """The columns that do not belong to the engine."""
    return pa.schema([spec for spec in schema if not spec.name.startswith(HIDDEN)])


def bytes_read(op: Operator, batch: Batch, alive: np.ndarray | None = None) -> int:
    """The size of the columns that an operator reads, in the rows that are alive."""
    names = set(op.real_names().values())
    chosen = batch.columns if ALL in names else [name for name in batch.columns if name in names]
    whole = sum(bytes_of(batch.table.column(name)) for name in chosen)
    return whole if alive is None else int(whole * np.count_nonzero(alive) / len(alive))
