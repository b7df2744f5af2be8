"""Components over ranges of rows against those of one call, and both against naive code."""

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import JsonlWriter, Pipeline, Rows
from tamis.dedup import FuzzyDedup, Groups, SemanticDedup, joining
from tamis.dedup.joining import Ranges, join_components
from tamis.dedup.shuffle import NumberedFiles
from tamis.exchange import FolderExchange


class Here:
    """`Work` whose calls run in this process."""

    worker_bytes = 10**9

    def __init__(self, folder):
        self.exchange, self.calls = FolderExchange(Path(folder)), Counter()

    def map(self, name, function, items, **where):
        self.calls[function.__name__] += 1
        return [function(*item) for item in items]


def write_edges(exchange, edges, num_files=3):
    files = NumberedFiles(exchange, "edges-", num_files)
    for number, blob in enumerate(files):
        mine = np.array(edges[number::num_files], np.int64).reshape(-1, 2)
        table = pa.table({"left": mine[:, 0], "right": mine[:, 1]})
        with blob.writing() as path, pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    return files


def naive(total, edges):
    sets = {row: {row} for edge in edges for row in edge}
    for a, b in edges:
        union = sets[a] | sets[b]
        for row in union:
            sets[row] = union
    found = [min(sets[row]) if row in sets else -1 for row in range(total)]
    return found, {"candidates": len(sets), "components": len({min(each) for each in sets.values()})}


def joined(total, edges, range_rows):
    """(components, counts, rounds); in one call if `range_rows` is None."""
    with TemporaryDirectory() as folder:
        work = Here(folder)
        files = write_edges(work.exchange, edges)
        if range_rows is None:
            found, counts = join_components(work, "all", total, files, 10**9)
        else:
            found, counts = Ranges(work.exchange, total, range_rows).join(work, "all", files)
            left = {name.rpartition("-")[0] for name in work.exchange.names()}
            assert left == {"edges", f"{-(-total // range_rows)}-components"}
        in_order = found.between(0, total)
        assert found.of(np.arange(total)[::-1]).tolist() == in_order[::-1].tolist()
        assert in_order[1:3].tolist() == found.between(1, min(3, total)).tolist()
        return in_order.tolist(), counts, work.calls["hook"]


GRAPHS = st.integers(1, 40).flatmap(
    lambda n: st.tuples(st.just(n), st.lists(st.tuples(*[st.integers(0, n - 1)] * 2), max_size=60))
)


@settings(max_examples=100)
@given(GRAPHS, st.integers(1, 45))
def test_components_are_the_same_in_any_ranges(graph, range_rows):
    total, edges = graph
    expected = naive(total, edges)
    assert joined(total, edges, None)[:2] == expected
    assert joined(total, edges, range_rows)[:2] == expected


def chain(order):
    return list(itertools.pairwise(order))


def long_graphs(total):
    rng = np.random.default_rng(0)
    mixed = rng.permutation(total).tolist()
    zigzag = [row for pair in zip(range(total // 2), range(total - 1, total // 2 - 1, -1), strict=True) for row in pair]
    yield "chain", chain(range(total))
    yield "chain backwards", chain(range(total - 1, -1, -1))
    yield "mixed chain", chain(mixed)
    yield "zigzag", chain(zigzag)
    yield "star", [(total - 1, row) for row in range(total - 1)]
    yield "tree", [(mixed[row], mixed[(row - 1) // 2]) for row in range(1, total)]
    yield "comb", [*chain(mixed[::2]), *zip(mixed[::2], mixed[1::2], strict=True)]


@pytest.mark.parametrize("range_rows", [64, 128])
def test_few_rounds_join_long_paths(range_rows):
    total = 512
    for name, edges in long_graphs(total):
        found, counts, rounds = joined(total, edges, range_rows)
        assert found == [0] * total, name
        assert counts == {"candidates": total, "components": 1}, name
        assert rounds <= 9, (name, rounds)


def texts(count):
    words = [f"w{n}" for n in range(30)]
    return [
        {"id": str(n), "text": " ".join([*words[n % 7 :], f"x{n % 11}"]), "embedding": [1.0, 0.03 * (n % 17)]}
        for n in range(count)
    ]


@pytest.mark.parametrize("step", [FuzzyDedup(), SemanticDedup(threshold=0.99)], ids=["fuzzy", "semantic"])
def test_a_worker_that_is_too_small_joins_in_ranges(tmp_path, monkeypatch, step):
    def outcome(out):
        source = Rows(texts(200), rows_per_partition=30)
        report = Pipeline(source, step, JsonlWriter(str(out))).run(executor="inline")
        found = Groups.load(out)
        return report.dropped, [file.read_bytes() for file in sorted(out.glob("*.jsonl"))], found.table().to_pylist()

    expected = outcome(tmp_path / "one")
    monkeypatch.setattr(joining, "bytes_per_row", lambda total: 10**9)
    plain, made = Ranges.of, []

    def small(exchange, total, call_bytes):
        assert plain(exchange, total, call_bytes).count == 1
        made.append(replace(plain(exchange, total, call_bytes), rows=30))
        return made[-1]

    monkeypatch.setattr(Ranges, "of", small)
    assert outcome(tmp_path / "many") == expected
    assert made[0].count == 7
