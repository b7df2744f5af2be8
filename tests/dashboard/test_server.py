"""The dashboard answers its own pages and nobody else."""

import asyncio
import json
import subprocess
import sys

import pytest

from tamis.cli import main
from tamis.dashboard.commands import serve
from tamis.dashboard.server import Dashboard, is_loopback
from tamis.errors import ParameterError


def request(dashboard, path, *, method="GET", **headers):
    """The status, the headers and the body of an answer, through the ASGI interface."""
    target, _, query = path.partition("?")
    given = {"host": "localhost:8271", **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": target,
        "raw_path": target.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "server": ("127.0.0.1", 8271),
        "client": ("127.0.0.1", 50000),
    }
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    asyncio.run(dashboard.application()(scope, receive, send))
    answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], answered, b"".join(message.get("body", b"") for message in sent[1:])


@pytest.fixture(scope="module")
def dashboard(finished, empty):
    made = Dashboard([finished, empty])
    for run in made.runs:
        run.refresh()
        run.wait()
    return made


def test_any_error_while_rows_are_read_is_on_the_page(finished, monkeypatch):
    def fail(view):
        raise RuntimeError("the first line\nthe second line")

    monkeypatch.setattr("tamis.dashboard.server.heavy_parts", fail)
    (run,) = Dashboard([finished]).runs
    run.refresh()
    run.wait()
    assert "Rows cannot be read: the first line<" in "".join(run.parts())


def test_pages_parts_and_files_are_served(dashboard):
    status, headers, body = request(dashboard, "/")
    assert status == 200
    assert b"/runs/2" in body
    assert headers["x-frame-options"] == "DENY"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers
    status, _, body = request(dashboard, "/runs/1")
    assert status == 200
    assert b'data-live="/runs/1/parts"' in body
    assert b"connect-src &#x27;self&#x27;" in body
    assert request(dashboard, "/runs/1/report")[0] == 200
    assert request(dashboard, "/runs/3")[0] == 404
    assert request(dashboard, "/../../etc/passwd")[0] == 404


def test_only_what_has_changed_is_sent(dashboard):
    _, _, body = request(dashboard, "/runs/1/parts")
    parts = json.loads(body)["parts"]
    assert {"head", "funnel", "reasons", "thresholds", "rows", "duplicates", "resources"} <= set(parts)
    have = ",".join(f"{name}:{part['version']}" for name, part in parts.items())
    assert json.loads(request(dashboard, f"/runs/1/parts?have={have}")[2])["parts"] == {}
    stale = have.replace(parts["funnel"]["version"], "0" * 12)
    assert list(json.loads(request(dashboard, f"/runs/1/parts?have={stale}")[2])["parts"]) == ["funnel"]


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:8271"},
        {"host": "localhost.evil.example:8271"},
        {"host": ""},
        {"host": "[bad"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:9999"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "cors"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"},
    ],
)
def test_other_hosts_and_origins_are_refused(dashboard, headers):
    """A name that resolves to this machine (DNS rebinding) is another host; a page elsewhere is another origin."""
    status, answered, body = request(dashboard, "/runs/1/parts", **headers)
    assert status == 403
    assert b"funnel" not in body
    assert answered["cache-control"] == "no-store"


def test_own_requests_and_links_from_elsewhere_are_answered(dashboard):
    assert request(dashboard, "/", host="127.0.0.1:8271")[0] == 200
    assert request(dashboard, "/", host="[::1]:8271")[0] == 200
    assert request(dashboard, "/runs/1/parts", origin="http://localhost:8271")[0] == 200
    assert request(dashboard, "/", sec_fetch_site="cross-site", sec_fetch_mode="navigate")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(dashboard, method):
    assert request(dashboard, "/runs/1/parts", method=method)[0] == 405


def test_a_token_is_required_once_and_then_kept_in_a_strict_cookie(finished):
    dashboard = Dashboard([finished], token="secret")
    assert request(dashboard, "/runs/1")[0] == 401
    assert request(dashboard, "/runs/1?token=wrong")[0] == 401
    assert request(dashboard, "/runs/1", cookie="tamis-token=wrong")[0] == 401
    status, headers, _ = request(dashboard, "/runs/1?token=secret", host="node7.cluster:8271")
    assert status == 303
    assert headers["location"] == "/runs/1", "the token does not stay in the address"
    assert "HttpOnly" in headers["set-cookie"]
    assert "SameSite=strict" in headers["set-cookie"]
    assert request(dashboard, "/runs/1", cookie="tamis-token=secret", host="node7.cluster:8271")[0] == 200
    refused = request(dashboard, "/runs/1", cookie="tamis-token=secret", origin="http://evil.example")
    assert refused[0] == 403


def test_only_loopback_needs_no_token():
    assert [host for host in ("127.0.0.1", "127.8.0.1", "::1", "localhost") if not is_loopback(host)] == []
    assert [host for host in ("0.0.0.0", "::", "10.0.0.7", "localhost.evil.example", "") if is_loopback(host)] == []


def test_a_port_that_is_taken_is_an_error_with_a_hint(finished, capsys):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["dashboard", finished, "--port", str(port)]) == 2
        assert "--port" in capsys.readouterr().err
        with pytest.raises(ParameterError):
            serve([finished], port=port, announce=print)


def test_a_folder_without_a_run_is_named_after_the_address(finished, tmp_path):
    command = [sys.executable, "-m", "tamis", "dashboard", finished, str(tmp_path / "typo"), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = [process.stderr.readline() for _ in range(2)]
        process.terminate()
    assert lines[0].startswith("dashboard: http://127.0.0.1:")
    assert lines[1] == f"note: there is no run in {tmp_path}/typo yet; the page shows it as soon as it starts\n"
