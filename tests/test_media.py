"""Media rows: images, sounds and videos in rows, by value and by reference, through every source, step and sink."""

import io
import json
import os
import tarfile
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tamis
from tamis import (
    ArrowReader,
    ArrowWriter,
    CsvWriter,
    ImageReader,
    JsonlReader,
    JsonlWriter,
    MediaReference,
    ParquetReader,
    ParquetWriter,
    Pipeline,
    Rows,
    WebDatasetReader,
)
from tamis.batch import Batch, Origin
from tamis.dedup.exact import ExactDedup
from tamis.errors import MediaError
from tamis.media import MediaAccess, Reference, full_paths, is_media, media_items, read_bytes
from tamis.media_paths import joined
from tamis.operators import Map, operator
from tamis.sampling import Sample

MEDIA = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
VALUES = [
    {"bytes": b"\x89PNG\x00\xff", "path": "a.png"},
    {"bytes": b"", "path": "empty.png"},
    None,
    {"bytes": None, "path": None},
    {"bytes": b"\x00" * 3000, "path": None},
    {"bytes": None, "path": "/elsewhere/b.png"},
]
TABLE = pa.table(
    {
        "id": range(6),
        "image": pa.array(VALUES, MEDIA),
        "pages": pa.array([[VALUES[0], None], [], None, VALUES[3:5], [VALUES[1]], [VALUES[5]]], pa.list_(MEDIA)),
        "raw": pa.array([b"\xff", b"", None, b"a", b"\x00", b"z"]),
        "digest": pa.array([b"abc", None, b"\x00\xff\x00", b"xyz", b"abc", b"aaa"], pa.binary(3)),
    }
)


def rows_of(folder):
    return pq.read_table(folder).to_pylist()


# ------------------------------------------------------------------------------------------------- by value, everywhere

KINDS = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)]
NESTED = {
    "plain": (lambda kind: kind, lambda value: value),
    "struct": (lambda kind: pa.struct([("x", kind)]), lambda value: {"x": value}),
    "list": (pa.list_, lambda value: [value, None]),
    "large list": (pa.large_list, lambda value: [value]),
    "fixed list": (lambda kind: pa.list_(kind, 2), lambda value: [None, value]),
    "map": (lambda kind: pa.map_(pa.string(), kind), lambda value: [("k", value)]),
    "list of structs": (lambda kind: pa.list_(pa.struct([("x", kind)])), lambda value: [{"x": value}]),
}


@pytest.mark.parametrize("nested", NESTED)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_binary_type_passes_through_files_filters_gathers_and_collect(kind, nested, tmp_path):
    wrap, value = NESTED[nested]
    column = pa.array([value(b"\xff\x00"), None, value(None), value(b"ab"), value(b"ab")], wrap(kind))
    table = pa.table({"id": [0, 1, 2, 3, 3], "data": column})
    with pa.ipc.new_file(tmp_path / "in.arrow", table.schema) as writer:
        writer.write_table(table)
    steps = [lambda row: row["id"] != 1, ExactDedup(column="id"), Sample(rows=10)]
    expected = [row for index, row in enumerate(table.to_pylist()) if index in (0, 2, 3)]
    assert Pipeline(Rows(table), *steps).collect(executor="inline").to_pylist() == expected
    for number, (writer, read) in enumerate(((ParquetWriter, ParquetReader), (ArrowWriter, ArrowReader))):
        output = tmp_path / str(number)
        Pipeline(ArrowReader(tmp_path / "in.arrow"), *steps, writer(output)).run(executor="inline", rejects=True)
        assert Pipeline(read(output)).collect(executor="inline").to_pylist() == expected
    rejects = pq.read_table(tmp_path / "0/.tamis/rejects/part-000000-stage-1.table").to_pylist()
    assert [row["data"] for row in rejects] == [None]


@pytest.mark.parametrize("writer", [ParquetWriter, ArrowWriter])
def test_media_columns_are_written_as_they_were_read(writer, tmp_path):
    pq.write_table(TABLE, tmp_path / "in.parquet", row_group_size=2)
    Pipeline(ParquetReader(tmp_path / "in.parquet", blocksize="1B"), writer(tmp_path / "out")).run(workers=1)
    reader = ParquetReader if writer is ParquetWriter else ArrowReader
    found = Pipeline(reader(tmp_path / "out")).collect(executor="inline")
    assert found.schema == TABLE.schema
    assert found.to_pylist() == TABLE.to_pylist()


