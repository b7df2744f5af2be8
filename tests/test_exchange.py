import itertools
import json
import pickle
import threading
from contextlib import ExitStack

import fsspec
import pytest

from tamis import JsonlWriter, Pipeline, Rows
from tamis.exchange import Attempted, FolderExchange, StoreExchange, attempt, remove_local_copies
from tamis.executors.segments import publish
from tamis.executors.tasks import Task
from tamis.executors.worker import StageRunner
from tamis.memory.budget import make_budget
from tamis.memory.spill import ObservedFacts
from tamis.plan import make_plan
from tamis.sampling import Sample
from tamis.store import Store


@pytest.fixture(params=["folder", "store"])
def exchange(request, tmp_path, monkeypatch):
    monkeypatch.setenv("TAMIS_SCRATCH", str(tmp_path / "scratch"))
    if request.param == "folder":
        yield FolderExchange(tmp_path / "exchange")
    else:
        yield StoreExchange(f"memory://bucket-{tmp_path.name}/exchange")
    remove_local_copies()
    fsspec.filesystem("memory").store.clear()


def write(exchange, name, text):
    with exchange.writing(name) as path:
        path.write_text(text)


def test_a_blob_is_written_read_listed_renamed_and_deleted(exchange):
    write(exchange, "a.spill", "one")
    write(exchange.sub("part"), "b.spill", "two")
    assert exchange.names() == ["a.spill"]
    assert exchange.file("a.spill").read_text() == "one"
    assert exchange.file("part/b.spill").read_text() == "two"
    with exchange.open("a.spill") as file:
        assert file.read() == b"one"
    exchange.rename("a.spill", "c.spill")
    assert (exchange.has("a.spill"), exchange.file("c.spill").read_text()) == (False, "one")
    exchange.delete("c.spill")
    exchange.delete("missing")
    exchange.delete("part")
    assert (exchange.names(), exchange.sub("part").names()) == ([], [])


def test_a_block_that_fails_writes_nothing(exchange):
    def fail():
        with exchange.writing("a.spill") as path:
            path.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not exchange.has("a.spill")


def test_it_can_be_sent_to_a_worker(exchange):
    write(exchange, "a.spill", "one")
    assert pickle.loads(pickle.dumps(exchange)).file("a.spill").read_text() == "one"
    assert len(pickle.dumps(exchange)) < 500


def test_a_draft_is_a_blob_only_after_it_is_published(exchange):
    with attempt() as this:
        write(exchange, "a.spill", "one")
    assert (exchange.has("a.spill"), exchange.names()) == (False, [])
    (draft,) = this.drafts.values()
    pickle.loads(pickle.dumps(draft)).publish("b.spill")
    assert exchange.file("b.spill").read_text() == "one"


def test_an_attempt_that_ends_after_another_was_published_changes_nothing(exchange):
    texts = iter(["slow", "fast"])
    call = Attempted(lambda: write(exchange, "a.spill", next(texts)))
    _, slow = call()
    _, fast = call()
    fast[0].publish()
    assert slow[0] != fast[0]
    write_again = Attempted(lambda: write(exchange, "a.spill", "slower still"))
    write_again()
    assert exchange.file("a.spill").read_text() == "fast"


def test_drafts_that_no_attempt_will_publish_are_deleted(exchange):
    with attempt() as this:
        write(exchange, "a.spill", "kept")
        write(exchange.sub("part"), "b.spill", "left")
    next(iter(this.drafts.values())).publish()
    exchange.delete_drafts()
    assert exchange.file("a.spill").read_text() == "kept"
    if isinstance(exchange, FolderExchange):
        assert [path.name for path in exchange.folder.rglob("*") if path.is_file()] == ["a.spill"]
    else:
        assert len(fsspec.filesystem("memory").find(exchange.url.removeprefix("memory://"))) == 2


def test_a_failed_attempt_leaves_no_drafts(exchange):
    def fail():
        write(exchange, "a.spill", "one")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        Attempted(fail)()
    if isinstance(exchange, FolderExchange):
        assert not list(exchange.folder.iterdir())
    else:
        assert not fsspec.filesystem("memory").find(exchange.url.removeprefix("memory://"))


