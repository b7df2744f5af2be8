"""The commands of docs/looking.md run, in the order of the page."""

import json
import re
import shlex
from pathlib import Path

from tamis.cli import main

PAGE = Path(__file__).parent.parent.parent / "docs" / "looking.md"


def test_the_commands_of_the_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("crawl").mkdir()
    texts = ["The sea is wide and cold.", "too short", "A ship on the sea.", "Three words here."]
    rows = [
        {"id": f"doc-{number}", "url": f"https://site{number % 2}.example/{number}", "text": text}
        for number, text in enumerate(texts, 1)
    ]
    Path("crawl/a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    commands = [
        line
        for block in re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
    ]
    assert len(commands) == 11
    printed = {}
    for command in commands:
        program, *arguments = shlex.split(command)
        if arguments[0] == "run":
            arguments += ["--executor", "inline"]
        assert (program, main(arguments)) == ("tamis", 0), command
        printed[command] = capsys.readouterr().out
    assert "too short" in printed["tamis head clean/ --fate dropped --column text"]
    assert printed['tamis grep "words <" clean/ --in _reason --count'] == "1\n"
    assert "words = 2   (from 3 to 100000)" in printed["tamis why clean/ doc-2"]
    assert "dropped: words < 3, 2: kept" in printed["tamis compare clean/ clean-2/"]
    assert Path("corpus.html").read_text().startswith("<!doctype html>")
