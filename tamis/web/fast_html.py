"""HTML to text in one pass over its tags, without a tree.

    tags and texts  -->  blocks: a text between two tags that break lines, its words, its words in links, and where it is
    blocks          -->  content or boilerplate, by the lengths and link densities of a block and its neighbours
    content blocks  -->  the smallest element that holds most of them, and what it contains

The second step is the decision tree of Kohlschuetter, Fankhauser and Nejdl ("Boilerplate Detection using Shallow Text
Features", WSDM 2010, section 4.5), with elements that say what they are (nav, footer, class="share") left out. Every
step is linear in the size of the page.
"""

from __future__ import annotations

import functools
import html as entities
import re
from dataclasses import dataclass, field

import numpy as np

from tamis.kernels import tags

_QUOTED = f"{{0,{tags.MOST_QUOTED}}}"
_ATTRIBUTES = rf"(?:[^>\"']++|\"[^\"]{_QUOTED}+\"|'[^']{_QUOTED}+'){{0,{tags.MOST_PIECES}}}+"
_TOKEN = re.compile(rf"<(?:!--|(/?)([a-zA-Z][a-zA-Z0-9]{{0,20}})\b({_ATTRIBUTES})>|([a-zA-Z/!?])[^>]*>?)")
_VALUE = r"\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s>\"']+))"
_BLOCK_ATTRIBUTE = re.compile(rf"\s(class|id|role|style|aria-hidden|itemprop|lang){_VALUE}", re.IGNORECASE)
_META_ATTRIBUTE = re.compile(rf"\s(property|name|content|itemprop){_VALUE}", re.IGNORECASE)
_LINK_ATTRIBUTE = re.compile(rf"\s(href|datetime){_VALUE}", re.IGNORECASE)
_HREF = re.compile(r"\shref\s*=", re.IGNORECASE)  # without one, it is a place that links lead to
_HIDDEN = re.compile(r"\shidden(?=[\s/=]|$)", re.IGNORECASE)
_RAW = frozenset(
    [
        "script",
        "style",
        "noscript",
        "template",
        "svg",
        "iframe",
        "math",
        "object",
        "textarea",
        "select",
        "canvas",
        "audio",
        "video",
    ]
)
_RAW_END = {tag: re.compile(rf"</{tag}\b", re.IGNORECASE) for tag in _RAW}
_VOID = frozenset(
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"]
)
_BLOCKS = frozenset(
    [
        "address",
        "article",
        "aside",
        "blockquote",
        "body",
        "caption",
        "center",
        "dd",
        "details",
        "dialog",
        "dir",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figcaption",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "header",
        "hgroup",
        "hr",
        "html",
        "legend",
        "li",
        "main",
        "menu",
        "nav",
        "ol",
        "option",
        "p",
        "pre",
        "section",
        "summary",
        "table",
        "tbody",
        "td",
        "tfoot",
        "th",
        "thead",
        "tr",
        "ul",
    ]
)
_HEADINGS = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))
_LEFT_OUT = frozenset(("nav", "footer", "aside", "form", "menu", "dialog", "figcaption", "button", "option", "address"))
_CLOSED_BY_BLOCK = frozenset(("p", "h1", "h2", "h3", "h4", "h5", "h6"))
_CLOSED_BY_SAME = frozenset(("li", "tr", "td", "th", "dd", "dt"))
_ROLES = frozenset(
    ("navigation", "banner", "contentinfo", "complementary", "search", "dialog", "menu", "menubar", "toolbar")
)
_BOILERPLATE = re.compile(
    r"(?:^|[ _-])(?:nav|navbar|navigation|menu|submenu|foot|footer|sidebar|side-?bar|comments?|commentlist|disqus|respond|"
    r"sharing|sharedaddy|social|socials|related|recommend(?:ed|ations?)?|newsletters?|adverts?|advertisement|adbox|cookies?|"
    r"consent|gdpr|breadcrumbs?|pagination|pager|popup|toolbar|sign-?up|log-?in|disclaimer|copyright|outbrain|taboola|"
    r"visually-hidden|sr-only|screen-reader-text|most-?read|most-?popular|trending|more-stories|see-also|author-?bio|"
    r"skip-?link|masthead|printfooter|catlinks|mw-editsection|jump-?to)(?:[ _-]|$)",
    re.IGNORECASE,
)
_DOUBTFUL = re.compile(
    r"(?:^|[ _-])(?:share|promo|promos|subscribe|subscription|ads?|sponsor(?:ed)?|modal|overlay|widgets?|tags?|taglist|"
    r"captions?|credits?|hidden|hide|read-?more|byline|metadata|postmeta|entry-meta|post-meta|timestamp|teaser|teasers|trailer|infobox|toc|"
    r"follow|rating|ratings|gallery|carousel|slideshow|playlist|donate)(?:[ _-]|$)",
    re.IGNORECASE,
)
"""Names that pages also give to the element of the article: `tag-poetry` is on a post that has this tag."""
_ARTICLE = re.compile(
    r"(?:^|[ _-])(?:article-?body|post-?body|entry-?content|post-?content|article-?content|story-?body|articletext)(?:[ _-]|$)",
    re.IGNORECASE,
)
_NONE_SHOWN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
_UNSEPARATED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uff9f\U00020000-\U0003ffff]+"
)
"""Thai, Lao, Tibetan, Burmese, Khmer, kana and Chinese characters, with their punctuation."""
_CHARS_PER_WORD = 2
"""Of scripts that do not separate words. Words of Chinese and Japanese have about two, those of Thai a few more."""
_MOST = 2 / 3
MAX_DEPTH = 512
"""Deeper elements count as if they were at this depth."""


