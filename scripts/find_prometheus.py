"""Find Prometheus and promtool for the tests of metrics, or unpack Debian's package into the environment.

Nothing is installed on the system and no service is started. Prints what it did. Without Prometheus the tests that need it fail
and say so; all other tests run.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

UNPACKED = Path(sys.prefix) / "prometheus"


def find_tool(name: str) -> str | None:
    """The path of `prometheus` or `promtool`; None if it is not there."""
    own = UNPACKED / "usr" / "bin" / name
    return str(own) if own.is_file() else shutil.which(name)


def unpack() -> str:
    """Download and unpack the package; returns what failed, or an empty text."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            return f"there is no {tool} on this machine"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        command = ["apt-get", "download", "-q", "prometheus"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:  # perhaps there are no lists of packages yet
            subprocess.run(["apt-get", "update", "-q"], capture_output=True, check=False)
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        packages = list(Path(folder).glob("prometheus_*.deb"))
        if done.returncode or not packages:
            return (done.stderr.strip().splitlines() or ["apt-get download failed"])[-1]
        done = subprocess.run(
            ["dpkg-deb", "-x", str(packages[0]), str(UNPACKED)], capture_output=True, text=True, check=False
        )
        return done.stderr.strip() if done.returncode else ""


def main() -> int:
    problem = "" if find_tool("prometheus") and find_tool("promtool") else unpack()
    found = find_tool("prometheus")
    if found is not None and find_tool("promtool") is not None:
        sys.stdout.write(f"the tests of metrics use {found}\n")
        return 0
    sys.stderr.write(
        f"There is no Prometheus, and Debian's package cannot be unpacked: {problem}. The tests of metrics will fail.\n"
        "Install it with `apt-get install prometheus`.\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
