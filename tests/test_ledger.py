import multiprocessing

import pytest

from tamis.errors import LedgerError
from tamis.ledger import Commit, Ledger, format_line, parse_line
from tamis.operators import Shard
from tamis.report import Account, OperatorAccount
from tamis.store import Store


def commit(key: str, partition: int = 0) -> Commit:
    account = Account(operators=[OperatorAccount("reader", "source", rows_in=3, rows_out=3)], read=3, kept=3)
    return Commit(0, key, partition, [Shard(f"part-{partition:06d}.parquet", 3, 100)], account, {})


@pytest.fixture
def store(tmp_path) -> Store:
    store = Store(str(tmp_path / "out"))
    store.make()
    return store


def test_commits_survive(store):
    with Ledger(store) as ledger:
        ledger.append([commit("a").record(), commit("b", 1).record()])
    with Ledger(store) as ledger:
        assert ledger.commits == {(0, "a"): commit("a"), (0, "b"): commit("b", 1)}


def test_a_dropped_commit_is_removed(store):
    with Ledger(store) as ledger:
        ledger.append([commit("a").record()])
        ledger.drop([commit("a")])
    with Ledger(store) as ledger:
        assert ledger.commits == {}


@pytest.mark.parametrize("cut", [2, 5, 50])
def test_a_record_cut_short_is_ignored_and_the_next_one_is_not_harmed(store, cut):
    with Ledger(store) as ledger:
        ledger.append([commit("a").record(), commit("b", 1).record()])
    path = store.path / ".tamis" / "ledger.log"
    path.write_bytes(path.read_bytes()[:-cut])
    with Ledger(store) as ledger:
        assert set(ledger.commits) == {(0, "a")}
        assert ledger.damaged == 1
        ledger.append([commit("c", 2).record()])
    with Ledger(store) as ledger:
        assert set(ledger.commits) == {(0, "a"), (0, "c")}


def test_a_flipped_byte_is_noticed():
    line = format_line({"kind": "plan", "n": 1}).rstrip(b"\n")
    assert parse_line(line) == {"kind": "plan", "n": 1}
    for position in range(len(line)):
        damaged = line[:position] + bytes([line[position] ^ 1]) + line[position + 1 :]
        assert parse_line(damaged) is None


def _try_to_open(path: str, answers) -> None:
    try:
        with Ledger(Store(path)):
            answers.put("opened")
    except LedgerError as error:
        answers.put(str(error))


def test_two_runs_cannot_write_to_one_output(store):
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with Ledger(store):
        other = context.Process(target=_try_to_open, args=(store.root, answers))
        other.start()
        answer = answers.get(timeout=60)
        other.join()
    assert "another run is writing to" in answer
    with Ledger(store):
        pass
