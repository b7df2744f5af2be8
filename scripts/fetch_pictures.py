"""Fetch the pictures that Pillow is tested with: 1,060 real files of all formats, damaged ones and bombs among them.

They are part of Pillow's source distribution, which pip downloads once. Its SHA-256 is checked, and none of its code is run
by the tests.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "13.0.0"
SHA256 = "cdcd1ba258178f7356d74170c9a81ba4eab6a5d55748bc402a5a2a6fe6be3510"


def fetch() -> Path:
    """The folder of the pictures; they are downloaded if they are not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tamis-tests"
    folder = cache / f"pillow-{VERSION}-images"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run(
            [*command, "--no-binary", "pillow", "--dest", scratch, f"pillow=={VERSION}"], check=True, stdout=sys.stderr
        )
        (archive,) = Path(scratch).glob("*.tar.gz")
        if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
            raise RuntimeError(f"{archive.name} is not the file that was reviewed")
        with tarfile.open(archive) as opened:
            members = [each for each in opened if "/Tests/images/" in each.name and each.isreg()]
            opened.extractall(scratch, members, filter="data")
        try:
            Path(scratch, f"pillow-{VERSION}", "Tests", "images").rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process was faster
                raise
        shutil.rmtree(Path(scratch, f"pillow-{VERSION}"), ignore_errors=True)
    return folder


if __name__ == "__main__":
    sys.stdout.write(f"{fetch()}\n")
