"""Words in UTF-8: where they begin and end, and what they are made of.

Kernels take `data` (uint8, the bytes of a string column), `offsets` (int64, rows + 1) and the property tables POINTS
and KINDS of `unicode_tables`. Positions are bytes; lengths called `chars` are code points.

    mode WHITESPACE   runs of non-spaces, as str.split()
         AUTO         the same, and each letter of a script without spaces begins a word
         CHARACTERS   the same, and each letter or digit of any script begins a word
         UNICODE      segments of UAX #29 that hold a letter or a digit
         TOKENS       punctuation apart from words, see `tokens`; a run of more than MOST_BYTES without a space is one
"""
# mypy: disallow-untyped-defs=False
# ruff: noqa: SIM109

from __future__ import annotations

import numpy as np

from tamis.kernels.characters import class_of, decode, flags_of
from tamis.kernels.jit import bare, inlined, kernel, part
from tamis.kernels.spans import hash_lowered, hash_start
from tamis.kernels.tokens import ROLES, WHOLE_KEYS, ends_in_mark, split_run
from tamis.kernels.unicode_tables import (
    ALPHANUMERIC,
    DIGIT,
    KINDS,
    LETTER,
    MARKER,
    NUMBER,
    PICTOGRAPH,
    PUNCTUATION,
    SPACE,
    SYMBOL,
    UNSPACED,
    UPPER,
    WB_ALETTER,
    WB_CR,
    WB_DOUBLE_QUOTE,
    WB_EXTEND,
    WB_EXTENDNUMLET,
    WB_FORMAT,
    WB_HEBREW_LETTER,
    WB_KATAKANA,
    WB_LF,
    WB_MIDLETTER,
    WB_MIDNUM,
    WB_MIDNUMLET,
    WB_NEWLINE,
    WB_NUMERIC,
    WB_REGIONAL_INDICATOR,
    WB_SINGLE_QUOTE,
    WB_WSEGSPACE,
    WB_ZWJ,
)

WHITESPACE, AUTO, CHARACTERS, UNICODE, TOKENS = 0, 1, 2, 3, 4

WORD_FIELDS = (
    "words", "chars", "longest", "alphabetic", "plain", "plain_chars", "symbols", "marked",
    "listed", "listed_exact", "listed_distinct", "median_twice",
)  # fmt: skip
"""Rows of the output of `measure_words`; see there."""

BLOCK = 4096
EDGES = 2 * BLOCK + 8
"""How many bytes `find_block` looks at in one go: its results stay in the nearest cache."""
MOST_BYTES = BLOCK // 2
_RUNS = 2 * MOST_BYTES + 16
_FIELD = 10  # bits
_SPACE_BIT = 63
_CHARS, _LETTERS, _DIGITS, _PUNCTUATION, _MARKERS, _UPPERS = np.uint64(1023) << np.arange(0, 60, _FIELD, np.uint64)
_ALPHANUMERIC_FIELDS = _LETTERS | _DIGITS


def _pack(flags):
    """What one character adds to the packed counts of a word: characters, letters, digits, ..."""
    fields = (-1, LETTER, DIGIT | NUMBER, PUNCTUATION, MARKER, UPPER)
    total = np.zeros(len(flags), np.uint64)
    for index, mask in enumerate(fields):
        total += ((flags.astype(np.int64) & mask != 0) | (mask == -1)).astype(np.uint64) << np.uint64(_FIELD * index)
    return total | (flags & SPACE).astype(np.uint64) << np.uint64(_SPACE_BIT)


PACKS = np.concatenate([_pack(KINDS[:128]), ROLES, _pack(KINDS[128:]), WHOLE_KEYS])
"""Packed counts of each byte of ASCII, its roles in `tokens`, packed counts of each class, words `tokens` keeps whole."""
PACKS.flags.writeable = False

_HISTOGRAM = 1024


@inlined
def break_of(point, points):
    return np.int64(points[class_of(point, points)])


@inlined
def _is_letter(kind):
    return kind == WB_ALETTER or kind == WB_HEBREW_LETTER


@inlined
def _is_ignored(kind):
    return kind == WB_EXTEND or kind == WB_FORMAT or kind == WB_ZWJ


