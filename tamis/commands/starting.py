"""Commands to start with: what this machine has, a recipe for some data, a new operator, the schema of recipes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tamis.commands.options import JsonOption
from tamis.commands.printing import NOT_OK, print_json, print_result, print_status
from tamis.errors import SinkError


class NewKind(StrEnum):
    filter = "filter"
    map = "map"
    expand = "expand"


ForceOption = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]


def doctor(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Where a run would write.")] = ".",
    as_json: JsonOption = False,
) -> None:
    """Show what this machine has and which extras are installed; exits with 4 if something would keep a run from working."""
    from tamis.commands.doctor import examine

    found = examine(folder)
    if as_json:
        print_json(found.as_dict())
    else:
        print_result(str(found))
    if found.problems:
        raise typer.Exit(NOT_OK)


def init(
    path: Annotated[str, typer.Argument(metavar="PATH", help="Data: a file, a folder or a glob pattern.")],
    recipe: Annotated[
        str, typer.Option("--recipe", metavar="FILE", help="Write the recipe to this file.")
    ] = "recipe.yaml",
    output: Annotated[
        str, typer.Option("--output", metavar="FOLDER", help="The output that the recipe names.")
    ] = "curated",
    force: ForceOption = False,
) -> None:
    """Write a recipe that fits some data, from a look at its format, columns, languages and size."""
    from tamis.recipes.look import look_at, recipe_text, relative_to, suggested
    from tamis.recipes.schema import COMMENT, FILE_NAME, schema_text

    file = Path(recipe)
    look = look_at(path)
    made = suggested(look, output)
    made.build().check()
    steps = list(made.steps)
    for place, parameter in ((0, "file_paths"), (-1, "path")):
        given = dict(steps[place].parameters)
        given[parameter] = relative_to(str(given[parameter]), file.parent)
        steps[place] = type(steps[place])(steps[place].name, given)
    made = type(made)(tuple(steps), made.name, made.description, made.settings)
    _write(file, recipe_text(made, look, COMMENT), force)
    _write(file.parent / FILE_NAME, schema_text(), True)
    for line in look.lines():
        print_status(line)
    print_status(f"{file} is written, and beside it {FILE_NAME}, with which editors complete it")
    print_result(f"tamis run {file}")


def new_operator(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name in recipes: shout_share.")],
    kind: Annotated[NewKind, typer.Option(help="What it does with rows.")] = NewKind.filter,
    folder: Annotated[str, typer.Option("--folder", metavar="DIR", help="Write the files to this folder.")] = ".",
    force: ForceOption = False,
) -> None:
    """Write a new operator and a test that passes, to start from."""
    from tamis.commands.templates import new_operator as make

    made = make(name, kind.value)
    target = Path(folder)
    files = {target / f"{made.name}.py": made.module, target / f"test_{made.name}.py": made.test}
    for file in files:
        _check_free(file, force)
    for file, text in files.items():
        _write(file, text, force)
        print_status(f"{file} is written")
    print_result(f"python -m pytest {target / f'test_{made.name}.py'}")


def schema(
    output: Annotated[
        str | None, typer.Option("--output", metavar="FILE", help="Write it to this file; else to stdout.")
    ] = None,
) -> None:
    """Print the JSON schema of recipes, with all installed operators, for editors that complete and check YAML."""
    from tamis.recipes.schema import schema_text

    if output is None:
        print_result(schema_text().rstrip("\n"))
    else:
        _write(Path(output), schema_text(), True)
        print_status(f"{output} is written")


def _check_free(file: Path, force: bool) -> None:
    if file.exists() and not force:
        raise SinkError(f"{file} exists", hint="name another file, or replace it with --force")


def _write(file: Path, text: str, force: bool) -> None:
    from tamis.store import writing

    _check_free(file, force)
    with writing(file) as path:
        path.write_text(text, encoding="utf-8")
