"""Descriptions of corpora small enough to count by hand."""

import json

import numpy as np
import pyarrow as pa
import pytest

from tamis import Pipeline, Rows
from tamis.batch import Batch
from tamis.context import Context
from tamis.text import language, statistics
from tamis.text.statistics import COUNTS, SHARES, TextStatistics
from tamis.workflows import describe

TEXTS = [
    "One two three. Four five!",
    "One two three. Four five!",
    "Привет, мир",
    "",
    None,
    "same line\nsame line\nsame line",
]


def write(path, texts, column="text"):
    path.write_text("".join(json.dumps({column: text, "id": number}) + "\n" for number, text in enumerate(texts)))
    return path


def measure(texts, **parameters):
    step = TextStatistics(**parameters).open(Context())
    return step.apply(Batch(pa.table({"text": pa.array(texts, pa.string())})))["statistics"].to_pylist()


def test_a_row_is_measured():
    (row,) = measure(["Ab 12, ç!\nAb 12, ç!"], language=False)
    assert {name: row[name] for name in COUNTS} == {
        "bytes": 21, "chars": 19, "words": 6, "lines": 2, "sentences": 2, "paragraphs": 1,
    }  # fmt: skip
    expected = {
        "letters": 6 / 19,
        "digits": 4 / 19,
        "punctuation": 4 / 19,
        "symbols": 0,
        "spaces": 5 / 19,
        "upper": 2 / 6,
    }
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert row["repeated_lines"] == pytest.approx(0.5)
    assert (row["language"], row["script"]) == (None, "Latn")


def test_nothing_is_nothing():
    for row in measure([None, ""], language=False):
        assert all(row[name] == 0 for name in (*COUNTS, *SHARES))
        assert row["exact"] == row["near_0"] == 0


def test_it_is_an_ordinary_step():
    table = Pipeline(Rows([{"text": text} for text in TEXTS]), TextStatistics()).collect(executor="inline")
    assert [row["language"] for row in table.column("statistics").to_pylist()][2:5] == ["ru", None, None]


def test_a_corpus_is_described(tmp_path):
    found = describe(write(tmp_path / "in.jsonl", TEXTS), executor="inline")
    assert (found.rows, found.empty) == (6, 2)
    assert found.num_bytes == sum(len((text or "").encode()) for text in TEXTS)
    assert found.num_chars == sum(len(text or "") for text in TEXTS)
    assert found.num_words == 5 + 5 + 2 + 6
    assert found.exact_duplicates == found.near_duplicates == 1
    assert found.scripts == {"Latn": 3, "none": 2, "Cyrl": 1}
    assert found.languages["none"] == 2
    assert found.measures["chars"].maximum == 29
    assert found.measures["words"].quantiles[3] == 2, "the median of 0 0 2 5 5 6 is one of the two in the middle"


def test_it_prints_tables(tmp_path):
    text = str(describe(write(tmp_path / "in.jsonl", TEXTS), executor="inline"))
    assert "documents                  6   2 of them empty" in text
    assert "repeated_lines" in text
    assert "Cyrl" in text


def test_it_can_be_written_as_json(tmp_path):
    found = describe(write(tmp_path / "in.jsonl", TEXTS), executor="inline", language=False)
    assert json.loads(json.dumps(found.as_dict()))["rows"] == 6
    assert found.languages == {}


def test_another_column_and_another_format(tmp_path):
    Pipeline(Rows([{"body": text} for text in TEXTS])).collect(executor="inline")
    found = describe([write(tmp_path / "in.jsonl", TEXTS, "body")], column="body", executor="inline", language=False)
    assert found.num_words == 18


def test_nothing_at_all(tmp_path):
    found = describe(write(tmp_path / "in.jsonl", []), executor="inline", language=False)
    assert (found.rows, found.measures, found.exact_duplicates) == (0, {}, 0)
    assert "documents                  0" in str(found)


def test_without_the_model_languages_are_left_out_and_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(language, "LID", "no_such_model.ftz")
    found = describe(write(tmp_path / "in.jsonl", TEXTS), executor="inline")
    assert found.languages == {}
    assert "languages were not counted: the model `no_such_model.ftz` is not on this machine" in found.notes[0]


def test_bad_rows_are_reported(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "fine"}\n{"text": broken\n')
    found = describe(path, executor="inline", on_error="isolate", language=False)
    assert found.rows == 1
    assert found.notes == ("1 row could not be read and is not included",)


def test_quantiles_are_good_to_a_hundredth(tmp_path):
    words = np.random.default_rng(0).lognormal(4, 1, 400).astype(int) + 1
    found = describe(write(tmp_path / "in.jsonl", ["w " * count for count in words]), executor="inline", language=False)
    exact = np.quantile(words, statistics.QUANTILES, method="inverted_cdf")
    assert found.measures["words"].quantiles == pytest.approx(exact, rel=0.012, abs=1)
    assert found.measures["words"].mean == pytest.approx(words.mean())


class TestDuplicates:
    def near(self, tmp_path, texts):
        found = describe(write(tmp_path / "in.jsonl", texts), executor="inline", language=False)
        return found.exact_duplicates, found.near_duplicates

    def passage(self, seed, length=200):
        rng = np.random.default_rng(seed)
        return " ".join(f"w{number}" for number in rng.integers(0, 5000, length))

    def test_different_texts_are_different(self, tmp_path):
        assert self.near(tmp_path, [self.passage(seed) for seed in range(50)]) == (0, 0)

    def test_case_and_punctuation_are_near(self, tmp_path):
        text = self.passage(1)
        assert self.near(tmp_path, [text, text.upper(), text.replace(" ", ", ")]) == (0, 2)

    def test_a_few_words_more_are_near(self, tmp_path):
        pairs = [text for seed in range(40) for text in (self.passage(seed), self.passage(seed) + " and more")]
        exact, near = self.near(tmp_path, pairs)
        assert exact == 0
        assert 36 <= near <= 40

    def test_sorting_in_passes_finds_the_same(self, tmp_path, monkeypatch):
        texts = [self.passage(seed % 30) for seed in range(100)]
        assert self.near(tmp_path, texts) == (70, 70)
        monkeypatch.setattr(statistics, "ROWS_AT_ONCE", 7)
        assert self.near(tmp_path, texts) == (70, 70)


def test_workers_and_blocks_change_nothing(tmp_path):
    for part in range(3):
        write(tmp_path / f"{part}.jsonl", TEXTS * 20)
    one = describe(tmp_path, executor="inline")
    two = describe(tmp_path, workers=2)
    assert one == two
