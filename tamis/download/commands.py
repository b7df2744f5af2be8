"""`tamis download common-crawl`, `wikipedia`, `arxiv` and `urls`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from tamis.commands.options import JsonOption, set_parameters
from tamis.commands.printing import TOO_MANY_FAILED, explains_errors, print_json, print_result, print_status

if TYPE_CHECKING:
    from tamis.download.session import Catalog

app: typer.Typer = typer.Typer(
    name="download",
    help="Download files of Common Crawl, Wikipedia or arXiv, or a list of URLs, each exactly once; rerun to resume.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


LimitOption: TypeAlias = Annotated[int | None, typer.Option(min=1, help="Download the first N files of the list.")]
SkipOption: TypeAlias = Annotated[int, typer.Option(min=0, help="Leave out the first N files of the list.")]
BaseOption: TypeAlias = Annotated[
    str | None, typer.Option("--base", metavar="URL", help="Use this mirror, with the same paths.")
]


def _shared(
    output: Annotated[str, typer.Option("--output", metavar="FOLDER", help="Download to this folder.")],
    rate: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The most bytes per second in total, e.g. 20MB.")
    ] = None,
    disk: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The most that the folder may hold, e.g. 500GB.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Files at a time.")] = 4,
    per_host: Annotated[int, typer.Option(min=1, help="Files at a time from one host.")] = 2,
    retries: Annotated[int, typer.Option(min=0, help="Attempts in a row that bring no byte.")] = 8,
    timeout: Annotated[float, typer.Option(help="Seconds without data after which a reply has stalled.")] = 60.0,
    user_agent: Annotated[
        str, typer.Option(metavar="TEXT", help="Name your crawler and how to reach you.")
    ] = "tamis/1.0",
    ignore_robots: Annotated[bool, typer.Option("--ignore-robots", help="Do not read robots.txt.")] = False,
    allow_private: Annotated[
        bool, typer.Option("--allow-private", help="Follow URLs to private and loopback addresses.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """The options of all commands."""


def _command(name: str) -> Callable[[Callable[..., Catalog]], Callable[..., None]]:
    """Register a function that makes a catalog as a command that downloads it."""

    def register(make: Callable[..., Catalog]) -> Callable[..., None]:
        own = inspect.signature(make, eval_str=True).parameters
        shared = inspect.signature(_shared, eval_str=True).parameters

        @functools.wraps(make)
        @explains_errors
        def command(**options: Any) -> None:
            chosen = {key: options.pop(key) for key in shared}
            _download(make(**options), pays=name == "arxiv", **chosen)

        set_parameters(command, [*own.values(), *shared.values()])
        app.command(name)(command)
        return command

    return register


def _download(catalog: Catalog, *, pays: bool, output: str, as_json: bool, **options: Any) -> None:
    from tamis.download.session import Limits, download
    from tamis.parameters import format_bytes
    from tamis.sources.http import OK

    limits = Limits(
        rate=options["rate"],
        disk=options["disk"],
        concurrency=options["concurrency"],
        per_host=options["per_host"],
        retries=options["retries"],
        timeout_s=options["timeout"],
        user_agent=options["user_agent"],
        robots=not options["ignore_robots"],
        allow_private=options["allow_private"],
        storage_options={"requester_pays": True} if pays else {},
    )

    def show(name: str, outcome: str, size: int) -> None:
        print_status(f"{name}: {format_bytes(size) if outcome == OK else outcome}")

    report = download(catalog, output, limits, on_file=show)
    print_json(report.as_dict()) if as_json else print_result(str(report))
    if not report.ok:
        print_status("rerun the same command to try again what is missing")
        raise typer.Exit(TOO_MANY_FAILED)


@_command("common-crawl")
def common_crawl(
    snapshot: Annotated[
        str, typer.Option(metavar="NAME", help="CC-MAIN-2024-10 or 2024-10, CC-NEWS-2024-03, or latest.")
    ] = "latest",
    kind: Annotated[
        Literal["warc", "wet", "wat"], typer.Option(help="WARC has pages, WET their text, WAT their metadata.")
    ] = "warc",
    limit: LimitOption = None,
    skip: SkipOption = 0,
    base: BaseOption = None,
    index: Annotated[
        str | None, typer.Option(metavar="URL", help="The list of snapshots in which the latest is looked up.")
    ] = None,
) -> Any:
    """Download the files of a snapshot of Common Crawl, for `warc_reader`."""
    from tamis.download.catalogs import CommonCrawl

    given = {name: url.rstrip("/") for name, url in (("base", base), ("index", index)) if url}
    return CommonCrawl(snapshot, kind, limit=limit, skip=skip, **given)


@_command("wikipedia")
def wikipedia(
    language: Annotated[str, typer.Option(metavar="CODE", help="The language of the Wikipedia, e.g. en.")] = "en",
    date: Annotated[
        str, typer.Option(metavar="DATE", help="The dump of this day, e.g. 20240301, or latest.")
    ] = "latest",
    wiki: Annotated[str | None, typer.Option(metavar="NAME", help="Another wiki, e.g. enwiktionary.")] = None,
    limit: LimitOption = None,
    skip: SkipOption = 0,
    base: BaseOption = None,
) -> Any:
    """Download a dump of Wikipedia, compared with its checksums, for `mediawiki_reader`."""
    from tamis.download.catalogs import WikipediaDump

    return WikipediaDump(language, date, wiki, limit, skip, **({"base": base.rstrip("/")} if base else {}))


@_command("arxiv")
def arxiv(
    months: Annotated[
        list[str] | None, typer.Option("--month", metavar="YYMM", help="Archives of this month only; repeatable.")
    ] = None,
    limit: LimitOption = None,
    skip: SkipOption = 0,
    base: BaseOption = None,
) -> Any:
    """Download LaTeX sources of arXiv, compared with their checksums. The requester pays for the transfer from its bucket."""
    from tamis.download.catalogs import ArxivSources

    return ArxivSources(limit, skip, tuple(months or ()), **({"base": base.rstrip("/")} if base else {}))


@_command("urls")
def urls(
    path: Annotated[
        str, typer.Argument(metavar="FILE", help="A URL per line, with sha256:... after it if its checksum is known.")
    ],
    limit: LimitOption = None,
    skip: SkipOption = 0,
) -> Any:
    """Download the files that a list of URLs names."""
    from tamis.download.catalogs import UrlList

    return UrlList(path, limit, skip)
