"""Perceptual hashes and the deduplication of images: `python benchmarks/image_hashes.py SECTION [FOLDER]`.

    recall FOLDER     recall and precision per hash and radius, on the pictures below FOLDER and transforms of them
    sizes FOLDER      recall and precision on pictures that are published in many sizes: NAME/contents/images/WIDTHxHEIGHT.jpg
    reduced FOLDER    bits that differ between the hash of all pixels and that of a reduced picture
    speed FOLDER      images per second and core: decode and hash, against the packages ImageHash and pdqhash
    pairs             a million made hashes: seconds and memory, against numpy and, where installed, faiss
    unpack FILE FOLDER    write pictures to FOLDER/LABEL/, from a task of bigbench (task.json) or from the format of MNIST
    labelled FOLDER   how often pictures that deduplication takes for copies have the same label: FOLDER/LABEL/PICTURE
    embedded FOLDER   the same by embeddings, which take longer to compute

Tables are printed in Markdown; benchmarks/image_dedup.md has those of one run, with the packages the pictures come from.
"""

# ruff: noqa: T201
from __future__ import annotations

import base64
import gzip
import io
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from PIL import Image, ImageDraw, ImageEnhance

from tamis import ImageReader, ParquetReader, ParquetWriter, Pipeline
from tamis.dedup import ExactDedup, Groups, ImageDedup, SemanticDedup
from tamis.image import ImageDigest, ImageEmbed, ImageHash
from tamis.image.files import decode_file, load_pixels, read_header
from tamis.image.hashing import BITS, SIDES, hash_pictures
from tamis.kernels import hamming
from tamis.kernels.image_hashes import says_little
from tamis.operators import Operator

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}
RADII = {64: (0, 2, 4, 6, 8, 10, 12, 14), 256: (0, 8, 16, 24, 31, 40, 48, 56)}
THRESHOLDS = (0.99, 0.97, 0.95, 0.9)
Image.MAX_IMAGE_PIXELS = None


