"""Names of NeMo Curator that do not exist here get an error that says what to use."""

import re
from importlib import import_module

import pytest

from tamis import ExactDeduplicationWorkflow, JsonlReader, ParquetWriter, curator_names
from tamis.errors import ParameterError, TamisError
from tamis.recipes.load import parse_recipe
from tamis.text import WordCount


@pytest.mark.parametrize(
    ("statement", "hint"),
    [
        ("from tamis import RayClient", "Tamis needs no cluster"),
        ("from tamis import ScoreFilter", "remove the wrapper"),
        ("from tamis.text import UnicodeReformatter", "use tamis.text.UnicodeRepair"),
        ("from tamis.text import WordCountFilter", "use tamis.text.WordCount"),
        ("from tamis.text import DiverseQAStage", "use the recipe nemotron_qa"),
        ("from tamis.dedup import FuzzyDuplicates", "use tamis.FuzzyDeduplicationWorkflow"),
        ("from tamis.workflows import SemDedup", "use tamis.SemanticDeduplicationWorkflow"),
    ],
)
def test_an_import_says_what_to_use(statement, hint):
    with pytest.raises(ImportError) as caught:
        exec(statement)
    assert isinstance(caught.value, TamisError)
    assert hint in str(caught.value)


def test_other_names_are_ordinary_errors():
    with pytest.raises(ImportError, match="cannot import name 'Nonsense'"):
        exec("from tamis import Nonsense")
    assert not hasattr(import_module("tamis.text"), "Nonsense")


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda: ExactDeduplicationWorkflow("in", "out", cache_path="c"), "kept in the output folder"),
        (lambda: ExactDeduplicationWorkflow("in", "out", assign_id=True), "rows need no ids"),
        (lambda: JsonlReader("in", read_kwargs={}), "`tamis ops`"),
        (lambda: JsonlReader(input_path="in"), "use `file_paths`"),
        (lambda: ParquetWriter(output_path="out"), "use `path`"),
        (lambda: WordCount(text_field="body"), "use `column`"),
        (lambda: WordCount(min_word=3), "did you mean `min_words`?"),
        (lambda: ExactDeduplicationWorkflow("in", "out", text_feild="t"), "did you mean `text_field`?"),
    ],
)
def test_a_parameter_says_what_to_use(make, hint):
    with pytest.raises(ParameterError, match="has no parameter `") as caught:
        make()
    assert hint in caught.value.hint


def test_a_recipe_says_the_same():
    recipe = parse_recipe(b"steps: [{word_count: {text_field: body}}]", "r.yaml")
    with pytest.raises(ParameterError) as caught:
        recipe.check_names()
    assert "use `column`" in caught.value.hint


def test_what_the_table_recommends_exists():
    for hint in {*curator_names.NAMES.values(), *curator_names.PARAMETERS.values()}:
        for path in re.findall(r"\btamis(?:\.\w+)+", hint):
            module, _, name = path.rpartition(".")
            assert hasattr(import_module(module), name), hint


def test_the_signature_of_an_operator_is_still_visible():
    import inspect

    assert "min_words" in inspect.signature(WordCount).parameters
