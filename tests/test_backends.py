"""`ToBackend`, and `run(device=...)`: where steps run, without a GPU and with GPUs that the planner only believes in."""

import os
import re

import numpy as np
import pyarrow as pa
import pytest

from tamis import (
    InlineExecutor,
    JsonlReader,
    JsonlWriter,
    LocalExecutor,
    Pipeline,
    Resources,
    Rows,
    Sequential,
    ToBackend,
)
from tamis.batch import Batch
from tamis.cli import main
from tamis.errors import BudgetError, ParameterError
from tamis.fields import AddId
from tamis.memory.governor import Learned
from tamis.models import devices
from tamis.operators import Gather, Map, operator
from tamis.placement import place
from tamis.plan import make_plan
from tamis.store import Store
from tamis.text.embed import Embed
from tamis.text.quality import WordCount
from tests.models.make_models import write_encoder
from tests.test_pipeline import numbered, write_jsonl


@operator(reads="text", writes="place")
class PlacedForTests(Map):
    """Writes the device of its worker."""

    device: str = "auto"
    gpus: float = 1.0
    gpu_memory: str | None = None
    incidental = frozenset({"device", "gpus", "gpu_memory"})

    @property
    def resources(self):
        on_gpu = devices.choose(self.device, library=None) == "gpu"
        return Resources(gpus=self.gpus, gpu_memory=self.gpu_memory) if on_gpu else Resources()

    def open(self, context):
        return PlaceRunnerForTests(self, context)


class PlaceRunnerForTests:
    def __init__(self, op, context):
        share = context.gpu_memory_bytes
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self.text = f"{op.device} {context.device} {visible} {share} {os.getpid()}"

    def apply(self, batch):
        return {"place": pa.array([self.text] * len(batch))}


@pytest.fixture
def gpus(monkeypatch):
    """Two GPUs of 20 GB that nothing is run on."""
    from tamis.memory.gpu import GpuMemory

    found = tuple(GpuMemory(number, "stand-in", 0, 20_000_000_000) for number in range(2))
    monkeypatch.setattr(devices, "visible_gpus", lambda: ["0", "1"])
    monkeypatch.setattr("tamis.memory.gpu.find_reader", lambda: lambda: found)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(devices, "visible_gpus", list)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def places(table):
    return {tuple(value.split()[:-1]) for value in table["place"].to_pylist()}


def cpu_operation(row):
    return {"text": row["text"].strip()}


def gpu_operation(row):
    return {"length": len(row["text"])}


def cpu_operation_2(row):
    return row["length"] >= 0


def test_a_sequence_of_nemo_curator_runs_with_its_imports_changed(no_gpu):
    pipeline = Sequential(
        [
            cpu_operation,  # Runs on CPU
            ToBackend("cudf"),  # Moves to GPU
            gpu_operation,  # Runs on GPU
            ToBackend("pandas"),  # Moves back to CPU
            cpu_operation_2,  # Runs on CPU
        ]
    )
    whole = Pipeline(Rows(numbered(10)), pipeline)
    assert whole.collect(executor="inline").num_rows == 10
    (note,) = [note for note in whole.check() if "to_backend" in note]
    assert note == "step 3, `to_backend`: this machine has no GPU; the steps after it run on the CPU"


def test_between_two_moves_all_steps_share_a_worker(gpus):
    steps = [
        WordCount(),
        ToBackend("gpu"),
        PlacedForTests(),
        AddId(),
        PlacedForTests(),
        ToBackend("cpu"),
        WordCount(),
    ]
    found = Pipeline(Rows(numbered(10)), *steps).explain(memory="4GB", workers=2)
    (stage,) = found.as_dict()["stages"]
    assert [pool["steps"] for pool in stage["pools"]] == [
        ["rows", "word_count"],
        ["packet_rows", "to_backend", "placed_for_tests", "add_id", "placed_for_tests"],
        ["packet_rows", "to_backend", "word_count"],
    ]
    assert [pool["device"] for pool in stage["pools"]] == ["cpu", "gpu", "cpu"]
    assert [slot["gpus"] for slot in stage["pools"][1]["gpu_slots"]] == ["0", "1"]
    assert [(move["from"], move["to"]) for move in stage["moves"]] == [("cpu", "gpu"), ("gpu", "cpu")]
    assert "move     CPU to GPU before to_backend" in str(found)
    assert re.search(r"^gpu_memory +18\.0 GB on each of 2 GPUs: 90 % of what is free", str(found), re.M)
    without = [step for step in steps if not isinstance(step, ToBackend)]
    (stage,) = Pipeline(Rows(numbered(10)), *without).explain(memory="4GB", workers=2).as_dict()["stages"]
    assert [pool["device"] for pool in stage["pools"]] == ["cpu", "gpu", "cpu", "gpu", "cpu"]


def test_steps_after_a_move_to_the_cpu_stay_off_the_gpu(gpus):
    steps = [ToBackend("cpu"), PlacedForTests()]
    (stage,) = Pipeline(Rows(numbered(10)), *steps).explain(memory="4GB").as_dict()["stages"]
    assert (stage["device"], stage["moves"], stage["pools"]) == ("cpu", [], [])


