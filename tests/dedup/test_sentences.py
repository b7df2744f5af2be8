"""Repeated spans of sentences, and paragraphs with repeated n-grams, compared with naive references."""

# ruff: noqa: RUF001

import json
import random
import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import JsonlReader, JsonlWriter, Pipeline, Rows, SentenceDeduplicationWorkflow, cli
from tamis.dedup import ExactDedup, Groups, ParagraphDedup, SentenceDedup, shuffle
from tamis.dedup.explain import explain_row, explanation_text
from tamis.dedup.sentences import digest_sentences, find_sentences, simplified
from tamis.dedup.texts import text_buffers
from tamis.errors import ParameterError
from tamis.executors import driver


def cut(texts, step, per_partition=3, **options):
    """The text of each row that is kept, by row."""
    options = {"executor": "inline", **options}
    table = pa.table({"i": pa.array(range(len(texts)), pa.int64()), "text": pa.array(texts, pa.string())})
    found = Pipeline(Rows(table, rows_per_partition=per_partition), step).collect(**options)
    return dict(zip(found["i"].to_pylist(), found["text"].to_pylist(), strict=True)) if found.num_rows else {}


def sentences_of(text, lines=False):
    data, offsets = text_buffers(pa.array([text]), "text")
    _, starts, stops = find_sentences(data, offsets, lines)
    return [data[start:stop].tobytes().decode() for start, stop in zip(starts, stops, strict=True)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two!  Three?", ["One.", "Two!", "Three?"]),
        ("He said: “Go away!” Then 3.5 left... ok", ["He said: “Go away!”", "Then 3.5 left...", "ok"]),
        ("A title\n\n  a line (really.) And more", ["A title", "a line (really.)", "And more"]),
        ("你好。再见！「走吧。」好", ["你好。", "再见！", "「走吧。」", "好"]),
        ("سؤال؟ جواب", ["سؤال؟", "جواب"]),
        (" \n ", []),
        ("...", ["..."]),
    ],
)
def test_where_sentences_end(text, expected):
    assert sentences_of(text) == expected
    assert sentences_of(text, lines=True) == [line.strip() for line in text.split("\n") if line.strip()]


@settings(max_examples=200)
@given(st.lists(st.text("aZ9.,! -\t", max_size=12), min_size=1, max_size=6))
def test_ascii_is_simplified_as_by_the_function_for_all_texts(texts):
    data, offsets = text_buffers(pa.array(texts), "text")
    found = digest_sentences(data, offsets[:-1], offsets[1:], simplify=True)
    plain = [simplified(text) for text in texts]
    for one in range(len(texts)):
        assert (found[one] == 0).all() == (plain[one] == "")
        for other in range(one):
            assert (found[one] == found[other]).all() == (plain[one] == plain[other])


def test_case_punctuation_accents_and_numbers_are_ignored():
    texts = ["Ça va? It costs 3.50 EUR; really. Bye", "ca va — it costs 7 eur really. bye!"]
    assert simplified(texts[0]) == simplified(texts[1]) == "ca va it costs 0 eur really bye"
    step = SentenceDedup(num_sentences=2, min_words=0, min_sentences=0)
    texts = ["It costs 3.50 EUR. Really! New.", "Old. It costs 7 eur. really. Newer."]
    assert cut(texts, step) == {0: texts[0], 1: "Old. Newer."}
    assert cut(texts, SentenceDedup(num_sentences=2, simplify=False)) == dict(enumerate(texts))


def naive_sentences(documents, length, min_words, min_sentences):
    """What datatrove does: spans seen before are removed, then documents that changed and are too short."""
    seen, left = set(), {}
    for row, sentences in enumerate(documents):
        lost = set()
        for start in range(len(sentences) - length + 1):
            span = tuple(sentences[start : start + length])
            lost |= set(range(start, start + length)) if span in seen else set()
            seen.add(span)
        kept = [sentence for number, sentence in enumerate(sentences) if number not in lost]
        words = sum(len(sentence.split()) for sentence in kept)
        if not lost or (kept and words >= min_words and len(kept) >= min_sentences):
            left[row] = " ".join(kept)
    return left


@settings(max_examples=20)
@given(
    st.lists(st.lists(st.sampled_from(["A b.", "C!", "D e f?", "G."]), max_size=9), min_size=1, max_size=7),
    st.integers(1, 4),
    st.sampled_from([(0, 0), (3, 0), (0, 2)]),
    st.integers(1, 4),
)
def test_sentences_that_remain_are_those_of_the_naive_reference(documents, length, limits, per_partition):
    texts = [" ".join(sentences) for sentences in documents]
    step = SentenceDedup(num_sentences=length, min_words=limits[0], min_sentences=limits[1])
    assert cut(texts, step, per_partition) == naive_sentences(documents, length, *limits)


