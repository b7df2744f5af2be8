"""Where intermediate files go, and what happens if they are lost."""

import json
from pathlib import Path

import fsspec
import pytest

from tamis import JsonlReader, JsonlWriter, Pipeline, cli
from tamis.dedup import ExactDedup
from tamis.errors import ParameterError
from tamis.events import PartitionCommitted
from tamis.executors.resume import remove_attempts
from tamis.sampling import Sample
from tamis.store import Store, scratch_notes


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        rows = [{"id": f"{number}-{row}", "text": f"text {row % 7}"} for row in range(20)]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def job(source, out):
    return Pipeline(JsonlReader(str(source), files_per_partition=1), ExactDedup(), JsonlWriter(str(out)))


def rows_of(out):
    return [json.loads(line) for file in sorted(Path(out).glob("*.jsonl")) for line in file.read_text().splitlines()]


def spills(folder):
    return [path for path in Path(folder).rglob("*.spill") if path.is_file()]


def stop_in_stage(number):
    def stop(event):
        if isinstance(event, PartitionCommitted) and event.stage == number:
            raise RuntimeError("stopped")

    return stop


@pytest.mark.parametrize("executor", ["inline", "local"])
def test_intermediate_files_go_to_the_scratch_folder(tmp_path, source, executor):
    seen = {"scratch": 0, "out": 0}

    def look(event):
        for name in seen:
            seen[name] = max(seen[name], len(spills(tmp_path / name)))

    report = job(source, tmp_path / "out").run(executor=executor, scratch=tmp_path / "scratch", on_event=look)
    assert report.kept == 7
    assert seen["scratch"] > 0
    assert seen["out"] == 0
    assert not spills(tmp_path / "scratch"), "they are removed at the end"


def test_a_run_resumes_with_the_same_scratch_folder(tmp_path, source):
    with pytest.raises(RuntimeError, match="stopped"):
        job(source, tmp_path / "out").run(executor="inline", scratch=tmp_path / "a", on_event=stop_in_stage(1))
    done = []
    job(source, tmp_path / "out").run(
        executor="inline",
        scratch=tmp_path / "a",
        on_event=lambda e: done.append((e.stage, e.partition)) if isinstance(e, PartitionCommitted) else None,
    )
    assert done == [(1, 1), (1, 2)]


@pytest.mark.parametrize("scratch", ["b", None])
@pytest.mark.parametrize("stage", [0, 1])
def test_with_another_scratch_folder_lost_facts_are_made_again(tmp_path, source, scratch, stage):
    job(source, tmp_path / "calm").run(executor="inline")
    with pytest.raises(RuntimeError, match="stopped"):
        job(source, tmp_path / "out").run(executor="inline", scratch=tmp_path / "a", on_event=stop_in_stage(stage))
    other = None if scratch is None else tmp_path / scratch
    report = job(source, tmp_path / "out").run(executor="inline", scratch=other)
    assert report.balances
    assert rows_of(tmp_path / "out") == rows_of(tmp_path / "calm")


def test_facts_of_an_older_input_in_a_scratch_folder_that_is_used_again_do_not_decide(tmp_path, source):
    def run_in(scratch):
        with pytest.raises(RuntimeError, match="stopped"):
            job(source, tmp_path / "out").run(executor="inline", scratch=tmp_path / scratch, on_event=stop_in_stage(1))

    run_in("a")
    for number in range(3):  # as many rows at the same positions, of which others are duplicates
        rows = [{"id": f"{number}-{row}", "text": f"text {number} {row % 5}"} for row in range(20)]
        (source / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_in("b")
    job(source, tmp_path / "out").run(executor="inline", scratch=tmp_path / "a")
    kept = [f"text {number} {row}" for number in range(3) for row in range(5)]
    assert [row["text"] for row in rows_of(tmp_path / "out")] == kept


def test_an_interrupted_run_resumes_in_a_folder_that_was_moved(tmp_path, source):
    with pytest.raises(RuntimeError, match="stopped"):
        job(source, tmp_path / "out").run(executor="inline", on_event=stop_in_stage(1))
    (tmp_path / "out").rename(tmp_path / "moved")
    stages = []
    job(source, tmp_path / "moved").run(
        executor="inline", on_event=lambda e: stages.append(e.stage) if isinstance(e, PartitionCommitted) else None
    )
    assert stages == [1, 1]


@pytest.mark.parametrize("option", ["scratch", "exchange"])
def test_outputs_with_the_same_relative_name_do_not_share_intermediate_files(tmp_path, source, monkeypatch, option):
    options = {"executor": "inline", option: str(tmp_path / "shared")}
    for project in ("one", "two"):
        (tmp_path / project).mkdir()
        monkeypatch.chdir(tmp_path / project)
        with pytest.raises(RuntimeError, match="stopped"):
            job(source, "out").run(**options, on_event=stop_in_stage(1))
    stages = []
    monkeypatch.chdir(tmp_path / "one")
    job(source, "out").run(
        **options, on_event=lambda e: stages.append(e.stage) if isinstance(e, PartitionCommitted) else None
    )
    assert stages == [1, 1]
    assert spills(tmp_path / "shared"), "those of the other output are left"


def test_what_an_interrupted_run_left_beside_the_output_is_removed(tmp_path, source):
    with pytest.raises(RuntimeError, match="stopped"):
        job(source, tmp_path / "out").run(executor="inline", on_event=stop_in_stage(1))
    assert spills(tmp_path / "out")
    job(source, tmp_path / "out").run(executor="inline", exchange=str(tmp_path / "shared"))
    assert not spills(tmp_path)


def test_collect_uses_the_scratch_folder(tmp_path, source):
    pipeline = Pipeline(JsonlReader(str(source)), Sample(rows=4))
    assert pipeline.collect(executor="inline", scratch=tmp_path / "scratch").num_rows == 4
    assert not list((tmp_path / "scratch").iterdir())


def test_a_scratch_folder_that_cannot_be_made_is_a_clear_error(tmp_path, source):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ParameterError, match="cannot write to the scratch folder"):
        job(source, tmp_path / "out").run(scratch=tmp_path / "file" / "scratch")


def test_a_temporary_folder_in_memory_is_noted_for_a_remote_output(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/dev/shm")
    assert "--scratch" in " ".join(scratch_notes(Store("memory://bucket/out")))
    assert scratch_notes(Store("memory://bucket/out", scratch=tmp_path)) == []
    assert scratch_notes(Store(str(tmp_path))) == []


def test_the_command_line_names_the_scratch_folder(tmp_path, source):
    arguments = ["--executor", "inline", "--quiet", "--scratch", str(tmp_path / "scratch")]
    assert cli.main(["dedup", "exact", str(source), str(tmp_path / "out"), *arguments]) == 0
    assert len(rows_of(tmp_path / "out")) == 7
    assert (tmp_path / "scratch").is_dir()
    fsspec.filesystem("memory").store.clear()


def test_what_a_worker_removes_at_the_same_time_is_no_error(tmp_path, monkeypatch):
    """A worker that was asked to exit closes its stage, and removes its folder, while the driver cleans up."""
    store = Store(str(tmp_path))
    store.make()
    monkeypatch.setattr(type(store.scratch()), "iterdir", lambda folder: iter([folder / "open-1"]))
    remove_attempts(store)
