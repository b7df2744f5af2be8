"""Find text that is repeated anywhere in other text, by rolling hashes of windows of `size` bytes.

    runs      consecutive windows whose smallest hash of a `gram` (a shorter substring) is the same. Equal windows have the same
              smallest hash, so they are in runs with the same hash; a text has about 2 / (size - gram + 2) runs per byte
    windows   the windows of runs that share a hash, in a hash table of the first occurrence of each
    spans     ranges [start, stop) of bytes of a row, and the row and position `kept` where the same bytes occur first

Hashes are polynomials modulo 2**64 and only nominate: `confirm_spans` compares bytes. Kernels take `data` (uint8) and `offsets`
(int64, rows + 1); positions are relative to the row.
"""
# mypy: disallow-untyped-defs=False, disable-error-code="call-arg,var-annotated,assignment"

from __future__ import annotations

import numpy as np

from tamis.kernels.digests import mix64
from tamis.kernels.jit import kernel, part

MAX_RUN = 4096
"""The largest number of windows in a run: in a text of equal characters, all windows have the same smallest hash."""

PERIODIC = 1 << 15
"""Added to the number of windows of a run in which the smallest hash occurs twice: its windows may repeat each other."""

_BASE = np.uint64(0xD6E8FEB86659FD93)  # odd, with well spread bits
_ONE = np.uint64(1)
_HIGH = np.uint64(40)


@part
def _power(exponent):
    result = _ONE
    for _ in range(exponent):
        result *= _BASE
    return result


@kernel
def find_runs(data, offsets, size, gram, hashes, rows, starts, counts):
    """Write the runs of windows of each row; returns their number, which may exceed the arrays: then the rest is missing."""
    width = size - gram + 1
    recent = np.empty(width, np.uint64)
    power = _power(gram)
    limit = len(hashes)
    found = np.int64(0)
    for row in range(len(offsets) - 1):
        begin = offsets[row]
        length = offsets[row + 1] - begin
        if length < size:
            continue
        state = np.uint64(0)
        for index in range(gram):
            state = state * _BASE + np.uint64(data[begin + index]) + _ONE
        best, best_at, twice = np.uint64(0), np.int64(-1), False
        run_hash, run_start, run_count, periodic = np.uint64(0), np.int64(0), np.int64(0), False
        slot = np.int64(0)
        for number in range(length - gram + 1):
            if number:
                state = state * _BASE + np.uint64(data[begin + number + gram - 1]) + _ONE
                state -= (np.uint64(data[begin + number - 1]) + _ONE) * power
            value = mix64(state)
            recent[slot] = value
            if best_at < 0 or value <= best:  # the last of equal ones, which remains in the window longest
                twice = best_at >= 0 and value == best
                best, best_at = value, number
            elif best_at <= number - width:
                best, best_at, twice = value, number, False
                at = slot
                for back in range(1, width):
                    at = at - 1 if at else width - 1
                    if recent[at] < best:
                        best, best_at, twice = recent[at], number - back, False
                    elif recent[at] == best:
                        twice = True
            slot = slot + 1 if slot + 1 < width else 0
            if number < width - 1:
                continue
            if run_count and best == run_hash and run_count < MAX_RUN:
                run_count += 1
                periodic |= twice
                continue
            if run_count:
                if found < limit:
                    hashes[found] = mix64(run_hash + _BASE)  # the smallest of many hashes is small
                    rows[found], starts[found] = row, run_start
                    counts[found] = run_count + PERIODIC * periodic
                found += 1
            run_hash, run_start, run_count, periodic = best, number - width + 1, 1, twice
        if found < limit:
            hashes[found] = mix64(run_hash + _BASE)
            rows[found], starts[found] = row, run_start
            counts[found] = run_count + PERIODIC * periodic
        found += 1
    return found


@kernel
def gather_bytes(data, starts, stops, out):
    """Copy data[starts[i]:stops[i]] to out, one after another."""
    size = np.int64(0)
    for index in range(len(starts)):
        for at in range(starts[index], stops[index]):
            out[size] = data[at]
            size += 1


@kernel
def grow_table(old_keys, old_rows, old_starts, keys, rows, starts):
    """Move the windows of a table to a larger one."""
    mask = np.uint64(len(keys) - 1)
    for index in range(len(old_keys)):
        key = old_keys[index]
        if key:
            slot = key & mask
            while keys[slot]:
                slot = (slot + _ONE) & mask
            keys[slot], rows[slot], starts[slot] = key, old_rows[index], old_starts[index]


