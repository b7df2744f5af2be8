"""Run the examples of README and docs: the Python and Bash blocks of each page in order, in one empty folder."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt
from PIL import Image

from tamis.memory.alerts import parse_alerts
from tamis.recipes.load import load_recipe
from tamis.registry import registered
from tests.audio.sounds import sound, tone
from tests.language_server import LanguageServer, shared_server
from tests.video.make_videos import scene, video

LANGUAGE_SERVER = "http://127.0.0.1:8000/v1"
ROOT = Path(__file__).parent.parent
TEXTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", "examples/*.md", "deploy/*.md")
    for path in ROOT.glob(pattern)
)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_blocks_of_code_run(page, tmp_path, request):
    text = page.read_text()
    environment = dict(os.environ)
    if "s3://my-bucket" in text:
        endpoint = make_bucket("my-bucket", request.getfixturevalue("s3_server"))
        environment = {**os.environ, "AWS_ENDPOINT_URL": endpoint}
        text = text.replace("http://localhost:9000", endpoint)
    if LANGUAGE_SERVER in text:
        text = text.replace(LANGUAGE_SERVER, shared_server().url)
        (tmp_path / "model").symlink_to(ROOT / "tests" / "text" / "data" / "causal")
    if "tamis/recipes/" in text:
        (tmp_path / "tamis").mkdir()
        (tmp_path / "tamis" / "recipes").symlink_to(ROOT / "tamis" / "recipes")
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    blocks = re.findall(r"^```(python|bash)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    for number, (language, block) in enumerate(blocks):
        command = [sys.executable, "-W", "error", "-c", block] if language == "python" else ["bash", "-euc", block]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"block {number + 1} of {page.name}:\n{block}\n{done.stdout}\n{done.stderr}"
        printed = re.findall(r"^ *print\(.*\)\s+# (.*)$", block, flags=re.MULTILINE)
        assert done.stdout.splitlines()[: len(printed)] == printed


def make_bucket(name, server):
    """Create the bucket that the documentation reads from and return the endpoint of its server."""
    import s3fs

    system = s3fs.S3FileSystem(**server.storage_options)
    system.mkdir(name)
    texts = ["one two three", "one two", "one two three four"]
    system.pipe_file(f"{name}/raw/a.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts).encode())
    return server.storage_options["endpoint_url"]


def test_the_alerts_of_the_guide_are_accepted():
    (block,) = re.findall(
        r"^```yaml\n(alerts:.*?)^```", (ROOT / "docs" / "memory.md").read_text(), re.DOTALL | re.MULTILINE
    )
    settings = parse_alerts(yaml.safe_load(block)["alerts"])
    assert settings.thresholds.budget_percent == (70, 90)
    assert len(settings.receivers()) == 2


def test_the_recipe_of_the_guide_is_accepted(tmp_path):
    block = re.search(r"^```yaml\n(.*?)^```", (ROOT / "docs" / "recipes.md").read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "recipe.yaml").write_text(block[1])
    recipe = load_recipe(tmp_path / "recipe.yaml")
    assert [step.name for step in recipe.steps] == ["jsonl_reader", "word_count", "gopher_repetition", "parquet_writer"]
    assert recipe.settings.memory == "4GB"


def test_the_shell_commands_of_the_readme_run(tmp_path):
    text = (ROOT / "README.md").read_text()
    recipe = re.search(r"^```yaml\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    (tmp_path / "recipe.yaml").write_text(recipe[1])
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "one two three four"}\n{"text": "one"}\n')
    (tmp_path / "in" / "b.jsonl").write_text(
        '{"text": "one two three four"}\n{"text": "' + "the time of a day " * 20 + '"}\n'
    )
    (tmp_path / "photos").mkdir()
    for size in (256, 512):
        Image.effect_mandelbrot((size, size), (-2, -1.5, 1, 1.5), 50).save(tmp_path / "photos" / f"{size}.png")
    for folder in ("videos", "sounds"):
        (tmp_path / folder).mkdir()
    (tmp_path / "videos" / "a.mp4").write_bytes(video([(scene(1, (320, 240)), 25), (scene(2, (320, 240)), 25)]))
    (tmp_path / "sounds" / "a.wav").write_bytes(sound(tone(3)))
    commands = re.findall(r"^(tamis [^,\n]*?)  +\S.*$", text, flags=re.MULTILINE)
    assert len(commands) >= 5
    for command in commands:
        arguments = command.split()[1:]
        done = subprocess.run([sys.executable, "-m", "tamis", *arguments], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


def test_the_commands_of_the_page_about_language_models_run(tmp_path):
    text = (ROOT / "docs" / "llm.md").read_text()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "' + "the time of a day " * 20 + '"}\n')
    commands = re.findall(r"^(tamis run .*)$", text, flags=re.MULTILINE)
    assert len(commands) == 3
    with LanguageServer(num_words=40) as server:
        for command in commands:
            arguments = command.replace(LANGUAGE_SERVER, server.url).split()[1:]
            environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
            done = subprocess.run(
                [sys.executable, "-m", "tamis", *arguments],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert len(server.requests) == 3


@pytest.fixture(scope="module")
def make_docs():
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "scripts" / "make_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_of_operators_are_current(make_docs):
    pages = dict(make_docs.pages())
    assert {path for path in (ROOT / "docs" / "operators").iterdir()} <= set(pages)
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date: run scripts/make_docs.py"


def test_the_tables_of_the_pages_of_operators_render():
    for path in (ROOT / "docs" / "operators").iterdir():
        page = path.read_text(encoding="utf-8")
        html = MarkdownIt("commonmark").enable("table").render(page)
        assert html.count("<table>") == page.count("| parameter | type | default |")
        prose = " ".join(re.findall(r"<p>(.*?)</p>", html, re.DOTALL))
        assert not re.search(r"\S {2,}\S", prose)  # columns aligned by spaces
        assert "&gt;&gt;&gt;" not in prose


def test_examples_and_tables_of_docstrings_become_code_blocks(make_docs):
    docstring = "Keep rows.\n\nname   meaning\nwords  how many\n\n>>> 1 + 1\n2\n\nCosts nothing."
    assert make_docs.as_markdown(docstring) == (
        "Keep rows.\n\n```text\nname   meaning\nwords  how many\n```\n\n```pycon\n>>> 1 + 1\n2\n```\n\nCosts nothing."
    )


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without building the objects that its tags name."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def entries(node):
    """The pages that a part of the navigation names."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict):
        for value in node.values():
            yield from entries(value)
    else:
        for value in node:
            yield from entries(value)


