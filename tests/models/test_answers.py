"""Answers, spending and places for requests that several processes share."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import signal
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from tamis.errors import EndpointError
from tamis.models.answers import Amount, Answer, AnswerStore, Limit, Places

CONTEXT = multiprocessing.get_context("spawn")


@pytest.fixture
def store(tmp_path):
    opened = AnswerStore(tmp_path)
    yield opened
    opened.close()


def test_the_first_answer_is_kept(store):
    first, second = Answer("a\ud800 \U0001f600", "stop", 1, 2), Answer("b", None, 3, 4)
    assert store.get(b"key") is None
    assert store.put(b"key", first) == first
    assert store.put(b"key", second) == first
    assert store.get(b"key") == first


def test_a_reservation_counts_until_it_is_settled(store):
    limit = Limit(tokens=100)
    assert store.reserve("run", Amount(60), limit) is True
    assert store.reserve("run", Amount(60), limit) is False  # must wait
    assert store.reserve("other", Amount(60), limit) is True
    store.settle("run", Amount(60), Amount(10))
    assert store.spent("run") == Amount(10)
    assert store.reserve("run", Amount(60), limit) is True
    store.settle("run", Amount(60), Amount(60))
    assert store.reserve("run", Amount(60), limit) is None  # spent
    assert store.reserve("run", Amount(30), limit) is True


def test_money_is_limited_too(store):
    assert store.reserve("run", Amount(5, 70), Limit(cost=100)) is True
    assert store.reserve("run", Amount(5, 70), Limit(cost=100)) is False
    assert store.reserve("run", Amount(5, 170), Limit(cost=100)) is None


def _reserve_and_die(folder: str) -> None:
    store = AnswerStore(Path(folder))
    store.put(b"key", Answer("kept", None, 0, 0))
    assert store.reserve("run", Amount(100), Limit(tokens=100))
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_keeps_its_answers_and_releases_its_reservation(store, tmp_path):
    process = CONTEXT.Process(target=_reserve_and_die, args=(str(tmp_path),))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert store.get(b"key") == Answer("kept", None, 0, 0)
    assert store.reserve("run", Amount(50), Limit(tokens=100)) is False
    assert store.reserve("run", Amount(50), Limit(tokens=100)) is True


def _spend(folder: str, times: int) -> None:
    store = AnswerStore(Path(folder))
    for number in range(times):
        store.settle("run", Amount(), Amount(1, 2))
        store.put(f"{os.getpid()} {number}".encode(), Answer("x", None, 0, 0))
    store.close()


def test_processes_do_not_lose_each_others_sums(store, tmp_path):
    processes = [CONTEXT.Process(target=_spend, args=(str(tmp_path), 200)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert store.spent("run") == Amount(400, 800)


def _open_with_others(folder: str, together: Barrier, failures: Queue) -> None:
    for attempt in range(25):
        together.wait()
        try:
            AnswerStore(Path(folder) / str(attempt)).close()
        except EndpointError as error:
            failures.put(str(error))


def test_processes_may_create_the_file_at_the_same_time(tmp_path):
    together, failures = CONTEXT.Barrier(6), CONTEXT.Queue()
    processes = [CONTEXT.Process(target=_open_with_others, args=(str(tmp_path), together, failures)) for _ in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 6
    assert failures.empty()


def test_a_damaged_answer_is_asked_again_and_a_damaged_file_is_an_error(store, tmp_path):
    store.put(b"key", Answer("a", None, 0, 0))
    store._db.execute("UPDATE answers SET answer = x'0102'")
    assert store.get(b"key") is None
    store._db.execute("DROP TABLE answers")
    with pytest.raises(EndpointError, match=r"cannot store answers in .*no such table"):
        store.get(b"key")


def test_too_many_places_are_an_error(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        with pytest.raises(EndpointError, match="cannot open 300 files") as raised:
            Places(tmp_path, 300)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "lower `concurrency`" in str(raised.value)


def test_places_are_shared_through_the_folder(tmp_path):
    async def use() -> list[str]:
        mine, theirs = Places(tmp_path / "places", 2), Places(tmp_path / "places", 2)  # as two processes have them
        seen: list[str] = []

        async def wait_for_one() -> None:
            async with theirs.one():
                seen.append("third")

        async with mine.one():
            async with mine.one():
                third = asyncio.create_task(wait_for_one())
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(third), 0.1)
                seen.append("two in use")
            await third
        mine.close()
        theirs.close()
        return seen

    assert asyncio.run(use()) == ["two in use", "third"]