@bare
def _decode(data, at, end):
    """`decode` where speed matters less than the time to compile."""
    return decode(data, at, end)


@part
def _peek(data, at, end, points):
    """The Word_Break value of the next character that WB4 does not ignore, or -1."""
    while at < end:
        point, at = _decode(data, at, end)
        kind = break_of(point, points)
        if not _is_ignored(kind):
            return kind
    return -1


@part
def next_break(data, at, end, points, kinds):
    """The end of the UAX #29 word segment that begins at `at`."""
    point, at = _decode(data, at, end)
    kind = break_of(point, points)
    if kind == WB_CR:
        return at + 1 if at < end and data[at] == 10 else at
    if kind == WB_LF or kind == WB_NEWLINE:
        return at
    last, before, raw = kind, np.int64(-1), kind
    regional = 1 if kind == WB_REGIONAL_INDICATOR else 0
    while at < end:
        point, after = _decode(data, at, end)
        cls = class_of(point, points)
        kind = np.int64(points[cls])
        if kind == WB_CR or kind == WB_LF or kind == WB_NEWLINE:
            return at
        if _is_ignored(kind):
            raw, at = kind, after
            continue
        letter = _is_letter(kind)
        joined = False
        if raw == WB_ZWJ and kinds[128 + cls] & PICTOGRAPH:  # WB3c
            joined = True
        elif kind == WB_WSEGSPACE:  # WB3d
            joined = raw == WB_WSEGSPACE
        elif letter:  # WB5, WB7, WB7c, WB10, WB13b
            joined = _is_letter(last) or last == WB_NUMERIC or last == WB_EXTENDNUMLET
            if last == WB_MIDLETTER or last == WB_MIDNUMLET or last == WB_SINGLE_QUOTE:
                joined = _is_letter(before)
            elif last == WB_DOUBLE_QUOTE:
                joined = before == WB_HEBREW_LETTER and kind == WB_HEBREW_LETTER
        elif kind == WB_NUMERIC:  # WB8, WB9, WB11, WB13b
            joined = last == WB_NUMERIC or _is_letter(last) or last == WB_EXTENDNUMLET
            if last == WB_MIDNUM or last == WB_MIDNUMLET or last == WB_SINGLE_QUOTE:
                joined = before == WB_NUMERIC
        elif kind == WB_KATAKANA:  # WB13, WB13b
            joined = last == WB_KATAKANA or last == WB_EXTENDNUMLET
        elif kind == WB_EXTENDNUMLET:  # WB13a
            joined = _is_letter(last) or last == WB_NUMERIC or last == WB_KATAKANA or last == WB_EXTENDNUMLET
        elif kind == WB_REGIONAL_INDICATOR:  # WB15, WB16
            joined = last == WB_REGIONAL_INDICATOR and regional % 2 == 1
            regional += 1
        elif _is_letter(last):
            if kind == WB_SINGLE_QUOTE and last == WB_HEBREW_LETTER:  # WB7a
                joined = True
            elif kind == WB_MIDLETTER or kind == WB_MIDNUMLET or kind == WB_SINGLE_QUOTE:  # WB6
                joined = _is_letter(_peek(data, after, end, points))
            elif kind == WB_DOUBLE_QUOTE and last == WB_HEBREW_LETTER:  # WB7b
                joined = _peek(data, after, end, points) == WB_HEBREW_LETTER
        elif last == WB_NUMERIC and (kind == WB_MIDNUM or kind == WB_MIDNUMLET or kind == WB_SINGLE_QUOTE):  # WB12
            joined = _peek(data, after, end, points) == WB_NUMERIC
        if not joined:
            return at
        before, last, raw, at = last, kind, kind, after
    return at


