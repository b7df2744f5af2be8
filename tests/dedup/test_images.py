"""Deduplication of images: the same rows as comparing all pairs of hashes, for any division of the work."""

import io
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tamis import ParquetWriter, Pipeline, Rows
from tamis.dedup import ExactDedup, Groups, ImageDedup, hamming
from tamis.dedup.explain import explain_row, explanation_text
from tamis.errors import ParameterError
from tamis.image import ImageDigest, ImageHash
from tamis.kernels.hamming import Substrings
from tests.dedup.deduplicate import kept_and_pairs


def planted(count, bits=64, radius=8, seed=0):
    """Hashes uint64[count, words] of which half are others with a few bits flipped, in random order."""
    rng = np.random.default_rng(seed)
    hashes = rng.integers(0, 2**64, (count, bits // 64), dtype=np.uint64)
    for row in range(count // 2, count):
        hashes[row] = hashes[rng.integers(0, row)]
        for bit in rng.choice(bits, rng.integers(0, radius + 4), replace=False):
            hashes[row, bit // 64] ^= np.uint64(1 << int(bit % 64))
    return hashes[rng.permutation(count)]


def rows_of(hashes, **more):
    return [
        {
            "id": f"v{number}",
            "hash": row.astype(">u8").tobytes(),
            **{key: values[number] for key, values in more.items()},
        }
        for number, row in enumerate(hashes)
    ]


def naive(hashes, radius, order=None):
    """(kept ids, {dropped id: (kept id, bits)}): each row is compared with the rows kept before it."""
    kept, pairs = [], {}
    for row in range(len(hashes)) if order is None else order:
        distances = np.bitwise_count(hashes[kept] ^ hashes[row]).sum(axis=1) if kept else np.empty(0)
        close = np.flatnonzero(distances <= radius)
        if len(close):
            pairs[f"v{row}"] = (f"v{kept[close[0]]}", int(distances[close[0]]))
        else:
            kept.append(row)
    return [f"v{row}" for row in sorted(kept)], pairs


def fates(rows, step, per_partition=50, **options):
    """(ids of the kept rows, {dropped id: (kept id, bits)})"""
    kept, pairs = kept_and_pairs(rows, step, per_partition, **options)
    return kept, {row["id"]: (row["kept_id"], row["bits"]) for row in pairs}


# ---------------------------------------------------------------------------------------------------------- decisions


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["phash", "pdq"]),
    radius=st.sampled_from([0, 1, 4, 8, 12]),
    per_partition=st.integers(7, 90),
    listed=st.sampled_from([1, 2, 100]),
    ranges=st.sampled_from([1, 2, 8]),
)
def test_survivors_and_pairs_are_those_of_comparing_all_rows(seed, kind, radius, per_partition, listed, ranges):
    hashes = planted(90, 256 if kind == "pdq" else 64, radius, seed)
    step = ImageDedup(hash=kind, radius=radius, hash_column="hash")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hamming, "MAX_LISTED", listed)  # with few, rows have to be compared again
        patch.setattr(hamming, "bucket_count", lambda *_: ranges)
        kept, pairs = fates(rows_of(hashes), step, per_partition)
    expected, twins = naive(hashes, radius)
    assert kept == expected
    assert pairs.keys() == twins.keys()
    if listed == 100:
        assert pairs == twins


def test_a_chain_of_similar_images_loses_only_images_similar_to_a_kept_one():
    steps = np.array([[(1 << (3 * number)) - 1] for number in range(20)], np.uint64)  # 3 bits from one to the next
    kept, pairs = fates(rows_of(steps), ImageDedup(radius=4, hash_column="hash"))
    assert kept == [f"v{number}" for number in range(0, 20, 2)]
    assert {bits for _, bits in pairs.values()} == {3}


@pytest.mark.parametrize("listed", [1, 4])
def test_many_equal_hashes_are_found_with_few_edges(monkeypatch, listed):
    monkeypatch.setattr(hamming, "MAX_LISTED", listed)
    hashes = np.concatenate([np.full((200, 1), 2**40 + 7, np.uint64), planted(20, seed=1)])
    kept, pairs = fates(rows_of(hashes), ImageDedup(hash_column="hash"), per_partition=30)
    assert kept == naive(hashes, 8)[0]
    assert pairs["v199"] == ("v0", 0)


def test_keep_best_newest_and_preferred_sources():
    hashes = np.repeat(planted(2)[:1], 4, axis=0)
    rows = rows_of(
        hashes,
        score=[1, 5, 3, 5],
        date=["2021-01-01", "2020-01-01", "2023-01-01", "2022-01-01"],
        source=["a", "a", "b", "b"],
    )
    chosen = {
        "v1": {"keep": "best", "by": "score"},
        "v2": {"keep": "newest", "by": "date"},
        "v3": {"keep": "best", "by": "score", "prefer": ["b"], "prefer_column": "source"},
    }
    for name, policy in chosen.items():
        assert fates(rows, ImageDedup(hash_column="hash", **policy))[0] == [name]
    across = ImageDedup(hash_column="hash", prefer=["b", "a"], prefer_column="source", across_sources=True)
    assert fates(rows, across)[0] == ["v2", "v3"]


@pytest.mark.parametrize("stored", ["hex", "integer", "bytes"])
def test_hashes_may_be_text_integers_or_bytes(stored):
    hashes = planted(40, seed=4)
    values = {
        "hex": [f"{int(row[0]):016x}" for row in hashes],
        "integer": [int(row[0]) for row in hashes.view(np.int64)],
        "bytes": [int(row[0]).to_bytes(8, "big") for row in hashes],
    }[stored]
    rows = [{"id": f"v{number}", "hash": value} for number, value in enumerate([*values, None])]
    kept, pairs = fates(rows, ImageDedup(hash_column="hash"))
    assert kept == [*naive(hashes, 8)[0], "v40"]
    assert pairs == naive(hashes, 8)[1]


def test_a_hash_of_another_length_fails_its_row(tmp_path):
    rows = [{"hash": "00ff"}, {"hash": "zz"}, {"hash": "00ff00ff00ff00ff"}]
    pipeline = Pipeline(Rows(rows), ImageDedup(hash_column="hash"), ParquetWriter(str(tmp_path)))
    report = pipeline.run(workers=1, max_failed="100%")
    assert (report.kept, report.failed) == (1, 2)


def test_larger_pictures_take_more_memory():
    assert ImageDedup(hash="pdq").row_bytes == ImageHash(hash="pdq").row_bytes == 4 * ImageDedup().row_bytes


def test_wrong_parameters_are_explained():
    with pytest.raises(ParameterError, match="from 0 to 20 for phash"):
        ImageDedup(radius=21).check()
    with pytest.raises(ParameterError, match="`by` has no effect"):
        ImageDedup(keep="largest", by="score").check()
    with pytest.raises(ParameterError, match="needs an index"):
        ImageDedup(update=True).check()


# ------------------------------------------------------------------------------------------------------------- pictures


def photo(seed, width=360, height=240):
    """A picture with detail of every size."""
    rng = np.random.default_rng(seed)
    layers = [
        Image.fromarray(rng.integers(0, 255, (side, side, 3), np.uint8)).resize((width, height)) for side in (4, 9, 30)
    ]
    return Image.fromarray(np.mean([np.asarray(layer, np.float64) for layer in layers], axis=0).astype(np.uint8))


def encoded(picture, kind="JPEG", **options):
    target = io.BytesIO()
    picture.save(target, kind, **options)
    return target.getvalue()


def image_rows(*datas):
    return [
        {"id": f"v{number}", "image": {"bytes": data, "path": f"{number}.jpg"}} for number, data in enumerate(datas)
    ]


def copies():
    """Two photos: small, large and recompressed copies of each, and a mirrored one."""
    one, two = photo(1), photo(2)
    return image_rows(
        encoded(one.resize((180, 120))),
        encoded(two),
        encoded(one, quality=95),
        encoded(one, quality=40),
        encoded(two.resize((720, 480))),
        encoded(one.transpose(Image.Transpose.FLIP_LEFT_RIGHT)),
    )


@pytest.mark.parametrize("kind", ["phash", "dhash", "ahash", "whash", "pdq"])
def test_copies_of_an_image_are_found_and_the_largest_is_kept(kind):
    assert fates(copies(), ImageDedup(hash=kind))[0] == ["v0", "v1", "v5"]
    kept, pairs = fates(copies(), ImageDedup(hash=kind, keep="largest", exact=kind == "pdq"))
    assert kept == ["v2", "v4", "v5"]
    assert {name: twin for name, (twin, _) in pairs.items()} == {"v0": "v2", "v1": "v4", "v3": "v2"}


def test_blank_images_do_not_form_a_group(tmp_path):
    blank = [encoded(Image.new("RGB", (200, 150), (shade, shade, shade))) for shade in (0, 120, 255)]
    dot = Image.new("RGB", (200, 150), (255, 255, 255))
    dot.putpixel((100, 70), (0, 0, 0))
    rows = image_rows(*blank, encoded(dot), encoded(photo(1)), encoded(photo(1), quality=50))
    for kind in ("phash", "whash", "pdq"):
        assert fates(rows, ImageDedup(hash=kind))[0] == ["v0", "v1", "v2", "v3", "v4"]
    Pipeline(Rows(rows), ImageDedup(), ParquetWriter(str(tmp_path))).run(executor="inline")
    assert Groups.load(tmp_path).summary["blank"] == 4
    assert len(fates(rows, ImageDedup(min_quality=0, hash="ahash"))[0]) == 5, "hashes without bits say little, too"


def test_the_bytes_of_images_and_their_pixels_are_compared_exactly():
    png = encoded(photo(1), "PNG")
    rows = image_rows(png, png, encoded(photo(1), "PNG", compress_level=1), encoded(photo(2), "PNG"))
    assert fates(rows, ExactDedup(column="image"))[0] == ["v0", "v2", "v3"]
    assert fates(rows, ExactDedup(column="image", keep="longest"))[0] == ["v0", "v2", "v3"]
    pipeline = Pipeline(Rows(rows), ImageDigest(of="pixels"), ExactDedup(column="image_digest"))
    assert pipeline.collect()["id"].to_pylist() == ["v0", "v3"]


def test_an_image_that_cannot_be_decoded_fails_and_a_row_without_image_is_kept(tmp_path):
    rows = [
        *copies()[:2],
        {"id": "v2", "image": {"bytes": b"not an image", "path": "a.jpg"}},
        {"id": "v3", "image": None},
    ]
    pipeline = Pipeline(Rows(rows), ImageDedup(), ParquetWriter(str(tmp_path)))
    report = pipeline.run(workers=1, max_failed="100%")
    assert (report.kept, report.failed, report.balances) == (3, 1, True)


def test_explanations_name_the_twin_and_the_bits(tmp_path):
    Pipeline(Rows(copies()), ImageDedup(keep="largest"), ParquetWriter(str(tmp_path))).run(executor="inline")
    (row,) = explain_row(Groups.load(tmp_path), "v0")
    text = explanation_text(row)
    assert "v0 (rows:0) was dropped by image_dedup" in text
    assert "duplicate of v2" in text
    assert re.search(r"hashes that differ in \d+ bits?", text)


def test_a_near_miss_is_recorded_once(tmp_path):
    hashes = planted(2)[[0, 0]]
    division = Substrings.best(64, 8, 2)
    places = [*range(0, 64, division.count), *range(1, 64, division.count)][:10]  # most substrings are equal
    hashes[1] ^= np.uint64(sum(1 << (63 - place) for place in places))
    Pipeline(Rows(rows_of(hashes)), ImageDedup(hash_column="hash"), ParquetWriter(str(tmp_path))).run(executor="inline")
    groups = Groups.load(tmp_path)
    assert [pair["bits"] for pair in groups.closest()["below"]] == [10]
    assert "differ in 10 bits, beyond the radius of 8" in explanation_text(explain_row(groups, "v1")[0])


def test_an_index_of_earlier_images(tmp_path):
    hashes = planted(120, seed=7)
    index = str(tmp_path / "index")
    first = ImageDedup(hash_column="hash", against=index, update=True)
    Pipeline(Rows(rows_of(hashes[:60])), first, ParquetWriter(str(tmp_path / "a"))).run(executor="inline")
    later = ImageDedup(hash_column="hash", against=index)
    report = Pipeline(Rows(rows_of(hashes)[60:]), later, ParquetWriter(str(tmp_path / "b"))).run(executor="inline")
    expected = [name for name in naive(hashes, 8)[0] if int(name[1:]) >= 60]
    assert pq.read_table(tmp_path / "b", columns=["id"])["id"].to_pylist() == expected
    assert report.dropped[f"in the index {index}"] > 0
    with pytest.raises(ParameterError, match="other settings"):
        ImageDedup(hash="dhash", against=index).check()


# ------------------------------------------------------------------------------------------------------------- promises


@pytest.mark.slow
def test_the_same_rows_for_any_workers_partitions_and_memory(tmp_path):
    hashes = planted(4000, seed=11)
    expected = naive(hashes, 8)
    assert fates(rows_of(hashes), ImageDedup(hash_column="hash"), 4000) == expected
    for per_partition, options in ((700, {"workers": 2}), (4000, {"workers": 1, "memory": "600MB"})):
        found = fates(rows_of(hashes), ImageDedup(hash_column="hash"), per_partition, executor="local", **options)
        assert found == expected


@pytest.mark.slow
def test_a_run_that_is_killed_resumes_with_the_same_rows(tmp_path):
    rows = [row for number in range(10) for row in copies_of(number)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet", row_group_size=7)
    command = [sys.executable, "-m", "tamis", "dedup", "images", str(tmp_path / "in.parquet"), str(tmp_path / "out")]
    command += ["--workers", "2", "--blocksize", "20kB", "--quiet"]
    for _ in range(2):
        run = subprocess.Popen(command)
        ledger = tmp_path / "out" / ".tamis" / "ledger.log"
        while run.poll() is None and not (ledger.exists() and ledger.stat().st_size):
            os.sched_yield()
        run.send_signal(signal.SIGKILL)
        run.wait()
    subprocess.run(command, check=True)
    kept = pq.read_table(tmp_path / "out", columns=["id"])["id"].to_pylist()
    assert kept == fates(rows, ImageDedup(keep="largest"))[0]
    assert len(kept) == 10


def copies_of(seed):
    picture = photo(seed + 100)
    datas = [encoded(picture), encoded(picture.resize((200, 133))), encoded(picture, quality=50)]
    return [{"id": f"{seed}-{number}", "image": {"bytes": data, "path": None}} for number, data in enumerate(datas)]
