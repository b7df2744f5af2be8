"""The sdist and the wheel: what is in them, and that the wheel works in empty environments."""

import email
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import tamis

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    spec = importlib.util.spec_from_file_location("build_dist", ROOT / "scripts" / "build_dist.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build(tmp_path_factory.mktemp("dist"))


def tracked(*paths):
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *paths]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line for line in lines if (ROOT / line).is_file()}


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(dist):
    names = {name for name in zipfile.ZipFile(dist[1]).namelist() if ".dist-info/" not in name}
    assert names == tracked("tamis")


def test_the_sdist_has_the_package_and_what_describes_it(dist):
    with tarfile.open(dist[0]) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    described = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "MANIFEST.in"}
    made = {name for name in names if name.startswith("tamis.egg-info/")} | {"PKG-INFO", "setup.cfg"}
    assert names - made == tracked("tamis") | described


def test_the_metadata_of_the_wheel(dist):
    with zipfile.ZipFile(dist[1]) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        found = email.message_from_bytes(archive.read(name))
    assert (found["Name"], found["Version"], found["License-Expression"]) == ("tamis", tamis.__version__, "Apache-2.0")
    assert found["Requires-Python"] == ">=3.11"
    core = [each for each in found.get_all("Requires-Dist") if "extra ==" not in each]
    assert len(core) <= 12, "the core stays light"


# ------------------------------------------------------------------------------------------------------ empty environments


def interpreters() -> dict[str, str]:
    """Interpreters of this machine by version."""
    found = {}
    for version in VERSIONS:
        folders = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin"))
        own = sys.executable if sys.version_info[:2] == tuple(map(int, version.split("."))) else None
        for path in (own, *(str(folder / "python") for folder in folders), shutil.which(f"python{version}")):
            if (
                path is not None
                and subprocess.run([path, "-c", "import venv"], capture_output=True, check=False).returncode == 0
            ):
                found[version] = path
                break
    return found


RECIPE = "steps: [{jsonl_reader: {file_paths: in.jsonl}}, {parquet_writer: {path: out}}]"


@pytest.mark.slow
@pytest.mark.parametrize(("place", "resolution"), [(0, "lowest-direct"), (-1, "highest")], ids=["lowest", "newest"])
def test_the_wheel_works_in_an_empty_environment(dist, tmp_path, place, resolution):
    """The lowest Python here with the lowest versions of dependencies, and the newest with the newest."""
    known = interpreters()
    python = known[sorted(known)[place]]
    venv = tmp_path / "venv"
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    commands = [
        [BIN / "uv", "venv", "--quiet", "--python", python, venv],
        [BIN / "uv", "pip", "install", "--quiet", "--python", venv / "bin/python", "--resolution", resolution, dist[1]],
    ]
    for command in commands:
        subprocess.run(command, env=clean, cwd=tmp_path, check=True)
    (tmp_path / "in.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    (tmp_path / "r.yaml").write_text(RECIPE)

    def run(*arguments):
        command = [venv / "bin/tamis", *arguments]
        done = subprocess.run(command, env=clean, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("--version") == f"tamis {tamis.__version__}\n"
    assert len(json.loads(run("ops", "--json"))) > 200  # all modules are imported, without an extra
    assert json.loads(run("schema"))["definitions"]["word_count"]
    found = json.loads(run("doctor", "--json"))
    assert found["ok"]
    assert not next(extra for extra in found["extras"] if extra["name"] == "models")["ready"]
    report = json.loads(run("run", "r.yaml", "--json", "--workers", "1", "--memory", "1GB"))
    assert (report["read"], report["kept"]) == (2, 2)
