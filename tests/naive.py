"""Simple reference implementations of the text kernels, and sample texts."""

# ruff: noqa: RUF001

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter

from tamis.kernels import unicode_tables as tables
from tamis.kernels.tokens import FACES, LEFT_INSIDE, MOST_BYTES, WHOLE

SAMPLES = [
    "The miller's daughter counted 1,204 sacks of flour. Was it enough? Nobody knew...\n\nShe asked again; nobody knew.",
    "Der Müller zählte die Säcke. Es waren 1.204 Stück! \"Reicht das?\", fragte er.\n- Mehl\n- Korn\n- Mehl",
    "La meunière a compté les sacs : il y en a assez. « C'est bien », dit-elle…\nElle rit. Elle rit. Elle rit.",
    "El molinero contó los sacos. ¿Bastan? ¡Claro que sí! Véase https://example.org/molino?id=7 para más.",
    "Мельник посчитал мешки. Их было много. Он сказал: «Хватит!» и ушёл домой. Их было много.",
    "Ο μυλωνάς μέτρησε τα σακιά. Ήταν αρκετά; Κανείς δεν ήξερε.",
    "عدّ الطحان الأكياس. هل تكفي؟ لا أحد يعرف. عدّ الطحان الأكياس.",
    "הטוחן ספר את השקים. האם די בכך? איש לא ידע, צה״ל וכו'.",
    "चक्कीवाले ने बोरियाँ गिनीं। क्या ये काफ़ी हैं? किसी को पता नहीं।",
    "磨坊主数了面粉袋。够了吗？没有人知道。他又数了一遍 2 次,结果一样。",
    "粉屋は袋を数えた。足りるだろうか？だれも知らない。「もう一度」とカタカナで言った。",
    "คนโม่แป้งนับกระสอบแป้ง พอไหม ไม่มีใครรู้ เขานับอีกครั้ง",
    "방앗간 주인이 자루를 세었다. 충분할까? 아무도 몰랐다.",
    "Değirmenci çuvalları saydı. Yeter mi? Kimse bilmiyordu, İstanbul'da bile.",
    "Người thợ xay đếm bao bột. Có đủ không? Không ai biết cả.",
    "👩‍🌾 counted 🌾🌾🌾 and 🇫🇷🇩🇪 flags! e\u0301t\u00e9 #flour ## … [...] -»",
]  # fmt: skip

ODD = [
    "", " ", "\n", "\n\n\n", "\r\n\r\n", "a", ".", "...", "…", "é", "你", "\u0301", "\u200d", "#", "\u00a0", "\u3000",
    "\x00", "\x1c\x1d", "a\x00b", "\ufeffa", "\u202eabc\u202c", "a" * 5000, ". " * 300, "\u4f60" * 3000, " " * 5000,
    "a b " * 2500, "line\r\nline\r\n\r\nline", "tab\tbed\vform\fend\x85next\u2028last", "http://", "x http://a b",
    "https://a.b/porn/c?d=e\" z", "read more", "Read More..", "(...)", ". . .", "a. . . b", "'\"'\"", "_a_ _", "1,2.3'4",
]  # fmt: skip

ALPHABET = sorted({character for text in SAMPLES + ODD for character in text} | set("aAzZ019.!?#{}()[]:/-*•●◦\"'\n \r"))


def is_unspaced(character: str) -> bool:
    if unicodedata.category(character) not in ("Lo", "Lm", "Nl"):
        return False
    name = unicodedata.name(character, "")
    scripts = ("CJK UNIFIED", "HIRAGANA", "KATAKANA", "THAI", "LAO ", "KHMER", "MYANMAR", "TIBETAN", "IDEOGRAPHIC")
    return name.startswith(scripts)


def words(text: str, mode: str) -> list[str]:
    if mode == "unicode":
        return [part for part in segments(text) if any(c.isalnum() for c in part)]
    result = []
    for run in text.split():
        if mode == "whitespace":
            result.append(run)
            continue
        if mode == "tokens":
            result += tokens(run) if len(run.encode()) <= MOST_BYTES else [run]
            continue
        word, alone = "", False
        for character in run:
            single = character.isalnum() if mode == "characters" else is_unspaced(character)
            if any(c.isalnum() for c in word) and (single or (alone and character.isalnum())):
                result.append(word)
                word, alone = "", False
            word += character
            alone = alone or single
        result.append(word)
    return result


def _is_sign(character: str) -> bool:
    return character not in LEFT_INSIDE and unicodedata.category(character)[0] in "PS"


