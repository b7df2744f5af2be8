"""Line cleaning, line by line against Python, and the budget that goes with it."""

import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import Pipeline, Rows
from tamis.batch import Batch
from tamis.errors import ParameterError
from tamis.text.clean import POLICY_PHRASES
from tamis.text.lines import COUNTERS, AllDressedLines, C4Lines, RemovalBudget

ODD = [
    "",
    None,
    " \t\n ",
    "\n\n\n",
    "x",
    "\x00\x07",
    "a\r\nb\rc\u2028d",
    "\U0001f468\u200d\U0001f469 e\u0301",
    "\u05e9\u05dc",
]


def cleaned(step, *texts, **columns):
    batch = Batch(pa.table({"text": pa.array(texts, pa.string()), **columns}))
    found = step.apply(batch)
    return found["text"].to_pylist(), list(found["removed_share"])


def one(step, text):
    (new,), (share,) = cleaned(step, text)
    return new, float(share)


def c4_line(line):
    """The line as C4 leaves it, or None."""
    line = re.sub(r"\[(?:[0-9]*|edit|citation needed)\]", "", line).strip()
    words = line.split()
    ends_well = line.endswith((".", "?", "!", '"', "'")) and not line.endswith("...")
    clean = not any(phrase in line.lower() for phrase in (*POLICY_PHRASES, "javascript"))
    return line if ends_well and clean and len(words) >= 3 and max(map(len, words)) <= 1000 else None


def all_dressed_line(line):
    """The line as all-dressed leaves it, or None."""
    if not line.strip():
        return line
    upper = sum(char.isupper() for char in line) / len(line)
    counter = rf"\W*[0-9][0-9.,]*[kmb]?\s+({'|'.join(COUNTERS)})\W*"
    if (
        upper > 0.5
        or re.fullmatch("[0-9]+", line)
        or re.fullmatch(counter, line.lower(), re.ASCII)
        or len(line.split()) < 2
    ):
        return None
    for pattern in (r"\s?items in cart", r"\s?Read more\.\.\.\s*\Z", r"\ASign-in\s?"):
        if len(line.split()) <= 10:
            line = re.sub(pattern, "", line)
    return line if line.strip() else None


def by_line(function, text):
    """(text, share of words lost) of a function from line to line."""
    lines = [function(line) for line in text.split("\n")]
    new = "\n".join(line for line in lines if line is not None)
    words = len(text.split())
    return new, 1 - len(new.split()) / words if words else 0.0


line = st.lists(
    st.sampled_from(
        ["it", "Rained", "SHOUT", "12", "1,2K", "likes", "end.", "wait...", '"so"', "[3]", "[edit]", " ", "\t"]
    )
    | st.sampled_from(
        ["Javascript", "use cookies", "items in cart", "Read more...", "Sign-in", "w" * 1001, "\u00c9T\u00c9"]
    ),
    max_size=6,
).map(" ".join)
text = st.lists(line, max_size=6).map("\n".join)


