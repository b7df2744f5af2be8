"""GPU and CPU give identical results. Without a GPU, only the error messages are tested."""

import random
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from tamis import Pipeline, Rows
from tamis.dedup import FuzzyDedup
from tamis.dedup.texts import byte_buffers, text_buffers
from tamis.errors import ParameterError
from tamis.kernels import digests, minhash, minhash_gpu
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


def on_cpu(data, offsets, *, characters, n, options, bands, per_band, packed):
    rows = len(offsets) - 1
    counts, keys = np.zeros(rows, np.int64), np.zeros((rows, bands), np.uint64)
    arguments = (
        data, offsets, characters, n, options, *folding_tables(options), POINTS, KINDS, multipliers(bands * per_band),
        bands, counts, keys,
    )  # fmt: skip
    if packed:
        compared, spans = minhash.sign_packed(*arguments)
    else:
        compared, spans = minhash.ngram_buffers(offsets, characters)
        minhash.sign(*arguments, compared, spans)
        compared = compared[: spans[-1]]
    content = np.empty((rows, 2), np.uint64)
    digests.digest_spans(data, offsets[:-1], offsets[1:], 0, content)
    return content[:, 0], counts, keys, compared, spans


def on_gpu(data, offsets, *, characters, n, options, bands, per_band, packed):
    return minhash_gpu.sign(
        data,
        offsets,
        by_characters=characters,
        n=n,
        options=options,
        factors=multipliers(bands * per_band),
        num_bands=bands,
        packed=packed,
    )


def assert_same(data, offsets, **shape):
    found = on_gpu(data, offsets, **shape)
    mine = (found.content, found.counts, found.keys, found.compared, found.spans)
    for name, a, b in zip(
        ("content", "counts", "keys", "n-grams", "spans"), mine, on_cpu(data, offsets, **shape), strict=True
    ):
        assert np.array_equal(a, b), name


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("packed", [False, True], ids=["whole", "packed"])
@pytest.mark.parametrize("characters", [False, True], ids=["words", "characters"])
@pytest.mark.parametrize(
    "options", [0, ALL, LOWERCASE, STRIP_PUNCTUATION, FOLD_DIGITS | STRIP_PUNCTUATION, STRIP_ACCENTS]
)
@pytest.mark.parametrize(("n", "bands", "per_band"), [(5, 14, 8), (24, 20, 13), (1, 3, 1), (64, 26, 11)])
def test_both_give_the_same_bits(packed, characters, options, n, bands, per_band):
    shape = {"characters": characters, "n": n, "options": options, "bands": bands, "per_band": per_band}
    for texts in (some_texts(n), some_texts(options, 40)[3:], ["alone"], ["", None, " "], ["", "a b a b a b", "", "c"]):
        assert_same(*text_buffers(pa.array(texts, pa.string()), "text"), packed=packed, **shape)


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("characters", [False, True], ids=["words", "characters"])
@pytest.mark.parametrize("options", [0, ALL])
def test_bytes_that_are_not_text_give_the_same_bits(characters, options):
    """A byte that begins a character of several bytes may be followed by white space."""
    rng = random.Random(3)
    alphabet = b"a \n9.,\xc3\xe4\xf0\x80\xb8\xad\xff"
    rows = [bytes(rng.choices(alphabet, k=rng.randrange(3000))) for _ in range(300)]
    data, offsets = byte_buffers(pa.array(rows, pa.binary()))
    assert_same(data, offsets, characters=characters, n=5, options=options, bands=14, per_band=8, packed=False)


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("characters", [False, True], ids=["words", "characters"])
def test_a_batch_of_many_texts_and_very_long_ones_gives_the_same_bits(characters):
    rng = random.Random(4)
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(1, 12))) for _ in range(5000)]
    texts = [" ".join(rng.choices(words, k=int(10 ** rng.uniform(0, 3)))) for _ in range(5000)]
    texts[7] = " ".join(rng.choices(words, k=300_000))
    texts[70] = "中文字" * 100_000
    shape = {"characters": characters, "n": 5, "options": ALL, "bands": 14, "per_band": 8}
    assert_same(*text_buffers(pa.array(texts), "text"), packed=True, **shape)


