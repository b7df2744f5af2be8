"""Read archives of documents: zip and tar files, and those in which arXiv distributes the sources of papers.

docs.zip, docs.tar.gz      one row per member
arXiv_src_2401_001.tar     one row per submission, which is a compressed file or a compressed archive itself
"""

from __future__ import annotations

import fnmatch
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import pyarrow as pa

from tamis.batch import Failure
from tamis.errors import DamagedFile, ParameterError
from tamis.formats import codec_of, format_of
from tamis.operators import Layout, Piece, Reading, operator
from tamis.parameters import parse_bytes
from tamis.segments import split_segment
from tamis.sources import zip as zips
from tamis.sources.compression import TYPICAL_RATIO
from tamis.sources.files import File, is_local, list_files, local_path, open_file
from tamis.sources.filesource import DamagedFiles
from tamis.sources.jsonmedia import MEDIA
from tamis.sources.records import RecordSource, Row, bad_record
from tamis.sources.tar import END, ByteWindow, Member, TarDamage, leads_out, members
from tamis.sources.webdataset import decoded

_SCHEMA = pa.schema([("document", MEDIA), ("path", pa.string()), ("archive", pa.string()), ("size", pa.int64())])
_LEFT_BY_SYSTEMS = re.compile(r"(?:.*/)?(?:__MACOSX/.*|\._[^/]*|\.DS_Store|Thumbs\.db|desktop\.ini)", re.DOTALL)
"""Members that hold settings of a file browser."""
_SMALL = 1_000_000
"""Bytes that may expand as much as they like."""
_NEW_ID = re.compile(r"\d{4}\.\d{4,5}(?:v\d+)?")
_OLD_ID = re.compile(r"([a-z][a-z-]*(?:\.[A-Z]{2})?)(\d{7}(?:v\d+)?)")


class _BadMember(Exception):
    """Why the row of a member fails."""


