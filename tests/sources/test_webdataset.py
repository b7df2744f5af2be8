"""WebDataset archives: rows, columns, references, partitions, and everything an archive may hold that it should not."""

import gzip
import json
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import ArchiveReader, Batch, ParquetReader, Pipeline, WebDatasetReader
from tamis.errors import DamagedFile, ParameterError, SourceError
from tamis.features import features_of
from tamis.media import read_bytes
from tests.tars import special, tar_bytes, write_tar


def sample(key, **members):
    """The members of a row; values are text or bytes."""
    return [
        (f"{key}.{extension.replace('_', '.')}", data if isinstance(data, bytes) else data.encode())
        for extension, data in members.items()
    ]


def content(batch, column="image"):
    return [None if data is None else bytes(data) for data in read_bytes(batch, column)]


def rows_of(source, **options):
    """All rows, with the bytes of images read."""
    table = Pipeline(source, lambda row: True, load).collect(executor="inline", max_failed="100%", **options)
    return table.to_pylist()


def load(batch: Batch):
    return {"image": pa.array(content(batch))} if "image" in batch else {}


@pytest.fixture
def shard(tmp_path):
    rows = []
    for number in range(12):
        fields = {"url": f"https://example.org/{number}", "width": 64, "score": number / 4}
        rows += sample(
            f"{number:04d}", jpg=b"\xff\xd8" + bytes([number]) * 900, txt=f"cat {number}", json=json.dumps(fields)
        )
    return write_tar(tmp_path / "shards" / "00000.tar", rows)


def test_members_with_a_key_are_a_row(shard, read_all):
    found = read_all(WebDatasetReader(shard))
    assert [row["__key__"] for row in found.rows] == [f"{number:04d}" for number in range(12)]
    assert found.rows[3] == {
        "__key__": "0003",
        "image": {"bytes": None, "path": f"{shard}@11264+902#0003.jpg"},
        "caption": "cat 3",
        "url": "https://example.org/3",
        "width": 64,
        "score": 0.75,
    }
    assert found.addresses[:2] == [f"{shard}:0", f"{shard}:3584"]
    assert features_of(found.layout.schema) == {"image": {"_type": "Image"}}
    assert not found.failures


def test_references_lead_to_the_bytes_in_the_archive(shard):
    rows = rows_of(WebDatasetReader(shard))
    assert [row["image"] for row in rows] == [b"\xff\xd8" + bytes([number]) * 900 for number in range(12)]


@pytest.mark.parametrize("blocksize", ["1B", "3kB", "10kB"])
@pytest.mark.parametrize("batch_bytes", [1, 5_000, 10**7])
def test_rows_do_not_depend_on_partitions_or_batches(shard, read_all, blocksize, batch_bytes):
    whole = read_all(WebDatasetReader(shard))
    found = read_all(WebDatasetReader(shard, blocksize=blocksize), batch_bytes=batch_bytes)
    assert len(found.layout.partitions) > 1
    assert (found.rows, found.addresses) == (whole.rows, whole.addresses)
    if batch_bytes == 1:
        assert set(found.batches) == {1}  # the bytes that rows refer to count


def test_only_the_columns_that_are_needed_are_read(shard, read_all):
    found = read_all(WebDatasetReader(shard), columns=("caption",), batch_bytes=5000)
    assert found.rows[0] == {"caption": "cat 0"}
    assert found.batches == [12]  # images are not counted
    assert read_all(WebDatasetReader(shard, fields=["__key__", "width"])).rows[1] == {"__key__": "0001", "width": 64}
    renamed = WebDatasetReader(shard, columns={"text": "caption"}, fields=["text"])
    assert read_all(renamed).rows[2] == {"text": "cat 2"}
    assert len(read_all(WebDatasetReader(shard, limit=5, blocksize="3kB")).rows) == 5


def test_every_kind_of_member_has_a_column(tmp_path, read_all):
    members = sample("a", jpg="i", wav="s", mp4="v", cls="7\n", txt="t", vtt="subtitles", npy="array", left_png="l")
    members += sample("a", meta_json='{"x": 1}', JPEG="second")
    path = write_tar(tmp_path / "a.tar", members[:-1])
    (row,) = read_all(WebDatasetReader(path)).rows
    assert list(row) == ["__key__", "image", "audio", "video", "label", "caption", "vtt", "npy", "left", "meta"]
    assert (row["label"], row["caption"], row["vtt"], row["meta"]) == (7, "t", "subtitles", '{"x": 1}')
    assert [row[name]["path"].rpartition("#")[2] for name in ("npy", "left")] == ["a.npy", "a.left.png"]
    schema = read_all(WebDatasetReader(path)).layout.schema
    assert {name: kind["_type"] for name, kind in features_of(schema).items()} == {
        "image": "Image", "audio": "Audio", "video": "Video", "left": "Image",
    }  # fmt: skip


