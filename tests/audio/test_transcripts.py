"""Transcripts are judged as the library jiwer and NeMo Curator define it."""

import random

import jiwer
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis import Pipeline, Rows
from tamis.audio import Hallucination, SpeechRate, TranscriptLanguage, WordErrorRate
from tamis.audio.transcripts import char_edits, error_rates, normalized, word_edits
from tamis.batch import Batch
from tamis.context import Context
from tamis.kernels.edits import most_repeats
from tests.audio.speech import TEXT


def jiwer_counts(reference, hypothesis, measure):
    found = measure(reference, hypothesis)
    return found.substitutions + found.deletions + found.insertions


def noisy(text, rng):
    words = [word for word in text.split() if rng.random() > 0.1]
    for _ in range(rng.randint(0, len(words) // 3)):
        words.insert(rng.randint(0, len(words)), rng.choice(["the", "ß", "🎵🎵", "times"]))
    return " ".join(reversed(words) if rng.random() < 0.1 else words)


def test_edits_equal_those_of_jiwer_on_real_text():
    rng = random.Random(0)
    references = [" ".join(TEXT.split()[: rng.randint(1, 110)]) for _ in range(60)]
    hypotheses = [noisy(text, rng) for text in references]
    words, counts = word_edits(pa.array(references), pa.array(hypotheses))
    chars, lengths = char_edits(pa.array(references), pa.array(hypotheses))
    for row, (reference, hypothesis) in enumerate(zip(references, hypotheses, strict=True)):
        assert words[row] == jiwer_counts(reference, hypothesis, jiwer.process_words)
        assert chars[row] == jiwer_counts(reference, hypothesis, jiwer.process_characters)
    table = pa.table({"word_edits": words, "reference_words": counts, "char_edits": chars, "reference_chars": lengths})
    assert error_rates(table)["wer"] == pytest.approx(jiwer.wer(references, hypotheses))
    assert error_rates(table)["cer"] == pytest.approx(jiwer.cer(references, hypotheses))


@given(st.lists(st.tuples(st.text("ab é🎵", max_size=200), st.text("ab é🎵", max_size=200)), min_size=1, max_size=4))
def test_edits_equal_those_of_jiwer_on_any_text(pairs):
    references, hypotheses = (pa.array([" ".join(pair[side].split()) for pair in pairs]) for side in (0, 1))
    words, _ = word_edits(references, hypotheses)
    chars, _ = char_edits(references, hypotheses)
    for row, (one, two) in enumerate(zip(references.to_pylist(), hypotheses.to_pylist(), strict=True)):
        assert words[row] == jiwer_counts(one, two, jiwer.process_words)
        assert chars[row] == jiwer_counts(one, two, jiwer.process_characters)


def test_a_transcript_is_compared_without_case_and_punctuation():
    step = WordErrorRate().open(Context())
    rows = [{"transcript": "it's the END", "text": "It\u2019s, the end."}, {"transcript": None, "text": "a b"}]
    assert step.score(Batch.from_rows(rows))["wer"].tolist() == [0, 1]
    strict = WordErrorRate(ignore_case=False, ignore_punctuation=False).open(Context())
    assert strict.score(Batch.from_rows(rows))["wer"].tolist()[0] > 0.5
    assert normalized(pa.array(["Grüße, 你好！"])).to_pylist() == ["grüße 你好"]  # noqa: RUF001


def test_every_space_of_unicode_separates_words():
    text = " ".join(f"word{char}" for char in map(chr, range(0x3100)) if char.isspace())
    found = normalized(pa.array([text]), ignore_case=False, ignore_punctuation=False).to_pylist()
    assert found == [" ".join(text.split())]


def test_edges_are_compared_alone():
    text = "a long sentence that nobody cut at its very end"
    scores = (
        WordErrorRate()
        .open(Context())
        .score(Batch.from_rows([{"transcript": text, "text": text}, {"transcript": text[:-9], "text": text}]))
    )
    assert scores["edge_cer"].tolist()[0] == 0
    assert scores["edge_cer"].tolist()[1] > 0.5 > scores["cer"].tolist()[1]
    assert scores["edge_cer"].tolist()[1] == jiwer.cer(text[-12:], text[:-9][-12:])


def test_rows_without_a_reference_can_be_kept():
    rows = [
        {"transcript": "a b", "text": "a b"},
        {"transcript": "a b", "text": None},
        {"transcript": "a b", "text": "c d"},
    ]
    step = WordErrorRate(keep_without_text=True)
    report = Pipeline(Rows(rows), step).run(executor="inline")
    assert (report.kept, report.dropped) == (2, {"wer > 0.75": 1})
    alone = [{"transcript": row["transcript"]} for row in rows]
    assert Pipeline(Rows(alone), step).run(executor="inline").kept == 3
    scores = Pipeline(Rows(rows), step.changed(score_only=True)).collect(executor="inline")
    assert scores["wer"].to_pylist() == [0.0, None, 1.0]
    other = [{"transcript": "a b", "said": "c d"}, {"transcript": "a b", "said": " "}]
    named = step.changed(reference="said")
    assert Pipeline(Rows(other), named).run(executor="inline").dropped == {"wer > 0.75": 1}


def test_the_report_has_the_edits_of_the_corpus():
    rows = [
        {"transcript": "a b c", "text": "a b d"},
        {"transcript": "x", "text": "y"},
        {"transcript": "", "text": "a b"},
    ]
    report = Pipeline(Rows(rows), WordErrorRate()).run(workers=1)
    assert report.dropped == {"wer > 0.75": 2}
    (step,) = (each for each in report.operators if each["name"] == "word_error_rate")
    assert error_rates(step["counts"])["wer"] == pytest.approx(4 / 6)


def test_speech_rate_is_per_second_and_needs_a_duration():
    rows = [
        {"transcript": "one two three", "duration": 1.5},
        {"transcript": "x" * 100, "duration": 2.0},
        {"transcript": "a", "duration": 0.0},
        {"transcript": "a", "duration": None},
    ]
    report = Pipeline(Rows(rows), SpeechRate()).run(workers=1)
    assert report.dropped == {"chars_per_second > 40": 1, "words_per_second is missing": 2}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Thanks for watching!", "invented_phrase > 0"),
        ("a b " * 20, "unique_words < 0.4"),
        ("and so we all went down to that new shop near our old house because " + "he said " * 6, "repeats > 5"),
        ("an honest antidisestablishmentarian", "longest_word > 24"),  # 25 characters
        ("a b c incomprehensibilities", "longest_word_ratio >= 3"),
    ],
)
def test_what_whisper_invents_is_dropped(text, reason):
    report = Pipeline(Rows([{"transcript": text}, {"transcript": TEXT}, {"transcript": ""}]), Hallucination()).run(
        workers=1
    )
    assert report.kept == 2
    assert list(report.dropped) == [reason]


