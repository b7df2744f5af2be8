"""Deduplication of sounds and videos by sequences of hashes: the rows of a naive comparison, for any division of the work."""

import signal
import subprocess
import sys
from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import ParquetWriter, Pipeline, Rows
from tamis.dashboard.duplicates import likeness
from tamis.dedup import AudioDedup, Groups, VideoDedup, aligned, shared_keys, shuffle
from tamis.dedup.explain import explain_row, explanation_text
from tamis.dedup.sequences import sequence_column
from tamis.errors import DiskFull, OperatorError, ParameterError
from tamis.looking.life import why
from tests.dedup.deduplicate import kept_and_pairs

PRESENT = np.uint64(1 << 42)


def sequence(rng, length):
    """A random sequence whose hashes change a little from one to the next, with all parts of a stored hash."""
    words = rng.integers(1, 2**32, length, dtype=np.uint64)
    words |= rng.integers(0, 2**10, length, dtype=np.uint64) << np.uint64(32)
    return words | PRESENT


def with_errors(rng, words, share):
    """The sequence with this share of the bits of its hashes flipped; hashes of 0 stay 0."""
    flips = (rng.random((len(words), 32)) < share) @ (1 << np.arange(32, dtype=np.uint64))
    return np.where(words == 0, 0, words ^ flips.astype(np.uint64)).astype(np.uint64)


