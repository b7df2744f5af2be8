"""Compare n-gram language models with a simple reference implementation and hand-computed ARPA values; test the filter."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis import JsonlReader, JsonlWriter, Pipeline, Rows
from tamis.errors import BudgetError, ParameterError, TamisError
from tamis.models import language_training
from tamis.models.commands import train_language_model_on_files
from tamis.models.language_model import LanguageModel, Settings
from tamis.models.language_training import train
from tamis.models.ngrams import NGRAM, Runs
from tamis.text.classify import Perplexity
from tests.naive import SAMPLES, words

TEXTS = [
    "the cat sat on the mat\nthe cat sat\n\nThe dog sat on 12 mats",
    "a dog saw the cat and the cat saw a dog",
    "the mat and the log and the dog and the cat",
    "on the log sat a cat, and on 99 logs sat dogs",
]


class Reference:
    """Interpolated modified Kneser-Ney over tuples of words."""

    def __init__(self, texts: list[str], order: int, min_count: int = 1) -> None:
        self.order = order
        raw: list[Counter] = [Counter() for _ in range(order + 1)]
        for text in texts:
            for line in lines_of(text):
                for end in range(1, len(line)):
                    for n in range(1, min(order, end + 1) + 1):
                        raw[n][line[end - n + 1 : end + 1]] += 1
        self.counts: list[Counter] = [Counter() for _ in range(order + 1)]
        for n in range(1, order + 1):
            for gram, count in raw[n].items():
                before = len({longer[0] for longer in raw[n + 1] if longer[1:] == gram}) if n < order else 0
                self.counts[n][gram] = count if n == order or gram[0] == "<s>" else before
        self.kept = [{g for g in raw[n] if raw[n][g] >= (min_count if 1 < n == order else 1)} for n in range(order + 1)]
        self.discounts = [self.discount(Counter(counts.values())) for counts in self.counts]
        self.vocabulary = {gram[0] for gram in raw[1]}
        self.totals: dict = defaultdict(int)
        self.masses: dict = defaultdict(float)
        for n in range(1, order + 1):
            for gram, count in self.counts[n].items():
                self.totals[n, gram[:-1]] += count
                if gram in self.kept[n]:
                    self.masses[n, gram[:-1]] += count - self.discounts[n][min(count, 3)]

    @staticmethod
    def discount(times: Counter) -> tuple[float, ...]:
        if all(times[n] for n in (1, 2, 3, 4)):
            y = times[1] / (times[1] + 2 * times[2])
            found = [n - (n + 1) * y * times[n + 1] / times[n] for n in (1, 2, 3)]
            if all(0 < discount <= n for n, discount in enumerate(found, 1)):
                return (0, *found)
        return (0, 0.5, 1.0, 1.5)

    def p(self, gram: tuple[str, ...]) -> float:
        n, context = len(gram), gram[:-1]
        lower = 1 / (len(self.vocabulary) + 1) if n == 1 else self.p(gram[1:])
        total = self.totals.get((n, context), 0)
        if not total:
            return lower
        count = self.counts[n][gram] if gram in self.kept[n] else 0
        rest = 1 - self.masses[n, context] / total
        return max(count - self.discounts[n][min(count, 3)], 0) / total + rest * lower

    def log10(self, text: str) -> tuple[float, int]:
        total, count = 0.0, 0
        for line in lines_of(text):
            line = tuple(word if word in self.vocabulary or word == "<s>" else "<unk>" for word in line)
            for end in range(1, len(line)):
                total += math.log10(self.p(line[max(0, end - self.order + 1) : end + 1]))
                count += 1
        return total, count


def lines_of(text: str) -> list[tuple[str, ...]]:
    found = []
    for line in text.lower().split("\n"):
        here = ["".join("0" if c in "123456789" else c for c in word) for word in words(line, "unicode")]
        if here:
            found.append(("<s>", *here, "</s>"))
    return found


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("min_count", [1, 2])
def test_scores_match_the_reference(order: int, min_count: int) -> None:
    reference = Reference(TEXTS, order, min_count)
    model = train(pa.array(TEXTS), settings=Settings(order=order, min_count=min_count), holdout=0).model
    new = ["the dog sat on the log", "a bird sat on the cat\nand 7", "mat", "", "unheard of", *TEXTS]
    logs, counts = model.score(pa.array(new))
    expected = [reference.log10(text) for text in new]
    assert counts.tolist() == [count for _, count in expected]
    assert logs == pytest.approx([log for log, _ in expected], rel=1e-5)


@pytest.mark.parametrize("order", [1, 3, 5])
def test_a_line_of_many_words(order: int) -> None:
    pairs = [f"w{number * number % 37 % 11} unheard{number % 3 == 0}" for number in range(1100)]
    taught, long = "\n".join(pairs[::2]), " ".join(pairs)
    reference, model = (
        Reference([taught], order),
        train(pa.array([taught]), settings=Settings(order=order), holdout=0).model,
    )
    logs, counts = model.score(pa.array([long, long[:4000]]))
    expected = [reference.log10(long), reference.log10(long[:4000])]
    assert counts.tolist() == [count for _, count in expected]
    assert logs == pytest.approx([log for log, _ in expected], rel=1e-5)


@given(
    st.lists(
        st.lists(st.sampled_from(["a", "b", "c", "d", "e", "f", "\n"]), max_size=30).map(" ".join),
        min_size=1,
        max_size=4,
    )
)
def test_scores_of_generated_texts_match_the_reference(texts: list[str]) -> None:
    if not any(map(lines_of, texts)):
        return
    reference, model = Reference(texts, 3), train(pa.array(texts), holdout=0).model
    new = [*texts, "a b z a\nc"]
    assert model.score(pa.array(new))[0] == pytest.approx(
        [reference.log10(text)[0] for text in new], rel=1e-4, abs=1e-5
    )


@pytest.mark.parametrize("context", ["", "the", "the cat", "a dog", "never seen"])
def test_probabilities_of_the_next_word_sum_to_one(context: str) -> None:
    model = train(pa.array(TEXTS), holdout=0).model
    vocabulary = sorted({word for text in TEXTS for line in lines_of(text) for word in line[1:-1]} | {"neverheard"})
    alone = model.score(pa.array([f"{context} {word}" for word in vocabulary]))[0]
    # Divide out the line end after each word: p(context w) = p(context w </s>) / p(</s> | context w).
    reference = Reference(TEXTS, 3)
    known = [word if word in reference.vocabulary else "<unk>" for word in context.split()]
    before = sum(math.log10(reference.p(tuple(["<s>", *known][: end + 1][-3:]))) for end in range(1, len(known) + 1))
    total = 0.0
    for word, log in zip(vocabulary, alone, strict=True):
        line = ["<s>", *known, word if word in reference.vocabulary else "<unk>"]
        total += 10 ** (log - math.log10(reference.p((*line[-2:], "</s>"))) - before)
    end = reference.p(tuple(["<s>", *known, "</s>"][-3:]))
    assert total + end == pytest.approx(1, abs=1e-4)


def test_case_and_digits_matter_only_without_fold() -> None:
    texts = pa.array(["Ünter 12 Linden", "ÜNTER 99 linden"])
    folded = train(pa.array(["ünter 00 linden"] * 3), holdout=0).model.perplexity(texts)
    assert folded[0] == folded[1]
    exact = train(pa.array(["Ünter 12 Linden"] * 3), settings=Settings(fold=False), holdout=0).model.perplexity(texts)
    assert exact[0] < exact[1]


def test_the_training_language_has_the_lowest_perplexity() -> None:
    settings = Settings(order=4, unit="characters")
    model = train(pa.array(SAMPLES[1:2] * 5), settings=settings, holdout=0).model
    german, russian, chinese = model.perplexity(pa.array(["Es waren Säcke", "Это были мешки", "磨坊主数了面粉袋"]))
    assert german < russian
    assert german < chinese


def test_word_order_matters() -> None:
    model = train(pa.array(TEXTS), holdout=0).model
    straight, shuffled = model.perplexity(pa.array(["the cat sat on the mat", "mat the on sat cat the"]))
    assert straight * 2 < shuffled


def test_the_same_texts_give_the_same_file(tmp_path) -> None:
    for name in ("one", "two"):
        train(pa.array(TEXTS), holdout=0).model.save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    again = LanguageModel.load(tmp_path / "one")
    assert (
        again.score(pa.array(TEXTS))[0].tolist()
        == train(pa.array(TEXTS), holdout=0).model.score(pa.array(TEXTS))[0].tolist()
    )


MANY = [f"{text} {number % 7} times, {'and' * (number % 3)} {number // 5}" for number in range(60) for text in TEXTS]


@pytest.mark.parametrize("settings", [Settings(), Settings(order=1), Settings(order=2, min_count=2), Settings(order=5)])
def test_the_model_depends_neither_on_pieces_nor_on_memory(tmp_path, monkeypatch, settings: Settings) -> None:
    monkeypatch.setattr(language_training, "_SMALLEST_PIECE", 500)  # otherwise there is only one piece
    texts = pa.array([*MANY, None, "", "...", "Ünter\n\n99 Linden"])
    whole = train(texts, settings=settings)
    whole.model.save(tmp_path / "whole")
    marks = [getattr(whole, name) for name in MARKS]
    for rows, working_bytes in [(1, 1_000), (7, 20_000), (50, 200_000), (1000, 2_000)]:
        pieces = (texts.slice(at, rows) for at in range(0, len(texts), rows))
        again = train(pieces, settings=settings, working_bytes=working_bytes, folder=tmp_path)
        again.model.save(tmp_path / "again")
        assert (tmp_path / "whole").read_bytes() == (tmp_path / "again").read_bytes()
        assert [getattr(again, name) for name in MARKS] == marks
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "whole"], "temporary files were not removed"


MARKS = ["texts", "words", "vocabulary", "ngrams", "tested", "perplexity", "percentiles"]


@given(st.lists(st.lists(st.integers(0, 40), max_size=30), max_size=12), st.integers(1, 2_000))
def test_runs_on_disk_match_runs_in_memory(tmp_path_factory, pieces: list[list[int]], buffer: int) -> None:
    folder = tmp_path_factory.mktemp("runs")
    runs, expected = Runs(folder / "runs", buffer), Counter()
    first: dict[int, int] = {}
    for number, piece in enumerate(pieces):
        counts = Counter(piece)
        records = np.zeros(len(counts), NGRAM)
        records["key"] = [key << 58 | 1 for key in sorted(counts)]
        records["count"] = [counts[key] for key in sorted(counts)]
        records["context"] = number
        expected.update(counts)
        first = {**dict.fromkeys(counts, number), **first}
        runs.add(records)
    found = [record for part in runs for record in part.tolist()]
    assert [(key >> 58, count) for key, count, *_ in found] == sorted(expected.items())
    assert {key >> 58: context for key, _, _, context, _ in found} == first, "the first of equal n-grams is kept"


def test_a_model_that_exceeds_memory_is_rejected_before_it_is_built() -> None:
    with pytest.raises(BudgetError, match="n-grams needs about") as raised:
        train(pa.array(MANY), model_bytes=1_000)
    assert "--min-count 2" in raised.value.hint


# ----------------------------------------------------------------------------------------------------------- ARPA files

ARPA = """\\data\\
ngram 1=5
ngram 2=3

\\1-grams:
-99\t<s>\t-0.5
-1.0\t</s>
-2.0\t<unk>
-0.6\tthe\t-0.3
-0.9\tCat\t-0.2

\\2-grams:
-0.1\t<s> the
-0.4\tthe Cat
-0.25\tCat </s>

\\end\\
"""


def test_scores_of_an_arpa_file_match_hand_computed_values(tmp_path) -> None:
    path = tmp_path / "model.arpa"
    path.write_text(ARPA)
    logs, counts = LanguageModel.load(path).score(pa.array(["the Cat", "Cat the", "the bird", "cat"]))
    assert counts.tolist() == [3, 3, 3, 2]
    assert logs == pytest.approx(
        [
            -0.1 - 0.4 - 0.25,  # <s> the, the Cat, Cat </s>
            (-0.5 - 0.9) + (-0.2 - 0.6) + (-0.3 - 1.0),  # backoffs of <s>, Cat, the
            -0.1 + (-0.3 - 2.0) + -1.0,  # an unknown word, which has no backoff
            (-0.5 - 2.0) + -1.0,
        ]
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (ARPA.replace("\\end\\", ""), "has no "),
        (ARPA.replace("the Cat", "the Cat sat here"), "fields"),
        (ARPA.replace("-0.9", "minus"), "could not convert"),
        ("\\data\\\n\\end\\\n", "`order` must be between"),
        ("nothing of the kind", "is not a language model"),
        ("", "is not a language model"),
    ],
)
def test_a_file_of_another_kind_is_rejected(tmp_path, content: str, says: str) -> None:
    path = tmp_path / "model"
    path.write_text(content)
    with pytest.raises(TamisError, match=says):
        LanguageModel.load(path)


def test_a_damaged_model_is_rejected(tmp_path) -> None:
    path = tmp_path / "model"
    train(pa.array(TEXTS), holdout=0).model.save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(TamisError, match="is not a language model"):
        LanguageModel.load(path)


# ---------------------------------------------------------------------------------------------------- command and filter


@pytest.fixture
def model(tmp_path) -> str:
    rows = [{"text": f"{text} and so on to number {n}"} for n in range(30) for text in TEXTS]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lesson = train_language_model_on_files([str(tmp_path / "in.jsonl")], str(tmp_path / "out.model"))
    assert "120 texts" in str(lesson)
    assert "perplexity" in str(lesson)
    assert sum((lesson.trained.texts, lesson.trained.tested)) == 120
    return str(tmp_path / "out.model")


def test_drop_reasons_name_the_bound(model: str) -> None:
    rows = [{"text": text} for text in ("the cat sat on the mat", "zebra quux flarn glork", "", None)]
    report = Pipeline(Rows(rows), Perplexity(model=model, max_perplexity=50)).run(executor="inline")
    assert report.kept == 1
    assert report.dropped == {"perplexity > 50": 1, "perplexity is missing": 2}


def test_stored_scores_allow_new_thresholds(model: str, tmp_path) -> None:
    (tmp_path / "new.jsonl").write_text('{"text": "the cat sat"}\n{"text": "flarn glork"}\n')

    def run(bound: float):
        steps = JsonlReader(str(tmp_path / "new.jsonl")), Perplexity(model=model, max_perplexity=bound)
        return Pipeline(*steps, JsonlWriter(str(tmp_path / "out"))).run(scores=True)

    assert run(50).kept == 1
    assert run(1e6).kept == 2


def test_score_only_with_a_custom_column_name(model: str) -> None:
    step = Perplexity(model=model, score_only=True, score_column="wiki")
    table = Pipeline(Rows([{"text": "the cat sat"}, {"text": ""}]), step).collect(executor="inline")
    found = table.column("wiki").to_pylist()
    assert 1 < found[0] < 50
    assert found[1] is None


def test_a_bound_is_required(model: str) -> None:
    with pytest.raises(ParameterError, match="neither `min_perplexity` nor `max_perplexity`"):
        Pipeline(Rows([{"text": "a"}]), Perplexity(model=model)).check()


def test_unusual_texts_have_defined_scores(model: str) -> None:
    texts = ["", None, " \n\n", "...", "a" * 100_000, "你好" * 1000, "\x00", "a\r\nb", "e\u0301"]
    found = LanguageModel.load(model).perplexity(pa.array(texts))
    assert np.isnan(found[:4]).all()
    assert (found[4:6] > 1).all()
    assert np.isfinite(found[4:6]).all()


@pytest.mark.parametrize(
    ("settings", "says"),
    [(Settings(order=0), "order"), (Settings(order=7), "order"), (Settings(min_count=0), "min_count")],
)
def test_settings_are_checked(settings: Settings, says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        train(pa.array(TEXTS), settings=settings)


def test_training_without_words_raises() -> None:
    with pytest.raises(TamisError, match="no words to train on"):
        train(pa.array(["", "..."]), holdout=0)
