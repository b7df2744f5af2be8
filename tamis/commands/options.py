"""Arguments and options that several commands have, and what they mean."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from tamis.commands.completion import complete_override, complete_recipe
from tamis.commands.printing import INTERRUPTED, print_json, print_status
from tamis.errors import Interrupted, ParameterError

if TYPE_CHECKING:
    from tamis.events import Subscriber
    from tamis.progress import Progress, Shown
    from tamis.recipes.load import Recipe
    from tamis.report import Report


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
    typer.Option(
        "--input", metavar="PATH", help="Read this file, folder or glob pattern; repeatable. NAME=PATH mixes."
    ),
]
OutputOption: TypeAlias = Annotated[
    str | None, typer.Option("--output", metavar="FOLDER", help="Write to this folder.")
]
TokenizerOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--tokenizer", metavar="FILE", help="Shuffle the rows, and write packed tokens instead of rows."),
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
        autocompletion=complete_override,
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
        "--keep-work",
        help="Keep what deduplication and sampling wrote to disk, so that a later run reads only added files.",
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
NoProgressOption: TypeAlias = Annotated[
    bool, typer.Option("--no-progress", help="Print only notes, alerts and the summary.")
]
QuietOption: TypeAlias = Annotated[bool, typer.Option("--quiet", help="Print neither progress nor summary.")]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON to stdout.")]


def prepare(
    name: str,
    inputs: list[str] | None,
    output: str | None,
    overrides: list[str] | None,
    tokenizer: str | None = None,
) -> Recipe:
    """The recipe with the options of the command line applied."""
    from tamis.recipes.load import load_recipe

    recipe = load_recipe(name).with_paths(input=inputs or None)
    if tokenizer is not None:
        recipe = recipe.with_tokens(tokenizer)
    recipe = recipe.with_paths(output=output).with_overrides(overrides or [])
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
    return chosen | {"workers": choose_workers(workers if workers is not None else recipe.settings.workers)}


def choose_workers(given: int | str | None) -> int | Literal["auto"]:
    """The number of workers that `--workers` gives."""
    if given is None or given == "auto":
        return "auto"
    if isinstance(given, str) and (not given.isdecimal() or int(given) < 1):
        raise ParameterError(f"--workers must be a positive number or auto, got {given!r}")
    return int(given)


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
def progress_of(quiet: bool, no_progress: bool, *, inline: bool = False) -> Iterator[Progress]:
    """The progress of a command, as its options say; if interrupted, the command exits with 130.

    Inline there are no bars, because they would overwrite the prompt of a debugger.
    """
    from tamis.progress import Progress

    shows: Shown = "nothing" if quiet else "sentences" if no_progress else "lines" if inline else "auto"
    with Progress(shows=shows) as progress:
        try:
            yield progress
        except Interrupted as error:
            progress.stop()
            print_status(str(error))
            raise typer.Exit(INTERRUPTED) from None


def print_report(report: Report, *, quiet: bool, as_json: bool) -> None:
    """The end of a run: its summary, or JSON, or nothing. Failures are always named."""
    from tamis.console import failures_text, summary_text

    if as_json:
        print_json(report.as_dict())
    if not quiet and not as_json:
        print_status(summary_text(report))
    elif text := failures_text(report):
        print_status(text)


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


def set_parameters(command: Callable[..., None], parameters: Iterable[inspect.Parameter]) -> None:
    """Make a command that receives its options as `**options` one that takes these parameters."""
    ordered = sorted(parameters, key=lambda each: each.default is not inspect.Parameter.empty)
    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in ordered]
    vars(command)["__signature__"] = inspect.Signature(keywords)
    command.__annotations__ = {each.name: each.annotation for each in keywords}
