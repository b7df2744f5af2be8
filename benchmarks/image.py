"""Measure decoders of images, and a pipeline of filters against the usual loop over full-size pictures.

    python benchmarks/image.py decoders FOLDER     libraries, per JPEG: all pixels, and those of a short side of 256
    python benchmarks/image.py filters FOLDER      images per second of one core, from bytes to scores
    python benchmarks/image.py hashes FOLDER --peers PYTHON
                                                   the filters and pHash, against loops with ImageHash and imagededup
    python benchmarks/image.py captions FOLDER     what the recipe `image_text` keeps of captions in many languages

FOLDER has image files of any format; without one, photos are made. For captions it is that of the Debian package
tuxpaint-stamps-default: NAME.png, and NAME.txt with lines such as `de.utf8=Ein Kakadu.`, the first one in English.
PYTHON is that of an environment with `pip install imagehash imagededup opencv-python-headless`. Times are seconds of CPU
of one thread, the best of several rounds, so that other load on the machine matters little.
"""

from __future__ import annotations

import argparse
import io
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tamis import JsonlReader, MediaReference, ParquetWriter, Pipeline, Rows
from tamis.batch import Batch
from tamis.errors import ImageError
from tamis.image import (
    ImageAspect,
    ImageBlank,
    ImageBlur,
    ImageBrightness,
    ImageContrast,
    ImageDecodable,
    ImageEntropy,
    ImageHash,
    ImageSaturation,
    ImageSize,
)
from tamis.image.decode import headers, pictures
from tamis.recipes.load import load_recipe
from tamis.registry import build_operator
from tamis.text import Language, WordCount

SIZES = ((500, 375), (1024, 768), (2048, 1536), (4000, 3000))
STEPS = (
    ImageSize(),
    ImageAspect(),
    ImageDecodable(),
    ImageBlank(),
    ImageEntropy(),
    ImageBrightness(),
    ImageContrast(),
    ImageSaturation(),
    ImageBlur(),
)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def cpu_seconds(call: Callable[[], object], rounds: int) -> float:
    """The least CPU time of a call; the first one, which compiles, does not count."""
    call()
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        call()
        times.append(time.process_time() - begin)
    return min(times)


