"""The steps of a pipeline: the kinds of operator, and the registry of names.

    Source   files -> batches            Map      rows -> the same rows, more columns
    Sink     batches -> shards           Filter   rows -> fewer rows, each drop with a reason
                                         Expand   row  -> many rows
                                         Gather   all rows -> a decision per row, applied as a filter
                                         Reorder  all rows -> the same rows in another order

An operator is a frozen dataclass that holds only its parameters: a description. Building one does no work. In a worker,
`open(context)` returns the object that runs: the operator itself, or, if it needs a model, an index or a connection, an
object that holds it. An operator declares the columns it reads and receives only those.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias, TypeVar, dataclass_transform

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Column
from tamis.context import Context
from tamis.curator_names import explain_keywords
from tamis.errors import OperatorError, TamisError
from tamis.gathering import Decide, Observations, Work
from tamis.identity import identify, parameter_identity
from tamis.media import MediaAccess
from tamis.modules import home_of
from tamis.parameters import as_text, check_parameters, parse_bytes

# Modules with operators import these from here, too.
from tamis.partitions import CopyingWriter, Layout, Partition, Piece, Reading, Shard, ShardWriter  # noqa: F401
from tamis.rules import Rule, at_least, at_most, between, less_than, one_of, reason_to_invert  # noqa: F401

Scores: TypeAlias = Mapping[str, "np.ndarray | Column"]
ALL = "*"
"""In `reads`: all columns."""


@dataclass(frozen=True)
class Resources:
    """What a worker needs to run an operator. Memory is in addition to the batch itself."""

    cpus: float = 1.0
    memory: int | str | None = None
    gpus: float = 0.0
    """GPUs for a worker of its own; with a fraction such as 0.5, two workers share one."""
    gpu_memory: int | str | None = None
    """Memory on the GPU. Without `gpus`, as many workers share a GPU as fit into its memory."""
    shared: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Bytes of the objects that `open` takes from `Context.shared`, by key: steps with the same key need them once."""

    @property
    def memory_bytes(self) -> int:
        return self.own_bytes + sum(self.shared.values())

    @property
    def own_bytes(self) -> int:
        """The memory that no other step shares."""
        return parse_bytes(self.memory) if self.memory is not None else 0

    @property
    def uses_gpu(self) -> bool:
        return self.gpus > 0 or self.gpu_memory is not None

    @property
    def gpu_bytes(self) -> int | None:
        """Memory on the GPU; None if it is not declared."""
        return parse_bytes(self.gpu_memory) if self.gpu_memory is not None else None


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One step of a pipeline. Subclass one of the kinds below."""

    kind: ClassVar[str] = "operator"
    declared_reads: ClassVar[tuple[str, ...]] = ()
    declared_writes: ClassVar[tuple[str, ...]] = ()
    declared_resources: ClassVar[Resources] = Resources()
    batch_rows: ClassVar[int | None] = None
    """The most rows to process at a time; None for as many as fit in a batch."""
    cost: ClassVar[float] = 1.0
    """Approximate time per megabyte relative to counting words; used for hints about the order of steps."""
    path_parameters: ClassVar[frozenset[str]] = frozenset({"file_paths", "path", "paths", "model", "tokenizer"})
    """Parameters that name files. In a recipe they are relative to the recipe."""
    incidental: ClassVar[frozenset[str]] = frozenset()
    """Parameters that do not affect the rows: locations of files, partitioning, credentials."""
    tolerance: ClassVar[float] = 0.0
    """How much numbers may differ with the rows that are processed together: networks round differently in other batches."""
    version: ClassVar[int | str | None] = None
    """If set, it identifies the class in place of its code: committed work is redone when the version changes."""
    preload: ClassVar[tuple[str, ...]] = ()
    """Modules to import in workers before their memory is limited, besides that of the class."""

    def __post_init__(self) -> None:
        check_parameters(self.name, self)

    @property
    def name(self) -> str:
        return snake_case(type(self).__name__)

    @property
    def resources(self) -> Resources:
        """What a worker needs to run this step. Override it if that depends on parameters, such as the size of a model."""
        return self.declared_resources

    @property
    def worth_gpu_bytes(self) -> int:
        """With device="auto", this step runs on the CPU if the input is smaller than this, or if its size is unknown."""
        return 0

    @property
    def cores_like_a_gpu(self) -> int | None:
        """With device="auto", this step runs on the CPU if there are this many cores for each GPU; None for any number."""
        return None

    @property
    def batch_bytes(self) -> int | None:
        """How many bytes of rows to process at a time if this step has workers of its own; None for the usual size."""
        return None

    @property
    def row_bytes(self) -> int:
        """What the facts that this step leaves on a batch take per row, beside the row itself, such as decoded pixels.

        Batches are cut before the step, so that these facts are about as large as a batch may be.
        """
        return 0

    def reads(self) -> tuple[str, ...]:
        """The columns this step receives, under the names it uses for them."""
        return self.declared_reads

    def writes(self) -> tuple[str, ...]:
        return self.declared_writes

    def optional_reads(self) -> tuple[str, ...]:
        """Columns this step also receives if the data has them."""
        return ()

    def adds(self) -> tuple[str, ...]:
        """Columns this step writes because nothing says which: those that rows have already would be replaced by accident."""
        return ()

    def removes(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Which of the given columns this step removes, unless it writes them."""
        return ()

    def real_names(self) -> dict[str, str]:
        """The name in the data of each column read: `column=` replaces the first."""
        column = getattr(self, "column", None)
        reads = self.reads()
        names = {name: name for name in reads}
        if column and reads:
            names[reads[0]] = column
        return names

    def parameters(self) -> dict[str, Any]:
        """The fields that differ from their defaults, as a recipe stores them."""
        result = {}
        for spec in dataclasses.fields(self):
            value = getattr(self, spec.name)
            default = spec.default_factory() if callable(spec.default_factory) else spec.default
            if value != default:
                result[spec.name] = as_text(value)
        return result

    def recorded_parameters(self) -> dict[str, Any]:
        """The parameters as the manifest of a run records them."""
        return self.parameters()

    def identity(self) -> dict[str, Any]:
        """Everything that decides which rows this step returns: its name, its parameters, and its version or its code.

        Classes of Tamis are identified by their name and the version of Tamis, other classes by their code unless they set
        `version`. Objects that cannot be compared between runs are listed under `opaque`.
        """
        values: dict[str, object] = {}
        opaque: list[str] = []
        for spec in dataclasses.fields(self):
            if spec.name not in self.incidental:
                values[spec.name], unseen = parameter_identity(getattr(self, spec.name), spec.name)
                opaque += unseen
        result: dict[str, Any] = {"step": self.name, "version": self.version, "parameters": values}
        if self.version is None and home_of(type(self).__module__) != "tamis":
            code = identify(type(self), type(self).__name__)
            result["code"] = code.digest
            opaque += code.opaque
        return result | ({"opaque": opaque} if opaque and self.version is None else {})

    def changed(self, **parameters: Any) -> Self:
        """This operator with some parameters changed."""
        return dataclasses.replace(self, **parameters)

    def measuring_identity(self) -> dict[str, Any]:
        """Everything that determines the values this step computes; for a filter, thresholds are left out."""
        return self.identity()

    def check(self) -> None:
        """Raise a `TamisError` for mistakes that can be found before any data is read."""

    def packages(self) -> Mapping[str, str]:
        """The optional modules that workers import for this step, each with the extra of Tamis that installs it."""
        return {}

    @property
    def decides(self) -> bool:
        """Whether rows depend on this step. Committed work is not repeated because of steps on which they do not."""
        return True

    def parts(self) -> Sequence[Operator]:
        """The steps that a run has in place of this one: a step on a GPU may have part of its work done by CPU workers."""
        return (self,)

    def notes(self) -> list[str]:
        """What a user should know about this step before a run, such as entries of a list that it skips."""
        return []

    def open(self, context: Context) -> Any:
        """The object that runs this step; called once in each worker before the first batch.

        A step without state runs itself. A step with a model, an index or a connection leaves out the methods that its kind
        calls on batches (`apply`, `score`, `expand`, `observe`, `rewrite`, `read`, `open_shard`) and returns an object that
        has them. If that object has a `close()`, it is called at the end, and if it has a `take_counts()`, the numbers it
        returns since the last call are added up in the report. What its `take_limits()` returns, such as how many tokens fit
        in memory, is in `context.limits` of later runs over the same output. The step itself must not change.
        """
        return self

    def _undefined(self, method: str) -> Exception:
        """The error for a method that runs the step and is not here."""
        if type(self).open is Operator.open:
            return NotImplementedError(f"`{self.name}` defines no `{method}`")
        return OperatorError(
            f"`{self.name}` is not open, so it has no `{method}`", hint=f"call `open(Context()).{method}(...)`"
        )


