r"""Secrets in source code and configuration: keys of services, private keys, passwords in URLs, and random values of settings.

    text --RE2--> rows with candidates --Python--> spans of secrets, each checked --> a count, or text with masks

Keys of services have a fixed form. Other secrets are values that are assigned to a name such as `api_key`, and that are random:
their characters have the entropy of random characters, and they are not placeholders.
"""

from __future__ import annotations

import math
import re
from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column
from tamis.errors import ParameterError
from tamis.operators import Filter, Map, Rule, Scores, at_most, operator
from tamis.text.clean import mask_of, strings
from tamis.text.passages import Passages

Kind: TypeAlias = Literal["key", "private key", "password", "setting"]
KINDS: tuple[Kind, ...] = ("private key", "key", "password", "setting")
"""In order of precedence."""
MASKS: dict[str, str] = {
    "private key": "[PRIVATE KEY]", "key": "[KEY]", "password": "[PASSWORD]", "setting": "[SECRET]",
}  # fmt: skip
Found: TypeAlias = tuple[int, int, Kind]

_SERVICES = {
    "AWS": r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}",
    "GitHub": r"gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{82}",
    "GitLab": r"glpat-[A-Za-z0-9_-]{20,}",
    "Slack": r"xox[abposre]-[A-Za-z0-9-]{10,250}|xapp-[0-9]-[A-Z0-9]+-[0-9]+-[a-z0-9]+",
    "Slack webhook": r"hooks\.slack\.com/services/T[A-Z0-9]{8,12}/B[A-Z0-9]{8,12}/[A-Za-z0-9]{24}",
    "Google": r"AIza[A-Za-z0-9_-]{35}|GOCSPX-[A-Za-z0-9_-]{28}|ya29\.[A-Za-z0-9_-]{50,}",
    "Stripe": r"[rs]k_live_[A-Za-z0-9]{24,247}",
    "SendGrid": r"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}",
    "npm": r"npm_[A-Za-z0-9]{36}",
    "PyPI": r"pypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50,}",
    "OpenAI": r"sk-(?:proj-|svcacct-)?[A-Za-z0-9_-]{20,}T3BlbkFJ[A-Za-z0-9_-]{20,}",
    "Anthropic": r"sk-ant-[a-z0-9]{2,10}-[A-Za-z0-9_-]{80,}",
    "Hugging Face": r"hf_[A-Za-z0-9]{34}",
    "DigitalOcean": r"do[opr]_v1_[a-f0-9]{64}",
    "Shopify": r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}",
    "Telegram": r"[0-9]{8,10}:AA[A-Za-z0-9_-]{33}",
    "Azure": r"AccountKey=[A-Za-z0-9+/]{86}==",
    "JSON web token": r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{20,}",
}
"""The forms that services document for their keys, as the scanners of GitHub, gitleaks and detect-secrets know them."""
_KEY = re.compile(rf"(?<![A-Za-z0-9_-])(?:{'|'.join(_SERVICES.values())})(?![A-Za-z0-9])")
_BEGIN = re.compile(r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----")
_END = re.compile(r"-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----")
_BASE64_LINES = re.compile(r"(?:(?:\\n|[\s\"'+,])*[A-Za-z0-9+/=:\- ]{20,})+")
_LONGEST_KEY, _LONGEST_TOKEN = 20_000, 4000
_URL = re.compile(r"(?<![A-Za-z0-9])[a-z][a-z0-9+.-]{1,20}://[^\s:/@\"'<>]{0,64}:([^\s:/@\"'<>]{3,128})@(?=[\w.\[-])")
_PREFIXES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        ("AKIA", "ASIA", "ABIA", "ACCA", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-"), (0,)
    ),
    **dict.fromkeys(
        ("xox", "xapp-", "hooks.slack.com", "AIza", "GOCSPX-", "ya29.", "SG.", "npm_", "pypi-AgE", "sk-"), (0,)
    ),
    **dict.fromkeys(("hf_", "shp", "AccountKey=", "eyJ"), (0,)),
    "k_live_": (1,),
    "_v1_": (3,),
    ":AA": (8, 9, 10),
}
"""Parts of keys, and how many characters before them the key may begin. Looking for them is much faster than trying the
expression everywhere."""
_WORDS = ("secret", "token", "passwd", "password", "passphrase", "credential", "authorization", "key")
_BEFORE_KEY = re.compile(
    r"(?:api|access|auth|private|encryption|signing|client|session|bearer|webhook|master|shared)[_-]?\Z"
)
_NOT_BEFORE = re.compile(
    r"(?:public[_-]?key|next|continuation|page|request|change|update|action|sync|cancellation)[_-]?\Z"
)
"""Before `token`: it names a strong name of .NET, a place in a list of results or a request, and opens nothing."""
_NOT_AFTER = re.compile(r"i[sz]|smanager")
"""After a word: tokenizers, and the service that keeps secrets."""
_ASSIGNED = re.compile(
    r"[A-Za-z0-9_-]{0,20}[\"']?\]?\s{0,3}(?::=|=>|=|:)\s{0,3}(?:[bru]{0,2}[\"'](?P<quoted>[^\"'\s]{16,200})[\"']"
    r"|(?P<bare>[A-Za-z0-9+/=_-]{16,200})(?=\s|\Z))"
)
_CANDIDATES = (
    r"PRIVATE KEY|://[^\s/@]*:[^\s/@]+@|(?i:secret|token|passw|passphrase|credential|key|authorization)(?s:.{0,30})[=:]|"
    r"AKIA|ASIA|ABIA|ACCA|gh[pousr]_|github_pat_|glpat-|xox[abposre]-|xapp-|hooks\.slack|AIza|GOCSPX|ya29\.|k_live_|SG\.|npm_|"
    r"pypi-|sk-|hf_|do[opr]_v1|shp[acps]|:AA|AccountKey|eyJ"
)
_PLACEHOLDER = re.compile(
    r"(?i)example|sample|dummy|changeme|change_me|placeholder|your[_-]?|<|>|\$\{|\{\{|%[sd(]|\.\.\.|x{4,}|\*{3,}|0{6,}|1234567|abcdef|"
    r"test|fake|redacted|insert|replace|todo|getenv|environ|process\.env|^(?:[a-z]+[_.-])*[a-z]+$|^[A-Z_]+$|^[$@%#]|\(|\[|^\d+$|"
    r"passw|^\{[^{}]*\}$|\.(?:json|ya?ml|toml|txt|py|js|ts|md|pem|key|crt|html?)$"
)
_HEX = re.compile(r"[0-9a-fA-F-]+")
HEX_ENTROPY, OTHER_ENTROPY = 3.0, 3.7
"""Bits per character: 3.0 for hexadecimal digits, as in detect-secrets; 16 random characters of other kinds have over 3.7."""


