"""Transcription on a GPU: hours of audio per minute and GPU busy share, for a network of the size of Whisper large-v3.

    python benchmarks/audio_gpu.py [--minutes 60] [--tokens 60] [--batch-size 64]

The weights are random. They never end a sentence, so `--tokens` tokens are decoded for each 30 s; 60 is what people say in that
time. The sound is noise, written with the module `wave`. The recognizer is that of `Transcribe`; files are not decoded,
because machines with a GPU need not have PyAV.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
import threading
import time
import wave
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from tamis.models.recognizers import Wish, find_recognizer, open_recognizer

RATE = 16_000


def write_network(folder: Path) -> None:
    """A folder of transformers with the configuration of Whisper large-v3."""
    import torch
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.models import BPE
    from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=51866, num_mel_bins=128, d_model=1280, encoder_layers=32, decoder_layers=32, encoder_attention_heads=20,
        decoder_attention_heads=20, encoder_ffn_dim=5120, decoder_ffn_dim=5120, decoder_start_token_id=50258,
        eos_token_id=50257, pad_token_id=50257, bos_token_id=50257, suppress_tokens=[], begin_suppress_tokens=[],
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


def clips(minutes: float) -> list[np.ndarray]:
    """Clips of 30 s, through files of the module `wave`."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(max(1, round(minutes * 2))):
        target = io.BytesIO()
        with wave.open(target, "wb") as file:
            file.setparams((1, 2, RATE, 0, "NONE", ""))
            file.writeframes((rng.normal(0, 3000, 30 * RATE)).astype("<i2").tobytes())
        with wave.open(io.BytesIO(target.getvalue())) as file:
            made.append(np.frombuffer(file.readframes(30 * RATE), "<i2").astype(np.float32) / 32768)
    return made


class Busy:
    """The share of time in which the GPU computes, as nvidia-smi reports it twice a second."""

    def __enter__(self) -> Busy:
        self.shares: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-i", "0"]
        while not self._stop.wait(0.5):
            try:
                self.shares.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
            except (OSError, ValueError, subprocess.CalledProcessError):
                return

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()
    import torch

    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name(0) if device != "cpu" else "CPU"
    with tempfile.TemporaryDirectory() as folder:
        write_network(Path(folder))
        began = time.perf_counter()
        recognizer = open_recognizer(find_recognizer(folder), device)
        sys.stdout.write(f"{name}: loaded in {time.perf_counter() - began:.1f} s\n")
        wish = Wish(batch_size=options.batch_size, max_tokens=options.tokens)
        waves = clips(options.minutes)
        recognizer.transcribe(waves[: options.batch_size], wish)
        with Busy() as busy:
            began = time.perf_counter()
            recognizer.transcribe(waves, wish)
            seconds = time.perf_counter() - began
    hours = len(waves) * 30 / 3600
    share = f"{np.mean(busy.shares):.0f} %" if busy.shares else "unknown"
    sys.stdout.write(
        f"{hours:.2f} hours of audio in {seconds:.1f} s: {hours / seconds * 60:.1f} hours per minute, "
        f"batches of {options.batch_size}, {options.tokens} tokens per 30 s, GPU busy {share}\n"
    )


if __name__ == "__main__":
    main()
