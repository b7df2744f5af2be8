"""Embed images from WebDataset archives on a GPU, end to end, with a network of the size of CLIP ViT-L/14.

    python benchmarks/image_gpu.py [--images 8000] [--size 640x480] [--part all|decode|network|run]

Weights are random, which costs the same time. Pictures are made: smooth colours with noise, as JPEG of quality 90. Three
rates are printed: preparing pictures on all cores (`image_tensor` alone), the network alone (pixels in GPU memory), and the
run from archives to Parquet, with the share of time in which the GPU was busy. The lower of the first two bounds the third.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from models import PEAK_FLOPS, GpuBusy
from PIL import Image

LAYERS, HIDDEN, INNER, TOKENS = 24, 1024, 4096, 257
CONFIG = {
    "model_type": "clip_vision_model", "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": 16,
    "num_hidden_layers": LAYERS, "image_size": 224, "patch_size": 14, "projection_dim": 768,
}  # fmt: skip
INPUT = {
    "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 224}, "do_center_crop": True, "resample": 3,
    "crop_size": {"height": 224, "width": 224}, "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}  # fmt: skip


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def write_model(folder: Path) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    settings = {name: value for name, value in CONFIG.items() if name != "model_type"}
    transformers.CLIPVisionModelWithProjection(transformers.CLIPVisionConfig(**settings)).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "preprocessor_config.json").write_text(json.dumps(INPUT))


def write_archive(path: str, first: int, count: int, width: int, height: int) -> int:
    rng = np.random.default_rng(first)
    with tarfile.open(path, "w") as archive:
        for number in range(first, first + count):
            small = Image.fromarray(rng.integers(0, 255, (12, 16, 3), np.uint8))
            smooth = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC), np.int16)
            pixels = (smooth + rng.integers(-8, 8, smooth.shape, np.int16)).clip(0, 255).astype(np.uint8)
            target = io.BytesIO()
            Image.fromarray(pixels).save(target, "JPEG", quality=90)
            member = tarfile.TarInfo(f"{number:08d}.jpg")
            member.size = len(target.getvalue())
            archive.addfile(member, io.BytesIO(target.getvalue()))
    return Path(path).stat().st_size


def write_archives(folder: Path, images: int, width: int, height: int) -> None:
    folder.mkdir()
    each = 500
    jobs = [(str(folder / f"{n:05d}.tar"), n * each, min(each, images - n * each)) for n in range(-(-images // each))]
    with ProcessPoolExecutor() as pool:
        futures = [pool.submit(write_archive, *job, width, height) for job in jobs]
        total = sum(future.result() for future in futures)
    say(f"{images:,} images of {width} x {height}, {total / images / 1e3:.0f} kB each, in {len(jobs)} archives")


def decode(folder: Path, images: int) -> None:
    """Preparing pictures in CPU workers, with nothing after it."""
    from tamis import Pipeline, WebDatasetReader
    from tamis.image import ImageTensor

    start = time.perf_counter()
    Pipeline(WebDatasetReader(str(folder / "in" / "*.tar")), ImageTensor(folder / "model")).run(progress=False)
    wall = time.perf_counter() - start
    say(f"decoding and resizing: {images / wall:,.0f} images/s on {os.cpu_count()} cores ({wall:.1f} s with start-up)")


def network(folder: Path) -> None:
    """The network alone, on batches in host memory."""
    from tamis.context import Context
    from tamis.image import ImageEmbed

    model = ImageEmbed(folder / "model", device="gpu").open_model(Context(device="cuda:0"))
    pixels = np.random.default_rng(0).integers(0, 255, (2048, 224, 224, 3), np.uint8)
    model.predict(pixels[:512])
    start = time.perf_counter()
    for _ in range(4):
        model.predict(pixels)
    say(f"network alone: {4 * len(pixels) / (time.perf_counter() - start):,.0f} images/s, from pixels in host memory")


def run(folder: Path, images: int) -> None:
    from tamis import ParquetWriter, Pipeline, WebDatasetReader
    from tamis.image import ImageEmbed

    pipeline = Pipeline(
        WebDatasetReader(str(folder / "in" / "*.tar")),
        ImageEmbed(folder / "model", device="gpu", dtype="float16"),
        ParquetWriter(str(folder / "out")),
    )
    say(str(pipeline.explain()))
    with GpuBusy() as gpu:
        start = time.perf_counter()
        report = pipeline.run(progress=False)
        wall = time.perf_counter() - start
    say(str(report))
    for entry in report.as_dict()["operators"]:
        say(f"  {entry['name']:<20} {entry.get('seconds', 0):8.1f} s of workers")
    busy, active = gpu.share()
    say(f"{gpu.name}: {images / wall:,.0f} images/s from start to end ({wall:.1f} s)")
    say(f"{images / max(active, 1e-9):,.0f} images/s while the GPU is in use ({active:.1f} s), GPU busy {busy:.0f} %")
    flops = LAYERS * TOKENS * (2 * (4 * HIDDEN * HIDDEN + 2 * HIDDEN * INNER) + 4 * TOKENS * HIDDEN)
    peak = next((value for key, value in PEAK_FLOPS.items() if key in gpu.name), None)
    if peak:
        say(f"{images * flops / max(active, 1e-9) / peak:.1%} of the arithmetic peak (bfloat16)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=8_000)
    parser.add_argument("--size", default="640x480")
    parser.add_argument("--part", default="all", choices=["all", "decode", "network", "run"])
    given = parser.parse_args()
    width, height = (int(length) for length in given.size.split("x"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder / "model")
        write_archives(folder / "in", given.images, width, height)
        if given.part in ("all", "decode"):
            decode(folder, given.images)
        if given.part in ("all", "network"):
            network(folder)
        if given.part in ("all", "run"):
            run(folder, given.images)


if __name__ == "__main__":
    main()
