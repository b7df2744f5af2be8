"""Files of Git repositories as rows: what they have, what is never run, and what damage costs."""

import json
import os
import subprocess
import zlib
from pathlib import Path

import pytest

from tamis import GitReader, ParquetWriter, Pipeline
from tamis.errors import DamagedFile, ParameterError, SourceError
from tamis.recipes.load import load_recipe
from tamis.sources.languages import language_of
from tests.text.test_licenses import MIT
from tests.text.test_secrets import KEYS

FILES = {
    "LICENSE": MIT.encode(),
    "README.md": b"# A project\n",
    "run": b"#!/usr/bin/env python3\nprint(1)\n",
    "src/a.py": "x = 'é'\n".encode(),
    "src/data.bin": b"\0\1\2" * 10,
    "src/latin.txt": "é".encode("latin-1"),
    "src/large.c": b"int x;\n" * 500,
    "vendor/COPYING": b"GNU GENERAL PUBLIC LICENSE\nVersion 2, June 1991\n",
    "vendor/lib/b.c": b"int y;\n",
    "with space\n.txt": b"odd name",
}


def git(folder, *arguments, **more):
    identity = {f"GIT_{who}_{what}": "ann@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    dates = {f"GIT_{who}_DATE": "2024-01-01T00:00:00Z" for who in ("AUTHOR", "COMMITTER")}
    environment = {**os.environ, **identity, **dates, "GIT_CONFIG_GLOBAL": os.devnull, **more}
    done = subprocess.run(
        ["git", "-C", folder, *arguments], env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repo(tmp_path):
    folder = tmp_path / "repos" / "project"
    for name, data in FILES.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    (folder / "link").symlink_to("/etc/passwd")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    git(folder, "remote", "add", "origin", "https://ann:secret@example.org/ann/project.git")
    return folder


def read(*paths, **parameters):
    table = Pipeline(GitReader([str(path) for path in paths], **parameters)).collect(executor="inline")
    return {row["path"]: row for row in table.to_pylist()}


def test_each_regular_file_of_a_commit_is_a_row(repo):
    rows = read(repo, max_bytes=2000)
    assert set(rows) == set(FILES)  # the link is no row
    first = rows["src/a.py"]
    assert first == {
        "id": git(repo, "rev-parse", "HEAD:src/a.py"),
        "repo": "https://example.org/ann/project.git",
        "commit": git(repo, "rev-parse", "HEAD"),
        "path": "src/a.py",
        "language": "python",
        "license": "MIT",
        "kind": "text",
        "text": "x = 'é'\n",
        "size": 9,
    }
    assert rows["run"]["language"] == "python"
    assert rows["vendor/lib/b.c"]["license"] == "GPL-2.0-only"
    kinds = {path: row["kind"] for path, row in rows.items() if row["text"] is None}
    assert kinds == {"src/data.bin": "binary", "src/latin.txt": "not UTF-8", "src/large.c": "too large"}


def test_refs_bare_repositories_and_folders_of_them(repo, tmp_path):
    git(repo, "tag", "v1")
    (repo / "src/a.py").write_text("changed\n")
    git(repo, "commit", "-qam", "second")
    (repo / "src/a.py").write_text("not committed\n")
    git(tmp_path, "clone", "-q", "--bare", str(repo), str(tmp_path / "repos" / "deep" / "copy.git"))
    assert read(repo)["src/a.py"]["text"] == "changed\n"
    assert read(repo, ref="v1")["src/a.py"]["text"] == "x = 'é'\n"
    source = GitReader(str(tmp_path / "repos"), languages=["python"])
    both = Pipeline(source).collect(executor="inline")
    assert both["path"].to_pylist() == ["src/a.py", "src/a.py"]
    assert Pipeline(GitReader(str(tmp_path / "repos"), ref="v1")).run().read == 2 * len(FILES)
    with pytest.raises(DamagedFile, match="has no commit 'nothing'"):
        read(repo, ref="nothing")
    with pytest.raises(DamagedFile, match="has no commit"):
        read(repo, ref="--help")


@pytest.mark.parametrize(("skip", "limit"), [(0, 3), (2, 5), (9, None), (10, None)])
def test_partitions_skip_and_limit_give_the_same_rows(repo, skip, limit):
    every = list(read(repo))
    expected = every[skip : None if limit is None else skip + limit]
    for blocksize in (1, 1000, "1MB"):
        assert list(read(repo, blocksize=blocksize, skip=skip, limit=limit)) == expected


def test_nothing_of_a_repository_is_run(repo, tmp_path):
    ran = tmp_path / "ran"
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    script.chmod(0o755)
    for hook in ("post-checkout", "pre-commit", "reference-transaction", "post-index-change"):
        (repo / ".git/hooks" / hook).write_text(script.read_text())
        (repo / ".git/hooks" / hook).chmod(0o755)
    (repo / ".gitattributes").write_text("* filter=evil diff=evil\n")
    for name in (
        "core.fsmonitor",
        "filter.evil.smudge",
        "filter.evil.clean",
        "diff.evil.textconv",
        "core.sshCommand",
        "core.pager",
    ):
        git(repo, "config", name, str(script))
    for name, value in {
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "protocol.ext.allow": "always",
    }.items():
        git(repo, "config", name, value)
    git(repo, "config", "remote.origin.url", f"ext::{script}")
    blob = git(repo, "rev-parse", "HEAD:src/a.py", GIT_NO_LAZY_FETCH="1")
    ran.unlink(missing_ok=True)
    (repo / ".git/objects" / blob[:2] / blob[2:]).unlink()  # git would fetch it from the remote
    report = Pipeline(GitReader(str(repo)), ParquetWriter(tmp_path / "out")).run(executor="inline", max_failed=0.9)
    assert not ran.exists()
    assert (report.read, report.failed) == (len(FILES), 1)


def test_a_damaged_object_costs_its_row(repo, tmp_path):
    blob = git(repo, "rev-parse", "HEAD:src/a.py")
    file = Path(repo, ".git/objects", blob[:2], blob[2:])
    file.chmod(0o644)
    file.write_bytes(zlib.compress(b"blob 9\0" + b"other con")[:-6])
    report = Pipeline(GitReader(str(repo)), ParquetWriter(tmp_path / "out")).run(executor="inline", max_failed=0.9)
    assert (report.read, report.kept, report.failed) == (len(FILES), len(FILES) - 1, 1)


def test_mistakes_are_explained(tmp_path):
    with pytest.raises(SourceError, match="contains no Git repository"):
        read(tmp_path)
    with pytest.raises(SourceError, match="is not on this machine"):
        read("https://example.org/x.git")
    with pytest.raises(SourceError, match="is not a folder"):
        read(tmp_path / "none")
    with pytest.raises(ParameterError, match="must be positive"):
        GitReader(str(tmp_path), max_bytes=0).check()


@pytest.mark.parametrize(
    ("name", "first", "language"),
    [
        *(("a/b.PY", "", "python"), ("x.tar.gz", "", None), ("CMakeLists.txt", "", "cmake"), (".profile", "", "shell")),
        *(("x", "#!/bin/bash -e", "shell"), ("x", "#! /usr/bin/perl", "perl"), ("x", "#!", None), ("x.h", "", "c")),
        *(
            ("x", "#!/usr/bin/env -S node --x", "javascript"),
            (".gitignore", "", None),
            ("Dockerfile", "", "dockerfile"),
        ),
    ],
)
def test_languages(name, first, language):
    assert language_of(name, first) == language


SHORT = "def add(left, right):\n    return left + right\n\n\n"
WORDS = [
    first + second for first in ("red", "green", "blue", "grey") for second in ("box", "line", "dot", "map", "key")
]
LONG = "".join(f"def {word}(value):\n    return {word[::-1]}.{word[1:]}(value)\n\n" for word in WORDS)


def test_the_recipe_stack_keeps_permissive_code_once_and_masks_secrets(tmp_path):
    permissive = {
        "LICENSE": MIT,
        "a.py": LONG,
        "copy.py": f"{LONG}# a comment at the end\n",
        "b.py": f"# Copyright 2020 Ann, MIT License\n{SHORT}token = '" + KEYS["GitHub"] + "'\n",
        "c.js": "x" * 2000 + "\n\n",
        "gpl.c": "/* SPDX-License-Identifier: GPL-3.0-only */\nint x;\nint y;\n",
        "image.png": b"\x89PNG\0",
    }
    without = {"d.py": SHORT.replace("add", "subtract")}
    for name, files in (("good", permissive), ("none", without)):
        folder = tmp_path / "repos" / name
        folder.mkdir(parents=True)
        for path, data in files.items():
            (folder / path).write_bytes(data if isinstance(data, bytes) else data.encode())
        git(folder, "init", "-q")
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", "first")
    recipe = load_recipe("stack").with_paths(input=str(tmp_path / "repos"), output=str(tmp_path / "out"))
    assert [step.name for step in recipe.steps][:1] == ["git_reader"]
    report = Pipeline(*recipe.operators()).run(executor="inline")
    lines = (tmp_path / "out" / "part-000000.jsonl").read_text().splitlines()
    kept = {row["path"]: row for row in map(json.loads, lines)}
    assert set(kept) == {"LICENSE", "a.py", "b.py"}
    assert kept["b.py"]["text"] == f"{SHORT}token = '[KEY]'\n"
    assert report.dropped == {
        "license_kind is missing": 1,
        "license_kind not in permissive": 1,
        "longest_line > 1000": 1,
        "lines_of_code < 2": 1,
        "near-duplicate": 1,
    }
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"text": LONG, "license": "mit"}) + "\n" + json.dumps({"text": LONG, "license": None}))
    recipe = load_recipe("stack").with_paths(input=str(rows), output=str(tmp_path / "out2"))
    assert Pipeline(*recipe.operators()).run(executor="inline").kept == 1
