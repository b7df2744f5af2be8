"""Read dumps of MediaWiki, such as those of Wikipedia: `enwiki-latest-pages-articles-multistream.xml.bz2`.

    siteinfo                      the first stream of a multistream dump: its name, its address, its namespaces
    <page>...</page> x 100        a stream of bz2, at which the file can be entered
    ...

Pages are cut out of the decoded bytes, so that a dump that ends in the middle gives all pages before.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import IO
from urllib.parse import quote

import pyarrow as pa

from tamis.batch import Failure
from tamis.errors import DamagedFile
from tamis.formats import codec_of
from tamis.operators import Layout, Piece, Reading, operator
from tamis.sources import partitions as division
from tamis.sources.bytestream import ByteStream, StreamDamage, frame_start
from tamis.sources.compression import magic_numbers
from tamis.sources.files import File, open_file
from tamis.sources.filesource import NEVER, DamagedFiles
from tamis.sources.lines import Chunk
from tamis.sources.records import RecordSource, Row, bad_record

_READ_BYTES = 262_144
_PAGE = re.compile(rb"<page>")
_END = re.compile(rb"</page>")
_FIELDS = {
    "id": re.compile(r"<id>(\d+)</id>"),
    "title": re.compile(r"<title>(.*?)</title>", re.DOTALL),
    "namespace": re.compile(r"<ns>(-?\d+)</ns>"),
    "date": re.compile(r"<timestamp>([^<]*)</timestamp>"),
    "redirect": re.compile(r'<redirect title="([^"]*)"'),
    "wikitext": re.compile(r"<text\b[^>]*?(?:/>|>(.*?)</text>)", re.DOTALL),
}
_BASE = re.compile(rb"<base>([^<]*)</base>")
_LANGUAGE = re.compile(rb'<mediawiki\b[^>]*xml:lang="([^"]{1,20})"')
_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("id", "title", "url", "date", "language", "redirect", "wikitext")]
    + [("namespace", pa.int32())]
)
_LONGEST_PAGE = 256_000_000


@operator()
class MediawikiReader(RecordSource):
    """Read dumps of MediaWiki (XML, plain or compressed), one row per page.

    Columns: `id`, `title`, `url`, `date`, `language`, `redirect`, `namespace`, `wikitext`; `WikitextExtract` makes text of it.
    `namespaces` selects pages, by default articles (0); redirects are rows only with `redirects=True`. A multistream dump is
    split at its bz2 streams, which are found by their first bytes and need no index; any other dump is one piece. A dump that
    is cut off is read up to there. Damage costs the rest of its stream, and a page that is larger than the memory allows fails.

    >>> MediawikiReader("enwiki-latest-pages-articles-multistream.xml.bz2").name
    'mediawiki_reader'
    """

    namespaces: Sequence[int] = (0,)
    redirects: bool = False

    format = "mediawiki"

    def layout(self, blocksize: int) -> Layout:
        size = self.block_bytes(blocksize)
        files, damaged = self.list_files(), DamagedFiles()
        damaged.examine(division.sampled(files), self._head)
        damaged.raise_if_nothing_is_left(division.sampled(files))
        whole = NEVER if self.files_per_partition is not None else size
        packed = [file for file in files if codec_of(file.path) is not None]
        pieces, reasons = self.pieces(packed, whole, None, damaged)
        joined = damaged.examine(packed, lambda file: self._at_pages(file, pieces))
        joined |= {file.path: [Piece(file.path, 0, file.size, file.size)] for file in files if file not in packed}
        ordered = [piece for file in files for piece in joined.get(file.path, ())]
        return self.divided(files, ordered, _SCHEMA, size, reasons, damaged)

    def _head(self, file: File) -> tuple[str, str | None]:
        """The address of pages, and the language, which the beginning of a dump says."""
        with open_file(file.path, self.storage_options) as opened:
            try:
                data = ByteStream(self.stream_of(opened, Piece(file.path, 0, file.size), None)).ahead(65_536)
            except StreamDamage as damage:
                raise DamagedFile(f"{file.path}: {damage.error}") from damage
        if file.size and b"<mediawiki" not in data:
            raise DamagedFile(f"{file.path} is not a dump of MediaWiki", hint="it begins with <mediawiki ...>")
        base, language = _BASE.search(data), _LANGUAGE.search(data)
        address = html.unescape(base[1].decode()).rpartition("/")[0] if base else ""
        return address, language[1].decode() if language else None

    def _at_pages(self, file: File, pieces: Sequence[Piece]) -> list[Piece]:
        """The pieces of a compressed dump, joined where one does not begin with a page."""
        result: list[Piece] = []
        with open_file(file.path, self.storage_options) as opened:
            for piece in pieces:
                if piece.path != file.path:
                    continue
                first = next(iter(self.chunks(opened, piece, _READ_BYTES)), None)
                begins = isinstance(first, Chunk) and first.data.lstrip().startswith(b"<page>")
                if result and not begins:
                    before = result.pop()
                    piece = replace(before, stop=piece.stop, size=before.size + piece.size)
                result.append(piece)
        return result

    def rows(self, piece: Piece, wanted: frozenset[str] | None, reading: Reading | None) -> Iterator[Row | Failure]:
        if piece.start == piece.stop:
            return
        base, language = self._head(File(piece.path, piece.stop, ""))
        with open_file(piece.path, self.storage_options) as file:
            position: int | None = piece.start
            while position is not None:
                part = replace(piece, start=position)
                stream = ByteStream(self.stream_of(file, part, reading))
                position = None
                try:
                    yield from self._pages(stream, piece.path, base, language, reading)
                except StreamDamage as damage:
                    start = frame_start(damage.place, piece.path)
                    if start >= piece.stop:
                        return  # the piece that begins there says so
                    yield bad_record(self.name, damage.place, damage.position, damage.error, damaged=piece.path)
                    position = self._next_stream(file, part, start + 1)

    def _pages(
        self, stream: ByteStream, path: str, base: str, language: str | None, reading: Reading | None
    ) -> Iterator[Row | Failure]:
        most = min(_LONGEST_PAGE, self.most_bytes(reading))
        while stream.go_to(_PAGE, len(b"<page>")) and stream.is_mine():
            place, position = stream.here()
            stream.damaged = False
            end = stream.find(_END, most)
            if end is None:
                if len(stream.peek(most)) < most:
                    yield bad_record(self.name, place, position, "the dump ends within the page", damaged=path)
                    return
                yield bad_record(
                    self.name, place, position, f"the page has more than the {most:,} bytes that --memory allows"
                )
                stream.skip(len(b"<page>"))
                continue
            data = stream.read(end)
            if stream.damaged:
                yield bad_record(self.name, place, position, f"{place} does not match its checksum", damaged=path)
                continue
            values = self._values(data.decode("utf-8", "replace"), base, language)
            if values is not None:
                yield Row(place, position, values)

    def _next_stream(self, file: IO[bytes], piece: Piece, after: int) -> int | None:
        """Where to continue after damage: at the next stream that can be decoded; None if nothing is left of the piece."""
        codec = codec_of(piece.path)
        assert codec is not None, "plain bytes are not damaged"
        for start in magic_numbers(file, codec, after, piece.stop):
            if isinstance(next(iter(self.chunks(file, replace(piece, start=start), _READ_BYTES)), None), Chunk):
                return start
        return None

    def _values(self, page: str, base: str, language: str | None) -> dict[str, object] | None:
        found = {name: match[1] for name, pattern in _FIELDS.items() if (match := pattern.search(page))}
        values: dict[str, object] = {name: html.unescape(text) for name, text in found.items() if text is not None}
        namespace = int(found.get("namespace", 0))
        if namespace not in self.namespaces or ("redirect" in values and not self.redirects):
            return None
        title = str(values.get("title", ""))
        path = quote(title.replace(" ", "_"), safe="/:(),'!*-._~")
        return values | {"namespace": namespace, "language": language, "url": f"{base}/{path}" if base else None}
