"""Write tamis/kernels/unicode_tables.py from the files of the Unicode Character Database.

    python scripts/make_unicode_tables.py /usr/share/unicode        (Debian: apt install unicode-data)

Every code point has a class: one combination of flags and one Word_Break value (UAX #29). Lookup has two stages: the block
of 256 code points, then the position in the block. Identical blocks are stored once.
"""

from __future__ import annotations

import base64
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

FLAGS = (
    "SPACE",  # str.isspace()
    "LETTER",  # general category L*
    "DIGIT",  # Nd
    "NUMBER",  # Nl, No
    "MARK",  # M*
    "PUNCTUATION",  # P*
    "SYMBOL",  # S*
    "CONTROL",  # C*, including unassigned code points
    "UPPER",  # Lu, Lt
    "LOWER",  # Ll
    "UNSPACED",  # a letter of a script without spaces between words
    "STOP",  # Sentence_Terminal
    "WIDE_STOP",  # a stop of scripts without a space after it
    "CLOSER",  # Pe, Pf and the straight quotes: may follow a stop within its sentence
    "PICTOGRAPH",  # Extended_Pictographic
    "MARKER",  # '#' and the ellipsis, the symbols of Rae et al. 2021
)
WORD_BREAKS = (
    "Other", "CR", "LF", "Newline", "Extend", "ZWJ", "Format", "Katakana", "Hebrew_Letter", "ALetter", "Single_Quote",
    "Double_Quote", "MidNumLet", "MidLetter", "MidNum", "Numeric", "ExtendNumLet", "Regional_Indicator", "WSegSpace",
)  # fmt: skip
UNSPACED_SCRIPTS = {
    "Han", "Hiragana", "Katakana", "Bopomofo", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan", "Tai_Le", "New_Tai_Lue",
    "Tai_Tham", "Tai_Viet", "Ahom",
}  # fmt: skip
UNSPACED_SHORT = {"Hani", "Hira", "Kana", "Bopo", "Thai", "Laoo", "Khmr", "Mymr", "Tibt", "Tale", "Talu", "Lana"}
SPACES = [*range(0x09, 0x0E), *range(0x1C, 0x21), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F,
          0x205F, 0x3000]  # fmt: skip
WIDE_STOPS = [0x3002, 0xFF01, 0xFF1F, 0xFF61]
BLOCK = 256
SIZE = 0x110000


def properties(path: Path) -> Iterator[tuple[range, str]]:
    """Yield the `range ; value` lines of a UCD file."""
    for line in path.read_text(encoding="utf-8").splitlines():
        body = line.partition("#")[0].strip()
        if body:
            points, value = (part.strip() for part in body.split(";")[:2])
            first, _, last = points.partition("..")
            yield range(int(first, 16), int(last or first, 16) + 1), value


def categories(path: Path) -> list[str]:
    result = ["Cn"] * SIZE
    first = None
    for line in path.read_text(encoding="utf-8").splitlines():
        code, name, category = line.split(";")[:3]
        point = int(code, 16)
        if name.endswith(", First>"):
            first = point
            continue
        for each in range(point if first is None else first, point + 1):
            result[each] = category
        first = None
    return result