def test_texts_that_become_too_short_are_dropped_with_a_reason():
    texts = ["One. Two. Three. Four.", "One. Two. Three. Five.", "One. Two. Three.", "Five."]
    table = pa.table({"text": texts})
    for limits, reason in (((2, 0), "fewer than 2 words left"), ((0, 2), "fewer than 2 sentences left")):
        step = SentenceDedup(min_words=limits[0], min_sentences=limits[1])
        report = Pipeline(Rows(table), step).run(executor="inline")
        assert report.balances
        assert report.dropped == {reason: 1, "nothing but repeated sentences": 1}


# ---------------------------------------------------------------------------------------------------------- paragraphs


def naive_paragraphs(texts, length, threshold, stride, min_words):
    """What dolma does, with a set: an n-gram counts if it is in the set, and is added to it."""
    seen, left = set(), {}
    for row, text in enumerate(texts):
        kept = []
        for line in text.split("\n"):
            words = re.findall(r"[a-z0-9]+", line.lower())
            grams = [tuple(words[at : at + length]) for at in range(0, len(words) - length + 1, stride)]
            grams = (grams or [tuple(words)]) if len(words) >= min_words else []
            found = 0
            for gram in grams:
                found += gram in seen
                seen.add(gram)
            if not grams or found / len(grams) < threshold:
                kept.append(line)
        if kept == text.split("\n"):
            left[row] = text
        elif "".join(kept).strip():
            left[row] = "\n".join(kept)
    return left


@settings(max_examples=20)
@given(
    st.lists(st.lists(st.lists(st.sampled_from("aBcd"), min_size=1, max_size=8), max_size=4), min_size=1, max_size=6),
    st.integers(1, 4),
    st.sampled_from([0.3, 0.5, 1.0]),
    st.integers(1, 2),
    st.integers(1, 3),
)
def test_paragraphs_that_remain_are_those_of_the_naive_reference(documents, length, threshold, stride, min_words):
    texts = ["\n".join(" ".join(words) for words in lines) for lines in documents]
    step = ParagraphDedup(ngram=length, threshold=threshold, stride=stride, min_words=min_words)
    assert cut(texts, step, 2) == naive_paragraphs(texts, length, threshold, stride, min_words)


def test_a_paragraph_with_a_few_new_words_is_cut():
    text = "the quick brown fox jumps over the lazy dog and runs away from the house"
    texts = [f"{text}\n\nA first ending", f"Title\n\n{text} again\n\nThe other ending of it"]
    assert cut(texts, ParagraphDedup(ngram=5)) == {0: texts[0], 1: "Title\n\nThe other ending of it"}
    assert cut(texts, ParagraphDedup(ngram=5, threshold=0.95)) == dict(enumerate(texts))


def test_characters_of_chinese_are_words():
    texts = ["他们在公园里散步", "他们在公园里散步\n明天会下雨"]
    assert cut(texts, ParagraphDedup(ngram=5)) == {0: texts[0], 1: "明天会下雨"}


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (SentenceDedup(num_sentences=0), "`num_sentences` must be at least 1"),
        (ParagraphDedup(ngram=0), "`ngram` must be at least 1"),
        (ParagraphDedup(threshold=0.0), "above 0"),
        (ParagraphDedup(max_removed=1.5), "from 0 to 1"),
    ],
)
def test_invalid_parameters_are_rejected(step, message):
    with pytest.raises(ParameterError, match=message):
        step.check()


# ------------------------------------------------------------------------------------------- any division of the work


def documents(count=90):
    rng = random.Random(4)
    known = [" ".join(rng.choices("abcdefgh", k=6)).capitalize() + "." for _ in range(60)]
    texts = []
    for _ in range(count):
        start = rng.randrange(50)
        lines = [" ".join(known[start : start + rng.randrange(7)]), " ".join(rng.choices(known, k=3)), "é 你"]
        texts.append("\n".join(lines))
    return texts


STEPS = {
    "sentences": SentenceDedup(min_words=4, min_sentences=1),
    "lines": SentenceDedup(num_sentences=1, unit="line", min_words=0),
    "paragraphs": ParagraphDedup(ngram=4, threshold=0.6),
    "equal lines, compared twice": ExactDedup(unit="line", min_unit_bytes=1, max_removed=0.5),
}


