"""Maps that change sound: another sample rate, one channel, a loudness, without silence at the ends, another format.

Recordings that a step does not have to change keep their bytes, or their reference. Changed ones become files of
their own, which the row holds, in FLAC unless the step says otherwise. They are read and written piece by piece.
"""

from __future__ import annotations

import io
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tamis.audio.decode import AudioInfoStep, AudioStep, Recording, recordings, resampled_channels
from tamis.audio.files import RATES, Encoder
from tamis.audio.segment import frame_levels, part_of
from tamis.audio.signal import signal_of
from tamis.batch import Batch, Column
from tamis.errors import ParameterError
from tamis.media import media_name
from tamis.operators import Map, operator
from tamis.sources.jsonmedia import MEDIA

Format = Literal["flac", "wav", "opus", "mp3"]

_CODECS = {"flac": ("flac",), "wav": ("pcm_s16le", "pcm_s24le", "pcm_f32le"), "opus": ("opus",), "mp3": ("mp3",)}


class AudioEdit(AudioStep, Map):
    """A map that replaces recordings."""

    column: str

    def writes(self) -> tuple[str, ...]:
        return (self.column,)

    def edited(self, recording: Recording) -> dict[str, Any] | None:
        """The new value; None if the recording stays as it is."""
        raise NotImplementedError

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        values: list[Any] = batch["audio"].to_pylist()
        for row, recording in enumerate(recordings(batch, "audio")):
            made = None if recording is None else self.edited(recording)
            if made is not None:
                values[row] = made
        return {self.column: pa.array(values, MEDIA)}


def written(
    recording: Recording,
    format_: str = "flac",
    *,
    rate: int | None = None,
    mono: bool = False,
    gain: float = 1.0,
    bitrate: int | None = None,
) -> dict[str, Any]:
    """A recording as a new file. Samples beyond full scale are clipped."""
    info = recording.info
    target = io.BytesIO()
    to = rate or info.rate
    if to not in RATES.get(format_, (to,)):
        to = 48_000
    pieces: Iterator[np.ndarray] = recording.channels(10.0)
    if mono and info.channels > 1:
        pieces = (piece.mean(axis=0, keepdims=True, dtype=np.float32) for piece in pieces)
    channels = 1 if mono else info.channels
    pieces = resampled_channels(pieces, info.rate, to, channels)
    with Encoder(target, to, channels, format_, bits=24 if info.bits > 16 else 16, bitrate=bitrate) as encoder:
        for piece in pieces:
            encoder.write(piece if gain == 1.0 else (piece * np.float32(gain)).clip(-1, 1))
    name = media_name(recording.item.path or "recording") if recording.item.data is None else recording.item.path
    return {"bytes": target.getvalue(), "path": f"{posixpath.splitext(name or 'recording')[0]}.{format_}"}


@operator(reads="audio")
class AudioConvert(AudioEdit):
    """Write recordings in another format, at another sample rate, or with one channel.

    `sample_rate` is converted by soxr ("HQ"); `mono` is the mean of all channels. A recording that is in the format
    already, with this rate and these channels, keeps its bytes, if it is not a segment. Opus has 8, 12, 16, 24 or 48
    kHz, and MP3 those up to 48 kHz: other rates become 48 kHz. `bitrate`, in bits per second, is for Opus and MP3. FLAC
    and WAV have 24 bits if the recording has more than 16. A recording with more channels than the format has fails: MP3
    has two, the others have eight.

    >>> from tamis.audio.files import encoded
    >>> data = encoded(np.zeros((2, 44_100), np.float32), 44_100, "wav")
    >>> batch = Batch.from_rows([{"audio": {"bytes": data, "path": "a.wav"}}])
    >>> made = batch.with_columns(AudioConvert(sample_rate=16_000, mono=True).apply(batch))
    >>> info = recordings(made, "audio")[0].info
    >>> info.codec, info.rate, info.channels, made["audio"][0]["path"].as_py()
    ('flac', 16000, 1, 'a.flac')
    """

    format: Format = "flac"
    sample_rate: int | None = None
    mono: bool = False
    bitrate: int | None = None
    column: str = "audio"

    def check(self) -> None:
        if self.sample_rate is not None and not 1_000 <= self.sample_rate <= 384_000:
            raise ParameterError(f"`sample_rate={self.sample_rate}` is not between 1,000 and 384,000 Hz")

    def edited(self, recording: Recording) -> dict[str, Any] | None:
        info = recording.info
        same = info.codec in _CODECS[self.format] and self.sample_rate in (None, info.rate)
        if same and not (self.mono and info.channels > 1) and recording.item.segment is None:
            return None
        return written(recording, self.format, rate=self.sample_rate, mono=self.mono, bitrate=self.bitrate)


