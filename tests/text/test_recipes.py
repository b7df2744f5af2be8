"""The shipped text recipes on real documents in 23 languages, on planted junk, and on real source files."""

from __future__ import annotations

import importlib.util
import random
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

from tamis import Pipeline, Rows
from tamis.recipes.load import load_recipe, shipped
from tamis.registry import build_operator
from tamis.report import Report

ROOT = Path(__file__).parent.parent.parent
ENGLISH = ("gopher", "fineweb", "all_dressed", "nemo_english")
LIBRARY = Path(sysconfig.get_path("stdlib"))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """`scripts/try_recipes.py`; several tests look at the same runs, so each is done once."""
    spec = importlib.util.spec_from_file_location("try_recipes", ROOT / "scripts" / "try_recipes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    run, reports = module.run, {}

    def run_once(recipe: str, rows: list[dict[str, str]]) -> Report:
        key = recipe, *(row["text"] for row in rows)
        if key not in reports:
            reports[key] = run(recipe, rows)
        return reports[key]

    module.run = run_once
    return module


@pytest.fixture(scope="module")
def documents(script: ModuleType) -> dict[str, list[dict[str, str]]]:
    return script.grouped(script.read_rows(script.DATA / "declaration.jsonl.gz"), "language")


@pytest.fixture(scope="module")
def junk(script: ModuleType) -> dict[str, list[dict[str, str]]]:
    return script.grouped(script.read_rows(script.DATA / "junk.jsonl"), "kind")


@pytest.mark.parametrize("recipe", ENGLISH)
def test_recipes_for_english_keep_english_and_nothing_else(script, documents, recipe):
    kept = {language: script.run(recipe, rows).kept for language, rows in documents.items()}
    assert kept.pop("en") >= 4
    assert not any(kept.values()), kept


def test_other_languages_keep_their_prose(script, documents):
    kept = {language: script.run("nemo_non_english", rows).kept for language, rows in documents.items()}
    # The Japanese translation begins and ends most articles with the same words.
    assert kept.pop("ja") == 3
    assert set(kept.values()) == {5}, kept
    assert kept.keys() >= {
        "fr",
        "de",
        "es",
        "ru",
        "ar",
        "hi",
        "bn",
        "th",
        "zh",
        "ko",
        "vi",
        "tr",
        "he",
        "am",
        "bo",
        "ml",
    }


@pytest.mark.parametrize(("language", "letters", "words"), [("ja", 0, 3), ("th", 0, 5)])
def test_letters_taken_for_words_repeat_far_too_often(documents, language, letters, words):
    rows = Rows([{"text": row["text"]} for row in documents[language]])
    kept = {}
    for how in ("auto", "dictionary"):
        step = build_operator("repeating_duplicate_n_grams", {"n": 5, "max_duplicate_ngrams": 0.15, "words": how})
        kept[how] = Pipeline(rows, step).run(executor="inline").kept
    assert kept == {"auto": letters, "dictionary": words}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("spam, English", "top_3_grams > 0.18"),
        ("spam, Russian", "top_2_grams > 0.2"),
        ("spam, Chinese", "top_2_grams > 0.2"),
        ("spam, Japanese", "top_3_grams > 0.18"),
        ("spam, Thai", "top_3_grams > 0.18"),
        ("spam, Arabic", "top_3_grams > 0.18"),
        ("spam, Hindi", "top_2_grams > 0.2"),
        ("menu, English", "unpunctuated_lines > 0.85"),
        ("menu, German", "unpunctuated_lines > 0.85"),
        ("menu, Chinese", "unpunctuated_lines > 0.85"),
        ("symbols", "symbols_to_words > 0.1"),
        ("numbers", "numbers > 0.15"),
        ("teasers", "ellipsis_lines > 0.3"),
        ("addresses", "url_share > 0.2"),
        ("filler", "boilerplate_paragraphs > 0.4"),
    ],
)
def test_junk_goes_in_every_language_and_it_is_said_why(script, junk, kind, reason):
    report = script.run("nemo_non_english", junk[kind])
    assert report.dropped == {reason: 1}


@pytest.mark.parametrize("recipe", ENGLISH)
def test_recipes_for_english_drop_all_junk(script, junk, recipe):
    for kind, rows in junk.items():
        assert script.run(recipe, rows).kept == 0, kind


