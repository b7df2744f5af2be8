"""Workers on a real GPU: placement, memory, deaths, and other processes on the device.

Run on a machine with a GPU, PyTorch and CuPy:  python -m pytest --noconftest -q tests/executors/test_gpu_workers.py
"""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tamis import (
    InlineExecutor,
    JsonlReader,
    JsonlWriter,
    LocalExecutor,
    ParquetReader,
    ParquetWriter,
    Pipeline,
    Resources,
    Rows,
    ToBackend,
)
from tamis.batch import Batch
from tamis.errors import BudgetError
from tamis.events import MemorySampled, WorkerDied
from tamis.models import devices
from tamis.models.gpu_owners import owner
from tamis.operators import Filter, Map, at_least, operator

if devices.choose("auto") == "gpu":
    import torch  # noqa: F401 - once in the server that workers are forked from, instead of in each worker

DIM = 64


def torch_with_gpu():
    torch = pytest.importorskip("torch")
    if devices.choose("auto") != "gpu" or not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    return torch


def rows_of(count):
    return [{"n": n, "text": f"text number {n}"} for n in range(count)]


def weights(torch):
    generator = torch.Generator().manual_seed(7)
    return torch.randn(DIM, DIM, generator=generator)


@operator(reads="n", writes=("embedding", "place"))
class EmbedOnGpuForTests(Map):
    """Vectors from a real product of matrices, and where they were made."""

    device: str = "auto"
    gpus: float = 1.0
    batch_rows = 100
    incidental = frozenset({"device", "gpus"})

    @property
    def resources(self):
        return Resources(gpus=self.gpus) if devices.choose(self.device) == "gpu" else Resources()

    def open(self, context):
        return EmbedRunnerForTests(context)


class EmbedRunnerForTests:
    def __init__(self, context):
        self.torch = devices.open_torch(context)
        self.device = context.device
        with owner("weights"):
            self.weights = weights(self.torch).to(context.device)
        share = context.gpu_memory_bytes
        self.place = f"{context.device} {os.environ.get('CUDA_VISIBLE_DEVICES')} {os.getpid()} {share}"

    def apply(self, batch):
        numbers = self.torch.from_numpy(batch["n"].to_numpy(zero_copy_only=False).astype("float32").copy())
        start = self.torch.arange(DIM, dtype=self.torch.float32)
        with owner("activations", passing=True):
            made = (self.torch.sin(numbers[:, None] * 0.01 + start[None, :]).to(self.device)) @ self.weights
        batch.hand_on("embedding", devices.vectors_on_device, {"vectors": made})
        column = pa.FixedSizeListArray.from_arrays(pa.array(made.cpu().numpy().reshape(-1)), DIM)
        return {"embedding": column, "place": pa.array([self.place] * len(batch))}


@operator(reads="embedding", writes=("norm", "copied"))
class NormOnGpuForTests(Map):
    """The norm of a vector, and whether it had to be copied to the device for it."""

    device: str = "auto"
    incidental = frozenset({"device"})

    @property
    def resources(self):
        return Resources(gpus=1) if devices.choose(self.device) == "gpu" else Resources()

    def apply(self, batch):
        copied = not any(key[1].endswith("vectors_on_device") for key in batch.memo)
        vectors = batch.facts("embedding", devices.vectors_on_device)["vectors"]
        return {"norm": vectors.norm(dim=1).cpu().numpy(), "copied": np.full(len(batch), copied)}


@operator(reads="n", writes="even")
class EvenNumberForTests(Filter):
    def score(self, batch: Batch):
        return {"even": 1 - batch["n"].to_numpy(zero_copy_only=False) % 2}

    def rules(self):
        return [at_least("even", 1)]


@operator(reads="n", writes="m")
class HungryOnGpuForTests(Map):
    """Takes 100 MB of GPU memory for each row, and 5 GB for row 7."""

    declared_resources = Resources(gpus=1)

    def open(self, context):
        return HungryRunnerForTests(devices.open_torch(context), context.device)


class HungryRunnerForTests:
    def __init__(self, torch, device):
        self.torch, self.device = torch, device

    def apply(self, batch):
        rows = len(batch) + 50 * (7 in batch["n"].to_pylist())
        block = self.torch.ones((rows, 100_000_000), dtype=self.torch.uint8, device=self.device)
        return {"m": block[: len(batch), 0].cpu().numpy()}


