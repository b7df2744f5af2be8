"""A random sample of fixed size, the same for any order of work."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from tamis.batch import Batch, Column
from tamis.errors import ParameterError
from tamis.operator import Decide, Gather, Observations, Work, operator


@operator()
class Sample(Gather):
    """Keep `rows` rows chosen at random, each row equally likely, fewer only if there are fewer.

    The choice depends on the addresses of the rows and on `seed`, so it is the same for any number of workers and any
    block size. Costs 8 bytes of disk per row while it runs.

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
        salt = self.seed.to_bytes(8, "little", signed=True)
        keys = (batch.origin.address(row).encode() for row in range(len(batch)))
        hashes = (hashlib.blake2b(key, digest_size=8, key=salt).digest() for key in keys)
        return {"lot": np.frombuffer(b"".join(hashes), dtype="<u8")}

    def resolve(self, observed: Observations, decide: Decide, work: Work) -> None:
        smallest = np.empty(0, dtype=np.uint64)
        for facts in observed:
            lots = np.concatenate([smallest, _lots(facts)])
            smallest = (
                np.partition(lots, self.rows - 1)[: self.rows] if 0 < self.rows < len(lots) else lots[: self.rows]
            )
        room = self.rows
        limit = smallest.max() if len(smallest) else None
        for number, facts in enumerate(observed):
            lots = _lots(facts)
            keep = lots <= limit if limit is not None else np.zeros(len(lots), dtype=np.bool_)
            if keep.sum() > room:  # two rows drew the same lot: the first in source order wins
                keep[np.flatnonzero(keep)[room:]] = False
            room -= int(keep.sum())
            decide(number, ~keep, "not in the sample")


def _lots(facts: object) -> np.ndarray:
    column = facts.column("lot") if "lot" in facts.column_names else None  # type: ignore[attr-defined]
    return column.to_numpy() if column is not None else np.empty(0, dtype=np.uint64)
