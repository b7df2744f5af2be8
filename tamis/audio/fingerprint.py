"""What a sound is like over time, in a few bits, and digests of its samples."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Literal

import numpy as np
import pyarrow as pa

from tamis.audio.decode import AudioStep, Recording, recordings
from tamis.batch import Batch, Column, Facts
from tamis.kernels.sound_prints import RATE, sound_print
from tamis.media import read_bytes
from tamis.operators import Map, operator


@operator(reads="audio")
class AudioFingerprint(AudioStep, Map):
    """Add the acoustic fingerprint of each sound: a hash of 32 bits for every 32 ms, as a list of integers.

    A hash has a bit for each of 32 pairs of neighbouring bands of frequencies, from 150 to 3700 Hz: whether the difference of
    their power rises or falls within 128 ms (after Haitsma and Kalker 2002). Re-encoding, gain and noise change few bits.
    Above the 32 bits, an integer has the numbers of the two bits that are least certain, 5 bits each, and a 1; it is 0 where
    the sound is silent. The first hash describes the first 640 ms; a shorter sound has none.

    `AudioDedup(hash_column="fingerprint")` compares them without decoding the sounds again. Recordings of any length are
    decoded in blocks. Takes a thousandth of the duration of the sound, plus decoding; 30 integers per second.
    """

    output: str = "fingerprint"
    column: str = "audio"

    version = 1

    def writes(self) -> tuple[str, ...]:
        return (self.output,)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        found = [None if words is None else words.view(np.int64) for words in fingerprints_of(batch, "audio")]
        return {self.output: pa.array(found, pa.list_(pa.int64()))}


def fingerprints_of(batch: Batch, column: str) -> list[np.ndarray | None]:
    """The fingerprints of the sounds of a column, computed once for all operators; None for a row without sound."""

    def compute() -> Facts:
        found = np.empty(len(batch), dtype=object)
        for row, recording in enumerate(recordings(batch, column)):
            found[row] = None if recording is None else sound_print(recording.blocks(RATE))
        return {"fingerprint": found}

    return list(batch.remembered(column, "fingerprints", compute)["fingerprint"])


@operator(reads="audio")
class AudioDigest(AudioStep, Map):
    """Add the SHA-256 hash of each file, or of its decoded samples, in hexadecimal.

    Two files with the same samples, such as a WAV file and its copy as FLAC, have different bytes. The hash of samples is that
    of sample rate and number of channels, 32 bits each with the lowest byte first, followed by the samples of all channels in
    turn, as 32-bit floats from -1 to 1. `ExactDedup(column="audio_digest")` keeps one of the sounds with the same samples."""

    of: Literal["bytes", "samples"] = "bytes"
    output: str = "audio_digest"
    column: str = "audio"

    version = 1

    def writes(self) -> tuple[str, ...]:
        return (self.output,)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        if self.of == "bytes":
            found = [None if data is None else hashlib.sha256(data).hexdigest() for data in read_bytes(batch, "audio")]
        else:
            found = [None if each is None else sample_digest(each) for each in recordings(batch, "audio")]
        return {self.output: pa.array(found, pa.string())}


def sample_digest(recording: Recording) -> str:
    """The SHA-256 hash of the samples of a recording, read in blocks."""
    digest = hashlib.sha256(np.array([recording.info.rate, recording.info.channels], "<u4").tobytes())
    for block in recording.channels():
        digest.update(np.ascontiguousarray(block.T, "<f4").data)
    return digest.hexdigest()
