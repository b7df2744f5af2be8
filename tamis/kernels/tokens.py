"""Split runs of non-space characters into tokens: punctuation is separated from words, much as in spaCy's English tokenizer.

    (don't!)      ( do n't ! )        each mark at either end is a token
    and so...     and so ...          two or more dots are one token; so are '' ): :( and similar pairs (FACES)
    U.S. e.g.     U.S. e.g.           a final dot is a mark, except after a single letter
    Mr. Smith.    Mr. Smith .         and in the abbreviations of WHOLE
    it's we'll    it 's we 'll        's 'm 'd 'll 've 're and n't are tokens
    well-known    well - known        tokens inside a run: a dash or one of : < > = / after a letter or digit and before a
    1-2 end.Then  1 - 2 end . Then    letter, a comma between letters, one of - + * ^ between digits, a dot before a capital,
    a...b x°y     a ... b x ° y       dots, the ellipsis and symbols outside ASCII
    www.a.com/b   www.a.com/b         addresses are not split

Marks are the punctuation and symbols of Unicode except . - / \\ @ | ~ ^ and a plus without a digit next to it.

spaCy (3.8, `lang/punctuation.py`, `lang/en/`) has more exceptions: it splits cannot, dont, gonna, 5km and 10am, and joins most
emoticons and a few signs such as the dagger to their neighbours.
"""
# mypy: disallow-untyped-defs=False
# ruff: noqa: SIM109

from __future__ import annotations

import numpy as np

from tamis.kernels.characters import decode, flags_of
from tamis.kernels.jit import array_at, bare, inlined, kernel
from tamis.kernels.masks import LANES, ONE, below, block_at, lowest, matcher
from tamis.kernels.unicode_tables import DIGIT, KINDS, LETTER, LOWER, MARKER, PUNCTUATION, SPACE, SYMBOL, UPPER
from tamis.kernels.words import (
    SPACES,
    base_of,
    clear_marks,
    mark_ends,
    mark_word,
    next_word,
    outside,
    run_start,
    run_stop,
)

WHOLE = (
    "and/or", "Adm.", "Ak.", "Ala.", "Apr.", "Ariz.", "Ark.", "Aug.", "Bros.", "Calif.", "Co.", "Colo.", "Conn.",
    "Corp.", "Dec.", "Del.", "Dr.", "Feb.", "Fla.", "Ga.", "Gen.", "Gov.", "Ia.", "Id.", "Ill.", "Inc.", "Ind.", "Jan.",
    "Jr.", "Jul.", "Jun.", "Kan.", "Kans.", "Ky.", "La.", "Ltd.", "Mar.", "Mass.", "Md.", "Messrs.", "Mich.", "Minn.",
    "Miss.", "Mo.", "Mont.", "Mr.", "Mrs.", "Ms.", "Mt.", "Neb.", "Nebr.", "Nev.", "Nov.", "Oct.", "Okla.", "Ore.",
    "Pa.", "Ph.D.", "Prof.", "Rep.", "Rev.", "Sen.", "Sep.", "Sept.", "St.", "Tenn.", "Va.", "Wash.", "Wis.", "co.",
    "vs.",
)  # fmt: skip
"""Words that are not split, at most eight letters each: the abbreviations in spaCy's `lang/en/tokenizer_exceptions.py`."""

FACES = ["''", ":)", "):", ":(", "(:", ":]", "[:", "=)", "(=", "=(", "=]", "]=", "=[", "[=", ";)", "(;"]
"""Pairs of marks that form one token (spaCy's `BASE_EXCEPTIONS`)."""

LEFT_INSIDE = ".-/\\@|~^+"
"""ASCII punctuation and symbols that are not marks."""

MOST_BYTES = 2048
"""Longer runs without a space are one token."""
EDGES = 2 * MOST_BYTES + 16
_HIGH = np.uint64(LANES - 1)
_MARK, _ICON, _INNER, _SCHEME = 1 << 16, 1 << 17, 1 << 18, 1 << 19
_PLAIN = LETTER | DIGIT


def _roles():
    """Return the flags of ASCII characters, with those of this module added."""
    roles = KINDS[:128].astype(np.int64)
    roles |= np.where(roles & (PUNCTUATION | SYMBOL) != 0, _MARK, 0)
    roles[list(LEFT_INSIDE.encode())] &= ~_MARK
    roles[list(b".,:<>=/-+*^~")] |= _INNER
    roles |= np.where(roles & (LETTER | DIGIT) != 0, _SCHEME, 0)
    roles[list(b"_+-.")] |= _SCHEME
    return roles.astype(np.uint64)


