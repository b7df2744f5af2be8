"""Repeated substrings: what is cut and kept, compared with a naive reference, for any division of the work."""

import json
import random
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import JsonlReader, JsonlWriter, Pipeline, Rows
from tamis.dedup import Groups, SubstringDedup, shuffle, substrings
from tamis.dedup.explain import explain_row, explanation_text
from tamis.errors import OperatorError, ParameterError
from tamis.executors import driver
from tamis.kernels import substrings as kernel


def cut(texts, step, per_partition=3, **options):
    """The text of each row that is kept, by row."""
    options = {"executor": "inline", **options}
    table = pa.table({"i": pa.array(range(len(texts)), pa.int64()), "text": pa.array(texts, pa.string())})
    found = Pipeline(Rows(table, rows_per_partition=per_partition), step).collect(**options)
    return dict(zip(found["i"].to_pylist(), found["text"].to_pylist(), strict=True)) if found.num_rows else {}


def naive(texts, size, keep="first", words=False):
    """The same, by comparing all windows of all texts."""
    rows = [text.encode() for text in texts]
    places = {}
    for row, data in enumerate(rows):
        for start in range(len(data) - size + 1):
            places.setdefault(data[start : start + size], []).append((row, start))
    repeats = []
    for (row, first), *others in places.values():
        apart = others if keep == "none" else [place for place in others if place >= (row, first + size)]
        repeats += [((row, first), place) for place in apart]
    covered = {(row, start + at) for _, (row, start) in repeats for at in range(size)}
    lost = set()
    for (row, first), (other, start) in repeats:
        if keep == "none":
            lost |= {(row, first + at) for at in range(size)}
        elif any((row, first + at) in covered for at in range(size)):
            continue
        lost |= {(other, start + at) for at in range(size)}
    return {
        row: text
        for row, data in enumerate(rows)
        if (text := without(data, [at for at in range(len(data)) if (row, at) in lost], words)) is not None
    }


def without(data, lost, words):
    def inside(at):
        return words and 0 < at < len(data) and data[at - 1] > 32 and data[at] > 32

    ranges = []
    for at in lost:
        if ranges and ranges[-1][1] == at:
            ranges[-1][1] += 1
        else:
            ranges.append([at, at + 1])
    kept = bytearray(data)
    for start, stop in reversed(ranges):
        while start < len(data) and (data[start] & 0xC0 == 0x80 or inside(start)):
            start += 1
        while stop > start and ((stop < len(data) and data[stop] & 0xC0 == 0x80) or inside(stop)):
            stop -= 1
        del kept[start:stop]
    left = bytes(kept)
    return None if left != data and not left.strip() else left.decode()


small = st.lists(st.text("ab", max_size=30), min_size=1, max_size=6)
wide = st.lists(st.text("aé你 \n", max_size=25), min_size=1, max_size=6)
phrases = st.lists(
    st.lists(st.sampled_from(["the cat ", "sat on ", "a mat. ", "é", "\n", "Then", "----------"]), max_size=12).map(
        "".join
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=25)
@given(
    st.one_of(small, wide, phrases),
    st.integers(4, 14),
    st.sampled_from(["first", "none"]),
    st.booleans(),
    st.integers(1, 4),
)
def test_what_remains_is_that_of_the_naive_reference(texts, size, keep, words, per_partition):
    step = SubstringDedup(min_bytes=size, keep=keep, cut="word" if words else "character")
    assert cut(texts, step, per_partition) == naive(texts, size, keep, words)


@settings(max_examples=200)
@given(st.one_of(small, phrases), st.integers(4, 12))
def test_every_byte_that_is_cut_remains_in_an_intact_copy_of_its_span(texts, size):
    left = {row: text.encode() for row, text in naive(texts, size).items()}  # what remains, by the test above
    for row, text in enumerate(text.encode() for text in texts):
        starts = range(len(text) - size + 1)
        remaining = [at for at in starts if any(text[at : at + size] in other for other in left.values())]
        covered = {at + offset for at in remaining for offset in range(size)}
        solid = {at for at, byte in enumerate(text) if byte > 32}
        assert len(solid) - len(b"".join(left.get(row, b"").split())) <= len(covered & solid)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["-" * 30], ["-" * 10]),  # one line of dashes repeats itself
        (
            ["abc" * 20],
            ["abc" * 4],
        ),  # so does a pattern: its first windows are "abcabcabca", "bcabcabcab", "cabcabcabc"
        (["0123456789", "0123456789"], ["0123456789"]),
        (["0123456789", "x0123456789y"], ["0123456789", "xy"]),
        (["0123456789", "012345678x"], ["0123456789", "012345678x"]),
        (["", "short"], ["", "short"]),
    ],
)
def test_what_is_left_of_small_texts(texts, expected):
    assert list(cut(texts, SubstringDedup(min_bytes=10)).values()) == expected


