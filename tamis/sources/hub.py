"""Datasets of the Hugging Face Hub: `hf://datasets/org/name/data/*.parquet`, from the network or from the local cache.

network   huggingface_hub's file system lists and reads the files
cache     without a network, or with HF_HUB_OFFLINE=1, the files of the last snapshot that was downloaded to this machine
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from tamis.errors import SourceError
from tamis.models.files import hub_cache, snapshot_in

PREFIX = "hf://"
_PATH = re.compile(
    r"hf://(?:(?P<kind>datasets|spaces)/)?(?P<repo>[^/@*]+/[^/@*]+)(?:@(?P<revision>[^/]+))?(?:/(?P<inside>.*))?"
)


def is_offline() -> bool:
    """Whether the user has forbidden requests to the Hub."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def in_cache(url: str) -> str | None:
    """The path of a file, folder or pattern in the copy of a repository on this machine; None if there is no copy.

    >>> in_cache("hf://datasets/nobody/nothing/data/*.parquet") is None
    True
    """
    found, root = _PATH.fullmatch(url), folder_in_cache(url)
    if found is None or root is None:
        return None
    folder = snapshot_in(root, (found["revision"] or "main").replace("%2F", "/"))
    inside = (found["inside"] or "").strip("/")
    if folder is None or ".." in inside.split("/"):
        return None
    path = folder / inside
    return str(path) if any(sign in inside for sign in "*?[") or path.exists() else None


def folder_in_cache(url: str) -> Path | None:
    """Where the copy of a repository is on this machine, if there is one; None for a path of another form."""
    found = _PATH.fullmatch(url)
    return None if found is None else hub_cache() / f"{found['kind'] or 'models'}--{found['repo'].replace('/', '--')}"


def not_reached(url: str, error: SourceError | None) -> SourceError:
    """The error for a repository that can neither be reached nor found in the cache."""
    repo = match["repo"] if (match := _PATH.fullmatch(url)) else "org/name"
    why = "HF_HUB_OFFLINE is set" if error is None else "the Hugging Face Hub cannot be reached"
    return SourceError(
        f"{url} cannot be read: {why}, and {hub_cache()} has no copy of it",
        hint=f"where there is a network, run `hf download {repo} --repo-type dataset`, and copy its folder here",
    )
