"""Rows from memory: Python dicts, Arrow tables, pandas and Polars frames, Hugging Face datasets."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Origin, bytes_of, table_from_rows
from tamis.errors import ParameterError, SourceError
from tamis.identity import content_hash
from tamis.media import MediaAccess, full_paths
from tamis.operators import Layout, Partition, Piece, Reading, Source, digest, operator
from tamis.parameters import format_bytes, plural
from tamis.sources.schemas import cheapest_column, plain


@operator()
class Rows(Source):
    """Read rows from memory: a list of dicts, an Arrow table, a pandas or Polars frame, or a Hugging Face dataset.

    The rows are kept as one Arrow table, which is sent to each worker. For data that is large compared to memory, write
    files and read those.

    >>> [batch.rows() for batch in Rows([{"text": "a"}, {"text": "b"}]).batches()]
    [[{'text': 'a'}, {'text': 'b'}]]
    """

    rows: object
    rows_per_partition: int | None = None
    limit: int | None = None
    media_roots: Sequence[str] = ()
    skip: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rows", as_table(self.rows))
        if self.rows.num_rows and not self.rows.num_columns:  # type: ignore[attr-defined]
            raise ParameterError("the rows of `rows` have no columns", hint='Rows([{"text": "..."}])')
        for name in ("rows_per_partition", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ParameterError(f"`{name}` of `rows` must be at least 1, got {value}")
        if self.skip < 0:
            raise ParameterError(f"`skip` of `rows` must not be negative, got {self.skip}")

    @property
    def access(self) -> MediaAccess:
        return MediaAccess(tuple(self.media_roots))

    @property
    def table(self) -> pa.Table:
        assert isinstance(self.rows, pa.Table)
        return self.rows.slice(self.skip, self.limit) if self.skip or self.limit is not None else self.rows

    def parameters(self) -> dict[str, Any]:
        return {**super().parameters(), "rows": self.rows.to_pylist()}  # type: ignore[attr-defined]

    def recorded_parameters(self) -> dict[str, Any]:
        digest = f"{self.table.num_rows} rows with digest {content_hash(self.table)}"
        return {**super().parameters(), "rows": digest}

    def identity(self) -> dict[str, Any]:
        values: dict[str, Any] = {"rows": content_hash(self.table), "media_roots": list(self.media_roots)}
        values |= {"rows_per_partition": self.rows_per_partition, "limit": self.limit}
        return {"step": self.name, "version": self.version, "parameters": values}

    def layout(self, blocksize: int) -> Layout:
        table = self.table
        count, num_bytes = table.num_rows, bytes_of(table)
        step = self.rows_per_partition or max(1, int(count * blocksize / num_bytes) if num_bytes > blocksize else count)
        partitions = []
        for index, start in enumerate(range(0, max(1, count), step)):  # an empty partition keeps the columns
            part = table.slice(start, min(step, count - start))
            piece = Piece("rows", start, start + part.num_rows, bytes_of(part))
            partitions.append(Partition(index, (piece,), digest([content_hash(part), start])))
        why = (
            f"rows_per_partition {step}"
            if self.rows_per_partition
            else f"blocksize {format_bytes(blocksize)} (default)"
        )
        reason = (
            f"{why}: {plural(count, 'row')} of {format_bytes(num_bytes)} become {plural(len(partitions), 'partition')}"
        )
        return Layout(table.schema, tuple(partitions), {"partitions": reason}, num_bytes=num_bytes, num_rows=count)

    def read(self, partition: Partition, reading: Reading) -> Iterator[Batch]:
        table = self.table
        if reading.columns is not None:
            wanted = [name for name in table.column_names if name in reading.columns]
            table = table.select(wanted or cheapest_column(table.schema))
        per_row = max(1.0, bytes_of(table) / max(1, table.num_rows))
        step = max(1, int(reading.batch_bytes / per_row))
        for piece in partition.pieces:
            for start in range(piece.start, piece.stop, step):
                stop = min(piece.stop, start + step)
                origin = Origin.of(piece.path, np.arange(start, stop))
                part = full_paths(table.slice(start, stop - start).combine_chunks(), origin)
                yield Batch(part, origin, access=self.access)

    def batches(self, batch_bytes: int = 2**24) -> Iterator[Batch]:
        """All rows, without a pipeline: for tests and for inspecting data."""
        layout = self.layout(2**62)
        for partition in layout.partitions:
            yield from self.read(partition, Reading(None, layout.schema, batch_bytes, lambda failure: None))


def as_table(rows: object) -> pa.Table:
    """Any supported container of rows as an Arrow table. Classes of other packages are recognized by name, not imported."""
    if isinstance(rows, pa.Table):
        return plain(rows)
    if isinstance(rows, pa.RecordBatch):
        return plain(pa.Table.from_batches([rows]))
    home = type(rows).__module__.partition(".")[0]
    if home == "pandas" and isinstance(rows, sys.modules["pandas"].DataFrame):
        return plain(pa.Table.from_pandas(rows, preserve_index=False))
    if home == "polars" and isinstance(rows, sys.modules["polars"].LazyFrame):
        return plain(rows.collect().to_arrow())
    if home == "polars" and isinstance(rows, sys.modules["polars"].DataFrame):
        return plain(rows.to_arrow())
    if home == "datasets" and isinstance(rows, sys.modules["datasets"].Dataset):
        # `with_format` applies the row selection that filter() and shuffle() leave behind.
        return plain(rows.with_format("arrow")[:])
    if isinstance(rows, Sequence) and not isinstance(rows, (str, bytes)):
        return _from_dicts(rows)
    raise ParameterError(
        f"`rows` of `rows` must hold rows, got {type(rows).__name__}",
        hint="a list of dicts, an Arrow table, a pandas or Polars frame, or a Hugging Face dataset",
    )


def _from_dicts(rows: Sequence[object]) -> pa.Table:
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise ParameterError(f"row {index} is not a dict: {row!r:.80}", hint='Rows([{"text": "a"}, ...])')
    try:
        return plain(table_from_rows(rows))  # type: ignore[arg-type]
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise SourceError(
            f"the rows do not form a table: {error}", hint="each column must hold values of one type"
        ) from error
