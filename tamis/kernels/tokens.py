"""Tokens of a run of characters without spaces: punctuation apart from words, much as spaCy's English tokenizer has it.

    (don't!)      ( do n't ! )        marks at either end are tokens, each its own
    and so...     and so ...          two dots or more are one token; so are '' ): :( and their like
    U.S. e.g.     U.S. e.g.           a dot at the end is a mark, but not after a letter that stands alone,
    Mr. Smith.    Mr. Smith .         nor in the abbreviations of WHOLE
    it's we'll    it 's we 'll        's 'm 'd 'll 've 're, and n't
    well-known    well - known        inside, a dash or one of : < > = / after a letter or digit and before a letter,
    1-2 end.Then  1 - 2 end . Then    a comma between letters, one of - + * ^ between digits, a dot before a capital,
    a...b x°y     a ... b x ° y       dots, the ellipsis and symbols outside ASCII
    www.a.com/b   www.a.com/b         nothing inside an address

Marks are punctuation and symbols of Unicode other than . - / \\ @ | ~ ^ and a plus that no digit is beside.

spaCy (3.8, `lang/punctuation.py`, `lang/en/`) has more exceptions: cannot, dont and gonna come apart there, and so do
5km and 10am; most faces and a few signs such as the dagger are one token with what they touch.
"""
# mypy: disallow-untyped-defs=False
# ruff: noqa: SIM109

from __future__ import annotations

import numpy as np

from tamis.kernels.characters import decode, flags_of
from tamis.kernels.jit import bare, inlined
from tamis.kernels.spans import tail64
from tamis.kernels.unicode_tables import DIGIT, KINDS, LETTER, LOWER, MARKER, PUNCTUATION, SYMBOL, UPPER

WHOLE = (
    "and/or", "Adm.", "Ak.", "Ala.", "Apr.", "Ariz.", "Ark.", "Aug.", "Bros.", "Calif.", "Co.", "Colo.", "Conn.",
    "Corp.", "Dec.", "Del.", "Dr.", "Feb.", "Fla.", "Ga.", "Gen.", "Gov.", "Ia.", "Id.", "Ill.", "Inc.", "Ind.", "Jan.",
    "Jr.", "Jul.", "Jun.", "Kan.", "Kans.", "Ky.", "La.", "Ltd.", "Mar.", "Mass.", "Md.", "Messrs.", "Mich.", "Minn.",
    "Miss.", "Mo.", "Mont.", "Mr.", "Mrs.", "Ms.", "Mt.", "Neb.", "Nebr.", "Nev.", "Nov.", "Oct.", "Okla.", "Ore.",
    "Pa.", "Ph.D.", "Prof.", "Rep.", "Rev.", "Sen.", "Sep.", "Sept.", "St.", "Tenn.", "Va.", "Wash.", "Wis.", "co.",
    "vs.",
)  # fmt: skip
"""What is not taken apart, of at most eight letters: the abbreviations of spaCy's `lang/en/tokenizer_exceptions.py`."""

FACES = ["''", ":)", "):", ":(", "(:", ":]", "[:", "=)", "(=", "=(", "=]", "]=", "=[", "[=", ";)", "(;"]
"""Two marks that are one token (spaCy's `BASE_EXCEPTIONS`)."""

LEFT_INSIDE = ".-/\\@|~^+"
"""Punctuation and symbols of ASCII that are no marks."""

_MARK, _ICON, _INNER, _SCHEME = 1 << 16, 1 << 17, 1 << 18, 1 << 19
_PLAIN = LETTER | DIGIT


def _roles():
    """Flags of ASCII with those of this module."""
    roles = KINDS[:128].astype(np.int64)
    roles |= np.where(roles & (PUNCTUATION | SYMBOL) != 0, _MARK, 0)
    roles[list(LEFT_INSIDE.encode())] &= ~_MARK
    roles[list(b".,:<>=/-+*^~")] |= _INNER
    roles |= np.where(roles & (LETTER | DIGIT) != 0, _SCHEME, 0)
    roles[list(b"_+-.")] |= _SCHEME
    return roles.astype(np.uint64)


ROLES = _roles()
"""What `packs` holds for the bytes of ASCII from 128 on: an array of its own in a kernel would be copied at every call."""

WHOLE_KEYS = np.sort(np.array([int.from_bytes(word.encode(), "little") for word in WHOLE], np.uint64))
"""What `packs` holds at its end."""
_NUM_WHOLE = len(WHOLE_KEYS)

