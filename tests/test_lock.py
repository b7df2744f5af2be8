"""The lock of an output in an object store, against an S3 server on loopback."""

import json
import threading

import fsspec
import pytest

from tamis import JsonlWriter, Pipeline, Rows
from tamis.errors import LedgerError
from tamis.ledger import Ledger
from tamis.lock import NAME, StoreLock
from tamis.store import Store


@pytest.fixture
def store(s3_server):
    return Store(f"{s3_server.url}/out", s3_server.storage_options)


def race(store, count):
    """How many of several runs, which start at the same moment, get the lock, and the errors of the others."""
    together = threading.Barrier(count)
    locks = [StoreLock(Store(store.root, store.storage_options)) for _ in range(count)]
    winners, errors = [], []

    def run(lock):
        together.wait()
        try:
            lock.take()
            winners.append(lock)
        except LedgerError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=run, args=(lock,)) for lock in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return winners, errors


@pytest.mark.parametrize("left", [None, {"owner": "gone", "renewed": 0, "process": 1}])
def test_exactly_one_of_the_runs_that_race_for_an_output_wins(store, left):
    assert store.writes_conditionally()
    for _ in range(5):
        if left is not None:
            store.write(NAME, json.dumps(left).encode())
        winners, errors = race(store, 6)
        assert (len(winners), len(errors)) == (1, 5)
        assert all("another run is writing to" in text for text in errors)
        winners[0].check()
        winners[0].release()
        assert store.read(NAME) is None


def test_a_run_whose_lock_was_taken_over_writes_nothing_more(store):
    with Ledger(store) as first:
        holder = json.loads(store.read(NAME)) | {"renewed": 0}
        store.write(NAME, json.dumps(holder).encode())  # as if it had been suspended for long
        with Ledger(Store(store.root, store.storage_options)) as second:
            first.lock.renew()
            with pytest.raises(LedgerError, match="another run has taken it over"):
                first.append([{"kind": "clear"}])
            second.lock.renew()
            second.append([{"kind": "clear"}])
            assert store.read(NAME) is not None
        assert store.read(NAME) is None
    assert len(store.names(".tamis/ledger")) == 1


def test_a_thread_renews_the_lock_while_the_driver_is_busy(store, monkeypatch):
    monkeypatch.setattr("tamis.lock.STALE_S", 0.6)
    renewed = threading.Event()
    plain = StoreLock.renew
    monkeypatch.setattr(StoreLock, "renew", lambda self: (plain(self), renewed.set()))
    lock = StoreLock(store)
    lock.take()
    before = json.loads(store.read(NAME))["renewed"]
    assert renewed.wait(60)
    assert json.loads(store.read(NAME))["renewed"] > before
    lock.check()
    lock.release()


def test_a_store_without_conditional_writes_has_a_lock_too_and_a_note(tmp_path):
    root = f"memory://lock-{tmp_path.name}"
    report = Pipeline(Rows([{"n": 1}]), JsonlWriter(root)).run(executor="inline", scratch=tmp_path)
    assert "has no conditional writes" in " ".join(report.notes)
    store = Store(root)
    with Ledger(store), pytest.raises(LedgerError, match="another run is writing"), Ledger(Store(root)):
        pass
    fsspec.filesystem("memory").store.clear()
