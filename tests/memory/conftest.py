import subprocess
import sys

import pytest


@pytest.fixture
def child():
    """A process that says when it is there and ends when its input does."""
    code = "import sys; data = bytearray(40_000_000); print('here', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.stdin.close()
