"""Filters and a perceptual hash on images, in Tamis and in Data-Juicer, on the same files, one process each.

    python benchmarks/image_peers.py PYTHON [--images 200]

Both keep images by width and height, aspect ratio and bytes, then drop those with an equal pHash. PYTHON is that of an
environment with `pip install py-data-juicer imagededup aiohttp ray`. Columns: pixels, tool, CPU seconds of a run over one
image, CPU seconds of all images beyond that, images per CPU second, rows kept. Files are made: JPEG photos of 705 and 176 kB.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import text
from image import made_photo

ROOT = Path(__file__).parent.parent

OURS = """
import sys
from tamis import ImageReader, JsonlWriter, LocalExecutor, Pipeline
from tamis.dedup import ImageDedup
from tamis.image import ImageAspect, ImageBytes, ImageSize
steps = [ImageSize(min_width=200, min_height=200), ImageAspect(max_aspect_ratio=3), ImageBytes(max_bytes=20_000_000)]
Pipeline(ImageReader(sys.argv[1]), *steps, ImageDedup(radius=0), JsonlWriter(sys.argv[2])).run(
    executor=LocalExecutor(workers=1), memory="2GB", progress=False)
"""

DATA_JUICER = """
import sys
from pathlib import Path
from data_juicer.core.data import NestedDataset as Dataset
from data_juicer.ops.deduplicator.image_deduplicator import ImageDeduplicator
from data_juicer.ops.filter.image_aspect_ratio_filter import ImageAspectRatioFilter
from data_juicer.ops.filter.image_shape_filter import ImageShapeFilter
from data_juicer.ops.filter.image_size_filter import ImageSizeFilter
rows = [{"images": [str(path)], "text": ""} for path in sorted(Path(sys.argv[1]).iterdir())]
data = Dataset.from_list(rows)
for op in (ImageShapeFilter(min_width=200, min_height=200, num_proc=1),
           ImageAspectRatioFilter(min_ratio=1 / 3, max_ratio=3, num_proc=1),
           ImageSizeFilter(min_size="0", max_size="20MB", num_proc=1), ImageDeduplicator(method="phash", num_proc=1)):
    data = op.run(data)
Path(sys.argv[2]).mkdir(parents=True, exist_ok=True)
data.to_json(sys.argv[2] + "/out.jsonl")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python")
    parser.add_argument("--images", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for title, (width, height) in {"large": (2048, 1536), "small": (1024, 768)}.items():
            one, many = folder / f"{title}-1", folder / title
            photo = made_photo(width, height)
            for target, count in ((one, 1), (many, options.images)):
                target.mkdir()
                for number in range(count):  # the same pixels: all but one are dropped by both, which costs the same
                    (target / f"{number:05d}.jpg").write_bytes(photo)
            for who, command in (
                ("tamis", [sys.executable, "-c", OURS]),
                ("data-juicer", [options.python, "-c", DATA_JUICER]),
            ):
                environment = {"PYTHONPATH": str(ROOT)} if who == "tamis" else {}
                text.watch([*command, str(one), str(folder / "out")], folder / "out", environment)
                start = text.watch([*command, str(one), str(folder / "out")], folder / "out", environment)
                run = text.watch([*command, str(many), str(folder / "out")], folder / "out", environment)
                work = run.processor - start.processor
                print(
                    f"| {width} x {height} | {who} | {start.processor:.1f} | {work:.2f} | {options.images / work:.0f} "
                    f"| {run.kept} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
