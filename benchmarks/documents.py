"""Compare text of PDF, LaTeX, EPUB and docx files with other programs on the same files, by CPU seconds of one core.

    python benchmarks/documents.py --peer /tmp/peers/bin/python
    # a Python with pdfminer.six, pypdf, pymupdf, pylatexenc, plasTeX, pypandoc_binary, markitdown[docx] and docx2txt;
    # pdftotext of poppler-utils is compared if it is in the PATH

Papers are the samples of publishers' classes in Debian's texlive-publishers-doc, and manuals those of texlive-science-doc and
texlive-humanities-doc (324 MB, downloaded once): sources of at least 15 KB with a PDF beside them. Mistakes were fixed after
looking at some of the first `--papers` papers; papers of other publishers and the manuals are held out, nobody looked at them.
Debian's policy manual has the same text in several formats.

Scores are the F1 of words of at least three letters, and of runs of five such words, which need the right order, no hyphens at
the ends of lines and no headers in between. Texts of LaTeX are compared with MuPDF's text of the PDF, texts of PDF with
pandoc's text of the LaTeX source: neither is compared with itself. Formulas, references and bibliographies count against all.
Scores are means over the files that all programs could convert, without programs that failed on half of them or more.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from scripts.fetch_documents import fetch_manual  # noqa: E402
from scripts.fetch_pages import cache_folder  # noqa: E402
from tamis.web import DocumentExtract  # noqa: E402
from tamis.web.convert import convert  # noqa: E402

PEER = r"""
import json, resource, signal, sys
tool, paths = sys.argv[1], json.load(open(sys.argv[2]))
def pandoc(form):
    import pypandoc
    return lambda path: pypandoc.convert_file(path, "plain", format=form, extra_args=["--wrap=none"])
def plastex(path):
    import io, logging
    logging.disable(logging.CRITICAL)
    from plasTeX.TeX import TeX
    tex = TeX()
    tex.input(open(path, encoding="utf-8", errors="replace").read())
    return tex.parse().textContent
def latexenc(path):
    from pylatexenc.latex2text import LatexNodes2Text
    return LatexNodes2Text(math_mode="verbatim").latex_to_text(open(path, encoding="utf-8", errors="replace").read())
def mupdf(path):
    import pymupdf
    return "\n".join(page.get_text() for page in pymupdf.open(path))
def pypdf(path):
    import logging
    logging.disable(logging.CRITICAL)
    from pypdf import PdfReader
    return "\n".join(page.extract_text() for page in PdfReader(path).pages)
def pdfminer(path):
    from pdfminer.high_level import extract_text
    return extract_text(path)
def markitdown(path):
    from markitdown import MarkItDown
    return MarkItDown().convert(path).text_content
def pdftotext(path):
    import subprocess
    return subprocess.run(["pdftotext", path, "-"], check=True, capture_output=True, text=True).stdout
def docx2txt(path):
    import docx2txt
    return docx2txt.process(path)
tools = {"pandoc-latex": pandoc("latex"), "pandoc-epub": pandoc("epub"), "pandoc-docx": pandoc("docx"),
         "plasTeX": plastex, "pylatexenc": latexenc, "MuPDF": mupdf, "pypdf": pypdf, "pdftotext": pdftotext,
         "pdfminer.six": pdfminer, "markitdown": markitdown, "docx2txt": docx2txt}
def used():
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
def late(*_):
    raise TimeoutError
signal.signal(signal.SIGALRM, late)
sys.setrecursionlimit(10000)
texts, failed = [], 0
if paths:
    try: tools[tool](paths[0])  # imports
    except BaseException: pass
began = used()
for path in paths:
    signal.alarm(120)
    try: texts.append(tools[tool](path) or "")
    except Exception: texts.append(None); failed += 1
    finally: signal.alarm(0)
