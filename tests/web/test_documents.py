"""Documents of all kinds to text: real ones, small ones, and those that were made to cause trouble."""

import io
import random
import re
import zipfile
from collections import Counter

import pytest

from scripts.fetch_documents import fetch, fetch_manual
from tamis import DocumentReader, ParquetWriter, Pipeline, Rows
from tamis.errors import ParameterError
from tamis.web import DocumentExtract, PdfExtract
from tamis.web.alone import Alone, Crashed, TookTooLong
from tamis.web.convert import convert
from tests.web import make_documents as make

REQUEST = DocumentExtract().request() | {"name": ""}


def text_of(data, **changes):
    return convert(REQUEST | changes, data)


def f1(found, expected):
    """The F1 of the words of two texts."""
    one, other = (Counter(re.findall(r"\w+", text.lower())) for text in (found, expected))
    return 2 * sum((one & other).values()) / max(1, sum(one.values()) + sum(other.values()))


# -------------------------------------------------------------------------------------------------------------------- real


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("policy.pdf", 0.93), ("policy.epub", 0.97)])
def test_a_manual_has_the_same_words_in_every_format(name, least):
    folder = fetch_manual()
    expected = (folder / "policy.txt").read_text(encoding="utf-8")
    found = text_of((folder / name).read_bytes())
    assert found["outcome"] == "ok"
    assert f1(found["text"], expected) > least
    assert found["title"] == "Debian Policy Manual"


def test_real_files_are_kept_or_dropped_with_a_reason(tmp_path):
    folders = [fetch("docx"), fetch("pptx"), fetch("odt"), fetch("pdf") / "encryption"]
    paths = [
        str(path)
        for folder in folders
        for path in folder.rglob("*")
        if path.suffix in (".docx", ".pptx", ".odt", ".pdf")
    ]
    report = Pipeline(DocumentReader(sorted(paths)), DocumentExtract(), ParquetWriter(tmp_path / "out")).run(
        executor="inline"
    )
    assert report.failed == 0
    assert report.read == len(paths) == report.kept + sum(report.dropped.values())
    assert set(report.dropped) == {
        "extraction: encrypted",  # with a password that is not empty
        "extraction: no text",  # shapes and pictures
        "extraction: declares entities",  # nasty.odt
    }


def test_the_text_of_real_files():
    folder = fetch("odt")
    (table,) = (path for path in folder.rglob("simpletable.odt"))
    shown = text_of(table.read_bytes(), format="markdown")["text"]
    assert shown == "| Cell 1 | Cell 2 |\n| --- | --- |\n| Cell 3 (bold) | Cell 4 (italic) |"
    lists = next(folder.rglob("twolevellist.odt")).read_bytes()
    assert "- Item B\n  - Subitem B.1\n" in text_of(lists, format="markdown")["text"]
    words = next(fetch("docx").rglob("par-known-styles.docx")).read_bytes()
    assert (
        text_of(words, format="markdown")["text"] == "no specified style\n\nmissing style\n\n# Heading 1\n\nBody Text"
    )
    poem = text_of((fetch("pdf") / "crazyones.pdf").read_bytes())["text"]
    assert poem.startswith("The Crazy Ones\n\nOctober 14, 1998\n\nHeres to the crazy ones. The misfits. The rebels.")


# --------------------------------------------------------------------------------------------------------------------- pdf


def test_columns_are_read_one_after_the_other():
    left = make.paragraph(" ".join(f"left{n}" for n in range(120)), 40)
    right = make.paragraph(" ".join(f"right{n}" for n in range(120)), 320)
    mixed = [line for pair in zip(left, right, strict=False) for line in pair]
    title = [(40, 740, 20, "A title across both of the columns of the page")]
    found = text_of(make.pdf([[*title, *mixed]]))
    words = found["text"].split()
    assert words[:3] == ["A", "title", "across"]
    assert words[10:] == [f"left{n}" for n in range(120)] + [f"right{n}" for n in range(len(words) - 130)]


