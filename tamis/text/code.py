"""Filters for source code, after StarCoder (Li et al. 2023) and NeMo Curator.

Comments are found by scanners that know the quotes and comment marks of a language and nothing else, so they accept files of
any version, including broken ones. A missing or empty file scores 0.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column, Facts
from tamis.errors import ParameterError, did_you_mean
from tamis.kernels.code import measure_comments, measure_html, measure_python
from tamis.operators import Filter, Rule, Scores, at_least, at_most, between, operator
from tamis.text.lists import check_files, identify_files
from tamis.text.quality import text_facts
from tamis.text.segment import buffers, ratio

_C = ("//", "", "/*", "*/", "\"'", "`")
_SHELL = ("#", "", "", "", "\"'", "")
_SQL = ("--", "", "/*", "*/", "\"'", "")
_MARKUP = ("", "", "<!--", "-->", "", "")
SYNTAX: dict[str, tuple[str, str, str, str, str, str]] = {
    **dict.fromkeys(
        ("c", "c++", "c#", "java", "javascript", "typescript", "go", "swift", "kotlin", "scala", "dart"), _C
    ),
    **dict.fromkeys(("rust", "verilog"), ("//", "", "/*", "*/", '"', "")),
    **dict.fromkeys(("shell", "ruby", "perl", "r", "yaml", "toml", "make", "dockerfile", "cmake", "elixir"), _SHELL),
    **dict.fromkeys(("html", "xml", "markdown"), _MARKUP),
    "php": ("//", "#", "/*", "*/", "\"'", ""),
    "css": ("", "", "/*", "*/", "\"'", ""),
    "sql": _SQL,
    "haskell": ("--", "", "{-", "-}", '"', ""),
    "lua": ("--", "", "--[[", "]]", "\"'", ""),
    "ada": ("--", "", "", "", '"', ""),
    "lisp": (";", "", "#|", "|#", '"', ""),
    "tex": ("%", "", "", "", "", ""),
    "matlab": ("%", "", "%{", "%}", '"', ""),
    "powershell": ("#", "", "<#", "#>", "\"'", ""),
    "fortran": ("!", "", "", "", "\"'", ""),
    "julia": ("#", "", "#=", "=#", '"', ""),
}
"""For each language: mark of a line comment, another one, start and end of a block comment, quotes whose strings end with
the line, quotes whose strings may span lines."""

MIME_TYPES = {
    "text/x-c": "c", "text/x-c++": "c++", "text/x-java": "java", "text/x-java-source": "java",
    "text/x-javascript": "javascript", "application/javascript": "javascript", "text/x-go": "go",
    "text/x-golang": "go", "text/x-ruby": "ruby", "text/x-shellscript": "shell", "text/html": "html", "text/xml": "xml",
}  # fmt: skip
"""The MIME types that NeMo Curator's comment parser accepts."""


def python_comments(column: Column) -> Facts:
    """Characters in comments and docstrings of Python files, and characters; white space does not count."""
    data, offsets = buffers(column)
    out = np.zeros((2, len(column)), np.int64)
    measure_python(data, offsets, out)
    return dict(zip(("comment_chars", "chars"), out, strict=True))


@operator(reads="text", writes="python_comments", version=2)
class PythonCommentToCode(Filter):
    """Keep Python files with comments and docstrings, but not files of little else.

    Characters in comments and docstrings / characters, 0.01 to 0.85 as in NeMo Curator. A docstring is any string that
    is a statement of its own; marks and quotes count, white space does not, so a file of comments only scores 1. A file that
    does not parse is measured too; NeMo Curator gives it 0.

    >>> PythonCommentToCode().score(Batch.from_rows([{"text": "# why\\nx = 1"}]))["python_comments"].round(2).tolist()
    [0.57]
    """

    min_python_comments: float = 0.01
    max_python_comments: float = 0.85
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        found = batch.facts("text", python_comments)
        return {"python_comments": ratio(found["comment_chars"], found["chars"])}

    def rules(self) -> list[Rule]:
        return [between("python_comments", self.min_python_comments, self.max_python_comments)]