@pytest.mark.parametrize("pattern", ["-", "ab", "\u2500", "12345 "])
def test_long_patterns_take_few_spans(pattern):
    """Every window repeats one of the first few, so that a span for each would take forty bytes per byte."""
    data = np.frombuffer((pattern * 20_000).encode()[:20_000], np.uint8)
    runs = substrings._runs_of(data, np.array([0, len(data)]), 0, 200, 66)
    counts = runs["count"].to_numpy() % kernel.PERIODIC
    begins = runs["start"].to_pylist()
    texts = [data[start : start + count + 199].tobytes() for start, count in zip(begins, counts, strict=True)]
    runs = runs.set_column(3, "count", pa.array(counts)).append_column("text", pa.array(texts, pa.large_binary()))
    spans = substrings._WindowTable(200, False, 1, 0).match(runs)
    covered = np.zeros(len(data), np.bool_)
    for _, start, stop, _, _ in spans:
        covered[start:stop] = True
    period = len(pattern.encode())
    assert not covered[:200].any()
    assert covered[200 + 2 * period :].all()
    assert len(spans) < 3 * len(data) / 200


def test_text_around_a_first_occurrence_that_is_cut_is_kept():
    """The second text loses the middle, which occurs before, so the third one keeps what the second no longer has."""
    middle = "in the middle of it"
    texts = [middle, f"abc {middle} xyz", f"abc {middle} xyz"]
    assert list(cut(texts, SubstringDedup(min_bytes=12)).values()) == [middle, "abc  xyz", "abc  xyz"]


def test_rows_without_text_are_kept():
    table = pa.table({"text": pa.array([None, "", None, "some text", "some text"], pa.string())})
    report = Pipeline(Rows(table), SubstringDedup(min_bytes=4)).run(executor="inline")
    assert report.balances
    assert report.dropped == {"nothing but repeated text": 1}


def test_a_text_that_loses_too_much_is_dropped():
    texts = ["a text of some length", "a text of some length and more", "unlike the other ones"]
    table = pa.table({"text": texts})
    report = Pipeline(Rows(table), SubstringDedup(min_bytes=10, max_removed=0.5)).run(executor="inline")
    assert report.dropped == {"more than 50% repeated text": 1}


@pytest.mark.parametrize(
    ("parameters", "message"), [({"min_bytes": 3}, "at least 4"), ({"max_removed": 2.0}, "from 0 to 1")]
)
def test_invalid_parameters_are_rejected(parameters, message):
    with pytest.raises(ParameterError, match=message):
        SubstringDedup(**parameters).check()


def test_a_column_that_is_not_text_is_rejected():
    with pytest.raises(OperatorError, match="not text"):
        Pipeline(Rows([{"text": 1}]), SubstringDedup()).collect(executor="inline")


# ------------------------------------------------------------------------------------------- any division of the work


