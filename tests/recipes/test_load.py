from __future__ import annotations

import gzip
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.cli import main
from tamis.errors import ParameterError, RecipeError, SourceError, TamisError
from tamis.operators import Map
from tamis.recipes.load import Recipe, Settings, Step, _fitted, load_recipe, parse_recipe, recipe_of, shipped
from tamis.registry import build_operator
from tamis.report import Report


def parse(text: str) -> Recipe:
    return parse_recipe(text.encode(), "r.yaml")


def steps(*names: str) -> Recipe:
    return Recipe(tuple(Step(name) for name in names))


def lines(path: Path, suffix: str = ".jsonl") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    data = "".join(json.dumps({"text": f"row {n}"}) + "\n" for n in range(3)).encode()
    (path / f"a{suffix}").write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)
    return path


# -------------------------------------------------------------------------------------------------------------- reading


def test_a_recipe_is_a_list_of_steps_with_settings():
    recipe = parse(
        "name: clean\ndescription: what for\nmemory: 4GB\nworkers: 2\nrejects: true\n"
        "steps:\n  - word_count: {min_words: 3}\n  - word_count\n  - word_count:\n"
    )
    assert recipe.name == "clean"
    assert recipe.description == "what for"
    assert recipe.settings == Settings("4GB", 2, True)
    assert recipe.steps == (Step("word_count", {"min_words": 3}), Step("word_count"), Step("word_count"))


def test_a_recipe_without_a_name_has_that_of_its_file(tmp_path):
    path = tmp_path / "tidy.yaml"
    path.write_text("steps: [word_count]")
    assert load_recipe(path).name == "tidy"


def test_scalars_follow_yaml_1_2():
    text = "steps:\n  - op: {a: [no, on, true], b: 1e-3, c: 2024-01-01, d: 010, e: 1_000, f: .5, g: 1:30, h: '7', i: ~}"
    values = parse(text).steps[0].parameters
    assert values == {
        "a": ["no", "on", True], "b": 0.001, "c": "2024-01-01", "d": 10, "e": 1000, "f": 0.5, "g": "1:30", "h": "7",
        "i": None,
    }  # fmt: skip


def without_column(message):
    """tests/test_surface.py checks columns."""
    return re.sub(r"(line \d+), column \d+", r"\1", message)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "r.yaml is empty"),
        ("# nothing\n", "r.yaml is empty"),
        ("- word_count", "holds a list"),
        ("hello", "holds a single value"),
        ("name: x", "has no `steps`"),
        ("name: x\nstep: []", "line 2: unknown key `step`"),
        ("steps:", "line 1: `steps` must be a list of operators, got None"),
        ("steps: []", "must be a list of operators, got []"),
        ("steps: word_count", "must be a list of operators, got 'word_count'"),
        ("steps:\n\t- word_count", "line 2: a tab stands where only spaces can"),
        ("steps: [a]\nsteps: [b]", "line 2: `steps` is given twice"),
        ("steps:\n- op:\n    a: 1\n    a: 2", "line 4: `a` is given twice"),
        ("steps:\n- op: {a: {b: 1, b: 2}}", "line 2: `b` is given twice"),
        ("steps:\n- 3", "line 2: step 1 must be an operator, got 3"),
        ("steps:\n- word_count\n- {}", "line 3: step 2 must be an operator"),
        ("steps:\n- op: 3", "step 1, `op`: parameters must be names with values, got 3"),
        ("steps:\n- op: {1: 3}", "step 1, `op`: parameters must be names with values"),
        ("steps:\n- 7: {}", "step 1 must be the name of an operator, got 7"),
        ("steps:\n- word_count:\n  min_words: 3", "step 1 names more than one operator: `word_count`, `min_words`"),
        ("steps: [a]\n---\nsteps: [b]", "a second document begins"),
        ("steps: [&a x, *a]", "cannot use anchors"),
        ("steps: [!!python/object:os.system x]", "cannot use tags"),
        ("steps: [!!set {a}]", "cannot use tags"),
        ("steps: [a", "line 1: "),
        ("steps: [{[a]: b}]", "a key must be a single word"),
        ("? [a]\n: b", "a key must be a single word"),
        ("steps: [{op: {a: " + "9" * 5000 + "}}]", "a number is too long"),
        ("steps: " + "[" * 5000, "nested too deeply"),
        ("steps: [a]\nname: 3", "line 2: `name` must be text, got 3"),
        ("steps: [\x01]", "is not YAML"),
        ("#" * 1_000_001, "a recipe has at most 1,000,000"),
    ],
)
def test_a_recipe_of_the_wrong_shape_is_refused(text, says):
    with pytest.raises(RecipeError) as error:
        parse(text)
    assert says in without_column(error.value.message)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("memory: lots", "line 2: 'lots' is not a size"),
        ("workers: many", "line 2: `workers` must be a positive number or auto, got 'many'"),
        ("workers: 0", "line 2: `workers` must be"),
        ("rejects: 1", "line 2: `rejects` must be true or false, got 1"),
    ],
)
def test_settings_are_checked(setting, says):
    with pytest.raises(ParameterError) as error:
        parse(f"steps: [word_count]\n{setting}")
    assert says in without_column(error.value.message)


