"""Rows with embeddings, many of which are similar to others."""

import numpy as np

from tests.dedup.deduplicate import kept_and_pairs

EXACT = {"keep": "first", "neighbours": None}
"""Without a limit of neighbouring clusters, no pair is missed."""


def planted(count, dimension=16, noise=0.25, seed=0, kind=np.float32):
    """Vectors of which half are others with a little noise, in random order."""
    rng = np.random.default_rng(seed)
    originals = rng.normal(size=(max(1, count // 2), dimension))
    copies = originals[rng.integers(0, len(originals), count - len(originals))]
    vectors = np.concatenate([originals, copies + noise * rng.normal(size=copies.shape)])[:count]
    return vectors[rng.permutation(count)].astype(kind)


def rows_of(vectors, **more):
    names = [f"v{number}" for number in range(len(vectors))]
    return [
        {"id": name, "embedding": vector.tolist(), **{key: values[number] for key, values in more.items()}}
        for number, (name, vector) in enumerate(zip(names, vectors, strict=True))
    ]


def fates(rows, step, per_partition=50, **options):
    """(ids of the kept rows, pairs as {id: (kept id, similarity)})"""
    kept, pairs = kept_and_pairs(rows, step, per_partition, **options)
    return kept, {row["id"]: (row["kept_id"], row["similarity"]) for row in pairs}
