"""Names that users of NeMo Curator type and that do not exist here, with what to use instead.

`unknown_name` is for attributes of modules (`from tamis import RayClient`), `parameter_hint` and `explain_keywords` for
keyword parameters of operators and workflows (`ExactDeduplicationWorkflow(cache_path=...)`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from tamis.errors import ParameterError, UnknownName, did_you_mean

_NO_CLUSTER = (
    "remove it: Tamis needs no cluster; set `memory` and `workers` in Pipeline(...).run(memory=..., workers=...), or join a "
    "cluster with tamis.get_client(engine='ray')"
)
_NO_EXECUTOR = "remove it, or use tamis.RayExecutor: Pipeline(...).run() uses processes of this machine"
_NO_WRAPPER = (
    "remove the wrapper: filters and modifiers are steps of a pipeline; `score_only=True` adds scores as columns"
)
_NO_TASKS = "remove it: operators receive a `tamis.Batch`, and sources read files themselves"
_NO_GPU_MEMORY = "remove it: deduplication runs within the `memory` of Pipeline.run"

NAMES = {
    **dict.fromkeys(("get_num_workers", "RayClient", "SlurmRayClient"), _NO_CLUSTER),
    **dict.fromkeys(("XennaExecutor", "RayDataExecutor", "RayActorPoolExecutor"), _NO_EXECUTOR),
    **dict.fromkeys(("Score", "ScoreFilter", "FilterDataset", "Modify", "ParallelScoreFilter"), _NO_WRAPPER),
    **dict.fromkeys(("DocumentDataset", "read_json", "read_parquet"), "use tamis.JsonlReader, ParquetReader or Rows"),
    **dict.fromkeys(("DocumentBatch", "Task", "FilePartitioningStage", "FileGroupTask"), _NO_TASKS),
    "ProcessingStage": "subclass tamis.Map, Filter, Expand or Gather and decorate the class with @tamis.operator",
    "CompositeStage": "use a list of steps: Pipeline accepts lists",
    **dict.fromkeys(("ExactDuplicates", "ExactDuplicateIdentification"), "use tamis.ExactDeduplicationWorkflow"),
    **dict.fromkeys(("FuzzyDuplicates", "FuzzyDuplicatesConfig"), "use tamis.FuzzyDeduplicationWorkflow"),
    "TextDuplicatesRemovalWorkflow": "remove it: deduplication workflows remove duplicates themselves",
    **dict.fromkeys(("SemDedup", "SemDedupConfig"), "use tamis.SemanticDeduplicationWorkflow"),
    **dict.fromkeys(("KMeansStage", "PairwiseStage", "IdentifyDuplicatesStage"), "use tamis.dedup.SemanticDedup"),
    "RankingStrategy": 'use `which_to_keep="best"` and `by`, the column to rank by',
    **{
        name: f"use tamis.text.{name}"
        for name in (
            "QualityClassifier", "DomainClassifier", "MultilingualDomainClassifier", "ContentTypeClassifier",
            "FineWebEduClassifier", "FineWebMixtralEduClassifier", "FineWebNemotronEduClassifier", "AegisClassifier",
            "InstructionDataGuardClassifier", "PromptTaskComplexityClassifier", "FineMathClassifier",
        )
    },
    **dict.fromkeys(("OpenAIClient", "AsyncOpenAIClient", "LLMClient"), "use the parameters of tamis.text.Ask"),
    "WikipediaParaphrasingStage": "use the recipe nemotron_rephrase",
    "DiverseQAStage": "use the recipe nemotron_qa",
    "DistillStage": "use the recipe nemotron_distill",
    "ExtractKnowledgeStage": "use the recipe nemotron_extract",
    "KnowledgeListStage": "use the recipe nemotron_list",
    "TaskDecontamination": "use tamis.text.Decontaminate",
    "AddId": "use tamis.fields.AddId",
    "UnicodeReformatter": "use tamis.text.UnicodeRepair",
    "NewlineNormalizer": "use tamis.text.Newlines",
    "UrlRemover": "use tamis.text.UrlRemoval",
    "LineRemover": "use tamis.text.LineRemoval",
    "MarkdownRemover": "use tamis.text.MarkdownRemoval",
    "QuotationRemover": "use tamis.text.QuotationRemoval",
    "Slicer": "use tamis.text.Slice",
    "BoilerPlateStringModifier": "use tamis.text.BoilerplateRemoval",
    "BoilerPlateStringFilter": "use tamis.text.BoilerPlate",
    "FastTextLabelModifier": "use tamis.text.FastTextLabel",
    "RegexSubstitutionStage": "use tamis.text.RegexReplacement",
    **dict.fromkeys(("PiiModifier", "PiiDeidentifier"), "use tamis.text.PersonalDataMask"),
    "DocumentSplitter": "use tamis.text.DocumentSplit",
    "DocumentJoiner": "use tamis.text.DocumentJoin",
    **dict.fromkeys(("FastTextLangId", "FastTextLangIdFilter"), "use tamis.text.Language"),
    "LongWordFilter": "use tamis.text.LongestWord",
    "BulletsFilter": "use tamis.text.BulletPoints",
    "XMLHeaderFilter": "use tamis.text.XmlHeader",
    "HTMLBoilerplateFilter": "use tamis.text.HtmlBoilerplate",
    "RepeatedLinesByCharFilter": "use tamis.text.RepeatedLinesByChars",
    "RepeatedParagraphsByCharFilter": "use tamis.text.RepeatedParagraphsByChars",
    **{
        f"{name}Filter": f"use tamis.text.{name}"
        for name in (
            "Alpha", "CommonEnglishWords", "Ellipsis", "FastTextQuality", "GeneralCommentToCode", "Histogram",
            "MeanWordLength", "NonAlphaNumeric", "NumberOfLinesOfCode", "Numbers", "Parentheses", "PerExtension",
            "PornographicUrls", "Punctuation", "PythonCommentToCode", "RepeatedLines", "RepeatedParagraphs",
            "RepeatingDuplicateNGrams", "RepeatingTopNGrams", "Substring", "SymbolsToWords", "TokenCount",
            "TokenizerFertility", "Urls", "WhiteSpace", "WordCount", "WordsWithoutAlphabets",
        )
    },
}  # fmt: skip

PARAMETERS = {
    **dict.fromkeys(
        ("cache_path", "cache_dir"), "remove it: intermediate data is kept in the output folder while a run needs it"
    ),
    **dict.fromkeys(("checkpoint_path", "checkpoint_dir"), "remove it: a rerun into the same output folder resumes"),
    **dict.fromkeys(
        ("assign_id", "_assign_ids", "_generate_ids"),
        "remove it: rows need no ids; the step tamis.fields.AddId adds them as a column",
    ),
    **dict.fromkeys(
        ("id_field", "id_column"),
        "remove it: rows are identified by their address, and a column named `id` is kept in reports",
    ),
    **dict.fromkeys(("read_kwargs", "write_kwargs"), "use the parameters of the reader or writer; see `tamis ops`"),
    **dict.fromkeys(
        ("file_extensions", "input_file_extensions"), 'use a glob pattern as the path, such as "in/**/*.jsonl.gz"'
    ),
    **dict.fromkeys(("input_path", "input_paths", "input_dir", "input_files"), "use `file_paths`"),
    **dict.fromkeys(("output_path", "output_dir"), "use `path`"),
    **dict.fromkeys(("text_field", "text_column", "input_field", "input_fields"), "use `column`"),
    **dict.fromkeys(("output_field", "output_fields"), "use `into`"),
    **dict.fromkeys(("backend", "hash_method", "env_vars", "use_64_bit_hash", "verbose"), "remove it: there is no choice"),
    **dict.fromkeys(
        (
            "rmm_pool_size", "spill_memory_limit", "use_async_memory", "total_nparts", "identification_batchsize",
            "bands_per_iteration", "buckets_per_shuffle", "lsh_num_output_partitions", "num_workers",
        ),
        _NO_GPU_MEMORY,
    ),
    **dict.fromkeys(
        ("model_inference_batch_size", "batch_size"), "remove it: batches are sized by the `memory` of Pipeline.run"
    ),
    "ranking_strategy": 'use `which_to_keep="best"` and `by`, the column to rank by',
    **dict.fromkeys(
        ("max_samples_per_batch", "pairwise_batch_size", "fit_data_fraction", "n_init", "clear_output"),
        "remove it: blocks are sized by the `memory` of Pipeline.run, and centres come from a sample",
    ),
    "false_positive_check": 'use `verify`: "jaccard" checks every pair',
    **dict.fromkeys(("jaccard_threshold", "similarity_threshold"), "use `threshold`"),
    "num_buckets": "use `num_bands`",
    "hashes_per_bucket": "use `minhashes_per_band` in the workflow, `hashes_per_band` in FuzzyDedup",
    **dict.fromkeys(("score_field", "score_type"), "use `score_only=True`, which adds scores under their own names"),
    "filter_by": "use the thresholds of the operator; see `tamis ops`",
    **dict.fromkeys(
        ("autocast", "sort_by_length", "keep_tokens", "use_existing_tokens", "padding_side"),
        "remove it: texts are sorted by length, and a GPU computes in bfloat16",
    ),
    "hf_token": "remove it: weights are found in the local Hugging Face cache",
    "lang": "use `keep`",
    **dict.fromkeys(("cpus", "gpus", "num_cpus", "num_gpus"), "use @operator(resources=Resources(...)) on the class"),
}  # fmt: skip


def unknown_name(module: str, name: str) -> Exception:
    """The error for an attribute that a module does not have.

    Names of NeMo Curator get an ImportError: Python would replace the message of an AttributeError.
    """
    if name in NAMES:
        return UnknownName(f"`{module}` has no `{name}`, a name of NeMo Curator", hint=NAMES[name])
    return AttributeError(f"module {module!r} has no attribute {name!r}")


def parameter_hint(name: str, known: Collection[str]) -> str | None:
    """What to use instead of a parameter that does not exist."""
    hint = PARAMETERS.get(name)
    words = hint.split("`") if hint is not None and hint.startswith("use `") else []
    if hint is not None and (not words or words[1].partition("=")[0] in known):
        return hint
    return did_you_mean(name, known) or (f"parameters: {', '.join(known)}" if known else None)


_T = TypeVar("_T", bound=type)


def explain_keywords(cls: _T) -> _T:
    """Make a dataclass raise a ParameterError with a hint for keyword parameters that it does not have."""
    made: Any = cls
    original: Callable[..., None] = made.__init__

    @functools.wraps(original)
    def checked(self: Any, *args: Any, **given: Any) -> None:
        known = [field.name for field in dataclasses.fields(self) if field.init]
        for name in given:
            if name not in known:
                owner = type(self).__name__
                raise ParameterError(f"`{owner}` has no parameter `{name}`", hint=parameter_hint(name, known))
        original(self, *args, **given)

    made.__init__ = checked
    return cls
