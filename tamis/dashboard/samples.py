"""Rows to show on a page: some of those that a run kept, dropped, almost dropped, and failed.

    OUTPUT/*                    kept rows, from all parts of the output
    OUTPUT/.tamis/rejects/      dropped rows of each reason, and those whose scores are closest to the threshold
    OUTPUT/.tamis/failed/       failed rows of each error

Which rows are shown depends on the files alone, so that a page can be made again. Only parts of large outputs are read.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tamis.batch import Batch, Origin
from tamis.dashboard.runs import RunView
from tamis.dedup.explain import store_file
from tamis.errors import TamisError, first_line
from tamis.formats import FORMATS, media_kind
from tamis.looking.rows import has_data
from tamis.media import is_media, media_items, sizes_of
from tamis.media_paths import is_remote
from tamis.operators import Reading, Source
from tamis.registry import build_operator
from tamis.store import INTERNAL, LINES, TABLE

KEPT, PER_REASON, BORDERLINE, PER_ERROR = 12, 6, 12, 3
MOST_FILES = 24
"""Files of rejects that are read, spread evenly."""
MOST_SEARCHED = 40
"""Files of rejects that are searched for rows by their addresses."""
MOST_REASONS = 60
LONGEST_FIELD = 60_000
"""Characters of a field that are looked at: passages after them are not marked."""
LONGEST_VALUE = 300
PARTITION_BYTES, BATCH_BYTES = 64_000_000, 8_000_000
SEEN_ROWS = 2_000
"""Rows of a part of the output whose lengths are measured, if they are in one batch or more."""
MEDIA_BYTES = 1_800_000
"""What all thumbnails and players of the samples of a page take together at most."""
CLIP_BYTES = 400_000
CLOSE = 0.5
"""Rows farther from a bound, relative to it, are not near it: a page of 40 words is not nearly too long for 100,000."""
MOST_OPENED, MOST_FILE_BYTES = 100, 64_000_000
"""Files that rows refer to: how many are opened, and how large images may be."""

_MEDIA_READERS = {"clip_writer": "video_reader", "audio_writer": "audio_reader"}

_THRESHOLD = re.compile(r"^(?P<score>\w+) (?P<side>[<>]=?) (?P<limit>-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)$")


@dataclass
class Sample:
    """A row on a page."""

    fate: str
    """kept, dropped, borderline or failed."""
    title: str
    text: str = ""
    reason: str = ""
    step: str = ""
    details: list[tuple[str, str]] = field(default_factory=list)
    media: list[tuple[str, str]] = field(default_factory=list)
    """(kind of player, data address) or ("note", why there is none)."""
    passages: list[tuple[int, int]] = field(default_factory=list)
    length: int = 0
    """Characters of the whole text."""
    outcome: str = "dropped"
    """Of a borderline row: dropped or kept."""
    address: str = ""
    """Of a dropped row."""


class Samples:
    """Collects the rows of one run."""

    def __init__(self, view: RunView, media_bytes: int = MEDIA_BYTES) -> None:
        self._view, self._store = view, view.store
        self._media_left, self._opened = media_bytes, 0
        self._folder = Path(str(view.manifest.get("directory") or "."))
        self.notes: list[str] = []
        self.lengths_kept: list[int] = []
        self.lengths_dropped: list[int] = []

    def collect(self) -> list[Sample]:
        found: list[Sample] = []
        try:
            found += self._kept()
        except (TamisError, pa.ArrowException, OSError, ValueError) as error:
            self.notes.append(f"Kept rows cannot be shown: {first_line(error)}")
        try:
            found += self._dropped()
        except (pa.ArrowException, OSError, ValueError) as error:
            self.notes.append(f"Dropped rows cannot be shown: {first_line(error)}")
        return [*found, *self._failed()]

    # ------------------------------------------------------------------------------------------------------------- kept

    def _kept(self) -> list[Sample]:
        source = output_source(self._view) or written_media(self._view)
        if source is None:
            self._note_unreadable()
            return []
        layout = source.layout(PARTITION_BYTES)
        parts = spread(layout.partitions, MOST_FILES // 2)
        each = -(-KEPT // max(1, len(parts)))
        reading = Reading(None, layout.schema, BATCH_BYTES, lambda failure: None)
        found: list[Sample] = []
        for part in parts:
            seen = 0
            for batch in source.read(part, reading):
                self.lengths_kept += text_lengths(batch.table)
                for row in spread(range(len(batch)), each):
                    title = PurePosixPath(batch.origin.address(row)).name
                    found.append(self.sample("kept", batch.select(slice(row, row + 1)), title))
                seen += len(batch)
                if seen >= SEEN_ROWS:
                    break
        return spread(found, KEPT)

    def _note_unreadable(self) -> None:
        if self._view.steps and has_data(self._store):
            writer = self._view.steps[-1][0]
            self.notes.append(f"Kept rows are not shown: what {writer} writes cannot be read as rows.")

    # ---------------------------------------------------------------------------------------------------------- dropped

    def _dropped(self) -> Iterator[Sample]:
        folder = f"{INTERNAL}/rejects"
        names = spread([name for name in self._store.names(folder) if name.endswith(TABLE)], MOST_FILES)
        places: dict[str, list[tuple[str, int]]] = {}
        close: dict[str, list[tuple[float, str, int]]] = {}
        for name in names:
            with store_file(self._store, f"{folder}/{name}") as opened:
                file = pq.ParquetFile(opened)
                row = 0
                for batch in file.iter_batches(8192, columns=["_reason", "_scores"]):
                    reasons, scores = batch.column(0).to_pylist(), batch.column(1).to_pylist()
                    for number, (reason, measured) in enumerate(zip(reasons, scores, strict=True)):
                        places.setdefault(reason, []).append((name, row + number))
                        margin = margin_of(reason, measured)
                        if margin is not None and margin <= CLOSE:
                            near = close.setdefault(reason, [])
                            near.append((margin, name, row + number))
                            if len(near) > 64:
                                close[reason] = sorted(near)[:8]
                    row += batch.num_rows
                    if row > 100_000:
                        break
        wanted: dict[str, dict[int, str]] = {}
        for reason in sorted(places, key=lambda each: (-len(places[each]), each))[:MOST_REASONS]:
            for name, row in spread(places[reason], PER_REASON):
                wanted.setdefault(name, {})[row] = "dropped"
        each = -(-BORDERLINE // max(1, len(close)))
        nearest = sorted(item for near in close.values() for item in sorted(near)[:each])[:BORDERLINE]
        for _, name, row in nearest:
            wanted.setdefault(name, {})[row] = "borderline"
        for name, rows in wanted.items():
            yield from self._rejects_at(f"{folder}/{name}", rows)

    def rejected(self, addresses: Iterable[str]) -> Iterator[Sample]:
        """The dropped rows with these addresses, if the run kept them; files that are damaged are left out."""
        folder, left = f"{INTERNAL}/rejects", set(addresses)
        for name in spread([name for name in self._store.names(folder) if name.endswith(TABLE)], MOST_SEARCHED):
            if not left:
                return
            try:
                rows = self._places_in(f"{folder}/{name}", left)
                for sample in self._rejects_at(f"{folder}/{name}", dict.fromkeys(rows, "dropped")):
                    left.discard(sample.address)
                    yield sample
            except (pa.ArrowException, OSError, ValueError):
                continue

    def _places_in(self, name: str, addresses: Iterable[str]) -> list[int]:
        """The numbers of the rows with these addresses in a file of rejects."""
        found, start, wanted = list[int](), 0, pa.array(sorted(addresses))
        with store_file(self._store, name) as opened:
            for batch in pq.ParquetFile(opened).iter_batches(8192, columns=["_address"]):
                inside = pc.is_in(batch.column(0), value_set=wanted)
                found += [start + row for row in pc.indices_nonzero(inside).to_pylist()]
                start += len(batch)
        return found

    def _rejects_at(self, name: str, rows: Mapping[int, str]) -> Iterator[Sample]:
        """The rows of a file of rejects with these numbers."""
        with store_file(self._store, name) as opened:
            file, start = pq.ParquetFile(opened), 0
            for group in range(file.num_row_groups):
                size = file.metadata.row_group(group).num_rows
                mine = [row for row in rows if start <= row < start + size]
                if mine:
                    table = file.read_row_group(group)
                    if len(self.lengths_dropped) < 50_000:
                        self.lengths_dropped += text_lengths(table)
                    for row in sorted(mine):
                        yield self._reject(rows[row], table.slice(row - start, 1))
                start += size

    def _reject(self, fate: str, table: pa.Table) -> Sample:
        marks = Batch(table.select(["_reason", "_step", "_address", "_scores"])).shown_rows()[0]
        content = table.drop_columns([name for name in table.column_names if name.startswith("_") and name != "_line"])
        address = str(marks["_address"])
        file = re.sub(r"(@\d+)?:\d+(/\d+)*$", "", address)
        place = file if "://" in file else str(self._folder / file)
        sample = self.sample(fate, Batch(content, Origin.of(place, [0])), PurePosixPath(address).name)
        sample.reason, sample.step, sample.address = str(marks["_reason"]), str(marks["_step"]), address
        scores = parsed(marks["_scores"])
        sample.details = [(name, shown_value(value)) for name, value in scores.items()] + sample.details
        return sample

    # ----------------------------------------------------------------------------------------------------------- failed

    def _failed(self) -> Iterator[Sample]:
        folder, shown = f"{INTERNAL}/failed", dict[str, int]()
        for name in spread([name for name in self._store.names(folder) if name.endswith(LINES)], MOST_FILES):
            with store_file(self._store, f"{folder}/{name}") as opened:
                for number, line in enumerate(opened):
                    if number >= 2_000:
                        break
                    row = parsed(line)
                    kind = str(row.get("error"))[:60]
                    shown[kind] = shown.get(kind, 0) + 1
                    if shown[kind] > PER_ERROR or len(shown) > MOST_REASONS:
                        continue
                    content = row.get("row")
                    written = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
                    yield Sample(
                        "failed",
                        PurePosixPath(str(row.get("address"))).name,
                        written[:LONGEST_FIELD],
                        reason=str(row.get("error"))[:1000],
                        step=str(row.get("step")),
                        length=len(written),
                    )

    # ------------------------------------------------------------------------------------------------------------- rows

    def sample(self, fate: str, row: Batch, title: str) -> Sample:
        """A row as a sample: its text, its media, and the other columns in short."""
        sample, table = Sample(fate, title), row.table
        main = text_column(table)
        for name, value in row.shown_rows()[0].items():
            if name == main:
                sample.length = len(value or "")
                sample.text = (value or "")[:LONGEST_FIELD]
            elif is_media(table.schema.field(name).type):
                if isinstance(value, dict) and value.get("path") and not value.get("bytes"):
                    sample.media += self._referenced(row, name, str(value["path"]))
                else:
                    sample.media.append(self._medium(value))
            elif name == "id" and value is not None:
                sample.title = shown_value(value)
            elif not name.startswith("_") and value is not None and len(sample.details) < 12:
                sample.details.append((name, shown_value(value)))
        return sample

    def _medium(self, value: Any) -> tuple[str, str]:
        data = value.get("bytes") if isinstance(value, dict) else None
        if not data:
            return "note", "no content"
        kind = media_type(data)
        if kind is None:
            return "note", f"{len(data):,} bytes of an unknown format"
        if kind.startswith("image/"):
            data = thumbnail_of(data)
            kind = "image/jpeg"
            if data is None:
                return "note", "an image that cannot be decoded"
        elif len(data) > CLIP_BYTES:
            return "note", f"a clip of {len(data):,} bytes, too large for the page"
        return self._embedded(kind, data)

    def _embedded(self, kind: str, data: bytes) -> tuple[str, str]:
        if len(data) > self._media_left:
            return "note", f"{len(data):,} bytes, more than the page has left for media"
        self._media_left -= len(data)
        return kind.partition("/")[0], f"data:{kind};base64,{b64encode(data).decode()}"

    def _referenced(self, row: Batch, column: str, path: str) -> Iterator[tuple[str, str]]:
        """The media that a row refers to: a thumbnail, frames of a clip, or the beginning of a sound with its waveform.

        Only files that the run could reach are read, and none from elsewhere on the network.
        """
        from tamis.image.contact_sheet import access_of, cards

        stored = f"stored in {path[:LONGEST_VALUE]}"
        access = access_of(self._view.steps[0] if self._view.steps else None, self._folder)
        one = Batch(row.table.select([column]), row.origin, access=access)
        if is_remote(path) or self._opened >= MOST_OPENED:
            yield "note", stored
            return
        self._opened += 1
        try:
            (size,) = sizes_of(media_items(one, column))
            # Of sounds and videos, and segments of them, whose size is not known, only a little is read.
            if size is not None and size > MOST_FILE_BYTES and media_kind(path) not in ("audio", "video"):
                yield "note", stored
                return
            card = next(iter(cards(one, column)))
        except Exception as error:  # noqa: BLE001 - also of decoders, and other rows are shown all the same
            yield "note", f"{stored}: {first_line(error)}"
            return
        if card.picture is not None:
            yield self._embedded("image/jpeg", card.picture)
        if card.sound is not None:
            yield self._embedded("audio/ogg", card.sound)
        if card.picture is None and card.sound is None:
            yield "note", f"{stored}: {card.note}" if card.note else stored


def output_source(view: RunView, only: str = "") -> Source | None:
    """A reader of what a run wrote, or of one partition of it; None if there is no reader for the format."""
    steps = view.steps
    forms = [form for form in FORMATS.values() if steps and form.writer == steps[-1][0]]
    # Folders hold images, sounds or videos, mostly as those that were read.
    form = next((form for form in forms if form.reader == steps[0][0]), next(iter(forms), None))
    names = [name for name in view.store.names() if not name.startswith(".")]
    if form is None or not names:
        return None
    mine = [
        f"{view.output.rstrip('/')}/{name}"
        for name in names
        if name.startswith((f"{only}.", f"{only}-")) or name == only  # a folder of media files
    ]
    if only and not mine:
        return None
    built = build_operator(form.reader, {"file_paths": mine if only else view.output})
    assert isinstance(built, Source)
    return built


def written_media(view: RunView) -> Source | None:
    """A reader of the media files of a run whose other columns are in files beside them; None for other runs."""
    reader = _MEDIA_READERS.get(view.steps[-1][0]) if view.steps else None
    if reader is None or not has_data(view.store):
        return None
    built = build_operator(reader, {"file_paths": view.output})
    assert isinstance(built, Source)
    return built


def text_column(table: pa.Table) -> str | None:
    """The column that holds the text of rows: `text`, or else the first with strings that is no id or address.

    Strings beside an image, a sound or a video say something about it, such as its format; they are the text only if they
    have one of the usual names.
    """
    strings = [
        spec.name for spec in table.schema if pa.types.is_string(spec.type) or pa.types.is_large_string(spec.type)
    ]
    for name in ("text", "content", "caption", "_line"):
        if name in strings:
            return name
    if any(is_media(spec.type) for spec in table.schema):
        return None
    return next((name for name in strings if name not in ("id", "url", "path", "source", "language")), None)


def text_lengths(table: pa.Table) -> list[int]:
    name = text_column(table)
    return [] if name is None else pc.fill_null(pc.utf8_length(table.column(name)), 0).to_pylist()


def shown_value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return written if len(written) <= LONGEST_VALUE else written[: LONGEST_VALUE - 3] + "..."


def margin_of(reason: str, scores: str | None) -> float | None:
    """How far the score of a dropped row is from the threshold, relative to it; None if its reason names none."""
    found = _THRESHOLD.match(reason)
    value = parsed(scores).get(found["score"]) if found and scores else None
    if found is None or isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    limit = float(found["limit"])
    return abs(value - limit) / max(abs(limit), 1e-9)


def parsed(text: str | bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """At most `count` items, evenly spaced."""
    if len(items) <= count:
        return list(items)
    return [items[number * len(items) // count] for number in range(count)]


# ---------------------------------------------------------------------------------------------------------------- media

_SIGNS: Iterable[tuple[bytes, int, str]] = (
    (b"\xff\xd8\xff", 0, "image/jpeg"),
    (b"\x89PNG", 0, "image/png"),
    (b"GIF8", 0, "image/gif"),
    (b"WEBP", 8, "image/webp"),
    (b"BM", 0, "image/bmp"),
    (b"WAVE", 8, "audio/wav"),
    (b"fLaC", 0, "audio/flac"),
    (b"OggS", 0, "audio/ogg"),
    (b"ID3", 0, "audio/mpeg"),
    (b"\xff\xfb", 0, "audio/mpeg"),
    (b"ftypM4A", 4, "audio/mp4"),
    (b"ftypavif", 4, "image/avif"),
    (b"ftyp", 4, "video/mp4"),
    (b"\x1a\x45\xdf\xa3", 0, "video/webm"),
)


def media_type(data: bytes) -> str | None:
    """The type of a file, from its first bytes."""
    return next((kind for sign, at, kind in _SIGNS if data[at : at + len(sign)] == sign), None)


def thumbnail_of(data: bytes) -> bytes | None:
    """A small JPEG of an image; None if it cannot be decoded."""
    from tamis.image.decode import pictures
    from tamis.image.sheet_page import thumbnail

    try:
        (picture,) = pictures(Batch.from_rows([{"image": {"bytes": data, "path": None}}]), "image")
    except TamisError:
        return None
    return None if picture is None else thumbnail(picture)
