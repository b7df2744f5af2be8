"""The command `tamis`.

Results go to stdout, progress and errors to stderr. Exit codes: 2 for a mistake in the command, the recipe or the input,
3 if too many rows or files failed, 4 if `verify` finds damage or `merge` misses shards, 130 if interrupted, 141 if the
reader of stdout is closed; a bug ends with a traceback.
Heavy packages are imported when needed, so that `tamis --help` is fast.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup

from tamis.errors import Interrupted, ParameterError, ShardsMissing, ShardsRunning, TamisError, TooManyFailed
from tamis.inert import inert, inert_json
from tamis.sources.listing import one_listing

if TYPE_CHECKING:
    from tamis.events import Subscriber
    from tamis.recipes.load import Recipe

BAD_USE, TOO_MANY_FAILED, NOT_OK, INTERRUPTED, BROKEN_PIPE = 2, 3, 4, 130, 141

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""The parser's error class; versions of typer define it in different modules, but always as this base."""


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

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, " ".join((command.help or "").split("\n\n")[0].split()))
            for name, command in commands
            if command is not None and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


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
        print_status(error_text(getattr(error, "format_message", error.__str__)(), f"see `{command} --help`"))
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


# --------------------------------------------------------------------------------------------------- output and errors

P = ParamSpec("P")


def print_status(text: str) -> None:
    """Print to stderr, which carries everything but results."""
    sys.stderr.write(inert(text) + "\n")
    sys.stderr.flush()


def print_result(text: str) -> None:
    """Print to stdout; exits silently if its reader is closed."""
    try:
        sys.stdout.write(inert(text) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter prints an error at exit
        raise typer.Exit(BROKEN_PIPE) from None


def print_json(value: object) -> None:
    print_result(inert_json(json.dumps(value, indent=2, ensure_ascii=False, default=str)))


def _exit_code(error: TamisError) -> int:
    if isinstance(error, TooManyFailed):
        return TOO_MANY_FAILED
    return NOT_OK if isinstance(error, (ShardsMissing, ShardsRunning)) else BAD_USE


def explains_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Turn a TamisError into a message and an exit code."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        from tamis.console import error_text, wrapped

        try:
            command(*args, **kwargs)
        except TamisError as error:
            text = error_text(error.message, error.hint)
            print_status(wrapped(text, indent=0) if sys.stderr.isatty() else text)
            raise typer.Exit(_exit_code(error)) from None
        except BrokenPipeError as error:  # typer takes it for a closed stdout and exits silently
            raise RuntimeError("a pipe inside the run broke") from error

    return wrapped


# ---------------------------------------------------------------------------------------------- arguments and options


def complete_recipe(incomplete: str) -> list[str]:
    from importlib import resources

    files = resources.files("tamis.recipes").iterdir()
    names = sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))
    return [name for name in names if name.startswith(incomplete)]


def complete_operator(incomplete: str) -> list[str]:
    from tamis.registry import registered

    return [name for name in registered() if name.startswith(incomplete)]


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    gpu = "gpu"


class OnOverflow(StrEnum):
    error = "error"
    sample = "sample"


class OnError(StrEnum):
    isolate = "isolate"
    raise_ = "raise"


RecipeArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A recipe file, or the name of a recipe listed by `tamis recipes`.",
        autocompletion=complete_recipe,
    ),
]
InputOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="PATH", help="Read this file, folder or glob pattern; repeatable."),
]
OutputOption: TypeAlias = Annotated[
    str | None, typer.Option("--output", metavar="FOLDER", help="Write to this folder.")
]
MemoryOption: TypeAlias = Annotated[
    str | None, typer.Option("--memory", metavar="SIZE", help="Memory budget of all processes together, e.g. 8GB.")
]
GpuMemoryOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--gpu-memory", metavar="SIZE", help="Memory budget on each GPU, e.g. 20GB; most of it by default."),
]
DeviceOption: TypeAlias = Annotated[Device, typer.Option(help="Run models and kernels on a CPU or a GPU.")]
WorkersOption: TypeAlias = Annotated[
    str | None, typer.Option("--workers", metavar="N", help="Number of worker processes, or auto.")
]
SetOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="STEP.PARAM=VALUE",
        help="Set a parameter. STEP is the name of a step, name#2 for the second step of that name, or its number as "
        "printed by `tamis check`. Repeatable.",
    ),
]
MaxFailedOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--max-failed",
        metavar="SHARE|N",
        help="End the run if more rows or files fail: a share such as 10%, the default, or a number.",
    ),
]
StrictOption: TypeAlias = Annotated[
    bool, typer.Option("--strict", help="End the run at the first failed row or file; the same as --max-failed 0.")
]
KeepWorkOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--keep-work", help="Keep what deduplication and sampling wrote to disk, so that added files are read alone."
    ),
]
ScratchOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--scratch", metavar="DIR", help="Put intermediate files into this local folder."),
]
ExchangeOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--exchange",
        metavar="URL",
        help="Pass intermediate results between workers through this object store or shared folder.",
    ),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON to stdout.")]


def prepare(name: str, inputs: list[str] | None, output: str | None, overrides: list[str] | None) -> Recipe:
    """The recipe with the options of the command line applied."""
    from tamis.recipes.load import load_recipe

    recipe = load_recipe(name).with_paths(input=inputs or None, output=output).with_overrides(overrides or [])
    recipe.check_ends()
    return recipe


def resources_of(
    recipe: Recipe, memory: str | None, workers: str | None, gpu_memory: str | None = None
) -> dict[str, Any]:
    """Memory and workers from the command line, else from the recipe, else chosen by the engine."""
    from tamis.parameters import parse_bytes

    chosen: dict[str, Any] = {
        "memory": memory if memory is not None else recipe.settings.memory,
        "gpu_memory": gpu_memory if gpu_memory is not None else recipe.settings.gpu_memory,
    }
    for size in chosen.values():
        if size is not None:
            parse_bytes(size)
    wanted = workers if workers is not None else recipe.settings.workers
    if isinstance(wanted, str) and wanted != "auto":
        if not wanted.isdecimal() or int(wanted) < 1:
            raise ParameterError(f"--workers must be a positive number or auto, got {wanted!r}")
        wanted = int(wanted)
    return chosen | {"workers": wanted if wanted is not None else "auto"}


def choose_max_failed(max_failed: str | None, strict: bool, recipe: float | str | None = None) -> float | str:
    """The limit given on the command line, else that of the recipe, else the default."""
    from tamis.executors.failures import DEFAULT_MAX_FAILED

    if strict and max_failed is not None:
        raise ParameterError(
            "--strict and --max-failed exclude each other", hint="--strict is the same as --max-failed 0"
        )
    if strict:
        return 0
    return max_failed if max_failed is not None else recipe if recipe is not None else DEFAULT_MAX_FAILED


@contextmanager
def monitored(port: int | None, trace: bool, *, quiet: bool = False) -> Iterator[list[Subscriber]]:
    """Subscribers for metrics and traces, as far as requested."""
    with ExitStack() as stack:
        found: list[Subscriber] = []
        if port is not None:
            from tamis.monitoring.metrics import Metrics

            metrics = stack.enter_context(Metrics(port))
            found.append(metrics)
            if not quiet or not port:
                print_status(f"metrics are at {metrics.url}")
        if trace:
            from tamis.monitoring.tracing import Tracing

            found.append(stack.enter_context(Tracing()))
        yield found


# ------------------------------------------------------------------------------------------------------------ commands


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


