"""Packages whose names are imported on first use, so that importing one of them costs nothing.

    __init__.py     calls `lazy_names` and lists the names that are not operators
    __init__.pyi    the same names for type checkers and editors
    names.py        all operators: where a recipe, a command or a package finds them

The last two are written by `scripts/make_names.py`, which finds every class decorated with `@operator`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from tamis.names import OPERATORS

Names = tuple[Callable[[str], object], Callable[[], list[str]], list[str]]


def lazy_names(
    package: str, others: Mapping[str, Sequence[str]] | None = None, *, operators_of: Sequence[str] = ("",)
) -> Names:
    """`__getattr__`, `__dir__` and `__all__` of a package.

    It offers the operators of its modules, or only of those below the folders in `operators_of`, and `others`, which are
    names by module.
    """
    homes = {name: f"{package}.{module}" for module, names in (others or {}).items() for name in names}
    starts = tuple(f"{package}.{folder}." if folder else f"{package}." for folder in operators_of)
    for place in OPERATORS.values():
        module, _, name = place.partition(":")
        if module.startswith(starts):
            homes[name] = module

    def find(name: str) -> object:
        if name not in homes:
            from tamis.curator_names import unknown_name

            raise unknown_name(package, name)
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    names = sorted(homes)
    return find, lambda: names, names
