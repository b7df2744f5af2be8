"""Find all operators and write where they are: tamis/names.py, and stubs of the packages that offer them.

python scripts/make_names.py            tests/test_types.py fails if a file is out of date

A class decorated with `@operator` is found by its syntax; nothing is imported. Names that are not operators are those that the
package passes to `lazy_names`.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tamis"
GENERATED = "Written by scripts/make_names.py."


@functools.cache
def operators() -> dict[str, str]:
    """The recipe name of each operator, and its module and class as `module:Class`."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        for node in ast.parse(text).body if "\n@operator(" in text else ():
            if isinstance(node, ast.ClassDef) and any(_is_operator(each) for each in node.decorator_list):
                module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
                found[snake_case(node.name)] = f"{module}:{node.name}"
    return dict(sorted(found.items()))


def _is_operator(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Name) and decorator.func.id == "operator"


def snake_case(name: str) -> str:
    """As in `tamis.operators`, which this script does not import: it may be out of date."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def lazy_packages() -> dict[Path, dict[str, str]]:
    """The `__init__.py` of each package that calls `lazy_names`, and the module of each name that it offers."""
    known = [place.partition(":") for place in operators().values()]
    result = {}
    for file in sorted(PACKAGE.rglob("__init__.py")):
        package = ".".join(file.parent.relative_to(ROOT).parts)
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "lazy_names(" in text else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "lazy_names":
                others = ast.literal_eval(node.args[1]) if len(node.args) > 1 else {}
                given = {each.arg: ast.literal_eval(each.value) for each in node.keywords}
                starts = tuple(
                    f"{package}.{each}." if each else f"{package}." for each in given.get("operators_of", [""])
                )
                homes = {name: f"{package}.{module}" for module, names in others.items() for name in names}
                homes |= {name: module for module, _, name in known if module.startswith(starts)}
                result[file] = homes
    return result


def files() -> dict[Path, str]:
    """Each file that this script writes, and its text."""
    lines = [
        f'"""Where each operator is: its recipe name, its module and its class. {GENERATED}"""',
        "",
        "OPERATORS = {",
        *(f'    "{name}": "{place}",' for name, place in operators().items()),
        "}",
        "",
    ]
    result = {PACKAGE / "names.py": "\n".join(lines)}
    for file, homes in lazy_packages().items():
        lines = [f"# {GENERATED}"]
        lines += [f"from {homes[name]} import {name} as {name}" for name in sorted(homes, key=lambda n: (homes[n], n))]
        if file.parent == PACKAGE:
            lines += ["", "__version__: str"]
        lines += ["", "__all__ = [", *(f'    "{name}",' for name in sorted(homes)), "]", ""]
        result[file.with_suffix(".pyi")] = "\n".join(lines)
    return result


def main() -> None:
    for file, text in files().items():
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