_WHOLE_KEYS = np.sort(np.array([int.from_bytes(word.encode(), "little") for word in WHOLE], np.uint64))
ROLES = np.concatenate([_roles(), _WHOLE_KEYS])
"""The roles of each ASCII byte, followed by the words of WHOLE as sorted integers."""
_NUM_WHOLE = len(_WHOLE_KEYS)
ROLES.flags.writeable = False

(_PLUS, _COMMA, _DASH, _DOT, _SLASH, _COLON, _LESS, _EQUAL, _GREATER, _AT, _CARET, _STAR, _TILDE, _LOW, _QUERY, _HASH,
 _QUOTE, _SEMICOLON, _OPEN, _CLOSE, _OPEN_SQUARE, _CLOSE_SQUARE) = b"+,-./:<=>@^*~_?#';()[]"  # fmt: skip


@inlined
def _role(tables, byte):
    """Return the flags of an ASCII byte, 0 for any other byte."""
    return np.int64(array_at(tables[2], np.uint64)[np.int64(byte) & 127]) * np.int64(byte < 128)


@inlined
def _is_face(first, second):
    """Return whether two bytes are one of FACES."""
    if second == _QUOTE:
        return first == _QUOTE
    if second == _COLON:
        return first == _CLOSE or first == _OPEN or first == _OPEN_SQUARE
    if second == _EQUAL:
        return first == _OPEN or first == _OPEN_SQUARE or first == _CLOSE_SQUARE
    if second == _CLOSE:
        return first == _COLON or first == _EQUAL or first == _SEMICOLON
    if second == _OPEN or second == _CLOSE_SQUARE:
        return first == _COLON or first == _EQUAL
    if second == _OPEN_SQUARE:
        return first == _EQUAL
    return second == _SEMICOLON and first == _OPEN


@bare
def _read(text, at, end, tables):
    """Return (flags of the character at `at`, position after it)."""
    data = array_at(text, np.uint8)
    byte = data[at]
    if byte < 128:
        return _role(tables, byte), at + 1
    point, after = decode(data, at, end)
    flags = flags_of(point, array_at(tables[0], np.uint8), array_at(tables[1], np.uint16))
    flags |= _MARK if flags & (PUNCTUATION | SYMBOL) else 0
    flags |= _ICON if flags & (SYMBOL | MARKER) else 0
    return flags, after


@bare
def _read_back(text, start, at, tables):
    """Return (flags of the character that ends at `at`, its position)."""
    data = array_at(text, np.uint8)
    place = at - 1
    while place > start and at - place < 4 and data[place] & 0xC0 == 0x80:
        place -= 1
    flags, after = _read(text, place, at, tables)
    if after != at:
        return np.int64(0), at - 1
    return flags, place


