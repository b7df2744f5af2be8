"""What an earlier run left in the output folder, compared with the plan: what still holds, and what must be redone.

prepare_output    refuse or clear a folder that holds other data; remove unfinished files, and those that a power failure may
                  have damaged
CommittedWork     drop commits that no longer hold, rename the files of partitions that moved, list what is missing
"""

from __future__ import annotations

import os
import re
import reprlib
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import tamis
from tamis.card import CARD
from tamis.errors import SinkError
from tamis.exchange import Exchange, FolderExchange
from tamis.executors.reuse import WRITTEN, reuse_key
from tamis.executors.tasks import Stage
from tamis.formats import codec_of
from tamis.gathering import DETAILS, GROUPS, stage_number
from tamis.ledger import SHARD_NAME, Commit, Ledger
from tamis.memory import spill
from tamis.operators import Gather, Partition, Reorder, Sink, digest
from tamis.plan import Plan
from tamis.sinks.streams import synced
from tamis.store import INTERNAL, Store, sync_folder

_MOVING = ".moving"
_NUMBER = re.compile(r"\d+")


def prepare_output(store: Store, exchange: Exchange, ledger: Ledger, sink: Sink | None, *, fresh: bool) -> None:
    """Refuse a folder that holds other data, or clear it on request; remove unfinished files."""
    mode = "overwrite" if fresh else getattr(sink, "mode", "resume")
    if mode == "error" and not ledger.is_new:
        raise SinkError(
            f"{store.root} holds the output of an earlier run",
            hint='choose another path, or mode="resume" or "overwrite"',
        )
    known = ledger.owned_files | {CARD}
    foreign = [name for name in store.names() if not name.startswith(".") and name not in known]
    if ledger.is_new and foreign and sink is not None:
        if mode != "overwrite":
            shown = ", ".join(foreign[:3]) + (", ..." if foreign[3:] else "")
            raise SinkError(
                f"{store.root} is not empty and was not written by tamis ({shown})",
                hint="choose an empty folder; --fresh replaces data files of the same format",
            )
        for name in foreign:
            plain = name.rpartition(".")[0] if codec_of(name) is not None else name
            if sink.suffix and plain.endswith(sink.suffix):
                store.remove(name)
    if mode == "overwrite" and (not ledger.is_new or ledger.earlier):
        ledger.clear()
        exchange.delete()
    remove_unowned(store, ledger)
    if may_be_damaged(exchange) or _is_out_of_date(exchange, ledger):
        exchange.delete()
    exchange.delete_drafts()
    remove_attempts(store)


def _is_out_of_date(exchange: Exchange, ledger: Ledger) -> bool:
    """Whether the last run had another exchange. Blobs of earlier runs may have the names of those that its commits name."""
    return ledger.plan is not None and ledger.plan.get("exchange") != _place_of(exchange, ledger.store)


def _place_of(exchange: Exchange, store: Store) -> str:
    """Where an exchange is, as the ledger has it: relative if it is in the output folder, which may be moved."""
    if isinstance(exchange, FolderExchange) and store.local and exchange.folder.is_relative_to(store.path):
        return str(exchange.folder.relative_to(store.path))
    return str(exchange)


# Files of the exchange are not synced, because that would cost more than they save. They survive the end of any process, but
# not that of the system, while the ledger, which is synced, says that they are complete. So a run notes since when the system
# has been up before it writes any, and what was written before a restart is repeated.

_WRITTEN_SINCE = "system"
_SYNCED = "synced"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def may_be_damaged(exchange: Exchange) -> bool:
    """Whether the system ended before the blobs of an exchange in a folder were on disk."""
    if not isinstance(exchange, FolderExchange) or not exchange.folder.exists() or not any(exchange.folder.iterdir()):
        return False
    if not exchange.has(_WRITTEN_SINCE):
        return True
    note = exchange.file(_WRITTEN_SINCE).read_text()
    host, _, _ = _system().partition(" ")
    return note != _SYNCED and note.startswith(f"{host} ") and note != _system()


def note_system(exchange: Exchange, *, first: bool = True) -> None:
    """Note that blobs are written which are not on disk until `sync` is called. An earlier note counts if not the `first`."""
    if isinstance(exchange, FolderExchange) and (first or not exchange.has(_WRITTEN_SINCE)):
        _write_note(exchange, _system())


def sync(exchange: Exchange) -> None:
    """Bring all blobs to disk. Syncs everything, because an exchange may consist of very many files."""
    if isinstance(exchange, FolderExchange) and exchange.has(_WRITTEN_SINCE):
        os.sync()
        _write_note(exchange, _SYNCED)


