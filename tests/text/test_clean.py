"""Cleaning of whole texts, each step against a slow and obvious version."""

import re
import string

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import Pipeline, Rows
from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import OperatorError, ParameterError
from tamis.registry import build_operator
from tamis.text.clean import (
    POLICY_PHRASES,
    BoilerplateRemoval,
    LineRemoval,
    MarkdownRemoval,
    Newlines,
    QuotationRemoval,
    RegexReplacement,
    Slice,
    UnicodeRepair,
    UrlRemoval,
    Whitespace,
    literal,
)
from tamis.text.lists import BoilerPlate

STEPS = [
    UnicodeRepair(),
    Newlines(),
    Newlines(unify=False),
    Whitespace(),
    UrlRemoval(),
    MarkdownRemoval(),
    QuotationRemoval(),
    Slice(left=2, right=-2),
    Slice(left="a", right="b"),
    LineRemoval(["Menu"]),
    RegexReplacement("[ab]+", "a"),
    BoilerplateRemoval(),
    BoilerplateRemoval(place="anywhere"),
]

ODD = [
    "",
    None,
    " \t\n ",
    "x",
    "\x00\x07\x1b[31m",
    "a\r\nb\rc\x85d\u2028e\x0bf",
    "e\u0301\u0301 \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627\u200f",
    "\ufeff\ufffd\U0010ffff",
    '[[[[((((****____""""',
]

ODDMENTS = [*"ab .,\"'*_[]()<>&;\n\r\t", "\u00a0", "\u3000", "\u2028", "\u201c", "\u201d", "\u00e9", "\u4f60", "\n\n"]
WORDS = ["http://", "https://x.org/", "WWW.", "Menu", "we use cookies", "Privacy Policy", "lorem ipsum", "**b**", "_i_"]
pieces = st.sampled_from(ODDMENTS + WORDS)
texts = st.lists(pieces, max_size=14).map("".join)


def clean(step, *values):
    return step.clean(pa.array(values, pa.string())).to_pylist()


def one(step, text):
    return clean(step, text)[0]


