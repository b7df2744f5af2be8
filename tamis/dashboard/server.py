"""The live dashboard: an ASGI application that shows the pages of runs while they are running, and afterwards.

    GET /                     all runs side by side; with one run, its page
    GET /runs/1               the page of a run
    GET /runs/1/parts         the parts of it that have changed (JSON), which the page requests every few seconds
    GET /runs/1/report        the same as one file, to keep

It reads what runs write to their output folders and nothing else, so that it can be started, stopped and restarted at any
time, as can the runs. Nothing can be changed through it: there are no other methods than GET and HEAD.

A page of another origin cannot read it. Requests must name a host that the server was started for (so that a name that
resolves to this machine is refused), must not come from another origin, and answers forbid frames and embedding. Where it
listens on more than the loopback interface, a token is required: once in the address, then in a cookie that other sites
cannot send.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from tamis.dashboard import overview, sections
from tamis.dashboard.markup import Html, element, join, page, section
from tamis.dashboard.report_page import (
    ORDER,
    frame,
    heavy_parts,
    in_order,
    light_parts,
    name_of,
    report_page,
    titles_of,
)
from tamis.dashboard.runs import RunView, load_run, version_of
from tamis.errors import TamisError, first_line

try:
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
    from starlette.routing import Route
except ImportError as error:
    raise TamisError(
        "the dashboard needs the packages starlette and uvicorn", hint="pip install 'tamis[dashboard]'"
    ) from error

COOKIE = "tamis-token"
LOOPBACK = ("localhost", "127.0.0.1", "::1")

HEADERS = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "content-security-policy": "frame-ancestors 'none'",
}

HEAVY_EVERY_S, HEAVY_SHARE = 20.0, 20.0
"""While a run is running, rows and scores are read again after this time, and after this many times what reading took."""

Handler = Callable[[Request], Awaitable[Response]]


class LiveRun:
    """A run on the dashboard, with the parts of its page that were made last."""

    def __init__(self, output: str, name: str) -> None:
        self.output, self.name = output, name
        self._lock = threading.Lock()
        self._version: Any = None
        self._made = 0.0
        self._light: list[Html] = []
        self._heavy: list[Html] = []
        self._heavy_key: Any = None
        self._heavy_due = 0.0
        self._thread: threading.Thread | None = None
        self.view: RunView | None = None

    def refresh(self) -> RunView:
        """Read the run again if anything has changed. Rows and scores are read in a thread, and shown when they are there."""
        with self._lock:
            version = version_of_output(self.output)
            waiting = self.view is not None and self.view.state in ("running", "empty")
            if self.view is None or version != self._version or (waiting and time.monotonic() - self._made > 2):
                self.view = load_run(self.output)
                self.view.title = self.name
                self._version, self._made = version, time.monotonic()
                self._light = light_parts(self.view)
            self._start_reading(self.view)
            return self.view

    def parts(self) -> list[Html]:
        self.refresh()
        with self._lock:
            return in_order([*self._light, *self._heavy])

    def _start_reading(self, view: RunView) -> None:
        if view.state == "empty" or (self._thread is not None and self._thread.is_alive()):
            return
        key = (view.state, view.report.read, view.report.kept, sum(view.report.dropped.values()))
        if key == self._heavy_key or (view.live and time.monotonic() < self._heavy_due):
            return
        self._heavy_key = key
        self._thread = threading.Thread(target=self._read, args=(view,), name="tamis-rows", daemon=True)
        self._thread.start()

    def _read(self, view: RunView) -> None:
        began = time.monotonic()
        try:
            made = heavy_parts(view)
        except Exception as error:  # noqa: BLE001 - a running run replaces files while they are read
            made = [section("rows", "Rows", element("p", f"Rows cannot be read: {first_line(error)}", class_="empty"))]
        took = time.monotonic() - began
        with self._lock:
            self._heavy = made
            self._heavy_due = time.monotonic() + max(HEAVY_EVERY_S, HEAVY_SHARE * took)

    def wait(self) -> None:
        """Wait until rows and scores are read, for tests and files."""
        thread = self._thread
        if thread is not None:
            thread.join()


def version_of_output(output: str) -> Any:
    from tamis.store import Store

    try:
        return version_of(Store(output))
    except (TamisError, OSError):
        return None


class Dashboard:
    """The runs of a dashboard, and who may see them."""

    def __init__(self, outputs: Sequence[str], *, hosts: Sequence[str] = LOOPBACK, token: str | None = None) -> None:
        self.runs = [LiveRun(output, name) for output, name in zip(outputs, short_names(outputs), strict=True)]
        self.hosts, self.token = {host.lower() for host in hosts}, token

    def application(self) -> Starlette:
        guarded = self._guarded
        routes = [
            Route("/", guarded(self._start)),
            Route("/parts", guarded(self._overview_parts)),
            Route("/runs/{number:int}", guarded(self._run)),
            Route("/runs/{number:int}/parts", guarded(self._run_parts)),
            Route("/runs/{number:int}/report", guarded(self._report)),
            Route("/{path:path}", guarded(self._unknown)),
        ]
        return Starlette(routes=routes)

    # -------------------------------------------------------------------------------------------------------------- guard

    def _guarded(self, handler: Handler) -> Handler:
        async def handle(request: Request) -> Response:
            answer = self.refusal(request) or await handler(request)
            for name, value in HEADERS.items():
                answer.headers.setdefault(name, value)
            return answer

        return handle

    def refusal(self, request: Request) -> Response | None:
        """Why a request is not answered; None if it is."""
        host = request.headers.get("host", "")
        if self.token is None and host_name(host) not in self.hosts:
            return PlainTextResponse("this host name is not served here\n", 403)
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return PlainTextResponse("requests of other origins are refused\n", 403)
        site = request.headers.get("sec-fetch-site")
        if site in ("cross-site", "same-site") and request.headers.get("sec-fetch-mode") != "navigate":
            return PlainTextResponse("requests of other sites are refused\n", 403)
        if self.token is None:
            return None
        return self._with_token(request, self.token)

    def _with_token(self, request: Request, token: str) -> Response | None:
        given = request.query_params.get("token")
        if given is not None and hmac.compare_digest(given.encode(), token.encode()):
            answer = RedirectResponse(request.url.path, 303)
            answer.set_cookie(COOKIE, token, httponly=True, samesite="strict", path="/")
            return answer
        if hmac.compare_digest(request.cookies.get(COOKIE, "").encode(), token.encode()):
            return None
        words = "A token is required: open the address that `tamis dashboard` printed, or add ?token=... to this one."
        return HTMLResponse(
            page("Token required", element("h1", "Token required"), element("p", words), script=False), 401
        )

    # -------------------------------------------------------------------------------------------------------------- pages

    async def _start(self, request: Request) -> Response:
        if len(self.runs) == 1:
            return RedirectResponse("/runs/1", 303)
        parts = await run_in_threadpool(self._overview)
        head = [sections.brand("dashboard", _connection()), element("h1", f"{len(self.runs)} runs")]
        return HTMLResponse(page("Dashboard", parts, head=head, live="/parts"))

    def _overview(self) -> list[Html]:
        views = [run.refresh() for run in self.runs]
        return [overview.runs(views), overview.comparison(views)]

    async def _overview_parts(self, request: Request) -> Response:
        parts = await run_in_threadpool(self._overview)
        live = any(run.view is not None and run.view.live for run in self.runs)
        named = {"runs": parts[0], "comparison": parts[1]}
        return JSONResponse({"live": live, "parts": _changed(named, request.query_params.get("have", ""))})

    async def _run(self, request: Request) -> Response:
        run = self._find(request)
        if run is None:
            return await self._unknown(request)
        parts = await run_in_threadpool(run.parts)
        assert run.view is not None
        number = request.path_params["number"]
        links = [element("a", "all runs", href="/") if len(self.runs) > 1 else None]
        links.append(element("a", "report file", href=f"/runs/{number}/report", download=f"{run.view.name}.html"))
        content = frame(
            run.view, parts, kind="dashboard", live=f"/runs/{number}/parts", links=join([*links, _connection()])
        )
        return HTMLResponse(content)

    async def _run_parts(self, request: Request) -> Response:
        run = self._find(request)
        if run is None:
            return await self._unknown(request)
        have = request.query_params.get("have", "")
        parts = await run_in_threadpool(changed_parts, run, have)
        view = run.view
        assert view is not None
        nav = sections.navigation(titles_of(run.parts()))[len("<ul>") : -len("</ul>")]
        return JSONResponse({"live": view.live, "title": f"{view.name}: dashboard", "nav": nav, "parts": parts})

    async def _report(self, request: Request) -> Response:
        run = self._find(request)
        if run is None:
            return await self._unknown(request)
        return HTMLResponse(await run_in_threadpool(lambda: report_page(run.refresh())))

    async def _unknown(self, request: Request) -> Response:
        body = [element("h1", "Not found"), element("p", element("a", "To the runs", href="/"))]
        return HTMLResponse(page("Not found", body, script=False), 404)

    def _find(self, request: Request) -> LiveRun | None:
        number = int(request.path_params["number"])
        return self.runs[number - 1] if 1 <= number <= len(self.runs) else None


def _connection() -> Html:
    return element("span", "connecting", id="connection", class_="connection", role="status")


def changed_parts(run: LiveRun, have: str) -> dict[str, dict[str, str]]:
    """The parts of the page of a run that differ from those that a browser has; a part that no longer exists is empty."""
    named = {name_of(part): part for part in run.parts()}
    assert run.view is not None
    named["head"] = element("div", sections.head(run.view), id="head")
    gone = {name: Html("") for name in ORDER if name not in named and f"{name}:" in have}
    return _changed(named | gone, have)


def _changed(parts: dict[str, Html], have: str) -> dict[str, dict[str, str]]:
    """The parts whose version differs from the one that a page has."""
    known = dict(each.split(":", 1) for each in have.split(",") if ":" in each)
    versions = {name: hashlib.sha256(part.encode()).hexdigest()[:12] for name, part in parts.items()}
    return {
        name: {"version": versions[name], "markup": part}
        for name, part in parts.items()
        if known.get(name) != versions[name]
    }


def short_names(outputs: Sequence[str]) -> list[str]:
    """The last part of each path, or as many parts as it takes to tell them apart.

    >>> short_names(["a/clean", "b/clean", "c/raw"])
    ['a/clean', 'b/clean', 'c/raw']
    >>> short_names(["/data/clean"])
    ['clean']
    """
    parts = [[each for each in output.split("/") if each] or [output] for output in outputs]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(each[-depth:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return list(outputs)


def host_name(header: str) -> str:
    """The name in a Host header, without the port.

    >>> host_name("localhost:8000"), host_name("[::1]:8000"), host_name("evil.example")
    ('localhost', '::1', 'evil.example')
    """
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def new_token() -> str:
    return secrets.token_urlsafe(24)


def address_text(host: str, port: int, token: str | None) -> str:
    """The address to open."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + (f"?token={token}" if token is not None else "")
