"""How kernels are compiled: once, and then read from numba's cache.

kernel   called from Python, with the interpreter's lock released
part     called by kernels only; without an entry for Python it compiles in two thirds of the time, and crashes if
         Python calls it all the same
inlined  a part that is put into its callers
bare     a part that makes no arrays and has no references to them counted; where many small parts call each other, counting
         can take most of the time

An array that is handed on is seven numbers, which costs more than most of the small parts do. Where it matters they get its
address (`array.ctypes.data`) and see it through `array_at`. That is for arrays that Python hands in: one made in a kernel is
gone after the last line that names it.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

_ENDLESS = 1 << 40

kernel = njit(nogil=True, cache=True)
part = njit(nogil=True, cache=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
inlined = njit(nogil=True, cache=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True)
bare = njit(nogil=True, cache=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)


@intrinsic
def array_at(typingctx, address, dtype):
    """The array of that type at an address, for kernels; its length is not known."""
    kind = types.Array(dtype.dtype, 1, "C")

    def generate(context, builder, signature, arguments):
        array = context.make_array(kind)(context, builder)
        number = context.get_value_type(types.intp)
        size = ir.Constant(number, context.get_abi_sizeof(context.get_data_type(dtype.dtype)))
        populate_array(
            array,
            data=builder.inttoptr(arguments[0], array.data.type),
            shape=(ir.Constant(number, _ENDLESS),),
            strides=(size,),
            itemsize=size,
            meminfo=None,
        )
        return array._getvalue()

    return kind(types.intp, dtype), generate
