"""What the shell offers after Tab: recipes, operators, and the steps, parameters and values of `--set`.

Nothing is completed if that needs a file with a mistake in it: a shell has no place for errors.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable

import typer
from typer import _completion_shared

from tamis.errors import TamisError

BASH_SCRIPT = r"""
%(complete_func)s() {
    local IFS=$'\n' line=${COMP_LINE:0:COMP_POINT} words=() word rest i
    # Bash splits words at = and :, as in --set step.parameter=value. Parts with no blank between them are one word.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        rest=${line#"${line%%%%[![:space:]]*}"}
        word=${COMP_WORDS[i]}
        ((i == COMP_CWORD)) && word=$rest
        if ((i)) && [[ $rest == "$line" ]]; then words[-1]+=$word; else words+=("$word"); fi
        line=${rest#"$word"}
    done
    COMPREPLY=( $( env COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) \
                   %(autocomplete_var)s=complete_bash $1 ) )
    # Bash replaces the last part alone.
    [[ $word == [=:] ]] && word=
    COMPREPLY=( "${COMPREPLY[@]#"${words[-1]%%"$word"}"}" )
    [[ ${COMPREPLY[0]} == *[.=] ]] && compopt -o nospace
    return 0
}

complete -o default -F %(complete_func)s %(prog_name)s
"""
ZSH_SCRIPT = r"""
#compdef %(prog_name)s

%(complete_func)s() {
  local found=$(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" %(autocomplete_var)s=complete_zsh %(prog_name)s)
  # No space after "step." and "step.parameter=".
  [[ ${words[CURRENT-1]} == --set && $found == *[.=]\"* ]] && compadd() { builtin compadd -S '' "$@" }
  eval ${found//$'\n'/ }
  (( $+functions[compadd] )) && unfunction compadd
}

compdef %(complete_func)s %(prog_name)s
"""
_completion_shared._completion_scripts |= {"bash": BASH_SCRIPT, "zsh": ZSH_SCRIPT}
"""typer's own scripts complete no values after `=` in bash, and add a space after `step.`; see tests/test_surface.py."""


def complete_recipe(incomplete: str) -> list[str]:
    """Shipped recipes; the shell itself completes files."""
    from importlib import resources

    files = resources.files("tamis.recipes").iterdir()
    names = sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))
    return _starting(names, incomplete)


def complete_operator(incomplete: str) -> list[str]:
    from tamis.registry import known_names

    return _starting(known_names(), incomplete)


def complete_executor(incomplete: str) -> list[str]:
    return _starting(("local", "inline", "ray", "dask"), incomplete)


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """`step.`, then `step.parameter=`, then `step.parameter=value` where the values are known."""
    from tamis.recipes.load import load_recipe, recorded
    from tamis.registry import find_operator

    # The parser stops at an option without a value, so the argument may be left over.
    argument = ctx.params.get("recipe") or ctx.params.get("output") or next(iter(ctx.args), None)
    if argument is None:
        return []
    try:
        recipe = recorded(argument) if ctx.info_name == "rethreshold" else load_recipe(argument)
        step, dot, rest = incomplete.partition(".")
        if not dot:
            return _starting(dict.fromkeys(f"{each.name}." for each in recipe.steps), incomplete)
        cls = find_operator(recipe.steps[recipe.locate(step)].name)
    except (TamisError, OSError):
        return []
    known, fields = typing.get_type_hints(cls), [spec.name for spec in dataclasses.fields(cls)]
    parameter, equals, _ = rest.partition("=")
    if not equals:
        return _starting((f"{step}.{name}=" for name in fields), incomplete)
    values = _values(known.get(parameter))
    return _starting((f"{step}.{parameter}={value}" for value in values), incomplete)


def _values(annotation: object) -> list[str]:
    """The values of a parameter, if there are few."""
    if annotation is bool:
        return ["true", "false"]
    if typing.get_origin(annotation) is typing.Literal:
        return [str(value) for value in typing.get_args(annotation)]
    return [value for each in typing.get_args(annotation) for value in _values(each)]


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