def test_scripts_without_spaces_are_not_taken_for_long_words():
    texts = [
        "我昨天在图书馆里看了一整天的书因为今天要参加一个非常重要的考试",
        "今日はとても天気がいいので、公園を散歩しましょう。",
        "วันนี้อากาศดีมากเราไปเดินเล่นที่สวนสาธารณะกันเถอะ",
        "我们昨天用kubernetes部署了20000个实例",
        "好的好的好的好的好的好的好的",
    ]
    report = Pipeline(Rows([{"transcript": text} for text in texts]), Hallucination()).run(executor="inline")
    assert (report.kept, report.dropped) == (4, {"repeats > 5": 1})


def test_repeats_of_ngrams_are_counted():
    data = np.array([1, 2, 1, 2, 1, 2, 3, 3, 4], np.int32)
    out = np.zeros(3, np.int64)
    most_repeats(data, np.array([0, 6, 6, 9]), 12, out)
    assert out.tolist() == [3, 0, 2]


def test_the_language_of_a_transcript_is_compared_with_its_label():
    rows = [
        {"transcript": "The weather is very nice in the mountains today.", "language": "en-US"},
        {"transcript": "Das Wetter ist heute in den Bergen sehr schön.", "language": "en"},
        {"transcript": "ok", "language": "de"},
        {"transcript": None, "language": "en"},
        {"transcript": "The weather is very nice in the mountains today.", "language": ""},
        {"transcript": "The weather is very nice in the mountains today.", "language": "eng"},
    ]
    report = Pipeline(Rows(rows), TranscriptLanguage()).run(workers=1)
    assert report.dropped == {"language_agrees < 0.5": 1}
    assert Pipeline(Rows(rows), TranscriptLanguage(keep_unsure=False)).run(workers=1).kept == 1