def test_members_can_be_given_other_columns(tmp_path, read_all):
    path = write_tar(tmp_path / "a.tar", sample("a", jpg="i", png="mask", txt="t", json='{"text": "other"}'))
    (row,) = read_all(WebDatasetReader(path, members={"png": "mask", "txt": "text", "json": "json"})).rows
    assert (row["mask"]["path"].rpartition("#")[2], row["text"], row["json"]) == ("a.png", "t", '{"text": "other"}')
    with pytest.raises(ParameterError, match="lower case"):
        WebDatasetReader(path, members={".PNG": "mask"}).check()


def test_a_caption_in_the_json_is_not_lost(tmp_path, read_all):
    members = [
        *sample("same", txt="a cat", json='{"caption": "a cat", "label": 3, "n": 1}'),
        *sample("other", txt="a cat", cls="4", json='{"caption": "a dog", "label": 4, "image": "x", "__key__": "y"}'),
        *sample("only", json='{"caption": "a cow", "label": "mammal"}'),
    ]
    rows = read_all(WebDatasetReader(write_tar(tmp_path / "a.tar", members))).rows
    assert [row["caption"] for row in rows] == ["a cat", "a cat", "a cow"]
    assert [row["label"] for row in rows] == [3, 4, None]
    assert [row["json_caption"] for row in rows] == [None, "a dog", None]
    assert [row["json_label"] for row in rows] == [None, None, "mammal"]
    assert (rows[1]["json_image"], rows[1]["json___key__"]) == ("x", "y")
    for columns in (("caption",), ("label", "__key__"), ("image", "caption", "label"), ("json_caption", "json_label")):
        some = read_all(WebDatasetReader(tmp_path / "a.tar"), columns=columns).rows
        assert some == [{name: row[name] for name in row if name in columns} for row in rows]


@pytest.mark.parametrize("blocksize", ["1B", "3kB", "1MB"])
def test_rows_without_any_of_the_columns_that_are_needed_are_rows(shard, tmp_path, read_all, blocksize):
    more = sample("0000", jpg="image", flac="sound") + [each for key in "abcdef" for each in sample(key, jpg="x" * 900)]
    other = write_tar(tmp_path / "shards" / "00001.tar", more)
    sounds = read_all(WebDatasetReader(other, fields=["audio"], blocksize=blocksize)).rows
    assert [row["audio"] is not None for row in sounds] == [True] + 6 * [False]
    captions = read_all(WebDatasetReader([shard, other], blocksize=blocksize), columns=("caption",)).rows
    assert [row["caption"] for row in captions] == [f"cat {number}" for number in range(12)] + 7 * [None]


def test_json_over_several_lines_and_its_types(tmp_path, read_all):
    members = sample("a", json=json.dumps({"n": 1, "tags": ["x"], "more": {"deep": None}}, indent=2))
    members += sample("b", json='\ufeff{"n": 2.5, "new": true}') + sample("c", jpg=b"")
    path = write_tar(tmp_path / "a.tar", members)
    rows = read_all(WebDatasetReader(path)).rows
    assert [(row["n"], row["tags"], row["new"]) for row in rows] == [(1.0, ["x"], None), (2.5, None, True), (None,) * 3]
    rows = read_all(WebDatasetReader(path, types={"n": "string", "tags": "json"})).rows
    assert (rows[0]["n"], json.loads(rows[0]["tags"])) == ("1", ["x"])


def test_folders_hidden_members_and_order_of_an_archive_made_by_hand(tmp_path, read_all):
    members = [
        (special("./photos", tarfile.DIRTYPE), b""), ("./photos/._1.jpg", b"resource fork"), ("./photos/1.jpg", b"one"),
        (special("./photos/deep", tarfile.DIRTYPE), b""), ("./photos/1.txt", b"first"), ("__MACOSX/1.jpg", b"x"),
        ("__meta__.json", b"{}"), ("photos/1.jpg", b"again"), (".DS_Store", b"x"), ("photos/2.v1.jpg", b"v"),
    ]  # fmt: skip
    found = read_all(WebDatasetReader(write_tar(tmp_path / "a.tar", members)))
    assert [row["__key__"] for row in found.rows] == ["photos/2"]
    assert [failure.error for failure in found.failures] == [
        'member \'photos/1.jpg\' is the second for column `image`; name its column: members={"jpg": "other"}'
    ]


