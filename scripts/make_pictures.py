"""Draw the pictures of docs/concepts.md: `python scripts/make_pictures.py` writes docs/pictures/*.svg."""

# ruff: noqa: E501
from __future__ import annotations

from html import escape
from pathlib import Path

TARGET = Path(__file__).parent.parent / "docs" / "pictures"
TEAL, LIGHT, ORANGE, PALE, GRAY, INK = "#00796b", "#e0f2f1", "#e64a19", "#fbe9e7", "#90a4ae", "#263238"


class Picture:
    def __init__(self, width: int, height: int, title: str) -> None:
        self.size, self.title = (width, height), title
        self.parts: list[str] = []

    def box(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        *lines: str,
        fill: str = LIGHT,
        edge: str = TEAL,
        dash: bool = False,
    ) -> None:
        style = ' stroke-dasharray="5 4"' if dash else ""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="6" fill="{fill}" stroke="{edge}" stroke-width="1.5"{style}/>'
        )
        top = y + h / 2 - (len(lines) - 1) * 9 + 5
        for number, line in enumerate(lines):
            self.text(x + w / 2, top + number * 18, line, anchor="middle", bold=number == 0 and len(lines) > 1)

    def text(
        self,
        x: float,
        y: float,
        line: str,
        *,
        anchor: str = "start",
        bold: bool = False,
        colour: str = INK,
        size: int = 14,
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}" font-size="{size}"{weight}>{escape(line)}</text>'
        )

    def arrow(
        self, x1: float, y1: float, x2: float, y2: float, label: str = "", *, colour: str = INK, dash: bool = False
    ) -> None:
        style = ' stroke-dasharray="5 4"' if dash else ""
        self.parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" stroke-width="1.6" marker-end="url(#tip)"{style}/>'
        )
        if label:
            self.text((x1 + x2) / 2, (y1 + y2) / 2 - 7, label, anchor="middle", size=12)

    def save(self, name: str) -> None:
        width, height = self.size
        tip = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="#263238"/></marker>'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" font-family="system-ui, sans-serif">'
        (TARGET / f"{name}.svg").write_text(
            f"{head}<title>{escape(self.title)}</title><defs>{tip}</defs>\n" + "\n".join(self.parts) + "\n</svg>\n",
            encoding="utf-8",
        )


def batch() -> None:
    p = Picture(
        820,
        270,
        "A batch: a table of rows with addresses; each row is kept, dropped with a reason, or failed with an error",
    )
    p.text(20, 28, "address", bold=True)
    p.text(170, 28, "text", bold=True)
    p.text(330, 28, "words", bold=True, colour=TEAL)
    p.text(500, 28, "rule: words >= 50", bold=True)
    rows = [
        ("a.jsonl:0", "It was a bright ...", "812", "kept", LIGHT, TEAL, "out/part-000000.jsonl"),
        ("a.jsonl:5120", "Click here", "2", "dropped: words < 50", PALE, ORANGE, ".tamis/rejects/"),
        ("a.jsonl:5141", "When the river ...", "655", "kept", LIGHT, TEAL, "out/part-000000.jsonl"),
        ("a.jsonl:9002", '{"text": "cut o', "-", "failed: JSON is truncated", "#eceff1", GRAY, ".tamis/failed/"),
    ]
    for number, (address, text, words, fate, fill, edge, place) in enumerate(rows):
        y = 44 + number * 42
        p.box(12, y, 300, 34, fill="#fff", edge=GRAY)
        p.text(22, y + 22, address, size=13)
        p.text(172, y + 22, text, size=13)
        p.box(322, y, 60, 34, words, fill="#fff", edge=TEAL)
        p.arrow(388, y + 17, 428, y + 17)
        p.box(432, y, 190, 34, fate, fill=fill, edge=edge)
        p.arrow(626, y + 17, 656, y + 17)
        p.text(662, y + 22, place, size=12)
    p.text(
        20,
        246,
        "read + created = kept + dropped + failed, for every run. A filter measures first, then decides.",
        size=13,
    )
    p.save("batch")


