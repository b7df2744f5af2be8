"""Take the screenshots of docs/dashboard.md from the included speeches, with Chromium: python scripts/make_screenshots.py"""

import gzip
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from find_browser import find_browser
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from tamis import JsonlReader, ParquetWriter, Pipeline
from tamis.dashboard.report_page import write_report_page
from tamis.dedup import FuzzyDedup
from tamis.errors import TooManyFailed
from tamis.text import C4Quality, GopherQuality, GopherRepetition, Language

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "screenshots"
FOREIGN = {
    "fr": "Le conseil municipal a approuvé hier soir le budget de la ville, après un long débat sur les écoles. ",
    "de": "Der Stadtrat hat gestern Abend nach langer Debatte den Haushalt der Stadt beschlossen. ",
    "es": "El ayuntamiento aprobó anoche el presupuesto de la ciudad tras un largo debate sobre las escuelas. ",
}


def pages(count: int) -> list[dict[str, str]]:
    """Speeches with the faults of web pages: menus, lists, fragments, other languages, copies."""
    rng = random.Random(7)
    with gzip.open(ROOT / "tamis" / "recipes" / "speeches.jsonl.gz") as lines:
        paragraphs = [json.loads(line)["text"] for line in lines]
    rows = []
    for number in range(count):
        start = rng.randrange(len(paragraphs) - 9)
        content, fault = "\n".join(paragraphs[start : start + rng.randrange(2, 9)]), rng.random()
        if fault < 0.05:
            content = content[: rng.randrange(5, 160)]
        elif fault < 0.11:
            content = "Click here to subscribe to our newsletter\n" * rng.randrange(4, 20) + content[:300]
        elif fault < 0.18:
            content = FOREIGN[rng.choice(sorted(FOREIGN))] * rng.randrange(2, 9)
        elif fault < 0.22:
            content = "\n".join("- " + sentence for sentence in content.split(". ")) + " ..."
        rows.append({"id": f"page-{number:05d}", "url": f"https://example.org/{number}", "text": content})
        if rng.random() < 0.12:
            changed = content.replace(" the ", " a ", 1) + " (updated)"
            rows.append(
                {"id": f"page-{number:05d}-copy", "url": f"https://mirror.example.org/{number}", "text": changed}
            )
    return rows


def make_runs(folder: Path) -> tuple[Pipeline, threading.Event]:
    """A finished run, a failed one, an empty one, and one that waits in the middle."""
    (folder / "crawl").mkdir()
    (folder / "none").mkdir()
    (folder / "none" / "a.jsonl").write_text("")
    rows = pages(4_000)
    for number in range(8):
        lines = [json.dumps(row) + "\n" for row in rows[number::8]]
        (folder / "crawl" / f"{number:02d}.jsonl").write_text(
            "".join(lines) + '{"id": "cut off", "text": \n' * (number == 3)
        )
    source = JsonlReader("crawl", files_per_partition=1)
    steps = [Language(keep=["en"]), GopherRepetition(), GopherQuality(), C4Quality()]
    options = {"executor": "inline", "progress": False, "memory": "1GB"}
    Pipeline(source, *steps, FuzzyDedup(), ParquetWriter("clean-en")).run(rejects=True, scores=True, **options)
    try:
        damaged = folder / "damaged"
        damaged.mkdir()
        (damaged / "a.jsonl").write_text('{"id": 1, "text": \n' * 400)
        Pipeline(JsonlReader("damaged"), *steps, ParquetWriter("old-dump")).run(max_failed="5%", **options)
    except TooManyFailed:
        pass
    Pipeline(JsonlReader("none"), *steps, ParquetWriter("no-rows")).run(**options)
    proceed, seen = threading.Event(), []

    def wait(row):  # type: ignore[no-untyped-def]
        seen.append(row)
        if len(seen) > 2_600:  # in the seventh of eight files
            proceed.wait()
        return {"seen": True}

    return Pipeline(source, *steps, wait, ParquetWriter("clean-strict")), proceed


def shoot(
    browser: Browser, url: str, name: str, *, to: str = "", wait: str = "", size=(1200, 800), scheme="light"
) -> None:
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, device_scale_factor=1.25
    )
    page = context.new_page()
    page.goto(url)
    if wait:
        page.locator(wait).first.wait_for()
    if name == "thresholds":
        slider = page.locator("[data-slider]").first
        slider.focus()
        for _ in range(3):
            page.keyboard.press("ArrowLeft")
    if to:
        page.evaluate(f"document.querySelector('#{to}').scrollIntoView({{behavior: 'instant'}})")
    picture = Image.open(io.BytesIO(page.screenshot(animations="disabled")))
    picture.save(TARGET / f"{name}.webp", quality=82, method=6)
    context.close()


def shoot_all(browser: Browser, file: str, url: str) -> None:
    shoot(browser, file, "report")
    shoot(browser, file, "report-dark", scheme="dark")
    for part in ("reasons", "thresholds", "rows", "duplicates", "makeup", "resources", "failures"):
        shoot(browser, file, part, to=part)
    shoot(browser, file, "phone", size=(390, 844))
    shoot(browser, f"{url}runs/2", "running", wait="#progress td:has-text('6 of 8')")
    shoot(browser, url, "dashboard", wait=".chip.running")
    shoot(browser, f"{url}runs/3", "failed", wait=".chip.failed")
    shoot(browser, f"{url}runs/4", "empty", wait="#funnel .empty")


def main() -> int:
    TARGET.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        folder = Path(temporary)
        os.chdir(folder)  # so that paths on the pages are short
        pipeline, proceed = make_runs(folder)
        run = threading.Thread(
            target=lambda: pipeline.run(executor="inline", progress=False, memory="1GB"), daemon=True
        )
        run.start()
        write_report_page("clean-en", folder / "report.html")
        file = (folder / "report.html").as_uri()
        outputs = ("clean-en", "clean-strict", "old-dump", "no-rows")
        command = [sys.executable, "-m", "tamis", "dashboard", *outputs, "--port", "0"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert server.stderr is not None
            url = server.stderr.readline().removeprefix("dashboard: ").strip()
            browser = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
            shoot_all(browser, file, url)
            browser.close()
        finally:
            server.terminate()
            server.wait()
            proceed.set()
        run.join()
    total = sum(path.stat().st_size for path in TARGET.iterdir())
    sys.stdout.write(f"{len(list(TARGET.iterdir()))} screenshots, {total / 1e6:.2f} MB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
