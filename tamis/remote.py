"""Object stores and other file systems of fsspec."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from tamis.errors import TamisError, remote_failure


class GuardedFileSystem:
    """An fsspec file system whose methods raise one clear error if the store cannot be reached or refuses access."""

    def __init__(self, system: Any, what: str, kind: type[TamisError]) -> None:
        self._system, self._what, self._kind = system, what, kind

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._system, name)

        def call(*arguments: Any, **options: Any) -> Any:
            try:
                return method(*arguments, **options)
            except Exception as error:
                known = remote_failure(error, self._what, self._kind)
                if known is None:
                    raise
                raise known from error

        return call


def open_store(url: str, options: Mapping[str, Any], kind: type[TamisError]) -> tuple[Any, str]:
    """(file system, path in it) of a URL; errors are raised as `kind`."""
    from fsspec.core import url_to_fs  # slow to import, and local files do not need it

    try:
        system, path = url_to_fs(url, **options)
    except (ValueError, ImportError) as error:
        raise kind(
            f"{url} cannot be opened: {error}",
            hint=f"install the package for {url.partition('://')[0]}://; for S3, pip install 'tamis[s3]'",
        ) from error
    return GuardedFileSystem(system, url, kind), path


def is_remote(url: str) -> bool:
    return "://" in url and not url.startswith("file://")


# ------------------------------------------------------------------------------------------------------ conditional writes

_REFUSED = ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey", "404")
"""Codes of S3 if a condition does not hold: the object has changed, is missing, or is being written by another run."""


def writes_conditionally(system: GuardedFileSystem, key: str) -> bool:
    """Whether a store heeds conditions of writes; tried with the object `key`, which is removed again."""
    if not hasattr(system._system, "call_s3"):
        return False
    try:
        put_if(system, key, b"", IfNoneMatch="*")
        return put_if(system, key, b"", IfNoneMatch="*") is None
    except (OSError, TypeError, ValueError):  # the server, or a version of the client, does not know the condition
        return False
    finally:
        with contextlib.suppress(OSError):
            system.rm_file(key)


def put_if(system: GuardedFileSystem, key: str, data: bytes, **condition: str) -> str | None:
    """Write an object on a condition; returns its tag, or None if the condition does not hold."""
    bucket, _, name = key.partition("/")
    try:
        return str(system.call_s3("put_object", Bucket=bucket, Key=name, Body=data, **condition)["ETag"])
    except OSError as error:
        if _code(error) in _REFUSED:
            return None
        raise


def read_tagged(system: GuardedFileSystem, key: str) -> tuple[bytes, str] | None:
    """(content, tag) of an object, or None if it does not exist."""
    bucket, _, name = key.partition("/")
    # The tag first: if the object changes in between, a write on the condition of this tag is refused.
    try:
        tag = system.call_s3("head_object", Bucket=bucket, Key=name)["ETag"]
        return system.cat_file(key), str(tag)
    except FileNotFoundError:
        return None


def clock_ahead_s(system: GuardedFileSystem, key: str) -> float:
    """How far the clock of a store is ahead of the one of this machine; 0 if the store does not say."""
    if not hasattr(system._system, "call_s3"):
        return 0.0
    try:
        answer = system.call_s3("list_objects_v2", Bucket=key.partition("/")[0], MaxKeys=1)
        date = answer["ResponseMetadata"]["HTTPHeaders"]["date"]
        return parsedate_to_datetime(date).timestamp() - time.time()
    except (OSError, KeyError, ValueError, TypeError):
        return 0.0


def _code(error: BaseException) -> str:
    """The code of the S3 error that caused an error of the file system."""
    response = getattr(error.__cause__, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))
