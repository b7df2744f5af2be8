"""Go through the tags of an HTML page: how deep its elements are nested, and where tags are that say something about the page.

    data      uint8[bytes], the page in UTF-8
    names     int64[slots], hash table of the names of tags, whose letters are the digits of a number; 0 in free slots
    kinds     int64[slots], what is known about each tag: the bits below, and its number from bit 16 on
    noted     int64[events, 3], for each tag with the bit `NOTED`: its kind, and where its attributes begin and end; for a
              title, where its text begins and ends

The rules are those of `tamis.web.fast_html`, where they are regular expressions.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tamis.kernels.jit import inlined, kernel

BLOCK, VOID, RAW, CLOSED_BY_BLOCK, CLOSED_BY_SAME, RULE, ROOT, TITLE, NOTED = (1 << bit for bit in range(9))

UNDECIDED = -1
"""The depth of a page in which a character that is not ASCII follows the name of a tag, or a value may be too long."""

MOST_PIECES = 400
"""Of the attributes of a tag: values in quotes, and what is between them. What has more is no tag."""
MOST_QUOTED = 20_000
"""Characters of a value in quotes."""
SEARCHED = 40
"""Open elements in which the one that a tag closes is looked for."""

_SLOTS = 1021
_MOST_LETTERS, _KNOWN_LETTERS, _BASE = 21, 12, 37
_LESS, _MORE, _SLASH, _BANG, _QUESTION, _HYPHEN, _DOUBLE, _SINGLE, _UNDERSCORE = b"<>/!?-\"'_"


def tag_table(bits: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """`names` and `kinds` for tags of at most twelve letters; their numbers follow their order."""
    names, kinds = np.zeros(_SLOTS, np.int64), np.zeros(_SLOTS, np.int64)
    for number, (tag, each) in enumerate(bits.items()):
        key = 0
        for letter in tag.encode("ascii"):
            key = key * _BASE + (letter - 86 if letter > 57 else letter - 47)
        slot = key % _SLOTS
        while names[slot]:
            slot = (slot + 1) % _SLOTS
        names[slot], kinds[slot] = key, number << 16 | each
    return names, kinds


@inlined
def _is_letter(byte):
    return np.uint8((byte | 32) - 97) < 26


@inlined
def _continues_word(byte):
    return _is_letter(byte) or np.uint8(byte - 48) < 10 or byte == _UNDERSCORE


@inlined
def _kind_of(key, names, kinds):
    slot = key % _SLOTS
    while names[slot]:
        if names[slot] == key:
            return kinds[slot]
        slot = (slot + 1) % _SLOTS
    return 0


@inlined
def _end_of_comment(data, at):
    while at + 2 < len(data):
        if data[at + 2] == _MORE and data[at + 1] == _HYPHEN and data[at] == _HYPHEN:
            return at + 3
        at += 1
    return len(data)


@inlined
def _end_of_attributes(data, at):
    """Where the `>` of a tag is; -1 if there is none, -2 if that depends on how many characters a value has."""
    pieces = 0
    while at < len(data):
        byte = data[at]
        if byte == _MORE:
            return at
        if pieces == MOST_PIECES:
            return -1
        pieces += 1
        at += 1
        if byte != _DOUBLE and byte != _SINGLE:
            while at < len(data) and data[at] != _MORE and data[at] != _DOUBLE and data[at] != _SINGLE:
                at += 1
            continue
        begin, limit = at, min(len(data), at + 4 * MOST_QUOTED + 1)
        while at < limit and data[at] != byte:
            at += 1
        if at == limit:
            return -1
        if at - begin > MOST_QUOTED:
            return -2
        at += 1
    return -1


@inlined
def _end_of_raw(data, at, name, letters):
    """Where the tag begins that closes an element without tags; -2 if that depends on a character."""
    while at + 1 + letters < len(data):
        if data[at] == _LESS and data[at + 1] == _SLASH:
            same = 0
            while same < letters and (data[at + 2 + same] | 32) == (data[name + same] | 32):
                same += 1
            if same == letters:
                after = at + 2 + letters
                if after < len(data) and data[after] >= 128:
                    return -2
                if after == len(data) or not _continues_word(data[after]):
                    return at
        at += 1
    return len(data)


@kernel
def outline(data, names, kinds, root, max_depth, noted):
    """Return the depth of the deepest element, or `UNDECIDED`, and the number of events in `noted`."""
    stack = np.zeros(max_depth + 1, np.int64)
    stack[0] = root
    height, inline, deepest, events, at, size = 1, 0, 0, 0, 0, len(data)
    while at + 1 < size:
        if data[at] != _LESS:
            at += 1
            continue
        at += 1
        byte = data[at]
        if byte == _BANG and at + 2 < size and data[at + 1] == _HYPHEN and data[at + 2] == _HYPHEN:
            at = _end_of_comment(data, at + 3)
            continue
        closes = byte == _SLASH
        name = end = at + 1 if closes else at
        key, more = 0, -1
        if name < size and _is_letter(data[name]):
            while end < size and end - name < _MOST_LETTERS and _continues_word(data[end]) and data[end] != _UNDERSCORE:
                letter = np.int64(data[end])
                if end - name < _KNOWN_LETTERS:
                    key = key * _BASE + ((letter | 32) - 86 if letter > 57 else letter - 47)
                end += 1
            if end < size and data[end] >= 128:
                return UNDECIDED, 0
            if end < size and not _continues_word(data[end]):
                more = _end_of_attributes(data, end)
        elif byte not in (_SLASH, _BANG, _QUESTION):
            continue
        if more == -2:
            return UNDECIDED, 0
        if more < 0:  # no tag
            at += 1
            while at < size and data[at] != _MORE:
                at += 1
            at += 1
            continue
        at = more + 1
        kind = _kind_of(key, names, kinds) if end - name <= _KNOWN_LETTERS else np.int64(0)
        if closes:
            if not kind & BLOCK:
                inline = max(0, inline - 1)
                continue
            for index in range(height - 1, max(0, height - SEARCHED), -1):
                if stack[index] == kind:
                    height = index
                    break
            continue
        if kind & RAW:
            at = _end_of_raw(data, at, name, end - name)
            if at < 0:
                return UNDECIDED, 0
            continue
        begin = end
        if not kind & BLOCK:
            if not kind & VOID:
                inline += 1
                deepest = max(deepest, height + inline)
            if kind & TITLE:
                begin = more = at
                while more < size and data[more] != _LESS:
                    more += 1
        else:
            inline = 0
            if kind & RULE:
                continue
            top = stack[height - 1]
            if top & CLOSED_BY_BLOCK or (kind & CLOSED_BY_SAME and top == kind):
                height -= 1
            if not kind & ROOT:
                if height <= max_depth:
                    height += 1
                stack[height - 1] = kind
                deepest = max(deepest, height)
        if kind & NOTED:
            noted[events, 0], noted[events, 1], noted[events, 2] = kind, begin, more
            events += 1
    return deepest, events
