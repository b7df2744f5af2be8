"""Read WebDataset archives: members of a tar archive that share a key are one row.

    000.jpg 000.txt 000.json   001.jpg 001.txt 001.json   ...
    |--------- row ---------|  |--------- row ---------|

A key is the name up to the first dot of its last part; what follows is the extension, which names the column. Media are not
read: a row refers to the bytes in the archive. Of a compressed or remote archive, which is read as a stream, rows hold them.
"""

from __future__ import annotations

import functools
import io
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from tamis.batch import Batch, Failure, Origin, contiguous
from tamis.errors import DamagedFile, ParameterError, SourceError
from tamis.features import media_feature, with_features
from tamis.formats import codec_of, media_kind
from tamis.media import MAX_BYTES, is_media
from tamis.operators import Layout, Partition, Piece, Reading, operator
from tamis.sources import partitions as division
from tamis.sources.compression import TYPICAL_RATIO
from tamis.sources.delimited import check_types
from tamis.sources.files import File, expand_braces, is_local, list_files, local_path, open_file
from tamis.sources.filesource import ByteSource, DamagedFiles, end_of
from tamis.sources.jsonl import JSON, JsonlParser
from tamis.sources.jsonmedia import MEDIA
from tamis.sources.lines import Chunk, Chunks, Lines, Text, Unread
from tamis.sources.schemas import conform, unify
from tamis.sources.tar import END, ByteWindow, Member, TarDamage, cut_off, leads_out, members

KEY = "__key__"
TEXTS = ("txt", "text", "caption", "transcript", "md", "html", "xml", "yaml", "yml", "csv", "tsv", "srt", "vtt", "lab")
"""Extensions of members that are read as text."""
_COLUMNS = {"txt": "caption", "cls": "label"}
"""The columns of members whose extension is not the name of one."""
_OWN = frozenset({KEY, "image", "audio", "video", "caption", "label", *TEXTS})
"""Columns that members have whatever a sample of the archives shows."""
_NEVER_IN_JSON = frozenset({KEY, "image", "audio", "video"})
"""Columns that the JSON of a row cannot have; a caption, a label and other texts it can (see `_line`)."""
_SAMPLED_ROWS, _SAMPLED_BYTES = 64, 2**20
_MOST_MEMBERS, _MOST_COLUMNS = 64, 32
"""The most members of a row, and the most columns of members whose extensions have no meaning here."""


def split_name(name: str) -> tuple[str, str] | None:
    """The key and the extension of a member; None if it has none.

    >>> split_name("photos/a.b/0001.seg.PNG"), split_name("README")
    (('photos/a.b/0001', 'seg.png'), None)
    """
    folder, slash, last = name.rpartition("/")
    key, dot, extension = last.partition(".")
    return (folder + slash + key, extension.lower()) if key and dot and extension else None


def _is_hidden(name: str) -> bool:
    """Whether a member is one of those that archives hold besides data: `._0001.jpg`, `__MACOSX/...`, `__meta__.json`."""
    return any(part.startswith((".", "__")) and part not in (".", "..") for part in name.split("/"))


def _key_of(member: Member) -> tuple[str, str] | None:
    """The key and the extension of a member, which may be empty; None for members that are no data."""
    name = member.name.removeprefix("./")
    if member.kind in ("folder", END) or _is_hidden(name):
        return None
    return split_name(name) or (name, "")


@dataclass
class _Row:
    """A row as far as its members have been read."""

    key: str
    place: int
    values: dict[str, object] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    json: bytes | None = None
    error: str | None = None
    members: int = 0
    size: int = 100