@operator(reads="n", writes="m")
class KilledOnGpuForTests(Map):
    """Kills its worker once, in the middle."""

    marker: str
    declared_resources = Resources(gpus=1)
    batch_rows = 50
    incidental = frozenset({"marker"})

    def open(self, context):
        self_ = self

        class Runner:
            torch = devices.open_torch(context)

            def apply(self, batch):
                found = self.torch.from_numpy(batch["n"].to_numpy(zero_copy_only=False).copy()).to(context.device) * 2
                if 333 in batch["n"].to_pylist() and not os.path.exists(self_.marker):  # noqa: PTH110
                    open(self_.marker, "w").close()  # noqa: PTH123
                    os.kill(os.getpid(), signal.SIGKILL)
                return {"m": found.cpu().numpy()}

        return Runner()


STREAMED = LocalExecutor(workers=2)


BETWEEN = [EmbedOnGpuForTests(), EvenNumberForTests(), NormOnGpuForTests()]


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    """(rows, report, events, bytes on the GPU before and after) of a run with steps between two moves."""
    torch = torch_with_gpu()
    folder, seen = tmp_path_factory.mktemp("moved"), []
    before, _ = torch.cuda.mem_get_info()
    rows = Rows(rows_of(1000), rows_per_partition=250)  # three times a hundred rows, which are joined again
    steps = [rows, ToBackend("gpu"), *BETWEEN, ToBackend("cpu"), ParquetWriter(folder)]
    report = Pipeline(*steps).run(executor=STREAMED, memory="8GB", gpu_memory="4GB", on_event=seen.append)
    end = time.monotonic() + 20
    while (after := torch.cuda.mem_get_info()[0]) < before - 100_000_000 and time.monotonic() < end:
        pass  # the driver frees it soon after a process has exited
    return Pipeline(ParquetReader(folder)).collect(executor="inline"), report, seen, (before, after)


