"""What every registered operator promises, checked for each of them without a line of its own.

A newcomer's operator is tested here as soon as it is registered. Operators with required parameters give an example in
`EXAMPLES`; sources and sinks have suites of their own.
"""

import doctest
import importlib
import inspect
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import yaml

from tamis.batch import Batch, as_array
from tamis.operators import ALL, Expand, Filter, Gather, Map, Operator, Sink, Source
from tamis.registry import build_operator, registered

TEXTS = [
    "A short text.",
    "",
    None,
    "   \n\t ",
    "x",
    "Bonjour tout le monde, voici une phrase. Et encore une autre phrase.",
    "你好世界。这是一个句子。",
    "שלום עולם، مرحبا بالعالم",
    "e\u0301\u0301 \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 ﬀ",
    "line one\r\nline two\rline three\u2028line four\x00\x07",
    "a" * 5000,
    "spam " * 800,
    '#!/usr/bin/python\n# comment\ndef f(x):\n    """Doc."""\n    return x  # more\n',
    "<html><body><p>Hello { lorem ipsum } javascript</p></body></html>",
]

DATA = Path(__file__).parent / "text" / "data"
EXAMPLES = {
    "sample": {"rows": 3},
    "substring": {"substring": "A"},
    "histogram": {"path": str(DATA / "histogram.txt")},
    "token_count": {"tokenizer": str(DATA / "tokenizer.json")},
    "tokenizer_fertility": {"tokenizer": str(DATA / "tokenizer.json")},
    "general_comment_to_code": {"language": "shell"},
    "per_extension": {"language": "python", "extension": "py", "metadata_file": str(DATA / "code_meta.csv")},
    "fast_text_score": {"model": "lid.176.ftz", "label": "__label__en"},
    "fast_text_quality": {"model": "lid.176.ftz", "label": "__label__en"},
    "fast_text_label": {"model": "lid.176.ftz"},
    "linear_classifier": {"model": str(DATA / "tiny.model")},
    "perplexity": {"model": str(DATA / "language.arpa")},
    "decontaminate": {"benchmarks": str(DATA / "benchmark.jsonl")},
}

OURS = {name: cls for name, cls in registered().items() if cls.__module__.startswith("tamis.")}
STEPS = {name: cls for name, cls in OURS.items() if not issubclass(cls, (Source, Sink))}


def make(name: str) -> Operator:
    return build_operator(name, EXAMPLES.get(name, {}))


def batch_for(step: Operator, texts: list[str | None] = TEXTS) -> Batch:
    columns: dict[str, pa.Array] = {}
    for real in step.real_names().values():
        if real == "url":
            columns[real] = pa.array([f"https://example.org/{number}" for number in range(len(texts))])
        elif real != ALL:
            columns[real] = pa.array(texts, pa.string())
    return Batch(pa.table(columns or {"text": pa.array(texts, pa.string())}))


def results(step: Operator, batch: Batch) -> dict[str, list]:
    """Whatever the operator computes for a batch, as plain Python."""
    view = batch if ALL in step.real_names() else batch.view(step.real_names())
    if isinstance(step, Filter):
        found = step.score(view)
    elif isinstance(step, Map):
        found = step.apply(view)
    elif isinstance(step, Gather):
        found = step.observe(view)
    else:
        assert isinstance(step, Expand)
        table, parents = step.expand(view)
        found = {**{name: table.column(name) for name in table.column_names}, "parents": parents}
    return {name: as_array(values).to_pylist() for name, values in found.items()}


@pytest.fixture(params=sorted(STEPS))
def step(request):
    made = make(request.param)
    made.setup()
    yield made
    made.close()


def per_row(step):
    return isinstance(step, (Filter, Map, Gather))


def test_every_row_gets_a_value(step):
    batch = batch_for(step)
    if per_row(step):
        assert {len(values) for values in results(step, batch).values()} <= {len(batch)}


def test_an_empty_batch_is_fine(step):
    for values in results(step, batch_for(step, [])).values():
        assert values == []


def test_one_row_alone_gives_what_it_gives_among_others(step):
    if not per_row(step):
        pytest.skip("rows of this step are not one to one")  # pragma: no cover
    batch = batch_for(step)
    together = results(step, batch)
    for row in range(len(batch)):
        alone = results(step, Batch(batch.table.slice(row, 1), batch.origin.select(slice(row, row + 1))))
        for name, values in together.items():
            assert repr(alone[name]) == repr([values[row]]), (name, TEXTS[row])


def test_the_same_twice(step):
    assert repr(results(step, batch_for(step))) == repr(results(step, batch_for(step)))


def test_rules_speak_of_scores(step):
    if isinstance(step, Filter):
        scores = results(step, batch_for(step))
        assert set(scores) == set(step.score_columns()), "declared scores"
        for rule in step.rules():
            verdicts = rule.verdicts(as_array(scores[rule.score]))
            assert all(len(mask) == len(TEXTS) and mask.dtype == np.bool_ for _, mask in verdicts)


def test_thresholds_do_not_change_what_is_measured(step):
    """Stored scores are used again with other thresholds, so these must not matter to `score`."""
    if not isinstance(step, Filter):
        return
    before = results(step, batch_for(step))
    for name, value in vars(step).items():
        if step.is_threshold(name) and isinstance(value, (int, float)) and not isinstance(value, bool):
            other = step.changed(**{name: type(value)(value * 2 + 1 if name.startswith("max_") else value / 2)})
            other.setup()
            assert repr(results(other, batch_for(other))) == repr(before), name
            other.close()


def test_it_can_be_pickled_and_written_as_a_recipe(step):
    assert pickle.loads(pickle.dumps(step)) == step
    text = yaml.safe_dump({step.name: step.parameters()})
    assert build_operator(step.name, yaml.safe_load(text)[step.name]) == step


@pytest.mark.parametrize("name", sorted(OURS))
def test_it_says_what_it_does(name):
    doc = inspect.getdoc(OURS[name]) or ""
    assert doc
    assert not doc.startswith(f"{OURS[name].__name__}("), "the docstring is the one dataclass makes"


MODULES = sorted(
    {cls.__module__ for cls in OURS.values()} | {"tamis.parameters", "tamis.batch", "tamis.operators", "tamis.pipeline"}
)


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_run(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed, _ = doctest.testmod(importlib.import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0
