"""Write docs/operators.md from the operators themselves: what each does, its formula and source, its parameters.

python scripts/make_docs.py            tests/test_docs.py fails while the page is out of date
"""

from __future__ import annotations

import inspect
from itertools import groupby
from pathlib import Path

from tamis.operators import Operator
from tamis.registry import describe_parameters, registered

PAGE = Path(__file__).parent.parent / "docs" / "operators.md"
ROOMS = {"sources": "Sources", "sinks": "Sinks", "text": "Text", "dedup": "Deduplication"}


def room_of(cls: type[Operator]) -> str:
    parts = cls.__module__.split(".")
    return ROOMS.get(parts[1], "Rows and fields")


def entry(name: str, cls: type[Operator]) -> str:
    lines = [f"### {name}", "", f"*{cls.kind}*, `from {cls.__module__} import {cls.__name__}`", ""]
    text = inspect.getdoc(cls) or ""
    prose, _, example = text.partition(">>>")
    lines += [prose.rstrip(), ""]
    if example:
        lines += ["```pycon", (">>>" + example).rstrip(), "```", ""]
    parameters = describe_parameters(cls)
    if parameters:
        lines += ["| parameter | type | default |", "|---|---|---|"]
        for parameter in parameters:
            default = "required" if parameter["required"] else f"`{parameter['default']!r}`"
            kind = str(parameter["type"]).replace("|", "\\|")
            lines.append(f"| `{parameter['name']}` | {kind} | {default} |".replace("\n", "\\n"))
        lines.append("")
    return "\n".join(lines)


def page() -> str:
    ours = {name: cls for name, cls in registered().items() if cls.__module__.startswith("tamis.")}
    ordered = sorted(ours.items(), key=lambda item: (room_of(item[1]), item[0]))
    lines = ["# Operators", "", "Made from the code by `scripts/make_docs.py`; `tamis ops NAME` shows the same.", ""]
    for room, members in groupby(ordered, key=lambda item: room_of(item[1])):
        lines += [f"## {room}", ""]
        lines += [entry(name, cls) for name, cls in members]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
