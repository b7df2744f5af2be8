"""Components of rows that share a key: GPU and CPU give the same rows the same labels."""

import numpy as np
import pytest

from tamis.dedup.candidates import edges_from_keys
from tamis.kernels import components_gpu, groups, minhash_gpu

needs_gpu = pytest.mark.skipif(not minhash_gpu.available(), reason="this machine has no GPU")


def on_cpu(total, rows, keys):
    parents, touched, pairs = np.arange(total, dtype=np.int32), np.zeros(total, np.bool_), 0
    pieces = iter([{"key": keys.reshape(-1), "row": np.repeat(rows, keys.shape[1])}])
    for left, right in edges_from_keys(pieces):
        groups.unite(parents, left, right)
        groups.mark(touched, left)
        groups.mark(touched, right)
        pairs += len(left)
    out = np.empty(total, np.int64)
    groups.flatten(parents, 0, total, touched, out)
    return out, pairs


def naive(total, rows, keys):
    """By repeated search."""
    label, holders = list(range(total)), {}
    for row, own in zip(rows.tolist(), keys.tolist(), strict=True):
        for key in own:
            holders.setdefault(key, []).append(row)
    shared = [found for found in holders.values() if len(found) > 1]
    changed = True
    while changed:
        changed = False
        for found in shared:
            least = min(label[row] for row in found)
            for row in found:
                changed |= label[row] != least
                label[row] = least
    touched = {row for found in shared for row in found}
    return [label[row] if row in touched else -1 for row in range(total)]


def some_keys(total, bands, spread, seed):
    rng = np.random.default_rng(seed)
    rows = np.flatnonzero(rng.random(total) < 0.9)
    numbers = rng.integers(0, max(1, int(spread * total)), (len(rows), bands)).astype(np.uint64)
    return rows, numbers * np.uint64(0x9E3779B97F4A7C15)


@pytest.mark.parametrize("spread", [3, 50])
@pytest.mark.parametrize("total", [1, 60, 300])
def test_the_cpu_finds_the_components(total, spread):
    rows, keys = some_keys(total, 4, spread, total)
    assert on_cpu(total, rows, keys)[0].tolist() == naive(total, rows, keys)


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("memory", [1, 10**10], ids=["many ranges", "one range"])
@pytest.mark.parametrize("spread", [1e-5, 0.3, 3, 1000])
@pytest.mark.parametrize("total", [1, 2, 1000, 300_000])
def test_both_give_the_same_components(total, spread, memory):
    rows, keys = some_keys(total, 14, spread, total)
    found = components_gpu.KeyComponents(total, 14, memory)
    for start in range(0, len(rows), 1000):
        found.add(rows[start : start + 1000], keys[start : start + 1000])
    pairs = found.join()
    labels = found.labels(0, total)
    expected, count = on_cpu(total, rows, keys)
    assert pairs == count
    assert np.array_equal(labels, expected)


@needs_gpu
@pytest.mark.gpu
def test_a_long_chain_is_one_component():
    total = 200_000
    order = np.random.default_rng(1).permutation(total)
    keys = np.empty((total, 2), np.uint64)
    keys[order, 0], keys[order, 1] = np.arange(total), np.arange(1, total + 1)
    found = components_gpu.KeyComponents(total, 2, 10**9)
    found.add(np.arange(total), keys)
    pairs = found.join()
    labels = found.labels(0, total)
    assert (labels == 0).all()
    assert pairs == total - 1