def classify(root: Path) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the class of every code point, and the (flags, word break) of every class."""
    bit = {name: 1 << index for index, name in enumerate(FLAGS)}
    flags = [0] * SIZE
    general = categories(root / "UnicodeData.txt")
    by_letter = {"L": "LETTER", "M": "MARK", "P": "PUNCTUATION", "S": "SYMBOL", "C": "CONTROL"}
    by_category = {"Nd": "DIGIT", "Nl": "NUMBER", "No": "NUMBER"}
    extra = {"Lu": "UPPER", "Lt": "UPPER", "Ll": "LOWER", "Pe": "CLOSER", "Pf": "CLOSER"}
    for point, category in enumerate(general):
        name = by_letter.get(category[0]) or by_category.get(category)
        flags[point] |= bit[name] if name else 0
        flags[point] |= bit[extra[category]] if category in extra else 0
    for point in SPACES:
        flags[point] |= bit["SPACE"]
    for point in WIDE_STOPS:
        flags[point] |= bit["WIDE_STOP"]
    for point in map(ord, "#\u2026"):
        flags[point] |= bit["MARKER"]
    for point in map(ord, "\"'"):
        flags[point] |= bit["CLOSER"]
    unspaced = {p for points, script in properties(root / "Scripts.txt") if script in UNSPACED_SCRIPTS for p in points}
    for points, scripts in properties(root / "ScriptExtensions.txt"):
        if set(scripts.split()) <= UNSPACED_SHORT:
            unspaced.update(points)
    for point in unspaced:
        if general[point] in ("Lo", "Lm", "Nl"):
            flags[point] |= bit["UNSPACED"]
    for points, value in properties(root / "PropList.txt"):
        if value == "Sentence_Terminal":
            for point in points:
                flags[point] |= bit["STOP"]
    for points, value in properties(root / "emoji" / "emoji-data.txt"):
        if value == "Extended_Pictographic":
            for point in points:
                flags[point] |= bit["PICTOGRAPH"]
    breaks = [0] * SIZE
    for points, value in properties(root / "auxiliary" / "WordBreakProperty.txt"):
        for point in points:
            breaks[point] = WORD_BREAKS.index(value)
    known: dict[tuple[int, int], int] = {}
    classes = [known.setdefault(pair, len(known)) for pair in zip(flags, breaks, strict=True)]
    assert len(known) <= 256, "a class must fit in one byte"
    return classes, list(known)


def pack(values: bytes) -> str:
    text = base64.b85encode(zlib.compress(values, 9)).decode()
    return "\n".join(f'    b"{text[start : start + 112]}"' for start in range(0, len(text), 112))


def main(root: Path, target: Path) -> None:
    version = (root / "PropList.txt").read_text(encoding="utf-8").partition("PropList-")[2].partition(".txt")[0]
    classes, kinds = classify(root)
    blocks: dict[bytes, int] = {}
    index = [blocks.setdefault(bytes(classes[start : start + BLOCK]), len(blocks)) for start in range(0, SIZE, BLOCK)]
    assert len(blocks) <= 256, "a block number must fit in one byte"
    flags = b"".join(flag.to_bytes(2, "little") for flag, _ in kinds)
    breaks = bytes(value for _, value in kinds)
    flag_lines = "\n".join(f"{name} = {1 << index}" for index, name in enumerate(FLAGS))
    break_lines = "\n".join(f"WB_{name.upper()} = {index}" for index, name in enumerate(WORD_BREAKS))
    target.write_text(
        f'''"""Properties of Unicode {version} code points, in two stages. Written by scripts/make_unicode_tables.py.

class = CLASSES[BLOCKS[point >> 8] << 8 | point & 255]        FLAGS[class], BREAKS[class]
"""

from __future__ import annotations

import base64
import zlib

import numpy as np

UNICODE_VERSION = "{version}"

{flag_lines}

{break_lines}


def _unpack(text: bytes, dtype: str) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b85decode(text)), dtype)


BLOCKS = _unpack(
{pack(bytes(index))},
    "u1",
)
CLASSES = _unpack(
{pack(b"".join(blocks))},
    "u1",
)
FLAGS = _unpack(
{pack(flags)},
    "<u2",
)
BREAKS = _unpack(
{pack(breaks)},
    "u1",
)

ALPHANUMERIC = LETTER | DIGIT | NUMBER
POINTS = np.concatenate([np.resize(BREAKS, 256), BLOCKS, CLASSES])
"""Lookup table for kernels: break of a class at 0, block of a point at 256, class in a block at 4608."""
KINDS = np.concatenate([FLAGS[CLASSES[:128]], FLAGS])
"""The flags of the first 128 code points, then the flags of each class."""
POINTS.flags.writeable = KINDS.flags.writeable = False
''',
        encoding="utf-8",
    )
    size = len(index) + len(blocks) * BLOCK + len(flags) + len(breaks)
    sys.stderr.write(f"{target}: Unicode {version}, {len(kinds)} classes, {len(blocks)} blocks, {size} bytes\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(__file__).parent.parent / "tamis" / "kernels" / "unicode_tables.py")
