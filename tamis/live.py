"""The live view of a run on a terminal, and the bar of a notebook.

    run  ████████████████░░░░░░░░  63%  1:12 left  214 MB/s
    stage                            in       kept  queue  workers        rate
    jsonl_reader ... fuzzy_dedup   1.2M       804k     12      2/2    120 MB/s
    memory  ████░░░░░░░░░░░░░░░░  2.1 GB of 8.0 GB   3 rows failed

Both are drawn when an event arrives, a few times per second at most, and never from a thread of their own: what is shown is
consistent, and an idle run costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

from tamis.inert import escaped, inert
from tamis.parameters import format_bytes, plural
from tamis.progress import StageTally, Tally, abbreviated, duration, shortened

if TYPE_CHECKING:
    from rich.console import RenderableType

EVERY_S = 0.5
WIDE = 110
"""From this many columns on, numbers are written in full."""
NARROW = 74
"""With fewer columns, queues and workers are left out, so that no number is cut."""
SHOWN_ALERTS = 3
HEADER = ("stage", "in", "kept", "queue", "workers", "rate")


def stage_lines(tally: Tally, *, full: bool, width: int) -> Iterator[tuple[str, ...]]:
    """For each stage that has begun: its name, rows in and kept, what waits, workers, and bytes per second."""
    number = "{:,}".format if full else abbreviated
    now = tally.clock()
    for index, stage in tally.stages.items():
        if not stage.partitions:
            continue
        place = f"{index + 1}/{tally.num_stages} " if tally.num_stages > 1 else ""
        running = index == tally.current and not stage.done
        if len(stage.pools) > 1:
            yield from _pool_lines(tally, stage, place, width, running=running)
            continue
        pool = stage.pools[0] if stage.pools else None
        yield (
            place + shortened(inert(stage.name), width - len(place)),
            number(stage.rows_read),
            number(stage.kept) if stage.committed else "",  # known for committed partitions only
            str(pool.waiting) if pool is not None and running else "",
            f"{pool.busy}/{pool.workers}" if pool is not None and running else "",
            f"{format_bytes(stage.rate(now if running else stage.ended or now))}/s",
        )


def _pool_lines(tally: Tally, stage: StageTally, place: str, width: int, *, running: bool) -> Iterator[tuple[str, ...]]:
    """A group of stages that run at the same time: one line for each."""
    seconds = max(1e-9, (tally.clock() if running else stage.ended or tally.clock()) - stage.started)
    for pool in stage.pools:
        yield (
            place + shortened(inert(pool.name), width - len(place)),
            f"{pool.rows_in:,}" if width > 40 else abbreviated(pool.rows_in),
            f"{pool.rows_out:,}" if width > 40 else abbreviated(pool.rows_out),
            str(pool.waiting) if running else "",
            f"{pool.busy}/{pool.workers}" if running else "",
            f"{format_bytes(pool.bytes_done / seconds)}/s",
        )


def remarks(tally: Tally) -> list[str]:
    """Failures, dead workers, rows between stages and alerts, as short phrases."""
    found = []
    if tally.stage is not None and tally.stage.done and tally.share < 1:
        found.append("deciding about rows" + (f"; finished: {inert(_phase(tally.phase), 80)}" if tally.phase else ""))
    if tally.failed:
        found.append(f"{plural(tally.failed, 'row')} failed")
    if tally.deaths:
        found.append(f"{plural(tally.deaths, 'worker')} died")
    if tally.packet_bytes:
        found.append(f"{format_bytes(tally.packet_bytes)} between stages")
    found += [f"alert: {inert(text, 200)}" for text in list(tally.alerts.values())[:SHOWN_ALERTS]]
    return found


def _phase(name: str) -> str:
    """The name of the calls of a phase, without the numbers that tell its calls apart.

    >>> _phase("candidates, 1, 2")
    'candidates'
    """
    return name.partition(",")[0]


class View:
    """One view of the whole run on a terminal, redrawn in place; sentences are printed above it."""

    def __init__(self, tally: Tally, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._tally = tally
        self._last = float("-inf")
        self._console = Console(file=stream, force_terminal=True, highlight=False, soft_wrap=False)
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,  # stdout carries results
            redirect_stderr=False,
            vertical_overflow="crop",
        )

    def stage(self, number: int) -> None:
        self._live.start()
        self._draw()

    def refresh(self) -> None:
        if self._live.is_started and self._tally.clock() - self._last >= EVERY_S:
            self._draw()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def stop(self) -> None:
        if self._live.is_started:
            self._draw()
            self._live.stop()

    def _draw(self) -> None:
        self._last = self._tally.clock()
        self._live.update(self._view(), refresh=True)

    def _view(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        tally, now, width = self._tally, self._tally.clock(), self._console.width
        shown = [place for place, title in enumerate(HEADER) if width >= NARROW or title not in ("queue", "workers")]
        top = Table.grid(padding=(0, 1), expand=True)
        for ratio in (None, 1, None, None, None):
            top.add_column(ratio=ratio, no_wrap=True)
        left, stage = tally.seconds_left(now), tally.stage
        share = tally.share
        top.add_row(
            Text("run", style="bold"),
            ProgressBar(total=1.0, completed=share, complete_style="green", finished_style="green"),
            Text(f"{share:4.0%}"),
            Text(f"{duration(left)} left" if left is not None and share < 1 else ""),
            Text(f"{format_bytes(stage.rate(now))}/s" if stage is not None and not stage.done else ""),
        )
        lines = Table.grid(padding=(0, 2), expand=False)
        name_width = max(12, width - (68 if width >= WIDE else 50 if width >= NARROW else 28))
        lines.add_column(no_wrap=True, max_width=name_width)
        for _ in shown[1:]:
            lines.add_column(justify="right", no_wrap=True)
        lines.add_row(*(Text(HEADER[place], style="dim") for place in shown))
        for line in stage_lines(tally, full=width >= WIDE, width=name_width):
            lines.add_row(*(Text(line[place]) for place in shown))
        parts: list[RenderableType] = [top, lines]
        if tally.memory_bytes:
            bottom = Table.grid(padding=(0, 1))
            over = tally.memory_bytes > 0.9 * tally.budget_bytes
            bottom.add_row(
                Text("memory"),
                ProgressBar(
                    total=tally.budget_bytes or 1,
                    completed=tally.memory_bytes,
                    width=20,
                    complete_style="red" if over else "cyan",
                    finished_style="red",
                ),
                Text(tally.memory()),
            )
            parts.append(bottom)
        parts += [Text(remark, style="yellow", no_wrap=True, overflow="crop") for remark in remarks(tally)]
        return Group(*parts)


class Notebook:
    """A bar and a table in the output of a notebook cell, replaced as the run proceeds; remarks are listed below it."""

    MOST_SENTENCES = 20

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._last = float("-inf")
        self._handle: Any = None
        self._said: list[str] = []

    def stage(self, number: int) -> None:
        self._draw()

    def refresh(self) -> None:
        if self._tally.clock() - self._last >= EVERY_S:
            self._draw()

    def say(self, text: str) -> None:
        self._said = [*self._said, text][-self.MOST_SENTENCES :]
        if self._handle is not None:
            self._draw()

    def stop(self) -> None:
        if self._handle is not None or self._said:
            self._draw()

    def _draw(self) -> None:
        from IPython.display import HTML, display

        self._last = self._tally.clock()
        data = HTML(self.html())
        if self._handle is None:
            self._handle = display(data, display_id=True)
        else:
            self._handle.update(data)

    def html(self) -> str:
        """What the cell shows."""
        from tamis.inert import html_table

        tally, now = self._tally, self._tally.clock()
        left, share = tally.seconds_left(now), tally.share
        label = f"{share:.0%}" + (f", {duration(left)} left" if left is not None and share < 1 else "")
        bar = (
            f'<progress value="{share:.4f}" max="1" aria-label="progress of the run" style="width: 24em">'
            f"{escaped(label)}</progress> {escaped(label)}"
        )
        table = html_table(HEADER, stage_lines(tally, full=True, width=60), right=range(1, len(HEADER)))
        memory = [f"memory {tally.memory()}"] if tally.memory_bytes else []
        below = "".join(f"<div>{escaped(text, 500)}</div>" for text in [*memory, *remarks(tally), *self._said])
        return f"<div>{bar}{table if tally.stages else ''}{below}</div>"
