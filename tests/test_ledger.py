import multiprocessing
import zlib

import pytest

from tamis.errors import LedgerError
from tamis.ledger import Commit, Ledger
from tamis.logs import format_line, parse_line
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


HOSTILE = {
    "empty name": {"name": ""},
    "dot": {"name": "."},
    "dot slash": {"name": "./"},
    "user file": {"name": "notes.txt"},
    "other partition": {"name": "part-000001.parquet"},
    "longer number": {"name": "part-0000001.parquet"},
    "folder": {"name": "part-000000/x"},
    "behind a link": {"name": "link/part-000000.parquet"},
    "internal file": {"name": ".tamis/report.json"},
    "failed rows elsewhere": {"name": ".tamis/failed/../../notes.txt"},
    "newline": {"name": "part-000000.parquet\n"},
    "no number of rows": {"rows": "3"},
    "unknown field": {"owner": "somebody"},
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_record_with_a_valid_checksum_that_no_run_writes_is_damaged(store, change):
    record = commit("a").record()
    record["shards"][0] |= change
    (store.path / ".tamis" / "ledger.log").write_bytes(format_line(record))
    with Ledger(store) as ledger:
        assert (ledger.commits, ledger.damaged) == ({}, 1)


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"kind": "commit"},
        {"kind": "commit", "shards": 3},
        commit("a").record() | {"account": []},
        commit("a").record() | {"account": {"operators": [{"name": "x", "kind": "map", "rows_in": "many"}]}},
        commit("a").record() | {"partition": "0"},
        commit("a").record() | {"extra": {"files": ["../../notes.txt"]}},
        commit("a").record() | {"extra": {"unreadable": {"first": "x"}}},
        {"kind": "drop"},
        {"kind": "step", "stage": 0},
        {"kind": "plan"},
        {"kind": "plan", "version": "1", "identity": [3], "blocksize": 1, "rejects": False, "files": []},
        {"kind": "finished", "report": 3},
        {"kind": "finished", "report": {"red": 3}},
    ],
    ids=repr,
)
def test_a_record_of_another_shape_is_damaged(store, record):
    (store.path / ".tamis" / "ledger.log").write_bytes(format_line(record))
    with Ledger(store) as ledger:
        assert ledger.damaged == 1


@pytest.mark.parametrize("body", [b"3", b"[]", b"nonsense", b"[" * 100_000])
def test_a_line_that_is_no_record_is_damaged(store, body):
    (store.path / ".tamis" / "ledger.log").write_bytes(b"%08x %s\n" % (zlib.crc32(body), body))
    with Ledger(store) as ledger:
        assert ledger.damaged == 1


def test_clearing_forgets_the_results_of_a_gather_too(store):
    with Ledger(store) as ledger:
        ledger.append([commit("a").record(), {"kind": "step", "stage": 0, "key": "k", "result": 1}])
        ledger.clear()
    with Ledger(store) as ledger:
        assert ledger.is_new
        assert ledger.steps == {}


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