# ------------------------------------------------------------------------------------------------- the kinds of step


class Map(Operator):
    """Adds or replaces columns; rows stay the same."""

    kind: ClassVar[str] = "map"

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        """The new columns, one value per row of `batch`."""
        raise self._undefined("apply")


@dataclass(frozen=True, kw_only=True)
class Filter(Operator):
    """Drops rows. `score` measures all rows, then `rules` decide. With `invert`, exactly the other rows are dropped."""

    kind: ClassVar[str] = "filter"

    verdict_parameters: ClassVar[frozenset[str]] = frozenset()
    """Parameters other than `min_...` and `max_...` that only `rules` uses."""
    measuring_parameters: ClassVar[frozenset[str]] = frozenset()
    """Parameters named `min_...` or `max_...` that `score` uses."""

    score_only: bool = False
    invert: bool = False

    @property
    def adds_scores(self) -> bool:
        """Whether the scores of kept rows become columns. Classifiers add their labels and drop rows in one step."""
        return self.score_only

    def measuring_identity(self) -> dict[str, Any]:
        known = self.identity()
        decides = [name for name in known["parameters"] if self.is_threshold(name)]
        return known | {"parameters": {k: v for k, v in known["parameters"].items() if k not in decides}}

    @classmethod
    def is_threshold(cls, parameter: str) -> bool:
        """Whether a parameter can change without measuring again."""
        bound = parameter.startswith(("min_", "max_")) and parameter not in cls.measuring_parameters
        return bound or parameter in cls.verdict_parameters or parameter in ("score_only", "invert")

    def score(self, batch: Batch) -> Scores:
        """Measurements with one value per row, under the names that `rules` uses."""
        raise self._undefined("score")

    def rules(self) -> list[Rule]:
        raise NotImplementedError

    def passages(self, text: str, score: str) -> list[tuple[int, int]]:
        """Where in a text a score comes from, as pairs of character positions, for pages that mark them in dropped rows.

        Optional: a filter that judges a text as a whole has no passages.
        """
        return []

    def score_columns(self) -> dict[str, str]:
        """The name of the column of each score in the data."""
        column = getattr(self, "column", None)
        prefix = f"{column}_" if column and column not in self.declared_reads[:1] else ""
        return {name: prefix + name for name in self.declared_writes}

    def writes(self) -> tuple[str, ...]:
        return tuple(self.score_columns().values()) if self.adds_scores else ()


