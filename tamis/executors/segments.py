"""The files of a partition, from a worker's scratch folder to their places in the output.

A partition is usually written by one worker. If workers run out of memory over it, its rows are divided: each range of rows is
written by a worker of its own into a folder that is kept, and the driver puts the files of all ranges in place together.

    rows 0..999     part-000000.jsonl          ->   part-000000-0000.jsonl
    rows 1000..     part-000000.jsonl          ->   part-000000-0001.jsonl
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tamis.executors.reuse import WRITTEN, reuse_key
from tamis.executors.tasks import Stage, Task
from tamis.memory import spill
from tamis.operators import Shard
from tamis.report import Account
from tamis.store import INTERNAL, LINES, TABLE, checksum_of

_NUMBER = re.compile(r"^-\d{4}(?=\.)")


@dataclass
class Outcome:
    """The result of a partition: its shards, its account, and what later stages need to know."""

    shards: list[Shard]
    account: Account
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class Segment:
    """The result for a range of rows of a partition: files that are complete but not in place yet."""

    folder: Path
    account: Account
    shards: list[Shard] = field(default_factory=list)
    rejects: list[Shard] = field(default_factory=list)
    failures: int = 0
    failed: Path | None = None
    """The rows that failed, as JSON lines."""
    observed: int = 0
    """Rows handed to the Gather at the end of the stage."""
    facts: list[Path] = field(default_factory=list)
    rows: list[Path] = field(default_factory=list)
    in_place: list[Shard] = field(default_factory=list)
    """Files in the output folder that an earlier run wrote, and that stay as they are."""
    written: Shard | None = None
    """The numbers of the rows written, if a later run with other thresholds may reuse them."""
    schema: str | None = None
    """The columns that rows would have, if none were written."""
    next_row: int | None = None
    """The row to continue with, if the task was not processed to its end."""
    skip: int = 0
    """Of the rows that an earlier attempt has handed on, those that still have to be skipped."""
    types: dict[int, dict[str, pa.DataType]] = field(default_factory=dict)
    """By operator, the types of the columns it returned."""
    waited_s: float = 0.0
    """Time spent waiting for permission to hand on rows."""

    def moved(self, folder: Path) -> Segment:
        """The segment with its files in a folder that outlives the worker."""
        shutil.rmtree(folder, ignore_errors=True)  # left by an attempt that was killed
        self.folder.rename(folder)
        facts, rows = ([folder / file.name for file in files] for files in (self.facts, self.rows))
        failed = folder / self.failed.name if self.failed is not None else None
        return replace(self, folder=folder, facts=facts, rows=rows, failed=failed)

    def discard(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def publish(stage: Stage, task: Task, segments: Sequence[Segment]) -> Outcome:
    """Put the files of a partition, given by its segments in source order, in place."""
    stem = spill.stem(task.partition.index)
    side = f"{stem}-stage-{stage.index + 1}"
    account = segments[0].account
    for segment in segments[1:]:
        account.add(segment.account)
    written = f"{WRITTEN}/{side}{TABLE}"
    if stage.reuse is not None:
        stage.store.remove(written)  # the rows of an earlier run cannot be reused once its files are replaced
    shards = [shard for segment in segments for shard in segment.in_place]
    for segment, shard, name in _named(segments, "shards", stem):
        shards.append(_published(stage, segment.folder, shard, name))
    for segment, shard, name in _named(segments, "rejects", side):
        untyped = replace(shard, schema="")  # rejects need not agree on their columns with the output
        shards.append(_published(stage, segment.folder, untyped, f"{INTERNAL}/rejects/{name.partition('.')[0]}{TABLE}"))
    failed = _joined([segment.failed for segment in segments if segment.failed is not None])
    gone = _gone(stage, failed)
    if failed is not None:
        shard = Shard(failed.name, sum(segment.failures for segment in segments), failed.stat().st_size)
        shards.append(_published(stage, failed.parent, shard, f"{INTERNAL}/failed/{side}{LINES}"))
    extra: dict[str, Any] = {"rejects": stage.rejects is not None}
    if segments[0].written is not None:
        shards.append(_published(stage, segments[0].folder, segments[0].written, written))
        extra["reuse"] = reuse_key(stage, task.partition)
    if not any("/" not in shard.name for shard in shards) and segments[0].schema is not None:
        extra["schema"] = segments[0].schema
    if stage.gathers:
        files = [*_place(stage, segments, "facts"), *_place(stage, segments, "rows")]
        extra |= {"observed": sum(segment.observed for segment in segments), "files": files, "gone": gone}
        extra |= {"damaged": sorted(task.damaged), "unreadable": dict(task.unreadable)}
    return Outcome(shards, account, extra)


def _joined(files: Sequence[Path]) -> Path | None:
    """The lines of all files, appended to the first."""
    for file in files[1:]:
        with files[0].open("ab") as target, file.open("rb") as source:
            shutil.copyfileobj(source, target)
    return files[0] if files else None


def _gone(stage: Stage, failed: Path | None) -> list[str]:
    """The addresses of rows that failed after they were read, if the next stage reads them again."""
    if failed is None or not stage.gathers or stage.spills_rows:
        return []
    with failed.open(encoding="utf-8") as lines:
        return [record["address"] for record in map(json.loads, lines) if record["step"] != stage.source.name]


def _published(stage: Stage, folder: Path, shard: Shard, name: str) -> Shard:
    file = folder / shard.name
    checksum = checksum_of(file)  # read from the page cache: the file was just written
    stage.store.publish(file, name)
    return replace(shard, name=name, checksum=checksum)


def _named(segments: Sequence[Segment], kind: str, stem: str) -> list[tuple[Segment, Shard, str]]:
    """The shards of all segments, each with its name; numbered if there are several segments.

    Files that differ only in their suffix belong together, and keep the same name.
    """
    found = [(segment, shard) for segment in segments for shard in getattr(segment, kind)]
    if len(segments) == 1:
        return [(segment, shard, shard.name) for segment, shard in found]
    numbers: dict[tuple[Path, str], int] = {}
    named = []
    for segment, shard in found:
        number = numbers.setdefault((segment.folder, shard.name.partition(".")[0]), len(numbers))
        suffix = _NUMBER.sub("", shard.name.removeprefix(stem))
        named.append((segment, shard, f"{stem}-{number:04d}{suffix}"))
    return named


def _place(stage: Stage, segments: Sequence[Segment], kind: str) -> list[str]:
    """Move the files between stages to the work folder, numbered as `spill.spilled_files` expects them."""
    work = Path(stage.work)
    work.mkdir(parents=True, exist_ok=True)
    names: list[str] = []
    for file in (file for segment in segments for file in getattr(segment, kind)):
        first = names[0] if names else file.name
        names.append(f"{first}.{len(names)}" if names else first)
        file.replace(work / names[-1])
    return names