def _write_note(exchange: FolderExchange, text: str) -> None:
    with exchange.writing(_WRITTEN_SINCE) as path:
        path.write_text(text)
        synced(path)
    sync_folder(exchange.folder)


def _system() -> str:
    """The machine, and since when it has been up. A folder that several machines share is on another one, which syncs files."""
    return f"{socket.gethostname()} {BOOT_ID.read_text().strip() if BOOT_ID.exists() else ''}"


def remove_unowned(store: Store, ledger: Ledger, of: Callable[[int], bool] = lambda partition: True) -> None:
    """Remove files that a run wrote and did not commit; with `of`, only those of some partitions."""
    owned = ledger.owned_files
    for folder in ("", f"{INTERNAL}/failed", f"{INTERNAL}/rejects", WRITTEN):
        for name in store.names(folder):
            full = f"{folder}/{name}" if folder else name
            if SHARD_NAME.fullmatch(name) and full not in owned and of(int(_NUMBER.findall(name)[0])):
                store.remove_shard(full)


def remove_attempts(store: Store) -> None:
    """Remove files that no attempt will finish, and no commit names."""
    if not store.local and store.names(store.attempts):
        store.remove_folder(store.attempts)
    if store.scratch().exists():
        for left in store.scratch().iterdir():
            if left != store.work():
                with suppress(FileNotFoundError):  # a worker that is about to exit removes its own
                    shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()


def withdraw_groups(store: Store, of: Callable[[int], bool]) -> None:
    """Remove the groups of duplicates that earlier runs published for some stages, by number."""
    for folder in (f"{INTERNAL}/{GROUPS}", f"{INTERNAL}/{DETAILS}"):
        for name in store.names(folder):
            if of(stage_number(name)):
                store.remove_folder(f"{folder}/{name}")