def files_below(folder: str, most: int | None = None) -> list[Path]:
    found = sorted(each for each in Path(folder).rglob("*") if each.suffix.lower() in SUFFIXES and each.is_file())
    return found if most is None or len(found) <= most else found[:: len(found) // most][:most]


def decoded(data: bytes, tier: int | None = 256) -> np.ndarray:
    header = read_header(data)
    return load_pixels(data, header, None) if tier is None else decode_file(data, header, tier, 8)


def encoded(picture: Image.Image, quality: int = 85) -> bytes:
    target = io.BytesIO()
    picture.convert("RGB").save(target, "JPEG", quality=quality)
    return target.getvalue()


# ----------------------------------------------------------------------------------------------------------- transforms


def cropped(picture: Image.Image, share: float) -> Image.Image:
    """Without this share of each side, half of it on each end."""
    dx, dy = round(picture.width * share / 2), round(picture.height * share / 2)
    return picture.crop((dx, dy, picture.width - dx, picture.height - dy))


def with_watermark(picture: Image.Image) -> Image.Image:
    copy = picture.convert("RGB")
    draw = ImageDraw.Draw(copy, "RGBA")
    draw.text(
        (copy.width * 0.55, copy.height * 0.85), "example.org", (255, 255, 255, 160), font_size=max(8, copy.width // 16)
    )
    return copy


def on_border(picture: Image.Image) -> Image.Image:
    border = max(1, round(min(picture.size) * 0.05))
    framed = Image.new("RGB", (picture.width + 2 * border, picture.height + 2 * border))
    framed.paste(picture, (border, border))
    return framed


TRANSFORMS: dict[str, Callable[[Image.Image], bytes]] = {
    "half size": lambda it: encoded(it.resize((max(1, it.width // 2), max(1, it.height // 2)))),
    "128 pixels": lambda it: encoded(it.resize((128, max(1, it.height * 128 // it.width)))),
    "JPEG quality 50": lambda it: encoded(it, 50),
    "JPEG quality 20": lambda it: encoded(it, 20),
    "brightness +30 %": lambda it: encoded(ImageEnhance.Brightness(it).enhance(1.3)),
    "contrast -30 %": lambda it: encoded(ImageEnhance.Contrast(it).enhance(0.7)),
    "grey": lambda it: encoded(it.convert("L")),
    "watermark": lambda it: encoded(with_watermark(it)),
    "crop 2 %": lambda it: encoded(cropped(it, 0.02)),
    "crop 5 %": lambda it: encoded(cropped(it, 0.05)),
    "crop 10 %": lambda it: encoded(cropped(it, 0.1)),
    "border 5 %": lambda it: encoded(on_border(it)),
    "rotated 2 degrees": lambda it: encoded(it.rotate(2, Image.Resampling.BICUBIC)),
    "rotated 90 degrees": lambda it: encoded(it.rotate(90, expand=True)),
    "mirrored": lambda it: encoded(it.transpose(Image.Transpose.FLIP_LEFT_RIGHT)),
}


def recall(folder: str, most: int = 400) -> None:
    """Recall: transforms within the radius of their original. Precision: of all pairs within it, those of one original."""
    words: dict[tuple[str, str], list[np.ndarray]] = {}
    quality: dict[str, list[int]] = {kind: [] for kind in BITS}
    for file in files_below(folder, most):
        picture = Image.fromarray(decoded(file.read_bytes(), 512))
        versions = {"": encoded(picture, 92)} | {name: transform(picture) for name, transform in TRANSFORMS.items()}
        for name, data in versions.items():
            shown = {side: decoded(data, side) for side in set(SIDES.values())}
            for kind in BITS:
                found = hash_pictures([shown[SIDES[kind]]], kind)
                words.setdefault((kind, name), []).append(found.words[0])
                quality[kind] += [int(found.quality[0])] if not name else []
    print(f"{len(words['phash', ''])} pictures below {Path(folder).name}\n")
    for kind, bits in BITS.items():
        _print_recall(
            kind, RADII[bits], {name: np.array(words[kind, name]) for name in ("", *TRANSFORMS)}, quality[kind]
        )


def _print_recall(kind: str, radii: Sequence[int], words: dict[str, np.ndarray], quality: list[int]) -> None:
    enough = np.array(quality) >= 10
    enough &= ~says_little(words[""])
    print(f"| {kind}, {int(enough.sum())} compared | " + " | ".join(f"r {each}" for each in radii) + " |")
    print("|---" * (len(radii) + 1) + "|")
    distinct = _distances(words[""][enough], words[""][enough])
    distinct = distinct[np.triu_indices(len(distinct), 1)]
    right = np.zeros(len(radii))
    for name in TRANSFORMS:
        apart = np.bitwise_count(words[name] ^ words[""]).sum(axis=1)[enough]
        right += np.array([np.count_nonzero(apart <= radius) for radius in radii])
        print(f"| {name} | " + " | ".join(f"{100 * np.mean(apart <= radius):.0f}" for radius in radii) + " |")
    wrong = np.array([np.count_nonzero(distinct <= radius) for radius in radii])
    print(
        "| other pictures, pairs per million | "
        + " | ".join(f"{1e6 * each / len(distinct):.0f}" for each in wrong)
        + " |"
    )
    print("| precision, % | " + " | ".join(f"{100 * share:.1f}" for share in right / (right + wrong)) + " |\n")


def _distances(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return sum(
        np.bitwise_count(left[:, None, word] ^ right[None, :, word]).astype(np.int64) for word in range(left.shape[1])
    )


# ---------------------------------------------------------------------------------------------------------------- sizes

SAME_SHAPE = 0.02
"""Two sizes have the same shape if their aspect ratios differ by less than this part; if not, one is a crop of the other."""


def sizes(folder: str) -> None:
    """Wallpapers of KDE: NAME/contents/images/ holds one picture in many sizes, NAME/contents/screenshot is a small copy,
    and NAME/contents/images_dark/ has the same in dark colours."""
    below = (file for file in files_below(folder) if not file.is_symlink())
    files = [file for file in below if file.parents[1].name == "contents" or file.stem == "screenshot"]
    names = np.array([_wallpaper(file) for file in files])
    dark = np.array([file.parent.name == "images_dark" for file in files])
    datas = [file.read_bytes() for file in files]
    found = [read_header(data) for data in datas]
    shapes = np.log([header.width / header.height for header in found])
    print(f"{len(files)} files, {len(set(names))} wallpapers, {sum(map(len, datas)) / 1e6:.0f} MB\n")
    shown = {side: [decoded(data, side) for data in datas] for side in sorted(set(SIDES.values()))}
    for kind, bits in BITS.items():
        made = hash_pictures(shown[SIDES[kind]], kind)
        enough = np.flatnonzero((made.quality >= 10) & ~says_little(made.words))
        left, right = (enough[each] for each in np.triu_indices(len(enough), 1))
        apart = np.bitwise_count(made.words[left] ^ made.words[right]).sum(axis=1)
        same, alike = names[left] == names[right], np.abs(shapes[left] - shapes[right]) < SAME_SHAPE
        rows = {
            "same shape": same & alike & (dark[left] == dark[right]),
            "other shape, a crop": same & ~alike & (dark[left] == dark[right]),
            "light and dark": same & (dark[left] != dark[right]),
            "other wallpapers": ~same,
        }
        print(
            f"| {kind}, {len(enough)} files compared | pairs | "
            + " | ".join(f"r {each}" for each in RADII[bits])
            + " |"
        )
        print("|---" * (len(RADII[bits]) + 2) + "|")
        for title, chosen in rows.items():
            within = " | ".join(f"{np.count_nonzero(apart[chosen] <= radius):,}" for radius in RADII[bits])
            print(f"| {title} | {np.count_nonzero(chosen):,} | {within} |")
        print(flush=True)
    with tempfile.TemporaryDirectory() as place:
        for kind in BITS:
            source = ImageReader([str(file) for file in files])
            report = Pipeline(source, ImageDedup(hash=kind, keep="largest"), ParquetWriter(f"{place}/{kind}")).run()
            kept = {_wallpaper(Path(path)) for path in ds.dataset(f"{place}/{kind}").to_table()["path"].to_pylist()}
            print(f"{kind}: {report.kept} of {report.read} files kept, of {len(kept)} of {len(set(names))} wallpapers")


def _wallpaper(file: Path) -> str:
    return next(each.parent.name for each in file.parents if each.name == "contents")


# -------------------------------------------------------------------------------------------------------------- reduced


def reduced(folder: str, most: int = 200) -> None:
    """Bits that differ between the exact hash and the fast one."""
    datas = [file.read_bytes() for file in files_below(folder, most)]
    print(f"| {len(datas)} files below {Path(folder).name} | equal, % | mean bits | 90 % | 99 % | most |")
    print("|---|---|---|---|---|---|")
    exact = {kind: hash_pictures((decoded(data, None) for data in datas), kind) for kind in BITS}
    for kind in BITS:
        fast = hash_pictures((decoded(data, SIDES[kind]) for data in datas), kind)
        enough = exact[kind].quality >= 10
        apart = np.bitwise_count(fast.words ^ exact[kind].words).sum(axis=1)[enough]
        spread = [np.mean(apart), *np.quantile(apart, [0.9, 0.99], method="higher"), apart.max()]
        print(f"| {kind} | {100 * np.mean(apart == 0):.0f} | " + " | ".join(f"{each:.1f}" for each in spread) + " |")


# ---------------------------------------------------------------------------------------------------------------- speed


def speed(folder: str, most: int = 200) -> None:
    """CPU seconds of one process; each way hashes the same files, read before."""
    import imagehash
    import pdqhash

    datas = [file.read_bytes() for file in files_below(folder, most)]
    hash_pictures([decoded(datas[0])], "phash"), hash_pictures([decoded(datas[0])], "pdq")  # compiles

    def peers(kind: str) -> Iterator[object]:
        functions = {
            "phash": imagehash.phash,
            "dhash": imagehash.dhash,
            "ahash": imagehash.average_hash,
            "whash": imagehash.whash,
        }
        for data in datas:
            picture = Image.open(io.BytesIO(data))
            yield pdqhash.compute(np.array(picture.convert("RGB"))) if kind == "pdq" else functions[kind](picture)

    megapixels = sum(header.width * header.height for header in map(read_header, datas)) / 1e6
    print(f"{len(datas)} files below {Path(folder).name}, {megapixels / len(datas):.1f} megapixels each\n")
    print("| | package, images/s | all pixels | reduced | ratio |\n|---|---|---|---|---|")
    for kind in BITS:
        ways: dict[str, Callable[[], object]] = {
            "package": lambda kind=kind: list(peers(kind)),
            "exact": lambda kind=kind: hash_pictures((decoded(data, None) for data in datas), kind),
            "fast": lambda kind=kind: hash_pictures((decoded(data, SIDES[kind]) for data in datas), kind),
        }
        rates = {name: len(datas) / _cpu_seconds(way) for name, way in ways.items()}
        print(
            f"| {kind} | {rates['package']:.1f} | {rates['exact']:.1f} | {rates['fast']:.1f} "
            f"| {rates['fast'] / rates['package']:.1f} |"
        )


def _cpu_seconds(way: Callable[[], object]) -> float:
    start = time.process_time()
    way()
    return time.process_time() - start


# ---------------------------------------------------------------------------------------------------------------- pairs


def made(count: int, bits: int, radius: int) -> np.ndarray:
    """Random hashes of which half are copies of others with up to radius + 3 random bits flipped."""
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**64, (count, bits // 64), dtype=np.uint64)
    copies = count - count // 2
    hashes[count // 2 :] = hashes[rng.integers(0, count // 2, copies)]
    flipped = rng.integers(0, radius + 4, copies)
    for number in range(radius + 3):
        some, bit = np.flatnonzero(flipped > number), rng.integers(0, bits, copies)
        hashes[count // 2 + some, bit[some] // 64] ^= np.uint64(1) << (bit[some] % 64).astype(np.uint64)
    return hashes


def pairs(count: int = 1_000_000, queries: int = 2000) -> None:
    """All pairs within the radius. Brute force is timed on some queries, and scaled up."""
    hamming.pairs_within(made(1000, 64, 8), 64, 8)
    print("| | radius | pairs | seconds | memory, MB | numpy, s | faiss flat, s | faiss multi-hash, s |")
    print("|---|---|---|---|---|---|---|---|")
    for bits, radius in ((64, 8), (256, 31)):
        hashes = made(count, bits, radius)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seconds, (left, right, _) = _timed(lambda h=hashes, b=bits, r=radius: hamming.pairs_within(h, b, r))
        memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        some = np.random.default_rng(1).choice(count, queries, replace=False)
        brute, expected = _timed(lambda h=hashes, s=some, r=radius: _brute(h, s, r))
        ours = set(zip(left.tolist(), right.tolist(), strict=True))
        assert all((min(a, b), max(a, b)) in ours for a, b in expected), "a pair is missing"
        wanted = set(some.tolist())
        found = sum((a in wanted) + (b in wanted) for a, b in ours)
        assert found == len(expected), "the same pairs"
        others = _faiss(hashes, some, bits, radius, len(expected))
        print(
            f"| {count:,} hashes of {bits} bits | {radius} | {len(left):,} | {seconds:.1f} | {memory:.0f} "
            f"| {brute * count / queries:,.0f} | {others} |"
        )


def _timed(way: Callable[[], object]) -> tuple[float, object]:
    start = time.process_time()
    found = way()
    return time.process_time() - start, found


def _brute(hashes: np.ndarray, some: np.ndarray, radius: int) -> list[tuple[int, int]]:
    found = []
    for row in some.tolist():
        close = np.flatnonzero(np.bitwise_count(hashes ^ hashes[row]).sum(axis=1) <= radius)
        found += [(row, other) for other in close.tolist() if other != row]
    return found


def _faiss(hashes: np.ndarray, some: np.ndarray, bits: int, radius: int, expected: int) -> str:
    try:
        import faiss
    except ImportError:
        return "not installed | not installed"
    faiss.omp_set_num_threads(1)
    raw = hashes.view(np.uint8)
    texts = []
    parts = 4 if bits == 64 else 16
    multi = faiss.IndexBinaryMultiHash(bits, parts, bits // parts)
    multi.nflip = radius // parts
    for index in (faiss.IndexBinaryFlat(bits), multi):
        built, _ = _timed(lambda index=index: index.add(raw))
        seconds, (limits, _, _) = _timed(lambda index=index: index.range_search(raw[some], radius + 1))
        same = int(limits[-1]) - len(some) == expected
        texts.append(f"{built + seconds * len(hashes) / len(some):,.0f}{'' if same else ' (other pairs)'}")
    return " | ".join(texts)


# ------------------------------------------------------------------------------------------------------------- labelled


def unpack(file: str, folder: str) -> None:
    """PNG files in FOLDER/LABEL/."""
    for number, (label, data) in enumerate(_task_pictures(file) if file.endswith(".json") else _mnist_pictures(file)):
        target = Path(folder) / label / f"{number:05}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def _task_pictures(file: str) -> Iterator[tuple[str, bytes]]:
    for example in json.loads(Path(file).read_text())["examples"]:
        scores = example["target_scores"]
        yield max(scores, key=scores.get), base64.b64decode(example["input"])


def _mnist_pictures(file: str) -> Iterator[tuple[str, bytes]]:
    """From x-images-idx3-ubyte.gz, with the labels of the file beside it."""
    labels = gzip.decompress(Path(file.replace("images-idx3", "labels-idx1")).read_bytes())[8:]
    raw = np.frombuffer(gzip.decompress(Path(file).read_bytes()), np.uint8)
    height, width = raw[8:16].view(">u4").tolist()
    for label, pixels in zip(labels, raw[16:].reshape(-1, height, width), strict=True):
        target = io.BytesIO()
        Image.fromarray(pixels).save(target, "PNG")
        yield str(label), target.getvalue()


def labelled(folder: str) -> None:
    """Pairs: all within the radius. Removed: rows that the step drops, each of which makes a pair with the row kept."""
    with tempfile.TemporaryDirectory() as place:
        source = ImageReader(folder, columns={"id": "path"})
        equal = [ImageDigest(of="pixels"), ExactDedup(column="image_digest")]
        seconds, removed = _removed(source, equal, place)
        print(f"Equal pixels: {len(removed)} removed, same label: {_share(removed)} %, {seconds:.1f} s\n")
        for kind, bits in BITS.items():
            Pipeline(ImageReader(folder), ImageHash(hash=kind), ParquetWriter(f"{place}/{kind}")).run()
            labels, words = _compared(f"{place}/{kind}", kind)
            left, right, apart = hamming.pairs_within(words, bits, RADII[bits][-2])
            columns = {}
            for radius in RADII[bits][:-1]:
                found = labels[left[apart <= radius]] == labels[right[apart <= radius]]
                step = ImageDedup(hash=kind, radius=radius)
                columns[f"r {radius}"] = found, *_removed(source, [step], place)
            _print_labelled(f"{kind}, {len(labels):,} compared", columns)


def _compared(hashed: str, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The labels and hashes of the pictures that the step compares."""
    table = ds.dataset(hashed).to_table(columns=["path", kind, "hash_quality"])
    words = np.frombuffer(b"".join(table[kind].to_pylist()), ">u8").astype(np.uint64).reshape(len(table), -1)
    enough = (table["hash_quality"].to_numpy() >= 10) & ~says_little(words)
    return _labels(table["path"])[enough], words[enough]


def embedded(folder: str, most: int | None = None) -> None:
    """The same for embeddings of the default model, which are computed once."""
    files = [str(file) for file in files_below(folder, most)]
    with tempfile.TemporaryDirectory() as place:
        start = time.perf_counter()
        Pipeline(ImageReader(files), ImageEmbed(), ParquetWriter(f"{place}/embedded")).run()
        print(f"Embedded in {time.perf_counter() - start:.0f} s\n")
        source = ParquetReader(f"{place}/embedded", columns={"id": "path"})
        table = ds.dataset(f"{place}/embedded").to_table(columns=["path", "embedding"])
        vectors, labels = np.stack(table["embedding"].to_numpy()), _labels(table["path"])
        rows, others = np.nonzero(np.triu(vectors @ vectors.T, 1) >= THRESHOLDS[-1])
        near = (vectors[rows] * vectors[others]).sum(axis=1)
        columns = {}
        for threshold in THRESHOLDS:
            found = labels[rows[near >= threshold]] == labels[others[near >= threshold]]
            columns[f"{threshold}"] = found, *_removed(source, [SemanticDedup(threshold=threshold)], place)
        _print_labelled(f"embedding, {len(labels):,} compared", columns)


def _removed(source: ImageReader | ParquetReader, steps: Sequence[Operator], place: str) -> tuple[float, np.ndarray]:
    """Seconds of a run, with start-up, and for each row that it drops, whether the row kept has the same label."""
    with tempfile.TemporaryDirectory(dir=place) as output:
        start = time.perf_counter()
        report = Pipeline(source, *steps, ParquetWriter(output)).run()
        seconds = time.perf_counter() - start
        pairs = Groups.load(output).table()
        assert pairs.num_rows == sum(report.dropped.values()), "a pair for each row that is dropped"
        return seconds, _labels(pairs["id"]) == _labels(pairs["kept_id"])


def _labels(paths: pa.ChunkedArray) -> np.ndarray:
    return np.array([Path(path).parent.name for path in paths.to_pylist()])


def _share(same: np.ndarray) -> str:
    return f"{100 * same.mean():.0f}" if len(same) else "-"


def _print_labelled(title: str, columns: dict[str, tuple[np.ndarray, float, np.ndarray]]) -> None:
    print(f"| {title} | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    cells: dict[str, Callable[[np.ndarray, float, np.ndarray], str]] = {
        "pairs": lambda found, seconds, removed: f"{len(found):,}",
        "same label, % of pairs": lambda found, seconds, removed: _share(found),
        "removed": lambda found, seconds, removed: f"{len(removed):,}",
        "same label as the row kept, % of removed": lambda found, seconds, removed: _share(removed),
        "seconds": lambda found, seconds, removed: f"{seconds:.1f}",
    }
    for name, cell in cells.items():
        print(f"| {name} | " + " | ".join(cell(*each) for each in columns.values()) + " |")
    print(flush=True)


if __name__ == "__main__":
    section, *arguments = sys.argv[1:]
    numbers = [int(each) if each.isdecimal() else each for each in arguments]
    sections = (recall, sizes, reduced, speed, pairs, unpack, labelled, embedded)
    {each.__name__: each for each in sections}[section](*numbers)
