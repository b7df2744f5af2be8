"""Files around the package, checked by the tools of their ecosystems: containers, workflows, hooks, citation."""

import json
import os
import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest
import yaml

import tamis

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
DOCKERFILES = sorted((ROOT / "docker").glob("*Dockerfile"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def check(*command):
    done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


SCHEMAS = {
    "vendor.compose-spec": ["docker/compose.yaml"],
    "vendor.github-workflows": [".github/workflows/test.yml", ".github/workflows/release.yml"],
    "vendor.github-issue-forms": [".github/ISSUE_TEMPLATE/bug.yml", ".github/ISSUE_TEMPLATE/operator.yml"],
    "vendor.github-issue-config": [".github/ISSUE_TEMPLATE/config.yml"],
    "vendor.dependabot": [".github/dependabot.yml"],
    "vendor.citation-file-format": ["CITATION.cff"],
}


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_match_the_schemas_of_their_readers(schema):
    check(BIN / "check-jsonschema", "--builtin-schema", schema, *SCHEMAS[schema])


def test_every_workflow_and_form_is_checked():
    files = [*ROOT.glob(".github/**/*.yml"), ROOT / "docker" / "compose.yaml", ROOT / "CITATION.cff"]
    assert sorted(str(file.relative_to(ROOT)) for file in files) == sorted(chain.from_iterable(SCHEMAS.values()))


def test_the_hooks_are_valid_and_run_what_make_check_runs():
    check(BIN / "pre-commit", "validate-config", ".pre-commit-config.yaml")
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = " ".join(hook["entry"] for hook in repo["hooks"])
    recipe = re.search(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)[1]
    for command in ("ruff check", "ruff format", "mypy"):
        assert command in hooks
        assert command in recipe
    assert re.findall(r"tests/\w+\.py", hooks) == re.findall(r"tests/\w+\.py", recipe)


def test_workflows_run_targets_of_the_makefile():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    used = set()
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        for job in yaml.safe_load(file.read_text())["jobs"].values():
            for step in job["steps"]:
                used |= set(re.findall(r"\bmake ([a-z-]+)", step.get("run", "")))
    assert {"check", "test", "test-lowest", "dist"} <= used <= targets
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_the_version_and_the_versions_of_python_are_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == tamis.__version__
    assert PROJECT["dynamic"] == ["version"]
    assert f"## {tamis.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    declared = [word.split(" :: ")[2] for word in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d", word)]
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == declared
    assert PROJECT["requires-python"] == f">={declared[0]}"


def test_only_platforms_that_are_tested_are_claimed():
    systems = [word for word in PROJECT["classifiers"] if word.startswith("Operating System")]
    assert systems == ["Operating System :: POSIX :: Linux"]
    assert "macOS is not tested" in (ROOT / "README.md").read_text()


# -------------------------------------------------------------------------------------------------------------- containers


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_hadolint_finds_nothing(file):
    check(BIN / "hadolint", file)


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_images_are_pinned_unprivileged_and_checked(file):
    text = file.read_text()
    (version,) = re.findall(r"^ARG (?:PYTHON|CUDA)_VERSION=(\d+\.\d+\.\d+)$", text, re.M)
    assert version
    assert "--constraint constraints.txt" in text
    assert re.findall(r"^USER (.*)$", text, re.M) == ["1000:1000"]
    (command,) = re.findall(r"^HEALTHCHECK .*CMD (.*)$", text, re.M)
    assert json.loads(command)[:2] == ["tamis", "doctor"]
    (extras,) = re.findall(r"^ARG EXTRAS=(.*)$", text, re.M)
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])


def test_both_images_differ_in_what_cuda_needs_only():
    """What is not about the base image or extras is the same, so that a fix to one is not forgotten in the other."""
    same = re.compile(r"(?:COPY|USER|WORKDIR|HEALTHCHECK|ENTRYPOINT|CMD|RUN pip) .*")
    cpu, cuda = (same.findall((ROOT / "docker" / name).read_text()) for name in ("Dockerfile", "cuda.Dockerfile"))
    assert cpu == cuda


def test_the_build_context_has_what_is_copied():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from try_dockerfile import ignored, parse
    finally:
        sys.path.pop(0)
    for file in DOCKERFILES:
        for each in parse(file.read_text()):
            if each.name == "COPY" and not each.text.startswith("--from"):
                *sources, _ = each.text.split()
                for source in sources:
                    assert (ROOT / source).exists()
                    assert not ignored(ROOT, source)
    assert ignored(ROOT, "benchmarks/engine.py")
    assert ignored(ROOT, "tests/test_cli.py")


def test_all_services_of_the_try_out_know_the_token_of_the_ray_cluster():
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    tokens = {services[name]["environment"]["RAY_AUTH_TOKEN"] for name in ("ray-head", "ray-worker", "run")}
    assert len(tokens) == 1


def test_the_try_out_uploads_the_sample_and_reads_it(s3_server, tmp_path):
    """The services `upload` and `run`, with another S3 server and without Ray."""
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    options = s3_server.storage_options
    variables = {
        **os.environ,
        **services["run"]["environment"],
        "PYTHONPATH": str(ROOT),
        "AWS_ENDPOINT_URL": options["endpoint_url"],
        "AWS_ACCESS_KEY_ID": options["key"],
        "AWS_SECRET_ACCESS_KEY": options["secret"],
    }
    subprocess.run([sys.executable, "-c", *services["upload"]["command"]], env=variables, check=True)
    (script,) = services["run"]["command"]
    lines = script.replace("$$", "$").replace("--executor ray --address auto", "--executor inline").splitlines()
    command = "\n".join(line for line in lines if not line.startswith("ray start"))
    command = re.sub(r"\btamis (run|report)", f"{sys.executable} -m tamis \\1", command)
    done = subprocess.run(
        ["/bin/sh", "-ec", command], env=variables, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^read +3,698$", done.stdout, re.M)
