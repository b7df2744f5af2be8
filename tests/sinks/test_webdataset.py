"""WebDataset archives as output: members, keys, shards, and reading back with Tamis, webdataset and datasets."""

import json
import tarfile

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import Batch, ImageReader, Pipeline, Rows, WebDatasetReader, WebDatasetWriter, verify
from tamis.errors import ParameterError
from tamis.media import read_bytes
from tamis.sinks.samples import Content, extension_of
from tamis.sinks.webdataset import _header, safe_key
from tamis.sources.webdataset import split_name

MEDIA = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
JPG, PNG = b"\xff\xd8\xff\xe0 jpeg", b"\x89PNG\r\n\x1a\n png"


def media(data, path=None):
    return {"bytes": data, "path": path}


def write(folder, table, **parameters):
    table = table if isinstance(table, pa.Table) else pa.Table.from_pylist(table)
    return Pipeline(Rows(table), WebDatasetWriter(folder, **parameters)).run(executor="inline")


def members(path):
    with tarfile.open(path) as archive:
        return {each.name: archive.extractfile(each).read() for each in archive}


def images(**columns):
    return pa.table(
        {name: pa.array(values, MEDIA if name in ("image", "left") else None) for name, values in columns.items()}
    )


def test_a_row_becomes_members_with_its_key(tmp_path):
    table = images(
        __key__=["a/1", "a/2"],
        image=[media(JPG, "x.JPG"), None],
        left=[media(PNG), media(b"?", "x.weird")],
        caption=["eine Kätzin", None],
        label=[3, None],
        url=["u", None],
    )
    write(tmp_path, table)
    assert members(tmp_path / "part-000000.tar") == {
        "a/1.jpg": JPG,
        "a/1.left.png": PNG,
        "a/1.txt": "eine Kätzin".encode(),
        "a/1.cls": b"3",
        "a/1.json": b'{"url":"u"}',
        "a/2.left.weird": b"?",
        "a/2.json": b'{"url":null}',
    }


def test_headers_contain_nothing_but_names_and_sizes(tmp_path):
    write(tmp_path, images(__key__=["a"], image=[media(JPG, "a.jpg")]))
    with tarfile.open(tmp_path / "part-000000.tar") as archive:
        (found,) = archive
    assert (found.mtime, found.uid, found.uname, oct(found.mode)) == (0, 0, "", "0o644")
    assert (tmp_path / "part-000000.tar").stat().st_size == 512 + 512 + 1024


@pytest.mark.parametrize("name", [b"a", b"x" * 100, "日本/ä.jpg".encode(), b"y" * 101, "ü".encode() * 300])
@pytest.mark.parametrize("size", [0, 1, 8**11 - 1, 8**11, 10**12])
def test_headers_are_those_of_tarfile(name, size):
    info = tarfile.TarInfo(name.decode())
    info.size = size
    assert _header(name, size) == info.tobuf(tarfile.GNU_FORMAT, "utf-8")


def test_what_is_written_is_read_back(tmp_path):
    table = images(
        __key__=[f"{number:03d}" for number in range(40)],
        image=[media(JPG + bytes([number]), "x.jpg") if number % 7 else None for number in range(40)],
        left=[media(PNG + bytes([number]), "x.png") for number in range(40)],
        caption=[f"caption\n{number}" if number % 5 else None for number in range(40)],
        label=[number if number % 3 else None for number in range(40)],
        tags=[["a", None, "ü"] if number % 2 else None for number in range(40)],
        score=[number / 8 for number in range(40)],
    )
    write(tmp_path / "out", table, rows_per_shard=7)
    assert len(list((tmp_path / "out").glob("part-000000-*.tar"))) == 6

    def loaded(batch: Batch):
        held = {
            name: [None if data is None else bytes(data) for data in read_bytes(batch, name)]
            for name in ("image", "left")
        }
        return {name: pa.array(values, pa.binary()) for name, values in held.items()}

    found = Pipeline(WebDatasetReader(tmp_path / "out"), loaded).collect(executor="inline").to_pylist()
    expected = [
        {**row, "image": row["image"] and row["image"]["bytes"], "left": row["left"]["bytes"]}
        for row in table.to_pylist()
    ]
    assert [{name: row[name] for name in expected[0]} for row in found] == expected


