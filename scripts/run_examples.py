"""Run the notebooks of examples/ and store what they print: `python scripts/run_examples.py [NAME ...]`."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(path: Path, folder: Path) -> Any:
    """The notebook with its outputs, after running it in an empty folder; raises the error of a cell that fails."""
    notebook = nbformat.read(path, as_version=4)
    environment = dict(os.environ)
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    client.execute(env=environment)
    return notebook


def without_noise(notebook: Any) -> dict[str, Any]:
    """Only what a reader sees: no times, no warnings, no numbers of cells."""
    for cell in notebook["cells"]:
        cell["metadata"] = {}
        if cell["cell_type"] == "code":
            cell["execution_count"] = None
            cell["outputs"] = [output for output in cell["outputs"] if output.get("name") != "stderr"]
            for output in cell["outputs"]:
                output.pop("execution_count", None)
                if "text" in output:  # of a command, from a terminal
                    output["text"] = re.sub(r"\x1b\[[0-9;]*m", "", output["text"]).replace("\r\n", "\n")
                output["metadata"] = {} if output["output_type"] == "execute_result" else None
                if output["metadata"] is None:
                    del output["metadata"]
                else:
                    output["execution_count"] = None
    notebook["metadata"].pop("language_info", None)
    return json.loads(nbformat.writes(notebook))


def main(names: list[str]) -> int:
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            notebook = without_noise(run(path, Path(folder)))
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        sys.stderr.write(f"{path.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
