"""Measure networks on texts: embeddings on a CPU against sentence-transformers, and end to end on a GPU.

    python benchmarks/models.py cpu-minilm      Embed("minilm") and sentence-transformers' own `encode`, same threads
    python benchmarks/models.py cpu-static      Embed("wordllama")
    python benchmarks/models.py memory          Embed("minilm") with memory="1GB": the peak of all processes
    python benchmarks/models.py gpu-minilm      Parquet -> Embed -> Parquet, MiniLM's architecture, 256 tokens
    python benchmarks/models.py gpu-deberta     Parquet -> Classifier -> Parquet, DeBERTa-v3-base's architecture, 512 tokens

The GPU parts write models with random weights of the true architecture and texts to a temporary folder. Texts of the CPU parts
are spans of the speeches included in the package, of lognormal length (median 67 words).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parent.parent
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}
"""Dense bfloat16, from the data sheets."""


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def words() -> list[str]:
    with gzip.open(ROOT / "tamis" / "recipes" / "speeches.jsonl.gz", "rt") as file:
        return [word for line in file for word in json.loads(line)["text"].split(" ")]


def mixed_texts(count: int, seed: int = 1) -> list[str]:
    rng, known = np.random.default_rng(seed), words()
    sizes = np.clip(rng.lognormal(4.2, 1.0, count).astype(int), 3, 3000)
    starts = [int(rng.integers(0, len(known) - size)) for size in sizes]
    return [" ".join(known[start : start + size]) for start, size in zip(starts, sizes, strict=True)]


def clock(run: Callable[[], Any]) -> tuple[float, float, Any]:
    """(seconds, CPU seconds, result)."""
    wall, used = time.perf_counter(), time.process_time()
    result = run()
    return time.perf_counter() - wall, time.process_time() - used, result


def cpu_minilm(count: int, threads: int) -> None:
    import torch
    from sentence_transformers import SentenceTransformer

    from tamis.context import Context
    from tamis.models.files import find
    from tamis.text import Embed

    torch.set_num_threads(threads)
    texts = mixed_texts(count)
    column = pa.array(texts)
    peer = SentenceTransformer(str(find("minilm").folder), device="cpu")
    ours = Embed("minilm", device="cpu").open(Context())
    peer.encode(texts[:16], show_progress_bar=False)
    ours.vectors(column[:16])
    say(f"{count} texts, {sum(map(len, texts)) / count:.0f} characters on average, {threads} thread(s)")
    best: dict[str, tuple[float, float]] = {}
    found = {}
    for _ in range(3):
        for name, run in (
            ("sentence-transformers", lambda: peer.encode(texts, normalize_embeddings=True, show_progress_bar=False)),
            ("tamis", lambda: ours.vectors(column)),
        ):
            wall, used, found[name] = clock(run)
            known = best.get(name, (wall, used))
            best[name] = min(known[0], wall), min(known[1], used)
    for name, (wall, used) in best.items():
        say(f"{name:<24} {wall:7.2f} s   {used:7.2f} s of CPU   {count / wall:7.1f} texts/s")
    one, other = best["sentence-transformers"], best["tamis"]
    say(f"ratio                    {one[0] / other[0]:7.2f}     {one[1] / other[1]:7.2f}")
    say(f"largest difference       {np.abs(found['tamis'] - found['sentence-transformers']).max():.1e}")


def cpu_static(count: int) -> None:
    from tamis.context import Context
    from tamis.text import Embed

    column = pa.array(mixed_texts(count))
    runner = Embed("wordllama").open(Context())
    runner.vectors(column[:16])
    wall, used, _ = clock(lambda: runner.vectors(column))
    say(f"{count} texts in {wall:.2f} s, {used:.2f} s of CPU: {count / wall:,.0f} texts/s")


def memory(count: int) -> None:
    from tamis import ParquetWriter, Pipeline, Rows
    from tamis.text import Embed

    rows = [{"id": number, "text": text} for number, text in enumerate(mixed_texts(count))]
    rows.append({"id": count, "text": "a long text " * 900_000})
    with tempfile.TemporaryDirectory() as folder:
        report = Pipeline(Rows(rows), Embed("minilm"), ParquetWriter(folder)).run(memory="1GB", progress=False)
    say(str(report))


# --------------------------------------------------------------------------------------------------------------- on a GPU


def write_bert_tokenizer(folder: Path, known: list[str], size: int) -> None:
    """A word-piece tokenizer trained on the texts, filled up to the size of the real vocabulary."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([" ".join(known[at : at + 1000]) for at in range(0, len(known), 1000)], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))


def write_minilm(folder: Path) -> None:
    import torch
    from transformers import BertConfig, BertModel

    write_bert_tokenizer(folder, words(), 30522)
    config = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    torch.manual_seed(0)
    BertModel(config).eval().save_pretrained(folder)


