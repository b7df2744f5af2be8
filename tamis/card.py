"""The dataset card: a README.md in the output folder, in the form that the Hugging Face Hub expects.

Its YAML header names the data files, so that `datasets.load_dataset(OUTPUT)` reads them. Text that comes from data, such as
reasons and names, is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tamis
from tamis.errors import ParameterError, SinkError
from tamis.store import text_checksum

if TYPE_CHECKING:
    from tamis.ledger import Ledger
    from tamis.operators import Sink
    from tamis.report import Report

CARD = "README.md"

_LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,60}")
_SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")


def check_license(license: str | None) -> None:
    """Raise unless `license` is an identifier such as odc-by."""
    if license is not None and not (isinstance(license, str) and _LICENSE.fullmatch(license)):
        raise ParameterError(
            f"`license` must be an identifier, got {license!r}",
            hint="for example odc-by, cc-by-4.0 or apache-2.0; the Hugging Face Hub has a list",
        )


def check_card(ledger: Ledger) -> None:
    """Raise if there is a README.md that no run wrote, or that was edited since."""
    there = ledger.store.read(CARD)
    if there is not None and text_checksum(there) != ledger.card:
        raise SinkError(
            f"{CARD} in {ledger.store.root} was not written by tamis, or was edited since",
            hint="move it away, or run without --card",
        )


def write_card(ledger: Ledger, sink: Sink, recipe: list[dict[str, Any]], report: Report, license: str | None) -> None:
    """Write the card of a finished run."""
    has_rows = any("/" not in shard.name for commit in ledger.commits.values() for shard in commit.shards)
    text = card_text(ledger.store.root, recipe, report, license, sink.file_suffix if has_rows else None)
    ledger.append([{"kind": "card", "checksum": text_checksum(text.encode())}])
    ledger.store.write(CARD, text.encode())


def card_text(output: str, steps: list[dict[str, Any]], report: Report, license: str | None, suffix: str | None) -> str:
    """The card as Markdown with a YAML header; `suffix` is that of the data files, if there are any."""
    from tamis.recipes.document import write_document, write_yaml

    header: dict[str, Any] = {"license": license} if license else {}
    header |= {"size_categories": [size_category(report.kept)], "tags": ["tamis"]}
    if suffix is not None:
        files = [{"split": "train", "path": f"part-*{suffix}"}]
        header["configs"] = [{"config_name": "default", "data_files": files}]
    recipe = write_document({}, [(*pair, False) for step in steps for pair in _without_locations(step).items()])
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", recipe)), default=0))
    title = output.rstrip("/").rpartition("/")[2] or "dataset"
    return "\n".join(
        [
            f"---\n{write_yaml(header)}---\n",
            f"# {escaped(title)}\n",
            f"Curated with Tamis {tamis.__version__}: {report.kept:,} of {report.read:,} rows were kept.\n",
            *_counts(report),
            *_reasons(report),
            f"## Recipe\n\n{fence}yaml\n{recipe}{fence}\n",
            "## Reproduce\n",
            f"Save the recipe as `recipe.yaml`, install Tamis {tamis.__version__}, and run\n",
            "```\ntamis run recipe.yaml --input INPUT --output FOLDER\n```\n",
        ]
    )


def size_category(rows: int) -> str:
    """The size as the Hugging Face Hub writes it.

    >>> size_category(0), size_category(2_500), size_category(10**13)
    ('n<1K', '1K<n<10K', 'n>1T')
    """
    for power, upper in enumerate(_SIZES, start=3):
        if rows < 10**power:
            return f"{_SIZES[power - 4]}<n<{upper}" if power > 3 else f"n<{upper}"
    return f"n>{_SIZES[-1]}"


def escaped(text: object) -> str:
    """Text for a line of Markdown, with nothing in it that Markdown or HTML would interpret.

    >>> escaped("a|b <script> `x`")
    'a\\\\|b &lt;script&gt; \\\\`x\\\\`'
    """
    line = " ".join(str(text).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]()#+!|~$-])", r"\\\1", line)


def _counts(report: Report) -> list[str]:
    rows = [("read", report.read), ("created", report.created), ("kept", report.kept)]
    rows += [("dropped", sum(report.dropped.values())), ("failed", report.failed)]
    return [
        "| | rows |",
        "|---|---:|",
        *(f"| {name} | {count:,} |" for name, count in rows if count or name != "created"),
        "",
    ]


def _reasons(report: Report) -> list[str]:
    found = [(op["name"], reason, count) for op in report.operators for reason, count in op["dropped"].items() if count]
    if not found:
        return []
    lines = [f"| {escaped(step)} | {escaped(reason)} | {count:,} |" for step, reason, count in found]
    return ["## Reasons\n", "| step | reason | rows dropped |", "|---|---|---:|", *lines, ""]


def _without_locations(step: Mapping[str, Any]) -> dict[str, Any]:
    """A step without the paths of inputs and outputs, which mean nothing to others."""
    return {
        name: {key: value for key, value in parameters.items() if key != "file_paths" and not _is_output(name, key)}
        for name, parameters in step.items()
    }


def _is_output(step: str, parameter: str) -> bool:
    return step.endswith("_writer") and parameter in ("path", "mode")