def test_a_column_of_a_view_type_that_a_step_returns_can_be_filtered():
    def as_views(batch: Batch):
        data = [b"x", None, b"long enough not to be inlined"]
        return {"data": pa.array([data[n] for n in batch["n"].to_pylist()], pa.binary_view())}

    steps = [as_views, lambda row: row["n"] > 0]
    found = Pipeline(Rows([{"n": 0}, {"n": 1}, {"n": 2}]), *steps).collect(executor="inline")
    assert found["data"].to_pylist() == [None, b"long enough not to be inlined"]


def test_csv_holds_media_as_json_text_with_base64(tmp_path):
    Pipeline(Rows(TABLE.select(["image"])), CsvWriter(tmp_path)).run(executor="inline")
    assert '"{""bytes"":""iVBORwD/"",""path"":""a.png""}"' in (tmp_path / "part-000000.csv").read_text()


# ------------------------------------------------------------------------------------------------- JSON lines refer to it


def json_rows(folder):
    return [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]


@operator(reads="image", writes="size")
class SizeForTests(Map):
    """Adds the size of an image."""

    def apply(self, batch):
        return {"size": pa.array([None if data is None else len(data) for data in read_bytes(batch, "image")])}


def loads(batch: Batch):
    return {
        "image": pa.array(
            [None if d is None else {"bytes": bytes(d), "path": None} for d in read_bytes(batch, "image")], MEDIA
        )
    }


@pytest.mark.parametrize("compression", [None, "zst"])
def test_json_lines_refer_to_media_in_a_second_file(compression, tmp_path):
    output = tmp_path / "out"
    report = Pipeline(Rows(TABLE, rows_per_partition=3), JsonlWriter(output, compression=compression)).run(workers=1)
    assert report.kept == 6
    # The last partition has no media file for `image`, except for what its pages hold.
    assert sorted(path.name for path in output.glob("part-*.media")) == ["part-000000.media", "part-000001.media"]
    back = Pipeline(JsonlReader(output), SizeForTests()).collect(
        executor="inline", on_error="isolate", max_failed="100%"
    )
    assert back.schema.field("image").type == MEDIA
    assert back.schema.field("pages").type == pa.list_(MEDIA)
    assert dict(zip(back["id"].to_pylist(), back["size"].to_pylist(), strict=True)) == {
        0: 6,
        1: 0,
        2: None,
        3: None,
        4: 3000,
    }
    paths = [None if image is None else image["path"] for image in back["image"].to_pylist()]
    assert paths[0] == f"{output}/part-000000.media@512+6#a.png"
    assert all(image is None or image["bytes"] is None for image in back["image"].to_pylist())


def test_a_reference_in_json_names_no_file_and_keeps_the_name_of_the_data(tmp_path):
    Pipeline(Rows(TABLE.select(["image"])), JsonlWriter(tmp_path / "out")).run(executor="inline")
    assert [row["image"] for row in json_rows(tmp_path / "out")] == [
        {"bytes": None, "path": "@512+6#a.png"},
        {"bytes": None, "path": "@1536+0#empty.png"},
        None,
        {"bytes": None, "path": None},
        {"bytes": None, "path": "@2048+3000"},
        {"bytes": None, "path": "/elsewhere/b.png"},
    ]
    with tarfile.open(tmp_path / "out/part-000000.media") as archive:
        assert archive.getnames() == ["00000000.png", "00000001.png", "00000002"]
        assert archive.extractfile("00000000.png").read() == b"\x89PNG\x00\xff"