def test_a_row_without_media_is_kept_and_so_is_a_key_that_comes_again(tmp_path, read_all):
    members = sample("a", jpg="x") + sample("b", txt="alone") + sample("a", txt="late")
    rows = read_all(WebDatasetReader(write_tar(tmp_path / "a.tar", members))).rows
    assert [(row["__key__"], row["image"] is None, row["caption"]) for row in rows] == [
        ("a", False, None), ("b", True, "alone"), ("a", True, "late"),
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- bad members

BAD = {
    "link": ((special("b.jpg", tarfile.SYMTYPE, "/etc/passwd"), b""), "member 'b.jpg' is a symbolic link"),
    "hard link": ((special("b.jpg", tarfile.LNKTYPE, "a.jpg"), b""), "member 'b.jpg' is a hard link"),
    "device": ((special("b.jpg", tarfile.CHRTYPE), b""), "member 'b.jpg' is a device"),
    "pipe": ((special("b.jpg", tarfile.FIFOTYPE), b""), "member 'b.jpg' is a named pipe"),
    "parent": (("../b.jpg", b"x"), "leads out of the archive"),
    "inner parent": (("x/../../b.jpg", b"x"), "leads out of the archive"),
    "absolute": (("/etc/b.jpg", b"x"), "leads out of the archive"),
    "no extension": (("README", b"x"), "has no extension, so it belongs to no row"),
    "not UTF-8": (("b.txt", b"\xff"), "is not UTF-8: invalid start byte at byte 0"),
    "class": (("b.cls", b"seven"), "is not an integer: 'seven'"),
    "list": (("b.json", b"[1]"), "the JSON of 'b' cannot be read: it is not an object, but list"),
    "broken JSON": (("b.json", b'{"a": '), "the JSON of 'b' cannot be read: Expecting value"),
    "deep JSON": (("b.json", b'{"a":' * 100_000), "the JSON of 'b' cannot be read"),
    "wrong type": (("b.json", b'{"n": "text"}'), "in its JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_member_fails_its_row_with_an_address(name, tmp_path, read_all):
    member, error = BAD[name]
    rows = [row for number in range(70) for row in sample(f"good{number}", jpg="x", json='{"n": 1}')]
    path = write_tar(tmp_path / "a.tar", [*rows, member, *sample("last", jpg="y")])
    found = read_all(WebDatasetReader(path))
    assert len(found.rows) == 71
    (failure,) = found.failures
    assert error in failure.error
    assert failure.address == f"{path}:{70 * 4 * 512}"
    assert failure.rows == 1
    assert failure.damaged_file is None


def test_a_row_of_too_many_members_and_columns_that_only_a_few_names_make(tmp_path, read_all):
    crowd = [(f"a.x{number}", b"") for number in range(100)]
    path = write_tar(tmp_path / "a.tar", [*sample("b", jpg="x"), *crowd])
    found = read_all(WebDatasetReader(path, members={f"x{number}": f"x{number}" for number in range(100)}))
    assert [failure.error for failure in found.failures] == ["member 'a.x64' is one of more than 64 with this key"]
    late = [row for number in range(70) for row in sample(f"{number}", jpg="x")]
    path = write_tar(tmp_path / "b.tar", [*late, ("z.rare", b"x"), ("y.left.jpg", b"x")])
    found = read_all(WebDatasetReader(path))
    assert [failure.error for failure in found.failures] == [
        'member \'z.rare\' has an extension that the first rows do not have; declare it: members={"rare": "rare"}',
        'member \'y.left.jpg\' has an extension that the first rows do not have; declare it: members={"left.jpg": "left"}',
    ]
    found = read_all(WebDatasetReader(path, members={"rare": "rare", "left.jpg": "left"}))
    assert not found.failures
    dates = [(f"{number}.2020.01.{number}.jpg", b"") for number in range(65)]
    with pytest.raises(SourceError, match="a key ends at the first dot"):
        WebDatasetReader(write_tar(tmp_path / "c.tar", dates)).layout(10**6)


def test_one_column_is_not_text_and_media(tmp_path, read_all):
    path = write_tar(tmp_path / "a.tar", sample("a", left_jpg="x") + sample("b", left_txt="y"))
    (failure,) = read_all(WebDatasetReader(path)).failures
    assert "is text, and column `left` holds media" in failure.error


# ------------------------------------------------------------------------------------------------- damaged and compressed


def test_a_truncated_archive_is_read_up_to_its_damage(shard, tmp_path, read_all):
    data, whole = shard.read_bytes(), read_all(WebDatasetReader(shard))
    for cut in range(512, 12 * 3584, 977):
        path = tmp_path / "cut.tar"
        path.write_bytes(data[:cut])
        found = read_all(WebDatasetReader(path))
        assert [row["caption"] for row in found.rows] == [f"cat {number}" for number in range((cut - 512) // 3584)], cut
        assert [row["url"] for row in found.rows] == [row["url"] for row in whole.rows[: len(found.rows)]]
        assert found.failures[-1].damaged_file == str(path)
        assert "truncated" in found.failures[-1].error


def test_an_archive_that_is_none_does_not_stop_the_others(shard, tmp_path, read_all):
    (shard.parent / "00001.tar").write_bytes(b"this is a text file" * 100)
    (shard.parent / "00002.tar").write_bytes(b"")
    (shard.parent / "00003.tar").write_bytes(b"\0" * 10240)
    found = read_all(WebDatasetReader(shard.parent))
    assert len(found.rows) == 12
    assert [Path(path).name for path in found.layout.damaged_files] == ["00001.tar"]
    with pytest.raises(DamagedFile, match="is not a tar archive"):
        WebDatasetReader(shard.parent / "00001.tar").layout(10**6)


@pytest.mark.parametrize("codec", ["gz", "zst", "bz2", "xz", "lz4"])
def test_rows_of_a_compressed_archive_hold_their_media(codec, shard, compress, read_all, tmp_path):
    path = tmp_path / f"a.tar.{codec}"
    path.write_bytes(compress(codec, shard.read_bytes()))
    found = read_all(WebDatasetReader(path), blocksize=100)
    plain = read_all(WebDatasetReader(shard))
    assert len(found.layout.partitions) == 1
    assert found.rows[3]["image"] == {"bytes": b"\xff\xd8" + b"\x03" * 900, "path": "0003.jpg"}
    assert [{**row, "image": 0} for row in found.rows] == [{**row, "image": 0} for row in plain.rows]
    assert [address.rpartition(":")[2] for address in found.addresses] == [
        a.rpartition(":")[2] for a in plain.addresses
    ]


def test_tgz_truncated_and_corrupt(shard, tmp_path, read_all):
    data = gzip.compress(shard.read_bytes(), mtime=0)
    path = tmp_path / "a.tgz"
    path.write_bytes(data)
    assert len(read_all(WebDatasetReader(path)).rows) == 12
    path.write_bytes(data[: len(data) // 2])
    found = read_all(WebDatasetReader(path))
    assert 0 < len(found.rows) < 12
    assert found.failures[-1].damaged_file == str(path)
    path.write_bytes(data[:-6] + b"\0\0" + data[-4:])  # the checksum
    found = read_all(WebDatasetReader(path))
    assert found.rows == []
    assert "none of its rows can be trusted" in found.failures[-1].error
    assert len(read_all(WebDatasetReader(path, on_damage="keep")).rows) == 12


@pytest.mark.slow
def test_a_member_that_expands_to_gigabytes_fails_alone(tmp_path):
    bomb = tar_bytes(
        [("a.jpg", b"small"), ("b.jpg", b"\0" * 120_000_000), ("c.txt", b"\0" * 120_000_000), ("d.jpg", b"x")]
    )
    (tmp_path / "bomb.tar.gz").write_bytes(gzip.compress(bomb, compresslevel=1))
    del bomb
    report = Pipeline(WebDatasetReader(tmp_path / "bomb.tar.gz"), load).run(
        memory="512MB", workers=1, max_failed="100%"
    )
    assert (report.read, report.kept, report.failed) == (4, 2, 2)


@settings(max_examples=60)
@given(st.integers(0, 10**9), st.binary(min_size=1, max_size=40), st.integers(0, 3))
def test_any_damage_gives_rows_or_failures(tmp_path_factory, read_all, at, noise, cut):
    rows = [row for number in range(6) for row in sample(f"{number}", jpg=bytes(600), txt="t", json='{"n": 1}')]
    data = bytearray(tar_bytes(rows))
    at %= 6 * 2560
    data[at : at + len(noise)] = noise
    path = tmp_path_factory.mktemp("noise") / "a.tar"
    path.write_bytes(data if cut else data[:at])
    try:
        found = read_all(WebDatasetReader(path, blocksize="3kB"))
    except (DamagedFile, SourceError):
        return
    keys = {row["__key__"] for row in found.rows}
    if len(keys & {str(number) for number in range(6)}) < 6 and cut:
        assert found.failures or len(found.rows) >= 6


# ------------------------------------------------------------------------------------------------------- around the reader


def test_the_layout_of_img2dataset_is_read_as_it_is(tmp_path):
    import pyarrow.parquet as pq

    from tamis.recipes.paths import reader_step, writer_step
    from tamis.sources.files import detect_format

    for number in range(2):
        rows = sample(
            f"{number:05d}0000", jpg="x", txt="a cat", json='{"key": "0", "caption": "a cat", "status": "success"}'
        )
        write_tar(tmp_path / f"{number:05d}.tar", rows)
        pq.write_table(pa.table({"key": ["0"], "url": ["u"]}), tmp_path / f"{number:05d}.parquet")
        (tmp_path / f"{number:05d}_stats.json").write_text("{}")
    assert detect_format(tmp_path) == "tar"
    step = reader_step([str(tmp_path)], None)
    assert step == ("web_dataset_reader", {"file_paths": str(tmp_path)})
    assert writer_step("out", None, step) == ("web_dataset_writer", {"path": "out"})
    rows = Pipeline(WebDatasetReader(tmp_path)).collect(executor="inline").to_pylist()
    assert [(row["__key__"], row["caption"], row["status"]) for row in rows] == [
        ("000000000", "a cat", "success"), ("000010000", "a cat", "success"),
    ]  # fmt: skip
    assert "json_caption" not in rows[0]
    assert Pipeline(ParquetReader(tmp_path)).collect(executor="inline").num_rows == 2
    (tmp_path / "other.jsonl").write_text("{}\n")
    with pytest.raises(SourceError, match="several formats"):
        detect_format(tmp_path)


def test_files_beside_an_archive_are_not_left_out_without_a_word(tmp_path):
    from tamis.sources.files import detect_format

    write_tar(tmp_path / "a.tar", sample("1", jpg=b"one"))
    for name in ("2.png", "3.png"):
        (tmp_path / name).write_bytes(b"two")
    with pytest.raises(SourceError, match="several formats: image, tar") as error:
        detect_format(tmp_path)
    assert error.value.hint == "select the files of one format with a glob, for example *.jpg"


def test_paths_may_have_ranges(tmp_path, read_all):
    for number in (8, 9, 10):
        write_tar(tmp_path / f"{number:03d}.tar", sample(f"{number}", jpg="x"))
    keys = [row["__key__"] for row in read_all(WebDatasetReader(f"{tmp_path}/{{009..010}}.tar")).rows]
    assert keys == ["9", "10"]
    with pytest.raises(SourceError, match=r"011\.tar does not exist"):
        WebDatasetReader(f"{tmp_path}/{{008..011}}.tar").layout(10**6)


@pytest.mark.filterwarnings("ignore:unclosed file")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_rows_are_those_of_the_webdataset_package(shard):
    import webdataset

    theirs = list(webdataset.WebDataset(str(shard), shardshuffle=False))
    ours = rows_of(WebDatasetReader(shard))
    assert [(row["__key__"], row["jpg"], row["txt"].decode()) for row in theirs] == [
        (row["__key__"], row["image"], row["caption"]) for row in ours
    ]


def test_archives_in_an_object_store_are_read_in_one_pass(shard, s3_server):
    import s3fs

    system = s3fs.S3FileSystem(**s3_server.storage_options)
    system.put_file(str(shard), f"{s3_server.url[5:]}/shards/00000.tar")
    source = WebDatasetReader(f"{s3_server.url}/shards/", storage_options=s3_server.storage_options)
    rows = rows_of(source)
    assert [row["image"] for row in rows] == [b"\xff\xd8" + bytes([number]) * 900 for number in range(12)]
    assert [row["caption"] for row in rows] == [f"cat {number}" for number in range(12)]


def test_the_bytes_that_rows_refer_to_are_counted_as_read(shard):
    for source, size in ((WebDatasetReader(shard), 902), (ArchiveReader(str(shard), names=["*.jpg"]), 902)):
        report = Pipeline(source, lambda row: True).run(executor="inline")
        assert report.read == 12
        assert 12 * size < report.num_bytes < 12 * size + 4000
