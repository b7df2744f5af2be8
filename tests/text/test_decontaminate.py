"""Benchmarks found in documents: what counts as found, and the evidence."""

import gzip
import json
import pickle
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis import Pipeline, Rows
from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import ParameterError, SourceError
from tamis.kernels import overlap as kernel
from tamis.text.decontaminate import MOST_SPANS, Decontaminate
from tamis.text.segment import buffers

RIVER = "Which river that rises in the Black Forest flows through ten countries on its way to the Black Sea?"
LAKE = "What is the deepest lake of Siberia, and how many metres deep is it at the deepest place known so far?"
SHORT = "Name the largest moon of the planet Saturn."  # eight words


@pytest.fixture
def folder(tmp_path):
    rows = [
        {"id": "river", "question": RIVER, "answer": "the Danube"},
        {
            "question": LAKE,
            "choices": ["Baikal", "none of these lakes is in Siberia as far as anybody could tell so far"],
        },
    ]
    (tmp_path / "geo.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    with gzip.open(tmp_path / "moons.jsonl.gz", "wt") as file:
        file.write(json.dumps({"id": 7, "meta": {"question": SHORT}}) + "\n")
    return tmp_path


def score(folder, texts, **parameters):
    step = Decontaminate(benchmarks=folder, **parameters)
    step.check()
    found = step.open(Context()).score(Batch(pa.table({"text": pa.array(texts, pa.string())})))
    return (
        found["contamination_share"].tolist(),
        found["contamination_ngrams"].tolist(),
        found["contamination"].to_pylist(),
    )


def test_a_whole_example_is_found_whatever_its_case_and_punctuation(folder):
    shares, ngrams, _ = score(folder, [f"Quiz! {RIVER.upper().replace(' ', ' - ')} (3 points)", "Nothing of the kind."])
    assert shares == [1.0, 0.0]
    assert ngrams == [19 - 13 + 1, 0]


def test_the_evidence_says_whose_text_stands_where(folder):
    text = f"Prélude \U0001f600. {LAKE} Interlude? {SHORT}"
    _, _, ((first, second),) = score(folder, [text])
    assert (first["benchmark"], first["example"], first["field"], first["share"]) == ("geo", "2", "question", 1.0)
    assert text[first["start"] : first["stop"]] == LAKE.removesuffix("?")
    assert (first["first_word"], first["last_word"]) == (1, 1 + len(LAKE.split()))
    assert (second["benchmark"], second["example"], second["field"]) == ("moons", "7", "meta.question")
    assert text[second["start"] : second["stop"]] == SHORT.removesuffix(".")


def test_members_of_lists_are_looked_for_too(folder):
    _, _, (spans,) = score(folder, ["None of these lakes is in Siberia as far as anybody could tell so far."])
    assert [span["field"] for span in spans] == ["choices"]


def test_a_part_of_an_example_has_a_part_of_its_ngrams(folder):
    words = RIVER.split()
    shares, ngrams, ((span,),) = score(folder, [" ".join(words[:15])])
    assert shares == [pytest.approx(3 / 7)]
    assert ngrams == [3]
    assert (span["first_word"], span["last_word"]) == (0, 15)


def test_a_short_text_counts_only_whole(folder):
    shares, _, _ = score(folder, [SHORT, "Name the largest moon of the planet", "largest moon of the planet Saturn"])
    assert shares == [1.0, 0.0, 0.0]


def test_texts_below_the_least_length_are_not_looked_for(folder):
    assert score(folder, [SHORT], min_words=9)[0] == [0.0]
    assert score(folder, ["the Danube"])[0] == [0.0]


def test_one_word_changed_breaks_what_goes_through_it(folder):
    changed = RIVER.replace("Forest", "Wood")  # word 8 of 19: every 13-gram goes through it
    assert score(folder, [changed])[0] == [0.0]
    assert score(folder, [changed], ngram=5, min_words=5)[0][0] > 0.5


def test_only_the_fields_asked_for(folder):
    assert score(folder, [RIVER, SHORT], fields=["meta"])[0] == [0.0, 1.0]
    assert score(folder, [RIVER, SHORT], fields=["question", "meta.question"])[0] == [1.0, 1.0]


def test_it_says_why_it_dropped(folder):
    rows = [{"text": text} for text in (RIVER, " ".join(RIVER.split()[:14]), "clean", "", None)]
    report = Pipeline(Rows(rows), Decontaminate(benchmarks=folder)).run(executor="inline")
    assert (report.kept, report.dropped) == (4, {"contamination_share > 0.5": 1})
    strict = Pipeline(Rows(rows), Decontaminate(benchmarks=folder, max_share=0.0)).run(executor="inline")
    assert strict.dropped == {"contamination_share > 0": 2}


def test_templates_that_many_examples_share_prove_nothing(tmp_path):
    template = "Read the following passage with care and then answer the question below in one single word: "
    texts = [
        template + f"passage number {number} is about something else entirely {number} times" for number in range(12)
    ]
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps({"q": text}) for text in texts))
    assert score(tmp_path, [template])[1] == [0]
    assert score(tmp_path, [template], max_places=12)[1] == [4]


