"""What a Gather is given to decide about all rows: the facts it observed, a way to decide, and a place to work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tamis.exchange import Exchange

GROUPS, DETAILS = "groups", "dedup"
"""The folders in `.tamis/` that deduplications publish to. Names there begin with that of the stage."""


def stage_number(name: str) -> int:
    """The number in `stage-3` and `stage-3-000001.table`."""
    return int(name.split("-")[1]) if name.startswith("stage-") else 0


class Observations(Protocol):
    """The facts from `observe`: one Arrow table per partition, in source order, memory-mapped on demand."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[pa.Table]: ...

    def __getitem__(self, partition: int) -> pa.Table: ...

    def num_rows(self, partition: int) -> int:
        """The number of rows of a partition, without reading them."""
        ...


class Decide(Protocol):
    """Records which rows of a partition are dropped, one entry per row; can be pickled and called in a worker."""

    def __call__(
        self,
        partition: int,
        drop: np.ndarray,
        reason: str | Sequence[str | None] | pa.Array,
        payload: pa.Array | None = None,
    ) -> None: ...


class Work(Protocol):
    """What `resolve` may use: an exchange, and the workers."""

    exchange: Exchange
    """Holds intermediate results, until the run finishes so that it can resume."""
    stage: int
    """The number of the stage that the Gather ends."""
    workers: int
    worker_bytes: int
    """The memory that each call in a worker may use."""

    def map(
        self,
        name: str,
        function: Callable[..., Any],
        items: Sequence[tuple[Any, ...]],
        *,
        new_workers: bool = False,
        on_gpu: bool = False,
    ) -> list[Any]:
        """`[function(*item) for item in items]` in the workers, with results in order.

        With `new_workers`, the calls run in newly started workers, whose heap is empty. With `on_gpu`, they run in workers that
        have a GPU each, if the run may use GPUs; `tamis.models.devices.assigned()` says which.

        Each result must be JSON-serializable (write large results to files). It is recorded when it arrives, so a resumed run
        computes only what is missing. What `function` writes to the exchange can be read when all calls are done. It must
        return the same result when called again.
        """
        ...

    def publish(self, name: str, content: Path | bytes) -> None:
        """Copy a file, or write bytes, to `.tamis/<name>` in the output folder."""
        ...

    def published(self, folder: str) -> list[str]:
        """The names in `.tamis/<folder>`, from this run and earlier ones."""
        ...

    def withdraw(self, name: str) -> None:
        """Remove `.tamis/<name>`, a file or folder that an earlier run published."""
        ...
