"""Mixtures: several sources as one, and groups of rows in given proportions.

    Mix({"web": ..., "code": ...}, weights=...)   =   Mix({"web": ..., "code": ...})   rows of all sources, and their names
                                                      Balance(by="source", weights=...)  how often each row is repeated
                                                      Repeat()                            the rows, repeated

How often a row is repeated follows from the sizes of all groups, so that `Balance` is a Gather. A group that is needed 2.5
times has two copies of each row and a third one of some: those with the smallest random keys, as many as fit.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import HIDDEN, Batch, Column, Failure, as_array
from tamis.context import Context
from tamis.errors import ParameterError, SourceError
from tamis.formats import FORMATS
from tamis.media import MediaAccess
from tamis.operators import (
    Decide,
    Expand,
    Gather,
    Layout,
    Observations,
    Operator,
    Partition,
    Reading,
    Resources,
    Source,
    Work,
    digest,
    operator,
)
from tamis.parameters import plural
from tamis.proportions import Share, decide_copies, exact, find_limits, sizes_of, whole_numbers
from tamis.registry import build_operator
from tamis.sampling import MOST_GROUPS, random_keys
from tamis.sources.files import detect_format
from tamis.text.lists import check_files, identify_files
from tamis.text.tokens import TOKENIZER

Measure = Literal["rows", "bytes", "tokens"]
COPIES = f"{HIDDEN}copies"
"""A hidden column: how often a row is repeated."""
MOST_COPIES = 1_000_000
MOST_TOKENS = 1 << 40
"""Of a row, as a column says; a sum of those of all rows then has less than 64 bits."""


# -------------------------------------------------------------------------------------------------------------- sources


@dataclass(frozen=True)
class MixedPartition(Partition):
    """A partition of one of several sources."""

    source: str = ""
    part: Partition | None = None
    """The partition as its own source made it."""
    schema: pa.Schema | None = None
    """The columns of its own source."""


@operator()
class Mix(Source):
    """Read several sources as one, each row with the name of its source, in given proportions.

    `sources` has a reader by name; in a recipe it is the step of a reader, `{jsonl_reader: {file_paths: web/}}`, or a path,
    whose reader follows from the file names. The name of the source is in the column `source` (`output`).

    `epochs` says how often each source is read: 2.5 repeats all rows twice and half of them once more. `weights` are
    the shares of the mixture, by `measure`: rows, bytes of text, or tokens. Its size is `total`; without one, it is the largest
    in which no row is repeated. `tokens` is the number of tokens of each source. Tokens are counted by `tokenizer`, or
    they are the integers of column `text_column`. Without any of these, each row is read once.

    Which rows are left out or repeated depends on their addresses and `seed`. Their number is exact: for each source the most
    rows, in the order of random keys, that are not more than its share. Rows that are repeated have a number at the end of
    their addresses. Sources follow each other; use `Shuffle` afterwards to mix their order. The report has the rows by
    source.

    >>> from tamis import Pipeline, Rows
    >>> web, code = Rows([{"text": "a"}] * 90), Rows([{"text": "b"}] * 20)
    >>> mixed = Pipeline(Mix({"web": web, "code": code}, weights={"web": 3, "code": 1}, total=100)).collect()
    >>> mixed["text"].to_pylist().count("a"), mixed["text"].to_pylist().count("b")
    (75, 25)
    """

    sources: Mapping[str, Any]
    weights: Mapping[str, float] | None = None
    epochs: Mapping[str, float] | None = None
    tokens: Mapping[str, float] | None = None
    total: float | None = None
    measure: Measure = "rows"
    tokenizer: str | None = None
    text_column: str = "text"
    seed: int = 0
    output: str = "source"

    path_parameters = frozenset({"sources", "tokenizer"})

    def check(self) -> None:
        if not self.sources:
            raise ParameterError(f"`{self.name}` has no sources", hint='Mix({"web": JsonlReader("web/")})')
        for name, source in self.readers().items():
            try:
                source.check()
            except ParameterError as error:
                raise ParameterError(f"source `{name}`: {error.message}", hint=error.hint) from error
        if self._is_plain:
            for name, default in (("total", None), ("measure", "rows"), ("tokenizer", None)):
                if getattr(self, name) != default:
                    raise ParameterError(
                        f"`{name}` of `{self.name}` needs proportions",
                        hint="name `weights`, `epochs` or `tokens` as well",
                    )

    @property
    def _is_plain(self) -> bool:
        """Whether each row is read once."""
        return self.weights is None and self.epochs is None and self.tokens is None

    def _check_names(self) -> None:
        named = {name for given in (self.weights, self.epochs, self.tokens) for name in given or ()}
        if named != set(self.sources):
            wrong = sorted(named - set(self.sources) or set(self.sources) - named)[0]
            raise ParameterError(
                f"`{self.name}` has "
                + (f"no source `{wrong}`" if wrong in named else f"no proportion for source `{wrong}`"),
                hint=f"the sources are {', '.join(sorted(self.sources))}",
            )

    def readers(self) -> dict[str, Source]:
        """The sources, by name."""
        return {str(name): reader_of(str(name), given) for name, given in self.sources.items()}

    def parts(self) -> Sequence[Operator]:
        if self._is_plain:
            return (self,)
        self._check_names()
        plain = Mix(self.sources, output=self.output)
        balance = Balance(
            by=self.output,
            weights=self.weights,
            epochs=self.epochs,
            amounts=self.tokens,
            total=self.total,
            measure="tokens" if self.tokens else self.measure,
            tokenizer=self.tokenizer,
            text_column=self.text_column,
            seed=self.seed,
        )
        return (plain, *balance.parts())

    def parameters(self) -> dict[str, Any]:
        return {**super().parameters(), "sources": self._described(lambda source: source.parameters())}

    def recorded_parameters(self) -> dict[str, Any]:
        return {**super().parameters(), "sources": self._described(lambda source: source.recorded_parameters())}

    def _described(self, describe: Any) -> dict[str, Any]:
        return {name: {source.name: describe(source)} for name, source in self.readers().items()}

    def identity(self) -> dict[str, Any]:
        known = {name: source.identity() for name, source in self.readers().items()}
        opaque = [item for each in known.values() for item in each.get("opaque", [])]
        values = {"sources": known, "output": self.output}
        result: dict[str, Any] = {"step": self.name, "version": self.version, "parameters": values}
        return result | ({"opaque": opaque} if opaque else {})

    @property
    def access(self) -> MediaAccess | None:
        found = [access for source in self.readers().values() if (access := source.access) is not None]
        if not found:
            return None
        roots = tuple(dict.fromkeys(root for access in found for root in access.roots))
        options = [access.storage_options for access in found if access.storage_options]
        return MediaAccess(roots, dict(options[0]) if options else {})

    def touches(self, folder: str, name: str) -> str | None:
        found = (source.touches(folder, name) for source in self.readers().values())
        return next((how for how in found if how), None)

    def input_bytes(self) -> int | None:
        sizes = [source.input_bytes() for source in self.readers().values()]
        return sum(size for size in sizes if size is not None) if any(size is not None for size in sizes) else None

    def notes(self) -> list[str]:
        return [f"source `{name}`: {note}" for name, source in self.readers().items() for note in source.notes()]

    def layout(self, blocksize: int) -> Layout:
        partitions: list[MixedPartition] = []
        layouts: dict[str, Layout] = {}
        owners: dict[str, str] = {}
        for name, source in self.readers().items():
            found = layouts[name] = source.layout(blocksize)
            for part in found.partitions:
                for piece in part.pieces:
                    owner = owners.setdefault(_place(name, piece.path), name)
                    if owner != name:
                        raise ParameterError(
                            f"the sources `{owner}` and `{name}` both read {piece.path}, so rows would have the same address",
                            hint="read each file by one source, and repeat its rows with `epochs`",
                        )
                known = digest([name, part.identity])
                partitions.append(MixedPartition(len(partitions), part.pieces, known, name, part, found.schema))
        rows = [found.num_rows for found in layouts.values()]
        return Layout(
            self._schema({name: found.schema for name, found in layouts.items()}),
            tuple(partitions),
            {f"{key} of {name}": why for name, found in layouts.items() for key, why in found.reasons.items()},
            sum(found.num_files for found in layouts.values()),
            sum(found.num_bytes for found in layouts.values()),
            {path: why for found in layouts.values() for path, why in found.damaged_files.items()},
            None if None in rows else sum(number for number in rows if number is not None),
        )

    def _schema(self, schemas: Mapping[str, pa.Schema]) -> pa.Schema:
        for name, schema in schemas.items():
            if self.output in schema.names:
                raise ParameterError(
                    f"source `{name}` has a column `{self.output}`, which would be replaced by the name of the source",
                    hint='name the new column otherwise: output="mix_source"',
                )
        try:
            found = pa.unify_schemas(list(schemas.values()), promote_options="permissive")
        except pa.ArrowTypeError as error:
            raise SourceError(
                f"the sources have columns of different types: {error}",
                hint="rename or leave out a column at its reader: columns={...}, fields=[...]",
            ) from error
        return found.append(pa.field(self.output, pa.string()))

    def open(self, context: Context) -> _MixReader:
        return _MixReader(self.output, {name: source.open(context) for name, source in self.readers().items()})


def reader_of(name: str, given: object) -> Source:
    """A source given as an operator, as a step of a recipe, or as paths."""
    found: object = given
    if isinstance(given, (str, Path)) or (
        isinstance(given, Sequence) and all(isinstance(g, (str, Path)) for g in given)
    ):
        paths = [str(given)] if isinstance(given, (str, Path)) else [str(path) for path in given]
        found = build_operator(FORMATS[detect_format(paths, None)].reader, {"file_paths": paths})
    elif isinstance(given, Mapping) and len(given) == 1:
        ((step, parameters),) = given.items()
        found = build_operator(str(step), dict(parameters or {}))
    if not isinstance(found, Source):
        kind = found.name if isinstance(found, Operator) else repr(given)
        raise ParameterError(
            f"source `{name}` of `mix` is {kind}, which reads no rows", hint="web: {jsonl_reader: {file_paths: web/}}"
        )
    if isinstance(found, Mix):
        raise ParameterError(f"source `{name}` of `mix` is a mix itself", hint="name all sources in one mix")
    return found


def _place(name: str, place: str) -> str:
    """The place of rows of a source. Rows from memory have no file, so the name of the source makes them distinct."""
    return f"{name}/rows" if place == "rows" else place


@dataclass(frozen=True)
class _MixReader:
    output: str
    sources: Mapping[str, Any]

    def read(self, partition: MixedPartition, reading: Reading) -> Iterator[Batch]:
        assert partition.part is not None
        assert partition.schema is not None
        name, columns = partition.source, reading.columns
        if columns is not None:
            columns = tuple(column for column in columns if column in partition.schema.names)

        def fail(failure: Failure) -> None:
            place, colon, position = failure.address.rpartition(":")
            reading.fail(dataclasses.replace(failure, address=f"{_place(name, place)}{colon}{position}"))

        own = dataclasses.replace(reading, columns=columns, schema=partition.schema, fail=fail)
        for batch in self.sources[name].read(dataclasses.replace(partition.part), own):
            origin = dataclasses.replace(
                batch.origin, places=tuple(_place(name, place) for place in batch.origin.places)
            )
            given = Batch(batch.table, origin, access=batch.access)
            given = self._fitting(given, reading)
            yield Batch(self._widened(given.table, reading, name), given.origin, access=batch.access)

    def _fitting(self, batch: Batch, reading: Reading) -> Batch:
        """The rows whose values fit the types of the mixture; the others fail."""
        fits = np.ones(len(batch), np.bool_)
        for column in batch.columns:
            kind = reading.schema.field(column).type if column in reading.schema.names else None
            values = as_array(batch[column])
            if kind is None or not _is_widened(values.type, kind):
                continue
            try:
                values.cast(kind)
            except pa.ArrowInvalid:
                for row in range(len(values)):
                    try:
                        values.slice(row, 1).cast(kind)
                    except pa.ArrowInvalid as error:
                        if fits[row]:
                            shown = batch.select(slice(row, row + 1)).shown_rows()[0]
                            why = f"column `{column}` is {kind} in other sources: {error}"
                            reading.fail(Failure(batch.origin.address(row), "mix", why, shown))
                        fits[row] = False
        return batch if fits.all() else batch.select(fits)

    def _widened(self, table: pa.Table, reading: Reading, name: str) -> pa.Table:
        """The rows with the columns of all sources that are read, in the types of the mixture."""
        wanted = reading.schema.names if reading.columns is None else reading.columns
        arrays = dict(zip(table.column_names, table.columns, strict=True))
        for column in wanted:
            if column == self.output:
                arrays[column] = pa.chunked_array([_repeated(name, table.num_rows)])
                continue
            kind = reading.schema.field(column).type
            found = arrays.get(column)
            if found is None:
                arrays[column] = pa.chunked_array([pa.nulls(table.num_rows, kind)])
            elif _is_widened(found.type, kind):
                arrays[column] = found.cast(kind)
        return pa.table(arrays) if arrays else table


def _is_widened(found: pa.DataType, kind: pa.DataType) -> bool:
    return found != kind and (pa.types.is_null(found) or pa.types.is_primitive(found))


def _repeated(name: str, rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([name])).cast(pa.string())


# -------------------------------------------------------------------------------------------------------- proportions


@operator()
class Balance(Gather):
    """Leave out and repeat rows so that the values of column `by` have given proportions.

    One of these says how much of each group is kept, by `measure` (rows, bytes of `text_column`, or tokens):

    - `weights`: shares of `total`; without it, of the largest result in which no row is repeated
    - `temperature`: shares of `total` proportional to size ** (1 / temperature), as for languages in Conneau et al. 2020
    - `epochs`: how often each group is used; 2.5 is two copies of each row and a third one of half of them
    - `amounts`: the size of each group

    The result is exact: of each group the most rows, in the order of random keys, that are not more than its share (shares of
    rows are rounded so that their sum is `total`). The keys depend on the addresses of rows and on `seed`. Groups that are
    not named are dropped, and a name without rows is an error. Rows that are repeated have a number at the end of their
    addresses. `SampleByGroup` keeps about as many rows, without repeating any.

    Tokens are counted by `tokenizer`; without one, `text_column` has the numbers. Takes about 30 bytes of disk per row.

    >>> from tamis import Pipeline, Rows
    >>> rows = [{"language": "en"}] * 900 + [{"language": "is"}] * 100
    >>> even = Balance(by="language", temperature=1e9, total=600)
    >>> kept = Pipeline(Rows(rows), even).collect()["language"].to_pylist()
    >>> kept.count("en"), kept.count("is")
    (300, 300)
    """

    by: str
    weights: Mapping[str, float] | None = None
    temperature: float | None = None
    epochs: Mapping[str, float] | None = None
    amounts: Mapping[str, float] | None = None
    total: float | None = None
    measure: Measure = "rows"
    tokenizer: str | None = None
    text_column: str = "text"
    seed: int = 0

    def check(self) -> None:
        ways = {name: getattr(self, name) for name in ("weights", "temperature", "epochs", "amounts")}
        given = [name for name, value in ways.items() if value is not None]
        if len(given) != 1:
            have = " and ".join(f"`{name}`" for name in given) or "none of them"
            raise ParameterError(f"a mixture needs one of `weights`, `temperature`, `epochs` and `amounts`, got {have}")
        for name, number in (ways[given[0]] if isinstance(ways[given[0]], Mapping) else {}).items():
            if not 0 <= number < float("inf"):
                raise ParameterError(f"the proportion of `{name}` must not be negative or infinite, got {number}")
        if self.weights is not None and not any(self.weights.values()):
            raise ParameterError("all weights are 0")
        if self.temperature is not None and (not self.temperature > 0 or self.total is None):
            raise ParameterError("`temperature` must be greater than 0, and needs a `total`")
        if self.total is not None and (not 0 <= self.total < float("inf") or given[0] in ("epochs", "amounts")):
            raise ParameterError("`total` belongs to `weights` and `temperature`, and must not be negative or infinite")
        if self.tokenizer is not None:
            if self.measure != "tokens":
                raise ParameterError("`tokenizer` is given, but tokens are not counted", hint='measure="tokens"')
            check_files(self.name, [self.tokenizer])

    @property
    def repeats(self) -> bool:
        """Whether rows may have to be repeated."""
        if self.epochs is not None:
            return any(number > 1 for number in self.epochs.values())
        return self.total is not None or self.amounts is not None

    def parts(self) -> Sequence[Operator]:
        return (self, Repeat(by=self.by))

    def reads(self) -> tuple[str, ...]:
        return (self.by, *(() if self.measure == "rows" else (self.text_column,)))

    def writes(self) -> tuple[str, ...]:
        return (COPIES,) if self.repeats else ()

    def identity(self) -> dict[str, Any]:
        return identify_files(super().identity(), [self.tokenizer] if self.tokenizer is not None else [])

    @property
    def resources(self) -> Resources:
        return Resources() if self.tokenizer is None else TOKENIZER.resources(self.tokenizer)

    def open(self, context: Context) -> _Measuring:
        return _Measuring(self, TOKENIZER.open(self.tokenizer, context) if self.tokenizer is not None else None)

    def resolve(self, observed: Observations, decide: Decide, work: Work) -> None:
        numbers = range(len(observed))
        sizes: Counter[str] = Counter()
        for part in work.map("measure groups", sizes_of, [(observed, number) for number in numbers]):
            for name, size in part.items():
                sizes[name] += size
            if len(sizes) > MOST_GROUPS:
                raise ParameterError(f"column `{self.by}` has more than {plural(MOST_GROUPS, 'value')}")
        shares = self.shares(sizes)
        most = max((share.copies for share in shares.values()), default=0)
        if most > MOST_COPIES:
            raise ParameterError(
                f"rows would be repeated {most:,} times, and {MOST_COPIES:,} are allowed",
                hint="a group is much smaller than what it is to become: check its name and the numbers of `balance`",
            )
        limits = find_limits(observed, work, {name: share.rest for name, share in shares.items()}, sizes)
        chosen = {name: (share.copies, limits[name]) for name, share in shares.items()}
        work.map("choose rows", decide_copies, [(observed, decide, number, chosen, self.repeats) for number in numbers])

    def shares(self, sizes: Mapping[str, int]) -> dict[str, Share]:
        """How often each group is used: whole copies, and the size of what is left. Groups have a letter before their name."""
        self._check_groups(sizes)
        wanted = {name: Fraction(0) for name in sizes}
        if self.epochs is not None:
            wanted |= {name: exact(self.epochs.get(name[1:], 0)) * size for name, size in sizes.items()}
        elif self.amounts is not None:
            wanted |= {name: exact(self.amounts.get(name[1:], 0)) for name in sizes}
        else:
            weights = self._weights(sizes)
            whole = sum(weights.values())
            if self.total is not None:
                total = exact(self.total)
            else:
                total = min((sizes[name] * whole / each for name, each in weights.items() if each), default=Fraction(0))
            wanted |= {name: total * each / whole for name, each in weights.items()} if whole else {}
            if self.measure == "rows":
                wanted = whole_numbers(wanted)
        return {
            name: Share(int(amount // sizes[name]), int(amount % sizes[name])) if sizes[name] else Share(0, 0)
            for name, amount in wanted.items()
        }

    def _check_groups(self, sizes: Mapping[str, int]) -> None:
        """Raise if nothing is in a group that is to be part of the mixture, because the others would take its place."""
        found = {name[1:] for name, size in sizes.items() if size}
        for name, number in (self.weights or self.amounts or {}).items() if found else ():
            if number and name not in found:
                what = f"{name!r} in column `{self.by}`"
                what = (
                    f"no row has {what}" if self.measure == "rows" else f"the rows with {what} have no {self.measure}"
                )
                raise ParameterError(
                    f"{what}, and its proportion is {number:g}",
                    hint="correct the name, or leave it out; rows that earlier steps drop do not count",
                )

    def _weights(self, sizes: Mapping[str, int]) -> dict[str, Fraction]:
        if self.weights is not None:
            return {name: exact(self.weights.get(name[1:], 0)) for name in sizes}
        assert self.temperature is not None
        most = max(sizes.values(), default=1) or 1
        return {name: Fraction((size / most) ** (1 / self.temperature)) for name, size in sizes.items()}

    def rewrite(self, batch: Batch, payload: Column) -> Mapping[str, Column | np.ndarray]:
        raise self._undefined("rewrite")


@dataclass(frozen=True)
class _Measuring:
    """Measures rows, and notes how often they are repeated."""

    step: Balance
    counter: Any

    def observe(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        values = as_array(batch[self.step.by])
        if pa.types.is_nested(values.type):
            raise ParameterError(f"column `{self.step.by}` has type {values.type}; groups need texts or numbers")
        keys = random_keys(batch, self.step.seed)
        return {"key": keys, "group": values.cast(pa.string()), "size": self._sizes(batch)}

    def rewrite(self, batch: Batch, payload: Column) -> Mapping[str, Column | np.ndarray]:
        return {COPIES: payload}

    def _sizes(self, batch: Batch) -> Column | np.ndarray:
        if self.step.measure == "rows":
            return np.ones(len(batch), np.int64)
        values = as_array(batch[self.step.text_column])
        if self.counter is not None:
            return np.asarray(self.counter(values), np.int64)
        if self.step.measure == "tokens":
            if not pa.types.is_integer(values.type):
                raise ParameterError(
                    f"column `{self.step.text_column}` has type {values.type}, not numbers of tokens",
                    hint="name a `tokenizer`, or a column of integers",
                )
            sizes = pc.max_element_wise(pc.fill_null(values.cast(pa.int64()), 0), 0)
            if len(sizes) and pc.max(sizes).as_py() > MOST_TOKENS:
                raise ValueError(
                    f"`{self.step.text_column}` is {pc.max(sizes).as_py():,}, which is not a number of tokens"
                )
            return sizes
        return pc.fill_null(pc.binary_length(values.cast(pa.large_string())), 0).cast(pa.int64())


@operator()
class Repeat(Expand):
    """Repeat each row as often as the step `balance` before it decided; part of `Mix` and `Balance`.

    Rows that are repeated have a number at the end of their addresses; others keep theirs. The report has the rows by the
    values of column `by`.
    """

    by: str = "source"

    keeps_single = True

    def reads(self) -> tuple[str, ...]:
        return (self.by,)

    def optional_reads(self) -> tuple[str, ...]:
        return (COPIES,)

    def removes(self, columns: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in columns if name == COPIES)

    def open(self, context: Context) -> _Repeating:
        return _Repeating(self.by)


class _Repeating:
    def __init__(self, by: str) -> None:
        self._by = by
        self._counts: Counter[str] = Counter()

    def expand(self, batch: Batch) -> tuple[pa.Table, np.ndarray]:
        copies = np.ones(len(batch), np.int64)
        if COPIES in batch:
            copies = batch[COPIES].to_numpy(zero_copy_only=False)
        parents = np.repeat(np.arange(len(batch)), copies)
        names = as_array(batch[self._by]).cast(pa.string()).take(pa.array(parents))
        for found in pc.value_counts(names):
            self._counts[f"rows of {found['values'].as_py()}"] += found["counts"].as_py()
        return pa.table({self._by: batch[self._by].take(pa.array(parents))}), parents

    def take_counts(self) -> dict[str, float]:
        taken, self._counts = self._counts, Counter()
        return {name: float(number) for name, number in taken.items()}