@operator(reads="audio")
class AudioResample(AudioEdit):
    """Convert recordings to 16 kHz, by soxr in quality "HQ"; those that have this sample rate keep their bytes."""

    sample_rate: int = 16_000
    format: Format = "flac"
    column: str = "audio"

    def check(self) -> None:
        if not 1_000 <= self.sample_rate <= 384_000:
            raise ParameterError(f"`sample_rate={self.sample_rate}` is not between 1,000 and 384,000 Hz")

    def edited(self, recording: Recording) -> dict[str, Any] | None:
        if recording.info.rate == self.sample_rate:
            return None
        return written(recording, self.format, rate=self.sample_rate)


@operator(reads="audio")
class AudioMono(AudioEdit):
    """Mix the channels of recordings to one, their mean; those with one channel keep their bytes."""

    format: Format = "flac"
    column: str = "audio"

    def edited(self, recording: Recording) -> dict[str, Any] | None:
        return None if recording.info.channels == 1 else written(recording, self.format, mono=True)


@operator(reads="audio")
class AudioNormalize(AudioEdit):
    """Bring recordings to a loudness of -23 LUFS (EBU R 128) by one factor for all samples.

    The factor is limited so that no sample exceeds `max_peak_db`, relative to full scale. Recordings within
    `tolerance` of the loudness keep their bytes, and so does silence. Each recording is decoded once, if it is at
    most ten minutes long.
    """

    loudness: float = -23.0
    max_peak_db: float = -1.0
    tolerance_db: float = 0.1
    format: Format = "flac"
    column: str = "audio"

    def edited(self, recording: Recording) -> dict[str, Any] | None:
        found = signal_of(recording)
        if found.loudness <= -70.0 or found.peak == 0.0:
            return None
        gain = min(10 ** ((self.loudness - found.loudness) / 20), 10 ** (self.max_peak_db / 20) / found.peak)
        return (
            None if abs(20 * np.log10(gain)) <= self.tolerance_db else written(recording, self.format, gain=float(gain))
        )


@operator(reads="audio")
class AudioTrim(AudioEdit):
    """Cut silence off both ends of recordings: what is below -45 dB, in frames of 20 ms.

    `pad_s` of it is kept. The result refers to a part of the recording, unless the row holds its bytes. Silence as a
    whole is not changed, and neither is a recording with less than `min_silence_s` to cut off.
    """

    threshold_db: float = -45.0
    pad_s: float = 0.1
    min_silence_s: float = 0.1
    column: str = "audio"

    def edited(self, recording: Recording) -> dict[str, Any] | None:
        loud = np.flatnonzero(frame_levels(recording) > self.threshold_db)
        length = recording.duration
        if not len(loud):
            return None
        begin = max(0.0, loud[0] * 0.02 - self.pad_s)
        end = min(length, (loud[-1] + 1) * 0.02 + self.pad_s)
        if begin + length - end < self.min_silence_s or end - begin < 1e-3:
            return None
        return part_of(recording.item, round(begin, 6), round(end, 6))


@operator(reads="audio", writes=("duration", "sample_rate", "channels", "codec", "bits"))
class AudioInfo(AudioInfoStep, Map):
    """Add what the headers say: duration in seconds, sample rate, channels, codec and bits per sample. Nothing is decoded."""

    column: str = "audio"

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        found = recordings(batch, "audio")
        infos = [None if each is None else each.info for each in found]
        return {
            "duration": pa.array([None if each is None else round(each.duration, 6) for each in found], pa.float64()),
            "sample_rate": pa.array([None if each is None else each.rate for each in infos], pa.int64()),
            "channels": pa.array([None if each is None else each.channels for each in infos], pa.int64()),
            "codec": pa.array([None if each is None else each.codec for each in infos], pa.string()),
            "bits": pa.array([None if each is None else each.bits for each in infos], pa.int64()),
        }


@operator()
class AudioHeader(AudioInfoStep, Map):
    """Fail recordings whose header cannot be read; all other rows stay as they are, also those without sound.

    A run adds this step before `AudioWriter`, whose manifests have the duration of each recording.

        AudioHeader()
    """

    column: str = "audio"

    def optional_reads(self) -> tuple[str, ...]:
        return (self.column,)

    def apply(self, batch: Batch) -> Mapping[str, Column | np.ndarray]:
        for recording in recordings(batch, self.column) if self.column in batch else ():
            if recording is not None:
                recording.info  # noqa: B018  # raises the error of the row
        return {}