def _is_icon(character: str) -> bool:
    return character == "…" or (not character.isascii() and unicodedata.category(character)[0] == "S")


def tokens(run: str) -> list[str]:
    """Return the tokens of a run without spaces, split off from both ends; see `kernels.tokens`."""
    front: list[str] = []
    while run and (sign := _first_sign(run)):
        front.append(sign)
        run = run[len(sign) :]
    end = len(run)
    while end and (size := _last_sign(run[:end])):
        end -= size
    rest, run, back = run[end:], run[:end], []
    while rest:
        back.append(_first_sign(rest) or rest[0])
        rest = rest[len(back[-1]) :]
    found = re.fullmatch(r"(.*[^\W_])(['’]s)|([^\W\d_]+)(n['’]t|['’](?:m|d|ll|ve|re))", run, re.I | re.S)
    if found and _splits_off(found[1] or found[3], found[1] is not None):
        run = found[1] or found[3]
        back.insert(0, found[2] or found[4])
    return [*front, *(inner_tokens(run) if run else []), *back]


def _splits_off(before: str, possessive: bool) -> bool:
    if possessive:
        return before[-1].isalpha() or before[-1].isdecimal()
    return before.isalpha()


def _first_sign(run: str) -> str:
    if dots := re.match(r"\.\.+", run):
        return dots[0]
    if run[:2] in FACES:
        return run[:2]
    if run[0] == "+":
        return "" if run[1:2] and run[1] in "0123456789" else "+"
    return run[0] if _is_sign(run[0]) else ""


def _last_sign(run: str) -> int:
    if _is_sign(run[-1]):
        return 1
    if run[-1] == "+":
        return int(run[-2:-1].isdecimal())
    if run[-1] != "." or run == ".":
        return 0
    if dots := re.search(r"\.\.+$", run):
        return len(dots[0])
    before, further = run[-2], run[-3:-2]
    if not before.isalpha():
        return int(before.isdecimal() or before in "-+" or _is_sign(before))
    if run in WHOLE or len(run) == 2:
        return 0
    alone = not further.isalpha() and (unicodedata.category(before) in ("Lu", "Lt") or further == ".")
    return int(not alone)


def inner_tokens(run: str) -> list[str]:
    result, word, at = [], "", 0
    while at < len(run):
        size = _inner_size(run, at)
        if size and (run in WHOLE or _is_address(run)):
            return [run]
        if size:
            result += [word, run[at : at + size]]
            word, at = "", at + size
        else:
            word, at = word + run[at], at + 1
    return [part for part in [*result, word] if part]


def _inner_size(run: str, at: int) -> int:
    here, before, after = run[at], run[at - 1] if at else "", run[at + 1 :]
    if dots := re.match(r"\.\.+", run[at:]):
        return len(dots[0])
    if _is_icon(here):
        return 1
    if not after or not (before.isalpha() or before.isdecimal()):
        return 0
    if here == ".":
        capital = after[0].isalpha() and unicodedata.category(after[0]) != "Ll"
        return int(before.isalpha() and unicodedata.category(before) not in ("Lu", "Lt") and capital)
    if here == ",":
        return int(before.isalpha() and after[0].isalpha())
    if here in ":<>=/":
        return int(after[0].isalpha())
    if here in "-+*^" and before.isdecimal() and (after[0].isdecimal() or after[0] == "-"):
        return 1
    dash = re.match(r"-{1,3}|—{1,2}|–|~", run[at:])
    return len(dash[0]) if dash and run[at + len(dash[0]) :][:1].isalpha() else 0


def _is_address(run: str) -> bool:
    scheme = re.match(r"(?:[A-Za-z0-9_+.-]|[^\x00-\x7f])+", run)
    if (
        scheme
        and len(scheme[0].encode()) > 1
        and run[scheme.end() : scheme.end() + 3] == "://"
        and run[scheme.end() + 3 :]
    ):
        run = run[scheme.end() + 3 :]
    elif scheme and run[scheme.end() :] == "://":
        return False
    run = run.rpartition("@")[2]
    label = r"(?:[A-Za-z0-9]|[^\x00-\x7f])(?:(?:[A-Za-z0-9_-]|[^\x00-\x7f])*(?:[A-Za-z0-9]|[^\x00-\x7f]))?"
    return re.match(rf"(?:{label}\.)+[a-z]{{2,}}(?:$|:[0-9].|[/?#])", run, re.S) is not None