def test_an_unknown_key_comes_with_the_nearest():
    with pytest.raises(RecipeError) as error:
        parse("steps: [a]\nworkres: 2")
    assert error.value.hint == "did you mean `workers`?"


def test_text_that_is_not_utf_8_is_refused():
    with pytest.raises(RecipeError, match="not text in UTF-8"):
        parse_recipe(b"name: \xff\xfe", "r.yaml")


# -------------------------------------------------------------------------------------------------------------- finding


def test_a_name_finds_a_shipped_recipe():
    assert load_recipe("length").steps == (Step("word_count"),)


def test_every_shipped_recipe_names_known_operators_and_describes_itself():
    for name, recipe in shipped().items():
        assert recipe.name == name
        assert recipe.description
        recipe.check_names()


@pytest.mark.parametrize(
    ("name", "says", "hint"),
    [
        ("lenght", "there is no recipe `lenght`", "did you mean `length`?"),
        ("./lenght", "./lenght does not exist", "name a YAML file"),
        ("lenght.yaml", "lenght.yaml does not exist", "name a YAML file"),
        ("./", "is a folder", "name a YAML file"),
        ("zzzzzz", "there is no recipe `zzzzzz`", "or one of all_dressed"),
    ],
)
def test_a_recipe_that_is_not_there(tmp_path, monkeypatch, name, says, hint):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError) as error:
        load_recipe(name)
    assert says in error.value.message
    assert hint in str(error.value.hint)


def test_a_file_goes_before_a_shipped_recipe_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("length").write_text("steps: [word_count, word_count]")
    assert len(load_recipe("length").steps) == 2


# ------------------------------------------------------------------------------------------------- names and parameters


@pytest.mark.parametrize(
    ("step", "kind", "says", "hint"),
    [
        ("wordcount", RecipeError, "column 5: step 1, `wordcount`: there is no operator", "did you mean `word_count`?"),
        (
            "word_count: {min_wrods: 3}",
            ParameterError,
            "column 18: step 1, `word_count`: ",
            "did you mean `min_words`?",
        ),
    ],
)
def test_unknown_names_are_found_when_a_file_is_loaded(tmp_path, step, kind, says, hint):
    path = tmp_path / "r.yaml"
    path.write_text(f"steps:\n  - {step}\n")
    with pytest.raises(kind) as error:
        load_recipe(path)
    assert f"{path}, line 2, {says}" in error.value.message
    assert error.value.hint == hint


