"""How commands are parsed and how their help looks: typer, with less work at start and with examples."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from tamis.commands.printing import print_result


def _with_deferred_conversions(parameters: list[Any]) -> list[Any]:
    """The parameters of a command, so that typer converts only values that need it.

    Recent versions convert every value, even a missing one, with pydantic, and importing it takes as long as importing numpy.
    """
    for parameter in parameters:
        if getattr(parameter, "_runtime_param", parameter) is None:  # other versions do not have the attribute
            parameter._runtime_param = _Conversion()
    return parameters


class _Conversion:
    """Stands in for typer's conversion of a parameter until that is needed."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        annotation = param.type_descriptor.annotation
        if value is param.default or (annotation is str and isinstance(value, str)):
            return value
        if annotation == list[str] and all(isinstance(each, str) for each in value):
            return list(value)
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


class QuickCommand(TyperCommand):
    """A command without typer's conversions where values need none."""

    def get_params(self, ctx: Any) -> Any:
        return _with_deferred_conversions(super().get_params(ctx))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        example(ctx, formatter)


class CommandWithExample(TyperCommand):
    """A command whose help ends with an example."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        example(ctx, formatter)


def example(ctx: Any, formatter: Any) -> None:
    """Write the example of a command at the end of its help."""
    from tamis.help import EXAMPLES

    found = EXAMPLES.get(ctx.command_path.partition(" ")[2])
    if found is not None:
        with formatter.section("Example"):
            formatter.write_text(found)


class FullHelpGroup(TyperGroup):
    """A group of commands that lists the first paragraph of each command's help in full; click cuts it to one line."""

    def get_params(self, ctx: Any) -> Any:
        return _with_deferred_conversions(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if not args and self.no_args_is_help:  # recent versions of click raise an error with the help as its message
            print_result(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, " ".join((command.help or "").split("\n\n")[0].split()))
            for name, command in commands
            if command is not None and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