@pytest.mark.filterwarnings("ignore")
def test_archives_are_read_by_webdataset_and_datasets(tmp_path, monkeypatch):
    import io

    import datasets
    import webdataset
    from PIL import Image

    def picture(number):
        out = io.BytesIO()
        Image.new("RGB", (4, 4), (number, 0, 0)).save(out, "PNG")
        return out.getvalue()

    table = images(
        __key__=[f"{number:03d}" for number in range(5)],
        image=[media(picture(number), "x.png") for number in range(5)],
        caption=[f"caption {number}" for number in range(5)],
        width=[4] * 5,
    )
    write(tmp_path / "out", table)
    path = str(tmp_path / "out" / "part-000000.tar")
    theirs = webdataset.WebDataset(path, shardshuffle=False).decode("pil").to_tuple("__key__", "png", "txt", "json")
    for number, (key, image, text, fields) in enumerate(theirs):
        assert (key, image.getpixel((0, 0)), text, fields) == (
            f"{number:03d}", (number, 0, 0), f"caption {number}", {"width": 4},
        )  # fmt: skip
    assert number == 4
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    found = datasets.load_dataset("webdataset", data_files=path, split="train", cache_dir=str(tmp_path / "cache"))
    assert [row["png"].getpixel((0, 0))[0] for row in found] == list(range(5))
    assert found["txt"][:2] == ["caption 0", "caption 1"]


@pytest.mark.parametrize(
    ("keys", "written"),
    [
        (["a", "a", "a", "b", "a"], ["a", "a-1", "a-2", "b", "a-3"]),
        (["a", "a", "a-1", "a"], ["a", "a-1", "a-1-1", "a-2"]),
        (["../../etc/passwd", "/abs/x.y.z"], ["etc/passwd", "abs/x_y_z"]),
        (["__meta__", ".hidden", "a\x00b"], ["x__meta__", "_hidden", "a_b"]),
    ],
)
def test_keys_are_safe_and_differ_from_their_neighbours(tmp_path, keys, written):
    write(tmp_path, [{"__key__": key, "n": number} for number, key in enumerate(keys)])
    found = members(tmp_path / "part-000000.tar")
    assert list(found) == [f"{key}.json" for key in written]
    for key, name, number in zip(keys, written, range(9), strict=False):
        fields = json.loads(found[f"{name}.json"])
        assert fields == {"n": number} | ({"__key__": key} if key != name else {})
    rows = Pipeline(WebDatasetReader(tmp_path)).collect(executor="inline")
    assert rows["__key__"].to_pylist() == written


@given(st.text(max_size=30))
@settings(max_examples=200)
def test_any_key_becomes_one_that_can_be_read_back(key):
    safe = safe_key(key)
    assert ".." not in safe
    assert not safe.startswith("/")
    if safe:
        assert split_name(f"{safe}.left.jpg") == (safe, "left.jpg")
        assert safe_key(safe) == safe


def test_rows_without_a_key_are_named_by_their_content(tmp_path):
    table = images(image=[media(JPG, "a.jpg"), media(PNG, "a.png"), media(JPG, "b.jpg"), None])
    write(tmp_path, table)
    names = list(members(tmp_path / "part-000000.tar"))
    assert names[2] == names[0].replace(".jpg", "-1.jpg")
    assert names[3].endswith(".json")  # a row without anything is still a row
    assert Pipeline(WebDatasetReader(tmp_path)).collect(executor="inline").num_rows == 4


def test_other_columns_can_be_text_files(tmp_path):
    rows = [{"__key__": "a", "text": "hello", "caption": "c", "label": "not an integer"}]
    write(tmp_path, rows, members={"text": "txt"})
    assert members(tmp_path / "part-000000.tar") == {
        "a.txt": b"hello",
        "a.json": b'{"caption":"c","label":"not an integer"}',
    }
    for wrong in ({"a": "TXT"}, {"a": "jpg"}, {"a": "json"}, {"a": "x", "b": "x"}, {"a": ".txt"}):
        with pytest.raises(ParameterError, match="extension"):
            WebDatasetWriter(tmp_path, members=wrong).check()