@part
def _is_superfluous(out, last, size):
    """Whether the spans around the one before `last` cover it, with the same windows.

    In a text with a short period, windows repeat the same few first occurrences again and again. Of these spans, one for every
    `size` bytes is enough.
    """
    for column in range(3, 5):
        if out[last, column] != out[last - 1, column] or out[last, column] != out[last - 2, column]:
            return False
    length = out[last - 1, 2] - out[last - 1, 1]
    if length > out[last, 2] - out[last, 1] or length > out[last - 2, 2] - out[last - 2, 1]:
        return False
    return out[last, 1] - out[last - 2, 1] <= size


@kernel
def match_windows(
    data,
    offsets,
    run_hashes,
    run_rows,
    run_starts,
    run_counts,
    size,
    may_overlap,
    passes,
    chosen,
    keys,
    key_rows,
    key_starts,
    out,
):
    """Look up the windows of each run, in source order; returns (spans that repeat an earlier window, windows inserted).

    `data` has the text of each run, and `keys`, `key_rows` and `key_starts` are the table of first occurrences, with a power of
    two of slots; key 0 is a free slot. Of `passes` parts of all windows, only the part `chosen` is looked up. Without
    `may_overlap`, a window that overlaps its first occurrence is no repeat. out[i] = row, start, stop, first row, first start.
    """
    mask = np.uint64(len(keys) - 1)
    power = _power(size)
    parts, part_number = np.uint64(passes), np.uint64(chosen)
    spans, inserted = np.int64(0), np.int64(0)
    for run in range(len(run_rows)):
        begin, row = offsets[run], run_rows[run]
        state = np.uint64(0)
        for index in range(size):
            state = state * _BASE + np.uint64(data[begin + index]) + _ONE
        following = np.int64(-1)  # the window that would extend the last span
        first = spans
        for number in range(run_counts[run]):
            if number:
                state = state * _BASE + np.uint64(data[begin + number + size - 1]) + _ONE
                state -= (np.uint64(data[begin + number - 1]) + _ONE) * power
            key = mix64(state + run_hashes[run])
            if key == 0:
                key = _ONE
            if passes > 1 and (key >> _HIGH) % parts != part_number:
                continue
            slot = key & mask
            while keys[slot] and keys[slot] != key:
                slot = (slot + _ONE) & mask
            start = run_starts[run] + number
            if not keys[slot]:
                keys[slot], key_rows[slot], key_starts[slot] = key, row, start
                inserted += 1
                continue
            if key_rows[slot] == row and start < key_starts[slot] + size and not may_overlap:
                continue
            if key_rows[slot] == row and start == key_starts[slot]:
                continue
            if (
                following == start
                and out[spans - 1, 3] == key_rows[slot]
                and key_starts[slot] - out[spans - 1, 4] == start - out[spans - 1, 1]
            ):
                out[spans - 1, 2] += 1
            else:
                if spans - first >= 3 and _is_superfluous(out, spans - 1, size):
                    out[spans - 2] = out[spans - 1]
                    spans -= 1
                out[spans, 0], out[spans, 1], out[spans, 2] = row, start, start + size
                out[spans, 3], out[spans, 4] = key_rows[slot], key_starts[slot]
                spans += 1
            following = start + 1
    return spans, inserted


@kernel
def join_spans(spans, size):
    """Join spans of consecutive windows in place, sorted by row, first row, distance and start; returns how many remain."""
    count = np.int64(0)
    for index in range(len(spans)):
        last = count - 1
        if (
            count
            and spans[index, 0] == spans[last, 0]
            and spans[index, 3] == spans[last, 3]
            and spans[index, 4] - spans[index, 1] == spans[last, 4] - spans[last, 1]
            and spans[index, 1] <= spans[last, 2] - size + 1
        ):
            spans[last, 2] = max(spans[last, 2], spans[index, 2])
        else:
            spans[count] = spans[index]
            count += 1
    return count


@kernel
def unite_ranges(ranges):
    """Join overlapping and adjacent ranges (row, start, stop) in place, sorted by row and start; returns how many remain."""
    count = np.int64(0)
    for index in range(len(ranges)):
        if count and ranges[index, 0] == ranges[count - 1, 0] and ranges[index, 1] <= ranges[count - 1, 2]:
            ranges[count - 1, 2] = max(ranges[count - 1, 2], ranges[index, 2])
        else:
            ranges[count] = ranges[index]
            count += 1
    return count


