"""Archives of documents: their members, those that are refused, and a pipeline over them in any division of the work."""

import gzip
import os
import random
import signal
import struct
import subprocess
import sys
import tarfile
import zipfile

import pyarrow.parquet as pq
import pytest

from tamis import ArchiveReader, ArxivReader, Batch, DocumentReader, ParquetWriter, Pipeline
from tamis.dedup.exact import ExactDedup
from tamis.errors import DamagedFile, ParameterError
from tamis.media import read_bytes
from tamis.recipes.load import load_recipe
from tamis.sources.documents import arxiv_id
from tamis.sources.files import detect_format
from tamis.web import DocumentExtract, LatexExtract
from tests.tars import special, tar_bytes, write_tar
from tests.web import make_documents as make


def contents(batch: Batch):
    return {"content": [None if data is None else bytes(data) for data in read_bytes(batch, "document")]}


def rows_of(source):
    return Pipeline(source, contents).collect(executor="inline", max_failed="100%").to_pylist()


def failures(source, output):
    report = Pipeline(source, ParquetWriter(output)).run(executor="inline", max_failed="100%", on_error="isolate")
    path = output / ".tamis" / "failed"
    return report, "\n".join(file.read_text() for file in path.iterdir()) if path.exists() else ""


def test_members_of_all_kinds_of_archives(tmp_path):
    members = {"a.html": b"<p>a", "b/c.pdf": b"%PDF", "empty.txt": b"", "ü.txt": b"x" * 5000}
    (tmp_path / "1.zip").write_bytes(
        make.packed({"folder/": b"", **members, "__MACOSX/._a.html": b"no"}, stored=["b/c.pdf"])
    )
    write_tar(tmp_path / "2.tar", list(members.items()))
    (tmp_path / "3.tar.gz").write_bytes(gzip.compress(tar_bytes(members.items())))
    rows = rows_of(ArchiveReader(tmp_path))
    assert [row["path"] for row in rows] == [*members] * 3
    assert [row["content"] for row in rows] == [*members.values()] * 3
    held = [row["document"]["bytes"] is not None for row in rows]
    assert held == [
        True,
        False,
        True,
        True,
        *[False] * 4,
        *[True] * 4,
    ]  # only what is stored as it is can be referred to
    assert [row["path"] for row in rows_of(ArchiveReader(tmp_path / "1.zip", names=["*.PDF"]))] == ["b/c.pdf"]


