"""Captions come from an endpoint that receives the frames of each window."""

import base64
import io

import pytest
from PIL import Image

from tamis.errors import ParameterError
from tamis.executors.opening import opened
from tamis.video import Caption
from tests.language_server import LanguageServer
from tests.video.make_videos import scene, video
from tests.video.test_filters import rows


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
        Caption(second_prompt="again").check()
