"""Video pipelines under kills, on a cluster and within a memory budget: the same rows and files, and memory as allowed."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tamis import ClipWriter, DaskExecutor, ParquetReader, ParquetWriter, Pipeline
from tamis.dedup import VideoDedup
from tamis.sources.mediafiles import VideoReader
from tamis.video import (
    Shots,
    VectorMotion,
    VideoBlack,
    VideoDecodable,
    VideoHashes,
    VideoMotion,
    VideoPreview,
    VideoProbe,
)
from tests.dashboard.test_eventlog import wait_for
from tests.test_resume import kill_tree
from tests.video.make_videos import plain, scene, video
from tests.video.test_filters import claiming_a_billion_frames, damaged_in_the_middle


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("videos")
    for number in range(5):
        (made / f"{number}.mp4").write_bytes(video([(scene(number), 24), (scene(9 + number), 26)], sound="aac", gop=8))
    (made / "broken.mp4").write_bytes(video([(scene(1), 20)])[:2000])
    (made / "damaged.mkv").write_bytes(damaged_in_the_middle())
    return made


def pipeline(folder: Path, *sink: object, files_per_partition: int = 1) -> Pipeline:
    return Pipeline(
        VideoReader(str(folder / "*"), files_per_partition=files_per_partition), VideoDecodable(min_decoded_share=0.1),
        Shots(), VideoBlack(),
        VideoMotion(), VectorMotion(score_only=True), VideoHashes(), *sink,
    )  # fmt: skip


SCRIPT = """
import os, sys, time
from pathlib import Path
from tamis import ClipWriter
from tests.video.test_suites import pipeline

def held(row):
    while Path(row["path"]).name >= os.environ["HELD"]:
        time.sleep(0.05)
    return True

