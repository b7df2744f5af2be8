# Written by scripts/make_names.py.
from tamis.dedup.exact import ExactDedup as ExactDedup
from tamis.dedup.fuzzy import FuzzyDedup as FuzzyDedup
from tamis.dedup.groups import Groups as Groups
from tamis.dedup.images import ImageDedup as ImageDedup
from tamis.dedup.index import Index as Index
from tamis.dedup.paragraphs import ParagraphDedup as ParagraphDedup
from tamis.dedup.selection import Diverse as Diverse
from tamis.dedup.selection import Outliers as Outliers
from tamis.dedup.semantic import SemanticDedup as SemanticDedup
from tamis.dedup.sentences import SentenceDedup as SentenceDedup
from tamis.dedup.sounds import AudioDedup as AudioDedup
from tamis.dedup.substrings import SubstringDedup as SubstringDedup
from tamis.dedup.urls import UrlDedup as UrlDedup
from tamis.dedup.videos import VideoDedup as VideoDedup

__all__ = [
    "AudioDedup",
    "Diverse",
    "ExactDedup",
    "FuzzyDedup",
    "Groups",
    "ImageDedup",
    "Index",
    "Outliers",
    "ParagraphDedup",
    "SemanticDedup",
    "SentenceDedup",
    "SubstringDedup",
    "UrlDedup",
    "VideoDedup",
]
