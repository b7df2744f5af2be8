"""A real language model, Gemma 3 270M: perplexity tells fluent from shuffled text, and texts are those of transformers."""

import random

import pytest

from scripts.fetch_language_model import fetch
from tamis import Pipeline, Rows
from tamis.text import Generate, NeuralPerplexity

FLUENT = (
    "It was raining when the train left the station, and the people on the platform waved until it was out of sight. "
    "Nobody said a word for the first hour."
)
PROMPTS = ["The capital of France is", "One, two, three, four,"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def gemma():
    return fetch()


def test_shuffled_words_are_dropped_by_their_perplexity(gemma):
    words = FLUENT.split()
    random.Random(1).shuffle(words)
    rows = Rows(
        [{"id": "fluent", "text": FLUENT}, {"id": "shuffled", "text": " ".join(words)}, {"id": "none", "text": None}]
    )
    report = Pipeline(rows, NeuralPerplexity(str(gemma), max_perplexity=200)).run(workers=1)
    assert report.kept == 1
    assert report.dropped == {"neural_perplexity > 200": 1, "neural_perplexity is missing": 1}


def test_greedy_texts_of_gemma_are_those_of_transformers(gemma):
    import torch
    import transformers

    step = Generate(str(gemma), prompt="{text}", max_new_tokens=8)
    table = Pipeline(Rows([{"text": prompt} for prompt in PROMPTS]), step).collect(workers=1)
    network = transformers.AutoModelForCausalLM.from_pretrained(gemma, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(gemma)
    for prompt, found in zip(PROMPTS, table["generated"].to_pylist(), strict=True):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        made = network.generate(ids, do_sample=False, max_new_tokens=8)[0, ids.shape[1] :]
        assert found
        assert found.strip() == tokenizer.decode(made, skip_special_tokens=True).strip()
