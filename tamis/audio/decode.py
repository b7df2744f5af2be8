"""Decodes sound: what each file says about itself, and its samples at a sample rate, once for all operators of a stage.

    item -> info        duration, sample rate, channels, codec, bits: from the header, no samples
         -> waveform    float32[samples], mono, at 16 kHz (or any other rate): all of a row that is at most ten minutes long
         -> blocks      the same in pieces of some seconds: recordings of any length, in constant memory
         -> channels    the same in pieces, with all channels, at the sample rate of the file

A row is a recording, or a segment of one (`tamis/segments.py`); times count from the begin of the row. The samples that an
operator sees depend on the sample rate that it requests and on nothing else:

    mono            the mean of all channels, or of those that the segment names
    sample rate     converted by soxr, quality "HQ"
    scale           -1 to 1; files with floating-point samples may exceed it

Decoded samples are facts of the batch. A batch holds up to 64 MB of them: rows beyond that are decoded again by each operator,
so that memory stays bounded whatever the length of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np

from tamis.audio import files
from tamis.audio.files import Info, as_float
from tamis.batch import Batch, Facts
from tamis.errors import AudioError, MediaError, require
from tamis.media import MediaItem, media_items
from tamis.operators import Operator

RATE = 16_000
"""The sample rate of speech: that of nearly all networks that listen to it."""

MAX_SECONDS = 600.0
"""A waveform is at most this long; longer recordings are read in blocks, or cut into segments first."""

HELD_BYTES = 64_000_000
"""Decoded samples that a batch holds."""

ROW_BYTES = 1_000_000
"""What a step that uses waveforms holds per row: about 15 seconds at 16 kHz."""

INFO_BYTES = 20_000
"""What a step that reads headers holds per row."""


class AudioInfoStep(Operator):
    """A step that reads the headers of sound files."""

    cost = 2.0

    def packages(self) -> Mapping[str, str]:
        return {"av": "audio"}

    @property
    def row_bytes(self) -> int:
        return INFO_BYTES


class AudioStep(Operator):
    """A step that uses the samples of sound files."""

    cost = 50.0

    def packages(self) -> Mapping[str, str]:
        return {"av": "audio", "soxr": "audio"}

    @property
    def row_bytes(self) -> int:
        return ROW_BYTES


class _Room:
    """How many bytes of samples a batch may still hold."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, num_bytes: int) -> bool:
        if num_bytes > self.left:
            return False
        self.left -= num_bytes
        return True


