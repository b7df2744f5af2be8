"""Reading WARC, WET, WAT and ARC files: real ones, large ones in pieces, and damaged ones."""

import bz2
import gzip
import zlib
from collections import Counter

import pyarrow as pa
import pytest

from scripts.fetch_pages import fetch
from tamis import ParquetWriter, Pipeline
from tamis.errors import DamagedFile, ParameterError
from tamis.sources.warc import RECORD_TYPES, WarcReader
from tests.web.crawls import packed, page, reply, warc_record


@pytest.fixture(scope="session")
def crawls():
    return fetch("crawls")


def rows_of(path, **parameters):
    return Pipeline(WarcReader(path, **parameters)).collect(executor="inline", max_failed="100%").to_pylist()


def failures(path, output, **parameters):
    report = Pipeline(WarcReader(path, **parameters), ParquetWriter(output)).run(executor="inline", max_failed="100%")
    assert report.read == report.kept + report.failed
    return report.kept, report.failed


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("iana.warc.gz", {"request": 171, "revisit": 123, "response": 48, "warcinfo": 1}),
        ("dupes.warc.gz", {"request": 12, "revisit": 9, "response": 3, "warcinfo": 1}),
        ("example.warc", {"response": 2, "warcinfo": 1, "request": 1, "revisit": 1}),
        ("example-extra.warc", {"response": 2, "request": 2, "revisit": 2}),
        ("example-wget-1-14.warc.gz", {"resource": 3, "warcinfo": 1, "request": 1, "response": 1}),
        ("missing-status-text.warc", {"response": 1}),  # its lines end with two carriage returns
        ("post-test.warc.gz", {"response": 3, "request": 3}),
        ("example.arc.gz", {"response": 1, "warcinfo": 1}),
        ("example.arc", {"response": 1, "warcinfo": 1}),
    ],
)
def test_real_archives_have_the_records_that_other_readers_find(crawls, name, types):
    rows = rows_of(crawls / name, records=list(RECORD_TYPES))
    assert Counter(row["type"] for row in rows) == types


def test_a_page_has_its_columns(crawls):
    (row,) = [row for row in rows_of(crawls / "example2.warc.gz") if row["status"] == 200]
    assert (row["url"], row["mime"], row["charset"], row["date"][:4]) == (
        "http://example.com/",
        "text/html",
        "utf-8",
        "2016",
    )
    assert row["html"].startswith("<!doctype html>")
    assert row["id"].startswith("<urn:uuid:")


def test_a_revisit_says_which_record_has_the_body(crawls):
    (row,) = rows_of(crawls / "example-url-agnostic-revisit.warc.gz", records=["revisit"])
    assert (row["html"], row["refers_to"]) == (None, "<urn:uuid:c0b8a812-1a11-4cd1-9189-58bc8eb6457f>")


def test_arc_records_have_a_date_and_an_id(crawls):
    (row,) = rows_of(crawls / "example.arc")
    assert (row["date"], row["id"], row["status"]) == ("2014-02-16T05:02:21Z", "example.arc:151", 200)


def test_records_of_wet_and_wat_have_columns_of_their_own(tmp_path):
    (tmp_path / "a.warc.wet.gz").write_bytes(packed([warc_record("conversion", "für alle".encode())]))
    (tmp_path / "a.warc.wat.gz").write_bytes(
        packed(
            [
                warc_record("metadata", b'{"a": 1}'),
                warc_record("metadata", b"x: 1", content_type="application/warc-fields"),
            ]
        )
    )
    assert [row["text"] for row in rows_of(tmp_path / "a.warc.wet.gz")] == ["für alle"]
    assert [row["metadata"] for row in rows_of(tmp_path / "a.warc.wat.gz")] == ['{"a": 1}']


@pytest.mark.parametrize(("suffix", "pack"), [(".warc.gz", packed), (".warc", b"".join), (".warc.bz2", None)])
def test_pieces_of_a_file_have_the_rows_of_the_whole(tmp_path, suffix, pack):
    records = [page(number) for number in range(200)]
    path = tmp_path / f"a{suffix}"
    path.write_bytes(pack(records) if pack else b"".join(map(bz2.compress, records)))
    source = WarcReader(path)
    pieces = [piece for partition in source.layout(20_000).partitions for piece in partition.pieces]
    assert len(pieces) > 5
    found = [row for piece in pieces for row in source.rows(piece, None, None)]
    (whole,) = source.layout(10**9).partitions
    assert found == list(source.rows(whole.pieces[0], None, None))
    assert [row.values["url"] for row in found] == [f"https://example.org/{number}" for number in range(200)]


