"""GPU and CPU give identical results. Without a GPU, only the error messages are tested."""

import random
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from tamis import Pipeline, Rows
from tamis.dedup import FuzzyDedup
from tamis.dedup.texts import text_buffers
from tamis.errors import ParameterError
from tamis.kernels import minhash, minhash_gpu
from tamis.kernels.minhash import FOLD_DIGITS, LOWERCASE, STRIP_ACCENTS, STRIP_PUNCTUATION, folding_tables, multipliers
from tamis.kernels.unicode_tables import KINDS, POINTS

ALL = LOWERCASE | FOLD_DIGITS | STRIP_PUNCTUATION | STRIP_ACCENTS
ALPHABETS = [
    "abcdefg hij klmno pqrst uvwxyz",
    "ab AB.,-09\n\t é\u0301ßÅ中文字กข한글🙂अा\u00a0\u3000\ufffd\U0001f600\U00020000",
    "0123456789.,  x",
    "的一是不了人我在有他这中大来上国",
]

needs_gpu = pytest.mark.skipif(not minhash_gpu.available(), reason="this machine has no GPU")


def some_texts(seed, count=400):
    rng = random.Random(seed)
    texts = ["", " ", "one", "one two three four", "!!", "1,000.5 and 3.14", "word " * 3000, "x" * 3990 + " y", None]
    for _ in range(count):
        size = int(10 ** rng.uniform(0, 4.2))
        alphabet = rng.choice(ALPHABETS)
        texts.append("".join(rng.choices(alphabet, k=size)))
    texts += [
        "".join(chr(rng.choice((rng.randrange(32, 0xD800), rng.randrange(0xE000, 0x110000)))) for _ in range(300))
    ]
    return texts


def signed(sign, texts, *, characters, n, options, bands=14, per_band=8):
    data, offsets = text_buffers(pa.array(texts, pa.string()), "text")
    rows = len(texts)
    counts, keys = np.zeros(rows, np.int64), np.zeros((rows, bands), np.uint64)
    shingles = np.zeros(int(offsets[-1]) + 2 * rows + 2, np.uint32)
    spans = np.zeros(rows + 1, np.int64)
    sign(
        data, offsets, characters, n, options, *folding_tables(options), POINTS, KINDS,
        multipliers(bands * per_band), bands, counts, keys, shingles, spans,
    )  # fmt: skip
    return counts, keys, shingles, spans


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("characters", [False, True], ids=["words", "characters"])
@pytest.mark.parametrize(
    "options", [0, ALL, LOWERCASE, STRIP_PUNCTUATION, FOLD_DIGITS | STRIP_PUNCTUATION, STRIP_ACCENTS]
)
@pytest.mark.parametrize(("n", "bands", "per_band"), [(5, 14, 8), (24, 20, 13), (1, 3, 1), (64, 26, 11)])
def test_both_give_the_same_bits(characters, options, n, bands, per_band):
    for texts in (some_texts(n), some_texts(options, 40)[3:], ["alone"]):
        shape = {"characters": characters, "n": n, "options": options, "bands": bands, "per_band": per_band}
        for mine, theirs in zip(
            signed(minhash_gpu.sign, texts, **shape), signed(minhash.sign, texts, **shape), strict=True
        ):
            assert np.array_equal(mine, theirs)


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("characters", [False, True], ids=["words", "characters"])
@pytest.mark.parametrize("n", [1, 5, 24])
def test_both_pack_the_same_bytes(characters, n):
    for texts in (
        some_texts(n),
        some_texts(7, 40)[3:],
        ["alone"],
        ["", None, " "],
        ["", "a b a b a b", "", "", "c"],
        [],
    ):
        data, offsets = text_buffers(pa.array(texts, pa.string()), "text")
        found = []
        for kernels in (minhash_gpu, minhash):
            counts, keys = np.zeros(len(texts), np.int64), np.zeros((len(texts), 14), np.uint64)
            packed, spans = kernels.sign_packed(
                data,
                offsets,
                characters,
                n,
                ALL,
                *folding_tables(ALL),
                POINTS,
                KINDS,
                multipliers(112),
                14,
                counts,
                keys,
            )
            found.append((counts, keys, packed, spans))
        for mine, theirs in zip(*found, strict=True):
            assert np.array_equal(mine, theirs)


