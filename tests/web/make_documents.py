"""Small documents of all kinds, for tests."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Mapping, Sequence

from tests.tars import tar_bytes

WORDS = "The committee met on Tuesday and agreed on a plan for the harbour of the town."


def packed(parts: Mapping[str, str | bytes], *, stored: Sequence[str] = ()) -> bytes:
    """A zip archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(
                zipfile.ZipInfo(name), data, zipfile.ZIP_STORED if name in stored else zipfile.ZIP_DEFLATED
            )
    return out.getvalue()


def pdf(pages: Sequence[Sequence[tuple[float, float, float, str]]], *, extra: str = "") -> bytes:
    """A PDF of lines, each given by its left edge, its baseline, its size and its text."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", "", "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids = []
    for lines in pages:
        content = "\n".join(
            f"BT /F1 {size} Tf {left} {base} Td ({text.translate({40: None, 41: None, 92: None})}) Tj ET"
            for left, base, size, text in lines
        )
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents {len(objects)} 0 R "
            f"/Resources << /Font << /F1 3 0 R >> {extra} >> >>"
        )
        kids.append(f"{len(objects)} 0 R")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>"
    out = "%PDF-1.4\n"
    places = []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n"
    start = len(out)
    out += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n" + "".join(
        f"{place:010d} 00000 n \n" for place in places
    )
    out += f"trailer << /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF"
    return out.encode("latin-1")


def paragraph(
    text: str, left: float = 50, base: float = 700, size: float = 10
) -> list[tuple[float, float, float, str]]:
    """Lines of about 60 characters, from the top down."""
    lines: list[str] = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > 60:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return [(left, base - 12 * number, size, line) for number, line in enumerate(lines)]


W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
R = 'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
RELATIONS = '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{}</Relationships>'


def docx(body: str, **parts: str) -> bytes:
    styles = f'<w:styles {W}><w:style w:styleId="T1"><w:name w:val="heading 1"/></w:style></w:styles>'
    document = f"<w:document {W}><w:body>{body}</w:body></w:document>"
    return packed(
        {"[Content_Types].xml": "<Types/>", "word/document.xml": document, "word/styles.xml": styles, **parts}
    )


def pptx(slides: Sequence[str]) -> bytes:
    names = "xmlns:p='p' xmlns:a='a'"
    ids = "".join(f'<p:sldId id="{256 + number}" r:id="r{number}"/>' for number in range(len(slides)))
    relations = "".join(
        f'<Relationship Id="r{number}" Target="slides/s{number}.xml"/>' for number in range(len(slides))
    )
    parts = {
        "[Content_Types].xml": "<Types/>",
        "ppt/presentation.xml": f"<p:presentation {names} {R}><p:sldIdLst>{ids}</p:sldIdLst></p:presentation>",
        "ppt/_rels/presentation.xml.rels": RELATIONS.format(relations),
    }
    return packed(parts | {f"ppt/slides/s{n}.xml": f"<p:sld {names}>{slide}</p:sld>" for n, slide in enumerate(slides)})


def xlsx(sheet: str, shared: Sequence[str]) -> bytes:
    strings = "".join(f"<si><t>{text}</t></si>" for text in shared)
    return packed(
        {
            "[Content_Types].xml": "<Types/>",
            "xl/workbook.xml": f'<workbook {R}><sheets><sheet name="Data" sheetId="1" r:id="r1"/></sheets></workbook>',
            "xl/_rels/workbook.xml.rels": RELATIONS.format('<Relationship Id="r1" Target="worksheets/a.xml"/>'),
            "xl/sharedStrings.xml": f"<sst>{strings}</sst>",
            "xl/worksheets/a.xml": f"<worksheet><sheetData>{sheet}</sheetData></worksheet>",
        }
    )


def odt(body: str) -> bytes:
    names = "xmlns:office='o' xmlns:text='t' xmlns:table='b'"
    content = f"<office:document-content {names}><office:body>{body}</office:body></office:document-content>"
    parts = {"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": content}
    return packed(parts, stored=["mimetype"])


def epub(chapters: Sequence[str], *, encryption: str = "") -> bytes:
    items = "".join(
        f'<item id="c{n}" href="text/c{n}.xhtml" media-type="application/xhtml+xml"/>' for n in range(len(chapters))
    )
    spine = "".join(f'<itemref idref="c{number}"/>' for number in range(len(chapters)))
    book = f"<package><metadata><title>A Book</title></metadata><manifest>{items}</manifest><spine>{spine}</spine></package>"
    parts = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": '<container><rootfiles><rootfile full-path="OEBPS/book.opf"/></rootfiles></container>',
        "OEBPS/book.opf": book,
        **{f"OEBPS/text/c{n}.xhtml": f"<html><body>{text}</body></html>" for n, text in enumerate(chapters)},
    }
    return packed(parts | ({"META-INF/encryption.xml": encryption} if encryption else {}), stored=["mimetype"])


def paper(number: int, body: str = WORDS * 40) -> str:
    """The source of a paper."""
    return (
        r"\documentclass{article}\newcommand{\norm}[1]{\lVert #1 \rVert}"
        rf"\title{{Paper {number}}}\begin{{document}}\maketitle % not shown" + "\n"
        rf"\section{{Part {number}}} Number {number * 7919} has $\norm{{x_{{{number}}}}}$. {body}"
        r"\begin{thebibliography}{9}\bibitem{a} A book.\end{thebibliography}\end{document}"
    )


def submission(number: int) -> tuple[str, bytes]:
    """A member of an archive of arXiv: a TeX file, a tar file of two, or a PDF; one in eleven is damaged."""
    name, source = f"2401/2401.{number:05d}", paper(number).encode()
    if number % 5 == 3:
        return f"{name}.pdf", pdf([paragraph(WORDS)])
    if number % 2:
        split = source.replace(b"\\maketitle", b"\\maketitle\\input{intro}")
        data = tar_bytes(
            [("ms.tex", split), ("intro.tex", b"Included text."), ("../a.tex", b"no"), ("f.png", b"\x89PNG")]
        )
    else:
        data = source
    whole = gzip.compress(data, mtime=0)
    return f"{name}.gz", whole[:-20] if number % 11 == 10 else whole
