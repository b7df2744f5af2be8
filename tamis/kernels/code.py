"""Measure comments in source code and text in HTML, with small scanners that accept malformed input."""
# mypy: disallow-untyped-defs=False
# ruff: noqa: SIM109, SIM110

from __future__ import annotations

import numpy as np

from tamis.kernels.jit import kernel, part

_QUOTE, _APOSTROPHE, _BACKSLASH, _HASH, _NEWLINE = 34, 39, 92, 35, 10


@part
def _count(data, start, stop):
    """Return the number of characters in a span, without ASCII white space."""
    chars = 0
    for at in range(start, stop):
        chars += data[at] > 32 and (data[at] & 0xC0) != 0x80
    return chars


@part
def _starts_with(data, at, end, marker):
    if at + len(marker) > end:
        return False
    for index in range(len(marker)):
        if data[at + index] != marker[index]:
            return False
    return True


@part
def _end_of_string(data, at, end, quote, triple):
    """Return the position after the closing quotes of the string whose content starts at `at`.

    A newline ends a string that is not triple-quoted.
    """
    while at < end:
        byte = data[at]
        if byte == _BACKSLASH:
            at += 2
            continue
        if byte == quote:
            if not triple:
                return at + 1
            if at + 2 < end and data[at + 1] == quote and data[at + 2] == quote:
                return at + 3
        elif byte == _NEWLINE and not triple:
            return at
        at += 1
    return end


@part
def _is_name(byte):
    return 97 <= (byte | 32) <= 122 or 48 <= byte <= 57 or byte == 95 or byte >= 128


@part
def _is_prefix(byte):
    lower = byte | 32
    return lower == 114 or lower == 98 or lower == 117 or lower == 102  # r b u f


@kernel
def measure_python(data, offsets, out):
    """Measure the comments and docstrings (strings used as a statement) of each row; out int64[2, rows].

    0  characters in comments and docstrings, with their marks and quotes, without ASCII white space
    1  characters, without ASCII white space
    """
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        chars, depth = 0, 0
        statement_start = True
        while at < end:
            byte = data[at]
            if byte == _NEWLINE or byte == 59:
                statement_start = statement_start or depth == 0
                at += 1
            elif byte == 32 or byte == 9 or byte == 12 or byte == 13:
                at += 1
            elif byte == _HASH:
                start = at
                while at < end and data[at] != _NEWLINE:
                    at += 1
                chars += _count(data, start, at)
            elif byte == _QUOTE or byte == _APOSTROPHE:
                triple = at + 2 < end and data[at + 1] == byte and data[at + 2] == byte
                start = at
                at = min(_end_of_string(data, at + 3 if triple else at + 1, end, byte, triple), end)
                if statement_start and depth == 0:
                    chars += _count(data, start, at)
                statement_start = False
            elif _is_name(byte):
                start = at
                while at < end and _is_name(data[at]):
                    at += 1
                quoted = at < end and (data[at] == _QUOTE or data[at] == _APOSTROPHE)
                prefix = at - start <= 2 and _is_prefix(byte) and _is_prefix(data[at - 1])
                statement_start = statement_start and quoted and prefix
            else:
                if byte == 40 or byte == 91 or byte == 123:
                    depth += 1
                elif byte == 41 or byte == 93 or byte == 125:
                    depth = max(0, depth - 1)
                elif byte == _BACKSLASH:
                    at += 1
                statement_start = False
                at += 1
        out[0, row], out[1, row] = chars, _count(data, offsets[row], end)


