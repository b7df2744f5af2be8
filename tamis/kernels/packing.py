"""Kernel of best-fit packing: documents into sequences of a fixed length."""

from __future__ import annotations

import numpy as np

from tamis.kernels.jit import kernel


@kernel
def best_fit(sizes, order, length, bins):
    """bins[i] = the sequence of item i; returns the number of sequences. Items are placed in the order of `order`.

    sizes  int64[items]  1 to `length` tokens
    bins   int64[items]

    An item is put into the sequence with the least space left that is enough for it, the last one of these that was changed;
    if there is none, into a new one. `heads` and `links` chain the sequences with the same space left.
    """
    heads = np.full(length + 1, -1, np.int64)
    links = np.full(len(sizes), -1, np.int64)
    taken = np.zeros(length // 64 + 1, np.uint64)  # a bit for each amount of space that some sequence has left
    one, num = np.uint64(1), 0
    for item in order:
        size = sizes[item]
        space = -1
        word = size >> 6
        bits = taken[word] >> np.uint64(size & 63) << np.uint64(size & 63)
        while True:
            if bits != 0:
                low = bits & (~bits + one)
                bit = 0
                while low > one:
                    low >>= one
                    bit += 1
                space = (word << 6) + bit
                break
            word += 1
            if word == len(taken):
                break
            bits = taken[word]
        if space < 0:
            found, left = num, length - size
            num += 1
        else:
            found, left = heads[space], space - size
            heads[space] = links[found]
            if heads[space] < 0:
                taken[space >> 6] &= ~(one << np.uint64(space & 63))
        bins[item] = found
        links[found] = heads[left]
        heads[left] = found
        if left > 0:
            taken[left >> 6] |= one << np.uint64(left & 63)
    return num
