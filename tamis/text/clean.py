r"""Steps that clean whole texts: broken Unicode, line ends, URLs, markup, quotation marks, boilerplate, white space.

    text column --pyarrow.compute--> new text column      same rows, nulls stay null

Each step is a `Rewrite`: it replaces its column or writes another one (`into=`). Regular expressions are RE2, whose time is
linear in the text for any text. Rows become Python objects only where a library requires it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column
from tamis.errors import OperatorError, ParameterError, require
from tamis.operators import Map, operator

C4_PHRASES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
"""Phrases of legal notices in C4 (Raffel et al. 2020, section 2.2, and the code released with it)."""

POLICY_PHRASES = (
    *C4_PHRASES,
    "privacy overview",
    "privacy & cookies policy",
    "privacy and cookies policy",
    "necessary cookies are absolutely essential for the website to function properly",
    "any cookies that may not be particularly necessary for the website to function",
    "if you continue to browse this site without changing your cookie settings, you agree to this use",
)
"""Phrases of legal notices: C4's, and what NeMo Curator adds. Of its sentences, those that hold no other phrase, shortened."""

PLACEHOLDER = "lorem ipsum"

_SPACE = r"\t\p{Zs}"
_NOT_IN_URL = (
    r"\s\p{Z}\x00-\x1f\x7f<>\"`\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}\x{3000}-\x{303f}\x{ff00}-\x{ffef}"
)
_NOT_LAST_IN_URL = _NOT_IN_URL + r".,;:!?'()\[\]{}*\x{2018}-\x{201f}\x{2026}\x{ab}\x{bb}"


@dataclass(frozen=True, kw_only=True)
class Rewrite(Map):
    """A map that replaces the texts of a column. Subclasses implement `clean`."""

    column: str = "text"
    into: str | None = None

    def writes(self) -> tuple[str, ...]:
        return (self.into or self.column,)

    def clean(self, text: Column) -> Column:
        """The new texts, one per old text; nulls stay null."""
        raise NotImplementedError

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        return {self.into or self.column: self.clean(strings(batch["text"]))}


