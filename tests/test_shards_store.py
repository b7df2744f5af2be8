"""Shards that share an output in an object store."""

import json
import time
from types import SimpleNamespace

import pytest

from tamis import JsonlReader, JsonlWriter, Pipeline
from tamis.dedup import ExactDedup
from tamis.errors import LedgerError
from tamis.ledger import Ledger
from tamis.logs import Log
from tamis.shards import ShardLedger, parse_shard
from tamis.store import Store
from tamis.text.quality import WordCount
from tests.test_shards import Killed, account, source, stops_after, together  # noqa: F401 (a fixture)


def s3_job(bucket, output, middle):
    options = bucket.storage_options
    reader = JsonlReader(f"{bucket.url}/in/", files_per_partition=1, storage_options=options)
    return Pipeline(reader, *middle, JsonlWriter(f"{bucket.url}/{output}", storage_options=options))


def s3_files(bucket, output):
    store = Store(f"{bucket.url}/{output}", bucket.storage_options)
    return {name: store.read(name) for name in store.names() if name.startswith("part-")}


@pytest.fixture
def bucket(s3_server, source):  # noqa: F811
    store = Store(s3_server.url, s3_server.storage_options)
    for file in sorted(source.iterdir())[:4]:
        store.write(f"in/{file.name}", file.read_bytes())
    return s3_server


def test_shards_on_an_object_store_in_sequence_and_at_the_same_time(bucket):
    middle = [WordCount(min_words=2), ExactDedup()]
    expected = s3_job(bucket, "one", middle).run(executor="inline")
    for number in (1, 2):
        report = s3_job(bucket, "out", middle).run(executor="inline", shard=f"{number}/2", shard_wait=0)
    concurrent = together(
        [
            lambda n=n: s3_job(bucket, "both", middle).run(executor="inline", shard=f"{n}/2", shard_wait=600)
            for n in (1, 2)
        ]
    )
    merged = next(each for each in concurrent if each.state == "finished")
    for output, found in (("out", report), ("both", merged)):
        assert account(found) == account(expected)
        assert s3_files(bucket, output) == s3_files(bucket, "one")
        store = Store(f"{bucket.url}/{output}", bucket.storage_options)
        assert not {"shards", "work", "attempts", "lock"} & set(store.names(".tamis"))


def test_a_killed_shard_on_an_object_store_is_resumed(bucket, monkeypatch):
    middle = [ExactDedup()]
    s3_job(bucket, "one", middle).run(executor="inline")
    with pytest.raises(Killed):
        s3_job(bucket, "out", middle).run(executor="inline", shard="1/2", on_event=stops_after(1), shard_wait=0)
    s3_job(bucket, "out", middle).run(executor="inline", shard="2/2", shard_wait=0)
    assert s3_files(bucket, "out") == s3_files(bucket, "one")


def test_a_driver_that_comes_back_cannot_overwrite_a_record(bucket):
    first, second = (Log(Store(f"{bucket.url}/out", bucket.storage_options), "0001") for _ in range(2))
    for log in (first, second):
        log.open()
    first.append([{"kind": "clear"}])
    with pytest.raises(LedgerError, match="another run has written to the ledger"):
        second.append([{"kind": "drop", "stage": 0, "key": "k"}])


def test_times_are_those_of_the_store(bucket, monkeypatch):
    """A machine whose clock is an hour ahead does not take over the lock of one that is alive."""
    store = Store(f"{bucket.url}/out", bucket.storage_options)
    ahead = SimpleNamespace(time=lambda: time.time() + 3600, monotonic=time.monotonic, sleep=time.sleep)
    with Ledger(store):
        for module in ("lock", "remote"):
            monkeypatch.setattr(f"tamis.{module}.time", ahead)
        with pytest.raises(LedgerError, match="another run is writing"):
            Ledger(Store(store.root, store.storage_options)).__enter__()


def test_a_shard_takes_over_from_its_own_driver_on_a_machine_that_was_switched_off(bucket, monkeypatch):
    """Its lock is in the store until it is stale; a driver that is alive renews it, and is left alone."""
    monkeypatch.setattr("tamis.lock.STALE_S", 3.0)
    store = Store(f"{bucket.url}/out", bucket.storage_options)
    s3_job(bucket, "out", []).run(executor="inline", shard="2/2", shard_wait=0)
    dead = {"owner": "dead", "host": "elsewhere", "process": 1, "shard": "1/2", "renewed": time.time()}
    store.write(".tamis/shards/0001.lock", json.dumps(dead).encode())
    assert s3_job(bucket, "out", []).run(executor="inline", shard="1/2", shard_wait=0).state == "finished"

    monkeypatch.setattr("tamis.lock.STALE_S", 30.0)  # renewed every five seconds
    s3_job(bucket, "both", []).run(executor="inline", shard="2/2", shard_wait=0)
    with ShardLedger(Store(f"{bucket.url}/both", bucket.storage_options), parse_shard("1/2")) as alive:
        alive.join()
        monkeypatch.setattr("tamis.executors.sharding.platform", SimpleNamespace(node=lambda: "another machine"))
        with pytest.raises(LedgerError, match="shard 1/2 is running already"):
            s3_job(bucket, "both", []).run(executor="inline", shard="1/2", shard_wait=0)
