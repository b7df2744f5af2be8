"""Generate corpora for the deduplication benchmarks, of any size and with known duplicates, and a tokenizer.

The words of document d are chosen by a hash of (d, position), so the corpus is reproducible and any process can write a copy of
any document. Of every hundred documents, `EXACT` are copies of an earlier one and `NEAR` are copies with a few words changed.
"""

from __future__ import annotations

import json
import random
import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

EXACT, NEAR = 5, 20
VOCABULARY = 50_000
WORDS = 90
PER_FILE = 250_000


def make_tokenizer(path: Path, texts: list[str]) -> None:
    """Train a tokenizer with 8,000 tokens on the texts."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=8000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))


def vocabulary() -> list[str]:
    """Return invented words with the lengths of English words; frequent words are short."""
    rng = np.random.default_rng(7)
    lengths = np.clip(rng.gamma(5, 1.1, VOCABULARY).round().astype(int), 1, 18)
    lengths[:200] = np.clip(lengths[:200] // 2, 2, 5)
    return ["".join(chr(97 + letter) for letter in rng.integers(0, 26, length)) for length in lengths]


def _hash(values: np.ndarray) -> np.ndarray:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def words_of(documents: np.ndarray) -> np.ndarray:
    """Return int64[documents, WORDS]: indices of the words; small indices are frequent."""
    at = documents.astype(np.uint64)[:, None] * np.uint64(1_000_003) + np.arange(WORDS, dtype=np.uint64)[None, :]
    share = _hash(at + np.uint64(0x9E3779B97F4A7C15)).astype(np.float64) / 2**64
    return (VOCABULARY**share).astype(np.int64) - 1


def origins_of(first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (the document that each one copies, or itself; the number of words changed)."""
    numbers = np.arange(first, first + count, dtype=np.uint64)
    kind = _hash(numbers * np.uint64(31) + np.uint64(17)) % np.uint64(100)
    earlier = (_hash(numbers * np.uint64(37) + np.uint64(29)) % np.maximum(numbers, np.uint64(1))).astype(np.int64)
    copies = (kind < EXACT + NEAR) & (numbers > 0)
    changed = np.where(kind < EXACT, 0, 1 + (_hash(numbers * np.uint64(41)) % np.uint64(4)).astype(np.int64))
    return np.where(copies, earlier, numbers.astype(np.int64)), np.where(copies, changed, 0)


def write_file(path: str, first: int, count: int) -> None:
    words = vocabulary()
    with Path(path).open("w") as file:
        for start in range(first, first + count, 10_000):
            size = min(10_000, first + count - start)
            origins, changed = origins_of(start, size)
            matrix = words_of(origins)
            own = words_of(np.arange(start, start + size))
            for index in np.flatnonzero(changed):
                places = own[index, : changed[index]] % WORDS
                matrix[index, places] = own[index, 10 : 10 + changed[index]]
            lines = (" ".join(map(words.__getitem__, row)) for row in matrix.tolist())
            file.writelines(f'{{"id":"d{start + n}","text":"{line}."}}\n' for n, line in enumerate(lines))


def sentences() -> list[str]:
    """Return real English: the sentences of Python's own documentation."""
    from pydoc_data.topics import topics

    text = " ".join(" ".join(topics[name].split()) for name in sorted(topics))
    return [part for part in re.split(r"(?<=[.?!]) ", text) if 40 <= len(part) <= 300]


def make_english(folder: Path, documents: int) -> int:
    """Write documents of eight sentences each; every tenth is an earlier one with two sentences replaced."""
    known = sentences()
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        rng = random.Random(5)
        chosen: list[list[int]] = []
        with (folder / "00000.jsonl").open("w") as file:
            for number in range(documents):
                picks = [rng.randrange(len(known)) for _ in range(8)]
                if number % 10 == 9:
                    picks = [*rng.choice(chosen)[:6], *picks[:2]] if number % 20 == 9 else list(rng.choice(chosen))
                chosen.append(picks)
                text = " ".join(known[pick] for pick in picks)
                file.write(json.dumps({"id": f"d{number}", "text": text}) + "\n")
        (folder / "complete").touch()
    return sum(file.stat().st_size for file in folder.glob("*.jsonl"))


def make_corpus(folder: Path, documents: int, workers: int = 2) -> int:
    """Write the corpus as JSON Lines unless it exists; return its size in bytes."""
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor(workers) as pool:
            written = [
                pool.submit(write_file, str(folder / f"{number:05d}.jsonl"), first, min(PER_FILE, documents - first))
                for number, first in enumerate(range(0, documents, PER_FILE))
            ]
            for each in written:
                each.result()  # raises if the disk is full
        (folder / "complete").touch()
    return sum(file.stat().st_size for file in folder.glob("*.jsonl"))
