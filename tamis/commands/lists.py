"""Commands that list what there is: operators, recipes, the schema of recipes, memory."""

from __future__ import annotations

from typing import Annotated

import typer

from tamis.commands.completion import complete_operator, complete_recipe
from tamis.commands.options import JsonOption
from tamis.commands.printing import print_json, print_result


def memory(
    pid: Annotated[
        int | None,
        typer.Argument(metavar="PID", help="Show this process and its children; without it, the largest processes."),
    ] = None,
    watch: Annotated[float | None, typer.Option(metavar="SECONDS", help="Repeat at this interval.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the memory of this machine, of its GPUs, and of the largest processes or one process tree."""
    from tamis.memory.commands import show_memory

    show_memory(pid, as_json=as_json, watch_s=watch, print_result=print_result)


def ops(
    name: Annotated[
        str | None, typer.Argument(help="Show this operator in full.", autocompletion=complete_operator)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the operators, or show one in full with its parameters."""
    from tamis.console import operator_dict, operator_text, operators_text
    from tamis.registry import find_operator, registered

    known = {name: find_operator(name)} if name is not None else registered()
    if as_json:
        shown = [operator_dict(each, cls) for each, cls in known.items()]
        print_json(shown if name is None else shown[0])
    else:
        print_result(operators_text(known) if name is None else operator_text(name, known[name]))


def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this recipe.", autocompletion=complete_recipe)] = None,
    as_json: JsonOption = False,
) -> None:
    """List the recipes that ship with Tamis, or print one."""
    from tamis.console import recipe_dict, recipes_text
    from tamis.recipes.load import find_shipped, shipped, shipped_text

    known = {name: find_shipped(name)} if name is not None else shipped()
    if as_json:
        listed = [recipe_dict(each) for each in known.values()]
        print_json(listed if name is None else listed[0])
    else:
        print_result(recipes_text(known) if name is None else shipped_text(name).rstrip("\n"))
