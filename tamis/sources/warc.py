"""Read the archives of crawlers: WARC, WET, WAT (ISO 28500) and the older ARC.

    WARC/1.0                          one gzip member per record, as a rule, so that a file can be entered at any of them
    WARC-Type: response
    WARC-Target-URI: https://...      url
    Content-Length: 5120
                                      the block: for a response, the status, the headers and the body of an HTTP reply
    HTTP/1.1 200 OK ...

A piece of a file begins at a record and ends before the record at which the next piece begins. Damage costs the record in
which it is found: reading continues at the next member, or at the next thing that looks like a record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from io import SEEK_END
from typing import IO, Any, ClassVar, Literal

import pyarrow as pa

from tamis.batch import Failure
from tamis.context import Context
from tamis.errors import DamagedFile, ParameterError
from tamis.formats import codec_of
from tamis.media import MAX_BYTES
from tamis.operators import Layout, Piece, Reading, operator
from tamis.sources import partitions as division
from tamis.sources.bytestream import ByteStream, StreamDamage, frame_start
from tamis.sources.compression import magic_numbers
from tamis.sources.files import File, is_local, open_file
from tamis.sources.filesource import NEVER, DamagedFiles
from tamis.sources.lines import Chunk, Chunks
from tamis.sources.records import RecordSource, Row, bad_record
from tamis.web.charset import check_installed, decode_page, is_text
from tamis.web.http_message import BadBody, Reply, decoded_body, parse_headers, parse_reply

RECORD_TYPES = ("response", "resource", "conversion", "metadata", "revisit", "request", "warcinfo", "continuation")
HTML = ("text/html", "application/xhtml+xml", "application/vnd.wap.xhtml+xml")
_TEXTS = (*HTML, "text/plain", "application/xml", "text/xml")
_MAGIC = re.compile(rb"WARC/\d\.\d{1,3}\r*\n")
_ARC = re.compile(rb"[A-Za-z][A-Za-z0-9+.\-]{0,20}:[^ \r\n]{0,8000}(?: [^ \r\n]{0,500}){4,12}\r?\n")
_HEAD_END = re.compile(rb"\r*\n\r*\n")
_BEGINNING = re.compile(
    rb"WARC/\d\.\d{1,3}\r{0,3}\n[A-Za-z]"
    rb"|(?<![!-~])[A-Za-z][A-Za-z0-9+.\-]{0,20}:[!-~]{0,8000} [^ \r\n]{1,500} \d{14}(?: [^ \r\n]{0,500}){1,9}\d\r?\n"
)
"""The first line of a record, wherever it is found: after zeros or other damage there is no line end before it."""
_LONGEST_BEGINNING = 16_384
_MOST_HEAD = 65_536
_READ_BYTES = 262_144
_PROBED_BYTES = 4_194_304
_SCHEMA = {
    "id": pa.string(),
    "url": pa.string(),
    "date": pa.string(),
    "type": pa.string(),
    "mime": pa.string(),
    "status": pa.int32(),
    "charset": pa.string(),
    "truncated": pa.string(),
    "refers_to": pa.string(),
}
_BODIES = frozenset({"html", "text", "metadata", "content", "charset", "status", "mime"})
"""Columns that are made of the block of a record."""
_OF_HEADERS = frozenset({"status", "mime"})
_DOCUMENTS = {
    "conversion": {"text"},
    "metadata": {"metadata"},
    "warcinfo": {"metadata"},
    "request": {"metadata"},
    "revisit": set(),
}
_PAGE = {"html", "text"}
"""The columns of a document, by the type of its record, and of all other types: a crawl has pages and files of plain text."""


@operator()
class WarcReader(RecordSource):
    """Read records of WARC, WET, WAT and ARC files, one row per document.

    Columns: `id` (WARC-Record-ID), `url`, `date`, `type`, `mime`, `status`, `charset`, `truncated` (WARC-Truncated),
    `refers_to`, and the document: `html` and, for documents of type text/plain, `text` for WARC and ARC, `text` for WET,
    `metadata` (JSON) for WAT and for the requests and descriptions that `records` names.
    `raw=True` adds `content`, the body as bytes. Transfer and content encodings of bodies are decoded, and texts by the charset
    of the byte order mark, the header, the meta element or by detection. A body that is no text (an image, or a ZIP file that
    calls itself HTML) is null in `html` and `text`.

    `records` selects types of records; by default all documents: responses, resources, conversions, and the JSON metadata
    of WAT. A revisit has no body: with "revisit" among `records`, its row says in `refers_to` which record has it.

    Compressed files are split at gzip members that begin with a record, plain files at records. A record that is cut off,
    corrupt, of a wrong length, or larger than the memory allows fails, and reading continues at the next.

    >>> WarcReader("crawl/*.warc.gz", records=["response"]).name
    'warc_reader'
    """

    records: Sequence[Literal[*RECORD_TYPES]] | None = None  # type: ignore[valid-type]
    raw: bool = False

    format = "warc"
    default_records: ClassVar[tuple[str, ...]] = ("response", "resource", "conversion", "metadata")

    def check(self) -> None:
        super().check()
        if self.records is not None and not self.records:
            raise ParameterError(f"`records` of `{self.name}` selects no type", hint='records=["response"]')

    def open(self, context: Context) -> Any:
        check_installed()
        return self

    # ------------------------------------------------------------------------------------------------------ the layout

    def layout(self, blocksize: int) -> Layout:
        size = self.block_bytes(blocksize)
        files, damaged = self.list_files(), DamagedFiles()
        kinds = damaged.examine(division.sampled(files), self._kinds)
        damaged.raise_if_nothing_is_left(division.sampled(files))
        schema = dict(_SCHEMA)
        found = set().union(*kinds.values(), *map(_columns_of, self.records or ())) or _PAGE
        schema |= {name: pa.string() for name in ("html", "text", "metadata") if name in found}
        schema |= {"content": pa.binary()} if self.raw else {}
        limit = NEVER if self.files_per_partition is not None else size
        packed = [file for file in files if codec_of(file.path) is not None]
        pieces, reasons = self.pieces(packed, limit, None, damaged)
        by_path = damaged.examine(packed, lambda file: self._at_records(file, pieces))
        by_path |= damaged.examine(
            [file for file in files if file not in packed], lambda file: self._plain_pieces(file, limit)
        )
        ordered = [piece for file in files for piece in by_path.get(file.path, ())]
        return self.divided(files, ordered, pa.schema(schema.items()), size, reasons, damaged)

    def _kinds(self, file: File) -> set[str]:
        """The columns of documents that the first records of a file may have."""
        kinds: set[str] = set()
        good = False
        wanted = replace(self, fields=None)
        found = wanted.rows(Piece(file.path, 0, file.size), frozenset(), None)
        for count, row in enumerate(found):
            if isinstance(row, Row):
                good = True
                kinds |= _columns_of(str(row.values["type"]))
            elif count == 0 and row.damaged_file is not None and file.size and row.error.startswith("not a record"):
                raise DamagedFile(
                    f"{file.path} is not a WARC or ARC file, or is damaged: {row.error}", hint="exclude it"
                )
            if count >= 32 and good:
                break
        return kinds

    def _at_records(self, file: File, pieces: Sequence[Piece]) -> list[Piece]:
        """The pieces of a compressed file, joined where one does not begin with a record."""
        result: list[Piece] = []
        with open_file(file.path, self.storage_options) as opened:
            for piece in pieces:
                if piece.path != file.path:
                    continue
                if result and not self._begins_with_record(opened, piece):
                    before = result.pop()
                    piece = replace(before, stop=piece.stop, size=before.size + piece.size)
                result.append(piece)
        return result

    def _begins_with_record(self, file: IO[bytes], piece: Piece) -> bool:
        first = next(iter(self.chunks(file, piece, _READ_BYTES)), None)
        return isinstance(first, Chunk) and _is_record(first.data.lstrip(b"\r\n"))

    def _plain_pieces(self, file: File, blocksize: int) -> list[Piece]:
        """Ranges of whole records; of a large file, all headers are read."""
        starts = [0]
        if file.size > blocksize and is_local(file.path):
            whole = Piece(file.path, 0, file.size)
            counted = replace(self, records=RECORD_TYPES)
            for row in counted.rows(whole, frozenset(), None):
                position = int(row.address.rpartition(":")[2]) if isinstance(row, Failure) else row.position
                if position - starts[-1] >= blocksize and isinstance(row, Row):
                    starts.append(position)
        stops = [*starts[1:], file.size]
        return [Piece(file.path, start, stop, stop - start) for start, stop in zip(starts, stops, strict=True)]

    # ----------------------------------------------------------------------------------------------------------- reading

    def rows(self, piece: Piece, wanted: frozenset[str] | None, reading: Reading | None) -> Iterator[Row | Failure]:
        if piece.start == piece.stop:
            return
        with open_file(piece.path, self.storage_options) as file:
            position: int | None = piece.start
            while position is not None:
                part = replace(piece, start=position)
                plain = file if codec_of(piece.path) is None else None
                stream = _Stream(self.stream_of(file, part, reading), plain)
                position, failed = None, ""
                try:
                    for each in self._records(stream, piece.path, wanted, reading):
                        failed = each.address.rpartition(":")[0] if isinstance(each, Failure) and stream.damaged else ""
                        yield each
                except StreamDamage as damage:
                    if damage.place != failed:  # the record of a member whose checksum is wrong has failed already
                        yield bad_record(self.name, damage.place, damage.position, damage.error, damaged=piece.path)
                    position = self._next_record(file, part, damage)

    def _next_record(self, file: IO[bytes], piece: Piece, damage: StreamDamage) -> int | None:
        """Where to continue after damage; None if nothing is left of the piece."""
        codec = codec_of(piece.path)
        if codec is None:
            return _find_plain(file, damage.position + 1, piece.stop)
        starts = magic_numbers(file, codec, frame_start(damage.place, piece.path) + 1, piece.stop)
        return next((start for start in starts if self._begins_with_record(file, replace(piece, start=start))), None)

    def _records(
        self, stream: _Stream, path: str, wanted: frozenset[str] | None, reading: Reading | None
    ) -> Iterator[Row | Failure]:
        most, types = self.most_bytes(reading), frozenset(self.records or self.default_records)
        while stream.at_record():
            place, position = stream.here()
            try:
                head = _read_head(stream)
                chosen = head.type in types and (self.records is not None or not head.is_remark)
                kept = _needed(wanted) if chosen and head.length <= most else 0
                block = stream.block(head, kept)
                stream.finish(head)
            except _NotARecord as damage:
                if stream.is_plain:
                    raise StreamDamage(place, position, damage.error) from None
                yield bad_record(self.name, place, position, damage.error, damaged=path)
                if not stream.go_to(_BEGINNING, _LONGEST_BEGINNING):
                    return
                continue
            except StreamDamage as damage:
                raise StreamDamage(place, position, damage.error) from None
            if not chosen:
                continue
            if stream.damaged:
                error = f"{place} does not match its checksum"
                yield bad_record(self.name, place, position, error, damaged=path)
            elif head.length > most:
                error = f"the record has {head.length:,} bytes, more than the limit of {most:,} that --memory allows"
                yield bad_record(self.name, place, position, error)
            else:
                try:
                    yield Row(place, position, self._values(head, block, wanted, most, place, position))
                except BadBody as error:
                    yield bad_record(self.name, place, position, str(error))

    def _values(
        self, head: _Head, block: bytes, wanted: frozenset[str] | None, most: int, place: str, position: int
    ) -> dict[str, object]:
        fields = head.fields
        name = place.rpartition("/")[2]
        values: dict[str, object] = {
            "id": fields.get("warc-record-id") or f"{name}:{position}",
            "url": (fields.get("warc-target-uri") or fields.get("uri") or "").strip("<>") or None,
            "date": fields.get("warc-date"),
            "type": head.type,
            "truncated": fields.get("warc-truncated"),
            "refers_to": fields.get("warc-refers-to") or fields.get("warc-refers-to-target-uri"),
            "mime": fields.get("warc-identified-payload-type"),
        }
        content_type = fields.get("content-type")
        reply = parse_reply(block) if head.type in ("response", "revisit") else None
        if reply is not None:
            content_type = reply.headers.get("content-type")
            values["status"] = reply.status
        values["mime"] = values["mime"] or _mime(content_type)
        if head.type == "revisit" or not block or _needed(wanted) <= _MOST_HEAD:
            return values
        body = decoded_body(reply or Reply(None, {}, block), most)
        if self.raw:
            values["content"] = body
        if head.type == "conversion":
            values |= {"text": body.decode("utf-8", "replace"), "charset": "utf-8"}
        elif head.type in ("metadata", "warcinfo", "request"):
            values["metadata"] = body.decode("utf-8", "replace").strip()
        elif _may_be_text(str(values["mime"] or "")) and is_text(body):
            text, charset = decode_page(body, content_type)
            column = "text" if values["mime"] == "text/plain" else "html"
            values |= {column: text, "charset": charset}
        return values


def _columns_of(record_type: str) -> set[str]:
    return _DOCUMENTS.get(record_type, _PAGE)


def _may_be_text(mime: str) -> bool:
    return not mime or mime in _TEXTS or mime.startswith("text/")


def _needed(wanted: frozenset[str] | None) -> int:
    """How many bytes of a block are read to make columns of it: all, those of the headers, or none."""
    needed = _BODIES if wanted is None else _BODIES & wanted
    return MAX_BYTES if needed - _OF_HEADERS else _MOST_HEAD if needed else 0


def _mime(content_type: str | None) -> str | None:
    return (content_type or "").partition(";")[0].strip().lower() or None


# ------------------------------------------------------------------------------------------------------ heads of records


@dataclass(frozen=True, slots=True)
class _Head:
    type: str
    length: int
    fields: dict[str, str]
    is_arc: bool = False

    @property
    def is_remark(self) -> bool:
        """Whether a metadata record says something about a fetch; that of a WAT file is JSON."""
        return self.type == "metadata" and "json" not in self.fields.get("content-type", "")


def _is_record(data: bytes) -> bool:
    return _MAGIC.match(data) is not None or _ARC.match(data) is not None


class _NotARecord(StreamDamage):
    """Bytes that are no record, or whose length is wrong; what follows them can be read."""

    def __init__(self, error: str) -> None:
        super().__init__("", 0, error)


def _read_head(stream: _Stream) -> _Head:
    """The head of the record at the position of the stream."""
    data = stream.peek(16)
    if _MAGIC.match(data):
        end = stream.find(_HEAD_END, _MOST_HEAD)
        if end is None:
            stream.skip(1)
            raise _NotARecord("a record whose header does not end")
        fields = parse_headers(stream.read(end).split(b"\n")[1:])
        length = fields.get("content-length", "")
        if not length.isdecimal() or len(length) > 18:
            raise _NotARecord(f"a record with the Content-Length {length!r:.50}")
        return _Head(fields.get("warc-type", "").lower(), int(length), fields)
    end = stream.find(_ARC, _MOST_HEAD, at_start=True)
    if end is None:
        raise _NotARecord("not a record of a WARC or ARC file")
    url, *rest = stream.read(end).decode("utf-8", "replace").split()
    if len(rest) < 4 or not rest[-1].isdecimal():
        raise _NotARecord("an ARC record without a length")
    day = rest[1]
    date = (
        f"{day[:4]}-{day[4:6]}-{day[6:8]}T{day[8:10]}:{day[10:12]}:{day[12:14]}Z"
        if re.fullmatch(r"\d{14}", day)
        else None
    )
    fields = {"warc-target-uri": url, "content-type": rest[2]} | ({"warc-date": date} if date else {})
    kind = "warcinfo" if url.startswith("filedesc:") else "response" if url.startswith("http") else "resource"
    return _Head(kind, int(rest[-1]), fields, is_arc=True)


# ---------------------------------------------------------------------------------------------------------- the stream


class _Stream(ByteStream):
    """The records of a piece of a file, which is given if it is plain."""

    def __init__(self, chunks: Chunks, plain: IO[bytes] | None) -> None:
        super().__init__(chunks)
        self._plain = plain
        self._beginnings: list[int] = []
        """Where in the stream a member begins with a record."""

    @property
    def is_plain(self) -> bool:
        return self._plain is not None

    def at_record(self) -> bool:
        """Go to the next record; False if the piece ends before it."""
        while True:
            left = self.peek(4)
            if not left:
                return False
            skipped = len(left) - len(left.lstrip(b"\r\n"))
            if not skipped:
                break
            self.skip(skipped)
        self.damaged = False
        return self.is_mine()

    def block(self, head: _Head, kept: int) -> bytes:
        """Go past the block of a record, and return its first `kept` bytes.

        A wrong length must not cost more than the record: no other member is read, and little of a plain file.
        """
        if self._plain is not None and head.length >= _PROBED_BYTES:
            self._probe(self._plain, head)
        here = self._passed + self._at
        end = here + head.length
        parts: list[bytes] = []
        while here < end:
            if self._at >= len(self._data) and not self._pull():
                self._cut_off()
            stop = min([end, self._passed + len(self._data), *(at for at in self._beginnings if at >= here)])
            parts.append(self._data[self._at : self._at + min(stop - here, max(0, kept))])
            kept -= stop - here
            self._advance(stop - here)
            here = stop
            if here in self._beginnings and here < end:
                raise _NotARecord(_wrong_length(head))
        return b"".join(parts)

    def _probe(self, file: IO[bytes], head: _Head) -> None:
        """Check what follows a long record without reading it."""
        position = file.tell()
        end = self.here()[1] + head.length
        if end > file.seek(0, SEEK_END):
            self._cut_off()
        file.seek(end)
        follows = file.read(16)
        file.seek(position)
        if not _may_follow(head, follows):
            raise _NotARecord(_wrong_length(head))

    def finish(self, head: _Head) -> None:
        """Check that a record ends where its length says."""
        if not _may_follow(head, self.ahead(16)):
            raise _NotARecord(_wrong_length(head))

    def _mark(self, chunk: Chunk, index: int) -> None:
        super()._mark(chunk, index)
        if not self.is_plain and chunk.offset == 0:
            self._beginnings = [at for at in self._beginnings if at >= self._passed]
            if _BEGINNING.match(chunk.data, 0, chunk.size):
                self._beginnings.append(self._passed + index)


def _may_follow(head: _Head, follows: bytes) -> bool:
    """Whether a record ends before these bytes: before another, or nothing, or the two empty lines after every record.

    What is damaged behind the empty lines does not belong to the record.
    """
    rest = follows.lstrip(b"\r\n")
    if not rest or rest.startswith((b"WARC/", b"WARC"[: len(rest)])):
        return True
    if head.is_arc:
        return re.match(rb"[A-Za-z][A-Za-z0-9+.\-]{0,20}:", rest) is not None
    return follows.startswith(b"\r\n\r\n")


def _wrong_length(head: _Head) -> str:
    return f"the record is not {head.length:,} bytes long, as its Content-Length says"


def _find_plain(file: IO[bytes], begin: int, end: int) -> int | None:
    """The next place in a plain file, before `end`, at which a record seems to begin."""
    position, kept = begin - 1, b""  # the byte before matters
    file.seek(position)
    while position < end and (data := file.read(_READ_BYTES)):
        window = kept + data
        found = _BEGINNING.search(window, 0 if kept else 1)
        if found:
            place = position - len(kept) + found.start()
            return place if place < end else None
        kept = window[-_LONGEST_BEGINNING:]
        position += len(data)
    return None
