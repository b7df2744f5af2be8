"""The contact sheet of a run: what it kept and dropped, as thumbnails on a page, frames of clips, sounds that can be played.

    OUTPUT/*                     a sample of the kept images
    OUTPUT/.tamis/rejects/       dropped images, by reason; those whose scores are closest to a threshold
    OUTPUT/.tamis/groups/        groups of duplicates, and pairs that were almost duplicates
    the input of the run         pictures of rows that are named by their address only

Rows are read through the reader of the run, so that references reach only what the run was allowed to read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow.parquet as pq

from tamis.batch import Batch
from tamis.dedup.explain import store_file
from tamis.dedup.groups import Groups
from tamis.errors import ColumnError, TamisError, first_line
from tamis.features import features_of
from tamis.formats import FORMATS, media_kind
from tamis.image.decode import headers, pictures
from tamis.image.sheet_page import page, thumbnail
from tamis.media import MediaAccess, Reference, is_media, media_items, media_name
from tamis.operators import Reading, Source
from tamis.parameters import plural
from tamis.registry import build_operator
from tamis.report import Report, load_manifest
from tamis.segments import split_segment
from tamis.sources.references import MediaReference
from tamis.store import INTERNAL, TABLE, Store, check_writable, writing

_Step: TypeAlias = tuple[str, Mapping[str, Any]]

BATCH_BYTES = 16_000_000
PARTITION_BYTES = 64_000_000

_CHILD = re.compile(r":(\d+)((?:/\d+)*)$")
_THRESHOLD = re.compile(r"^(?P<score>\w+) [<>]=? (?P<limit>-?\d+(?:\.\d+)?)")


@dataclass
class Card:
    """One image on the sheet."""

    title: str
    details: list[str] = field(default_factory=list)
    picture: bytes | None = None
    """A small JPEG."""
    kept: bool | None = None
    note: str = ""
    """Why there is no picture."""
    sound: bytes | None = None
    """What can be played: Opus in Ogg."""


@dataclass
class Section:
    title: str
    explanation: str = ""
    groups: list[list[Card]] = field(default_factory=list)
    """Cards that belong together, such as the rows of a group of duplicates."""


@dataclass(frozen=True)
class Limits:
    """How much the sheet shows."""

    kept: int = 24
    per_reason: int = 12
    borderline: int = 12
    groups: int = 12
    per_group: int = 6
    near_misses: int = 8


def write_contact_sheet(output: str, file: str | Path, column: str = "image", limits: Limits | None = None) -> int:
    """Write the contact sheet of an output folder to a file of HTML; returns the number of images on it.

    Raises an error if the output has no such column, and nothing that was dropped can be shown either.
    """
    check_writable(file)
    sheet = _Sheet(output, column, limits or Limits())
    sections = sheet.sections()
    shown = sum(card.picture is not None for section in sections for group in section.groups for card in group)
    if sheet.lacks_column is not None and not shown:
        raise sheet.lacks_column
    content = page(sheet.report, output, sections)
    with writing(file) as path:
        path.write_text(content, encoding="utf-8")
    return shown


class _Sheet:
    """Collects what is on the sheet of one output folder."""

    def __init__(self, output: str, column: str, limits: Limits) -> None:
        self.report, self._store, self._limits = Report.load(output), Store(output), limits
        self._column, self._output = column, output
        steps = [_named(step) for step in load_manifest(output).get("recipe", {}).get("steps", [])]
        self._folder = Path(load_manifest(output).get("directory") or ".")
        self._reader: _Step | None = steps[0] if steps else None
        self._writer: _Step | None = steps[-1] if steps else None
        made = [given for name, given in steps if name == "media_reference" and given.get("to", "image") == column]
        self._made = MediaReference(**made[0]) if made else None
        """The step of the run that makes the column of paths, of which the input has none."""
        self._wanted: dict[str, list[Card]] = {}
        self.lacks_column: ColumnError | None = None
        """That the output has no such column."""

    def sections(self) -> list[Section]:
        """All sections, with the pictures of rows that are named by their address."""
        rejects = list(self._rejects())
        found = [self._kept(), *self._dropped(rejects), self._borderline(rejects), *self._duplicates()]
        self._fetch()
        return [section for section in found if section.groups or section.explanation]

    # ------------------------------------------------------------------------------------------------------------ sections

    def _kept(self) -> Section:
        section = Section("Kept", f"{plural(self.report.kept, 'row')}; a sample from all parts of the output")
        try:
            source = self._source_of_output()
            cards = (
                list(_sampled(source, self._column, self._access(), self._limits.kept)) if source is not None else []
            )
        except TamisError as error:
            self.lacks_column = error if isinstance(error, ColumnError) else None
            return replace(section, explanation=f"{plural(self.report.kept, 'row')}. They cannot be shown: {error}")
        return replace(section, groups=[[card] for card in cards])

    def _dropped(self, rejects: Sequence[Mapping[str, Any]]) -> Iterator[Section]:
        counts = self.report.dropped
        if counts and not rejects:
            listed = ", ".join(f"{reason} ({count:,})" for reason, count in counts.items())
            yield Section(
                "Dropped", f"{listed}. The run did not keep dropped rows; run it with --rejects to see them here."
            )
        for reason in counts if rejects else ():
            mine = [row for row in rejects if row["_reason"] == reason]
            cards = [[self._card_of(row)] for row in _spread(mine, self._limits.per_reason)]
            yield Section(f"Dropped: {reason}", plural(counts[reason], "row"), cards)

    def _borderline(self, rejects: Sequence[Mapping[str, Any]]) -> Section:
        """Dropped rows whose score is closest to the threshold of the rule that dropped them."""
        close: dict[str, list[tuple[float, int]]] = {}
        for number, row in enumerate(rejects):
            if (margin := _margin(row)) is not None:
                close.setdefault(row["_reason"], []).append((margin, number))
        each = -(-self._limits.borderline // max(1, len(close)))
        chosen = [number for found in close.values() for _, number in sorted(found)[:each]]
        cards = [[self._card_of(rejects[number])] for number in chosen]
        return Section("Borderline", "Dropped rows whose score is closest to the threshold" if cards else "", cards)

    def _duplicates(self) -> Iterator[Section]:
        try:
            groups = Groups.load(self._output)
        except TamisError:
            return
        for stage, summary in groups.summaries.items():
            most = self._limits
            counted = f"{plural(summary.get('groups', 0), 'group')}, {plural(summary['dropped'], 'row')} dropped"
            section = Section(f"Duplicates: {summary['step']}", f"{counted}; the largest groups, the kept row first")
            for group in groups.largest(most.groups, stage):
                members = groups.members(group["kept_address"], most.per_group - 1, stage)
                cards = [self._card_at(group["kept_address"], group.get("kept_id"), "kept", True)]
                cards += [self._card_at(row["address"], row.get("id"), _likeness(row), False) for row in members]
                section.groups.append(cards)
            yield section
            pairs = groups.closest(most.near_misses, stage)["below"] if "threshold" in summary else []
            shown = {row["address"]: row for row in reversed(pairs)}
            if shown:
                yield Section(
                    f"Almost duplicates: {summary['step']}",
                    "Pairs of kept rows closest to the threshold",
                    [
                        [
                            self._card_at(row["kept_address"], row.get("kept_id"), "kept", True),
                            self._card_at(row["address"], row.get("id"), f"kept, {_likeness(row)}", True),
                        ]
                        for row in shown.values()
                    ],
                )

    # ---------------------------------------------------------------------------------------------------------------- rows

    def _rejects(self) -> Iterator[dict[str, Any]]:
        """The dropped rows: their reason, scores and address, and the image unless it is a reference."""
        folder = f"{INTERNAL}/rejects"
        kept: dict[str, int] = {}
        for name in self._store.names(folder):
            if not name.endswith(TABLE):
                continue
            with store_file(self._store, f"{folder}/{name}") as opened:
                file = pq.ParquetFile(opened)
                names = [
                    each
                    for each in (self._column, "id", "_reason", "_scores", "_address")
                    if each in file.schema_arrow.names
                ]
                for batch in file.iter_batches(64, columns=names):
                    for number, row in enumerate(
                        batch.select([each for each in names if each != self._column]).to_pylist()
                    ):
                        reason = row["_reason"]
                        kept[reason] = kept.get(reason, 0) + 1
                        if kept[reason] <= 50 * self._limits.per_reason:
                            row["_shown"] = self._card_in(batch, number) if kept[reason] <= 200 else None
                            yield row

    def _card_in(self, batch: Any, number: int) -> Card | None:
        if self._column not in batch.schema.names:
            return None
        value = batch.column(self._column)[number].as_py()
        if not isinstance(value, dict):
            return None
        # The address of a clip leads to its video, so its reference is followed instead.
        if not value.get("bytes") and split_segment(str(value.get("path") or ""))[1] is None:
            return None
        row = Batch.from_rows([{self._column: value}])
        return next(iter(cards(Batch(row.table, row.origin, access=self._access()), self._column)))

    def _card_of(self, row: Mapping[str, Any]) -> Card:
        details = [str(row["_reason"]), *_scores(row)]
        card = Card(_title(row["_address"], row.get("id")), details, kept=False)
        if row["_shown"] is not None and _is_clip(row["_shown"].title):
            card.title = row["_shown"].title
        if row["_shown"] is not None:
            card.picture, card.sound, card.note = row["_shown"].picture, row["_shown"].sound, row["_shown"].note
            card.details += row["_shown"].details if _is_clip(row["_shown"].title) else []
        if card.picture is None and row["_shown"] is None:
            self._want(row["_address"], card)
        return card

    def _card_at(self, address: str, row_id: object, detail: str, kept: bool) -> Card:
        card = Card(_title(address, row_id), [detail], kept=kept)
        self._want(address, card)
        return card

    def _want(self, address: str, card: Card) -> None:
        self._wanted.setdefault(address, []).append(card)

    def _fetch(self) -> None:
        """Read the pictures of the wanted rows from the input, file by file."""
        by_file: dict[str, set[str]] = {}
        for address, cards in self._wanted.items():
            found = _CHILD.search(address)
            if found is None or found[2]:
                _say(cards, "made by a step of the run")
            else:
                by_file.setdefault(re.sub(r"@\d+$", "", address[: found.start()]), set()).add(address)
        for file, addresses in by_file.items():
            try:
                for card in self._cards_at(file, addresses):
                    for waiting in self._wanted[card.title]:
                        waiting.picture, waiting.note, waiting.sound = card.picture, card.note, card.sound
                        waiting.details += card.details
            except (TamisError, OSError) as error:
                for address in addresses:
                    _say(self._wanted[address], f"not in the input any more: {first_line(error)}")

    def _cards_at(self, file: str, addresses: set[str]) -> Iterator[Card]:
        if self._reader is None:
            return
        name, parameters = self._reader
        given = {key: value for key, value in parameters.items() if key not in ("files_per_partition", "limit")}
        path = file if "://" in file or Path(file).is_absolute() else str(self._folder / file)
        source = build_operator(name, given | {"file_paths": path})
        assert isinstance(source, Source)
        # A run names rows by paths as they were given, perhaps relative to another folder.
        left = {path + address[len(file) :]: address for address in addresses}
        for batch in _batches(source, self._column, source.access, made=self._made):
            for row, address in enumerate(batch.origin.addresses()):
                if address in left:
                    for card in cards(batch.select(slice(row, row + 1)), self._column):
                        yield replace(card, title=left.pop(address))
            if not left:
                return

    def _access(self) -> MediaAccess:
        return access_of(self._reader, self._folder)

    def _source_of_output(self) -> Source | None:
        if self._writer is None:
            return None
        forms = {form.name: form for form in FORMATS.values() if form.writer == self._writer[0]}
        if not forms:
            return None
        # Folders hold images, sounds or videos, and their readers name the column after them.
        form = forms.get(self._column) or next(iter(forms.values()))
        built = build_operator(form.reader, {"file_paths": str(self._output)})
        assert isinstance(built, Source)
        return built


# ------------------------------------------------------------------------------------------------------------- reading


def access_of(reader: _Step | None, folder: Path) -> MediaAccess:
    """What references in an output may reach: the input of the run, and what the run was allowed to read."""
    parameters = reader[1] if reader is not None else {}
    paths = parameters.get("file_paths") or []
    given = [str(each) for each in ([paths] if isinstance(paths, str) else paths)]
    roots = [_folder_of(each if "://" in each else str(folder / each)) for each in given]
    options = parameters.get("storage_options") or {}
    return MediaAccess((*roots, *(parameters.get("media_roots") or ())), options)


def _batches(
    source: Source,
    column: str,
    access: MediaAccess | None,
    partitions: Sequence[int] | None = None,
    made: MediaReference | None = None,
) -> Iterator[Batch]:
    """Batches of the rows of a source, with the column that `made` makes; bad rows are left out."""
    layout = source.layout(PARTITION_BYTES)
    names = {*layout.schema.names, *(made.writes() if made is not None else ())}
    if column not in names:
        media = [each.name for each in layout.schema if is_media(each.type)]
        hint = (
            f"columns of media: {', '.join(media)}; name one with --column"
            if media
            else f"none of its columns has images, sounds or videos: {', '.join(layout.schema.names)}"
        )
        raise ColumnError(f"there is no column `{column}`", hint=hint)
    reading = Reading(None, layout.schema, BATCH_BYTES, lambda failure: None)
    for number in range(len(layout.partitions)) if partitions is None else partitions:
        for batch in source.read(layout.partitions[number], reading):
            read = Batch(batch.table, batch.origin, access=access)
            yield read if made is None else read.with_columns(made.apply(read.view({"path": made.column})))


def _sampled(source: Source, column: str, access: MediaAccess, count: int) -> Iterator[Card]:
    """Some rows from all over a source: the same ones each time."""
    layout = source.layout(PARTITION_BYTES)
    chosen = _spread(range(len(layout.partitions)), min(count, 8))
    each = -(-count // max(1, len(chosen)))
    for number in chosen:
        for batch in _batches(source, column, access, [number]):
            for row in _spread(range(len(batch)), each):
                yield from cards(batch.select(slice(row, row + 1)), column)
            break  # one batch of each is enough


def cards(batch: Batch, column: str) -> Iterator[Card]:
    """A card for each row with an image, a sound or a video."""
    kind = _kind(batch, column)
    if kind == "Audio":
        yield from _sound_cards(batch, column)
        return
    if kind == "Video":
        yield from _video_cards(batch, column)
        return
    view = batch.view({column: column})
    for row in range(len(batch)):
        one = view.select(slice(row, row + 1))
        title = _title(batch.origin.address(row), None)
        try:
            (picture,) = pictures(one, column)
        except TamisError as error:
            yield Card(title, note=first_line(error), kept=True)
            continue
        if picture is None:
            yield Card(title, note="no image", kept=True)
            continue
        path = one[column][0].as_py().get("path")
        title = Path(Reference.parse(path).name or path).name if path else title
        header = headers(one, column)
        size = f"{header.width[0]} x {header.height[0]} {header.format[0]}, {int(header.num_bytes[0]):,} bytes"
        yield Card(title, [size], thumbnail(picture), kept=True)


def _kind(batch: Batch, column: str) -> str | None:
    """What a column holds, by its features or its name."""
    known = features_of(batch.table.schema).get(column, {}).get("_type")
    return known or {"audio": "Audio", "video": "Video"}.get(column)


def _is_clip(title: str) -> bool:
    return " s to " in title


def _video_cards(batch: Batch, column: str) -> Iterator[Card]:
    from tamis.video.previews import shown_frames

    for row, item in enumerate(media_items(batch, column)):
        title = _title(batch.origin.address(row), None)
        if item is None:
            yield Card(title, note="no video", kept=True)
            continue
        if item.path:
            whole, segment = split_segment(item.path)
            title = Path(media_name(whole)).name
            if segment is not None:
                title += f", {segment.begin:g} s to {'its end' if segment.end is None else f'{segment.end:g} s'}"
        try:
            detail, picture = shown_frames(item)
            yield Card(title, [detail], picture, kept=True)
        except TamisError as error:
            yield Card(title, note=first_line(error), kept=True)


def _sound_cards(batch: Batch, column: str) -> Iterator[Card]:
    from tamis.audio.decode import recordings
    from tamis.audio.preview import PICTURE_S, drawn, first_seconds, playable

    for row, recording in enumerate(recordings(batch, column)):
        title = _title(batch.origin.address(row), None)
        if recording is None:
            yield Card(title, note="no sound", kept=True)
            continue
        try:
            info, wave = recording.info, first_seconds(recording, PICTURE_S)
            detail = f"{recording.duration:.2f} s, {info.rate:,} Hz, {plural(info.channels, 'channel')}, {info.codec}"
            path = recording.item.path
            title = Path(media_name(path)).name if path else title
            yield Card(title, [detail], thumbnail(drawn(wave)), kept=True, sound=playable(wave))
        except TamisError as error:
            yield Card(title, note=first_line(error), kept=True)


# ---------------------------------------------------------------------------------------------------------------- texts


def _named(step: Any) -> _Step:
    if isinstance(step, str):
        return step, {}
    ((name, parameters),) = step.items()
    return name, parameters or {}


def _title(address: str, row_id: object) -> str:
    """The id of a row, or the end of its address."""
    if row_id is not None:
        return str(row_id)
    place = _CHILD.sub("", address)
    return Path(place).name if media_kind(place) else f"{Path(place).name}{address[len(place) :]}"


def _likeness(row: Mapping[str, Any]) -> str:
    if row.get("bits") is not None:
        return f"{row['bits']} bits differ"
    if row.get("offset") is not None:
        return f"similarity {row['similarity']:.3f}, at {row['offset']:+.2f} s"
    return (
        "equal" if row.get("bands") is None and row.get("distance") is None else f"similarity {row['similarity']:.3f}"
    )


def _scores(row: Mapping[str, Any]) -> list[str]:
    scores = json.loads(row["_scores"]) if row.get("_scores") else {}
    return [f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in scores.items()]


def _margin(row: Mapping[str, Any]) -> float | None:
    """How far the score of a dropped row is from the threshold, relative to it; None if its reason names none."""
    found = _THRESHOLD.match(str(row["_reason"]))
    scores = json.loads(row["_scores"]) if found and row.get("_scores") else {}
    value = scores.get(found["score"]) if found else None
    if found is None or not isinstance(value, (int, float)):
        return None
    limit = float(found["limit"])
    return abs(value - limit) / max(abs(limit), 1e-9)


def _folder_of(path: str) -> str:
    """The folder that a path, a file or a pattern is in."""
    before = re.split(r"[*?\[]", path, maxsplit=1)[0]
    if before == path and Path(path).is_dir():
        return path
    return before.rpartition("/")[0] or "/"


def _say(cards: Iterable[Card], note: str) -> None:
    for card in cards:
        card.note = note


def _spread(items: Sequence[Any], count: int) -> list[Any]:
    """At most `count` items, evenly spaced."""
    if len(items) <= count:
        return list(items)
    return [items[number * len(items) // count] for number in range(count)]
