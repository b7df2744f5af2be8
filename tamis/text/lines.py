r"""Steps that clean texts line by line, and a limit on how much they may remove.

    text --split at \n--> lines --rules--> kept lines --join--> text, removed_share --RemovalBudget--> kept or dropped

The cleaning steps rewrite texts and record the share of words that each text lost; `RemovalBudget` then drops texts that
lost too many. The shares of several cleaning steps add up to one share of the original text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column
from tamis.errors import ParameterError
from tamis.fields import numbers
from tamis.operators import Filter, Map, Rule, Scores, at_most, operator
from tamis.text.clean import C4_PHRASES, Pieces, any_of, literal, mask_of, strings
from tamis.text.segment import WORD_STATS, buffers, ratio, word_stats

COUNTERS = (
    "likes", "shares", "comments", "retweets", "reposts", "quotes", "bookmarks", "upvotes", "downvotes",
    "downloads", "views", "followers",
)  # fmt: skip
"""What the numbers below a post count (Dolma 3, all-dressed recipe)."""


@dataclass(frozen=True, kw_only=True)
class LineCleaning(Map):
    """A map that removes or shortens lines and records how much it removed. Subclasses implement `judge`.

    `share` names the column for the share of words removed, from 0 to 1. If that column exists already, the new value is
    the share of the text before the first cleaning step.
    """

    column: str = "text"
    share: str = "removed_share"

    def writes(self) -> tuple[str, ...]:
        return (self.column, self.share)

    def optional_reads(self) -> tuple[str, ...]:
        return (self.share,)

    def judge(self, lines: Column) -> tuple[np.ndarray, Column]:
        """Which lines to keep, and their new content. No line given is empty."""
        raise NotImplementedError

    def keeps_empty(self) -> bool:
        """Whether empty lines are kept."""
        raise NotImplementedError

    def _judge_all(self, lines: Column) -> tuple[np.ndarray, Column]:
        """Apply `judge` to the lines that are not empty; half of the lines of many texts are."""
        filled = mask_of(pc.greater(pc.binary_length(lines), 0))
        if filled.all():
            return self.judge(lines)
        some = lines.filter(pa.array(filled))
        keep = np.full(len(lines), self.keeps_empty())
        keep[filled], changed = self.judge(some)
        return keep, lines if changed is some else pc.replace_with_mask(lines, pa.array(filled), changed)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        text = strings(batch["text"])
        pieces = Pieces(text, "\n")
        keep, lines = self._judge_all(pieces.flat)
        changed = (
            mask_of(pc.not_equal(lines, pieces.flat)) if lines is not pieces.flat else np.zeros(len(keep), np.bool_)
        )
        lost = np.zeros(len(keep), np.int64)
        touched = np.flatnonzero((~keep | changed) & mask_of(pc.greater(pc.binary_length(pieces.flat), 0)))
        if len(touched):  # only these lines can lose words
            lost[touched] = num_words(pieces.flat.take(touched))
            lost[touched] -= np.where(keep[touched], num_words(lines.take(touched)), 0)
        new = pieces.join(keep, lines if changed.any() else None)
        removed = ratio(pieces.sums(lost), batch.facts("text", word_stats)["words"])
        if self.share in batch:
            before = numbers(batch[self.share]).fill_null(0.0).to_numpy(zero_copy_only=False)
            removed = before + (1 - before) * removed
        return {self.column: new, self.share: removed}


_MOST_IN_PATTERN = 100


def num_words(lines: Column, words: str = "auto") -> np.ndarray:
    return WORD_STATS[words](lines)["words"]


def has_words(lines: Column, least: int, words: str) -> np.ndarray:
    """Whether each line has at least `least` words."""
    if least < 1:
        return np.ones(len(lines), np.bool_)
    # Visible ASCII characters separated by spaces are in different words; lines without enough of them are counted.
    pattern = "[^ ]* +".join(["[!-~]"] * min(least, _MOST_IN_PATTERN))
    enough = mask_of(pc.match_substring_regex(lines, pattern)) & (least <= _MOST_IN_PATTERN)
    few = np.flatnonzero(~enough)
    if len(few):
        enough[few] = num_words(lines.take(few), words) >= least
    return enough


def has_long_run(lines: Column, most: int) -> np.ndarray:
    """The lines with more than `most` bytes between ASCII blanks, the only ones that can have a word of that length."""
    data, offsets = buffers(lines)
    begin, end = int(offsets[0]), int(offsets[-1])
    edges = np.concatenate([np.flatnonzero(data[begin:end] <= 32) + begin, offsets])
    edges.sort(kind="stable")
    runs = edges[:-1][np.diff(edges) > most]
    return np.unique(np.searchsorted(offsets, runs, side="right") - 1)


@operator(reads="text")
class C4Lines(LineCleaning):
    """Remove the lines that C4 removes: those that are not sentences, or are about cookies or JavaScript.

    A line is kept if it ends in one of `terminal` but not in an ellipsis, has at least `min_words` words, no word of more
    than `max_word_chars` characters, and none of `phrases`. Marks such as [12], [edit] and [citation needed] and white
    space at the ends are removed first, so "It rained all day. [3]" ends in a full stop; in C4 and datatrove, which keep
    the space before a mark, it does not. `terminal=()` disables the first rule, as in FineWeb.

    Lines end with \\n; run `Newlines` first if a text may have other line ends. `C4Quality` judges whole documents.
    Source: Raffel et al. 2020, section 2.2, as datatrove implements it.

    >>> from tamis import Pipeline, Rows
    >>> text = "Menu\\nIt rained all day.[3] Nobody came.\\nPlease enable Javascript here."
    >>> Pipeline(Rows([{"text": text}]), C4Lines()).collect().to_pylist()
    [{'text': 'It rained all day. Nobody came.', 'removed_share': 0.45454545454545453}]
    """

    min_words: int = 3
    max_word_chars: int = 1000
    terminal: Sequence[str] = (".", "?", "!", '"', "'")
    phrases: Sequence[str] = (*C4_PHRASES, "javascript")
    citations: bool = True
    """Whether to remove marks such as [12]."""

    def check(self) -> None:
        _check_bounds(self.min_words, self.max_word_chars)
        _check_phrases(self.terminal, self.phrases)

    def keeps_empty(self) -> bool:
        return not self.terminal and self.min_words <= 0

    def judge(self, lines: Column) -> tuple[np.ndarray, Column]:
        if self.citations:
            lines = pc.replace_substring_regex(lines, r"\[(?:[0-9]*|edit|citation needed)\]", "")
        lines = pc.utf8_trim_whitespace(lines)
        keep = np.ones(len(lines), np.bool_)
        if self.terminal:
            ends = "|".join(literal(mark) for mark in self.terminal)
            keep = mask_of(pc.match_substring_regex(lines, rf"(?:{ends})\z"))
            keep &= ~mask_of(pc.ends_with(lines, "..."))
        if self.phrases:
            keep &= ~mask_of(pc.match_substring_regex(lines, any_of(self.phrases)))
        keep &= has_words(lines, self.min_words, "whitespace")
        long = has_long_run(lines, self.max_word_chars)
        if len(long):
            keep[long] &= WORD_STATS["whitespace"](lines.take(long))["longest"] <= self.max_word_chars
        return keep, lines


@operator(reads="text")
class AllDressedLines(LineCleaning):
    """Remove lines of menus, counters and capitals, as the "all-dressed" recipe of Dolma 3 does.

    A line is removed if more than `max_upper` of its characters are capital letters, if it consists of digits, if it is a
    counter ("12K likes"), or if it has fewer than `min_words` words. From other lines of up to `max_phrase_words` words,
    `phrases` are removed, and `beginnings` and `endings` at their ends; a line with nothing else is removed. In the recipe,
    `RemovalBudget(max_share=0.05)` follows.

    Unlike the source, empty lines are kept, so that paragraphs stay apart; run `Newlines` afterwards. Words are counted as
    in all operators, whereas the source counts segments, including spaces. Source: Ai2, datamap-rs,
    all_dressed_config.yaml.

    >>> from tamis import Pipeline, Rows
    >>> text = "HOME PAGE\\n12K likes\\nIt rained all day in Paris. Read more...\\n2017"
    >>> Pipeline(Rows([{"text": text}]), AllDressedLines()).collect().to_pylist()
    [{'text': 'It rained all day in Paris.', 'removed_share': 0.5384615384615384}]
    """

    max_upper: float = 0.5
    min_words: int = 2
    counters: Sequence[str] = COUNTERS
    phrases: Sequence[str] = ("items in cart",)
    beginnings: Sequence[str] = ("Sign-in",)
    endings: Sequence[str] = ("Read more...",)
    max_phrase_words: int = 10

    def check(self) -> None:
        _check_bounds(self.min_words, self.max_phrase_words)
        _check_phrases(self.counters, self.phrases, self.beginnings, self.endings)

    def keeps_empty(self) -> bool:
        return True

    def judge(self, lines: Column) -> tuple[np.ndarray, Column]:
        blank = ~mask_of(pc.match_substring_regex(lines, r"[^\s\p{Z}]"))
        keep = ~self._shouts(lines)
        keep &= ~mask_of(pc.match_substring_regex(lines, r"\A[0-9]+\z"))
        if self.counters:
            nouns = "|".join(literal(noun) for noun in self.counters)
            keep &= ~mask_of(pc.match_substring_regex(lines, rf"(?i)\A\W*[0-9][0-9.,]*[kmb]?\s+(?:{nouns})\W*\z"))
        keep &= has_words(lines, self.min_words, "auto")
        cut = self._cut(lines)
        if cut is not lines:
            keep &= mask_of(pc.match_substring_regex(cut, r"[^\s\p{Z}]"))
        return keep | blank, cut

    def _shouts(self, lines: Column) -> np.ndarray:
        shouts = np.ones(len(lines), np.bool_)
        if self.max_upper >= 0.5:  # then two capitals are neighbours, or every second character is one
            shouts = mask_of(pc.match_substring_regex(lines, r"\p{Lu}{2}|\A\p{Lu}(?:\P{Lu}\p{Lu})*\z"))
        some = lines.filter(pa.array(shouts))
        upper = pc.count_substring_regex(some, r"\p{Lu}").to_numpy(zero_copy_only=False)
        shouts[shouts] = ratio(upper, pc.utf8_length(some).to_numpy(zero_copy_only=False)) > self.max_upper
        return shouts

    def _cut(self, lines: Column) -> Column:
        for phrases, before, after in (
            (self.phrases, r"\s?", ""),
            (self.endings, r"\s?", r"\s*\z"),
            (self.beginnings, r"\A", r"\s?"),
        ):
            if not phrases:
                continue
            phrase = f"(?:{'|'.join(map(literal, phrases))})"
            found = np.flatnonzero(mask_of(pc.match_substring_regex(lines, phrase)))
            short = found[num_words(lines.take(found)) <= self.max_phrase_words] if len(found) else found
            if len(short):
                chosen = np.zeros(len(lines), np.bool_)
                chosen[short] = True
                shorter = pc.replace_substring_regex(lines.take(short), before + phrase + after, "")
                lines = pc.replace_with_mask(lines, pa.array(chosen), shorter)
        return lines


@operator(reads="removed_share", writes="removed_share")
class RemovalBudget(Filter):
    """Drop documents that lost more than 5 % of their words to line cleaning.

    Words removed / words before cleaning, as recorded by the steps before. A page that consists mostly of menus is not worth
    keeping without them. The default is that of Dolma 3's all-dressed recipe.

    >>> from tamis import Pipeline, Rows
    >>> rows = [{"text": "MENU\\nHello there, my friend."}, {"text": "Hello there, my friend."}]
    >>> Pipeline(Rows(rows), AllDressedLines(), RemovalBudget()).run().dropped
    {'removed_share > 0.05': 1}
    """

    column: str = "removed_share"
    max_share: float = 0.05

    def score(self, batch: Batch) -> Scores:
        return {"removed_share": numbers(batch["removed_share"])}

    def rules(self) -> list[Rule]:
        return [at_most("removed_share", self.max_share)]


def _check_bounds(*bounds: int) -> None:
    if min(bounds) < 0 or max(bounds) > 10**9:
        raise ParameterError(f"bounds must be counts from 0 to 10**9, got {', '.join(map(str, bounds))}")


def _check_phrases(*lists: Sequence[str]) -> None:
    if any("" in phrases for phrases in lists):
        raise ParameterError("an empty phrase would match every line")