@pytest.mark.gpu
class TestPlacement:
    def test_rows_are_the_same_as_on_the_cpu(self, moved):
        found, report, _, _ = moved
        rows = Rows(rows_of(1000), rows_per_partition=250)
        expected = Pipeline(rows, *BETWEEN).collect(executor="inline", device="cpu")
        assert (report.kept, report.failed) == (500, 0)
        assert {place.split()[0] for place in found["place"].to_pylist()} == {"cuda:0"}
        assert {place.split()[0] for place in expected["place"].to_pylist()} == {"cpu"}
        assert found["n"].to_pylist() == expected["n"].to_pylist()
        ours, theirs = (np.array(table["embedding"].to_pylist()) for table in (found, expected))
        assert np.abs(ours - theirs).max() < 1e-3

    def test_neighbours_keep_vectors_on_the_device(self, moved):
        found = moved[0]
        assert not any(found["copied"].to_pylist())
        norms = np.linalg.norm(np.array(found["embedding"].to_pylist()), axis=1)
        assert np.abs(norms - found["norm"].to_numpy()).max() < 1e-3

    def test_steps_with_a_worker_on_the_cpu_between_them_copy(self, moved):
        apart = Pipeline(Rows(rows_of(500)), *BETWEEN).collect(executor=STREAMED, memory="8GB")
        assert all(apart["copied"].to_pylist())
        norms = dict(zip(moved[0]["n"].to_pylist(), moved[0]["norm"].to_pylist(), strict=True))
        assert apart["norm"].to_pylist() == pytest.approx([norms[n] for n in apart["n"].to_pylist()], abs=1e-3)

    def test_the_inline_executor_uses_the_gpu_too(self):
        torch_with_gpu()
        found = Pipeline(Rows(rows_of(100)), EmbedOnGpuForTests()).collect(executor=InlineExecutor(), gpu_memory="4GB")
        assert {place.split()[0] for place in found["place"].to_pylist()} == {"cuda:0"}
        assert {place.split()[-1] for place in found["place"].to_pylist()} == {str(4_000_000_000 - 600_000_000)}

    def test_fractions_put_two_workers_on_one_gpu(self):
        torch_with_gpu()
        rows = Rows(rows_of(4000), rows_per_partition=100)
        options = {"executor": LocalExecutor(workers=4), "memory": "16GB", "gpu_memory": "8GB"}
        plan = Pipeline(rows, EmbedOnGpuForTests(gpus=0.5)).explain(**options).as_dict()
        slots = plan["stages"][0]["pools"][1]["gpu_slots"]
        assert len(slots) == 2 * len(devices.visible_gpus())
        found = Pipeline(rows, EmbedOnGpuForTests(gpus=0.5)).collect(**options)
        assert {place.split()[-1] for place in found["place"].to_pylist()} == {str(4_000_000_000 - 600_000_000)}
        assert found["n"].to_pylist() == list(range(4000))

    def test_devices_that_are_hidden_are_not_used(self, monkeypatch):
        torch_with_gpu()
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
        found = Pipeline(Rows(rows_of(100)), EmbedOnGpuForTests()).collect(executor=STREAMED, memory="8GB")
        assert {place.split()[0] for place in found["place"].to_pylist()} == {"cpu"}

    def test_a_module_may_look_for_a_gpu_when_it_is_imported(self, tmp_path, monkeypatch):
        torch_with_gpu()
        (tmp_path / "looks_for_gpu.py").write_text(
            textwrap.dedent(
                """
                import torch
                from tamis.operators import Map, Resources, operator

                DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

                @operator(reads="n", writes="where")
                class LooksForGpu(Map):
                    declared_resources = Resources(gpus=1)

                    def apply(self, batch):
                        made = torch.ones(len(batch), device=DEVICE)
                        return {"where": [str(made.device)] * len(batch)}
                """
            )
        )
        script = textwrap.dedent(
            """
            from looks_for_gpu import LooksForGpu
            from tamis import Pipeline, Rows
            found = Pipeline(Rows([{"n": 1}, {"n": 2}]), LooksForGpu()).collect(memory="8GB")
            print(set(found["where"].to_pylist()))
            """
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.stdout.strip() == "{'cuda:0'}", done.stderr


@pytest.mark.gpu
class TestMemory:
    def test_what_the_run_holds_is_in_events_and_report(self, moved):
        _, report, seen, (before, after) = moved
        peak = report.memory["gpus"][0]
        assert peak["owners"]["weights"] >= 4 * DIM * DIM
        assert {"weights", "activations"} <= set(peak["owners"])
        assert peak["budget_bytes"] == 4_000_000_000
        assert any(event.gpus for event in seen if isinstance(event, MemorySampled))
        assert after >= before - 100_000_000, "the GPU is free again"

    def test_batches_that_do_not_fit_are_halved_and_a_row_that_does_not_fit_fails(self):
        torch_with_gpu()
        report = Pipeline(Rows(rows_of(64)), HungryOnGpuForTests()).run(
            executor=STREAMED, memory="8GB", gpu_memory="2600MB", max_failed="50%"
        )
        assert (report.kept, report.failed) == (63, 1)
        assert report.memory["actions"].get("split", 0) > 0
        assert "CUDA out of memory" in report.errors[0]["error"]

    def test_both_libraries_share_one_pool(self):
        torch_with_gpu()
        pytest.importorskip("cupy")
        script = textwrap.dedent(
            """
            import cupy, torch
            from tamis.context import Context
            from tamis.models import devices

            context = Context("cuda:0", None, 2_000_000_000)
            early = cupy.zeros(1000)  # from a pool of its own
            devices.open_torch(context)
            devices.open_cupy(context)
            before = torch.cuda.memory_allocated()
            mine = cupy.ones(300_000_000, dtype=cupy.uint8)
            assert torch.cuda.memory_allocated() - before >= 300_000_000
            assert int(mine.sum(dtype=cupy.int64)) == 300_000_000
            del mine
            cupy.get_default_memory_pool().free_all_blocks()
            tensor = torch.ones(1_500_000_000, dtype=torch.uint8, device="cuda")  # uses what CuPy has freed
            try:
                cupy.ones(1_000_000_000, dtype=cupy.uint8)
            except MemoryError as error:
                print("shortage", type(error).__name__)
            del tensor
            assert int(cupy.ones(1_000_000_000, dtype=cupy.uint8)[0]) == 1
            assert float(early.sum()) == 0
            assert cupy.zeros(0).size == 0
            mask = __import__("numpy").array([True, False, True])
            assert cupy.arange(3)[mask].tolist() == torch.arange(3, device="cuda")[mask].tolist() == [0, 2]
            """
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
        assert done.stdout.strip() == "shortage OutOfMemoryError", done.stderr

    def test_another_process_that_fills_the_gpu_ends_the_run_and_nothing_is_lost(self, tmp_path):
        torch_with_gpu()
        steps = [Rows(rows_of(8), rows_per_partition=4), WantsMuchForTests(), JsonlWriter(tmp_path / "out")]
        options = {"executor": LocalExecutor(workers=1), "memory": "8GB", "gpu_memory": "20GB"}
        # The budget is larger than what is free, as when another process takes it after the run has begun.
        with filled_gpu(leave_bytes=3_000_000_000), pytest.raises(BudgetError, match="other processes"):
            Pipeline(*steps).run(**options)
        report = Pipeline(*steps).run(**options)
        assert (report.kept, report.failed) == (8, 0)


@operator(reads="n", writes="m")
class WantsMuchForTests(Map):
    """Takes six gigabytes for any batch, and waits a second for room."""

    declared_resources = Resources(gpus=1)

    def open(self, context):
        torch = devices.open_torch(context)
        devices.CROWDED_WAIT_S = 1.0  # in this worker

        class Runner:
            def apply(self, batch):
                block = torch.ones(6_000_000_000, dtype=torch.uint8, device=context.device)
                return {"m": np.full(len(batch), int(block[0]))}

        return Runner()


class filled_gpu:  # noqa: N801 - used like a function
    """Another process that leaves little of the GPU."""

    def __init__(self, leave_bytes):
        self.leave_bytes = leave_bytes

    def __enter__(self):
        code = textwrap.dedent(
            f"""
            import sys, torch
            free, _ = torch.cuda.mem_get_info()
            held = torch.ones(free - {self.leave_bytes}, dtype=torch.uint8, device="cuda")
            print("filled", flush=True)
            sys.stdin.read()
            """
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout.readline().strip() == "filled"

    def __exit__(self, *exc):
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


@pytest.mark.gpu
class TestDeaths:
    def test_a_killed_worker_costs_no_row(self, tmp_path):
        torch_with_gpu()
        seen = []
        source = tmp_path / "in.jsonl"
        source.write_text("".join(f'{{"n": {n}}}\n' for n in range(1000)))
        step = KilledOnGpuForTests(marker=str(tmp_path / "killed"))
        found = Pipeline(JsonlReader(source), step, JsonlWriter(tmp_path / "out"))
        report = found.run(executor=STREAMED, memory="8GB", on_event=seen.append)
        assert (report.kept, report.failed) == (1000, 0)
        assert [event.step for event in seen if isinstance(event, WorkerDied)] == ["killed_on_gpu_for_tests"]
        rows = Pipeline(JsonlReader(tmp_path / "out")).collect(executor="inline")
        assert rows["m"].to_pylist() == [2 * n for n in range(1000)]

    def test_a_row_after_which_the_gpu_cannot_be_used_fails_alone(self):
        torch_with_gpu()

        @operator(reads="n", writes="m")
        class OutOfRangeForTests(Map):
            declared_resources = Resources(gpus=1)

            def open(self, context):
                torch = devices.open_torch(context)
                table = torch.arange(10, device=context.device)

                class Runner:
                    def apply(self, batch):
                        wanted = torch.tensor(batch["n"].to_numpy(), device=context.device)
                        return {"m": table[torch.where(wanted == 7, wanted + 1000, wanted % 10)].cpu().numpy()}

                return Runner()

        rows = Rows([{"n": 7}, {"n": 8}], rows_per_partition=1)
        report = Pipeline(rows, OutOfRangeForTests()).run(executor=STREAMED, memory="8GB", max_failed="100%")
        assert (report.kept, report.failed) == (1, 1)
        assert "device-side assert" in report.errors[0]["error"]


@pytest.mark.gpu
def test_the_examples_of_the_guide_that_need_a_gpu_run(tmp_path):
    torch_with_gpu()
    text = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text()
    blocks = re.findall(r"^```python(?: gpu)?\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for block in blocks:
        done = subprocess.run(
            [sys.executable, "-c", block], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        printed = re.findall(r"^ *print\(.*\)\s+# (.*)$", block, flags=re.MULTILINE)
        assert done.stdout.splitlines()[: len(printed)] == printed
