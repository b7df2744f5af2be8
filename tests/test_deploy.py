"""The files in deploy/: checked by the tools of their ecosystems, and their commands run with the scheduler's variables."""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import kubernetes_validate
import psutil
import pytest
import yaml

import tamis
from tests.executors.clusters import await_none

DEPLOY = Path(__file__).parent.parent / "deploy"
SCRIPTS = sorted(DEPLOY.glob("*.sh"))
MANIFESTS = sorted(DEPLOY.glob("*.yaml"))

RECIPE = """
steps:
  - jsonl_reader: {file_paths: SOURCE, files_per_partition: 1}
  - word_count: {min_words: 2}
  - exact_dedup: {}
  - jsonl_writer: {path: OUTPUT}
"""

RAY_JOB_FIELDS = {
    "entrypoint": str,
    "shutdownAfterJobFinishes": bool,
    "ttlSecondsAfterFinished": int,
    "backoffLimit": int,
    "runtimeEnvYAML": str,
    "rayClusterSpec": dict,
}
"""From https://ray-project.github.io/kuberay/reference/api/; its schema is in no package."""


@pytest.fixture
def work(tmp_path):
    """A folder with an input, a recipe, and the command `tamis`."""
    (tmp_path / "in").mkdir()
    for number in range(5):
        rows = [{"text": f"word {(number * 7 + row) % 11}"} for row in range(20)]
        (tmp_path / f"in/{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = RECIPE.replace("SOURCE", str(tmp_path / "in")).replace("OUTPUT", str(tmp_path / "out"))
    (tmp_path / "recipe.yaml").write_text(recipe)
    command(tmp_path, "tamis", f'exec {sys.executable} -m tamis "$@"')
    return tmp_path


def command(work, name, text):
    """Put a command first on the path of the scripts."""
    file = work / "bin" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/bash\n{text}\n")
    file.chmod(0o755)


def start(work, *arguments, **variables):
    path = f"{work / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(DEPLOY.parent), **variables}
    return subprocess.Popen([*map(str, arguments)], env=environment, stderr=subprocess.PIPE, text=True)


def ended(*processes):
    return [(process.communicate()[1], process.returncode) for process in processes]


def assert_complete(work):
    report = json.loads((work / "out/.tamis/report.json").read_text())
    assert (report["state"], report["read"], report["kept"]) == ("finished", 100, 11)
    rows = [line for file in sorted((work / "out").glob("part-*")) for line in file.read_text().splitlines()]
    assert len(rows) == len(set(rows)) == 11


# ------------------------------------------------------------------------------------------------------------- validation


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script):
    subprocess.run(["bash", "-n", script], check=True)
    tool = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run([tool, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def pods(document):
    """The pod templates of a RayJob."""
    cluster = document["spec"]["rayClusterSpec"]
    return [group["template"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.name)
def test_manifests_match_their_schemas(manifest):
    for document in yaml.safe_load_all(manifest.read_text()):
        if document["kind"] != "RayJob":
            kubernetes_validate.validate(document, "1.29", strict=True)
            continue
        assert {name: type(value) for name, value in document["spec"].items()} == RAY_JOB_FIELDS
        assert yaml.safe_load(document["spec"]["runtimeEnvYAML"])["env_vars"]
        for group in document["spec"]["rayClusterSpec"]["workerGroupSpecs"]:
            assert set(group) == {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
        for pod in pods(document):
            template = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}, "template": pod}
            kubernetes_validate.validate(template, "1.29", strict=True)


def test_the_manifests_agree_with_themselves():
    recipe, job = yaml.safe_load_all((DEPLOY / "kubernetes_job.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert int(variables["SHARDS"]) == job["spec"]["completions"]
    assert container["image"].endswith(f":{tamis.__version__}")
    steps = yaml.safe_load(recipe["data"]["recipe.yaml"])["steps"]
    assert steps[-1]["parquet_writer"]["path"] == variables["OUTPUT"]


# ---------------------------------------------------------------------------------------------------------------- running


@pytest.mark.slow
def test_the_tasks_of_a_slurm_array_are_shards(work):
    array = {"SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_MAX": "3", "SLURM_ARRAY_TASK_COUNT": "3"}
    resources = {"SLURM_CPUS_PER_TASK": "1", "SLURM_MEM_PER_NODE": "1200"}
    tasks = [
        start(
            work,
            DEPLOY / "slurm_array.sh",
            work / "recipe.yaml",
            "--quiet",
            **array,
            **resources,
            SLURM_ARRAY_TASK_ID=number,
        )
        for number in "123"
    ]
    assert [code for _, code in ended(*tasks)] == [0, 0, 0]
    assert_complete(work)


@pytest.mark.slow
def test_a_task_of_a_slurm_array_runs_inside_a_container(work):
    command(work, "apptainer", 'echo "inside $3" >&2; shift 3; exec "$@"')
    array = {"SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_MAX": "1", "SLURM_ARRAY_TASK_COUNT": "1"}
    array |= {"SLURM_ARRAY_TASK_ID": "1", "SLURM_CPUS_PER_TASK": "1", "SLURM_MEM_PER_NODE": "1200"}
    container = f"apptainer exec --bind={work} tamis.sif"
    task = start(work, DEPLOY / "slurm_array.sh", work / "recipe.yaml", "--quiet", **array, TAMIS_CONTAINER=container)
    ((error, code),) = ended(task)
    assert (code, error) == (0, "inside tamis.sif\n")
    assert_complete(work)


def test_a_part_of_a_slurm_array_must_say_how_many_shards_there_are(work):
    array = {"SLURM_ARRAY_TASK_MIN": "3", "SLURM_ARRAY_TASK_MAX": "17", "SLURM_ARRAY_TASK_COUNT": "2"}
    ((error, code),) = ended(start(work, DEPLOY / "slurm_array.sh", "recipe.yaml", **array, SLURM_ARRAY_TASK_ID="3"))
    assert (code, error) == (2, "the array is not 1-N: set TAMIS_SHARDS to the number of shards\n")


@pytest.mark.slow
def test_the_indexes_of_a_kubernetes_job_are_shards(work):
    _, job = yaml.safe_load_all((DEPLOY / "kubernetes_job.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each["value"] for each in container["env"]}
    here = {"RECIPE": work / "recipe.yaml", "OUTPUT": work / "out", "SCRATCH": work / "scratch", "MEMORY": "1GB"}
    variables |= {name: str(value) for name, value in here.items()} | {"SHARDS": "2"}
    indexes = [
        start(work, *container["command"], *container["args"], **variables, JOB_COMPLETION_INDEX=n) for n in "01"
    ]
    assert [code for _, code in ended(*indexes)] == [0, 0]
    assert_complete(work)


@pytest.mark.slow
def test_hosts_reached_over_ssh_are_shards(work):
    command(work, "ssh", 'shift; exec /bin/bash -c "$*"')
    (work / "hosts").write_text("# two of them\nfirst\n\nsecond\n")
    script = [
        DEPLOY / "ssh.sh",
        work / "hosts",
        work / "out",
        work / "recipe.yaml",
        "--memory",
        "1GB",
        "--workers",
        "1",
    ]
    ((error, code),) = ended(start(work, *script, SSH="ssh"))
    assert code == 0, error
    assert_complete(work)
    (work / "in/5.jsonl").write_text('{"text": 5}\n')
    ((error, code),) = ended(start(work, *script, "--set", "word_count.words=typo", SSH="ssh"))
    assert code == 0  # the output is still complete
    assert "shard 2 on second ended with an error" in error


@pytest.mark.slow
def test_a_ray_cluster_in_a_slurm_job(work):
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    command(work, "srun", 'while [[ "$1" == --* ]]; do shift; done; exec "$@"')
    command(work, "scontrol", "echo this-node")
    job = {"SLURM_JOB_NODELIST": "this-node", "SLURM_CPUS_PER_TASK": "2", "TAMIS_RAY_PORT": str(port)}
    named = re.compile(rf"[:=]{port}\b")

    def left():
        lines = [each.info["cmdline"] or () for each in psutil.process_iter(["cmdline"])]
        return [line for line in lines if any(map(named.search, line))]

    # The names of Ray's sockets must be short. Processes that are about to exit may still write there.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        script = [DEPLOY / "slurm_ray.sh", work / "recipe.yaml", "--memory", "1GB"]
        ((error, code),) = ended(start(work, *script, **job, RAY_TMPDIR=folder))
        assert code == 0, error
        assert_complete(work)
        await_none(left)
