"""Words of Chinese, Japanese and Thai by dictionary, on sentences split into words by hand."""

# ruff: noqa: RUF001

from __future__ import annotations

import sys

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis import Pipeline, Rows
from tamis.batch import Batch
from tamis.errors import MissingExtra
from tamis.text import dictionary
from tamis.text.quality import MeanWordLength, WordCount
from tamis.text.segment import NGRAM_STATS, WORD_STATS, split_words
from tests.naive import ALPHABET, ODD, SAMPLES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # I come-to Beijing Tsinghua-University / programmers like write code
        ("我来到北京清华大学。", ["我", "来到", "北京", "清华大学。"]),
        ("程序员喜欢写代码", ["程序员", "喜欢", "写", "代码"]),
        # Nanjing-city Yangtze-bridge, and not: Nanjing mayor river bridge
        ("南京市长江大桥", ["南京市", "长江大桥"]),
        # nation's right and freedom topic / Tokyo capital in live-ing
        ("国民の権利と自由は", ["国民", "の", "権利", "と", "自由", "は"]),
        ("東京都に住んでいます。", ["東京", "都", "に", "住ん", "で", "い", "ます。"]),
        # committee will meet again on day Thursday / for consult about library new
        ("คณะกรรมการจะประชุมอีกครั้ง", ["คณะกรรมการ", "จะ", "ประชุม", "อีกครั้ง"]),
        ("หารือเรื่องห้องสมุดใหม่", ["หารือ", "เรื่อง", "ห้องสมุด", "ใหม่"]),
        # language Lao is language official / language-Khmer is official-language / Myanmar-of official-language speech
        ("ພາສາລາວເປັນພາສາທາງການ", ["ພາສາ", "ລາວ", "ເປັນ", "ພາສາ", "ທາງການ"]),
        ("ភាសាខ្មែរគឺជាភាសាផ្លូវការ", ["ភាសាខ្មែរ", "គឺជា", "ភាសាផ្លូវការ"]),
        ("မြန်မာနိုင်ငံ၏ရုံးသုံးဘာသာစကား။", ["မြန်မာနိုင်ငံ၏", "ရုံးသုံးဘာသာ", "စကား။"]),
        # Tibetan syllables, Ethiopic words, New Tai Lue letters
        ("བོད་ཡིག", ["བོད་", "ཡིག"]),
        ("የሰው፡ልጅ፡ሁሉ", ["የሰው፡", "ልጅ፡", "ሁሉ"]),
        ("ᦅᦎᦠ", ["ᦅ", "ᦎ", "ᦠ"]),
    ],
)
def test_words_are_those_of_the_language(text: str, expected: list[str]) -> None:
    assert split_words(text, "dictionary") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, 世界!「你好」 x2", ["Hello,", "世界!「", "你好」", "x2"]),
        ("学习Python编程3天", ["学习", "Python", "编程", "3", "天"]),
        ("(好)", ["(好)"]),
        ("a,好", ["a,", "好"]),
        ("， 好", ["，", "好"]),
        ("好 ，好", ["好", "，好"]),
    ],
)
def test_signs_stay_with_the_word_before_and_other_scripts_begin_words(text: str, expected: list[str]) -> None:
    assert split_words(text, "dictionary") == expected


def test_a_little_kana_does_not_make_chinese_japanese() -> None:
    chinese = "程序员喜欢写代码，他们每天都在写代码，并且用键盘输入「の」这个字。"
    assert split_words(chinese, "dictionary")[:4] == ["程序员", "喜欢", "写", "代码，"]


def test_facts_are_those_of_the_words() -> None:
    column = pa.array(["我来到北京清华大学", None, "one two", "我来到北京清华大学，我来到北京清华大学"])
    found = WORD_STATS["dictionary"](column)
    assert found["words"].tolist() == [4, 0, 2, 8]
    assert found["longest"].tolist() == [4, 0, 3, 5]
    assert NGRAM_STATS["dictionary"](column)["top_count"][:, 0].tolist() == [1, 0, 1, 2]


def test_it_is_a_parameter_of_filters() -> None:
    batch = Batch.from_rows([{"text": "我来到北京清华大学"}])
    assert WordCount(words="dictionary").score(batch)["words"].tolist() == [4]
    assert MeanWordLength(words="dictionary").score(batch)["mean_word_length"].tolist() == [9 / 4]
    rows = [{"text": "我来到北京清华大学"}, {"text": "one two three four five"}]
    assert Pipeline(Rows(rows), WordCount(min_words=5, words="dictionary")).run().dropped == {"words < 5": 1}


def test_columns_in_a_row_are_not_mistaken_for_each_other() -> None:
    table = pa.table({"text": ["我来到北京", "程序员", "b", "写代码"]})
    counts = [WORD_STATS["dictionary"](table.column("text").chunk(0).slice(row, 1))["words"][0] for row in range(4)]
    assert counts == [3, 1, 1, 2]


def test_a_very_long_run_without_a_break() -> None:
    for letter in "好のกລខမ":
        assert 1 <= len(split_words(letter * 30_000, "dictionary")) <= 30_000


@given(st.text(st.sampled_from(ALPHABET), max_size=80) | st.sampled_from(SAMPLES + ODD) | st.text(max_size=40))
def test_nothing_but_spaces_is_added(text: str) -> None:
    changed = dictionary.respace(text)
    assert "".join(changed.split()) == "".join(text.split())
    assert [line.replace(" ", "") for line in changed.split("\n")] == [
        line.replace(" ", "") for line in text.split("\n")
    ]


SPACED = [c for c in ALPHABET if not dictionary._RUN.match(c)] + list("ᦅᦎᦠ")


@given(st.text(st.sampled_from(SPACED), max_size=80))
def test_other_scripts_are_as_in_auto(text: str) -> None:
    assert split_words(text, "dictionary") == split_words(text, "auto")


@pytest.fixture
def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them installed, and none in use yet."""
    for name in ("rjieba", "sudachipy", "nlpo3", "icu4py", "icu4py.breakers"):
        monkeypatch.setitem(sys.modules, name, None)  # what Python does where it is not there
    for cutter in (dictionary.chinese, dictionary.japanese, dictionary.thai, dictionary.southern):
        cutter.cache_clear()


@pytest.mark.usefixtures("without_packages")
def test_rows_of_other_scripts_need_no_package() -> None:
    rows = [{"text": text} for text in ("deux mots", "два слова", "두 단어", "ላም ሄደች", "ᦅᦎᦠ")]
    found = Pipeline(Rows(rows), WordCount(words="dictionary", min_words=2)).run(executor="inline")
    assert (found.kept, found.failed) == (5, 0)


@pytest.mark.usefixtures("without_packages")
@pytest.mark.parametrize(
    ("text", "package"),
    [("我来到北京", "rjieba"), ("東京は日本の首都です", "sudachipy"), ("ภาษาไทย", "nlpo3"), ("ລາວ", "icu4py")],
)
def test_a_row_that_needs_a_missing_package_stops_the_run_and_is_not_blamed(text: str, package: str) -> None:
    pipeline = Pipeline(Rows([{"text": "deux mots"}, {"text": text}]), WordCount(words="dictionary", min_words=1))
    with pytest.raises(MissingExtra, match=f"needs the package `{package}`") as raised:
        pipeline.run(executor="inline", on_error="isolate")
    assert raised.value.hint == "pip install 'tamis[segment]'"
