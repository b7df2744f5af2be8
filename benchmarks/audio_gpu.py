"""Transcription on a GPU: hours of audio per minute and GPU busy share, for a network of the size of Whisper large-v3.

    python benchmarks/audio_gpu.py [--minutes 60] [--tokens 60] [--batch-sizes 64,256] [--layers 32]
    python benchmarks/audio_gpu.py --files [--blocksize 192MB] [--minutes 60] [--tokens 60]

The weights are random. They never end a sentence, so `--tokens` tokens are decoded for each 30 s; 60 is what people say in that
time. The audio is noise, written with the module `wave`. The recognizer is that of `Transcribe`. With `--files`, a whole
pipeline runs instead: it decodes wav files (which needs PyAV), transcribes them, and writes Parquet.
`--layers 1 --minutes 1 --batch-sizes 2` tries the script on a CPU.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import sys
import tempfile
import time
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

from gpu_busy import Busy

from tamis.models.recognizers import Wish, find_recognizer, open_recognizer

RATE = 16_000


def write_network(folder: Path, layers: int) -> None:
    """A folder of transformers with the configuration of Whisper large-v3, which has 32 layers."""
    import torch
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.models import BPE
    from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=51866, num_mel_bins=128, d_model=1280, encoder_layers=layers, decoder_layers=layers,
        encoder_attention_heads=20, decoder_attention_heads=20, encoder_ffn_dim=5120, decoder_ffn_dim=5120,
        decoder_start_token_id=50258, eos_token_id=50257, pad_token_id=50257, bos_token_id=50257,
        suppress_tokens=[], begin_suppress_tokens=[],
    )  # fmt: skip
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = WhisperForConditionalGeneration(config)
    model.to("cpu").save_pretrained(folder)
    GenerationConfig(
        decoder_start_token_id=50258, eos_token_id=50257, pad_token_id=50257, bos_token_id=50257,
        no_timestamps_token_id=50364, is_multilingual=False, max_length=448,
    ).save_pretrained(folder)  # fmt: skip
    names = {f"t{number}": number for number in range(50257)}
    tokenizer = Tokenizer(BPE(vocab=names, merges=[]))
    special = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|special{n}|>" for n in range(105)), "<|notimestamps|>"]
    tokenizer.add_special_tokens([AddedToken(name) for name in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "preprocessor_config.json").write_text(json.dumps({"feature_size": 128}))


def recordings(minutes: float) -> Iterator[bytes]:
    """Wav files of 30 s: sixteen different ones, in turns."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(16):
        target = io.BytesIO()
        with wave.open(target, "wb") as file:
            file.setparams((1, 2, RATE, 0, "NONE", ""))
            file.writeframes((rng.normal(0, 3000, 30 * RATE)).astype("<i2").tobytes())
        made.append(target.getvalue())
    yield from itertools.islice(itertools.cycle(made), max(1, round(minutes * 2)))


def clips(minutes: float) -> list[np.ndarray]:
    """The samples of such files."""
    made = []
    for recording in recordings(minutes):
        with wave.open(io.BytesIO(recording)) as file:
            made.append(np.frombuffer(file.readframes(30 * RATE), "<i2").astype(np.float32) / 32768)
    return made


def run_files(network: Path, folder: Path, minutes: float, tokens: int, blocksize: str | None) -> None:
    """Measure a pipeline, from files to Parquet, start-up included."""
    from tamis import AudioReader, ParquetWriter, Pipeline
    from tamis.audio import Transcribe

    (folder / "in").mkdir()
    for number, recording in enumerate(recordings(minutes)):
        (folder / "in" / f"{number:06}.wav").write_bytes(recording)
    pipeline = Pipeline(
        AudioReader(str(folder / "in"), blocksize=blocksize),
        Transcribe(str(network), max_tokens=tokens),
        ParquetWriter(str(folder / "out")),
    )
    with Busy() as busy:
        began = time.perf_counter()
        report = pipeline.run()
        seconds = time.perf_counter() - began
    hours = report.kept * 30 / 3600
    sys.stdout.write(
        f"{hours:.2f} hours of audio in {report.kept:,} files to Parquet in {seconds:.1f} s with start-up: "
        f"{hours / seconds * 60:.1f} hours per minute, GPU busy {busy.share}; by reading: {busy.readings}\n{report}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--batch-sizes", default="64,256")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--files", action="store_true")
    parser.add_argument("--blocksize")
    options = parser.parse_args()
    import torch

    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name(0) if device != "cpu" else "CPU"
    sizes = [int(each) for each in options.batch_sizes.split(",")]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as work:
        write_network(Path(folder), options.layers)
        if options.files:
            run_files(Path(folder), Path(work), options.minutes, options.tokens, options.blocksize)
            return
        waves = clips(options.minutes)
        hours = len(waves) * 30 / 3600
        began = time.perf_counter()
        recognizer = open_recognizer(find_recognizer(folder), device)
        sys.stdout.write(f"{name}: loaded in {time.perf_counter() - began:.1f} s\n")
        for size in sizes:
            wish = Wish(batch_size=size, max_tokens=options.tokens)
            recognizer.transcribe(waves[:size], wish)
            with Busy() as busy:
                began = time.perf_counter()
                recognizer.transcribe(waves, wish)
                seconds = time.perf_counter() - began
            sys.stdout.write(
                f"{hours:.2f} hours of audio in {seconds:.1f} s: {hours / seconds * 60:.1f} hours per minute, "
                f"batches of {size}, {options.tokens} tokens per 30 s, GPU busy {busy.share}\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