@bare
def next_word(data, at, end, mode, points, kinds):
    """(start, stop, chars, flags) of the next word; start == stop when there is none. Not for UNICODE."""
    while at < end:
        byte = data[at]
        if byte < 128:
            if not kinds[byte] & SPACE:
                break
            at += 1
        else:
            point, after = _decode(data, at, end)
            if not flags_of(point, points, kinds) & SPACE:
                break
            at = after
    start = at
    continuation = 0
    flags = np.int64(0)
    ends = np.int64(SPACE)
    singles = np.int64(0)
    if mode == AUTO:
        singles = np.int64(UNSPACED)
    elif mode == CHARACTERS:
        singles = np.int64(ALPHANUMERIC)
    while at < end:
        byte = data[at]
        after = at + 1
        if byte < 128:
            found = np.int64(kinds[byte])
        else:
            point, after = _decode(data, at, end)
            found = flags_of(point, points, kinds)
        if found & ends:
            break
        if found & singles:
            if flags & ALPHANUMERIC:
                break
            ends |= ALPHANUMERIC
        flags |= found
        continuation += after - at - 1
        at = after
    return start, at, at - start - continuation, flags


@part
def _find_spaced_block(data, at, end, singles, points, kinds, packs, edges, counts, base):
    """`find_block` for text split by spaces, without a branch per word as long as the bytes are ASCII.

    Every position is written down as the next edge, and stays only if a word begins or ends there. A letter with a
    flag in `singles` begins a word unless no letter or digit came before it in this one, and the next letter or digit
    begins another. Edges are put down from `base` on.
    """
    first = at
    limit = at + BLOCK if at + BLOCK < end else end
    found = base
    total = np.uint64(0)
    outside = np.uint64(1)
    while True:
        here, next_edge = np.uint64(at), np.uint64(found)
        while here < np.uint64(limit):
            byte = data[here]
            if byte >= 128:
                break
            pack = packs[byte]
            edges[next_edge] = np.int64(here)
            counts[next_edge] = total
            total += pack
            space = pack >> np.uint64(_SPACE_BIT)
            next_edge += space ^ outside
            outside = space
            here += np.uint64(1)
        at, found = np.int64(here), np.int64(next_edge)
        if at >= limit:
            break
        point, after = decode(data, at, end)
        cls = class_of(point, points)
        pack = packs[256 + cls]
        space = pack >> np.uint64(_SPACE_BIT)
        if space != outside:
            edges[found], counts[found] = at, total
            found += 1
            outside = space
        elif kinds[128 + cls] & singles and (total - counts[found - 1]) & _ALPHANUMERIC_FIELDS:
            edges[found], counts[found], edges[found + 1], counts[found + 1] = at, total, at, total
            found += 2
        total += pack
        at = after
        if kinds[128 + cls] & singles:
            flags = np.int64(SPACE)
            while at < end:
                point, after = decode(data, at, end)
                cls = class_of(point, points)
                flags = np.int64(kinds[128 + cls])
                if flags & (SPACE | ALPHANUMERIC):
                    break
                total += packs[256 + cls]
                at = after
            if at < end and not flags & SPACE:
                edges[found], counts[found], edges[found + 1], counts[found + 1] = at, total, at, total
                found += 2
    if outside == 0:
        edges[found], counts[found] = at, total
        if at >= end:
            return found + 1, at
        at = edges[found - 1]
        found -= 1
        if at == first:  # one word fills the block
            _, at, _, _ = next_word(data, first, end, np.int64(AUTO if singles else WHITESPACE), points, kinds)
            edges[base + 1] = at
            return base + 2, at
    return found, at


@part
def _find_character_block(data, at, end, points, kinds, packs, edges, counts):
    """`find_block` for words of one letter or digit each."""
    limit = at + BLOCK if at + BLOCK < end else end
    found = 0
    total = np.uint64(0)
    while at < limit:
        start, at, _, _ = next_word(data, at, end, np.int64(CHARACTERS), points, kinds)
        if start == at:
            break
        edges[found], counts[found] = start, total
        total = _add_span(data, start, at, points, packs, total)
        edges[found + 1], counts[found + 1] = at, total
        found += 2
    return found, at


@inlined
def _add_span(data, at, stop, points, packs, total):
    """Packed counts with those of a span added."""
    while at < stop:
        byte = data[at]
        if byte < 128:
            total += packs[byte]
            at += 1
        else:
            point, at = decode(data, at, stop)
            total += packs[256 + class_of(point, points)]
    return total


