"""Play a newcomer: a bare clone, an empty environment, README, the five-minute page and every guide, with the clock running.

    python scripts/newcomer.py [--save] [PAGE ...]

Nothing of this checkout is used but its commits: a clone, a new home folder, no caches. Blocks of Python and Bash run as they
are in the pages, in an empty folder each. If a block fails because an extra is missing, the command that the error or the page
suggests is run, as a newcomer would. Extras with torch are left out, and pages that need them are listed as such. `--save`
writes benchmarks/newcomer.md.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
HEAVY = {"models", "embeddings", "image-models", "audio-models", "onnx", "all", "gpu"}
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INSTALL = re.compile(r"pip install ['\"]?(?:tamis|\.)\[([a-z,-]+)\]")
NOT_HERE = ("s3://", "127.0.0.1:8000")
"""Pages with blocks that need a server of yours."""


class Newcomer:
    def __init__(self, folder: Path) -> None:
        self.clone, self.home = folder / "tamis", folder / "home"
        self.home.mkdir()
        self.rows: list[tuple[str, str, float, float]] = []
        self.environment = {
            "HOME": str(self.home),
            "PATH": f"{self.clone}/.venv/bin:{os.environ['PATH']}",
            "LANG": "C.UTF-8",
            **{name: value for name, value in os.environ.items() if name.startswith("PIP_")},
        }

    def run(self, command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=folder, env=self.environment, capture_output=True, text=True)

    def timed(self, what: str, command: list[str], folder: Path) -> None:
        start, used = time.perf_counter(), processor_time()
        done = self.run(command, folder)
        outcome = "ok" if done.returncode == 0 else f"failed: {done.stderr.strip().splitlines()[-1][:100]}"
        self.note(what, outcome, start, used)

    def note(self, what: str, outcome: str, start: float, used: float) -> None:
        self.rows.append((what, outcome, time.perf_counter() - start, processor_time() - used))
        sys.stderr.write("{}: {}, {:.1f} s, processor {:.1f} s\n".format(*self.rows[-1]))

    def follow(self, page: Path, folder: Path) -> None:
        """Run the blocks of a page, installing extras that errors ask for."""
        start, used = time.perf_counter(), processor_time()
        text = page.read_text(encoding="utf-8")
        (folder / "tamis").mkdir(parents=True)
        (folder / "tamis" / "recipes").symlink_to(self.clone / "tamis" / "recipes")
        outcome, extras = "", []
        for number, (language, block) in enumerate(BLOCK.findall(text), 1):
            command = ["python", "-c", block] if language == "python" else ["bash", "-euc", block]
            done = self.run(command, folder)
            while done.returncode:
                wanted = (named_extras(done.stderr) or named_extras(text)) - set(extras)
                if wanted & HEAVY or not wanted or any(name in text for name in NOT_HERE):
                    break
                extras += sorted(wanted)
                self.run(
                    ["pip", "install", "--quiet", "--editable", f"{self.clone}[{','.join(sorted(wanted))}]"], folder
                )
                done = self.run(command, folder)
            if done.returncode:
                needs = re.search(r"tamis\[[a-z,-]+\]", done.stderr)
                server = "needs a server" if any(name in text for name in NOT_HERE) else ""
                reason = server or (
                    f"needs {needs[0]}" if needs else (done.stderr.strip().splitlines() or ["?"])[-1][:100]
                )
                outcome = f"block {number}: {reason}"
                break
        else:
            blocks = len(BLOCK.findall(text))
            outcome = f"ok, {blocks} blocks" + (f", after installing {', '.join(extras)}" if extras else "")
        self.note(page.relative_to(self.clone).as_posix(), outcome, start, used)


def named_extras(text: str) -> set[str]:
    """The extras that a text says to install."""
    return {name for names in INSTALL.findall(text) for name in names.split(",")}


def processor_time() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def guides(clone: Path) -> Iterator[Path]:
    """README, the five-minute page, and the guides in the order of the navigation, if they have blocks to run."""
    section = re.search(r"^  - Guides:\n(.*?)^  - ", (clone / "mkdocs.yml").read_text(), re.DOTALL | re.MULTILINE)
    assert section is not None
    names = ["start.md", "concepts.md", *re.findall(r": (\S+\.md)", section[1])]
    names += ["coming_from/nemo_curator.md", "coming_from/datatrove.md", "coming_from/data_juicer.md"]
    yield from (clone / "README.md", *(clone / "docs" / name for name in names))


def main(arguments: list[str]) -> int:
    wanted = [name for name in arguments if not name.startswith("--")]
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        me = Newcomer(folder)
        me.timed("git clone", ["git", "clone", "--quiet", str(ROOT), str(me.clone)], folder)
        me.timed("make demo, with installation and compilation", ["make", "demo"], me.clone)
        me.timed("make demo again", ["make", "demo"], me.clone)
        for number, page in enumerate(guides(me.clone)):
            if BLOCK.search(page.read_text(encoding="utf-8")) and (not wanted or page.name in wanted):
                me.follow(page, folder / f"page-{number}")
    if "--save" in arguments:
        (ROOT / "benchmarks" / "newcomer.md").write_text(report(me.rows, load, os.getloadavg()[0]), encoding="utf-8")
    return 0


def report(rows: list[tuple[str, str, float, float]], before: float, after: float) -> str:
    lines = [
        "# The first hour",
        "",
        "`python scripts/newcomer.py --save`: a bare clone, an empty home folder and environment; then README, the five-minute",
        "page and each guide as they are, in the order of the site. Extras are installed if an error or the page names them;",
        f"pages that need torch or a server stop there. {os.cpu_count()} cores, Python {platform.python_version()}, load",
        f"{before:.0f} to {after:.0f} by other work, packages from a mirror. An idle core needs about the processor time.",
        "",
        "| step | outcome | seconds | processor, s |",
        "|---|---|---:|---:|",
    ]
    lines += [f"| {what} | {outcome} | {seconds:.1f} | {used:.1f} |" for what, outcome, seconds, used in rows]
    total, used = sum(row[2] for row in rows), sum(row[3] for row in rows)
    lines += [f"| **all** | | {total:.0f} | {used:.0f} |", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
