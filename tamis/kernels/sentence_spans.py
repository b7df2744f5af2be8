"""Split texts into sentences, and reduce sentences and words to what is compared between texts.

Kernels take `data` (uint8, the bytes of a string column) and `offsets` (int64, rows + 1).
"""
# mypy: disallow-untyped-defs=False, disable-error-code="call-arg,var-annotated,assignment"

from __future__ import annotations

from tamis.kernels.jit import kernel, part


@part
def _stop_at(data, at, end):
    """The number of bytes of the sentence end at `at`: 1 for . ! ?, 2 or 3 for those of other scripts, 0 if there is none."""
    byte = data[at]
    if byte == 46 or byte == 33 or byte == 63:
        return 1
    if byte < 0x80:
        return 0
    if at + 1 < end and ((byte == 0xD8 and data[at + 1] == 0x9F) or (byte == 0xDB and data[at + 1] == 0x94)):
        return 2  # Arabic question mark, Urdu full stop
    if at + 2 >= end:
        return 0
    second, third = data[at + 1], data[at + 2]
    if byte == 0xE3 and second == 0x80 and third == 0x82:  # ideographic full stop
        return 3
    if byte == 0xEF and ((second == 0xBC and (third == 0x81 or third == 0x9F)) or (second == 0xBD and third == 0xA1)):
        return 3  # fullwidth ! and ?, halfwidth full stop
    if byte == 0xE0 and second == 0xA5 and (third == 0xA4 or third == 0xA5):  # danda
        return 3
    if byte == 0xE2 and second == 0x80 and third == 0xA6:  # ellipsis
        return 3
    return 0


@part
def _closing_at(data, at, end):
    """The number of bytes of a closing quote or bracket at `at`."""
    byte = data[at]
    if byte == 34 or byte == 39 or byte == 41 or byte == 93 or byte == 125:
        return 1
    if byte == 0xC2 and at + 1 < end and data[at + 1] == 0xBB:
        return 2
    if byte == 0xE2 and at + 2 < end and data[at + 1] == 0x80 and (data[at + 2] == 0x99 or data[at + 2] == 0x9D):
        return 3
    if byte == 0xE3 and at + 2 < end and data[at + 1] == 0x80 and (data[at + 2] == 0x8D or data[at + 2] == 0x8F):
        return 3
    return 0


@kernel
def find_sentences(data, offsets, lines, firsts, starts, stops):
    """Split each row into sentences, or lines; returns their number. Blank ones do not count.

    A sentence ends with its line, and after a run of sentence ends and closing quotes or brackets that white space follows;
    those of Chinese and Japanese need no white space. Its span does not include white space at its ends. Writes the
    spans, as far as there is room, and the number of each row's first sentence to firsts (int64, rows + 1).
    """
    count = 0
    for row in range(len(offsets) - 1):
        firsts[row] = count
        at, end = offsets[row], offsets[row + 1]
        while at < end:
            while at < end and data[at] <= 32:
                at += 1
            begin = at
            while at < end and data[at] != 10:
                byte = data[at]
                if lines or (byte < 0xD8 and byte != 46 and byte != 33 and byte != 63):  # most bytes
                    at += 1
                    continue
                size = _stop_at(data, at, end)
                if not size:
                    at += 1
                    continue
                wide = False
                while size:
                    wide |= size == 3 and data[at] != 0xE2 and data[at] != 0xE0
                    at += size
                    size = _stop_at(data, at, end) if at < end else 0
                size = _closing_at(data, at, end) if at < end else 0
                while size:
                    at += size
                    size = _closing_at(data, at, end) if at < end else 0
                if at >= end or data[at] <= 32 or wide:
                    break
            stop = at
            while stop > begin and data[stop - 1] <= 32:
                stop -= 1
            if stop > begin:
                if count < len(starts):
                    starts[count], stops[count] = begin, stop
                count += 1
    firsts[len(offsets) - 1] = count
    return count