@operator()
class ArchiveReader(RecordSource):
    """Read zip and tar archives (also compressed) of documents, one row per member that is a file.

    Columns: `document`, which steps such as `DocumentExtract` read, `path` (the name of the member), `archive` and `size`. Rows
    refer to bytes of the archive where these are not compressed, and hold them otherwise. `names` selects members:
    `names=["*.pdf", "*.html"]`. Large archives are split between members; compressed tar files are not.

    A member fails if it is a link or a device, leads out of the archive (`/`, `..`), is encrypted or damaged, is larger than
    `max_member_bytes`, or, if it has more than 1 MB, expands more than `max_expansion` times. A zip file whose members overlap,
    so that they expand more than deflate can, fails as a whole. A truncated tar file is read up to its end.

    >>> ArchiveReader("docs/*.zip", names=["*.pdf"]).name
    'archive_reader'
    """

    names: Sequence[str] | None = None
    max_member_bytes: int | str = "256MB"
    max_expansion: float = 250.0

    format = "zip"
    other_formats = ("tar", "zip")
    rows_are_members = True

    def check(self) -> None:
        super().check()
        if parse_bytes(self.max_member_bytes) < 1 or not self.max_expansion >= 1:
            raise ParameterError(f"`max_member_bytes` and `max_expansion` of `{self.name}` must be at least 1")

    def list_files(self) -> list[File]:
        list_files(self.file_paths, None, self.storage_options)  # raises if a file is listed twice
        paths = [self.file_paths] if isinstance(self.file_paths, (str, Path)) else list(self.file_paths)
        return [file for each in paths for file in self._listed(str(each))]

    def _listed(self, path: str) -> list[File]:
        found = list_files(path, None, self.storage_options)
        archives = [file for file in found if format_of(file.path) in self.other_formats]
        return archives if len(found) > 1 and archives else found  # a file that is named is read whatever its suffix

    # ------------------------------------------------------------------------------------------------------ the layout

    def layout(self, blocksize: int) -> Layout:
        size = self.block_bytes(blocksize)
        files, damaged = self.list_files(), DamagedFiles()
        divided = damaged.examine(files, lambda file: self._pieces(file, size))
        damaged.raise_if_nothing_is_left(files)
        pieces = [piece for found in divided.values() for piece in found]
        return self.divided(files, pieces, self.columns_of_rows(), size, {}, damaged)

    def columns_of_rows(self) -> pa.Schema:
        return _SCHEMA

    def _pieces(self, file: File, blocksize: int) -> list[Piece]:
        if not file.size:
            return [Piece(file.path, 0, 0, 0)]
        with open_file(file.path, self.storage_options) as opened:
            if _is_zip(opened):
                return self._zip_pieces(file, opened, blocksize)
            codec = codec_of(file.path)
            if codec is not None:
                self._check_tar(file)
                return [Piece(file.path, 0, file.size, int(file.size * TYPICAL_RATIO[codec]))]
            starts = [0]
            try:
                for number, member in enumerate(members(ByteWindow.of(opened), file.size)):
                    if number and (file.size <= blocksize or self._is_one_piece(file)):
                        break
                    if member.kind != END and member.header - starts[-1] >= blocksize:
                        starts.append(member.header)
            except TarDamage as damage:
                if damage.position == 0 and damage.member is None:
                    raise DamagedFile(
                        f"{file.path} is no zip or tar archive, or is damaged: {damage.message}"
                    ) from damage
        stops = [*starts[1:], file.size]
        return [Piece(file.path, start, stop, stop - start) for start, stop in zip(starts, stops, strict=True)]

    def _is_one_piece(self, file: File) -> bool:
        return self.files_per_partition is not None or not is_local(file.path)

    def _check_tar(self, file: File) -> None:
        with open_file(file.path, self.storage_options) as opened:
            window = self._window(opened, Piece(file.path, 0, file.size), None)
            try:
                next(members(window), None)
            except TarDamage as damage:
                if damage.position == 0:
                    raise DamagedFile(f"{file.path} is no tar archive, or is damaged: {damage.message}") from damage

    def _zip_pieces(self, file: File, opened: IO[bytes], blocksize: int) -> list[Piece]:
        """Ranges of the directory."""
        try:
            directory = zips.find_directory(opened)
            pieces: list[Piece] = []
            start, held, total = directory.start, 0, 0
            for entry in zips.entries(opened, directory):
                held += entry.size
                total += entry.size
                if held >= blocksize and self.files_per_partition is None:
                    pieces.append(Piece(file.path, start, entry.stop, held))
                    start, held = entry.stop, 0
        except zips.ZipDamage as damage:
            raise DamagedFile(f"{file.path} cannot be read: {damage}", hint="copy it again, or exclude it") from damage
        if total > zips.MOST_EXPANSION * file.size:
            raise DamagedFile(
                f"{file.path} has {file.size:,} bytes and says that it holds {total:,}: more than compression can achieve",
                hint="it was made to exhaust programs that unpack it; exclude it",
            )
        if start < directory.stop or not pieces:
            pieces.append(Piece(file.path, start, directory.stop, held))
        return pieces

    # ----------------------------------------------------------------------------------------------------------- reading

    def rows(self, piece: Piece, wanted: frozenset[str] | None, reading: Reading | None) -> Iterator[Row | Failure]:
        if piece.start == piece.stop:
            return
        needed = wanted is None or "document" in wanted
        with open_file(piece.path, self.storage_options) as file:
            if _is_zip(file):
                yield from self._zip_rows(file, piece, needed, reading)
            else:
                yield from self._tar_rows(file, piece, needed, reading)

    def values_of(self, name: str) -> dict[str, object]:
        """What the name of a member says, as columns."""
        return {}

    def _wants(self, name: str) -> bool:
        if _LEFT_BY_SYSTEMS.fullmatch(name):
            return False
        return self.names is None or any(fnmatch.fnmatchcase(name.lower(), each.lower()) for each in self.names)

    def _row(self, piece: Piece, position: int, name: str, size: int, document: dict[str, object] | None) -> Row:
        values = {"document": document, "path": name, "archive": piece.path, "size": size, **self.values_of(name)}
        return Row(piece.path, position, values, size if document is not None else 0)

    def _check_size(self, size: int, most: int) -> None:
        limit = parse_bytes(self.max_member_bytes)
        if size > min(limit, most):
            what = "`max_member_bytes`" if limit <= most else "--memory"
            raise _BadMember(f"has {size:,} bytes, more than the {min(limit, most):,} that {what} allows")

    # -- zip

    def _zip_rows(
        self, file: IO[bytes], piece: Piece, needed: bool, reading: Reading | None
    ) -> Iterator[Row | Failure]:
        most = self.most_bytes(reading)
        try:
            directory = zips.find_directory(file)
            for entry in zips.entries(file, directory, piece.start, piece.stop):
                if entry.is_folder or not self._wants(entry.name):
                    continue
                try:
                    self._check_entry(entry, most)
                    document = _zip_document(file, piece, entry) if needed else None
                    yield self._row(piece, entry.place, entry.name, entry.size, document)
                except (_BadMember, zips.BadEntry) as error:
                    yield _failure(self.name, piece, entry.place, entry.name, error)
        except zips.ZipDamage as damage:
            yield bad_record(self.name, piece.path, piece.start, str(damage), damaged=piece.path)

    def _check_entry(self, entry: zips.Entry, most: int) -> None:
        if leads_out(entry.name):
            raise _BadMember("leads out of the archive; names with `..` or a leading `/` are not read")
        if entry.is_link:
            raise _BadMember("is a symbolic link")
        if entry.is_encrypted:
            raise _BadMember("is encrypted")
        self._check_size(entry.size, most)
        if entry.size > _SMALL and entry.size > self.max_expansion * max(1, entry.packed):
            raise _BadMember(f"expands {entry.size // max(1, entry.packed):,} times, more than `max_expansion` allows")

    # -- tar

    def _window(self, file: IO[bytes], piece: Piece, reading: Reading | None) -> ByteWindow:
        if codec_of(piece.path) is None:
            return ByteWindow.of(file, piece.start)
        damaged = reading.damaged if reading is not None else frozenset()
        on_damage = reading.on_damage if reading is not None else None
        return ByteWindow.over(decoded(self.chunks(file, piece, 2**16, damaged=damaged, on_damage=on_damage)))

    def _tar_rows(
        self, file: IO[bytes], piece: Piece, needed: bool, reading: Reading | None
    ) -> Iterator[Row | Failure]:
        most = self.most_bytes(reading)
        packed = codec_of(piece.path) is not None
        size = None if packed else file.seek(0, io.SEEK_END)
        window = self._window(file, piece, reading)
        try:
            for member in members(window, size):
                if not packed and member.header >= piece.stop:
                    return
                if member.kind in ("folder", END) or not self._wants(member.name.removeprefix("./")):
                    continue
                try:
                    self._check_member(member, most)
                    document = _tar_document(window, piece, member) if needed else None
                    yield self._row(piece, member.header, member.name.removeprefix("./"), member.size, document)
                except _BadMember as error:
                    yield _failure(self.name, piece, member.header, member.name, error)
        except TarDamage as damage:
            yield bad_record(self.name, piece.path, damage.position, damage.message, damaged=piece.path)

    def _check_member(self, member: Member, most: int) -> None:
        if member.kind != "file":
            raise _BadMember(f"is a {member.kind}")
        if leads_out(member.name):
            raise _BadMember("leads out of the archive; names with `..` or a leading `/` are not read")
        self._check_size(member.size, most)