@operator(reads="text", writes="comments", version=2)
class GeneralCommentToCode(Filter):
    """Keep source files with comments, but not files of little else.

    Characters in comments / characters, 0.01 to 0.85 as in NeMo Curator. Comment marks count and white space does not,
    so a file of comments only scores 1. `language` is a name in `SYNTAX` or a MIME type ("text/x-java").

    >>> GeneralCommentToCode("c").score(Batch.from_rows([{"text": "f(); // ok"}]))["comments"].round(2).tolist()
    [0.5]
    """

    language: str
    min_comments: float = 0.01
    max_comments: float = 0.85
    column: str = "text"

    def __post_init__(self) -> None:
        super().__post_init__()
        if MIME_TYPES.get(self.language, self.language) not in SYNTAX:
            hint = did_you_mean(self.language, SYNTAX) or f"known: {', '.join(sorted(SYNTAX))}"
            raise ParameterError(f"`{self.name}` does not know the language `{self.language}`", hint=hint)

    def score(self, batch: Batch) -> Scores:
        line, other, opening, closing, short, long = SYNTAX[MIME_TYPES.get(self.language, self.language)]
        quotes = np.zeros(256, np.uint8)
        quotes[list(short.encode())] = 1
        quotes[list(long.encode())] = 2
        data, offsets = buffers(batch["text"])
        out = np.zeros((2, len(batch)), np.int64)
        markers = _bytes(line), _bytes(other), _bytes(opening), _bytes(closing)
        measure_comments(data, offsets, markers[0], markers[1], markers[2], markers[3], quotes, out)
        return {"comments": ratio(out[0], out[1])}

    def rules(self) -> list[Rule]:
        return [between("comments", self.min_comments, self.max_comments)]


def _bytes(text: str) -> np.ndarray:
    return np.array(list(text.encode()), np.uint8)


@operator(reads="text", writes="lines_of_code")
class NumberOfLinesOfCode(Filter):
    """Keep files with 10 to 20,000 lines: newlines + 1.

    >>> NumberOfLinesOfCode().score(Batch.from_rows([{"text": "a\\nb"}]))["lines_of_code"].tolist()
    [2]
    """

    min_lines_of_code: int = 10
    max_lines_of_code: int = 20_000
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        return {"lines_of_code": text_facts(batch)["newlines"] + 1}

    def rules(self) -> list[Rule]:
        return [between("lines_of_code", self.min_lines_of_code, self.max_lines_of_code)]


@operator(reads="text", writes=("longest_line", "mean_line_length", "alphanumeric"), version=1)
class CodeLineLength(Filter):
    """Drop files with very long lines, as data and generated or minified code have them.

    longest_line        characters of the longest line, at most 1,000
    mean_line_length    characters per line, at most 100
    alphanumeric        share of A-Z a-z 0-9, newline and ? ! , . at least 0.25

    Chen et al. 2021 (Codex); the shares are counted as in `PerExtension`, which has bounds per language.

    >>> found = CodeLineLength().score(Batch.from_rows([{"text": "x = 1\\ny"}]))
    >>> {name: values.round(2).tolist() for name, values in found.items()}
    {'longest_line': [5], 'mean_line_length': [3.0], 'alphanumeric': [0.57]}
    """

    max_longest_line: int = 1000
    max_mean_line_length: float = 100
    min_alphanumeric: float = 0.25
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        found = text_facts(batch)
        return {
            "longest_line": found["longest_line"],
            "mean_line_length": (found["chars"] + 1) / (found["newlines"] + 1) - 1,
            "alphanumeric": ratio(found["plain"], found["chars"]),
        }

    def rules(self) -> list[Rule]:
        return [
            at_most("longest_line", self.max_longest_line),
            at_most("mean_line_length", self.max_mean_line_length),
            at_least("alphanumeric", self.min_alphanumeric),
        ]


@operator(reads="text", writes="xml_header")
class XmlHeader(Filter):
    """Drop files that are XML, whatever their extension: 1 if the first 100 characters contain "<?xml version=", else 0.

    >>> XmlHeader().score(Batch.from_rows([{"text": '<?xml version="1.0"?>'}, {"text": "x = 1"}]))["xml_header"].tolist()
    [1, 0]
    """

    num_chars: int = 100
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        head = pc.utf8_slice_codeunits(batch["text"].cast(pa.large_string()), 0, self.num_chars)
        found = pc.fill_null(pc.match_substring(head, "<?xml version="), False)
        return {"xml_header": found.to_numpy(zero_copy_only=False).astype(np.int64)}

    def rules(self) -> list[Rule]:
        return [at_most("xml_header", 0)]


