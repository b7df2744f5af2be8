"""Mixtures: exact proportions, distinct addresses, the same rows however the work is divided, and recipes."""

import json
from collections import Counter
from fractions import Fraction

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import Batch, Context, JsonlReader, JsonlWriter, Pipeline, Rows
from tamis.errors import ParameterError, SourceError
from tamis.events import CallsFinished, PartitionCommitted
from tamis.mixing import Balance, Mix
from tamis.recipes.load import load_recipe, recipe_of
from tamis.sampling import Shuffle
from tamis.text.tokens import load_tokenizer


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """web has 90 rows in three files, code 20 in one, with another column."""
    folder = tmp_path_factory.mktemp("data")
    for name, rows in (("web/0", 30), ("web/1", 30), ("web/2", 30), ("code/0", 20)):
        file = folder / f"{name}.jsonl"
        file.parent.mkdir(exist_ok=True)
        more = {"license": "mit"} if name.startswith("code") else {}
        lines = [json.dumps({"id": f"{name}-{row}", "text": "word " * (row % 7), **more}) for row in range(rows)]
        file.write_text("\n".join(lines) + "\n")
    return folder


def readers(data, **options):
    return {name: JsonlReader(data / name, **(options or {"files_per_partition": 1})) for name in ("web", "code")}


def mixed(output):
    return [json.loads(line) for file in sorted(output.glob("part-*")) for line in file.read_text().splitlines()]


def counts(output):
    return Counter(row["source"] for row in mixed(output))


def test_without_proportions_all_rows_are_read_with_the_name_of_their_source(data, tmp_path):
    report = Pipeline(Mix(readers(data)), JsonlWriter(tmp_path)).run(executor="inline")
    assert counts(tmp_path) == {"web": 90, "code": 20}
    assert (report.read, report.kept, report.created) == (110, 110, 0)
    assert {row.get("license") for row in mixed(tmp_path) if row["source"] == "web"} == {None}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"weights": {"web": 3, "code": 1}, "total": 100}, {"web": 75, "code": 25}),
        ({"weights": {"web": 0.3, "code": 0.6}}, {"web": 10, "code": 20}),  # no row is repeated
        ({"weights": {"web": 1, "code": 0}}, {"web": 90}),
        ({"epochs": {"web": 0.1, "code": 3.5}}, {"web": 9, "code": 70}),
        ({"epochs": {"web": 1, "code": 2}}, {"web": 90, "code": 40}),
    ],
)
def test_proportions_are_exact(data, tmp_path, given, expected):
    report = Pipeline(Mix(readers(data), **given), JsonlWriter(tmp_path)).run(executor="inline")
    assert counts(tmp_path) == expected
    assert report.balances
    (by_source,) = [op["counts"] for op in report.operators if op["counts"]]
    assert by_source == {f"rows of {name}": rows for name, rows in expected.items()}
    often = Counter(row["id"] for row in mixed(tmp_path) if row["source"] == "code")
    assert max(often.values(), default=0) - min(often.values(), default=0) <= 1


class Here:
    """`Work` whose calls run in this process."""

    def map(self, name, function, items):
        return [json.loads(json.dumps(function(*item))) for item in items]


def decided(balance, groups, part=7):
    """How often rows of each group are kept, of rows in partitions of seven."""
    rows = Batch.from_rows([{"group": group} for group in groups])
    parts = [rows.select(slice(start, start + part)) for start in range(0, len(groups), part)]
    runner = balance.open(Context())
    observed = [pa.table(dict(runner.observe(each))) for each in parts]
    found = Counter()

    def decide(partition, drop, reason, payload=None):
        copies = (~drop).astype(int) if payload is None else payload.to_numpy()
        assert (drop == (copies == 0)).all()
        for group, number in zip(parts[partition]["group"].to_pylist(), copies.tolist(), strict=True):
            found[group] += number

    balance.resolve(observed, decide, Here())
    return found


@settings(max_examples=60)
@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 30), min_size=1),
    st.data(),
)
def test_rows_by_weight_are_those_of_the_definition(sizes, data):
    weights = {name: data.draw(st.integers(1, 5)) for name in sizes}
    total = data.draw(st.one_of(st.none(), st.integers(0, 200)))
    groups = [name for name, size in sizes.items() for _ in range(size)]
    found = decided(Balance(by="group", weights=weights, total=total), groups)
    whole = sum(weights.values())
    if total is None:
        total = int(min(Fraction(sizes[name] * whole, weights[name]) for name in sizes))
    assert sum(found.values()) == total
    for name in sizes:
        assert abs(found[name] - Fraction(total * weights[name], whole)) < 1


def test_sizes_in_bytes_are_the_most_that_fit():
    rows = [{"group": "ab"[n % 2], "text": "x" * (n % 11)} for n in range(200)]
    balance = Balance(by="group", amounts={"a": 300, "b": 1700}, measure="bytes")
    table = Pipeline(Rows(rows, rows_per_partition=30), balance).collect(executor="inline").to_pylist()
    sizes = {name: sum(len(row["text"]) for row in table if row["group"] == name) for name in "ab"}
    assert 300 - 10 <= sizes["a"] <= 300
    assert 1700 - 10 <= sizes["b"] <= 1700