def made_photo(width: int, height: int) -> bytes:
    """A JPEG with smooth areas, edges and noise, of about 2 bits per pixel."""
    from PIL import Image

    rng = np.random.default_rng(width)
    coarse = rng.integers(0, 256, (height // 16, width // 16, 3), np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    noisy = (smooth + rng.normal(0, 4, (height, width, 1)).astype(np.int16)).clip(0, 255).astype(np.uint8)
    target = io.BytesIO()
    Image.fromarray(noisy).save(target, "JPEG", quality=85)
    return target.getvalue()


def files_of(folder: Path | None, suffixes: tuple[str, ...]) -> list[bytes]:
    """Images that can be decoded, from a folder, without links; or photos of several sizes."""
    if folder is None:
        return [made_photo(*size) for size in SIZES]
    found = []
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in suffixes and path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            try:
                pictures(batch_of([data]), "image")
            except ImageError:
                continue
            found.append(data)
    return found


def batch_of(files: list[bytes]) -> Batch:
    return Batch.from_rows([{"image": {"bytes": file, "path": None}} for file in files])


# ------------------------------------------------------------------------------------------------------------ decoders


def decoders(folder: Path | None) -> None:
    """Milliseconds per JPEG by library."""
    import cv2
    import simplejpeg
    from PIL import Image

    cv2.setNumThreads(1)
    reduced = {2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4, 8: cv2.IMREAD_REDUCED_COLOR_8}

    def with_pillow(file: bytes, scale: int) -> None:
        image = Image.open(io.BytesIO(file))
        if scale > 1:
            image.draft("RGB", (image.width // scale, image.height // scale))
        np.asarray(image)

    def with_opencv(file: bytes, scale: int) -> None:
        cv2.imdecode(np.frombuffer(file, np.uint8), reduced.get(scale, cv2.IMREAD_COLOR))

    def with_simplejpeg(file: bytes, scale: int) -> None:
        height, width, _, _ = simplejpeg.decode_jpeg_header(file)
        simplejpeg.decode_jpeg(file, min_width=-(-width // scale), min_height=-(-height // scale))

    libraries = {"Pillow": with_pillow, "OpenCV": with_opencv, "simplejpeg": with_simplejpeg}
    say(
        "| pixels | file | " + " | ".join(f"{name}, {what}" for what in ("all", "reduced") for name in libraries) + " |"
    )
    say("|---" * (2 + 2 * len(libraries)) + "|")
    for file in files_of(folder, (".jpg", ".jpeg"))[:8]:
        header = headers(batch_of([file]), "image")
        short = int(header.short_side[0])
        scale = max(each for each in (1, 2, 4, 8) if each == 1 or short >= 256 * each)
        cells = [
            f"{1000 * cpu_seconds(lambda decode=decode, by=by, file=file: decode(file, by), 7):.1f} ms"
            for by in (1, scale)
            for decode in libraries.values()
        ]
        size = f"{header.width[0]} x {header.height[0]}"
        say(f"| {size} | {len(file) / 1000:.0f} kB | " + " | ".join(cells) + " |")


# -------------------------------------------------------------------------------------------------------------- filters


def filters(folder: Path | None) -> None:
    """The same measures by Tamis, and by a loop that decodes each file in full for each measure, or once."""
    import cv2
    from PIL import Image, ImageStat

    cv2.setNumThreads(1)
    files = files_of(folder, (".jpg", ".jpeg", ".png", ".webp"))[:200]

    def ours() -> None:
        for start in range(0, len(files), 31):
            batch = batch_of(files[start : start + 31])
            for step in STEPS:
                step.score(batch)

    def measures(image: Image.Image) -> list[Callable[[], object]]:
        return [
            lambda: image.size,
            lambda: max(image.size) / min(image.size),
            lambda: np.percentile(np.asarray(image), (1, 99), axis=(0, 1)),
            lambda: image.convert("L").entropy(),
            lambda: ImageStat.Stat(image.convert("L")).mean,
            lambda: ImageStat.Stat(image.convert("L")).stddev,
            lambda: ImageStat.Stat(image.convert("HSV")).mean[1],
            lambda: cv2.Laplacian(np.asarray(image.convert("L")), cv2.CV_64F).var(),
        ]

    def once() -> None:
        for file in files:
            for measure in measures(Image.open(io.BytesIO(file)).convert("RGB")):
                measure()

    def for_each() -> None:
        for file in files:
            for number in range(8):
                measures(Image.open(io.BytesIO(file)).convert("RGB"))[number]()

    rounds = {"Tamis": (ours, 3), "a loop, decoded once": (once, 1), "a loop, decoded by each filter": (for_each, 1)}
    header = headers(batch_of(files), "image")
    megapixels = (header.width * header.height).mean() / 1e6
    say(f"{len(files)} images of {megapixels:.1f} megapixels and {header.num_bytes.mean() / 1000:.0f} kB on average")
    say("| | images/s | CPU s | ratio |")
    say("|---|---|---|---|")
    first = None
    for name, (call, times) in rounds.items():
        taken = cpu_seconds(call, times)
        first = taken if first is None else first
        say(f"| {name} | {len(files) / taken:.1f} | {taken:.2f} | {taken / first:.1f} |")


# --------------------------------------------------------------------------------------------------- filters and a hash

PEERS = """
import io, json, sys, time, types
import cv2, imagehash, numpy as np
from PIL import Image, ImageStat
for name in ("imagededup.methods.cnn", "imagededup.utils.models"):  # networks, which need torchvision
    sys.modules[name] = types.SimpleNamespace(CNN=None, CustomModel=None)
from imagededup.methods import PHash
cv2.setNumThreads(1)
Image.MAX_IMAGE_PIXELS = None
files = [open(path, "rb").read() for path in sys.argv[1:]]
hasher = PHash(verbose=False)
def decoded(file):
    return Image.open(io.BytesIO(file)).convert("RGB")
def measures(image):
    gray = image.convert("L")
    statistics, pixels = ImageStat.Stat(gray), np.asarray(image)
    return [
        image.size, max(image.size) / min(image.size), np.percentile(pixels, (1, 99), axis=(0, 1)), gray.entropy(),
        statistics.mean, statistics.stddev, ImageStat.Stat(image.convert("HSV")).mean[1],
        cv2.Laplacian(np.asarray(gray), cv2.CV_64F).var()]
def imagehash_alone(file):
    return str(imagehash.phash(decoded(file)))
def imagededup_alone(file):
    return hasher.encode_image(image_array=np.asarray(decoded(file)))
def with_imagehash(file):
    image = decoded(file)
    measures(image)
    return str(imagehash.phash(image))
def with_imagededup(file):
    image = decoded(file)
    measures(image)
    return hasher.encode_image(image_array=np.asarray(image))
found = {}
for name, call in (("ImageHash", (imagehash_alone, with_imagehash)), ("imagededup", (imagededup_alone, with_imagededup))):
    found[name] = []
    for each in call:
        each(files[0])
        begin = time.process_time()
        for file in files:
            each(file)
        found[name].append(time.process_time() - begin)
print(json.dumps(found))
"""


def hashes(folder: Path | None, peers: str) -> None:
    """pHash alone, and after the measures of `filters`: each image is decoded once, by Tamis at a reduced size."""
    files = files_of(folder, (".jpg", ".jpeg"))[:200]
    steps = (*STEPS, ImageHash("phash"))

    def ours(chosen: tuple) -> None:
        for start in range(0, len(files), 31):
            batch = batch_of(files[start : start + 31])
            for step in chosen:
                step.apply(batch) if isinstance(step, ImageHash) else step.score(batch)

    with tempfile.TemporaryDirectory() as name:
        paths = [str(Path(name) / f"{number}.jpg") for number in range(len(files))]
        for path, data in zip(paths, files, strict=True):
            Path(path).write_bytes(data)
        rounds = []
        for _ in range(3):  # in turns
            done = subprocess.run([peers, "-c", PEERS, *paths], stdout=subprocess.PIPE, text=True, check=True)
            tamis = [cpu_seconds(lambda chosen=chosen: ours(chosen), 1) for chosen in (steps[-1:], steps)]
            rounds.append({"Tamis": tamis, **json.loads(done.stdout.splitlines()[-1])})
    header = headers(batch_of(files), "image")
    megapixels = (header.width * header.height).mean() / 1e6
    say(
        f"{len(files)} JPEG files of {megapixels:.1f} megapixels and {header.num_bytes.mean() / 1000:.0f} kB on average"
    )
    say("| | pHash, images/s | ratio | filters and pHash, images/s | ratio |")
    say("|---|---:|---:|---:|---:|")
    for tool in rounds[0]:
        cells = []
        for place in range(2):
            least = min(each[tool][place] for each in rounds)
            ratios = [each[tool][place] / each["Tamis"][place] for each in rounds]
            cells.append(f"{len(files) / least:.1f} | {min(ratios):.1f} to {max(ratios):.1f}")
        say(f"| {tool} | " + " | ".join(cells) + " |")


def captions(folder: Path) -> None:
    """The rows that `image_text` keeps and drops, and how its filter of languages does on captions of three words or more."""
    rows = []
    for place in sorted(folder.rglob("*.txt")):
        picture = place.with_suffix(".png")
        if picture.is_file():
            first, *others = place.read_text(encoding="utf-8", errors="replace").splitlines()
            named = [("en", first), *(line.split(".utf8=", 1) for line in others if ".utf8=" in line)]
            rows += [{"file": str(picture.absolute()), "spoken": name, "caption": text} for name, text in named]
    files, spoken = {row["file"] for row in rows}, {row["spoken"] for row in rows}
    say(f"{len(rows):,} captions of {len(files)} pictures in {len(spoken)} languages and variants")
    steps = [build_operator(each.name, each.parameters) for each in load_recipe("image_text").steps]
    with tempfile.TemporaryDirectory() as place:
        listed = Path(place) / "list.jsonl"
        listed.write_text("".join(json.dumps(row) + "\n" for row in rows))
        reader = JsonlReader(listed, media_roots=[str(folder.absolute())])
        sink = ParquetWriter(f"{place}/out")
        report = Pipeline(reader, MediaReference(column="file"), *steps, sink).run(progress=False)
    say("| read | kept | " + " | ".join(report.dropped) + " | failed |")
    say("|---" * (len(report.dropped) + 3) + "|")
    counts = [report.read, report.kept, *report.dropped.values(), report.failed]
    say("| " + " | ".join(f"{count:,}" for count in counts) + " |")
    languages(rows)


def languages(rows: list[dict[str, str]]) -> None:
    steps = [WordCount(min_words=3, max_words=None, column="caption"), Language(column="caption", score_only=True)]
    found = Pipeline(Rows(rows), *steps).collect(progress=False).to_pylist()
    english = np.array([row["spoken"].startswith("en") for row in found])
    as_english = np.array([row["caption_language"] == "en" for row in found])
    confidence = np.array([row["caption_language_confidence"] or 0.0 for row in found])
    say(f"{english.sum():,} English captions, {(~english).sum():,} others")
    say("| `min_confidence` | of the English ones kept, % | of the others kept, % | of those kept English, % |")
    say("|---|---|---|---|")
    for least in (0, 0.2, 0.3, 0.4, 0.5, 0.65):
        kept = as_english & (confidence >= least)
        shares = (kept[english].mean(), kept[~english].mean(), english[kept].mean())
        say(f"| {least} | " + " | ".join(f"{100 * share:.1f}" for share in shares) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("decoders", "filters", "hashes", "captions"))
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--peers", default=sys.executable)
    chosen = parser.parse_args()
    say(f"{platform.machine()}, Python {platform.python_version()}")
    if chosen.part == "hashes":
        hashes(chosen.folder, chosen.peers)
    elif chosen.part == "captions":
        captions(chosen.folder)
    else:
        (decoders if chosen.part == "decoders" else filters)(chosen.folder)


if __name__ == "__main__":
    main()
