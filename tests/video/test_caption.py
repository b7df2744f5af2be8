"""Captions come from local models, compared with transformers, or from an endpoint that gets the frames of each window."""

import base64
import io
import re

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from tamis import Pipeline
from tamis.errors import ParameterError, TamisError
from tamis.executors.opening import opened
from tamis.models.captioning import frame_series
from tamis.sources.mediafiles import VideoReader
from tamis.video import Caption, FixedClips
from tamis.video.decode import FramePolicy, take_stills
from tests.language_server import LanguageServer
from tests.models.make_captioners import BLIP, CLIP, KINDS, QWEN, SMOL, write_captioner
from tests.models.make_vision import write_vit
from tests.video.make_videos import scene, video
from tests.video.test_filters import held, rows


def test_each_window_of_frames_gets_a_caption():
    data = video([(scene(1), 40)])
    with LanguageServer() as server:
        step = Caption(endpoint=server.url, cache=None, window_frames=3, min_window_frames=2, prompt="What happens?")
        with opened(step) as runner:
            found = runner.apply(rows(data, None))
        requests = server.requests
    windows = found["caption_windows"].to_pylist()
    assert [(each["begin"], each["end"]) for each in windows[0]] == [(0.0, 1.0), (1.5, 2.5), (3.0, 3.5)]
    assert found["caption"].to_pylist() == [" ".join(each["text"] for each in windows[0]), None]
    assert windows[1] is None
    sent = sorted((request["messages"][0]["content"] for request in requests), key=len)
    assert [len(content) for content in sent] == [3, 4, 4]
    assert all(content[0]["text"] == "What happens?" for content in sent)
    picture = sent[0][1]["image_url"]["url"].removeprefix("data:image/jpeg;base64,")
    assert Image.open(io.BytesIO(base64.b64decode(picture))).size == (160, 120)


def test_a_second_pass_rewrites_the_caption():
    with LanguageServer() as server:
        step = Caption(endpoint=server.url, cache=None, second_prompt="Shorten: {caption}")
        with opened(step) as runner:
            runner.apply(rows(video([(scene(1), 10)])))
        texts = [request["messages"][0]["content"][0]["text"] for request in server.requests]
    assert len(texts) == 2
    assert texts[1].startswith("Shorten: ")
    with pytest.raises(ParameterError, match="second_prompt"):
        Caption(endpoint=server.url, second_prompt="again").check()
    for wrong in ({"cache": "s3://bucket/answers"}, {"extra_body": {"messages": []}}, {"extra_body": {"seed": {1}}}):
        with pytest.raises(ParameterError, match=r"local disk|cannot set `messages`|written as JSON"):
            Caption(endpoint=server.url, **wrong).check()


# ------------------------------------------------------------------------------------------------------------ local models


def frames_of(data: bytes, window: slice) -> list[np.ndarray]:
    return [still.pixels for still in take_stills(held(data), FramePolicy("every", 0.2, 1, 100), 256)][window]


