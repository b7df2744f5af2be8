"""Tamis curates training data for foundation models; see README.md for a tour.

Names are imported on first use, so that `import tamis` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tamis.batch import Batch
    from tamis.errors import TamisError
    from tamis.memory.monitor import MemoryMonitor
    from tamis.operator import (
        Expand,
        Filter,
        Gather,
        Map,
        Operator,
        Resources,
        Rule,
        Sink,
        Source,
        at_least,
        at_most,
        between,
        one_of,
    )
    from tamis.pipeline import Pipeline, Sequential
    from tamis.report import Report
    from tamis.sinks.tables import ArrowWriter, CsvWriter, JsonlWriter, ParquetWriter
    from tamis.sources.memory import Rows
    from tamis.sources.tables import ArrowReader, CsvReader, JsonlReader, ParquetReader, TextReader
    from tamis.workflows import ExactDeduplicationWorkflow, FuzzyDeduplicationWorkflow

_HOMES = {
    "Batch": "batch",
    "TamisError": "errors",
    "MemoryMonitor": "memory.monitor",
    **dict.fromkeys(
        ["Expand", "Filter", "Gather", "Map", "Operator", "Resources", "Rule", "Sink", "Source"], "operator"
    ),
    **dict.fromkeys(["at_least", "at_most", "between", "one_of"], "operator"),
    **dict.fromkeys(["Pipeline", "Sequential"], "pipeline"),
    "Report": "report",
    **dict.fromkeys(["ArrowWriter", "CsvWriter", "JsonlWriter", "ParquetWriter"], "sinks.tables"),
    "Rows": "sources.memory",
    **dict.fromkeys(["ExactDeduplicationWorkflow", "FuzzyDeduplicationWorkflow"], "workflows"),
    **dict.fromkeys(["ArrowReader", "CsvReader", "JsonlReader", "ParquetReader", "TextReader"], "sources.tables"),
}

__all__ = [
    "ArrowReader",
    "ArrowWriter",
    "Batch",
    "CsvReader",
    "CsvWriter",
    "ExactDeduplicationWorkflow",
    "Expand",
    "Filter",
    "FuzzyDeduplicationWorkflow",
    "Gather",
    "JsonlReader",
    "JsonlWriter",
    "Map",
    "MemoryMonitor",
    "Operator",
    "ParquetReader",
    "ParquetWriter",
    "Pipeline",
    "Report",
    "Resources",
    "Rows",
    "Rule",
    "Sequential",
    "Sink",
    "Source",
    "TamisError",
    "TextReader",
    "at_least",
    "at_most",
    "between",
    "one_of",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"tamis.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'tamis' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
