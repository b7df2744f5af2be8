"""Where modules come from, and what is in those the user wrote.

A module is the user's own if it belongs neither to the standard library, nor to Tamis, nor to an installed package.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

OWN = "own"


def is_own_code(module: str) -> bool:
    """Whether a module was written by the user."""
    return home_of(module) == OWN


def home_of(module: str) -> str:
    """What a module belongs to: "own", "python", "tamis", or an installed package with its version."""
    return _home(module.partition(".")[0])


@functools.lru_cache(maxsize=4096)
def _home(top: str) -> str:
    if top == "__main__":
        return OWN
    if top == "tamis":
        return "tamis"
    file = file_of(top)
    if top in sys.builtin_module_names or (top in sys.stdlib_module_names and (file is None or _is_stdlib(file))):
        return "python"
    if file is not None and {"site-packages", "dist-packages"} & set(file.parts):
        return f"{top} {_version_of(top)}"
    return OWN


def file_of(module: str) -> Path | None:
    """The file of a module, or the folder of a package without one. The module is not imported, its parents may be."""
    loaded = sys.modules.get(module)
    if loaded is not None:
        found = getattr(loaded, "__file__", None) or next(iter(getattr(loaded, "__path__", ())), None)
        return Path(found) if found else None
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    found = spec.origin if spec.has_location else next(iter(spec.submodule_search_locations or ()), None)
    return Path(found) if found else None


def is_installed(module: str) -> bool:
    """Whether a module could be imported. It is not imported itself, its parents may be.

    >>> is_installed("json"), is_installed("json.no_such_module"), is_installed("no_such_package.part")
    (True, False, False)
    """
    if module in sys.modules:
        return sys.modules[module] is not None
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):
        return False


@functools.cache
def _stdlib_folders() -> tuple[Path, ...]:
    return tuple({Path(sysconfig.get_path(key)).resolve() for key in ("stdlib", "platstdlib")})


def _is_stdlib(file: Path) -> bool:
    return any(file.resolve().is_relative_to(folder) for folder in _stdlib_folders())


def _version_of(top: str) -> str:
    from importlib import metadata

    for name in _distributions().get(top, [top]):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return str(getattr(sys.modules.get(top), "__version__", ""))


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    from importlib import metadata

    return {top: sorted(set(names)) for top, names in metadata.packages_distributions().items()}


def sources_of(module: str) -> dict[str, bytes | None]:
    """The content of an own module and of every own module it imports; None where the source was not found.

    Python files are parsed, so that comments, docstrings and layout make no difference. Nothing is imported.
    """
    found: dict[str, bytes | None] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in found or not is_own_code(name):
            continue
        file = file_of(name)
        if file is None or not file.is_file():
            found[name] = b"" if file is not None else None  # a folder without __init__.py has no content
        elif file.suffix != ".py":
            found[name] = hashlib.blake2b(file.read_bytes()).digest()
        else:
            tree = _without_docstrings(ast.parse(file.read_bytes()))
            found[name] = ast.dump(tree).encode()
            package = name if file.stem == "__init__" else name.rpartition(".")[0]
            waiting += [imported for imported in _imports(tree, package) if file_of(imported) is not None]
    return dict(sorted(found.items()))


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:]
    return tree


def _imports(tree: ast.Module, package: str) -> list[str]:
    """The own modules a source file may import; a name after `from x import` may be one too."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
            if base:
                found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return sorted(name for name in found if is_own_code(name))