def test_every_page_of_docs_is_in_the_navigation():
    nav = set(entries(yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"]))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    missing = sorted(page for page in pages - nav if not page.startswith("operators/"))
    assert not missing, (
        f"{', '.join(missing)} in docs/ has no entry in the navigation: add a line such as "
        f"`- {Path(missing[0]).stem.replace('_', ' ').capitalize()}: {missing[0]}` to `nav` in mkdocs.yml"
    )


def anchors(text):
    """The anchors of a Markdown file, as GitHub makes them."""
    found = []
    for title in re.findall(
        r"^#+ (.+?)\s*$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE
    ):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        found.append(re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]*`", "", text)
    for target in re.findall(r"\]\(([^()\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}, which does not exist"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file.read_text(encoding="utf-8")), (
                f"{page.name} links to {target}: no such heading"
            )


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "coming_from").iterdir()), ids=lambda page: page.stem)
def test_pages_for_users_of_other_systems_name_what_exists(page):
    """The last column of the table of names has operators and recipes of Tamis."""
    table = page.read_text().partition("## Names")[2].partition("\n## ")[0]
    known = {*registered(), *(path.stem for path in (ROOT / "tamis" / "recipes").glob("*.yaml"))}
    for line in re.findall(r"^\|.*\|$", table, re.MULTILINE)[2:]:
        ours = line.rstrip("| ").split(" | ")[-1]
        names = re.findall(r"`([a-z0-9_]+)(?:: \{[^`]*)?`", ours)
        assert set(names) <= known, f"{page.name}: {sorted(set(names) - known)}"