@kernel
def confirm_spans(spans, texts, text_offsets, data, offsets, first, ranges, range_offsets, size, out):
    """Write the parts of spans, of at least `size` bytes, whose first occurrence is equal and intact; returns their number.

    `texts` has the bytes of each span; `data` and `offsets` are the rows from number `first` on, in which they occur first.
    ranges[range_offsets[i] : range_offsets[i + 1]] are the ranges of row first + i that are not intact. If `out` is too
    small, the rest is missing.
    """
    count = np.int64(0)
    for index in range(len(spans)):
        local = spans[index, 3] - first
        begin, start, stop, kept = offsets[local], spans[index, 1], spans[index, 2], spans[index, 4]
        equal = kept + stop - start <= offsets[local + 1] - begin
        at = np.int64(0)
        while equal and at < stop - start:
            equal = texts[text_offsets[index] + at] == data[begin + kept + at]
            at += 1
        if not equal:
            continue
        intact = kept
        for number in range(range_offsets[local], range_offsets[local + 1] + 1):
            last = number == range_offsets[local + 1]
            border = kept + stop - start if last else min(kept + stop - start, ranges[number, 1])
            if border - intact >= size:
                if count < len(out):
                    out[count, 0], out[count, 3], out[count, 4] = spans[index, 0], spans[index, 3], intact
                    out[count, 1], out[count, 2] = start + intact - kept, start + border - kept
                count += 1
            if not last:
                intact = max(intact, ranges[number, 2])
    return count


@part
def _is_inside_word(data, begin, at, end):
    return begin < at < end and data[at - 1] > 32 and data[at] > 32


@kernel
def cut_spans(spans, data, offsets, first, whole_words):
    """Make spans, sorted by row and start, disjoint and cut them at characters or words, in place; returns how many remain."""
    count = np.int64(0)
    index = np.int64(0)
    while index < len(spans):
        row, begin = spans[index, 0], offsets[spans[index, 0] - first]
        end = offsets[row - first + 1]
        left = opened = count
        stop = spans[index, 1]
        while index < len(spans) and spans[index, 0] == row and spans[index, 1] <= stop:
            if spans[index, 2] > stop:
                skipped = stop - spans[index, 1]
                spans[count] = spans[index]
                spans[count, 1] += skipped
                spans[count, 4] += skipped
                stop = spans[index, 2]
                count += 1
            index += 1
        at = begin + spans[opened, 1]
        while at < end and (data[at] & 0xC0 == 0x80 or (whole_words and _is_inside_word(data, begin, at, end))):
            at += 1
        until = begin + stop
        while until > at and (
            (until < end and data[until] & 0xC0 == 0x80) or (whole_words and _is_inside_word(data, begin, until, end))
        ):
            until -= 1
        for number in range(opened, count):
            skipped = max(np.int64(0), at - begin - spans[number, 1])
            start = spans[number, 1] + skipped
            last = min(spans[number, 2], until - begin)
            if start < last:
                spans[left] = spans[number]
                spans[left, 1], spans[left, 2] = start, last
                spans[left, 4] = spans[number, 4] + skipped
                left += 1
        count = left
    return count


@kernel
def cut_ranges(data, offsets, cut_offsets, cuts, buffer, out_offsets):
    """Copy each row to buffer without the ranges of bytes cuts[2 * i], cuts[2 * i + 1], which are ascending in a row."""
    size = np.int64(0)
    for row in range(len(offsets) - 1):
        out_offsets[row] = size
        begin = at = offsets[row]
        for index in range(cut_offsets[row], cut_offsets[row + 1], 2):
            while at < begin + cuts[index]:
                buffer[size] = data[at]
                size += 1
                at += 1
            at = begin + cuts[index + 1]
        while at < offsets[row + 1]:
            buffer[size] = data[at]
            size += 1
            at += 1
    out_offsets[len(offsets) - 1] = size


@kernel
def measure_spans(data, offsets, spans, first, lost, lost_solid, lost_chars, solid):
    """Add to each row: bytes of its spans, those that are not white space, characters; and solid bytes of the whole row."""
    for row in range(len(offsets) - 1):
        for at in range(offsets[row], offsets[row + 1]):
            solid[row] += data[at] > 32
    for index in range(len(spans)):
        row = spans[index, 0] - first
        lost[row] += spans[index, 2] - spans[index, 1]
        for at in range(offsets[row] + spans[index, 1], offsets[row] + spans[index, 2]):
            lost_solid[row] += data[at] > 32
            lost_chars[row] += data[at] & 0xC0 != 0x80
