"""The filter that finds examples of benchmarks in training data, by shared word n-grams.

folder of JSONL --every text of every example--> n-gram keys --> index, built once per worker
batch -----------------------------------------> n-gram keys --> hits --> per example: share of its n-grams, spans
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import ParameterError, SourceError
from tamis.kernels import overlap as kernel
from tamis.operators import Filter, Resources, Rule, Scores, at_most, digest, operator
from tamis.sources.files import File, fingerprint, list_files
from tamis.text.segment import buffers

EVIDENCE = pa.list_(
    pa.struct(
        [
            ("benchmark", pa.string()),
            ("example", pa.string()),
            ("field", pa.string()),
            ("share", pa.float32()),
            ("first_word", pa.int32()),
            ("last_word", pa.int32()),
            ("start", pa.int64()),
            ("stop", pa.int64()),
        ]
    )
)
"""One entry per span: its example, the share of that text found here, its words, and its characters text[start:stop]."""

MOST_SPANS = 100
"""Spans listed per document. Counts and shares include all."""

_MEMORY_PER_BYTE, _UNPACKED = 16, 4
"""Memory to build an index, per byte of the benchmarks; and how much larger compressed ones are unpacked."""

_DIFFERENT = 3
"""An n-gram of n words needs n / 3 distinct ones: runs of one number or of dots are no evidence."""


@operator(
    reads="text",
    writes=("contamination_share", "contamination_ngrams", "contamination"),
)
class Decontaminate(Filter):
    """Drop documents that contain more than half of an example of a benchmark.

    `benchmarks` is a folder of JSONL files, one per benchmark, or files and patterns. Every string of an example, or of the
    fields named in `fields`, is split into n-grams of `ngram` words, in lower case and without punctuation. A shorter
    string of at least `min_words` words must be found whole; strings below that are ignored. The score of a document is the
    largest share of the n-grams of one string that it contains, and documents above `max_share` are dropped.
    `max_share=0` is the rule of GPT-3 (Brown et al. 2020, appendix C: any shared 13-gram); PaLM required 70 % of the
    8-grams (Chowdhery et al. 2022).

    To avoid false positives, n-grams that occur in more than `max_places` strings of the benchmarks (instructions,
    templates) or that repeat a few words are ignored.

    Scores: `contamination_share`; `contamination_ngrams`, the number of n-grams of the document that are in a benchmark;
    `contamination`, the evidence: for each span its benchmark (file), example (its `id` or line number), field, share, words
    and characters, largest shares first, at most 100. A null or empty document scores 0. Needs about 40 bytes of memory per
    word of the benchmarks in each worker.

    >>> import json, pathlib
    >>> from tamis import Pipeline, Rows
    >>> question = "Which river that rises in the Black Forest flows through ten countries to the sea ?"
    >>> _ = pathlib.Path("rivers.jsonl").write_text(json.dumps({"id": "q1", "question": question}))
    >>> rows = Rows([{"text": "Nothing of the kind."}, {"text": "Quiz! " + question.upper()}])
    >>> Pipeline(rows, Decontaminate(benchmarks="rivers.jsonl")).run(executor="inline").dropped
    {'contamination_share > 0.5': 1}
    """

    path_parameters = frozenset({"benchmarks"})

    benchmarks: str | Path | Sequence[str | Path]
    column: str = "text"
    fields: Sequence[str] = ()
    ngram: int = 13
    min_words: int = 8
    max_places: int = 10
    max_share: float = 0.5

    cost = 3.0

    @classmethod
    def is_threshold(cls, parameter: str) -> bool:
        return parameter not in ("min_words", "max_places") and super().is_threshold(parameter)

    def check(self) -> None:
        if not 1 <= self.min_words <= self.ngram <= 64 or self.max_places < 1:
            raise ParameterError(
                f"`decontaminate` got ngram {self.ngram}, min_words {self.min_words}, max_places {self.max_places}",
                hint="1 <= min_words <= ngram <= 64, and max_places at least 1",
            )
        self._files()

    def identity(self) -> dict[str, Any]:
        identity = super().identity()
        parameters = {name: value for name, value in identity["parameters"].items() if name != "benchmarks"}
        return identity | {"parameters": parameters, "benchmarks": self._stamp()}

    @property
    def resources(self) -> Resources:
        try:
            plain = (".jsonl", ".json")
            num_bytes = sum(file.size * (1 if file.path.endswith(plain) else _UNPACKED) for file in self._files())
        except SourceError:  # there are no such files, as `check` reports
            return Resources()
        return Resources(shared={self._key(): _MEMORY_PER_BYTE * num_bytes})

    def open(self, context: Context) -> ContaminationScorer:
        return ContaminationScorer(context.shared(self._key(), self._build))

    def rules(self) -> list[Rule]:
        return [at_most("contamination_share", self.max_share)]

    def _files(self) -> list[File]:
        return list_files(self.benchmarks, "jsonl")

    def _stamp(self) -> str:
        return digest([fingerprint(file) for file in self._files()])

    def _key(self) -> str:
        return f"benchmarks {digest([self._stamp(), list(self.fields), self.ngram, self.min_words, self.max_places])}"

    def _build(self) -> BenchmarkIndex:
        paths = [file.path for file in self._files()]
        return build_index(paths, tuple(self.fields), self.ngram, self.min_words, self.max_places)


@dataclass(frozen=True)
class ContaminationScorer:
    """Compares texts with an index of benchmarks."""

    index: BenchmarkIndex

    def score(self, batch: Batch) -> Scores:
        column = batch["text"]
        data, offsets = buffers(column)
        found = np.zeros(len(column), np.int64)
        hits = self.index.look_up(data, offsets, found)
        shares, evidence = self.index.judge(data, offsets, hits)
        return {"contamination_share": shares, "contamination_ngrams": found, "contamination": evidence}


# ----------------------------------------------------------------------------------------------------------- the index


@dataclass(frozen=True)
class Part:
    """A text of an example of a benchmark."""

    benchmark: str
    example: str
    field: str


@dataclass(frozen=True, eq=False)
class BenchmarkIndex:
    """The n-gram keys of benchmark texts, and for each key the texts that contain it."""

    parts: list[Part]
    totals: np.ndarray  # int64, distinct n-grams of each part that are in the index
    lengths: np.ndarray  # int64, lengths of n-grams in the index
    keys: np.ndarray  # uint64, ascending
    firsts: np.ndarray  # int64, where the texts of each key begin in `members`
    members: np.ndarray  # int32
    slots: np.ndarray
    bits: np.ndarray

    def look_up(self, data: np.ndarray, offsets: np.ndarray, found: np.ndarray) -> np.ndarray:
        """The n-grams of these texts that are in the index, as returned by `kernels.overlap.find_hits`."""
        room, powers = np.zeros((64, 6), np.int64), kernel.powers_of(self.lengths)
        tables = kernel.word_tables()
        hits, count = kernel.find_hits(
            data, offsets, tables, self.lengths, powers, self.keys, self.slots, self.bits, room, found
        )
        return hits[:count]

    def judge(self, data: np.ndarray, offsets: np.ndarray, hits: np.ndarray) -> tuple[np.ndarray, pa.Array]:
        """The largest share and the evidence of each row."""
        rows = len(offsets) - 1
        shares = np.zeros(rows, np.float64)
        evidence: list[list[dict[str, Any]]] = [[] for _ in range(rows)]
        edges = np.flatnonzero(np.diff(hits[:, 0], prepend=-1, append=-1))
        for first, last in pairwise(edges):
            row = int(hits[first, 0])
            text = data[offsets[row] : offsets[row + 1]]
            shares[row], evidence[row] = self._judge_row(text, hits[first:last])
        return shares, pa.array(evidence, EVIDENCE)

    def _judge_row(self, text: np.ndarray, hits: np.ndarray) -> tuple[float, list[dict[str, Any]]]:
        counts = self.firsts[hits[:, 1] + 1] - self.firsts[hits[:, 1]]
        which = np.repeat(np.arange(len(hits)), counts)
        places = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        part = self.members[self.firsts[hits[which, 1]] + places]
        met = np.unique(np.stack([part, hits[which, 1]], axis=1), axis=0)[:, 0]
        parts, numbers = np.unique(met, return_counts=True)
        share = numbers / self.totals[parts]
        chars = np.cumsum((text & 0xC0) != 0x80)
        spans = []
        for number in np.lexsort((parts, -share))[:MOST_SPANS]:
            owner = self.parts[parts[number]]
            facts = {"benchmark": owner.benchmark, "example": owner.example, "field": owner.field}
            own = hits[which[part == parts[number]]]
            for word, end, byte, stop in _joined(own[np.argsort(own[:, 2], kind="stable")]):
                places_of = {"first_word": word, "last_word": end, "start": chars[byte] - 1, "stop": chars[stop - 1]}
                spans.append(facts | {"share": share[number]} | places_of)
            if len(spans) >= MOST_SPANS:
                break
        return float(share.max()), spans[:MOST_SPANS]


def _joined(hits: np.ndarray) -> Iterator[tuple[int, int, int, int]]:
    """Spans (first word, word after the last, first byte, byte after the last) of n-grams that overlap or touch."""
    word, end, byte, stop = hits[0, 2:]
    for next_word, next_end, next_byte, next_stop in hits[1:, 2:]:
        if next_word <= end:
            end, stop = max(end, next_end), max(stop, next_stop)
        else:
            yield word, end, byte, stop
            word, end, byte, stop = next_word, next_end, next_byte, next_stop
    yield word, end, byte, stop


def build_index(
    paths: Sequence[str], fields: tuple[str, ...], ngram: int, min_words: int, max_places: int
) -> BenchmarkIndex:
    """The index of some files."""
    parts, texts = [], []
    for path, benchmark in zip(paths, _names(paths), strict=True):
        for part, text in _texts_of(path, benchmark, fields):
            parts.append(part)
            texts.append(text)
    data, offsets = buffers(pa.array(texts, pa.large_string()))
    keys, rows = np.zeros(1024, np.uint64), np.zeros(1024, np.int32)
    sizes, words = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.int64)
    powers = kernel.powers_of(range(ngram + 1))
    tables = kernel.word_tables()
    keys, rows, count = kernel.ngram_keys(
        data, offsets, tables, ngram, min_words, _DIFFERENT, powers, keys, rows, sizes, words
    )
    order = np.argsort(keys[:count], kind="stable")  # rows ascend within a key
    keys, rows = keys[order], rows[order]
    fresh = np.ones(count, np.bool_)
    fresh[1:] = (keys[1:] != keys[:-1]) | (rows[1:] != rows[:-1])
    keys, rows = keys[fresh], rows[fresh]
    starts = np.flatnonzero(np.diff(keys, prepend=keys[:1] ^ np.uint64(2)))
    different, places = keys[starts], np.diff(starts, append=len(keys))
    telling = places <= max_places
    members = np.ascontiguousarray(rows[np.repeat(telling, places)])
    firsts = np.concatenate([[0], np.cumsum(places[telling])]).astype(np.int64)
    kept = np.ascontiguousarray(different[telling])
    totals = np.bincount(members, minlength=len(parts))
    lengths = np.unique(sizes[totals > 0]).astype(np.int64) if len(parts) else np.zeros(0, np.int64)
    room = max(64, 1 << (2 * len(kept)).bit_length())
    slots, bits = np.full(room, -1, np.int32), np.zeros(max(1, room * 8 // 64), np.uint64)
    kernel.fill_index(kept, slots, bits)
    return BenchmarkIndex(parts, totals, lengths, kept, firsts, members, slots, bits)


def _names(paths: Sequence[str]) -> list[str]:
    """The names of the benchmarks in some files: their paths below the common folder, without extensions.

    >>> _names(["b/mmlu/test.jsonl", "b/boolq/test.jsonl.gz"]), _names(["b/mmlu.jsonl"])
    (['mmlu/test', 'boolq/test'], ['mmlu'])
    """
    root = os.path.commonpath([str(Path(path).parent) for path in paths]) if paths else ""
    below = [Path(path).relative_to(root) for path in paths]
    return [(path.parent / path.name.partition(".")[0]).as_posix() for path in below]


def _texts_of(path: str, benchmark: str, fields: tuple[str, ...]) -> Iterator[tuple[Part, str]]:
    """Every string of every line of a file, with its position."""
    with pa.input_stream(path) as stream:
        lines = stream.read().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            example = json.loads(line)
        except ValueError as error:
            raise SourceError(f"line {number} of the benchmark {path} is not JSON: {error}") from error
        name = str(example["id"]) if isinstance(example, dict) and "id" in example else str(number)
        for field, text in _strings(example, ""):
            if not fields or field in fields or field.partition(".")[0] in fields:
                yield Part(benchmark, name, field), text


def _strings(value: object, path: str) -> Iterator[tuple[str, str]]:
    """(dotted name, text) of every string in a JSON value; items of a list have the name of the list."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item, path)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(item, f"{path}.{key}" if path else str(key))