@inlined
def _is_joint(data, at, end, kinds):
    """Whether the ASCII byte at `at` joins the ASCII letters or digits on both sides of it (WB6, WB7, WB11, WB12)."""
    if at + 1 >= end or data[at + 1] >= 128:
        return False
    byte, around = data[at], kinds[data[at - 1]] & kinds[data[at + 1]]
    if byte == 46 or byte == 39:  # . '
        return around & (LETTER | DIGIT) != 0
    if byte == 58:  # :
        return around & LETTER != 0
    return (byte == 44 or byte == 59) and around & DIGIT != 0  # , ;


@part
def _find_unicode_block(data, at, end, points, kinds, packs, edges, counts):
    """`find_block` for UAX #29: ASCII words read here, all others by `next_break`."""
    limit = at + BLOCK if at + BLOCK < end else end
    found = 0
    total = np.uint64(0)
    while at < limit:
        byte = data[at]
        if byte < 128 and not kinds[byte] & ALPHANUMERIC and byte != 95:
            at += 1
            continue
        start, low = at, total
        while at < end and data[at] < 128:
            byte = data[at]
            if not kinds[byte] & ALPHANUMERIC and byte != 95 and (at == start or not _is_joint(data, at, end, kinds)):
                break
            total += packs[byte]
            at += 1
        wide = at < end and (data[at] >= 128 or (at + 1 < end and data[at + 1] >= 128))
        if at == start or wide:
            at = next_break(data, start, end, points, kinds)
            total = _add_span(data, start, at, points, packs, low)
        if at - start >= 1 << _FIELD or (total - low) & _ALPHANUMERIC_FIELDS:
            edges[found], counts[found], edges[found + 1], counts[found + 1] = start, low, at, total
            found += 2
    return found, at


@bare
def _split_token_run(data, start, stop, low, high, points, kinds, packs, edges, counts, found):
    """Put down the tokens of a run that is more than letters and digits; returns the next place."""
    seen, at = np.int64(0), start
    while at < stop:
        byte = data[at]
        if byte < 128:
            seen |= np.int64(kinds[byte])
            at += 1
        else:
            point, at = decode(data, at, stop)
            seen |= flags_of(point, points, kinds)
    if not seen & (PUNCTUATION | SYMBOL) or stop - start > MOST_BYTES:
        edges[found], counts[found], edges[found + 1], counts[found + 1] = start, low, stop, high
        return found + 2
    last = split_run(data, start, stop, points, kinds, packs, edges, found)
    while found < last:
        counts[found] = low
        low = _add_span(data, edges[found], edges[found + 1], points, packs, low)
        counts[found + 1] = low
        found += 2
    return found


@bare
def _find_token_block(data, at, end, points, kinds, packs, edges, counts):
    """`find_block` for tokens: runs between spaces are found first, and those that are no plain word taken apart.

    The runs are put down behind the room that their tokens can take.
    """
    limit = at + MOST_BYTES if at + MOST_BYTES < end else end
    runs, after = _find_spaced_block(data, at, limit, np.int64(0), points, kinds, packs, edges, counts, np.int64(_RUNS))
    if limit < end and runs > _RUNS and edges[runs - 1] == limit:  # the last run may go on
        after = edges[runs - 2]
        runs -= 2
        if after == at:  # it fills the block
            _, after, _, _ = next_word(data, at, end, np.int64(WHITESPACE), points, kinds)
            high = _add_span(data, at, after, points, packs, np.uint64(0))
            return _split_token_run(
                data, at, after, np.uint64(0), high, points, kinds, packs, edges, counts, np.int64(0)
            ), after
    found = np.int64(0)
    for index in range(_RUNS, runs, 2):
        start, stop = edges[index], edges[index + 1]
        low, high = counts[index], counts[index + 1]
        packed = high - low
        others = (
            (packed & _CHARS)
            - ((packed & _LETTERS) >> np.uint64(_FIELD))
            - ((packed & _DIGITS) >> np.uint64(2 * _FIELD))
        )
        last = data[stop - 1]
        short = stop - start < 1 << _FIELD
        if short and others == np.uint64(0):
            edges[found], counts[found], edges[found + 1], counts[found + 1] = start, low, stop, high
            found += 2
        elif (
            short
            and others == np.uint64(1)
            and stop - start > 1
            and ends_in_mark(packs, data[start], data[stop - 2], last, stop - start)
        ):
            middle = high - packs[last]
            edges[found], counts[found], edges[found + 1], counts[found + 1] = start, low, stop - 1, middle
            edges[found + 2], counts[found + 2], edges[found + 3], counts[found + 3] = stop - 1, middle, stop, high
            found += 4
        else:
            found = _split_token_run(data, start, stop, low, high, points, kinds, packs, edges, counts, found)
    return found, after


