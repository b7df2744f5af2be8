"""Token files: TokenWriter against datatrove's DocumentTokenizer on the same files, one core each.

    python benchmarks/tokens.py --datatrove PYTHON [--documents 40000] [--packed 4096]

Both read JSON Lines, tokenize with the same `tokenizer.json` (8,000 tokens, trained on the corpus), append an end token and
write datatrove's .ds files, which are compared byte by byte. The corpus is English: sentences of Python's own documentation, in
random order. PYTHON is that of an environment with `pip install "datatrove[processing,io]" tokenizers`.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import corpus
import text

ROOT = Path(__file__).parent.parent
END = "<|endoftext|>"

DATATROVE = """
import sys
from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
source, target, tokenizer = sys.argv[1:4]
step = DocumentTokenizer(target, tokenizer_name_or_path=tokenizer, eos_token="<|endoftext|>", shuffle_documents=False,
                         max_tokens_per_file=None, local_working_dir=target + "-work")
LocalPipelineExecutor([JsonlReader(source), step], tasks=1, workers=1, logging_dir=target + "-logs").run()
"""

OURS = """
import sys
from tamis import JsonlReader, LocalExecutor, Pipeline, TokenWriter
source, target, tokenizer, form, length = sys.argv[1:6]
sink = TokenWriter(target, tokenizer=tokenizer, format=form, end_token="<|endoftext|>", sequence_length=int(length) or None)
Pipeline(JsonlReader(source), sink).run(executor=LocalExecutor(workers=1), memory="2GB", progress=False)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datatrove", required=True)
    parser.add_argument("--documents", type=int, default=40_000)
    parser.add_argument("--packed", type=int, default=4096)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "in"
        source.mkdir()
        corpus.make_english(source, options.documents)
        size = sum(path.stat().st_size for path in source.iterdir()) / 1e6
        texts = [json.loads(line)["text"] for path in source.iterdir() for line in path.open()]
        tokenizer = folder / "tokenizer.json"
        corpus.make_tokenizer(tokenizer, texts[:5000])
        import tokenizers

        loaded = tokenizers.Tokenizer.from_file(str(tokenizer))
        loaded.add_special_tokens([END])
        loaded.save(str(tokenizer))
        environment = {"PYTHONPATH": str(ROOT), "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        given = [str(source), str(folder / "out"), str(tokenizer)]
        ours = [sys.executable, "-c", OURS, *given]
        text.watch([*ours, "datatrove", "0"], folder / "out", environment)  # compiles the kernels
        run = text.watch([*ours, "datatrove", "0"], folder / "out", environment)
        written = np.concatenate([np.fromfile(path, "<u2") for path in sorted((folder / "out").glob("*.ds"))])
        rows = [("tamis, datatrove's format", run)]
        rows.append((f"tamis, Megatron, packed to {options.packed:,}", text.watch(
            [*ours, "megatron", str(options.packed)], folder / "out", environment)))  # fmt: skip
        other = text.watch([options.datatrove, "-c", DATATROVE, *given], folder / "out", environment)
        theirs = np.concatenate([np.fromfile(path, "<u2") for path in sorted((folder / "out").glob("*.ds"))])
        rows.append(("datatrove DocumentTokenizer", other))
        print(f"{size:.1f} MB, {len(written):,} tokens, equal tokens: {np.array_equal(written, theirs)}\n")
        print("| | CPU s | MB/s | million tokens/s | peak, MB | relative |\n|---|---:|---:|---:|---:|---:|")
        for title, each in rows:
            rate = len(written) / each.processor / 1e6
            print(f"| {title} | {each.processor:.1f} | {size / each.processor:.1f} | {rate:.2f} | {each.peak:.0f} "
                  f"| {other.processor / each.processor:.1f} |")  # fmt: skip


if __name__ == "__main__":
    main()
