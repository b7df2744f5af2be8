"""The files of a partition, from the attempt that writes them to their places in the output.

An attempt writes files under names of its own and reports them, as a segment. The driver puts them in place, and so decides
which attempt counts: a worker that was given up and finishes later changes nothing.

A partition is usually one segment. If workers run out of memory over it, its rows are divided: each range of rows is a segment,
and the driver puts the files of all of them in place together.

    rows 0..999     part-000000.jsonl          ->   part-000000-0000.jsonl
    rows 1000..     part-000000.jsonl          ->   part-000000-0001.jsonl
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tamis.exchange import Attempt, Draft
from tamis.executors.reuse import WRITTEN, reuse_key
from tamis.executors.scores import joined_scores, scores_name
from tamis.executors.tasks import Stage, Task
from tamis.memory import spill
from tamis.operators import Shard
from tamis.report import Account
from tamis.store import INTERNAL, TABLE, Store, checksum_of

_NUMBER = re.compile(r"^-\d{4}(?=\.)")


@dataclass
class Outcome:
    """The result of a partition: its shards, its account, and what later stages need to know."""

    shards: list[Shard]
    account: Account
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Staging:
    """The files of one attempt at writing shards, before they have their names.

    For an output on a disk, they are in a folder on that disk, and are renamed. For one in an object store, the worker uploads
    them under names of the attempt, and the store copies them to their names on request of the driver.
    """

    store: Store
    name: str
    folder: Path

    @staticmethod
    def of(stage: Stage, stem: str, attempt: Attempt) -> Staging:
        name = f"{stem}-{stage.index}-{stage.pool}{attempt.draft_suffix}"
        return Staging(stage.store, name, (stage.store if stage.store.local else stage.exchange).scratch() / name)

    def another(self, number: int) -> Staging:
        """For files of the same attempt that are published on their own."""
        name = f"{number}-{self.name}"
        return replace(self, name=name, folder=self.folder.with_name(name))

    def finish(self, shards: Sequence[Shard]) -> list[Shard]:
        """The shards with their checksums, where the driver can reach them."""
        checked = []
        for shard in shards:
            file = self.folder / shard.name
            checked.append(replace(shard, checksum=checksum_of(file)))  # read from the page cache: it was just written
            if not self.store.local:
                self.store.publish(file, self._remote(shard.name))
        return checked

    def publish(self, shard: Shard, name: str) -> Shard:
        """Give a finished shard its name in the output."""
        if self.store.local:
            self.store.publish(self.folder / shard.name, name)
        else:
            self.store.rename(self._remote(shard.name), name)
        return replace(shard, name=name)

    def read(self, shard: Shard) -> bytes:
        """The content of a finished shard that has not been published."""
        if self.store.local:
            return (self.folder / shard.name).read_bytes()
        data = self.store.read(self._remote(shard.name))
        assert data is not None
        return data

    def remove_local(self) -> None:
        """Remove the local files, unless they are what the driver publishes."""
        if not self.store.local:
            shutil.rmtree(self.folder, ignore_errors=True)

    def discard(self) -> None:
        """Remove all files."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if not self.store.local:
            self.store.remove_folder(f"{self.store.attempts}/{self.name}")

    def _remote(self, name: str) -> str:
        return f"{self.store.attempts}/{self.name}/{name}"


@dataclass
class Segment:
    """The result of an attempt at a partition, or at a range of its rows: files that are complete but not in place yet."""

    staging: Staging
    account: Account
    shards: list[Shard] = field(default_factory=list)
    rejects: list[Shard] = field(default_factory=list)
    failed: list[Shard] = field(default_factory=list)
    scores: list[Shard] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    """Addresses of rows that failed after they were read, if the next stage reads them again."""
    observed: int = 0
    """Rows handed to the Gather at the end of the stage."""
    positions: int = 0
    """The sum of their positions."""
    facts: list[Draft] = field(default_factory=list)
    rows: list[Draft] = field(default_factory=list)
    in_place: list[Shard] = field(default_factory=list)
    """Files in the output folder that an earlier run wrote, and that stay as they are."""
    written: list[Shard] = field(default_factory=list)
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

    def stage_files(self) -> None:
        """Put all files where the driver can reach them."""
        for kind in ("shards", "rejects", "failed", "scores", "written"):
            setattr(self, kind, self.staging.finish(getattr(self, kind)))
        self.staging.remove_local()

    def discard(self) -> None:
        self.staging.discard()
        for draft in [*self.facts, *self.rows]:
            draft.discard()


