"""Pipelines on images in workers: recipes, memory, bombs, and decoders that crash."""

import os
import signal

import pyarrow.parquet as pq
import pytest

from tamis import JsonlReader, ParquetReader, ParquetWriter, Pipeline, Rows
from tamis.batch import Batch
from tamis.executors.chain import NO_LIMIT, Chain
from tamis.image import ImageBlank, ImageBlur, ImageDecodable, ImageDigest, ImageSize, decode, files
from tamis.image.decode import of_files, pictures
from tamis.media import read_bytes
from tamis.operators import Filter, Rule, Scores, operator
from tamis.recipes.load import load_recipe
from tamis.registry import build_operator
from tamis.text import WordCount
from tests.image.files import photo, row, saved
from tests.image.test_decode import big_png

FILE = saved(photo(640, 480), "JPEG")


def steps_of(recipe, *without):
    return [
        build_operator(each.name, each.parameters) for each in load_recipe(recipe).steps if each.name not in without
    ]


# ------------------------------------------------------------------------------------------------------------- recipes


def test_the_recipe_for_images_decodes_each_file_once(monkeypatch):
    seen = []

    def counted(data, header, tier, longest):
        seen.append(tier)
        return files.decode_file(data, header, tier, longest)

    monkeypatch.setattr(decode, "decode_file", counted)
    monkeypatch.setattr(decode, "load_pixels", None)
    rows = [row(FILE), row(saved(photo(300, 100))), row(FILE[:2000]), row(saved(photo(900, 300))), row(FILE)]
    report = Pipeline(Rows(rows), *steps_of("images")).run(executor="inline")
    assert report.dropped == {"height < 200": 1, "the file is truncated": 1}
    assert report.kept == 3
    assert seen == [256] * 5


def test_the_recipe_for_pairs_of_images_and_captions():
    wide = saved(photo(700, 210))
    captions = [
        ("a red bird on a branch", FILE),
        ("two words", FILE),
        ("a b c", FILE),
        ("ein roter Vogel sitzt auf dem Ast", FILE),
        ("a red bird on a branch", wide),
        ("a red bird on a branch", saved(photo(400, 150))),
        (None, FILE),
    ]
    rows = [row(file) | {"caption": caption} for caption, file in captions]
    report = Pipeline(Rows(rows), *steps_of("image_text")).run(executor="inline")
    assert report.kept == 1
    assert report.dropped == {
        "words < 3": 2,
        "characters < 6": 1,
        "language not in en": 1,
        "aspect_ratio > 3": 1,
        "height < 200": 1,
    }


# -------------------------------------------------------------------------------------------------------------- memory


@operator(reads="image", writes="rows_at_a_time")
class HoldsPixelsForTests(Filter):
    """Scores a row by the number of rows that it is processed with."""

    size: int = 4_000_000
    column: str = "image"

    @property
    def row_bytes(self) -> int:
        return self.size

    def score(self, batch: Batch) -> Scores:
        return {"rows_at_a_time": [len(batch)] * len(batch)}

    def rules(self) -> list[Rule]:
        return []


@pytest.mark.parametrize("scores", [False, True])
def test_batches_are_cut_by_what_steps_hold_per_row(scores, tmp_path):
    rows = [row(b"x") | {"n": number} for number in range(10)]
    steps = [lambda batch: {"m": batch["n"]}] if not scores else []
    pipeline = Pipeline(Rows(rows), *steps, HoldsPixelsForTests(score_only=True), ParquetWriter(tmp_path / "out"))
    pipeline.run(executor="inline", **({"scores": True} if scores else {}))
    found = pq.read_table(tmp_path / "out")
    assert found["rows_at_a_time"].to_pylist() == [4] * 8 + [2] * 2, "16 MB are a batch"
    assert found["n"].to_pylist() == list(range(10))


def test_files_that_rows_refer_to_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    """A manifest of a hundred thousand paths is one batch."""
    (tmp_path / "a.jpg").write_bytes(FILE)
    (tmp_path / "list.jsonl").write_text('{"image": {"bytes": null, "path": "a.jpg"}}\n' * 400)
    most = []

    def counted(batch, column):
        most.append(len(batch))
        return read_bytes(batch, column)

    monkeypatch.setattr(decode, "read_bytes", counted)
    report = Pipeline(JsonlReader(tmp_path / "list.jsonl"), ImageSize()).run(executor="inline")
    assert report.kept == 400
    assert max(most) == 160


def test_steps_without_such_facts_take_all_rows():
    assert Chain._rows_at_a_time(None, WordCount()) == NO_LIMIT  # type: ignore[arg-type]


@pytest.mark.slow
def test_large_photos_and_a_bomb_stay_in_the_budget(tmp_path):
    photo_file = saved(photo(4000, 3000), "JPEG", quality=85)
    table = Batch.from_rows(
        [row(photo_file)] * 12 + [row(big_png(30_000, 30_000))] + [row(saved(photo(3000, 2000)))]
    ).table
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=4)
    steps = [ImageDecodable(), ImageBlank(), ImageBlur(), ImageDigest(of="pixels")]
    report = Pipeline(ParquetReader(tmp_path / "in.parquet"), *steps, ParquetWriter(tmp_path / "out")).run(
        memory="600MB", workers=2
    )
    assert (report.kept, report.failed) == (13, 0)
    assert report.dropped == {"the file is too large": 1}
    assert report.peak_memory_bytes <= 600_000_000


def test_a_picture_that_does_not_fit_is_short_of_memory_and_not_corrupt(monkeypatch):
    def no_memory(size, dtype):
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(files.np, "empty", no_memory)
        with pytest.raises(MemoryError):
            pictures(Batch.from_rows([row(FILE)]), "image")


# ------------------------------------------------------------------------------------------------------------- crashes


@operator(reads="image", writes="area")
class CrashingDecoderForTests(Filter):
    """Decodes images; the decoder crashes on those that are 13 pixels wide."""

    column: str = "image"

    def score(self, batch: Batch) -> Scores:
        return {"area": list(of_files(batch, "image", _crashing))}

    def rules(self) -> list[Rule]:
        return []


def _crashing(data, header):
    if header.width == 13:
        os.kill(os.getpid(), signal.SIGSEGV)
    return header.width * header.height


@pytest.mark.slow
def test_a_crash_of_the_decoder_costs_the_row_only(tmp_path):
    rows = [row(saved(photo(13 if number in (3, 17) else 20, 10))) | {"n": number} for number in range(24)]
    report = Pipeline(
        Rows(rows, rows_per_partition=12), CrashingDecoderForTests(score_only=True), ParquetWriter(tmp_path / "out")
    ).run(workers=2, max_failed="100%")
    assert (report.kept, report.failed) == (22, 2)
    kept = pq.read_table(tmp_path / "out")
    assert sorted(kept["n"].to_pylist()) == [number for number in range(24) if number not in (3, 17)]
    assert set(kept["area"].to_pylist()) == {200}