def test_a_move_does_not_repeat_committed_work(tmp_path, no_gpu):
    source = write_jsonl(tmp_path / "in.jsonl", numbered(20))
    Pipeline(JsonlReader(source), PlacedForTests(), JsonlWriter(tmp_path / "out")).run(executor="inline")
    again = Pipeline(JsonlReader(source), ToBackend("gpu"), PlacedForTests(), JsonlWriter(tmp_path / "out"))
    report = again.run(executor="inline")
    assert report.kept == 20
    assert report.state == "unchanged"


def test_each_worker_has_a_gpu_and_its_share_of_memory(gpus):
    rows = Rows(numbered(40), rows_per_partition=10)
    table = Pipeline(rows, PlacedForTests(gpus=0.5)).collect(
        executor=LocalExecutor(workers=2), memory="4GB", gpu_memory="9GB"
    )
    shares = {share for _, device, _, share in places(table) if device == "cuda:0"}
    assert shares == {str(9_000_000_000 // 2 - 600_000_000)} or shares == {"8400000000"}


def test_a_worker_that_does_not_fit_its_budget_is_an_error_before_the_run(gpus):
    steps = [Rows(numbered(10)), PlacedForTests(gpu_memory="10GB")]
    with pytest.raises(BudgetError, match=r"needs 10\.6 GB of GPU memory"):
        Pipeline(*steps).run(gpu_memory="5GB", memory="4GB")


@pytest.mark.parametrize("executor", [LocalExecutor(workers=1), InlineExecutor()])
def test_a_run_on_the_cpu_hides_gpus(gpus, executor):
    table = Pipeline(Rows(numbered(10)), ToBackend("gpu"), PlacedForTests()).collect(executor=executor, device="cpu")
    assert places(table) == {("cpu", "cpu", "-1", "None")}


def test_the_device_of_a_run_is_given_to_steps_that_can_choose(gpus):
    table = Pipeline(Rows(numbered(10)), PlacedForTests()).collect(executor="inline", device="gpu")
    ((own, device, _, share),) = places(table)
    assert (own, device, share) == ("gpu", "cuda:0", "17400000000")


def test_a_gpu_that_is_not_there_is_an_error_before_anything_runs(no_gpu, tmp_path):
    steps = [Rows(numbered(10)), PlacedForTests(), JsonlWriter(tmp_path / "out")]
    with pytest.raises(ParameterError, match="this machine has no GPU"):
        Pipeline(*steps).run(device="gpu")
    with pytest.raises(ParameterError, match=r"step 2, `placed_for_tests`: .*this machine has no GPU"):
        Pipeline(steps[0], PlacedForTests(device="gpu"), steps[2]).run()
    with pytest.raises(ParameterError, match="there is no device 'tpu'"):
        Pipeline(*steps).run(device="tpu")
    assert not (tmp_path / "out").exists()


def test_a_step_that_needs_a_gpu_cannot_run_on_the_cpu(gpus):
    @operator(reads="text")
    class OnlyGpuForTests(Map):
        declared_resources = Resources(gpus=1)

        def apply(self, batch):
            return {}

    with pytest.raises(ParameterError, match="step 2, `only_gpu_for_tests`: it needs a GPU, and the run uses none"):
        Pipeline(Rows(numbered(3)), OnlyGpuForTests()).run(device="cpu")


def test_a_gather_that_needs_a_gpu_observes_rows_in_workers_of_its_own(gpus):
    @operator(reads="text")
    class GpuGatherForTests(Gather):
        declared_resources = Resources(gpus=1)

        def disk_bytes(self, num_rows, num_bytes):
            return 0

    found = Pipeline(Rows(numbered(10)), WordCount(), GpuGatherForTests(), WordCount()).explain(memory="4GB")
    first, second = found.as_dict()["stages"]
    assert [(pool["steps"], pool["device"]) for pool in first["pools"]] == [
        (["rows", "word_count"], "cpu"),
        (["packet_rows", "gpu_gather_for_tests"], "gpu"),
    ]
    assert second["device"] == "cpu"


class TestFactsThatAreHandedOn:
    def test_the_next_step_gets_them(self):
        batch = Batch.from_rows([{"text": "a"}, {"text": "b"}, {"text": "c"}])
        batch.view({"text": "text"}).hand_on("vector", doubled, {"values": np.array([7, 8, 9])})
        made = batch.with_columns({"vector": np.array([1, 2, 3])})
        assert made.facts("vector", doubled)["values"].tolist() == [7, 8, 9]
        assert made.select(np.array([True, False, True])).facts("vector", doubled)["values"].tolist() == [7, 9]

    def test_they_end_when_the_column_is_written_again(self):
        batch = Batch.from_rows([{"text": "a"}])
        batch.hand_on("vector", doubled, {"values": np.array([7])})
        made = batch.with_columns({"vector": np.array([1])}).with_columns({"vector": np.array([5])})
        assert made.facts("vector", doubled)["values"].tolist() == [10]

    def test_they_are_joined_with_the_rows(self):
        torch = pytest.importorskip("torch")
        parts = []
        for numbers in ([1, 2], [3]):
            batch = Batch.from_rows([{"text": "a"}] * len(numbers))
            batch.hand_on("vector", doubled, {"values": np.array(numbers), "tensor": torch.tensor(numbers)})
            parts.append(batch.with_columns({"vector": np.array(numbers)}))
        found = Batch.concat(parts).facts("vector", doubled)
        assert found["values"].tolist() == found["tensor"].tolist() == [1, 2, 3]
        assert Batch.concat([parts[0], Batch.from_rows([{"text": "b", "vector": 4}])]).memo == {}

    def test_a_column_that_is_not_written_has_none(self):
        batch = Batch.from_rows([{"text": "a"}])
        batch.hand_on("vector", doubled, {"values": np.array([7])})
        assert batch.with_columns({"other": np.array([1])}).memo == {}


def doubled(column):
    return {"values": 2 * column.to_numpy()}


class TestCommands:
    """The same on the command line, and in recipes."""

    @pytest.fixture
    def recipe(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        write_jsonl(tmp_path / "in.jsonl", numbered(20))
        (tmp_path / "recipe.yaml").write_text(
            "gpu_memory: 5GB\nsteps:\n  - jsonl_reader: {file_paths: in.jsonl}\n  - to_backend: {backend: cudf}\n"
            "  - word_count: {min_words: 0}\n  - to_backend: {backend: pandas}\n  - jsonl_writer: {path: out}\n"
        )
        return "recipe.yaml"

    def test_explain_shows_the_devices(self, recipe, gpus, capsys):
        assert main(["explain", recipe, "--memory", "4GB", "--scratch", "scratch"]) == 0
        out = capsys.readouterr().out
        assert "device   GPU for to_backend" in out
        assert re.search(r"^gpu_memory +5\.0 GB on each of 2 GPUs: requested", out, re.M)
        assert main(["explain", recipe, "--memory", "4GB", "--device", "cpu", "--gpu-memory", "2GB"]) == 0
        assert "device   CPU" in capsys.readouterr().out

    def test_a_gpu_that_is_not_there(self, recipe, no_gpu, capsys):
        assert main(["run", recipe, "--device", "gpu"]) != 0
        assert "this machine has no GPU" in capsys.readouterr().err

    def test_a_size_that_is_none(self, recipe, capsys):
        assert main(["run", recipe, "--gpu-memory", "much"]) != 0
        assert "much" in capsys.readouterr().err

    def test_profile_and_stats_take_a_scratch_folder(self, recipe, no_gpu, tmp_path, capsys):
        assert main(["profile", recipe, "--scratch", "a"]) == 0
        assert main(["stats", "in.jsonl", "--no-language", "--scratch", "b", "--quiet"]) == 0
        assert [list((tmp_path / name).iterdir()) for name in ("a", "b")] == [[], []]
        assert "to_backend" in capsys.readouterr().out


def test_without_memory_for_workers_on_a_gpu_steps_run_on_the_cpu(gpus):
    rows = Rows(numbered(10))
    pipeline = Pipeline(rows, PlacedForTests())
    assert pipeline.explain(memory="3GB", workers=1).as_dict()["stages"][0]["device"] == "gpu"
    found = pipeline.explain(memory="900MB", workers=1)
    assert found.as_dict()["stages"][0]["device"] == "cpu"
    (note,) = found.notes
    assert note.startswith("all steps run on the CPU, although there is a GPU: 900 MB of memory is not enough")
    table = pipeline.collect(memory="900MB", workers=1, executor="inline")
    assert places(table) == {("cpu", "cpu", "-1", "None")}
    for requested in ({"device": "gpu"}, {"gpu_memory": "5GB"}):
        with pytest.raises(BudgetError):
            pipeline.explain(memory="900MB", workers=1, **requested)


def test_committed_work_is_the_same_on_both_devices(gpus, tmp_path, monkeypatch):
    """On a GPU, a network reads tokens that another step has made; rows do not depend on that."""
    monkeypatch.setattr(devices, "torch_has_cuda", lambda: True)
    model = write_encoder(tmp_path / "model")
    source = write_jsonl(tmp_path / "in.jsonl", numbered(20))
    steps = [JsonlReader(source), ToBackend("gpu"), Embed(model), JsonlWriter(tmp_path / "out")]
    found = []
    for device in ("gpu", "cpu"):
        placed, budget = place(
            steps, Learned(), "auto", memory="6GB", workers=1, caller_bytes=0, device=device, gpu_memory="5GB"
        )
        found.append(make_plan(placed, budget, Store(str(tmp_path / "out"))))
    on_gpu, on_cpu = found
    assert [[step.name for step in stage.steps] for stage in on_gpu.groups[0].stages] == [
        ["jsonl_reader", "tokenize"],
        ["packet_rows", "to_backend", "embed"],
        ["packet_rows", "jsonl_writer"],
    ]
    assert [step.name for step in on_cpu.stages[0].steps] == ["jsonl_reader", "to_backend", "embed", "jsonl_writer"]
    assert on_gpu.identity == on_cpu.identity
    assert on_gpu.stages[0].fingerprint == on_cpu.stages[0].fingerprint