def word_break(character: str) -> str:
    point = ord(character)
    kind = int(tables.POINTS[tables.CLASSES[int(tables.BLOCKS[point >> 8]) << 8 | point & 255]])
    names = {value: name[3:] for name, value in vars(tables).items() if name.startswith("WB_")}
    return names[kind]


def segments(text: str) -> list[str]:
    """Return the UAX #29 word segments, applying each rule to the whole list of characters."""
    kinds = [word_break(character) for character in text]
    letters, ignored = ("ALETTER", "HEBREW_LETTER"), ("EXTEND", "FORMAT", "ZWJ")
    newlines = ("CR", "LF", "NEWLINE")
    middle, number = ("MIDLETTER", "MIDNUMLET", "SINGLE_QUOTE"), ("MIDNUM", "MIDNUMLET", "SINGLE_QUOTE")

    def before(index: int) -> int:
        while index >= 0 and kinds[index] in ignored and index > 0 and kinds[index - 1] not in newlines:
            index -= 1
        return index

    def kind(index: int) -> str:
        return kinds[index] if 0 <= index < len(kinds) else ""

    def after(index: int) -> int:
        while index < len(kinds) and kinds[index] in ignored:
            index += 1
        return index

    def joined(at: int) -> bool:
        left, right = kinds[at - 1], kinds[at]
        if left == "CR" and right == "LF":
            return True
        if left in newlines or right in newlines:
            return False
        point = ord(text[at])
        flags = int(tables.FLAGS[tables.CLASSES[int(tables.BLOCKS[point >> 8]) << 8 | point & 255]])
        if left == "ZWJ" and flags & tables.PICTOGRAPH:
            return True
        if left == right == "WSEGSPACE":
            return True
        if right in ignored:
            return True
        last = before(at - 1)
        left, further = kind(last), kind(before(last - 1)) if last > 0 else ""
        following = kind(after(at + 1))
        wordlike = (*letters, "NUMERIC", "KATAKANA")
        if left == "REGIONAL_INDICATOR" and right == "REGIONAL_INDICATOR":
            count, index = 0, last
            while index >= 0 and kind(index) == "REGIONAL_INDICATOR":
                count, index = count + 1, before(index - 1) if index > 0 else -1
            return count % 2 == 1
        return (
            (left in letters and right in letters)
            or (left in letters and right in middle and following in letters)
            or (further in letters and left in middle and right in letters)
            or (left == "HEBREW_LETTER" and right == "SINGLE_QUOTE")
            or (left == "HEBREW_LETTER" and right == "DOUBLE_QUOTE" and following == "HEBREW_LETTER")
            or (further == "HEBREW_LETTER" and left == "DOUBLE_QUOTE" and right == "HEBREW_LETTER")
            or (left == "NUMERIC" and right == "NUMERIC")
            or (left in letters and right == "NUMERIC")
            or (left == "NUMERIC" and right in letters)
            or (further == "NUMERIC" and left in number and right == "NUMERIC")
            or (left == "NUMERIC" and right in number and following == "NUMERIC")
            or (left == "KATAKANA" and right == "KATAKANA")
            or (left in (*wordlike, "EXTENDNUMLET") and right == "EXTENDNUMLET")
            or (left == "EXTENDNUMLET" and right in wordlike)
        )

    result: list[str] = []
    for at, character in enumerate(text):
        if at and joined(at):
            result[-1] += character
        else:
            result.append(character)
    return result


def word_stats(text: str, mode: str, listed: tuple[str, ...]) -> dict[str, float]:
    found = words(text, mode)
    lengths = sorted(map(len, found))
    capped = [min(length, 1023) for length in lengths]
    plain = [word for word in found if any(c.isalnum() for c in word)]
    middle = len(lengths) // 2
    median = 0.0
    if lengths:
        median = capped[middle] if len(capped) % 2 else (capped[middle - 1] + capped[middle]) / 2
    ellipses = {"...", "[...]", "(...)", "…", "[…]", "(…)", "-»", "(-»)", "[-»]"}
    return {
        "words": len(found),
        "chars": sum(lengths),
        "longest": max(lengths, default=0),
        "alphabetic": sum(any(c.isalpha() for c in word) for word in found),
        "plain": len(plain),
        "plain_chars": sum(map(len, plain)),
        "symbols": sum(word in ellipses or 2 * word.count("#") > len(word) for word in found),
        "marked": sum("#" in word or "…" in word for word in found),
        "listed": sum(_lower(word) in listed for word in found),
        "listed_exact": sum(word in listed for word in found),
        "listed_distinct": len(set(found) & set(listed)),
        "median_twice": 2 * median,
    }