def test_the_media_file_is_verified_moved_and_removed_with_its_lines(tmp_path):
    def write(names):
        (tmp_path / "in").mkdir(exist_ok=True)
        for name in names:
            table = pa.table({"id": [name], "image": pa.array([{"bytes": name.encode() * 3, "path": None}], MEDIA)})
            pq.write_table(table, tmp_path / "in" / f"{name}.parquet")

    def run():
        return Pipeline(ParquetReader(tmp_path / "in", files_per_partition=1), JsonlWriter(tmp_path / "out")).run(
            workers=1
        )

    def read():
        found = Pipeline(JsonlReader(tmp_path / "out"), SizeForTests(), loads)
        return [(row["id"], row["image"]["bytes"]) for row in found.collect(executor="inline").to_pylist()]

    write(["b", "d"])
    run()
    assert tamis.verify(tmp_path / "out").files == 4
    media = tmp_path / "out/part-000001.media"
    data = bytearray(media.read_bytes())
    data[600] ^= 1
    media.write_bytes(data)
    assert list(tamis.verify(tmp_path / "out").damaged) == ["part-000001.media"]
    tamis.verify(tmp_path / "out", forget=True)
    run()
    assert tamis.verify(tmp_path / "out").ok
    write(["a", "cc"])  # the partitions of b and d are renumbered
    run()
    assert read() == [("a", b"aaa"), ("b", b"bbb"), ("cc", b"cc" * 3), ("d", b"ddd")]
    (tmp_path / "in/b.parquet").unlink()
    run()
    assert read() == [("a", b"aaa"), ("cc", b"cc" * 3), ("d", b"ddd")]
    assert len(list((tmp_path / "out").glob("*.media"))) == 3
    (tmp_path / "out/part-000000.media").unlink()
    assert tamis.verify(tmp_path / "out").missing == ["part-000000.media"]
    run()
    assert tamis.verify(tmp_path / "out").ok


def test_shards_of_a_target_size_each_have_their_media(tmp_path):
    rows = [{"id": n, "image": {"bytes": bytes([n]) * 5000, "path": f"{n}.bin"}} for n in range(20)]
    Pipeline(Rows(rows), JsonlWriter(tmp_path, target_shard_size="20kB")).run(executor="inline")
    names = sorted(path.name for path in tmp_path.glob("part-*"))
    assert len(names) >= 8
    assert [name for name in names if name.endswith(".jsonl")] == [
        name.replace(".media", ".jsonl") for name in names if name.endswith(".media")
    ]
    found = Pipeline(JsonlReader(tmp_path), loads).collect(executor="inline")
    assert [row["image"]["bytes"] for row in found.to_pylist()] == [row["image"]["bytes"] for row in rows]


def test_json_lines_that_refer_to_media_are_not_copied_as_they_are(tmp_path):
    """Their references are relative to the file they are in, and would lead nowhere from another."""
    Pipeline(Rows(TABLE.select(["id", "image"])), JsonlWriter(tmp_path / "one")).run(executor="inline")
    Pipeline(JsonlReader(tmp_path / "one"), JsonlWriter(tmp_path / "two")).run(executor="inline")
    paths = [row["image"] and row["image"]["path"] for row in json_rows(tmp_path / "two")]
    assert paths[0] == f"{tmp_path}/one/part-000000.media@512+6#a.png"
    assert not list((tmp_path / "two").glob("*.media"))
    reader = JsonlReader(tmp_path / "two", media_roots=[str(tmp_path / "one")])
    found = Pipeline(reader, lambda row: row["id"] < 5, SizeForTests()).collect(executor="inline")
    assert found["size"].to_pylist() == [6, 0, None, None, 3000]


def test_a_text_in_place_of_bytes_fails_its_row(tmp_path):
    lines = [{"id": n, "text": "x" * 2000, "image": {"bytes": None, "path": "/a.png"}} for n in range(2000)]
    lines[1500]["image"]["bytes"] = "iVBORw0KGgo="
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = Pipeline(JsonlReader(tmp_path / "a.jsonl"), ParquetWriter(tmp_path / "out")).run(executor="inline")
    assert (report.kept, report.failed) == (1999, 1)
    failed = json.loads((tmp_path / "out/.tamis/failed/part-000000-stage-1.rows").read_text())
    assert "JSON holds media by reference" in failed["error"]


