"""Reading WARC, WET, WAT and ARC files: real ones, large ones in pieces, and damaged ones."""

import bz2
import gzip
import sys
import tracemalloc
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from scripts.fetch_pages import fetch
from tamis import ParquetWriter, Pipeline
from tamis.batch import Failure
from tamis.errors import DamagedFile, ParameterError
from tamis.operators import Piece
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


def test_plain_text_is_read_wherever_it_is_in_a_crawl(tmp_path):
    plain = warc_record("response", reply(b"a plain text", "text/plain"), number=99)
    (tmp_path / "a.warc.gz").write_bytes(packed([*(page(number) for number in range(40)), plain]))
    *pages, last = rows_of(tmp_path / "a.warc.gz")
    assert (last["text"], last["html"]) == ("a plain text", None)
    assert all(row["html"] and row["text"] is None for row in pages)


@pytest.mark.parametrize("records", [["request"], ["warcinfo"], ["response", "request"]])
def test_requests_and_descriptions_that_are_read_have_their_content(tmp_path, records):
    blocks = {kind: f"the {kind}".encode() for kind in ("request", "warcinfo")}
    others = [warc_record(kind, block, content_type="application/http") for kind, block in blocks.items()]
    (tmp_path / "a.warc.gz").write_bytes(packed([*(page(number) for number in range(40)), *others]))
    found = {row["metadata"] for row in rows_of(tmp_path / "a.warc.gz", records=records) if row["type"] != "response"}
    assert found == {f"the {records[-1]}"}


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
        (reply(b"2026\n" + BODY.encode(), Transfer_Encoding="chunked"), f"2026\n{BODY}"),
        (reply(b"5\r\n" + BODY.encode(), Transfer_Encoding="chunked"), f"5\r\n{BODY}"),
        (reply(b"0\r\n\r\n" + BODY.encode(), Transfer_Encoding="chunked"), f"0\r\n\r\n{BODY}"),
        (reply(b"2026\r\nyears", Transfer_Encoding="chunked"), "2026\r\nyears"),
        (reply(b"3\r\n<p>\r\nface\r\n<hr>", Transfer_Encoding="chunked"), "<p><hr>"),  # cut off
        (reply(b"face\r\n<hr>", Transfer_Encoding="chunked"), "<hr>"),
        (reply(b"face\r\n" + zlib.compress(b"<hr>"), Transfer_Encoding="chunked", Content_Encoding="deflate"), "<hr>"),
        (reply(b"4\r\n<hr>\r", Transfer_Encoding="chunked"), "<hr>"),
        (reply(b"4\r\n<hr>\r\n1", Transfer_Encoding="chunked"), "<hr>"),
        (reply(b"4\r\n<hr>\r\n0\r\nA: b\r\n\r\n", Transfer_Encoding="chunked"), "<hr>"),
        (reply(b"0\r\n\r\n", Transfer_Encoding="chunked"), ""),
        (reply(gzip.compress(BODY.encode()), Content_Encoding="gzip"), BODY),
        (reply(gzip.compress(b"<p>gr") + gzip.compress("ün</p>".encode()), Content_Encoding="gzip"), BODY),
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
        (reply(b'<meta charset="utf-16">' + BODY.encode("cp1252")), f'<meta charset="utf-16">{BODY}'),
        (reply(BODY.encode(), "text/html; charset=iso-8859-1"), BODY),  # it is UTF-8, whatever it says
        (reply(b"\xa0" + "grün für Öl".encode(), "text/html; charset=utf-8"), "\N{REPLACEMENT CHARACTER}grün für Öl"),
        (reply(b"PK\x03\x04\x14\0\0\0 a zip file that calls itself HTML"), None),
        (reply(b"\x89PNG", "image/png"), None),
    ],
    ids=[
        "chunked", "chunked, decoded", "a number", "a size by chance", "a zero", "a year", "cut off", "cut in the first chunk",
        "cut off and deflated", "cut off in a line end", "cut off in a size", "a trailer", "no content",
        "gzip", "gzip members", "zlib", "deflate", "brotli", "zstd", "brotli, decoded",
        "latin-1", "utf-16", "charset in the page", "unknown charset", "impossible charset", "wrong charset",
        "a wrong byte", "zip", "png",
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


def arc_record(number, length=None):
    block = reply(b"<p>page</p>" * 40)
    line = f"http://example.org/{number} 192.0.2.1 20140216050221 text/html {len(block) if length is None else length}"
    return line.encode() + b"\n" + block + b"\n"


@pytest.mark.parametrize("junk", [bytes(300), b"\0", b"some text without a line end", b"\xff" * 300_000])
def test_records_on_both_sides_of_damage_are_read(tmp_path, junk):
    pages = [page(number) for number in range(5)]
    for name, pack in (("a.warc", bytes), ("a.warc.gz", gzip.compress)):  # one member
        (tmp_path / name).write_bytes(pack(b"".join([*pages[:2], junk, *pages[2:4], junk, pages[4], junk])))
        assert failures(tmp_path / name, tmp_path / f"out-{name}") == (5, 3)


@pytest.mark.parametrize("first_line", [b"WARC/1.0\r\n", b"WARC/0.18\r\n", b"WARC/1.1\r\r\n"])
def test_damage_of_the_lines_between_records_costs_the_record_before_them(tmp_path, first_line):
    after = page(2).replace(b"WARC/1.0\r\n", first_line)
    (tmp_path / "a.warc").write_bytes(page(0) + page(1)[:-4] + bytes(4) + after + page(3))
    assert failures(tmp_path / "a.warc", tmp_path / "out") == (3, 1)


def test_damage_of_an_arc_file_costs_one_record(tmp_path):
    damaged = [arc_record(0), arc_record(1)[:-1] + bytes(100), arc_record(2), arc_record(3, length=100)]
    (tmp_path / "a.arc").write_bytes(b"".join([*damaged, arc_record(4)]))
    assert failures(tmp_path / "a.arc", tmp_path / "out") == (3, 2)


def test_damage_after_a_body_that_cannot_be_decoded_is_a_failure_of_its_own(tmp_path):
    bad = warc_record("response", reply(b"\x1f\x8b no gzip", Content_Encoding="gzip"))
    for name, pack in (("a.warc", bytes), ("a.warc.gz", gzip.compress)):
        (tmp_path / name).write_bytes(pack(page(0) + bad + bytes(100) + page(2)))
        assert failures(tmp_path / name, tmp_path / f"out-{name}") == (2, 2)
    (tmp_path / "b.warc.gz").write_bytes(gzip.compress(page(0) + bad + page(2) * 100)[:-500])
    kept, failed = failures(tmp_path / "b.warc.gz", tmp_path / "out-b")
    assert (kept > 2, failed) == (True, 2)


@pytest.mark.skipif(sys.platform != "linux", reason="counts the bytes that a process reads")
@pytest.mark.parametrize(("suffix", "pack"), [(".warc", b"".join), (".warc.gz", packed)])
def test_records_of_an_impossible_length_are_not_read_to_the_end_of_the_file(tmp_path, suffix, pack):
    body = np.random.default_rng(0).bytes(150_000)
    wrong = [warc_record("response", reply(body), length=length) for length in (10**15, 10_000_000)]
    path = tmp_path / f"a{suffix}"
    path.write_bytes(pack([page(0), *wrong * 100, page(1)]))  # 30 MB
    before = bytes_read()
    found = list(WarcReader(path).rows(Piece(str(path), 0, path.stat().st_size), None, None))
    assert [each.values["url"][-1] for each in found if not isinstance(each, Failure)] == ["0", "1"]
    assert len(found) == 202
    assert bytes_read() - before < 10 * path.stat().st_size


def bytes_read():
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def test_a_layout_reads_only_the_headers_of_pages(tmp_path):
    (tmp_path / "a.warc.gz").write_bytes(packed([warc_record("response", reply(b"x" * 50_000_000)), page(1)]))
    source = WarcReader(tmp_path / "a.warc.gz")
    tracemalloc.start()
    try:
        assert "html" in source.layout(10**9).schema.names
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


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