class Expand(Operator):
    """Replaces each row by any number of rows."""

    kind: ClassVar[str] = "expand"
    keeps_single: ClassVar[bool] = False
    """Whether a row that becomes one row keeps its address."""

    def expand(self, batch: Batch) -> tuple[pa.Table, np.ndarray]:
        """The new columns, and for each new row the index of the row it came from, in ascending order.

        Columns that are not returned are repeated from the original row. A row without new rows is dropped with the
        reason "<name>: nothing left". New rows append their number to the address: `a.jsonl:5120/3`.
        """
        raise self._undefined("expand")


class Gather(Operator):
    """Decides about each row from all rows: deduplication, sampling, clustering.

        observe   per batch, in the workers: the facts needed about each row (written to disk)
        resolve   once, in the driver, over all facts: which rows to drop, and why
        apply     done by the engine: drops the rows
        rewrite   new columns for kept rows, if `resolve` gave them a payload

    `resolve` runs expensive work in the workers with `work.map`.
    """

    kind: ClassVar[str] = "gather"

    def observe(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        """Facts about the rows, as columns with one value per row."""
        raise self._undefined("observe")

    def disk_bytes(self, num_rows: int, num_bytes: int) -> int | None:
        """The disk space that observing and resolving `num_rows` rows of `num_bytes` in total needs; None if unknown."""
        return None

    def memory_bytes(self, num_rows: int) -> int:
        """The memory that resolving `num_rows` rows needs in the driver."""
        return 0

    def resolve(self, observed: Observations, decide: Decide, work: Work) -> None:
        """Read the facts and call `decide(partition, drop, reason)` once for each partition."""
        raise NotImplementedError

    def rewrite(self, batch: Batch, payload: Column) -> Mapping[str, Column | np.ndarray]:
        """New columns for kept rows, from the payload that `resolve` passed to `decide`."""
        raise self._undefined("rewrite")


REORDER_BYTES = 64_000_000
"""What sorting takes in a worker, beside its batches."""


class Reorder(Gather):
    """Passes all rows on in the order of a key, which `observe` returns as the column `key`, uint64.

    The engine writes rows as sorted runs, and the next stage reads them in the order of their keys: partition p of n has an
    equal share of the range of all keys, so keys should be uniform. Rows with the same key stay in source order. Rows keep
    their addresses, and none is dropped.
    """

    declared_resources = Resources(memory=REORDER_BYTES)

    def disk_bytes(self, num_rows: int, num_bytes: int) -> int | None:
        return 0  # beside the rows, which are always on disk


# --------------------------------------------------------------------------------------------------- sources and sinks


class Source(Operator):
    """Reads rows."""

    kind: ClassVar[str] = "source"
    incidental: ClassVar[frozenset[str]] = frozenset(
        {"file_paths", "files_per_partition", "blocksize", "skip", "limit", "storage_options"}
    )
    can_choose_rows: ClassVar[bool] = False
    """Whether it supports `Reading.chosen`, so that reading a few rows costs less than reading all."""
    internal: ClassVar[bool] = False
    """Whether it reads what another stage wrote, with columns of the engine."""
    rows_are_files: ClassVar[bool] = False
    """Whether each row refers to one file. The sizes of these files are then counted as read, instead of those of rows."""
    rows_are_members: ClassVar[bool] = False
    """Whether rows refer to parts of the archive that is read. The sizes of these parts are then counted as read too."""

    def gives_lines(self) -> bool:
        """Whether each row is a line of text that a sink could write unchanged."""
        return False

    @property
    def access(self) -> MediaAccess | None:
        """What references in media columns may reach; None for the folders of the source files."""
        return None

    def touches(self, folder: str, name: str) -> str | None:
        """How `folder` overlaps with the input if writing files named like `name` there would damage it; else None."""
        return None

    def input_bytes(self) -> int | None:
        """The size of the input as it is stored, if that is known without reading it."""
        return None

    def layout(self, blocksize: int) -> Layout:
        """List, sample and partition the input. `blocksize` applies if the source has none of its own."""
        raise NotImplementedError

    def read(self, partition: Partition, reading: Reading) -> Iterator[Batch]:
        """The rows of a partition in source order, in batches of about `reading.batch_bytes`."""
        raise self._undefined("read")


class Sink(Operator):
    """Writes rows to a folder of shards, whose names sort in source order."""

    kind: ClassVar[str] = "sink"
    incidental: ClassVar[frozenset[str]] = frozenset({"path", "mode", "storage_options"})
    suffix: ClassVar[str] = ""
    can_copy_rows: ClassVar[bool] = False
    """Whether rows can be copied from its files: `stored_rows`, and `as_stored` and `append` of its writers."""
    needs_rows: ClassVar[bool] = True
    """Whether it looks at the rows. If not, rows that no other step needs are counted without being read."""

    @property
    def file_suffix(self) -> str:
        """The suffix of its file names, including that of the compression."""
        return self.suffix

    @property
    def folder(self) -> str:
        raise NotImplementedError

    def without(self, column: str) -> str:
        """What to do if no step provides a column that it writes."""
        named = column in (getattr(self, "fields", None) or ())
        return "correct `fields`" if named else f"add `{column}` in a step before"

    def open_shard(self, folder: Path, stem: str, schema: pa.Schema) -> ShardWriter:
        """A writer of files `<stem>*` in the local `folder`; `schema` is the expected schema."""
        raise self._undefined("open_shard")

    def takes_lines(self) -> bool:
        """Whether a row can be written as the line it was read from."""
        return False

    def widest(self, schemas: Sequence[str]) -> str:
        """The schema that all the given schemas fit into; empty for formats without types."""
        return ""

    def empty_shard(self, folder: Path, stem: str, schema: pa.Schema) -> Shard | None:
        """Write a file without rows that keeps their columns; formats without types write none."""
        return None

    def rewrite(self, file: Path, schema: str, target: Path) -> Shard:
        """Rewrite a shard with the columns and types of a wider schema."""
        raise NotImplementedError

    def schema_in_file(self, schema: pa.Schema) -> pa.Schema | None:
        """The columns and types in a file of rows with this schema; None for formats without types."""
        return None

    def stored_rows(self, file: Path) -> Iterator[pa.Table]:
        """The rows of a shard, in pieces that `CopyingWriter.append` writes exactly as they are in the file."""
        raise NotImplementedError


# ------------------------------------------------------------------------------------------------------- the registry

known_operators: dict[str, type[Operator]] = {}
"""Filled when modules are imported; `tamis.registry` imports them."""
_T = TypeVar("_T", bound=type)


@dataclass_transform(frozen_default=True)
def operator(
    *,
    reads: str | tuple[str, ...] = (),
    writes: str | tuple[str, ...] = (),
    resources: Resources | None = None,
    version: int | str | None = None,
) -> Callable[[_T], _T]:
    """Turn a class into a registered operator: a frozen dataclass with declared columns.

    The name in recipes is the class name in snake case. For a filter, `writes` lists its scores.

    A run redoes committed work when the code of an operator changes, including the functions and values it uses. With
    `version`, only a change of the version or of a parameter counts.
    """

    def decorate(cls: _T) -> _T:
        if "setup" in vars(cls):
            raise TamisError(
                f"{cls.__name__} defines `setup`, which is never called",
                hint="load models in `open(self, context)` and return an object that runs the step",
            )
        made: Any = explain_keywords(dataclass(frozen=True)(cls))
        made.declared_reads = (reads,) if isinstance(reads, str) else tuple(reads)
        made.declared_writes = (writes,) if isinstance(writes, str) else tuple(writes)
        if version is not None or "version" not in vars(made):
            made.version = version
        if resources is not None:
            made.declared_resources = resources
        name = snake_case(made.__name__)
        known = known_operators.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (made.__module__, made.__qualname__):
            raise TamisError(f"two operators are named `{name}`: in {known.__module__} and in {made.__module__}")
        known_operators[name] = made
        return made

    return decorate


def snake_case(name: str) -> str:
    """
    >>> snake_case("GopherQuality"), snake_case("C4Quality"), snake_case("JsonlReader")
    ('gopher_quality', 'c4_quality', 'jsonl_reader')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def digest(value: object) -> str:
    """A short stable hash of a JSON-serializable value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]