@app.command(cls=QuickCommand)
@explains_errors
def run(
    recipe: RecipeArgument,
    inputs: InputOption = None,
    output: OutputOption = None,
    memory: MemoryOption = None,
    workers: WorkersOption = None,
    executor: Annotated[str, typer.Option(metavar="NAME", help="local, inline for debugging, ray or dask.")] = "local",
    address: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Of a Ray or Dask cluster.")] = None,
    device: DeviceOption = Device.auto,
    gpu_memory: GpuMemoryOption = None,
    overrides: SetOption = None,
    rejects: Annotated[bool, typer.Option("--rejects", help="Keep dropped rows with their reasons.")] = False,
    scores: Annotated[
        bool, typer.Option("--scores", help="Keep the scores of filters, for `tamis rethreshold`.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard committed work and start over.")] = False,
    keep_work: KeepWorkOption = False,
    card: Annotated[
        bool, typer.Option("--card", help="Write a dataset card, README.md, in the form of the Hugging Face Hub.")
    ] = False,
    license: Annotated[
        str | None, typer.Option("--license", metavar="ID", help="The license that the card names, e.g. odc-by.")
    ] = None,
    on_error: Annotated[
        OnError | None, typer.Option(help="If a row raises an error: set it aside (the default), or stop.")
    ] = None,
    max_failed: MaxFailedOption = None,
    strict: StrictOption = False,
    on_overflow: Annotated[
        OnOverflow, typer.Option(help="If the job does not fit its memory or disk: stop, or process a random sample.")
    ] = OnOverflow.error,
    max_seconds: Annotated[
        float | None, typer.Option(help="With --on-overflow sample: time limit in seconds for growing the sample.")
    ] = None,
    scratch: ScratchOption = None,
    exchange: ExchangeOption = None,
    shard: Annotated[
        str | None,
        typer.Option(metavar="K/N", help="Do part K of N of the work, as one of N jobs that write to one output."),
    ] = None,
    shard_wait: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="How long a shard waits for others that are not running; 600 by default."),
    ] = None,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Serve a live view of the run in a browser until it ends.")
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            help="Serve metrics for Prometheus on this port of 127.0.0.1; 0 for a free one.",
        ),
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Send traces by OpenTelemetry, as its environment variables say.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="At the end, print the report as one JSON object to stdout.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no progress and no summary.")] = False,
) -> None:
    """Run a recipe; rerun the same command to resume."""
    from tamis.executors.forkserver import launched, modules_of

    with (
        ExitStack() as stack,
        launched(executor == "local") as preload,
    ):  # first, because the server imports while this process does
        chosen = prepare(recipe, inputs, output, overrides)
        preload(modules_of(chosen.operator_classes()))

        from tamis.client import executor_of
        from tamis.console import failures_text, summary_text
        from tamis.progress import Progress

        settings = resources_of(chosen, memory, workers, gpu_memory)
        settings["max_failed"] = choose_max_failed(max_failed, strict, chosen.settings.max_failed)
        if shard_wait is not None:
            settings["shard_wait"] = shard_wait
        pipeline = chosen.build()
        if dashboard:
            from tamis.dashboard.commands import beside_a_run

            assert pipeline.sink is not None
            stack.enter_context(beside_a_run(pipeline.sink.folder, print_status))
        # No bars inline: they would overwrite the prompt of a debugger.
        with (
            Progress(shows="nothing" if quiet else "lines" if executor == "inline" else "auto") as progress,
            monitored(metrics_port, trace, quiet=quiet) as subscribers,
        ):
            try:
                report = pipeline.run(
                    **settings,
                    executor=executor_of(executor, address),
                    device=device.value,
                    rejects=rejects or bool(chosen.settings.rejects),
                    scores=scores,
                    fresh=fresh,
                    keep_work=keep_work,
                    card=card or bool(chosen.settings.card),
                    license=license if license is not None else chosen.settings.license,
                    on_error=on_error.value if on_error is not None else None,
                    on_overflow=on_overflow.value,
                    max_seconds=max_seconds,
                    scratch=scratch,
                    exchange=exchange,
                    shard=shard,
                    alerts=chosen.settings.alerts,
                    on_event=[progress, *subscribers],
                    progress=False,
                )
            except Interrupted as error:
                progress.stop()
                print_status(str(error))
                raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print_json(report.as_dict())
    if not quiet and not as_json:
        print_status(summary_text(report))
    elif text := failures_text(report):
        print_status(text)


