"""Cuts segments out of recordings, for steps that need the bytes of one."""

from __future__ import annotations

import io
from typing import IO

from tamis.audio.files import Encoder, read_blocks, read_info, with_channels
from tamis.errors import AudioError
from tamis.media import MAX_BYTES, MediaItem


def cut(item: MediaItem, format_: str = "flac") -> bytes:
    """A segment as a file, with the sample rate and the channels of the recording, or those that it names.

    As FLAC, samples of up to 24 bits stay the same. Those of lossy codecs get 16 bits, all others 24 at most, and samples
    beyond full scale are clipped.
    """
    target = io.BytesIO()
    cut_into(target, item, format_, most=MAX_BYTES)
    return target.getvalue()


def cut_into(target: IO[bytes], item: MediaItem, format_: str = "flac", *, most: int | None = None) -> None:
    """Write a segment to a file, block by block; an AudioError if it takes more than `most` bytes."""
    segment = item.segment
    begin, end, channels = (0.0, None, ()) if segment is None else (segment.begin, segment.end, segment.channels)
    with item.open() as file:
        info = with_channels(read_info(file), channels)
        file.seek(0)
        with Encoder(target, info.rate, info.channels, format_, bits=24 if info.bits > 16 else 16) as encoder:
            for samples in read_blocks(file, begin, end, channels):
                encoder.write(samples)
                if most is not None and target.tell() > most:
                    raise AudioError("too long", f"a value can hold {most:,} bytes")
