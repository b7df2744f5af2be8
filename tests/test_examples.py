"""The notebooks of examples/ run from top to bottom in an empty folder."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.fixture(scope="module")
def run_examples():
    spec = importlib.util.spec_from_file_location("run_examples", ROOT / "scripts" / "run_examples.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Jupyter
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook, run_examples, tmp_path):
    run_examples.run(notebook, tmp_path)


def test_the_list_of_examples_is_complete():
    page = (ROOT / "examples" / "README.md").read_text()
    assert [path.name for path in NOTEBOOKS if f"]({path.name})" not in page] == []