@kernel
def measure_comments(data, offsets, line, other_line, opening, closing, quotes, out):
    """Measure the comments of each row; out int64[2, rows].

    0  characters in comments, with the comment markers, without ASCII white space
    1  characters, without ASCII white space

    line, other_line: markers of a comment that ends with the line, or empty. opening, closing: markers around a block
    comment, or empty (all uint8 arrays). quotes: uint8[256], 1 for a quote whose strings end with the line, 2 for one whose
    strings may span lines.
    """
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        chars = 0
        while at < end:
            byte = data[at]
            if len(opening) and byte == opening[0] and _starts_with(data, at, end, opening):
                start = at
                at += len(opening)
                while at < end and not (data[at] == closing[0] and _starts_with(data, at, end, closing)):
                    at += 1
                at = min(at + len(closing), end)
                chars += _count(data, start, at)
                continue
            first = len(line) and byte == line[0] and _starts_with(data, at, end, line)
            second = len(other_line) and byte == other_line[0] and _starts_with(data, at, end, other_line)
            if first or second:
                start = at
                while at < end and data[at] != _NEWLINE:
                    at += 1
                chars += _count(data, start, at)
            elif quotes[byte]:
                at = _end_of_string_of(data, at + 1, end, byte, quotes[byte] == 2)
            else:
                at += 1
        out[0, row], out[1, row] = chars, _count(data, offsets[row], end)


@part
def _end_of_string_of(data, at, end, quote, several):
    while at < end:
        byte = data[at]
        if byte == _BACKSLASH:
            at += 2
            continue
        if byte == quote:
            return at + 1
        if byte == _NEWLINE and not several:
            return at
        at += 1
    return end


@part
def _names(data, at, end, name):
    """Return whether the tag at `at` is called `name` (lower case)."""
    if at + len(name) > end:
        return False
    for index in range(len(name)):
        if data[at + index] | 32 != name[index]:
            return False
    return at + len(name) == end or not _is_name(data[at + len(name)])


@kernel
def measure_html(data, offsets, script, style, out):
    """out[i] = visible characters of row i: those outside tags, comments, scripts and styles.

    An entity (&amp;) counts as one, and so does a run of white space between two visible characters, even across tags.
    script, style: the tag names `script` and `style` as uint8 arrays.
    """
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        chars, space = 0, False
        while at < end:
            byte = data[at]
            following = data[at + 1] if at + 1 < end else np.uint8(0)
            if byte == 60 and (97 <= (following | 32) <= 122 or following == 47 or following == 33 or following == 63):
                if at + 3 < end and following == 33 and data[at + 2] == 45 and data[at + 3] == 45:
                    at = _after_comment(data, at + 4, end)
                    continue
                raw = _names(data, at + 1, end, script)
                hidden = raw or _names(data, at + 1, end, style)
                at = _after_tag(data, at + 1, end)
                if hidden:
                    at = _before_closing(data, at, end, script if raw else style)
            elif byte == 38:
                stop = at + 1
                while stop < min(end, at + 12) and (_is_name(data[stop]) or data[stop] == 35) and data[stop] < 128:
                    stop += 1
                entity = stop < end and stop > at + 1 and data[stop] == 59
                chars += 1 + space
                space = False
                at = stop + 1 if entity else at + 1
            elif byte <= 32:
                space = chars > 0
                at += 1
            else:
                chars += ((byte & 0xC0) != 0x80) + space
                space = False
                at += 1
        out[row] = chars


@part
def _after_comment(data, at, end):
    while at + 2 < end:
        if data[at] == 45 and data[at + 1] == 45 and data[at + 2] == 62:
            return at + 3
        at += 1
    return end


@part
def _after_tag(data, at, end):
    """Return the position after the '>' that closes a tag, skipping quoted attribute values."""
    quote = np.uint8(0)
    while at < end:
        byte = data[at]
        if quote:
            if byte == quote:
                quote = np.uint8(0)
        elif byte == 62:
            return at + 1
        elif (byte == _QUOTE or byte == _APOSTROPHE) and data[at - 1] == 61:
            quote = byte
        at += 1
    return end


@part
def _before_closing(data, at, end, name):
    while at + 1 < end:
        if data[at] == 60 and data[at + 1] == 47 and _names(data, at + 2, end, name):
            return at
        at += 1
    return end
