"""Compare reading of crawls and extraction with datatrove on the same files, by CPU seconds of one core.

    python benchmarks/crawl.py --peer PYTHON --peer OTHER     # with datatrove[io,processing], lxml_html_clean, mwparserfromhell

datatrove 0.10 allows trafilatura below 1.12 only. To compare with the same version, install 2.3.1 there with `--no-deps`.

Pages are those of `scripts/fetch_pages.py`: 110 pages of the sources of trafilatura, repeated in a WARC file with one gzip
member per record, and the 23 news pages of newspaper4k with texts that people chose.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from scripts.fetch_pages import fetch  # noqa: E402
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


def _marks(found: str, expected: str) -> tuple[float, float, float]:
    one, other = (Counter(re.findall(r"\w+", text.lower())) for text in (found, expected))
    common = sum((one & other).values())
    precision, recall = common / max(1, sum(one.values())), common / max(1, sum(other.values()))
    return precision, recall, 2 * precision * recall / max(1e-9, precision + recall)


def compare_crawls(work: Path, peers: list[str], copies: int) -> None:
    """Read and extract one WARC file in turns; the fewest CPU seconds of three turns each."""
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
        for _ in range(3):
            results.setdefault("tamis", []).append(read_and_extract(path, None if what == "read" else what))
            for name, command in others.items():
                done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
                results.setdefault(name, []).append(json.loads(done.stdout.splitlines()[-1]))
        best = {name: min(turns, key=lambda each: each["seconds"]) for name, turns in results.items()}
        for name, found in best.items():
            say(f"{what:12} {name:22} {found}  {found['seconds'] / best['tamis']['seconds']:.2f} times")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="append", default=[], help="a Python that has datatrove; may be repeated")
    parser.add_argument("--work", type=Path, default=Path("/tmp/tamis-crawl"))
    parser.add_argument("--copies", type=int, default=1)
    options = parser.parse_args()
    score_extractors(5)
    compare_wikitext(options.work, next(iter(options.peer), None))
    compare_crawls(options.work, options.peer, options.copies)


if __name__ == "__main__":
    main()
