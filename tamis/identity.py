"""Digests of Python code and values, so that a run can tell whether a step still does what it did.

    function   instructions, constants, nested functions, defaults, closure
       +-- globals it uses: values by content, functions and classes of the user's own modules in the same way
       +-- modules it uses: `helpers.clean` by what it refers to, a module used as a value by its source
    class      its members and its bases
    object     its class and its state, as pickle would store it

The user's own modules are those outside the standard library, Tamis and installed packages. Code from the latter three is
identified by name and version. A digest does not depend on the process, the hash seed, the place of a file, comments,
docstrings or line numbers. Objects that have no content to compare, such as open files and locks, are listed as `opaque`.
"""

from __future__ import annotations

import dataclasses
import dis
import enum
import functools
import hashlib
import importlib.util
import inspect
import re
import types
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.modules import home_of, is_own_code, sources_of
from tamis.parameters import as_text


@dataclasses.dataclass(frozen=True)
class Identity:
    """The digest of a value, and the objects within it that could not be compared."""

    digest: str
    opaque: tuple[str, ...] = ()


def identify(value: object, name: str = "") -> Identity:
    """The identity of any Python value; `name` begins the names of opaque objects."""
    walk = _Walk((name,) if name else ())
    try:
        digest = walk.digest(value)
    except RecursionError:
        digest = walk.give_up(value, "nested too deeply")
    return Identity(digest.hex(), tuple(dict.fromkeys(walk.opaque)))


_SCALARS = frozenset({bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented)})
_SKIPPED_MEMBERS = frozenset(
    {
        "__abstractmethods__", "__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__", "__dict__",
        "__doc__", "__firstlineno__", "__match_args__", "__module__", "__parameters__", "__qualname__",
        "__slotnames__", "__static_attributes__", "__weakref__", "_abc_impl",  # copyreg adds `__slotnames__` when it pickles
    }
)  # fmt: skip
_GLOBAL_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_MODULE_LOADS = frozenset({*_GLOBAL_LOADS, "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"})
_ATTRIBUTE_LOADS = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_FLAGS = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)
_NO_MEANING = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "PRECALL", "RESUME"})


