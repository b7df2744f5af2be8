"""Commands to start with: init, new-operator, schema and doctor."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

from tamis.cli import main
from tamis.commands import doctor
from tamis.recipes.document import read_document
from tamis.recipes.load import load_recipe, shipped_names, shipped_text
from tamis.recipes.look import look_at, suggested_memory
from tamis.recipes.schema import COMMENT, own_operators, recipe_schema, schema_text, type_schema

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
PROSE = "The committee met in the old town hall to discuss what the river had done to the fields that spring. " * 6
FRENCH = "Le conseil se réunit à la mairie pour parler de ce que la rivière avait fait aux champs ce printemps. " * 6


def write_rows(file, rows):
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


# ---------------------------------------------------------------------------------------------------------------- schema


@pytest.fixture(scope="module")
def validator():
    schema = recipe_schema(own_operators())
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def recipe_of(text):
    return read_document(text.encode(), "r.yaml").value


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_recipes_fit_the_schema_and_name_it(validator, name):
    text = shipped_text(name)
    assert text.startswith(COMMENT)
    validator.validate(recipe_of(text))


def test_recipes_in_the_documentation_fit_the_schema(validator):
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    blocks = [block for page in pages for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.S | re.M)]
    recipes = [block for block in blocks if re.search(r"^steps:$", block, re.M)]
    assert len(recipes) >= 2
    for recipe in recipes:
        validator.validate(recipe_of(recipe))


def test_the_recipe_of_the_kubernetes_job_fits_the_schema(validator):
    config, _ = yaml.safe_load_all((ROOT / "deploy" / "kubernetes_job.yaml").read_text())
    validator.validate(recipe_of(config["data"]["recipe.yaml"]))


@pytest.mark.parametrize(
    "recipe",
    [
        "steps: []",
        "steps: [wordcount]",
        "steps: [{word_count: {min_wrods: 3}}]",
        "steps: [{word_count: {min_words: many}}]",
        "steps: [{gopher_quality: {dialect: gopher}}]",
        "steps: [{word_count: {}, language: {}}]",
        "steps: [{word_count: {}, optional: maybe}]",
        "steps: [{optional: true}]",
        "steps: [tokenize]",
        "steps: [word_count]\nworkers: many",
        "steps: [word_count]\nmemroy: 1GB",
        "memory: 1GB",
    ],
)
def test_the_schema_finds(validator, recipe):
    assert list(validator.iter_errors(recipe_of(recipe)))


def test_the_shipped_schema_is_current_and_completes_descriptions():
    text = (ROOT / "tamis" / "recipes" / "recipe.schema.json").read_text()
    assert text == schema_text(own_operators()), "run scripts/make_docs.py"
    described = json.loads(text)["definitions"]["word_count"]
    assert described["description"].startswith("Keep")
    assert described["properties"]["min_words"]["default"] == 50


def test_types_become_schemas():
    assert type_schema(int | None) == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert type_schema(str | Path) == {"type": "string"}
    assert type_schema(tuple[str, ...]) == {"type": "array", "items": {"type": "string"}}
    assert type_schema(dict[str, float]) == {"type": "object", "additionalProperties": {"type": "number"}}


def test_the_command_prints_or_writes_the_schema(tmp_path, capsys):
    assert main(["schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert main(["schema", "--output", str(tmp_path / "s.json")]) == 0
    assert json.loads((tmp_path / "s.json").read_text()) == printed


# ------------------------------------------------------------------------------------------------------------------ init


def run_init(folder, capsys, *arguments):
    code = main(["init", *arguments, "--recipe", str(folder / "recipe.yaml"), "--output", str(folder / "out")])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out, err


def test_a_recipe_for_texts_runs(tmp_path, capsys):
    rows = [{"id": n, "content": f"{PROSE}{n}"} for n in range(20)] + [
        {"id": 99, "content": f"{FRENCH}{n}"} for n in range(20)
    ]
    write_rows(tmp_path / "in" / "a.jsonl", rows)
    out, err = run_init(tmp_path, capsys, str(tmp_path / "in"))
    assert "columns: id (int64), content (string)" in err
    assert "languages of 40 rows: en 50 %, fr 50 %" in err
    recipe = load_recipe(tmp_path / "recipe.yaml")
    names = [step.name for step in recipe.steps]
    assert names == ["jsonl_reader", "gopher_quality", "gopher_repetition", "language", "fuzzy_dedup", "parquet_writer"]
    assert recipe.steps[0].parameters["columns"] == {"text": "content"}
    assert recipe.steps[1].parameters == {"min_stop_words": None}
    assert recipe.steps[3].parameters["keep"] == ["en", "fr"]
    jsonschema.Draft7Validator(json.loads((tmp_path / "recipe.schema.json").read_text())).validate(
        recipe_of((tmp_path / "recipe.yaml").read_text())
    )
    assert main([*out.split()[1:], "--executor", "inline", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["state"], report["read"], report["failed"]) == ("finished", 40, 0)


@pytest.mark.parametrize("other", [5, None, {"length": 3}])
def test_a_column_named_text_without_texts_is_renamed(tmp_path, capsys, other):
    rows = [{"text": other, "other_text": n, "content": f"{PROSE}{n}"} for n in range(20)]
    write_rows(tmp_path / "in.jsonl", rows)
    out, _ = run_init(tmp_path, capsys, str(tmp_path / "in.jsonl"))
    assert load_recipe(tmp_path / "recipe.yaml").steps[0].parameters["columns"] == {
        "text": "content",
        "other_text_2": "text",
    }
    assert main([*out.split()[1:], "--executor", "inline", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["state"], report["read"], report["failed"]) == ("finished", 20, 0)


def test_languages_are_those_of_all_files(tmp_path, capsys):
    write_rows(tmp_path / "in" / "a.jsonl", [{"text": f"{FRENCH}{n}"} for n in range(200)])
    write_rows(tmp_path / "in" / "b.jsonl", [{"text": f"{PROSE}{n}", "url": None} for n in range(200)])
    _, err = run_init(tmp_path, capsys, str(tmp_path / "in"))
    assert "languages of 200 rows: fr 50 %, en 50 %" in err


def test_a_recipe_for_short_texts_keeps_them(tmp_path, capsys):
    write_rows(
        tmp_path / "in.jsonl", [{"text": "a short question"}, {"text": "a short question"}, {"text": "an answer"}]
    )
    out, _ = run_init(tmp_path, capsys, str(tmp_path / "in.jsonl"))
    assert main([*out.split()[1:], "--executor", "inline", "--json", "--set", "language.min_confidence=0"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [step["name"] for step in report["operators"]][1:4] == ["word_count", "language", "exact_dedup"]


def test_a_recipe_for_images_runs(tmp_path, capsys):
    (tmp_path / "photos").mkdir()
    Image.effect_mandelbrot((300, 300), (-2, -1.5, 1, 1.5), 50).save(tmp_path / "photos" / "a.png")
    out, err = run_init(tmp_path, capsys, str(tmp_path / "photos"))
    assert "1 image file" in err
    assert main([*out.split()[1:], "--executor", "inline", "--quiet"]) == 0
    assert load_recipe(tmp_path / "recipe.yaml").steps[-1].name == "folder_writer"


@pytest.mark.parametrize("kind", ["manifest", "parquet"])
def test_a_recipe_for_a_table_with_images_runs(tmp_path, capsys, kind):
    (tmp_path / "photos").mkdir()
    picture = tmp_path / "photos" / "a.png"
    Image.effect_mandelbrot((300, 300), (-2, -1.5, 1, 1.5), 50).save(picture)
    if kind == "manifest":
        write_rows(tmp_path / "photos" / "metadata.jsonl", [{"file_name": "a.png", "caption": "a fractal"}])
    else:
        images = [{"bytes": picture.read_bytes(), "path": "a.png"}, {"bytes": b"no image", "path": "b.png"}]
        pq.write_table(pa.table({"image": images, "label": [1, 2]}), tmp_path / "photos" / "a.parquet")
    out, err = run_init(tmp_path, capsys, str(tmp_path / "photos"))
    assert ("images: column `file_name`, with paths" if kind == "manifest" else "images: column `image`\n") in err
    assert main([*out.split()[1:], "--executor", "inline", "--quiet"]) == 0
    (row,) = pq.read_table(tmp_path / "out").to_pylist()
    assert row["image"]["bytes"] == picture.read_bytes()


def test_paths_in_the_recipe_are_relative_to_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows(Path("in/a.jsonl"), [{"text": PROSE}])
    assert main(["init", "in/", "--recipe", "recipes/mine.yaml"]) == 0
    assert "{file_paths: ../in/}" in Path("recipes/mine.yaml").read_text()
    assert main(["check", "recipes/mine.yaml"]) == 0
    assert main(["init", "in/", "--recipe", "recipes/mine.yaml"]) == 2
    assert "recipes/mine.yaml exists" in capsys.readouterr().err


def test_data_without_texts_is_refused(tmp_path, capsys):
    write_rows(tmp_path / "in.jsonl", [{"id": 1}])
    assert main(["init", str(tmp_path / "in.jsonl"), "--recipe", str(tmp_path / "r.yaml")]) == 2
    assert "has no column with texts; its columns are id" in capsys.readouterr().err


def test_init_says_that_no_row_can_be_read_and_how_to_see_why(tmp_path, capsys):
    (tmp_path / "in.jsonl").write_text("{broken\n")
    assert main(["init", str(tmp_path / "in.jsonl"), "--recipe", str(tmp_path / "r.yaml")]) == 2
    shown = capsys.readouterr().err
    assert "could be read" in shown
    assert f"tamis head {tmp_path}/in.jsonl" in shown
    assert not (tmp_path / "r.yaml").exists()


def test_init_says_that_there_are_no_rows(tmp_path, capsys):
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "in.parquet")
    assert main(["init", str(tmp_path / "in.parquet"), "--recipe", str(tmp_path / "r.yaml")]) == 2
    shown = capsys.readouterr().err
    assert f"there are no rows in {tmp_path}/in.parquet" in shown
    assert "tamis head" not in shown


def test_the_look_and_the_budget():
    look = look_at(str(ROOT / "tamis" / "recipes" / "speeches.jsonl.gz"))
    assert (look.format, look.num_files, look.text_column) == ("jsonl", 1, "text")
    assert next(iter(look.languages)) == "en"
    assert suggested_memory(10**6) in ("2GB", "1.5GB", "1GB", "0.5GB")


# ---------------------------------------------------------------------------------------------------------- new-operator


def test_new_operators_and_their_tests_pass(tmp_path, capsys):
    for kind in ("filter", "map", "expand"):
        assert main(["new-operator", f"my_{kind}", "--kind", kind, "--folder", str(tmp_path)]) == 0
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, "-c", os.devnull, tmp_path],
        env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
    bin_folder = Path(sys.executable).parent
    subprocess.run(
        [bin_folder / "ruff", "check", "--isolated", "--select", "E,F,B", "--line-length", "120", "."],
        cwd=tmp_path,
        check=True,
    )


def test_a_new_operator_runs_from_a_recipe(tmp_path):
    """With the entry point that its docstring shows."""
    assert main(["new-operator", "ShoutShare", "--folder", str(tmp_path)]) == 0
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tamis.operators]\nshout_share = shout_share\n")
    write_rows(tmp_path / "in.jsonl", [{"text": "LOUD"}, {"text": "quiet"}])
    recipe = "steps: [{jsonl_reader: {file_paths: in.jsonl}}, shout_share, {jsonl_writer: {path: out}}]"
    (tmp_path / "r.yaml").write_text(recipe)
    done = subprocess.run(
        [sys.executable, "-m", "tamis", "run", "r.yaml", "--executor", "inline", "--json"],
        env={**ENVIRONMENT, "PYTHONPATH": f"{ROOT}:{tmp_path}"}, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kept"] == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("word_count", "there is an operator `word_count` already"),
        ("9lives", "is not a name"),
        ("a/b", "is not a name"),
    ],
)
def test_a_name_that_cannot_be_used(tmp_path, capsys, name, says):
    assert main(["new-operator", name, "--folder", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_existing_file_is_not_replaced(tmp_path, capsys):
    (tmp_path / "test_mine.py").write_text("")
    assert main(["new-operator", "mine", "--folder", str(tmp_path)]) == 2
    assert [file.name for file in tmp_path.iterdir()] == ["test_mine.py"]


# ---------------------------------------------------------------------------------------------------------------- doctor


def test_doctor_says_what_is_there(tmp_path, capsys):
    assert main(["doctor", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    names = {finding["name"]: finding["value"] for finding in found["machine"]}
    assert {"python", "cores", "memory", "container limit", "GPUs", "compiled kernels", "chromium"} <= set(names)
    extras = {extra["name"]: extra for extra in found["extras"]}
    assert extras["image"]["ready"]
    assert "pillow" in extras["image"]["installed"]
    assert main(["doctor", str(tmp_path)]) == 0
    assert "no problems found" in capsys.readouterr().out


def test_doctor_finds_what_is_missing(monkeypatch):
    requirements = ["numpy>=1.26", "nosuchpackage>=1", 'pillow>=999; extra == "image"', 'nosuch; extra == "video"']
    monkeypatch.setattr(doctor, "_requirements", lambda: requirements)
    image, video = doctor.extras()
    assert image.old[0].endswith("is older than 999")
    assert (video.missing, video.ready) == (("nosuch",), False)
    found = doctor.examine()
    assert any("nosuchpackage is not installed" in problem for problem in found.problems)
    assert "pip install 'tamis[image,video]'" in str(found)


def test_doctor_exits_with_4_if_a_run_could_not_write(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["doctor", str(tmp_path / "file")]) == 4
    assert "is not a folder" in capsys.readouterr().out


def test_doctor_looks_at_the_disk_of_a_folder_that_a_run_would_make(tmp_path, capsys):
    assert main(["doctor", str(tmp_path / "new" / "clean")]) == 0
    assert f"free in {tmp_path}" in capsys.readouterr().out


def test_doctor_knows_where_kernels_are_stored(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    assert doctor.kernel_cache() == tmp_path / "kernels"
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    assert doctor.kernel_cache().name in ("__pycache__", "numba")
