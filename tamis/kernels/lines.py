"""Characters, lines, sentences and paragraphs of each row, found in one pass over its bytes.

    bytes --class of each--> packed counts        newline: the line is looked at from both ends, hashed, put down
                             a few bytes act      stop:    does a sentence end here?
                                                  ':'      is this a URL?
    end of row: lines and paragraphs that occur more than once, from their hashes

A line ends at a newline; a carriage return before it belongs to it. A blank line holds nothing but whitespace.
Paragraphs are parted by empty lines (two or more newlines in a row) and trimmed; blank ones do not count.
A sentence ends where a stop (Unicode Sentence_Terminal), with any closing quotes and brackets, is followed by a space
and then by something other than a lower-case letter ('.') or anything (other stops), or at the end of its line; wide
stops of Chinese and Japanese need no space. Lines without anything but stops and closers are no sentence.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from tamis.kernels.jit import inlined, kernel, part
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
from tamis.kernels.words import decode, flags_of

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
    # URLs: http:// or https:// and what follows up to a space or one of < > " '
    "urls", "url_chars", "porn_urls",
    # lines
    "newlines", "last_line_open",  # 1 if the text ends without a newline and is not empty
    "lines",  # lines that are not blank
    "longest_line", "short_lines", "long_lines",  # of at most 30 (FineWeb) and at least 200 (mC4) characters
    "dash_lines", "star_lines", "bullet_lines", "disc_lines", "other_bullet_lines",  # by first character, trimmed
    "untrimmed_bullet_lines",  # '-' or '*' in the first column
    "marked_lines", "marked_lines_untrimmed",  # ending in . ? ! " '
    "stopped_lines_untrimmed",  # ending in one of these or in a Unicode stop
    "ellipsis_lines", "ellipsis_lines_untrimmed",  # ending in "..." or the character; in the character
    "spaced_ellipsis_lines",  # ending in ". . ."
    "teaser_lines",  # ending in "[...]", "(...)", "[...]" with the character, "->>", "read more" or "read more.."
    "sentences", "paragraphs",
    # repetition; *_later counts copies after the first, *_all every copy of what occurs more than once
    "line_chars", "line_later", "line_later_chars", "line_all", "line_all_chars",
    "paragraph_chars", "paragraph_later", "paragraph_later_chars", "paragraph_all", "paragraph_all_chars",
)  # fmt: skip
"""Rows of the output of `measure_text`."""

SHORT_LINE = 30
LONG_LINE = 200

(_CHARS, _LETTERS, _DIGITS, _NUMBERS, _UPPER, _PUNCTUATION, _SYMBOLS, _MARKS, _SPACES, _PLAIN, _SIGNS, _BLANKS, _BRACKETS,
 _HASHES, _CURLY, _ELLIPSES, _SPACED_ELLIPSES, _URLS, _URL_CHARS, _PORN_URLS, _NEWLINES, _LAST_LINE_OPEN, _LINES,
 _LONGEST_LINE, _SHORT_LINES, _LONG_LINES, _DASH_LINES, _STAR_LINES, _BULLET_LINES, _DISC_LINES, _OTHER_BULLET_LINES,
 _UNTRIMMED_BULLET_LINES, _MARKED_LINES, _MARKED_LINES_UNTRIMMED, _STOPPED_LINES_UNTRIMMED, _ELLIPSIS_LINES,
 _ELLIPSIS_LINES_UNTRIMMED, _SPACED_ELLIPSIS_LINES, _TEASER_LINES, _SENTENCES, _PARAGRAPHS, _LINE_CHARS, _LINE_LATER,
 _LINE_LATER_CHARS, _LINE_ALL, _LINE_ALL_CHARS,
 _PARAGRAPH_CHARS, _PARAGRAPH_LATER, _PARAGRAPH_LATER_CHARS, _PARAGRAPH_ALL,
 _PARAGRAPH_ALL_CHARS) = range(len(TEXT_FIELDS))  # fmt: skip

_NEWLINE_BYTE, _STOP_BYTE, _COLON_BYTE, _HASH_BYTE, _BRACKET_BYTE, _CURLY_BYTE, _HIGH_BYTE = range(1, 8)


def _byte_table():
    """For each byte: what it adds to eight packed counts of 7 bits, and above these what it does, if anything."""
    flags = np.concatenate([KINDS[:128].astype(np.int64), np.zeros(128, np.int64)])
    byte = np.arange(256)
    fields = [flags & mask != 0 for mask in (LETTER, DIGIT, UPPER, PUNCTUATION, SYMBOL, SPACE)]
    fields += [np.isin(byte, list(b"\n?!,.")), np.isin(byte, list(b" \t\n\r\b"))]
    packs = np.zeros(256, np.uint64)
    for index, field in enumerate(fields):
        packs |= field.astype(np.uint64) << np.uint64(7 * index)
    for action, members in (
        (_NEWLINE_BYTE, b"\n"), (_STOP_BYTE, b".!?"), (_COLON_BYTE, b":"), (_HASH_BYTE, b"#"),
        (_BRACKET_BYTE, b"()[]}"), (_CURLY_BYTE, b"{"), (_HIGH_BYTE, range(128, 256)),
    ):  # fmt: skip
        packs[list(members)] |= np.uint64(action << 56)
    packs.flags.writeable = False
    return packs


BYTE_PACKS = _byte_table()
_MAY_FOLLOW = SPACE | STOP | CLOSER  # what a stop that ends a sentence is followed by
_BURST = 127  # bytes until a count of 7 bits could overflow


@inlined
def _add_packed(packed, stat):
    mask = np.uint64(127)
    stat[_LETTERS] += np.int64(packed & mask)
    stat[_DIGITS] += np.int64((packed >> np.uint64(7)) & mask)
    stat[_UPPER] += np.int64((packed >> np.uint64(14)) & mask)
    stat[_PUNCTUATION] += np.int64((packed >> np.uint64(21)) & mask)
    stat[_SYMBOLS] += np.int64((packed >> np.uint64(28)) & mask)
    stat[_SPACES] += np.int64((packed >> np.uint64(35)) & mask)
    stat[_SIGNS] += np.int64((packed >> np.uint64(42)) & mask)
    stat[_BLANKS] += np.int64((packed >> np.uint64(49)) & mask)


@kernel
def measure_text(data, offsets, points, kinds, packs, out):
    """Per row, in the order of TEXT_FIELDS; out int64[fields, rows]; packs: BYTE_PACKS."""
    stat = np.zeros(len(out), np.int64)
    room, paragraph_room = _most_lines(data, offsets)
    keys, lengths = np.empty(room, np.uint64), np.empty(room, np.int64)
    paragraph_keys, paragraph_lengths = np.empty(paragraph_room, np.uint64), np.empty(paragraph_room, np.int64)
    slots, names = np.empty(table_size(room), np.int32), np.empty(room + 1, np.uint64)
    times = np.empty(room + 1, np.int32)
    for row in range(len(offsets) - 1):
        clear(stat, len(stat))
        start, end = offsets[row], offsets[row + 1]
        _measure_row(data, start, end, points, kinds, packs, keys, lengths, paragraph_keys, paragraph_lengths, stat)
        lines, paragraphs = stat[_LINES], stat[_PARAGRAPHS]
        found = _find_repeats(keys, lengths, lines, slots, names, times)
        stat[_LINE_CHARS], stat[_LINE_LATER], stat[_LINE_LATER_CHARS], stat[_LINE_ALL], stat[_LINE_ALL_CHARS] = found
        found = _find_repeats(paragraph_keys, paragraph_lengths, paragraphs, slots, names, times)
        stat[_PARAGRAPH_CHARS], stat[_PARAGRAPH_LATER], stat[_PARAGRAPH_LATER_CHARS] = found[0], found[1], found[2]
        stat[_PARAGRAPH_ALL], stat[_PARAGRAPH_ALL_CHARS] = found[3], found[4]
        stat[_PLAIN] += stat[_LETTERS] + stat[_DIGITS] + stat[_SIGNS]
        for field in range(len(stat)):
            out[field, row] = stat[field]


@kernel
def measure_trimmed_lines(data, offsets, points, kinds, out):
    """Per row, of lines that are not blank, trimmed: characters, copies of what repeats, their characters; int64[3, rows]."""
    room, _ = _most_lines(data, offsets)
    keys, lengths = np.empty(room, np.uint64), np.empty(room, np.int64)
    slots, names, times = (
        np.empty(table_size(room), np.int32),
        np.empty(room + 1, np.uint64),
        np.empty(room + 1, np.int32),
    )
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        lines = 0
        while start < end:
            at, chars = start, 0
            while at < end and data[at] != 10:
                chars += (data[at] & 0xC0) != 0x80
                at += 1
            first, last, trimmed = _trim(data, start, at, points, kinds)
            if first < last:
                keys[lines], lengths[lines] = _hash(data, first, last), chars - trimmed
                lines += 1
            start = at + 1
        out[0, row], _, _, out[1, row], out[2, row] = _find_repeats(keys, lengths, lines, slots, names, times)


@kernel
def count_short_lines(data, offsets, limit, points, kinds, out):
    """out[i] = lines of row i that are not blank and have at most `limit` characters; int64."""
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


@part
def _most_lines(data, offsets):
    """The most lines that are not empty, and the most paragraphs, that a row may have."""
    lines = paragraphs = 0
    for row in range(len(offsets) - 1):
        filled = gaps = 0
        for at in range(offsets[row] + 1, offsets[row + 1]):
            newline, before = data[at] == 10, data[at - 1]
            filled += newline & (before != 10)
            gaps += newline & ((before == 10) | (before == 13))
        lines, paragraphs = max(lines, filled + 1), max(paragraphs, min(gaps, filled) + 1)
    return lines, paragraphs


@part
def _measure_row(data, start, end, points, kinds, packs, keys, lengths, paragraph_keys, paragraph_lengths, stat):
    at = line_start = flush_at = start
    packed = np.uint64(0)
    continuation = line_continuation = 0  # bytes that do not begin a character
    dots, spaced, last_dot = 0, 0, np.int64(-9)
    sentence_to, url_to, content_line = np.int64(-1), np.int64(-1), np.int64(-1)
    paragraph_start, paragraph_end = np.int64(-1), np.int64(-1)
    paragraph_first, paragraph_last, paragraph_lines = np.int64(-1), np.int64(-1), 0
    while True:
        if at >= flush_at:
            _add_packed(packed, stat)
            packed = np.uint64(0)
            flush_at = min(end, at + _BURST)
        pack = np.uint64(0)
        byte = np.uint8(0)
        here, limit = np.uint64(at), np.uint64(flush_at)
        while here + np.uint64(4) <= limit:  # four bytes at a time as long as none of them acts
            pack0, pack1 = packs[data[here]], packs[data[here + np.uint64(1)]]
            pack2, pack3 = packs[data[here + np.uint64(2)]], packs[data[here + np.uint64(3)]]
            if (pack0 | pack1 | pack2 | pack3) >> np.uint64(56):
                break
            packed += pack0 + pack1 + pack2 + pack3
            here += np.uint64(4)
        while here < limit:
            byte = data[here]
            pack = packs[byte]
            packed += pack
            here += np.uint64(1)
            if pack >> np.uint64(56):
                break
        at = np.int64(here)
        action = np.int64(pack >> np.uint64(56))
        if action == _NEWLINE_BYTE or (action == 0 and at >= end):
            line_end = at - 1 if action else end
            if action:
                stat[_NEWLINES] += 1
            elif line_end > line_start:
                stat[_LAST_LINE_OPEN] = 1
            if line_end > line_start:
                chars = line_end - line_start - (continuation - line_continuation)
                first, last = _close_line(data, line_start, line_end, chars, points, kinds, keys, lengths, stat)
                if first < last:
                    if paragraph_lines == 0:
                        paragraph_start, paragraph_end, paragraph_first = line_start, line_end, first
                    paragraph_last = last
                    paragraph_lines += 1
            if paragraph_lines:
                empty = line_end == line_start or (line_end == line_start + 1 and data[line_start] == 13)
                if empty or not action:
                    _close_paragraph(
                        data,
                        paragraph_first,
                        paragraph_last,
                        paragraph_start,
                        paragraph_end,
                        paragraph_lines,
                        keys,
                        lengths,
                        paragraph_keys,
                        paragraph_lengths,
                        stat,
                    )
                    paragraph_lines = 0
            if not action:
                break
            line_start, line_continuation = at, continuation
            continue
        if action == 0:
            continue
        stop = action == _STOP_BYTE
        wide = False
        if action == _HIGH_BYTE:
            point, after = decode(data, at - 1, end)
            flags = flags_of(point, points, kinds)
            continuation += after - at
            at = after
            stat[_LETTERS] += flags & LETTER != 0
            stat[_DIGITS] += flags & DIGIT != 0
            stat[_PLAIN] -= flags & (LETTER | DIGIT) != 0  # only ASCII counts; the rest is added at the end
            stat[_NUMBERS] += flags & NUMBER != 0
            stat[_UPPER] += flags & UPPER != 0
            stat[_PUNCTUATION] += flags & PUNCTUATION != 0
            stat[_SYMBOLS] += flags & SYMBOL != 0
            stat[_MARKS] += flags & MARK != 0
            stat[_SPACES] += flags & SPACE != 0
            stat[_ELLIPSES] += point == 0x2026
            stat[_BRACKETS] += point == 0x27E8 or point == 0x27E9
            stop = flags & STOP != 0
            wide = flags & WIDE_STOP != 0
        elif byte == 46:
            dots = dots + 1 if last_dot == at - 2 else 1
            spaced = spaced + 1 if last_dot == at - 3 and data[at - 2] == 32 else 1
            stat[_ELLIPSES] += dots % 3 == 0
            stat[_SPACED_ELLIPSES] += spaced % 3 == 0
            last_dot = at - 1
        elif action == _COLON_BYTE:
            if at - 1 >= url_to and at + 1 < end and data[at] == 47:
                url_to = _read_url(data, start, at - 1, end, points, kinds, stat)
        elif action == _HASH_BYTE:
            stat[_HASHES] += 1
        elif not stop:
            stat[_BRACKETS] += 1
            stat[_CURLY] += action == _CURLY_BYTE
        if stop and at > sentence_to and at < end and (wide or data[at] >= 128 or kinds[data[at]] & _MAY_FOLLOW):
            ends, sentence_to = _ends_sentence(data, at, end, byte == 46, wide, points, kinds)
            if ends:
                if content_line != line_start and _has_content(data, line_start, at, points, kinds):
                    content_line = line_start
                stat[_SENTENCES] += content_line == line_start
    _add_packed(packed, stat)
    stat[_CHARS] = end - start - continuation


@part
def _read(data, at, end, points, kinds):
    """(code point, its flags, position after it), for places that are not worth being inlined."""
    point, after = decode(data, at, end)
    return point, flags_of(point, points, kinds), after


@part
def _ends_sentence(data, at, end, dot, wide, points, kinds):
    """(whether a sentence ends after the stop before `at` and another begins, position up to which this is settled)."""
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
    """Whether there is anything but stops, closers and spaces between at and end."""
    while at < end:
        _, flags, at = _read(data, at, end, points, kinds)
        if not flags & (STOP | CLOSER | SPACE):
            return True
    return False


@part
def _read_url(data, start, colon, end, points, kinds, stat):
    """Count the URL whose ':' is at colon, if it is one, and return where it ends."""
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
    """(first, last, characters trimmed) of a span without the whitespace around it; first == last if all is blank."""
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
    """Look at the line from start to end and put its hashes down; returns it trimmed, empty if it is blank."""
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
        mark = _is_mark(data[untrimmed - 1])
        stat[_MARKED_LINES_UNTRIMMED] += mark
        stat[_ELLIPSIS_LINES_UNTRIMMED] += _ends_with_glyph(data, start, untrimmed)
        if not mark and data[untrimmed - 1] >= 128:
            before = untrimmed - 1
            while before > start and data[before] & 0xC0 == 0x80:
                before -= 1
            mark = _read(data, before, untrimmed, points, kinds)[1] & STOP != 0
        stat[_STOPPED_LINES_UNTRIMMED] += mark
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


@part
def _close_paragraph(
    data, first, last, line_start, line_end, lines, keys, lengths, paragraph_keys, paragraph_lengths, stat
):
    """Put down the hash of a paragraph; the hash of its line if it is one line and nothing was trimmed off it."""
    index = stat[_PARAGRAPHS]
    line = stat[_LINES] - 1
    if lines == 1 and first == line_start and last == line_end:
        paragraph_keys[index], paragraph_lengths[index] = keys[line], lengths[line]
    else:
        chars = 0
        for at in range(first, last):
            chars += (data[at] & 0xC0) != 0x80
        paragraph_keys[index], paragraph_lengths[index] = _hash(data, first, last), chars
    stat[_PARAGRAPHS] += 1


@part
def _find_repeats(keys, lengths, count, slots, names, times):
    """(characters, later copies, their characters, all copies of what repeats, their characters) of `count` spans."""
    size = table_size(count)
    clear(slots, size)
    members = np.int64(0)
    chars = later = later_chars = every = every_chars = np.int64(0)
    for index in range(count):
        chars += lengths[index]
        number = number_of(slots, size - 1, names, members, keys[index])
        if number > members:
            members = number
            times[number] = index  # where the first copy is, until there is a second
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