class _Walk:
    """Encodes values as bytes: short values as they are, everything else as a digest of its parts.

    Functions and classes are numbered in the order in which they are met and encoded one after the other, so that they may
    refer to each other in any way. That order follows from the program alone.
    """

    def __init__(self, trail: tuple[str, ...]) -> None:
        self.opaque: list[str] = []
        self._trail = trail
        """The names that lead to the object being encoded."""
        self._known: dict[int, bytes] = {}
        self._open: list[int] = []
        self._waiting: deque[tuple[Any, tuple[str, ...]]] = deque()
        self._count = 0
        self._alive: list[object] = []
        """Objects whose `id` is a key above, temporary ones among them."""

    def digest(self, value: object) -> bytes:
        parts = [self.encode(value)]
        while self._waiting:
            code, self._trail = self._waiting.popleft()
            parts.append(_hash(self._class(code) if isinstance(code, type) else self._function(code)))
        return _hash(parts)

    def encode(self, value: object, name: str = "") -> bytes:
        kind = type(value)
        if kind in _SCALARS:
            return _scalar(value)
        if kind is tuple:
            # Not remembered: constants are shared differently when a module comes from its compiled file.
            return _hash([b"tuple", *(self.encode(item) for item in value)])  # type: ignore[attr-defined]
        key = id(value)
        if key in self._known:
            return self._known[key]
        if key in self._open:
            return b"cycle:%d" % (len(self._open) - self._open.index(key))
        before = self._trail
        self._trail = (*before, name) if name else before
        self._alive.append(value)
        if kind is types.FunctionType or (isinstance(value, type) and is_own_code(value.__module__)):
            self._known[key] = b"code:%d" % self._count
            self._count += 1
            self._waiting.append((value, self._trail))
        else:
            self._open.append(key)
            result = _hash(self._parts(value))
            self._open.pop()
            self._known[key] = result
        self._trail = before
        return self._known[key]

    def give_up(self, value: object, why: str = "") -> bytes:
        """Note an object whose content cannot be compared."""
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        path = ".".join(self._trail) or "value"
        self.opaque.append(f"`{path}` ({kind}{', ' if why else ''}{why})")
        return _hash([b"opaque", kind.encode()])

    # ------------------------------------------------------------------------------------------------------ kinds of value

    def _parts(self, value: Any) -> list[bytes]:
        if isinstance(value, type):
            return [b"class", self._name_of(value)]
        if isinstance(value, types.ModuleType):
            return self._module(value.__name__)
        if isinstance(value, types.CodeType):
            return self._code(value)
        if isinstance(value, types.MethodType):
            return [b"method", self.encode(value.__self__), self.encode(value.__func__)]
        if isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            return self._builtin(value)
        if isinstance(value, functools.partial):
            return [b"partial", self.encode(value.func), self.encode(value.args), self._named(value.keywords)]
        if isinstance(value, (property, staticmethod, classmethod, functools.cached_property)):
            inner = (getattr(value, name, None) for name in ("fget", "fset", "fdel", "__func__", "func"))
            return [type(value).__name__.encode(), *(self.encode(part) for part in inner)]
        if isinstance(value, enum.Enum):
            return [b"enum", self.encode(type(value)), self.encode(value.name), self.encode(value.value)]
        if type(value) in (list, dict, set, frozenset, bytearray):
            return self._container(value)
        if isinstance(value, re.Pattern):
            return [b"pattern", self.encode(value.pattern), self.encode(value.flags)]
        if isinstance(value, PurePath):
            return [b"path", str(value).encode()]
        if isinstance(value, np.ndarray):
            return self._array(value)
        arrow = _arrow(value)
        if arrow is not None:
            return [type(value).__name__.encode(), arrow]
        compiled = getattr(value, "py_func", None) or getattr(value, "__wrapped__", None)
        if isinstance(compiled, types.FunctionType) and not is_own_code(type(value).__module__):
            options = getattr(value, "targetoptions", None) or {}  # of numba; functools.lru_cache has none
            return [b"compiled", self._name_of(type(value)), self.encode(compiled), self._named(options)]
        return self._object(value)

    def _container(self, value: Any) -> list[bytes]:
        if isinstance(value, list):
            return [b"list", *(self.encode(item) for item in value)]
        if isinstance(value, bytearray):
            return [b"bytearray", bytes(value)]
        if isinstance(value, dict):  # in its order, which a loop over it would see
            return [b"dict", *(part for k, v in value.items() for part in (self.encode(k), self.encode(v, _text(k))))]
        if all(type(item) in _SCALARS for item in value):
            return [b"set", *sorted(_scalar(item) for item in value)]
        return [b"set", *sorted(self._apart(item) for item in value)]  # numbers would depend on the order

    def _apart(self, value: object) -> bytes:
        walk = _Walk(self._trail)
        found = walk.digest(value)
        self.opaque += walk.opaque
        return found

    def _named(self, values: Mapping[str, object]) -> bytes:
        """Values by name, in the order of the names."""
        return _hash([part for name in sorted(values) for part in (name.encode(), self.encode(values[name], name))])

    def _array(self, value: np.ndarray) -> list[bytes]:
        parts = [b"ndarray", self._name_of(type(value)), str(value.dtype).encode(), repr(value.shape).encode()]
        if value.dtype.hasobject:
            return [*parts, self.encode(value.tolist())]
        flat = np.ascontiguousarray(value).reshape(-1)  # in pieces: it may be mapped and larger than memory
        return parts + [_hash([flat[at : at + 2**20].tobytes()]) for at in range(0, len(flat), 2**20)]

    def _builtin(self, value: Any) -> list[bytes]:
        owner = value.__self__
        name = str(value.__qualname__).encode()
        if owner is None or isinstance(owner, types.ModuleType):
            module = str(getattr(owner, "__name__", None) or value.__module__)
            return [b"builtin", name, self._module_name(module)]
        return [b"builtin", name, self.encode(owner)]

    def _object(self, value: Any) -> list[bytes]:
        """An instance: its class, and its state as pickle would store it."""
        try:
            reduced = value.__reduce_ex__(4)
        except Exception as error:  # whatever the class raises, its state cannot be compared
            if isinstance(error, RecursionError):
                raise
            return [self.give_up(value)]
        if isinstance(reduced, str):
            return [b"global", reduced.encode(), self._name_of(type(value))]
        make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        return [
            b"object",
            self.encode(type(value)),
            self.encode(make),
            self.encode(arguments),
            self._state(state),
            self.encode(list(items)) if items is not None else b"",
            self.encode(list(pairs)) if pairs is not None else b"",
        ]

    def _state(self, state: object) -> bytes:
        if (
            isinstance(state, tuple)
            and len(state) == 2
            and all(part is None or isinstance(part, dict) for part in state)
        ):
            return _hash([self._state(part) for part in state])  # `__dict__` and slots
        if isinstance(state, dict) and all(isinstance(name, str) for name in state):
            return self._named(state)
        return self.encode(state)

    # ---------------------------------------------------------------------------------------------------------------- code

    def _function(self, value: types.FunctionType) -> list[bytes]:
        cells = [_cell(cell) for cell in value.__closure__ or ()]
        names = value.__code__.co_freevars
        module = str(value.__globals__.get("__name__", ""))  # `__module__` is what functools.wraps copied
        bound = [
            self.encode(value.__defaults__),
            self._named(value.__kwdefaults__ or {}),
            *(self.encode(cell, name) for name, cell in zip(names, cells, strict=True)),
        ]
        if module and not is_own_code(module):
            return [b"function", self._module_name(module), value.__code__.co_qualname.encode(), *bound]
        scope = {**value.__globals__, **dict(zip(names, cells, strict=True))}
        return [b"function", *self._code(value.__code__), *bound, *self._globals(value, scope)]

    def _code(self, code: types.CodeType) -> list[bytes]:
        """What a code object does; nested ones are among its constants."""
        shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _FLAGS)
        parts = [b"code", repr((shape, code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])).encode()]
        for instruction in _instructions(code):
            parts.append(instruction.opname.encode())
            if instruction.opcode in dis.hasconst:
                parts.append(self.encode(instruction.argval))
            elif isinstance(instruction.argval, str):
                parts.append(instruction.argval.encode())
            elif instruction.arg is not None and instruction.opcode not in dis.hasname:
                parts.append(b"%d" % instruction.arg)
        return [*parts, code.co_exceptiontable]

    def _globals(self, function: types.FunctionType, scope: Mapping[str, object]) -> list[bytes]:
        """The globals a function uses; of modules, only the attributes it uses."""
        names: set[str] = set()
        modules: dict[str, set[str] | None] = {}
        imported: set[str] = set()
        for code in _all_code(function.__code__):
            steps = _instructions(code)
            for number, step in enumerate(steps):
                if step.opname == "IMPORT_NAME":
                    imported.add(_absolute(str(step.argval), steps, number, function.__globals__))
                if step.opname not in _MODULE_LOADS:
                    continue
                value = scope.get(str(step.argval))
                if isinstance(value, types.ModuleType):
                    _add_path(modules, str(step.argval), steps[number + 1 :])
                elif step.opname in _GLOBAL_LOADS and step.argval in scope:
                    names.add(str(step.argval))
        parts = [self._named({name: scope[name] for name in names - set(function.__code__.co_freevars)})]
        for name in sorted(modules):
            parts += self._module_use(name, scope[name], modules[name])
        for name in sorted(imported):
            parts += [name.encode(), *self._module(name)]
        return parts

    def _module_use(self, name: str, module: Any, paths: set[str] | None) -> list[bytes]:
        if not is_own_code(module.__name__):
            return [name.encode(), self._module_name(module.__name__)]
        if paths is None:
            return [name.encode(), self.encode(module)]
        parts = [name.encode()]
        for path in sorted(paths):
            value: Any = module
            for attribute in path.split("."):
                if not isinstance(value, types.ModuleType) or not hasattr(value, attribute):
                    break
                value = getattr(value, attribute)
            parts += [path.encode(), self.encode(value, f"{name}.{path}")]
        return parts

    def _class(self, value: type) -> list[bytes]:
        parts = [b"class", value.__qualname__.encode(), self.encode(type(value))]
        parts += [self.encode(base) for base in value.__bases__]
        members = {
            name: member
            for name, member in vars(value).items()
            if name not in _SKIPPED_MEMBERS and not _is_generated(member)
        }
        fields = members.pop("__dataclass_fields__", {})
        members.pop("__dataclass_params__", None)
        for name, field in fields.items():
            members.pop(name, None)
            default = None if field.default is dataclasses.MISSING else (field.default,)
            factory = None if field.default_factory is dataclasses.MISSING else field.default_factory
            parts += [name.encode(), self.encode(default, name), self.encode(factory, name)]
        return [*parts, self._named(members)]

    def _module(self, name: str) -> list[bytes]:
        """A module as a whole: an own one by its source and that of the own modules it imports."""
        if not is_own_code(name):
            return [b"module", self._module_name(name)]
        parts = [b"module"]
        for module, source in sources_of(name).items():
            if source is None:
                self.opaque.append(f"module `{module}` (its source was not found)")
            parts += [module.encode(), source or b""]
        return parts

    def _name_of(self, kind: type) -> bytes:
        return _hash([kind.__qualname__.encode(), self._module_name(kind.__module__)])

    def _module_name(self, module: str) -> bytes:
        return f"{module} of {home_of(module)}".encode()


