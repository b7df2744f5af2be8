"""Read the scores that a run with `--scores` stored, by the address of a row.

    .tamis/scores/*.table      one line per row: its number, place and position, and a column per score
    .tamis/written/*.table     one line per row in a shard: its number, and -1, or the filter that dropped it

`executors/scores.py` and `executors/reuse.py` write these files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tamis.store import INTERNAL, TABLE, Store

SCORES, WRITTEN = f"{INTERNAL}/scores", f"{INTERNAL}/written"

AT = "_tamis_at"
"""In a file of scores: the position of each row in its file, since a row that fails to be read shifts the numbers of others."""

PLACE = "_tamis_place"
"""In a file of scores: the file, or frame of a compressed file, that each row is from. With `AT`, it is the row's address."""

ROW, SCORE = "_tamis_row", "_tamis_score"
"""In a file of scores: the row number, and the prefix of scores; `_tamis_score_2_words` is a score of the third operator."""

STEPS, SCORES_FILE = b"tamis_steps", b"tamis_scores_file"
"""Metadata: of a file of scores, the names of the measured operators; of row numbers, the file of scores."""

KEPT = -1
"""In a file of row numbers, in place of the number of the filter that dropped a row: it was kept."""


@dataclass(frozen=True)
class StoredScores:
    """The scores of one row."""

    address: str
    scores: dict[tuple[int, str], Any]
    """By the number of the operator in its stage, and the name of the score."""
    steps: tuple[str, ...]
    """The names of the operators."""


def open_table(store: Store, name: str) -> pq.ParquetFile:
    """A table of an output folder."""
    from tamis.dedup.explain import store_file

    return pq.ParquetFile(store_file(store, name))


def score_files(store: Store) -> list[str]:
    """The files of scores that say which row each line belongs to."""
    return [f"{SCORES}/{name}" for name in store.names(SCORES) if name.endswith(TABLE)]


def scores_at(store: Store, address: str) -> StoredScores | None:
    """The scores of the row with this address, if they are stored."""
    place, _, position = address.rpartition(":")
    if not position.isdecimal():
        return None
    for name in score_files(store):
        with open_table(store, name) as file:
            if PLACE not in file.schema_arrow.names:
                continue
            wanted = (pc.field(AT) == int(position)) & (pc.field(PLACE) == place)
            found = _matching(file, wanted)
            if found is not None:
                return found
    return None


def scores_of_written(store: Store, partition: str, number: int) -> StoredScores | None:
    """The scores of a kept row, given the partition (`part-000003`) of its shard and its number among the kept rows there."""
    for name in store.names(WRITTEN):
        if not name.startswith(f"{partition}-"):
            continue
        with open_table(store, f"{WRITTEN}/{name}") as file:
            table, scores = file.read(), (file.schema_arrow.metadata or {}).get(SCORES_FILE, b"").decode()
        kept = table.column("row").to_numpy()[table.column("step").to_numpy() == KEPT]
        if not scores or number >= len(kept) or store.size(scores) is None:
            return None
        with open_table(store, scores) as file:
            return _matching(file, pc.field(ROW) == int(kept[number]))
    return None


def _matching(file: pq.ParquetFile, wanted: pc.Expression) -> StoredScores | None:
    for batch in file.iter_batches(columns=[name for name in (ROW, AT, PLACE) if name in file.schema_arrow.names]):
        table = pa.Table.from_batches([batch])
        table = table.set_column(table.schema.get_field_index(PLACE), PLACE, table.column(PLACE).cast(pa.string()))
        here = table.filter(wanted)
        if here.num_rows:
            row = here.slice(0, 1).to_pylist()[0]
            return StoredScores(f"{row[PLACE]}:{row[AT]}", _line(file, row[ROW]), steps_of(file))
    return None


def _line(file: pq.ParquetFile, number: int) -> dict[tuple[int, str], Any]:
    for batch in file.iter_batches():
        found = pa.Table.from_batches([batch]).filter(pc.field(ROW) == number)
        if found.num_rows:
            row = found.to_pylist()[0]
            return {key: row[name] for name in found.column_names if (key := score_key(name)) is not None}
    return {}


def score_key(column: str) -> tuple[int, str] | None:
    """
    >>> score_key("_tamis_score_2_mean_word_length")
    (2, 'mean_word_length')
    """
    if not column.startswith(f"{SCORE}_"):
        return None
    number, _, name = column[len(SCORE) + 1 :].partition("_")
    return int(number), name


def steps_of(file: pq.ParquetFile) -> tuple[str, ...]:
    return tuple(json.loads((file.schema_arrow.metadata or {}).get(STEPS, b"[]")))


def places_of(batch: pa.RecordBatch) -> tuple[np.ndarray, pa.Array]:
    """The positions and places of the rows of a batch of scores."""
    return batch.column(AT).to_numpy(), batch.column(PLACE).cast(pa.string())
