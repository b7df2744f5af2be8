"""RTTM: who speaks when, as lines of text (NIST, Rich Transcription 2009).

    SPEAKER meeting 1 12.500 7.250 <NA> <NA> anna <NA> <NA>

The fields are: type, recording, channel, begin and duration in seconds, and the speaker.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from tamis.errors import SourceError
from tamis.media import media_name
from tamis.operators import ShardWriter, Sink, operator
from tamis.segments import split_segment
from tamis.sinks.writers import JsonlShards, Selection


@dataclass(frozen=True)
class Turn:
    """Somebody speaks, from `begin` for `duration` seconds."""

    recording: str
    begin: float
    duration: float
    speaker: str

    @property
    def line(self) -> str:
        """
        >>> Turn("meeting", 12.5, 7.25, "anna").line
        'SPEAKER meeting 1 12.500 7.250 <NA> <NA> anna <NA> <NA>'
        """
        name, speaker = (_field(each) for each in (self.recording, self.speaker))
        return f"SPEAKER {name} 1 {self.begin:.3f} {self.duration:.3f} <NA> <NA> {speaker} <NA> <NA>"


def _field(text: str) -> str:
    """Fields are separated by spaces, so they contain none."""
    return "_".join(text.split()) or "<NA>"


def parse_rttm(lines: Iterable[str], where: str = "RTTM") -> list[Turn]:
    """The turns of RTTM lines; other types of lines are ignored.

    >>> parse_rttm(["SPEAKER a 1 0.5 2 <NA> <NA> anna <NA> <NA>"])
    [Turn(recording='a', begin=0.5, duration=2.0, speaker='anna')]
    """
    turns = []
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if not fields or fields[0] != "SPEAKER":
            continue
        try:
            begin, duration = float(fields[3]), float(fields[4])
            turn = Turn(fields[1], begin, duration, fields[7])
        except (IndexError, ValueError) as error:
            raise SourceError(f"line {number} of {where} is not RTTM: {line.strip()!r:.100}") from error
        if not (begin >= 0 and duration >= 0):
            raise SourceError(f"line {number} of {where} has a negative time: {line.strip()!r:.100}")
        turns.append(turn)
    return turns


def read_rttm(path: str | Path) -> dict[str, list[Turn]]:
    """The turns of an RTTM file, or of all in a folder, by recording, in order of time."""
    root = Path(path).expanduser()
    files = sorted(root.rglob("*.rttm")) if root.is_dir() else [root]
    found: dict[str, list[Turn]] = {}
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(
                f"{file} cannot be read: {error}", hint="give an RTTM file, or a folder of them"
            ) from error
        for turn in parse_rttm(lines, str(file)):
            found.setdefault(turn.recording, []).append(turn)
    for turns in found.values():
        turns.sort(key=lambda turn: (turn.begin, turn.duration, turn.speaker))
    return found


def recording_name(path: str) -> str:
    """What RTTM calls a recording: its file name without folder and suffix.

    >>> recording_name("talks/meeting.v2.wav#t=3,4")
    'meeting.v2'
    """
    return posixpath.splitext(posixpath.basename(media_name(split_segment(path)[0])))[0]


def written_name(path: str) -> str:
    """The same without spaces, which separate fields: they are percent-encoded, so that no two names become one.

    >>> written_name("talks/my talk.wav#t=3,4"), written_name("my_talk.wav"), written_name("my%20talk.wav")
    ('my%20talk', 'my_talk', 'my%2520talk')
    """
    return re.sub(r"\s|%(?=[0-9A-Fa-f]{2})", lambda found: quote(found[0]), recording_name(path))


def turns_of(path: str, known: Mapping[str, list[Turn]]) -> list[Turn]:
    """The turns of a recording, by the name that `RttmWriter` writes or by its own."""
    return known.get(written_name(path)) or known.get(recording_name(path), [])


@operator(reads=("audio", "begin", "duration", "speaker"))
class RttmWriter(Sink):
    """Write who speaks when, as RTTM: one line per row, in files named part-000000.rttm and so on.

    Rows are those of `SpeakerTurns`: the column `audio` names the recording, `begin` and `duration` the time, and
    `speaker` the speaker. A recording is called by its file name without folder and suffix, in which spaces are
    percent-encoded (`my%20talk`); recordings of the same name cannot be distinguished.

        RttmWriter("turns/")
    """

    path: str | Path

    suffix = ".rttm"

    @property
    def folder(self) -> str:
        return str(self.path)

    def open_shard(self, folder: Path, stem: str, schema: pa.Schema) -> ShardWriter:
        return _RttmShards(folder, stem, self.suffix, Selection(None, {}), schema, None, None)


class _RttmShards(JsonlShards):
    def _encode(self, table: pa.Table) -> pa.Buffer:
        columns: Sequence[list[object]] = [
            table.column(name).to_pylist() for name in ("audio", "begin", "duration", "speaker")
        ]
        lines = []
        for audio, begin, duration, speaker in zip(*columns, strict=True):
            path = (audio or {}).get("path") or "<NA>" if isinstance(audio, dict) or audio is None else "<NA>"
            turn = Turn(written_name(path), float(begin or 0), float(duration or 0), str(speaker or "<NA>"))
            lines.append(turn.line)
        return pa.py_buffer("".join(f"{line}\n" for line in lines).encode())
