"""Which files a source reads, and what it says when it cannot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tamis.errors import SourceError
from tamis.formats import codec_of, format_of
from tamis.sources.files import detect_format, fingerprint, glob_matcher, list_files


def make(folder: Path, *names: str, content: bytes = b"{}\n") -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def names(folder: Path, files: list) -> list[str]:
    return [os.path.relpath(file.path, folder) for file in files]


def test_a_folder_is_walked_in_string_order_and_hidden_names_are_passed_over(tmp_path):
    make(
        tmp_path, "b.jsonl", "a/z.jsonl.gz", "a10.jsonl", "a9.jsonl", ".tamis/x.jsonl", ".cache/y.jsonl", "_part.jsonl"
    )
    assert names(tmp_path, list_files(tmp_path, "jsonl")) == ["a/z.jsonl.gz", "a10.jsonl", "a9.jsonl", "b.jsonl"]


def test_a_folder_gives_only_files_of_the_format(tmp_path):
    make(tmp_path, "a.jsonl", "b.parquet", "README.md", "c.json.zst", "d.parquet.gz")
    assert names(tmp_path, list_files(tmp_path, "jsonl")) == ["a.jsonl", "c.json.zst"]


def test_a_named_file_is_taken_whatever_its_extension(tmp_path):
    make(tmp_path, "dump.data")
    assert names(tmp_path, list_files(str(tmp_path / "dump.data"), "jsonl")) == ["dump.data"]


def test_globs_stay_within_a_folder_and_two_stars_cross_folders(tmp_path):
    make(tmp_path, "a.jsonl", "x/b.jsonl", "x/y/c.jsonl", "x/y/d.txt")
    assert names(tmp_path, list_files(f"{tmp_path}/*.jsonl", "jsonl")) == ["a.jsonl"]
    assert names(tmp_path, list_files(f"{tmp_path}/*/*.jsonl", "jsonl")) == ["x/b.jsonl"]
    assert names(tmp_path, list_files(f"{tmp_path}/**/*.jsonl", "jsonl")) == ["a.jsonl", "x/b.jsonl", "x/y/c.jsonl"]
    assert names(tmp_path, list_files(f"{tmp_path}/x/y/[cd].*", "jsonl")) == ["x/y/c.jsonl", "x/y/d.txt"]


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("a/*.x", "a/b.x", True),
        ("a/*.x", "a/b/c.x", False),
        ("a/**", "a/b/c.x", True),
        ("a/**/c.x", "a/c.x", True),
        ("a/?.x", "a/bb.x", False),
        ("a/[!b].x", "a/b.x", False),
        ("a.b/*.x", "aXb/c.x", False),
        ("*.x", "b.x", True),
    ],
)
def test_glob_patterns(pattern, path, matches):
    assert bool(glob_matcher(pattern)(path)) == matches


def test_relative_globs_and_a_file_name_with_brackets(tmp_path, monkeypatch):
    make(tmp_path, "in/a.jsonl", "odd[1].jsonl")
    monkeypatch.chdir(tmp_path)
    assert [file.path for file in list_files("in/*.jsonl", "jsonl")] == ["in/a.jsonl"]
    assert [file.path for file in list_files("*/*.jsonl", "jsonl")] == ["in/a.jsonl"]
    assert [file.path for file in list_files("odd[1].jsonl", "jsonl")] == ["odd[1].jsonl"]


def test_arguments_keep_their_order(tmp_path):
    make(tmp_path, "b.jsonl", "a.jsonl")
    assert names(tmp_path, list_files([tmp_path / "b.jsonl", str(tmp_path / "a.jsonl")], "jsonl")) == [
        "b.jsonl",
        "a.jsonl",
    ]


def test_a_manifest_names_paths_relative_to_itself(tmp_path):
    make(tmp_path, "data/b.jsonl", "data/a.jsonl")
    (tmp_path / "list.txt").write_text("# the good ones\ndata/b.jsonl\n\n" + str(tmp_path / "data/a.jsonl") + "\n")
    assert names(tmp_path, list_files(f"@{tmp_path}/list.txt", "jsonl")) == ["data/b.jsonl", "data/a.jsonl"]


def test_a_manifest_that_names_nothing_or_is_missing_says_so(tmp_path):
    (tmp_path / "list.txt").write_text("# nothing\n")
    with pytest.raises(SourceError, match="is empty"):
        list_files(f"@{tmp_path}/list.txt", "jsonl")
    with pytest.raises(SourceError, match=r"list of paths cannot be read: .*missing.txt does not exist"):
        list_files(f"@{tmp_path}/missing.txt", "jsonl")


def test_the_same_file_twice_is_refused(tmp_path):
    make(tmp_path, "a.jsonl")
    with pytest.raises(SourceError, match="listed twice"):
        list_files([tmp_path, f"{tmp_path}/*.jsonl"], "jsonl")


def test_a_folder_of_another_format_names_the_reader_that_fits(tmp_path):
    make(tmp_path, "a.parquet", "b.parquet")
    with pytest.raises(SourceError, match=r"2 x .parquet") as caught:
        list_files(tmp_path, "jsonl")
    assert caught.value.hint == "read it with parquet_reader"


def test_a_folder_of_archives_names_the_reader_of_documents_in_them(tmp_path):
    make(tmp_path, "a.tar", "b.zip")
    with pytest.raises(SourceError, match=r"has no files with the suffix \.pdf") as caught:
        list_files(tmp_path, "document")
    assert caught.value.hint == "read it with archive_reader"


def test_an_empty_folder_a_missing_path_and_no_match_are_errors_with_hints(tmp_path, monkeypatch):
    make(tmp_path, "crawl.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no files") as caught:
        list_files(tmp_path / "empty", "jsonl")
    assert "empty" in (caught.value.hint or "")
    with pytest.raises(SourceError, match="does not exist") as caught:
        list_files(tmp_path / "crawl.json", "jsonl")
    assert caught.value.hint == "did you mean `crawl.jsonl`?"
    with pytest.raises(SourceError, match="does not exist") as caught:
        list_files(tmp_path / "web.jsonl", "jsonl")
    assert caught.value.hint == f"nothing in {tmp_path} has a similar name", "only the ending is similar"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match="does not exist") as caught:
        list_files("web.jsonl", "jsonl")
    assert caught.value.hint == f"nothing in the current folder ({tmp_path}) has a similar name"
    with pytest.raises(SourceError, match="no file matches"):
        list_files(f"{tmp_path}/*.zst", "jsonl")
    with pytest.raises(SourceError, match="no path"):
        list_files([], "jsonl")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_an_error(tmp_path):
    (tmp_path / "locked").mkdir(mode=0)
    with pytest.raises(SourceError, match="permission denied"):
        list_files(tmp_path / "locked", "jsonl")


def test_formats_and_codecs_are_known_by_name():
    assert format_of("a/b.JSONL.GZ") == "jsonl"
    assert format_of("b.tsv.xz") == "csv"
    assert format_of("b.gz") is None
    assert {format_of(f"a{s}") for s in (".avif", ".j2k", ".qoi", ".apng")} == {"image"}
    assert [codec_of(f"x.jsonl{s}") for s in ("", ".gz", ".zst", ".bz2", ".xz", ".lz4")] == [
        None, "gzip", "zstd", "bz2", "xz", "lz4",
    ]  # fmt: skip


def test_text_files_beside_other_data_are_not_data(tmp_path):
    make(
        tmp_path, "hub/README.md", "hub/LICENSE.txt", "hub/data/a.jsonl", "photos/a.jpg", "photos/a.txt", "photos/b.png"
    )
    assert detect_format(tmp_path / "hub") == "jsonl"
    assert detect_format(tmp_path / "photos") == "image"
    make(tmp_path, "books/README.md", "books/a.txt", "books/b.txt", "books/cover.jpg", "mixed/a.txt", "mixed/a.jsonl")
    assert detect_format(tmp_path / "books") == "text"
    with pytest.raises(SourceError, match="several formats: jsonl, text"):
        detect_format(tmp_path / "mixed")


def test_detect_format_names_one_format_or_explains(tmp_path):
    make(tmp_path, "one/a.jsonl.zst", "one/b.jsonl", "two/a.csv", "two/b.parquet", "none/a.xyz")
    assert detect_format(tmp_path / "one") == "jsonl"
    with pytest.raises(SourceError, match="several formats: csv, parquet"):
        detect_format(tmp_path / "two")
    with pytest.raises(SourceError, match=r"x \.xyz"):
        detect_format(tmp_path / "none" / "a.xyz")


def test_a_fingerprint_changes_with_content_and_time(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x" * 20_000)
    before = fingerprint(list_files(path, "jsonl")[0])
    status = path.stat()
    path.write_bytes(b"x" * 19_999 + b"y")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert fingerprint(list_files(path, "jsonl")[0]) != before
    path.write_bytes(b"x" * 20_000)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert fingerprint(list_files(path, "jsonl")[0]) == before
    os.utime(path, ns=(1, 1))
    assert fingerprint(list_files(path, "jsonl")[0]) != before


def test_other_file_systems_are_listed_like_folders():
    import fsspec

    memory = fsspec.filesystem("memory")
    for name in ("crawl/b.jsonl", "crawl/a.jsonl", "crawl/.tamis/c.jsonl", "crawl/d.txt"):
        memory.pipe(f"/files-test/{name}", b"{}\n")
    listed = [file.path for file in list_files("memory://files-test/crawl", "jsonl")]
    assert listed == ["memory:///files-test/crawl/a.jsonl", "memory:///files-test/crawl/b.jsonl"]
    assert [file.path for file in list_files("memory://files-test/**/*.jsonl", "jsonl")] == listed
    with pytest.raises(SourceError, match="does not exist"):
        list_files("memory://files-test/nowhere", "jsonl")


def test_a_name_that_is_not_utf8_is_an_error_with_the_name(tmp_path):
    make(tmp_path, "a.jsonl", os.fsdecode(b"b\xff.jsonl"))
    with pytest.raises(SourceError, match=r"b\\xff.jsonl' is not UTF-8"):
        list_files(tmp_path, "jsonl")
    assert names(tmp_path, list_files(f"{tmp_path}/[a-z].jsonl", "jsonl")) == ["a.jsonl"]


def test_a_link_to_a_folder_above_is_an_error_and_other_links_are_followed(tmp_path):
    make(tmp_path, "in/a.jsonl", "in/deep/b.jsonl", "other/c.jsonl")
    (tmp_path / "in" / "more").symlink_to(tmp_path / "other")
    assert names(tmp_path, list_files(tmp_path / "in", "jsonl")) == ["in/a.jsonl", "in/deep/b.jsonl", "in/more/c.jsonl"]
    (tmp_path / "in" / "deep" / "loop").symlink_to(tmp_path / "in")
    with pytest.raises(SourceError, match="again and again"):
        list_files(tmp_path / "in", "jsonl")
