"""Writes results into pages beside the benchmarks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path


def save(page: Path, title: str, lines: Sequence[str]) -> None:
    """Replace the section of a page, or add it at the end."""
    text = page.read_text().rstrip() if page.exists() else f"# {page.stem.capitalize()}"
    section = f"## {title}\n\n" + "\n".join(lines).strip()
    found = re.search(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", text + "\n", re.MULTILINE | re.DOTALL)
    if found is None:
        text = f"{text}\n\n{section}"
    else:
        text = f"{text[: found.start()]}{section}\n\n{text[found.end() :]}".rstrip()
    page.write_text(text + "\n")