class CommittedWork:
    """The commits in a ledger, by the stages and partitions of a plan."""

    def __init__(self, plan: Plan, ledger: Ledger) -> None:
        self.plan, self.ledger = plan, ledger
        self.keys = self._keys()
        self._known_blobs: dict[int, set[str]] = {}
        self.changed = ledger.finished is None
        """Whether the output is not, or no longer, that of a finished run."""

    def _keys(self) -> list[dict[str, Partition]]:
        """Per stage, a key for each partition. Those after a Gather depend on all partitions before it, and on their order."""
        result: list[dict[str, Partition]] = []
        for stage in self.plan.stages:
            before = list(result[-1]) if result else []
            result.append({digest([stage.fingerprint, p.identity, before]): p for p in self.plan.layout.partitions})
        return result

    def gather_key(self, stage: int) -> str:
        """A hash of the rows that the Gather at the end of a stage has observed.

        With another memory limit, for example, other rows of the same input may have failed before.
        """
        observed = [
            [commit.key, commit.extra["observed"], commit.extra["positions"], commit.extra["gone"]]
            for commit in self.commits(stage)
        ]
        return digest(observed)

    def commits(self, stage: int) -> list[Commit]:
        """The commits of a stage in source order."""
        found = [self.ledger.commits[stage, key] for key in self.keys[stage] if (stage, key) in self.ledger.commits]
        return sorted(found, key=lambda commit: commit.partition)

    # ------------------------------------------------------------------------------------------------ what is missing

    def settle(self) -> list[list[tuple[str, Partition]]]:
        """Drop commits that no longer hold, rename files of partitions that moved, and return what is missing by stage."""
        current = {(stage.index, key) for stage in self.plan.stages for key in self.keys[stage.index]}
        stale = [commit for name, commit in self.ledger.commits.items() if name not in current]
        self._drop([commit for commit in stale if not self._is_reusable(commit)])
        self._set_aside([commit for commit in stale if self._is_reusable(commit)])
        for stage in self.plan.stages:
            for name in [name for name in self._blobs(stage) if name.endswith(_MOVING)]:
                stage.exchange.delete(name)  # of a run that was killed while it renamed
        missing = [self._missing(stage) for stage in self.plan.stages]
        if not missing[-1]:
            missing = [[] for _ in missing]  # the rows are written, so facts of earlier stages are not needed
        incomplete = [
            self.ledger.commits[stage, key]
            for stage, found in enumerate(missing)
            for key, _ in found
            if (stage, key) in self.ledger.commits
        ]
        self._drop(incomplete)
        for stage in self.plan.stages:
            self._move(stage)
            self._remove_unowned_blobs(stage)
        return missing

    def settle_some(
        self, own: Callable[[int], bool], resolved: Callable[[Stage], bool]
    ) -> list[list[tuple[str, Partition]]]:
        """As `settle`, for some partitions of a plan whose other commits hold: drop those whose files are missing.

        `resolved` says of a stage whether its Gather has decided about all rows; then facts are not needed any more.
        """
        self._known_blobs.clear()
        self.__dict__.pop("_known_sizes", None)
        missing: list[list[tuple[str, Partition]]] = []
        later: set[int] = set()
        for stage in reversed(self.plan.stages):
            needs_all = not isinstance(stage.end, Gather) or not resolved(stage)
            needs_all |= isinstance(stage.end, Reorder) and bool(later)  # every partition reads what all of them wrote
            found = self._missing(stage, lambda index: own(index) and (needs_all or index in later))  # noqa: B023
            later |= {partition.index for _, partition in found}
            missing.insert(0, found)
        self._drop(
            [
                self.ledger.commits[stage, key]
                for stage, found in enumerate(missing)
                for key, _ in found
                if (stage, key) in self.ledger.commits
            ]
        )
        for stage in self.plan.stages:
            self._remove_unowned_blobs(stage, own)
        return missing

    def settle_decisions(self, stage: int) -> list[tuple[str, Partition]]:
        """Drop the commits of a stage whose rows were decided about together with other ones, and return their partitions.

        The stage before may have been repeated, because its files were lost, with a memory limit that fails other rows.
        """
        key = self.gather_key(stage - 1)
        other = {
            name: partition
            for name, partition in self.keys[stage].items()
            if (commit := self.ledger.commits.get((stage, name))) is not None and commit.extra.get("decided") != key
        }
        self._drop([self.ledger.commits[stage, name] for name in other])
        self._remove_unowned_blobs(self.plan.stages[stage])
        return list(other.items())

    def _remove_unowned_blobs(self, stage: Stage, of: Callable[[int], bool] = lambda partition: True) -> None:
        """Remove rows and facts that no commit names. What replaces them may have fewer files, and these are read by name."""
        owned = {name for commit in self.commits(stage.index) for name in commit.extra.get("files", [])}
        for name in sorted(self._blobs(stage) - owned):
            if SHARD_NAME.fullmatch(name) and of(int(_NUMBER.findall(name)[0])):
                stage.exchange.delete(name)
                self._blobs(stage).discard(name)

    def _drop(self, commits: list[Commit]) -> None:
        """Forget commits, then remove their files."""
        if commits:
            self.changed = True
            self.ledger.drop(commits)
            for shard in (shard for commit in commits for shard in commit.shards):
                self.plan.store.remove_shard(shard.name)

    def _is_reusable(self, commit: Commit) -> bool:
        """Whether a commit is that of a partition as it is now, with other thresholds."""
        return self._reuse_keys().get((commit.stage, commit.partition), "") == commit.extra.get("reuse")

    def _reuse_keys(self) -> dict[tuple[int, int], str]:
        if not hasattr(self, "_known_reuse_keys"):
            self._known_reuse_keys = {
                (stage.index, partition.index): key
                for stage in self.plan.stages
                for partition in self.plan.layout.partitions
                if (key := reuse_key(stage, partition)) is not None
            }
        return self._known_reuse_keys

    def _set_aside(self, commits: list[Commit]) -> None:
        """Keep the files of commits to write new ones from them, and remove those that were kept and cannot serve."""
        if commits:
            self.changed = True
            self.ledger.set_aside(commits)
        useless = [commit for commit in self.ledger.earlier.values() if not self._is_reusable(commit)]
        self.ledger.forget_earlier(useless)
        for shard in (shard for commit in useless for shard in commit.shards):
            self.plan.store.remove_shard(shard.name)

    def _missing(self, stage: Stage, of: Callable[[int], bool] = lambda partition: True) -> list[tuple[str, Partition]]:
        """The partitions of a stage that have no commit, or whose files are missing."""
        return [
            (key, partition)
            for key, partition in self.keys[stage.index].items()
            if of(partition.index) and not self._is_whole(stage, self.ledger.commits.get((stage.index, key)))
        ]

    def _is_whole(self, stage: Stage, commit: Commit | None) -> bool:
        if commit is None or (stage.rejects is not None and not commit.extra.get("rejects")):
            return False
        if self.plan.keeps_scores and not commit.extra.get("scores"):
            return False
        if isinstance(stage.end, Gather):
            files = commit.extra.get("files")
            if files is None or not self._blobs(stage).issuperset(files):
                return False
            is_read_again = not isinstance(stage.end, Reorder) and not stage.spills_rows
            return not is_read_again or _covers(stage, commit.extra)
        present = self._sizes()
        return all(present.get(shard.name) == shard.size for shard in commit.shards)

    def _blobs(self, stage: Stage) -> set[str]:
        """The names in the exchange of a stage, listed once."""
        if stage.index not in self._known_blobs:
            self._known_blobs[stage.index] = set(stage.exchange.names())
        return self._known_blobs[stage.index]

    def _sizes(self) -> dict[str, int | None]:
        """Sizes of the files that commits name, looked up once."""
        if not hasattr(self, "_known_sizes"):
            named = {shard.name for commit in self.ledger.commits.values() for shard in commit.shards}
            here = set(self.plan.store.names())
            side = {name for name in named if "/" in name}
            self._known_sizes = {name: self.plan.store.size(name) for name in (named & here) | side}
        return self._known_sizes

    # ------------------------------------------------------------------------------------------- partitions that moved

    def _move(self, stage: Stage) -> None:
        """Rename the files of partitions whose number changed because others were added or removed before them."""
        found = [(self.ledger.commits.get((stage.index, key)), p.index) for key, p in self.keys[stage.index].items()]
        moved = [(commit, index) for commit, index in found if commit is not None and commit.partition != index]
        if not moved:
            return
        self.changed = True
        # Dropped before, and committed after, the files are renamed: a crash in between costs work, and never leaves a
        # file under a wrong name.
        self.ledger.drop(commit for commit, _ in moved)
        store = self.plan.store
        renamed = [_renumbered(commit, index) for commit, index in moved]
        pairs = [(old, new) for (old, _), new in zip(moved, renamed, strict=True)]
        shards = [(a.name, b.name) for old, new in pairs for a, b in zip(old.shards, new.shards, strict=True)]
        _rename_all([(a, b) for a, b in shards if store.size(a) is not None], store.rename)
        files = [
            (a, b)
            for old, new in pairs
            for a, b in zip(old.extra.get("files", []), new.extra.get("files", []), strict=True)
        ]
        _rename_all([(a, b) for a, b in files if a in self._blobs(stage)], stage.exchange.rename)
        self.ledger.append(commit.record() for commit in renamed)

    # --------------------------------------------------------------------------------------------------- what changed

    def what_changed(self) -> list[str]:
        """Why committed work is redone, in sentences."""
        notes = []
        if self.ledger.damaged:
            lines = f"{self.ledger.damaged} damaged line{'s' * (self.ledger.damaged != 1)}"
            notes.append(f"{lines} of the ledger ignored; the partitions concerned are redone")
        before = self.ledger.plan
        return notes if before is None or not self.ledger.commits else [*notes, *self._differences(before)]

    def _differences(self, before: Mapping[str, Any]) -> list[str]:
        """How the plan differs from the one that a ledger has, in sentences."""
        notes = _step_changes(before["identity"], self.plan.identity)
        if before["version"] != tamis.__version__:
            notes.append(f"tamis {before['version']} wrote this output, this is {tamis.__version__}")
        if self.plan.stages[-1].rejects is not None and not before["rejects"]:
            notes.append("rejected rows are requested, and were not kept before")
        if self.plan.keeps_scores and not before.get("scores"):
            notes.append("scores are requested, and were not kept before")
        if before["blocksize"] != self.plan.blocksize:
            notes.append(f"blocksize was {before['blocksize']}, is {self.plan.blocksize}")
        was, now = set(before["files"]), set(self.files())
        missing = sorted({name.rpartition("#")[0] for name in was - now})
        new = sorted({name.rpartition("#")[0] for name in now - was})
        changed = [name for name in new if name in missing]
        for word, names in (
            ("changed", changed),
            ("new", [name for name in new if name not in changed]),
            ("missing", [name for name in missing if name not in changed]),
        ):
            if names:
                parts = f"{len(names)} input part{'s' * (len(names) != 1)}"
                notes.append(f"{parts} {word}: {', '.join(names[:3])}{', ...' if names[3:] else ''}")
        return notes

    def why_not_the_same(self) -> list[str]:
        """Why this plan is not the one of the ledger, for a shard that wants to join a run; empty if it is."""
        before = self.ledger.plan
        assert before is not None
        place = _place_of(self.plan.exchange, self.plan.store)
        if (before.get("keys"), before.get("exchange")) == (self.key, place):
            return []
        notes = self._differences(before)
        if before["rejects"] and self.plan.stages[-1].rejects is None:
            notes.append("rejected rows were requested, and are not")
        if before.get("scores") and not self.plan.keeps_scores:
            notes.append("scores were requested, and are not")
        if before.get("exchange") != place:
            notes.append(f"the exchange was {before.get('exchange')}, is {place}")
        return notes or [*self.plan.notes, "the steps or the input differ"]

    @property
    def key(self) -> str:
        """A hash of all that decides about the result of the plan."""
        return digest([list(self.keys[-1]), self.plan.stages[-1].rejects is not None, self.plan.keeps_scores])

    def plan_record(self) -> dict[str, Any]:
        """The plan as the ledger has it."""
        return {
            "kind": "plan",
            "version": tamis.__version__,
            "identity": self.plan.identity,
            "blocksize": self.plan.blocksize,
            "rejects": self.plan.stages[-1].rejects is not None,
            "scores": self.plan.keeps_scores,
            "files": self.files(),
            "exchange": _place_of(self.plan.exchange, self.plan.store),
            "time": time.time(),
        }

    def files(self) -> list[str]:
        """The input as the plan record holds it: for each partition its first file and its identity."""
        return [
            f"{p.pieces[0].path}{f' and {len(p.pieces) - 1} more' if p.pieces[1:] else ''}#{p.identity}"
            for p in self.plan.layout.partitions
            if p.pieces
        ]


