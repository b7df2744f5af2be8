"""Small vision-language models with random weights, written to disk as transformers does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from tests.models.make_networks import random_values, write_json

WORDS = ("a", "dog", "runs", "over", "the", "grass", "man", "walks", "red", "car", "video", "of", "shorten", "describe", "this",
         "in", "detail", ".", ":", "USER", "ASSISTANT", "user", "assistant", "system", "you", "are", "helpful",
         "User:", "You", "provided", "following", "series", "two", "frames", "from", "0:00:01", "[H:MM:SS]")  # fmt: skip
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>", "<image>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>",
           "<|image_pad|>", "<|video_pad|>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")  # fmt: skip
IDS = {name: number for number, name in enumerate([*SPECIAL, *WORDS])}

TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": len(IDS),
}
LLAMA = TEXT | {
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "pad_token_id": 0,
}
CLIP = {
    "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32},
    "do_center_crop": True, "resample": 3, "image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28],
}  # fmt: skip
BLIP = CLIP | {
    "image_processor_type": "BlipImageProcessor",
    "size": {"height": 32, "width": 32},
    "do_center_crop": False,
}
QWEN = {
    "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4, "temporal_patch_size": 2, "merge_size": 2,
    "min_pixels": 8 * 8 * 4, "max_pixels": 8 * 8 * 24, "image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28],
}  # fmt: skip
SMOL = {
    "image_processor_type": "SmolVLMImageProcessor", "do_image_splitting": True, "size": {"longest_edge": 64},
    "max_image_size": {"longest_edge": 32}, "resample": 1, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
}  # fmt: skip
SAMPLING = {"video_sampling": {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": 48}}}
KINDS = ("blip", "git", "llava", "idefics3", "smolvlm", "qwen2_vl", "qwen2_5_vl")


def write_tokenizer(folder: Path, *, begin: str, end: str | None = None) -> None:
    tokenizer = Tokenizer(models.WordLevel({**IDS}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern=" ", behavior="removed")
    tokenizer.add_special_tokens(list(SPECIAL))
    after = f" {end}" if end else ""
    names = [name for name in (begin, end) if name]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A{after}".strip(), special_tokens=[(name, IDS[name]) for name in names]
    )
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))


def _config(kind: str) -> tuple[Any, Any, dict[str, Any]]:
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2,
              "image_size": 32, "patch_size": 8}  # fmt: skip
    if kind == "blip":
        text = TEXT | {"encoder_hidden_size": 32, "bos_token_id": 2, "sep_token_id": 3, "eos_token_id": 3, "pad_token_id": 0,
                       "max_position_embeddings": 64}  # fmt: skip
        config = transformers.BlipConfig(text_config=text, vision_config=vision, projection_dim=32)
        return transformers.BlipForConditionalGeneration, config, BLIP
    if kind == "git":
        config = transformers.GitConfig(
            vision_config=vision, **TEXT, num_image_with_embedding=3, bos_token_id=2, eos_token_id=3, pad_token_id=0,
            max_position_embeddings=64,
        )  # fmt: skip
        return transformers.GitForCausalLM, config, CLIP
    if kind == "llava":
        config = transformers.LlavaConfig(
            vision_config=vision | {"model_type": "clip_vision_model"}, text_config=LLAMA | {"model_type": "llama"},
            image_token_id=IDS["<image>"], image_seq_length=16,
        )  # fmt: skip
        return transformers.LlavaForConditionalGeneration, config, CLIP
    if kind in ("idefics3", "smolvlm"):
        text = LLAMA | {"model_type": "llama", "eos_token_id": IDS["<end_of_utterance>"]}
        parts = {"vision_config": vision, "text_config": text, "image_token_id": IDS["<image>"], "scale_factor": 2}
        if kind == "idefics3":
            processor = SMOL | {"image_processor_type": "Idefics3ImageProcessor"}
            return transformers.Idefics3ForConditionalGeneration, transformers.Idefics3Config(**parts), processor
        return transformers.SmolVLMForConditionalGeneration, transformers.SmolVLMConfig(**parts), SMOL | SAMPLING
    marks = {
        "image_token_id": IDS["<|image_pad|>"], "video_token_id": IDS["<|video_pad|>"],
        "vision_start_token_id": IDS["<|vision_start|>"], "vision_end_token_id": IDS["<|vision_end|>"],
    }  # fmt: skip
    text = LLAMA | {
        "eos_token_id": IDS["<|im_end|>"],
        "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]},
    }
    if kind == "qwen2_vl":
        seen = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "patch_size": 4, "mlp_ratio": 2}
        config = transformers.Qwen2VLConfig(text_config=text, vision_config=seen, **marks)
        return transformers.Qwen2VLForConditionalGeneration, config, QWEN
    seen = {"depth": 2, "hidden_size": 32, "out_hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 4,
            "window_size": 16, "fullatt_block_indexes": [1]}  # fmt: skip
    config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=seen, **marks)
    return transformers.Qwen2_5_VLForConditionalGeneration, config, QWEN


def write_captioner(folder: Path, kind: str) -> Any:
    """A small model of one of KINDS; its captions are random, and depend on the frames."""
    model_class, config, processor = _config(kind)
    model = model_class(config)
    seed = {"llava": 5, "idefics3": 5, "smolvlm": 5, "qwen2_5_vl": 8}.get(kind, 3)  # models that do not stop at once
    values = {
        name: value for name, value in random_values(model, seed, 0.3).items() if not name.endswith("position_ids")
    }
    model.load_state_dict(values, strict=False)
    model.tie_weights()
    model.eval().save_pretrained(folder)
    write_json(folder / "preprocessor_config.json", processor)
    ends = {"blip": "</s>", "git": "</s>"}
    write_tokenizer(folder, begin="<s>" if kind in ("blip", "git", "llava") else "", end=ends.get(kind))
    return model
