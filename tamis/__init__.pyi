# Written by scripts/make_names.py.
from tamis.backends import ToBackend as ToBackend
from tamis.batch import Batch as Batch
from tamis.batch import Column as Column
from tamis.client import get_client as get_client
from tamis.context import Context as Context
from tamis.errors import TamisError as TamisError
from tamis.executors.dask import DaskExecutor as DaskExecutor
from tamis.executors.inline import InlineExecutor as InlineExecutor
from tamis.executors.local import LocalExecutor as LocalExecutor
from tamis.executors.ray import RayExecutor as RayExecutor
from tamis.functions import step as step
from tamis.memory.monitor import MemoryMonitor as MemoryMonitor
from tamis.mixing import Balance as Balance
from tamis.mixing import Mix as Mix
from tamis.operators import Decide as Decide
from tamis.operators import Expand as Expand
from tamis.operators import Filter as Filter
from tamis.operators import Gather as Gather
from tamis.operators import Map as Map
from tamis.operators import Observations as Observations
from tamis.operators import Operator as Operator
from tamis.operators import Resources as Resources
from tamis.operators import Rule as Rule
from tamis.operators import Scores as Scores
from tamis.operators import Sink as Sink
from tamis.operators import Source as Source
from tamis.operators import Work as Work
from tamis.operators import at_least as at_least
from tamis.operators import at_most as at_most
from tamis.operators import between as between
from tamis.operators import less_than as less_than
from tamis.operators import one_of as one_of
from tamis.operators import operator as operator
from tamis.pipeline import Pipeline as Pipeline
from tamis.pipeline import Sequential as Sequential
from tamis.report import Report as Report
from tamis.sampling import Shuffle as Shuffle
from tamis.sinks.audio import AudioWriter as AudioWriter
from tamis.sinks.clips import ClipWriter as ClipWriter
from tamis.sinks.folder import FolderWriter as FolderWriter
from tamis.sinks.tables import ArrowWriter as ArrowWriter
from tamis.sinks.tables import CsvWriter as CsvWriter
from tamis.sinks.tables import JsonlWriter as JsonlWriter
from tamis.sinks.tables import ParquetWriter as ParquetWriter
from tamis.sinks.tokens import TokenWriter as TokenWriter
from tamis.sinks.webdataset import WebDatasetWriter as WebDatasetWriter
from tamis.sources.columnar import ArrowReader as ArrowReader
from tamis.sources.columnar import ParquetReader as ParquetReader
from tamis.sources.delimited import CsvReader as CsvReader
from tamis.sources.documents import ArchiveReader as ArchiveReader
from tamis.sources.documents import ArxivReader as ArxivReader
from tamis.sources.download import Download as Download
from tamis.sources.git import GitReader as GitReader
from tamis.sources.id_filter import IdFilter as IdFilter
from tamis.sources.lance import LanceReader as LanceReader
from tamis.sources.mediafiles import AudioReader as AudioReader
from tamis.sources.mediafiles import DocumentReader as DocumentReader
from tamis.sources.mediafiles import ImageReader as ImageReader
from tamis.sources.mediafiles import VideoReader as VideoReader
from tamis.sources.mediawiki import MediawikiReader as MediawikiReader
from tamis.sources.memory import Rows as Rows
from tamis.sources.references import MediaReference as MediaReference
from tamis.sources.references import ReadMedia as ReadMedia
from tamis.sources.tables import JsonlReader as JsonlReader
from tamis.sources.tables import TextReader as TextReader
from tamis.sources.warc import WarcReader as WarcReader
from tamis.sources.webdataset import WebDatasetReader as WebDatasetReader
from tamis.verification import Verification as Verification
from tamis.verification import verify as verify
from tamis.workflows import AudioDeduplicationWorkflow as AudioDeduplicationWorkflow
from tamis.workflows import ExactDeduplicationWorkflow as ExactDeduplicationWorkflow
from tamis.workflows import FuzzyDeduplicationWorkflow as FuzzyDeduplicationWorkflow
from tamis.workflows import ImageDeduplicationWorkflow as ImageDeduplicationWorkflow
from tamis.workflows import ParagraphDeduplicationWorkflow as ParagraphDeduplicationWorkflow
from tamis.workflows import SemanticDeduplicationWorkflow as SemanticDeduplicationWorkflow
from tamis.workflows import SentenceDeduplicationWorkflow as SentenceDeduplicationWorkflow
from tamis.workflows import SubstringDeduplicationWorkflow as SubstringDeduplicationWorkflow
from tamis.workflows import TextSemanticDeduplicationWorkflow as TextSemanticDeduplicationWorkflow
from tamis.workflows import VideoDeduplicationWorkflow as VideoDeduplicationWorkflow

__version__: str

__all__ = [
    "ArchiveReader",
    "ArrowReader",
    "ArrowWriter",
    "ArxivReader",
    "AudioDeduplicationWorkflow",
    "AudioReader",
    "AudioWriter",
    "Balance",
    "Batch",
    "ClipWriter",
    "Column",
    "Context",
    "CsvReader",
    "CsvWriter",
    "DaskExecutor",
    "Decide",
    "DocumentReader",
    "Download",
    "ExactDeduplicationWorkflow",
    "Expand",
    "Filter",
    "FolderWriter",
    "FuzzyDeduplicationWorkflow",
    "Gather",
    "GitReader",
    "IdFilter",
    "ImageDeduplicationWorkflow",
    "ImageReader",
    "InlineExecutor",
    "JsonlReader",
    "JsonlWriter",
    "LanceReader",
    "LocalExecutor",
    "Map",
    "MediaReference",
    "MediawikiReader",
    "MemoryMonitor",
    "Mix",
    "Observations",
    "Operator",
    "ParagraphDeduplicationWorkflow",
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
    "SentenceDeduplicationWorkflow",
    "Sequential",
    "Shuffle",
    "Sink",
    "Source",
    "SubstringDeduplicationWorkflow",
    "TamisError",
    "TextReader",
    "TextSemanticDeduplicationWorkflow",
    "ToBackend",
    "TokenWriter",
    "Verification",
    "VideoDeduplicationWorkflow",
    "VideoReader",
    "WarcReader",
    "WebDatasetReader",
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
