"""Networks on texts: memory that runs out, values that are not numbers, tokenizers that do not fit."""

import numpy as np
import pyarrow as pa
import pytest

from tamis import Pipeline, Rows
from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import BudgetError
from tamis.memory.budget import usable_cpus
from tamis.models import text_model
from tamis.models.batching import TokenBudget
from tamis.models.devices import choose
from tamis.models.files import ModelError, find
from tamis.models.network import TorchNetwork
from tamis.models.text_model import Loaded, TextModel
from tamis.models.tokens import load_tokenizer
from tamis.operators import Map, Resources, operator
from tests.models.make_models import write_classifier, write_tokenizer

TEXTS = pa.array(["the cat", "on " * 60, "", "one two", "mat " * 30, "sat"] * 5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_classifier(tmp_path_factory.mktemp("models") / "classifier")


@pytest.fixture(scope="module")
def expected(folder):
    return TextModel.open(find(folder), Context()).predict(TEXTS)


class SmallMemory:
    """A real network that runs out of memory above a number of tokens, as torch does."""

    def __init__(self, inner: TorchNetwork, most: int, after: int = 10**9) -> None:
        self.inner, self.most, self.after = inner, most, after
        self.vocabulary = inner.vocabulary
        self.failed = self.done = 0

    def start(self, ids, lengths):
        if ids.size > self.most and self.failed < self.after:
            self.failed += 1
            raise RuntimeError(
                f"[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: {ids.size}"
            )
        self.done += 1
        return self.inner.start(ids, lengths)

    def close(self):
        self.inner.close()


def limited(folder, most, *, after=10**9, device="cpu"):
    model = TextModel.open(find(folder), Context())
    network = SmallMemory(model._loaded.network, most, after)
    budget = TokenBudget(1024)
    loaded = Loaded(network, load_tokenizer(find(folder)), 64, {"tokens": budget})
    return TextModel(loaded, Context(device)), network, budget


def test_batches_are_halved_until_they_fit_and_the_size_is_remembered(folder, expected):
    model, network, budget = limited(folder, most=200)
    np.testing.assert_allclose(model.predict(TEXTS), expected, atol=1e-5)
    assert network.failed > 0
    failed = network.failed
    np.testing.assert_allclose(model.predict(TEXTS), expected, atol=1e-5)
    assert network.failed - failed < failed, "the second time, batches are smaller from the start"
    assert budget.most(64) <= 256


def test_a_text_that_does_not_fit_alone_raises_for_the_engine_to_handle(folder):
    model, _, _ = limited(folder, most=10)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        model.predict(TEXTS)


def test_a_gpu_that_another_process_fills_is_waited_for(folder, expected, monkeypatch):
    waited = []
    monkeypatch.setattr(text_model.time, "sleep", waited.append)
    model, _, _ = limited(folder, most=0, after=8, device="cuda:0")
    np.testing.assert_allclose(model.predict(TEXTS), expected, atol=1e-5)
    assert waited
    model, _, _ = limited(folder, most=0, device="cuda:0")
    with pytest.raises(BudgetError, match=r"not enough memory for a single text[\s\S]*another process"):
        model.predict(TEXTS)
    assert sum(waited) > 10


def test_other_errors_are_not_mistaken_for_a_lack_of_memory(folder, monkeypatch):
    model = TextModel.open(find(folder), Context())
    monkeypatch.setattr(
        model._loaded.network, "module", lambda *_: (_ for _ in ()).throw(RuntimeError("shapes differ"))
    )
    with pytest.raises(RuntimeError, match="shapes differ"):
        model.predict(TEXTS)


def test_no_texts_give_no_rows(folder, expected):
    found = TextModel.open(find(folder), Context()).predict(pa.array([], pa.string()))
    assert found.shape == (0, expected.shape[1])


def test_steps_share_the_network_but_not_the_settings(folder):
    context = Context()
    one = TextModel.open(find(folder), context, max_tokens=8)
    other = TextModel.open(find(folder), context, long_texts="windows")
    assert one._loaded is other._loaded
    assert (one.max_tokens, other.max_tokens) == (8, 64)


def test_a_tokenizer_with_more_tokens_than_the_network_is_refused(tmp_path):
    folder = write_classifier(tmp_path / "model")
    write_tokenizer(folder, extra=50)
    with pytest.raises(ModelError, match=r"the tokenizer of .* has \d+ tokens, but the network only"):
        TextModel.open(find(folder), Context())


@pytest.mark.gpu
@pytest.mark.skipif(choose("auto") == "cpu", reason="no GPU")
def test_a_gpu_gives_the_same_labels(folder, expected):
    found = TextModel.open(find(folder), Context("cuda:0")).predict(TEXTS)
    np.testing.assert_allclose(found, expected, atol=0.05, rtol=0.05)


@operator(reads="text", writes="threads")
class Threads(Map):
    """Add the number of threads that torch uses in the worker that has opened a model."""

    model: str

    @property
    def resources(self) -> Resources:
        return Resources(memory="300MB")

    def open(self, context: Context) -> "Threads":
        TextModel.open(find(self.model), context)
        return self

    def apply(self, batch: Batch) -> dict[str, np.ndarray]:
        import torch

        return {"threads": np.full(len(batch), torch.get_num_threads())}


def test_a_worker_uses_the_cores_that_memory_leaves_without_one(folder):
    rows = Rows([{"text": "a"}, {"text": "b"}])
    found = Pipeline(rows, Threads(model=str(folder))).collect(workers=1)
    assert found["threads"].to_pylist() == [usable_cpus()] * 2


def test_what_fits_is_remembered_for_the_next_run(folder, expected):
    model, network, budget = limited(folder, most=200)
    model.predict(TEXTS)
    learned = model.take_limits()
    assert set(learned.values()) == set(budget.known.values())
    assert model.take_limits() == {}, "only what is new"
    loaded = Loaded(network, load_tokenizer(find(folder)), 64)
    again = TextModel(loaded, Context(limits={**learned, "another model, cpu, 8 tokens": 1}))
    assert loaded.budgets["tokens"].known == budget.known
    failed = network.failed
    np.testing.assert_allclose(again.predict(TEXTS), expected, atol=1e-5)
    assert network.failed == failed