def test_divided_words_are_joined_and_compounds_keep_their_hyphen():
    lines = [
        (50, 700, 10, "The well-known word is a com-"),
        (50, 688, 10, "puter, and the same well-"),
        (50, 676, 10, "known thing is here"),
    ]
    assert (
        text_of(make.pdf([lines]))["text"] == "The well-known word is a computer, and the same well-known thing is here"
    )


def test_headers_footers_and_page_numbers_are_removed():
    pages = []
    for number in range(6):
        body = make.paragraph(f"Here it says something else, namely {number * 31}. {make.WORDS}", base=600)
        chapter = "A chapter" if number < 3 else "Another one"
        pages.append([(50, 780, 8, "The Journal of Things"), *body, (50, 20, 8, f"{chapter} {number + 17}")])
    text = text_of(make.pdf(pages))["text"]
    assert "Journal" not in text
    assert "chapter" not in text
    assert "Another" not in text
    assert [f"namely {number * 31}" in text for number in range(6)] == [True] * 6


def test_headings_of_a_pdf_are_marked_by_their_size():
    page = [(50, 750, 24, "A Title"), (50, 715, 14, "A section"), *make.paragraph(make.WORDS * 3, base=690)]
    assert text_of(make.pdf([page]), format="markdown")["text"].startswith("# A Title\n\n## A section\n\nThe committee")


# ------------------------------------------------------------------------------------------------------------------ office


def test_a_word_file_has_headings_items_tables_and_notes():
    body = (
        '<w:p><w:pPr><w:pStyle w:val="T1"/></w:pPr><w:r><w:t>Head</w:t></w:r></w:p>'
        "<w:p><w:r><w:rPr><w:b/></w:rPr><w:t>Bold</w:t></w:r><w:r><w:t xml:space='preserve'> text</w:t></w:r></w:p>"
        '<w:p><w:pPr><w:numPr><w:ilvl w:val="1"/></w:numPr></w:pPr><w:r><w:t>item</w:t></w:r></w:p>'
        "<w:p><w:del><w:r><w:t>deleted</w:t></w:r></w:del><w:ins><w:r><w:t>added</w:t></w:r></w:ins></w:p>"
        "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>a</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r><w:t>b</w:t></w:r></w:p></w:tc></w:tr></w:tbl>"
    )
    notes = f"<w:footnotes {make.W}><w:footnote><w:p><w:r><w:t>A note</w:t></w:r></w:p></w:footnote></w:footnotes>"
    data = make.docx(body, **{"word/footnotes.xml": notes})
    assert text_of(data)["text"] == "Head\n\nBold text\n\nitem\n\nadded\n\na | b\n\nA note"
    shown = text_of(data, format="markdown")["text"]
    assert shown == "# Head\n\n**Bold** text\n\n  - item\n\nadded\n\n| a | b |\n| --- | --- |\n\nA note"


def test_slides_sheets_and_open_documents():
    title = '<p:sp><p:nvPr><p:ph type="title"/></p:nvPr><a:p><a:r><a:t>Topic</a:t></a:r></a:p></p:sp>'
    slides = make.pptx([title, "<p:sp><a:p><a:pPr lvl='1'/><a:r><a:t>point</a:t></a:r></a:p></p:sp>"])
    found = text_of(slides, format="markdown")
    assert (found["text"], found["pages"], found["kind"]) == ("## Topic\n\n  - point", 2, "pptx")
    sheet = '<row><c t="s"><v>1</v></c><c><v>2.5</v></c></row><row><c t="s"><v>9</v></c></row>'
    assert text_of(make.xlsx(sheet, ["a", "b"]))["text"] == "Data\n\nb | 2.5"
    body = "<text:h text:outline-level='2'>H</text:h><text:p>a<text:s text:c='99999999'/>b<text:line-break/>c</text:p>"
    assert text_of(make.odt(body), format="markdown")["text"] == "## H\n\na b\nc"


