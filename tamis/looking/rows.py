"""Rows of any file or output, some at a time: kept ones, dropped ones with their reasons, failed ones with their errors.

    a file, folder or pattern        the rows that its reader gives
    the output folder of a run       kept     its shards
                                     dropped  .tamis/rejects/   (runs with --rejects)
                                     failed   .tamis/failed/

Memory is bounded by a batch, whatever the size of the data: nothing is loaded as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa

from tamis.batch import HIDDEN, Batch, Failure, table_from_rows
from tamis.errors import DamagedFile, ParameterError, SourceError, did_you_mean
from tamis.inert import html_table, inert, inert_json, one_line
from tamis.operators import Reading
from tamis.parameters import format_bytes, plural
from tamis.store import INTERNAL, LINES, TABLE, Store

if TYPE_CHECKING:
    import pandas as pd

    from tamis.sources.filesource import FileSource

Fate: TypeAlias = Literal["kept", "dropped", "failed"]
FATES: tuple[Fate, ...] = ("kept", "dropped", "failed")

BATCH_BYTES = 8_000_000
PARTITION_BYTES = 256_000_000
_LINES_AT_ONCE = 200


@dataclass(frozen=True)
class Seen:
    """Some rows, with the address of each; `fate` is None for rows that are not in the output of a run."""

    fate: Fate | None
    table: pa.Table
    addresses: Callable[[int], str]

    def row(self, number: int) -> dict[str, Any]:
        """One row as a dict, whatever it contains; of a line that was not parsed as a whole, with all its values."""
        row = Batch(self.table.slice(number, 1)).shown_rows()[0]
        line = row.get("_line") if self.fate == "dropped" else None
        try:
            values = json.loads(line) if isinstance(line, str) else None
        except ValueError:
            return row
        return {**values, **{k: v for k, v in row.items() if k != "_line"}} if isinstance(values, dict) else row


def is_output(path: str | Path) -> bool:
    """Whether a path is the output folder of a run."""
    try:
        return bool(Store(str(path)).names(INTERNAL))
    except (OSError, ValueError):
        return False


def read_rows(
    path: str | Path,
    fates: Sequence[Fate] = FATES,
    *,
    on_bad: Callable[[Failure], None] = lambda failure: None,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[Seen]:
    """The rows of a file, a folder, a pattern or an output, some at a time; `on_bad` is called for rows that cannot be read."""
    if not is_output(path):
        yield from rows_of_reader(reader_of(str(path), storage_options), None, on_bad)
        return
    store = Store(str(path), storage_options)
    if "kept" in fates and has_data(store):
        yield from rows_of_reader(reader_of(str(path), storage_options), "kept", on_bad)
    if "dropped" in fates:
        yield from dropped_rows(store, on_bad)
    if "failed" in fates:
        yield from failed_rows(store)


def has_data(store: Store) -> bool:
    """Whether an output folder has any shard."""
    return any(not name.startswith((".", "_")) and name != "README.md" for name in store.names())


def dropped_rows(store: Store, on_bad: Callable[[Failure], None] = lambda failure: None) -> Iterator[Seen]:
    """The dropped rows of an output: their columns, `_reason`, `_step`, `_address` and `_scores`."""
    from tamis.sources.columnar import ParquetReader

    for name in _names(store, "rejects", TABLE):
        # A reader for each: files of rejects need not agree on their columns.
        reader = ParquetReader(full_name(store, name), storage_options=store.storage_options or None)
        for seen in rows_of_reader(reader, "dropped", on_bad):
            addresses = seen.table.column("_address")
            yield Seen("dropped", seen.table, partial(_item, addresses))


def failed_rows(store: Store) -> Iterator[Seen]:
    """The failed rows of an output: `address`, `step`, `error`, and the row as JSON text."""
    from tamis.dedup.explain import store_file

    for name in _names(store, "failed", LINES):
        with store_file(store, name) as opened:
            while lines := list(islice(opened, _LINES_AT_ONCE)):
                found = [json.loads(line) for line in lines]
                rows = [
                    {
                        "address": str(row.get("address")),
                        "step": str(row.get("step")),
                        "error": str(row.get("error")),
                        "row": row["row"] if isinstance(row.get("row"), str) else json.dumps(row.get("row")),
                    }
                    for row in found
                ]
                yield Seen("failed", table_from_rows(rows), partial(_item, [row["address"] for row in rows]))


def _item(values: Sequence[object] | pa.ChunkedArray, number: int) -> str:
    return str(values[number])


def _names(store: Store, kind: str, suffix: str) -> list[str]:
    folder = f"{INTERNAL}/{kind}"
    return [f"{folder}/{name}" for name in store.names(folder) if name.endswith(suffix)]


def full_name(store: Store, name: str) -> str:
    """The path or address of a file of an output."""
    return str(store.path / name) if store.local else f"{store.root.rstrip('/')}/{name}"


def reader_of(path: str, options: Mapping[str, Any] | None = None) -> FileSource:
    """The reader of a file, folder or pattern, by the names of the files."""
    from tamis.sources.columnar import ParquetReader
    from tamis.sources.tables import JsonlReader, reader_for

    given = dict(options) if options else None
    if path.endswith(TABLE):  # a table of an output, given by its name
        return ParquetReader(path, storage_options=given)
    if path.endswith(LINES):
        return JsonlReader(path, storage_options=given)
    return reader_for(path, storage_options=given)


def rows_of_reader(reader: FileSource, fate: Fate | None, on_bad: Callable[[Failure], None]) -> Iterator[Seen]:
    """All rows of a reader, some at a time."""
    layout = reader.layout(PARTITION_BYTES)
    for path, error in layout.damaged_files.items():
        on_bad(Failure(path, reader.name, error, rows=0, damaged_file=path))
    reading = Reading(None, layout.schema, BATCH_BYTES, on_bad)
    for partition in layout.partitions:
        try:
            for batch in reader.read(partition, reading):
                shown = [name for name in batch.table.column_names if not name.startswith(HIDDEN)]
                yield Seen(fate, batch.table.select(shown), batch.origin.address)
        except DamagedFile as error:
            on_bad(Failure(str(partition.pieces[0].path), reader.name, error.message, rows=0))


# ---------------------------------------------------------------------------------------------------- rows for Python


class StoredRows:
    """Rows in the output of a run: iterate over them, or take them as an Arrow table or a pandas frame.

    Nothing is read before that. `head` reads as much as it shows.
    """

    def __init__(
        self, output: str, fate: Fate, reason: str | None = None, known: Mapping[str, int] | None = None
    ) -> None:
        self.output, self.fate, self.reason = output, fate, reason
        if reason is not None and known is not None and reason not in known:
            hint = did_you_mean(reason, known) or f"reasons: {', '.join(known) or 'none'}"
            raise ParameterError(f"no row was dropped because of {reason!r}", hint=hint)
        store = Store(output)
        if fate == "dropped" and known and not _names(store, "rejects", TABLE):
            raise SourceError(f"{output} does not contain the rows that were dropped", hint="run with rejects=True")

    def tables(self) -> Iterator[pa.Table]:
        """The rows, some at a time."""
        import pyarrow.compute as pc

        for seen in read_rows(self.output, [self.fate]):
            table = seen.table
            if self.reason is not None:
                table = table.filter(pc.equal(table.column("_reason"), self.reason))
            if table.num_rows:
                yield table

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for table in self.tables():
            yield from Batch(table).shown_rows()

    def head(self, count: int = 5) -> list[dict[str, Any]]:
        return list(islice(self, count))

    def to_table(self) -> pa.Table:
        """All rows as one Arrow table; they have to fit in memory."""
        tables = list(self.tables())
        return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})

    def to_pandas(self) -> pd.DataFrame:
        """All rows as a pandas frame; they have to fit in memory."""
        return self.to_table().to_pandas()

    def __repr__(self) -> str:
        why = f" because of {inert(self.reason, 200)}" if self.reason is not None else ""
        return f"<rows {self.fate}{why} in {inert(self.output)}; to_table(), to_pandas(), head() or iterate>"

    def _repr_html_(self) -> str:
        rows = self.head(10)
        names = list(dict.fromkeys(name for row in rows for name in row))
        cells = [[shown_value(row.get(name), 200) for name in names] for row in rows]
        return html_table(names, cells, caption=f"the first {plural(len(rows), 'row')} that the run {self.fate}")


# ------------------------------------------------------------------------------------------------------------ showing


def shown_value(value: object, most: int) -> str:
    """A value on one line, harmless and at most `most` characters long."""
    if isinstance(value, bytes):
        return f"<{format_bytes(len(value))}>"
    if isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes):
        return one_line(f"<{format_bytes(len(value['bytes']))}> {value.get('path') or ''}", most)
    if isinstance(value, (Mapping, list, tuple)):
        value = json.dumps(plain(value), ensure_ascii=False, default=str)
    return one_line("" if value is None else value, most)


def plain(value: object) -> object:
    """A value as JSON can hold it: bytes as their size and hash."""
    if isinstance(value, bytes):
        return {"size": len(value), "sha256": sha256(value).hexdigest()}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def json_line(value: object, indent: int | None = None) -> str:
    """A value as JSON without characters that a terminal acts on."""
    return inert_json(json.dumps(plain(value), ensure_ascii=False, default=str, indent=indent))


def row_text(title: str, row: Mapping[str, Any], width: int, *, full: bool = False) -> str:
    """A row as its title and a line for each value; with `full`, texts keep their lines."""
    names = [name for name, value in row.items() if value is not None and name != "_address"]  # which is in the title
    wide = min(20, max(map(len, names), default=0))
    lines = [inert(title, 10 * width)]
    for name in names:
        label = inert(name, 60).ljust(wide)
        value = row[name]
        if full and isinstance(value, str):
            lines += [
                f"  {label if not number else ' ' * wide}  {line}"
                for number, line in enumerate(inert(value).split("\n"))
            ]
        else:
            lines.append(f"  {label}  {shown_value(value, max(20, width - wide - 4))}")
    return "\n".join(lines)


def title_of(seen: Seen, number: int) -> str:
    """What a row is: its fate, and where it is from."""
    address = seen.addresses(number)
    return address if seen.fate is None else f"{seen.fate}  {address}"


def chosen(seen: Iterable[Seen], columns: Sequence[str] | None) -> Iterator[Seen]:
    """The rows with these columns only."""
    for each in seen:
        if columns is None:
            yield each
            continue
        missing = [name for name in columns if name not in each.table.column_names]
        if missing and each.fate in (None, "kept"):
            raise ParameterError(
                f"there is no column `{inert(missing[0], 100)}`",
                hint=f"columns: {', '.join(inert(name, 60) for name in each.table.column_names)}",
            )
        here = [name for name in (*columns, "_reason", "error") if name in each.table.column_names]
        yield Seen(each.fate, each.table.select(list(dict.fromkeys(here))), each.addresses)
