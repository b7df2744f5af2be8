"""Measure the speed of the text kernels on one core, on documents built from files that every Debian machine has.

    python benchmarks/text_kernels.py [--megabytes 50] [--repeats 5]

Three corpora, split into documents of 0.5 to 10 kB in an order fixed by a seed: the speeches included in the package; technical
text (licences, copyright files, Perl manual pages, and the comments and docstrings of Python's library, one paragraph per line
as produced by web extraction); and the source files of Python's library. Rates are per second of CPU time, best of the repeats,
since the machine may be shared.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import random
import re
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
import pyarrow as pa

import tamis
from tamis.batch import Batch
from tamis.context import Context
from tamis.operators import Filter
from tamis.text.code import PythonCommentToCode
from tamis.text.lists import BadWords, BoilerPlate
from tamis.text.quality import (
    BulletPoints,
    CommonEnglishWords,
    Ellipsis,
    LongestWord,
    MeanWordLength,
    NonAlphaNumeric,
    Numbers,
    Parentheses,
    Punctuation,
    SymbolsToWords,
    Urls,
    WhiteSpace,
    WordCount,
    WordsWithoutAlphabets,
)
from tamis.text.repetition import (
    GopherRepetition,
    RepeatedLines,
    RepeatedLinesByChars,
    RepeatedParagraphs,
    RepeatedParagraphsByChars,
    RepeatingDuplicateNGrams,
    RepeatingTopNGrams,
)
from tamis.text.segment import NGRAM_STATS, WORD_STATS, text_stats
from tamis.text.web import C4Quality, FineWebQuality, GopherQuality

CASCADE: list[Filter] = [GopherQuality(), GopherRepetition(), C4Quality(), FineWebQuality()]
NEMO_ENGLISH: list[Filter] = [
    NonAlphaNumeric(), SymbolsToWords(), Numbers(), Urls(), WhiteSpace(), Parentheses(), BoilerPlate(),
    RepeatedLines(), RepeatedParagraphs(), RepeatedLinesByChars(), RepeatedParagraphsByChars(), WordCount(),
    Punctuation(), WordsWithoutAlphabets(), CommonEnglishWords(), MeanWordLength(), LongestWord(), Ellipsis(),
    *(RepeatingTopNGrams(n=n) for n in (2, 3, 4)), *(RepeatingDuplicateNGrams(n=n) for n in range(5, 11)), BulletPoints(),
]  # fmt: skip


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def speeches() -> list[str]:
    with gzip.open(Path(tamis.__file__).parent / "recipes" / "speeches.jsonl.gz", "rt") as file:
        return ["\n".join(json.loads(line)["text"] for line in file)]


def technical() -> list[str]:
    """Return texts about software, one paragraph per line."""
    texts = [read(path) for path in sorted(Path("/usr/share/common-licenses").glob("*")) if path.is_file()]
    texts += [read(path) for path in sorted(Path("/usr/share/doc").glob("*/copyright"))[:300]]
    texts += [read(path) for path in sorted(Path("/usr/share/perl").rglob("*.pod"))[:500]]
    for source in sources():
        parts = re.findall(r'"""(.*?)"""|((?:^[ \t]*#.*\n)+)', source, re.S | re.M)
        texts.append("\n\n".join(re.sub(r"(?m)^[ \t]*#?", "", quoted or comment) for quoted, comment in parts))
    return ["\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text)) for text in texts]


def sources() -> list[str]:
    folder = Path(sysconfig.get_paths()["stdlib"])
    return [read(path) for path in sorted(folder.rglob("*.py"))[:800]]


def documents(texts: list[str], num_bytes: int, seed: int = 0) -> list[str]:
    """Split the texts into documents of 0.5 to 10 kB."""
    rng = random.Random(seed)
    long_enough = [text for text in texts if len(text) > 500]
    result, total = [], 0
    while total < num_bytes:
        text = rng.choice(long_enough)
        size = int(rng.triangular(500, 10_000, 2_000))
        start = rng.randrange(max(1, len(text) - size))
        result.append(text[start : start + size])
        total += len(result[-1].encode())
    return result


def batches(texts: list[str], num_bytes: int = 8_000_000) -> list[pa.Array]:
    """Return columns of about num_bytes, as in a pipeline."""
    result, part, size = [], [], 0
    for text in texts:
        part.append(text)
        size += len(text)
        if size >= num_bytes:
            result.append(pa.array(part, pa.string()))
            part, size = [], 0
    return result + ([pa.array(part, pa.string())] if part else [])


def cascade(steps: list[Filter]) -> Callable[[pa.Array], object]:
    runners = [step.open(Context()) for step in steps]

    def run(column: pa.Array) -> object:
        batch = Batch(pa.table({"text": column}))
        return [runner.score(batch) for runner in runners]

    return run


def measure(work: Callable[[pa.Array], object], columns: list[pa.Array], repeats: int) -> tuple[float, float]:
    """Return (MB/s of the best repeat, seconds of the first call on one row, for loading or compiling), in CPU time."""
    started = time.process_time()
    work(columns[0].slice(0, 1))
    first = time.process_time() - started
    best = np.inf
    for _ in range(repeats):
        started = time.process_time()
        for column in columns:
            work(column)
        best = min(best, time.process_time() - started)
    return sum(column.nbytes for column in columns) / best / 1e6, first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    corpora = {
        "speeches": batches(documents(speeches(), options.megabytes * 1_000_000)),
        "technical text": batches(documents(technical(), options.megabytes * 1_000_000)),
        "source code": batches(documents(sources(), options.megabytes * 1_000_000)),
    }
    work: dict[str, Callable[[pa.Array], object]] = {
        "characters, lines, sentences, paragraphs": text_stats,
        **{f"words, {way}": WORD_STATS[way] for way in ("auto", "unicode", "tokens", "characters")},
        **{f"2- to 10-grams, {way}": NGRAM_STATS[way] for way in ("auto", "unicode", "tokens")},
        "Gopher repetition": cascade([GopherRepetition()]),
        "Gopher quality": cascade([GopherQuality()]),
        "Gopher quality + repetition + C4 + FineWeb": cascade(CASCADE),
        "28 filters of NeMo Curator's English cascade": cascade(NEMO_ENGLISH),
        "boilerplate phrases": cascade([BoilerPlate()]),
        "bad words": cascade([BadWords()]),
        "Python comments": cascade([PythonCommentToCode()]),
    }
    write = sys.stdout.write
    write(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, ")
    write(f"numba {numba.__version__}, numpy {np.__version__}, pyarrow {pa.__version__}\n\n")
    write("| what | " + " | ".join(f"{name}, MB/s" for name in corpora) + " | first call, s |\n")
    write("|---|" + "---:|" * (len(corpora) + 1) + "\n")
    for name, each in work.items():
        rates, first = [], 0.0
        for columns in corpora.values():
            rate, loading = measure(each, columns, options.repeats)
            rates.append(rate)
            first = max(first, loading)
        write(f"| {name} | " + " | ".join(f"{rate:.0f}" for rate in rates) + f" | {first:.2f} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