@kernel
def cut_sentences(data, offsets, firsts, starts, stops, cut_offsets, cuts, buffer, out_offsets):
    """Copy each row to buffer without its sentences cuts[cut_offsets[row]:cut_offsets[row + 1]], ascending numbers in the row.

    A sentence is copied with the white space before it, unless it is the first that remains of a row from which some are cut.
    """
    size = 0
    for row in range(len(offsets) - 1):
        out_offsets[row] = size
        begin, index = size, cut_offsets[row]
        if index == cut_offsets[row + 1]:
            for at in range(offsets[row], offsets[row + 1]):
                buffer[size] = data[at]
                size += 1
            continue
        before = offsets[row]
        for number in range(firsts[row], firsts[row + 1]):
            if index < cut_offsets[row + 1] and firsts[row] + cuts[index] == number:
                index += 1
            else:
                for at in range(starts[number] if size == begin else before, stops[number]):
                    buffer[size] = data[at]
                    size += 1
            before = stops[number]
    out_offsets[len(offsets) - 1] = size


@kernel
def ascii_spans(data, starts, stops, out):
    """out[i] = whether all bytes of data[starts[i]:stops[i]] are below 128."""
    for index in range(len(starts)):
        seen = 0
        for at in range(starts[index], stops[index]):
            seen |= data[at]
        out[index] = seen < 128


@kernel
def simplify_ascii(data, starts, stops, wanted, buffer, spans):
    """Write each wanted span to buffer in lower case, with 0 for each number and one space for other characters.

    spans (int64, spans + 1) are the offsets there. A number is a run of digits, with one . or , between digits.
    """
    size = 0
    for index in range(len(starts)):
        spans[index] = size
        if not wanted[index]:
            continue
        first, space = size, False
        at, stop = starts[index], stops[index]
        while at < stop:
            byte = data[at]
            at += 1
            if 48 <= byte <= 57:
                while at < stop and 48 <= data[at] <= 57:
                    at += 1
                if at + 1 < stop and (data[at] == 46 or data[at] == 44) and 48 <= data[at + 1] <= 57:
                    at += 1
                    while at < stop and 48 <= data[at] <= 57:
                        at += 1
                byte = 48
            elif 65 <= byte <= 90:
                byte += 32
            elif not 97 <= byte <= 122:
                space = True
                continue
            if space and size > first:
                buffer[size] = 32
                size += 1
            space = False
            buffer[size] = byte
            size += 1
    spans[len(starts)] = size


@part
def _is_whole_word(data, at, stop):
    """Whether a character of a script without spaces starts at `at`: U+3040 to U+9FFF."""
    return at + 2 < stop and 0xE3 <= data[at] <= 0xE9 and not (data[at] == 0xE3 and data[at + 1] == 0x80)


@kernel
def count_words(data, starts, stops, out):
    """out[i] = words of data[starts[i]:stops[i]]: runs between white space, and characters of scripts without spaces."""
    for index in range(len(starts)):
        count, inside = 0, False
        at, stop = starts[index], stops[index]
        while at < stop:
            if _is_whole_word(data, at, stop):
                count += 1
                inside = False
                at += 3
                continue
            if data[at] <= 32:
                inside = False
            elif not inside:
                count += 1
                inside = True
            at += 1
        out[index] = count


@kernel
def find_words(data, spans_starts, spans_stops, firsts, starts, stops):
    """Find the words of each span; returns their number. Writes them unless starts is empty, and the first of each span.

    A word is a run of letters and digits in ASCII and of characters outside it, or a character of a script without spaces.
    """
    count = 0
    for index in range(len(spans_starts)):
        firsts[index] = count
        at, stop = spans_starts[index], spans_stops[index]
        while at < stop:
            begin = at
            if _is_whole_word(data, at, stop):
                at += 3
            else:
                while at < stop and not _is_whole_word(data, at, stop):
                    byte = data[at]
                    if not (byte >= 128 or 48 <= byte <= 57 or 97 <= byte <= 122 or 65 <= byte <= 90):
                        break
                    at += 1
            if at == begin:
                at += 1
                continue
            if len(starts):
                starts[count], stops[count] = begin, at
            count += 1
    firsts[len(spans_starts)] = count
    return count


@kernel
def lower_ascii(data, out):
    """out = data with a-z for A-Z."""
    for at in range(len(data)):
        byte = data[at]
        out[at] = byte + 32 if 65 <= byte <= 90 else byte
