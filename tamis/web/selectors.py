"""XPath expressions that select elements by tag and attributes, evaluated with remembered answers.

An expression such as `.//*[self::div or self::p][@id='a' or re:test(@class, 'b|c')]` asks the same about every element, and
pages have few different values of an attribute. The answer for some attributes is remembered, so most elements cost one
lookup, where libxml2 builds node sets and lxml calls Python for each `re:test`.

    expression  -->  tags, attributes, conditions                       -->  Selector
    page        -->  elements with these tags  -->  their attributes    -->  remembered answer

`selector` knows the part of XPath 1.0 that such expressions use, and returns None for all others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

_TOKEN = re.compile(
    r"\s*('[^']*'|\"[^\"]*\"|\.//(?:[\w-]+|\*)|self::[\w-]+|@[\w-]+|(?:re:)?[\w-]+(?=\s*\()|(?:or|and)\b|\d+|[()\[\],|=])"
)
_MOST_REMEMBERED = 50_000

Condition = Callable[[Mapping[str, str], Any], bool]
"""Whether an element is selected, by its attributes in the order of the page, and by the element itself."""
Text = Callable[[Mapping[str, str]], str]
"""The value of an attribute, or an empty string."""


class _Unsupported(Exception):
    """An expression uses another part of XPath."""


def selector(path: str) -> Selector | None:
    """The elements below an element that an XPath expression selects, as a list in the order of the page.

    >>> from lxml.html import fromstring
    >>> page = fromstring("<body><p id='a1'>x</p><p class='b' id='a2'>y</p><div id='a3'>z</div></body>")
    >>> [element.text for element in selector(".//*[self::p or self::b][re:test(@id|@class, '^a')]")(page)]
    ['x']
    >>> selector("//p[last()]")
    """
    try:
        return Selector(path)
    except _Unsupported:
        return None


class Selector:
    """An XPath expression, to be called with an element."""

    def __init__(self, path: str) -> None:
        parsed = _Parser(path)
        self.path = path
        self._tags, self._first, self._first_of_parent = tuple(parsed.tags), parsed.first, parsed.first_of_parent
        self._joined = frozenset(parsed.joined)
        self._names = (*parsed.joined, *(name for name in parsed.names if name not in parsed.joined))
        self._by_attributes, self._by_element = parsed.by_attributes, parsed.by_element
        self._remembered: dict[tuple[Any, ...], bool] = {}

    def __str__(self) -> str:
        return self.path

    def __call__(self, tree: Any) -> list[Any]:
        found: Iterator[Any] = tree.iterdescendants(*self._tags)
        if self._by_attributes:
            found = self._with_attributes(found)
        if self._by_element:
            found = (each for each in found if all(condition(each.attrib, each) for condition in self._by_element))
        if self._first_of_parent:
            found = _first_of_parents(found)
        return list(islice(found, 1 if self._first else None))

    def _with_attributes(self, elements: Iterator[Any]) -> Iterator[Any]:
        names, joined, remembered = self._names, self._joined, self._remembered
        orders = len(joined) - 1
        for element in elements:
            key: tuple[Any, ...] = tuple(map(element.get, names))
            if joined and key[: len(joined)].count(None) < orders:  # the first one counts
                key = (*key, *(name for name, _ in element.items() if name in joined))
            answer = remembered.get(key)
            if answer is None:
                if len(remembered) >= _MOST_REMEMBERED:
                    remembered.clear()
                answer = all(condition(element.attrib, element) for condition in self._by_attributes)
                remembered[key] = answer
            if answer:
                yield element


def _first_of_parents(elements: Iterator[Any]) -> Iterator[Any]:
    parents = set()
    for element in elements:
        parent = element.getparent()
        if parent not in parents:
            parents.add(parent)
            yield element


class _Parser:
    """Parses `.//TAG[...]...`, `.//*[self::TAG or ...][...]...`, or one of them in `(...)[1]`."""

    def __init__(self, path: str) -> None:
        self._tokens: list[str] = []
        at, end = 0, len(path.rstrip())
        while at < end:
            found = _TOKEN.match(path, at)
            if found is None:
                raise _Unsupported
            self._tokens.append(found[1])
            at = found.end()
        self._at = 0
        self._needs_element = False
        self.tags: list[str] = []
        self.names: dict[str, None] = {}
        self.joined: dict[str, None] = {}
        self.by_attributes: list[Condition] = []
        self.by_element: list[Condition] = []
        self.first = self._took("(")
        self.first_of_parent = False
        self._path()
        if self.first:
            for token in (")", "[", "1", "]"):
                self._take(token)
        if self._at < len(self._tokens):
            raise _Unsupported

    def _path(self) -> None:
        step = self._next()
        if not step.startswith(".//"):
            raise _Unsupported
        self.tags = [step[3:]]
        if step == ".//*" and (own := self._own_tags()):
            self.tags = own
        while self._took("["):
            if self.first_of_parent:
                raise _Unsupported
            if self._took("1"):
                self.first_of_parent = True
            else:
                self._needs_element = False
                condition = self._any()
                (self.by_element if self._needs_element else self.by_attributes).append(condition)
            self._take("]")

    def _own_tags(self) -> list[str]:
        """The tags of `[self::TAG or self::TAG]`, if this comes next."""
        tags, at = [], self._at
        if self._took("["):
            while (token := self._next()).startswith("self::"):
                tags.append(token[6:])
                if self._took("]"):
                    return tags
                if not self._took("or"):
                    break
        self._at = at
        return []

    def _any(self) -> Condition:
        return self._joined_by("or", self._all, any)

    def _all(self) -> Condition:
        return self._joined_by("and", self._one, all)

    def _joined_by(
        self, word: str, next_one: Callable[[], Condition], combine: Callable[[Iterable[bool]], bool]
    ) -> Condition:
        conditions = [next_one()]
        while self._took(word):
            conditions.append(next_one())
        if len(conditions) == 1:
            return conditions[0]
        return lambda at, element: combine(condition(at, element) for condition in conditions)

    def _one(self) -> Condition:
        token = self._next()
        if token == "(":
            inner = self._any()
            self._take(")")
            return inner
        if token == "not":
            self._take("(")
            inner = self._any()
            self._take(")")
            return lambda at, element: not inner(at, element)
        if token.startswith("self::"):
            self._needs_element, tag = True, token[6:]
            return lambda _, element: bool(element.tag == tag)
        if token.startswith(".//"):
            self._needs_element = True
            return lambda _, element: element.find(token) is not None
        if token in ("contains", "starts-with", "re:test"):
            return self._test(token)
        if token.startswith("@"):
            return self._attribute(token[1:])
        raise _Unsupported

    def _attribute(self, name: str) -> Condition:
        """`@name` or `@name='value'`."""
        self.names[name] = None
        if not self._took("="):
            return lambda at, _: name in at
        value = self._literal()
        return lambda at, _: at.get(name) == value

    def _test(self, function: str) -> Condition:
        """A function of the value of an attribute and of a literal."""
        self._take("(")
        text = self._text()
        self._take(",")
        literal = self._literal()
        flags = self._literal() if self._took(",") else ""
        self._take(")")
        if function == "contains":
            return lambda at, _: literal in text(at)
        if function == "starts-with":
            return lambda at, _: text(at).startswith(literal)
        search = re.compile(literal, re.IGNORECASE if "i" in flags else 0).search
        return lambda at, _: search(text(at)) is not None

    def _text(self) -> Text:
        token = self._next()
        if token == "translate":
            self._take("(")
            text = self._text()
            self._take(",")
            old = self._literal()
            self._take(",")
            new = self._literal()
            self._take(")")
            if len(old) != len(new):
                raise _Unsupported
            table = str.maketrans(old, new)
            return lambda at: text(at).translate(table)
        names = [self._name_of(token)]
        while self._took("|"):
            names.append(self._name_of(self._next()))
        self.names |= dict.fromkeys(names)
        if len(names) == 1:
            return lambda at: at.get(names[0], "")
        self.joined |= dict.fromkeys(names)  # their value is that of the first in the page
        return lambda at: next((value for name, value in at.items() if name in names), "")

    def _name_of(self, token: str) -> str:
        if not token.startswith("@"):
            raise _Unsupported
        return token[1:]

    def _literal(self) -> str:
        token = self._next()
        if token[0] not in "'\"":
            raise _Unsupported
        return token[1:-1]

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise _Unsupported
        self._at += 1
        return self._tokens[self._at - 1]

    def _took(self, token: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at] == token:
            self._at += 1
            return True
        return False

    def _take(self, token: str) -> None:
        if not self._took(token):
            raise _Unsupported