(_PLUS, _COMMA, _DASH, _DOT, _SLASH, _COLON, _LESS, _EQUAL, _GREATER, _AT, _CARET, _STAR, _TILDE, _LOW, _QUERY, _HASH,
 _QUOTE, _SEMICOLON, _OPEN, _CLOSE, _OPEN_SQUARE, _CLOSE_SQUARE) = b"+,-./:<=>@^*~_?#';()[]"  # fmt: skip


@inlined
def _role(packs, byte):
    """The flags of a byte of ASCII, 0 of another; without a branch, which would have numba count references to the array."""
    return np.int64(packs[128 + (np.int64(byte) & 127)]) * np.int64(byte < 128)


@inlined
def _is_face(first, second):
    """Whether two bytes are one of FACES."""
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
def _read(data, at, end, points, kinds, packs):
    """(flags of the character at `at`, position after it)."""
    byte = data[at]
    if byte < 128:
        return _role(packs, byte), at + 1
    point, after = decode(data, at, end)
    flags = flags_of(point, points, kinds)
    flags |= _MARK if flags & (PUNCTUATION | SYMBOL) else 0
    flags |= _ICON if flags & (SYMBOL | MARKER) else 0
    return flags, after


@bare
def _read_back(data, start, at, points, kinds, packs):
    """(flags of the character that ends at `at`, where it begins)."""
    place = at - 1
    while place > start and at - place < 4 and data[place] & 0xC0 == 0x80:
        place -= 1
    flags, after = _read(data, place, at, points, kinds, packs)
    if after != at:
        return np.int64(0), at - 1
    return flags, place


