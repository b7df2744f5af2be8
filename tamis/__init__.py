"""Tamis curates training data for foundation models; README.md is an introduction.

Names are imported on first use, which keeps `import tamis` fast.
"""

from tamis.lazy import lazy_names

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "backends": ["ToBackend"],
        "batch": ["Batch", "Column"],
        "client": ["get_client"],
        "context": ["Context"],
        "errors": ["TamisError"],
        "executors.dask": ["DaskExecutor"],
        "executors.inline": ["InlineExecutor"],
        "executors.local": ["LocalExecutor"],
        "executors.ray": ["RayExecutor"],
        "functions": ["step"],
        "memory.monitor": ["MemoryMonitor"],
        "mixing": ["Balance", "Mix"],
        "operators": [
            "Decide",
            "Expand",
            "Filter",
            "Gather",
            "Map",
            "Observations",
            "Operator",
            "Resources",
            "Rule",
            "Scores",
            "Sink",
            "Source",
            "Work",
            "at_least",
            "at_most",
            "between",
            "less_than",
            "one_of",
            "operator",
        ],
        "pipeline": ["Pipeline", "Sequential"],
        "report": ["Report"],
        "sampling": ["Shuffle"],
        "verification": ["Verification", "verify"],
        "workflows": [
            "AudioDeduplicationWorkflow",
            "ExactDeduplicationWorkflow",
            "FuzzyDeduplicationWorkflow",
            "ImageDeduplicationWorkflow",
            "ParagraphDeduplicationWorkflow",
            "SemanticDeduplicationWorkflow",
            "SentenceDeduplicationWorkflow",
            "SubstringDeduplicationWorkflow",
            "TextSemanticDeduplicationWorkflow",
            "VideoDeduplicationWorkflow",
        ],
    },
    operators_of=["sources", "sinks"],
)