def planted(count, seed=0):
    """Sequences of which half are copies, excerpts, or joined with others, with errors; in random order."""
    rng = np.random.default_rng(seed)
    found = [sequence(rng, int(rng.integers(40, 160))) for _ in range(count // 2)]
    for _ in range(count - len(found)):
        other = found[rng.integers(len(found))]
        start = int(rng.integers(0, len(other) // 2))
        part = with_errors(rng, other[start : start + int(rng.integers(35, 100))], rng.choice([0, 0.02, 0.1]))
        if rng.random() < 0.3:
            part = np.concatenate([sequence(rng, int(rng.integers(5, 40))), part])
        if rng.random() < 0.2:
            part = np.concatenate([np.zeros(10, np.uint64), part])
        found.append(part)
    return [found[number] for number in rng.permutation(len(found))]


def rows_of(sequences, **more):
    return [
        {
            "id": f"v{number}",
            "prints": None if words is None else words.view(np.int64).tolist(),
            **{key: values[number] for key, values in more.items()},
        }
        for number, words in enumerate(sequences)
    ]


# ------------------------------------------------------------------------------------------------------------ reference


def naive_keys(words, bits):
    """{key: first position}, from the definition."""
    found = {}
    for place, word in enumerate(words.tolist()):
        if not word:
            continue
        if bits == 32:
            value, one, two = word & 0xFFFFFFFF, word >> 32 & 31, word >> 37 & 31
            keys = {value, value ^ (1 << one), value ^ (1 << two)}
        else:
            quarter = [word >> 16 * number & 0xFFFF for number in range(4)]
            keys = {(i, j, quarter[i], quarter[j]) for i in range(4) for j in range(i + 1, 4)}
        for key in keys:
            found.setdefault(key, place)
    return found


def naive_agreement(left, right, offset, comparing):
    """(share of the shorter sequence that agrees, share of wrong bits in it), position by position."""
    mask = 2**comparing.bits - 1
    wrong = {
        place: ((int(left[place + offset]) ^ int(right[place])) & mask).bit_count()
        for place in range(len(right))
        if 0 <= place + offset < len(left) and left[place + offset] and right[place]
    }
    before, after = comparing.window - 1 - comparing.window // 2, comparing.window // 2
    agree = []
    for place in wrong:
        near = [wrong[other] for other in range(place - before, place + after + 1) if other in wrong]
        if sum(near) <= comparing.max_errors * len(near):
            agree.append(wrong[place])
    shorter = min(np.count_nonzero(left), np.count_nonzero(right))
    error = sum(agree) / len(agree) / comparing.bits if agree else 1.0
    return len(agree) / shorter if shorter else 0.0, error


def naive(sequences, step, order=None):
    """(kept ids, {dropped id: (kept id, similarity, offset in positions)}): rows are visited in the given order."""
    order = list(range(len(sequences))) if order is None else order
    comparing, least = step.comparing, step.min_hashes
    order = [row for row in order if sequences[row] is not None]
    few = [row for row in order if np.count_nonzero(sequences[row]) < least]
    order = [row for row in order if row not in few]
    keys = {row: naive_keys(sequences[row], comparing.bits) for row in order}
    sharing = defaultdict(list)
    for row in order:
        for key in keys[row]:
            sharing[key].append(row)
    kept, pairs = [], {}
    for row in order:
        shared = defaultdict(Counter)
        for key, place in keys[row].items():
            for better in sharing[key][: shared_keys.MAX_SHARING]:
                if better == row:
                    break
                shared[better][keys[better][key] - place] += 1
        twin = None
        for better in kept:
            found = best_of(sequences[better], sequences[row], shared[better], comparing)
            if found is not None and found[0] >= step.threshold:
                twin = (f"v{better}", *found)
                break
        if twin is None:
            kept.append(row)
        else:
            pairs[f"v{row}"] = twin
    rest = [row for row, words in enumerate(sequences) if words is None or row in few]
    return [f"v{row}" for row in sorted([*kept, *rest])], pairs


def best_of(left, right, counts, comparing):
    """(similarity, offset) at the best of the offsets that a pair is compared at, or None."""
    scores = {offset: counts[offset] + counts[offset - 1] + counts[offset + 1] for offset in list(counts)}
    chosen = []
    for offset in sorted(scores, key=lambda each: (-scores[each], each)):
        apart = all(abs(offset - other) > 1 for other in chosen)
        if scores[offset] >= shared_keys.MIN_SHARED and apart and len(chosen) < shared_keys.MAX_OFFSETS:
            chosen.append(offset)
    tried = []
    for offset in sorted(chosen):
        found = []
        for each in (offset, offset - 1, offset + 1):
            similarity, error = naive_agreement(left, right, each, comparing)
            found.append((-similarity, error, each))
        tried.append(min(found, key=lambda each: each[:2]))
    best = min(tried, key=lambda each: each[:2], default=None)
    return None if best is None else (min(1.0, -best[0]), best[2])


def fates(rows, step, per_partition=50, **options):
    """(ids of the kept rows, {dropped id: (kept id, similarity, offset in positions)})"""
    kept, pairs = kept_and_pairs(rows, step, per_partition, **options)
    return kept, {row["id"]: (row["kept_id"], row["similarity"], round(row["offset"] / step.step_s)) for row in pairs}


def same(found, expected):
    assert found[0] == expected[0]
    assert found[1].keys() == expected[1].keys()
    for name, (twin, similarity, offset) in expected[1].items():
        assert (found[1][name][0], found[1][name][2]) == (twin, offset), name
        assert found[1][name][1] == pytest.approx(similarity, abs=1e-6)


# ---------------------------------------------------------------------------------------------------------- decisions


@settings(max_examples=12)
@given(
    seed=st.integers(0, 10**6),
    step=st.sampled_from(
        [AudioDedup(hash_column="prints", keep="first"), VideoDedup(hash_column="prints", keep="first", threshold=0.5)]
    ),
    per_partition=st.integers(3, 40),
    sharing=st.sampled_from([1, 2, 8]),
    buckets=st.sampled_from([1, 3]),
)
def test_survivors_twins_and_offsets_are_those_of_the_definition(seed, step, per_partition, sharing, buckets):
    sequences = [*planted(36, seed), None, np.zeros(80, np.uint64), planted(2, seed)[0][:9]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_keys, "MAX_SHARING", sharing)
        patch.setattr(aligned, "bucket_count", lambda *_: buckets)
        same(fates(rows_of(sequences), step, per_partition), naive(sequences, step))


@settings(max_examples=12)
@given(seed=st.integers(0, 10**6), sharing=st.sampled_from([1, 3, 8]), window=st.sampled_from([1, 4, 31]))
def test_repetitive_sequences_are_decided_as_the_definition_says(seed, sharing, window):
    rng = np.random.default_rng(seed)
    known = sequence(rng, 6)  # few different hashes, so that every row shares keys at many offsets
    sequences = [np.repeat(known[rng.integers(0, 6, 12)], rng.integers(1, 5)) for _ in range(20)]
    step = AudioDedup(hash_column="prints", keep="first", min_seconds=0.1, max_error=0.2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_keys, "MAX_SHARING", sharing)
        patch.setattr("tamis.dedup.sounds.WINDOW", window)
        same(fates(rows_of(sequences), step, 7), naive(sequences, step))


def test_an_excerpt_is_dropped_whichever_comes_first_and_what_is_shared_in_part_is_kept():
    rng = np.random.default_rng(5)
    song, other = sequence(rng, 300), sequence(rng, 250)
    joined = np.concatenate([song[200:], other[:150]])  # less than 80 % of it is in either
    rows = rows_of([song[100:180], song, other, joined, song[:90]])
    kept, pairs = fates(rows, AudioDedup(hash_column="prints"))
    assert kept == ["v1", "v2", "v3"]
    assert pairs == {"v0": ("v1", 1.0, 100), "v4": ("v1", 1.0, 0)}
    kept, pairs = fates(rows, AudioDedup(hash_column="prints", keep="first"))
    assert kept == ["v0", "v2", "v3", "v4"], "the song repeats its first part"
    assert pairs == {"v1": ("v0", 1.0, -100)}


def test_a_stretch_that_many_rows_share_links_none_of_them_and_many_copies_cost_few_comparisons(tmp_path):
    rng = np.random.default_rng(6)
    jingle = sequence(rng, 40)
    songs = [np.concatenate([jingle, sequence(rng, 160)]) for _ in range(60)]
    copies = [with_errors(rng, songs[7], 0.02) for _ in range(100)]
    rows = rows_of([*songs, *copies])
    pipeline = Pipeline(
        Rows(rows, rows_per_partition=33), AudioDedup(hash_column="prints"), ParquetWriter(str(tmp_path))
    )
    report = pipeline.run(executor="inline")
    assert report.dropped == {"similar audio": 100}
    groups = Groups.load(tmp_path)
    assert {row["kept_id"] for row in groups.table().to_pylist()} == {"v7"}
    assert groups.summary["compared"] < 160 * shared_keys.MAX_COMPARED, "not all pairs"


@pytest.mark.parametrize("compared", [1, 2, 5])
def test_rows_whose_few_better_rows_are_dropped_are_compared_again(monkeypatch, compared):
    rng = np.random.default_rng(16)
    song = sequence(rng, 200)
    rows = rows_of([song, *(with_errors(rng, song, 0.05) for _ in range(40)), *planted(10, 17)])
    step = AudioDedup(hash_column="prints", keep="first")
    expected = fates(rows, step)
    monkeypatch.setattr(shared_keys, "MAX_COMPARED", compared)
    kept, pairs = fates(rows, step, 9)
    assert (kept, pairs.keys()) == (expected[0], expected[1].keys())
    assert all(pairs[f"v{number}"][0] == "v0" for number in range(1, 41))


def test_keep_best_newest_and_preferred_sources():
    rng = np.random.default_rng(7)
    words = sequence(rng, 100)
    rows = rows_of(
        [words, words[10:], with_errors(rng, words, 0.05), words[5:]],
        score=[1, 5, 3, 5],
        date=["2021-01-01", "2020-01-01", "2023-01-01", "2022-01-01"],
        source=["a", "a", "b", "b"],
    )
    chosen = {
        "v0": {},
        "v1": {"keep": "best", "by": "score"},
        "v2": {"keep": "newest", "by": "date"},
        "v3": {"keep": "best", "by": "score", "prefer": ["b"], "prefer_column": "source"},
    }
    for name, policy in chosen.items():
        assert fates(rows, AudioDedup(hash_column="prints", **policy))[0] == [name]
    across = AudioDedup(hash_column="prints", prefer=["b", "a"], prefer_column="source", across_sources=True)
    assert fates(rows, across)[0] == ["v2", "v3"]


def test_wrong_parameters_and_columns_are_explained(tmp_path):
    with pytest.raises(ParameterError, match="above 0 and at most 1"):
        AudioDedup(threshold=0).check()
    with pytest.raises(ParameterError, match="from 0 to 0"):
        VideoDedup(max_error=0.5).check()
    with pytest.raises(ParameterError, match="`by` has no effect"):
        AudioDedup(by="score").check()
    with pytest.raises(ParameterError, match="needs an index"):
        VideoDedup(update=True).check()
    with pytest.raises(OperatorError, match="not a list of hashes"):
        Pipeline(Rows([{"prints": "abc"}]), AudioDedup(hash_column="prints")).collect(executor="inline")


def test_explanations_name_the_twin_the_share_and_the_offset(tmp_path):
    rng = np.random.default_rng(8)
    song = sequence(rng, 400)
    half = np.concatenate([song[:140], sequence(rng, 60)])  # 70 %
    step = AudioDedup(hash_column="prints")
    rows = rows_of([song, with_errors(rng, song[100:300], 0.03), half])
    Pipeline(Rows(rows), step, ParquetWriter(str(tmp_path))).run(executor="inline")
    groups = Groups.load(tmp_path)
    (row,) = explain_row(groups, "v1")
    text = explanation_text(row)
    assert "v1 (rows:1) was dropped by audio_dedup" in text
    assert "duplicate of v0" in text
    assert "100.0% of the shorter one agrees" in text
    assert "it begins 3.20 s after the beginning of the other one" in text
    assert "it begins 3.20 s after the beginning of the other one" in str(why(str(tmp_path), "v1")[0])
    (dropped,) = groups.members(groups.table()["kept_address"][0].as_py(), 5)
    assert "it begins 3.20 s after the beginning of the other one" in likeness(dropped)
    near = explanation_text(explain_row(groups, "v2")[0])
    assert "kept, but close to v0" in near
    assert "below the threshold of 0.8" in near
    (pair,) = groups.table().to_pylist()
    assert pair["offset"] == pytest.approx(3.2)
    assert 0.02 < pair["error"] < 0.04


def test_an_index_of_earlier_rows(tmp_path):
    sequences = planted(60, seed=9)
    index = str(tmp_path / "index")
    step = AudioDedup(hash_column="prints", keep="first")
    first = AudioDedup(hash_column="prints", keep="first", against=index, update=True)
    Pipeline(Rows(rows_of(sequences)[:30]), first, ParquetWriter(str(tmp_path / "a"))).run(executor="inline")
    later = AudioDedup(hash_column="prints", keep="first", against=index)
    report = Pipeline(Rows(rows_of(sequences)[30:]), later, ParquetWriter(str(tmp_path / "b"))).run(executor="inline")
    expected, pairs = naive(sequences, step)
    kept = pq.read_table(tmp_path / "b", columns=["id"])["id"].to_pylist()
    assert kept == [name for name in expected if int(name[1:]) >= 30]
    assert report.dropped[f"in the index {index}"] > 0
    found = {row["id"]: round(row["offset"] / step.step_s) for row in Groups.load(tmp_path / "b").table().to_pylist()}
    assert found == {name: offset for name, (_, _, offset) in pairs.items() if int(name[1:]) >= 30}
    with pytest.raises(ParameterError, match="is an index for audio"):
        VideoDedup(against=index).check()


# ------------------------------------------------------------------------------------------------------------- promises


@pytest.mark.parametrize("call_bytes", [3000, 100_000])
def test_keys_that_do_not_fit_are_read_in_pieces(monkeypatch, call_bytes):
    sequences = planted(60, seed=12)
    step = AudioDedup(hash_column="prints", keep="first")
    expected = fates(rows_of(sequences), step)
    assert expected[1]
    monkeypatch.setattr(shuffle, "MIN_PART_BYTES", 100)
    monkeypatch.setattr(shuffle, "bytes_per_call", lambda _: call_bytes)
    monkeypatch.setattr(aligned, "bucket_count", lambda *_: 2)  # so that a range of keys takes several pieces
    assert fates(rows_of(sequences), step, 17) == expected


def test_files_are_opened_in_proportion_to_partitions(monkeypatch):
    from tamis.memory.spill import ObservedFacts

    opened = []
    plain = ObservedFacts.__getitem__
    monkeypatch.setattr(ObservedFacts, "__getitem__", lambda self, number: opened.append(number) or plain(self, number))
    sequences, counts = planted(40, seed=13), []
    for partitions in (10, 40):
        opened.clear()
        fates(rows_of(sequences), AudioDedup(hash_column="prints"), 40 // partitions)
        counts.append(len(opened) / partitions)
    assert counts[1] <= counts[0] + 1


@pytest.mark.slow
def test_the_same_rows_for_any_workers_partitions_and_memory():
    sequences = planted(240, seed=11)
    step = AudioDedup(hash_column="prints")
    order = sorted(range(len(sequences)), key=lambda row: -len(sequences[row]))
    expected = naive(sequences, step, order)
    same(fates(rows_of(sequences), step, 240), expected)
    for per_partition, options in ((50, {"workers": 2}), (240, {"workers": 1, "memory": "600MB"})):
        same(fates(rows_of(sequences), step, per_partition, executor="local", **options), expected)


SCRIPT = """
import os, signal, sys
from tamis import ParquetReader, ParquetWriter, Pipeline
from tamis.dedup import AudioDedup
from tamis.executors import driver

source, out, phase = sys.argv[1:]
plain = driver._GatherWork.map
calls = [0]

def map(self, name, function, items, **options):
    def counted(*item):
        calls[0] += name.startswith(phase)
        if calls[0] == min(2, len(items)) and name.startswith(phase):
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*item)
    return plain(self, name, counted, items, **options)

driver._GatherWork.map = map
step = AudioDedup(hash_column="prints")
Pipeline(ParquetReader(source, blocksize="20kB"), step, ParquetWriter(out)).run(executor="inline", progress=False)
"""


@pytest.mark.slow
def test_a_run_that_is_killed_in_each_phase_resumes_with_the_same_rows(tmp_path):
    sequences = planted(120, seed=14)
    rows = pa.table({"id": [f"v{n}" for n in range(120)], "prints": sequence_column(sequences)})
    pq.write_table(rows, tmp_path / "in.parquet", row_group_size=30)
    for phase in ("keys by range", "shared keys", "offsets", "stretches", "aligned rows", "decisions", "none"):
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / "in.parquet"), str(tmp_path / "out"), phase]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == (0 if phase == "none" else -signal.SIGKILL), done.stderr
    step = AudioDedup(hash_column="prints")
    order = sorted(range(len(sequences)), key=lambda row: -len(sequences[row]))
    files = sorted((tmp_path / "out").glob("*.parquet"))
    kept = [name for file in files for name in pq.read_table(file, columns=["id"])["id"].to_pylist()]
    pairs = Groups.load(tmp_path / "out").table().to_pylist()
    twins = {row["id"]: (row["kept_id"], row["similarity"], round(row["offset"] / step.step_s)) for row in pairs}
    same((kept, twins), naive(sequences, step, order))


def test_a_disk_that_fills_is_reported_and_the_run_resumes(tmp_path, monkeypatch):
    rows = rows_of(planted(40, seed=15))

    def run(out):
        return Pipeline(Rows(rows), AudioDedup(hash_column="prints"), ParquetWriter(str(out))).run(executor="inline")

    expected = run(tmp_path / "calm").dropped
    with monkeypatch.context() as patch:
        patch.setattr(aligned, "check_free_space", lambda *_: shuffle.check_free_space(FullDisk(), 1))
        with pytest.raises(DiskFull, match="the disk is full") as raised:
            run(tmp_path / "out")
    assert "rerun the same command to resume" in str(raised.value)
    assert run(tmp_path / "out").dropped == expected


class FullDisk:
    def free_bytes(self):
        return 0
