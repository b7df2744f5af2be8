"""From documents to packed tokens: the recipe `pretrain`, and `--tokenizer` for any recipe."""

import itertools
import json
import struct

import numpy as np
import pytest
import tokenizers
from typer.testing import CliRunner

from tamis.cli import app
from tamis.errors import ParameterError
from tamis.recipes.load import load_recipe
from tamis.recipes.paths import named_sources
from tamis.report import Report

END = "<|endoftext|>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A tokenizer of the words a0 to a99, b0 to b99 and some others."""
    words = [f"{letter}{number}" for letter in "ab" for number in range(100)]
    found = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(["?", *words])}, "?"))
    found.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    found.add_special_tokens([END])
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    found.save(str(path))
    return str(path)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Documents of three words: 100 in a, in two files, and 40 in b."""
    folder = tmp_path_factory.mktemp("documents")
    for name, numbers in (("a/0", range(50)), ("a/1", range(50, 100)), ("b/0", range(40))):
        file = folder / f"{name}.jsonl"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(json.dumps({"text": f"{name[0]}{n} " * 3}) + "\n" for n in numbers))
    return folder


def run(*arguments):
    result = CliRunner().invoke(app, ["run", *map(str, arguments), "--workers", "2"])
    assert result.exit_code == 0, result.output
    return result


def sequences(output):
    """The sequences of a Megatron folder, each as a list of documents."""
    found = []
    for path in sorted(output.glob("*.bin")):
        data = path.with_suffix(".idx").read_bytes()
        _, _, num, num_documents = struct.unpack_from("<QBQQ", data, 9)
        sizes, ends = np.frombuffer(data, "<i4", num, 34), np.frombuffer(data, "<i8", num_documents, 34 + 12 * num)
        pieces = np.split(np.fromfile(path, "<u2"), np.cumsum(sizes)[:-1])
        found += [[piece.tolist() for piece in pieces[begin:end]] for begin, end in itertools.pairwise(ends)]
    return found


def test_pretrain_mixes_shuffles_tokenizes_and_packs(folders, tokenizer, tmp_path):
    run(
        "pretrain", "--input", f"web={folders}/a", "--input", f"code={folders}/b", "--output", tmp_path / "out",
        "--tokenizer", tokenizer, "--set", "mix.weights={web: 1, code: 1}", "--set", "mix.total=120",
        "--set", "token_writer.sequence_length=16",
    )  # fmt: skip
    report = Report.load(tmp_path / "out")
    assert (report.read, report.created, report.dropped, report.kept) == (140, 20, {"not in the mix": 40}, 120)
    counts = {key: value for step in report.operators for key, value in step["counts"].items()}
    assert (counts["rows of web"], counts["rows of code"]) == (60, 60)
    assert (counts["tokens"], counts["tokens of web"], counts["tokens of code"]) == (480, 240, 240)
    packed = sequences(tmp_path / "out")
    full = [sum(map(len, each)) == 16 for each in packed]
    assert len(full) - sum(full) <= len(list((tmp_path / "out").glob("*.bin")))  # the last one of a file
    documents = [document for each in packed for document in each]
    assert len(documents) == 120
    assert {document[-1] for document in documents} == {201}
    kinds = [document[0] > 100 for document in documents]  # whether it is from b
    changes = sum(a != b for a, b in itertools.pairwise(kinds))
    assert 30 < changes < 90  # about half of the neighbours differ in a random order


def test_any_recipe_writes_packed_tokens(folders, tokenizer, tmp_path):
    run(
        "length",
        "--input",
        folders / "a",
        "--output",
        tmp_path / "out",
        "--tokenizer",
        tokenizer,
        "--set",
        "word_count.min_words=3",
    )
    assert len([document for each in sequences(tmp_path / "out") for document in each]) == 100
    steps = json.loads((tmp_path / "out/.tamis/manifest.json").read_text())["recipe"]["steps"]
    assert [next(iter(step)) for step in steps] == [
        "jsonl_reader",
        "word_count",
        "shuffle",
        "token_ids",
        "token_writer",
    ]


def test_steps_of_a_recipe_are_kept_and_a_writer_is_replaced(tokenizer, tmp_path):
    (tmp_path / "recipe.yaml").write_text("steps:\n  - shuffle: {seed: 5}\n  - jsonl_writer: {path: out}\n")
    found = load_recipe(tmp_path / "recipe.yaml").with_tokens(tokenizer)
    assert [step.name for step in found.steps] == ["shuffle", "token_writer"]
    assert found.steps[0].parameters == {"seed": 5}
    assert found.steps[1].parameters == {"sequence_length": 4096, "tokenizer": tokenizer, "end_token": END}
    again = load_recipe("pretrain").with_tokens(tokenizer)
    assert [step.name for step in again.steps] == ["shuffle", "token_writer"]


def test_inputs_with_names_are_a_mix(tmp_path):
    assert named_sources(["web/", "code/"]) == {}
    with pytest.raises(ParameterError, match="others have none"):
        named_sources(["web=a/", "b/"])
    (tmp_path / "x=1").mkdir()
    assert named_sources([str(tmp_path / "x=1")]) == {}
