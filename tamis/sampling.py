"""Random samples and a random order that do not depend on the order of work."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column, as_array
from tamis.errors import ParameterError
from tamis.operators import Decide, Filter, Gather, Observations, Reorder, Rule, Scores, Work, at_most, operator


def salt_of(seed: int) -> bytes:
    """A key for hashes that depends on a seed, which may be any integer."""
    try:
        return seed.to_bytes(8, "little", signed=True)
    except OverflowError:
        return hashlib.blake2b(str(seed).encode(), digest_size=16).digest()


def random_keys(batch: Batch, seed: int) -> np.ndarray:
    """A random number per row that depends only on its address and the seed."""
    salt = salt_of(seed)
    keys = (address.encode() for address in batch.origin.addresses())
    return np.frombuffer(b"".join(hashlib.blake2b(key, digest_size=8, key=salt).digest() for key in keys), dtype="<u8")


def order_keys(batch: Batch, seed: int) -> np.ndarray:
    """As `random_keys`, other numbers and computed in arrays: the hash of each place, mixed with positions and copies."""
    origin, salt = batch.origin, salt_of(seed)
    hashes = [
        hashlib.blake2b(place.encode("utf-8", "surrogateescape"), digest_size=8, key=salt) for place in origin.places
    ]
    keys = np.frombuffer(b"".join(each.digest() for each in hashes), dtype="<u8")[origin.place]
    for numbers in (origin.position, *origin.children):
        found = _mixed(keys ^ _mixed(numbers.astype(np.uint64)))
        keys = np.where(
            numbers >= 0, found, keys
        )  # -1: the row has no number here, and may be beside rows that have one
    return keys


def _mixed(keys: np.ndarray) -> np.ndarray:
    """A permutation of all 64-bit numbers whose bits are independent: splitmix64 (Steele, Lea and Flood 2014)."""
    keys = keys + np.uint64(0x9E3779B97F4A7C15)
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))


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
class Shuffle(Reorder):
    """Put all rows in a random order, out of core.

    The place of a row depends on its address and on `seed`, so the order is the same for any number of workers, memory
    budget and block size. Rows keep their addresses. Later steps and the shards of the output get rows from all parts of the
    input, each about the same number.

    Rows are written to disk once, compressed, in sorted runs, and read once in the order of their keys. This takes the disk
    space of the rows, and memory within the budget.

    >>> from tamis import Pipeline, Rows
    >>> rows = Rows([{"n": n} for n in range(8)])
    >>> Pipeline(rows, Shuffle(seed=1)).collect()["n"].to_pylist()
    [1, 7, 2, 0, 3, 5, 6, 4]
    """

    seed: int = 0

    def observe(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        return {"key": order_keys(batch, self.seed)}


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
        keys = ObservedKeys(observed)
        limits = find_smallest(work, "sample", keys, len(observed), self.rows)
        work.map("sample", _decide, [(keys, decide, number, limit) for number, limit in enumerate(limits)])


@dataclass(frozen=True)
class ObservedKeys:
    """The random keys of the rows of a partition."""

    observed: Observations

    def __call__(self, partition: int) -> np.ndarray:
        facts = self.observed[partition]
        known = "random_key" in facts.column_names
        return facts.column("random_key").to_numpy() if known else np.empty(0, np.uint64)


def _decide(keys: ObservedKeys, decide: Decide, partition: int, limit: PartLimit) -> None:
    decide(partition, ~limit.chosen(keys(partition)), "not in the sample")


@operator()
class SampleByGroup(Gather):
    """Keep about `rows` rows, divided among the values of column `by` with a temperature.

    A group of n rows gets a share of the sample proportional to n ** (1 / temperature): with 1, the shares of the input; with
    5, as Arivazhagan et al. 2019 use it for languages, small groups get more; with a very large one, all groups get the
    same. A group that has fewer rows than its share is kept as a whole, and the others get the rest. Rows of a group are
    kept with equal probability, by their addresses and `seed`, so the number kept varies slightly. A null is a group of its
    own.

    >>> from tamis import Pipeline, Rows
    >>> rows = [{"language": "en" if n % 10 else "is"} for n in range(10_000)]
    >>> kept = Pipeline(Rows(rows), SampleByGroup(by="language", rows=1000, temperature=1e9)).collect()["language"].to_pylist()
    >>> 400 < kept.count("is") < 600, 400 < kept.count("en") < 600
    (True, True)
    """

    by: str
    rows: int
    temperature: float = 1.0
    seed: int = 0

    def check(self) -> None:
        if self.rows < 0:
            raise ParameterError(f"`rows` must not be negative, got {self.rows}")
        if not self.temperature > 0:
            raise ParameterError(f"`temperature` must be greater than 0, got {self.temperature}")

    def reads(self) -> tuple[str, ...]:
        return (self.by,)

    def observe(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        values = as_array(batch[self.by])
        if pa.types.is_nested(values.type):
            raise ParameterError(f"column `{self.by}` has type {values.type}; groups need texts or numbers")
        return {"random_key": random_keys(batch, self.seed), "group": values.cast(pa.string())}

    def resolve(self, observed: Observations, decide: Decide, work: Work) -> None:
        counts: Counter[str] = Counter()
        for part in work.map("count groups", _count_groups, [(observed, number) for number in range(len(observed))]):
            counts.update(part)
            if len(counts) > MOST_GROUPS:
                raise ParameterError(
                    f"column `{self.by}` has more than {MOST_GROUPS:,} different values", hint="choose another column"
                )
        shares = shares_of(counts, self.rows, self.temperature)
        work.map("sample", _decide_groups, [(observed, decide, number, shares) for number in range(len(observed))])


MOST_GROUPS = 100_000
"""Groups that a sample is divided among; their counts are in memory."""
_PRESENT, _NULL = "v", "n"
"""First characters of the names of groups, so that a null is not the text "null"."""


def _groups(observed: Observations, partition: int) -> pa.Array:
    facts = observed[partition]
    if "group" not in facts.column_names:
        return pa.array([], pa.string())
    values = as_array(facts.column("group"))
    return pc.if_else(pc.is_null(values), _NULL, pc.binary_join_element_wise(_PRESENT, pc.fill_null(values, ""), ""))


def _count_groups(observed: Observations, partition: int) -> dict[str, int]:
    counted = pc.value_counts(_groups(observed, partition))
    return dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True))


def shares_of(counts: Mapping[str, int], rows: int, temperature: float) -> dict[str, float]:
    """The share of the rows of each group to keep, so that about `rows` are kept in total.

    >>> [round(share, 3) for share in shares_of({"a": 900, "b": 100}, 500, 1.0).values()]
    [0.5, 0.5]
    >>> [round(share, 3) for share in shares_of({"a": 900, "b": 100}, 500, 1e9).values()]
    [0.444, 1.0]
    """
    most = max(counts.values(), default=0)
    weights = {name: (number / most) ** (1 / temperature) for name, number in counts.items()}
    shares = dict.fromkeys(counts, 1.0)
    left, open_groups = float(rows), sorted(counts)
    while open_groups:
        total = sum(weights[name] for name in open_groups)
        full = [name for name in open_groups if left * weights[name] / total >= counts[name]]
        if not full:
            return shares | {name: left * weights[name] / total / counts[name] for name in open_groups}
        left -= sum(counts[name] for name in full)
        open_groups = [name for name in open_groups if name not in set(full)]
    return shares


def _decide_groups(observed: Observations, decide: Decide, partition: int, shares: Mapping[str, float]) -> None:
    groups = _groups(observed, partition)
    limits = np.array([shares[name] for name in groups.to_pylist()])
    keys = ObservedKeys(observed)(partition) / 2.0**64
    decide(partition, (keys >= limits) & (limits < 1), "not in the sample")


# ------------------------------------------------------------------------------------------------------ the smallest keys

DIGIT_BITS = 8
"""Bits of a key that are counted at a time; a call returns up to this power of two of counts."""

Keys: TypeAlias = Callable[[int], np.ndarray]
"""The uint64 keys of a partition; can be sent to a worker."""


@dataclass(frozen=True)
class PartLimit:
    """The keys of a partition that are among the smallest of all: those below `key`, and the first `equal` equal to it."""

    key: int
    equal: int

    def chosen(self, keys: np.ndarray) -> np.ndarray:
        found = keys < np.uint64(self.key)
        found[np.flatnonzero(keys == np.uint64(self.key))[: self.equal]] = True
        return found


def find_smallest(work: Work, name: str, keys: Keys, num_partitions: int, wanted: int) -> list[PartLimit]:
    """For each partition, which of its keys are among the `wanted` smallest of all; of equal keys, the first in source order.

    Counts keys by their first bits, then those that begin with the bits of the limit by the next bits, and so on. So no process
    holds more than the keys of one partition.
    """
    prefix, left = 0, wanted
    for shift in range(64 - DIGIT_BITS, -1, -DIGIT_BITS):
        items = [(keys, number, prefix, shift) for number in range(num_partitions)]
        counts = work.map(f"{name}, bits from {shift}", count_digits, items)
        totals = np.zeros(2**DIGIT_BITS, np.int64)
        for part in counts:
            for each, count in part.items():
                totals[int(each)] += count
        ends = np.cumsum(totals)
        if left >= ends[-1]:  # there are no more, which shows in the first round
            return [PartLimit(2**64 - 1, 2**63)] * num_partitions
        digit = int(np.searchsorted(ends, left, side="right"))
        left -= int(ends[digit] - totals[digit])
        prefix = prefix << DIGIT_BITS | digit
        if not left:
            return [PartLimit(prefix << shift, 0)] * num_partitions
    equal = [part.get(str(digit), 0) for part in counts]
    return [PartLimit(prefix, max(0, left - before)) for before in np.cumsum([0, *equal]).tolist()[:-1]]


def count_digits(keys: Keys, partition: int, prefix: int, shift: int) -> dict[str, int]:
    """How many keys of a partition that begin with the bits of `prefix` have each value in the bits that follow."""
    found = keys(partition)
    if shift + DIGIT_BITS < 64:
        found = found[found >> np.uint64(shift + DIGIT_BITS) == np.uint64(prefix)]
    digits, counts = np.unique(found >> np.uint64(shift) & np.uint64(2**DIGIT_BITS - 1), return_counts=True)
    return {str(digit): int(count) for digit, count in zip(digits, counts, strict=True)}