def test_documents_in_folders(tmp_path):
    for name in ("a.pdf", "b.docx", "sub/c.html", "d.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    rows = rows_of(DocumentReader(tmp_path))
    assert [row["content"] for row in rows] == [b"a.pdf", b"b.docx", b"sub/c.html"]
    assert detect_format([str(tmp_path / "a.pdf")]) == "document"


def test_a_large_archive_is_split_between_members(tmp_path):
    members = {f"{number}.txt": random.Random(number).randbytes(900) for number in range(50)}
    (tmp_path / "a.zip").write_bytes(make.packed(members, stored=list(members)[::2]))
    write_tar(tmp_path / "b.tar", list(members.items()))
    for name in ("a.zip", "b.tar"):
        source = ArchiveReader(tmp_path / name, blocksize="5kB")
        assert len(source.layout(0).partitions) > 5
        assert [row["content"] for row in rows_of(source)] == [*members.values()]
        assert [row["path"] for row in rows_of(ArchiveReader(tmp_path / name, limit=7, blocksize="3kB"))] == [*members][
            :7
        ]


def test_members_that_cannot_be_read_fail_and_others_do_not(tmp_path):
    names = ["good.txt", "../climbs.txt", "/absolute.txt", "a/../../b.txt", "link"]
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            info = zipfile.ZipInfo(name)
            info.external_attr = (0o120777 if name == "link" else 0o100644) << 16
            archive.writestr(info, b"/etc/passwd")
        archive.writestr("bomb.txt", bytes(3_000_000), zipfile.ZIP_DEFLATED)
        archive.writestr("large.txt", random.Random(1).randbytes(2_000_000))
        archive.writestr("wrong.txt", b"checksum" * 50)
        archive.writestr("last.txt", b"last")
    data = bytearray((tmp_path / "a.zip").read_bytes())
    place = data.rindex(b"wrong.txt") - 46  # in the directory
    data[place + 16] ^= 1
    (tmp_path / "a.zip").write_bytes(data)
    report, failed = failures(ArchiveReader(tmp_path / "a.zip", max_member_bytes="1500kB"), tmp_path / "out")
    assert (report.kept, report.failed) == (2, 7)
    for why in ("leads out", "symbolic link", "more than the 1,500,000", "does not match its checksum"):
        assert why in failed
    _, failed = failures(ArchiveReader(tmp_path / "a.zip"), tmp_path / "out2")
    assert "'bomb.txt' expands 1,0" in failed

    write_tar(
        tmp_path / "b.tar",
        [
            ("good.txt", b"x"),
            ("../climbs.txt", b"x"),
            ("/absolute.txt", b"x"),
            (special("link", tarfile.SYMTYPE, "/etc/passwd"), b""),
            (special("device", tarfile.CHRTYPE), b""),
            ("last.txt", b"x"),
        ],
    )
    report, failed = failures(ArchiveReader(tmp_path / "b.tar"), tmp_path / "out3")
    assert (report.kept, report.failed) == (2, 4)
    (tmp_path / "c.zip").write_bytes(make.packed({"good.txt": "x", "../climbs.txt": "x"}))
    for number, name in enumerate(("b.tar", "c.zip")):  # the same members are rows if only their names are read
        report, _ = failures(ArchiveReader(tmp_path / name, fields=["path"]), tmp_path / f"names-{number}")
        assert (report.kept, report.failed) == [(2, 4), (1, 1)][number]


def test_encrypted_and_truncated_archives(tmp_path):
    data = bytearray(make.packed({"a.txt": b"secret", "b.txt": b"open"}))
    data[6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    (tmp_path / "a.zip").write_bytes(data)
    report, failed = failures(ArchiveReader(tmp_path / "a.zip"), tmp_path / "out")
    assert (report.kept, report.failed) == (1, 1)
    assert "is encrypted" in failed
    (tmp_path / "b.zip").write_bytes(data[:-30])
    with pytest.raises(DamagedFile, match="no directory"):
        ArchiveReader(tmp_path / "b.zip").layout(10**6)
    (tmp_path / "c.tar").write_bytes(tar_bytes([("a.txt", b"x" * 600), ("b.txt", b"x" * 5000)])[:4000])
    report, failed = failures(ArchiveReader(tmp_path / "c.tar"), tmp_path / "out2")
    assert (report.kept, report.failed) == (1, 1)
    (tmp_path / "d.tar.gz").write_bytes(
        gzip.compress(tar_bytes([("a.txt", random.Random(1).randbytes(99_000))]))[:-5000]
    )
    report, failed = failures(ArchiveReader(tmp_path / "d.tar.gz"), tmp_path / "out3")
    assert (report.kept, report.failed) == (0, 1)
    (tmp_path / "e.zip").write_bytes(b"this is no archive" * 100)
    with pytest.raises(DamagedFile, match="is no zip or tar archive"):
        ArchiveReader(tmp_path / "e.zip").layout(10**6)


def test_members_that_overlap_are_a_bomb(tmp_path):
    one = make.packed({"a.bin": bytes(5_000_000)})
    start = one.index(b"PK\1\2")
    entry = one[start : one.index(b"PK\5\6")]
    count = 300
    end = b"PK\5\6" + struct.pack("<4H2IH", 0, 0, count, count, count * len(entry), start, 0)
    (tmp_path / "a.zip").write_bytes(one[:start] + entry * count + end)
    with pytest.raises(DamagedFile, match="more than compression can achieve"):
        ArchiveReader(tmp_path / "a.zip").layout(10**6)


@pytest.mark.parametrize("place", [2**33, 2**62, 2**63, 2**64 - 1])
def test_a_member_that_is_said_to_be_outside_of_the_file_fails_alone(tmp_path, place):
    data = make.packed({"good.txt": b"good", "bad.txt": b"bad"})
    entry = data.rindex(b"PK\1\2")
    head = bytearray(data[entry : entry + 46 + len("bad.txt")])
    head[30:32], head[42:46] = struct.pack("<H", 12), b"\xff" * 4
    changed = data[:entry] + head + struct.pack("<HHQ", 1, 8, place) + data[entry + len(head) :]
    end = changed.rindex(b"PK\5\6")
    length = struct.unpack_from("<I", changed, end + 12)[0] + 12
    (tmp_path / "in.zip").write_bytes(changed[: end + 12] + struct.pack("<I", length) + changed[end + 16 :])
    report, failed = failures(ArchiveReader(tmp_path / "in.zip"), tmp_path / "out")
    assert (report.kept, report.failed) == (1, 1)
    assert "bad.txt' is not where the directory says" in failed


def test_zip64_and_a_program_before_the_archive(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("big.txt", "w", force_zip64=True) as member:
            member.write(b"x" * 1000)
        archive.writestr("b.txt", b"y")
    data = path.read_bytes()
    (tmp_path / "b.zip").write_bytes(b"PK\3\4 a program that unpacks itself" + data)
    for name in ("a.zip", "b.zip"):
        assert [row["content"] for row in rows_of(ArchiveReader(tmp_path / name))] == [b"x" * 1000, b"y"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("2401/2401.00001.gz", ("2401.00001", "2024-01")),
        ("0001/hep-th0001001.gz", ("hep-th/0001001", "2000-01")),
        ("9901/math.AG9901001.pdf", ("math.AG/9901001", "1999-01")),
        ("README", (None, None)),
    ],
)
def test_the_names_of_submissions(name, found):
    values = arxiv_id(name)
    assert (values.get("id"), values.get("date")) == found


def test_wrong_parameters_are_explained():
    for parameters in ({"max_member_bytes": 0}, {"max_expansion": 0.5}):
        with pytest.raises(ParameterError):
            ArchiveReader("a.zip", **parameters).check()


# ------------------------------------------------------------------------------------------------------------- a pipeline


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("papers")
    for month in range(2):
        numbers = range(month * 40, month * 40 + 40)
        write_tar(folder / f"arXiv_src_{month}.tar", [make.submission(number) for number in numbers])
    return folder


def outcome(papers, output, *, blocksize, step, **options):
    report = Pipeline(ArxivReader(papers, blocksize=blocksize), step, ExactDedup(), ParquetWriter(output)).run(
        rejects=True, max_failed="100%", on_error="isolate", **options
    )
    tables = [
        pq.read_table(path, columns=["id", "title", "text"]).to_pylist() for path in sorted(output.glob("*.parquet"))
    ]
    account = (report.read, report.kept, report.dropped, report.failed)
    return {"rows": [row for table in tables for row in table], "account": account}


STEPS = {"latex": LatexExtract(format="markdown"), "any": DocumentExtract()}


@pytest.fixture(scope="module")
def reference(papers, tmp_path_factory):
    return {
        name: outcome(
            papers, tmp_path_factory.mktemp("reference") / name, blocksize="10MB", step=step, executor="inline"
        )
        for name, step in STEPS.items()
    }


def test_papers_become_texts(reference):
    read, kept, dropped, failed = reference["latex"]["account"]
    assert (read, failed) == (80, 0)
    assert dropped == {"extraction: not LaTeX": 16, "extraction: truncated": 6}
    row = reference["latex"]["rows"][1]
    assert row["title"] == "Paper 1"
    assert row["text"].startswith(
        "# Paper 1\n\nIncluded text.\n\n## Part 1\n\nNumber 7919 has $\\lVert x_{1} \\rVert$. The"
    )
    assert "A book" not in row["text"]
    assert kept == 58
    assert reference["any"]["account"][1] == 59  # and one of the PDF files, which are all the same


@pytest.mark.parametrize(
    ("blocksize", "step", "options"),
    [
        ("2kB", "latex", {"executor": "inline"}),
        ("5kB", "any", {"workers": 2}),
    ],
    ids=["small-blocks", "workers"],
)
def test_texts_do_not_depend_on_how_the_work_is_divided(papers, reference, tmp_path, blocksize, step, options):
    assert outcome(papers, tmp_path / "out", blocksize=blocksize, step=STEPS[step], **options) == reference[step]


def test_texts_do_not_depend_on_the_executor(papers, reference, tmp_path, executor):
    found = outcome(papers, tmp_path / "out", blocksize="20kB", step=STEPS["latex"], executor=executor)
    assert found == reference["latex"]


SCRIPT = """
import os, signal, sys
from tamis import ArxivReader, ParquetWriter, Pipeline
from tamis.events import PartitionCommitted
from tamis.web import DocumentExtract
source, output, kill = sys.argv[1:]
seen = []
def watch(event):
    if isinstance(event, PartitionCommitted):
        seen.append(event)
        if len(seen) == int(kill):
            os.killpg(0, signal.SIGKILL)
Pipeline(ArxivReader(source, blocksize="6kB"), DocumentExtract(), ParquetWriter(output)).run(workers=2, on_event=watch)
"""


@pytest.mark.slow
def test_killed_runs_leave_the_same_files(papers, tmp_path):
    def run(output, kill):
        command = [sys.executable, "-c", SCRIPT, str(papers), str(tmp_path / output), str(kill)]
        return subprocess.run(command, start_new_session=True, capture_output=True, env={**os.environ}).returncode

    steps = ArxivReader(papers, blocksize="6kB"), DocumentExtract(), ParquetWriter(tmp_path / "whole")
    Pipeline(*steps).run(executor="inline")
    assert run("out", 2) == -signal.SIGKILL
    assert run("out", 0) == 0
    files = [
        {path.name: path.read_bytes() for path in (tmp_path / name).glob("*.parquet")} for name in ("whole", "out")
    ]
    assert files[0] == files[1]
    assert len(files[0]) > 3


@pytest.mark.slow
def test_a_budget_holds_for_archives_of_large_documents(tmp_path):
    page = make.paragraph(make.WORDS * 20)
    padding = random.Random(1).randbytes(20_000) * 400  # compresses, but not like a bomb
    document = make.pdf([page] * 5) + b"\n%" + padding.replace(b"\n", b"")
    members = {f"{number}.pdf": document for number in range(16)}
    (tmp_path / "a.zip").write_bytes(make.packed(members))
    report = Pipeline(ArchiveReader(tmp_path / "a.zip"), DocumentExtract(), ParquetWriter(tmp_path / "out")).run(
        memory="900MB", workers=1
    )
    assert (report.kept, report.failed) == (16, 0)
    assert report.peak_memory_bytes < 900_000_000


def test_the_recipe_reads_archives_of_arxiv(papers, tmp_path):
    recipe = load_recipe("arxiv").with_paths(input=papers, output=tmp_path / "out")
    report = recipe.build().run(executor="inline")
    assert recipe.steps[0].name == "arxiv_reader"
    assert report.read == 80 == report.kept + sum(report.dropped.values())
    assert report.kept > 0
