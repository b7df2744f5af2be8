"""What type checkers and editors see of the package, and the files that scripts/make_names.py writes."""

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tamis
from tamis.names import OPERATORS
from tamis.registry import registered

ROOT = Path(tamis.__file__).parent.parent
BIN = Path(sys.executable).parent

SCRIPT = """\
from typing import reveal_type

from tamis import Filter, JsonlReader, ParquetWriter, Pipeline, operator
from tamis.audio import AudioDuration
from tamis.dedup import FuzzyDedup, Groups
from tamis.image import ImageSize
from tamis.text import GopherQuality, WordCount
from tamis.video import VideoDuration
from tamis.web import HtmlExtract


@operator(reads="text", writes="shouts")
class Shouts(Filter):
    '''Keep texts with few shouts.'''

    max_shouts: int = 3


steps = [GopherQuality(min_words=40, dialect="dolma"), FuzzyDedup(threshold=0.9), ImageSize(), Shouts(max_shouts=1)]
media = [AudioDuration(), VideoDuration(), HtmlExtract()]
report = Pipeline(JsonlReader("in"), *steps, ParquetWriter("out")).run(memory="2GB")
reveal_type(report.kept)
reveal_type(GopherQuality(min_words=1).min_words)
reveal_type(Groups)

WordCount(min_word=3)  # wrong
WordCount(min_words="3")  # wrong
GopherQuality(dialect="gopher")  # wrong
Shouts(max_shouts=None)  # wrong
FuzzyDedup().threshold = 1.0  # wrong
report.keept  # wrong
from tamis.text import GopherQualty  # wrong
"""
WRONG = [number for number, line in enumerate(SCRIPT.splitlines(), 1) if line.endswith("# wrong")]


@pytest.fixture(scope="module")
def make_names():
    spec = importlib.util.spec_from_file_location("make_names", ROOT / "scripts" / "make_names.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    folder = tmp_path_factory.mktemp("user")
    (folder / "script.py").write_text(SCRIPT)
    search = {"pythonVersion": "3.11", "extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
    (folder / "pyrightconfig.json").write_text(json.dumps(search))
    return folder / "script.py"


def test_the_generated_files_are_current(make_names):
    for file, text in make_names.files().items():
        assert file.read_text() == text, f"{file} is out of date: run scripts/make_docs.py"


def test_the_table_of_names_has_every_operator():
    ours = {name: cls for name, cls in registered().items() if cls.__module__.startswith("tamis.")}
    assert {name: f"{cls.__module__}:{cls.__name__}" for name, cls in ours.items()} == OPERATORS


def test_packages_offer_the_names_in_their_stubs(make_names):
    for file, homes in make_names.lazy_packages().items():
        package = importlib.import_module(".".join(file.parent.relative_to(ROOT).parts))
        assert set(package.__all__) == set(dir(package)) == set(homes)
        for name, home in homes.items():
            assert getattr(package, name) is getattr(importlib.import_module(home), name)
        with pytest.raises(AttributeError, match="has no attribute 'Typo'"):
            _ = package.Typo


def test_mypy_accepts_right_parameters_and_finds_wrong_ones(script):
    command = [BIN / "mypy", "--config-file", "pyproject.toml", "--cache-dir", ".mypy_cache", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    found = [int(line.split(":")[1]) for line in lines if f"{script.name}:" in line and ": error: " in line]
    assert found == WRONG, done.stdout
    revealed = re.findall(r'Revealed type is "(.*)"', done.stdout)
    assert revealed[:2] == ["int", "int | None"]
    assert "Groups" in revealed[2]


def test_no_public_name_is_any(make_names, tmp_path):
    """Neither a class, nor what its constructor returns; where a constructor has parameters, the checker sees them."""
    lines, names = ["from typing import Any, reveal_type"], []
    for file, homes in make_names.lazy_packages().items():
        package = ".".join(file.parent.relative_to(ROOT).parts)
        lines.append(f"import {package}")
        names += [f"{package}.{name}" for name in homes]
    (tmp_path / "names.py").write_text("\n".join([*lines, *(f"reveal_type({name})" for name in names)]) + "\n")
    command = [BIN / "mypy", "--config-file", "pyproject.toml", "--cache-dir", ".mypy_cache", tmp_path / "names.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    revealed = re.findall(r'Revealed type is "(.*)"', done.stdout)
    assert len(revealed) == len(names) > 250
    aliases = {"tamis.Scores", "tamis.Column", "tamis.Decide", "tamis.Observations"}  # types of Arrow, which has none
    assert [name for name, kind in zip(names, revealed, strict=True) if kind == "Any" and name not in aliases] == []
    operators = {f"{place.partition(':')[0]}.{place.partition(':')[2]}" for place in OPERATORS.values()}
    results = {kind.rpartition(" -> ")[2] for kind in revealed if kind.startswith("def ")}
    reached = {each for each in operators if each.split(".")[1] in ("text", "image", "audio", "video", "dedup", "web")}
    assert reached <= results


def test_pyright_accepts_right_parameters_and_finds_wrong_ones(script):
    command = [BIN / "basedpyright", "--project", script.parent, "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = [each["range"]["start"]["line"] + 1 for each in found if each["severity"] == "error"]
    assert errors == WRONG, done.stdout
    revealed = [each["message"] for each in found if each["severity"] == "information"]
    assert revealed == [f'Type of "{code}" is "{kind}"' for code, kind in [
        ("report.kept", "int"), ("GopherQuality(min_words=1).min_words", "int | None"), ("Groups", "type[Groups]"),
    ]]  # fmt: skip


class Editor:
    """A client of a language server, as far as completion needs one."""

    def __init__(self, folder):
        command = [BIN / "basedpyright-langserver", "--stdio"]
        environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}  # where it looks for Python
        self.server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder, env=environment
        )
        self.number = 0
        self.ask("initialize", processId=None, rootUri=folder.as_uri(), capabilities={})
        self.tell("initialized")

    def send(self, **message):
        text = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.server.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
        self.server.stdin.flush()

    def tell(self, method, **parameters):
        self.send(method=method, params=parameters)

    def receive(self):
        length = 0
        while line := self.server.stdout.readline().strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return json.loads(self.server.stdout.read(length))

    def ask(self, method, **parameters):
        self.number += 1
        self.send(id=self.number, method=method, params=parameters)
        while True:
            message = self.receive()
            if message.get("id") == self.number and "method" not in message:
                return message["result"]
            if "id" in message:  # the server asks for something, such as settings
                self.send(id=message["id"], result=None)

    def complete(self, file, text):
        """The names offered at the end of `text`."""
        self.tell(
            "textDocument/didOpen",
            textDocument={"uri": file.as_uri(), "languageId": "python", "version": 1, "text": text},
        )
        *before, last = text.split("\n")
        place = {"line": len(before), "character": len(last)}
        found = self.ask("textDocument/completion", textDocument={"uri": file.as_uri()}, position=place)
        self.tell("textDocument/didClose", textDocument={"uri": file.as_uri()})
        return {item["label"] for item in (found["items"] if isinstance(found, dict) else found)}

    def close(self):
        self.ask("shutdown")
        self.tell("exit")
        self.server.communicate()


def test_an_editor_completes_operators_and_their_parameters(script):
    editor = Editor(script.parent)
    try:
        assert {"GopherQuality", "GopherRepetition"} <= editor.complete(
            script.parent / "a.py", "from tamis.text import Gop"
        )
        offered = editor.complete(script.parent / "b.py", "from tamis.text import GopherQuality\nGopherQuality(min_")
        assert {"min_words=", "min_word_length="} <= offered
    finally:
        editor.close()
