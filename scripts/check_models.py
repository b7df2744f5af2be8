"""Check that the models in installed packages are those that were reviewed, by their SHA-256.

The packages are uploads of third parties. None of their code is run: their files are found and read.
"""

from __future__ import annotations

import hashlib
import sys

from tamis.errors import TamisError
from tamis.models.fasttext import find_model
from tamis.models.files import ModelError, find

KNOWN = {
    "minilm": {"model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"},
    "wordllama": {
        "l2_supercat_256.safetensors": "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
        "l2_supercat_tokenizer_config.json": "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
    },
}

SINGLE_FILES = {"hatesonar.onnx": "3d881e00b16eb0cf8a6df58a68305f6a1b36e512334aa702a9501eaa0afe51b5"}


def main() -> int:
    """Return 1 if a file differs. A package that is not installed is not an error."""
    wrong = []
    for name, files in KNOWN.items():
        try:
            found = find(name)
        except ModelError:
            continue
        for path in (*found.weights, *found.others):
            expected = files.get(path.name)
            if expected is not None and hashlib.sha256(path.read_bytes()).hexdigest() != expected:
                wrong.append(str(path))
    for name, expected in SINGLE_FILES.items():
        try:
            file = find_model(name)
        except TamisError:
            continue
        if hashlib.sha256(file.read_bytes()).hexdigest() != expected:
            wrong.append(str(file))
    for path in wrong:
        sys.stderr.write(f"{path} is not the file that was reviewed\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
