# Written by scripts/make_names.py.
from tamis.text.ask import Ask as Ask
from tamis.text.ask import AskRows as AskRows
from tamis.text.ask import AskScore as AskScore
from tamis.text.blocklist import UrlBlocklist as UrlBlocklist
from tamis.text.classifiers import ContentTypeClassifier as ContentTypeClassifier
from tamis.text.classifiers import DomainClassifier as DomainClassifier
from tamis.text.classifiers import FineMathClassifier as FineMathClassifier
from tamis.text.classifiers import FineWebEduClassifier as FineWebEduClassifier
from tamis.text.classifiers import FineWebMixtralEduClassifier as FineWebMixtralEduClassifier
from tamis.text.classifiers import FineWebNemotronEduClassifier as FineWebNemotronEduClassifier
from tamis.text.classifiers import MultilingualDomainClassifier as MultilingualDomainClassifier
from tamis.text.classifiers import PromptTaskComplexityClassifier as PromptTaskComplexityClassifier
from tamis.text.classifiers import QualityClassifier as QualityClassifier
from tamis.text.classify import FastTextLabel as FastTextLabel
from tamis.text.classify import FastTextQuality as FastTextQuality
from tamis.text.classify import FastTextScore as FastTextScore
from tamis.text.classify import LinearClassifier as LinearClassifier
from tamis.text.classify import Perplexity as Perplexity
from tamis.text.clean import BoilerplateRemoval as BoilerplateRemoval
from tamis.text.clean import LineRemoval as LineRemoval
from tamis.text.clean import MarkdownRemoval as MarkdownRemoval
from tamis.text.clean import Newlines as Newlines
from tamis.text.clean import QuotationRemoval as QuotationRemoval
from tamis.text.clean import RegexReplacement as RegexReplacement
from tamis.text.clean import Slice as Slice
from tamis.text.clean import UnicodeRepair as UnicodeRepair
from tamis.text.clean import UrlRemoval as UrlRemoval
from tamis.text.clean import Whitespace as Whitespace
from tamis.text.code import Alpha as Alpha
from tamis.text.code import CodeLineLength as CodeLineLength
from tamis.text.code import GeneralCommentToCode as GeneralCommentToCode
from tamis.text.code import HtmlBoilerplate as HtmlBoilerplate
from tamis.text.code import NumberOfLinesOfCode as NumberOfLinesOfCode
from tamis.text.code import PerExtension as PerExtension
from tamis.text.code import PythonCommentToCode as PythonCommentToCode
from tamis.text.code import XmlHeader as XmlHeader
from tamis.text.decontaminate import Decontaminate as Decontaminate
from tamis.text.documents import DocumentJoin as DocumentJoin
from tamis.text.documents import DocumentSplit as DocumentSplit
from tamis.text.embed import Embed as Embed
from tamis.text.embedding_classifier import EmbeddingClassifier as EmbeddingClassifier
from tamis.text.generate import Generate as Generate
from tamis.text.generate import NeuralPerplexity as NeuralPerplexity
from tamis.text.language import Language as Language
from tamis.text.licenses import License as License
from tamis.text.licenses import LicenseDetect as LicenseDetect
from tamis.text.licenses import LicenseNoticeRemoval as LicenseNoticeRemoval
from tamis.text.lines import AllDressedLines as AllDressedLines
from tamis.text.lines import C4Lines as C4Lines
from tamis.text.lines import RemovalBudget as RemovalBudget
from tamis.text.lists import BadWords as BadWords
from tamis.text.lists import BoilerPlate as BoilerPlate
from tamis.text.lists import FlaggedWords as FlaggedWords
from tamis.text.lists import Histogram as Histogram
from tamis.text.lists import Regex as Regex
from tamis.text.lists import StopWords as StopWords
from tamis.text.lists import Substring as Substring
from tamis.text.neural import Classifier as Classifier
from tamis.text.neural import Tokenize as Tokenize
from tamis.text.pii import PersonalDataMask as PersonalDataMask
from tamis.text.pii import PersonalDataSpans as PersonalDataSpans
from tamis.text.quality import BulletPoints as BulletPoints
from tamis.text.quality import CharacterCount as CharacterCount
from tamis.text.quality import CommonEnglishWords as CommonEnglishWords
from tamis.text.quality import Ellipsis as Ellipsis
from tamis.text.quality import LongestWord as LongestWord
from tamis.text.quality import MeanWordLength as MeanWordLength
from tamis.text.quality import NonAlphaNumeric as NonAlphaNumeric
from tamis.text.quality import Numbers as Numbers
from tamis.text.quality import Parentheses as Parentheses
from tamis.text.quality import PornographicUrls as PornographicUrls
from tamis.text.quality import Punctuation as Punctuation
from tamis.text.quality import SymbolsToWords as SymbolsToWords
from tamis.text.quality import Urls as Urls
from tamis.text.quality import WhiteSpace as WhiteSpace
from tamis.text.quality import WordCount as WordCount
from tamis.text.quality import WordsWithoutAlphabets as WordsWithoutAlphabets
from tamis.text.repetition import CharacterRepetition as CharacterRepetition
from tamis.text.repetition import GopherRepetition as GopherRepetition
from tamis.text.repetition import RepeatedLines as RepeatedLines
from tamis.text.repetition import RepeatedLinesByChars as RepeatedLinesByChars
from tamis.text.repetition import RepeatedParagraphs as RepeatedParagraphs
from tamis.text.repetition import RepeatedParagraphsByChars as RepeatedParagraphsByChars
from tamis.text.repetition import RepeatingDuplicateNGrams as RepeatingDuplicateNGrams
from tamis.text.repetition import RepeatingTopNGrams as RepeatingTopNGrams
from tamis.text.repetition import WordRepetition as WordRepetition
from tamis.text.safety import AegisClassifier as AegisClassifier
from tamis.text.safety import InstructionDataGuardClassifier as InstructionDataGuardClassifier
from tamis.text.secrets import SecretMask as SecretMask
from tamis.text.secrets import Secrets as Secrets
from tamis.text.statistics import TextStatistics as TextStatistics
from tamis.text.token_ids import TokenIds as TokenIds
from tamis.text.tokens import TokenCount as TokenCount
from tamis.text.tokens import TokenizerFertility as TokenizerFertility
from tamis.text.toxicity import Toxicity as Toxicity
from tamis.text.web import C4Paragraphs as C4Paragraphs
from tamis.text.web import C4Quality as C4Quality
from tamis.text.web import FineWebQuality as FineWebQuality
from tamis.text.web import GopherQuality as GopherQuality
from tamis.text.web import MadladSentences as MadladSentences

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
    "CharacterRepetition",
    "Classifier",
    "CodeLineLength",
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
    "FlaggedWords",
    "GeneralCommentToCode",
    "Generate",
    "GopherQuality",
    "GopherRepetition",
    "Histogram",
    "HtmlBoilerplate",
    "InstructionDataGuardClassifier",
    "Language",
    "License",
    "LicenseDetect",
    "LicenseNoticeRemoval",
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
    "PersonalDataSpans",
    "PornographicUrls",
    "PromptTaskComplexityClassifier",
    "Punctuation",
    "PythonCommentToCode",
    "QualityClassifier",
    "QuotationRemoval",
    "Regex",
    "RegexReplacement",
    "RemovalBudget",
    "RepeatedLines",
    "RepeatedLinesByChars",
    "RepeatedParagraphs",
    "RepeatedParagraphsByChars",
    "RepeatingDuplicateNGrams",
    "RepeatingTopNGrams",
    "SecretMask",
    "Secrets",
    "Slice",
    "StopWords",
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
    "WordRepetition",
    "WordsWithoutAlphabets",
    "XmlHeader",
]
