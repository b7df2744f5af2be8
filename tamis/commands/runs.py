"""Commands that run a recipe, or say what a run would do."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Annotated

import typer

from tamis.commands.completion import complete_executor
from tamis.commands.options import (
    Device,
    DeviceOption,
    ExchangeOption,
    GpuMemoryOption,
    InputOption,
    JsonOption,
    KeepWorkOption,
    MaxFailedOption,
    MemoryOption,
    NoProgressOption,
    OnError,
    OnOverflow,
    OutputOption,
    QuietOption,
    RecipeArgument,
    ScratchOption,
    SetOption,
    StrictOption,
    TokenizerOption,
    WorkersOption,
    choose_max_failed,
    monitored,
    prepare,
    print_report,
    progress_of,
    resources_of,
)
from tamis.commands.printing import print_json, print_result, print_status


def run(
    recipe: RecipeArgument,
    inputs: InputOption = None,
    output: OutputOption = None,
    tokenizer: TokenizerOption = None,
    memory: MemoryOption = None,
    workers: WorkersOption = None,
    executor: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="local, inline for debugging, ray or dask.", autocompletion=complete_executor
        ),
    ] = "local",
    address: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="The address of a Ray or Dask cluster.")
    ] = None,
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
    no_progress: NoProgressOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run a recipe; rerun the same command to resume."""
    from tamis.executors.forkserver import launched, modules_of

    with (
        ExitStack() as stack,
        launched(executor == "local") as preload,
    ):  # first, because the server imports while this process does
        chosen = prepare(recipe, inputs, output, overrides, tokenizer)
        preload(modules_of(chosen.operator_classes()))

        from tamis.client import executor_of

        settings = resources_of(chosen, memory, workers, gpu_memory)
        settings["max_failed"] = choose_max_failed(max_failed, strict, chosen.settings.max_failed)
        if shard_wait is not None:
            settings["shard_wait"] = shard_wait
        pipeline = chosen.build()
        if dashboard:
            from tamis.dashboard.commands import beside_a_run

            assert pipeline.sink is not None
            stack.enter_context(beside_a_run(pipeline.sink.folder, print_status))
        with (
            progress_of(quiet, no_progress, inline=executor == "inline") as progress,
            monitored(metrics_port, trace, quiet=quiet) as subscribers,
        ):
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
    print_report(report, quiet=quiet, as_json=as_json)


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
    quiet: QuietOption = False,
) -> None:
    """Finish a run that was divided into shards, or list the shards that are not complete."""
    from tamis.executors.merging import merge as merge_output

    report = merge_output(output, partial=partial, max_failed=max_failed, exchange=exchange)
    print_report(report, quiet=quiet, as_json=as_json)


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
        print_result(wrapped(str(explanation), indent=14))


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
    no_progress: NoProgressOption = False,
    quiet: QuietOption = False,
) -> None:
    """Filter again with other thresholds, from the scores that a run with --scores kept."""
    from tamis.recipes.load import Recipe
    from tamis.recipes.rethreshold import rethreshold as rethreshold_output

    with progress_of(quiet, no_progress) as progress:
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
    print_report(report, quiet=quiet, as_json=as_json)


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