@app.command()
@explains_errors
def merge(
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="The output folder of a run with --shard.")],
    partial: Annotated[
        bool,
        typer.Option("--partial", help="Publish what is complete though shards are missing, and close the run."),
    ] = False,
    max_failed: MaxFailedOption = None,
    exchange: Annotated[
        str | None, typer.Option("--exchange", metavar="URL", help="The exchange that the shards were given.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Finish a run that was divided into shards, or list the shards that are not complete."""
    from tamis.console import summary_text
    from tamis.executors.merging import merge as merge_output

    report = merge_output(output, partial=partial, max_failed=max_failed, exchange=exchange)
    if as_json:
        print_json(report.as_dict())
    else:
        print_status(summary_text(report))


@app.command()
@explains_errors
def check(
    recipe: RecipeArgument, inputs: InputOption = None, output: OutputOption = None, overrides: SetOption = None
) -> None:
    """Check a recipe for mistakes without processing data."""
    from tamis.parameters import plural

    pipeline = prepare(recipe, inputs, output, overrides).build()
    for note in pipeline.check():
        print_status(f"note: {note}")
    names = ", ".join(f"{number} {step.name}" for number, step in enumerate(pipeline.steps, 1))
    print_result(f"ok: {plural(len(pipeline.steps), 'step')}: {names}")


@app.command()
@explains_errors
def explain(
    recipe: RecipeArgument,
    inputs: InputOption = None,
    output: OutputOption = None,
    memory: MemoryOption = None,
    workers: WorkersOption = None,
    device: DeviceOption = Device.auto,
    gpu_memory: GpuMemoryOption = None,
    overrides: SetOption = None,
    scratch: ScratchOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a run would do: stages, partitions, memory, devices and columns."""
    from tamis.console import wrapped

    chosen = prepare(recipe, inputs, output, overrides)
    settings = resources_of(chosen, memory, workers, gpu_memory)
    explanation = chosen.build().explain(**settings, device=device.value, scratch=scratch)
    if as_json:
        print_json(explanation.as_dict())
    else:
        print_result(wrapped(str(explanation), indent=13))


@app.command()
@explains_errors
def rethreshold(
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="The output folder of a run with --scores.")],
    overrides: SetOption = None,
    new_output: Annotated[
        str | None,
        typer.Option("--output", metavar="FOLDER", help="Write to this folder, and leave OUTPUT as it is."),
    ] = None,
    memory: MemoryOption = None,
    workers: WorkersOption = None,
    scratch: ScratchOption = None,
    as_json: JsonOption = False,
) -> None:
    """Filter again with other thresholds, from the scores that a run with --scores kept."""
    from tamis.console import summary_text
    from tamis.progress import Progress
    from tamis.recipes.load import Recipe
    from tamis.recipes.rethreshold import rethreshold as rethreshold_output

    with Progress() as progress:
        settings = resources_of(Recipe(()), memory, workers)
        report = rethreshold_output(
            output,
            overrides or [],
            to=new_output,
            **settings,
            scratch=os.path.abspath(scratch) if scratch is not None else None,  # noqa: PTH100 (keeps links)
            on_event=progress,
            progress=False,
        )
    if as_json:
        print_json(report.as_dict())
    else:
        print_status(summary_text(report))


@app.command()
@explains_errors
def verify(
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="The output folder of a run.")],
    forget: Annotated[
        bool,
        typer.Option(
            "--forget", help="Forget partitions with damaged or missing files: the next run writes them again."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check the files of an output against the checksums in its ledger."""
    from tamis.verification import verify as verify_output

    result = verify_output(output, forget=forget)
    if as_json:
        print_json(result.as_dict())
    else:
        print_result(str(result))
    if not result.ok:
        raise typer.Exit(NOT_OK)


@app.command()
@explains_errors
def profile(
    recipe: RecipeArgument,
    inputs: InputOption = None,
    output: OutputOption = None,
    rows: Annotated[int, typer.Option(help="Number of rows to run.")] = 20_000,
    memory: MemoryOption = None,
    device: DeviceOption = Device.auto,
    gpu_memory: GpuMemoryOption = None,
    overrides: SetOption = None,
    scratch: ScratchOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a recipe on its first rows, measure the memory and time of each step, and recommend settings."""
    chosen = prepare(recipe, inputs, output if output is not None else "profiled-output", overrides)
    settings = resources_of(chosen, memory, None, gpu_memory)
    del settings["workers"]  # always one
    found = chosen.build().profile(rows=rows, **settings, device=device.value, scratch=scratch)
    if as_json:
        print_json(found.as_dict())
    else:
        print_result(str(found))


@app.command()
@explains_errors
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


@app.command()
@explains_errors
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


@app.command()
@explains_errors
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


@app.command()
@explains_errors
def report(
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="The output folder of a run.")],
    failed: Annotated[
        int, typer.Option("--failed", metavar="N", min=0, help="Show N random failed rows for each kind of error.")
    ] = 0,
    rejects: Annotated[
        int, typer.Option("--rejects", metavar="N", min=0, help="Show N random dropped rows for each reason.")
    ] = 0,
    memory: Annotated[
        bool,
        typer.Option("--memory", help="Print memory settings, their reasons and measurements as Markdown."),
    ] = False,
    contact_sheet: Annotated[
        str | None,
        typer.Option(
            "--contact-sheet",
            metavar="FILE",
            help="Write a page of HTML with thumbnails of kept, dropped and duplicate images.",
        ),
    ] = None,
    column: Annotated[
        str, typer.Option("--column", help="With --contact-sheet: the column with the images or sounds.")
    ] = "image",
    html: Annotated[
        str | None,
        typer.Option(
            "--html", metavar="FILE", help="Write a page that opens in a browser, offline: one file with everything."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the report of a run: rows kept, dropped and failed, by step and reason."""
    from tamis.console import report_text, sample_rows, sample_text, terminal_width
    from tamis.report import Report, load_manifest

    if html is not None:
        from tamis.dashboard.report_page import write_report_page
        from tamis.parameters import format_bytes

        print_status(f"{html} is written ({format_bytes(write_report_page(output, html))})")
        return
    account = Report.load(output)
    if contact_sheet is not None:
        from tamis.image.contact_sheet import write_contact_sheet
        from tamis.parameters import plural

        shown = write_contact_sheet(output, contact_sheet, column)
        print_status(f"{contact_sheet} shows {plural(shown, 'image' if column != 'audio' else 'recording')}")
        return
    if memory:
        from tamis.memory.markdown import memory_markdown

        print_result(memory_markdown(account, load_manifest(output)))
        return
    wanted = {kind: count for kind, count in [("failed", failed), ("rejects", rejects)] if count}
    rows = {kind: sample_rows(output, kind, count) for kind, count in wanted.items()}
    if as_json:
        print_json(account.as_dict() | ({"rows": rows} if rows else {}))
        return
    print_result(report_text(account))
    for kind, found in rows.items():
        title = "dropped" if kind == "rejects" else kind
        none = " (dropped rows are kept by runs with --rejects)" if kind == "rejects" else ""
        print_result(
            f"\n{title} rows, sampled:\n{sample_text(found, terminal_width())}"
            if found
            else f"\nno {title} rows are stored{none}"
        )


if __name__ == "__main__":
    sys.exit(main())


# Commands defined in other modules, which import shared options from this one.
from tamis.dashboard.commands import dashboard  # noqa: E402
from tamis.dedup.commands import app as dedup_app  # noqa: E402
from tamis.looking.commands import compare, grep, head, sample, stats, why  # noqa: E402
from tamis.models.commands import train_classifier, train_language_model  # noqa: E402

app.add_typer(dedup_app, cls=FullHelpGroup)
for _command in (dashboard, head, sample, grep, why, compare, stats):
    app.command()(explains_errors(_command))
app.command("train-classifier")(explains_errors(train_classifier))
app.command("train-language-model")(explains_errors(train_language_model))
for _registered in (*app.registered_commands, *dedup_app.registered_commands):
    if _registered.cls in (None, TyperCommand):
        _registered.cls = CommandWithExample
