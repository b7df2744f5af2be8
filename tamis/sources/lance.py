"""Reader of Lance datasets, split by fragments and, where these are large, by rows.

    dataset, version --fragments--> row ranges --scan--> tables --> batches

A dataset has versions that never change, and a piece names the one that was current when the run was planned, so all workers
read the same rows while others write to the dataset. Rows are numbered in the order of the fragments, without deleted ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tamis.errors import ParameterError, SourceError, require
from tamis.operators import Layout, Piece, Reading, digest, operator
from tamis.sources import partitions as division
from tamis.sources.columnar import Columnar, coalesced, columns_of, rows_of
from tamis.sources.files import File, is_local, local_path
from tamis.sources.schemas import plain_schema, unify
from tamis.sources.validation import DECODE_ERRORS, check_structure

_MOST_ROWS = 65_536
_EXPANSION = 2
"""Bytes in memory for each byte of a file, assumed until the first table is read."""


@operator()
class LanceReader(Columnar):
    """Read rows of Lance datasets, split by fragments. Only the columns that are needed are read.

    `file_paths` are datasets (`data.lance`) or folders of datasets; object stores are read by Lance itself, whose names
    `storage_options` then has. `dataset_version` selects an older version of the dataset. A run reads the version it began
    with; if the dataset has changed since, its partitions are processed again. If a fragment is damaged, its rows fail.

    >>> LanceReader("crawl.lance", fields=["text", "url"]).name
    'lance_reader'
    """

    dataset_version: int | None = None

    format = "lance"
    incidental = Columnar.incidental | {"dataset_version"}

    def check(self) -> None:
        super().check()
        if self.dataset_version is not None and self.dataset_version < 1:
            raise ParameterError(f"`dataset_version` of `{self.name}` must be at least 1, got {self.dataset_version}")

    def packages(self) -> Mapping[str, str]:
        return {"lance": "lance"}

    # ----------------------------------------------------------------------------------------------------------- layout

    def list_files(self) -> list[File]:
        given = [self.file_paths] if isinstance(self.file_paths, (str, Path)) else list(self.file_paths)
        found = [each for path in given for each in _datasets(str(path))]
        if not found:
            raise SourceError("no path was given", hint='file_paths="crawl.lance"')
        if len(set(found)) < len(found):
            raise SourceError("a dataset is listed twice", hint="its rows would be read twice")
        return [File(path, _size(path), "") for path in found]

    def layout(self, blocksize: int) -> Layout:
        size = self.block_bytes(blocksize)
        datasets = {file.path: self._open(file.path, self.dataset_version) for file in self.list_files()}
        pieces: list[Piece] = []
        fingerprints: dict[str, list[object]] = {}
        for path, dataset in datasets.items():
            name = f"{path}@{dataset.version}"
            fragments = dataset.get_fragments()
            # The names of data files are unique, so a dataset that is written again is another one.
            fingerprints[name] = [digest([str(each.metadata) for each in fragments]), str(dataset.schema)]
            pieces += self._pieces(name, fragments, size)
        num_rows, num_bytes = sum(piece.stop - piece.start for piece in pieces), sum(piece.size for piece in pieces)
        if self.limit is not None or self.skip:
            pieces = division.some_rows(pieces, self.skip, self.limit, self.count_rows)
        per = self.files_per_partition
        groups = division.group(pieces, per) if per is not None else division.pack(pieces, size)
        why = division.explain(
            len(datasets),
            num_bytes,
            len(groups),
            blocksize=size,
            given=self.blocksize is not None,
            files_per_partition=per,
        )
        schemas = [(path, plain_schema(dataset.schema)) for path, dataset in datasets.items()]
        return Layout(
            self.seen_schema(unify(schemas, type(self).__name__)),
            division.partitions_of(groups, fingerprints),
            {"partitions": why.replace("file", "dataset", 1)},
            len(datasets),
            num_bytes,
            num_rows=self.counted(num_rows),
        )

    def _pieces(self, name: str, fragments: Sequence[Any], blocksize: int) -> list[Piece]:
        """Row ranges: neighbouring fragments as long as they fit `blocksize`, or parts of a fragment that does not."""
        pieces, row = [Piece(name, 0, 0)] if not fragments else [], 0
        for fragment in fragments:
            rows, size = fragment.count_rows(), int(_bytes_of(fragment) * _EXPANSION)
            parts = 1 if self.files_per_partition is not None else min(max(1, rows), max(1, -(-size // blocksize)))
            bounds = [row + rows * part // parts for part in range(parts + 1)]
            pieces += [Piece(name, bounds[i], bounds[i + 1], size // parts) for i in range(parts)]
            row += rows
        if self.files_per_partition is not None:
            return pieces
        return [
            Piece(name, part[0].start, part[-1].stop, sum(piece.size for piece in part))
            for part in division.pack(pieces, blocksize)
        ]

    def _open(self, path: str, version: int | None) -> Any:
        lance = require("lance", extra="lance", purpose="reading Lance datasets")
        options = {key: str(value) for key, value in (self.storage_options or {}).items()}
        try:
            return lance.dataset(
                local_path(path) if is_local(path) else path, version=version, storage_options=options or None
            )
        except (ValueError, OSError) as error:  # Lance has no errors of its own
            what = f"version {version} of {path}" if version is not None else path
            raise SourceError(
                f"{what} is not a Lance dataset that can be read: {error}",
                hint="a dataset is a folder with a folder `_versions`; versions that were cleaned up no longer exist",
            ) from error

    def count_rows(self, piece: Piece, most: int) -> int:
        return piece.stop - piece.start

    # ---------------------------------------------------------------------------------------------------------- reading

    def tables(self, piece: Piece, reading: Reading, wanted: Sequence[str] | None) -> Iterator[tuple[int, pa.Table]]:
        yield from coalesced(self._tables(piece, reading, wanted), batch_bytes=reading.batch_bytes)

    def _tables(self, piece: Piece, reading: Reading, wanted: Sequence[str] | None) -> Iterator[tuple[int, pa.Table]]:
        """Tables with the number of their first row. The remaining rows of a damaged fragment fail."""
        path, _, version = piece.path.rpartition("@")
        dataset = self._open(path, int(version))
        columns = columns_of(dataset.schema, wanted)
        begin = piece.start + piece.skip
        end = piece.stop if piece.limit is None else min(piece.stop, begin + piece.limit)
        first = 0
        for fragment in dataset.get_fragments():
            after = first + fragment.count_rows()
            row, stop = max(begin, first), min(end, after)
            if row < stop:
                try:
                    for table in _scan(dataset, fragment, columns, row - first, stop - row, reading.batch_bytes):
                        yield row, table
                        row += table.num_rows
                except DECODE_ERRORS as error:
                    self._fail_part(reading, piece.path, row, stop - row, f"fragment {fragment.fragment_id}", error)
            first = after


def _scan(
    dataset: Any, fragment: Any, columns: list[str], offset: int, count: int, batch_bytes: int
) -> Iterator[pa.Table]:
    """Some rows of a fragment in tables of about `batch_bytes`, with little read ahead."""
    per_row = _EXPANSION * _bytes_of(fragment) / max(1, fragment.physical_rows)
    scanner = dataset.scanner(
        columns=columns,
        fragments=[fragment],
        offset=offset,
        limit=count,
        batch_size=max(1, min(_MOST_ROWS, int(batch_bytes / max(1.0, per_row)))),
        batch_readahead=1,
        fragment_readahead=1,
        scan_in_order=True,
        io_buffer_size=max(2**20, 2 * batch_bytes),
    )
    for batch in scanner.to_batches():
        check_structure(batch)
        table = pa.Table.from_batches([batch]).select(columns)
        for start in range(0, table.num_rows, step := rows_of(table, batch_bytes)):
            yield table.slice(start, step)


def _bytes_of(fragment: Any) -> int:
    return sum(file.file_size_bytes or 0 for file in fragment.metadata.files)


def _datasets(path: str) -> list[str]:
    """The dataset at a path, or those in a folder."""
    if not is_local(path):
        return [path.rstrip("/")]
    folder = Path(local_path(path))
    if not folder.is_dir() or (folder / "_versions").is_dir():
        return [str(folder)]
    found = sorted(str(each) for each in folder.iterdir() if (each / "_versions").is_dir())
    if not found:
        raise SourceError(
            f"{path} is no Lance dataset and has none in it", hint="a dataset is a folder with a folder `_versions`"
        )
    return found


def _size(path: str) -> int:
    return sum(each.stat().st_size for each in Path(local_path(path), "data").glob("*")) if is_local(path) else 0
