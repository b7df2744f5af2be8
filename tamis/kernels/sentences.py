"""Count sentences that are not prose: lists of names, fragments, code, boilerplate phrases.

A sentence ends where a run of . ! ? is followed by a space; neither is part of the sentence. Blank sentences do not count.

    text       On. I saw 3!B? ! So it is.
    sentences  ==  ========     =========      there is nothing between "? " and "! "

Whether a sentence is questionable depends on its counts of characters, technical characters, words (the marks of `words`) and
capitalized words. The counts accumulate along the row, 64 bytes at a time; those of a sentence are the difference between its
end and its start. Only sentence ends, and words that start outside ASCII, are examined one by one.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from tamis.kernels.characters import decode, flags_of
from tamis.kernels.jit import bare, inlined, kernel
from tamis.kernels.masks import ALL, LANES, ONE, below, block_at, lowest, matcher, ones
from tamis.kernels.unicode_tables import KINDS, SPACE, UPPER
from tamis.kernels.words import SPACES, base_of, outside

STOPS = b".!?"
TECHNICAL = b"0123456789{}+/()>"
"""Kudugunta et al. 2023."""

_LAST = np.uint64(LANES - 1)
_CAPITALS = [byte for byte in range(128) if KINDS[byte] & UPPER]
_LEADS, _RESTS = range(0xC0, 0x100), range(0x80, 0xC0)  # first and continuation bytes of characters outside ASCII
_match = matcher(STOPS, [*SPACES, *_LEADS], TECHNICAL, _CAPITALS, _LEADS, _RESTS)


@bare
def _skip_spaces(data, at, end, points, kinds):
    """Skip whitespace. Return (position after it, number of continuation bytes skipped)."""
    rests = 0
    while at < end:
        point, after = decode(data, at, end)
        if not flags_of(point, points, kinds) & SPACE:
            break
        rests += after - at - 1
        at = after
    return at, rests


@bare
def _first_stop(data, start, at):
    """Return the start of the run of stops that ends at `at`, in a sentence that starts at `start`."""
    while at > start and (data[at - 1] == 46 or data[at - 1] == 33 or data[at - 1] == 63):
        at -= 1
    return at


@bare
def _add_wide_capitals(data, at, end, capitals, wide, points, kinds):
    """Add to `capitals` the words of the block at `at` that start with a capital outside ASCII."""
    while wide:
        bit = lowest(wide)
        point, _ = decode(data, at + bit, end)
        if flags_of(point, points, kinds) & UPPER:
            capitals |= ONE << np.uint64(bit)
        wide &= wide - ONE
    return capitals


@inlined
def _count(counts, masks, bits):
    """Return the counts plus those of the given bits of a block."""
    return (
        counts[0] + ones(masks[0] & bits),
        counts[1] + ones(masks[1] & bits),
        counts[2] + ones(masks[2] & bits),
        counts[3] + ones(masks[3] & bits),
    )


@bare
def _is_questionable(data, start, stop, before, after, limits, automaton):
    """Return whether a sentence is questionable, given the counts at its start and at its end."""
    list_words, list_share, min_chars, max_chars, technical_share = limits
    chars = stop - start - (after[0] - before[0])
    technical, words, capitals = after[1] - before[1], after[2] - before[2], after[3] - before[3]
    if words >= list_words and words > 0 and capitals / words > list_share:
        return True
    if chars < min_chars or chars > max_chars:
        return True
    if chars > 0 and technical / chars > technical_share:
        return True
    return _has_phrase(data, start, stop, automaton)


@bare
def _has_phrase(data, at, stop, automaton):
    classes, moves, sizes = automaton[0], automaton[1], automaton[4]
    place = np.int64(0)
    while len(sizes) and at < stop:
        move = np.int64(moves[place + classes[data[at]]])
        if move & 1:
            return True
        place = move >> 1
        at += 1
    return False


@kernel
def measure_sentences(data, tail, offsets, points, kinds, begins, ends, limits, automaton, out):
    """out[0, i] = sentences of row i, out[1, i] = questionable ones; int64[2, rows].

    limits: (list_words, list_share, min_chars, max_chars, technical_share). A sentence is questionable if it has at least
    list_words words and more than list_share of them are capitalized; if it has fewer than min_chars or more than max_chars
    characters; if more than technical_share of its characters are technical; or if it contains a phrase of `automaton`
    (`phrases.Automaton`). Other arguments are described in `words`.
    """
    base = base_of(offsets)
    none = np.int64(0)
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        first = start
        content, _ = _skip_spaces(data, start, end, points, kinds)
        sentences = questionable = none
        before = counts = (none, none, none, none)  # at the start of the sentence, and of the block
        for block in range((first - base) // LANES, (end - base + LANES - 1) // LANES):
            at = base + block * LANES
            stops, spaces, technical, capitals, leads, rests = _match(block_at(data, tail, at))
            inside = ~outside(at, first, end)
            begun = begins[block] & inside
            capitals = _add_wide_capitals(data, at, end, begun & capitals, begun & leads, points, kinds)
            masks = (rests & inside, technical & inside, ends[block] & inside, capitals)
            followed = (spaces & inside) >> ONE
            if at + LANES < end:
                byte = data[at + LANES]
                followed |= np.uint64(byte >= 0xC0 or (byte < 0x80 and kinds[byte] & SPACE != 0)) << _LAST
            ended = stops & inside & followed
            while ended:
                bit = lowest(ended)
                ended &= ended - ONE
                beyond, wide = _skip_spaces(data, at + bit + 1, end, points, kinds)
                if beyond == at + bit + 1:  # not a space
                    continue
                stop = _first_stop(data, start, at + bit)
                after = _count(
                    counts, masks, below(bit)
                )  # stops are not counted, so this holds for the whole run of stops
                if stop > start and stop > content:
                    sentences += 1
                    questionable += _is_questionable(data, start, stop, before, after, limits, automaton)
                start, before = beyond, (after[0] + wide, after[1], after[2], after[3])
            counts = _count(counts, masks, ALL)
        if end > start and end > content:
            sentences += 1
            questionable += _is_questionable(data, start, end, before, counts, limits, automaton)
        out[0, row], out[1, row] = sentences, questionable
