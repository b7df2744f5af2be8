"""Check that imports point one way, that the tree stays flat, and that importing the package stays cheap."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import tamis

PACKAGE = Path(tamis.__file__).parent

LAYERS = [
    {
        "cli",
        "__main__",
        "dashboard",
        "console",
        "commands",
        "dedup.commands",
        "dedup.options",
        "models.commands",
        "memory.commands",
        "looking.commands",
        "download.commands",
        "help",
    },
    {"workflows", "recipes"},
    {"pipeline", "progress", "live", "monitoring", "download"},
    {
        "executors.driver",
        "executors.resume",
        "executors.finishing",
        "executors.merging",
        "executors.sharding",
        "verification",
        "card",
    },
    {"explanation"},
    {"plan"},
    {"placement", "client"},
    {"executors"},
    {"memory", "ledger", "shards", "lock", "logs", "eventlog"},
    {
        *(
            "sources",
            "sinks",
            "text",
            "image",
            "audio",
            "video",
            "web",
            "dedup",
            "sampling",
            "mixing",
            "proportions",
            "attributes",
            "splitting",
            "fields",
            "backends",
        ),
        *("looking", "report"),
    },
    {"registry"},
    {"store", "account", "events"},
    {"functions"},
    {"operators", "rules", "partitions", "gathering"},
    {"identity"},
    {"kernels", "models"},
    {
        "batch",
        "context",
        "mapped",
        "modules",
        "media",
        "media_files",
        "media_paths",
        "segments",
        "features",
        "exchange",
        "remote",
    },
    {
        "parameters",
        "expressions",
        "curator_names",
        "lazy",
        "formats",
        "recipes.document",
        "dashboard.markup",
        "dashboard.charts",
        "inert",
    },
    {"errors", "names"},
]
"""From the top down: a module imports only from its own layer or from below."""


def layer_of(module: str) -> int:
    for number, names in enumerate(LAYERS):
        if module in names or any(module.startswith(f"{name}.") and "." in name for name in names):
            return number
    for number, names in enumerate(LAYERS):
        if module.partition(".")[0] in names:
            return number
    raise AssertionError(f"tamis.{module} belongs to no layer; put it into LAYERS")


def imports_of(path: Path) -> set[str]:
    """The modules of the package that a file imports, inside functions and for type checkers too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "tamis":
            found |= {module_of(alias.name) for alias in node.names if alias.name != "__version__"}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tamis."):
            found.add(node.module.removeprefix("tamis."))
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("tamis.") for alias in node.names if alias.name.startswith("tamis.")}
    return found


def module_of(name: str) -> str:
    """The module that `from tamis import name` reaches."""
    if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file():
        return name
    return str(getattr(tamis, name).__module__).removeprefix("tamis.")


def test_imports_point_one_way():
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        if module != "__init__":  # the package itself names everything it offers
            wrong += [
                f"tamis.{module} imports tamis.{imported}"
                for imported in sorted(imports_of(path))
                if layer_of(imported) < layer_of(module)
            ]
    assert not wrong


def test_the_architecture_lists_the_same_layers():
    text = (PACKAGE.parent / "ARCHITECTURE.md").read_text()
    lines = text.partition("## Import rule")[2].split("```")[1].strip().splitlines()
    listed = [set(re.findall(r"\w+", line)) for line in lines]
    wanted = [{name.rpartition(".")[2] for name in names if name != "__main__"} for names in LAYERS]
    assert [sorted(names - found) for names, found in zip(wanted, listed, strict=True)] == [[] for _ in wanted]


def test_imports_inside_functions_are_seen(tmp_path):
    file = tmp_path / "module.py"
    file.write_text(
        "def f():\n    from tamis import Pipeline, memory\n    from tamis.plan import Plan\n    import tamis.cli\n"
    )
    assert imports_of(file) == {"pipeline", "memory", "plan", "cli"}


def test_the_tree_is_two_levels_deep():
    assert not [str(path) for path in PACKAGE.rglob("*.py") if len(path.relative_to(PACKAGE).parts) > 2]


def test_no_drawers_for_odds_and_ends():
    drawers = {"utils", "util", "base", "common", "helpers", "misc"}
    assert not [str(path) for path in PACKAGE.rglob("*.py") if path.stem in drawers]


def test_importing_tamis_loads_nothing_heavy():
    code = "import sys, tamis; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pyarrow", "numba", "numpy", "rich", "typer", "fsspec", "yaml", "ray", "dask", "distributed"} & set(
        loaded
    )


def test_the_modules_of_operators_do_not_import_numba():
    """Importing it takes longer than all the rest, and the driver calls no kernel."""
    modules = "tamis.text.quality, tamis.text.pii, tamis.text.classify, tamis.dedup.exact, tamis.dedup.fuzzy"
    code = (
        f"import sys, tamis.pipeline, tamis.recipes.load, {modules}; print(*{{'numba', 'fsspec'}} & set(sys.modules))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == []
