"""Parameters, column names and partitions of all readers of files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, Literal, TypeVar, cast

import pyarrow as pa

from tamis.batch import Batch, Failure, Origin
from tamis.errors import DamagedFile, ParameterError, SourceError
from tamis.features import features_of, with_features
from tamis.formats import codec_of
from tamis.media import MediaAccess, full_paths
from tamis.operators import Layout, Partition, Piece, Reading, Source
from tamis.parameters import format_bytes, parse_bytes
from tamis.sources import partitions as division
from tamis.sources.compression import TYPICAL_RATIO, decoded_chunks, entries
from tamis.sources.files import File, fingerprint, first_within, is_local, leads_to, list_files, named_places, open_file
from tamis.sources.lines import Chunks, Text, Unread, plain_chunks, whole_lines
from tamis.sources.schemas import cheapest_column, missing_column

T = TypeVar("T")
WHOLE = -1
"""As the stop of a piece: the end of the file."""
NEVER = 2**62
"""As a blocksize: do not split files."""


def end_of(piece: Piece) -> int | None:
    """The number of rows of a piece, with those that are skipped, after which reading ends; None for all."""
    return None if piece.limit is None else piece.skip + piece.limit


class DamagedFiles:
    """The files found to be damaged while a layout is made, with the error of each."""

    def __init__(self) -> None:
        self.errors: dict[str, DamagedFile] = {}

    def examine(self, files: Sequence[File], look: Callable[[File], T], *, threads: int = 1) -> dict[str, T]:
        """`look(file)` by path, for the files that are not damaged."""
        files = [file for file in files if file.path not in self.errors]
        if threads > 1 and len(files) > 1:
            with ThreadPoolExecutor(threads) as pool:
                tried = list(pool.map(lambda file: _tried(look, file), files))
        else:
            tried = [_tried(look, file) for file in files]
        found = {}
        for file, (result, error) in zip(files, tried, strict=True):
            if error is not None:
                self.errors[file.path] = error
            else:
                found[file.path] = cast("T", result)
        return found

    def count(self, count_rows: Callable[[Piece, int], int], piece: Piece, most: int) -> int:
        try:
            return count_rows(piece, most)
        except DamagedFile as error:
            self.errors[piece.path] = error
            return 0

    def without(self, pieces: Iterable[Piece]) -> list[Piece]:
        """The pieces of files that are not damaged."""
        return [piece for piece in pieces if piece.path not in self.errors]

    def raise_if_nothing_is_left(self, files: Sequence[File]) -> None:
        """Raise if every file that is not empty is damaged."""
        full = [file.path for file in files if file.size]
        if not full or any(path not in self.errors for path in full):
            return
        first = self.errors[full[0]]
        if len(full) == 1:
            raise first
        raise SourceError(
            f"none of the {len(full):,} files can be read. The first error: {first.message}", hint=first.hint
        )


def _tried(look: Callable[[File], T], file: File) -> tuple[T | None, DamagedFile | None]:
    try:
        return look(file), None
    except DamagedFile as error:
        return None, error


@dataclass(frozen=True)
class FileSource(Source):
    """A source that reads files."""

    file_paths: str | Path | Sequence[str | Path]
    files_per_partition: int | None = None
    blocksize: int | str | None = None
    fields: Sequence[str] | None = None
    columns: Mapping[str, str] | None = None
    limit: int | None = None
    storage_options: Mapping[str, Any] | None = None
    media_roots: Sequence[str] = ()
    skip: int = 0

    format = "jsonl"
    other_formats: ClassVar[tuple[str, ...]] = ()
    """Formats of other readers that it reads too, if a recipe names it."""

    def check(self) -> None:
        if self.files_per_partition is not None and self.blocksize is not None:
            raise ParameterError(
                f"`{self.name}` has both `files_per_partition` and `blocksize`",
                hint="choose one: blocksize limits bytes and splits large files, files_per_partition counts files",
            )
        for name in ("files_per_partition", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ParameterError(f"`{name}` of `{self.name}` must be at least 1, got {value}")
        if self.skip < 0:
            raise ParameterError(f"`skip` of `{self.name}` must not be negative, got {self.skip}")
        if self.blocksize is not None:
            parse_bytes(self.blocksize)
        names = list((self.columns or {}).values())
        if len(set(names)) < len(names):
            raise ParameterError(f"`columns` of `{self.name}` gives a column of the files two names")

    @property
    def access(self) -> MediaAccess:
        paths = [self.file_paths] if isinstance(self.file_paths, (str, Path)) else self.file_paths
        named = named_places(tuple(map(str, paths)), os.getcwd())  # noqa: PTH109
        return MediaAccess((*named, *self.media_roots), dict(self.storage_options or {}))

    def batch(self, table: pa.Table, origin: Origin) -> Batch:
        """Rows as the pipeline sees them: columns renamed, and relative references of media columns made absolute."""
        return Batch(full_paths(self.renamed(table), origin), origin, access=self.access)

    # ------------------------------------------------------------------------------------------------------ columns

    def in_file(self, name: str) -> str:
        """The name in the files of the column that the pipeline calls `name`."""
        return (self.columns or {}).get(name, name)

    def renamed(self, table: pa.Table) -> pa.Table:
        """The table with the column names that the pipeline uses."""
        if not self.columns:
            return table
        names = {there: here for here, there in self.columns.items()}
        # A column that has this name in the file, and was not in the sample, is renamed instead of lost.
        return table.rename_columns(
            [names.get(name) or (f"{name}_in_file" if name in self.columns else name) for name in table.column_names]
        )

    def seen_schema(self, schema: pa.Schema) -> pa.Schema:
        """The schema of the files as the pipeline sees it: renamed, and limited to `fields`."""
        reader, names = type(self).__name__, {there: here for here, there in (self.columns or {}).items()}
        if not len(schema):  # no rows, so names cannot be checked
            return pa.schema([(name, pa.null()) for name in self.fields or self.columns or ()])
        for here, there in (self.columns or {}).items():
            if there not in schema.names:
                raise missing_column(reader, "columns", there, schema.names)
            if here in schema.names and here not in names:
                raise SourceError(
                    f"`columns` of {reader} renames `{there}` to `{here}`, but the files also have a column `{here}`",
                    hint=f'rename that one too: columns={{"{here}": "{there}", "other_{here}": "{here}"}}',
                )
        result = pa.schema([spec.with_name(names.get(spec.name, spec.name)) for spec in schema])
        result = with_features(result, {names.get(name, name): kind for name, kind in features_of(schema).items()})
        for name in self.fields or ():
            if name not in result.names:
                raise missing_column(reader, "fields", name, result.names)
        if self.fields is None:
            return result
        chosen = pa.schema([spec for spec in result if spec.name in self.fields])
        return with_features(chosen, features_of(result))

    def counted(self, num_rows: int) -> int:
        """How many rows are read if there are `num_rows`."""
        left = max(0, num_rows - self.skip)
        return left if self.limit is None else min(left, self.limit)

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        """The schema of the dataset with the column names of the files."""
        return pa.schema([spec.with_name(self.in_file(spec.name)) for spec in schema])

    def wanted(self, reading: Reading) -> list[str] | None:
        """The columns to read, by their names in the files; None for all."""
        asked = reading.columns if reading.columns is not None else self.fields
        if asked is None:
            return None
        names = [name for name in asked if self.fields is None or name in self.fields]
        return [self.in_file(name) for name in names or cheapest_column(reading.schema)]

    # --------------------------------------------------------------------------------------------------- partitions

    def block_bytes(self, default: int) -> int:
        return parse_bytes(self.blocksize) if self.blocksize is not None else default

    def touches(self, folder: str, name: str) -> str | None:
        if leads_to(self.file_paths, f"{folder.rstrip('/')}/{name}", self.format):
            return "is within the input: the next run would read the output of this one"
        held = first_within(self.list_files(), folder)
        return held and f"contains an input file, {held}"

    def input_bytes(self) -> int:
        return sum(file.size for file in self.list_files())

    def list_files(self) -> list[File]:
        return list_files(self.file_paths, self.format, self.storage_options)

    def pieces_to_read(self, partition: Partition, reading: Reading) -> Iterator[Piece]:
        """The pieces of a partition, without those that are known to crash the reader, which are failed."""
        for number, piece in enumerate(partition.pieces):
            if piece.limit == 0:
                continue
            if number in reading.unreadable:
                self.fail_file(reading, piece.path, reading.unreadable[number])
                continue
            reading.on_piece(number)
            yield piece

    def fail_file(self, reading: Reading, path: str, error: DamagedFile | str, *, row: int = 0, rows: int = 0) -> None:
        """Report that a file cannot be read from `row` on. `rows` are those known to be lost."""
        message = error.message if isinstance(error, DamagedFile) else error
        reading.fail(Failure(f"{path}:{row}", self.name, message, rows=rows, damaged_file=path))

    def count_rows(self, piece: Piece, most: int) -> int:
        """The number of rows in a piece; counting may stop at `most`."""
        raise NotImplementedError

    def divided(
        self,
        files: list[File],
        pieces: list[Piece],
        schema: pa.Schema,
        blocksize: int,
        reasons: Mapping[str, str],
        damaged: DamagedFiles,
    ) -> Layout:
        """The layout of `pieces`, without those of damaged files."""
        if self.limit is not None or self.skip:
            pieces = division.some_rows(
                damaged.without(pieces),
                self.skip,
                self.limit,
                lambda piece, most: damaged.count(self.count_rows, piece, most),
            )
        by_path = {file.path: file for file in files}
        used = dict.fromkeys(piece.path for piece in pieces)
        fingerprints = damaged.examine([by_path[path] for path in used], fingerprint)
        pieces = damaged.without(pieces)
        damaged.raise_if_nothing_is_left(files)
        files = [file for file in files if file.path not in damaged.errors]
        if self.files_per_partition is not None:
            groups = division.group(pieces, self.files_per_partition)
        else:
            groups = division.pack(pieces, blocksize)
        num_bytes = sum(file.size for file in files)
        why = division.explain(
            len(files),
            num_bytes,
            len(groups),
            blocksize=blocksize,
            given=self.blocksize is not None,
            files_per_partition=self.files_per_partition,
        )
        why += f", without the first {self.skip:,} rows" if self.skip else ""
        after = " after these" if self.skip else ""
        why += f", limited to the first {self.limit:,} rows{after}" if self.limit is not None else ""
        partitions = division.partitions_of(groups, fingerprints)
        return Layout(
            self.seen_schema(schema),
            partitions,
            {"partitions": why, **reasons},
            len(files),
            num_bytes,
            {path: error.message for path, error in damaged.errors.items()},
        )


@dataclass(frozen=True)
class ByteSource(FileSource):
    """A source of files that are read as streams of bytes and may be compressed."""

    on_damage: Literal["fail", "keep"] = "fail"

    def pieces(
        self, files: list[File], blocksize: int, ratio: float | None, damaged: DamagedFiles
    ) -> tuple[list[Piece], dict[str, str]]:
        """Byte ranges of the files, and the reasons for them. `ratio` is decompressed over compressed bytes of a sample."""

        def frames(file: File) -> list[int]:
            codec = codec_of(file.path)
            factor = ratio or TYPICAL_RATIO[codec] if codec else 1.0
            if codec is None or file.size * factor <= blocksize:
                return [0]
            with open_file(file.path, self.storage_options) as opened:
                return entries(opened, codec, file.size, max(1, int(blocksize / factor)), exact=is_local(file.path))

        starts_of = damaged.examine(files, frames)
        pieces: list[Piece] = []
        single = 0
        codecs = {codec for file in files if (codec := codec_of(file.path))}
        for file in files:
            if file.path not in starts_of:
                continue
            codec, starts = codec_of(file.path), starts_of[file.path]
            if codec is None:
                pieces += division.split_bytes(file, blocksize)
                continue
            factor = ratio or TYPICAL_RATIO[codec]
            single += len(starts) == 1 and file.size * factor > blocksize
            for start, stop in zip(starts, [*starts[1:], file.size], strict=True):
                pieces.append(Piece(file.path, start, stop, int((stop - start) * factor)))
        reasons = {}
        if codecs:
            names = " and ".join(sorted(codecs))
            how = f"expands {ratio:.1f} times, measured on a sample" if ratio else "is assumed to expand like web text"
            reasons["compression"] = f"{names} {how}; blocksize counts decompressed bytes"
        if single:
            reasons["unsplit"] = (
                f"{single:,} compressed file{'s are' if single > 1 else ' is'} a single frame larger than blocksize "
                f"{format_bytes(blocksize)}, which cannot be split"
            )
        return pieces, reasons

    def chunks(
        self,
        file: IO[bytes],
        piece: Piece,
        chunk_bytes: int,
        *,
        damaged: frozenset[str] = frozenset(),
        on_damage: Callable[[str], None] | None = None,
    ) -> Chunks:
        """The decoded bytes of a piece. See `decoded_chunks`."""
        codec = codec_of(piece.path)
        if codec is None:
            return plain_chunks(file, piece.path, piece.start, piece.stop, chunk_bytes)
        if self.on_damage == "keep":
            return decoded_chunks(file, piece.path, codec, piece.start, piece.stop)
        return decoded_chunks(file, piece.path, codec, piece.start, piece.stop, damaged=damaged, on_damage=on_damage)

    def texts(
        self, piece: Piece, batch_bytes: int, max_line_bytes: int, reading: Reading | None = None
    ) -> Iterator[Text | Unread]:
        """The lines that belong to a piece."""
        if piece.start == piece.stop:
            return
        damaged = reading.damaged if reading is not None else frozenset()
        on_damage = reading.on_damage if reading is not None else None
        compressed = codec_of(piece.path) is not None  # only then do frames have checksums
        with open_file(piece.path, self.storage_options) as file:
            yield from whole_lines(
                self.chunks(file, piece, batch_bytes, damaged=damaged, on_damage=on_damage),
                skip_first=piece.start > 0,
                owns_stop=compressed,
                batch_bytes=batch_bytes,
                max_line_bytes=max_line_bytes,
                verify=compressed and on_damage is not None and self.on_damage == "fail",
            )
