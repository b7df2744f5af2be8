"""Object stores that cannot be reached: one clear error each, for the input and for the output."""

from __future__ import annotations

import socket

import pytest

from tamis import JsonlReader, JsonlWriter, Pipeline
from tamis.errors import SinkError, SourceError

ONE_ATTEMPT = {"retries": {"max_attempts": 1}, "connect_timeout": 2}


@pytest.fixture
def away():
    """Options for an S3 endpoint on a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{port}", "config_kwargs": ONE_ATTEMPT}


@pytest.fixture
def no_credentials(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "missing"))
    return {"endpoint_url": "http://127.0.0.1:9", "config_kwargs": ONE_ATTEMPT, "skip_instance_cache": True}


def test_an_input_that_cannot_be_reached_is_one_error(away):
    with pytest.raises(SourceError, match="cannot reach s3://bucket/in") as caught:
        JsonlReader("s3://bucket/in/", storage_options=away).layout(10**6)
    assert "endpoint_url" in (caught.value.hint or "")


def test_an_input_without_credentials_is_one_error(no_credentials):
    with pytest.raises(SourceError, match="no credentials for s3://bucket/in") as caught:
        JsonlReader("s3://bucket/in/", storage_options=no_credentials).layout(10**6)
    assert "AWS_ACCESS_KEY_ID" in (caught.value.hint or "")


def test_an_output_that_cannot_be_reached_is_one_error(away, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    steps = JsonlReader(tmp_path), JsonlWriter("s3://bucket/out", storage_options=away)
    with pytest.raises(SinkError, match="cannot reach s3://bucket/out"):
        Pipeline(*steps).run(executor="inline")