class TestBoth:
    @pytest.mark.parametrize("step", [C4Lines(), AllDressedLines()], ids=["c4", "all_dressed"])
    def test_odd_texts_lose_nothing_silently(self, step):
        texts, shares = cleaned(step, *ODD)
        assert [new is None for new in texts] == [old is None for old in ODD]
        assert all(0 <= share <= 1 for share in shares)

    @pytest.mark.parametrize("step", [C4Lines(), AllDressedLines()], ids=["c4", "all_dressed"])
    def test_five_megabytes_of_one_thing(self, step):
        for unit in ("a", "\n", "A"):
            assert len(cleaned(step, unit * (5_000_000 // len(unit)))[0]) == 1

    @settings(deadline=None)
    @given(text)
    def test_c4_against_python(self, text):
        new, share = by_line(c4_line, text)
        assert one(C4Lines(), text) == (new, pytest.approx(share))

    @settings(deadline=None)
    @given(text)
    def test_all_dressed_against_python(self, text):
        new, share = by_line(all_dressed_line, text)
        assert one(AllDressedLines(), text) == (new, pytest.approx(share))

    @settings(deadline=None, max_examples=40)
    @given(st.lists(st.none() | text, max_size=4))
    def test_rows_do_not_disturb_each_other(self, texts):
        for step in (C4Lines(), AllDressedLines()):
            alone = [cleaned(step, text) for text in texts]
            together = cleaned(step, *texts)
            assert together == ([a[0][0] for a in alone], [a[1][0] for a in alone])


class TestC4Lines:
    @pytest.mark.parametrize(
        ("line", "left"),
        [
            ("The sky is blue.", "The sky is blue."),
            ('  He said "go".  ', 'He said "go".'),
            ("No full stop here", ""),
            ("And then it stopped...", ""),
            ("Too short.", ""),
            ("Please turn on JavaScript now.", ""),
            ("See our Privacy Policy for more.", ""),
            ("As shown[12] before[citation needed] by many.", "As shown before by many."),
            ("Ends with a mark.[3]", "Ends with a mark."),
            ("one two " + "x" * 1001 + ".", ""),
            ("one two " + "x" * 999 + ".", "one two " + "x" * 999 + "."),
            ("The sky is blue.\r", "The sky is blue."),
        ],
    )
    def test_by_hand(self, line, left):
        assert one(C4Lines(), line)[0] == left

    def test_many_words_can_be_required(self):
        for least in (99, 100, 101, 5000):
            step = C4Lines(min_words=least)
            assert one(step, "a " * (least - 1) + "b.")[1] == 0
            assert one(step, "a " * (least - 2) + "b.")[1] == 1

    def test_punctuation_can_be_ignored(self):
        assert one(C4Lines(terminal=()), "No full stop here\nno") == ("No full stop here", 0.2)

    def test_characters_are_counted_not_bytes(self):
        assert one(C4Lines(), "a b " + "\u00e9" * 999 + ".")[1] == 0
        assert one(C4Lines(), "a b " + "\u00e9" * 1000 + ".")[1] == 1


class TestAllDressedLines:
    @pytest.mark.parametrize(
        ("line", "left"),
        [
            ("MAIN MENU", ""),
            ("NASA went up", "NASA went up"),
            ("20171231", ""),
            ("2017 12", "2017 12"),
            ("1.2K Likes!", ""),
            ("12 likes and counting", "12 likes and counting"),
            ("Home", ""),
            ("Sign-in 3 items in cart", "3"),
            ("a b Read more...", "a b"),
            ("Read more... a b", "Read more... a b"),
            ("a b c d e f g h i j k Read more...", "a b c d e f g h i j k Read more..."),
            ("Sign-in items in cart", ""),
            ("one\n\ntwo three", "\ntwo three"),
            ("\u4f60\u597d\u4e16\u754c", "\u4f60\u597d\u4e16\u754c"),
        ],
    )
    def test_by_hand(self, line, left):
        assert one(AllDressedLines(), line)[0] == left


class TestRemovalBudget:
    def test_the_reason_names_the_share(self):
        words = "one two three four five six seven eight nine ten"
        rows = [{"text": f"{words}\nMenu"}, {"text": f"{words} {words}\nMenu"}, {"text": None}]
        report = Pipeline(Rows(rows), AllDressedLines(), RemovalBudget()).run(executor="inline")
        assert report.dropped == {"removed_share > 0.05": 1}
        assert report.kept == 2

    def test_exactly_the_budget_is_within_it(self):
        text = "one two three four five six seven eight nine ten " * 2
        share = one(AllDressedLines(), text.strip().removesuffix(" ten") + "\nMenu")[1]
        assert share == 0.05
        steps = [AllDressedLines(), RemovalBudget(max_share=0.05)]
        rows = [{"text": text.strip().removesuffix(" ten") + "\nMenu"}]
        assert Pipeline(Rows(rows), *steps).run(executor="inline").kept == 1

    def test_several_steps_add_up_to_one_share(self):
        # 10 words, of which all-dressed takes 1 and C4 takes 4 of the other 9.
        text = "Menu\nNo full stop here\nThe sky is very blue."
        table = Pipeline(Rows([{"text": text}]), AllDressedLines(), C4Lines()).collect(executor="inline")
        assert table.column("removed_share").to_pylist() == [pytest.approx(0.5)]

    def test_the_share_may_have_another_name_and_column(self):
        rows = [{"body": "Menu\nHello my friend", "text": "x"}]
        steps = [AllDressedLines(column="body", share="lost"), RemovalBudget(column="lost", max_share=0.5)]
        table = Pipeline(Rows(rows), *steps).collect(executor="inline")
        assert table.to_pylist() == [{"body": "Hello my friend", "text": "x", "lost": 0.25}]

    def test_scores_only(self):
        steps = [AllDressedLines(), RemovalBudget(score_only=True)]
        assert Pipeline(Rows([{"text": "Menu"}]), *steps).run(executor="inline").kept == 1


def test_nonsense_is_refused():
    with pytest.raises(ParameterError, match="counts"):
        C4Lines(min_words=-1).check()
    with pytest.raises(ParameterError, match="empty phrase"):
        AllDressedLines(endings=[""]).check()