def expected(kind: str, model, folder, frames: list[np.ndarray]) -> str:
    """The caption of a window by the processors and `generate` of transformers."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    limits = {"do_sample": False, "max_new_tokens": 6}
    if kind in ("blip", "git"):
        begin = torch.tensor([tokenizer.encode("a video of")[: 4 if kind == "git" else 5]])
        if kind == "blip":
            pixels = transformers.BlipImageProcessorPil(**BLIP)([frames[3]], return_tensors="pt")["pixel_values"]
        else:
            pixels = transformers.CLIPImageProcessorPil(**CLIP)([frames[1], frames[3], frames[5]], return_tensors="pt")
            pixels = pixels["pixel_values"][None]
        made = model.generate(pixel_values=pixels, input_ids=begin, attention_mask=torch.ones_like(begin), **limits)[0]
        return tokenizer.decode(made, skip_special_tokens=True)
    if kind == "llava":
        text = "USER: " + "<image>" * 16 * 2 + "\nwhat happens ASSISTANT:"
        pixels = transformers.CLIPImageProcessorPil(**CLIP)([frames[1], frames[4]], return_tensors="pt")["pixel_values"]
        inputs = {"pixel_values": pixels}
    elif kind in ("idefics3", "smolvlm"):
        processor = (
            transformers.SmolVLMImageProcessorPil if kind == "smolvlm" else transformers.Idefics3ImageProcessorPil
        )
        # The processor of videos, which needs torchvision, does the same as that of images that are not split.
        settings = SMOL | {"do_image_splitting": False} | ({"size": {"longest_edge": 48}} if kind == "smolvlm" else {})
        pixels = processor(**settings)([frames[1], frames[4]], return_tensors="pt")["pixel_values"]
        assert pixels.shape == (1, 2, 3, 32, 32)
        mark = "<fake_token_around_image><global-img>" + "<image>" * 4 + "<fake_token_around_image>"
        shown = (
            "You are provided the following series of two frames from a 0:00:01 [H:MM:SS] video.\n"
            f"\nFrame from 00:00:{mark}\nFrame from 00:00:{mark}\n\n"
        )
        text = f"User: {shown}" if kind == "smolvlm" else f"User:{mark}{mark}"
        text = f"<|im_start|>{text}what happens<end_of_utterance>\nAssistant:"
        inputs = {"pixel_values": pixels}
    else:
        # The processor of images repeats each of them; that of videos, which needs torchvision, takes the next frame instead.
        found = transformers.Qwen2VLImageProcessorPil(**QWEN)(frames, return_tensors="pt")
        _, rows, columns = found["image_grid_thw"][0].tolist()
        parts = found["pixel_values"].reshape(len(frames) // 2, 2, rows * columns, 3, 2, 4, 4)
        pixels = torch.stack([parts[:, 0, :, :, 0], parts[:, 1, :, :, 0]], dim=3).reshape(-1, 96)
        count = len(frames) // 2 * rows * columns // 4
        text = (
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n<|vision_start|>"
            + "<|video_pad|>" * count
            + "<|vision_end|>what happens<|im_end|>\n<|im_start|>assistant\n"
        )
        inputs = {"pixel_values_videos": pixels, "video_grid_thw": torch.tensor([[len(frames) // 2, rows, columns]])}
        if kind == "qwen2_5_vl":
            inputs["second_per_grid_ts"] = torch.tensor([0.4])
    ids = torch.tensor([tokenizer.encode(text)])
    if kind.startswith("qwen"):
        inputs["mm_token_type_ids"] = 2 * (ids == model.config.video_token_id).long()
    made = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs, **limits)[0, ids.shape[1] :]
    return tokenizer.decode(made, skip_special_tokens=True).strip()


@pytest.mark.parametrize("kind", KINDS)
def test_captions_of_local_models_are_those_of_transformers(tmp_path, kind):
    model = write_captioner(tmp_path, kind)
    prompt = "a video of" if kind in ("blip", "git") else "what happens"
    step = Caption(
        tmp_path, prompt=prompt, window_frames=6, min_window_frames=6, frames_per_s=5, max_tokens=6, shown_frames=2
    ).changed(**({"shown_frames": None} if kind.startswith("qwen") else {}))
    step.check()
    files = [video([(scene(1), 24)]), None, video([(scene(7), 3), (scene(2), 9)])]
    with opened(step) as runner:
        found = runner.apply(rows(*files))["caption_windows"].to_pylist()
    assert [each and len(each) for each in found] == [2, None, 1]
    assert [(part["begin"], part["end"]) for part in found[0]] == [(0.0, 1.0), (1.2, 2.2)]
    wanted = [frames_of(files[0], slice(6)), frames_of(files[0], slice(6, 12)), frames_of(files[2], slice(6))]
    texts = [part["text"] for each in found if each for part in each]
    assert texts == [expected(kind, model, tmp_path, frames) for frames in wanted]
    assert all(texts)


def test_smolvlm2_reads_how_many_frames_it_sees_and_their_times():
    text = frame_series([10, 150], 180, 2.0)
    assert text.startswith("You are provided the following series of two frames from a 0:01:30 [H:MM:SS] video.\n")
    assert re.findall(r"\nFrame from (\d\d:\d\d):<fake_token_around_image><global-img>", text) == ["00:05", "01:15"]
    counts = [re.search("series of (.*) frames", frame_series(range(n), n, 1.0))[1] for n in (1, 8, 21, 64, 100, 121)]
    assert counts == ["one", "eight", "twenty-one", "sixty-four", "one hundred", "one hundred and twenty-one"]


@pytest.mark.parametrize("kind", ["qwen2_vl", "idefics3", "smolvlm"])
def test_a_local_model_rewrites_its_captions(tmp_path, kind):
    write_captioner(tmp_path, kind)
    step = Caption(tmp_path, second_prompt="shorten: {caption}", max_tokens=4)
    with opened(step) as runner:
        found = runner.apply(rows(video([(scene(1), 10)])))["caption"].to_pylist()
    with opened(step.changed(second_prompt=None)) as runner:
        first = runner.apply(rows(video([(scene(1), 10)])))["caption"].to_pylist()[0]
        again = runner.rewritten([f"shorten: {first}"])
    assert found == again
    assert found != [first]


def test_what_a_local_model_cannot_do_is_an_error(tmp_path):
    write_captioner(tmp_path / "git", "git")
    write_vit(tmp_path / "vit")
    for step, message in [
        (Caption(), "needs a `model` or an `endpoint`"),
        (Caption(tmp_path / "git", second_prompt="{caption}"), "does not follow instructions"),
        (Caption(tmp_path / "git", temperature=0.5), "most probable token"),
        (Caption(tmp_path / "git", template="{prompt}"), "{frames}"),
        (Caption(tmp_path / "vit"), "no tokenizer.json"),
    ]:
        with pytest.raises(TamisError, match=message):
            step.check()


def test_captions_reach_the_output_of_a_run(tmp_path):
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "a.mp4").write_bytes(video([(scene(1), 24)]))
    write_captioner(tmp_path / "model", "git")
    steps = [FixedClips(length_s=1.2, min_length_s=1.0), Caption(str(tmp_path / "model"), max_tokens=4)]
    table = Pipeline(VideoReader(str(tmp_path / "videos")), *steps).collect(executor="inline")
    assert len(table["caption"].to_pylist()) == 2
    assert all(table["caption"].to_pylist())