def test_a_value_of_the_wrong_type_names_the_step():
    recipe = parse("steps:\n- word_count\n- word_count: {min_words: many}")
    with pytest.raises(ParameterError) as error:
        recipe.operators()
    assert (
        "line 3, column 27: step 2, `word_count`: `min_words` of `word_count` must be int or None, got 'many'"
        in error.value.message
    )


@dataclass(frozen=True)
class Picky(Map):
    names: tuple[str, ...] = ()
    where: Path | None = None


def test_lists_and_text_become_tuples_and_paths_where_only_those_fit():
    assert _fitted(Picky, {"names": ["a", "b"], "where": "x"}) == {"names": ("a", "b"), "where": Path("x")}
    assert _fitted(Picky, {"names": [1], "where": 3}) == {"names": [1], "where": 3}


# ------------------------------------------------------------------------------------------------------------ overrides


def test_overrides_go_by_name_number_and_occurrence():
    recipe = steps("word_count", "jsonl_writer", "word_count").with_overrides(
        ["jsonl_writer.path=out", "1.min_words=2", "word_count#2.min_words=1", "word_count#2.max_words=9"]
    )
    assert [dict(step.parameters) for step in recipe.steps] == [
        {"min_words": 2},
        {"path": "out"},
        {"min_words": 1, "max_words": 9},
    ]


def test_the_value_of_an_override_is_yaml():
    recipe = steps("jsonl_writer").with_overrides(["jsonl_writer.columns={text: 'a=b'}", "1.fields=[no, 1e-3]"])
    assert recipe.steps[0].parameters == {"columns": {"text": "a=b"}, "fields": ["no", 0.001]}


@pytest.mark.parametrize(
    ("override", "says", "hint"),
    [
        ("min_words=3", "cannot understand 'min_words=3'", "step.parameter=value"),
        ("word_count.min_words", "cannot understand", "step.parameter=value"),
        ("word_count.min_words=3", "`word_count` occurs 2 times", "word_count#1 or word_count#2"),
        ("word_count#3.min_words=3", "`word_count` occurs 2 times", "the steps are 1 word_count"),
        ("word_cont#1.min_words=3", "there is no step `word_cont`", "did you mean `word_count`? the steps are"),
        ("zzz.min_words=3", "there is no step `zzz`", "the steps are 1 word_count, 2 word_count, 3 jsonl_writer"),
        ("4.min_words=3", "there is no step 4", "3 jsonl_writer"),
        ("0.min_words=3", "there is no step 0", "the steps are"),
        ("1.min_wrods=3", "step 1, `word_count`: `word_count` has no parameter `min_wrods`", "`min_words`"),
        ("1.min_words=[", "'[' is not a value", "quote"),
    ],
)
def test_an_override_that_fits_nothing(override, says, hint):
    with pytest.raises(TamisError) as error:
        steps("word_count", "word_count", "jsonl_writer").with_overrides([override])
    assert says in error.value.message
    assert hint in str(error.value.hint)


# ---------------------------------------------------------------------------------------------------------------- paths


def test_an_input_brings_the_reader_that_fits_and_an_output_a_writer_of_its_format(tmp_path):
    folder = str(lines(tmp_path / "in"))
    recipe = steps("word_count").with_paths(input=folder, output="out")
    assert recipe.steps == (
        Step("jsonl_reader", {"file_paths": folder}),
        Step("word_count"),
        Step("jsonl_writer", {"path": "out"}),
    )


def test_the_output_is_compressed_as_the_input_is(tmp_path):
    recipe = steps("word_count").with_paths(input=lines(tmp_path / "in", ".jsonl.gz"), output="out")
    assert recipe.steps[-1] == Step("jsonl_writer", {"path": "out", "compression": "gz"})


def test_text_files_become_json_lines(tmp_path):
    recipe = steps("word_count").with_paths(input=lines(tmp_path / "in", ".txt"), output="out")
    assert [step.name for step in recipe.steps] == ["text_reader", "word_count", "jsonl_writer"]


