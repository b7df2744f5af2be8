"""Build the sdist, and from its content the wheel, without the network: the build backend is in the environment.

python scripts/build_dist.py FOLDER
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
STEP = "import setuptools.build_meta as backend, sys; print(getattr(backend, sys.argv[1])(sys.argv[2]))"


def build(target: Path) -> tuple[Path, Path]:
    """The sdist and the wheel in `target`. As pip does, the wheel is built from the sdist, so both have the same files."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        files = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "tamis", ":(top,glob)*"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.split("\0")  # fmt: skip
        for name in filter(None, files):  # a copy, because the backend writes into the tree
            if (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
        sdist = target / _call("build_sdist", copy, target)
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        wheel = target / _call("build_wheel", Path(folder) / sdist.name.removesuffix(".tar.gz"), target)
    return sdist, wheel


def _call(hook: str, folder: Path, target: Path) -> str:
    command = [sys.executable, "-W", "ignore", "-c", STEP, hook, str(target.resolve())]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise SystemExit(f"{hook} failed")
    return done.stdout.splitlines()[-1]


if __name__ == "__main__":
    for file in build(Path(sys.argv[1])):
        sys.stdout.write(f"{file} ({file.stat().st_size / 1e6:.1f} MB)\n")