def _lower(word: str) -> str:
    return "".join(c.lower() if c.isascii() else c for c in word)


def _is_stop(character: str) -> bool:
    point = ord(character)
    return bool(tables.FLAGS[tables.CLASSES[int(tables.BLOCKS[point >> 8]) << 8 | point & 255]] & tables.STOP)


def _is_closer(character: str) -> bool:
    return character in "\"'" or unicodedata.category(character) in ("Pe", "Pf")


def _sentences_of_line(line: str) -> int:
    bare = [not (_is_stop(c) or _is_closer(c) or c.isspace()) for c in line]
    if not any(bare):
        return 0
    count, at = 1, 0
    while at < len(line):
        if not _is_stop(line[at]):
            at += 1
            continue
        stop = at
        while stop < len(line) and not bare[stop]:
            stop += 1
        run = line[at:stop]
        dots = all(c == "." for c in run if _is_stop(c))
        wide = any(c in "。！？｡" for c in run)
        spaced = any(c.isspace() for c in run)
        lower = stop < len(line) and unicodedata.category(line[stop]) == "Ll"
        # a single stop directly followed by another character decides only about itself
        if stop < len(line) and any(bare[:at]) and (spaced or wide) and not (dots and lower):
            count += 1
        at = max(stop, at + 1)
    return count


def text_stats(text: str) -> dict[str, float]:
    category = [unicodedata.category(c) for c in text]
    lines = text.split("\n")
    filled = [line for line in lines if line.strip()]
    trimmed = [line.strip() for line in filled]
    raw = [line[:-1] if line.endswith("\r") else line for line in filled]
    parts = re.split(r"\n(?:\r?\n)+", re.sub(r"^(?:\r?\n)+", "\n\n", text))
    paragraphs = [part.strip() for part in parts if part.strip()]
    urls = re.findall(r"https?://[^\s<>\"'\x1c-\x1f\x85]+", text)
    teasers = ("[...]", "(...)", "[…]", "-»", "read more", "read more..")
    others = "‣⁃⁌⁍∙○◘◦⦾⦿"
    result: dict[str, float] = {
        "chars": len(text),
        "letters": sum(c[0] == "L" for c in category),
        "digits": category.count("Nd"),
        "numbers": category.count("Nl") + category.count("No"),
        "upper": category.count("Lu") + category.count("Lt"),
        "punctuation": sum(c[0] == "P" for c in category),
        "symbols": sum(c[0] == "S" for c in category),
        "marks": sum(c[0] == "M" for c in category),
        "spaces": sum(c.isspace() for c in text),
        "plain": len(re.findall(r"[a-zA-Z0-9\n?!,.]", text)),
        "signs": len(re.findall(r"[\n?!,.]", text)),
        "blanks": len(re.findall("[ \t\n\r\b]", text)),
        "brackets": len(re.findall(r"[()\[\]{}⟨⟩]", text)),
        "hashes": text.count("#"),
        "curly": text.count("{"),
        "ellipses": text.count("...") + text.count("…"),
        "spaced_ellipses": text.count(". . ."),
        "urls": len(urls),
        "url_chars": sum(map(len, urls)),
        "porn_urls": sum("porn" in url.partition("://")[2].lower() for url in urls),
        "newlines": text.count("\n"),
        "last_line_open": int(bool(lines[-1])),
        "first_line_open": int(bool(text) and text[0] != "\n"),
        "lines": len(filled),
        "longest_line": max(map(len, lines)),
        "short_lines": sum(len(line) <= 30 for line in filled),
        "long_lines": sum(len(line) >= 200 for line in filled),
        "dash_lines": sum(line[0] == "-" for line in trimmed),
        "star_lines": sum(line[0] == "*" for line in trimmed),
        "bullet_lines": sum(line[0] == "•" for line in trimmed),
        "disc_lines": sum(line[0] == "●" for line in trimmed),
        "other_bullet_lines": sum(line[0] in others for line in trimmed),
        "untrimmed_bullet_lines": sum(line[0] in "-*" for line in filled),
        "marked_lines": sum(line[-1] in ".?!\"'" for line in trimmed),
        "marked_lines_untrimmed": sum(line[-1] in ".?!\"'" for line in raw),
        "stopped_lines_untrimmed": sum(_is_stop(line[-1]) for line in raw),
        "ellipsis_lines": sum(line.endswith(("...", "…")) for line in trimmed),
        "ellipsis_lines_untrimmed": sum(line.endswith("…") for line in raw),
        "spaced_ellipsis_lines": sum(line.endswith(". . .") for line in trimmed),
        "teaser_lines": sum(_ascii_lower(line).endswith(teasers) for line in trimmed),
        "sentences": sum(map(_sentences_of_line, lines)),
        "paragraphs": len(paragraphs),
    }
    for name, units in (("line", filled), ("trimmed_line", trimmed), ("paragraph", paragraphs)):
        counts = Counter(units)
        result[f"{name}_chars"] = sum(map(len, units))
        result[f"{name}_later"] = len(units) - len(counts)
        result[f"{name}_later_chars"] = sum(len(unit) * (count - 1) for unit, count in counts.items())
        result[f"{name}_all"] = sum(count for count in counts.values() if count > 1)
        result[f"{name}_all_chars"] = sum(len(unit) * count for unit, count in counts.items() if count > 1)
    return result