# ---------------------------------------------------------------------------------------------------------- references


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data/sub").mkdir(parents=True)
    (tmp_path / "data/a.bin").write_bytes(b"aaaa")
    (tmp_path / "data/sub/b.bin").write_bytes(b"bb")
    (tmp_path / "secret.bin").write_bytes(b"secret")
    (tmp_path / "database").mkdir()
    (tmp_path / "database/c.bin").write_bytes(b"c")
    (tmp_path / "data/link.bin").symlink_to(tmp_path / "secret.bin")
    with tarfile.open(tmp_path / "data/t.tar", "w") as archive:
        for name, data in (("x/1.png", b"one"), ("./2.png", b"two"), ("x/1.png", b"later")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with zipfile.ZipFile(tmp_path / "data/z.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("1.png", b"zip" * 100)
    (tmp_path / "data/broken.tar").write_bytes(b"not a tar" * 200)
    os.mkfifo(tmp_path / "data/pipe")
    return tmp_path


def referring(folder, *paths, roots=(), **options):
    column = pa.array([{"bytes": None, "path": path} for path in paths], MEDIA)
    origin = Origin.of(str(folder / "data/in.jsonl"), range(len(paths)))
    return Batch(pa.table({"image": column}), origin, access=MediaAccess(tuple(roots), options))


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("a.bin", b"aaaa"),
        ("./sub/../a.bin", b"aaaa"),
        ("sub/b.bin", b"bb"),
        ("a.bin@1+2", b"aa"),
        ("a.bin@1+2#name.png", b"aa"),
        ("a.bin@4+0", b""),
        ("t.tar#x/1.png", b"later"),
        ("t.tar#2.png", b"two"),
        ("z.zip#1.png", b"zip" * 100),
    ],
)
def test_references_in_the_folder_of_the_source_file_are_read(folder, path, data):
    assert [bytes(found) for found in read_bytes(referring(folder, path), "image")] == [data]
    full = full_paths(referring(folder, path).table, Origin.of(str(folder / "data/in.jsonl"), [0]))
    assert full["image"][0]["path"].as_py().startswith(f"{folder}/data/")
    batch = Batch(full, Origin.of(str(folder / "data/in.jsonl"), [0]))
    assert [bytes(found) for found in read_bytes(batch, "image")] == [data]


RELATIVE = {
    "../secret.bin": "{}/secret.bin",
    "sub/../../secret.bin": "{}/secret.bin",
    "link.bin": "{}/data/link.bin",
    "../secret.bin@0+3": "{}/secret.bin@0+3",
    "..": "{}",
}


@pytest.mark.parametrize(
    "path",
    [
        "../secret.bin",
        "sub/../../secret.bin",
        "{}/secret.bin",
        "file://{}/secret.bin",
        "{}/database/c.bin",
        "{}/data/../secret.bin",
        "link.bin",
        "../secret.bin@0+3",
        "..",
        "http://127.0.0.1:9/x",
        "s3://bucket/x",
        "simplecache::file://{}/secret.bin",
        "zip://x::{}/data/z.zip",
        "a.bin\0.png",
    ],
)
def test_references_out_of_the_folder_are_refused_and_passed_on(folder, path):
    path = path.format(folder)
    batch = referring(folder, path)
    why = r"is outside the folder of its source file|leads out of its folder|is not a path to a file"
    with pytest.raises(MediaError, match=why):
        read_bytes(batch, "image")
    passed = full_paths(batch.table, batch.origin)["image"][0]["path"].as_py()
    if path in RELATIVE:  # in an output, a relative path would lead elsewhere
        assert passed == RELATIVE[path].format(folder)
        batch = Batch(full_paths(batch.table, batch.origin), batch.origin)
        with pytest.raises(MediaError, match=why):
            read_bytes(batch, "image")
    else:
        assert passed == path


@pytest.mark.parametrize("path", ["../secret.bin", "sub/../../secret.bin", "../secret.bin@0+3"])
def test_a_relative_reference_to_another_folder_can_be_allowed(folder, path):
    expected = b"secret"[: 3 if "@" in path else None]
    assert read_bytes(referring(folder, path, roots=[str(folder)]), "image") == [expected]
    full = full_paths(referring(folder, path).table, Origin.of(str(folder / "data/in.jsonl"), [0]))
    moved = Batch(full, Origin.of("/elsewhere/out.jsonl", [0]), access=MediaAccess((str(folder),)))
    assert read_bytes(moved, "image") == [expected]