class Recording:
    """The sound of one row: a recording, or a segment of one. Nothing is read before it is needed, or read twice.

    An AudioError or MediaError is raised by whatever first needs what cannot be read, and again by everything after it.
    """

    def __init__(self, item: MediaItem, room: _Room) -> None:
        self.item = item
        self._room = room
        self._info: Info | MediaError | None = None
        self._native: np.ndarray | None = None
        self._waves: dict[int, np.ndarray] = {}
        self._error: MediaError | None = None
        self.measured: dict[str, object] = {}
        """What operators found out about the row and share with others, by name."""

    @property
    def info(self) -> Info:
        """What the file says about itself; its duration is that of the whole file, its channels are those of the row."""
        if self._info is None:
            try:
                with self.item.open() as file:
                    self._info = files.with_channels(files.read_info(file), self._channels)
            except MediaError as error:
                self._info = error
        if isinstance(self._info, MediaError):
            raise self._info
        return self._info

    @property
    def _channels(self) -> tuple[int, ...]:
        return () if self.item.segment is None else self.item.segment.channels

    @property
    def begin(self) -> float:
        """Where the row begins in its file, in seconds."""
        return 0.0 if self.item.segment is None else self.item.segment.begin

    @property
    def end(self) -> float:
        """Where the row ends in its file. A segment that is not in its file raises an AudioError."""
        segment, length = self.item.segment, self.info.duration
        if segment is None:
            return length
        files.check_inside(segment.begin, segment.end, length)
        return length if segment.end is None else min(segment.end, length)

    @property
    def duration(self) -> float:
        """How long the row is, in seconds, by the header of its file."""
        return self.end - self.begin

    def waveform(self, rate: int = RATE) -> np.ndarray:
        """All samples of the row: float32[samples], mono. It must not be changed: other operators use it too."""
        if rate in self._waves:
            return self._waves[rate]
        if self.duration > MAX_SECONDS:
            raise AudioError(
                "too long",
                f"it has {self.duration:,.0f} s, and steps that need all samples at a time take {MAX_SECONDS:,.0f} s",
                hint="cut it into segments first, for example with AudioWindows",
            )
        made = [*self._mono(rate)]
        wave = made[0] if len(made) == 1 else np.concatenate(made) if made else np.zeros(0, np.float32)
        if self._room.take(wave.nbytes):
            wave.flags.writeable = False
            self._waves[rate] = wave
        return wave

    def blocks(self, rate: int = RATE, seconds: float = 30.0) -> Iterator[np.ndarray]:
        """The samples of the row in pieces of `seconds`, the last one shorter: float32[samples], mono.

        Recordings of any length take the memory of one piece.
        """
        size = max(1, round(seconds * rate))
        source = iter([self._waves[rate]]) if rate in self._waves else self._mono(rate)
        yield from (block[0] for block in _regrouped((piece[None] for piece in source), size))

    def channels(self, seconds: float = 30.0) -> Iterator[np.ndarray]:
        """The same with all channels, at the sample rate of the file: float32[channels, samples]."""
        yield from _regrouped(map(as_float, self._decoded()), max(1, round(seconds * self.info.rate)))

    def _mono(self, rate: int) -> Iterator[np.ndarray]:
        pieces = (_mixed(as_float(piece)) for piece in self._decoded())
        yield from pieces if rate == self.info.rate else _resampled(pieces, self.info.rate, rate)

    def _decoded(self) -> Iterator[np.ndarray]:
        """The samples as the codec returns them: [channels, samples], in pieces."""
        if self._error is not None:
            raise self._error
        if self._native is not None:
            yield from _sliced(self._native, self.info.rate)
            return
        try:
            yield from self._read()
        except MediaError as error:
            self._error = error
            raise

    def _read(self) -> Iterator[np.ndarray]:
        info, segment = self.info, self.item.segment
        begin, end = (0.0, None) if segment is None else (segment.begin, segment.end)
        samples = int(self.duration * info.rate) + info.rate
        size = samples * info.channels * (4 if info.bits > 16 else 2)
        keep = self.duration <= MAX_SECONDS and size <= HELD_BYTES // 4
        held: list[np.ndarray] = []
        with self.item.open() as file:
            for piece in files.read_blocks(file, begin, end, self._channels):
                if keep:
                    held.append(piece)
                else:
                    yield piece
        if keep:
            whole = held[0] if len(held) == 1 else np.concatenate(held, axis=1)
            if self._room.take(whole.nbytes):
                self._native = whole
            yield from _sliced(whole, info.rate)


class Waveforms(Sequence[np.ndarray | None]):
    """The samples of a column, decoded row by row when they are requested; None for a row without sound."""

    def __init__(self, rows: Sequence[Recording | None], rate: int) -> None:
        self.rate = rate
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> np.ndarray | None: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[np.ndarray | None]: ...
    def __getitem__(self, index: int | slice) -> np.ndarray | Sequence[np.ndarray | None] | None:
        if isinstance(index, slice):
            return Waveforms(self._rows[index], self.rate)
        row = self._rows[index]
        return None if row is None else row.waveform(self.rate)


def recordings(batch: Batch, column: str) -> list[Recording | None]:
    """The sound of a column, one object per row, shared by all operators on the batch; None for a row without."""

    def compute() -> Facts:
        room = _Room(HELD_BYTES)
        found = np.empty(len(batch), dtype=object)
        for row, item in enumerate(media_items(batch, column)):
            found[row] = None if item is None else Recording(item, room)
        return {"recording": found}

    return list(batch.remembered(column, "recordings", compute)["recording"])