def documents(count=80, seed=0):
    """Texts of a few hundred bytes, with templates, quotations, copies, and lines of dashes."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghijklmé", k=rng.randrange(1, 9))) for _ in range(300)]
    templates = [" ".join(rng.choices(words, k=25)) for _ in range(3)]
    texts = []
    for number in range(count):
        text = " ".join(rng.choices(words, k=rng.randrange(5, 80)))
        if texts and number % 3 == 0:
            other = rng.choice(texts)
            text = text[:60] + other[40 : 40 + rng.randrange(300)] + text[60:]
        text += [templates[number % 3], "-" * 150, "", rng.choice([*texts, ""])][number % 4]
        texts.append(text)
    return texts


SIZE = 60


@pytest.fixture(scope="module")
def expected():
    return {keep: naive(documents(), SIZE, keep) for keep in ("first", "none")}


def outcome(folder, step, per_partition=10**6, texts=None, **options):
    """(rows, groups) of a run."""
    options = {"executor": "inline", **options}
    rows = [{"id": f"d{i}", "i": i, "text": text} for i, text in enumerate(texts or documents())]
    report = Pipeline(Rows(rows, rows_per_partition=per_partition), step, JsonlWriter(str(folder))).run(**options)
    assert report.balances
    lines = [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]
    groups = Groups.load(folder).table().sort_by([("row", "ascending"), ("unit", "ascending")])
    return {row["i"]: row["text"] for row in lines}, groups


@pytest.mark.parametrize("keep", ["first", "none"])
@pytest.mark.parametrize("per_partition", [80, 7])
def test_templates_and_quotations_are_cut_as_by_the_naive_reference(tmp_path, expected, keep, per_partition):
    found, groups = outcome(tmp_path, SubstringDedup(min_bytes=SIZE, keep=keep), per_partition)
    assert found == expected[keep]
    texts = [text.encode() for text in documents()]
    assert groups.num_rows > 30
    for pair in groups.to_pylist():
        begin, first, size = pair["start"], pair["kept_start"], pair["bytes"]
        assert texts[pair["row"]][begin : begin + size] == texts[pair["kept_row"]][first : first + size]
        assert pair["kept_id"] == f"d{pair['kept_row']}"


def test_small_parts_and_several_passes_change_nothing(tmp_path, monkeypatch, expected):
    whole = outcome(tmp_path / "whole", SubstringDedup(min_bytes=SIZE))
    passes = []
    plain = substrings._WindowTable.__init__
    monkeypatch.setattr(
        substrings._WindowTable, "__init__", lambda self, *given: passes.append(given[2]) or plain(self, *given)
    )
    monkeypatch.setattr(shuffle, "bytes_per_call", lambda worker_bytes: 12_000)
    monkeypatch.setattr(substrings, "PIECE_BYTES", 700)
    monkeypatch.setattr(substrings, "MAX_MAPPED_BYTES", 900)
    found = outcome(tmp_path / "parts", SubstringDedup(min_bytes=SIZE), 13)
    assert max(passes) > 1
    assert found[0] == whole[0] == expected["first"]
    columns = ["row", "unit", "start", "kept_start", "bytes", "kept_row", "dropped"]
    assert found[1].select(columns).equals(whole[1].select(columns))


def test_a_part_that_runs_out_of_memory_is_divided_again(tmp_path, monkeypatch, expected):
    refused = []

    def limited(keys):
        if len(keys) > 400:
            refused.append(len(keys))
            raise MemoryError
        return plain(keys)

    plain = substrings.duplicated
    monkeypatch.setattr(shuffle, "MIN_PART_BYTES", 1000)
    monkeypatch.setattr(substrings, "duplicated", limited)
    monkeypatch.setattr(shuffle, "bytes_per_call", lambda worker_bytes: 80_000)
    monkeypatch.setattr(substrings, "MAX_QUESTION_BYTES", 100)
    assert outcome(tmp_path, SubstringDedup(min_bytes=SIZE), 20)[0] == expected["first"]
    assert refused


def test_result_does_not_depend_on_the_executor(executor, expected):
    table = pa.table({"i": range(80), "text": documents()})
    step = SubstringDedup(min_bytes=SIZE)
    found = Pipeline(Rows(table, rows_per_partition=17), step).collect(executor=executor)
    assert dict(zip(found["i"].to_pylist(), found["text"].to_pylist(), strict=True)) == expected["first"]


def test_a_small_budget_and_two_workers_change_nothing(tmp_path):
    texts = documents(8000, seed=1)
    step = SubstringDedup(min_bytes=100)
    found, _ = outcome(tmp_path / "small", step, 1500, texts, executor="local", workers=2, memory="512MB")
    report = json.loads((tmp_path / "small" / ".tamis" / "report.json").read_text())
    assert report["peak_memory_bytes"] < 512_000_000
    assert found == outcome(tmp_path / "inline", step, texts=texts)[0]


SCRIPT = """
import os, signal, sys
from tamis import JsonlReader, JsonlWriter, Pipeline
from tamis.dedup import SubstringDedup
from tamis.executors import driver

