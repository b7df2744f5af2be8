"""Check that every built-in recipe and deduplication method stays within its memory budget, on data larger than the budget.

    python benchmarks/memory.py [--budgets 512MB,1GB,4GB] [--jobs gopher,fuzzy] [--times 4] [--save]

Runs `tamis run` and `tamis dedup` with `--workers 2` and samples the process tree ten times a second from outside, counting
shared pages once (PSS). Prints the peak, the budget and the throughput, and exits with 1 if a peak exceeds its budget or an
account does not balance. With --save, each finished job replaces its row in benchmarks/memory.md, so the table can be
completed in several runs.

The documents for recipes are built from the speeches included in the package; they are between a line and a hundred
kilobytes long, with lengths distributed as in a crawl. Those for `code` and `code_fertility` are the modules of the standard
library. The input folder contains one such file many times. Deduplication jobs have a corpus of their own (corpus.py) without
repeated files. The jobs `tiny` and `group` are hard cases: twelve million rows of one word each, and a million documents that
are all near-duplicates of each other.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import random
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from corpus import make_corpus, make_tokenizer
from engine import TAMIS, measured

import tamis
from tamis.parameters import parse_bytes
from tamis.recipes.load import shipped_names

FILE_BYTES = 128_000_000
DOCUMENT_BYTES = 460
"""Size of a document of corpus.py as JSON Lines."""

RECIPES = list(shipped_names())

DEDUP = {
    "exact": ["exact"],
    "exact, by paragraph": ["exact", "--unit", "paragraph"],
    "fuzzy": ["fuzzy"],
    "fuzzy, nemo": ["fuzzy", "--settings", "nemo"],
    "exact, tiny rows": ["exact"],
    "fuzzy, one group": ["fuzzy"],
}

SHORT = {
    "paragraph": "exact, by paragraph",
    "nemo": "fuzzy, nemo",
    "tiny": "exact, tiny rows",
    "group": "fuzzy, one group",
}
"""Job names without a comma, for the command line."""


@dataclass(frozen=True)
class Row:
    job: str
    budget: str
    data_bytes: int
    peak_bytes: int
    seconds: float
    kept: int
    read: int

    @property
    def holds(self) -> bool:
        return self.peak_bytes <= parse_bytes(self.budget)

    def __str__(self) -> str:
        share = self.peak_bytes / parse_bytes(self.budget)
        rate = self.data_bytes / self.seconds / 1e6
        return (
            f"| {self.job} | {self.budget} | {self.data_bytes / 1e9:.1f} GB | {self.peak_bytes / 1e6:.0f} MB | {share:.0%} | "
            f"{rate:.0f} MB/s | {self.kept:,} of {self.read:,} |"
        )


HEADER = "| job | budget | data | peak | of the budget | rate | rows kept |\n|---|---|---|---|---|---|---|"


def speeches() -> list[str]:
    with gzip.open(Path(tamis.__file__).parent / "recipes" / "speeches.jsonl.gz", "rt") as file:
        return [json.loads(line)["text"] for line in file]


def modules() -> list[str]:
    folder = Path(sysconfig.get_paths()["stdlib"])
    return [file.read_text(errors="replace") for file in sorted(folder.glob("*.py"))]


def write_documents(path: Path, pieces: list[str], *, joined: bool) -> None:
    """Write one file of `FILE_BYTES`; with `joined`, a document consists of a few or very many of the pieces."""
    generator, size, number = random.Random(3), 0, 0
    with path.open("w") as file:
        while size < FILE_BYTES:
            count = min(500, int(generator.lognormvariate(1.5, 1.2)) + 1) if joined else 1
            text = "\n".join(generator.choice(pieces) for _ in range(count))
            line = json.dumps({"id": f"d{number}", "url": f"https://example.org/{number}", "text": text})
            size += file.write(line + "\n")
            number += 1


def tiny_rows() -> Iterator[dict[str, str]]:
    generator = random.Random(1)
    return ({"text": f"w{generator.randrange(6_000_000)}"} for _ in range(12_000_000))


def one_group() -> Iterator[dict[str, str]]:
    """Yield documents of eighty words that differ in one word."""
    generator = random.Random(1)
    words = ["".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=generator.randint(2, 9))) for _ in range(80)]
    for _ in range(1_000_000):
        place = generator.randrange(80)
        yield {"text": " ".join([*words[:place], f"x{generator.randrange(1000)}", *words[place + 1 :]])}


HARD = {"exact, tiny rows": tiny_rows, "fuzzy, one group": one_group}


def write_rows(folder: Path, rows: Iterator[dict[str, str]]) -> int:
    folder.mkdir(exist_ok=True)
    with (folder / "rows.jsonl").open("w") as file:
        return sum(file.write(json.dumps(row) + "\n") for row in rows)


def same_file_often(folder: Path, file: Path, size: int) -> int:
    folder.mkdir()
    count = -(-size // file.stat().st_size)
    for number in range(count):
        (folder / f"{number:04d}.jsonl").hardlink_to(file)
    return count * file.stat().st_size


def run(job: str, budget: str, source: Path, data_bytes: int, folder: Path) -> Row:
    output = folder / "output"
    if job in DEDUP:
        command = [*TAMIS, "dedup", *DEDUP[job], str(source), str(output)]
    else:
        command = [*TAMIS, "run", job, "--input", str(source), "--output", str(output)]
        if job == "code_fertility":
            command += ["--set", f"tokenizer_fertility.tokenizer={folder / 'tokenizer.json'}"]
    seconds, peak = measured([*command, "--memory", budget, "--workers", "2", "--quiet"])
    report = json.loads((output / ".tamis" / "report.json").read_text())
    if report["read"] != report["kept"] + sum(report["dropped"].values()) + report["failed"] or report["failed"]:
        raise SystemExit(f"{job} at {budget}: the account does not balance, or rows failed: {report}")
    shutil.rmtree(output)
    return Row(job, budget, data_bytes, peak, seconds, report["kept"], report["read"])


def save(row: Row) -> None:
    """Add the row to the table of benchmarks/memory.md, replacing an older one with the same job and budget."""
    path = Path(__file__).with_suffix(".md")
    rows = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        match = re.match(r"\| ([a-z0-9_, ]+) \| (\d\w+) \|", line)
        if match:
            rows[match[1], match[2]] = line
    rows[row.job, row.budget] = str(row)
    order = [*RECIPES, *DEDUP]
    found = sorted(rows, key=lambda key: (parse_bytes(key[1]), order.index(key[0])))
    lines = [
        "# Peak memory compared with the budget",
        "",
        "`python benchmarks/memory.py --save`: peak memory of the process tree (PSS, sampled ten times a second from outside)",
        "with `--workers 2`. If the budget is too small for two workers, Tamis uses one. Rows were measured at different",
        "times, some on a busy machine, which lowers the rate but does not affect the peak.",
        "",
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, tamis {tamis.__version__}.",
        "",
        HEADER,
        *(rows[key] for key in found),
    ]
    path.write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budgets", default="512MB,1GB,4GB")
    parser.add_argument("--jobs", default=",".join([*RECIPES, "exact", "paragraph", "fuzzy", "nemo"]))
    parser.add_argument("--times", type=float, default=4.0, help="size of the data as a multiple of the budget")
    parser.add_argument("--folder", type=Path, default=None, help="folder for the data (default: a temporary folder)")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    jobs = [SHORT.get(job, job) for job in options.jobs.split(",")]
    broken = False
    sys.stdout.write(HEADER + "\n")
    with tempfile.TemporaryDirectory(prefix="tamis-bench-", dir=options.folder) as name:
        folder = Path(name)
        write_documents(folder / "text.jsonl", speeches(), joined=True)
        write_documents(folder / "code.jsonl", modules(), joined=False)
        if "code_fertility" in jobs:
            make_tokenizer(folder / "tokenizer.json", modules())
        for budget in options.budgets.split(","):
            size = int(options.times * parse_bytes(budget))
            for job in jobs:
                source = folder / "in"
                if job in HARD:
                    data_bytes = write_rows(source, HARD[job]())
                elif job in DEDUP:
                    source = folder / f"documents-{budget}"
                    data_bytes = make_corpus(source, -(-size // DOCUMENT_BYTES))
                else:
                    file = folder / ("code.jsonl" if job.startswith("code") else "text.jsonl")
                    data_bytes = same_file_often(source, file, size)
                row = run(job, budget, source, data_bytes, folder)
                broken |= not row.holds
                sys.stdout.write(f"{row}{'' if row.holds else '  ABOVE THE BUDGET'}\n")
                sys.stdout.flush()
                if options.save:
                    save(row)
                shutil.rmtree(folder / "in", ignore_errors=True)
            shutil.rmtree(folder / f"documents-{budget}", ignore_errors=True)
    raise SystemExit(broken)


if __name__ == "__main__":
    main()
