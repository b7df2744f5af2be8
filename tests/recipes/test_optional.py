"""Optional packages: they are checked before workers start, and optional steps of a recipe are left out without them."""

import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tamis import JsonlReader, Pipeline, Rows
from tamis.audio import AudioSilence
from tamis.cli import app
from tamis.errors import MissingExtra, RecipeError, require
from tamis.models.files import RUNTIMES
from tamis.operators import Map, operator
from tamis.recipes.load import load_recipe, parse_recipe
from tamis.text.quality import WordCount
from tests.audio.sounds import sound, tone

EXTRAS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@operator(writes="found")
class NeedsNothingThatExists(Map):
    """Needs packages that nobody has."""

    def packages(self):
        return {"json": "text", "no_such_package": "audio", "no_such_package.either": "models"}


def test_a_missing_package_is_reported_before_the_run_starts():
    events = []
    with pytest.raises(MissingExtra) as raised:
        Pipeline(Rows([{"text": "a"}]), NeedsNothingThatExists()).run(workers=1, on_event=events.append)
    assert raised.value.message == (
        "step 2, `needs_nothing_that_exists`: it needs the packages `no_such_package` and `no_such_package.either`, "
        "which are not installed"
    )
    assert raised.value.hint == "pip install 'tamis[audio,models]'"
    assert not events
    with pytest.raises(MissingExtra, match="which are not installed"):
        Pipeline(Rows([{"text": "a"}]), NeedsNothingThatExists()).check()


def test_a_step_on_sound_says_what_is_missing(monkeypatch, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"audio": {"bytes": null, "path": "a.wav"}}\n')
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtra, match="it needs the package `av`, which is not installed"):
        Pipeline(JsonlReader(str(tmp_path / "a.jsonl")), AudioSilence()).check()


def test_extras_that_messages_name_exist():
    for needed in RUNTIMES.values():
        for module, extra in needed.items():
            assert any(each.startswith(module) for each in EXTRAS[extra])


RECIPE = b"""
steps:
  - word_count: {min_words: 1}
  - needs_nothing_that_exists: {}
    optional: true
  - word_count: {column: found}
    optional: true
  - word_count: {min_words: 2, max_words: 5}
    optional: true
"""


@pytest.fixture
def known(monkeypatch):
    """The operator above under its name in recipes."""
    from tamis import registry

    original = registry.registered()
    monkeypatch.setattr(
        registry, "registered", lambda: {**original, "needs_nothing_that_exists": NeedsNothingThatExists}
    )


def test_optional_steps_are_left_out_with_what_depends_on_them(known):
    recipe = parse_recipe(RECIPE, "r.yaml")
    assert parse_recipe(recipe.to_yaml().encode(), "again.yaml").steps == recipe.steps
    found, notes = recipe.available()
    assert [step.parameters for step in found.steps] == [{"min_words": 1}, {"min_words": 2, "max_words": 5}]
    assert notes == (
        "step 2 of the recipe, `needs_nothing_that_exists`, is left out: it needs the packages `no_such_package` and "
        "`no_such_package.either`, which are not installed; pip install 'tamis[audio,models]'",
        "step 3 of the recipe, `word_count`, is left out: it reads `found`, which `needs_nothing_that_exists` would have "
        "written",
    )
    built = recipe.build()
    report = Pipeline(Rows([{"text": "a b"}]), built).run(workers=1)
    assert (report.kept, report.notes[:2]) == (1, list(notes))


def test_a_step_whose_parameters_are_set_is_required(known):
    recipe = parse_recipe(RECIPE, "r.yaml").with_overrides(["4.max_words=3"])
    assert [step.optional for step in recipe.steps] == [False, True, True, False]
    assert recipe.build().steps[-1] == WordCount(min_words=2, max_words=3)


def test_optional_is_true_or_false():
    with pytest.raises(RecipeError, match="`optional` must be true or false, got 'perhaps'"):
        parse_recipe(b"steps:\n  - word_count: {}\n    optional: perhaps\n", "r.yaml")


def test_the_recipe_speech_runs_without_networks_and_says_so(monkeypatch, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.wav").write_bytes(sound(tone(2)))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    arguments = ["check", "speech", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert "transcribe" not in done.stdout
    for step in ("speech_segments", "speech_quality", "transcribe", "hallucination", "speech_rate", "word_error_rate"):
        assert f"`{step}`, is left out: " in done.stderr
    assert "needs the package `onnxruntime`, which is not installed; pip install 'tamis[onnx]'" in done.stderr
    monkeypatch.setitem(sys.modules, "av", None)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code != 0
    assert "it needs the package `av`, which is not installed" in done.stderr


def test_a_missing_model_is_a_reason_too(monkeypatch):
    monkeypatch.setattr("tamis.audio.listening.find_audio_model", _absent)
    _, notes = load_recipe("speech").available()
    assert [note.partition(",")[0] for note in notes] == ["step 10 of the recipe"]
    assert "dnsmos is not here; put it there" in notes[0]


def _absent(model, kind):
    from tamis.models.files import ModelError

    raise ModelError(f"{model} is not here", hint="put it there")


def test_a_package_that_does_not_fit_into_memory_is_not_called_missing(tmp_path, monkeypatch):
    """The loader reports a lack of memory as an ImportError, which a retry with more memory would not have."""
    text = "libwide.so.1: failed to map segment from shared object"
    (tmp_path / "too_large_now.py").write_text(f"raise ImportError({text!r})")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MemoryError, match="failed to map segment"):
        require("too_large_now", extra="image", purpose="writing previews")