pipeline(Path(sys.argv[1]), held, ClipWriter(sys.argv[2])).run(workers=2, memory="1.2GB", progress=False)
"""


def start(folder: Path, output: Path, seed: str = "0", held: str = "z") -> subprocess.Popen:
    """A run that waits before the files from `held` on, until it is killed."""
    command = [sys.executable, "-c", SCRIPT, str(folder), str(output)]
    environment = {**os.environ, "PYTHONHASHSEED": seed, "HELD": held}
    return subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    )


def finished(process: subprocess.Popen) -> None:
    _, errors = process.communicate()
    assert process.returncode == 0, errors


def kill_at(process: subprocess.Popen, output: Path, parts: int) -> None:
    """Kill a run when it has written so many parts of its output."""
    wait_for(lambda: len(list(output.glob("part-*"))) == parts, process)
    kill_tree(process)


def files_in(output: Path) -> dict[str, str]:
    return {
        str(path.relative_to(output)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(output.rglob("*"))
        if path.is_file() and ".tamis" not in path.parts
    }


@pytest.mark.slow
def test_clips_of_a_killed_run_are_those_of_an_undisturbed_one(folder, tmp_path):
    finished(start(folder, tmp_path / "undisturbed"))
    for held, parts in (("1.mp4", 1), ("3.mp4", 3)):
        kill_at(start(folder, tmp_path / "out", held=held), tmp_path / "out", parts)
    finished(start(folder, tmp_path / "out"))
    expected = files_in(tmp_path / "undisturbed")
    assert sum(name.endswith(".mp4") for name in expected) >= 10
    assert files_in(tmp_path / "out") == expected
    reports = [json.loads((tmp_path / name / ".tamis" / "report.json").read_text()) for name in ("out", "undisturbed")]
    for key in ("read", "kept", "dropped", "failed"):
        assert reports[0][key] == reports[1][key]


@pytest.mark.slow
def test_clips_do_not_depend_on_the_hash_seed_the_workers_or_the_partitions(folder, tmp_path):
    for seed in ("1", "2"):
        finished(start(folder, tmp_path / seed, seed))
    expected = files_in(tmp_path / "1")
    assert sum(name.endswith(".mp4") for name in expected) >= 10
    assert files_in(tmp_path / "2") == expected
    tables = []
    for number in (1, 3, 50):
        steps = pipeline(folder, VideoDedup(), files_per_partition=number)
        tables.append(steps.collect(executor="inline").to_pylist())
    assert len(tables[0]) >= 10
    assert tables[0] == tables[1] == tables[2]


@pytest.mark.slow
def test_a_killed_worker_costs_no_clip(folder, tmp_path):
    pipeline(folder, ClipWriter(str(tmp_path / "expected"))).run(executor="inline")
    marker = tmp_path / "killed"

    def kill_once(row: dict) -> bool:
        if row["path"].endswith("3.mp4") and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    before = pipeline(folder)
    report = Pipeline(*before.steps, kill_once, ClipWriter(str(tmp_path / "out"))).run(
        workers=1, memory="1.2GB", progress=False
    )
    assert marker.exists()
    assert report.failed == 0
    assert files_in(tmp_path / "out") == files_in(tmp_path / "expected")


@pytest.mark.slow
def test_a_cluster_gives_the_same_rows(folder, tmp_path):
    from distributed import LocalCluster

    outcomes = []
    with LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", memory_limit="2GB"
    ) as cluster:
        for name, executor in (("inline", "inline"), ("dask", DaskExecutor(cluster.scheduler_address))):
            options = {} if executor == "inline" else {"memory": "1.2GB"}
            report = pipeline(folder, ParquetWriter(str(tmp_path / name))).run(
                executor=executor, progress=False, **options
            )
            rows = Pipeline(ParquetReader(str(tmp_path / name))).collect(executor="inline").to_pylist()
            outcomes.append((rows, report.read, report.kept, report.dropped, report.failed))
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0][0]) >= 10


@pytest.mark.slow
def test_an_hour_of_black_and_a_claim_of_a_billion_frames_stay_in_the_budget(tmp_path):
    (tmp_path / "in").mkdir()
    black = video([(plain(0, (64, 48)), 5 * 3600)], rate=5, options={"preset": "ultrafast"}, gop=250)
    (tmp_path / "in" / "black.mp4").write_bytes(black)
    (tmp_path / "in" / "claims.mkv").write_bytes(claiming_a_billion_frames())
    report = Pipeline(
        VideoReader(str(tmp_path / "in" / "*")), VideoProbe(), Shots(max_length_s=None), VideoBlack(), VideoHashes(),
        VideoPreview(), ParquetWriter(str(tmp_path / "out")),
    ).run(workers=1, memory="600MB", progress=False)  # fmt: skip
    assert (report.read, report.kept, report.failed) == (2, 1, 0)
    assert report.dropped == {"black_share > 0.5": 1}
    assert report.peak_memory_bytes < 600_000_000


@pytest.mark.slow
def test_8k_within_a_budget_is_decoded_or_fails_alone(tmp_path):
    (tmp_path / "in").mkdir()
    picture = np.random.default_rng(0).integers(0, 256, (135, 240, 3), np.uint8).repeat(32, axis=0).repeat(32, axis=1)
    large = video([(lambda frame: picture, 1)], rate=1, options={"preset": "ultrafast"})
    (tmp_path / "in" / "8k.mp4").write_bytes(large)
    (tmp_path / "in" / "small.mp4").write_bytes(video([(scene(1), 20)]))
    for memory in ("1.5GB", "600MB"):
        report = Pipeline(
            VideoReader(str(tmp_path / "in" / "*")), VideoMotion(min_motion=None), ParquetWriter(str(tmp_path / memory))
        ).run(workers=1, memory=memory, progress=False, max_failed=1.0)
        assert report.read == report.kept + report.failed == 2
        assert report.kept == 2 or memory == "600MB"
        assert report.peak_memory_bytes < float(memory[:-2]) * (1e9 if memory.endswith("GB") else 1e6)
