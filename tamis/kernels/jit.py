"""How kernels are compiled: once, and then read from numba's cache.

kernel   called from Python, with the interpreter's lock released
part     called by kernels only; without an entry for Python it compiles in two thirds of the time, and crashes if
         Python calls it all the same
inlined  a part that is put into its callers
bare     a part that makes no arrays and has no references to them counted; where many small parts call each other, counting
         can take most of the time
"""

from __future__ import annotations

from numba import njit

kernel = njit(nogil=True, cache=True)
part = njit(nogil=True, cache=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
inlined = njit(nogil=True, cache=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True)
bare = njit(nogil=True, cache=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)
