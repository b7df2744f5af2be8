"""The command `tamis`: all commands, and the way from arguments to an exit code.

Exit codes are listed in `commands/printing.py`. Heavy packages are imported when needed, so that `tamis --help` is fast.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from typer.core import TyperCommand

from tamis.commands.lists import memory, ops, recipes
from tamis.commands.outputs import clips, report, verify
from tamis.commands.parsing import CommandWithExample, FullHelpGroup, QuickCommand
from tamis.commands.printing import BAD_USE, INTERRUPTED, explains_errors, print_result, print_status
from tamis.commands.runs import check, explain, merge, profile, rethreshold, run
from tamis.commands.starting import doctor, init, new_operator, schema
from tamis.dashboard.commands import dashboard
from tamis.dedup.commands import app as dedup_app
from tamis.download.commands import app as download_app
from tamis.looking.commands import compare, grep, head, sample, stats, why
from tamis.models.commands import train_classifier, train_language_model
from tamis.sources.listing import one_listing

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""The parser's error class; versions of typer define it in different modules, but always as this base."""

app = typer.Typer(
    name="tamis",
    cls=FullHelpGroup,
    help="Curate training data for foundation models, within a memory budget, with every row accounted for.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with one_listing():
            code = _with_command(arguments)(args=arguments, prog_name="tamis", standalone_mode=False)
    except _UsageError as error:
        from tamis.console import error_text

        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "tamis"
        message = getattr(error, "format_message", error.__str__)().replace(
            ": Value error, ", ": "
        )  # pydantic's prefix
        print_status(error_text(message, f"see `{command} --help`"))
        return BAD_USE
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def _with_command(arguments: Sequence[str]) -> typer.Typer:
    """The command line with the command that is called and no other, since building all of them takes time."""
    called = [
        info
        for info in app.registered_commands
        if info.callback is not None and arguments[:1] == [info.name or info.callback.__name__]
    ]
    if not called:
        return app
    chosen = copy.copy(app)
    chosen.registered_commands, chosen.registered_groups = called, []
    return chosen


def _print_version(wanted: bool) -> None:
    if wanted:
        from tamis import __version__

        print_result(f"tamis {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def tamis(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print_result(context.get_help())


_COMMANDS: dict[str, Callable[..., None]] = {
    **{
        each.__name__: each
        for each in (
            merge,
            check,
            explain,
            rethreshold,
            verify,
            profile,
            memory,
            ops,
            recipes,
            report,
            clips,
            init,
            schema,
            doctor,
        )
    },
    **{each.__name__: each for each in (dashboard, head, sample, grep, why, compare, stats)},
    "new-operator": new_operator,
    "train-classifier": train_classifier,
    "train-language-model": train_language_model,
}
app.command(cls=QuickCommand)(explains_errors(run))
for _name, _command in _COMMANDS.items():
    app.command(_name)(explains_errors(_command))
app.add_typer(dedup_app, cls=FullHelpGroup)
app.add_typer(download_app, cls=FullHelpGroup)
for _registered in (*app.registered_commands, *dedup_app.registered_commands, *download_app.registered_commands):
    if _registered.cls in (None, TyperCommand):
        _registered.cls = CommandWithExample

if __name__ == "__main__":
    sys.exit(main())
