"""Digests: the known values of MurmurHash3, no collisions where bad hashes have them, and units of text."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.dedup.texts import Normalization, digest_columns, digest_spans, text_buffers
from tamis.dedup.units import find_units, without_units


def digest(texts, normalization=Normalization()):  # noqa: B008 - frozen
    data, offsets = text_buffers(pa.array(texts, pa.string()), "text")
    return digest_spans(data, offsets[:-1], offsets[1:], normalization)


def test_digest_is_murmur3_x64_128():
    (found,) = digest(["The quick brown fox jumps over the lazy dog"])
    assert [hex(half) for half in found.tolist()] == ["0xe34bbc7bbc071b6c", "0x7a433ca9c49a9347"]
    assert digest([""]).tolist() == [[0, 0]]


def test_short_and_counting_keys_do_not_collide():
    texts = [str(n) for n in range(200_000)] + ["a" * n for n in range(1, 3000)] + ["\x01" * n for n in range(1, 3000)]
    found = digest(texts)
    for half in (0, 1):  # either half alone is a good hash for this number of keys
        assert len(np.unique(found[:, half])) == len(texts)


def test_each_bit_of_input_changes_half_of_the_output():
    rng = np.random.default_rng(0)
    for size in (1, 7, 8, 15, 16, 17, 33):
        base = rng.integers(32, 127, size).astype(np.uint8)
        flips = []
        for bit in range(7 * size):  # ASCII stays ASCII
            other = base.copy()
            other[bit // 7] ^= np.uint8(1 << bit % 7)
            pair = digest([base.tobytes().decode(), other.tobytes().decode()])
            changed = int(pair[0, 0] ^ pair[1, 0]).bit_count() + int(pair[0, 1] ^ pair[1, 1]).bit_count()
            flips.append(changed)
        assert 58 < np.mean(flips) < 70
        assert min(flips) > 30


NORMALS = st.builds(Normalization, st.booleans(), st.booleans(), st.sampled_from([None, "NFC", "NFKC"]))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(st.sampled_from("aA \t\n\x1cßÉe\u0301ﬁ\uff11k\u00a0中"), max_size=12), max_size=12), NORMALS)
def test_digests_are_equal_exactly_if_normalised_texts_are(texts, normalization):
    found = [tuple(row) for row in digest(texts, normalization).tolist()]
    plain = [normalization.apply(text) for text in texts]
    for i in range(len(texts)):
        for j in range(i):
            assert (found[i] == found[j]) == (plain[i] == plain[j])


def test_columns_are_kept_apart_and_null_is_not_empty():
    one = pa.array(["ab", "a", None, "", None])
    two = pa.array(["c", "bc", "x", "x", None])
    found, known = digest_columns([("one", one), ("two", two)], Normalization())
    assert len({tuple(row) for row in found.tolist()}) == 5
    assert known.tolist() == [True, True, True, True, False]


def units_of(text, unit, least=1):
    data, offsets = text_buffers(pa.array([text], pa.string()), "text")
    _, starts, stops = find_units(data, offsets, unit, least)
    return [data[a:b].tobytes().decode() for a, b in zip(starts, stops, strict=True)]


def test_lines_and_paragraphs():
    text = "\n\nfirst line\n  second line  \n\n\n \t\nthird\n"
    assert units_of(text, "line") == ["first line", "second line", "third"]
    assert units_of(text, "paragraph") == ["first line\n  second line", "third"]
    assert units_of(text, "line", least=6) == ["first line", "second line"]


def cut(text, as_numpy, unit):
    return without_units(pa.array([text]), "text", pa.array([as_numpy], pa.list_(pa.int32())), unit, 1).to_pylist()[0]


def test_cutting_does_not_change_the_rest():
    text = "one\n\ntwo\ntwo b\n\n  three\n"
    assert cut(text, [], "paragraph") == text
    assert cut(text, [0], "paragraph") == "two\ntwo b\n\n  three"
    assert cut(text, [1], "paragraph") == "one\n\n  three"
    assert cut(text, [2], "paragraph") == "one\n\ntwo\ntwo b"
    assert cut(text, [0, 1, 2], "paragraph") == ""
    assert cut(text, [1], "line") == "one\n\ntwo b\n\n  three"


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from("ab \n"), max_size=40), st.data(), st.sampled_from(["line", "paragraph"]))
def test_the_remaining_text_has_exactly_the_other_units(text, data, unit):
    units = units_of(text, unit)
    gone = sorted(data.draw(st.sets(st.integers(0, max(0, len(units) - 1)), max_size=len(units)))) if units else []
    left = units_of(cut(text, gone, unit), unit)
    assert left == [each for number, each in enumerate(units) if number not in gone]