# --------------------------------------------------------------------------------------------------------------- encoding


def _hash(parts: Iterable[bytes]) -> bytes:
    """A digest of a sequence of parts, which `[b"ab"]` and `[b"a", b"b"]` do not share."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()


def _scalar(value: object) -> bytes:
    if isinstance(value, bytes):
        return b"bytes:" + value
    if isinstance(value, str):
        return b"str:" + value.encode("utf-8", "surrogatepass")
    return f"{type(value).__name__}:{value!r}".encode()


def _text(key: object) -> str:
    return key if isinstance(key, str) else ""


def _arrow(value: object) -> bytes | None:
    if isinstance(value, pa.Scalar):
        value = pa.array([value.as_py()], type=value.type)
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        value = pa.table({"": value})
    if isinstance(value, pa.RecordBatch):
        value = pa.Table.from_batches([value])
    if isinstance(value, pa.Table):
        return content_hash(value).encode()
    if isinstance(value, pa.DataType):
        value = pa.schema([("", value)])
    if isinstance(value, pa.Field):
        value = pa.schema([value])
    return value.serialize().to_pybytes() if isinstance(value, pa.Schema) else None


def content_hash(table: pa.Table) -> str:
    """A hash of the rows, the same whatever chunks they are in."""
    sink = _HashFile()
    # Taking the rows copies them: a slice would be written with what its buffers hold beyond it.
    alone = table.take(pa.array(np.arange(table.num_rows))).combine_chunks()
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), table.schema) as writer:
        writer.write_table(alone)
    return sink.hash.hexdigest()


class _HashFile:
    """A file that only hashes what is written to it."""

    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self.closed = False
        self.size = 0

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None: ...

    def close(self) -> None:
        self.closed = True


# --------------------------------------------------------------------------------------------------------------- bytecode


def _instructions(code: types.CodeType) -> list[dis.Instruction]:
    """The instructions that do something, without those that store docstrings and line numbers."""
    found = [step for step in dis.get_instructions(code) if step.opname not in _NO_MEANING]
    kept: list[dis.Instruction] = []
    for step in found:
        if step.opname == "STORE_NAME" and step.argval in _SKIPPED_MEMBERS and kept:
            kept.pop()
            continue
        kept.append(step)
    return kept


def _all_code(code: types.CodeType) -> Iterable[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _all_code(const)


def _add_path(modules: dict[str, set[str] | None], name: str, following: list[dis.Instruction]) -> None:
    """Note how a module is used: the attributes that are loaded from it, or None for the module as a value."""
    path: list[str] = []
    for step in following:
        if step.opname not in _ATTRIBUTE_LOADS:
            break
        path.append(str(step.argval))
    known = modules.setdefault(name, set())
    if not path:
        modules[name] = None
    elif known is not None:
        known.add(".".join(path))


def _absolute(name: str, steps: list[dis.Instruction], number: int, scope: Mapping[str, Any]) -> str:
    """The module an import inside a function names; the level of a relative one is loaded two instructions earlier."""
    level = steps[number - 2].argval if number >= 2 else 0
    package = str(scope.get("__package__") or "")
    if not isinstance(level, int) or level == 0 or not package:
        return name
    return importlib.util.resolve_name("." * level + name, package)


def _cell(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _is_generated(member: object) -> bool:
    """Whether a method was written by `dataclass`, as its fields say."""
    code = getattr(inspect.unwrap(member) if callable(member) else member, "__code__", None)
    return code is not None and "__create_fn__" in code.co_qualname


def parameter_identity(value: object, name: str) -> tuple[object, tuple[str, ...]]:
    """A parameter as text if that shows all of its content, else a digest of it; and what could not be compared."""
    if _shows_content(value):
        return as_text(value), ()
    found = identify(value, name)
    return f"{type(value).__qualname__} {found.digest}", found.opaque


def _shows_content(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) for key in value) and all(_shows_content(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return all(_shows_content(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str, Path))
