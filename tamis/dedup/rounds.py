"""From edges between similar rows to decisions, in rounds, for any way of finding edges.

    find(0)    edges from each row to a few better rows that it is similar to, the best first
               -> components -> each row: kept, dropped, or unknown if its few better rows are all dropped and there are more
    find(1)    edges from the unknown rows to better rows that are not dropped
               ...                until no row is unknown

The result is that of visiting all rows in the order of the keep policy and keeping those that are not similar to a row kept
before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tamis.dedup import similar
from tamis.dedup.decisions import Blocks
from tamis.dedup.joining import join_components
from tamis.dedup.shuffle import NumberedFiles, run_in_workers
from tamis.dedup.similar import States
from tamis.operators import Work

Find = Callable[[int, States | None], NumberedFiles]
"""Files of edges, from the number of the round and the states of the rows after the round before."""


@dataclass(frozen=True)
class Outcome:
    """What the rounds decided."""

    pairs: NumberedFiles
    """Dropped rows with their survivors, and near misses."""
    fates: Sequence[Mapping[str, Any]]
    """Sizes of groups, of each range of rows."""
    rounds: int


def decide_in_rounds(work: Work, blocks: Blocks, num_buckets: int, call_bytes: int, find: Find) -> Outcome:
    """Decide about all rows; components are divided into `num_buckets` buckets."""
    rows, exchange = blocks.rows, work.exchange
    total = rows.total + (blocks.index.total if blocks.index is not None else 0)
    ranges = similar.FateRanges.of(total, call_bytes)
    states: States | None = None
    pairs = NumberedFiles(exchange.sub("pairs"), f"{num_buckets}, {blocks.division}-", 0)
    first_edges: NumberedFiles | None = None
    for number in range(rows.total + 1):
        name = f"{num_buckets}, round {number}"
        edges = find(number, states)
        first_edges = edges if first_edges is None else first_edges
        components, _ = join_components(work, name, total, edges, call_bytes)
        linked = NumberedFiles(exchange.sub("linked"), f"{name}-", len(edges))
        run_in_workers(
            work,
            f"by component, {name}",
            similar.by_component,
            [(each, components, num_buckets, blob) for each, blob in zip(edges, linked, strict=True)],
        )
        before, pairs = len(pairs), replace(pairs, count=len(pairs) + num_buckets)
        run_in_workers(
            work,
            f"choices, {name}, {blocks.division}, {ranges.count}",
            similar.choose,
            [(blocks, linked, bucket, num_buckets, pairs[before + bucket], ranges) for bucket in range(num_buckets)],
        )
        files = NumberedFiles(exchange, f"states-{name}, {blocks.division}, {ranges.count}-", ranges.count)
        states = States(files, ranges.rows, total=rows.total)
        fates = run_in_workers(
            work,
            f"states, {name}, {blocks.division}, {ranges.count}",
            similar.collect_states,
            [(ranges, each, pairs, num_buckets, blob) for each, blob in enumerate(files)],
        )
        if not sum(part["unknown"] for part in fates):
            break
    assert first_edges is not None
    near = NumberedFiles(exchange.sub("pairs"), f"near, {num_buckets}, {blocks.division}-", len(first_edges))
    run_in_workers(
        work,
        f"near misses, {name}, {blocks.division}",
        similar.keep_near_misses,
        [(blocks, edges, states, blob) for edges, blob in zip(first_edges, near, strict=True)],
    )
    return Outcome(replace(pairs, more=tuple(blob.name for blob in near)), fates, number + 1)