@operator(reads="text", writes="alpha")
class Alpha(Filter):
    """Keep files of which at least a quarter are letters of any script, unlike tables of numbers: letters / characters.

    >>> Alpha().score(Batch.from_rows([{"text": "ab12"}]))["alpha"].tolist()
    [0.5]
    """

    min_alpha: float = 0.25
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        found = text_facts(batch)
        return {"alpha": ratio(found["letters"], found["chars"])}

    def rules(self) -> list[Rule]:
        return [at_least("alpha", self.min_alpha)]


@operator(reads="text", writes="html_text", version=2)
class HtmlBoilerplate(Filter):
    """Keep HTML files of which at least 20 % is visible text.

    Visible characters / characters; 0 if fewer than `min_chars` are visible. Text outside tags, comments, scripts and
    styles is visible. A run of white space, even across tags, counts as one character, so indentation is not text;
    NeMo Curator, the source of the defaults, counts all of it.

    >>> page = "<p>Hi &amp; bye</p>"
    >>> HtmlBoilerplate(min_chars=5).score(Batch.from_rows([{"text": page}]))["html_text"].round(2).tolist()
    [0.42]
    """

    measuring_parameters = frozenset({"min_chars"})

    min_html_text: float = 0.2
    min_chars: int = 100
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        data, offsets = buffers(batch["text"])
        out = np.zeros(len(batch), np.int64)
        measure_html(data, offsets, _bytes("script"), _bytes("style"), out)
        return {"html_text": np.where(out < self.min_chars, 0.0, ratio(out, text_facts(batch)["chars"]))}

    def rules(self) -> list[Rule]:
        return [at_least("html_text", self.min_html_text)]


@functools.lru_cache(maxsize=16)
def _read_bounds(path: str, stamp: int) -> dict[tuple[str, str], dict[str, str]]:
    with Path(path).open(newline="", encoding="utf-8") as lines:
        return {(row["language"], row["extension"]): row for row in csv.DictReader(lines)}


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


@operator(reads="text", writes=("longest_line", "mean_line_length", "alphanumeric", "alphabetic", "included"))
class PerExtension(Filter):
    """Keep files within the bounds that a table sets for a language and extension (StarCoder, Li et al. 2023).

    The table is a CSV file with the columns language, extension, Include (1 to keep), Long_line_threshold (maximum length
    of a line; if set, the mean length is at most 100), Alphanum_threshold (minimum share of A-Z a-z 0-9, newline and
    ? ! , .) and "Alpha filter" (minimum share of letters). Files of a pair that is not in the table are dropped.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "code_meta.csv"
    >>> header = "language,extension,Include,Long_line_threshold,Alphanum_threshold,Alpha filter"
    >>> _ = path.write_text(header + "\\npython,py,1,1000,0.25,\\n")
    >>> step = PerExtension("Python", "py", str(path))
    >>> [rule.score for rule in step.rules()], step.score(Batch.from_rows([{"text": "x = 1\\ny"}]))["longest_line"].tolist()
    (['included', 'longest_line', 'mean_line_length', 'alphanumeric'], [5])
    """

    language: str
    extension: str
    path_parameters = frozenset({"metadata_file"})

    metadata_file: str
    column: str = "text"

    def check(self) -> None:
        check_files(self.name, [self.metadata_file])

    def identity(self) -> dict[str, Any]:
        return identify_files(super().identity(), [self.metadata_file])

    @property
    def _bounds(self) -> dict[str, str]:
        names = {"c#": "c-sharp", "f#": "f-sharp"}
        language = names.get(self.language.lower(), self.language.lower().replace(" ", "-"))
        table = _read_bounds(self.metadata_file, Path(self.metadata_file).stat().st_mtime_ns)
        return table.get((language, self.extension), {})

    def score(self, batch: Batch) -> Scores:
        found = text_facts(batch)
        included = self._bounds.get("Include") == "1"
        return {
            "included": np.full(len(batch), int(included), np.int64),
            "longest_line": found["longest_line"],
            "mean_line_length": (found["chars"] + 1) / (found["newlines"] + 1) - 1,
            "alphanumeric": ratio(found["plain"], found["chars"]),
            "alphabetic": ratio(found["letters"], found["chars"]),
        }

    def rules(self) -> list[Rule]:
        bounds = self._bounds
        longest = _number(bounds.get("Long_line_threshold"))
        result = [at_least("included", 1)]
        if longest:
            result += [at_most("longest_line", longest), at_most("mean_line_length", 100)]
        for score, key in (("alphanumeric", "Alphanum_threshold"), ("alphabetic", "Alpha filter")):
            bound = _number(bounds.get(key))
            if bound:
                result.append(at_least(score, bound))
        return result
