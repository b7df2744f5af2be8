"""Random samples that do not depend on the order of work: a share of the rows, or a number of rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from tamis.batch import Batch, Column
from tamis.errors import ParameterError
from tamis.operators import Decide, Filter, Gather, Observations, Rule, Scores, Work, at_most, operator


def random_keys(batch: Batch, seed: int) -> np.ndarray:
    """A random number per row that depends only on its address and the seed."""
    salt = seed.to_bytes(8, "little", signed=True)
    keys = (address.encode() for address in batch.origin.addresses())
    return np.frombuffer(b"".join(hashlib.blake2b(key, digest_size=8, key=salt).digest() for key in keys), dtype="<u8")


@operator(writes="random_key")
class RowShare(Filter):
    """Keep a random share of the rows; a larger share contains all rows of a smaller one.

    The choice depends on the addresses of the rows and on `seed`. The score `random_key` is uniform between 0 and 1.

    >>> from tamis import Pipeline, Rows
    >>> rows = Rows([{"n": n} for n in range(1000)])
    >>> 400 < Pipeline(rows, RowShare(share=0.5)).run().kept < 600
    True
    """

    share: float = 1.0
    seed: int = 0

    def check(self) -> None:
        if not 0 <= self.share <= 1:
            raise ParameterError(f"`share` must be between 0 and 1, got {self.share}")

    def score(self, batch: Batch) -> Scores:
        return {"random_key": random_keys(batch, self.seed) / 2.0**64}

    def rules(self) -> list[Rule]:
        return [at_most("random_key", self.share)]


@operator()
class Sample(Gather):
    """Keep `rows` rows chosen at random, each equally likely; all rows if there are fewer.

    The choice depends on the addresses of the rows and on `seed`, so it is the same for any number of workers and any
    block size. Uses 8 bytes of disk per row during the run.

    >>> from tamis import Pipeline, Rows
    >>> Pipeline(Rows([{"n": n} for n in range(100)]), Sample(rows=7)).run().kept
    7
    """

    rows: int
    seed: int = 0

    def check(self) -> None:
        if self.rows < 0:
            raise ParameterError(f"`rows` must not be negative, got {self.rows}")

    def observe(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        return {"random_key": random_keys(batch, self.seed)}

    def resolve(self, observed: Observations, decide: Decide, work: Work) -> None:
        smallest = np.empty(0, dtype=np.uint64)
        for facts in observed:
            random_keys = np.concatenate([smallest, _random_keys(facts)])
            smallest = (
                np.partition(random_keys, self.rows - 1)[: self.rows]
                if 0 < self.rows < len(random_keys)
                else random_keys[: self.rows]
            )
        left = self.rows
        limit = smallest.max() if len(smallest) else None
        for number, facts in enumerate(observed):
            random_keys = _random_keys(facts)
            keep = random_keys <= limit if limit is not None else np.zeros(len(random_keys), dtype=np.bool_)
            if keep.sum() > left:  # equal keys: the first in source order is kept
                keep[np.flatnonzero(keep)[left:]] = False
            left -= int(keep.sum())
            decide(number, ~keep, "not in the sample")


def _random_keys(facts: object) -> np.ndarray:
    column = facts.column("random_key") if "random_key" in facts.column_names else None  # type: ignore[attr-defined]
    return column.to_numpy() if column is not None else np.empty(0, dtype=np.uint64)