def stages() -> None:
    p = Picture(820, 326, "Stages: consecutive steps run in one worker; a Gather needs all rows and ends a stage")
    p.box(12, 34, 500, 96, fill="#fff", edge=GRAY, dash=True)
    p.text(22, 26, "stage 1, in each worker, batch after batch", size=13)
    for number, lines in enumerate(
        (("Source", "read"), ("Map", "clean"), ("Filter", "score, rules"), ("Gather", "observe"))
    ):
        p.box(24 + number * 122, 52, 104, 60, *lines)
        if number < 3:
            p.arrow(130 + number * 122, 82, 144 + number * 122, 82)
    p.arrow(514, 82, 566, 82, "facts")
    p.box(
        570,
        42,
        234,
        80,
        "exchange",
        "small facts about every row,",
        "on disk or in an object store",
        fill=PALE,
        edge=ORANGE,
    )
    p.arrow(688, 124, 688, 158)
    p.box(570, 162, 234, 56, "resolve", "decide which rows to keep")
    p.arrow(688, 220, 688, 246)
    p.text(22, 222, "stage 2: rows are read again if no step changed them, else from disk", size=13)
    p.box(12, 240, 104, 56, "read")
    p.arrow(118, 268, 146, 268)
    p.box(150, 240, 122, 56, "decisions", "as a filter")
    p.arrow(274, 268, 306, 268)
    p.box(310, 240, 92, 56, "steps", "...")
    p.arrow(404, 268, 412, 268)
    p.box(414, 240, 90, 56, "Sink", "write")
    p.box(620, 250, 136, 40, "decisions", fill=PALE, edge=ORANGE)
    p.parts.append(
        '<path d="M688 290V314H211V300" fill="none" stroke="#263238" stroke-width="1.6" marker-end="url(#tip)"/>'
    )
    p.save("stages")


def memory() -> None:
    p = Picture(820, 250, "Memory: one budget for the whole process tree, divided into shares")
    p.text(20, 26, "--memory 2GB: one budget for all processes of the run", bold=True)
    p.box(12, 40, 796, 84, fill="#fff", edge=INK)
    for x, w, lines, fill, edge in (
        (22, 120, ("driver", "plan, ledger"), "#eceff1", GRAY),
        (150, 190, ("worker 1", "batch, kernels, cap"), LIGHT, TEAL),
        (348, 190, ("worker 2", "batch, kernels, cap"), LIGHT, TEAL),
        (546, 130, ("packets", "between stages"), PALE, ORANGE),
        (684, 114, ("reserve",), "#fff", GRAY),
    ):
        p.box(x, 50, w, 64, *lines, fill=fill, edge=edge, dash=lines[0] == "reserve")
    p.arrow(245, 160, 245, 126)
    p.box(
        40,
        162,
        420,
        72,
        "a worker near its cap",
        "smaller batches, then one row at a time;",
        "a row that does not fit fails with its size",
        fill=LIGHT,
    )
    p.arrow(611, 160, 611, 126)
    p.box(
        480,
        162,
        320,
        72,
        "packets beyond their share",
        "go to disk; fast stages wait for slow ones",
        fill=PALE,
        edge=ORANGE,
    )
    p.save("memory")


def resume() -> None:
    p = Picture(820, 240, "Resume: partitions that are committed are not processed again")
    p.text(20, 26, "first run", bold=True)
    p.text(20, 136, "the same command again", bold=True)
    for number in range(8):
        x = 20 + number * 76
        done = number < 5
        p.box(
            x, 40, 68, 40, f"part {number}", fill=LIGHT if done else "#fff", edge=TEAL if done else GRAY, dash=not done
        )
        p.box(x, 150, 68, 40, f"part {number}", fill="#eceff1" if done else LIGHT, edge=GRAY if done else TEAL)
    p.text(636, 64, "killed during part 5", colour=ORANGE, bold=True)
    p.text(20, 104, "ledger: one checksummed line per commit, written after the files are complete", size=13)
    p.text(636, 174, "only 5, 6 and 7 run", colour=TEAL, bold=True)
    p.text(
        20,
        220,
        "A changed file, parameter or function invalidates only what depends on it. The result is that of one run.",
        size=13,
    )
    p.save("resume")


