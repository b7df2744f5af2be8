"""Decorators that compile kernels with numba on first call. Compiled code is cached on disk.

kernel     callable from Python; releases the GIL
part       callable from other kernels only. It has no Python wrapper, which saves a third of the compile time; calling it
           from Python crashes the process.
inlined    a part that LLVM always inlines
bare       a part without reference counting, which must not create arrays. Where many small functions call each other,
           reference counting can take most of the time.
summed     a part in which LLVM may add numbers in another order, which it needs in order to vectorise sums. The order depends
           only on how many there are.
expanded   a part that numba copies into its callers before it infers types
intrinsic  a function that generates LLVM IR (`numba.extending.intrinsic`)

Passing an array passes seven values, which costs more than most small parts do. Where it matters, parts take its address
(`array.ctypes.data`) and view it with `array_at`. Do this only for arrays passed in from Python: numba frees an array
created inside a kernel after the last line that names it.

Importing numba takes longer than everything else the driver imports, and the driver calls no kernel. The decorators
therefore return a `Deferred`, which imports numba when it is first called. A kernel that is found on disk needs neither the
compiler nor the parts it calls, so `_cached` loads these only if the kernel has to be compiled.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

_UNKNOWN_LENGTH = 1 << 40  # larger than any array, so that every index is within bounds


class Deferred:
    """A function that numba wraps when it is first used."""

    def __init__(self, function: FunctionType, wrap: Callable[[FunctionType], Any], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._wrap = function, wrap
        self.targetoptions = options
        self._wrapped: Any = None
        self._prepared = False

    def __call__(self, *arguments: Any) -> Any:
        return self.wrapped(*arguments)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    @property
    def wrapped(self) -> Any:
        """numba's dispatcher or intrinsic."""
        if self._wrapped is None:
            self._wrapped = self._wrap(self._function)
        return self._wrapped

    def prepare(self) -> Any:
        """`wrapped`, ready to be compiled: deferred callees are replaced in the globals, where numba looks them up."""
        if not self._prepared:
            self._prepared = True
            _replace_deferred(self._function.__globals__, set(_names(self._function.__code__)))
        return self.wrapped


def _names(code: CodeType) -> Iterator[str]:
    """Yield the globals and attributes named by a function and by functions nested in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _replace_deferred(namespace: dict[str, Any], names: set[str]) -> None:
    for name in names & namespace.keys():
        value = namespace[name]
        if isinstance(value, Deferred):
            namespace[name] = value.prepare()
        elif isinstance(value, ModuleType) and value.__name__.startswith("tamis.kernels."):
            _replace_deferred(vars(value), names)


def _compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    options = {"nogil": True, **options}

    def decorate(function: FunctionType) -> Deferred:
        def wrap(function: FunctionType) -> Any:
            from numba import njit

            dispatcher = njit(**options)(function)
            dispatcher._cache = _cached(function, deferred.prepare)  # what `cache=True` does, with another class
            return dispatcher

        deferred = Deferred(function, wrap, options)
        return deferred

    return decorate  # type: ignore[return-value]


def _cached(function: FunctionType, prepare: Callable[[], object]) -> Any:
    """The compiled versions of a function on disk. `prepare` is called before one is compiled."""
    return _cache_class()(function, prepare)


@functools.cache
def _cache_class() -> Any:
    from numba.core.caching import FunctionCache

    class KernelCache(FunctionCache):
        def __init__(self, function: FunctionType, prepare: Callable[[], object]) -> None:
            super().__init__(function)
            self._prepare = prepare

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            """numba's own method loads every function that kernels may call, which takes longer than importing numba."""
            start_runtime()
            with self._guard_against_spurious_io_errors():
                found = self._load_overload(sig, target_context)
            if found is None:
                self._prepare()
            return found

    return KernelCache


def start_runtime() -> None:
    """Import numba, and start what compiled kernels need to run."""
    import numba.np.arrayobj  # by kernels that create arrays  # noqa: F401
    from numba.core.registry import cpu_target
    from numba.core.runtime import rtsys

    rtsys.initialize(cpu_target.target_context)


kernel = _compiled()
part = _compiled(no_cpython_wrapper=True, no_cfunc_wrapper=True)
inlined = _compiled(no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True)
bare = _compiled(no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)
summed = _compiled(no_cpython_wrapper=True, no_cfunc_wrapper=True, fastmath={"reassoc", "contract"})
expanded = _compiled(inline="always")


def intrinsic(function: Callable[..., Any]) -> Any:
    def wrap(function: FunctionType) -> Any:
        from numba.extending import intrinsic

        return intrinsic(function)

    return Deferred(function, wrap, {})  # type: ignore[arg-type]


class DeferredModule:
    """A module that is imported when one of its attributes is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


ir = DeferredModule("llvmlite.ir")
types = DeferredModule("numba.core.types")


@intrinsic
def array_at(typingctx, address, dtype):
    """View the memory at an address as an array of type `dtype` and unknown length. For use inside kernels."""
    from numba.np.arrayobj import populate_array

    kind = types.Array(dtype.dtype, 1, "C")

    def generate(context, builder, signature, arguments):
        array = context.make_array(kind)(context, builder)
        number = context.get_value_type(types.intp)
        size = ir.Constant(number, context.get_abi_sizeof(context.get_data_type(dtype.dtype)))
        populate_array(
            array,
            data=builder.inttoptr(arguments[0], array.data.type),
            shape=(ir.Constant(number, _UNKNOWN_LENGTH),),
            strides=(size,),
            itemsize=size,
            meminfo=None,
        )
        return array._getvalue()

    return kind(types.intp, dtype), generate