def how_read(stage: Stage) -> dict[str, Any]:
    """What decides which rows of a stage can be read: the columns and their types."""
    columns = None if stage.columns is None else list(stage.columns)
    return {"columns": columns, "types": _types_of(stage, columns), "lines": stage.keep_lines}


def _types_of(stage: Stage, columns: Sequence[str] | None) -> str:
    kinds = zip(stage.schema.names, stage.schema.types, strict=True)
    return digest(sorted([name, str(kind)] for name, kind in kinds if columns is None or name in columns))


def _covers(stage: Stage, extra: Mapping[str, Any]) -> bool:
    """Whether rows can be read again as they were: with other types, or with more columns, other rows may fail."""
    read, wanted = extra["columns"], stage.columns
    enough = read is None or (wanted is not None and set(wanted) <= set(read))
    return enough and extra["types"] == _types_of(stage, read) and extra["lines"] == stage.keep_lines


def _renumbered(commit: Commit, index: int) -> Commit:
    """A commit with its files named by another partition number."""

    def named(name: str) -> str:
        return name.replace(spill.stem(commit.partition), spill.stem(index))

    extra = dict(commit.extra)
    if "files" in extra:
        extra["files"] = [named(name) for name in extra["files"]]
    shards = [replace(shard, name=named(shard.name)) for shard in commit.shards]
    return replace(commit, partition=index, shards=shards, extra=extra)


