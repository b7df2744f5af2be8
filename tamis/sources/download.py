"""Download what a column of URLs leads to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Batch, Column, contiguous
from tamis.context import Context
from tamis.errors import ParameterError
from tamis.media import MAX_BYTES, media_name
from tamis.operators import Filter, Rule, Scores, operator
from tamis.parameters import parse_bytes
from tamis.sources.http import OK, Fetcher, FetchSettings
from tamis.sources.jsonmedia import MEDIA


@dataclass(frozen=True)
class OutcomeRule(Rule):
    """Keeps a row whose outcome is "ok"; any other outcome is the reason for the drop."""

    @property
    def met(self) -> str:
        return f"{self.score}: {OK}"

    def verdicts(self, values: Column) -> list[tuple[str, np.ndarray]]:
        outcomes = contiguous(values).to_numpy(zero_copy_only=False)
        reasons = sorted(outcome for outcome in pc.unique(values).to_pylist() if outcome != OK)
        return [(f"{self.score}: {reason}", outcomes == reason) for reason in reasons]


@operator(reads="url", writes=("image", "download"))
class Download(Filter):
    """Download what a column of URLs leads to into a media column, and drop rows without it, with the reason.

    Reasons: `HTTP 404`, `time-out`, `connection failed`, `host not found`, `robots.txt`, `opt-out: noai`, `larger than 50 MB`,
    `private address`, `not a URL` and others. 429, 5xx, time-outs and cut-off replies are tried again, after longer waits.

    Respects robots.txt (RFC 9309), X-Robots-Tag with the directives in `opt_out` (the defaults are those of img2dataset) and
    the header tdm-reservation. Addresses that are not public are refused unless `allow_private`; so are URLs that redirect to
    one. `concurrency`, and `per_host` for one host, are limits of each worker. `timeout_s` is for a whole reply. Proxies are
    not used. With `score_only`, rows are kept, and column `download` has the reason.

    >>> Download(to="audio", max_bytes="100MB", user_agent="examplebot/1.0 (+https://example.org/bot)").writes()
    ('audio', 'download')
    """

    column: str = "url"
    to: str = "image"
    concurrency: int = 32
    per_host: int = 4
    timeout_s: float = 20.0
    retries: int = 2
    retry_wait_s: float = 1.0
    max_bytes: int | str = "50MB"
    user_agent: str = "tamis/1.0"
    respect_robots: bool = True
    opt_out: Sequence[str] = ("noai", "noimageai", "noindex", "noimageindex", "tdm-reservation")
    allow_private: bool = False

    incidental = frozenset({"concurrency", "per_host", "timeout_s", "retries", "retry_wait_s"})
    measuring_parameters = frozenset({"max_bytes"})
    batch_rows = 256
    cost = 1000.0

    @property
    def adds_scores(self) -> bool:
        return True

    def score_columns(self) -> dict[str, str]:
        return {"image": self.to, "download": "download"}

    def check(self) -> None:
        for name, least in (("concurrency", 1), ("per_host", 1), ("retries", 0), ("retry_wait_s", 0)):
            if getattr(self, name) < least:
                raise ParameterError(f"`{name}` of `{self.name}` must be at least {least}")
        if not self.timeout_s > 0:
            raise ParameterError(f"`timeout_s` of `{self.name}` must be more than 0")
        if not 0 < parse_bytes(self.max_bytes) <= MAX_BYTES:
            raise ParameterError(f"`max_bytes` of `{self.name}` can be at most {MAX_BYTES:,}")
        if not self.user_agent.strip() or not self.user_agent.isascii() or not self.user_agent.isprintable():
            raise ParameterError(
                f"`user_agent` of `{self.name}` must be a line of ASCII text", hint='"examplebot/1.0 (+https://...)"'
            )
        if self.to == "download":
            raise ParameterError(f"`to` of `{self.name}` cannot be `download`, the column of the outcome")

    def notes(self) -> list[str]:
        found = ["robots.txt is not respected"] if not self.respect_robots else []
        return [*found, *(["addresses of private networks can be reached"] if self.allow_private else [])]

    def rules(self) -> list[Rule]:
        return [OutcomeRule("download")]

    def open(self, context: Context) -> Any:
        return _Downloading(
            FetchSettings(
                concurrency=self.concurrency,
                per_host=self.per_host,
                timeout_s=self.timeout_s,
                retries=self.retries,
                retry_wait_s=self.retry_wait_s,
                max_bytes=parse_bytes(self.max_bytes),
                user_agent=self.user_agent,
                robots=self.respect_robots,
                opt_out=tuple(self.opt_out),
                private=self.allow_private,
            )
        )


class _Downloading:
    """A `Download` in a worker."""

    def __init__(self, settings: FetchSettings) -> None:
        self._fetcher = Fetcher(settings)

    def score(self, batch: Batch) -> Scores:
        urls = batch["url"].to_pylist()
        found = self._fetcher.fetch([None if url is None else str(url).strip() for url in urls])
        media = [
            None if each.data is None else {"bytes": each.data, "path": media_name(str(url).strip())}
            for url, each in zip(urls, found, strict=True)
        ]
        return {
            "image": pa.array(media, MEDIA),
            "download": pa.array([each.outcome for each in found], pa.string()),
        }

    def close(self) -> None:
        self._fetcher.close()
