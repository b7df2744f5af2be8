"""`verify` finds every damaged, missing and foreign file; the next run repairs what it forgot."""

import json

import pytest

import tamis
from tamis import JsonlReader, JsonlWriter, ParquetWriter, Pipeline
from tamis.cli import main
from tamis.commands.printing import NOT_OK
from tamis.errors import LedgerError
from tamis.events import PartitionCommitted
from tamis.sampling import Sample
from tamis.text.quality import WordCount


def job(folder, *middle, writer=JsonlWriter):
    reader = JsonlReader(folder / "in", files_per_partition=1)
    return Pipeline(reader, WordCount(min_words=3), *middle, writer(folder / "out"))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(3):
        rows = [json.dumps({"text": "word " * (row % 7), "n": row}) for row in range(30)]
        (tmp_path / "in" / f"{number}.jsonl").write_text("\n".join([*rows, "broken"]))
    return tmp_path


def run(folder, *middle, **options):
    done = []
    report = job(folder, *middle).run(
        executor="inline",
        on_error="isolate",
        rejects=True,
        on_event=lambda e: done.append((e.stage, e.partition)) if isinstance(e, PartitionCommitted) else None,
        **options,
    )
    return report, done


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def test_an_intact_output_is_ok(folder):
    run(folder)
    (folder / "out" / "notes.txt").write_text("mine")
    found = tamis.verify(folder / "out")
    assert found.ok
    assert found.files == 9  # of each partition the rows, the rejected and the failed ones
    assert str(found).startswith("verified 9 files")


@pytest.mark.parametrize("name", ["part-000001.jsonl", ".tamis/rejects/part-000001-stage-1.table"])
def test_a_flipped_byte_is_found_and_repaired_by_the_next_run(folder, name):
    run(folder)
    file = folder / "out" / name
    before = file.read_bytes()
    flip(file)
    assert run(folder)[0].state == "unchanged"  # sizes are right
    found = tamis.verify(folder / "out")
    assert not found.ok
    assert found.damaged == {name: "its checksum is wrong"}
    assert tamis.verify(folder / "out", forget=True).forgotten == 1
    assert run(folder)[1] == [(0, 1)]
    assert tamis.verify(folder / "out").ok
    if file.suffix == ".jsonl":
        assert file.read_bytes() == before


def test_damage_before_a_gather_is_repaired_too(folder):
    run(folder, Sample(rows=20))
    flip(folder / "out" / ".tamis/failed/part-000002-stage-1.rows")
    tamis.verify(folder / "out", forget=True)
    run(folder, Sample(rows=20))
    assert tamis.verify(folder / "out").ok


def test_missing_cut_and_foreign_files_are_found(folder):
    run(folder)
    output = folder / "out"
    (output / "part-000000.jsonl").unlink()
    (output / "part-000001.jsonl").write_text("{}\n")
    (output / "other.jsonl").write_text("{}\n")
    found = tamis.verify(output)
    assert found.missing == ["part-000000.jsonl"]
    assert list(found.damaged) == ["part-000001.jsonl"]
    assert "3 bytes instead of" in found.damaged["part-000001.jsonl"]
    assert found.foreign == ["other.jsonl"]


def test_shards_that_were_rewritten_to_agree_have_their_own_checksums(folder):
    (folder / "in" / "1.jsonl").write_text(json.dumps({"text": "a b c d", "n": 0.5, "new": "x"}) + "\n")
    job(folder, writer=ParquetWriter).run(executor="inline", on_error="isolate", max_failed="100%")
    assert tamis.verify(folder / "out").ok


def test_the_command_exits_with_an_error_if_something_is_wrong(folder, capsys):
    run(folder)
    assert main(["verify", str(folder / "out")]) == 0
    flip(folder / "out" / "part-000000.jsonl")
    assert main(["verify", str(folder / "out"), "--json", "--forget"]) == NOT_OK
    out = capsys.readouterr().out
    assert json.loads(out[out.index("{") :])["forgotten"] == 1


def test_a_folder_without_a_ledger_is_an_error_and_stays_as_it_is(tmp_path):
    with pytest.raises(LedgerError, match="there is no ledger in"):
        tamis.verify(tmp_path, forget=True)
    assert list(tmp_path.iterdir()) == []