folder, out, when = sys.argv[1:]
plain = driver._GatherWork.map

def map(self, name, function, items, *, new_workers=False):
    def killing(*item):
        if name.startswith(when) and item == items[-1]:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*item)
    return plain(self, name, killing, items)

driver._GatherWork.map = map
Pipeline(JsonlReader(folder, blocksize="5kB"), SubstringDedup(min_bytes=60), JsonlWriter(out)).run(executor="inline")
"""


def write_documents(path):
    path.write_text("".join(json.dumps({"i": i, "text": text}) + "\n" for i, text in enumerate(documents())))
    return str(path)


def read_documents(folder):
    rows = (json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines())
    return {row["i"]: row["text"] for row in rows}


def test_a_run_killed_twice_resumes_with_the_same_result(tmp_path, expected):
    """`kill -9` of the whole process, in the last call of a phase."""
    source = write_documents(tmp_path / "in.jsonl")
    for phase in ("repeats", "answers", "none"):
        command = [sys.executable, "-c", SCRIPT, source, str(tmp_path / "out"), phase]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == (0 if phase == "none" else -9), done.stderr
    assert read_documents(tmp_path / "out") == expected["first"]


class Stopped(BaseException):
    pass


PHASES = ["sizes", "runs", "repeated", "windows", "repeats", "questions", "answers", "spans", "survivors", "decisions"]


def test_a_run_stopped_in_each_phase_resumes_with_the_same_result(tmp_path, monkeypatch, expected):
    source = write_documents(tmp_path / "in.jsonl")
    plain, reached = driver._GatherWork.map, []

    def stopping(self, name, function, items, **options):
        def last_stops(*item):
            reached.append(name)
            if stop and name.startswith(stop) and item == items[-1]:
                raise Stopped
            return function(*item)

        return plain(self, name, last_stops, items, **options)

    monkeypatch.setattr(driver._GatherWork, "map", stopping)
    reader = JsonlReader(source, blocksize="5kB")
    pipeline = Pipeline(reader, SubstringDedup(min_bytes=SIZE), JsonlWriter(str(tmp_path / "out")))
    for stop in PHASES:
        reached.clear()
        with pytest.raises(Stopped):
            pipeline.run(executor="inline")
        assert {name.split(",")[0] for name in reached} <= {stop, PHASES[PHASES.index(stop) - 1]}
    stop = None
    pipeline.run(executor="inline")
    assert read_documents(tmp_path / "out") == expected["first"]


def test_explain_names_the_span_and_where_it_occurs_first(tmp_path):
    rows = [{"id": "a", "text": "what is said twice, once more"}, {"id": "b", "text": "So: what is said twice."}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    reader = JsonlReader(str(tmp_path / "in.jsonl"))
    Pipeline(reader, SubstringDedup(min_bytes=12), JsonlWriter(str(tmp_path / "out"))).run(executor="inline")
    (row,) = explain_row(Groups.load(tmp_path / "out"), "b")
    assert row.outcome == "kept"
    assert "bytes 4 to 22 repeat bytes 0 to 18 of a (" in explanation_text(row)
    assert Groups.load(tmp_path / "out").summary["cut_chars"] == 18