def find_secrets(text: str, kinds: Sequence[str] = KINDS) -> list[Found]:
    """The secrets of a text, which do not overlap, in ascending order.

    >>> find_secrets("key = 'AKIAQX4BIPW3AHOV27GN'")
    [(7, 27, 'key')]
    """
    found: list[Found] = []
    for kind in KINDS:
        for start, stop in _FINDERS[kind](text) if kind in kinds else ():
            at = bisect(found, start, key=lambda each: each[0])
            free = (not at or found[at - 1][1] <= start) and (at == len(found) or stop <= found[at][0])
            if free:
                found.insert(at, (start, stop, kind))
    return found


def _private_keys(text: str) -> Iterator[tuple[int, int]]:
    at = 0
    while (begin := _BEGIN.search(text, at)) is not None:
        end = _END.search(text, begin.end(), begin.end() + _LONGEST_KEY)
        lines = _BASE64_LINES.match(text, begin.end(), begin.end() + _LONGEST_KEY)
        at = end.end() if end is not None else lines.end() if lines is not None else begin.end()
        body = text[begin.end() : end.start() if end is not None else at]
        if len(re.sub(r"[^A-Za-z0-9+/]", "", body)) >= 40:  # not a mention of the mark, nor a template
            yield begin.start(), at


def _keys(text: str) -> Iterator[tuple[int, int]]:
    spans = {
        found.span()
        for part, leads in _PREFIXES.items()
        for at in _places(text, part)
        for lead in leads
        if at >= lead and (found := _KEY.match(text, at - lead, at + _LONGEST_TOKEN)) is not None
    }
    for start, stop in sorted(spans):
        key = text[start:stop]
        if "EXAMPLE" not in key and len(set(key)) > 8:
            yield start, stop


def _places(text: str, part: str) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + len(part))


def _passwords(text: str) -> Iterator[tuple[int, int]]:
    for at in _places(text, "://"):
        found = _URL.search(text, max(0, at - 22), at + 200)
        word = found[1] if found is not None and found.start() < at < found.end() else ""
        if found is not None and word and not _PLACEHOLDER.search(word) and not _USUAL.search(word):
            yield found.span(1)


_USUAL = re.compile(r"(?i)secret|^(?:root|postgres|admin|guest|user|pwd|pass)$")


def _settings(text: str) -> Iterator[tuple[int, int]]:
    lowered = text.lower()
    if len(lowered) != len(text):  # a few letters become two
        lowered = text
    for word in _WORDS:
        for at in _places(lowered, word):
            before = lowered[max(0, at - 12) : at]
            if word == "key" and not _BEFORE_KEY.search(before):
                continue
            if _NOT_AFTER.match(lowered, at + len(word)) or (word == "token" and _NOT_BEFORE.search(before)):
                continue
            found = _ASSIGNED.match(text, at + len(word))
            group = "quoted" if found is not None and found["quoted"] else "bare"
            if found is not None and is_random(found[group]):
                yield found.span(group)


_FINDERS = {"private key": _private_keys, "key": _keys, "password": _passwords, "setting": _settings}


