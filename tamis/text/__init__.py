"""Operators on text. Names are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tamis.curator_names import unknown_name

if TYPE_CHECKING:
    from tamis.text.ask import Ask, AskRows, AskScore
    from tamis.text.blocklist import UrlBlocklist
    from tamis.text.classifiers import (
        ContentTypeClassifier,
        DomainClassifier,
        FineMathClassifier,
        FineWebEduClassifier,
        FineWebMixtralEduClassifier,
        FineWebNemotronEduClassifier,
        MultilingualDomainClassifier,
        PromptTaskComplexityClassifier,
        QualityClassifier,
    )
    from tamis.text.classify import FastTextLabel, FastTextQuality, FastTextScore, LinearClassifier, Perplexity
    from tamis.text.clean import (
        BoilerplateRemoval,
        LineRemoval,
        MarkdownRemoval,
        Newlines,
        QuotationRemoval,
        Slice,
        UnicodeRepair,
        UrlRemoval,
        Whitespace,
    )
    from tamis.text.code import (
        Alpha,
        GeneralCommentToCode,
        HtmlBoilerplate,
        NumberOfLinesOfCode,
        PerExtension,
        PythonCommentToCode,
        XmlHeader,
    )
    from tamis.text.decontaminate import Decontaminate
    from tamis.text.documents import DocumentJoin, DocumentSplit
    from tamis.text.embed import Embed
    from tamis.text.embedding_classifier import EmbeddingClassifier
    from tamis.text.generate import Generate, NeuralPerplexity
    from tamis.text.language import Language
    from tamis.text.lines import AllDressedLines, C4Lines, RemovalBudget
    from tamis.text.lists import BadWords, BoilerPlate, Histogram, Regex, Substring
    from tamis.text.neural import Classifier, Tokenize
    from tamis.text.pii import PersonalDataMask
    from tamis.text.quality import (
        BulletPoints,
        CharacterCount,
        CommonEnglishWords,
        Ellipsis,
        LongestWord,
        MeanWordLength,
        NonAlphaNumeric,
        Numbers,
        Parentheses,
        PornographicUrls,
        Punctuation,
        SymbolsToWords,
        Urls,
        WhiteSpace,
        WordCount,
        WordsWithoutAlphabets,
    )
    from tamis.text.repetition import (
        GopherRepetition,
        RepeatedLines,
        RepeatedLinesByChars,
        RepeatedParagraphs,
        RepeatedParagraphsByChars,
        RepeatingDuplicateNGrams,
        RepeatingTopNGrams,
    )
    from tamis.text.safety import AegisClassifier, InstructionDataGuardClassifier
    from tamis.text.statistics import TextStatistics
    from tamis.text.token_ids import TokenIds
    from tamis.text.tokens import TokenCount, TokenizerFertility
    from tamis.text.toxicity import Toxicity
    from tamis.text.web import C4Paragraphs, C4Quality, FineWebQuality, GopherQuality, MadladSentences

_MODULES = {
    "ask": ("Ask", "AskRows", "AskScore"),
    "blocklist": ("UrlBlocklist",),
    "classifiers": (
        "ContentTypeClassifier", "DomainClassifier", "FineMathClassifier", "FineWebEduClassifier",
        "FineWebMixtralEduClassifier", "FineWebNemotronEduClassifier", "MultilingualDomainClassifier",
        "PromptTaskComplexityClassifier", "QualityClassifier",
    ),
    "classify": ("FastTextLabel", "FastTextQuality", "FastTextScore", "LinearClassifier", "Perplexity"),
    "clean": (
        "BoilerplateRemoval", "LineRemoval", "MarkdownRemoval", "Newlines", "QuotationRemoval", "Slice",
        "UnicodeRepair", "UrlRemoval", "Whitespace",
    ),
    "code": (
        "Alpha", "GeneralCommentToCode", "HtmlBoilerplate", "NumberOfLinesOfCode", "PerExtension",
        "PythonCommentToCode", "XmlHeader",
    ),
    "decontaminate": ("Decontaminate",),
    "documents": ("DocumentJoin", "DocumentSplit"),
    "embed": ("Embed",),
    "generate": ("Generate", "NeuralPerplexity"),
    "embedding_classifier": ("EmbeddingClassifier",),
    "language": ("Language",),
    "lines": ("AllDressedLines", "C4Lines", "RemovalBudget"),
    "lists": ("BadWords", "BoilerPlate", "Histogram", "Regex", "Substring"),
    "neural": ("Classifier", "Tokenize"),
    "pii": ("PersonalDataMask",),
    "quality": (
        "BulletPoints", "CharacterCount", "CommonEnglishWords", "Ellipsis", "LongestWord", "MeanWordLength", "NonAlphaNumeric",
        "Numbers", "Parentheses", "PornographicUrls", "Punctuation", "SymbolsToWords", "Urls", "WhiteSpace",
        "WordCount", "WordsWithoutAlphabets",
    ),
    "repetition": (
        "GopherRepetition", "RepeatedLines", "RepeatedLinesByChars", "RepeatedParagraphs",
        "RepeatedParagraphsByChars", "RepeatingDuplicateNGrams", "RepeatingTopNGrams",
    ),
    "safety": ("AegisClassifier", "InstructionDataGuardClassifier"),
    "statistics": ("TextStatistics",),
    "token_ids": ("TokenIds",),
    "tokens": ("TokenCount", "TokenizerFertility"),
    "toxicity": ("Toxicity",),
    "web": ("C4Paragraphs", "C4Quality", "FineWebQuality", "GopherQuality", "MadladSentences"),
}  # fmt: skip
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AegisClassifier",
    "AllDressedLines",
    "Alpha",
    "Ask",
    "AskRows",
    "AskScore",
    "BadWords",
    "BoilerPlate",
    "BoilerplateRemoval",
    "BulletPoints",
    "C4Lines",
    "C4Paragraphs",
    "C4Quality",
    "CharacterCount",
    "Classifier",
    "CommonEnglishWords",
    "ContentTypeClassifier",
    "Decontaminate",
    "DocumentJoin",
    "DocumentSplit",
    "DomainClassifier",
    "Ellipsis",
    "Embed",
    "EmbeddingClassifier",
    "FastTextLabel",
    "FastTextQuality",
    "FastTextScore",
    "FineMathClassifier",
    "FineWebEduClassifier",
    "FineWebMixtralEduClassifier",
    "FineWebNemotronEduClassifier",
    "FineWebQuality",
    "GeneralCommentToCode",
    "Generate",
    "GopherQuality",
    "GopherRepetition",
    "Histogram",
    "HtmlBoilerplate",
    "InstructionDataGuardClassifier",
    "Language",
    "LineRemoval",
    "LinearClassifier",
    "LongestWord",
    "MadladSentences",
    "MarkdownRemoval",
    "MeanWordLength",
    "MultilingualDomainClassifier",
    "NeuralPerplexity",
    "Newlines",
    "NonAlphaNumeric",
    "NumberOfLinesOfCode",
    "Numbers",
    "Parentheses",
    "PerExtension",
    "Perplexity",
    "PersonalDataMask",
    "PornographicUrls",
    "PromptTaskComplexityClassifier",
    "Punctuation",
    "PythonCommentToCode",
    "QualityClassifier",
    "QuotationRemoval",
    "Regex",
    "RemovalBudget",
    "RepeatedLines",
    "RepeatedLinesByChars",
    "RepeatedParagraphs",
    "RepeatedParagraphsByChars",
    "RepeatingDuplicateNGrams",
    "RepeatingTopNGrams",
    "Slice",
    "Substring",
    "SymbolsToWords",
    "TextStatistics",
    "TokenCount",
    "TokenIds",
    "Tokenize",
    "TokenizerFertility",
    "Toxicity",
    "UnicodeRepair",
    "UrlBlocklist",
    "UrlRemoval",
    "Urls",
    "WhiteSpace",
    "Whitespace",
    "WordCount",
    "WordsWithoutAlphabets",
    "XmlHeader",
]

if not TYPE_CHECKING:  # a type checker would accept every misspelt name

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise unknown_name("tamis.text", name)
        return getattr(import_module(f"tamis.text.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