def test_c4_drops_what_is_not_made_of_sentences(script, documents, junk):
    assert script.run("c4", documents["en"]).kept == script.run("c4", documents["fr"]).kept == 5
    kept = {kind for kind, rows in junk.items() if script.run("c4", rows).kept}
    assert kept == {"spam, English", "spam, Russian", "spam, Arabic", "spam, Hindi"}  # it does not look for repetition


def test_the_page_of_recipes_is_current(script, documents, junk):
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert script.table(documents) in page, "run scripts/try_recipes.py"
    assert script.table(junk) in page, "run scripts/try_recipes.py"


# ---------------------------------------------------------------------------------------------------------- source code


def run_code(texts: list[str], recipe: str = "code", tokenizer: Path | None = None) -> Report:
    steps = []
    for step in load_recipe(recipe).steps:
        named = {"tokenizer": str(tokenizer)} if step.name == "tokenizer_fertility" else {}
        steps.append(build_operator(step.name, {**step.parameters, **named}))
    return Pipeline(Rows([{"text": text} for text in texts]), *steps).run(executor="inline")


@pytest.fixture(scope="module")
def sources() -> list[str]:
    names = ("textwrap", "heapq", "bisect", "string", "shlex", "csv", "fractions", "statistics", "argparse", "difflib")
    return [(LIBRARY / f"{name}.py").read_text(encoding="utf-8") for name in names]


def test_code_keeps_the_standard_library(sources):
    assert run_code(sources).kept == len(sources)


def test_code_drops_scraps_tables_and_prose(sources):
    scrap = "# once\nx = 1\n"
    numbers = "VALUES = [\n" + "".join(f"    {n},\n" for n in range(500)) + "]\n"
    report = run_code([scrap, numbers, "# all of it\n" * 40])
    assert report.kept == 0
    assert report.dropped == {"lines_of_code < 5": 1, "python_comments < 0.001": 1, "python_comments > 0.85": 1}


def test_fertility_drops_files_with_too_many_tokens(sources, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(sources[2:], trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    letters = random.Random(0).choices("0123456789abcdef", k=6000)
    blob = "# a list of keys\n" + "".join(f'K{n} = "{"".join(letters[n * 60 : n * 60 + 60])}"\n' for n in range(100))
    report = run_code([*sources[:2], blob], "code_fertility", tmp_path / "tokenizer.json")
    assert report.kept == 2  # neither was trained on
    assert report.dropped == {"chars_per_token < 2": 1}


# ------------------------------------------------------------------------------------------------- what a recipe consists of


def test_the_english_cascade_is_that_of_nemo_curator():
    """Names and thresholds of its heuristic_filter_english_pipeline.yaml, in order."""
    expected = [
        ("non_alpha_numeric", 0.25), ("symbols_to_words", 0.1), ("numbers", 0.15), ("urls", 0.2), ("white_space", 0.25),
        ("parentheses", 0.1), ("boiler_plate", 0.4), ("repeated_lines", 0.7), ("repeated_paragraphs", 0.7),
        ("repeated_lines_by_chars", 0.8), ("repeated_paragraphs_by_chars", 0.8), ("word_count", 50), ("punctuation", 0.85),
        ("words_without_alphabets", 0.8), ("common_english_words", 2), ("mean_word_length", 3), ("longest_word", 1000),
        ("ellipsis", 0.3), ("repeating_top_n_grams", 0.2), ("repeating_top_n_grams", 0.18), ("repeating_top_n_grams", 0.16),
        *[("repeating_duplicate_n_grams", bound) for bound in (0.15, 0.14, 0.13, 0.12, 0.11, 0.1)], ("bullet_points", 0.9),
    ]  # fmt: skip
    steps = load_recipe("nemo_english").steps
    found = [(s.name, next(v for k, v in s.parameters.items() if k.startswith(("min_", "max_")))) for s in steps]
    assert found == expected


def test_every_recipe_is_looked_at_here(script):
    rest = {"length", "code", "code_fertility"}
    rest |= {
        "images",
        "image_text",
        "image_dedup",
        "speech",
        "audio_dedup",
        "video_split",
        "video_dedup",
    }  # their own folders
    rest |= {"fineweb_from_warc", "wikipedia", "arxiv"}  # tests/web
    rest |= {"stack"}  # tests/sources/test_git.py
    rest |= {"pretrain"}  # tests/recipes
    rest |= {"demo"}  # tests/test_docs.py, in docs/start.md
    asks = {name for name, recipe in shipped().items() if any(step.name.startswith("ask") for step in recipe.steps)}
    assert {*script.RECIPES, *rest, *asks} == set(shipped())  # test_ask.py looks at those that ask a language model
