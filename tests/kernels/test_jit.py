"""Check that Python never calls a part of a kernel: parts have no Python wrapper, and calling one crashes the process."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
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


COUNT_WORDS = """
import sys
import pyarrow as pa
from tamis import Batch, Column
from tamis.text.quality import WordCount

batch = Batch(pa.table({"text": ["one two three"]}))
assert list(WordCount().score(batch)["words"]) == [3]
print(*sorted(sys.modules))
"""


def test_a_kernel_found_on_disk_runs_without_the_compiler(tmp_path) -> None:
    """`numba.np.linalg` stands for the functions that numba can compile calls of; loading them takes as long as numba."""

    def loaded() -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", COUNT_WORDS], capture_output=True, text=True, check=False, env=variables
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    variables = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    assert "numba.np.linalg" in loaded()  # compiles
    again = loaded()
    assert "numba" in again
    assert "numba.np.linalg" not in again