@operator()
class WebDatasetReader(ByteSource):
    """Read rows of WebDataset archives: tar files in which members with the same key are one row.

    Columns: `__key__`; `image`, `audio` and `video` by the extension of the member; `caption` (txt), `label` (cls, an
    integer), the fields of a JSON member, and other texts under their extension. A member `0001.left.jpg` is column `left`,
    and one of unknown type is held as binary under its extension. `members={"txt": "text", "png": "mask"}` names columns.
    Media are not read until a step needs them: rows refer to bytes of the archive. Rows of a compressed or remote archive,
    which is read as a stream, hold them. Large archives on a disk are split between rows, compressed ones are not.
    Paths may have ranges, as those of webdataset: `shards/{00000..00099}.tar`.

    A row fails if a member is a link, a device or a sparse file, leads out of the archive (`/`, `..`), appears twice, is
    not UTF-8 or not JSON. A row without media is kept, with null. A truncated archive is read up to its damage.

    >>> WebDatasetReader("shards/*.tar", members={"txt": "text"}).name
    'web_dataset_reader'
    """

    members: Mapping[str, str] | None = None
    types: Mapping[str, str] | None = None

    format = "tar"
    rows_are_members = True

    def check(self) -> None:
        super().check()
        check_types(self.name, self.types, (JSON,))
        for extension, column in (self.members or {}).items():
            if extension.startswith(".") or extension != extension.lower() or column in ("", KEY):
                raise ParameterError(
                    f"`members` of `{self.name}` maps {extension!r} to {column!r}",
                    hint='extensions are in lower case, without the first dot: members={"seg.png": "mask"}',
                )

    def list_files(self) -> list[File]:
        paths = [self.file_paths] if isinstance(self.file_paths, (str, Path)) else self.file_paths
        expanded = [each for path in paths for each in expand_braces(str(path))]
        return list_files(expanded, self.format, self.storage_options)

    # ------------------------------------------------------------------------------------------------------ the layout

    def layout(self, blocksize: int) -> Layout:
        size = self.block_bytes(blocksize)
        files, damaged = self.list_files(), DamagedFiles()
        schemas = damaged.examine(division.sampled(files), self._sample)
        damaged.raise_if_nothing_is_left(division.sampled(files))
        schema = unify([(path, schema) for path, schema in schemas.items() if len(schema)], type(self).__name__)
        divided = damaged.examine(files, lambda file: self._pieces(file, size))
        pieces = [piece for found in divided.values() for piece in found]
        return self.divided(files, pieces, schema, size, {}, damaged)

    def _sample(self, file: File) -> pa.Schema:
        """The columns of the first rows of an archive."""
        rows: list[_Row] = []
        uses = self._uses(None)
        with self._opened(Piece(file.path, 0, file.size), None) as archive:
            try:
                rows += itertools.islice(self._rows(archive, None, _SAMPLED_BYTES, uses, learn=True), _SAMPLED_ROWS)
            except TarDamage as error:
                if not rows and error.member is None:
                    raise DamagedFile(
                        f"{file.path} is not a tar archive, or is damaged: {error.message}",
                        hint="copy it again, or exclude it",
                    ) from error
        good = [row for row in rows if row.error is None]
        table, _ = self._table(good, self._parser(pa.schema([]), None), None, lambda row, error: None)
        if len(uses) - len(self._uses(None)) > _MOST_COLUMNS:
            raise SourceError(
                f"the members of {file.path} have {len(uses):,} extensions, such as {', '.join(list(uses)[-3:])}",
                hint="a key ends at the first dot of the file name; rename members whose names have other dots",
            )
        kinds = {column: kind for row in good for column, kind in row.kinds.items()}
        return with_features(table.schema, {column: media_feature(kind) for column, kind in kinds.items()})

    def _uses(self, schema: pa.Schema | None) -> dict[str, str]:
        """What the members of each column hold: media, text or a class."""
        uses = dict.fromkeys(("image", "audio", "video"), "media") | dict.fromkeys(("caption", *TEXTS), "text")
        uses["label"] = "class"
        for spec in schema if schema is not None else ():
            if is_media(spec.type) or pa.types.is_string(spec.type):
                uses.setdefault(spec.name, "media" if is_media(spec.type) else "text")
        return uses | dict(self._column(extension)[:2] for extension in self.members or ())

    def _pieces(self, file: File, blocksize: int) -> list[Piece]:
        """Ranges of whole rows. Of a large archive, all headers are read, and no content."""
        codec = codec_of(file.path)
        if codec is not None:
            return [Piece(file.path, 0, file.size, int(file.size * TYPICAL_RATIO[codec]))]
        if file.size <= blocksize or self.files_per_partition is not None or not is_local(file.path):
            return [Piece(file.path, 0, file.size, file.size)]
        starts, key = [0], None
        with open_file(file.path, self.storage_options) as opened:
            try:
                for member in members(ByteWindow.of(opened), file.size):
                    found = _key_of(member)
                    if found is not None and found[0] != key:
                        key = found[0]
                        if member.header - starts[-1] >= blocksize:
                            starts.append(member.header)
            except TarDamage:
                pass  # the reader of the last piece reports it
        stops = [*starts[1:], file.size]
        return [Piece(file.path, start, stop, stop - start) for start, stop in zip(starts, stops, strict=True)]

    def count_rows(self, piece: Piece, most: int) -> int:
        count, key = 0, None
        with self._opened(piece, None) as archive:
            try:
                for member in archive.members():
                    found = _key_of(member)
                    if found is not None and found[0] != key:
                        key = found[0]
                        count += 1
                        if count == most:
                            break
            except TarDamage:
                pass
        return count

    # ----------------------------------------------------------------------------------------------------------- reading

    @contextmanager
    def _opened(self, piece: Piece, reading: Reading | None) -> Iterator[_Archive]:
        with open_file(piece.path, self.storage_options) as file:
            if codec_of(piece.path) is not None:
                damaged = reading.damaged if reading is not None else frozenset()
                chunks = self.chunks(
                    file, piece, 2**16, damaged=damaged, on_damage=reading.on_damage if reading is not None else None
                )
                yield _Archive(piece, ByteWindow.over(decoded(chunks)))
            else:
                size = file.seek(0, io.SEEK_END)
                path = local_path(piece.path) if is_local(piece.path) else None
                yield _Archive(piece, ByteWindow.of(file, piece.start), size, path)

    def read(self, partition: Partition, reading: Reading) -> Iterator[Batch]:
        wanted = self.wanted(reading)
        most = min(MAX_BYTES, reading.max_row_bytes or MAX_BYTES)
        schema = self.file_schema(reading.schema)
        parser, uses = self._parser(schema, wanted), self._uses(schema)
        for piece in self.pieces_to_read(partition, reading):
            held: list[_Row] = []
            size = 0
            try:
                with self._opened(piece, reading) as archive:
                    for row in itertools.islice(self._rows(archive, wanted, most, uses), piece.skip, end_of(piece)):
                        if row.error is not None:
                            reading.fail(Failure(f"{piece.path}:{row.place}", self.name, row.error, row.key))
                            continue
                        held.append(row)
                        size += row.size
                        if size >= reading.batch_bytes:
                            yield from self._batch(piece.path, held, parser, reading, wanted)
                            held, size = [], 0
            except TarDamage as damage:
                self.fail_file(reading, piece.path, damage.message, row=damage.position)
            except DamagedFile as error:
                self.fail_file(reading, piece.path, error)
            yield from self._batch(piece.path, held, parser, reading, wanted)

    def _batch(
        self, path: str, rows: list[_Row], parser: JsonlParser, reading: Reading, wanted: Sequence[str] | None
    ) -> Iterator[Batch]:
        def bad(row: int, error: str) -> None:
            reading.fail(Failure(f"{path}:{rows[row].place}", self.name, error, rows[row].key))

        table, kept = self._table(rows, parser, wanted, bad)
        if len(kept):
            shaped = conform(table, self.file_schema(reading.schema), wanted)
            yield self.batch(shaped, Origin.of(path, [rows[row].place for row in kept]))

    def _rows(
        self,
        archive: _Archive,
        wanted: Sequence[str] | None,
        most: int,
        uses: dict[str, str],
        *,
        learn: bool = False,
    ) -> Iterator[_Row]:
        """The rows of an archive. Texts are read, and of a stream also media, if their columns are wanted.

        `uses` says what the members of each column hold; with `learn`, the first member of a column decides.
        """
        row: _Row | None = None
        column_of = functools.cache(self._column)
        try:
            for member in archive.members():
                found = _key_of(member)
                if member.kind == END and row is not None:
                    yield row
                    row = None
                if found is None:
                    continue
                key, extension = found
                if row is None or row.key != key:
                    if row is not None:
                        yield row
                    row = _Row(key, member.header)
                row.members += 1
                if row.error is None:
                    try:
                        _check_member(row, member, extension)
                        column, use, kind = column_of(extension)
                        _check_column(row, column, use, extension, uses, learn=learn)
                        self._add(row, member, column, use, kind, archive, wanted, most)
                    except _BadMember as error:
                        row.error = f"member {member.name!r:.200} {error}"
        except TarDamage as damage:
            if row is not None:
                cut = _key_of(damage.member) if damage.member is not None else None
                if cut is None or cut[0] == row.key:  # it may have had more members
                    row.error = row.error or f"the archive is damaged: {damage.message}"
                yield row
            raise
        if row is not None:
            yield row

    def _add(
        self,
        row: _Row,
        member: Member,
        column: str,
        use: str,
        kind: str | None,
        archive: _Archive,
        wanted: Sequence[str] | None,
        most: int,
    ) -> None:
        """Add what a member holds to its row."""
        if use == "json":
            if wanted is None or not _NEVER_IN_JSON.issuperset(wanted):
                row.json = archive.content(member, most)
                row.size += 2 * member.size
            return
        # Whether there is a `json_caption` depends on the caption.
        if wanted is not None and column not in wanted and (use == "media" or f"json_{column}" not in wanted):
            row.values[column] = None
            return
        row.size += member.size
        if use == "media":
            row.values[column] = archive.media(member, most)
            if kind is not None:
                row.kinds[column] = kind
        else:
            text = _utf8(archive.content(member, most))
            row.values[column] = text if use == "text" else _integer(text)

    def _column(self, extension: str) -> tuple[str, str, str | None]:
        """The column of a member; its use: media, text, a class, or JSON whose fields are columns; the kind of media."""
        first, _, last = extension.rpartition(".")
        given = (self.members or {}).get(extension)
        kind = media_kind(f"x.{last}")
        if extension == "json" and given is None:
            return "json", "json", None
        use = "text" if last in TEXTS or last == "json" else "class" if last == "cls" else "media"
        return given or first.replace(".", "_") or _COLUMNS.get(last) or kind or last, use, kind

    # ------------------------------------------------------------------------------------------------------------ tables

    def _parser(self, schema: pa.Schema, wanted: Sequence[str] | None) -> JsonlParser:
        own = _OWN | set((self.members or {}).values())
        known = pa.schema([spec for spec in schema if spec.name not in own and not pa.types.is_null(spec.type)])
        types = {self.in_file(name): kind for name, kind in (self.types or {}).items()}
        return JsonlParser(known, types, None if wanted is None else [name for name in wanted if name not in own])

    def _table(
        self, rows: Sequence[_Row], parser: JsonlParser, wanted: Sequence[str] | None, bad: Callable[[int, str], None]
    ) -> tuple[pa.Table, list[int]]:
        """The rows as a table, and the number of each; `bad` is called for those whose JSON cannot be read."""
        kept: list[int] = []
        lines: list[bytes] = []
        reserved = _OWN | set((self.members or {}).values())
        for number, row in enumerate(rows):
            try:
                lines.append(_line(row, reserved))
                kept.append(number)
            except (ValueError, RecursionError) as error:
                bad(number, f"the JSON of {row.key!r:.200} cannot be read: {error}")
        fields = pa.table({})
        if any(row.json is not None for row in rows) and kept:
            data, numbers = b"\n".join(lines), kept
            whole = Lines.of(Text(data, 0, len(data), ()))
            fields, found = parser.parse(whole, lambda line, why: bad(numbers[line], f"in its JSON: {why}"))
            kept = [numbers[line] for line in found]
        columns: dict[str, pa.Array] = {KEY: pa.array([rows[number].key for number in kept], pa.string())}
        for name in dict.fromkeys(name for number in kept for name in rows[number].values):
            columns[name] = _array([rows[number].values.get(name) for number in kept])
        columns |= {name: contiguous(fields.column(name)) for name in fields.column_names if name not in columns}
        # Without any of the columns that are wanted, the table would have no rows either.
        names = [name for name in columns if wanted is None or name in wanted] or [KEY]
        return pa.table({name: columns[name] for name in names}), kept