@bare
def _is_whole(data, start, stop, packs):
    """Whether a span is one of WHOLE."""
    if stop - start > 8:
        return False
    key = tail64(data, start, stop)
    low, high = len(packs) - _NUM_WHOLE, len(packs)
    while low < high:
        middle = (low + high) // 2
        if packs[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low < len(packs) and packs[low] == key


@bare
def _mark_size(data, at, stop, points, kinds, packs):
    """Bytes of the mark that begins at `at`, 0 if none does."""
    byte = data[at]
    if byte == _DOT:
        end = at + 1
        while end < stop and data[end] == _DOT:
            end += 1
        return end - at if end - at > 1 else 0
    if at + 1 < stop and _is_face(byte, data[at + 1]):
        return 2
    if byte == _PLUS:
        return 0 if at + 1 < stop and data[at + 1] < 128 and _role(packs, data[at + 1]) & DIGIT else 1
    flags, after = _read(data, at, stop, points, kinds, packs)
    return after - at if flags & _MARK else 0


@bare
def _last_mark_size(data, start, stop, points, kinds, packs):
    """Bytes of the mark that ends at `stop`, 0 if none does."""
    flags, place = _read_back(data, start, stop, points, kinds, packs)
    if flags & _MARK:
        return stop - place
    byte = data[stop - 1]
    if (byte != _DOT and byte != _PLUS) or stop - 1 == start:
        return 0
    before, place = _read_back(data, start, stop - 1, points, kinds, packs)
    if byte == _PLUS:
        return 1 if before & DIGIT else 0
    if data[stop - 2] == _DOT:
        place = stop - 2
        while place > start and data[place - 1] == _DOT:
            place -= 1
        return stop - place
    if not before & LETTER:
        return 1 if before & (DIGIT | _MARK) or data[stop - 2] == _DASH or data[stop - 2] == _PLUS else 0
    if place == start or _is_whole(data, start, stop, packs):
        return 0
    further, _ = _read_back(data, start, place, points, kinds, packs)
    if further & LETTER:
        return 1
    return 0 if before & UPPER or data[place - 1] == _DOT else 1


@bare
def _are_letters(data, start, stop, points, kinds, packs):
    while start < stop:
        flags, start = _read(data, start, stop, points, kinds, packs)
        if not flags & LETTER:
            return False
    return True


@bare
def _clitic_size(data, start, stop, points, kinds, packs):
    """Bytes of 's 'm 'd 'll 've 're or n't at the end of a span, 0 if there is none."""
    for size in range(1, 3):
        place = stop - size - 1
        if place <= start:
            return 0
        if data[place] != _QUOTE:
            place -= 2
            if place <= start or data[place] != 0xE2 or data[place + 1] != 0x80 or data[place + 2] != 0x99:
                continue
        first, last = data[stop - size] | 32, data[stop - 1] | 32
        before, _ = _read_back(data, start, place, points, kinds, packs)
        if size == 1 and last == 115:
            return stop - place if before & (LETTER | DIGIT) else 0
        if size == 1 and last == 116 and data[place - 1] | 32 == 110:
            place -= 1
        elif not (size == 1 and (last == 109 or last == 100)) and not (
            size == 2 and ((first == 108 and last == 108) or ((first == 118 or first == 114) and last == 101))
        ):
            return 0
        return stop - place if place > start and _are_letters(data, start, place, points, kinds, packs) else 0
    return 0


@bare
def _is_address(data, start, stop, points, kinds, packs):
    """Whether a span looks like a URL, a host or an address of mail: labels and dots, then lower-case letters."""
    at = start
    while at < stop and (data[at] >= 128 or _role(packs, data[at]) & _SCHEME):
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
            flags = _role(packs, byte)
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
        return at + 2 < stop and data[at + 1] < 128 and _role(packs, data[at + 1]) & DIGIT != 0
    return byte == _SLASH or byte == _QUERY or byte == _HASH


@bare
def _inner_size(data, at, stop, before, points, kinds, packs):
    """Bytes of the token that begins at `at` inside a word, 0 if the word goes on; `before`: flags of what precedes."""
    flags, after = _read(data, at, stop, points, kinds, packs)
    byte = data[at]
    if byte == _DOT:
        end = after
        while end < stop and data[end] == _DOT:
            end += 1
        if end - at > 1 or end == stop:
            return end - at if end - at > 1 else 0
        following, _ = _read(data, after, stop, points, kinds, packs)
        ends = before & (LETTER | UPPER) == LETTER
        return 1 if ends and following & (LETTER | LOWER) == LETTER else 0
    if flags & _ICON:
        return after - at
    if after >= stop or not before & (LETTER | DIGIT):
        return 0
    following, _ = _read(data, after, stop, points, kinds, packs)
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
    following, _ = _read(data, after, stop, points, kinds, packs)
    return after - at if following & LETTER else 0


@inlined
def _put(edges, found, start, stop):
    edges[found], edges[found + 1] = start, stop
    return found + 2 * np.int64(start < stop)


@bare
def _split_inside(data, start, stop, points, kinds, packs, edges, found):
    """Put down the tokens of a span that has lost its marks at both ends."""
    begun = at = start
    before, asked = np.int64(0), False
    while at < stop:
        byte = data[at]
        if byte < 128:
            flags, after = _role(packs, byte), at + 1
            inner = flags & _INNER != 0
        else:
            flags, after = _read(data, at, stop, points, kinds, packs)
            inner = flags & _MARK != 0
        size = _inner_size(data, at, stop, before, points, kinds, packs) if inner else 0
        if size and not asked:
            if _is_whole(data, start, stop, packs) or _is_address(data, start, stop, points, kinds, packs):
                break
            asked = True
        if size:
            found = _put(edges, found, begun, at)
            found = _put(edges, found, at, at + size)
            begun = after = at + size
        before, at = flags, after
    return _put(edges, found, begun, stop)


@inlined
def ends_in_mark(packs, first, before, last, size):
    """Whether a run of letters and digits and one last byte is a word and a mark, from its bytes; False if it may not be."""
    stop = (
        (last == _DOT) & (size > 4) & (_role(packs, first) & LOWER != 0) & (_role(packs, before) & (LOWER | DIGIT) != 0)
    )
    return stop | (_role(packs, last) & _MARK != 0)


@inlined
def split_run(data, start, stop, points, kinds, packs, edges, found):
    """Put down where the tokens of a run without spaces begin and end, from edges[found] on; returns the next place.

    Common cases are told here without a call.
    """
    at = start
    while at < stop and not _role(packs, data[at]) & _PLAIN:
        size = 1
        if not _role(packs, data[at]) & _MARK or (at + 1 < stop and not _role(packs, data[at + 1]) & _PLAIN):
            size = _mark_size(data, at, stop, points, kinds, packs)
        if size == 0:
            break
        found = _put(edges, found, at, at + size)
        at += size
    last = stop
    while last > at and not _role(packs, data[last - 1]) & _PLAIN:
        size = 1
        if not _role(packs, data[last - 1]) & _MARK:
            size = _last_mark_size(data, at, last, points, kinds, packs)
        if size == 0:
            break
        last -= size
    clitic = last
    if last - at > 2 and not (_role(packs, data[last - 2]) & _PLAIN and _role(packs, data[last - 3]) & _PLAIN):
        clitic -= _clitic_size(data, at, last, points, kinds, packs)
    place = at
    while place < clitic and data[place] < 128 and not _role(packs, data[place]) & _INNER:
        place += 1
    if place == clitic:
        found = _put(edges, found, at, clitic)
    else:
        found = _split_inside(data, at, clitic, points, kinds, packs, edges, found)
    found = _put(edges, found, clitic, last)
    while last < stop:
        size = 1
        if stop - last > 1:
            size = _mark_size(data, last, stop, points, kinds, packs)
            size = size if size else 1
        found = _put(edges, found, last, last + size)
        last += size
    return found
