"""The contact sheet shows kept, dropped and duplicate images, and says what it cannot show."""

import io
import json
import re

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from tamis import (
    ImageReader,
    JsonlReader,
    JsonlWriter,
    MediaReference,
    ParquetReader,
    ParquetWriter,
    Pipeline,
    Rows,
    WebDatasetWriter,
)
from tamis.cli import app
from tamis.dedup import ImageDedup
from tamis.errors import ColumnError
from tamis.image import ImageSize
from tamis.image.contact_sheet import Limits, write_contact_sheet
from tamis.text import WordCount


def photo(seed, size=(300, 220)):
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 255, (9, 9, 3), np.uint8)).resize(size, Image.Resampling.BICUBIC)


@pytest.fixture
def folder(tmp_path):
    """Photos, each with a copy of lower quality, and one that is too small."""
    (tmp_path / "in").mkdir()
    for number in range(3):
        photo(number).save(tmp_path / "in" / f"{number}.jpg", quality=95)
        photo(number).save(tmp_path / "in" / f"{number}-copy.jpg", quality=60)
    photo(9, (190, 180)).save(tmp_path / "in" / "small<b>.jpg")
    return tmp_path


def run(folder, writer=ParquetWriter, **options):
    steps = [ImageSize(min_width=200, min_height=150), ImageDedup(keep="largest")]
    source = ImageReader(str(folder / "in"))
    Pipeline(source, *steps, writer(str(folder / "out"))).run(executor="inline", **options)
    return str(folder / "out")


def sections(page):
    """The titles of the sections with the number of pictures in each."""
    parts = re.split(r"<h2[^>]*>(.*?)</h2>", page)
    return {title: text.count("<img") for title, text in zip(parts[1::2], parts[2::2], strict=True)}


@pytest.mark.parametrize("writer", [ParquetWriter, WebDatasetWriter])
def test_kept_dropped_borderline_and_duplicate_images_are_shown(folder, writer):
    file = folder / "sheet.html"
    assert write_contact_sheet(run(folder, writer, rejects=True), file) == 14
    page = file.read_text()
    assert sections(page) == {
        "Kept": 3,
        "Dropped: width &lt; 200": 1,
        "Dropped: similar image": 3,
        "Borderline": 1,
        "Duplicates: image_dedup": 6,
    }
    assert "width 190" in page
    assert "bits differ" in page


def test_the_page_needs_nothing_else_and_has_no_markup_from_data(folder):
    file = folder / "sheet.html"
    write_contact_sheet(run(folder, rejects=True), file)
    page = file.read_text()
    assert "small&lt;b&gt;.jpg" in page
    assert "<b>.jpg" not in page
    assert "<script" not in page
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)


def test_the_sheet_says_that_dropped_rows_were_not_kept(folder):
    file = folder / "sheet.html"
    write_contact_sheet(run(folder), file)
    page = file.read_text()
    assert "run it with --rejects" in page
    assert sections(page)["Duplicates: image_dedup"] == 6, "duplicates are read from the input"


def test_images_that_no_longer_exist_are_named(folder):
    output = run(folder, rejects=True)
    for name in ("0.jpg", "0-copy.jpg"):
        (folder / "in" / name).unlink()
    write_contact_sheet(output, folder / "sheet.html")
    page = (folder / "sheet.html").read_text()
    assert "0-copy.jpg" in page
    assert sections(page)["Duplicates: image_dedup"] == 4


@pytest.mark.parametrize("column", ["file", "image"])
def test_images_of_a_manifest_are_shown(folder, column):
    names = sorted(path.name for path in (folder / "in").iterdir())
    lines = "".join(json.dumps({column: name}) + "\n" for name in names)
    (folder / "in" / "list.jsonl").write_text(lines)
    steps = [MediaReference(column=column), ImageSize(min_width=200, min_height=150), ImageDedup(keep="largest")]
    source, sink = JsonlReader(str(folder / "in" / "list.jsonl")), ParquetWriter(str(folder / "out"))
    Pipeline(source, *steps, sink).run(executor="inline", rejects=True)
    assert write_contact_sheet(str(folder / "out"), folder / "sheet.html") == 14
    assert sections((folder / "sheet.html").read_text()) == {
        "Kept": 3,
        "Dropped: width &lt; 200": 1,
        "Dropped: similar image": 3,
        "Borderline": 1,
        "Duplicates: image_dedup": 6,
    }


def test_images_in_tables_and_the_limits(tmp_path):
    datas = []
    for number in range(20):
        target = io.BytesIO()
        photo(number).save(target, "JPEG")
        datas.append({"picture": {"bytes": target.getvalue(), "path": None}})
    Pipeline(Rows(datas), ParquetWriter(str(tmp_path / "in"))).run(executor="inline")
    step = ImageDedup(column="picture")
    Pipeline(ParquetReader(str(tmp_path / "in")), step, ParquetWriter(str(tmp_path / "out"))).run(executor="inline")
    assert write_contact_sheet(str(tmp_path / "out"), tmp_path / "a.html", "picture", Limits(kept=5)) == 5
    with pytest.raises(ColumnError, match="there is no column `image`") as raised:
        write_contact_sheet(str(tmp_path / "out"), tmp_path / "b.html")
    assert raised.value.hint == "columns of media: picture; name one with --column"
    assert not (tmp_path / "b.html").exists()


def test_an_output_without_pictures_is_an_error_that_names_its_columns(tmp_path):
    texts = Rows([{"id": "a", "text": "some words"}])
    for name, writer in (("parquet", ParquetWriter), ("jsonl", JsonlWriter)):
        Pipeline(texts, writer(str(tmp_path / name))).run(executor="inline")
        command = ["report", str(tmp_path / name), "--contact-sheet", str(tmp_path / "sheet.html")]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 2
        assert "there is no column `image`" in result.stderr
        assert "none of its columns has images, sounds or videos: id, text" in result.stderr
        assert not (tmp_path / "sheet.html").exists()


def test_an_output_of_images_without_rows_has_a_page(tmp_path):
    images = Rows([{"image": {"bytes": b"a picture", "path": None}, "text": "short"}])
    Pipeline(images, WordCount(min_words=5), ParquetWriter(str(tmp_path / "out"))).run(executor="inline")
    assert write_contact_sheet(str(tmp_path / "out"), tmp_path / "sheet.html") == 0
    assert "run it with --rejects" in (tmp_path / "sheet.html").read_text()


def test_dropped_images_are_shown_if_the_output_has_none(folder):
    writer = ParquetWriter(str(folder / "out"), fields=["path"])
    source = ImageReader(str(folder / "in"))
    Pipeline(source, ImageSize(min_width=200), writer).run(executor="inline", rejects=True)
    assert write_contact_sheet(str(folder / "out"), folder / "sheet.html") == 2
    assert "there is no column `image`" in (folder / "sheet.html").read_text()


def test_the_command_writes_the_sheet(folder):
    output = run(folder, rejects=True)
    result = CliRunner().invoke(app, ["report", output, "--contact-sheet", str(folder / "sheet.html")])
    assert result.exit_code == 0
    assert "shows 14 images" in result.stderr