def test_the_chapters_of_a_book_follow_its_spine():
    data = make.epub(["<script src='a.js'/><h1>One</h1><p>First<br/>line.</p>", "<p>Second.</p><nav>not this</nav>"])
    found = text_of(data, format="markdown")
    assert (found["text"], found["title"], found["pages"]) == ("# One\n\nFirst line.\n\nSecond.", "A Book", 2)


# ----------------------------------------------------------------------------------------------------------------- trouble


def entities(body):
    return f'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]><x>{body}</x>'


def lying_zip():
    """An archive whose directory says that a part is smaller than it is."""
    data = make.packed({"[Content_Types].xml": "<Types/>", "word/document.xml": "<x>" + "y" * 5000 + "</x>"})
    return data.replace((5007).to_bytes(4, "little"), (10).to_bytes(4, "little"))


@pytest.mark.parametrize("charset", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_a_page_is_html_in_any_charset(charset):
    page = (
        f"<html><meta charset={charset}><title>Größe</title><body><p>"
        + "Eins zwei drei vier fünf. " * 6
        + "</p></body></html>"
    )
    found = text_of(page.encode(charset))
    assert (found["kind"], found["title"], found["text"][:24]) == ("html", "Größe", "Eins zwei drei vier fünf")


@pytest.mark.parametrize(
    ("data", "outcome"),
    [
        (make.packed({"a.html": "<html>"}), "no document: zip"),
        (make.packed({}), "no document: zip"),
        (b"%PDF-1.7\nnothing", "damaged"),
        (make.pdf([[(0, 0, 10, "x")]])[:-300], "damaged"),
        (make.docx("<w:p>")[:-40], "damaged"),
        (make.docx("<w:p>"), "damaged"),
        (make.docx("<w:tbl>" * 600 + "</w:tbl>" * 600), "nested deeper than 512"),
        (make.packed({"[Content_Types].xml": "", "word/document.xml": entities("&b;")}), "declares entities"),
        (make.docx("<w:p>" + " " * 60_000_000 + "</w:p>"), "expands more than 250 times"),
        (lying_zip(), "damaged"),
        (
            make.packed({"[Content_Types].xml": "", **{f"word/{n}.xml": "" for n in range(20_001)}}),
            "more than 20,000 parts",
        ),
        (make.epub(["<p>x</p>"] * 5_001), "more than 5,000 pages"),
        (make.epub(["<div>" * 600]), "nested deeper than 512"),
        (make.epub(["<p>x</p>"], encryption="<e><EncryptionMethod Algorithm='aes'/></e>"), "encrypted"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "EncryptedPackage".encode("utf-16-le"), "encrypted"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "no document: old Office file"),
        (b"\x89PNG\r\n\x1a\n\0\0\0", "no document: binary"),
        (b"<html><body>" + b"<div>" * 600, "nested deeper than 512"),
        (b"<html><body></body></html>", "no text"),
        (make.pdf([[]]), "no text"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_documents_are_dropped_with_a_reason(data, outcome):
    assert text_of(data)["outcome"] == outcome


def test_a_pdf_whose_objects_contain_themselves_ends():
    found = text_of(make.pdf([[(50, 700, 10, "before")]], extra="/XObject << /A 5 0 R /B 2 0 R >>"))
    assert found["text"] == "before"
    loop = make.pdf([[(50, 700, 10, "x")]]).replace(b"/Kids [5 0 R]", b"/Kids [2 0 R]")
    assert text_of(loop)["outcome"] in ("damaged", "no text")


def test_every_prefix_and_many_changes_of_a_file_have_an_outcome():
    for data in (
        make.docx("<w:p><w:r><w:t>x</w:t></w:r></w:p>"),
        make.epub(["<p>x</p>"]),
        make.pdf([make.paragraph(make.WORDS)]),
    ):
        for size in range(1, len(data), max(1, len(data) // 40)):
            assert text_of(data[:size])["outcome"]
            assert text_of(data[:size] + bytes([data[size] ^ 0x15]) + data[size + 1 :])["outcome"]


def run(tmp_path, documents, step):
    rows = [{"document": {"bytes": data, "path": name}} for name, data in documents.items()]
    return Pipeline(Rows(rows), step, ParquetWriter(tmp_path / "out")).run(
        executor="inline", max_failed="100%", on_error="isolate"
    )


def test_limits_come_before_decoding(tmp_path):
    good = make.pdf([make.paragraph(make.WORDS)])
    documents = {
        "a.pdf": good,
        "b.pdf": good + b" " * 10_000,
        "c.pdf": make.pdf([make.paragraph("x")] * 9),
        "d.pdf": b"",
    }
    report = run(tmp_path, documents, PdfExtract(max_bytes="5kB", max_pages=8))
    assert report.kept == 1
    assert report.dropped == {
        "extraction: larger than 5.0 kB": 1,
        "extraction: more than 8 pages": 1,
        "extraction: no document": 1,
    }


def test_a_document_that_takes_too_long_fails_alone(tmp_path):
    good = make.pdf([make.paragraph(make.WORDS)])
    slow = make.pdf([make.paragraph(f"{number} {make.WORDS * 30}") for number in range(1_200)])
    report = run(tmp_path, {"a.pdf": good, "b.pdf": slow, "c.pdf": good}, PdfExtract(timeout_s=0.5))
    assert (report.kept, report.failed) == (2, 1)


def test_a_document_that_needs_too_much_memory_fails_alone(tmp_path):
    generator = random.Random(1)
    body = "".join(f"<w:p><w:r><w:t>{generator.random()}</w:t></w:r></w:p>" for _ in range(200_000))
    good, large = make.docx("<w:p><w:r><w:t>x</w:t></w:r></w:p>"), make.docx(body)
    report = run(tmp_path, {"a.docx": good, "b.docx": large, "c.docx": good}, DocumentExtract(max_memory="10MB"))
    assert (report.kept, report.failed) == (2, 1)


def test_bytes_of_a_crawl_are_documents_too():
    rows = [{"content": make.pdf([make.paragraph(make.WORDS)])}, {"content": b"<html>"}, {"content": None}]
    table = Pipeline(Rows(rows), DocumentExtract(column="content", kinds=["pdf"])).collect(executor="inline")
    assert table["text"].to_pylist() == [make.WORDS]


@pytest.mark.parametrize("how", ["segfault", "exit", "memory"])
def test_a_decoder_that_crashes_costs_one_call(how):
    alone = Alone("tests.web.endless", "crash", 5.0, 200_000_000)
    with pytest.raises(ValueError if how == "memory" else Crashed, match=r"MemoryError|signal 11|exit code 3"):
        alone.call(how, b"data")
    assert alone.call("nothing", b"data") == 4
    alone.close()


def test_a_process_of_its_own_has_a_time_limit_for_data_too():
    alone = Alone("tests.web.endless", "crash", 0.1)
    with pytest.raises(TookTooLong):
        alone.call("loop", b"data")
    alone.close()


def test_wrong_parameters_are_explained():
    for parameters in (
        {"max_pages": 0},
        {"timeout_s": 0},
        {"to": "title"},
        {"kinds": []},
        {"max_depth": 0},
        {"max_bytes": 0},
    ):
        with pytest.raises(ParameterError):
            DocumentExtract(**parameters).check()


def test_a_file_that_is_missing_fails_its_row(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.pdf").write_bytes(make.pdf([make.paragraph(make.WORDS)]))
    source = DocumentReader(tmp_path)
    (tmp_path / "c.pdf").symlink_to("/etc/hostname")
    report = Pipeline(source, PdfExtract(), ParquetWriter(tmp_path / "out")).run(
        executor="inline", max_failed="100%", on_error="isolate"
    )
    assert (report.read, report.kept, report.failed) == (3, 2, 1)


def test_archives_within_the_zip_module_agree_with_the_standard_library():
    names = {f"f{number}": b"x" * number * 100 for number in range(20)}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_BZIP2) as archive:
        for name, data in names.items():
            archive.writestr(name, data)
    from tamis.sources import zip as zips

    found = {entry.name: zips.content(out, entry) for entry in zips.entries(out, zips.find_directory(out))}
    assert found == names