json.dump({"seconds": used() - began, "texts": texts, "failed": failed}, open(sys.argv[3], "w"))
"""


def fetch_papers(package: str = "texlive-publishers-doc") -> list[Path]:
    """Folders with `paper.tex` and `paper.pdf`."""
    folder = cache_folder() / package
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            subprocess.run(["apt-get", "download", "-q", package], cwd=scratch, check=True, stdout=sys.stderr)
            (archive,) = Path(scratch).glob("*.deb")
            subprocess.run(["dpkg-deb", "-x", str(archive), f"{scratch}/files"], check=True)
            chosen = Path(scratch, "chosen")
            for path in sorted(Path(scratch, "files").rglob("*.tex.gz")):
                source = gzip.decompress(path.read_bytes())
                document = path.with_name(path.name.removesuffix(".tex.gz") + ".pdf")
                whole = re.search(rb"^[^%\n]*\\documentclass", source, re.MULTILINE) and b"\\begin{document}" in source
                if whole and len(source) >= 15_000 and document.is_file():
                    target = chosen / f"{path.parent.name}-{document.stem}"
                    target.mkdir(parents=True, exist_ok=True)
                    (target / "paper.tex").write_bytes(source)
                    (target / "paper.pdf").write_bytes(document.read_bytes())
            chosen.rename(folder)
    return sorted(folder.iterdir())


def chosen_papers(count: int) -> dict[str, list[Path]]:
    """Folders of papers that were looked at, and of those that were not; no publisher is in both."""
    papers = fetch_papers()
    seen = papers[:: max(1, len(papers) // count)][:count]
    publishers = {each.name.partition("-")[0] for each in seen}
    return {
        "LaTeX sources": seen,
        "held-out LaTeX sources": [each for each in papers if each.name.partition("-")[0] not in publishers],
        "held-out manuals in LaTeX": fetch_papers("texlive-science-doc") + fetch_papers("texlive-humanities-doc"),
    }


def words_of(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]{3,}", text.lower())


def f1(found: str, expected: str, size: int) -> float:
    """The F1 of runs of words."""
    one, other = (
        Counter(zip(*(words[start:] for start in range(size)), strict=False))
        for words in (words_of(found), words_of(expected))
    )
    return 2 * sum((one & other).values()) / max(1, sum(one.values()) + sum(other.values()))


def used() -> float:
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])


def ours(paths: list[Path], form: str = "text") -> dict[str, Any]:
    request = DocumentExtract(format=form).request()  # type: ignore[arg-type]
    convert(request | {"name": paths[0].name}, paths[0].read_bytes())  # imports
    began = used()
    found = [convert(request | {"name": path.name}, path.read_bytes()) for path in paths]
    texts = [each.get("text") if each["outcome"] == "ok" else None for each in found]
    return {"seconds": used() - began, "texts": texts, "failed": sum(text is None for text in texts)}


def theirs(peer: str, tool: str, paths: list[Path]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        listed, result = Path(folder, "in.json"), Path(folder, "out.json")
        listed.write_text(json.dumps([str(path) for path in paths]))
        command = [peer, "-W", "ignore", "-c", PEER, tool, str(listed), str(result)]
        subprocess.run(command, check=True, capture_output=True)
        found: dict[str, Any] = json.loads(result.read_text())
        return found


def table(title: str, runs: dict[str, dict[str, Any]], expected: list[str]) -> None:
    compared = [run for run in runs.values() if run["failed"] * 2 < len(expected)]
    common = [number for number in range(len(expected)) if all(run["texts"][number] is not None for run in compared)]
    say(f"\n| {title} | F1 of words | of runs of five | failed | CPU seconds | times |\n|---|---|---|---|---|---|")
    for name, run in runs.items():
        scores = [
            sum(f1(run["texts"][number] or "", expected[number], size) for number in common) / max(1, len(common))
            for size in (1, 5)
        ]
        shown = " | ".join(f"{score:.3f}" for score in scores) if run in compared else "- | -"
        ratio = run["seconds"] / runs["Tamis"]["seconds"]
        say(f"| {name} | {shown} | {run['failed']} | {run['seconds']:.2f} | {ratio:.1f} |")
    say(f"scores: {len(common)} of {len(expected)} files")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, help="a Python that has the other programs")
    parser.add_argument("--papers", type=int, default=24, help="how many papers that were looked at")
    arguments = parser.parse_args()
    peer = arguments.peer
    sets = chosen_papers(arguments.papers)
    written: dict[str, list[str | None]] = {}
    for title, folders in sets.items():
        sources, files = [each / "paper.tex" for each in folders], [each / "paper.pdf" for each in folders]
        printed = [text or "" for text in theirs(peer, "MuPDF", files)["texts"]]
        names = {"pandoc": "pandoc-latex", "pylatexenc": "pylatexenc", "plasTeX": "plasTeX"}
        if "manuals" in title:  # some take the others minutes
            names = {"pandoc": "pandoc-latex"}
        runs = {"Tamis": ours(sources)} | {name: theirs(peer, tool, sources) for name, tool in names.items()}
        written[title] = runs["pandoc"]["texts"]
        size = sum(path.stat().st_size for path in sources) / 1e6
        table(f"{len(sources)} {title}, {size:.1f} MB", runs, printed)

    readers = ["MuPDF", "pdfminer.six", "pypdf", *(["pdftotext"] if shutil.which("pdftotext") else [])]
    for title in ("LaTeX sources", "held-out LaTeX sources"):
        papers = [each / "paper.pdf" for each, text in zip(sets[title], written[title], strict=True) if text]
        runs = {"Tamis": ours(papers)} | {name: theirs(peer, name, papers) for name in readers}
        expected = [text for text in written[title] if text]
        table(f"{len(papers)} {title} as PDF".replace("LaTeX sources", "papers"), runs, expected)

    manual = fetch_manual()
    expected = [(manual / "policy.txt").read_text(encoding="utf-8")]
    pdf, epub, docx = manual / "policy.pdf", manual / "policy.epub", Path(tempfile.mkdtemp(), "policy.docx")
    runs = {"Tamis": ours([pdf])} | {name: theirs(peer, name, [pdf]) for name in readers}
    table("a manual of 193 pages as PDF", runs, expected)
    runs = {"Tamis": ours([epub])} | {
        "pandoc": theirs(peer, "pandoc-epub", [epub]),
        "markitdown": theirs(peer, "markitdown", [epub]),
    }
    table("the same as EPUB", runs, expected)
    make = "import pypandoc, sys; pypandoc.convert_file(sys.argv[1], 'docx', format='epub', outputfile=sys.argv[2])"
    subprocess.run([peer, "-c", make, str(epub), str(docx)], check=True)
    others = {"pandoc": "pandoc-docx", "markitdown": "markitdown", "docx2txt": "docx2txt"}
    runs = {"Tamis": ours([docx])} | {name: theirs(peer, tool, [docx]) for name, tool in others.items()}
    table("the same as docx", runs, expected)


if __name__ == "__main__":
    main()