def test_local_copies_stay_within_their_limit_and_are_removed_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr("tamis.exchange.COPIES_BYTES", 25)
    exchange = StoreExchange(f"memory://copies-{tmp_path.name}", scratch=tmp_path / "scratch")
    for number in range(5):
        write(exchange, str(number), "ten bytes!")
    for number in (0, 1, 2, 0, 3):
        assert exchange.file(str(number)).read_text() == "ten bytes!"
    kept = {path.name.partition(".")[0] for path in (tmp_path / "scratch").rglob("*.draft-*")}
    assert kept == {"0", "3"}
    remove_local_copies()
    assert not list((tmp_path / "scratch").iterdir())


def test_the_folder_of_a_process_that_was_killed_is_removed_by_the_next_one(tmp_path):
    left = tmp_path / "tamis-process-99999999-abc"
    left.mkdir()
    StoreExchange("memory://any", scratch=tmp_path).scratch()
    assert not left.exists()
    remove_local_copies()


@pytest.mark.parametrize("name", ["", "../up", "/etc/passwd", "a/../../b"])
def test_names_cannot_lead_out(exchange, name):
    with pytest.raises(Exception, match="is not the name of a blob"):
        exchange.file(name)


# --------------------------------------------------------------------------------------------- two attempts at one task

FAST_IS_COMMITTED = threading.Event()
SLOW_HAS_BEGUN = threading.Event()
attempts = itertools.count()


def slow_then_fast(row):
    """The first attempt waits until the second one is committed."""
    if next(attempts) == 0:
        SLOW_HAS_BEGUN.set()
        assert FAST_IS_COMMITTED.wait(60)
        return {**row, "text": "slow"}
    return {**row, "text": "fast"}


@pytest.mark.parametrize("output", ["local", "remote"])
@pytest.mark.parametrize("gathers", [False, True])
def test_an_attempt_that_was_given_up_does_not_overwrite_what_another_committed(tmp_path, output, gathers):
    global attempts
    attempts = itertools.count()
    FAST_IS_COMMITTED.clear()
    SLOW_HAS_BEGUN.clear()
    root = str(tmp_path / "out") if output == "local" else f"memory://out-{tmp_path.name}"
    more = [Sample(rows=1)] if gathers else []
    steps = Pipeline(Rows([{"text": "given"}]), slow_then_fast, *more, JsonlWriter(root)).steps
    store = Store(root, scratch=tmp_path / "scratch")
    store.make()
    plan = make_plan(steps, make_budget(memory="1GB", workers=1), store)
    stage = plan.stages[0]
    task = Task(plan.layout.partitions[0])
    ended = []

    def run():
        runner = StageRunner(stage)
        with ExitStack() as stack:
            stack.callback(runner.close)
            ended.append(runner.run(task, lambda *_: None))

    slow = threading.Thread(target=run)
    slow.start()
    assert SLOW_HAS_BEGUN.wait(60)
    runner = StageRunner(stage)
    outcome = publish(stage, task, [runner.run(task, lambda *_: None)])
    FAST_IS_COMMITTED.set()
    slow.join(60)
    assert len(ended) == 1, "the attempt that was given up did end"
    if gathers:
        assert outcome.extra["files"] == stage.exchange.names()
        assert spilled_texts(stage.exchange) == ["fast"]
        assert len(ObservedFacts(stage.exchange, {0: 1})[0]) == 1
    else:
        (shard,) = outcome.shards
        assert json.loads(store.read(shard.name)) == {"text": "fast"}
        assert [name for name in store.names() if name.startswith("part")] == [shard.name]
    fsspec.filesystem("memory").store.clear()


def spilled_texts(exchange):
    import pyarrow as pa

    (name,) = [name for name in exchange.names() if ".rows" in name]
    return pa.ipc.open_file(str(exchange.file(name))).read_all().column("text").to_pylist()
