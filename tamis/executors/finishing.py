"""The end of a run: make all files agree on their columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tamis.events import Events, Note
from tamis.ledger import Commit, Ledger
from tamis.memory import spill
from tamis.operators import Sink
from tamis.sinks.schemas import decode_schema, merge_schemas
from tamis.store import checksum_of


def agree_on_types(ledger: Ledger, sink: Sink, commits: Sequence[Commit], emit: Events) -> None:
    """Rewrite files of rows whose columns or types are narrower than those of the whole output.

    `commits` are those of the last stage, in source order.
    """
    commits = _keep_columns(ledger, sink, commits)
    seen = dict.fromkeys(s.schema for c in commits for s in c.shards if s.schema)
    if len(seen) <= 1:
        return
    target = sink.widest(list(seen))
    emit(Note("shards differ in their columns or types; rewriting the narrower ones"))
    store, scratch = ledger.store, ledger.store.scratch()
    for commit in commits:
        shards = []
        for shard in commit.shards:
            if shard.schema and shard.schema != target:
                old, new = scratch / f"old-{shard.name}", scratch / f"new-{shard.name}"
                store.fetch(shard.name, old)
                rewritten = sink.rewrite(old, target, new)
                shard = replace(rewritten, name=shard.name, checksum=checksum_of(new))
                store.publish(new, shard.name)
                old.unlink()
            shards.append(shard)
        if shards != commit.shards:
            ledger.append([replace(commit, shards=shards).record()])


def _keep_columns(ledger: Ledger, sink: Sink, commits: Sequence[Commit]) -> Sequence[Commit]:
    """If no row was kept, write one file without rows, so that the output has its columns."""
    known = [commit.extra["schema"] for commit in commits if "schema" in commit.extra]
    if not known or len(known) < len(commits):
        return commits
    store, scratch, first = ledger.store, ledger.store.scratch(), commits[0]
    schema = merge_schemas(decode_schema(text) for text in known)
    shard = sink.empty_shard(scratch, spill.stem(first.partition), schema)
    if shard is None:
        return commits
    checksum = checksum_of(scratch / shard.name)
    store.publish(scratch / shard.name, shard.name)
    kept = replace(first, shards=[replace(shard, checksum=checksum), *first.shards])
    ledger.append([kept.record()])
    return [kept, *commits[1:]]
