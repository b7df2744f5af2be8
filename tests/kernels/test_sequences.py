"""Fingerprints of sounds, and how well sequences agree, compared with naive references."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.kernels import sequences, sound_prints
from tamis.kernels.sound_prints import FRAME, HOP, LAG, PRESENT, RATE, sound_print


def sound(seconds, seed=0):
    """Notes, with a little noise."""
    rng = np.random.default_rng(seed)
    time = np.arange(int(seconds * RATE)) / RATE
    notes = rng.uniform(200, 3000, (int(seconds * 5) + 1, 3))[(time * 5).astype(int)]
    wave = np.sin(2 * np.pi * np.cumsum(notes, axis=0) / RATE).sum(axis=1) / 6
    return (wave + rng.normal(0, 0.01, len(time))).astype(np.float32)


def naive_print(samples):
    """The fingerprint from the definition, one frame and one bit at a time."""
    window = np.hanning(FRAME).astype(np.float32)
    edges = [round(each) for each in np.geomspace(150, 3700, 34) * FRAME / RATE]
    powers = []
    for start in range(0, len(samples) - FRAME + 1, HOP):
        spectrum = np.abs(np.fft.rfft(samples[start : start + FRAME] * window).astype(np.complex128)) ** 2
        powers.append([spectrum[low:high].sum() for low, high in pairwise(edges)])
    found = []
    for before, now in zip(powers, powers[LAG:], strict=False):
        if sum(now) < 1e-7 * FRAME * (window.astype(np.float64) ** 2).sum() / 2:
            found.append((0, None, None))
            continue
        differences = [(now[b] - now[b + 1]) - (before[b] - before[b + 1]) for b in range(32)]
        sure = [
            abs(difference) / (now[b] + now[b + 1] + before[b] + before[b + 1])
            for b, difference in enumerate(differences)
        ]
        first, second = sorted(range(32), key=lambda bit: sure[bit])[:2]
        found.append((sum(1 << bit for bit in range(32) if differences[bit] > 0), first, second))
    return found


def test_a_fingerprint_is_that_of_the_definition():
    samples = np.concatenate([sound(1.5), np.zeros(RATE, np.float32), sound(0.8, 1)])
    words, expected = sound_print([samples]), naive_print(samples)
    assert len(words) == len(expected) > 60
    stored = [
        (int(word) & 0xFFFFFFFF, int(word) >> 32 & 31, int(word) >> 37 & 31) if word else (0, None, None)
        for word in words
    ]
    assert stored == expected
    assert 0 < np.count_nonzero(words == 0) < len(words)
    assert all(int(word) & PRESENT for word in words if word)


@settings(max_examples=8)
@given(st.lists(st.integers(0, 9000), max_size=6))
def test_a_fingerprint_does_not_depend_on_the_blocks(sizes):
    samples = sound(3)
    cuts = np.minimum(np.cumsum([0, *sizes]), len(samples))
    blocks = [samples[begin:end] for begin, end in zip(cuts, [*cuts[1:], len(samples)], strict=True)]
    assert (sound_print(blocks) == sound_print([samples])).all()


def test_gain_changes_few_bits_and_values_that_are_no_numbers_count_as_0():
    samples = sound(3)
    plain, quiet = sound_print([samples]), sound_print([samples * np.float32(0.25)])
    mask = np.uint64(0xFFFFFFFF)
    assert np.bitwise_count((plain ^ quiet) & mask).mean() < 0.1
    broken, zeroed = samples.copy(), samples.copy()
    broken[5000:5003] = [np.nan, np.inf, -np.inf]
    zeroed[5000:5003] = 0
    assert (sound_print([broken]) == sound_print([zeroed])).all()
    zeroed[6000] = 3e38
    assert len(sound_print([zeroed])) == len(plain)
    assert len(sound_print([samples[: FRAME + LAG * HOP - 1]])) == 0
    assert len(sound_print([])) == 0


def test_memory_does_not_grow_with_the_blocks():
    printer = sound_prints.SoundPrinter()
    for _ in range(20):
        printer.add(np.zeros(10 * RATE, np.float32))
    assert len(printer._samples) < FRAME + HOP
    assert len(printer._powers) == LAG
    assert sum(map(len, printer.words)) == (200 * RATE - FRAME) // HOP + 1 - LAG


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    lengths=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    offset=st.integers(-45, 45),
    bits=st.sampled_from([32, 64]),
    window=st.sampled_from([1, 2, 5, 31]),
    errors=st.sampled_from([0.0, 10.0, 16.0, 30.0]),
)
def test_agreement_is_that_of_the_definition(seed, lengths, offset, bits, window, errors):
    rng = np.random.default_rng(seed)
    left, right = (rng.integers(0, 2**64, length, dtype=np.uint64) for length in lengths)
    for words in (left, right):
        words[rng.random(len(words)) < 0.2] = 0
    wrong = {
        place: ((int(left[place + offset]) ^ int(right[place])) & (2**bits - 1)).bit_count()
        for place in range(len(right))
        if 0 <= place + offset < len(left) and left[place + offset] and right[place]
    }
    agree = []
    for place in wrong:
        first = place - (window - 1 - window // 2)
        near = [wrong[other] for other in range(first, first + window) if other in wrong]
        if sum(near) <= errors * len(near):
            agree.append(wrong[place])
    out = np.empty(4)
    sequences.agreement(left, right, offset, bits, window, errors, out)
    assert out.tolist() == [len(agree), sum(agree), len(wrong), sum(wrong.values())]


@pytest.mark.parametrize("bits", [32, 64])
def test_hashes_that_differ_in_a_few_bits_share_a_key(bits):
    rng = np.random.default_rng(3)

    def keys(word):
        found, places = np.empty(6, np.uint64), np.empty(6, np.int32)
        return set(found[: sequences.keys_of(np.array([word], np.uint64), bits, found, places)].tolist())

    for _ in range(50):
        word = int(rng.integers(1, 2**32)) | PRESENT
        first, second = (int(bit) for bit in rng.choice(32, 2, replace=False))
        if bits == 32:
            word |= first << 32 | second << 37
            assert keys(word) & keys(word ^ 1 << first)
            assert keys(word ^ 1 << first) & keys(word ^ 1 << second)
        else:
            assert len(keys(word) & keys(word ^ 1 << first ^ 1 << (second + 32))) >= 1
            assert len(keys(word) & keys(word ^ 1 << first)) == 3
    assert not keys(0)