def test_tokens_of_each_source(data, tmp_path):
    tokenizer = tmp_path / "tokenizer.json"
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.train_from_iterator(["word " * 9], tokenizers.trainers.BpeTrainer(show_progress=False))
    made.save(str(tokenizer))
    mix = Mix(readers(data), tokens={"web": 120, "code": 100}, tokenizer=str(tokenizer))
    table = Pipeline(mix).collect(executor="inline")
    count = load_tokenizer(tokenizer)
    for name, most in (("web", 120), ("code", 100)):
        texts = table.filter(pc.equal(table["source"], name))
        tokens = int(count(texts["text"].combine_chunks()).sum())
        assert most - 40 < tokens <= most


def test_a_group_without_rows_is_an_error_and_not_another_mixture():
    rows = Rows([{"language": "en"}] * 80)
    for proportions in ({"weights": {"en": 1, "de": 1}, "total": 40}, {"amounts": {"en": 40, "de": 1}}):
        with pytest.raises(ParameterError, match="no row has 'de' in column `language`, and its proportion is 1"):
            Pipeline(rows, Balance(by="language", **proportions)).run(executor="inline")
    for proportions in ({"weights": {"en": 1, "de": 0}, "total": 40}, {"amounts": {"en": 40}}):
        assert Pipeline(rows, Balance(by="language", **proportions)).run(executor="inline").kept == 40
    assert Pipeline(Rows([]), Balance(by="language", weights={"en": 1})).run(executor="inline").kept == 0