@dataclass(slots=True)
class _Block:
    text: str
    tag: str
    element: int
    words: int
    link_words: int
    left_out: bool
    depth: int
    content: bool = False

    @property
    def density(self) -> float:
        return self.link_words / self.words if self.words else 0.0


@dataclass(slots=True)
class Page:
    """What a page contains: blocks of text, the elements they are in, and what its head says."""

    title: str | None = None
    language: str | None = None
    meta: dict[str, str] = field(default_factory=dict)
    links: list[str] = field(default_factory=list)
    times: list[str] = field(default_factory=list)
    blocks: list[_Block] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    marked: list[bool] = field(default_factory=list)
    doubtful: list[bool] = field(default_factory=list)
    """Elements to leave out unless they hold most of the content: hidden ones, and those with names of `_DOUBTFUL`."""
    depth: int = 0


def _attributes(text: str, pattern: re.Pattern[str]) -> dict[str, str]:
    return {each[0].lower(): each[1] or each[2] or each[3] for each in pattern.findall(text)} if "=" in text else {}


def parse(page: str) -> Page:
    """Tokenize a page."""
    return _Parser(page).run()


class _Parser:
    """Goes through the tags of a page once."""

    def __init__(self, page: str) -> None:
        self._source = page
        self._page = Page(parents=[-1], tags=["html"], marked=[False], doubtful=[False])
        self._stack: list[tuple[str, int, bool]] = [("html", 0, False)]  # tag, element, left out
        self._parts: list[str] = []
        self._linked = 0.0
        self._in_link = False
        self._inline_depth = 0  # inline elements that are open since the last block

    def run(self) -> Page:
        source, page = self._source, self._page
        at, end = 0, len(source)
        search = _TOKEN.search
        while at < end:
            found = search(source, at)
            if found is None:
                self._text(source[at:])
                break
            if found.start() > at:
                self._text(source[at : found.start()])
            at = found.end()
            tag = found[2]
            if tag is None:
                if found[0] == "<!--":
                    stop = source.find("-->", at)
                    at = stop + 3 if stop >= 0 else end
                continue
            tag = tag.lower()
            if found[1]:
                self._close(tag)
            elif tag in _RAW:
                closing = _RAW_END[tag].search(source, at)
                at = closing.start() if closing else end
            elif tag in _BLOCKS:
                self._open(tag, found[3])
            elif tag == "title" and page.title is None:
                begin, at = at, source.find("<", at)
                at = at if at >= 0 else end
                self._inline(tag, source[begin:at])
            else:
                self._inline(tag, found[3])
        self._flush("html")
        return page

    def _text(self, text: str) -> None:
        if "&" in text:
            text = entities.unescape(text)
        self._parts.append(text)
        if self._in_link:
            self._linked += _num_words(text)

    def _inline(self, tag: str, attributes: str) -> None:
        page = self._page
        if tag not in _VOID:
            self._inline_depth += 1
            page.depth = max(page.depth, len(self._stack) + self._inline_depth)
        if tag == "br":
            self._parts.append("\n")
        elif tag in _NOTED:
            if tag == "a":
                self._in_link = _HREF.search(attributes) is not None
            _note(page, tag, attributes)
        elif tag == "img" or tag == "input":
            self._parts.append(" ")

    def _open(self, tag: str, attributes: str) -> None:
        self._flush(self._stack[-1][0])
        self._inline_depth = 0
        page = self._page
        if tag == "hr":
            return
        if self._stack[-1][0] in _CLOSED_BY_BLOCK or (tag in _CLOSED_BY_SAME and self._stack[-1][0] == tag):
            self._stack.pop()
        parent = self._stack[-1]
        found = _attributes(attributes, _BLOCK_ATTRIBUTE)
        if tag == "html":
            _note(page, tag, attributes)
            return
        left_out, marked, doubtful = parent[2] or tag in _LEFT_OUT, tag in ("article", "main"), False
        if found and tag not in ("body", "main", "article"):
            names = f"{found.get('class', '')} {found.get('id', '')}".strip()
            left_out = left_out or (
                found.get("aria-hidden") == "true"
                or found.get("role", "") in _ROLES
                or bool(names and _BOILERPLATE.search(names))
            )
            doubtful = not left_out and (
                bool(_HIDDEN.search(attributes))
                or bool(names and _DOUBTFUL.search(names))
                or bool("style" in found and _NONE_SHOWN.search(found["style"]))
            )
            marked = bool(names and _ARTICLE.search(names)) or found.get("itemprop") == "articleBody"
        page.parents.append(parent[1])
        page.tags.append(tag)
        page.marked.append(marked)
        page.doubtful.append(doubtful)
        entry = (tag, len(page.parents) - 1, left_out)
        if len(self._stack) > MAX_DEPTH:
            self._stack[-1] = entry
        else:
            self._stack.append(entry)
        page.depth = max(page.depth, len(self._stack))

    def _close(self, tag: str) -> None:
        if tag == "a":
            self._in_link = False
        if tag not in _BLOCKS:
            self._inline_depth = max(0, self._inline_depth - 1)
            return
        self._flush(self._stack[-1][0])
        for index in range(len(self._stack) - 1, max(0, len(self._stack) - 40), -1):
            if self._stack[index][0] == tag:
                del self._stack[index:]
                break
        if not self._stack:
            self._stack.append(("html", 0, False))

    def _flush(self, tag: str) -> None:
        if not self._parts:
            return
        text = "".join(self._parts)
        self._parts.clear()
        linked, self._linked = self._linked, 0.0
        text = text.strip() if tag == "pre" else _clean(text)
        if not text:
            return
        words = max(1, int(_num_words(text)))
        _, element, left_out = self._stack[-1]
        self._page.blocks.append(
            _Block(text, tag, element, words, min(round(linked), words), left_out, len(self._stack))
        )


