"""Hooks of mkdocs.yml: pages of the site that are files outside docs/, and links between all of them.

README.md            -> index.md
benchmarks/*.md      -> benchmarks/*.md          index.md is benchmarks/README.md
examples/*.ipynb     -> examples/*.md            cells as text and code, with their recorded output
ARCHITECTURE.md ...  -> project/*.md

Links are those of the repository, so that they work there too; a link to a file that is not a page becomes its text.
"""

from __future__ import annotations

import json
import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PROJECT = {"ARCHITECTURE.md": "architecture", "CONTRIBUTING.md": "contributing", "CHANGELOG.md": "changelog"}
LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")
FENCE = re.compile(r"^ *(```|~~~)")
log = logging.getLogger("mkdocs.tamis")


def pages() -> dict[str, str]:
    """The page of each file of the repository that is one: {"README.md": "index.md", "docs/files.md": "files.md", ...}."""
    found = {
        "README.md": "index.md",
        "examples/README.md": "examples/index.md",
        "benchmarks/README.md": "benchmarks/index.md",
    }
    found |= {name: f"project/{page}.md" for name, page in PROJECT.items()}
    found |= {f"benchmarks/{path.name}": f"benchmarks/{path.name}" for path in _files("benchmarks", "md")}
    found |= {f"examples/{path.name}": f"examples/{path.stem}.md" for path in _files("examples", "ipynb")}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        inside = path.relative_to(ROOT / "docs").as_posix()
        found[f"docs/{inside}"] = inside
    return found


def _files(folder: str, suffix: str) -> list[Path]:
    return [path for path in sorted((ROOT / folder).glob(f"*.{suffix}")) if path.stem != "README"]


def as_markdown(notebook: dict[str, Any]) -> str:
    """A notebook as a page: text, code, and what the code printed."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            text = output.get("text") or output.get("data", {}).get("text/plain") or ""
            if text and output.get("name") != "stderr":
                parts.append("```text\n" + "".join(text).rstrip() + "\n```")
    return "\n\n".join(parts) + "\n"


def on_config(config: Any) -> Any:
    """Complete the sections whose pages are listed by a folder; search opened files with our own script."""
    config.extra["polyfills"] = ["pictures/iframe-worker.js"]  # instead of one that would be fetched from outside
    for section in config.nav:
        for folder, suffix in (("examples", "ipynb"), ("benchmarks", "md")):
            if isinstance(section, dict) and folder.title() in section:
                names = [path.stem for path in _files(folder, suffix)]
                section[folder.title()] = [f"{folder}/{name}.md" for name in ["index", *names]]
    for section in config.nav:
        if "Reference" in section:
            (operators,) = [entry for entry in section["Reference"] if "Operators" in entry]
            names = sorted(path.stem for path in (ROOT / "docs" / "operators").glob("*.md"))
            operators["Operators"] = ["operators.md", *({name.capitalize(): f"operators/{name}.md"} for name in names)]
    return config


def on_files(files: Files, *, config: Any) -> Files:
    for name, page in pages().items():
        path = ROOT / name
        if name.startswith("docs/"):
            continue
        text = path.read_text(encoding="utf-8")
        content = as_markdown(json.loads(text)) if path.suffix == ".ipynb" else text
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    origins = {page: name for name, page in pages().items()}
    origin = origins[page.file.src_uri]
    if origin == "README.md":
        page.meta["hide"] = ["navigation"]  # nothing but the page itself; without it, commands fit the width
    lines, fenced = [], False
    for line in markdown.split("\n"):
        if FENCE.match(line):
            fenced = not fenced
        lines.append(line if fenced else LINK.sub(lambda found: _link(found, origin, page.file.src_uri), line))
    return "\n".join(lines)


def _link(found: re.Match[str], origin: str, source: str) -> str:
    target, _, anchor = found["target"].partition("#")
    if not target or re.match(r"[a-z]+:", target):
        return found[0]
    name = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
    if target.endswith("/"):
        name += "/README.md"
    if name in pages():
        site = pages()[name]
    elif name.startswith("docs/"):
        site = name.removeprefix("docs/")  # a picture
    elif (ROOT / name).exists():
        return found["text"]
    else:
        log.warning("%s links to %s, which does not exist", origin, found["target"])
        return found[0]
    path = posixpath.relpath(site, posixpath.dirname(source) or ".")
    return f"{found['image']}[{found['text']}]({path}{'#' + anchor if anchor else ''})"