@pytest.mark.parametrize("step", STEPS, ids=repr)
class TestEveryStep:
    def test_odd_texts_are_texts_and_nulls_stay_null(self, step):
        result = clean(step, *ODD)
        assert [text is None for text in result] == [text is None for text in ODD]

    def test_types_of_strings_are_kept_and_others_refused(self, step):
        for kind in (pa.string(), pa.large_string()):
            assert step.clean(pa.array(["a b", None, "Menu\nwe use cookies"], kind)).type == kind
        assert step.apply(Batch(pa.table({"text": pa.nulls(2)})))["text"].to_pylist() == [None, None]
        with pytest.raises(OperatorError, match="a text column holds strings"):
            step.apply(Batch(pa.table({"text": [1, 2]})))

    def test_a_part_of_a_column_is_as_good_as_a_column(self, step):
        column = pa.array(["one", *(text for text in ODD), "two\n\nMenu"], pa.string())
        assert step.clean(column.slice(3, 6)).to_pylist() == step.clean(column).to_pylist()[3:9]

    def test_five_megabytes_of_one_thing_are_no_problem(self, step):
        for unit in ("a", "\n", "*[", '"_', "http://a,"):
            assert len(clean(step, unit * (5_000_000 // len(unit)))) == 1


def test_another_column_is_rewritten_or_filled():
    rows = [{"prompt": "a  b", "text": "c  d"}]
    assert Pipeline(Rows(rows), Whitespace(column="prompt")).collect(executor="inline").to_pylist() == [
        {"prompt": "a b", "text": "c  d"}
    ]
    filled = Pipeline(Rows(rows), Whitespace(column="prompt", into="clean")).collect(executor="inline").to_pylist()
    assert filled == [{"prompt": "a  b", "text": "c  d", "clean": "a b"}]


@settings(deadline=None)
@given(st.text(max_size=5))
def test_a_literal_matches_itself_and_nothing_else(text):
    column = pa.array([text, text + "x", "x" + text], pa.string())
    found = pa.compute.match_substring_regex(column, rf"\A{literal(text)}\z").to_pylist()
    assert found == [True, text + "x" == text, "x" + text == text]


NEMO_CURATOR = {
    "fix_latin_ligatures": False, "fix_character_width": False, "uncurl_quotes": False, "fix_line_breaks": False,
    "normalization": None,
}  # fmt: skip
"""Where NeMo Curator's UnicodeReformatter (1.4.0) departs from ftfy's defaults."""


class TestUnicodeRepair:
    def test_defaults_are_those_of_nemo_curator(self):
        step = UnicodeRepair()
        assert {name: getattr(step, name) for name in NEMO_CURATOR} == NEMO_CURATOR
        assert (step.unescape_html, step.max_decode_length) == ("auto", 1_000_000)

    @pytest.mark.parametrize(
        ("broken", "repaired"),
        [
            ("Caf\u00c3\u00a9", "Caf\u00e9"),
            ("it\u00e2\u20ac\u2122s", "it\u2019s"),
            ("&lt;b&gt; &amp; co", "<b> & co"),
            ("<p>&amp;</p>", "<p>&amp;</p>"),
            ("a\r\nb", "a\r\nb"),
            ("\ufb01n \uff21\uff22", "\ufb01n \uff21\uff22"),
            (
                "\u4f60\u597d\uff0c\u4e16\u754c\uff01\uff08\u4e00\uff09\u3000\u201c",
                "\u4f60\u597d\uff0c\u4e16\u754c\uff01\uff08\u4e00\uff09\u3000\u201c",
            ),
            ("bell\x07", "bell"),
            ("\u201ccurly\u201d", "\u201ccurly\u201d"),
        ],
    )
    def test_by_hand(self, broken, repaired):
        assert one(UnicodeRepair(), broken) == repaired

    def test_what_is_off_by_default_can_be_turned_on(self):
        assert one(UnicodeRepair(fix_line_breaks=True), "a\r\nb\rc\u2028d") == "a\nb\nc\nd"
        assert one(UnicodeRepair(fix_latin_ligatures=True), "\ufb01n") == "fin"
        assert one(UnicodeRepair(fix_character_width=True), "\uff21\uff22\uff0c\uff76") == "AB,\u30ab"

    @settings(max_examples=300, deadline=None)
    @given(
        text=st.lists(
            st.one_of(
                st.sampled_from(
                    [*"aB .<&;\n\r\x1b\x85\u00c2\u00c3\u00e2\u20ac\u2122\u00a0\u0153\u201c\u2019\u2026\u0430"]
                )
                | st.sampled_from(
                    [
                        "&amp;",
                        "&eacute;",
                        "\u00c3\u00a9",
                        "\u00e2\u20ac\u2122",
                        "\ufb01",
                        "\u0432\u0402",
                        "\uff0c",
                        "\r\n",
                    ]
                ),
                st.characters(codec="utf-8", max_codepoint=0x25FF),
                st.characters(codec="utf-8"),
            ),
            max_size=12,
        ).map("".join),
        options=st.fixed_dictionaries(
            {
                "fix_character_width": st.booleans(),
                "fix_latin_ligatures": st.booleans(),
                "fix_line_breaks": st.booleans(),
                "uncurl_quotes": st.booleans(),
                "unescape_html": st.sampled_from(["auto", True, False]),
                "normalization": st.sampled_from([None, None, "NFC", "NFKD"]),
            }
        ),
    )
    def test_the_same_as_ftfy(self, text, options):
        import ftfy

        config = ftfy.TextFixerConfig(explain=False, **options)
        assert one(UnicodeRepair(**options), text) == ftfy.fix_text(text, config)

    def test_no_character_that_ftfy_changes_is_skipped(self):
        import ftfy

        points = [*range(0x80, 0x600), *range(0x2000, 0x2600), *range(0xFB00, 0xFB10), *range(0x600, 0x10FFFF, 431)]
        texts = [f"a{chr(point)} b{chr(point)}c\n" for point in points if not 0xD800 <= point < 0xE000]
        for on in (False, True):
            options = {"fix_character_width": on, "fix_latin_ligatures": on, "fix_line_breaks": on}
            config = ftfy.TextFixerConfig(explain=False, uncurl_quotes=False, normalization=None, **options)
            assert clean(UnicodeRepair(**options), *texts) == [ftfy.fix_text(text, config) for text in texts]

    def test_long_lines_are_cut_where_ftfy_cuts_them(self):
        import ftfy

        text = "Caf\u00c3\u00a9 <b> &amp; " * 3
        for length in (1, 7, 20):
            config = ftfy.TextFixerConfig(explain=False, max_decode_length=length, **NEMO_CURATOR)
            assert one(UnicodeRepair(max_decode_length=length), text) == ftfy.fix_text(text, config)


class TestNewlines:
    @settings(deadline=None)
    @given(texts, st.integers(1, 4))
    def test_against_python(self, text, most):
        plain = re.sub("\r\n?|[\v\f\x85\u2028\u2029]", "\n", text)
        plain = re.sub(f"\n{{{most + 1},}}", "\n" * most, plain)
        assert one(Newlines(max_newlines=most), text) == plain
        assert one(Newlines(max_newlines=most), plain) == plain

    def test_both_kinds_of_runs_are_shortened_where_they_are_kept(self):
        assert one(Newlines(unify=False), "a\r\n\r\n\r\nb\n\n\nc\rd") == "a\r\n\r\nb\n\nc\rd"

    def test_nonsense_is_refused(self):
        with pytest.raises(ParameterError, match="max_newlines"):
            Newlines(max_newlines=0).check()


class TestWhitespace:
    @settings(deadline=None)
    @given(texts)
    def test_against_python(self, text):
        blank = "[\t \u00a0\u3000]"
        plain = re.sub(f"{blank}+", " ", text)
        plain = "\n".join(line.strip(" ") for line in plain.split("\n"))
        # The first and the last line are not beside a newline on both sides: the text as a whole is trimmed.
        assert one(Whitespace(), text) == plain.strip()
        assert one(Whitespace(), plain.strip()) == plain.strip()

    def test_each_part_can_be_left_out(self):
        text = " a  b \n c "
        assert one(Whitespace(trim_lines=False, trim=False), text) == " a b \n c "
        assert one(Whitespace(collapse=False, trim=False), text) == " a  b\nc "
        assert one(Whitespace(collapse=False, trim_lines=False), text) == "a  b \n c"


class TestUrlRemoval:
    @pytest.mark.parametrize(
        ("text", "left"),
        [
            ("see https://a.org/b?c=d#e now", "see  now"),
            ("see http://a.org.", "see ."),
            ("(HTTP://A.ORG/x)", "()"),
            ("www.example.com, and", ", and"),
            ("awww.cute stays", "awww.cute stays"),
            ("\u8bf7\u8bbf\u95eehttps://a.org/b\u3002\u8c22\u8c22", "\u8bf7\u8bbf\u95ee\u3002\u8c22\u8c22"),
            ("https://a.org/Stra\u00dfe end", " end"),
            ('<a href="https://a.org">x</a>', '<a href="">x</a>'),
            ("run `curl https://a.org/b` now", "run `curl ` now"),
            ("http:// alone", "http:// alone"),
            ("ftp://a.org", "ftp://a.org"),
        ],
    )
    def test_by_hand(self, text, left):
        assert one(UrlRemoval(), text) == left

    @settings(deadline=None)
    @given(texts)
    def test_twice_is_once_and_nothing_else_is_touched(self, text):
        once = one(UrlRemoval(), text)
        assert one(UrlRemoval(), once) == once
        assert once in text or "http" in text.lower() or "www." in text.lower()

    def test_a_replacement_is_taken_as_it_is(self):
        assert one(UrlRemoval(replacement=r"<\1>"), "a http://b.c d") == r"a <\1> d"


marks = ["*", "**", "_", "__", "[", "](", ")", "![", "\n", "a"]
nested = st.recursive(
    st.sampled_from(["a", "b c", "x_y", "2 * 3"]) | st.lists(st.sampled_from(marks), max_size=6).map("".join),
    lambda inner: st.builds(
        lambda mark, parts: mark + " ".join(parts) + mark, st.sampled_from(marks[:4]), st.lists(inner, max_size=3)
    ),
)


class TestMarkdownRemoval:
    @pytest.mark.parametrize(
        ("text", "left"),
        [
            ("**bold** *it* __u__ _u_", "bold it u u"),
            ("***both***", "both"),
            ("**bold with *italics* inside**", "bold with italics inside"),
            ("*italics with **bold** inside*", "italics with bold inside"),
            ("__bold with _italics_ inside__", "bold with italics inside"),
            ("**a _b *c* d_ e**", "a b c d e"),
            ("[![icon](i.png)](http://a.b)", "http://a.b"),
            ("2 * 3 * 4 and a_b_c", "2 * 3 * 4 and a_b_c"),
            ("[a](http://b.c/d_(e)) ![i](x.png)", "http://b.c/d_(e) x.png"),
            ('[a](b "title")', "b"),
            ("[not a link] (really)", "[not a link] (really)"),
            ("*over\nlines*", "*over\nlines*"),
            ("* item one\n* item two", "* item one\n* item two"),
        ],
    )
    def test_by_hand(self, text, left):
        assert one(MarkdownRemoval(), text) == left

    def test_what_becomes_of_links(self):
        assert one(MarkdownRemoval(links="text"), "[a **b**](c)") == "a b"
        assert one(MarkdownRemoval(links="keep"), "[a](c) *d*") == "[a](c) d"

    @settings(deadline=None)
    @given(nested, st.sampled_from(["url", "text", "keep"]))
    def test_a_second_application_changes_nothing(self, text, links):
        step = MarkdownRemoval(links=links)
        assert one(step, one(step, text)) == one(step, text)

    def test_marks_nested_without_end_are_left_alone(self):
        deep = "*a " * 40 + "x" + " a*" * 40
        assert clean(MarkdownRemoval(), deep, "*b*", deep + "\n**c**") == [deep, "b", deep + "\n**c**"]

    @settings(deadline=None)
    @given(st.text(string.ascii_letters + "*_ \n", max_size=20))
    def test_only_marks_are_taken_away(self, text):
        assert one(MarkdownRemoval(), text).translate({42: None, 95: None}) == text.translate({42: None, 95: None})


class TestQuotationRemoval:
    @pytest.mark.parametrize(
        ("text", "left"),
        [
            ('"all of it"', "all of it"),
            (' "all"\n', " all\n"),
            ("\u201call\nof it\u201d", "all\nof it"),
            ("\u201eja\u201c", "ja"),
            ('"one" and "two"', '"one" and "two"'),
            ('""', '""'),
            ('"open', '"open'),
            ("'it's'", "'it's'"),
        ],
    )
    def test_by_hand(self, text, left):
        assert one(QuotationRemoval(), text) == left

    @settings(deadline=None)
    @given(st.text('"a\n ', max_size=8))
    def test_against_python(self, text):
        inner = text.strip()
        whole = len(inner) > 2 and inner[0] == inner[-1] == '"' and inner.count('"') == 2
        assert one(QuotationRemoval(), text) == (text.replace('"', "") if whole else text)

    def test_pairs_are_pairs(self):
        with pytest.raises(ParameterError, match="pairs of marks"):
            QuotationRemoval(quotes=["'"]).check()


class TestSlice:
    bound = st.none() | st.integers(-5, 5) | st.text("ab", min_size=1, max_size=2)

    @settings(deadline=None)
    @given(st.text("ab\u00e9 ", max_size=8), bound, bound, st.booleans(), st.booleans(), st.booleans())
    def test_against_python(self, text, left, right, include_left, include_right, strip):
        step = Slice(left=left, right=right, include_left=include_left, include_right=include_right, strip=strip)
        start, stop = left or 0, len(text) if right is None else right
        expected = text
        if isinstance(left, str):
            start = text.find(left) + (0 if include_left else len(left))
            expected = None if left not in text else expected
        if isinstance(right, str):
            stop = text.rfind(right) + (len(right) if include_right else 0)
            expected = None if right not in text else expected
        expected = "" if expected is None else text[start:stop]
        assert one(step, text) == (expected.strip() if strip else expected)


class TestLineRemoval:
    @settings(deadline=None)
    @given(st.lists(st.sampled_from(["Menu", "menu", "", "a", "Menu ", "Menu\r"]), max_size=6).map("\n".join))
    def test_against_python(self, text):
        step = LineRemoval(["Menu", ""])
        kept = [line for line in text.split("\n") if line.rstrip("\r") not in ("Menu", "")]
        assert one(step, text) == "\n".join(kept)
        assert one(step, one(step, text)) == one(step, text)

    def test_nothing_to_remove_is_a_mistake(self):
        with pytest.raises(ParameterError, match="nothing to remove"):
            LineRemoval().check()

    def test_a_recipe_gives_a_list(self):
        assert build_operator("line_removal", {"lines": ["a"]}) == LineRemoval(["a"])


class TestRegexReplacement:
    @settings(deadline=None)
    @given(st.text("aAb1 \n", max_size=12))
    def test_against_python(self, text):
        for pattern, replacement in ((r"(a)(b?)", r"<\2\1>"), (r"\b1\b", ""), (r"(?m)^ +", r"\\"), (r"(?s)a.b", "")):
            assert one(RegexReplacement(pattern, replacement), text) == re.sub(pattern, replacement, text)
            insensitive = RegexReplacement(pattern, replacement, ignore_case=True)
            assert one(insensitive, text) == re.sub(pattern, replacement, text, flags=re.IGNORECASE)

    @pytest.mark.parametrize(("pattern", "replacement"), [("(a", ""), ("a", r"\1"), ("(?=a)", ""), ("a", "\\")])
    def test_what_re2_cannot_replace_is_refused(self, pattern, replacement):
        with pytest.raises(ParameterError, match="cannot replace"):
            RegexReplacement(pattern, replacement).check()


def paragraphs_without_boilerplate(text, place):
    """What `BoilerplateRemoval` promises, paragraph by paragraph."""
    if "lorem ipsum" in text.lower():
        return ""
    paragraphs = text.split("\n\n")
    found = [any(phrase in paragraph.lower() for phrase in POLICY_PHRASES) for paragraph in paragraphs]
    if place == "edges":
        inner = "".join("x" if flag else "." for flag in found).strip("x")
        if not inner or "x" in inner:
            return text
    return "\n\n".join(p for p, flag in zip(paragraphs, found, strict=True) if not flag)


class TestBoilerplateRemoval:
    def test_the_filter_and_the_rewrite_agree_on_what_is_boilerplate(self):
        for phrase in POLICY_PHRASES:
            text = f"A story.\n\n{phrase.capitalize()}"
            assert one(BoilerplateRemoval(), text) == "A story."
            (share,) = BoilerPlate().open(Context()).score(Batch.from_rows([{"text": text}]))["boilerplate_paragraphs"]
            assert share == 0.5

    @settings(deadline=None)
    @given(
        st.lists(st.sampled_from(["a", "", "We Use Cookies!", "b\nc", "\nterms of use"]), max_size=7).map("\n\n".join)
    )
    def test_against_python(self, text):
        for place in ("edges", "anywhere"):
            assert one(BoilerplateRemoval(place=place), text) == paragraphs_without_boilerplate(text, place)

    def test_rows_do_not_disturb_each_other(self):
        texts = [
            "a",
            "We use cookies\n\na",
            None,
            "a\n\nwe use cookies\n\nb",
            "we use cookies",
            "Lorem Ipsum dolor",
            "",
        ]
        expected = ["a", "a", None, texts[3], texts[4], "", ""]
        assert clean(BoilerplateRemoval(), *texts) == expected

    def test_a_placeholder_in_a_paragraph_with_a_phrase_empties_the_text(self):
        for place in ("edges", "anywhere"):
            assert one(BoilerplateRemoval(place=place), "A story.\n\nLorem ipsum. We use cookies.") == ""

    def test_an_empty_phrase_is_refused(self):
        with pytest.raises(ParameterError, match="empty phrase"):
            BoilerplateRemoval(phrases=[""]).check()