def test_archives_end_at_a_size_or_a_number_of_rows(tmp_path):
    table = images(__key__=[f"{n:02d}" for n in range(20)], image=[media(bytes(3000), "a.jpg")] * 20)
    write(tmp_path / "size", table, target_shard_size="10kB")
    sizes = [path.stat().st_size for path in sorted((tmp_path / "size").glob("*.tar"))]
    assert len(sizes) == 7
    assert all(10_000 <= size <= 10_000 + 3584 + 1024 for size in sizes[:-1])
    write(tmp_path / "rows", table, rows_per_shard=6, compression="gz")
    assert sorted(path.name for path in (tmp_path / "rows").glob("*.gz")) == [
        f"part-000000-{number:04d}.tar.gz" for number in range(4)
    ]
    assert Pipeline(WebDatasetReader(tmp_path / "rows")).collect(executor="inline").num_rows == 20
    with pytest.raises(ParameterError, match="rows_per_shard"):
        WebDatasetWriter(tmp_path, rows_per_shard=0).check()


def test_bytes_pass_through_unchanged_and_a_missing_file_fails_its_row(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(6):
        (tmp_path / "in" / f"{number}.png").write_bytes(PNG + bytes([number]))

    def lose(row):
        (tmp_path / "in" / "2.png").unlink(missing_ok=True)
        return True

    report = Pipeline(ImageReader(tmp_path / "in"), lose, WebDatasetWriter(tmp_path / "out")).run(
        executor="inline", on_error="isolate", max_failed="100%"
    )
    assert (report.read, report.kept, report.failed) == (6, 5, 1)
    found = members(tmp_path / "out" / "part-000000.tar")
    assert [data for name, data in found.items() if name.endswith("png")] == [PNG + bytes([n]) for n in (0, 1, 3, 4, 5)]
    failed = (tmp_path / "out/.tamis/failed/part-000000-stage-1.rows").read_text()
    assert f'"address": "{tmp_path}/in/2.png:0"' in failed or f'"address":"{tmp_path}/in/2.png:0"' in failed
    assert verify(tmp_path / "out").ok


def test_only_the_columns_that_are_written_are_read(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.png").write_bytes(PNG)
    Pipeline(ImageReader(tmp_path / "in"), WebDatasetWriter(tmp_path / "a", fields=["size"])).run(executor="inline")
    assert [name.rpartition(".")[2] for name in members(tmp_path / "a" / "part-000000.tar")] == ["json"]
    Pipeline(ImageReader(tmp_path / "in"), WebDatasetWriter(tmp_path / "b", fields=["image"])).run(executor="inline")
    assert list(members(tmp_path / "b" / "part-000000.tar").values()) == [PNG]


@pytest.mark.parametrize(
    ("data", "extension"),
    [
        *(
            (JPG, "jpg"),
            (PNG, "png"),
            (b"RIFF\0\0\0\0WEBPVP8 ", "webp"),
            (b"RIFF\0\0\0\0WAVEfmt ", "wav"),
            (b"fLaC", "flac"),
        ),
        *((b"\0\0\0\x20ftypavif", "avif"), (b"\0\0\0\x20ftypisom", "mp4"), (b"", "bin"), (b"what", "bin")),
    ],
)
def test_the_extension_follows_from_the_content_if_the_name_has_none(data, extension):
    assert extension_of("", Content(pa.py_buffer(data))) == extension
    assert extension_of("a.jpg", Content(pa.py_buffer(data))) == "jpg"


def test_archives_in_an_object_store(tmp_path, s3_server):
    table = images(
        __key__=["a", "b", "c"], image=[media(JPG, "a.jpg"), media(PNG, "b.png"), None], caption=["x", "y", "z"]
    )
    output = f"{s3_server.url}/out"
    sink = WebDatasetWriter(output, rows_per_shard=2, storage_options=s3_server.storage_options)
    Pipeline(Rows(table), sink).run(executor="inline")
    assert verify(output, storage_options=s3_server.storage_options).ok
    source = WebDatasetReader(output, storage_options=s3_server.storage_options)
    rows = Pipeline(source).collect(executor="inline").to_pylist()
    assert [row["image"] and row["image"]["bytes"] for row in rows] == [JPG, PNG, None]
    assert [row["caption"] for row in rows] == ["x", "y", "z"]