def publish(
    stage: Stage, task: Task, segments: Sequence[Segment], before: Sequence[Segment] = (), scores: str | None = None
) -> Outcome:
    """Put the files of a partition, given by its segments in source order, in place. Only the driver does this.

    `before` has the failed and rejected rows and the scores of stages that handed their rows to this one. `scores` is the
    identity under which the group keeps scores.
    """
    stem = spill.stem(task.partition.index)
    side = f"{stem}-stage-{stage.index + 1}"
    account = segments[0].account
    for segment in segments[1:]:
        account.add(segment.account)
    written = f"{WRITTEN}/{side}{TABLE}"
    if stage.reuse is not None:
        stage.store.remove(written)  # the rows of an earlier run cannot be reused once its files are replaced
    shards = [shard for segment in segments for shard in segment.in_place]
    shards += [segment.staging.publish(shard, name) for segment, shard, name in _named(segments, "shards", stem)]
    for segment, shard, name in _named([*before, *segments], "rejects", side):
        untyped = replace(shard, schema="")  # rejects need not agree on their columns with the output
        shards.append(segment.staging.publish(untyped, f"{INTERNAL}/rejects/{name.partition('.')[0]}{TABLE}"))
    for segment, shard, name in _named([*before, *segments], "failed", side):
        shards.append(segment.staging.publish(shard, f"{INTERNAL}/failed/{name}"))
    if scores is not None:
        _publish_scores([*before, *segments], stage.store, scores_name(scores, task.partition))
    extra: dict[str, Any] = {"rejects": stage.rejects is not None}
    for shard in segments[0].written:
        shards.append(segments[0].staging.publish(shard, written))
        extra["reuse"] = reuse_key(stage, task.partition)
    if not any("/" not in shard.name for shard in shards) and segments[0].schema is not None:
        extra["schema"] = segments[0].schema
    if stage.gathers:
        files = [*_published(segments, "facts"), *_published(segments, "rows")]
        gone = [address for segment in [*before, *segments] for address in segment.gone]
        extra |= {"observed": sum(segment.observed for segment in segments), "files": files, "gone": gone}
        extra |= {"positions": sum(segment.positions for segment in segments)}
        extra |= {"damaged": sorted(task.damaged), "unreadable": dict(task.unreadable)}
    for segment in [*before, *segments]:
        shutil.rmtree(segment.staging.folder, ignore_errors=True)
    return Outcome(shards, account, extra)


def _publish_scores(segments: Sequence[Segment], store: Store, name: str) -> None:
    found = [(segment.staging, shard) for segment in segments for shard in segment.scores]
    if len(found) == 1:
        found[0][0].publish(found[0][1], name)
    elif found:
        store.write(name, joined_scores([staging.read(shard) for staging, shard in found]))


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
        number = numbers.setdefault((segment.staging.folder, shard.name.partition(".")[0]), len(numbers))
        suffix = _NUMBER.sub("", shard.name.removeprefix(stem))
        named.append((segment, shard, f"{stem}-{number:04d}{suffix}"))
    return named


def _published(segments: Sequence[Segment], kind: str) -> list[str]:
    """Publish the drafts of all segments, numbered as `spill.spilled_names` expects them; returns their names."""
    names: list[str] = []
    for draft in (draft for segment in segments for draft in getattr(segment, kind)):
        names.append(spill.numbered(names[0] if names else draft.name, len(names)))
        draft.publish(names[-1])
    return names