def write_deberta(folder: Path) -> None:
    import torch
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    write_bert_tokenizer(folder, words(), 30522)
    config = DebertaV2Config(
        vocab_size=128100, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072,
        relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=256, norm_rel_ebd="layer_norm",
        share_att_key=True, position_biased_input=False, type_vocab_size=0, max_position_embeddings=512,
        pooler_hidden_size=768, id2label={0: "High", 1: "Medium", 2: "Low"}, label2id={"High": 0, "Medium": 1, "Low": 2},
    )  # fmt: skip
    torch.manual_seed(0)
    DebertaV2ForSequenceClassification(config).eval().save_pretrained(folder)


def write_parquet(folder: Path, rows: int, size: int, files: int) -> None:
    """Texts of `size` words each, so that every one fills the network's input."""
    folder.mkdir()
    rng, known = np.random.default_rng(2), words()
    per_file = rows // files
    for number in range(files):
        starts = rng.integers(0, len(known) - size, per_file)
        texts = [" ".join(known[start : start + size]) for start in starts]
        table = pa.table({"id": np.arange(per_file) + number * per_file, "text": texts})
        pq.write_table(table, folder / f"{number:03d}.parquet", row_group_size=per_file // 4)


class GpuBusy:
    """The share of time in which the GPU computes, sampled through NVML in a thread."""

    def __enter__(self) -> GpuBusy:
        import pynvml

        pynvml.nvmlInit()
        self.name = str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)))
        self.samples: list[tuple[float, float]] = []
        self._stop = threading.Event()

        def watch() -> None:
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            while not self._stop.wait(0.1):
                self.samples.append((time.perf_counter(), pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))

        self._thread = threading.Thread(target=watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def share(self) -> tuple[float, float]:
        """(percent busy, seconds) from the first to the last moment at which it was busy."""
        busy = [number for number, (_, percent) in enumerate(self.samples) if percent > 0]
        if not busy:
            return 0.0, 0.0
        span = self.samples[busy[0] : busy[-1] + 1]
        return float(np.mean([percent for _, percent in span])), span[-1][0] - span[0][0]


def on_gpu(kind: str, rows: int, size: int, flops_per_token: float, tokens: int, step: Callable[[Path], Any]) -> None:
    from tamis import ParquetReader, ParquetWriter, Pipeline

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wall, _, _ = clock(lambda: (write_minilm if kind == "minilm" else write_deberta)(folder / "model"))
        say(f"model written in {wall:.0f} s")
        wall, _, _ = clock(lambda: write_parquet(folder / "in", rows, size, 32))
        say(f"{rows} texts of {size} words written in {wall:.0f} s")
        pipeline = Pipeline(
            ParquetReader(str(folder / "in")), step(folder / "model"), ParquetWriter(str(folder / "out"))
        )
        say(str(pipeline.explain()))
        with GpuBusy() as gpu:
            wall, _, report = clock(lambda: pipeline.run(progress=False))
        say(str(report))
        for entry in report.as_dict()["operators"]:
            say(f"  {entry['name']:<20} {entry.get('seconds', 0):8.1f} s of workers")
        busy, active = gpu.share()
        peak = next((value for key, value in PEAK_FLOPS.items() if key in gpu.name), None)
        say(f"{gpu.name}: {rows / wall:,.0f} documents/s from start to end ({wall:.1f} s)")
        say(
            f"{rows / max(active, 1e-9):,.0f} documents/s while the GPU is in use ({active:.1f} s), GPU busy {busy:.0f} %"
        )
        if peak:
            share = rows * tokens * flops_per_token / max(active, 1e-9) / peak
            say(f"{share:.1%} of the arithmetic peak (bfloat16, {peak / 1e12:.0f} TFLOP/s)")


def gpu_minilm(rows: int) -> None:
    from tamis.text import Embed

    layers, hidden, inner, tokens = 6, 384, 1536, 256
    each = layers * (2 * (4 * hidden * hidden + 2 * hidden * inner) + 4 * tokens * hidden)
    on_gpu("minilm", rows, 260, each, tokens, lambda folder: Embed(folder, device="gpu", max_tokens=tokens))


def gpu_deberta(rows: int) -> None:
    from tamis.text import Classifier

    layers, hidden, inner, tokens = 12, 768, 3072, 512
    each = layers * (2 * (4 * hidden * hidden + 2 * hidden * inner) + 4 * tokens * hidden + 4 * 512 * hidden)
    on_gpu("deberta", rows, 520, each, tokens, lambda folder: Classifier(folder, device="gpu", max_tokens=tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["cpu-minilm", "cpu-static", "memory", "gpu-minilm", "gpu-deberta"])
    parser.add_argument("--rows", type=int)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    lines = subprocess.run(["lscpu"], capture_output=True, text=True, check=False).stdout.splitlines()
    processor = next((line.partition(":")[2].strip() for line in lines if line.startswith("Model name")), "unknown")
    say(f"{processor}, {os.cpu_count()} cores, Python {platform.python_version()}")
    if given.part == "cpu-minilm":
        cpu_minilm(given.rows or 400, given.threads)
    elif given.part == "cpu-static":
        cpu_static(given.rows or 20_000)
    elif given.part == "memory":
        memory(given.rows or 300)
    elif given.part == "gpu-minilm":
        gpu_minilm(given.rows or 800_000)
    else:
        gpu_deberta(given.rows or 64_000)


if __name__ == "__main__":
    main()
