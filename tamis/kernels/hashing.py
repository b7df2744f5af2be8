"""Loads and mixing functions for the hashes of several kernels."""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from tamis.kernels.jit import inlined, intrinsic, ir, types


@intrinsic
def load64(typingctx, data, at):
    """Eight bytes of a uint8 array as a uint64, at any alignment; the caller checks the bounds."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(64).as_pointer())
        return builder.load(pointer, align=1)

    return types.uint64(data, types.int64), generate


@inlined
def mix64(value):
    """A bijection of uint64 in which every output bit depends on every input bit (finaliser of MurmurHash3)."""
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(33))