def images(reader):
    """The bytes that rows refer to, by the names of the files; rows that fail are left out."""

    def with_data(batch: Batch):
        return {"data": pa.array([bytes(data) for data in read_bytes(batch, "image")])}

    table = Pipeline(reader, with_data).collect(executor="inline", max_failed="100%", on_error="isolate")
    return {row["image"]["path"].rpartition("/")[2]: row["data"] for row in table.to_pylist()}


def test_what_the_user_named_may_be_reached_through_links(folder):
    (folder / "set/a").mkdir(parents=True)
    (folder / "set/b.png").write_bytes(b"an image")
    (folder / "set/a/linked.png").symlink_to("../b.png")
    (folder / "set/a/outside.png").symlink_to(folder / "secret.bin")
    (folder / "data/t.tar").rename(folder / "shard")
    (folder / "data/t.tar").symlink_to(folder / "shard")
    assert images(ImageReader(folder / "set")) == {"b.png": b"an image", "linked.png": b"an image"}
    assert images(ImageReader(str(folder / "s*/*/*.png"))) == {
        "linked.png": b"an image",
        "outside.png": b"secret",  # the folder of the pattern has it
    }
    assert images(ImageReader(str(folder / "set/a/*.png"))) == {}
    assert set(images(WebDatasetReader(folder / "data/t.tar")).values()) == {b"later", b"two"}
    assert images(WebDatasetReader(str(folder / "data/t*.tar"))) == {}


def test_links_of_the_cache_of_the_hub_are_followed(tmp_path, monkeypatch):
    root = tmp_path / "datasets--org--name"
    snapshot = root / "snapshots" / ("a" * 40)
    for path in (snapshot / "images", root / "blobs", root / "refs"):
        path.mkdir(parents=True)
    (root / "refs/main").write_text("a" * 40)
    (root / "blobs/11").write_bytes(b"an image")
    (snapshot / "images/1.png").symlink_to("../../../blobs/11")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert images(ImageReader("hf://datasets/org/name/images/*.png")) == {"1.png": b"an image"}


def test_a_link_to_a_zip_archive_is_one_whatever_its_real_name_is(folder):
    (folder / "data/z.zip").rename(folder / "data/2")
    (folder / "data/z.zip").symlink_to("2")
    zipped = referring(folder, "z.zip#1.png")
    assert read_bytes(zipped, "image") == [b"zip" * 100]
    assert media_items(zipped, "image")[0].place_on_disk() is None


@pytest.mark.parametrize("path", ["a::b.png", "{}/data/a::b.png", "file://{}/data/a::b.png", "sub::x/c.png"])
def test_the_name_of_a_local_file_may_contain_two_colons(folder, path):
    (folder / "data/sub::x").mkdir()
    for name in ("a::b.png", "sub::x/c.png"):
        (folder / "data" / name).write_bytes(b"colons")
    batch = referring(folder, path.format(folder))
    assert [bytes(found) for found in read_bytes(batch, "image")] == [b"colons"]
    moved = full_paths(batch.table, batch.origin)["image"][0]["path"].as_py()
    assert moved.removeprefix("file://").startswith(f"{folder}/data/")


@pytest.mark.parametrize("place", ["s3://bucket/in.jsonl", "https://example.org/in.jsonl"])
def test_a_path_next_to_a_remote_file_must_not_contain_two_colons(place):
    assert joined("a::b.png", place) is None


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("missing.bin", "No such file"),
        ("a.bin@2+3", "beyond its end"),
        ("a.bin@0+999999999999999999", "a value can hold"),
        ("t.tar#missing", "has no member 'missing'"),
        ("t.tar#link", "has no member 'link'"),
        ("z.zip#missing", "has no member"),
        ("broken.tar#x", "the archive is damaged"),
        ("pipe", "is not a regular file"),
        ("sub", "is not a regular file"),
    ],
)
def test_references_that_cannot_be_read_say_why(folder, path, why):
    with pytest.raises(MediaError, match=why):
        read_bytes(referring(folder, path), "image")


