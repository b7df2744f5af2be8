"""Deduplication of sounds and videos by sequences of hashes: the rows of a naive comparison, for any division of the work."""

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import ParquetWriter, Pipeline, Rows
from tamis.dedup import AudioDedup, Groups, VideoDedup, aligned, shuffle
from tamis.dedup.explain import explain_row, explanation_text
from tamis.dedup.sequences import sequence_column
from tamis.errors import OperatorError, ParameterError

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
    """(kept ids, {dropped id: (kept id, similarity, offset in positions)}): rows are visited in the order of the keep policy."""
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
            for better in sharing[key][: aligned.MAX_SHARING]:
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
        if scores[offset] >= aligned.MIN_SHARED and apart and len(chosen) < aligned.MAX_OFFSETS:
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
    with tempfile.TemporaryDirectory() as folder:
        report = Pipeline(Rows(rows, rows_per_partition=per_partition), step, ParquetWriter(f"{folder}/out")).run(
            **{"executor": "inline", **options}
        )
        assert report.balances
        files = sorted(Path(folder, "out").glob("*.parquet"))
        kept = [name for file in files for name in pq.read_table(file, columns=["id"])["id"].to_pylist()]
        pairs = Groups.load(f"{folder}/out").table().to_pylist()
        return kept, {
            row["id"]: (row["kept_id"], row["similarity"], round(row["offset"] / step.step_s)) for row in pairs
        }


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
        patch.setattr(aligned, "MAX_SHARING", sharing)
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
        patch.setattr(aligned, "MAX_SHARING", sharing)
        patch.setattr("tamis.dedup.sounds.WINDOW", window)
        same(fates(rows_of(sequences), step, 7), naive(sequences, step))