def outcome(folder, step, per_partition=10**6, **options):
    options = {"executor": "inline", **options}
    rows = [{"id": f"d{i}", "text": text} for i, text in enumerate(documents())]
    report = Pipeline(Rows(rows, rows_per_partition=per_partition), step, JsonlWriter(str(folder))).run(**options)
    assert report.balances
    lines = [line for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]
    groups = Groups.load(folder)
    summary = {name: value for name, value in groups.summary.items() if name.startswith("cut")}
    found = groups.table().sort_by([("row", "ascending"), ("unit", "ascending")])
    return lines, found.select(["row", "kept_id", "unit", "kept_unit", "bytes", "similarity"]).to_pylist(), summary


@pytest.mark.parametrize("name", STEPS)
def test_small_parts_and_stops_in_each_phase_change_nothing(tmp_path, monkeypatch, name):
    expected = outcome(tmp_path / "whole", STEPS[name])
    assert len(expected[1]) > 20
    assert expected[2]["cut_chars"] > 0
    monkeypatch.setattr(shuffle, "bytes_per_call", lambda worker_bytes: 20_000)
    assert outcome(tmp_path / "parts", STEPS[name], 13) == expected

    class Stopped(BaseException):
        pass

    plain, stopped = driver._GatherWork.map, set()

    def stopping(self, call, function, items, **options):
        phase = re.sub(r"[0-9]+", "", call)

        def last_stops(*item):
            if item == items[-1] and phase not in stopped:
                stopped.add(phase)
                raise Stopped
            return function(*item)

        return plain(self, call, last_stops, items, **options)

    monkeypatch.setattr(driver._GatherWork, "map", stopping)
    for _ in range(20):
        try:
            found = outcome(tmp_path / "stopped", STEPS[name], 13)
        except Stopped:
            continue
        break
    assert len(stopped) >= 5
    assert found == expected


@pytest.mark.parametrize("name", ["sentences", "paragraphs", "equal lines, compared twice"])
def test_workers_change_nothing(tmp_path, name):
    expected = outcome(tmp_path / "inline", STEPS[name])
    found = outcome(tmp_path / "workers", STEPS[name], 17, executor="local", workers=2, memory="1GB")
    assert found == expected


def test_explain_says_what_was_cut_and_where_it_occurs_first(tmp_path):
    rows = [{"id": "a", "text": "One. Two. Three."}, {"id": "b", "text": "Zero. One. Two. Three. Four."}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    reader = JsonlReader(str(tmp_path / "in.jsonl"))
    for step, expected in (
        (SentenceDedup(min_words=0, min_sentences=0), "unit 1 (14 bytes) repeats unit 0 of a ("),
        (
            ParagraphDedup(ngram=2, threshold=0.5, min_words=1),
            "unit 0 (24 bytes): 50% of its n-grams occur before, the first of them in a",
        ),
    ):
        Pipeline(reader, step, JsonlWriter(str(tmp_path / step.name))).run(executor="inline")
        (row,) = explain_row(Groups.load(tmp_path / step.name), "b")
        assert expected in explanation_text(row)


def test_the_commands_cut_repeated_text_and_count_it(tmp_path, capsys):
    rows = [{"id": "a", "text": "One. Two. Three. Four."}, {"id": "b", "text": "Zero. One. Two. Three. Five."}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {
        "substrings": ["--min-bytes", "12", "--cut", "word"],
        "sentences": ["--min-words", "0", "--min-sentences", "0"],
        "paragraphs": ["--ngram", "2", "--threshold", "0.5", "--min-words", "1", "--only-find"],
    }
    left = {}
    for command, more in options.items():
        out = tmp_path / command
        arguments = ["dedup", command, str(tmp_path / "in.jsonl"), str(out), "--executor", "inline", "--quiet", *more]
        assert cli.main(arguments) == 0
        lines = [line for file in sorted(out.glob("*.jsonl")) for line in file.read_text().splitlines()]
        left[command] = [json.loads(line)["text"] for line in lines]
        assert cli.main(["dedup", "explain", str(out)]) == 0
        assert "characters cut" in capsys.readouterr().out
    assert left == {
        "substrings": ["One. Two. Three. Four.", "Zero. Five."],
        "sentences": ["One. Two. Three. Four.", "Zero. Five."],
        "paragraphs": [],
    }


@pytest.mark.parametrize("given", [{"keep": "longest"}, {"by": "n"}, {"across_sources": True}, {"against": "index/"}])
def test_workflows_reject_a_policy_that_has_no_effect(given):
    (name,) = given
    with pytest.raises(ParameterError, match=f"`{name}` has no effect here"):
        SentenceDeduplicationWorkflow("in/", "out/", **given).step()
