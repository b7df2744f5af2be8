"""Wikitext to text: links by their label, templates and references out, tables and infoboxes if requested.

Constructs that nest (templates, tables, links) are replaced from the inside out: one pass over the text per level, and at most
`_LEVELS`. What is left after that is markup that never ends, and is removed.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

_LEVELS = 40
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_REFERENCE = re.compile(
    r"<ref\b[^>/]{0,500}/>|<ref\b[^<>]{0,500}>(?:(?!<ref\b).){0,20000}?</ref\s*>", re.DOTALL | re.IGNORECASE
)
_DROPPED = re.compile(
    r"<(gallery|timeline|imagemap|score|references|templatestyles|graph|mapframe|maplink|indicator)\b[^<>]*"
    r"(?:/>|>(?:(?!<\1\b).){0,50000}?</\1\s*>)",
    re.DOTALL | re.IGNORECASE,
)
_MATH = re.compile(r"<(math|chem)\b[^<>]{0,500}>((?:(?!<\1\b).){0,5000}?)</\1\s*>", re.DOTALL | re.IGNORECASE)
_TEMPLATE = re.compile(r"\{\{([^{}]*+)\}\}")
_PARAMETER = re.compile(r"\{\{\{[^{}]*\}\}\}")
_TABLE = re.compile(r"\{\|((?:[^{|]++|\{(?!\|)|\|(?!\}))*+)\|\}")
_LINK = re.compile(r"\[\[((?:[^\[\]]++|\[(?!\[)[^\[\]]*+\](?!\](?!\])))*+)\]\]([a-z]*)")
_GONE = "\x04"
"""Stands for a template of which nothing is shown, until parentheses that had nothing else are removed."""
_BETWEEN = " \t\u00a0,;:/"
_URL = re.compile(r"\[(?:https?:|ftp:)?//[^\s\[\]]++[ \t]*+([^\[\]]*+)\]")
_HEADING = re.compile(r"^=.*=[ \t]*$", re.MULTILINE)
_HIGHEST = 6
_BREAK = re.compile(r"<br\s*/?>|</?p\s*>|</?div\b[^<>]*>", re.IGNORECASE)
_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,2000}>")
_MAGIC = re.compile(r"__[A-Z]{3,}__")
_LIST = re.compile(r"^([*#:;]+)[ \t]*", re.MULTILINE)
_LEFT = re.compile(r"\{\{|\}\}|\[\[|\]\]|^\{\|.*$|^\|[-}+].*$", re.MULTILINE)
_SPACES = re.compile(r"[ \t\u00a0]{2,}")
_LINES = re.compile(r"\n{3,}")
_MEDIA = re.compile(
    r"\s*(?:file|image|media|datei|bild|fichier|archivo|imagen|immagine|ficheiro|imagem|bestand|plik|файл|изображение|ファイル|画像|"
    r"文件|파일|ملف|קובץ|soubor|fil|kuva|dosya|tập tin|berkas)\s*:",
    re.IGNORECASE,
)
_CATEGORY = re.compile(
    r"\s*(?:category|kategorie|catégorie|categoría|categoria|categorie|kategoria|категория|категорія|カテゴリ|分类|分類|분류|تصنيف|"
    r"קטגוריה|kategori|luokka|kategória|thể loại)\s*:",
    re.IGNORECASE,
)
_INTERWIKI = re.compile(r"\s*[a-z]{2,3}(?:-[a-z]{2,10})?:[^:]", re.IGNORECASE)
_LAST = frozenset(  # templates that show their last parameter
    [
        "lang",
        "nowrap",
        "nobr",
        "small",
        "smaller",
        "big",
        "large",
        "transl",
        "transliteration",
        "abbr",
        "tooltip",
        "quote",
        "quotation",
        "cquote",
        "blockquote",
        "em",
        "strong",
        "sc",
        "smallcaps",
        "nihongo",
        "ipa",
        "math",
        "mvar",
        "var",
        "sub",
        "sup",
        "not_a_typo",
        "sic",
        "center",
        "color",
        "font",
        "linktext",
        "langx",
        "wikt-lang",
        "nobold",
        "resize",
        "keypress",
    ]
)
_FIRST = frozenset(
    [
        "as of",
        "circa",
        "c.",
        "val",
        "num",
        "formatnum:",
        "nts",
        "ill",
        "interlanguage link",
        "convert",
        "cvt",
        "angbr",
        "ipac-en",
    ]
)


@dataclass(frozen=True)
class Options:
    """What to keep of the markup."""

    markdown: bool = False
    tables: bool = False
    infoboxes: bool = False


def wikitext_to_text(source: str, options: Options = Options()) -> str:  # noqa: B008  frozen
    """
    >>> wikitext_to_text("'''Rye''' is a [[cereal|grain]] {{cn}}of [[Europe]]ans.<ref>A book</ref>\\n== Uses ==\\n* Bread")
    'Rye is a grain of Europeans.\\n\\nUses\\n\\nBread'
    """
    text = _COMMENT.sub("", re.sub("[\x01-\x04]", "", source))
    text = _DROPPED.sub("", _REFERENCE.sub("", text))
    text = _MATH.sub(
        lambda found: f"${html.unescape(found[2]).strip()}$".replace("{{", "{ {").replace("}}", "} }"), text
    )
    text = _repeated(_PARAMETER, "", text)
    text = _repeated(_TEMPLATE, partial(_template, options=options), text)
    text = _without_templates(text)
    text = _repeated(_TABLE, partial(_table, options=options), text)
    text = _repeated(_LINK, _link, text)
    text = _URL.sub(r"\1", text)
    text = _BREAK.sub("\n", text)
    text = _TAG.sub("", text)
    text = _LEFT.sub("", _MAGIC.sub("", text))
    bold, italic = (_BOLD, _ITALIC) if options.markdown else ("", "")
    if "''" in text:
        text = text.replace("'''''", bold + italic).replace("'''", bold).replace("''", italic)
    text = _LIST.sub(_marker if options.markdown else "", text)
    text = _HEADING.sub(_heading, text)
    if "&" in text:
        text = html.unescape(text)
    return _tidy(text.replace(_BOLD, "**").replace(_ITALIC, "*"), options.markdown)


def _repeated(pattern: re.Pattern[str], replacement: str | Callable[[re.Match[str]], str], text: str) -> str:
    for _ in range(_LEVELS):
        text, count = pattern.subn(replacement, text)
        if not count:
            break
    return text


def _template(found: re.Match[str], options: Options) -> str:
    name, *parameters = found[1].split("|")
    name = name.strip().lower().replace("_", " ")
    if options.infoboxes and name.startswith(("infobox", "taxobox", "speciesbox")):
        lines = [parameter.replace(_GONE, "").partition("=") for parameter in parameters if "=" in parameter]
        return "\n".join(f"{key.strip()}: {value.strip()}" for key, _, value in lines if value.strip()) + "\n"
    plain = [parameter.strip() for parameter in parameters if "=" not in parameter.partition("|")[0][:30]]
    if not plain:
        return _GONE
    if name in _LAST or name.startswith(("lang-", "lang ")):
        return plain[-1]
    if name in ("convert", "cvt"):
        return " ".join(plain[:2])
    if name in ("frac", "sfrac", "fraction"):  # 2, 1/2 or 3 1/2
        return " ".join([*plain[:-2], "/".join(plain[-2:])])
    if name in ("chem", "chem2"):
        return "".join(plain)
    if name in _FIRST:
        return ("As of " if name == "as of" else "c. " if name in ("circa", "c.") else "") + plain[0]
    return _GONE


def _without_templates(text: str) -> str:
    """The text without the places of templates, and without what is empty because of them.

    >>> _without_templates("Rye (\x04; a grain) is Roggen (German: \x04) (\x04, \x04).")
    'Rye (a grain) is Roggen (German).'
    """
    first, *others = text.split(_GONE)
    parts = [first]
    for part in others:
        before, after = parts[-1].rstrip(_BETWEEN), part.lstrip(_BETWEEN)
        opened, closed = before.endswith("("), after.startswith(")")
        if opened and closed:
            before, after = before[:-1].rstrip(" \t"), after[1:]
        if opened or closed:
            parts[-1] = before
            parts += [after] if after else []
        else:
            parts.append(part)
    return "".join(parts)


def _table(found: re.Match[str], options: Options) -> str:
    if not options.tables:
        return ""
    rows = []
    for part in re.split(r"^[ \t]*\|-.*$", found[1], flags=re.MULTILINE):
        cells = re.split(r"^[ \t]*[|!]\+?|\|\||!!", part, flags=re.MULTILINE)[1:]
        values = [_TAG.sub("", cell.rpartition("|")[2] if "[[" not in cell else cell).strip() for cell in cells]
        if any(values):
            rows.append(" | ".join(values))
    if options.markdown and rows:
        rows.insert(1, " | ".join(["---"] * (rows[0].count(" | ") + 1)))
    return "\n" + "\n".join(rows) + "\n"


def _link(found: re.Match[str]) -> str:
    inner, tail = found[1], found[2]
    if _MEDIA.match(inner) or _CATEGORY.match(inner) or (_INTERWIKI.match(inner) and "|" not in inner):
        return tail
    label = inner.rpartition("|")[2] if "|" in inner else inner.lstrip(":")
    return label + tail


def _marker(found: re.Match[str]) -> str:
    kind = found[1][-1]
    indent = "  " * (len(found[1]) - 1)
    return indent + ("- " if kind == "*" else "1. " if kind == "#" else "")


def _heading(found: re.Match[str]) -> str:
    line = found[0].rstrip(" \t")
    before, after = (len(line) - len(rest) for rest in (line.lstrip("="), line.rstrip("=")))
    level = min(_HIGHEST, before, after, (len(line) - 1) // 2)
    title = line[level:-level].strip(" \t")
    return f"\n\n{_MARK * level}{title}\n\n" if level else found[0]


_MARK, _BOLD, _ITALIC = "\x01", "\x02", "\x03"
"""As many as the level of a heading precede it."""
_TEXT = 7
"""The level of lines that are no headings."""


def _tidy(text: str, markdown: bool) -> str:
    """Lines without spaces around them, and without headings of sections in which nothing is."""
    lines = [line.strip() if line[:2] != "  " else line.rstrip() for line in _SPACES.sub(" ", text).split("\n")]
    kept: list[str] = []
    below = 0
    for line in reversed(lines):
        title = line.lstrip(_MARK)
        level = len(line) - len(title) or _TEXT
        if level == _TEXT:
            below = _TEXT if line else below
        elif below <= level:
            continue
        else:
            below, line = level, f"{'#' * level} {title}" if markdown else title
        kept.append(line)
    return _LINES.sub("\n\n", "\n".join(reversed(kept))).strip()