def _rename_all(pairs: Sequence[tuple[str, str]], rename: Callable[[str, str], object]) -> None:
    """Rename files to names that others of them may have now."""
    for old, new in pairs:
        rename(old, f"{new}{_MOVING}")
    for _, new in pairs:
        rename(f"{new}{_MOVING}", new)


_OF_EVERY_STEP = frozenset({"step", "parameters", "code", "version", "opaque", "run"})
"""What the identities of steps have in common; some have files or an index, too."""


def _step_changes(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[str]:
    old_names, new_names = [step["step"] for step in before], [step["step"] for step in now]
    if old_names != new_names:
        return [f"the steps were {', '.join(old_names)}; they are {', '.join(new_names)}"]
    notes = []
    for number, (old, new) in enumerate(zip(before, now, strict=True), start=1):
        for name in sorted(set(old.get("parameters", {})) | set(new.get("parameters", {}))):
            was, is_now = old.get("parameters", {}).get(name), new.get("parameters", {}).get(name)
            if was != is_now:
                notes.append(
                    f"step {number}, `{new['step']}`: {name} was {reprlib.repr(was)}, is {reprlib.repr(is_now)}"
                )
        for name in sorted({*old, *new} - _OF_EVERY_STEP):
            if old.get(name) != new.get(name):
                notes.append(f"step {number}, `{new['step']}`: its {name} changed")
        if old.get("code") != new.get("code") or old.get("version") != new.get("version"):
            notes.append(f"step {number}, `{new['step']}`: its code changed")
    return notes