def waveforms(batch: Batch, column: str, rate: int = RATE) -> Waveforms:
    """The samples of a column at a sample rate: float32, mono, one array per row.

    A row that cannot be decoded, or is longer than ten minutes, raises an AudioError when it is requested. The engine then
    fails the row and calls the operator again for the others; nothing is decoded again.

    >>> from tamis.audio.files import encoded
    >>> data = encoded(np.zeros((1, 8000), np.float32), 8000, "wav")
    >>> batch = Batch.from_rows([{"audio": {"bytes": data, "path": "a.wav"}}, {"audio": None}])
    >>> [wave is not None and wave.shape for wave in waveforms(batch, "audio", 16_000)]
    [(16000,), False]
    """
    return Waveforms(recordings(batch, column), rate)


def blocks(item: MediaItem, rate: int = RATE, seconds: float = 30.0) -> Iterator[np.ndarray]:
    """The samples of a recording in pieces: float32[samples], mono. Memory does not depend on its length."""
    yield from Recording(item, _Room(0)).blocks(rate, seconds)


def resampled(wave: np.ndarray, rate: int, to: int) -> np.ndarray:
    """Samples, [samples] or [channels, samples], at another sample rate."""
    if rate == to:
        return wave
    made: np.ndarray = _soxr().resample(wave.T, rate, to, quality="HQ")
    return np.ascontiguousarray(made.T)


def resampled_channels(pieces: Iterator[np.ndarray], rate: int, to: int, channels: int) -> Iterator[np.ndarray]:
    """[channels, samples] in pieces, at another sample rate."""
    if rate == to:
        yield from pieces
        return
    stream = _soxr().ResampleStream(rate, to, channels, dtype="float32", quality="HQ")
    for piece in pieces:
        yield _rows_of(stream.resample_chunk(np.ascontiguousarray(piece.T)), channels)
    yield _rows_of(stream.resample_chunk(np.zeros((0, channels), np.float32), last=True), channels)


def _rows_of(samples: np.ndarray, channels: int) -> np.ndarray:
    return np.ascontiguousarray(samples.reshape(-1, channels).T)


def _soxr() -> Any:
    return require("soxr", extra="audio", purpose="converting sample rates")


def _sliced(samples: np.ndarray, rate: int) -> Iterator[np.ndarray]:
    """Pieces of ten seconds, so that what is made of them is small."""
    for start in range(0, samples.shape[1], 10 * rate):
        yield samples[:, start : start + 10 * rate]


def _mixed(samples: np.ndarray) -> np.ndarray:
    return samples[0] if len(samples) == 1 else samples.mean(axis=0, dtype=np.float32)


def _resampled(pieces: Iterator[np.ndarray], rate: int, to: int) -> Iterator[np.ndarray]:
    """The result does not depend on how the samples are divided into pieces."""
    stream = _soxr().ResampleStream(rate, to, 1, dtype="float32", quality="HQ")
    for piece in pieces:
        made = stream.resample_chunk(piece)
        if len(made):
            yield made
    yield stream.resample_chunk(np.zeros(0, np.float32), last=True)


def _regrouped(pieces: Iterator[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """[channels, samples] in pieces of `size` samples, the last one shorter."""
    held: list[np.ndarray] = []
    count = 0
    for piece in pieces:
        while count + piece.shape[1] >= size:
            cut = size - count
            held.append(piece[:, :cut])
            yield held[0] if len(held) == 1 else np.concatenate(held, axis=1)
            piece, held, count = piece[:, cut:], [], 0
        if piece.shape[1]:
            held.append(piece)
            count += piece.shape[1]
    if held:
        yield held[0] if len(held) == 1 else np.concatenate(held, axis=1)
