"""Search each row for many phrases at once (Aho and Corasick 1975), and count characters that belong to a set.

The automaton reads a byte at a time, with A-Z read as a-z unless it is exact. Bytes that occur in no phrase share one
class, which keeps its table small. Phrases are matched as bytes: for phrases with letters outside ASCII, lower-case the text
first or use an exact automaton.

If there are few phrases, the rarest eight bytes of each are searched for first, 64 positions at a time. Few rows contain any,
and only those rows go through the automaton.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tamis.errors import ParameterError
from tamis.kernels.characters import decode, flags_of
from tamis.kernels.hashing import load64
from tamis.kernels.jit import kernel, part
from tamis.kernels.masks import LANES, ONE, folded_matches, lowest
from tamis.kernels.spans import lower8
from tamis.kernels.unicode_tables import ALPHANUMERIC, SPACE, UNSPACED

_FREQUENT = b" etaoinshrdlcumwfgypbvkjxqz"
"""English letters, most frequent first; all other bytes are assumed to be rarer."""
_MOST_WINDOWS = 16


class Automaton(NamedTuple):
    classes: np.ndarray
    """uint8[256]: the class of each byte."""
    moves: np.ndarray
    """int32[states * classes]: for each state and class, twice the index of the next state's first entry in this array, plus
    1 if a phrase ends in that state.

    Finding the next entry takes one addition; the cost per byte is the latency of loading it.
    """
    phrase: np.ndarray
    """int32[states]: the phrase that ends in each state, or -1."""
    shorter: np.ndarray
    """int32[states]: the state of the longest shorter phrase that ends at the same position, or 0."""
    sizes: np.ndarray
    """int64[phrases]: bytes of each phrase."""
    windows: np.ndarray
    """See `rare_windows`."""


def build_automaton(phrases: Sequence[str], *, exact: bool = False) -> Automaton:
    """Build an automaton for some phrases; `exact` makes it case-sensitive.

    Empty phrases are never found; of equal phrases, only the last is.
    """
    texts = [(phrase if exact else phrase.lower()).encode() for phrase in phrases]
    used = sorted({byte for text in texts for byte in text})
    classes = np.zeros(256, np.uint8)
    for index, byte in enumerate(used):
        classes[byte] = index + 1
        if 97 <= byte <= 122 and not exact:
            classes[byte - 32] = index + 1
    width = len(used) + 1
    children: list[dict[int, int]] = [{}]
    phrase = [-1]
    for index, text in enumerate(texts):
        state = 0
        for byte in text:
            step = int(classes[byte])
            if step not in children[state]:
                children[state][step] = len(children)
                children.append({})
                phrase.append(-1)
            state = children[state][step]
        if text:
            phrase[state] = index
    moves = np.zeros((len(children), width), np.int32)
    shorter = np.zeros(len(children), np.int32)
    failure = [0] * len(children)
    queue = deque([0])
    while queue:
        state = queue.popleft()
        if state:
            moves[state] = moves[failure[state]]
        for step, child in children[state].items():
            failure[child] = int(moves[state, step]) if state else 0
            moves[state, step] = child
            back = failure[child]
            shorter[child] = back if phrase[back] >= 0 else shorter[back]
            queue.append(child)
    sizes = np.array([len(text) for text in texts], np.int64)
    ends = (np.array(phrase) >= 0) | (shorter > 0)
    steps = (moves * np.int64(2 * width) + ends[moves]).ravel()
    if steps.max() >= 1 << 31:
        raise ParameterError("the phrase list is too large for one automaton", hint="split the list over several steps")
    return Automaton(classes, steps.astype(np.int32), np.array(phrase, np.int32), shorter, sizes, rare_windows(phrases))


def rare_windows(phrases: Sequence[str]) -> np.ndarray:
    """Return the rarest bytes of each phrase as uint64[n, 3].

    0  up to eight bytes, in lower case
    1  a mask of the bits they fill
    2  index of the rarest pair of neighbouring bytes, which is searched for first

    Returns an empty array if there are too many phrases, or one is too short or not ASCII.
    """
    texts = [phrase.lower().encode() for phrase in phrases if phrase]
    if not 0 < len(texts) <= _MOST_WINDOWS or any(len(text) < 4 or not text.isascii() for text in texts):
        return np.zeros((0, 3), np.uint64)
    rarity = {byte: rank for rank, byte in enumerate(_FREQUENT)}
    windows = set()
    for text in texts:
        ranks = [rarity.get(byte, len(_FREQUENT)) for byte in text]
        size = min(len(text), 8)
        at = max(range(len(text) - size + 1), key=lambda at: sum(ranks[at : at + size]))
        first = max(range(size - 1), key=lambda first: ranks[at + first] + ranks[at + first + 1])
        windows.add((int.from_bytes(text[at : at + size], "little"), (1 << 8 * size) - 1, first))
    return np.array(sorted(windows), np.uint64)


@part
def _may_have_any(data, start, end, windows):
    """Return whether a row contains the rarest bytes of any phrase, ignoring case."""
    text = data.ctypes.data
    for at in range(start, end, LANES):
        if at + LANES + 8 > len(data):
            return True
        for index in range(len(windows)):
            window, filled, first = windows[index, 0], windows[index, 1], windows[index, 2]
            pair = window >> (np.uint64(8) * first)
            bits = folded_matches(text + at, np.uint8(pair) | np.uint8(32))
            bits &= folded_matches(text + at + 1, np.uint8(pair >> np.uint64(8)) | np.uint8(32))
            while bits:
                place = at + lowest(bits) - np.int64(first)
                if place >= start and lower8(load64(data, place)) & filled == window:
                    return True
                bits &= bits - ONE
    return False


@part
def _is_whole(data, start, stop, row_start, row_end, points, kinds):
    """Return whether a match is not part of a longer word. Letters of scripts without spaces do not extend a word."""
    if start > row_start:
        before = start - 1
        while before > row_start and data[before] & 0xC0 == 0x80:
            before -= 1
        flags = flags_of(decode(data, before, row_end)[0], points, kinds)
        if (flags & ALPHANUMERIC and not flags & UNSPACED) or data[before] == 95:
            return False
    if stop < row_end:
        flags = flags_of(decode(data, stop, row_end)[0], points, kinds)
        if (flags & ALPHANUMERIC and not flags & UNSPACED) or data[stop] == 95:
            return False
    return True


@kernel
def count_phrases(data, offsets, classes, moves, phrase, shorter, sizes, windows, whole, points, kinds, out):
    """Count matches per row; out int64[3, rows], initially zeros. With `whole`, only whole words match.

    0  matches of any phrase, counting every phrase that ends at a position
    1  paragraphs (separated by empty lines) with a match
    2  matches of phrase 0
    """
    width = len(moves) // len(phrase)
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        if len(windows) and not _may_have_any(data, start, end, windows):
            continue
        place, line_start = 0, start
        matches = paragraphs = special = 0
        matched = False
        for at in range(start, end):
            byte = data[at]
            move = np.int64(moves[np.uint64(place + classes[byte])])
            place = move >> 1
            if byte == 10:
                if at == line_start or (at == line_start + 1 and data[line_start] == 13):
                    paragraphs += matched
                    matched = False
                line_start = at + 1
            if not move & 1:
                continue
            state = place // width
            ending = state if phrase[state] >= 0 else np.int64(shorter[state])
            while ending:
                index = phrase[ending]
                if not whole or _is_whole(data, at + 1 - sizes[index], at + 1, start, end, points, kinds):
                    matches += 1
                    matched = True
                    special += index == 0
                ending = np.int64(shorter[ending])
        out[0, row], out[1, row], out[2, row] = matches, paragraphs + matched, special


def character_set(characters: Iterable[str]) -> np.ndarray:
    """Return uint8[code points]: 1 for those in the set."""
    members = np.zeros(0x110000, np.uint8)
    members[[ord(character) for character in characters]] = 1
    return members


@kernel
def count_members(data, offsets, members, points, kinds, out):
    """out[i] = characters of row i that are in `members`, ignoring whitespace at both ends of the row."""
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        count = pending = 0  # spaces count only if another character follows
        begun = False
        while at < end:
            point, at = decode(data, at, end)
            if flags_of(point, points, kinds) & SPACE:
                pending += begun and members[point]
            else:
                begun = True
                count += pending + members[point]
                pending = 0
        out[row] = count
