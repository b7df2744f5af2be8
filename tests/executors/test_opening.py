"""Steps are opened once per worker and stage, share what they load, and are closed in reverse order."""

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest

import tamis.models.fasttext as reading
from tamis import Context, JsonlWriter, Pipeline, Resources, Rows
from tamis.batch import Batch
from tamis.errors import OperatorError, TamisError
from tamis.memory.governor import Learned
from tamis.operators import Expand, Filter, Gather, Map, at_least, operator
from tamis.text.classify import FastTextScore
from tests.models.make_fasttext import Recipe

ROWS = [{"text": f"row {number}"} for number in range(60)]


def note(log, line):
    """Add a line to a file that all workers write to."""
    with Path(log).open("a") as file:
        file.write(f"{os.getpid()} {line}\n")


def lines_of(log):
    """(process, line) as written."""
    return [tuple(line.split(" ", 1)) for line in Path(log).read_text().splitlines()]


class ModelForTests:
    """Adds a number; notes when it is loaded and closed."""

    def __init__(self, log, amount):
        self.log, self.amount = log, amount
        note(log, f"load {amount}")

    def close(self):
        note(self.log, f"close model {self.amount}")


@operator(reads="text", writes=("added", "added_device"))
class AddForTests(Map):
    """Adds a number with a model that steps of equal amount share."""

    log: str
    amount: int = 1
    column_name: str = "added"
    broken: bool = False

    def writes(self):
        return (self.column_name,)

    def open(self, context):
        assert context.device == "cpu"
        assert context.scratch.is_dir()
        (context.scratch / "temporary").write_text("x")
        model = context.shared(f"model {self.amount}", lambda: ModelForTests(self.log, self.amount))
        if self.broken:
            raise ValueError("broken on purpose")
        return AdderForTests(self, model)


class AdderForTests:
    def __init__(self, step, model):
        self.step, self.model = step, model
        note(step.log, f"open {step.column_name}")

    def apply(self, batch):
        return {self.step.column_name: np.full(len(batch), self.model.amount)}

    def close(self):
        note(self.step.log, f"close {self.step.column_name}")


@pytest.fixture
def log(tmp_path):
    return str(tmp_path / "log")


@pytest.mark.parametrize("executor", ["inline", "local"])
def test_a_model_is_loaded_once_per_worker_and_shared_by_two_steps(executor, tmp_path, log):
    steps = (
        Rows(ROWS, rows_per_partition=10),
        AddForTests(log=log, column_name="first"),
        AddForTests(log=log, column_name="second"),
        AddForTests(log=log, amount=7, column_name="third"),
        JsonlWriter(str(tmp_path / "out")),
    )
    report = Pipeline(*steps).run(executor=executor, workers=2)
    assert report.kept == 60
    per_worker = {}
    for process, line in lines_of(log):
        per_worker.setdefault(process, []).append(line)
    assert len(per_worker) == 1 if executor == "inline" else 1 <= len(per_worker) <= 2
    for lines in per_worker.values():
        assert lines == [
            "load 1", "open first", "open second", "load 7", "open third",
            "close third", "close second", "close first", "close model 7", "close model 1",
        ]  # fmt: skip
    assert not list(tmp_path.rglob("temporary")), "the scratch folder is removed"


def test_what_was_opened_is_closed_if_a_later_step_cannot_be_opened(log):
    steps = AddForTests(log=log, column_name="first"), AddForTests(log=log, amount=7, broken=True)
    with pytest.raises(ValueError, match="broken on purpose"):
        Pipeline(Rows(ROWS), *steps).run(executor="inline")
    assert [line for _, line in lines_of(log)] == [
        "load 1", "open first", "load 7", "close first", "close model 7", "close model 1",
    ]  # fmt: skip


def test_each_stage_opens_and_closes_its_own_steps(log):
    class Everything(Gather):
        """Keeps every row, and rewrites it with a model."""

        def open(self, context):
            note(log, "open gather")
            return Observer()

        def resolve(self, observed, decide, work):
            for partition, facts in enumerate(observed):
                decide(partition, np.zeros(len(facts), np.bool_), "never", payload=facts.column("n").combine_chunks())

    class Observer:
        def observe(self, batch):
            return {"n": np.arange(len(batch))}

        def rewrite(self, batch, payload):
            return {"n": payload}

        def close(self):
            note(log, "close gather")

    gather = operator(reads="text", writes="n")(Everything)()
    before, after = AddForTests(log=log, column_name="a"), AddForTests(log=log, column_name="b")
    table = Pipeline(Rows(ROWS[:3]), before, gather, after).collect(executor="inline")
    assert table.column("n").to_pylist() == [0, 1, 2]
    assert [line for _, line in lines_of(log)] == [
        "load 1", "open a", "open gather", "close gather", "close a", "close model 1",
        "load 1", "open b", "open gather", "close gather", "close b", "close model 1",
    ]  # fmt: skip


@operator(reads="text", writes="known")
class KnownForTests(Filter):
    """Keeps rows that a model knows; its scores are stored."""

    log: str
    min_known: int = 1

    def open(self, context):
        note(self.log, "load")
        return KnowerForTests(self.log)

    def rules(self):
        return [at_least("known", self.min_known)]


class KnowerForTests:
    def __init__(self, log):
        self.log = log

    def score(self, batch):
        note(self.log, f"score {len(batch)}")
        return {"known": np.array([text.endswith("0") for text in batch["text"].to_pylist()], np.int64)}


def test_stored_scores_are_measured_by_the_runner(tmp_path, log):
    def run(min_known):
        steps = Rows(ROWS), KnownForTests(log=log, min_known=min_known), JsonlWriter(str(tmp_path / "out"))
        return Pipeline(*steps).run(executor="inline", scores=True)

    assert run(1).kept == 6
    assert run(0).kept == 60
    assert [line for _, line in lines_of(log)] == ["load", "score 60", "load"]


