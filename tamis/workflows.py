"""Whole jobs as one object: each builds a pipeline of a reader, a step and a writer, and runs it.

    ExactDeduplicationWorkflow(input_path="in/", output_path="out/", text_field="text").run()

The parameters have the names of NeMo Curator.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tamis.curator_names import explain_keywords, unknown_name
from tamis.dedup.exact import ExactDedup
from tamis.dedup.fuzzy import FuzzyDedup
from tamis.dedup.groups_only import GroupsOnly
from tamis.dedup.images import ImageDedup, ImageKeep
from tamis.dedup.keep import Keep
from tamis.dedup.paragraphs import ParagraphDedup
from tamis.dedup.semantic import SemanticDedup, SemanticKeep
from tamis.dedup.sentences import SentenceDedup
from tamis.dedup.sequences import SequenceKeep
from tamis.dedup.sounds import AudioDedup
from tamis.dedup.substrings import SubstringDedup
from tamis.dedup.videos import VideoDedup
from tamis.errors import Interrupted, ParameterError, TamisError, did_you_mean
from tamis.formats import FORMATS
from tamis.image.hashing import HashKind
from tamis.operators import Gather, Operator, Sink, Source
from tamis.parameters import plural
from tamis.pipeline import Pipeline
from tamis.registry import find_operator
from tamis.report import Report
from tamis.store import make_scratch

if TYPE_CHECKING:
    from tamis.text.statistics import Description

Paths: TypeAlias = str | Path | Sequence[str | Path]


def reader_and_writer(
    paths: Paths,
    output: str | Path,
    filetype: str | None,
    *,
    output_filetype: str | None = None,
    blocksize: int | str | None = None,
    steps: Sequence[Operator] = (),
) -> tuple[Source, Sink]:
    """A reader of these files for the steps that follow, and a writer of the same format and compression, chosen as
    `tamis run --input` does."""
    from tamis.recipes.paths import reader_step, writer_step

    for given in (filetype, output_filetype):
        if given is not None and given not in FORMATS:
            raise ParameterError(
                f"there is no format {given!r}", hint=did_you_mean(given, FORMATS) or f"one of {', '.join(FORMATS)}"
            )
    files = [str(path) for path in ([paths] if isinstance(paths, (str, Path)) else paths)]
    if filetype is None:
        reader = reader_step(files, None, [(each.name, {"column": getattr(each, "column", None)}) for each in steps])
    else:
        reader = (FORMATS[filetype].reader, {"file_paths": files[0] if len(files) == 1 else files})
    form = FORMATS[output_filetype] if output_filetype is not None else None
    writer = (
        writer_step(str(output), None, reader)
        if form is None or reader[0] == form.reader
        else (form.writer or f"{form.name}_writer", {"path": str(output)})
    )
    source: Any = find_operator(reader[0])
    sink: Any = find_operator(writer[0])
    return source(**reader[1], blocksize=blocksize), sink(**writer[1])


@dataclass
class Deduplication:
    """The parameters and methods that deduplication workflows share."""

    input_path: Paths
    output_path: str | Path
    input_filetype: Literal["jsonl", "parquet", "csv", "arrow", "tar", "image", "audio", "video"] | None = None
    input_blocksize: int | str | None = None
    text_field: str = "text"
    perform_removal: bool = True
    output_filetype: Literal["jsonl", "parquet", "csv", "arrow", "tar", "image", "audio", "video"] | None = None
    keep: Keep = "first"
    by: str | None = None
    prefer: Sequence[str] | None = None
    prefer_column: str | None = None
    across_sources: bool = False
    against: str | None = None
    update: bool = False

    def step(self) -> Gather:
        raise NotImplementedError

    def _policy(self) -> dict[str, Any]:
        """The parameters of steps that say which rows are kept, other than `keep`."""
        names = ("by", "prefer", "prefer_column", "across_sources", "against", "update")
        return {name: getattr(self, name) for name in names}

    def _check_keep(self, what: str) -> None:
        """Raise if `keep` is given where `which_to_keep` has its place."""
        if self.keep != "first":
            raise ParameterError(
                "`keep` has no effect here", hint=f'which_to_keep="{self.keep}" chooses the {what} that are kept'
            )

    def steps(self) -> list[Operator]:
        """The steps between the reader and the writer."""
        return [self.step()]

    def pipeline(self) -> Pipeline:
        """The pipeline that `run` runs: a reader, the deduplication, and a writer of the same format."""
        steps = self.steps()
        reader, writer = reader_and_writer(
            self.input_path,
            self.output_path,
            self.input_filetype,
            output_filetype=self.output_filetype,
            blocksize=self.input_blocksize,
            steps=steps,
        )
        return Pipeline(reader, *steps, writer if self.perform_removal else GroupsOnly(str(self.output_path)))

    def run(self, **options: Any) -> Report:
        """Deduplicate; takes the options of `Pipeline.run`.

        Without `perform_removal` no rows are written, only the groups of duplicates, to `.tamis/groups/` in the output folder.
        """
        return self.pipeline().run(**options)


@explain_keywords
@dataclass
class ExactDeduplicationWorkflow(Deduplication):
    """Remove exact duplicates from a folder of files.

    >>> ExactDeduplicationWorkflow(input_path="in/", output_path="out/", input_blocksize="1GB").text_field
    'text'
    """

    ignore_case: bool = False
    ignore_whitespace: bool = False
    unicode: Literal["NFC", "NFKC"] | None = None
    unit: Literal["document", "paragraph", "line"] = "document"
    max_removed: float = 0.5

    def step(self) -> ExactDedup:
        return ExactDedup(
            column=self.text_field,
            unit=self.unit,
            ignore_case=self.ignore_case,
            ignore_whitespace=self.ignore_whitespace,
            unicode=self.unicode,
            keep=self.keep,
            max_removed=self.max_removed,
            **self._policy(),
        )


@explain_keywords
@dataclass
class FuzzyDeduplicationWorkflow(Deduplication):
    """Remove near-duplicates from a folder of files.

    `char_ngrams`, `num_bands` and `minhashes_per_band` are NeMo Curator's names; `char_ngrams` chooses n-grams of characters.

    >>> FuzzyDeduplicationWorkflow(input_path="in/", output_path="out/", char_ngrams=24).step().unit
    'character'
    """

    settings: Literal["fineweb", "dolma3", "nemo"] = "fineweb"
    threshold: float = 0.8
    verify: Literal["jaccard", "signature", "none"] = "jaccard"
    char_ngrams: int | None = None
    word_ngrams: int | None = None
    num_bands: int | None = None
    minhashes_per_band: int | None = None
    num_hashes: int | None = None
    seed: int = 1
    reuse: str | None = None

    def step(self) -> FuzzyDedup:
        if self.char_ngrams is not None and self.word_ngrams is not None:
            raise ParameterError("give `char_ngrams` or `word_ngrams`, not both")
        return FuzzyDedup(
            column=self.text_field,
            settings="nemo" if self.char_ngrams is not None else self.settings,
            threshold=self.threshold,
            verify=self.verify,
            ngram=self.char_ngrams or self.word_ngrams,
            unit="character" if self.char_ngrams is not None else "word" if self.word_ngrams is not None else None,
            num_bands=self.num_bands,
            hashes_per_band=self.minhashes_per_band,
            num_hashes=self.num_hashes,
            seed=self.seed,
            keep=self.keep,
            reuse=self.reuse,
            **self._policy(),
        )

    def rethreshold(self, threshold: float, output_path: str | Path, **options: Any) -> Report:
        """Deduplicate with another threshold into another folder, with the hashes of this workflow's output.

        The result is the same as that of a run with this threshold. The input is read again, but not hashed.
        """
        return replace(self, threshold=threshold, output_path=output_path, reuse=str(self.output_path)).run(**options)


@dataclass
class _SpanDeduplication(Deduplication):
    """The parameters that deduplication inside documents shares: the first occurrence in source order is kept."""

    def column(self) -> str:
        """The column of text, after checking that no keep policy is given."""
        given = {"keep": self.keep != "first", "across_sources": self.across_sources, "update": self.update}
        given |= {name: getattr(self, name) is not None for name in ("by", "prefer", "prefer_column", "against")}
        for name in (name for name, is_given in given.items() if is_given):
            raise ParameterError(
                f"`{name}` has no effect here",
                hint="repeats inside documents are cut, and the first occurrence is kept",
            )
        return self.text_field


@dataclass
class SubstringDeduplicationWorkflow(_SpanDeduplication):
    """Cut spans of text that occur before out of the documents of a folder of files.

    >>> SubstringDeduplicationWorkflow(input_path="in/", output_path="out/", min_bytes=500).step().min_bytes
    500
    """

    min_bytes: int = 200
    which_to_keep: Literal["first", "none"] = "first"
    cut: Literal["character", "word"] = "character"
    max_removed: float = 1.0

    def step(self) -> SubstringDedup:
        return SubstringDedup(self.column(), self.min_bytes, self.which_to_keep, self.cut, self.max_removed)


@dataclass
class SentenceDeduplicationWorkflow(_SpanDeduplication):
    """Cut spans of consecutive sentences that occur before out of the documents of a folder of files.

    >>> SentenceDeduplicationWorkflow(input_path="in/", output_path="out/").step().num_sentences
    3
    """

    num_sentences: int = 3
    unit: Literal["sentence", "line"] = "sentence"
    simplify: bool = True
    min_words: int = 50
    min_sentences: int = 3

    def step(self) -> SentenceDedup:
        options = (self.num_sentences, self.unit, self.simplify, self.min_words, self.min_sentences)
        return SentenceDedup(self.column(), *options)


@dataclass
class ParagraphDeduplicationWorkflow(_SpanDeduplication):
    """Cut paragraphs most of whose n-grams occur before out of the documents of a folder of files.

    >>> ParagraphDeduplicationWorkflow(input_path="in/", output_path="out/", ngram=8).step().ngram
    8
    """

    ngram: int = 13
    threshold: float = 0.8
    stride: int = 1
    unit: Literal["line", "paragraph"] = "line"
    min_words: int = 5
    ignore_case: bool = True
    max_removed: float = 1.0

    def step(self) -> ParagraphDedup:
        options = (self.stride, self.unit, self.min_words, self.ignore_case, self.max_removed)
        return ParagraphDedup(self.column(), self.ngram, self.threshold, *options)


@dataclass
class ImageDeduplicationWorkflow(Deduplication):
    """Remove images that look alike from a folder of images, of WebDataset archives, or of tables with a column of images.

    >>> ImageDeduplicationWorkflow(input_path="in/", output_path="out/", hash="pdq").step().most_bits
    31
    """

    image_field: str = "image"
    hash: HashKind = "phash"
    radius: int | None = None
    exact: bool = False
    min_quality: int = 10
    which_to_keep: ImageKeep = "largest"

    def step(self) -> ImageDedup:
        self._check_keep("images")
        return ImageDedup(
            column=self.image_field,
            hash=self.hash,
            radius=self.radius,
            exact=self.exact,
            min_quality=self.min_quality,
            keep=self.which_to_keep,
            **self._policy(),
        )


@dataclass
class _SequenceDeduplication(Deduplication):
    """The parameters that deduplication of sounds and of videos share."""

    threshold: float = 0.8
    max_error: float | None = None
    min_seconds: float = 1.0
    which_to_keep: SequenceKeep = "longest"

    def parameters(self) -> dict[str, Any]:
        self._check_keep("rows")
        own = {"threshold": self.threshold, "min_seconds": self.min_seconds, "keep": self.which_to_keep}
        errors = {} if self.max_error is None else {"max_error": self.max_error}
        return own | errors | self._policy()


@dataclass
class AudioDeduplicationWorkflow(_SequenceDeduplication):
    """Remove sounds that repeat others from a folder of sounds, of WebDataset archives, or of tables with a column of sounds.

    >>> AudioDeduplicationWorkflow(input_path="in/", output_path="out/", threshold=0.9).step().threshold
    0.9
    """

    audio_field: str = "audio"
    min_seconds: float = 1.5

    def step(self) -> AudioDedup:
        return AudioDedup(column=self.audio_field, **self.parameters())


@dataclass
class VideoDeduplicationWorkflow(_SequenceDeduplication):
    """Remove videos that repeat others from a folder of videos, of WebDataset archives, or of tables with a column of videos.

    >>> VideoDeduplicationWorkflow(input_path="in/", output_path="out/").step().keep
    'longest'
    """

    video_field: str = "video"

    def step(self) -> VideoDedup:
        return VideoDedup(column=self.video_field, **self.parameters())


@explain_keywords
@dataclass
class SemanticDeduplicationWorkflow(Deduplication):
    """Remove rows with similar embeddings from a folder of files, which have the embeddings in a column.

    `embedding_field`, `n_clusters`, `which_to_keep`, `eps`, `random_state`, `max_iter`, `tol`, `init` and `oversampling_factor`
    are NeMo Curator's names. `eps` is 1 - `threshold`; without either, the threshold is 0.9. Embeddings are scaled to length 1,
    so both values of `distance_metric` give the same order. Unlike NeMo Curator, rows of neighbouring clusters are compared
    too.

    >>> SemanticDeduplicationWorkflow(input_path="in/", output_path="out/", n_clusters=100, eps=0.05).step().num_clusters
    100
    """

    embedding_field: str = "embedding"
    n_clusters: int | Literal["auto"] = "auto"
    which_to_keep: SemanticKeep = "hard"
    threshold: float | None = None
    eps: float | None = None
    distance_metric: Literal["cosine", "l2"] = "cosine"
    random_state: int = 42
    max_iter: int = 20
    tol: float = 1e-4
    init: Literal["k-means||"] = "k-means||"
    oversampling_factor: float = 2.0
    neighbours: int | None = 16
    device: Literal["auto", "cpu", "gpu"] = "auto"

    def step(self) -> SemanticDedup:
        self._check_keep("rows")
        return SemanticDedup(
            column=self.embedding_field,
            threshold=self.threshold,
            eps=self.eps,
            num_clusters=self.n_clusters,
            neighbours=self.neighbours,
            keep=self.which_to_keep,
            max_iterations=self.max_iter,
            min_improvement=self.tol,
            oversampling=self.oversampling_factor,
            seed=self.random_state,
            device=self.device,
            **self._policy(),
        )


@explain_keywords
@dataclass
class TextSemanticDeduplicationWorkflow(SemanticDeduplicationWorkflow):
    """Embed the texts of a folder of files, and remove those with similar embeddings.

    `model_identifier` is a model of `tamis.text.Embed`. The embeddings are written with the rows if `keep_embeddings` is set.

    >>> TextSemanticDeduplicationWorkflow(input_path="in/", output_path="out/", eps=0.01).step().least_similarity
    0.99
    """

    model_identifier: str = "minilm"
    embedding_max_seq_length: int | None = None
    embedding_max_chars: int | None = None
    keep_embeddings: bool = False

    def steps(self) -> list[Operator]:
        from tamis.fields import DropFields
        from tamis.text.embed import Embed

        embed = Embed(
            self.model_identifier,
            column=self.text_field,
            output=self.embedding_field,
            max_tokens=self.embedding_max_seq_length,
            max_chars=self.embedding_max_chars,
            device=self.device,
        )
        found: list[Operator] = [embed, self.step()]
        return found if self.keep_embeddings else [*found, DropFields([self.embedding_field])]


def describe(
    paths: Paths,
    *,
    column: str = "text",
    language: bool | None = None,
    tokenizer: str | None = None,
    by: str | None = None,
    url_column: str = "url",
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Description:
    """Describe the texts of files: sizes, languages, scripts, duplicates, missing values, domains.

    `tokenizer` is a file as for `TokenCount`; without it tokens are not counted. `by` repeats the sizes for each value of a
    column, or with "domain" for each domain of the URLs in `url_column`. Takes the options of `Pipeline.run`.

    `language=None` counts languages if the model is on this machine, and notes it if not. Needs about 200 bytes of disk
    per document during the run.
    """
    from tamis.looking.corpus import DOMAIN, columns_of, groups_of, total_tokens
    from tamis.models.fasttext import find_model
    from tamis.sinks.tables import ArrowWriter
    from tamis.sources.tables import reader_for
    from tamis.text.language import LID
    from tamis.text.statistics import TextStatistics, fold
    from tamis.text.tokens import TokenCount

    notes = []
    if language is None:
        try:
            find_model(LID)
            language = True
        except TamisError as error:
            language = False
            notes.append(f"languages were not counted: {error.message}; {error.hint}")
    files = list(paths) if not isinstance(paths, (str, Path)) else paths
    given = {"storage_options": storage_options} if storage_options else {}
    key = url_column if by == DOMAIN else by
    reader = reader_for(files, fields=list(dict.fromkeys([column, *([key] if key else [])])), **given)
    scratch = options.get("scratch")
    parent = make_scratch(scratch) if scratch is not None else None
    with tempfile.TemporaryDirectory(prefix="tamis-", dir=parent) as folder:
        kept = ["statistics", *(["tokens"] if tokenizer else []), *([key] if key else [])]
        count = [TokenCount(tokenizer, column=column, score_only=True, min_tokens=0)] if tokenizer else []
        steps = [TextStatistics(column=column, language=language), *count, ArrowWriter(folder, fields=kept)]
        pipeline = Pipeline(reader, *steps)
        pipeline.check()  # raises before the files are read
        nulls, domains = columns_of(files, url_column, storage_options)
        try:
            report = pipeline.run(**options)
        except Interrupted as error:
            raise Interrupted("stopped before all rows were read", hint="the next run starts over") from error
        if report.failed:
            verb = "is" if report.failed == 1 else "are"
            notes.append(f"{plural(report.failed, 'row')} could not be read and {verb} not included")
        made = sorted(Path(folder).glob("*.arrow"))
        return replace(
            fold(made, notes),
            num_tokens=total_tokens(made) if tokenizer else None,
            nulls=nulls,
            domains=domains,
            by=by or "",
            groups=groups_of(made, key, domain=by == DOMAIN) if key else {},
        )


def __getattr__(name: str) -> Any:
    raise unknown_name("tamis.workflows", name)
