"""Reject phrases that read as translated, and suggest plain ones. Applies to code, comments, messages and documents.

Underscores count as spaces, so names are checked too, and phrases may span lines. If a phrase is correct English where it is
used, make its pattern narrower here.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("tamis", "docs", "benchmarks", "scripts", "tests")
SUFFIXES = {".py", ".md", ".yaml", ".cu"}

BETTER = {
    r"let(s|ting)? go( of)?": "release (memory), stop (a worker), drop (a row)",
    r"(disk|memory|budget|space) (will|does|would) not do": "not enough memory / disk space",
    r"as asked": "as requested",
    r"(is|are|was|were|be|been) asked for": "is requested, is given",
    r"by lot|draws? lots": "at random, a random sample",
    r"(is|are|was|were|be|been) told": "reports, shows, says, prints",
    r"told apart|tells? apart|to tell apart": "distinguish",
    r"told by (its|their|the) names?": "inferred from the file name",
    r"whom to tell": "who is notified",
    r"(a|too|most|very|as|is|are) dear|dearer|dearest": "expensive",
    r"goes on|(go|went|going) on where": "continues, resumes",
    r"mend(s|ed|ing)?": "fix",
    r"crumbs?": "small pieces",
    r"stands? (behind|alone|again|elsewhere)": "follows, is",
    r"comes? of(?! age)": "is caused by",
    r"out of account": "not counted",
    r"(of|by|for|with) so many|so many (rows|bytes|times|characters|numbers|words)": "that many, N rows",
    r"in vain": "needlessly",
    r"for want of": "for lack of",
    r"gone through": "processed",
    r"who (stays|goes|hears)|(those|rows|ones|documents) (that|which) (stay|go)(?! (to|through|into))": "kept, dropped",
    r"(is|are) gone": "removed, missing, no longer exists",
    r"(is|are|was|were|be) done again": "is redone, is repeated",
    r"(make|makes|making|made) room|no room|room (for|on|to(?! spare)|behind)|enough room": "space, memory, capacity",
    r"what it (takes|holds)": "its memory, its time, its cost",
    r"entered in the middle": "cannot be split",
    r"whoever|thereof|hereby|whereupon|whereof|therein": "(reword)",
    r"nobody's": "(reword)",
    r"marks on texts": "held-out metrics",
    r"all the same(?= *[.,;:)])": "anyway",
    r"in all(?= *[.,;:)])": "in total",
    r"at once or not at all": "atomically",
    r"as (it|they|we) (has|have) it": "as in, like",
    r"puts? down|putting down": "record, store, write",
    r"tak(e|es|en|ing) apart": "split",
    r"work(s|ed)? off": "process",
    r"for ever": "forever, indefinitely",
    r"anew": "again",
    r"one's own": "your own, custom",
    r"(it|this|that|which) (is|are|was) no (file|folder|list|model|tokenizer|number|object|JSON)": "is not a",
    r"know(s|ing)? nothing (of|about)": "does not depend on, does not use",
    r"where (it|they|files|rows|the rows|the files) lies?": "where it is, its location",
    r"at hand": "available, in memory",
    r"and (its|their) (like|kin)": "and similar ones",
    r"of no use": "useless",
    r"(is|are) believed": "is trusted",
}  # fmt: skip
GAP = r"(?:[ ]|\n[ \t#]*)"
PATTERNS = [(re.compile(rf"\b(?:{phrase.replace(' ', GAP)})\b"), better) for phrase, better in BETTER.items()]


def files():
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    found += [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"]
    return sorted(path for path in found if path != Path(__file__) and "__pycache__" not in path.parts)


def mistakes(text):
    """Yield (line number, phrase, better words)."""
    plain = text.replace("_", " ")
    for pattern, better in PATTERNS:
        for match in pattern.finditer(plain):
            yield plain.count("\n", 0, match.start()) + 1, " ".join(match[0].replace("#", " ").split()), better


def test_the_text_is_plain_english():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {phrase!r}, better: {better}"
        for path in files()
        for line, phrase, better in sorted(mistakes(path.read_text(encoding="utf-8", errors="replace")))
    ]
    assert not found, f"{len(found)} phrases to reword:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("the pages are let go of", "let go of"),
        ("what is\n    # told here", "is told"),
        ("def test_the_one_who_stays():", "who stays"),
    ],
)
def test_phrases_are_found_in_names_and_across_lines(text, phrase):
    assert [found for _, found, _ in mistakes(text)] == [phrase]


def test_words_are_spelled_correctly():
    """In documents, which include the docstrings of operators; code has names that no dictionary knows."""
    texts = [
        path for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", "*/README.md") for path in ROOT.glob(pattern)
    ]
    done = subprocess.run([sys.executable, "-m", "codespell_lib", *texts], cwd=ROOT, capture_output=True, text=True)
    hint = "if a word is correct, add it to `ignore-words-list` in pyproject.toml\n"
    assert done.returncode == 0, hint + done.stdout + done.stderr
