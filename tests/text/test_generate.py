"""Perplexity and generation with causal language models, compared with transformers' own."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tamis import Pipeline, Rows
from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import ParameterError
from tamis.models.causal import TextGenerator, _Noise
from tamis.models.devices import choose
from tamis.models.files import ModelError, find
from tamis.text import Generate, NeuralPerplexity
from tests.models.make_models import write_language_model, write_masked_language_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LONG = "by the river one two three ran to the mat and the cat " * 6
TEXTS = ["the cat sat on the mat", "the old mill", "a", LONG, "good bad"]
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {},
    "gemma2": {"head_dim": 8, "final_logit_softcapping": 2.0, "tie_word_embeddings": False},  # its logits are capped
    "gemma3_text": {
        "head_dim": 8,
        "sliding_window": 8,
        "tie_word_embeddings": False,
    },  # as Gemma 3 270M, with a short window
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {name: write_language_model(root / name, name, **more) for name, more in ARCHITECTURES.items()}


@pytest.fixture(scope="module")
def theirs(folders):
    """The models as transformers loads them."""
    return {
        name: transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for name, folder in folders.items()
    }


def tokens(folder: Path, text: str) -> list[int]:
    from tokenizers import Tokenizer

    return list(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids)


def naive_loss(model: Any, ids: list[int]) -> tuple[float, int]:
    """The sum of the losses of all tokens but the first, one after the other."""
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0].double()
    total = -sum(float(torch.log_softmax(logits[place], -1)[ids[place + 1]]) for place in range(len(ids) - 1))
    return total, len(ids) - 1


def column(*texts: str | None) -> Batch:
    return Batch(pa.table({"text": pa.array(texts, pa.string())}))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_perplexity_is_that_of_transformers(folders, theirs, name):
    runner = NeuralPerplexity(folders[name], max_perplexity=1).open(Context())
    found = runner.score(column(*TEXTS))["neural_perplexity"].to_pylist()
    losses = [naive_loss(theirs[name], tokens(folders[name], text)) for text in TEXTS]
    assert found == pytest.approx([math.exp(total / count) for total, count in losses], rel=1e-4)


def test_windows_are_scored_on_their_own_and_weighted_by_their_tokens(folders, theirs):
    ids = tokens(folders["llama"], TEXTS[3])
    inside = ids[1:-1]
    count = -(-len(inside) // 14)
    bounds = [number * len(inside) // count for number in range(count + 1)]
    windows = [[ids[0], *inside[a:b], ids[-1]] for a, b in itertools.pairwise(bounds)]
    losses = [naive_loss(theirs["llama"], window) for window in windows]
    expected = math.exp(sum(total for total, _ in losses) / sum(size for _, size in losses))
    runner = NeuralPerplexity(folders["llama"], max_tokens=16, max_perplexity=1).open(Context())
    assert len(windows) > 3
    assert runner.score(column(TEXTS[3]))["neural_perplexity"].to_pylist() == pytest.approx([expected], rel=1e-4)


def test_perplexity_filters(folders):
    rows = Rows([{"text": text} for text in [*TEXTS, None]])
    step = NeuralPerplexity(folders["llama"], score_only=True)
    values = Pipeline(rows, step).collect(executor="inline").column("neural_perplexity").to_pylist()
    assert values[-1] is None
    bound = sorted(values[:-1])[2]
    report = Pipeline(rows, step.changed(score_only=False, max_perplexity=bound)).run(executor="inline")
    assert report.kept == 3
    assert report.dropped["neural_perplexity is missing"] == 1


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_texts_are_those_of_transformers(folders, theirs, name):
    prompts = [f"{text} and" for text in TEXTS]
    expected = []
    for prompt in prompts:
        ids = tokens(folders[name], prompt)[:-1]  # without the end token
        made = theirs[name].generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=12,
            do_sample=False,
        )
        expected.append(made[0, len(ids) :].tolist())
    generator = TextGenerator(find(folders[name]), Context(), max_new_tokens=12, temperature=0, seed=0)
    decoded = [generator._loaded.tokenizer.text(generator._until_end(ids)) for ids in expected]
    assert generator.texts(prompts) == decoded
    assert len(set(decoded)) > 1
    assert [generator.texts([prompt])[0] for prompt in prompts] == decoded, "a prompt does not depend on the others"


def test_samples_depend_on_the_prompt_and_the_seed_only(folders):
    def sampled(seed: int, prompts: list[str]) -> dict[str, str]:
        generator = TextGenerator(find(folders["llama"]), Context(), max_new_tokens=8, temperature=1.0, seed=seed)
        return dict(zip(prompts, generator.texts(prompts), strict=True))

    first = sampled(1, TEXTS)
    assert sampled(1, TEXTS[::-1]) == first
    assert sampled(1, TEXTS[2:3])[TEXTS[2]] == first[TEXTS[2]]
    assert sampled(2, TEXTS) != first


def test_noise_gives_the_probabilities_of_a_softmax():
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0]).repeat(4000, 1)
    noise = _Noise(torch, [f"prompt {number}" for number in range(4000)], 2.0, 0, width=3)
    chosen = noise(torch.zeros(4000, 5, dtype=torch.long), logits).argmax(dim=1)
    share = torch.bincount(chosen, minlength=4).numpy() / 4000
    assert share == pytest.approx(torch.softmax(logits[0] / 2.0, 0).numpy(), abs=0.03)  # 4 standard deviations


def test_batches_are_halved_when_memory_runs_out(folders):
    generator = TextGenerator(find(folders["llama"]), Context(), max_new_tokens=4, temperature=0, seed=0)
    expected = generator.texts(TEXTS)
    module, sizes = generator._loaded.module, []

    class Small:
        def generate(self, ids: Any, **settings: Any) -> Any:
            sizes.append(len(ids))
            if len(ids) > 2:
                raise MemoryError("no memory")
            return module.generate(ids, **settings)

    generator._loaded.module = Small()
    assert generator.texts(TEXTS) == expected
    assert sizes == [5, 3, 2, 1, 2]
    sizes.clear()
    assert generator.texts(TEXTS) == expected
    assert max(sizes) < 5, "what worked is remembered"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_whose_logits_are_not_numbers_fails_alone(folders, tmp_path, temperature):
    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(folders["llama"], broken)
    weights = load_file(broken / "model.safetensors")
    vocabulary = json.loads((broken / "tokenizer.json").read_text())["model"]["vocab"]
    weights["model.embed_tokens.weight"][vocabulary["river"]] = math.nan
    weights["lm_head.weight"][vocabulary["river"]] = 0  # so that other rows do not generate it
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    rows = Rows([{"text": text} for text in ("the cat", "old mill by the river", "one")])
    step = Generate(broken, prompt="{text}", max_new_tokens=3, temperature=temperature)
    report = Pipeline(rows, step).run(executor="inline", on_error="isolate", max_failed=1)
    assert (report.kept, report.failed) == (2, 1)
    assert "not a number for 1 of 1 prompts" in report.errors[0]["error"]


def test_generate_in_a_pipeline(folders, tmp_path):
    rows = [{"text": "the cat"}, {"text": None}, {"text": "x " * 300}, {"text": "the cat"}]
    step = Generate(folders["llama"], prompt="{text} {{and}}", max_new_tokens=6, output="more")
    report = Pipeline(Rows(rows), step).run(executor="inline", on_error="isolate")
    assert (report.kept, report.failed) == (3, 1)
    assert "PromptTooLong: the prompt has 304 tokens; with 6 new tokens" in report.errors[0]["error"]
    table = Pipeline(Rows(rows), step).collect(executor="inline", on_error="isolate", max_failed=1)
    whole = table.column("more").to_pylist()
    assert whole[1] is None
    assert whole[0] == whole[2] != ""
    stop = whole[0][3]
    stopped = Pipeline(Rows(rows[:1]), step.changed(stop=[stop])).collect(executor="inline").column("more").to_pylist()
    assert stopped == [whole[0][: whole[0].index(stop)]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: Generate(folder, prompt="no column"), "names no column"),
        (
            lambda folder: Generate(folder, prompt="{text}", max_new_tokens=0),
            "`max_new_tokens` of `generate` must be at least 1",
        ),
        (lambda folder: Generate(folder, prompt="{text}", temperature=-1), "must be at least 0"),
        (lambda folder: Generate(folder, prompt="{text}", stop=[""]), "empty string"),
        (lambda folder: NeuralPerplexity(folder), "has neither `min_perplexity` nor `max_perplexity`"),
    ],
)
def test_mistakes_are_found_before_the_run(folders, make, message):
    with pytest.raises(ParameterError, match=message):
        Pipeline(Rows([{"text": "a"}]), make(folders["llama"])).run(executor="inline")


def test_a_model_that_is_not_there_or_not_causal_is_an_error(folders, tmp_path):
    with pytest.raises(ModelError, match="there is no model"):
        Pipeline(Rows([{"text": "a"}]), Generate("nowhere", prompt="{text}")).run(executor="inline")
    half = tmp_path / "half"
    half.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (half / name).write_bytes((folders["llama"] / name).read_bytes())
    with pytest.raises(ModelError, match=r"there is no model\.safetensors"):
        Pipeline(Rows([{"text": "a"}]), NeuralPerplexity(half, max_perplexity=9)).run(executor="inline")
    data = (folders["llama"] / "model.safetensors").read_bytes()
    (half / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError, match="damaged"):
        Pipeline(Rows([{"text": "a"}]), NeuralPerplexity(half, max_perplexity=9)).run(executor="inline")


def test_a_masked_language_model_is_refused(tmp_path):
    folder = write_masked_language_model(tmp_path)
    for step in (NeuralPerplexity(folder, score_only=True), Generate(folder, prompt="{text}")):
        with pytest.raises(ModelError, match="type bert, which sees the words that it should predict"):
            step.open(Context())


def test_losses_are_the_same_in_small_parts(folders, monkeypatch):
    step = NeuralPerplexity(folders["gpt2"], max_perplexity=1)
    whole = step.open(Context()).score(column(*TEXTS))["neural_perplexity"].to_numpy()
    monkeypatch.setattr("tamis.models.causal.LOGITS_BYTES", 2000)  # a few tokens at a time
    parts = step.open(Context()).score(column(*TEXTS))["neural_perplexity"].to_numpy()
    assert np.allclose(whole, parts, rtol=1e-5)


on_gpu = pytest.mark.skipif(choose("auto") == "cpu", reason="no GPU")


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_perplexity_on_a_gpu_is_almost_that_on_a_cpu(folders, name):
    step = NeuralPerplexity(folders[name], max_perplexity=1)
    cpu, gpu = (
        step.open(Context(device)).score(column(*TEXTS))["neural_perplexity"].to_numpy() for device in ("cpu", "cuda:0")
    )
    assert np.abs(np.log(gpu / cpu)).max() < 0.1  # the weights are large and random, which makes rounding worse


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_made_on_a_gpu_do_not_depend_on_the_order(folders, temperature):
    def made(prompts: list[str]) -> dict[str, str]:
        generator = TextGenerator(
            find(folders["llama"]), Context("cuda:0"), max_new_tokens=8, temperature=temperature, seed=0
        )
        return dict(zip(prompts, generator.texts(prompts), strict=True))

    first = made(TEXTS)
    assert all(first.values())
    assert made(TEXTS[::-1]) == first
