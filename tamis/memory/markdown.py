"""The memory settings of a run with their reasons, and its measurements, as a Markdown page to keep with the recipe."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tamis.parameters import format_bytes, plural
from tamis.report import Report

ACTIONS = {
    "split": "batches halved because an operator ran out of memory",
    "shrink": "reductions of the batch size",
    "fewer_workers": "workers stopped to leave more memory for each",
    "isolate": "partitions read without rows that are too large",
    "restart": "partitions retried after their worker died",
    "recycle": "workers replaced to release their memory",
    "pause": "times no partition was started because memory was short",
}


def memory_markdown(report: Report, manifest: Mapping[str, Any]) -> str:
    """Settings with their reasons, measurements, alert thresholds, alerts, and the command to repeat the run."""
    settings, reasons, measured = manifest["memory"], manifest["reasons"], report.memory
    name = Path(report.output or "").name or "this run"
    chosen = [
        ("memory", settings["total_bytes"], "memory"),
        ("driver and fork server", settings["driver_bytes"], "driver"),
        ("each worker", settings["worker_bytes"], "worker_bytes"),
        ("a worker before its first batch", settings["fixed_bytes"], "fixed_bytes"),
        ("batch", settings["batch_bytes"], "batch_bytes"),
        ("partition (`blocksize`)", manifest["partitioning"]["blocksize"], "blocksize"),
    ]
    rows = [(what, format_bytes(size), _why(reasons.get(key, ""))) for what, size, key in chosen]
    rows.append(("workers", str(settings["workers"]), _why(reasons.get("workers", ""))))
    rows.append(("partitions in progress", str(settings["workers"]), _why(reasons.get("queue", ""))))
    rows += [(name, "on disk", reasons[name]) for name in ("spill",) if name in reasons]
    rows.append(("caches", "none", _why(reasons.get("caches", ""))))
    rows.append(("partitions", f"{manifest['partitioning']['partitions']:,}", _why(reasons.get("partitions", ""))))
    if report.sample is not None:
        share, weight = report.sample["share"], report.sample["weight"]
        rows.append(("sample", f"{share:.2%}", f"all rows did not fit; each sampled row stands for {weight:.0f}"))
    budget = settings["total_bytes"]
    found = [
        (
            "files",
            f"{manifest['partitioning']['files']:,}, {format_bytes(manifest['partitioning']['bytes'])} in total",
        ),
        ("rows", f"{report.read:,} read, {report.kept:,} kept, {report.failed:,} failed"),
        (
            "peak of the process tree",
            f"{format_bytes(report.peak_memory_bytes)}, {100 * report.peak_memory_bytes / budget:.0f} % of the budget",
        ),
        ("time", f"{report.seconds:,.1f} s"),
        ("batch size at the end", format_bytes(measured["batch_bytes"])),
        ("workers at the end", str(measured["workers"])),
        *((f"memory per byte of batch, {stage}", f"{copies:.1f} bytes") for stage, copies in _copies(measured)),
        *((f"memory of `{name}` before its first batch", format_bytes(size)) for name, size in _setup(measured)),
        *_gpu_rows(measured),
        *((ACTIONS.get(kind, kind), f"{count:,}") for kind, count in measured["actions"].items()),
    ]
    alerts = [(key.replace("_", " "), _threshold(value)) for key, value in manifest.get("alerts", {}).items()]
    hardware, versions = manifest["hardware"], manifest["versions"]
    parts = [
        f"# Memory settings of {name}",
        f"tamis {versions['tamis']}, Python {versions['python']}, {hardware['machine']} with "
        f"{plural(hardware['cpus'], 'core')} and {format_bytes(hardware['memory_bytes'])} of memory.",
        "## Settings and their reasons",
        _table(("what", "value", "why"), rows),
        "## Measurements",
        _table(("what", "value"), found),
    ]
    if alerts:
        parts += ["## Alert thresholds", _table(("threshold", "value"), alerts)]
    if report.memory_events:
        fields = ("time", "kind", "level", "text", "action")
        events = [[str(event[name] or "").replace("|", "/") for name in fields] for event in report.memory_events]
        parts += ["## Alerts and actions", _table(fields, events)]
    parts += ["## Command", f"```\n{_command(manifest['command'])}\n```"]
    return "\n\n".join(parts)


def _gpu_rows(measured: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The peak of each GPU, and what it was used for."""
    rows = []
    for gpu in measured.get("gpus", []):
        name = f"GPU {gpu['index']} ({gpu['name']})"
        budget = f" of a budget of {format_bytes(gpu['budget_bytes'])}" if gpu["budget_bytes"] is not None else ""
        rows.append((f"peak on {name}", f"{format_bytes(gpu['own_bytes'])}{budget}"))
        rows += [
            (f"{owner} on GPU {gpu['index']}", format_bytes(size)) for owner, size in sorted(gpu["owners"].items())
        ]
        if gpu["other_bytes"]:
            rows.append((f"other processes on GPU {gpu['index']}", format_bytes(gpu["other_bytes"])))
    return rows


def _why(reason: str) -> str:
    """A reason without the value it starts with."""
    return reason.split(": ", 1)[-1]


def _copies(measured: Mapping[str, Any]) -> list[tuple[str, float]]:
    return [(stage.replace("|", "/"), copies) for stage, copies in measured["bytes_held_per_batch_byte"].items()]


def _setup(measured: Mapping[str, Any]) -> list[tuple[str, int]]:
    return sorted(measured.get("bytes_held_after_setup", {}).items())


def _threshold(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{kind}: {action or 'nothing'}" for kind, action in value.items())
    return (
        " and ".join(map(str, value)) if isinstance(value, (list, tuple)) else "never" if value is None else str(value)
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _command(words: Sequence[str]) -> str:
    return shlex.join([Path(words[0]).name, *words[1:]]) if words else ""
