"""Filters on sound: what files say about themselves, and what is measured of their signal.

A row without sound is dropped, because it has no duration or level. Filters on headers decode nothing; the others
share one decode (`signal.py`). Times count for the row: a segment has the duration of the segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from tamis.audio.decode import AudioInfoStep, AudioStep, Recording, recordings
from tamis.audio.signal import Signal, signal_of, signals
from tamis.batch import Batch, Column
from tamis.errors import AudioError
from tamis.operators import Filter, Rule, Scores, at_least, at_most, between, one_of, operator


class AudioInfoFilter(AudioInfoStep, Filter):
    """Shared by filters on headers."""

    column: str


class SignalFilter(AudioStep, Filter):
    """Shared by filters on the signal."""

    column: str


def _of_headers(batch: Batch, measure: Callable[[Recording], float | int | str], kind: pa.DataType) -> Column:
    return pa.array([None if each is None else measure(each) for each in recordings(batch, "audio")], kind)


def _of_signals(batch: Batch, measure: Callable[[Signal], float]) -> Column:
    return pa.array([None if each is None else measure(each) for each in signals(batch, "audio")], pa.float64())


@operator(reads="audio", writes="duration")
class AudioDuration(AudioInfoFilter):
    """Keep recordings of 0.1 to 3600 seconds, by their headers.

    >>> import numpy as np
    >>> from tamis.audio.files import encoded
    >>> data = encoded(np.zeros((1, 24000), np.float32), 16_000, "wav")
    >>> batch = Batch.from_rows([{"audio": {"bytes": data, "path": "a.wav"}}])
    >>> AudioDuration().score(batch)["duration"].to_pylist()
    [1.5]
    """

    min_duration: float | None = 0.1
    max_duration: float | None = 3600.0
    column: str = "audio"

    def score(self, batch: Batch) -> Scores:
        return {"duration": _of_headers(batch, lambda each: each.duration, pa.float64())}

    def rules(self) -> list[Rule]:
        return [between("duration", self.min_duration, self.max_duration)]


@operator(reads="audio", writes="sample_rate")
class AudioSampleRate(AudioInfoFilter):
    """Keep recordings with at least 16,000 samples per second, the rate of nearly all models of speech."""

    min_sample_rate: int | None = 16_000
    max_sample_rate: int | None = None
    column: str = "audio"

    def score(self, batch: Batch) -> Scores:
        return {"sample_rate": _of_headers(batch, lambda each: each.info.rate, pa.int64())}

    def rules(self) -> list[Rule]:
        return [between("sample_rate", self.min_sample_rate, self.max_sample_rate)]


@operator(reads="audio", writes="channels")
class AudioChannels(AudioInfoFilter):
    """Keep recordings with one or two channels."""

    min_channels: int | None = 1
    max_channels: int | None = 2
    column: str = "audio"

    def score(self, batch: Batch) -> Scores:
        return {"channels": _of_headers(batch, lambda each: each.info.channels, pa.int64())}

    def rules(self) -> list[Rule]:
        return [between("channels", self.min_channels, self.max_channels)]


@operator(reads="audio", writes="codec")
class AudioCodec(AudioInfoFilter):
    """Keep recordings in some codecs, by the names of FFmpeg: pcm_s16le, flac, mp3, opus, vorbis, aac, ..."""

    keep: Sequence[str]
    column: str = "audio"
    verdict_parameters = frozenset({"keep"})

    def score(self, batch: Batch) -> Scores:
        return {"codec": _of_headers(batch, lambda each: each.info.codec, pa.string())}

    def rules(self) -> list[Rule]:
        return [one_of("codec", self.keep)]


@operator(reads="audio", writes="audio_problem")
class AudioDecodable(SignalFilter):
    """Keep recordings that can be decoded to the end.

    `audio_problem` is "fine", or what is wrong: "empty", "not a sound", "truncated", "corrupt", "unsupported",
    "invalid" (samples that are not numbers), "too short" for a segment that is not in its recording, and "missing"
    for rows without sound. As the first step it drops such rows, which later steps would fail. Files that cannot be
    found still fail.
    """

    column: str = "audio"

    def score(self, batch: Batch) -> Scores:
        return {"audio_problem": pa.array(list(map(_problem, recordings(batch, "audio"))), pa.string())}

    def rules(self) -> list[Rule]:
        return [one_of("audio_problem", ["fine"])]


def _problem(recording: Recording | None) -> str:
    if recording is None:
        return "missing"
    try:
        signal_of(recording)
    except AudioError as error:
        return error.problem
    return "fine"


@operator(reads="audio", writes="bandwidth")
class AudioBandwidth(SignalFilter):
    """Keep recordings whose signal reaches up to at least 4,000 Hz.

    Bandwidth is the highest frequency whose mean power is at most 50 dB below that of the strongest one (frames of
    512 samples). A recording that was made at 8 kHz and stored at 16 kHz has less than 4,000 Hz, whatever its header
    says.
    """

    min_bandwidth: float | None = 4000.0
    max_bandwidth: float | None = None
    column: str = "audio"

    def score(self, batch: Batch) -> Scores:
        return {"bandwidth": _of_signals(batch, lambda each: each.bandwidth)}

    def rules(self) -> list[Rule]:
        return [between("bandwidth", self.min_bandwidth, self.max_bandwidth)]


@operator(reads="audio", writes="clipping")
class AudioClipping(SignalFilter):
    """Drop recordings in which more than 1 in 1,000 samples is at full scale: the microphone or converter was overloaded."""

    max_clipping: float = 0.001
    column: str = "audio"

    def score(self, batch: Batch) -> Scores:
        return {"clipping": _of_signals(batch, lambda each: each.clipped)}

    def rules(self) -> list[Rule]:
        return [at_most("clipping", self.max_clipping)]


@operator(reads="audio", writes="silence_share")
class AudioSilence(SignalFilter):
    """Drop recordings that are silent for more than 80 % of the time.

    The silence is measured in frames of 20 ms whose level is below `threshold_db`, relative to full scale.
    """

    max_silence_share: float = 0.8
    threshold_db: float = -50.0
    column: str = "audio"

    def score(self, batch: Batch) -> Scores:
        return {"silence_share": _of_signals(batch, lambda each: each.silence(self.threshold_db))}

    def rules(self) -> list[Rule]:
        return [at_most("silence_share", self.max_silence_share)]


@operator(reads="audio", writes="snr_db")
class AudioNoise(SignalFilter):
    """Drop recordings whose signal is less than 10 dB above their noise.

    The signal is the level that 5 % of the frames of 20 ms exceed, the noise the level that 90 % exceed: between
    words, only the noise is left. Music without pauses has a low ratio too, so this is meant for speech. The default drops
    speech with as much white noise as speech, and keeps it at 10 dB (benchmarks/audio_languages.md).
    """

    min_snr_db: float = 10.0
    column: str = "audio"

    def score(self, batch: Batch) -> Scores:
        return {"snr_db": _of_signals(batch, lambda each: each.snr)}

    def rules(self) -> list[Rule]:
        return [at_least("snr_db", self.min_snr_db)]


@operator(reads="audio", writes="loudness")
class AudioLoudness(SignalFilter):
    """Keep recordings with an integrated loudness of -50 to -5 LUFS (EBU R 128, ITU-R BS.1770-4); silence has -70."""

    min_loudness: float | None = -50.0
    max_loudness: float | None = -5.0
    column: str = "audio"

    def score(self, batch: Batch) -> Scores:
        return {"loudness": _of_signals(batch, lambda each: each.loudness)}

    def rules(self) -> list[Rule]:
        return [between("loudness", self.min_loudness, self.max_loudness)]