def _zip_document(file: IO[bytes], piece: Piece, entry: zips.Entry) -> dict[str, object]:
    if entry.method == zips.STORED and entry.packed == entry.size and is_local(piece.path):
        return _reference(piece.path, zips.content_start(file, entry), entry.size, entry.name)
    return {"bytes": zips.content(file, entry), "path": entry.name}


def _tar_document(window: ByteWindow, piece: Piece, member: Member) -> dict[str, object]:
    if codec_of(piece.path) is None and is_local(piece.path):
        return _reference(piece.path, member.start, member.size, member.name)
    data = window.read(member.size)
    if len(data) < member.size:
        raise _BadMember("is cut off: the archive ends within it")
    return {"bytes": data, "path": member.name}


def _failure(step: str, piece: Piece, position: int, name: str, error: Exception) -> Failure:
    return bad_record(step, piece.path, position, f"member {name!r:.200} {error}")


def _is_zip(file: IO[bytes]) -> bool:
    """Whether the first bytes are those of a zip archive, which may be empty."""
    file.seek(0)
    start = file.read(4)
    file.seek(0)
    return start in (b"PK\3\4", b"PK\5\6")


def _reference(path: str, start: int, size: int, name: str) -> dict[str, object]:
    shown = "" if split_segment(name)[1] is not None else f"#{name}"  # a name that looks like a part in time
    return {"bytes": None, "path": f"{Path(local_path(path)).absolute()}@{start}+{size}{shown}"}


@operator()
class ArxivReader(ArchiveReader):
    """Read the archives in which arXiv distributes sources (`arXiv_src_2401_001.tar`), one row per submission.

    Columns: those of `ArchiveReader`, `id` (`2401.00001`, `hep-th/9901001`), `url`, and `date`, the month of the submission.
    Column `document` is what arXiv has: a compressed TeX file, a compressed tar file of all files of the paper, or a PDF.
    `LatexExtract` makes text of the first two.

    >>> ArxivReader("arxiv/*.tar").name
    'arxiv_reader'
    """

    other_formats = ("tar", "zip")

    def columns_of_rows(self) -> pa.Schema:
        extra = [(name, pa.string()) for name in ("id", "url", "date")]
        return pa.schema([*extra, *_SCHEMA])

    def values_of(self, name: str) -> dict[str, object]:
        return arxiv_id(name)


def arxiv_id(name: str) -> dict[str, object]:
    """The identifier, address and month of a submission, by the name of its file.

    >>> arxiv_id("0001/hep-th0001001.gz")
    {'id': 'hep-th/0001001', 'url': 'https://arxiv.org/abs/hep-th/0001001', 'date': '2000-01'}
    """
    stem = re.sub(r"\.(?:tar\.gz|tgz|gz|pdf|tex|html|ps)$", "", name.rpartition("/")[2], flags=re.IGNORECASE)
    if _NEW_ID.fullmatch(stem):
        found, month = stem, stem[:4]
    elif old := _OLD_ID.fullmatch(stem):
        found, month = f"{old[1]}/{old[2]}", old[2][:4]
    else:
        return {}
    century = "19" if month[:2] >= "91" else "20"
    return {"id": found, "url": f"https://arxiv.org/abs/{found}", "date": f"{century}{month[:2]}-{month[2:]}"}