def test_temperature_and_numbers_of_tokens_in_a_column():
    rows = [{"language": "en", "tokens": 2}] * 900 + [{"language": "is", "tokens": 8}] * 10
    balance = Balance(by="language", temperature=2, total=950, measure="tokens", text_column="tokens")
    kept = Counter(Pipeline(Rows(rows), balance).collect(executor="inline")["language"].to_pylist())
    share = 1800**0.5 / (1800**0.5 + 80**0.5)
    assert kept == {"en": int(950 * share) // 2, "is": int(950 * (1 - share)) // 8}


def test_the_rows_do_not_depend_on_the_division_of_the_work(data, tmp_path):
    proportions = {"web": 0.4, "code": 2.5}
    Pipeline(Mix(readers(data), epochs=proportions), JsonlWriter(tmp_path / "a")).run(executor="inline")
    blocks = Mix(readers(data, blocksize="1kB"), epochs=proportions)
    Pipeline(blocks, JsonlWriter(tmp_path / "b")).run(workers=2)
    assert mixed(tmp_path / "a") == mixed(tmp_path / "b")
    Pipeline(Mix(readers(data), epochs=proportions, seed=1), JsonlWriter(tmp_path / "c")).run(executor="inline")
    assert mixed(tmp_path / "a") != mixed(tmp_path / "c")


def test_repeated_rows_have_addresses_of_their_own(data):
    seen = Counter()

    def note(batch: Batch):
        seen.update(batch.origin.addresses())
        return batch

    report = Pipeline(Mix(readers(data), epochs={"web": 0.5, "code": 3}), note).run(executor="inline")
    assert report.kept == 45 + 60
    assert set(seen.values()) == {1}
    assert sum(address.endswith(("/0", "/1", "/2")) for address in seen) == 60
    assert Pipeline(Mix({"a": Rows([{"n": 1}]), "b": Rows([{"n": 2}])}), Shuffle()).run(executor="inline").kept == 2


class Killed(BaseException):
    """Ends a run at an event."""


def test_a_run_killed_after_any_commit_gives_the_same_mixture(data, tmp_path):
    def job(output):
        mix = Mix(readers(data), weights={"web": 1, "code": 1}, total=90)
        return Pipeline(mix, Shuffle(seed=2), JsonlWriter(output))

    expected = job(tmp_path / "whole").run(executor="inline")
    kills = 0
    for number in range(1, 40, 3):
        events = iter(range(1, 1000))

        def hear(event, events=events, number=number):
            if isinstance(event, (PartitionCommitted, CallsFinished)) and next(events) == number:
                raise Killed

        try:
            job(tmp_path / str(number)).run(executor="inline", on_event=hear)
        except Killed:
            kills += 1
        report = job(tmp_path / str(number)).run(executor="inline")
        assert mixed(tmp_path / str(number)) == mixed(tmp_path / "whole")
        assert (report.read, report.created, report.kept) == (expected.read, expected.created, expected.kept)
        assert report.dropped == expected.dropped
    assert kills >= 5
    assert counts(tmp_path / "whole") == {"web": 45, "code": 45}


def test_a_recipe_names_sources_by_path_or_step_relative_to_itself(data, tmp_path):
    recipe = data / "mix.yaml"
    recipe.write_text(
        "steps:\n"
        "  - mix:\n"
        "      sources:\n"
        "        web: web/\n"
        "        code: {jsonl_reader: {file_paths: code/, fields: [id, text]}}\n"
        "      weights: {web: 1, code: 1}\n"
        "  - jsonl_writer: {path: OUT}\n"
    )
    report = load_recipe(recipe).with_paths(output=tmp_path / "out").build().run(executor="inline")
    assert counts(tmp_path / "out") == {"web": 20, "code": 20}
    assert report.balances
    written = recipe_of(Pipeline(Mix(readers(data), epochs={"web": 1, "code": 2}), JsonlWriter(tmp_path / "again")))
    (tmp_path / "again.yaml").write_text(written.to_yaml())
    load_recipe(tmp_path / "again.yaml").build().run(executor="inline")
    assert counts(tmp_path / "again") == {"web": 90, "code": 40}


def test_a_bad_line_of_a_source_fails_once(data, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"text": "a"}\nnot json\n{"text": "b"}\n')
    mix = Mix({"bad": JsonlReader(folder), **readers(data)}, epochs={"bad": 2, "web": 1, "code": 1})
    report = Pipeline(mix, JsonlWriter(tmp_path / "out")).run(executor="inline", on_error="isolate")
    assert (report.failed, counts(tmp_path / "out")["bad"]) == (1, 4)
    assert report.balances


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "has no sources"),
        ({"sources": {"a": {"word_count": {}}}}, "reads no rows"),
        ({"sources": {"a": Rows([{"n": 1}])}, "weights": {"b": 1}}, "no source `b`"),
        ({"sources": {"a": Rows([{"n": 1}])}, "weights": {"a": 1}, "epochs": {"a": 1}}, "needs one of"),
        ({"sources": {"a": Rows([{"n": 1}])}, "weights": {"a": -1}}, "must not be negative"),
        ({"sources": {"a": Rows([{"n": 1}])}, "epochs": {"a": 1}, "total": 3}, "`total` belongs to"),
        ({"sources": {"a": Rows([{"n": 1}])}, "weights": {"a": 1}, "total": float("inf")}, "or infinite"),
        ({"sources": {"a": Rows([{"n": 1}])}, "epochs": {"a": 1e9}}, "repeated 1,000,000,000 times"),
        ({"sources": {"a": Rows([{"source": "x"}])}}, "has a column `source`"),
        ({"sources": {"a": Rows([{"n": 1}])}, "total": 3}, "`total` of `mix` needs proportions"),
        ({"sources": {"a": Rows([{"n": 1}])}, "measure": "tokens"}, "`measure` of `mix` needs proportions"),
        ({"sources": {"a": Rows([{"n": 1}]), "b": Rows([])}, "weights": {"a": 1, "b": 1}}, "no row has 'b' in column"),
        (
            {
                "sources": {"a": Rows([{"text": "x"}]), "b": Rows([{"n": 1}])},
                "weights": {"a": 1, "b": 1},
                "measure": "bytes",
            },
            "the rows with 'b' in column `source` have no bytes",
        ),
    ],
)
def test_mistakes_are_found_before_anything_is_read(options, message):
    with pytest.raises(ParameterError, match=message):
        Pipeline(Mix(**({"sources": {}} | options))).run(executor="inline")


def test_sources_that_do_not_go_together(data):
    with pytest.raises(SourceError, match="columns of different types"):
        Pipeline(Mix({"a": Rows([{"n": 1}]), "b": Rows([{"n": "x"}])})).run(executor="inline")
    with pytest.raises(ParameterError, match="both read"):
        Pipeline(Mix({"a": JsonlReader(data / "web"), "b": JsonlReader(data / "web")})).run(executor="inline")


def test_a_value_that_the_type_of_the_mixture_cannot_hold_fails_its_row(tmp_path):
    mix = Mix({"whole": Rows([{"n": 1}, {"n": 2**60 + 1}, {"n": 3}]), "real": Rows([{"n": 0.5}])})
    report = Pipeline(mix, JsonlWriter(tmp_path / "out")).run(executor="inline", on_error="isolate", max_failed="100%")
    assert report.balances
    assert (report.read, report.kept, report.failed) == (4, 3, 1)
    assert report.errors[0]["example"] == "whole/rows:1"
    assert [row["n"] for row in mixed(tmp_path / "out")] == [1, 3, 0.5]


def test_numbers_of_tokens_that_cannot_be_true_fail_their_rows():
    rows = [{"l": "a", "t": 5}, {"l": "a", "t": 2**62}, {"l": "a", "t": 2**62}, {"l": "b", "t": -3}]
    step = Balance(by="l", temperature=1.0, total=5, measure="tokens", text_column="t")
    report = Pipeline(Rows(rows), step).run(executor="inline", on_error="isolate", max_failed="100%")
    assert (report.kept, report.dropped, report.failed) == (1, {"not in the mix": 1}, 2)
