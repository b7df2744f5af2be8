"""Check that Python never calls a part of a kernel: parts have no Python wrapper, and calling one crashes the process."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import tamis


def is_part(module: str, name: str) -> bool:
    options = getattr(getattr(importlib.import_module(module), name, None), "targetoptions", {})
    return bool(options.get("no_cpython_wrapper"))


def test_no_module_but_kernels_imports_a_part() -> None:
    folder = Path(tamis.__file__).parent
    found = []
    for path in sorted(folder.rglob("*.py")):
        if path.parent.name == "kernels":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tamis.kernels."):
                found += [f"{path.name}: {alias.name}" for alias in node.names if is_part(str(node.module), alias.name)]
    assert found == []


def test_no_python_function_of_a_kernel_module_calls_a_part() -> None:
    found = []
    for path in sorted((Path(tamis.__file__).parent / "kernels").glob("*.py")):
        module = f"tamis.kernels.{path.stem}"
        for function in ast.parse(path.read_text()).body:
            if not isinstance(function, ast.FunctionDef) or function.decorator_list:
                continue
            names = {
                node.func.id
                for node in ast.walk(function)
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            }
            found += [f"{path.name}: {function.name} calls {name}" for name in sorted(names) if is_part(module, name)]
    assert found == []