def strings(column: Column) -> Column:
    """A text column as plain strings, the type that `pyarrow.compute` handles."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column
    if pa.types.is_null(kind):
        return column.cast(pa.string())
    if pa.types.is_dictionary(kind) or pa.types.is_string_view(kind):
        return column.cast(pa.large_string())
    raise OperatorError(f"a text column holds strings, this one holds {kind}", hint="set `column` to a text column")


def where(text: Column, chosen: Column, change: Callable[[Column], Column]) -> Column:
    """`text` with `change` applied to the chosen rows only."""
    chosen = pc.fill_null(chosen, False)
    count = pc.sum(chosen).as_py() or 0
    if count == 0:
        return text
    return change(text) if count == len(text) else pc.replace_with_mask(text, chosen, change(text.filter(chosen)))


def literal(text: str) -> str:
    """An RE2 expression that matches exactly this text."""
    return "".join(c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)


def any_of(phrases: Sequence[str]) -> str:
    """An RE2 expression that matches any of these phrases in any case."""
    return "(?i)" + "|".join(literal(phrase) for phrase in phrases)


# --------------------------------------------------------------------------------------------------------------- pieces


class Pieces:
    """The texts of a column, split at a separator: all pieces in one array, and the offset of each text in it.

    `join(keep)` joins the kept pieces again; its argument `pieces` replaces them first.
    """

    def __init__(self, text: Column, separator: str) -> None:
        self.text, self.separator = text, separator
        lists = pc.split_pattern(text, separator)
        counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
        self.flat: Column = lists.flatten()
        self.offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])

    def sums(self, values: np.ndarray) -> np.ndarray:
        """For each text, the sum of the values of its pieces."""
        running = np.concatenate([np.zeros(1, np.int64), np.cumsum(values, dtype=np.int64)])
        return running[self.offsets[1:]] - running[self.offsets[:-1]]

    def join(self, keep: np.ndarray, pieces: Column | None = None) -> Column:
        flat = self.flat if pieces is None else pieces
        if pieces is None and keep.all():
            return self.text
        running = np.concatenate([np.zeros(1, np.int64), np.cumsum(keep, dtype=np.int64)])
        mask = pc.is_null(self.text) if self.text.null_count else None
        offsets = pa.array(running[self.offsets], pa.int32())
        kept = flat if keep.all() else flat.filter(pa.array(keep))
        lists = pa.ListArray.from_arrays(offsets, kept, mask=mask)
        return pc.binary_join(lists, pa.scalar(self.separator, kept.type))


def mask_of(values: Column) -> np.ndarray:
    """A boolean column as a NumPy array; null is False."""
    return np.asarray(pc.fill_null(values, False).to_numpy(zero_copy_only=False), dtype=np.bool_)


# -------------------------------------------------------------------------------------------------------------- Unicode


@operator(reads="text", version=2)
class UnicodeRepair(Rewrite):
    """Repair text that was decoded with the wrong encoding (mojibake), with ftfy.

    Also turns HTML entities into characters (`unescape_html="auto"`: only while no "<" suggests that the text is markup)
    and removes control characters and terminal escapes. On request it replaces full-width letters and punctuation and
    half-width katakana (`fix_character_width`), ligatures (`fix_latin_ligatures`), line ends other than newlines
    (`fix_line_breaks`) and curly quotes (`uncurl_quotes`), and applies a Unicode `normalization`.

    The result is exactly that of `ftfy.fix_text` with the same settings. Defaults are those of NeMo Curator, which
    leaves all of the above off: full-width punctuation is correct in Chinese.

    ftfy takes about half a second per megabyte. Lines that it cannot change, most of them, skip it and cost next to nothing.

    >>> import pyarrow as pa
    >>> UnicodeRepair().clean(pa.array(["CafÃ© &amp; crÃ¨me"])).to_pylist()
    ['Café & crème']
    """

    fix_character_width: bool = False
    fix_latin_ligatures: bool = False
    fix_line_breaks: bool = False
    uncurl_quotes: bool = False
    unescape_html: Literal["auto"] | bool = "auto"
    normalization: Literal["NFC", "NFD", "NFKC", "NFKD"] | None = None
    max_decode_length: int = 1_000_000

    def check(self) -> None:
        require("ftfy", extra="text", purpose="unicode_repair")
        if self.max_decode_length < 1:
            raise ParameterError(f"`max_decode_length` must be positive, got {self.max_decode_length}")

    def clean(self, text: Column) -> Column:
        return where(text, pc.match_substring_regex(text, self._suspect(_re2_class)), self._repair)

    def _suspect(self, made: Callable[[Sequence[int]], str]) -> str:
        """An expression that matches wherever ftfy may change something, and in some places where it does not."""
        if self.normalization is not None or self.uncurl_quotes:
            return f"{_ENTITY}|[^{made(_PLAIN_ASCII)}]"
        single = made(_ALWAYS)
        if self.fix_character_width:
            single += made(_WIDTHS)
        if self.fix_line_breaks:
            single += made(_LINE_BREAKS)
        pair, letter = made(_PAIRED), made(_LETTERS)
        return f"{_ENTITY}|[{single}]|[{pair}][{pair}{letter}]|[{letter}][{pair}]"

    def _repair(self, text: Column) -> Column:
        ftfy = require("ftfy", extra="text", purpose="unicode_repair")
        config = ftfy.TextFixerConfig(
            explain=False,
            fix_character_width=self.fix_character_width,
            fix_latin_ligatures=self.fix_latin_ligatures,
            fix_line_breaks=self.fix_line_breaks,
            uncurl_quotes=self.uncurl_quotes,
            unescape_html=self.unescape_html,
            normalization=self.normalization,
            max_decode_length=self.max_decode_length,
        )
        suspect = re.compile(self._suspect(_python_class)).search
        fixed = [None if row is None else _fix_lines(ftfy, row, config, suspect) for row in text.to_pylist()]
        return pa.array(fixed, text.type)


def _fix_lines(ftfy: Any, text: str, config: Any, suspect: Callable[[str], object]) -> str:
    """`ftfy.fix_text`, which works line by line, called only for lines that it may change."""
    unify = config.fix_line_breaks
    whole = text.replace("\r\n", "\n") if unify else text
    if not suspect(whole):
        return whole
    out = []
    for line in _LINES.findall(text):
        unified = line[:-2] + "\n" if unify and line.endswith("\r\n") else line
        out.append(ftfy.fix_text(line, config) if suspect(unified) else unified)
        if config.unescape_html == "auto" and "<" in line:
            config = config._replace(unescape_html=False)
    return "".join(out)


# What ftfy looks for, as ranges of code points (first, last, first, last, ...). Mojibake shows as two neighbouring
# characters of the 8-bit encodings, unless both are letters of the Greek or Cyrillic alphabet.
_LINES = re.compile(r"[^\n]*\n|[^\n]+")
_ENTITY = "&#?[0-9A-Za-z]{1,24};"
_PLAIN_ASCII = (0x09, 0x0A, 0x0C, 0x0C, 0x20, 0x7E)
_WIDTHS = (0x3000, 0x3000, 0xFF00, 0xFFEF)
_LINE_BREAKS = (0x0D, 0x0D, 0x2028, 0x2029)
_ALWAYS = (
    0x00, 0x08, 0x0B, 0x0B, 0x0E, 0x1F, 0x7F, 0x9F,  # control characters
    0xC2, 0xC3, 0x152, 0x153,  # Â, Ã, Œ, œ, suspected beside ASCII too
    0x132, 0x133, 0x149, 0x149, 0x1C4, 0x1CC, 0x1F1, 0x1F3, 0xFB00, 0xFB4F,  # ligatures
    0x206A, 0x206F, 0xFEFF, 0xFEFF, 0xFFF9, 0xFFFD,  # format characters without effect, replacement characters
)  # fmt: skip
_LETTERS = (0x391, 0x3A9, 0x3AC, 0x3AF, 0x3B1, 0x3C9, 0x410, 0x44F)
_PAIRED = (0xA0, 0x390, 0x3AA, 0x3AB, 0x3B0, 0x3B0, 0x3CA, 0x40F, 0x450, 0x52F, 0x2000, 0x25FF, 0xF8FF, 0xF8FF)


def _re2_class(ranges: Sequence[int]) -> str:
    return "".join(f"\\x{{{a:x}}}-\\x{{{b:x}}}" for a, b in zip(ranges[::2], ranges[1::2], strict=True))


def _python_class(ranges: Sequence[int]) -> str:
    return "".join(f"\\u{a:04x}-\\u{b:04x}" for a, b in zip(ranges[::2], ranges[1::2], strict=True))


# ------------------------------------------------------------------------------------------------- line ends and spaces


@operator(reads="text")
class Newlines(Rewrite):
    r"""Replace all line ends by \n, and limit runs of them to `max_newlines`.

    Line ends are \r\n, \r, \v, \f, U+0085, U+2028 and U+2029. With `unify=False` they are kept, and only runs of \n and
    of \r\n are shortened, as NeMo Curator's NewlineNormalizer does. A second application changes nothing.

    >>> import pyarrow as pa
    >>> Newlines().clean(pa.array(["a\r\n\r\n\r\n\r\nb\rc"])).to_pylist()
    ['a\n\nb\nc']
    """

    max_newlines: int = 2
    unify: bool = True

    def check(self) -> None:
        if not 1 <= self.max_newlines <= 500:
            raise ParameterError(f"`max_newlines` must be from 1 to 500, got {self.max_newlines}")

    def clean(self, text: Column) -> Column:
        most = self.max_newlines
        if self.unify:
            text = where(text, pc.match_substring_regex(text, r"[\r\v\f\x{85}\x{2028}\x{2029}]"), _unify_line_ends)
        else:
            text = pc.replace_substring_regex(text, rf"(?:\r\n){{{most}}}(?:\r\n)+", "\r\n" * most)
        return pc.replace_substring_regex(text, rf"\n{{{most}}}\n+", "\n" * most)


def _unify_line_ends(text: Column) -> Column:
    return pc.replace_substring_regex(text, r"\r\n?|[\v\f\x{85}\x{2028}\x{2029}]", "\n")


@operator(reads="text")
class Whitespace(Rewrite):
    r"""Replace each run of blanks by one space, and trim lines and texts.

    Blanks are tabs and all Unicode spaces (category Zs), including no-break spaces; line ends are kept. Not for code or
    tables, in which blanks have a meaning. A second application changes nothing.

    >>> import pyarrow as pa
    >>> Whitespace().clean(pa.array(["  a \t b\u00a0c  \n   d "])).to_pylist()
    ['a b c\nd']
    """

    collapse: bool = True
    trim_lines: bool = True
    trim: bool = True

    def clean(self, text: Column) -> Column:
        if self.collapse:
            # A single plain space needs no replacement; matching it would match nearly every word.
            lone = r"\t\x{a0}\x{1680}\x{2000}-\x{200a}\x{202f}\x{205f}\x{3000}"
            text = pc.replace_substring_regex(text, rf"[{_SPACE}]{{2,}}|[{lone}]", " ")
        if self.trim_lines:
            text = pc.replace_substring_regex(text, rf"[{_SPACE}]+\n[{_SPACE}]*|\n[{_SPACE}]+", "\n")
        return pc.utf8_trim_whitespace(text) if self.trim else text


# ----------------------------------------------------------------------------------------------------- URLs and markup


@operator(reads="text", version=2)
class UrlRemoval(Rewrite):
    """Remove URLs that begin with http://, https:// or www., or replace them by `replacement`.

    A URL ends before white space, double quotes, backticks, angle brackets and letters of scripts written without spaces.
    Punctuation after it is kept, so a sentence keeps its full stop. (NeMo Curator's UrlRemover removes everything up to the
    next white space.)

    >>> import pyarrow as pa
    >>> UrlRemoval(replacement="<url>").clean(pa.array(["See https://example.org/a?b=1. Or (www.example.org)!"])).to_pylist()
    ['See <url>. Or (<url>)!']
    """

    replacement: str = ""

    def clean(self, text: Column) -> Column:
        rest = rf"[^{_NOT_IN_URL}]*[^{_NOT_LAST_IN_URL}]"
        pattern = rf"(?i:https?://|\bwww\.){rest}"
        return pc.replace_substring_regex(text, pattern, self.replacement.replace("\\", "\\\\"))


@operator(reads="text", version=2)
class MarkdownRemoval(Rewrite):
    r"""Remove the marks of bold, italic and underlined text, and replace links by their URL or their text.

    `links="url"` puts the URL in place of a link, as NeMo Curator's MarkdownRemover does; "text" keeps the text of the
    link, "keep" leaves links alone. Unlike there, underscores count only around whole words, so snake_case_names are
    kept. Marks are paired within a line and may be nested; a text that nests them more than 16 deep is left alone.
    A second application changes nothing.

    >>> import pyarrow as pa
    >>> MarkdownRemoval(links="text").clean(pa.array(["**Read** _the_ [manual](https://a.org) of my_old_car"])).to_pylist()
    ['Read the manual of my_old_car']
    """

    links: Literal["url", "text", "keep"] = "url"

    def clean(self, text: Column) -> Column:
        return where(text, pc.match_substring_regex(text, r"[*_\]]"), self._clean)

    def _clean(self, text: Column) -> Column:
        """Remove marks until there are none left, from the inside out."""
        done = text
        waiting = np.arange(len(text))
        for _ in range(_MAX_NESTING + 1):
            before = done.take(waiting)
            after = self._remove_innermost(before)
            changed = mask_of(pc.not_equal(after, before))
            if not changed.any():
                return done
            waiting = waiting[changed]
            rows = np.zeros(len(text), np.bool_)
            rows[waiting] = True
            done = pc.replace_with_mask(done, pa.array(rows), after.filter(pa.array(changed)))
        return pc.replace_with_mask(done, pa.array(rows), text.take(waiting))

    def _remove_innermost(self, text: Column) -> Column:
        if self.links != "keep":
            link = r"!?\[([^\[\]\n]*)\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?:[ \t]+\"[^\"\n]*\")?\)"
            text = pc.replace_substring_regex(text, link, r"\2" if self.links == "url" else r"\1")
        for pattern in (
            r"\*\*([^*\s](?:[^*\n]*[^*\s])?)\*\*",
            r"\*([^*\s](?:[^*\n]*[^*\s])?)\*",
            r"\b__([^_\s](?:[^_\n]*[^_\s])?)__\b",
            r"\b_([^_\s](?:[^_\n]*[^_\s])?)_\b",
        ):
            text = pc.replace_substring_regex(text, pattern, r"\1")
        return text


_MAX_NESTING = 16


@operator(reads="text")
class QuotationRemoval(Rewrite):
    """Remove the quotation marks around a text that is a single quotation.

    A text with the same marks inside, such as a dialogue that begins and ends with them, is left alone. Each item of
    `quotes` is an opening and a closing mark.

    >>> import pyarrow as pa
    >>> QuotationRemoval().clean(pa.array(['"To be or not to be"', '"Yes," she said, "no."'])).to_pylist()
    ['To be or not to be', '"Yes," she said, "no."']
    """

    quotes: Sequence[str] = ('""', "“”", "„“", "«»", "「」")

    def check(self) -> None:
        for pair in self.quotes:
            if len(pair) != 2:
                raise ParameterError(f"`quotes` must hold pairs of marks such as '\"\"', got {pair!r}")

    def clean(self, text: Column) -> Column:
        for pair in self.quotes:
            first, last = literal(pair[0]), literal(pair[1])
            one_quotation = rf"\A(\s*){first}([^{first}{last}]+){last}(\s*)\z"
            text = where(
                text,
                pc.match_substring_regex(text, rf"\A\s*{first}"),
                lambda rows, pattern=one_quotation: pc.replace_substring_regex(rows, pattern, r"\1\2\3"),  # type: ignore[misc]
            )
        return text


@operator(reads="text")
class Slice(Rewrite):
    """Keep the part of each text between `left` and `right`.

    A number is a position in characters, counted from the end if negative. A string stands for its first (left) or last
    (right) occurrence, which is kept if `include_left` or `include_right`. A text without that string becomes empty, as in
    NeMo Curator's Slicer; follow this step with a length filter to drop such rows.

    >>> import pyarrow as pa
    >>> Slice(left="***", include_left=False, right=-1).clean(pa.array(["legal notes *** the book.", "no mark"])).to_pylist()
    ['the book', '']
    """

    left: int | str | None = 0
    right: int | str | None = None
    include_left: bool = True
    include_right: bool = True
    strip: bool = True

    def check(self) -> None:
        if self.left == "" or self.right == "":
            raise ParameterError("`left` and `right` of `slice` must not be empty strings")

    def clean(self, text: Column) -> Column:
        if isinstance(self.left, str) or isinstance(self.right, str):
            text = pa.array([None if row is None else self._between(row) for row in text.to_pylist()], text.type)
        else:
            text = pc.utf8_slice_codeunits(text, start=self.left or 0, stop=self.right)
        return pc.utf8_trim_whitespace(text) if self.strip else text

    def _between(self, text: str) -> str:
        start, stop = self.left, self.right
        if isinstance(start, str):
            found = text.find(start)
            if found < 0:
                return ""
            start = found if self.include_left else found + len(start)
        if isinstance(stop, str):
            found = text.rfind(stop)
            if found < 0:
                return ""
            stop = found + len(stop) if self.include_right else found
        return text[start:stop]


# --------------------------------------------------------------------------------------------------- lines, paragraphs


@operator(reads="text")
class LineRemoval(Rewrite):
    r"""Remove each line that equals one of `lines`.

    A carriage return at the end of a line is ignored. A second application changes nothing.

    >>> import pyarrow as pa
    >>> LineRemoval(["Share this", "Menu"]).clean(pa.array(["Menu\nA story.\nShare this"])).to_pylist()
    ['A story.']
    """

    lines: Sequence[str] = ()

    def check(self) -> None:
        if not self.lines:
            raise ParameterError("`lines` of `line_removal` is empty, so there is nothing to remove")

    def clean(self, text: Column) -> Column:
        pieces = Pieces(text, "\n")
        unwanted = pa.array(self.lines, pieces.flat.type)
        return pieces.join(~mask_of(pc.is_in(pc.utf8_rtrim(pieces.flat, "\r"), value_set=unwanted)))


@operator(reads="text")
class RegexReplacement(Rewrite):
    r"""Replace every match of a regular expression by `replacement`, or remove it.

    Matches do not overlap. `\1` in `replacement` is what the first group matched, and `\\` a backslash. The syntax is that
    of RE2: time grows with the length of the text, whatever the expression, so there are no backreferences and no
    look-around. `^` and `$` match at the ends of the text, with `(?m)` at those of lines, and `.` matches no newline
    without `(?s)`.

    >>> import pyarrow as pa
    >>> RegexReplacement(r"(\w+)@(\w+)", r"\1 at \2").clean(pa.array(["ann@example", None])).to_pylist()
    ['ann at example', None]
    """

    pattern: str
    replacement: str = ""
    ignore_case: bool = False

    def check(self) -> None:
        try:
            self.clean(pa.array([""]))
        except pa.ArrowInvalid as error:
            raise ParameterError(
                f"`{self.name}` cannot replace {self.pattern!r} by {self.replacement!r}: {error}"
            ) from error

    def clean(self, text: Column) -> Column:
        pattern = f"(?i){self.pattern}" if self.ignore_case else self.pattern
        return pc.replace_substring_regex(text, pattern, self.replacement)


@operator(reads="text", version=3)
class BoilerplateRemoval(Rewrite):
    r"""Remove paragraphs with a policy phrase, such as a cookie notice, from the top and the bottom of a text.

    Paragraphs are separated by an empty line; `phrases` match in any case, and by default are those of C4 and NeMo Curator,
    as in the filter `BoilerPlate`. With `place="edges"`, a text that has such paragraphs in its middle too, or has no
    others, is left alone (as in NeMo Curator's BoilerPlateStringModifier); with "anywhere" they are removed wherever they
    are. A text with one of `placeholders` becomes empty; follow this step with a length filter to drop such rows.

    >>> import pyarrow as pa
    >>> BoilerplateRemoval().clean(pa.array(["We use cookies.\n\nA story.", "lorem ipsum"])).to_pylist()
    ['A story.', '']
    """

    phrases: Sequence[str] = POLICY_PHRASES
    placeholders: Sequence[str] = (PLACEHOLDER,)
    place: Literal["edges", "anywhere"] = "edges"

    def check(self) -> None:
        if "" in self.phrases or "" in self.placeholders:
            raise ParameterError("an empty phrase would match every text")

    def clean(self, text: Column) -> Column:
        if self.placeholders:  # before paragraphs are removed, which may contain a placeholder
            empty = pc.match_substring_regex(text, any_of(self.placeholders))
            text = pc.if_else(pc.fill_null(empty, False), pa.scalar("", text.type), text)
        if self.phrases:
            text = where(text, pc.match_substring_regex(text, any_of(self.phrases)), self._clean)
        return text

    def _clean(self, text: Column) -> Column:
        pieces = Pieces(text, "\n\n")
        found = mask_of(pc.match_substring_regex(pieces.flat, any_of(self.phrases)))
        if self.place == "anywhere":
            return pieces.join(~found)
        number = np.arange(len(found))
        starts = pieces.offsets[:-1]
        first = np.minimum.reduceat(np.where(found, len(found), number), starts)
        last = np.maximum.reduceat(np.where(found, -1, number), starts)
        rows = np.repeat(np.arange(len(text)), np.diff(pieces.offsets))
        in_the_middle = pieces.sums(found & (number > first[rows]) & (number < last[rows])) > 0
        untouched = in_the_middle | (last < 0)
        return pieces.join(~found | untouched[rows])
