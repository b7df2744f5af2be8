"""Count the characters, lines, sentences and paragraphs of each row in one pass over its bytes.

    64 bytes --sets--> bits --counted--> characters of each kind
                         |               newline: examine both ends of the line, hash it, record it
                         +-a few places  stop:    does a sentence end here?
                                         ':'      is this a URL?
    end of row: lines and paragraphs that occur more than once, by their hashes

A line ends at a newline; a carriage return before it is part of the line. A blank line contains only whitespace.
Paragraphs are separated by empty lines (two or more newlines in a row) and trimmed; blank paragraphs do not count.
A stop is a character with the Unicode property Sentence_Terminal. A sentence ends at a stop, including any closing quotes and
brackets, if the line ends there or a space follows; after a '.', the next character must not be a lower-case letter. The wide
stops of Chinese and Japanese need no space. A line of nothing but stops and closing punctuation is not a sentence.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from tamis.kernels.characters import decode, flags_of
from tamis.kernels.jit import inlined, kernel, part
from tamis.kernels.masks import LANES, lowest, matcher, ones
from tamis.kernels.spans import clear, hash_span, number_of, table_size
from tamis.kernels.unicode_tables import (
    CLOSER,
    DIGIT,
    KINDS,
    LETTER,
    LOWER,
    MARK,
    NUMBER,
    PUNCTUATION,
    SPACE,
    STOP,
    SYMBOL,
    UPPER,
    WIDE_STOP,
)

TEXT_FIELDS = (
    # characters
    "chars", "letters", "digits", "numbers", "upper", "punctuation", "symbols", "marks", "spaces",
    "plain",  # A-Z a-z 0-9 newline ? ! , .
    "signs",  # newline ? ! , .
    "blanks",  # space, tab, newline, carriage return, backspace
    "brackets",  # ( ) [ ] { } and the mathematical angle brackets
    "hashes", "curly",  # '#' and '{'
    "ellipses",  # "..." (without overlaps) and the ellipsis character
    "spaced_ellipses",  # ". . ."
    # URLs: http:// or https:// and everything up to a space or one of < > " '
    "urls", "url_chars", "porn_urls",
    # lines
    "newlines", "last_line_open",  # 1 if the text ends without a newline and is not empty
    "first_line_open",  # 1 if the text starts without a newline and is not empty
    "lines",  # lines that are not blank
    "longest_line", "short_lines", "long_lines",  # characters; at most 30 (FineWeb); at least 200 (mC4)
    "dash_lines", "star_lines", "bullet_lines", "disc_lines", "other_bullet_lines",  # by first character, trimmed
    "untrimmed_bullet_lines",  # '-' or '*' in the first column
    "marked_lines", "marked_lines_untrimmed",  # ending in . ? ! " '
    "stopped_lines_untrimmed",  # ending in a stop of any script
    "ellipsis_lines", "ellipsis_lines_untrimmed",  # ending in "..." or the ellipsis character; in the character
    "spaced_ellipsis_lines",  # ending in ". . ."
    "teaser_lines",  # ending in "[...]", "(...)", "[...]" with the character, "->>", "read more" or "read more.."
    "sentences", "paragraphs",
    # repetition; *_later counts copies after the first, *_all counts every copy of a line that occurs more than once
    "line_chars", "line_later", "line_later_chars", "line_all", "line_all_chars",
    "paragraph_chars", "paragraph_later", "paragraph_later_chars", "paragraph_all", "paragraph_all_chars",
)  # fmt: skip
"""Rows of the output of `measure_text`."""

SHORT_LINE = 30
LONG_LINE = 200

(_CHARS, _LETTERS, _DIGITS, _NUMBERS, _UPPER, _PUNCTUATION, _SYMBOLS, _MARKS, _SPACES, _PLAIN, _SIGNS, _BLANKS, _BRACKETS,
 _HASHES, _CURLY, _ELLIPSES, _SPACED_ELLIPSES, _URLS, _URL_CHARS, _PORN_URLS, _NEWLINES, _LAST_LINE_OPEN,
 _FIRST_LINE_OPEN, _LINES,
 _LONGEST_LINE, _SHORT_LINES, _LONG_LINES, _DASH_LINES, _STAR_LINES, _BULLET_LINES, _DISC_LINES, _OTHER_BULLET_LINES,
 _UNTRIMMED_BULLET_LINES, _MARKED_LINES, _MARKED_LINES_UNTRIMMED, _STOPPED_LINES_UNTRIMMED, _ELLIPSIS_LINES,
 _ELLIPSIS_LINES_UNTRIMMED, _SPACED_ELLIPSIS_LINES, _TEASER_LINES, _SENTENCES, _PARAGRAPHS, _LINE_CHARS, _LINE_LATER,
 _LINE_LATER_CHARS, _LINE_ALL, _LINE_ALL_CHARS,
 _PARAGRAPH_CHARS, _PARAGRAPH_LATER, _PARAGRAPH_LATER_CHARS, _PARAGRAPH_ALL,
 _PARAGRAPH_ALL_CHARS) = range(len(TEXT_FIELDS))  # fmt: skip

_MAY_FOLLOW = SPACE | STOP | CLOSER  # characters that may follow a stop that ends a sentence
_ASCII = KINDS[:128].astype(np.int64)
_HIGH = range(128, 256)


def _having(flags):
    return np.flatnonzero(_ASCII & flags).tolist()


_match = matcher(
    *(_having(flags) for flags in (LETTER, DIGIT, UPPER, PUNCTUATION, SYMBOL, SPACE)),
    b"\n?!,.", b" \t\n\r\b", b"()[]{}", b"{", b"#",
    b"\n", b".!?", b".", b" ", b":", b"/",
    [*_having(_MAY_FOLLOW), *_HIGH], range(0x80, 0xC0), range(0xC0, 0x100),
)  # fmt: skip
_match_breaks = matcher(b"\n", b"\r\n")
_ONE, _TWO, _LAST = np.uint64(1), np.uint64(2), np.uint64(63)
_PARAGRAPH_STATE = 5  # start and end of its first line, first and last byte of the paragraph, lines so far


def _padded(data):
    """Return the bytes, padded if they are fewer than a window."""
    if len(data) < LANES:
        data = np.concatenate([data, np.zeros(LANES, np.uint8)])
        data.flags.writeable = False
    return data


def measure_text(data, offsets, points, kinds, out):
    """Measure each row; out int64[fields, rows], fields in the order of TEXT_FIELDS."""
    _measure_text(_padded(data), offsets, points, kinds, out)


@kernel
def _measure_text(data, offsets, points, kinds, out):
    stat, paragraph = np.zeros(len(out), np.int64), np.zeros(_PARAGRAPH_STATE, np.int64)
    max_lines, max_paragraphs = _most_lines(data, offsets)
    keys, lengths = np.empty(max_lines, np.uint64), np.empty(max_lines, np.int64)
    paragraph_keys, paragraph_lengths = np.empty(max_paragraphs, np.uint64), np.empty(max_paragraphs, np.int64)
    slots, names = np.empty(table_size(max_lines), np.int32), np.empty(max_lines + 1, np.uint64)
    times = np.empty(max_lines + 1, np.int32)
    for row in range(len(offsets) - 1):
        clear(stat, len(stat))
        start, end = offsets[row], offsets[row + 1]
        _measure_row(data, start, end, points, kinds, keys, lengths, paragraph_keys, paragraph_lengths, paragraph, stat)
        lines, paragraphs = stat[_LINES], stat[_PARAGRAPHS]
        found = _find_repeats(keys, lengths, lines, slots, names, times)
        stat[_LINE_CHARS], stat[_LINE_LATER], stat[_LINE_LATER_CHARS], stat[_LINE_ALL], stat[_LINE_ALL_CHARS] = found
        found = _find_repeats(paragraph_keys, paragraph_lengths, paragraphs, slots, names, times)
        stat[_PARAGRAPH_CHARS], stat[_PARAGRAPH_LATER], stat[_PARAGRAPH_LATER_CHARS] = found[0], found[1], found[2]
        stat[_PARAGRAPH_ALL], stat[_PARAGRAPH_ALL_CHARS] = found[3], found[4]
        stat[_FIRST_LINE_OPEN] = start < end and data[start] != 10
        stat[_PLAIN] += stat[_LETTERS] + stat[_DIGITS] + stat[_SIGNS]
        for field in range(len(stat)):
            out[field, row] = stat[field]


def measure_line_copies(data, offsets, trim, points, kinds, out):
    """Measure the lines of each row that occur more than once; out int64[3, rows].

    0  characters of all lines
    1  copies of lines that occur more than once
    2  characters of these copies

    With `trim`, lines are compared without the white space around them and blank lines do not count. Without it, a line
    is what lies between two newlines, and empty lines count.
    """
    _measure_line_copies(_padded(data), offsets, trim, points, kinds, out)


@kernel
def _measure_line_copies(data, offsets, trim, points, kinds, out):
    max_lines, _ = _most_lines(data, offsets)
    keys, lengths = np.empty(max_lines, np.uint64), np.empty(max_lines, np.int64)
    slots, names, times = (
        np.empty(table_size(max_lines), np.int32),
        np.empty(max_lines + 1, np.uint64),
        np.empty(max_lines + 1, np.int32),
    )
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        lines = empty = np.int64(0)
        while start < end:
            at, chars = start, 0
            while at < end and data[at] != 10:
                chars += (data[at] & 0xC0) != 0x80
                at += 1
            first, last, trimmed = start, at, 0
            if trim:
                first, last, trimmed = _trim(data, start, at, points, kinds)
            if first < last:
                keys[lines], lengths[lines] = _hash(data, first, last), chars - trimmed
                lines += 1
            empty += at == start
            start = at + 1
        empty += end > offsets[row] and data[end - 1] == 10  # the line after the last newline
        out[0, row], _, _, out[1, row], out[2, row] = _find_repeats(keys, lengths, lines, slots, names, times)
        if empty > 1 and not trim:
            out[1, row] += empty


@kernel
def count_short_lines(data, offsets, limit, points, kinds, out):
    """out[i] = non-blank lines of row i with at most `limit` characters; int64."""
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        short = 0
        while start < end:
            at, chars = start, 0
            while at < end and data[at] != 10:
                chars += (data[at] & 0xC0) != 0x80
                at += 1
            if chars <= limit:
                first, last, _ = _trim(data, start, at, points, kinds)
                short += first < last
            start = at + 1
        out[row] = short


@inlined
def _window(data, at, end):
    """Choose a window of 64 bytes that covers the bytes from `at` to `end`, or the first 64 of them.

    Return (its position, the bits of the bytes from `at` to `end`, the number of bits before them).
    """
    if at + LANES <= len(data):
        return at, ~np.uint64(0) if end - at >= LANES else (_ONE << np.uint64(end - at)) - _ONE, np.uint64(0)
    skip = np.uint64(at + LANES - len(data))
    return len(data) - LANES, ((_ONE << np.uint64(end - at)) - _ONE) << skip, skip


@part
def _most_lines(data, offsets):
    """Return upper bounds for the non-empty lines and the paragraphs of any row."""
    lines = paragraphs = np.int64(0)
    for row in range(len(offsets) - 1):
        filled = gaps = np.int64(0)
        newline = either = np.uint64(0)
        at, end = offsets[row], offsets[row + 1]
        while at < end:
            place, inside, skip = _window(data, at, end)
            newline_before, either_before = newline >> _LAST << skip, either >> _LAST << skip
            newline, either = _match_breaks(data.ctypes.data + place)
            newline, either = newline & inside, either & inside
            filled += ones(newline & ~(newline << _ONE | newline_before))
            gaps += ones(newline & (either << _ONE | either_before))
            at += LANES
        lines = filled + 1 if filled >= lines else lines
        gaps = gaps if gaps < filled else filled
        paragraphs = gaps + 1 if gaps >= paragraphs else paragraphs
    return lines, paragraphs


@part
def _measure_row(data, start, end, points, kinds, keys, lengths, paragraph_keys, paragraph_lengths, paragraph, stat):
    """Count 64 bytes at a time, then examine the few positions that need it one by one."""
    at = line_start = place = start
    rests = line_rests = np.int64(0)  # continuation bytes before the window and before the line
    dots = spaced = np.int64(1)
    last_dot = sentence_to = url_to = content_line = np.int64(-9)
    dot = blank = rest = wanted = ended = dot_after = np.uint64(0)
    paragraph[4] = 0
    while True:
        if wanted == 0 and at < end:
            rests += ones(rest)
            place, inside, skip = _window(data, at, end)
            dot_before, dots_before, blank_before = (
                dot >> _LAST << skip,
                dot >> _LAST - _ONE << skip,
                blank >> _LAST << skip,
            )
            (
                letter, digit, upper, punctuation, symbol, space, sign, white, bracket, curly, pound,
                newline, stop, dot, blank, colon, slash, follower, rest, lead,
            ) = _match(data.ctypes.data + place)  # fmt: skip
            stat[_LETTERS] += ones(letter & inside)
            stat[_DIGITS] += ones(digit & inside)
            stat[_UPPER] += ones(upper & inside)
            stat[_PUNCTUATION] += ones(punctuation & inside)
            stat[_SYMBOLS] += ones(symbol & inside)
            stat[_SPACES] += ones(space & inside)
            stat[_SIGNS] += ones(sign & inside)
            stat[_BLANKS] += ones(white & inside)
            stat[_BRACKETS] += ones(bracket & inside)
            stat[_CURLY] += ones(curly & inside)
            stat[_HASHES] += ones(pound & inside)
            dot, blank, rest = dot & inside, blank & inside, rest & inside
            follower, slash = (
                (follower & inside) >> _ONE,
                (slash & inside) >> _ONE,
            )  # shifted: bit i describes the byte after i
            at += LANES
            if at < end:
                byte = data[at]
                follower |= np.uint64(byte >= 128 or kinds[byte & 127] & _MAY_FOLLOW != 0) << _LAST
                slash |= np.uint64(byte == 47) << _LAST
            dot_after = dot & (dot << _ONE | dot_before | (dot << _TWO | dots_before) & (blank << _ONE | blank_before))
            ended = stop & follower & inside
            wanted = (newline | lead | colon & slash) & inside | ended | dot_after
            continue
        final = wanted == 0
        bit = np.uint64(0) if final else np.uint64(lowest(wanted))
        wanted &= wanted - _ONE if wanted else wanted
        here = end if final else place + np.int64(bit)
        byte = np.uint8(10) if final else data[here]
        if byte == 10:
            upto = rests + ones(rest if final else rest & ((_ONE << bit) - _ONE))
            chars = here - line_start - (upto - line_rests)
            stat[_NEWLINES] += not final
            if here > line_start:
                stat[_LAST_LINE_OPEN] = final
                first, last = _close_line(data, line_start, here, chars, points, kinds, keys, lengths, stat)
                if first < last:
                    if paragraph[4] == 0:
                        paragraph[0], paragraph[1], paragraph[2] = line_start, here, first
                    paragraph[3] = last
                    paragraph[4] += 1
            empty = here == line_start or (here == line_start + 1 and data[line_start] == 13)
            if paragraph[4] and (final or empty):
                _close_paragraph(data, paragraph, keys, lengths, paragraph_keys, paragraph_lengths, stat)
            if final:
                break
            line_start, line_rests = here + 1, upto
            continue
        after, halts, wide = here + 1, ended >> bit & _ONE != 0, False
        if byte >= 0xC0:
            after, flags = _count_high(data, here, end, points, kinds, stat)
            wide = flags & WIDE_STOP != 0
            halts = flags & STOP != 0 and after < end
            if halts and not wide:
                halts = data[after] >= 128 or kinds[data[after]] & _MAY_FOLLOW != 0
        elif byte == 58:
            if here >= url_to and here + 2 < end:
                url_to = _read_url(data, start, here, end, points, kinds, stat)
        elif dot_after >> bit & _ONE:
            near, far = data[here - 1] == 46, here - 2 >= start and data[here - 1] == 32 and data[here - 2] == 46
            dots = (dots if last_dot == here - 1 else 1) + 1 if near else 1
            spaced = (spaced if last_dot == here - 2 else 1) + 1 if far else 1
            stat[_ELLIPSES] += dots % 3 == 0
            stat[_SPACED_ELLIPSES] += spaced % 3 == 0
            last_dot = here
        if halts and after > sentence_to:
            ends, sentence_to = _ends_sentence(data, after, end, byte == 46, wide, points, kinds)
            if ends:
                if content_line != line_start and _has_content(data, line_start, after, points, kinds):
                    content_line = line_start
                stat[_SENTENCES] += content_line == line_start
    stat[_CHARS] = end - start - rests - ones(rest)


@inlined
def _count_high(data, at, end, points, kinds, stat):
    """Count a character outside ASCII. Return (position after it, its flags)."""
    point, flags, after = _read(data, at, end, points, kinds)
    stat[_LETTERS] += flags & LETTER != 0
    stat[_DIGITS] += flags & DIGIT != 0
    stat[_PLAIN] -= flags & (LETTER | DIGIT) != 0  # counts ASCII only; all letters and digits are added at the end
    stat[_NUMBERS] += flags & NUMBER != 0
    stat[_UPPER] += flags & UPPER != 0
    stat[_PUNCTUATION] += flags & PUNCTUATION != 0
    stat[_SYMBOLS] += flags & SYMBOL != 0
    stat[_MARKS] += flags & MARK != 0
    stat[_SPACES] += flags & SPACE != 0
    stat[_ELLIPSES] += point == 0x2026
    stat[_BRACKETS] += point == 0x27E8 or point == 0x27E9
    return after, flags


@part
def _read(data, at, end, points, kinds):
    """Return (code point, its flags, position after it). Not inlined."""
    point, after = decode(data, at, end)
    return point, flags_of(point, points, kinds), after


@part
def _ends_sentence(data, at, end, dot, wide, points, kinds):
    """Return (whether a sentence ends at the stop before `at` and another starts, position up to which this is decided)."""
    spaced = False
    while at < end and data[at] != 10:
        point, flags, after = _read(data, at, end, points, kinds)
        if flags & SPACE:
            spaced = True
        elif flags & STOP:
            wide = wide or flags & WIDE_STOP != 0
            dot = dot and point == 46
        elif not flags & CLOSER:
            return (spaced or wide) and not (dot and flags & LOWER), at
        at = after
    return False, at


@part
def _has_content(data, at, end, points, kinds):
    """Return whether there is anything but stops, closing punctuation and spaces between `at` and `end`."""
    while at < end:
        _, flags, at = _read(data, at, end, points, kinds)
        if not flags & (STOP | CLOSER | SPACE):
            return True
    return False


@part
def _read_url(data, start, colon, end, points, kinds, stat):
    """If the ':' at `colon` belongs to a URL, count the URL; return where it ends."""
    if colon + 3 > end or data[colon + 1] != 47 or data[colon + 2] != 47:
        return colon
    first = colon - 4
    if first - 1 >= start and data[colon - 1] == 115:
        first -= 1
    if (
        first < start
        or data[first] != 104
        or data[first + 1] != 116
        or data[first + 2] != 116
        or data[first + 3] != 112
    ):
        return colon
    at = colon + 3
    chars = at - first
    porn = False
    while at < end:
        point, flags, after = _read(data, at, end, points, kinds)
        if point == 34 or point == 39 or point == 60 or point == 62 or flags & SPACE:
            break
        if (point | 32) == 112 and at + 4 <= end:
            porn = porn or (data[at + 1] | 32 == 111 and data[at + 2] | 32 == 114 and data[at + 3] | 32 == 110)
        chars += 1
        at = after
    if at > colon + 3:
        stat[_URLS] += 1
        stat[_URL_CHARS] += chars
        stat[_PORN_URLS] += porn
    return at


@part
def _hash(data, start, stop):
    return hash_span(data, start, stop)


@inlined
def _trim(data, start, end, points, kinds):
    """Trim whitespace from a span. Return (start, end, characters trimmed); start == end if the span is blank."""
    trimmed = 0
    while start < end:
        if data[start] < 128:
            if not kinds[data[start]] & SPACE:
                break
            start += 1
        else:
            _, flags, after = _read(data, start, end, points, kinds)
            if not flags & SPACE:
                break
            start = after
        trimmed += 1
    while start < end:
        before = end - 1
        if data[before] < 128:
            if not kinds[data[before]] & SPACE:
                break
        else:
            while before > start and data[before] & 0xC0 == 0x80:
                before -= 1
            if not _read(data, before, end, points, kinds)[1] & SPACE:
                break
        end = before
        trimmed += 1
    return start, end, trimmed


@inlined
def _ends_with_glyph(data, start, end):
    return end - start >= 3 and data[end - 3] == 0xE2 and data[end - 2] == 0x80 and data[end - 1] == 0xA6


@inlined
def _ends_with_dots(data, start, end):
    return end - start >= 3 and data[end - 3] == 46 and data[end - 2] == 46 and data[end - 1] == 46


@inlined
def _is_mark(byte):
    return byte == 46 or byte == 63 or byte == 33 or byte == 34 or byte == 39


@inlined
def _close_line(data, start, end, chars, points, kinds, keys, lengths, stat):
    """Count the line from start to end and record its hash. Return the trimmed span, empty if the line is blank."""
    stat[_LONGEST_LINE] = max(stat[_LONGEST_LINE], chars)
    first, last, _ = _trim(data, start, end, points, kinds)
    if first == last:
        return first, last
    line = stat[_LINES]
    keys[line] = _hash(data, start, end)
    lengths[line] = chars
    stat[_LINES] += 1
    stat[_LINE_CHARS] += chars
    stat[_SHORT_LINES] += chars <= SHORT_LINE
    stat[_LONG_LINES] += chars >= LONG_LINE
    stat[_UNTRIMMED_BULLET_LINES] += data[start] == 45 or data[start] == 42
    if data[first] == 45:
        stat[_DASH_LINES] += 1
    elif data[first] == 42:
        stat[_STAR_LINES] += 1
    elif data[first] == 0xE2:
        _count_bullet(_read(data, first, last, points, kinds)[0], stat)
    _count_ending(data, first, last, stat)
    untrimmed = end - 1 if data[end - 1] == 13 else end
    if untrimmed > start:
        final = data[untrimmed - 1]
        stat[_MARKED_LINES_UNTRIMMED] += _is_mark(final)
        stat[_ELLIPSIS_LINES_UNTRIMMED] += _ends_with_glyph(data, start, untrimmed)
        stop = final == 46 or final == 33 or final == 63
        if final >= 128:
            before = untrimmed - 1
            while before > start and data[before] & 0xC0 == 0x80:
                before -= 1
            stop = _read(data, before, untrimmed, points, kinds)[1] & STOP != 0
        stat[_STOPPED_LINES_UNTRIMMED] += stop
    stat[_SENTENCES] += (data[first] < 128 and not kinds[data[first]] & _MAY_FOLLOW) or _has_content(
        data, first, last, points, kinds
    )
    return first, last


@part
def _count_bullet(point, stat):
    if point == 0x2022:
        stat[_BULLET_LINES] += 1
    elif point == 0x25CF:
        stat[_DISC_LINES] += 1
    elif (
        point == 0x2023 or point == 0x2043 or point == 0x204C or point == 0x204D or point == 0x2219
        or point == 0x25CB or point == 0x25D8 or point == 0x25E6 or point == 0x29BE or point == 0x29BF
    ):  # fmt: skip
        stat[_OTHER_BULLET_LINES] += 1


@inlined
def _count_ending(data, first, last, stat):
    final = data[last - 1]
    stat[_MARKED_LINES] += _is_mark(final)
    if final == 46:
        stat[_ELLIPSIS_LINES] += _ends_with_dots(data, first, last)
        if last - first >= 5 and data[last - 2] == 32 and data[last - 3] == 46 and data[last - 4] == 32:
            stat[_SPACED_ELLIPSIS_LINES] += data[last - 5] == 46
    elif final == 0xA6:
        stat[_ELLIPSIS_LINES] += _ends_with_glyph(data, first, last)
    if final == 93 or final == 41:
        opener = 91 if final == 93 else 40
        if last - first >= 5 and data[last - 5] == opener:
            inner = _ends_with_dots(data, first, last - 1)
            stat[_TEASER_LINES] += inner or (final == 93 and _ends_with_glyph(data, first, last - 1))
    elif final == 0xBB:
        stat[_TEASER_LINES] += last - first >= 3 and data[last - 2] == 0xC2 and data[last - 3] == 45
    else:
        end = last
        if final == 46 and last - first > 2 and data[last - 2] == 46:
            end = last - 2
        if (end == last or data[end - 1] != 46) and end - first >= 9 and data[end - 1] | 32 == 101:
            stat[_TEASER_LINES] += (
                data[end - 2] | 32 == 114 and data[end - 3] | 32 == 111 and data[end - 4] | 32 == 109
                and data[end - 5] == 32 and data[end - 6] | 32 == 100 and data[end - 7] | 32 == 97
                and data[end - 8] | 32 == 101 and data[end - 9] | 32 == 114
            )  # fmt: skip


@inlined
def _close_paragraph(data, paragraph, keys, lengths, paragraph_keys, paragraph_lengths, stat):
    """Record the hash of a paragraph. Reuse the hash of its line if it is a single line without whitespace around it."""
    first, last = paragraph[2], paragraph[3]
    index = stat[_PARAGRAPHS]
    line = stat[_LINES] - 1
    if paragraph[4] == 1 and first == paragraph[0] and last == paragraph[1]:
        paragraph_keys[index], paragraph_lengths[index] = keys[line], lengths[line]
    else:
        chars = 0
        for at in range(first, last):
            chars += (data[at] & 0xC0) != 0x80
        paragraph_keys[index], paragraph_lengths[index] = _hash(data, first, last), chars
    stat[_PARAGRAPHS] += 1
    paragraph[4] = 0


@part
def _find_repeats(keys, lengths, count, slots, names, times):
    """Find spans that occur more than once.

    Return (characters of all `count` spans, copies after the first, their characters, all copies, their characters).
    """
    size = table_size(count)
    clear(slots, size)
    members = np.int64(0)
    chars = later = later_chars = every = every_chars = np.int64(0)
    for index in range(count):
        chars += lengths[index]
        number = number_of(slots, size - 1, names, members, keys[index])
        if number > members:
            members = number
            times[number] = index  # index of the first copy, until a second is found
        else:
            later += 1
            later_chars += lengths[index]
            first = times[number]
            if first >= 0:
                every += 1
                every_chars += lengths[first]
                times[number] = -1
            every += 1
            every_chars += lengths[index]
    return chars, later, later_chars, every, every_chars