def test_several_inputs_are_read_as_one(tmp_path):
    first, second = str(lines(tmp_path / "a")), str(lines(tmp_path / "b"))
    assert steps("word_count").with_paths(input=[first, second]).steps[0].parameters == {"file_paths": [first, second]}


def test_a_named_reader_of_the_same_format_keeps_its_parameters(tmp_path):
    folder = str(lines(tmp_path / "in"))
    recipe = Recipe((Step("jsonl_reader", {"file_paths": "old", "blocksize": "1MB"}), Step("word_count")))
    assert recipe.with_paths(input=folder).steps[0] == Step("jsonl_reader", {"file_paths": folder, "blocksize": "1MB"})


def test_a_reader_of_another_format_is_replaced_and_keeps_what_both_know(tmp_path):
    folder = str(lines(tmp_path / "in"))
    recipe = Recipe((Step("parquet_reader", {"file_paths": "old", "columns": {"text": "body"}}), Step("word_count")))
    changed = recipe.with_paths(input=folder)
    assert changed.steps[0] == Step("jsonl_reader", {"file_paths": folder, "columns": {"text": "body"}})


def test_a_parameter_only_the_replaced_reader_knows_is_an_error(tmp_path):
    pq.write_table(pa.table({"text": ["row"]}), tmp_path / "a.parquet")
    recipe = Recipe((Step("jsonl_reader", {"file_paths": "old", "max_line_bytes": "1MB"}), Step("word_count")))
    with pytest.raises(ParameterError) as error:
        recipe.with_paths(input=tmp_path)
    says = "step 1, `jsonl_reader`: the input is read by `parquet_reader`, which has no `max_line_bytes`"
    assert says in error.value.message


def test_files_that_do_not_tell_their_format_are_read_as_the_recipe_says(tmp_path):
    (tmp_path / "dump.dat").write_text("{}\n")
    path = str(tmp_path / "dump.dat")
    recipe = Recipe((Step("jsonl_reader", {"file_paths": "old"}),))
    assert recipe.with_paths(input=path).steps[0] == Step("jsonl_reader", {"file_paths": path})
    with pytest.raises(SourceError, match="cannot be inferred"):
        steps("word_count").with_paths(input=path)


def test_a_named_writer_keeps_its_format():
    recipe = Recipe((Step("word_count"), Step("parquet_writer", {"path": "old", "target_shard_size": "1MB"})))
    changed = recipe.with_paths(output="new")
    assert changed.steps[1] == Step("parquet_writer", {"path": "new", "target_shard_size": "1MB"})


def test_a_recipe_without_ends_says_which_option_brings_them():
    with pytest.raises(RecipeError) as error:
        steps("word_count").check_ends()
    assert "names no input" in error.value.message
    assert "--input" in str(error.value.hint)
    with pytest.raises(RecipeError) as error:
        steps("jsonl_reader", "word_count").check_ends()
    assert "names no output" in error.value.message
    assert "--output" in str(error.value.hint)
    with pytest.raises(RecipeError, match="format of the output is unknown"):
        steps("word_count").with_paths(output="out")


# ----------------------------------------------------------------------------------------------------------- round trip

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
names = st.text(min_size=1, max_size=12)


@given(
    st.builds(
        Recipe,
        st.lists(st.builds(Step, names, st.dictionaries(names, values, max_size=3)), min_size=1, max_size=4).map(tuple),
        name=names,
        description=st.text(max_size=60),
        settings=st.builds(
            Settings,
            st.none() | st.integers(1, 10**12) | st.just("4GB"),
            st.none() | st.integers(1, 64) | st.just("auto"),
            st.none() | st.booleans(),
        ),
    )
)
def test_what_is_written_reads_back_the_same(recipe):
    assert parse_recipe(recipe.to_yaml().encode(), "r.yaml") == recipe


