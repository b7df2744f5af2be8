"""Commands about the output of a run."""

from __future__ import annotations

from typing import Annotated

import typer

from tamis.commands.options import JsonOption
from tamis.commands.printing import NOT_OK, print_json, print_result, print_status


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


def clips(
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="The output folder of a run with a clip writer.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A folder for clips/, previews/, metas/ and others.")],
) -> None:
    """Put the clips of all parts of an output into one layout, that of NeMo Curator, without copying them.

    Files are linked where the disk allows, and copied otherwise. A second call adds what is missing.
    """
    from tamis.sinks.clips import join_parts

    print_status(f"{join_parts(output, target):,} clips in {target}")


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
            help="Write a page of HTML with thumbnails of kept, dropped and duplicate images, or frames of videos.",
        ),
    ] = None,
    column: Annotated[
        str, typer.Option("--column", help="With --contact-sheet: the column with the images, sounds or videos.")
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
        kind = {"image": "image", "audio": "recording", "video": "video"}.get(column, "picture")
        print_status(f"{contact_sheet} shows {plural(shown, kind)}")
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