def _check_member(row: _Row, member: Member, extension: str) -> None:
    """Raise if a member cannot be part of a row."""
    if member.kind != "file":
        raise _BadMember(f"is a {member.kind}")
    if leads_out(member.name):
        raise _BadMember("leads out of the archive; names with `..` or a leading `/` are not read")
    if not extension:
        raise _BadMember("has no extension, so it belongs to no row")
    if row.members > _MOST_MEMBERS:
        raise _BadMember(f"is one of more than {_MOST_MEMBERS} with this key")


def _check_column(row: _Row, column: str, use: str, extension: str, uses: dict[str, str], *, learn: bool) -> None:
    """Raise if a column has a value already, is not known, or holds something else."""
    if column in row.values or (use == "json" and row.json is not None):
        raise _BadMember(f'is the second for column `{column}`; name its column: members={{"{extension}": "other"}}')
    known = use if use == "json" else uses.setdefault(column, use) if learn else uses.get(column)
    if known == use:
        return
    declare = f'members={{"{extension}": "{column if known is None else "other"}"}}'
    if known is None:
        raise _BadMember(f"has an extension that the first rows do not have; declare it: {declare}")
    raise _BadMember(f"is {use}, and column `{column}` holds {known}; name its column: {declare}")


def _line(row: _Row, reserved: Collection[str]) -> bytes:
    """The JSON of a row on one line, without the fields that members of the row have as columns.

    A caption or a label that only the JSON has becomes that of the row; another value than that of the member is kept as
    `json_caption`.
    """
    if row.json is None:
        return b"{}"
    text = row.json.decode("utf-8-sig")
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"it is not an object, but {type(value).__name__}")
    taken = [name for name in value if name in reserved or name in row.values]
    if not taken:
        return text.replace("\n", " ").replace("\r", " ").strip().encode()
    for name in taken:
        found = value.pop(name)
        if name not in row.values and _fits(name, found):
            row.values[name] = found
        elif found is not None and found != row.values.get(name):
            value[f"json_{name}"] = found
    return json.dumps(value, ensure_ascii=False).encode()