def test_a_written_recipe_has_a_line_for_each_step():
    recipe = Recipe((Step("jsonl_reader", {"file_paths": "in/"}), Step("word_count")), name="x")
    assert recipe.to_yaml() == "name: x\nsteps:\n  - jsonl_reader: {file_paths: in/}\n  - word_count\n"


class Steps:
    """Just the part of a pipeline that a recipe is made from."""

    def __init__(self, *given):
        from tamis.functions import as_operator

        self.steps = tuple(as_operator(step) for step in given)


def test_a_pipeline_becomes_a_recipe_and_a_pipeline_again():
    built = [
        build_operator("jsonl_reader", {"file_paths": ["in/"]}),
        build_operator("word_count", {"min_words": 3}),
        build_operator("parquet_writer", {"path": Path("out")}),
    ]
    recipe = recipe_of(Steps(*built), name="x")
    assert recipe.steps[1] == Step("word_count", {"min_words": 3})
    again = parse_recipe(recipe.to_yaml().encode(), "r.yaml").operators()
    assert [step.identity() for step in again] == [step.identity() for step in built]


def test_a_function_cannot_be_written_in_a_recipe():
    def shout(row):
        return row

    with pytest.raises(RecipeError, match="step 1 is the function `shout`, which a recipe cannot hold"):
        recipe_of(Steps(shout))


def test_the_alerts_of_a_recipe_are_read_whole():
    text = b"name: x\nalerts: {budget_percent: [70, 90], remedy: {leak: recycle}}\nsteps: [word_count]\n"
    assert parse_recipe(text, "x.yaml").settings.alerts == {"budget_percent": [70, 90], "remedy": {"leak": "recycle"}}


def test_paths_in_a_recipe_are_relative_to_the_recipe(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    (folder / "in").mkdir(parents=True)
    (folder / "in" / "a.jsonl").write_text('{"text": "one two"}\n{"text": "good words only"}\n')
    (folder / "bad.txt").write_text("one\n")
    (folder / "clean.yaml").write_text(
        "steps:\n  - jsonl_reader: {file_paths: [in/]}\n  - bad_words: {path: bad.txt}\n  - jsonl_writer: {path: out/}\n"
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    load_recipe("../project/clean.yaml").build().run(executor="inline")
    assert (folder / "out" / "part-000000.jsonl").read_text() == '{"text": "good words only"}\n'

    # What the command line names is relative to the current directory.
    Path("own.jsonl").write_text('{"text": "own words"}\n')
    recipe = load_recipe("../project/clean.yaml").with_paths(input="own.jsonl", output="own-out")
    recipe.build().run(executor="inline")
    assert Path("own-out/part-000000.jsonl").read_text() == '{"text": "own words"}\n'


def test_names_and_addresses_in_a_recipe_are_not_taken_for_files(tmp_path):
    (tmp_path / "r.yaml").write_text(
        "steps:\n  - jsonl_reader: {file_paths: ['s3://bucket/in/', /data/in, '@list.txt']}\n"
        "  - language: {keep: [en], model: lid.176.ftz}\n"
    )
    reader, language = load_recipe(tmp_path / "r.yaml").steps
    assert reader.parameters["file_paths"] == ["s3://bucket/in/", "/data/in", f"@{tmp_path}/list.txt"]
    assert language.parameters["model"] == "lid.176.ftz"


def test_an_input_is_listed_once_per_run(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "one two three"}\n')
    listed = []
    scandir = os.scandir

    def counted(path="."):
        if str(path).rstrip("/") == "in":
            listed.append(path)
        return scandir(path)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "scandir", counted)
    arguments = ["run", "length", "--input", "in", "--output", "out", "--executor", "inline", "--quiet"]
    assert main(arguments) == 0
    assert len(listed) == 1
    (tmp_path / "in" / "b.jsonl").write_text('{"text": "one two three"}\n')
    assert main(arguments) == 0
    assert len(listed) == 2
    assert Report.load("out").read == 2
