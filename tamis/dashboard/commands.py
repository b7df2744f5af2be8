"""The command `tamis dashboard`, and the dashboard beside a run."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import typer

from tamis.commands.printing import print_status
from tamis.errors import ParameterError, TamisError

DEFAULT_PORT = 8271
TOKEN_VARIABLE = "TAMIS_DASHBOARD_TOKEN"


def dashboard(
    outputs: Annotated[list[str], typer.Argument(metavar="OUTPUT", help="The output folders of runs.")],
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="The port; 0 chooses a free one. By default 8271 or a free one."),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen on; others than loopback need a token.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", envvar=TOKEN_VARIABLE, help="Require this token. Without it one is made where it is needed."
        ),
    ] = None,
) -> None:
    """Serve a live view of runs, running or finished, in a browser."""
    from tamis.looking.rows import is_output

    def announce(address: str) -> None:
        print_status(address)  # first: `beside_a_run` reads it
        for output in outputs:
            if not is_output(output):
                print_status(f"note: there is no run in {output} yet; the page shows it as soon as it starts")

    serve(outputs, host=host, port=port, token=token, announce=announce)


def serve(
    outputs: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: str | None = None,
    announce: Callable[[str], None],
) -> None:
    """Serve until interrupted. `announce` is given the address as soon as it can be opened."""
    from tamis.dashboard.server import LOOPBACK, Dashboard, address_text, is_loopback, new_token

    try:
        import uvicorn
    except ImportError as error:
        raise TamisError("the dashboard needs the package uvicorn", hint="pip install 'tamis[dashboard]'") from error
    if token is not None and (not token or not token.isascii()):
        raise ParameterError("the token must be a text of ASCII characters")
    if token is None and not is_loopback(host):
        token = new_token()
    bound = _listen(host, port)
    with bound:
        where = bound.getsockname()[1]
        made = Dashboard(outputs, hosts=[*LOOPBACK, host], token=token)
        config = uvicorn.Config(
            made.application(),
            log_level="error",
            access_log=False,
            lifespan="off",
            server_header=False,
            ws="none",
            http="h11",
        )
        announce(f"dashboard: {address_text(host, where, token)}")
        uvicorn.Server(config).run(sockets=[bound])


def _listen(host: str, port: int | None) -> socket.socket:
    """A socket that listens: on the port given, or on the usual one or a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for wanted in [port] if port is not None else [DEFAULT_PORT, 0]:
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, wanted))
            found.listen(128)
        except OSError as error:
            found.close()
            if port is not None or wanted == 0:
                raise ParameterError(
                    f"cannot listen on {host} port {wanted}: {error.strerror or error}",
                    hint="choose another --port, or 0 for a free one",
                ) from error
            continue
        return found
    raise AssertionError


@contextlib.contextmanager
def beside_a_run(output: str, announce: Callable[[str], None]) -> Iterator[None]:
    """Serve the dashboard of a run from a process of its own while the block runs.

    It is not a thread, so that it takes neither time nor memory from the driver; it is started before the run measures its
    memory, so that it is not part of the budget.
    """
    from tamis.dashboard import server  # raises here, before the run, if a package is missing

    command = [sys.executable, "-m", "tamis", "dashboard", output]
    environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process: Any = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environment,
        start_new_session=True,
    )  # its own session: Ctrl-C stops the run, and the page shows how it stops
    try:
        line = process.stderr.readline()
        if not line.startswith("dashboard: "):
            raise TamisError(f"the dashboard did not start: {line.strip() or 'no output'}")
        announce(line.rstrip())
        assert server is not None
        yield
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stderr.close()