def _fits(name: str, value: object) -> bool:
    """Whether a value of the JSON can be that of a column which a member of the row could have."""
    if name == "label":
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    if isinstance(value, str) and name in ("caption", *TEXTS):
        value.encode()  # raises for half a surrogate pair, as the parser of all other fields does
        return True
    return False


def _array(values: list[object]) -> pa.Array:
    """A column of members."""
    first = next((value for value in values if value is not None), None)
    kinds = {dict: MEDIA, str: pa.string(), int: pa.int64()}
    return pa.array(values, kinds.get(type(first), pa.null()))


def _utf8(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _BadMember(f"is not UTF-8: {error.reason} at byte {error.start}") from error


def _integer(text: str) -> int:
    digits = text.strip()
    if not re.fullmatch(r"-?[0-9]{1,18}", digits):
        raise _BadMember(f"is not an integer: {digits!r:.50}")
    return int(digits)


def decoded(chunks: Chunks) -> Iterator[bytes]:
    """The bytes of a compressed archive."""
    position = 0
    for chunk in chunks:
        if isinstance(chunk, Unread):
            raise TarDamage(chunk.error, position)
        if isinstance(chunk, Chunk):
            if chunk.is_damaged:
                raise DamagedFile(
                    f"{chunk.place} does not match its checksum, so none of its rows can be trusted",
                    hint='on_damage="keep" keeps the rows before the damage',
                )
            yield chunk.data[: chunk.size]
            position += chunk.size


class _Archive:
    """A piece of an archive that is being read."""

    def __init__(self, piece: Piece, window: ByteWindow, size: int | None = None, path: str | None = None) -> None:
        self._piece, self._window, self._size = piece, window, size
        self._path = str(Path(path).absolute()) if path is not None else None  # of a file that rows can refer to

    def members(self) -> Iterator[Member]:
        whole = codec_of(self._piece.path) is not None
        for member in members(self._window, self._size):
            if not whole and member.header >= self._piece.stop:
                return
            yield member

    def media(self, member: Member, most: int) -> dict[str, object]:
        if self._path is not None:
            return {"bytes": None, "path": f"{self._path}@{member.start}+{member.size}#{member.name}"}
        return {"bytes": self.content(member, most), "path": member.name}

    def content(self, member: Member, most: int) -> bytes:
        """The content of a member."""
        if member.size > most:
            raise _BadMember(f"has {member.size:,} bytes, more than the limit of {most:,} that --memory allows")
        data = self._window.read(member.size)
        if len(data) < member.size:
            raise cut_off(member)
        return data


class _BadMember(Exception):
    """Why the row of a member fails."""
