"""MinHash: words, n-grams, and minima that agree as often as the sets are similar."""

import math
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.dedup.texts import text_buffers
from tamis.kernels import minhash
from tamis.kernels.minhash import FOLD_DIGITS, LOWERCASE, STRIP_ACCENTS, STRIP_PUNCTUATION, folding_tables, multipliers
from tamis.kernels.unicode_tables import (
    ALPHANUMERIC,
    CONTROL,
    DIGIT,
    KINDS,
    POINTS,
    PUNCTUATION,
    SPACE,
    SYMBOL,
    UNSPACED,
)

ALL = LOWERCASE | FOLD_DIGITS | STRIP_PUNCTUATION | STRIP_ACCENTS
MASK = 2**64 - 1


def sign(texts, n=5, characters=False, options=ALL, bands=14, per_band=8, seed=1):
    data, offsets = text_buffers(pa.array(texts, pa.string()), "text")
    rows = len(texts)
    counts, keys = np.zeros(rows, np.int64), np.zeros((rows, bands), np.uint64)
    shingles = np.zeros(int(offsets[-1]) + 2 * rows + 2, np.uint32)
    spans = np.zeros(rows + 1, np.int64)
    minhash.sign(
        data, offsets, characters, n, options, *folding_tables(options), POINTS, KINDS,
        multipliers(bands * per_band, seed), bands, counts, keys, shingles, spans,
    )  # fmt: skip
    return counts, keys, [shingles[spans[i] : spans[i + 1]] for i in range(rows)]


# ----------------------------------------------------------------------------------------------------- a naive reference


def flags(point):
    return int(KINDS[128 + POINTS[4608 + (int(POINTS[256 + (point >> 8)]) << 8 | (point & 255))]])


def naive_words(text, options):
    """The words of a text as lists of code points."""
    words, word, single, number = [], [], False, False

    def end():
        nonlocal word, single
        if word:
            words.append(word)
        word, single = [], False

    for at, char in enumerate(text):
        point, found = ord(char), flags(ord(char))
        separates = found & (SPACE | CONTROL) or (options & STRIP_PUNCTUATION and found & (PUNCTUATION | SYMBOL))
        if point < 128:
            separates = (
                char.isspace() or point < 32 or point == 127 or (options & STRIP_PUNCTUATION and not char.isalnum())
            )
        if separates:
            following = text[at + 1 : at + 2]
            if number and char in ".," and following and following in "0123456789":
                continue
            end()
            number = False
            continue
        if options & STRIP_ACCENTS and 0x300 <= point < 0x370:
            continue
        digit = options & FOLD_DIGITS and (char in "0123456789" if point < 128 else found & DIGIT)
        if digit and number:
            continue
        number = bool(digit)
        if (point < 128 or found & ALPHANUMERIC) and word and (single or found & UNSPACED):
            end()
        if point < 128 or found & ALPHANUMERIC:
            single = bool(found & UNSPACED)
        if digit:
            point = 48
        elif point < 65536 and point >= 128:
            point = int(folding_tables(options)[1][point])
        elif point < 128 and options & LOWERCASE:
            point = ord(char.lower())
        word.append(point)
    end()
    return words


def mix64(value):
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD & MASK
    value ^= value >> 33
    value = value * 0xC4CEB9FE1A85EC53 & MASK
    return value ^ (value >> 33)


START, SHORT, BASE = 0x243F6A8885A308D3, 0xB7E151628AED2A6B, 0x9E3779B97F4A7C15


def as_bytes(points):
    return b"".join(
        bytes([p]) if p < 128 else bytes([128 | p & 127, 128 | p >> 7 & 127, 128 | p >> 14]) for p in points
    )


def naive_hash(word):
    data, state = as_bytes(word), START
    while len(data) >= 8:
        state = mix64(state ^ int.from_bytes(data[:8], "little"))
        data = data[8:]
    return mix64(state ^ int.from_bytes(data, "little"))


def naive_shingles(units, n):
    def combine(part):
        total = 0
        for unit in part:
            total = (total * BASE + unit) & MASK
        return total

    if 0 < len(units) < n:
        return [mix64(combine(units) ^ (SHORT * len(units) & MASK)) >> 32]
    return [mix64(combine(units[i : i + n])) >> 32 for i in range(len(units) - n + 1)]


def naive_minima(shingles, factors):
    return [min((int(a) * x & 0xFFFFFFFF for x in shingles), default=0xFFFFFFFF) for a in factors]


TEXTS = st.text(
    st.one_of(
        st.sampled_from("ab AB.,-09\n\t é\u0301ßÅ中文字กข한글🙂अा\u00a0\u3000"),
        st.characters(exclude_categories=["Cs", "Cn"]),
    ),
    max_size=120,
)