@part
def _count_long(data, start, stop, points, packs):
    """(characters of a span, packed counts whose fields say no more than whether there is any)."""
    chars, found = 0, np.uint64(0)
    while start < stop:
        point, start = _decode(data, start, stop)
        found |= packs[256 + class_of(point, points)]
        chars += 1
    return chars, found


@inlined
def find_block(data, at, end, mode, points, kinds, packs, edges, counts):
    """Find the words of the next few kilobytes: (number of edges, position to go on from).

    Word i begins at edges[2 i] and ends at edges[2 i + 1] (int64); counts (uint64) holds at each edge the packed
    counts up to there, see `chars_between`. Both have room for EDGES.
    """
    if mode == WHITESPACE or mode == AUTO:
        singles = np.int64(UNSPACED) if mode == AUTO else np.int64(0)
        return _find_spaced_block(data, at, end, singles, points, kinds, packs, edges, counts, np.int64(0))
    if mode == UNICODE:
        return _find_unicode_block(data, at, end, points, kinds, packs, edges, counts)
    if mode == TOKENS:
        return _find_token_block(data, at, end, points, kinds, packs, edges, counts)
    return _find_character_block(data, at, end, points, kinds, packs, edges, counts)


@inlined
def chars_between(data, start, stop, low, high):
    """The characters of a word from its packed counts, or counted again where those may have overflowed."""
    if stop - start < 1 << _FIELD:
        return np.int64((high - low) & np.uint64((1 << _FIELD) - 1))
    chars = 0
    for at in range(start, stop):
        chars += (data[at] & 0xC0) != 0x80
    return chars


@kernel
def find_words(data, offsets, mode, points, kinds, packs, starts, stops):
    """Write the words of all rows to starts and stops (int64), if these are not empty, and return how many there are."""
    edges, counts = np.empty(EDGES, np.int64), np.empty(EDGES, np.uint64)
    words = 0
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        while at < end:
            found, at = find_block(data, at, end, mode, points, kinds, packs, edges, counts)
            for index in range(0, found, 2):
                if len(starts):
                    starts[words], stops[words] = edges[index], edges[index + 1]
                words += 1
    return words


@kernel
def find_breaks(data, offsets, points, kinds, breaks):
    """Write the ends of all UAX #29 segments of all rows to breaks (int64) and return how many there are."""
    count = 0
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        while at < end:
            at = next_break(data, at, end, points, kinds)
            breaks[count] = at
            count += 1
    return count


@part
def _is_symbol_word(data, start, stop, chars, markers, alphanumerics):
    """Whether a word is an ellipsis mark ("...", "[...]", "(...)", the character, "[.]" with it) or mostly '#'."""
    if markers:
        hashes = 0
        for at in range(start, stop):
            if data[at] == 35:
                hashes += 1
        if 2 * hashes > chars:
            return True
    if alphanumerics:
        return False
    first, last = data[start], data[stop - 1]
    if stop - start >= 5 and ((first == 91 and last == 93) or (first == 40 and last == 41)):
        start, stop = start + 1, stop - 1
    if stop - start != 3:
        return False
    dots = data[start] == 46 and data[start + 1] == 46 and data[start + 2] == 46
    glyph = data[start] == 0xE2 and data[start + 1] == 0x80 and data[start + 2] == 0xA6
    arrow = data[start] == 45 and data[start + 1] == 0xC2 and data[start + 2] == 0xBB
    return dots or glyph or arrow