def _num_words(text: str) -> float:
    """Words between spaces, and how many words there may be in scripts that do not separate them.

    >>> _num_words("two words"), _num_words("Debian 是一个自由的操作系统。")
    (2, 6.5)
    """
    if text.isascii():
        return len(text.split())
    others, unseparated = _UNSEPARATED.subn(" ", text)
    if not unseparated:
        return len(text.split())
    return len(others.split()) + sum(map(len, _UNSEPARATED.findall(text))) / _CHARS_PER_WORD


def outline(source: str, *, links: bool = True) -> Page:
    """`parse` without the text, twenty times as fast: what the head says, links, times and the depth of the elements."""
    data = source.encode("utf-8", "surrogatepass")
    noted = np.empty((len(data) // 3 + 1, 3), np.int64)  # a tag has at least three bytes
    table = _tag_table(links)
    deepest, events = tags.outline(np.frombuffer(data, np.uint8), *table, MAX_DEPTH, noted)
    if deepest == tags.UNDECIDED:
        page = parse(source)
        page.links = page.links if links else []
        return page
    page = Page(depth=deepest)
    for kind, begin, end in noted[:events].tolist():
        _note(page, _KNOWN[kind >> 16], data[begin:end].decode("utf-8", "surrogatepass"))
    return page


_NOTED = frozenset(("a", "meta", "time", "title"))
_KNOWN = sorted(_BLOCKS | _VOID | _RAW | _NOTED)


@functools.cache
def _tag_table(links: bool) -> tuple[np.ndarray, np.ndarray, int]:
    """The table of tags for `tags.outline`, and the kind of the root."""
    known = {
        tags.BLOCK: _BLOCKS,
        tags.VOID: _VOID,
        tags.RAW: _RAW,
        tags.CLOSED_BY_BLOCK: _CLOSED_BY_BLOCK,
        tags.CLOSED_BY_SAME: _CLOSED_BY_SAME,
        tags.RULE: {"hr"},
        tags.ROOT: {"html"},
        tags.TITLE: {"title"},
        tags.NOTED: {"html", *_NOTED} - (set() if links else {"a"}),
    }
    bits = {tag: sum(bit for bit, members in known.items() if tag in members) for tag in _KNOWN}
    return (*tags.tag_table(bits), _KNOWN.index("html") << 16 | bits["html"])


def _note(page: Page, tag: str, text: str) -> None:
    """Note what a tag says about a page, by its attributes, or by the text of a title."""
    if tag == "a":
        href = _attributes(text, _LINK_ATTRIBUTE).get("href")
        if href:
            page.links.append(entities.unescape(href.strip()))
    elif tag == "meta":
        found = _attributes(text, _META_ATTRIBUTE)
        name = (found.get("property") or found.get("name") or found.get("itemprop") or "").lower()
        if name and found.get("content"):
            page.meta.setdefault(name, entities.unescape(found["content"]).strip())
    elif tag == "time":
        moment = _attributes(text, _LINK_ATTRIBUTE).get("datetime")
        if moment:
            page.times.append(moment.strip())
    elif tag == "title":
        page.title = page.title or _clean(entities.unescape(text)) or None
    else:
        page.language = page.language or _attributes(text, _BLOCK_ATTRIBUTE).get("lang") or None


def _clean(text: str) -> str:
    """The text with any spaces as single spaces."""
    return " ".join(text.split())


# -------------------------------------------------------------------------------------------------------- classification


def main_text(page: Page, *, markdown: bool = False) -> str:
    """The content of a page, one paragraph per line group."""
    chosen = _content(page, _not_left_out(page))
    if sum(block.words for block in chosen) < 40:  # names of classes may be misleading
        again = _content(page, page.blocks)
        if sum(block.words for block in again) > 2 * sum(block.words for block in chosen):
            chosen = again
    return "\n\n".join(_markdown(block) if markdown else block.text for block in chosen)


def whole_text(page: Page, *, markdown: bool = False) -> str:
    """All text of a page that says it is a document, such as a chapter of a book."""
    return "\n\n".join(_markdown(block) if markdown else block.text for block in _not_left_out(page))


def _not_left_out(page: Page) -> list[_Block]:
    """The blocks of a page without those of elements that are not of the content, as far as the elements say so."""
    blocks = [block for block in page.blocks if not block.left_out]
    if not any(page.doubtful):
        return blocks
    classify(blocks)
    held = _words_of_content(page, blocks)
    out = [False] * len(held)
    for element in range(1, len(out)):
        out[element] = out[page.parents[element]] or (page.doubtful[element] and held[element] < _MOST * held[0])
    return [block for block in blocks if not out[block.element]]


def _words_of_content(page: Page, blocks: list[_Block]) -> list[int]:
    """By element, the words of content in it and below."""
    held = [0] * len(page.parents)
    for block in blocks:
        if block.content:
            held[block.element] += block.words
    for element in range(len(held) - 1, 0, -1):
        held[page.parents[element]] += held[element]
    return held


def _content(page: Page, blocks: list[_Block]) -> list[_Block]:
    """The blocks of the content, in order."""
    classify(blocks)
    total = sum(block.words for block in blocks if block.content)
    if not total:
        return [block for block in blocks if block.density < 0.5] if len(blocks) < 5 else []
    held = _words_of_content(page, blocks)
    root = 0
    for element in range(1, len(held)):  # the last one that holds enough is the smallest
        share = 0.5 if page.marked[element] else 0.75
        if held[element] >= share * total:
            root = element
    inside = [False] * len(page.parents)
    inside[root] = True
    for element in range(root + 1, len(inside)):
        inside[element] = inside[page.parents[element]]
    return [block for block in blocks if block.content and inside[block.element]]


def classify(blocks: list[_Block]) -> None:
    """Mark the blocks that are content: Kohlschuetter et al. 2010, figure 2, and headings before content."""
    count = len(blocks)
    for index, block in enumerate(blocks):
        before = blocks[index - 1] if index else None
        after = blocks[index + 1] if index + 1 < count else None
        words_before = before.words if before else 0
        words_after = after.words if after else 0
        if block.density > 0.333333:
            content = False
        elif (before.density if before else 0.0) <= 0.555556:
            content = block.words > 16 or words_after > 15 or words_before > 4
        else:
            content = block.words > 40 or words_after > 17
        block.content = content
    for index in range(count - 2, -1, -1):
        block = blocks[index]
        if block.tag in _HEADINGS and not block.content and block.density <= 0.5:
            block.content = blocks[index + 1].content
    # A heading or a short line that no content follows is not content.
    for index in range(count - 1, -1, -1):
        block = blocks[index]
        if (
            block.content
            and (block.tag in _HEADINGS or block.words <= 4)
            and not (index + 1 < count and blocks[index + 1].content)
        ):
            block.content = False


_LISTS = {
    "li": "- ",
    "blockquote": "> ",
    "h1": "# ",
    "h2": "## ",
    "h3": "### ",
    "h4": "#### ",
    "h5": "##### ",
    "h6": "###### ",
}


def _markdown(block: _Block) -> str:
    if block.tag == "pre":
        return f"```\n{block.text}\n```"
    return _LISTS.get(block.tag, "") + block.text