@settings(max_examples=150, deadline=None)
@given(
    TEXTS, st.sampled_from([0, ALL, LOWERCASE, STRIP_PUNCTUATION, FOLD_DIGITS | STRIP_PUNCTUATION]), st.integers(1, 6)
)
def test_word_shingles_are_those_of_the_naive_reference(text, options, n):
    counts, keys, found = sign(["x y", text, "z"], n, options=options)
    units = [naive_hash(word) for word in naive_words(text, options)]
    expected = naive_shingles(units, n)
    assert found[1].tolist() == expected
    assert counts[1] == (-1 if 0 < len(units) < n else len(expected))
    minima = naive_minima(expected, multipliers(112))
    key = START + 3
    for value in minima[24:32]:
        key = mix64(key ^ value)
    assert keys[1, 3] == key


@settings(max_examples=80, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), st.integers(1, 8))
def test_character_shingles_without_options_are_those_of_the_unchanged_text(text, n):
    _, _, found = sign([text], n, characters=True, options=0)
    units = [mix64(START ^ int.from_bytes(as_bytes([ord(char)]), "little")) for char in text]
    assert found[0].tolist() == naive_shingles(units, n)


def test_character_shingles_with_options_see_one_space_and_lower_case():
    _, _, (one, other) = sign(["Ein  Haus, am\tSee", "ein haus am see"], 4, characters=True)
    assert one.tolist() == other.tolist()


def test_long_texts_are_the_same_however_the_buffer_divides_them():
    rng = random.Random(3)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 30))) for _ in range(5000)]
    text = " ".join(words)
    _, _, (found,) = sign([text], 5)
    assert found.tolist() == naive_shingles([naive_hash([ord(c) for c in word]) for word in words], 5)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Das ist der Fall, 3.14 mal", "das ist der fall 2 mal"),
        ("Éléphant à côté", "elephant a cote"),
        ("e\u0301le\u0300ve", "élève"),
        ("ΑΒΓ δέλτα", "αβγ δελτα"),
        ("我喜欢, 你", "我 喜 欢 你"),
        ("1,000,000 people", "7 people"),
    ],
)
def test_normalised_texts_are_equal(one, other):
    _, _, (left, right) = sign([one, other], 2)
    assert left.tolist() == right.tolist()


def test_a_short_text_matches_only_the_same_words():
    counts, keys, _ = sign(["one two three", "One, two: three!", "one two three four five", "", "one two"])
    assert counts.tolist() == [-1, -1, 1, 0, -1]
    assert (keys[0] == keys[1]).all()
    assert not (keys[0] == keys[2]).any()
    assert not (keys[0] == keys[4]).any()


def jaccard(left, right):
    left, right = set(left.tolist()), set(right.tolist())
    return len(left & right) / len(left | right)


def _word(rng, different):
    """A random word of a vocabulary of this size, in letters: numbers are all read as 0."""
    return np.base_repr(rng.randrange(different), 36).translate(str.maketrans("0123456789", "qrstuvwxyz")).lower() + "k"


def _pairs(kind, rng):
    """Texts of a kind, and the same with some words changed."""
    shapes = {
        "short": (3000, 8, 25),
        "long": (50_000, 1500, 2500),
        "repetitive": (12, 200, 400),
        "chinese": (0, 100, 300),
    }
    different, least, most = shapes[kind]
    for _ in range(60):
        size = rng.randint(least, most)
        words = [_word(rng, different) if different else chr(0x4E00 + rng.randrange(3000)) for _ in range(size)]
        other = list(words)
        for _ in range(rng.randint(1, max(2, size // 12))):
            other[rng.randrange(size)] = _word(rng, 10**6)
        yield " ".join(words), " ".join(other)


@pytest.mark.parametrize("kind", ["short", "long", "repetitive", "chinese"])
def test_minima_agree_as_often_as_the_similarity_of_the_sets(kind):
    """One hash per band, so that a key is a minimum."""
    texts = [text for pair in _pairs(kind, random.Random(kind)) for text in pair]
    errors, variance = [], 0.0
    for seed in range(1, 9):
        _, keys, sets = sign(texts, bands=112, per_band=1, seed=seed)
        for index in range(0, len(texts), 2):
            true = jaccard(sets[index], sets[index + 1])
            errors.append(np.mean(keys[index] == keys[index + 1]) - true)
            variance += true * (1 - true) / 112
    assert abs(np.mean(errors)) < 5 * math.sqrt(variance) / len(errors)
    assert np.var(errors) < 1.35 * variance / len(errors)
