"""Tamis curates training data for foundation models; README.md is an introduction.

Names are imported on first use, which keeps `import tamis` fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tamis.backends import ToBackend
    from tamis.batch import Batch, Column
    from tamis.client import get_client
    from tamis.context import Context
    from tamis.errors import TamisError
    from tamis.executors.dask import DaskExecutor
    from tamis.executors.inline import InlineExecutor
    from tamis.executors.local import LocalExecutor
    from tamis.executors.ray import RayExecutor
    from tamis.functions import step
    from tamis.memory.monitor import MemoryMonitor
    from tamis.operators import (
        Decide,
        Expand,
        Filter,
        Gather,
        Map,
        Observations,
        Operator,
        Resources,
        Rule,
        Scores,
        Sink,
        Source,
        Work,
        at_least,
        at_most,
        between,
        less_than,
        one_of,
        operator,
    )
    from tamis.pipeline import Pipeline, Sequential
    from tamis.report import Report
    from tamis.sinks.audio import AudioWriter
    from tamis.sinks.clips import ClipWriter
    from tamis.sinks.folder import FolderWriter
    from tamis.sinks.tables import ArrowWriter, CsvWriter, JsonlWriter, ParquetWriter
    from tamis.sinks.tokens import TokenWriter
    from tamis.sinks.webdataset import WebDatasetWriter
    from tamis.sources.download import Download
    from tamis.sources.mediafiles import AudioReader, ImageReader, VideoReader
    from tamis.sources.mediawiki import MediawikiReader
    from tamis.sources.memory import Rows
    from tamis.sources.references import MediaReference, ReadMedia
    from tamis.sources.tables import ArrowReader, CsvReader, JsonlReader, ParquetReader, TextReader
    from tamis.sources.warc import WarcReader
    from tamis.sources.webdataset import WebDatasetReader
    from tamis.verification import Verification, verify
    from tamis.workflows import (
        AudioDeduplicationWorkflow,
        ExactDeduplicationWorkflow,
        FuzzyDeduplicationWorkflow,
        ImageDeduplicationWorkflow,
        SemanticDeduplicationWorkflow,
        TextSemanticDeduplicationWorkflow,
        VideoDeduplicationWorkflow,
    )

_HOMES = {
    "ToBackend": "backends",
    **dict.fromkeys(["Batch", "Column"], "batch"),
    "get_client": "client",
    "Context": "context",
    "TamisError": "errors",
    "DaskExecutor": "executors.dask",
    "InlineExecutor": "executors.inline",
    "LocalExecutor": "executors.local",
    "RayExecutor": "executors.ray",
    "step": "functions",
    "MemoryMonitor": "memory.monitor",
    **dict.fromkeys(["Expand", "Filter", "Gather", "Map", "Operator", "Sink", "Source", "operator"], "operators"),
    **dict.fromkeys(["Decide", "Observations", "Resources", "Rule", "Scores", "Work"], "operators"),
    **dict.fromkeys(["at_least", "at_most", "between", "less_than", "one_of"], "operators"),
    **dict.fromkeys(["Pipeline", "Sequential"], "pipeline"),
    "Report": "report",
    **dict.fromkeys(["ArrowWriter", "CsvWriter", "JsonlWriter", "ParquetWriter"], "sinks.tables"),
    "ClipWriter": "sinks.clips",
    "AudioWriter": "sinks.audio",
    "FolderWriter": "sinks.folder",
    "TokenWriter": "sinks.tokens",
    "WebDatasetWriter": "sinks.webdataset",
    "Download": "sources.download",
    **dict.fromkeys(["AudioReader", "ImageReader", "VideoReader"], "sources.mediafiles"),
    "MediawikiReader": "sources.mediawiki",
    "Rows": "sources.memory",
    **dict.fromkeys(["MediaReference", "ReadMedia"], "sources.references"),
    "WarcReader": "sources.warc",
    "WebDatasetReader": "sources.webdataset",
    **dict.fromkeys(["Verification", "verify"], "verification"),
    **dict.fromkeys(
        [
            "AudioDeduplicationWorkflow",
            "ExactDeduplicationWorkflow",
            "FuzzyDeduplicationWorkflow",
            "ImageDeduplicationWorkflow",
            "SemanticDeduplicationWorkflow",
            "TextSemanticDeduplicationWorkflow",
            "VideoDeduplicationWorkflow",
        ],
        "workflows",
    ),
    **dict.fromkeys(["ArrowReader", "CsvReader", "JsonlReader", "ParquetReader", "TextReader"], "sources.tables"),
}

__all__ = [
    "ArrowReader",
    "ArrowWriter",
    "AudioDeduplicationWorkflow",
    "AudioReader",
    "AudioWriter",
    "Batch",
    "Column",
    "Context",
    "CsvReader",
    "CsvWriter",
    "DaskExecutor",
    "Decide",
    "Download",
    "ExactDeduplicationWorkflow",
    "Expand",
    "Filter",
    "ClipWriter",
    "FolderWriter",
    "FuzzyDeduplicationWorkflow",
    "ImageDeduplicationWorkflow",
    "Gather",
    "ImageReader",
    "InlineExecutor",
    "JsonlReader",
    "JsonlWriter",
    "LocalExecutor",
    "Map",
    "MediaReference",
    "MediawikiReader",
    "MemoryMonitor",
    "Observations",
    "Operator",
    "ParquetReader",
    "ParquetWriter",
    "Pipeline",
    "RayExecutor",
    "ReadMedia",
    "Report",
    "Resources",
    "Rows",
    "Rule",
    "Scores",
    "SemanticDeduplicationWorkflow",
    "Sequential",
    "Sink",
    "Source",
    "TamisError",
    "TextReader",
    "TextSemanticDeduplicationWorkflow",
    "ToBackend",
    "Verification",
    "VideoDeduplicationWorkflow",
    "VideoReader",
    "WarcReader",
    "WebDatasetReader",
    "TokenWriter",
    "WebDatasetWriter",
    "Work",
    "at_least",
    "at_most",
    "between",
    "get_client",
    "less_than",
    "one_of",
    "operator",
    "step",
    "verify",
]


if not TYPE_CHECKING:  # a type checker would accept every misspelt name

    def __getattr__(name: str) -> object:
        if name in _HOMES:
            value = getattr(import_module(f"tamis.{_HOMES[name]}"), name)
            globals()[name] = value
            return value
        from tamis.curator_names import unknown_name

        raise unknown_name("tamis", name)


def __dir__() -> list[str]:
    return __all__