def test_media_roots_allow_other_folders_and_urls(folder):
    one = str(folder / "secret.bin")
    for root in (str(folder), f"file://{folder}", "/"):
        assert read_bytes(referring(folder, one, one, roots=[root]), "image") == [b"secret"] * 2
    with pytest.raises(MediaError):
        read_bytes(referring(folder, str(folder / "database/c.bin"), roots=[str(folder / "data")]), "image")
    import fsspec

    with fsspec.open("memory://allowed/x.bin", "wb") as file:
        file.write(b"remote")
    assert read_bytes(referring(folder, "memory://allowed/x.bin", roots=["memory://allowed"]), "image") == [b"remote"]
    for path in (
        "memory://allowed2/x.bin",
        "memory://allowed/../x.bin",
        "memory://allowed/%2e%2e/x",
        "memory://allowed@e/x",
    ):
        with pytest.raises(MediaError, match="outside"):
            read_bytes(referring(folder, path, roots=["memory://allowed"]), "image")


def test_a_link_out_of_the_folder_is_named_and_can_be_allowed(folder):
    (folder / "data/linked").symlink_to(folder / "database")
    for path, root in (("link.bin", folder), ("linked/c.bin", folder / "database")):
        with pytest.raises(MediaError, match="leads out of its folder") as caught:
            read_bytes(referring(folder, path), "image")
        assert f'media_roots=["{root}"]' in str(caught.value)
        assert read_bytes(referring(folder, path, roots=[str(root)]), "image") == [
            (folder / "data" / path).read_bytes()
        ]


def test_references_relative_to_a_remote_source_stay_below_it():
    import fsspec

    with fsspec.open("memory://set/images/x.bin", "wb") as file:
        file.write(b"remote")
    origin = Origin.of("memory://set/a.jsonl", [0])
    for path, found in (
        ("images/x.bin", b"remote"),
        ("memory://set/images/x.bin", b"remote"),
        ("../y", None),
        ("/etc/passwd", None),
    ):
        batch = Batch(pa.table({"image": pa.array([{"bytes": None, "path": path}], MEDIA)}), origin)
        if found is None:
            with pytest.raises(MediaError):
                read_bytes(batch, "image")
        else:
            assert read_bytes(batch, "image") == [found]


def test_a_file_is_read_once_for_all_operators_and_not_again_when_rows_fail(folder, monkeypatch):
    reads = []
    real = tamis.media_files._range
    monkeypatch.setattr(tamis.media_files, "_range", lambda file, *where: reads.append(1) or real(file, *where))
    paths = ["a.bin", "missing", "sub/b.bin", "t.tar#2.png", "../out", "a.bin@0+1"]
    batch = referring(folder, *paths)
    with pytest.raises(MediaError, match="missing"):
        read_bytes(batch.view({"image": "image"}), "image")
    assert len(reads) == 4
    left = batch.select(pa.array([True, False, True, True, False, True]).to_numpy(zero_copy_only=False))
    assert read_bytes(left, "image") == [b"aaaa", b"bb", b"two", b"a"]
    assert read_bytes(left.view({"picture": "image"}), "picture") == [b"aaaa", b"bb", b"two", b"a"]
    assert len(reads) == 4


def test_a_column_of_paths_is_no_media_column_until_a_step_makes_it_one(folder):
    (folder / "data/in.jsonl").write_text('{"image": "a.bin"}\n')
    reader = JsonlReader(folder / "data/in.jsonl")
    report = Pipeline(reader, SizeForTests()).run(executor="inline", on_error="isolate", max_failed="100%")
    assert "this one is string; the step media_reference makes one of paths" in report.errors[0]["error"]
    table = Pipeline(reader, MediaReference(column="image", to="image"), SizeForTests()).collect(executor="inline")
    assert table["size"].to_pylist() == [4]


def test_rows_whose_media_cannot_be_read_fail_and_the_others_continue(folder):
    lines = [
        {"id": 0, "image": {"bytes": None, "path": "a.bin"}},
        {"id": 1, "image": {"bytes": None, "path": str(folder / "secret.bin")}},
        {"id": 2, "image": {"bytes": None, "path": "none"}},
        {"id": 3, "image": None},
        {"id": 4, "image": {"bytes": None, "path": "a.bin#t=5,3"}},
        {"id": 5, "image": {"bytes": None, "path": "a.bin@0+2#a.mp3#t=2,2"}},
        {"id": 6, "image": {"bytes": None, "path": ""}},
    ]
    (folder / "data/in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    job = Pipeline(
        JsonlReader(folder / "data/in.jsonl"),
        ExactDedup(column="id"),
        SizeForTests(),
        ParquetWriter(folder / "out"),
    )
    report = job.run(executor="inline", on_error="isolate", max_failed="100%")
    assert (report.kept, report.failed) == (3, 4)
    assert [row["size"] for row in rows_of(folder / "out")] == [4, None, None]
    # Passing references on is not an error.
    assert (
        Pipeline(JsonlReader(folder / "data/in.jsonl"), ParquetWriter(folder / "all")).run(executor="inline").kept == 7
    )
    allowed = JsonlReader(folder / "data/in.jsonl", media_roots=[str(folder)])
    report = Pipeline(allowed, lambda row: True, Sample(rows=9), SizeForTests()).run(
        executor="inline", on_error="isolate", max_failed="100%"
    )
    assert (report.kept, report.failed) == (4, 3)


