"""Run the text recipes on real documents in many languages and print the results as the tables of docs/recipes.md.

    python scripts/try_recipes.py [DOCUMENTS.jsonl.gz JUNK.jsonl]

Rows have the columns `text` and `language` (documents) or `kind` (junk).
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from pathlib import Path

from tamis import Pipeline, Rows
from tamis.recipes.load import load_recipe
from tamis.registry import build_operator
from tamis.report import Report

DATA = Path(__file__).parent.parent / "tests" / "text" / "data"
RECIPES = ("gopher", "c4", "fineweb", "all_dressed", "nemo_english", "nemo_non_english")


def read_rows(path: Path) -> list[dict[str, str]]:
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    return [json.loads(line) for line in text.splitlines()]


def run(recipe: str, rows: list[dict[str, str]]) -> Report:
    steps = [build_operator(step.name, step.parameters) for step in load_recipe(recipe).steps]
    return Pipeline(Rows([{"text": row["text"]} for row in rows]), *steps).run(executor="inline")


def outcome(report: Report) -> str:
    """Return how many rows were kept, and the reasons for dropping the others, most frequent first."""
    reasons = sorted(report.dropped.items(), key=lambda item: (-item[1], item[0]))
    if not reasons:
        return f"{report.kept} of {report.read}"
    return f"{report.kept}: {', '.join(reason for reason, _ in reasons)}"


def table(groups: dict[str, list[dict[str, str]]]) -> str:
    lines = ["| | " + " | ".join(RECIPES) + " |", "|---" * (len(RECIPES) + 1) + "|"]
    for name, rows in groups.items():
        cells = [outcome(run(recipe, rows)) for recipe in RECIPES]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def grouped(rows: list[dict[str, str]], field: str) -> dict[str, list[dict[str, str]]]:
    groups: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        groups[row[field]].append(row)
    return groups


if __name__ == "__main__":
    documents, junk = sys.argv[1:] or (DATA / "declaration.jsonl.gz", DATA / "junk.jsonl")
    tables = table(grouped(read_rows(Path(documents)), "language")), table(grouped(read_rows(Path(junk)), "kind"))
    sys.stdout.write("\n\n".join(tables) + "\n")
