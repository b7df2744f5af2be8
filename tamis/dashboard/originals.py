"""Rows by address, read again from the input of a run through its reader."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from tamis.batch import Batch
from tamis.dashboard.runs import RunView
from tamis.errors import TamisError
from tamis.operators import Reading, Source
from tamis.registry import build_operator

MOST_INPUT_BYTES = 256_000_000
"""The size of an input file beyond which it is not read for the sake of a page."""

_PLACE = re.compile(r"(?:@\d+)?:(\d+)((?:/\d+)*)$")


def rows_from_input(view: RunView, addresses: Iterable[str]) -> Iterator[tuple[str, Batch]]:
    """The rows with these addresses as they were read. Rows whose files were moved, changed or are large are left out.

    A row holds its batch in memory, so it should not be kept.
    """
    # The input may be anywhere by now; a page says in its place what is missing.
    with contextlib.suppress(TamisError, OSError, pa.ArrowException, ValueError):
        yield from _from_input(view, addresses)


def _from_input(view: RunView, addresses: Iterable[str]) -> Iterator[tuple[str, Batch]]:
    by_file: dict[str, set[str]] = {}
    for address in addresses:
        place = _PLACE.search(address)
        if place is not None and not place[2]:
            by_file.setdefault(address[: place.start()], set()).add(address)
    if not view.steps:
        return
    name, parameters = view.steps[0]
    folder = Path(str(view.manifest.get("directory") or "."))
    for file, wanted in by_file.items():
        path = file if "://" in file or Path(file).is_absolute() else str(folder / file)
        if "://" in path or not Path(path).is_file() or Path(path).stat().st_size > MOST_INPUT_BYTES:
            continue
        given = {key: value for key, value in parameters.items() if key not in ("files_per_partition", "limit")}
        source = build_operator(name, given | {"file_paths": path})
        assert isinstance(source, Source)
        yield from _rows_at(source, {path + address[len(file) :]: address for address in wanted})


def _rows_at(source: Source, left: dict[str, str]) -> Iterator[tuple[str, Batch]]:
    layout = source.layout(MOST_INPUT_BYTES)
    reading = Reading(None, layout.schema, 8_000_000, lambda failure: None)
    for part in layout.partitions:
        for batch in source.read(part, reading):
            for row, address in enumerate(batch.origin.addresses()):
                if address in left:
                    yield left.pop(address), batch.select(slice(row, row + 1))
            if not left:
                return