@inlined
def _find_listed(data, start, stop, keys, longest, probes):
    """(the hash of a word, its slot in the table `keys` if it is there); `probes`: see `_most_probes`."""
    if longest <= 8 and start + 8 <= len(data):  # then a word of more than 8 bytes has a hash that no listed one has
        key = hash_start(data, start, stop)
    elif stop - start <= longest:
        key = _hash_lowered(data, start, stop)
    else:
        key = np.uint64(1)
    mask = np.uint64(len(keys) - 1)
    slot = key & mask
    for _ in range(1, probes):
        slot = slot if keys[slot] == key else (slot + np.uint64(1)) & mask
    return key, slot


@part
def _most_probes(keys):
    """How many slots must be tried to find the keys of a table, of the one that takes the most."""
    probes = 1
    mask = np.uint64(len(keys) - 1)
    for slot in range(len(keys)):
        if keys[slot]:
            away = np.int64((np.uint64(slot) - keys[slot]) & mask)
            probes = away + 1 if away >= probes else probes
    return probes


@part
def _hash_lowered(data, start, stop):
    """`hash_lowered` where the time to compile matters more."""
    return hash_lowered(data, start, stop)


@kernel
def measure_words(data, offsets, mode, points, kinds, packs, keys, longest, out):
    """Per row, in the order of WORD_FIELDS; out int64[fields, rows].

    words          how many                          chars        their characters
    longest        characters of the longest         alphabetic   words with a letter
    plain          words not all punctuation,        plain_chars  their characters
                   symbols and controls
    symbols        words that are an ellipsis mark   marked       words with a '#' or an ellipsis character
                   or mostly '#'
    listed         words in the table `keys`, A-Z    listed_exact the same, in lower case in the text
                   read as a-z
    listed_distinct  different ones of the latter    median_twice twice the median length, lengths above
                                                                  1023 taken as 1023

    keys: hashes of the listed words in a table (`fill_table`); longest: the most bytes one of them has.
    """
    histogram = np.zeros(_HISTOGRAM, np.int64)
    seen = np.zeros(len(keys), np.int64)
    probes = _most_probes(keys)
    edges, counts = np.empty(EDGES, np.int64), np.empty(EDGES, np.uint64)
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        words = total = most = alphabetic = plain = plain_chars = symbols = marked = np.int64(0)
        listed = exact = distinct = np.int64(0)
        while at < end:
            found, at = find_block(data, at, end, mode, points, kinds, packs, edges, counts)
            words += found >> 1
            for index in range(
                0, found, 2
            ):  # no branches that words take at random: a wrong guess costs more than all else
                start, stop = edges[index], edges[index + 1]
                packed = counts[index + 1] - counts[index]
                chars = np.int64(packed & _CHARS)
                if stop - start >= 1 << _FIELD:
                    chars, packed = _count_long(data, start, stop, points, packs)
                total += chars
                most = chars if chars > most else most
                histogram[chars if chars < _HISTOGRAM else _HISTOGRAM - 1] += 1
                named, marks = packed & _ALPHANUMERIC_FIELDS != 0, packed & _MARKERS != 0
                alphabetic += packed & _LETTERS != 0
                plain += named
                plain_chars += chars if named else 0
                marked += marks
                if (marks | (not named)) & (packed & _PUNCTUATION != 0):
                    symbols += _is_symbol_word(data, start, stop, chars, marks, named)
                key, slot = _find_listed(data, start, stop, keys, longest, probes)
                known = keys[slot] == key
                low = known & (packed & _UPPERS == 0)
                listed += known
                exact += low
                distinct += low & (seen[slot] != row + 1)
                seen[slot] = row + 1 if low else seen[slot]
        out[0, row], out[1, row], out[2, row], out[3, row] = words, total, most, alphabetic
        out[4, row], out[5, row], out[6, row], out[7, row] = plain, plain_chars, symbols, marked
        out[8, row], out[9, row], out[10, row] = listed, exact, distinct
        out[11, row] = _twice_median(histogram, words, most if most < _HISTOGRAM else _HISTOGRAM - 1)


@part
def _twice_median(histogram, count, most):
    """Twice the median of the lengths counted in histogram, which is emptied."""
    low, high = (count - 1) // 2, count // 2
    passed, result = 0, 0
    for length in range(most + 1):
        here = histogram[length]
        if here:
            if passed <= low < passed + here:
                result += length
            if passed <= high < passed + here:
                result += length
            passed += here
            histogram[length] = 0
    return result