@operator(reads="text", writes="half")
class HalvesForTests(Expand):
    """Splits rows with a runner."""

    def open(self, context):
        return HalverForTests()


class HalverForTests:
    def expand(self, batch):
        import pyarrow as pa

        return pa.table({"half": [0, 1] * len(batch)}), np.repeat(np.arange(len(batch)), 2)


def test_an_expand_with_state():
    report = Pipeline(Rows(ROWS[:5]), HalvesForTests()).run(executor="inline")
    assert (report.read, report.created, report.kept) == (5, 5, 10)


@pytest.mark.parametrize(("made", "what"), [(None, "NoneType"), ("x", "str")])
def test_what_open_returns_must_be_able_to_run(made, what):
    class Forgetful(Map):
        """Opens into something that cannot run."""

        def open(self, context):
            return made

    step = operator(reads="text", writes="n")(Forgetful)()
    with pytest.raises(OperatorError, match=f"`open` of `forgetful` returned {what}, which has no `apply`"):
        Pipeline(Rows(ROWS), step).run(executor="inline")


def test_a_class_with_the_setup_of_other_libraries_is_refused():
    class SetsUp(Map):
        """Loads its model where other libraries do."""

        def setup(self):
            """Never called."""

    with pytest.raises(TamisError, match="SetsUp defines `setup`, which is never called"):
        operator(reads="text")(SetsUp)


def test_a_worker_says_how_much_memory_is_left(tmp_path, log):
    class Asks(Map):
        """Notes the memory it may use."""

        def open(self, context):
            note(log, f"{context.memory_bytes}")
            return self

        def apply(self, batch):
            return {"n": np.zeros(len(batch))}

    step = operator(reads="text", writes="n")(Asks)()
    Pipeline(Rows(ROWS), step).run(executor="inline")
    Pipeline(Rows(ROWS), step).run(memory="1GB", workers=1)
    (_, unlimited), (_, limited) = lines_of(log)
    assert unlimited == "None"
    assert 0 < int(limited) < 1_000_000_000


def test_five_models_are_loaded_once_each_for_any_number_of_batches(tmp_path, monkeypatch):
    loaded, assemble = [], reading._assemble

    def counted(reader, *parts):
        loaded.append(reader.path.name)
        return assemble(reader, *parts)

    steps = []
    for number in range(5):
        path = Recipe([f"row{number}"], ["__label__hq", "__label__lq"], seed=number).write(tmp_path / f"{number}.bin")
        for kind in ("hq", "lq"):
            column = f"{kind}{number}"
            steps.append(FastTextScore(model=path, label=f"__label__{kind}", score_column=column, score_only=True))
    monkeypatch.setattr(reading, "_assemble", counted)
    assert Pipeline(Rows(ROWS, rows_per_partition=10), *steps).run(executor="inline").kept == 60
    assert loaded == [f"{number}.bin" for number in range(5)]


class TestResources:
    def test_steps_that_share_an_object_declare_it_once(self):
        @dataclasses.dataclass(frozen=True)
        class Needs(Map):
            """Needs a shared model and something of its own."""

            key: str = "a"

            @property
            def resources(self):
                return Resources(memory="10MB", shared={self.key: 100_000_000})

        assert Needs().resources.memory_bytes == 110_000_000
        assert Learned().setup_bytes([Needs(key="a")]) == 110_000_000
        assert Learned().setup_bytes([Needs(key="a"), Needs(key="a")]) == 120_000_000
        assert Learned().setup_bytes([Needs(key="a"), Needs(key="b")]) == 220_000_000

    def test_a_model_declares_what_loading_it_takes(self, tmp_path):
        import tracemalloc

        words = [f"word{number}" for number in range(20_000)]
        for name, labels in (("few", 2), ("many", 40)):
            recipe = Recipe(words, [f"__label__{number}" for number in range(labels)], seed=1)
            path = recipe.write(tmp_path / f"{name}.bin")
            step = FastTextScore(model=path, label="__label__0")
            step.open(Context())  # compiles
            tracemalloc.start()
            step.open(Context())
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak <= step.resources.memory_bytes <= 3 * peak

    def test_a_missing_model_declares_nothing_and_check_reports_it(self, tmp_path):
        step = FastTextScore(model=tmp_path / "none.bin", label="__label__hq")
        assert step.resources.memory_bytes == 0
        with pytest.raises(TamisError, match="there is no model file"):
            Pipeline(Rows(ROWS), step).check()


@operator(reads="n", writes="limit")
class Limited(Map):
    """Add what an earlier run learned."""

    def open(self, context: Context) -> "LimitedRunner":
        return LimitedRunner(context.limits.get("rows", 0))


class LimitedRunner:
    def __init__(self, limit: int) -> None:
        self.limit = limit

    def apply(self, batch: Batch) -> dict[str, np.ndarray]:
        return {"limit": np.full(len(batch), self.limit)}

    def take_limits(self) -> dict[str, int]:
        return {"rows": self.limit + 5}


@pytest.mark.parametrize("executor", ["inline", "local"])
def test_what_steps_learn_reaches_the_next_run(tmp_path, executor):
    for expected in (0, 5, 10):
        pipeline = Pipeline(Rows([{"n": expected}]), Limited(), JsonlWriter(tmp_path / "out"))
        pipeline.run(executor=executor, workers=1 if executor == "local" else "auto")
        (file,) = (tmp_path / "out").glob("*.jsonl")
        assert json.loads(file.read_text())["limit"] == expected
