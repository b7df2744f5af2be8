"""The options that the commands of `tamis dedup` share, and the decorator that adds them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, cast

import typer

from tamis.commands.options import (
    ExchangeOption,
    JsonOption,
    KeepWorkOption,
    MaxFailedOption,
    MemoryOption,
    NoProgressOption,
    QuietOption,
    ScratchOption,
    StrictOption,
    WorkersOption,
    choose_max_failed,
    choose_workers,
    print_report,
    progress_of,
    set_parameters,
)
from tamis.commands.printing import explains_errors
from tamis.executors.forkserver import launched

if TYPE_CHECKING:
    from tamis.workflows import Deduplication

Format: TypeAlias = Literal["jsonl", "parquet", "csv", "arrow", "tar", "image", "audio", "video"]
Keep: TypeAlias = Literal["first", "longest", "newest", "best", "none"]

Input: TypeAlias = Annotated[str, typer.Argument(metavar="IN", help="A file, a folder or a pattern.")]
Output: TypeAlias = Annotated[str, typer.Argument(metavar="OUT", help="The output folder.")]


@dataclass(frozen=True)
class Shared:
    """The options that all kinds of deduplication share."""

    keep: Annotated[Keep, typer.Option("--keep", help="Which row of each group of duplicates to keep.")] = "first"
    by: Annotated[str | None, typer.Option("--by", help="The column to rank by, for newest and best.")] = None
    prefer: Annotated[
        list[str] | None,
        typer.Option(
            "--prefer",
            help="A source to keep rows from: part of a path, or a value. Repeat the option, best source first.",
        ),
    ] = None
    prefer_column: Annotated[
        str | None, typer.Option("--prefer-column", help="The column whose values --prefer lists.")
    ] = None
    across_sources: Annotated[
        bool, typer.Option("--across-sources", help="Drop a row only if a better source of --prefer has it too.")
    ] = False
    against: Annotated[
        str | None, typer.Option("--against", metavar="INDEX", help="Also drop rows that this index contains.")
    ] = None
    update: Annotated[bool, typer.Option("--update", help="Add the kept rows to the index.")] = False
    filetype: Annotated[
        Format | None, typer.Option("--format", help="Input format, if it cannot be inferred from file names.")
    ] = None
    blocksize: Annotated[str | None, typer.Option("--blocksize", help="Bytes of input per partition.")] = None
    memory: MemoryOption = None
    workers: WorkersOption = None
    executor: Annotated[str, typer.Option("--executor", metavar="NAME", help="local, or inline for debugging.")] = (
        "local"
    )
    max_failed: MaxFailedOption = None
    strict: StrictOption = False
    rejects: Annotated[bool, typer.Option("--rejects", help="Keep dropped rows with their reasons.")] = False
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard earlier results and start over.")] = False
    keep_work: KeepWorkOption = False
    scratch: ScratchOption = None
    exchange: ExchangeOption = None
    only_find: Annotated[bool, typer.Option("--only-find", help="Write the groups of duplicates, but no rows.")] = False
    as_json: JsonOption = False
    no_progress: NoProgressOption = False
    quiet: QuietOption = False

    def run(self, workflow: Deduplication) -> None:
        """Run a workflow with these options."""
        workers: Any = choose_workers(self.workers)
        workflow = replace(
            workflow,
            input_filetype=self.filetype,
            input_blocksize=self.blocksize,
            perform_removal=not self.only_find,
            keep=self.keep,
            by=self.by,
            prefer=self.prefer or None,
            prefer_column=self.prefer_column,
            across_sources=self.across_sources,
            against=self.against,
            update=self.update,
        )
        with progress_of(self.quiet, self.no_progress, inline=self.executor == "inline") as progress:
            report = workflow.run(
                memory=self.memory,
                workers=workers,
                executor=cast("Any", self.executor),
                max_failed=choose_max_failed(self.max_failed, self.strict),
                rejects=self.rejects,
                fresh=self.fresh,
                keep_work=self.keep_work,
                scratch=self.scratch,
                exchange=self.exchange,
                on_event=progress,
                progress=False,
            )
        print_report(report, quiet=self.quiet, as_json=self.as_json)


POLICY = frozenset({"keep", "by", "prefer", "prefer_column", "across_sources", "against", "update"})
"""Options that choose among rows. They have no effect where spans of text are cut."""


def with_shared(
    *, without: frozenset[str] = frozenset()
) -> Callable[[Callable[..., Deduplication]], Callable[..., None]]:
    """Make a function that returns a workflow a command that runs it, with the options of `Shared` after its own.

    An option of the function replaces the shared one of the same name; those in `without` are left out.
    """

    def decorate(make: Callable[..., Deduplication]) -> Callable[..., None]:
        own = inspect.signature(make, eval_str=True).parameters
        shared = inspect.signature(Shared, eval_str=True).parameters
        added = {name: each for name, each in shared.items() if name not in own and name not in without}

        @functools.wraps(make)
        @explains_errors
        def command(**given: Any) -> None:
            options = Shared(**{name: given.pop(name) for name in added})
            with launched(options.executor == "local"):
                options.run(make(**given))

        set_parameters(command, [*own.values(), *added.values()])
        return command

    return decorate