@needs_gpu
@pytest.mark.gpu
def test_a_text_with_a_very_long_word_is_processed_on_the_cpu():
    texts = ["a b c d e f", "x" * 50_000 + " y z", "中" * 9000]
    shape = {"characters": False, "n": 5, "options": ALL}
    for mine, theirs in zip(
        signed(minhash_gpu.sign, texts, **shape), signed(minhash.sign, texts, **shape), strict=True
    ):
        assert np.array_equal(mine, theirs)


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("verify", ["jaccard", "signature"])
@pytest.mark.parametrize("executor", ["inline", "local"])
def test_both_devices_keep_the_same_rows(verify, executor):
    rng = random.Random(1)
    base = [" ".join("".join(rng.choices("abcdefgh", k=5)) for _ in range(60)) for _ in range(100)]
    rows = [{"id": str(n), "text": rng.choice(base) + " and" * rng.randrange(4)} for n in range(600)]
    kept = [
        Pipeline(Rows(rows, rows_per_partition=200), FuzzyDedup(verify=verify)).collect(
            device=device, executor=executor, workers=2, memory="8GB"
        )["id"]
        for device in ("gpu", "cpu")
    ]
    assert kept[0].to_pylist() == kept[1].to_pylist()
    assert len(kept[0]) < 200


@pytest.mark.parametrize("function", ["_sign", "_pack"])
def test_a_batch_that_does_not_fit_on_the_gpu_is_processed_on_the_cpu(monkeypatch, function):
    class Full(MemoryError):
        """As CuPy raises it."""

    def raises(*arguments):
        raise Full

    freed = []
    pool = SimpleNamespace(free_all_blocks=lambda: freed.append(True))
    memory = SimpleNamespace(OutOfMemoryError=Full)
    cupy = SimpleNamespace(cuda=SimpleNamespace(memory=memory), get_default_memory_pool=lambda: pool)
    monkeypatch.setattr(minhash_gpu, "_cupy", lambda: cupy)
    monkeypatch.setattr(minhash_gpu, "_sign", lambda *arguments: (None, None))
    monkeypatch.setattr(minhash_gpu, function, raises)
    data, offsets = text_buffers(pa.array(["one two three four five six"]), "text")
    found = []
    for kernels in (minhash_gpu, minhash):
        counts, keys = np.zeros(1, np.int64), np.zeros((1, 14), np.uint64)
        options = (*folding_tables(0), POINTS, KINDS, multipliers(112), 14, counts, keys)
        found.append((*kernels.sign_packed(data, offsets, False, 5, 0, *options), counts, keys))
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(*found, strict=True))
    assert freed == [True]


@pytest.mark.skipif(minhash_gpu.available(), reason="there is a GPU here")
def test_without_a_gpu_it_is_rejected_and_auto_uses_the_cpu():
    rows = [{"text": "a tale of twenty words " * 4}] * 2
    with pytest.raises(ParameterError, match="this machine has no GPU"):
        Pipeline(Rows(rows), FuzzyDedup()).run(executor="inline", device="gpu")
    with pytest.raises(ParameterError, match="this machine has no GPU"):
        FuzzyDedup(device="gpu").check()
    assert Pipeline(Rows(rows), FuzzyDedup()).run(executor="inline", device="auto").kept == 1


def test_the_device_is_not_part_of_the_identity():
    assert FuzzyDedup(device="cpu").identity() == FuzzyDedup().identity()


def test_character_ngrams_see_a_space_wherever_the_buffer_ends():
    for length in range(4060, 4110):
        counts = signed(minhash.sign, ["x" * length + " cd"], characters=True, n=3, options=LOWERCASE)[0]
        assert counts.tolist() == [length + 3 - 2]
