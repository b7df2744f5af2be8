"""Word segmentation by dictionary for scripts without spaces, used by `words="dictionary"`.

    text --runs of such letters--> by script: rjieba, SudachiPy, nlpO3, ICU --> the text with a space before each word

    我来到北京。Hello  -->  我 来到 北京。 Hello

Only spaces are added, so counting words by white space counts these words. Punctuation stays with the word before it, as in
spaced scripts. Han characters are taken as Japanese if kana are at least 5 % of the letters of the row, else as Chinese. ICU
segments Lao, Khmer and Burmese. Tibetan syllables and Ethiopic words end at the separator of their script. In other scripts
without spaces each letter is a word, as in "auto".

The packages come with `tamis[segment]` and are loaded at the first row that needs them. If one is missing, the run stops with
an error instead of failing rows. Their dictionaries are compiled tables and a list of words; nothing is unpickled. In each
worker that needs it, rjieba uses 36 MB, SudachiPy 35 MB, nlpO3 64 MB and ICU 8 MB. All are deterministic: rjieba takes the
most probable path (and a hidden Markov model for names), SudachiPy the path of least cost (short units, mode A), nlpO3 the
path with the fewest words (newmm), and ICU the longest words that leave words behind them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from importlib.resources import files

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Column
from tamis.errors import require
from tamis.kernels.unicode_tables import KINDS, MARK, POINTS, UNSPACED
from tamis.kernels.unspaced import TSHEG, WORDSPACE, find_unspaced
from tamis.text.segment import buffers

Cutter = Callable[[str], list[str]]

_LONGEST = 4000
"""Characters segmented at a time: SudachiPy accepts at most 49,149 bytes, and other segmenters slow down on long runs."""
_MAX_SAMPLE = 20_000
"""Characters of a row examined to distinguish Japanese from Chinese."""
_PURPOSE = 'words="dictionary" for {}'


def _class(points: Iterable[int]) -> str:
    """Code points as ranges for a character class of a regular expression."""
    ranges: list[list[int]] = []
    for point in sorted(points):
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)


def _having(flags: int) -> list[int]:
    every = np.arange(0x110000)
    classes = POINTS[4608 + (POINTS[256 + (every >> 8)].astype(np.int64) << 8 | every & 255)]
    return np.flatnonzero(KINDS[128 + classes.astype(np.int64)] & flags).tolist()


_THAI, _TIBETAN = range(0x0E00, 0x0E80), range(0x0F00, 0x1000)
_EASTERN = (range(0x2E80, 0xA000), range(0xF900, 0xFB00), range(0xFF00, 0xFFF0), range(0x16FE0, 0x17000),
            range(0x1AFF0, 0x1B300), range(0x20000, 0x40000))  # fmt: skip
"""Han, kana and bopomofo with their extensions."""
_SOUTHERN = (
    range(0x0E80, 0x0F00),
    range(0x1000, 0x10A0),
    range(0x1780, 0x1800),
    range(0xA9E0, 0xAA00),
    range(0xAA60, 0xAA80),
)
"""Lao, Burmese and Khmer with their extensions."""


_VARIANTS, _THAI_MARKS = "\u3099\u309a\ufe00-\ufe0f\U000e0100-\U000e01ef", "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e"
"""Marks that combine with the letter before them."""


def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    letters = _having(UNSPACED)
    thai = [point for point in letters if point in _THAI]
    eastern = [point for point in letters if any(point in each for each in _EASTERN)]
    southern = [point for point in letters if any(point in each for each in _SOUTHERN)]
    marks = [point for point in _having(MARK) if any(point in each for each in _SOUTHERN)]
    others = sorted(set(letters) - set(thai) - set(eastern) - set(southern) - set(_TIBETAN))
    runs = (
        rf"(?P<eastern>[{_class(eastern)}][{_class(eastern)}{_VARIANTS}]{{,{_LONGEST}}})"
        rf"|(?P<thai>[{_class(thai)}][{_class(thai)}{_THAI_MARKS}]{{,{_LONGEST}}})"
        rf"|(?P<southern>[{_class(southern)}][{_class({*southern, *marks})}]{{,{_LONGEST}}})"
        rf"|(?P<mark>[{chr(TSHEG)}{chr(WORDSPACE)}])"
        rf"|(?P<other>[{_class(others)}])"
    )
    return re.compile(runs), re.compile(f"[{_class(p for p in eastern if _is_kana(p))}]+")


def _is_kana(point: int) -> bool:
    return (
        0x3041 <= point < 0x3100 or 0x31F0 <= point < 0x3200 or 0xFF66 <= point < 0xFFA0 or 0x1AFF0 <= point < 0x1B170
    )


_RUN, _KANA = _patterns()
_LETTER_OR_SPACE = re.compile(r"[^\W_]|\s")
_LETTER = re.compile(r"[^\W_]")
_LONE_MARK = re.compile(f" ([{_VARIANTS}{_THAI_MARKS}])")
_SPACES = re.compile(r"\s+")


@functools.lru_cache(maxsize=1)
def chinese() -> Cutter:
    return require("rjieba", extra="segment", purpose=_PURPOSE.format("Chinese")).cut


@functools.lru_cache(maxsize=1)
def japanese() -> Cutter:
    module = require("sudachipy", extra="segment", purpose=_PURPOSE.format("Japanese"))
    require("sudachidict_small", extra="segment", purpose=_PURPOSE.format("Japanese"))
    tokenizer = module.Dictionary(dict="small").tokenizer(mode=module.SplitMode.A)
    return lambda text: [word.surface() for word in tokenizer.tokenize(text)]


@functools.lru_cache(maxsize=1)
def thai() -> Cutter:
    module = require("nlpo3", extra="segment", purpose=_PURPOSE.format("Thai"))
    require("newmm_tokenizer", extra="segment", purpose=_PURPOSE.format("Thai"))
    module.load_dict(str(files("newmm_tokenizer") / "words_th.txt"), "tamis")
    return lambda text: module.segment(text, "tamis", safe=True)


@functools.lru_cache(maxsize=1)
def southern() -> Cutter:
    module = require("icu4py.breakers", extra="segment", purpose=_PURPOSE.format("Lao, Khmer and Burmese"))
    return lambda text: list(module.WordBreaker(text, "en"))  # the script chooses the dictionary, not the language


def _is_japanese(text: str) -> bool:
    start = text[:_MAX_SAMPLE]
    kana = sum(map(len, _KANA.findall(start)))
    letters = sum(len(match) for match, *_ in _RUN.findall(start)) if kana else 0
    return kana > 0 and kana * 20 >= letters


def respace(text: str) -> str:
    """The text with a space before each word of a script without spaces, and after it if another word follows.

    >>> respace("我来到北京清华大学。OK(好)")
    '我 来到 北京 清华大学。 OK( 好)'
    """
    eastern: Cutter | None = None
    parts: list[str] = []
    at = 0
    filled = False  # whether a letter or digit came since the last white space
    after_run = False
    for match in _RUN.finditer(text):
        gap = text[at : match.start()]
        if gap:
            pieces = _SPACES.split(gap)
            filled = (filled and len(pieces) == 1) or _LETTER.search(pieces[-1]) is not None
            parts.append(_begin_word(gap) if after_run else gap)
        run, at = match.group(), match.end()
        if match.lastgroup == "mark":
            parts.append(f"{run} ")
            filled = after_run = False
            continue
        if match.lastgroup == "eastern":
            if eastern is None:
                eastern = japanese() if _is_japanese(text) else chinese()
            words = eastern(run)
        elif match.lastgroup == "thai":
            words = thai()(run)
        else:
            words = southern()(run) if match.lastgroup == "southern" else [run]
        spaced = _LONE_MARK.sub(r"\1", " ".join(words))
        parts.append(f" {spaced}" if filled else spaced)
        filled = after_run = True
    if not parts:
        return text
    rest = text[at:]
    parts.append(_begin_word(rest) if after_run else rest)
    return "".join(parts)


def _begin_word(gap: str) -> str:
    """The text after a run, with a space before its first letter or digit unless white space comes first."""
    first = _LETTER_OR_SPACE.search(gap)
    if first is None or first.group().isspace():
        return gap
    return f"{gap[: first.start()]} {gap[first.start() :]}"


def respaced(column: Column) -> Column:
    """A string column with `respace` applied to the rows that have letters of scripts without spaces."""
    data, offsets = buffers(column)
    chosen = np.zeros(len(column), np.bool_)
    find_unspaced(data, offsets, POINTS, KINDS, chosen)
    if not chosen.any():
        return column
    changed = pa.array(map(respace, column.filter(pa.array(chosen)).to_pylist()), pa.large_string())
    return pc.replace_with_mask(column.cast(pa.large_string()), pa.array(chosen), changed)