def test_monotonous_ngrams_prove_nothing(tmp_path):
    (tmp_path / "b.jsonl").write_text(json.dumps({"q": "0 " * 40}) + "\n" + json.dumps({"q": "yes no " * 20}))
    assert score(tmp_path, ["0 " * 100, "yes no " * 50])[1] == [0, 0]


def test_documents_without_anything(folder):
    texts = [None, "", " ", "x", "\U0001f600", "\x00\x01", "word " * 100_000]
    shares, ngrams, evidence = score(folder, texts)
    assert shares == ngrams == [0] * len(texts)
    assert evidence == [[]] * len(texts)


def test_scripts_without_spaces_go_by_character(tmp_path):
    question = "长江和黄河哪一条更长它们流经哪些省份"
    (tmp_path / "zh.jsonl").write_text(json.dumps({"q": question}))
    _, _, ((span,),) = score(tmp_path, ["前言" + question + "。后记"])
    assert (span["start"], span["stop"], span["share"]) == (2, 2 + len(question), 1.0)


def test_evidence_has_an_end(folder):
    _, ngrams, (spans,) = score(folder, [f"{SHORT} and then " * 300])
    assert ngrams == [300]
    assert len(spans) == MOST_SPANS


def test_an_example_in_two_benchmarks_is_reported_for_both(folder):
    (folder / "copy.jsonl").write_text(json.dumps({"id": "x", "question": RIVER}))
    _, _, (spans,) = score(folder, [RIVER])
    assert [(span["benchmark"], span["example"]) for span in spans] == [("copy", "x"), ("geo", "river")]


def test_benchmarks_are_called_by_their_path_below_the_folder(tmp_path):
    for name in ("mmlu", "boolq"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "test.jsonl").write_text(json.dumps({"q": RIVER}))
    _, _, (spans,) = score(tmp_path, [RIVER])
    assert [span["benchmark"] for span in spans] == ["boolq/test", "mmlu/test"]


def test_a_bad_line_is_named(folder):
    (folder / "bad.jsonl").write_text('{"a": 1}\nnot json\n')
    with pytest.raises(SourceError, match=re.escape(f"line 2 of the benchmark {folder / 'bad.jsonl'} is not JSON")):
        score(folder, ["x"])


def test_an_empty_folder_is_a_mistake_and_empty_files_are_not(tmp_path):
    with pytest.raises(SourceError):
        Decontaminate(benchmarks=tmp_path).check()
    (tmp_path / "none.jsonl").write_text("")
    assert score(tmp_path, ["anything at all"])[0] == [0.0]


@pytest.mark.parametrize("bad", [{"ngram": 0}, {"ngram": 65}, {"min_words": 14}, {"max_places": 0}])
def test_parameters_out_of_range_are_refused(folder, bad):
    with pytest.raises(ParameterError):
        Decontaminate(benchmarks=folder, **bad).check()


def test_other_benchmarks_are_another_step(folder):
    step = Decontaminate(benchmarks=folder)
    before = step.identity()
    assert Decontaminate(benchmarks=folder, max_share=0.1).measuring_identity() == step.measuring_identity()
    assert Decontaminate(benchmarks=folder, min_words=9).measuring_identity() != step.measuring_identity()
    (folder / "geo.jsonl").write_text(json.dumps({"question": "another one"}))
    assert step.identity() != before


def test_the_index_stays_in_the_worker(folder):
    step = Decontaminate(benchmarks=str(folder))
    step.open(Context())
    assert len(pickle.dumps(step)) < 1000
    assert pickle.loads(pickle.dumps(step)) == step
    assert vars(step) == vars(Decontaminate(benchmarks=str(folder)))


# ------------------------------------------------------------------------------------------------------------ kernels


def naive_words(text):
    """(word in lower case, start, stop) of runs of letters, digits and marks; here for text without unspaced scripts."""
    return [(match[0].lower(), *match.span()) for match in re.finditer(r"[^\W_]+", text)]


@given(st.text(alphabet="aAbB0é_É.,- \n\u00df\u0130", max_size=80))
def test_words_are_found_where_they_are(text):
    raw = text.encode()
    data, offsets = buffers(pa.array([text], pa.large_string()))
    words, starts, stops = np.zeros(100, np.uint64), np.zeros(100, np.int64), np.zeros(100, np.int64)
    count = kernel.find_words(data, offsets[0], offsets[1], kernel.word_tables(), words, starts, stops)
    expected = naive_words(text)
    assert [raw[a:b].decode() for a, b in zip(starts[:count], stops[:count], strict=True)] == [
        text[a:b] for _, a, b in expected
    ]
    names = {}
    for (word, _, _), hashed in zip(expected, words[:count], strict=True):
        assert names.setdefault(word, hashed) == hashed
    assert len(set(names.values())) == len(names)


@given(st.lists(st.sampled_from("abc"), max_size=30), st.lists(st.sampled_from("abc"), max_size=30))
def test_hits_are_the_ngrams_that_both_have(tmp_path_factory, one, two):
    def grams(words):
        return [tuple(words[i : i + 3]) for i in range(len(words) - 2)]

    folder = tmp_path_factory.mktemp("b")
    (folder / "b.jsonl").write_text(json.dumps({"q": " ".join(one)}))
    known = set(grams(one))
    _, ngrams, _ = score(folder, [" ".join(two)], ngram=3, min_words=3)
    assert ngrams == [sum(gram in known for gram in grams(two))]
