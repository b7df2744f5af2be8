"""Dividing files into partitions: small files are packed together, large ones are split.

File, estimated size --> Piece, Piece, ... --> Partition (blocksize bytes, or files_per_partition files)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from tamis.operators import Partition, Piece, digest
from tamis.parameters import format_bytes
from tamis.sources.files import File

SAMPLED_FILES = 16
SAMPLE_BYTES = 1_000_000


def sampled(files: Sequence[File], count: int = SAMPLED_FILES) -> list[File]:
    """The first file and others spread evenly over the list, without empty ones."""
    full = [file for file in files if file.size]
    if len(full) <= count:
        return full
    return [full[index * (len(full) - 1) // (count - 1)] for index in range(count)]


def pack(pieces: Iterable[Piece], blocksize: int) -> list[tuple[Piece, ...]]:
    """Group neighbours as long as they fit `blocksize`."""
    groups: list[tuple[Piece, ...]] = []
    current: list[Piece] = []
    size = 0
    for piece in pieces:
        if current and size + piece.size > blocksize:
            groups.append(tuple(current))
            current, size = [], 0
        current.append(piece)
        size += piece.size
    if current:
        groups.append(tuple(current))
    return groups


def group(pieces: Sequence[Piece], files_per_partition: int) -> list[tuple[Piece, ...]]:
    return [tuple(pieces[i : i + files_per_partition]) for i in range(0, len(pieces), files_per_partition)]


def split_bytes(file: File, blocksize: int) -> list[Piece]:
    """Byte ranges of equal size; the reader finds where lines begin."""
    count = max(1, -(-file.size // blocksize))
    bounds = [file.size * index // count for index in range(count + 1)]
    return [
        Piece(file.path, start, stop, stop - start)
        for start, stop in itertools.pairwise(bounds)
        if stop > start or count == 1
    ]


def some_rows(pieces: Iterable[Piece], skip: int, limit: int | None, count: Callable[[Piece, int], int]) -> list[Piece]:
    """The pieces with the first `limit` rows after `skip` others; `count(piece, most)` may stop counting at `most`."""
    result: list[Piece] = []
    left = limit
    empty: list[Piece] = []
    for piece in pieces:
        empty = empty or [replace(piece, limit=0)]  # if nothing is left, it keeps the columns
        if left is not None and left <= 0:
            break
        if left is None and not skip:
            result.append(piece)
            continue
        most = skip + (1 if left is None else left)
        rows = count(piece, most)
        if rows <= skip:
            skip -= rows
            continue
        limited = left if left is not None and rows >= most else None
        result.append(replace(piece, limit=limited, skip=skip))
        left = None if left is None else left - (rows - skip)
        skip = 0
    return result or empty


def partitions_of(
    groups: Iterable[tuple[Piece, ...]], fingerprints: Mapping[str, list[object]]
) -> tuple[Partition, ...]:
    """Partitions with identities, derived from the fingerprints of their files."""

    def known(piece: Piece) -> list[object]:
        skipped = [piece.skip] if piece.skip else []  # runs of versions that could not skip stay valid
        return [fingerprints[piece.path], piece.start, piece.stop, piece.limit, *skipped]

    return tuple(
        Partition(index, pieces, digest([known(piece) for piece in pieces])) for index, pieces in enumerate(groups)
    )


def explain(
    files: int, num_bytes: int, partitions: int, *, blocksize: int, given: bool, files_per_partition: int | None
) -> str:
    """A sentence on how the files were divided."""
    what = f"{files:,} file{'s' * (files != 1)} of {format_bytes(num_bytes)}"
    result = f"become{'s' * (files == 1)} {partitions:,} partition{'s' * (partitions != 1)}"
    if files_per_partition is not None:
        return f"files_per_partition {files_per_partition}: {what} {result}"
    return f"blocksize {format_bytes(blocksize)}{'' if given else ' (default)'}: {what} {result}"
