"""Deduplication of images: the same rows as comparing all pairs of hashes, for any division of the work."""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import ParquetWriter, Pipeline, Rows
from tamis.dedup import Groups, ImageDedup, hamming


def planted(count, bits=64, radius=8, seed=0):
    """Hashes uint64[count, words] of which half are others with a few bits flipped, in random order."""
    rng = np.random.default_rng(seed)
    hashes = rng.integers(0, 2**64, (count, bits // 64), dtype=np.uint64)
    for row in range(count // 2, count):
        hashes[row] = hashes[rng.integers(0, row)]
        for bit in rng.choice(bits, rng.integers(0, radius + 4), replace=False):
            hashes[row, bit // 64] ^= np.uint64(1 << int(bit % 64))
    return hashes[rng.permutation(count)]


def rows_of(hashes, **more):
    return [
        {
            "id": f"v{number}",
            "hash": row.astype(">u8").tobytes(),
            **{key: values[number] for key, values in more.items()},
        }
        for number, row in enumerate(hashes)
    ]


def naive(hashes, radius, order=None):
    """(kept ids, {dropped id: (kept id, bits)}): each row is compared with the rows kept before it."""
    kept, pairs = [], {}
    for row in range(len(hashes)) if order is None else order:
        distances = np.bitwise_count(hashes[kept] ^ hashes[row]).sum(axis=1) if kept else np.empty(0)
        close = np.flatnonzero(distances <= radius)
        if len(close):
            pairs[f"v{row}"] = (f"v{kept[close[0]]}", int(distances[close[0]]))
        else:
            kept.append(row)
    return [f"v{row}" for row in sorted(kept)], pairs


def fates(rows, step, per_partition=50, **options):
    """(ids of the kept rows, {dropped id: (kept id, bits)})"""
    with tempfile.TemporaryDirectory() as folder:
        report = Pipeline(Rows(rows, rows_per_partition=per_partition), step, ParquetWriter(f"{folder}/out")).run(
            **{"executor": "inline", **options}
        )
        assert report.balances
        files = sorted(Path(folder, "out").glob("*.parquet"))
        kept = [name for file in files for name in pq.read_table(file, columns=["id"])["id"].to_pylist()]
        pairs = Groups.load(f"{folder}/out").table().to_pylist()
        return kept, {row["id"]: (row["kept_id"], row["bits"]) for row in pairs}


# ---------------------------------------------------------------------------------------------------------- decisions


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["phash", "pdq"]),
    radius=st.sampled_from([0, 1, 4, 8, 12]),
    per_partition=st.integers(7, 90),
    listed=st.sampled_from([1, 2, 100]),
    ranges=st.sampled_from([1, 2, 8]),
)
def test_survivors_and_pairs_are_those_of_comparing_all_rows(seed, kind, radius, per_partition, listed, ranges):
    hashes = planted(90, 256 if kind == "pdq" else 64, radius, seed)
    step = ImageDedup(hash=kind, radius=radius, hash_column="hash")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hamming, "MAX_LISTED", listed)  # with few, rows have to be compared again
        patch.setattr(hamming, "bucket_count", lambda *_: ranges)
        kept, pairs = fates(rows_of(hashes), step, per_partition)
    expected, twins = naive(hashes, radius)
    assert kept == expected
    assert pairs.keys() == twins.keys()
    if listed == 100:
        assert pairs == twins
