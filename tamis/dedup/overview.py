"""An overview of the duplicates that a run found, for `tamis dedup explain OUT`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tamis.dedup.groups import Groups

_SHOWN = {
    "step": "",
    "threshold": "threshold",
    "rows": "rows",
    "dropped": "rows dropped",
    "groups": "groups of duplicates",
    "largest_group": "rows in the largest group",
    "units": "paragraphs, lines or spans",
    "ngrams": "n-grams of words",
    "bytes": "bytes of text",
    "share": "least share of n-grams",
    "cut": "paragraphs, lines or spans cut",
    "cut_bytes": "bytes cut",
    "cut_chars": "characters cut",
    "rewritten": "rows with cuts",
    "candidates": "rows compared",
    "vectors": "rows with an embedding",
    "hashes": "images compared",
    "blank": "rows with too little content to compare",
    "sequences": "rows compared over time",
    "radius": "radius in bits",
    "other_dimensions": "rows with an embedding of another length",
    "clusters": "clusters",
    "limited": "rows with more neighbouring clusters",
    "largest_component": "rows in the largest set of linked rows",
}
"""What the overview shows of a summary, with its label."""


def overview(groups: Groups, closest: int, largest: int) -> list[dict[str, Any]]:
    """By step: its summary, the sizes of groups, the `largest` groups, and the `closest` rows on each side of the threshold."""
    return [
        {name: value for name, value in summary.items() if name in _SHOWN}
        | {
            "group_sizes": groups.histogram(stage),
            "largest": groups.largest(largest, stage),
            "closest": groups.closest(closest, stage),
        }
        for stage, summary in groups.summaries.items()
    ]


def _named(entry: Mapping[str, Any], prefix: str = "") -> str:
    name, address = entry.get(f"{prefix}id"), entry[f"{prefix}address"]
    return f"{name} ({address})" if name is not None else str(address)


def overview_text(step: Mapping[str, Any]) -> str:
    """The overview of a step as a table and lists."""
    lines = [step["step"]]
    for name, label in _SHOWN.items():
        value = step.get(name)
        if label and value is not None:
            lines.append(f"  {label:<40}{value:>12,}" if isinstance(value, int) else f"  {label:<40}{value:>12g}")
    if step["group_sizes"]:
        lines += ["", "  groups by size"]
        lines += [f"  {size:>10,} rows {count:>12,}" for size, count in list(step["group_sizes"].items())[:20]]
    if step["largest"]:
        lines += ["", "  largest groups, by the row kept"]
        lines += [f"  {group['size']:>10,} rows  {_named(group, 'kept_')}" for group in step["largest"]]
    for side, title in (
        ("above", "dropped rows closest to the threshold"),
        ("below", "kept rows closest to the threshold"),
    ):
        pairs: Sequence[Mapping[str, Any]] = step["closest"][side] if "threshold" in step else []
        if pairs:
            lines += ["", f"  {title}"]
            for pair in pairs:
                lines += [f"  {pair['similarity']:>10.3f}  {_named(pair)}", f"{'':12}  like {_named(pair, 'kept_')}"]
    return "\n".join(lines)
