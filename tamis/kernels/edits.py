"""Edit distances between pairs of sequences of numbers, and repetitions within sequences.

data      int32[items] from 0 to below `kinds`, all sequences one after the other; offsets int64[rows + 1]
out       int64[rows]

Distances are computed for 64 items at a time with the bit vectors of Myers (1999), in the form for several words by
Hyyrö (2003): each holds the differences between neighbours of a column of the usual table.
"""

from __future__ import annotations

import numpy as np

from tamis.kernels.jit import kernel, part

_ONE = np.uint64(1)
_TOP = np.uint64(63)


@kernel
def edit_distances(left, left_offsets, right, right_offsets, kinds, out):
    """out[i] = the least number of insertions, deletions and substitutions between rows i."""
    number = np.full(kinds, -1, np.int64)  # of each kind of item within a row
    for row in range(len(out)):
        a, a_stop = left_offsets[row], left_offsets[row + 1]
        b, b_stop = right_offsets[row], right_offsets[row + 1]
        while a < a_stop and b < b_stop and left[a] == right[b]:
            a += 1
            b += 1
        while a < a_stop and b < b_stop and left[a_stop - 1] == right[b_stop - 1]:
            a_stop -= 1
            b_stop -= 1
        if a == a_stop or b == b_stop:
            out[row] = a_stop - a + b_stop - b
        else:
            out[row] = _distance(left[a:a_stop], right[b:b_stop], number)


@part
def _distance(left, right, number):
    blocks = (len(left) + 63) // 64
    found = 0
    for item in left:
        if number[item] < 0:
            number[item] = found
            found += 1
    equal = np.zeros((found + 1, blocks), np.uint64)  # the last row is for items that are not in `left`
    for place in range(len(left)):
        equal[number[left[place]], place >> 6] |= _ONE << np.uint64(place & 63)
    rising, falling = np.full(blocks, ~np.uint64(0)), np.zeros(blocks, np.uint64)
    last = np.uint64((len(left) - 1) & 63)
    score = len(left)
    for item in right:
        which = number[item] if number[item] >= 0 else found
        rise_in, fall_in = _ONE, np.uint64(0)
        for block in range(blocks):
            same, up, down = equal[which, block], rising[block], falling[block]
            vertical = same | down
            same |= fall_in
            across = (((same & up) + up) ^ up) | same
            rise = down | ~(across | up)
            fall = up & across
            if block == blocks - 1:
                score += np.int64((rise >> last) & _ONE) - np.int64((fall >> last) & _ONE)
            rise_out, fall_out = rise >> _TOP, fall >> _TOP
            rise, fall = (rise << _ONE) | rise_in, (fall << _ONE) | fall_in
            rising[block] = fall | ~(vertical | rise)
            falling[block] = rise & vertical
            rise_in, fall_in = rise_out, fall_out
    for item in left:
        number[item] = -1
    return score


@kernel
def most_repeats(data, offsets, longest, out):
    """out[i] = how often the most repeated n-gram of row i follows itself, for n up to `longest`: "a b a b a b" has 3."""
    for row in range(len(out)):
        start, stop = offsets[row], offsets[row + 1]
        best = 1 if stop > start else 0
        for length in range(1, longest + 1):
            run = 0
            for place in range(start + length, stop):
                run = run + 1 if data[place] == data[place - length] else 0
                best = max(best, run // length + 1)
        out[row] = best