@bare
def _is_whole(text, start, stop, tables):
    """Return whether a span is one of WHOLE."""
    data = array_at(text, np.uint8)
    if stop - start > 8:
        return False
    key = np.uint64(0)
    for index in range(stop - start):
        key |= np.uint64(data[start + index]) << np.uint64(8 * index)
    whole = array_at(tables[2], np.uint64)
    low, high = 128, 128 + _NUM_WHOLE
    while low < high:
        middle = (low + high) // 2
        if whole[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low < 128 + _NUM_WHOLE and whole[low] == key


@bare
def _mark_size(text, at, stop, tables):
    """Return the size in bytes of the mark that starts at `at`, 0 if there is none."""
    data = array_at(text, np.uint8)
    byte = data[at]
    if byte == _DOT:
        end = at + 1
        while end < stop and data[end] == _DOT:
            end += 1
        return end - at if end - at > 1 else 0
    if at + 1 < stop and _is_face(byte, data[at + 1]):
        return 2
    if byte == _PLUS:
        return 0 if at + 1 < stop and data[at + 1] < 128 and _role(tables, data[at + 1]) & DIGIT else 1
    flags, after = _read(text, at, stop, tables)
    return after - at if flags & _MARK else 0


@bare
def _last_mark_size(text, start, stop, tables):
    """Return the size in bytes of the mark that ends at `stop`, 0 if there is none."""
    data = array_at(text, np.uint8)
    flags, place = _read_back(text, start, stop, tables)
    if flags & _MARK:
        return stop - place
    byte = data[stop - 1]
    if (byte != _DOT and byte != _PLUS) or stop - 1 == start:
        return 0
    before, place = _read_back(text, start, stop - 1, tables)
    if byte == _PLUS:
        return 1 if before & DIGIT else 0
    if data[stop - 2] == _DOT:
        place = stop - 2
        while place > start and data[place - 1] == _DOT:
            place -= 1
        return stop - place
    if not before & LETTER:
        return 1 if before & (DIGIT | _MARK) or data[stop - 2] == _DASH or data[stop - 2] == _PLUS else 0
    if place == start or _is_whole(text, start, stop, tables):
        return 0
    further, _ = _read_back(text, start, place, tables)
    if further & LETTER:
        return 1
    return 0 if before & UPPER or data[place - 1] == _DOT else 1


@bare
def _are_letters(text, start, stop, tables):
    while start < stop:
        flags, start = _read(text, start, stop, tables)
        if not flags & LETTER:
            return False
    return True


@bare
def _clitic_size(text, start, stop, tables):
    """Return the size in bytes of 's 'm 'd 'll 've 're or n't at the end of a span, 0 if there is none."""
    data = array_at(text, np.uint8)
    for size in range(1, 3):
        place = stop - size - 1
        if place <= start:
            return 0
        if data[place] != _QUOTE:
            place -= 2
            if place <= start or data[place] != 0xE2 or data[place + 1] != 0x80 or data[place + 2] != 0x99:
                continue
        first, last = data[stop - size] | 32, data[stop - 1] | 32
        before, _ = _read_back(text, start, place, tables)
        if size == 1 and last == 115:
            return stop - place if before & (LETTER | DIGIT) else 0
        if size == 1 and last == 116 and data[place - 1] | 32 == 110:
            place -= 1
        elif not (size == 1 and (last == 109 or last == 100)) and not (
            size == 2 and ((first == 108 and last == 108) or ((first == 118 or first == 114) and last == 101))
        ):
            return 0
        return stop - place if place > start and _are_letters(text, start, place, tables) else 0
    return 0


@bare
def _is_address(text, start, stop, tables):
    """Return whether a span looks like a URL, host name or e-mail address: labels and dots, then lower-case letters."""
    data = array_at(text, np.uint8)
    at = start
    while at < stop and (data[at] >= 128 or _role(tables, data[at]) & _SCHEME):
        at += 1
    if at - start < 2 or at + 2 >= stop or data[at] != _COLON or data[at + 1] != _SLASH or data[at + 2] != _SLASH:
        at = start
    else:
        at += 3
    for place in range(at, stop):
        if data[place] == _AT:
            at = place + 1
    label, dots, lower = at, 0, True
    while at < stop:
        byte = data[at]
        if byte == _DOT:
            if (
                at == label
                or data[label] == _DASH
                or data[label] == _LOW
                or data[at - 1] == _DASH
                or data[at - 1] == _LOW
            ):
                return False
            label, dots, lower = at + 1, dots + 1, True
        elif byte < 128:
            flags = _role(tables, byte)
            if not flags & (LETTER | DIGIT) and byte != _DASH and byte != _LOW:
                break
            lower &= flags & LOWER != 0
        else:
            lower = False
        at += 1
    if not dots or not lower or at - label < 2:
        return False
    if at == stop:
        return True
    byte = data[at]
    if byte == _COLON:
        return at + 2 < stop and data[at + 1] < 128 and _role(tables, data[at + 1]) & DIGIT != 0
    return byte == _SLASH or byte == _QUERY or byte == _HASH


@bare
def _inner_size(text, at, stop, before, tables):
    """Return the size in bytes of the mark that splits a word at `at`, 0 if there is none.

    before: flags of the preceding character.
    """
    data = array_at(text, np.uint8)
    flags, after = _read(text, at, stop, tables)
    byte = data[at]
    if byte == _DOT:
        end = after
        while end < stop and data[end] == _DOT:
            end += 1
        if end - at > 1 or end == stop:
            return end - at if end - at > 1 else 0
        following, _ = _read(text, after, stop, tables)
        ends = before & (LETTER | UPPER) == LETTER
        return 1 if ends and following & (LETTER | LOWER) == LETTER else 0
    if flags & _ICON:
        return after - at
    if after >= stop or not before & (LETTER | DIGIT):
        return 0
    following, _ = _read(text, after, stop, tables)
    if byte == _COMMA:
        return 1 if before & LETTER and following & LETTER else 0
    if byte == _COLON or byte == _LESS or byte == _EQUAL or byte == _GREATER or byte == _SLASH:
        return 1 if following & LETTER else 0
    joins = byte == _DASH or byte == _PLUS or byte == _STAR or byte == _CARET
    if joins and before & DIGIT and (following & DIGIT or data[after] == _DASH):
        return 1
    long = byte == 0xE2 and after - at == 3 and data[at + 1] == 0x80 and data[at + 2] == 0x94
    short = byte == 0xE2 and after - at == 3 and data[at + 1] == 0x80 and data[at + 2] == 0x93
    if byte != _DASH and byte != _TILDE and not long and not short:
        return 0
    if byte == _DASH:
        while after < stop and after - at < 3 and data[after] == _DASH:
            after += 1
    elif long and after + 2 < stop and data[after] == 0xE2 and data[after + 1] == 0x80 and data[after + 2] == 0x94:
        after += 3
    if after >= stop:
        return 0
    following, _ = _read(text, after, stop, tables)
    return after - at if following & LETTER else 0


@inlined
def _put(places, found, start, stop):
    edges = array_at(places, np.int64)
    edges[found], edges[found + 1] = start, stop
    return found + 2 * np.int64(start < stop)


@bare
def _split_inside(text, start, stop, tables, places, found):
    """Append the tokens of a span without marks at either end."""
    data = array_at(text, np.uint8)
    begun = at = start
    before, may_split = np.int64(0), False
    while at < stop:
        byte = data[at]
        if byte < 128:
            flags, after = _role(tables, byte), at + 1
            inner = flags & _INNER != 0
        else:
            flags, after = _read(text, at, stop, tables)
            inner = flags & _MARK != 0
        size = _inner_size(text, at, stop, before, tables) if inner else 0
        if size and not may_split:
            if _is_whole(text, start, stop, tables) or _is_address(text, start, stop, tables):
                break
            may_split = True
        if size:
            found = _put(places, found, begun, at)
            found = _put(places, found, at, at + size)
            begun = after = at + size
        before, at = flags, after
    return _put(places, found, begun, stop)


@bare
def _split_run(text, start, stop, tables, places, found):
    """Append the starts and ends of the tokens of a run without spaces at index `found`; return the next free index."""
    data = array_at(text, np.uint8)
    at = start
    while at < stop and not _role(tables, data[at]) & _PLAIN:
        size = 1
        if not _role(tables, data[at]) & _MARK or (at + 1 < stop and not _role(tables, data[at + 1]) & _PLAIN):
            size = _mark_size(text, at, stop, tables)
        if size == 0:
            break
        found = _put(places, found, at, at + size)
        at += size
    last = stop
    while last > at and not _role(tables, data[last - 1]) & _PLAIN:
        size = 1
        if not _role(tables, data[last - 1]) & _MARK:
            size = _last_mark_size(text, at, last, tables)
        if size == 0:
            break
        last -= size
    clitic = last
    if last - at > 2 and not (_role(tables, data[last - 2]) & _PLAIN and _role(tables, data[last - 3]) & _PLAIN):
        clitic -= _clitic_size(text, at, last, tables)
    place = at
    while place < clitic and data[place] < 128 and not _role(tables, data[place]) & _INNER:
        place += 1
    if place == clitic:
        found = _put(places, found, at, clitic)
    else:
        found = _split_inside(text, at, clitic, tables, places, found)
    found = _put(places, found, clitic, last)
    while last < stop:
        size = 1
        if stop - last > 1:
            size = _mark_size(text, last, stop, tables)
            size = size if size else 1
        found = _put(places, found, last, last + size)
        last += size
    return found


# ------------------------------------------------------------------------------------------------- 64 bytes at a time

_match = matcher(
    SPACES,
    [byte for byte in range(128) if _roles()[byte] & _PLAIN],
    [byte for byte in range(128) if _roles()[byte] & _MARK],
    [byte for byte in range(128) if _roles()[byte] & _MARK and not _roles()[byte] & _INNER and byte != _QUOTE],
    b".",
)


@inlined
def _begins_run(text, start, at, tables):
    """Return whether a run starts at `at`, ignoring a mark before it; the row starts at `start`."""
    data = array_at(text, np.uint8)
    if at > start and _role(tables, data[at - 1]) & _MARK:
        at -= 1
    return at == start or _role(tables, data[at - 1]) & SPACE != 0


@bare
def _ends_a_word(text, start, at, tables):
    """Return whether the dot at `at`, between a letter or digit and a space, is a token.

    The rest of the run contains letters, digits, marks that never split a word, and at most one mark at its start.
    """
    data = array_at(text, np.uint8)
    before = _role(tables, data[at - 1])
    if before & DIGIT:
        return True
    if _begins_run(text, start, at - 1, tables):
        return False
    if not _role(tables, data[at - 2]) & LETTER:
        return not before & UPPER
    first = at - 2
    while first > start and at - first < 8 and _role(tables, data[first - 1]) & _PLAIN:
        first -= 1
    return not (_begins_run(text, start, first, tables) and _is_whole(text, first, at + 1, tables))


@bare
def _next_run(text, at, stop, tables):
    """Return (start, stop, combined flags) of the next run without Unicode whitespace, as `words.next_word` does."""
    data, points, kinds = array_at(text, np.uint8), array_at(tables[0], np.uint8), array_at(tables[1], np.uint16)
    return next_word(data, at, stop, np.int64(0), points, kinds)


@inlined
def _mark_tokens(text, start, stop, tables, places, begins, ends, base):
    """Mark the tokens of a run without ASCII spaces one by one."""
    while start < stop:
        start, after, flags = _next_run(text, start, stop, tables)
        found = np.int64(0)
        if not flags & (PUNCTUATION | SYMBOL) or after - start > MOST_BYTES:
            found = _put(places, found, start, after)
        else:
            found = _split_run(text, start, after, tables, places, found)
        edges = array_at(places, np.int64)
        for index in range(0, found, 2):
            mark_word(begins, ends, base, edges[index], edges[index + 1])
        start = after


@kernel
def find_tokens(data, tail, offsets, points, kinds, roles, edges, begins, ends):
    """Mark the tokens of all rows, see `words`.

    Runs of ASCII letters and digits with at most one mark at either end, and inner marks that never split a word, are handled
    64 bytes at a time; all other runs are examined a second time, one by one. edges: int64[EDGES], scratch space.
    """
    base = base_of(offsets)
    text, places = data.ctypes.data, edges.ctypes.data
    tables = (points.ctypes.data, kinds.ctypes.data, roles.ctypes.data)
    for row in range(len(offsets) - 1):
        start, stop = offsets[row], offsets[row + 1]
        done = start  # tokens that begin before here are marked
        space_before, plain_before, word_before = ONE, np.uint64(0), np.uint64(0)
        for block in range((start - base) // LANES, (stop - base + LANES - 1) // LANES):
            at = base + block * LANES
            space, plain, mark, bound, dot = _match(block_at(data, tail, at))
            beyond = outside(at, start, stop)
            space, plain = space | beyond, plain & ~beyond
            following = _role(tables, data[at + LANES]) if at + LANES < stop else np.int64(SPACE)
            after_space = space >> ONE | np.uint64(following & SPACE != 0) << _HIGH
            after_plain = plain >> ONE | np.uint64(following & _PLAIN != 0) << _HIGH
            before_space, before_plain = space << ONE | space_before, plain << ONE | plain_before
            space_before, plain_before = space >> _HIGH, plain >> _HIGH
            alone = mark & ~beyond & ((before_space & (after_space | after_plain)) | (before_plain & after_space))
            inner = plain | (bound & before_plain & after_plain)
            last = dot & ~beyond & before_plain & after_space
            inner |= last
            while last:
                bit = lowest(last)
                if _ends_a_word(text, start, at + bit, tables):
                    alone |= ONE << np.uint64(bit)
                last &= last - ONE
            odd = ~(space | inner | alone)
            if space == 0:  # the run may be longer than MOST_BYTES
                odd |= ONE
            odd &= ~below(done - at)
            word = ~space & ~alone
            starts = alone | (word & ~(word << ONE | word_before))
            after_end = ~before_space & (space | starts)
            word_before = word >> _HIGH
            begins[block] |= starts & ~below(done - at)
            mark_ends(ends, block, after_end & ~below(done - at + 1))
            while odd:
                bit = lowest(odd)
                first, done = run_start(data, space, at, bit, start), run_stop(data, space, at, bit, stop)
                clear_marks(begins, ends, base, first, done)
                _mark_tokens(text, first, done, tables, places, begins, ends, base)
                odd &= ~below(done - at)
        if space_before == 0 and done < stop:
            ends[(stop - 1 - base) // LANES] |= ONE << np.uint64((stop - 1 - base) % LANES)
