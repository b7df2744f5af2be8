"""Sends alerts out of this process, to a command or a webhook. A receiver returns an error as text, and never raises."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from http.client import HTTPException
from typing import IO, TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from tamis.errors import ParameterError

if TYPE_CHECKING:
    from tamis.memory.alerts import Alert

RETRY_STATUS = {408, 425, 429, 500, 502, 503, 504}
"""Responses after which a retry may succeed."""


class Receiver(Protocol):
    """Sends an alert; returns a description of the error if that fails."""

    def __call__(self, alert: Alert) -> str | None: ...


def as_json(alert: Alert) -> bytes:
    """The alert as JSON."""
    return json.dumps(asdict(alert), ensure_ascii=False).encode()


class CommandReceiver:
    """Starts a program, without a shell, with the alert as JSON on its standard input."""

    def __init__(self, command: Sequence[str], *, timeout_s: float = 10.0) -> None:
        self.command, self.timeout_s = list(command), timeout_s

    def __call__(self, alert: Alert) -> str | None:
        name = self.command[0]
        # A file instead of a pipe: a grandchild that keeps a pipe open would block this after the program has ended.
        with tempfile.TemporaryFile() as said:
            try:
                process = subprocess.Popen(
                    self.command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
                )
            except (OSError, ValueError) as error:
                return f"the alert command {name} could not be started: {error}"
            try:
                process.communicate(as_json(alert), timeout=self.timeout_s)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return f"the alert command {name} did not end within {self.timeout_s:g} s and was stopped"
            if process.returncode == 0:
                return None
            return f"the alert command {name} failed with {process.returncode}{_last_words(said)}"


def _last_words(said: IO[bytes]) -> str:
    size = said.seek(0, os.SEEK_END)
    said.seek(max(0, size - 500))
    text = said.read().decode(errors="replace").strip()
    return f": {text.splitlines()[-1]}" if text else ""


class WebhookReceiver:
    """Posts the alert as JSON; retries a few times when the server is busy or unreachable.

    Only http and https, and no redirects, so that an alert is only sent to the configured address. Messages name only the
    host, since the rest of a webhook's address is often a secret.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 5.0,
        retries: int = 2,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        try:
            parts = urlsplit(url)
            host = parts.hostname
        except (ValueError, AttributeError):
            parts, host = None, None
        if parts is None or parts.scheme not in ("http", "https") or not host:
            raise ParameterError(
                "`webhook` of `alerts` must be an address that begins with http:// or https://",
                hint="for example https://hooks.example.org/memory",
            )
        self.url, self.timeout_s, self.retries = url, timeout_s, retries
        self.host = host
        self._wait = wait or threading.Event().wait
        self._opener = urllib.request.build_opener(_NoRedirects)

    def __call__(self, alert: Alert) -> str | None:
        request = urllib.request.Request(
            self.url, as_json(alert), {"Content-Type": "application/json", "User-Agent": "tamis"}, method="POST"
        )
        problem = None
        for attempt in range(self.retries + 1):
            if attempt:
                self._wait(min(8.0, 0.5 * 2 ** (attempt - 1)))
            problem, again = self._post(request)
            if not again:
                break
        return None if problem is None else f"the alert webhook at {self.host} failed: {problem}"

    def _post(self, request: urllib.request.Request) -> tuple[str | None, bool]:
        """(error or None, whether to retry)"""
        try:
            with self._opener.open(request, timeout=self.timeout_s):
                return None, False
        except urllib.error.HTTPError as error:
            with error:
                return f"it answered {error.code} {error.reason}", error.code in RETRY_STATUS
        except (OSError, HTTPException) as error:
            return str(getattr(error, "reason", error)) or type(error).__name__, True


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Any,
        newurl: str,
    ) -> None:
        return None