def test_members_that_do_not_begin_with_a_record_are_not_split(tmp_path):
    data = b"".join(page(number) for number in range(200))
    path = tmp_path / "a.warc.gz"
    path.write_bytes(b"".join(gzip.compress(data[at : at + 5000]) for at in range(0, len(data), 5000)))
    assert len(WarcReader(path).layout(50_000).partitions) == 1
    assert len(rows_of(path, blocksize="50kB")) == 200


BODY = "<p>grün</p>"


@pytest.mark.parametrize(
    ("block", "html"),
    [
        (reply(b"5\r\n<p>gr\r\n7;x=1\r\n\xc3\xbcn</p>\r\n0\r\n\r\n", Transfer_Encoding="chunked"), BODY),
        (reply(BODY.encode(), Transfer_Encoding="chunked"), BODY),  # decoded already
        (reply(gzip.compress(BODY.encode()), Content_Encoding="gzip"), BODY),
        (reply(zlib.compress(BODY.encode()), Content_Encoding="deflate"), BODY),
        (reply(zlib.compress(BODY.encode())[2:-4], Content_Encoding="deflate"), BODY),
        (reply(bytes(pa.compress(BODY.encode(), "brotli")), Content_Encoding="br"), BODY),
        (reply(bytes(pa.compress(BODY.encode(), "zstd")), Content_Encoding="zstd"), BODY),
        (reply(BODY.encode(), Content_Encoding="br"), BODY),
        (reply(BODY.encode("latin-1"), "text/html; charset=ISO-8859-1"), BODY),
        (reply(BODY.encode("utf-16")), BODY),
        (reply(b'<meta charset="windows-1252">' + BODY.encode("cp1252")), f'<meta charset="windows-1252">{BODY}'),
        (
            reply("<p>Привет, это русский текст</p>".encode("cp1251"), "text/html; charset=klingon"),
            "<p>Привет, это русский текст</p>",
        ),
        (reply(BODY.encode(), "text/html; charset=iso-8859-1"), BODY),  # it is UTF-8, whatever it says
        (reply(b"PK\x03\x04\x14\0\0\0 a zip file that calls itself HTML"), None),
        (reply(b"\x89PNG", "image/png"), None),
    ],
    ids=[
        "chunked", "chunked, decoded", "gzip", "zlib", "deflate", "brotli", "zstd", "brotli, decoded", "latin-1", "utf-16",
        "charset in the page", "unknown charset", "wrong charset", "zip", "png",
    ],
)  # fmt: skip
def test_bodies_are_decoded(tmp_path, block, html):
    (tmp_path / "a.warc").write_bytes(warc_record("response", block))
    (row,) = rows_of(tmp_path / "a.warc")
    assert row["html"] == html


def test_raw_bodies_of_any_type_can_be_kept(tmp_path):
    (tmp_path / "a.warc").write_bytes(warc_record("response", reply(b"\x89PNG", "image/png")))
    (row,) = rows_of(tmp_path / "a.warc", raw=True)
    assert (row["content"], row["html"], row["mime"]) == (b"\x89PNG", None, "image/png")


def test_damage_costs_one_record(tmp_path):
    members = [gzip.compress(page(number), mtime=0) for number in range(6)]
    members[1] = members[1][:300]  # cut off, and the next one follows
    members[3] = members[3][:-6] + bytes([members[3][-6] ^ 1]) + members[3][-5:]  # a wrong checksum
    path = tmp_path / "a.warc.gz"
    path.write_bytes(b"".join(members)[:-50])
    assert failures(path, tmp_path / "out") == (3, 3)


def test_a_wrong_length_costs_one_record(tmp_path):
    wrong = [page(0), warc_record("response", reply(b"x" * 500), length=100), page(2)]
    wrong += [warc_record("response", reply(b"y"), length=10**15), page(4), warc_record("response", b"", length=10**20)]
    for name, pack in (("a.warc", b"".join), ("a.warc.gz", packed)):
        (tmp_path / name).write_bytes(pack([*wrong, page(6)]))
        assert failures(tmp_path / name, tmp_path / f"out-{name}") == (4, 3)


def test_a_body_that_expands_beyond_the_memory_fails(tmp_path):
    bomb = reply(gzip.compress(bytes(100_000_000)), Content_Encoding="gzip")
    (tmp_path / "a.warc.gz").write_bytes(packed([page(0), warc_record("response", bomb), page(2)]))
    report = Pipeline(WarcReader(tmp_path / "a.warc.gz"), ParquetWriter(tmp_path / "out")).run(
        executor="inline", memory="500MB", max_failed="100%"
    )
    assert (report.kept, report.failed) == (2, 1)


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    (tmp_path / "a.warc").write_text("hello\n" * 100)
    with pytest.raises(DamagedFile, match="not a WARC or ARC file"):
        rows_of(tmp_path / "a.warc")
    with pytest.raises(ParameterError, match="selects no type"):
        WarcReader(tmp_path / "a.warc", records=[]).check()
