# Written by scripts/make_names.py.
from tamis.web.documents import DocumentExtract as DocumentExtract
from tamis.web.documents import LatexExtract as LatexExtract
from tamis.web.documents import PdfExtract as PdfExtract
from tamis.web.extract import HtmlExtract as HtmlExtract
from tamis.web.wiki import WikitextExtract as WikitextExtract

__all__ = [
    "DocumentExtract",
    "HtmlExtract",
    "LatexExtract",
    "PdfExtract",
    "WikitextExtract",
]
