"""Cuts segments out of recordings, for steps that need the bytes of one."""

from __future__ import annotations

import io

from tamis.audio.files import Encoder, read_blocks, read_info
from tamis.errors import AudioError
from tamis.media import MAX_BYTES, MediaItem


def cut(item: MediaItem, format_: str = "flac") -> bytes:
    """A segment as a file: the samples of the recording at its sample rate and with its channels, without loss as FLAC."""
    segment = item.segment
    begin, end = (0.0, None) if segment is None else (segment.begin, segment.end)
    target = io.BytesIO()
    with item.open() as file:
        info = read_info(file)
        file.seek(0)
        with Encoder(target, info.rate, info.channels, format_, bits=24 if info.bits > 16 else 16) as encoder:
            for samples in read_blocks(file, begin, end):
                encoder.write(samples)
                if target.tell() > MAX_BYTES:
                    raise AudioError("too long", f"a value can hold {MAX_BYTES:,} bytes")
    return target.getvalue()