def dedup() -> None:
    p = Picture(820, 300, "Deduplication: candidates by hashes, then every pair is verified")
    p.box(12, 40, 130, 70, "texts", "word 5-grams")
    p.arrow(144, 75, 182, 75)
    p.box(186, 40, 150, 70, "MinHash", "14 bands", "of 8 hashes")
    p.arrow(338, 75, 376, 75)
    p.box(380, 40, 170, 70, "equal bands", "candidates, joined", "to components")
    p.arrow(552, 75, 590, 75)
    p.box(594, 40, 212, 70, "compare in order", "Jaccard >= 0.8 with a row", "that is kept?", fill=PALE, edge=ORANGE)
    p.text(12, 150, "A chain of similar pairs is not one group:", bold=True)
    for x, name, fill, edge in ((60, "A", LIGHT, TEAL), (230, "B", PALE, ORANGE), (400, "C", LIGHT, TEAL)):
        p.box(x, 176, 60, 44, name, fill=fill, edge=edge)
    p.arrow(122, 198, 226, 198, "0.9")
    p.arrow(292, 198, 396, 198, "0.9")
    p.text(262, 250, "A and C: 0.6", anchor="middle", size=13)
    p.text(500, 184, "B is dropped: 0.9 to A, which is kept.", size=14)
    p.text(500, 206, "C is kept: B is dropped, and A is not similar.", size=14)
    p.text(500, 228, ".tamis/groups/ records both decisions.", size=14)
    p.text(
        12,
        284,
        "Other kinds replace the first two boxes: digests, embeddings, hashes of pictures, fingerprints of sounds.",
        size=13,
    )
    p.save("dedup")


def scaling() -> None:
    p = Picture(820, 310, "Scaling: one machine, a cluster, or a job array; the rows are the same")
    p.text(20, 26, "one machine", bold=True)
    p.box(12, 40, 230, 150, fill="#fff", edge=GRAY, dash=True)
    p.box(72, 52, 110, 36, "driver")
    for number in range(3):
        p.arrow(127, 90, 58 + number * 70, 126)
        p.box(26 + number * 70, 130, 62, 44, "worker")
    p.text(296, 26, "Ray or Dask cluster", bold=True)
    p.box(286, 40, 250, 150, fill="#fff", edge=GRAY, dash=True)
    p.box(356, 52, 110, 36, "driver")
    for number in range(2):
        p.arrow(411, 90, 348 + number * 126, 112)
        p.box(296 + number * 122, 116, 108, 66, "node: agent", "forks workers")
    p.text(590, 26, "job array (Slurm, SSH, ...)", bold=True)
    p.box(578, 40, 230, 150, fill="#fff", edge=GRAY, dash=True)
    for number, name in enumerate(("shard 1/3", "shard 2/3", "shard 3/3")):
        p.box(588 + number * 74, 60, 66, 44, name.split()[0], name.split()[1])
        p.arrow(621 + number * 74, 106, 693, 140)
    p.box(610, 144, 166, 36, "shared folder", fill=PALE, edge=ORANGE)
    for x in (127, 411, 693):
        p.arrow(x, 192, x, 228)
    p.box(12, 232, 796, 44, "the same rows, reasons, files and account, bit for bit", fill=LIGHT)
    p.text(
        20,
        300,
        "Workers exchange files, not objects, so a node or a job may be lost at any moment; its work is repeated elsewhere.",
        size=13,
    )
    p.save("scaling")


if __name__ == "__main__":
    for draw in (batch, stages, memory, resume, dedup, scaling):
        draw()
