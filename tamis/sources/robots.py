"""robots.txt and headers with which a site says what may not be fetched, or not be used to train models.

robots.txt as in RFC 9309: the groups for our token, or else those for `*`; the longest rule that matches decides, and of two of
the same length the one that allows. X-Robots-Tag as sites use it: `noai, noimageai`, or `somebot: noindex`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

MAX_BYTES = 512_000
"""More of a robots.txt is not read; RFC 9309 requires at least 500 KiB."""
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


@dataclass(frozen=True)
class Robots:
    """The rules of a robots.txt for one crawler: (whether it allows, pattern)."""

    rules: tuple[tuple[bool, str], ...] = ()

    @staticmethod
    def parse(text: str, token: str) -> Robots:
        """
        >>> robots = Robots.parse("User-agent: *\\nDisallow: /private/\\nAllow: /private/a.png", "tamis")
        >>> robots.allows("https://example.org/private/b.png"), robots.allows("https://example.org/private/a.png")
        (False, True)
        """
        own: list[tuple[bool, str]] = []
        general: list[tuple[bool, str]] = []
        agents: list[str] = []
        in_rules = found = False
        for line in re.split(r"\r\n|\r|\n", text):
            field, colon, value = line.partition("#")[0].partition(":")
            field, value = field.strip().lower(), value.strip()
            if not colon:
                continue
            if field == "user-agent":
                name = product_token(value)
                agents = [name] if in_rules else [*agents, name]
                in_rules = False
                found |= name == token.lower()
            elif field in ("allow", "disallow"):
                in_rules = True
                if value:
                    rule = (field == "allow", _normalised(value))
                    own += [rule] if token.lower() in agents else []
                    general += [rule] if "*" in agents else []
        return Robots(tuple(own if found else general))

    def allows(self, url: str) -> bool:
        parts = urlsplit(url)
        path = _normalised((parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
        if path == "/robots.txt":
            return True
        best = max(
            ((len(pattern), allowed) for allowed, pattern in self.rules if _matches(pattern, path)), default=None
        )
        return best is None or best[1]

    @property
    def size(self) -> int:
        return 100 + sum(100 + len(pattern) for _, pattern in self.rules)


def product_token(agent: str) -> str:
    """The name of a crawler, which may be followed by its version.

    >>> product_token("ExampleBot/1.0 (+https://example.org/bot)")
    'examplebot'
    """
    return agent.partition("/")[0].strip().split(" ")[0].lower()


def _normalised(path: str) -> str:
    """A path in which the same characters are escaped as in any other."""

    def unescaped(found: re.Match[str]) -> str:
        byte = int(found[1], 16)
        return chr(byte) if byte in _UNRESERVED else found[0].upper()

    ascii_only = "".join(c if c.isascii() else "".join(f"%{b:02X}" for b in c.encode("utf-8", "replace")) for c in path)
    return _ESCAPE.sub(unescaped, ascii_only)


def _matches(pattern: str, path: str) -> bool:
    """Whether a pattern matches the beginning of a path: `*` stands for any characters, `$` for the end."""
    anchored = pattern.endswith("$")
    first, *rest = pattern.removesuffix("$").split("*")
    if not path.startswith(first):
        return False
    position = len(first)
    if not rest:
        return not anchored or position == len(path)
    *middle, last = rest
    for part in middle:
        position = path.find(part, position)
        if position < 0:
            return False
        position += len(part)
    if anchored:
        return path.endswith(last) and len(path) - len(last) >= position
    return path.find(last, position) >= 0


def opted_out(headers: Iterable[tuple[str, str]], directives: Collection[str], token: str) -> str | None:
    """The directive in the headers of a reply that forbids its use; None if there is none.

    >>> opted_out([("X-Robots-Tag", "otherbot: noai"), ("X-Robots-Tag", "nofollow, noimageai")], ["noai", "noimageai"], "tamis")
    'noimageai'
    """
    wanted = {directive.lower() for directive in directives}
    for name, value in headers:
        if name.lower() == "tdm-reservation" and "tdm-reservation" in wanted and value.strip() == "1":
            return "tdm-reservation"
        if name.lower() != "x-robots-tag":
            continue
        applies = True
        for part in value.lower().split(","):
            agent, colon, directive = part.partition(":")
            if colon and agent.strip() not in (
                "unavailable_after",
                "max-snippet",
                "max-image-preview",
                "max-video-preview",
            ):
                applies = agent.strip() in ("*", token.lower())
            else:
                directive = part
            if applies and directive.strip() in wanted:
                return directive.strip()
    return None