@needs_gpu
@pytest.mark.gpu
def test_a_text_with_a_very_long_word_is_processed_on_the_cpu():
    data, offsets = text_buffers(pa.array(["a b c d e f", "x" * 50_000 + " y z", "中" * 9000]), "text")
    shape = {"characters": False, "n": 5, "options": ALL, "bands": 14, "per_band": 8, "packed": False}
    assert on_gpu(data, offsets, **shape) is None
    signed = FuzzyDedup().signed(data, offsets, on_gpu=True)
    for mine, theirs in zip((signed.counts, signed.keys), on_cpu(data, offsets, **shape)[1:3], strict=True):
        assert np.array_equal(mine, theirs)


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("settings", ["fineweb", "nemo"])
def test_a_batch_that_does_not_fit_on_the_gpu_is_processed_on_the_cpu(settings):
    import cupy

    texts = [" ".join(random.Random(row).choices(["one", "two", "three", "four"], k=2000)) for row in range(300)]
    data, offsets = text_buffers(pa.array(texts), "text")
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    pool.set_limit(size=8_000_000)
    try:
        step = FuzzyDedup(settings=settings, verify="signature")
        found = step.signed(data, offsets, on_gpu=True)
    finally:
        pool.set_limit(size=0)
    expected = step.signed(data, offsets)
    for name in ("content", "counts", "keys", "compared", "spans"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("verify", ["jaccard", "signature"])
@pytest.mark.parametrize("executor", ["inline", "local"])
def test_both_devices_keep_the_same_rows(verify, executor):
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefgh", k=5)) for _ in range(3000)]
    base = [" ".join(rng.choices(words, k=800)) for _ in range(400)]
    rows = [{"id": str(n), "text": rng.choice(base) + " and" * rng.randrange(4)} for n in range(2400)]
    kept, streams = [], []
    for device in ("gpu", "cpu"):
        step = FuzzyDedup(verify=verify, device=device)
        table = Pipeline(Rows(rows, rows_per_partition=800), step).collect(executor=executor, workers=2, memory="12GB")
        kept.append(table["id"].to_pylist())
        report = Pipeline(Rows(rows, rows_per_partition=800), step).run(executor=executor, workers=2, memory="12GB")
        assert report.kept == len(kept[-1])
        streams.append(bool(report.streams))
    assert kept[0] == kept[1]
    assert len(kept[0]) < 500
    assert streams == [executor == "local", False]


def test_without_memory_on_the_gpu_rows_are_processed_on_the_cpu(monkeypatch):
    class Full(MemoryError):
        """As CuPy raises it."""

    def raises(*arguments):
        raise Full

    freed = []
    pool = SimpleNamespace(free_all_blocks=lambda: freed.append(True))
    memory = SimpleNamespace(OutOfMemoryError=Full)
    cupy = SimpleNamespace(cuda=SimpleNamespace(memory=memory), get_default_memory_pool=lambda: pool)
    monkeypatch.setattr(minhash_gpu, "_cupy", lambda: cupy)
    monkeypatch.setattr(minhash_gpu, "_sign", raises)
    data, offsets = text_buffers(pa.array(["one two three four five six"]), "text")
    step = FuzzyDedup(verify="signature")
    found, expected = step.signed(data, offsets, on_gpu=True), step.signed(data, offsets)
    for name in ("content", "counts", "keys", "compared", "spans"):
        assert np.array_equal(getattr(found, name), getattr(expected, name))
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
        data, offsets = text_buffers(pa.array(["x" * length + " cd"]), "text")
        shape = {"characters": True, "n": 3, "options": LOWERCASE, "bands": 14, "per_band": 8, "packed": False}
        assert on_cpu(data, offsets, **shape)[1].tolist() == [length + 3 - 2]