def is_random(value: str) -> bool:
    """Whether a value looks like random characters, and not like words, a number, a path or a placeholder.

    >>> is_random("q8Zt1Lw0VbXe73Ks"), is_random("my_application_name"), is_random("your_token_here_0")
    (True, False, False)
    """
    if _PLACEHOLDER.search(value) or value.count("/") > 2 or len(value) < 16:
        return False
    if _HEX.fullmatch(value):
        return entropy(value) >= HEX_ENTROPY and any(map(str.isdigit, value))
    kinds = sum(any(test(c) for c in value) for test in (str.isdigit, str.islower, str.isupper))
    return kinds >= 2 and any(map(str.isdigit, value)) and entropy(value) >= OTHER_ENTROPY


def entropy(value: str) -> float:
    """Shannon entropy of the characters, in bits per character.

    >>> entropy("aabb")
    1.0
    """
    return -sum(count / len(value) * math.log2(count / len(value)) for count in Counter(value).values())


# ------------------------------------------------------------------------------------------------------------- operators


def _chosen(text: Column) -> np.ndarray:
    return np.flatnonzero(mask_of(pc.match_substring_regex(text, _CANDIDATES)))


def _check_kinds(name: str, kinds: Sequence[str]) -> None:
    if not kinds:
        raise ParameterError(f"`kinds` of `{name}` is empty", hint=f"kinds are {', '.join(KINDS)}")


@operator(reads="text", writes="secrets", version=2)
class Secrets(Filter):
    """Drop files with secrets: keys of services, private keys, passwords in URLs, and random values of settings.

    `secrets` counts them. 18 kinds of keys are known by their form (AWS, GitHub, Slack, Google, Stripe, OpenAI, ...). A
    setting is a value of at least 16 characters that is assigned to a name such as `api_key`, with an entropy of at least
    3.0 bits per character if it is hexadecimal (as in detect-secrets), else 3.7. Placeholders and examples do not count.
    `SecretMask` replaces secrets instead.

    >>> batch = Batch.from_rows([{"text": "token = 'q8Zt1Lw0VbXe73Ks'"}, {"text": "token = 'your_token_here_0'"}])
    >>> Secrets().score(batch)["secrets"].tolist()
    [1, 0]
    """

    max_secrets: int = 0
    kinds: Sequence[Kind] = KINDS
    column: str = "text"

    cost = 3.0

    def check(self) -> None:
        _check_kinds(self.name, self.kinds)

    def score(self, batch: Batch) -> Scores:
        text = strings(batch["text"])
        counts = np.zeros(len(text), np.int64)
        rows = _chosen(text)
        for row, content in zip(rows.tolist(), text.take(pa.array(rows)).to_pylist(), strict=True):
            counts[row] = len(find_secrets(content, self.kinds))
        return {"secrets": counts}

    def rules(self) -> list[Rule]:
        return [at_most("secrets", self.max_secrets)]

    def passages(self, text: str, score: str) -> Passages:
        return [(start, stop) for start, stop, _ in find_secrets(text, self.kinds)]


@operator(reads="text", version=2)
class SecretMask(Map):
    """Replace secrets by masks: `[KEY]`, `[PRIVATE KEY]`, `[PASSWORD]` and `[SECRET]` (see `Secrets` for what counts).

    `replacements` changes the mask of a kind. With `counts`, column `num_secrets` has the number of masks. A second application
    changes nothing.

    >>> text = "db = 'postgres://ann:x8Kq2vLp@db.example.org/x'"
    >>> SecretMask().apply(Batch.from_rows([{"text": text}]))["text"][0].as_py()
    "db = 'postgres://ann:[PASSWORD]@db.example.org/x'"
    """

    column: str = "text"
    kinds: Sequence[Kind] = KINDS
    replacements: Mapping[str, str] | None = None
    counts: bool = False
    into: str | None = None

    cost = 3.0

    def check(self) -> None:
        _check_kinds(self.name, self.kinds)
        for kind, mask in (self.replacements or {}).items():
            if kind not in KINDS:
                raise ParameterError(
                    f"`replacements` names the unknown kind `{kind}`", hint=f"kinds are {', '.join(KINDS)}"
                )
            if any(find_secrets(form.format(mask)) for form in ("{}", "token = '{}'", "ftp://a:{}@b")):
                raise ParameterError(f"the replacement of `{kind}` would be masked itself: {mask!r}")

    def writes(self) -> tuple[str, ...]:
        return (self.into or self.column, *(("num_secrets",) if self.counts else ()))

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        text = strings(batch["text"])
        counts = np.zeros(len(text), np.int64)
        rows = _chosen(text)
        changed = []
        for row, content in zip(rows.tolist(), text.take(pa.array(rows)).to_pylist(), strict=True):
            masked, counts[row] = self._masked(content)
            changed.append(masked)
        if len(rows):
            chosen = np.zeros(len(text), np.bool_)
            chosen[rows] = True
            text = pc.replace_with_mask(text, pa.array(chosen), pa.array(changed, text.type))
        return {self.into or self.column: text, **({"num_secrets": counts} if self.counts else {})}

    def _masked(self, text: str) -> tuple[str, int]:
        masks = {**MASKS, **(self.replacements or {})}
        parts, at = [], 0
        found = find_secrets(text, self.kinds)
        for start, stop, kind in found:
            parts += [text[at:start], masks[kind]]
            at = stop
        return "".join([*parts, text[at:]]), len(found)
