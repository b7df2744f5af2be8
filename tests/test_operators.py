import pickle
import subprocess
import sys
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest

import tamis
from tamis import ParquetWriter, Pipeline, Rows
from tamis.errors import ParameterError, RecipeError
from tamis.functions import Function, as_operator
from tamis.operators import (
    Filter,
    Rule,
    at_least,
    at_most,
    between,
    less_than,
    one_of,
    operator,
    reason_to_invert,
    snake_case,
)
from tamis.registry import build_operator, find_operator, registered
from tamis.text.quality import WordCount


@operator(reads="text", writes="length")
class LengthForTests(Filter):
    """Keep texts of a given length."""

    min_length: int = 1
    max_length: float = 10
    column: str | None = None

    def score(self, batch):
        return {"length": pa.compute.utf8_length(batch["text"])}

    def rules(self):
        return [between("length", self.min_length, self.max_length)]


def reasons(rule: Rule, values: pa.Array) -> list[str | None]:
    found: list[str | None] = [None] * len(values)
    for reason, broken in rule.verdicts(values):
        for row in np.flatnonzero(broken):
            found[row] = reason
    return found


def test_bounds_are_inclusive_and_appear_in_the_reason():
    assert reasons(between("words", 3, 5), pa.array([2, 3, 5, 6])) == ["words < 3", None, None, "words > 5"]
    assert reasons(at_least("share", 0.5), pa.array([0.4, 0.5])) == ["share < 0.5", None]
    assert reasons(at_most("share", 0.5), pa.array([0.5, 0.6])) == [None, "share > 0.5"]
    assert reasons(less_than("share", 0.5), pa.array([0.4, 0.5])) == [None, "share >= 0.5"]
    assert reasons(less_than("share", None), pa.array([0.4, 1.0])) == [None, None]


def test_a_missing_score_has_its_own_reason():
    assert reasons(at_least("words", 1), pa.array([None, 1])) == ["words is missing", None]
    assert reasons(at_least("share", 0.0), pa.array([float("nan"), 1.0])) == ["share is not a number", None]


def test_the_reason_lists_the_allowed_labels():
    assert reasons(one_of("language", ["en", "fr"]), pa.array(["en", "de", None])) == [
        None,
        "language not in en, fr",
        "language is missing",
    ]


def test_the_recipe_name_is_the_class_name_in_snake_case():
    assert registered()["word_count"] is WordCount
    assert snake_case("HTMLText") == "html_text"


def test_the_error_for_an_unknown_operator_suggests_the_closest_name():
    with pytest.raises(RecipeError, match="did you mean `word_count`"):
        find_operator("word_cuont")


def test_the_error_for_an_unknown_parameter_suggests_the_closest_name():
    with pytest.raises(ParameterError, match="did you mean `min_length`"):
        build_operator("length_for_tests", {"min_lenght": 3})


def test_the_error_for_a_missing_parameter_names_it():
    with pytest.raises(ParameterError, match="`jsonl_reader` needs `file_paths`"):
        build_operator("jsonl_reader", {})


@pytest.mark.parametrize("value", ["3", 3.5, None, True])
def test_a_parameter_of_the_wrong_type_is_refused(value):
    with pytest.raises(ParameterError, match="`min_length` of `length_for_tests` must be int"):
        LengthForTests(min_length=value)


def test_a_minimum_above_the_maximum_is_refused():
    with pytest.raises(
        ParameterError, match="`min_length` of `length_for_tests` is 5, which is greater than `max_length`"
    ):
        LengthForTests(min_length=5, max_length=4)


def test_operators_are_values():
    assert LengthForTests(min_length=2) == LengthForTests(min_length=2)
    assert pickle.loads(pickle.dumps(LengthForTests(min_length=2))) == LengthForTests(min_length=2)
    assert LengthForTests(min_length=2).parameters() == {"min_length": 2}


def test_another_column_can_replace_the_declared_one():
    step = LengthForTests(column="prompt", score_only=True)
    assert step.real_names() == {"text": "prompt"}
    assert step.writes() == ("prompt_length",)


def test_the_identity_of_a_function_covers_its_code_and_closure():
    def longer_than(limit):
        return as_operator(lambda row: len(row["text"]) > limit)

    assert longer_than(3).identity() == longer_than(3).identity()
    assert longer_than(3).identity() != longer_than(4).identity()


def test_a_class_instead_of_an_instance_is_refused_with_a_hint():
    with pytest.raises(ParameterError, match=r"write LengthForTests\(\)"):
        as_operator(LengthForTests)


def test_a_function_annotated_with_batch_receives_batches():
    from tamis.batch import Batch

    def by_batch(batch: Batch):
        return batch

    assert isinstance(as_operator(by_batch), Function)
    assert as_operator(by_batch).batch_wise
    assert not as_operator(lambda row: True).batch_wise


def test_custom_operators_need_only_the_top_level_package():
    code = """
import sys
from tamis import Batch, Filter, Rule, Scores, at_least, operator
import tamis.operators
from tamis import operator as again
assert operator is again is tamis.operator is tamis.operators.operator

@operator(reads="text", writes="length")
class Length(Filter):
    min_length: int = 2

    def score(self, batch: Batch) -> Scores:
        return {"length": [len(text) for text in batch["text"].to_pylist()]}

    def rules(self) -> list[Rule]:
        return [at_least("length", self.min_length)]

from tamis import Pipeline, Rows
print(Pipeline(Rows([{"text": "a"}, {"text": "ab"}]), Length()).run(executor="inline").dropped)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{'length < 2': 1}\n"


def test_every_public_name_exists():
    assert all(hasattr(tamis, name) for name in tamis.__all__)


class TestInvert:
    rows: ClassVar = [{"text": text} for text in ("", "a", "abc", "abcdef", None)]

    def dropped(self, step):
        report = Pipeline(Rows(self.rows), step).run(executor="inline")
        assert report.kept + sum(report.dropped.values()) == len(self.rows)
        return report.dropped

    def test_the_other_rows_are_dropped_and_the_reason_says_why(self):
        step = LengthForTests(min_length=1, max_length=3)
        assert self.dropped(step) == {"length < 1": 1, "length > 3": 1, "length is missing": 1}
        assert self.dropped(step.changed(invert=True)) == {"length from 1 to 3": 2}

    @pytest.mark.parametrize(
        ("rules", "reason"),
        [
            ([at_least("a", 2)], "a >= 2"),
            ([at_most("a", 0.5)], "a <= 0.5"),
            ([less_than("a", 3)], "a < 3"),
            ([one_of("a", ["en", "fr"])], "a in en, fr"),
            ([Rule("a")], "a is known"),
            ([at_least("a", 1), at_most("b", 2)], "a >= 1 and b <= 2"),
            ([at_least(name, 1) for name in "abc"], "step: all rules are met"),
            ([], "step: all rules are met"),
        ],
    )
    def test_reasons(self, rules, reason):
        assert reason_to_invert("step", rules) == reason

    def test_it_is_decided_from_stored_scores(self, tmp_path):
        step, out = LengthForTests(), ParquetWriter(tmp_path / "out")
        assert Pipeline(Rows(self.rows), step, out).run(executor="inline", scores=True).kept == 3
        assert Filter.is_threshold("invert")
        assert step.measuring_identity() == step.changed(invert=True).measuring_identity()
        inverted = Pipeline(Rows(self.rows), step.changed(invert=True), out).run(executor="inline", scores=True)
        assert inverted.kept == 2
