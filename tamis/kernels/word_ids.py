"""Token ids of texts from a table of known words, where words are what ASCII whitespace separates.

keys    uint64[a power of two, 2]   identify a word; the second is 0 in an empty slot (`pieces.slot_of`)
starts, counts                      where the ids of the word in a slot begin, and how many there are; -1 for a word whose ids
                                    depend on its neighbours
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from tamis.kernels.jit import inlined, kernel
from tamis.kernels.pieces import key_of, slot_of


@inlined
def _is_space(byte):
    return byte == 32 or byte == 10 or byte == 9 or byte == 13


@kernel
def find_words(data, offsets, keys, position, slots, ends, new_slots, new_spans):
    """Find the slot of each word, in order, and insert unknown words into the table; returns how many are new.

    position   int64[3]       row, byte and word to start at; updated to where the next call continues, if new_slots is full
    slots      int32[words]   out: the slot of each word
    ends       int64[rows]    out: where the words of each row end
    new_slots, new_spans      out: the slot and int64[., 2] the first and last byte of each new word
    """
    new = 0
    row, at, word = position[0], position[1], position[2]
    while row < len(offsets) - 1:
        end = offsets[row + 1]
        at = max(at, offsets[row])
        while at < end:
            if _is_space(data[at]):
                at += 1
                continue
            stop = at + 1
            while stop < end and not _is_space(data[stop]):
                stop += 1
            first, second = key_of(data, at, stop)
            slot = slot_of(keys, first, second)
            if keys[slot, 1] == 0:
                if new == len(new_slots):
                    position[0], position[1], position[2] = row, at, word
                    return new
                keys[slot, 0], keys[slot, 1] = first, second
                new_slots[new] = slot
                new_spans[new, 0], new_spans[new, 1] = at, stop
                new += 1
            slots[word] = slot
            word += 1
            at = stop
        ends[row] = word
        row += 1
    position[0], position[1], position[2] = row, at, word
    return new


@kernel
def count_ids(slots, ends, counts, out):
    """out[i] = number of tokens of row i, or -1 if a word of it depends on its neighbours."""
    word = 0
    for row in range(len(ends)):
        total = 0
        while word < ends[row]:
            count = counts[slots[word]]
            total = -1 if count < 0 or total < 0 else total + count
            word += 1
        out[row] = total


@kernel
def place_ids(slots, ends, starts, counts, ids, skip, places, out):
    """Write the ids of the words of each row that is not skipped to out, from places[row] on."""
    word = 0
    for row in range(len(ends)):
        if skip[row]:
            word = ends[row]
            continue
        at = places[row]
        while word < ends[row]:
            slot = slots[word]
            for index in range(counts[slot]):
                out[at] = ids[starts[slot] + index]
                at += 1
            word += 1