def test_the_grammar_of_references():
    assert Reference.parse("a@b.png") == Reference("a@b.png", name="a@b.png")
    assert Reference.parse("https://u@h/a.png").file == "https://u@h/a.png"
    assert Reference.parse("x.TAR#y#z").member == "y#z"
    assert Reference.parse("@1+2").file == ""
    assert Reference.parse("t.tar@1+2#a@3+4#b") == Reference("t.tar", 1, 2, name="a@3+4#b")


# --------------------------------------------------------------------------------------------------------- typed nulls


@pytest.mark.parametrize(
    "nulls",
    [
        pa.nulls(2),
        pa.nulls(2, pa.struct([("bytes", pa.null()), ("path", pa.null())])),
        pa.array([{"path": "x"}, None], pa.struct([("path", pa.string())])),
    ],
    ids=["null", "struct of nulls", "struct without bytes"],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_column_that_is_null_in_one_file_has_the_type_of_the_others(nulls, first, tmp_path):
    (tmp_path / "in").mkdir()
    with_values = pa.table({"id": [0, 1], "image": pa.array(VALUES[:2], MEDIA)})
    without = pa.table({"id": [2, 3], "image": nulls})
    for name, table in zip("ab" if first else "ba", (without, with_values), strict=True):
        pq.write_table(table, tmp_path / "in" / f"{name}.parquet")
    Pipeline(
        ParquetReader(tmp_path / "in", files_per_partition=1), lambda row: True, ParquetWriter(tmp_path / "out")
    ).run(workers=1)
    schemas = [pq.read_schema(file) for file in sorted((tmp_path / "out").glob("*.parquet"))]
    assert [sorted(schema.field("image").type, key=str) for schema in schemas] == [list(MEDIA)] * 2
    found = {row["id"]: row["image"] for row in rows_of(tmp_path / "out")}
    assert (found[0], found[1]) == tuple(VALUES[:2])


def test_media_without_any_bytes_or_paths_are_typed(tmp_path):
    only_paths = [{"image": {"bytes": None, "path": "/x"}}, {"image": None}]
    only_bytes = [{"image": {"bytes": b"x", "path": None}}, {"image": None}]
    for rows in (only_paths, only_bytes):
        found = Pipeline(Rows(rows)).collect(executor="inline")
        assert found.schema.field("image").type == MEDIA
        assert found.to_pylist() == rows
    (tmp_path / "a.jsonl").write_text('{"image": {"path": "/x", "bytes": null}}\n')
    assert Pipeline(JsonlReader(tmp_path / "a.jsonl")).collect(executor="inline").schema.field("image").type == MEDIA
    made = Pipeline(Rows([{"n": 1}]), lambda row: {"image": {"bytes": None, "path": "/x"}}).collect(executor="inline")
    assert made.schema.field("image").type == MEDIA
    assert not is_media(pa.struct([("bytes", pa.null()), ("path", pa.null())]))


def test_a_null_column_of_json_lines_has_the_type_that_another_partition_knows(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": 1, "image": null}\n' * 3)
    (tmp_path / "b.jsonl").write_text('{"id": 2, "image": {"bytes": null, "path": "/x"}}\n')
    Pipeline(JsonlReader(tmp_path, files_per_partition=1), ParquetWriter(tmp_path / "out")).run(executor="inline")
    assert {pq.read_schema(file).field("image").type for file in (tmp_path / "out").glob("*.parquet")} == {MEDIA}
