"""URLs that lead to the same page: normal forms, and deduplication by them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from tamis.batch import Batch, Column
from tamis.dedup.exact import ExactDedup
from tamis.dedup.shuffle import RESOLVING_BYTES
from tamis.errors import ParameterError
from tamis.operators import Resources, operator
from tamis.text.clean import strings

TRACKING = (
    "utm_*", "gclid", "gclsrc", "dclid", "fbclid", "msclkid", "yclid", "twclid", "igshid", "mc_cid", "mc_eid", "_ga", "_gl",
    "phpsessid", "jsessionid", "sid", "sessionid", "aspsessionid*", "cfid", "cftoken",
)  # fmt: skip
"""Parameters of advertising systems, and the session ids that the canonical URLs of the Internet Archive leave out."""
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_WWW = re.compile(r"(?:www\d{0,3}\.)+(?=[^.]+\.)")
_SESSION = re.compile(r"(?i);jsessionid=[^/?#]*")
_INDEX = re.compile(r"(?i)(?:/(?:index|default)\.(?:html?|php|aspx?|jsp)/*)+\Z")


class UrlForm:
    """Brings URLs into a form that is the same for those that lead to the same page."""

    def __init__(self, drop: Sequence[str] = TRACKING) -> None:
        names = "|".join(re.escape(each.lower()).replace(r"\*", ".*") for each in drop)
        self._dropped = re.compile(names or r"(?!)")

    def __call__(self, url: str) -> str:
        """
        >>> UrlForm()("HTTPS://www.Example.org:443/a/../b%7e/?utm_source=x&b=2&a=1#top")
        'example.org/b~?a=1&b=2'
        """
        text = "".join(url.split())
        if _SCHEME.match(text) is None:
            text = f"http://{text.removeprefix('//')}"
        try:
            parts = urlsplit(text)
            host, port = (parts.hostname or "").rstrip("."), parts.port
        except ValueError:
            return url  # not a URL: it is only equal to itself
        if parts.scheme.lower() not in ("http", "https") or not host:
            return text
        host = _WWW.sub("", host if host.isascii() else _idna(host))
        place = f"[{host}]" if ":" in host else host
        if port not in (None, 80, 443):
            place += f":{port}"
        path = _INDEX.sub("/", _without_dots(_SESSION.sub("", _unescaped(parts.path))))
        fields = [field for field in _unescaped(parts.query).split("&") if field]
        kept = sorted(each for each in fields if not self._dropped.fullmatch(each.partition("=")[0].lower()))
        query = f"?{'&'.join(kept)}" if kept else ""
        return f"{place}{path.rstrip('/')}{query}"


def _idna(host: str) -> str:
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        return host.lower()


def _unescaped(text: str) -> str:
    """A text in which the same characters are escaped as in any other."""

    def plain(found: re.Match[str]) -> str:
        byte = int(found[1], 16)
        return chr(byte) if byte in _UNRESERVED else found[0].upper()

    escaped = "".join(c if c.isascii() else "".join(f"%{b:02X}" for b in c.encode("utf-8", "replace")) for c in text)
    while (found := _ESCAPE.sub(plain, escaped)) != escaped:
        escaped = found
    return escaped


def _without_dots(path: str) -> str:
    """RFC 3986, section 5.2.4; several slashes count as one."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in (".", ""):
            parts.append(part)
    return "/" + "/".join(parts) + ("/" if path.endswith("/") and parts else "")


@operator(reads="url", resources=Resources(memory=RESOLVING_BYTES))
class UrlDedup(ExactDedup):
    """Keep one of the rows whose URLs lead to the same page.

    Scheme, `www.`, the case of the host, default ports, fragments, `index.html`, final slashes, escapes, dots in paths and the
    order of parameters make no difference, nor do the parameters in `drop_parameters` (campaigns and session ids, as in the
    canonical URLs of the Internet Archive). Paths are compared with their case. Rows without a URL are never duplicates.

    `keep`, `by`, `prefer`, `against` and `count_column` are those of `ExactDedup`: keep="newest", by="date" keeps the last.
    With `count_column`, each kept row has the number of rows that it stands for.

    >>> from tamis import Pipeline, Rows
    >>> rows = [{"url": "http://example.org/a?utm_source=x"}, {"url": "https://www.example.org/a/"}, {"url": "example.org/b"}]
    >>> Pipeline(Rows(rows), UrlDedup(count_column="copies")).collect()["copies"].to_pylist()
    [2, 1]
    """

    column: str = "url"
    drop_parameters: Sequence[str] = TRACKING

    def check(self) -> None:
        super().check()
        if self.unit != "document" or not isinstance(self.column, str):
            raise ParameterError(f"`{self.name}` compares one column of URLs", hint='column="url"')

    def index_settings(self) -> dict[str, Any]:
        return super().index_settings() | {"drop_parameters": list(self.drop_parameters)}

    def _comparable(self, batch: Batch, name: str) -> Column:
        form = UrlForm(self.drop_parameters)
        return pa.array([None if not url else form(url) for url in strings(batch[name]).to_pylist()], pa.large_string())