_ascii_lower = _lower


def ngram_stats(found: list[str], n: int) -> dict[str, int]:
    grams = list(zip(*(found[start:] for start in range(n)), strict=False))
    counts = Counter(grams)
    size = {gram: sum(map(len, gram)) for gram in counts}
    top, most = counts.most_common(1)[0] if counts else ((), 0)
    covered: set[int] = set()
    later, overlap, seen = 0, 0, set()
    for at, gram in enumerate(grams):
        if counts[gram] > 1:
            covered.update(range(at, at + n))
        if gram in seen:
            later += sum(map(len, gram[overlap:])) + min(n - overlap, n - 1)
            overlap = n
        seen.add(gram)
        overlap = max(overlap - 1, 0)
    greedy, at, read = 0, 0, set()
    while at < len(grams):
        if grams[at] in read:
            greedy += size[grams[at]]
            at += n
        else:
            read.add(grams[at])
            at += 1
    return {
        "top_count": most,
        "top_chars": size.get(top, 0),
        "top_chars_longest": max((size[gram] for gram in counts if counts[gram] == most > 1), default=size.get(top, 0)),
        "all_chars": sum(size[gram] for gram in grams if counts[gram] > 1),
        "total_chars": sum(size[gram] for gram in grams),
        "covered_chars": sum(len(found[index]) for index in covered),
        "greedy_chars": greedy,
        "later_chars": later,
        "all_count": sum(count for count in counts.values() if count > 1),
        "total_count": len(grams),
    }


def character_ngram_stats(text: str, n: int) -> dict[str, int]:
    counts = Counter(text[at : at + n] for at in range(len(text) - n + 1))
    top = [count for _, count in counts.most_common(math.isqrt(len(counts)))]
    return {"top": sum(count for count in top if count > 1), "all": counts.total()}


def bare_words(text: str, mode: str) -> list[str]:
    """The words from their first letter to their last and the marks after it, in lower case."""
    found = []
    for word in words(text.lower(), mode):
        letters = [at for at, character in enumerate(word) if character.isalpha()]
        if letters:
            stop = letters[-1] + 1
            while stop < len(word) and unicodedata.category(word[stop])[0] == "M":
                stop += 1
            found.append(word[letters[0] : stop])
    return found


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Return the start and end of each sentence as MADLAD-400 defines them, without blank ones."""
    parting = [found.span() for found in re.finditer(r"[.!?]+\s+", text)]
    starts, stops = [0, *(after for _, after in parting)], [*(before for before, _ in parting), len(text)]
    return [(start, stop) for start, stop in zip(starts, stops, strict=True) if text[start:stop].strip()]


def sentence_stats(
    text: str, limits: tuple[int, float, int, int, float], phrases: tuple[str, ...] = ()
) -> dict[str, int]:
    """Count sentences and questionable ones, see `kernels.sentences`. A word belongs to the sentence in which it ends."""
    list_words, list_share, min_chars, max_chars, technical_share = limits
    at, ended = 0, []
    for part in segments(text):
        at += len(part)
        if any(c.isalnum() for c in part):
            ended.append((at - 1, unicodedata.category(part[0]) in ("Lu", "Lt")))
    questionable = 0
    spans = sentence_spans(text)
    for start, stop in spans:
        sentence = text[start:stop]
        capitals = [capital for last, capital in ended if start <= last < stop]
        listing = len(capitals) >= list_words and sum(capitals) > list_share * len(capitals)
        length = not min_chars <= len(sentence) <= max_chars
        technical = sum(c in "0123456789{}+/()>" for c in sentence) > technical_share * len(sentence)
        questionable += listing or length or technical or any(phrase in sentence for phrase in phrases if phrase)
    return {"sentences": len(spans), "questionable": questionable}
