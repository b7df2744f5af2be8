"""Runs to look at, and a browser. Both are made once for a module."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tamis import JsonlReader, ParquetWriter, Pipeline
from tamis.dedup import FuzzyDedup
from tamis.errors import TooManyFailed
from tamis.text import BadWords, RepeatedLines, WordCount

PROSE = (
    "The council met on Monday and agreed on the budget of the town for the coming year. "
    "Most of it goes to schools and to the repair of roads, and a part of it to the library."
)
EVIL = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> \x1b[31mred\x1b[0m \u202egnp.exe"


def documents() -> list[dict[str, Any]]:
    """Rows of which a part is dropped for each reason."""
    rows: list[dict[str, Any]] = []
    for number in range(40):
        rows.append({"id": f"long-{number}", "text": f"Report {number * 7919 % 97}: " + PROSE + f" Item {number}." * 3})
    for number in range(12):
        rows.append({"id": f"short-{number}", "text": " ".join(["word"] * (number + 1))})
    for number in range(5):
        rows.append({"id": f"menu-{number}", "text": "Click here to subscribe now\n" * 12 + PROSE + f" {number}"})
    for number in range(3):
        rows.append({"id": f"rude-{number}", "text": f"{PROSE} Well, darn it, number {number}. {PROSE}"})
    copy = "A long walk along the river leads past the old mill and the bridge to the station. " * 4
    rows += [{"id": f"copy-{number}", "text": copy + f"Version {number}."} for number in range(4)]
    rows.append({"id": EVIL, "text": f"{EVIL} {PROSE} {EVIL}"})
    rows.append({"id": "huge", "text": "x" * 10_000_000})
    return rows


def write_rows(folder: Path, rows: list[dict[str, Any]], *, damaged: int = 1) -> Path:
    folder.mkdir(parents=True)
    lines = [json.dumps(row) + "\n" for row in rows]
    (folder / "a.jsonl").write_text("".join(lines[::2]) + '{"id": "broken", "text": \n' * damaged)
    name = "b<img src=x onerror=alert(1)>.jsonl"
    (folder / name).write_bytes("".join(lines[1::2]).encode() + b'{"id": "\xff\xfe", "text": "not UTF-8"}\n')
    return folder


def steps() -> list[Any]:
    return [WordCount(min_words=10), RepeatedLines(), BadWords(listed=["darn"]), FuzzyDedup()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of a finished run with rejects and scores, and hostile rows and file names."""
    folder = tmp_path_factory.mktemp("runs")
    source = JsonlReader(str(write_rows(folder / "in", documents())), files_per_partition=1)
    output = str(folder / "clean")
    Pipeline(source, *steps(), ParquetWriter(output)).run(
        executor="inline", rejects=True, scores=True, max_failed="50%", progress=False
    )
    return output


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of a run that ended because too many rows failed."""
    folder = tmp_path_factory.mktemp("failed")
    source = JsonlReader(str(write_rows(folder / "in", documents()[:20], damaged=40)))
    output = str(folder / "broken")
    with pytest.raises(TooManyFailed):
        Pipeline(source, WordCount(min_words=10), ParquetWriter(output)).run(
            executor="inline", max_failed=5, progress=False
        )
    return output


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of a run over an input without rows."""
    folder = tmp_path_factory.mktemp("empty")
    (folder / "in").mkdir()
    (folder / "in" / "a.jsonl").write_text("")
    output = str(folder / "nothing")
    source = JsonlReader(str(folder / "in"))
    Pipeline(source, WordCount(), ParquetWriter(output)).run(executor="inline", progress=False)
    return output


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window. Module-wide: while it is open, no other event loop can run in the process."""
    from playwright.sync_api import sync_playwright

    sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
    try:
        from find_browser import find_browser
    finally:
        sys.path.pop(0)
    path = find_browser()
    if path is None:
        pytest.fail("there is no Chromium to test pages with: apt-get install chromium, or set TAMIS_BROWSER")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield opened
        opened.close()


class Tab:
    """A page in the browser that notes errors and requests."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1200, "height": 800}, **options})
        self.context.set_default_timeout(60_000)  # the machine may be busy; nothing waits that long on an idle one
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self._note(message.type, message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", lambda dialog: (self.problems.append(f"dialog {dialog.message}"), dialog.dismiss()))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.problems.append(text)


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    opened = Tab(browser)
    yield opened
    opened.context.close()
