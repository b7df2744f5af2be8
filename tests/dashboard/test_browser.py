"""Pages in a real browser: Chromium opens files and the live dashboard, clicks, types, and reports no error."""

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tamis import JsonlReader, ParquetWriter, Pipeline
from tamis.cli import main
from tamis.dashboard.report_page import write_report_page
from tamis.text import WordCount
from tests.dashboard.conftest import Tab, documents, write_rows

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page_file(finished, tmp_path_factory):
    file = tmp_path_factory.mktemp("pages") / "report.html"
    assert main(["report", finished, "--html", str(file)]) == 0
    return file


class Server:
    """`tamis dashboard` in a process of its own."""

    def __init__(self, *outputs, port=0):
        command = [sys.executable, "-m", "tamis", "dashboard", *outputs, "--port", str(port)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.url = self.process.stderr.readline().removeprefix("dashboard: ").strip()

    @property
    def port(self):
        return int(self.url.rstrip("/").rpartition(":")[2])

    def stop(self):
        self.process.terminate()
        self.process.wait(60)
        self.process.stderr.close()


@pytest.fixture(scope="module")
def server(finished, failed, empty, tmp_path_factory):
    started = Server(finished, failed, empty, str(tmp_path_factory.mktemp("later") / "not-there-yet"))
    yield started
    started.stop()


# --------------------------------------------------------------------------------------------------------- the report page


def test_the_page_of_a_finished_run_opens_offline_without_errors(tab, page_file):
    tab.page.goto(page_file.as_uri())
    assert tab.page.locator("h1").inner_text() == "clean"
    assert tab.page.locator(".chip").inner_text() == "Finished"
    titles = tab.page.locator("main h2").all_inner_texts()
    assert titles == [
        "From read to kept",
        "Why rows were dropped",
        "Thresholds",
        "Rows",
        "Duplicates",
        "Languages and lengths",
        "Time and memory",
        "Failures",
        "Settings",
    ]
    tab.page.locator("#duplicates ins").first.wait_for()
    assert tab.requests == [page_file.as_uri()], "one file, and nothing from elsewhere"
    assert tab.problems == []


def test_a_click_on_a_reason_shows_its_rows(tab, page_file):
    tab.page.goto(page_file.as_uri())
    tab.page.get_by_role("link", name="bad_words > 0").click()
    shown = tab.page.locator(".row[data-fate]:visible")
    assert shown.count() == 3
    assert {row.locator("header span").first.inner_text() for row in shown.all()} == {"bad_words > 0"}
    assert shown.first.locator("mark").first.inner_text() == "darn"
    assert tab.page.locator("#rows-shown").inner_text() == "3 rows dropped because of: bad_words > 0"
    tab.page.get_by_role("button", name="Kept").click()
    assert set(tab.page.locator(".row[data-fate]:visible header b").all_inner_texts()) == {"kept"}


def test_the_slider_says_what_another_threshold_keeps_and_prints_the_command(tab, page_file, finished):
    tab.page.goto(page_file.as_uri())
    slider = tab.page.get_by_label(re.compile("min_words"))
    before = int(slider.get_attribute("value"))
    box = tab.page.locator(".slider", has=slider)
    assert not box.locator("code").is_visible()
    slider.focus()
    tab.page.keyboard.press("ArrowLeft")
    tab.page.keyboard.press("ArrowLeft")
    assert int(slider.input_value()) == before - 2
    assert slider.get_attribute("aria-valuetext") == "8"
    assert "2 more than now" in box.locator("output").inner_text(), "texts of 8 and 9 words"
    assert box.locator("code").inner_text() == f"tamis rethreshold {finished} --set word_count.min_words=8"
    tab.page.keyboard.press("ArrowRight")
    tab.page.keyboard.press("ArrowRight")
    assert "as now" in box.locator("output").inner_text()
    assert tab.problems == []


def test_the_page_can_be_used_with_the_keyboard_alone(tab, page_file):
    tab.page.goto(page_file.as_uri())
    focused = "document.activeElement"
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate(f"{focused}.textContent") == "Skip to the content"
    tab.page.keyboard.press("Enter")
    assert tab.page.evaluate(f"{focused}.id") == "content"
    for _ in range(30):
        tab.page.keyboard.press("Tab")
        if tab.page.evaluate(f"{focused}.dataset.reason !== undefined"):
            break
    outline = tab.page.evaluate(f"getComputedStyle({focused}).outlineStyle")
    assert outline == "solid", "the focus is visible"
    tab.page.keyboard.press("Enter")
    assert tab.page.evaluate(f"{focused}.id") == "rows"
    tab.page.keyboard.press("Tab")
    tab.page.keyboard.press("Space")
    assert tab.page.locator("button[aria-pressed=true]").inner_text().startswith("All")


def broken_rules(browser, address, scheme):
    """What axe-core finds: it checks roles, labels, structure and contrast."""
    import axe_playwright_python

    rules = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text()
    tab = Tab(browser, color_scheme=scheme, bypass_csp=True)
    tab.page.goto(address)
    tab.page.evaluate(rules)
    found = tab.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    tab.context.close()
    return [(each["id"], each["nodes"][0]["html"][:200]) for each in found["violations"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_accessibility_rule_is_broken(browser, page_file, scheme):
    assert broken_rules(browser, page_file.as_uri(), scheme) == []


@pytest.mark.parametrize("path", ["", "runs/1", "runs/2", "runs/3", "runs/4"])
def test_no_accessibility_rule_is_broken_by_the_dashboard(browser, server, path):
    assert broken_rules(browser, server.url + path, "dark") == []


def test_no_accessibility_rule_is_broken_by_the_page_of_a_corpus(browser, tmp_path):
    write_rows(tmp_path / "in", documents()[:40])
    page = tmp_path / "corpus.html"
    arguments = ["stats", str(tmp_path / "in"), "--no-language", "--by", "id", "--html", str(page), "--quiet"]
    assert main(arguments) == 0
    assert broken_rules(browser, page.as_uri(), "light") == []


@pytest.mark.parametrize("live", [False, True])
def test_a_phone_needs_no_sideways_scrolling(browser, page_file, server, live):
    tab = Tab(browser, viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    tab.page.goto(f"{server.url}runs/1" if live else page_file.as_uri())
    if live:
        tab.page.get_by_text("up to date").wait_for()
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 360
    tab.context.close()


def test_nothing_from_data_becomes_markup(tab, page_file):
    tab.page.goto(page_file.as_uri())
    tab.page.get_by_role("button", name="All").click()
    assert tab.page.locator("script").count() == 1, "its own"
    assert tab.page.locator("img").count() == 0
    assert "owned" not in tab.page.title()
    assert tab.page.get_by_text("<script>document.title='owned'</script>").count() > 0, "it is shown as text"
    assert tab.problems == [], "and no policy had to stop it"


# ------------------------------------------------------------------------------------------------------ the live dashboard


def test_finished_failed_empty_and_missing_runs_are_side_by_side(tab, server):
    tab.page.goto(server.url)
    states = tab.page.locator(".runs .chip").all_inner_texts()
    assert states == ["Finished", "Failed", "Finished", "No run yet"]
    tab.page.get_by_role("link", name="broken").click()
    assert "`max_failed` allows 5" in tab.page.locator("#failures .fail").inner_text()
    tab.page.get_by_role("link", name="all runs").click()
    tab.page.get_by_role("link", name="nothing").click()
    assert "The input has no rows" in tab.page.locator("#funnel").inner_text()
    tab.page.goto(f"{server.url}runs/1")
    tab.page.locator("#thresholds .slider").first.wait_for()
    assert tab.problems == []


def test_a_running_run_updates_by_itself(tab, tmp_path):
    """The page follows a run from before its start to its end, and a restart of the server."""
    source = JsonlReader(str(write_rows(tmp_path / "in", [{"id": str(n), "text": "a b c"} for n in range(50)])))
    output = str(tmp_path / "out")
    server = Server(output)
    tab.page.goto(server.url)
    chip, read = tab.page.locator(".chip"), tab.page.locator(".figures dd").first
    assert chip.inner_text() == "No run yet"

    proceed = threading.Event()

    def wait(batch):
        proceed.wait()
        return {"done": batch["text"]}

    pipeline = Pipeline(source, WordCount(min_words=1), wait, ParquetWriter(output))
    run = threading.Thread(target=lambda: pipeline.run(executor="inline", max_failed="50%", progress=False))
    run.start()
    try:
        tab.page.locator(".chip.running").wait_for()
        tab.page.locator("#progress [role=progressbar]").wait_for()
        port = server.port
        server.stop()
        tab.page.get_by_text("connection lost, trying again").wait_for()
        server = Server(output, port=port)
        tab.page.get_by_text("live", exact=True).wait_for()
    finally:
        proceed.set()
        run.join()
    tab.page.locator(".chip.finished").wait_for()
    assert read.inner_text() == "52", "50 rows and two that cannot be read"
    assert tab.page.locator("#progress").count() == 0
    tab.page.reload()
    assert chip.inner_text() == "Finished"
    server.stop()
    assert all("ERR_CONNECTION_REFUSED" in problem for problem in tab.problems), tab.problems


def test_another_origin_can_neither_read_nor_embed_the_dashboard(tab, server, tmp_path):
    """A page of another origin, here a file, tries all that a hostile site could try."""
    (tmp_path / "evil.html").write_text(
        f"""<!doctype html><iframe id=frame src="{server.url}runs/1"></iframe>
        <script>
        const tries = [
          fetch("{server.url}runs/1/parts").then((answer) => answer.text()),
          fetch("{server.url}runs/1", {{mode: "no-cors"}})
            .then((answer) => answer.text()).then((text) => text || Promise.reject()),
          fetch("{server.url}runs/1/parts", {{method: "POST", body: "stop"}}).then((answer) => answer.text()),
        ];
        Promise.allSettled(tries).then((all) => {{ document.title = all.map((each) => each.status).join(" "); }});
        </script>"""
    )
    tab.page.goto((tmp_path / "evil.html").as_uri())
    tab.page.wait_for_function("document.title !== ''")
    assert tab.page.title() == "rejected rejected rejected"
    frame = tab.page.frames[1]
    assert frame.url == "chrome-error://chromewebdata/", "the browser refuses to show it in a frame"


def test_a_page_is_made_from_what_is_there(tab, tmp_path):
    """Without rejects and scores the page says how to get them."""
    rows = [{"id": str(number), "text": "one two three" if number % 2 else "one"} for number in range(9)]
    source = JsonlReader(str(write_rows(tmp_path / "in", rows)))
    output = str(tmp_path / "out")
    Pipeline(source, WordCount(min_words=2), ParquetWriter(output)).run(executor="inline", max_failed=9, progress=False)
    write_report_page(output, tmp_path / "page.html")
    tab.page.goto((tmp_path / "page.html").as_uri())
    assert "Run it with --scores" in tab.page.locator("#thresholds").inner_text()
    assert "run it with --rejects" in tab.page.locator("#rows").inner_text()
    assert tab.page.locator("#failures tbody tr").count() == 2
    assert tab.problems == []


def test_a_run_serves_its_own_dashboard_until_it_ends(tab, tmp_path):
    """What `tamis run --dashboard` does: the address is there before the run starts, and the server ends with the run."""
    write_rows(tmp_path / "in", [{"id": str(n), "text": "one two three"} for n in range(20)])
    (tmp_path / "steps.py").write_text(WAITING)
    command = [sys.executable, "steps.py", str(tmp_path / "in"), str(tmp_path / "out")]
    run = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    line = run.stderr.readline()
    assert line.startswith("dashboard: http://127.0.0.1:"), line + run.stderr.read()
    tab.page.goto(line.removeprefix("dashboard: ").strip())
    tab.page.locator(".chip.running").wait_for()
    (tmp_path / "go").touch()
    run.stderr.read()
    assert run.wait() == 0
    run.stderr.close()
    tab.page.get_by_text("connection lost, trying again").wait_for()


WAITING = """
import pathlib, sys, time
from tamis.dashboard.commands import beside_a_run
from tamis import JsonlReader, ParquetWriter, Pipeline

def wait(row):
    while not pathlib.Path("go").exists():
        time.sleep(0.05)
    return {"seen": True}

source, output = sys.argv[1:]
with beside_a_run(output, lambda text: print(text, file=sys.stderr, flush=True)):
    Pipeline(JsonlReader(source), wait, ParquetWriter(output)).run(executor="inline", max_failed="50%", progress=False)
"""
