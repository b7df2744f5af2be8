"""Write WebDataset archives: tar files in which the members of a row share a key.

    part-000000.tar     0001.jpg 0001.txt 0001.json  0002.jpg ...

Bytes are written as they are, and headers contain no time and no user, so that the same rows give the same file.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from tamis.errors import ParameterError
from tamis.formats import media_kind
from tamis.media import LARGE_BYTES, is_media
from tamis.operators import Operator, Shard, ShardWriter, operator
from tamis.sinks.samples import Content, Sample, check_file_names, samples
from tamis.sinks.streams import ByteStream
from tamis.sinks.tables import TableSink
from tamis.sinks.writers import Writer
from tamis.sources.references import ReadMedia

KEY = "__key__"
_TEXTS = {"caption": "txt", "label": "cls"}
_TEXT_EXTENSION = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f.\\:*?\"<>|]")


@operator()
class WebDatasetWriter(TableSink):
    """Write WebDataset archives: one tar file per partition, or several of about `target_shard_size` or `rows_per_shard`.

    A row becomes members with one key: each media column a file with its extension (`0001.jpg`; `0001.left.jpg` for a column
    `left`), `caption` a `txt`, an integer `label` a `cls`, and all other columns a `json`. `members={"text": "txt"}` makes text
    files of other columns. Bytes are written unchanged; references are read first, and a row whose file cannot be read
    fails. Keys are those of column `__key__`, without characters that file names or the format do not allow; rows without
    one are named by a hash of their content. Rows of an archive that have the same key get numbers.

    >>> WebDatasetWriter("shards/", rows_per_shard=10_000).file_suffix
    '.tar'
    """

    rows_per_shard: int | None = None
    members: Mapping[str, str] | None = None

    suffix = ".tar"
    preload = ("tamis.kernels.json",)

    def parts(self) -> Sequence[Operator]:
        return (ReadMedia(columns=self.fields, leave_above=LARGE_BYTES), self)

    def check(self) -> None:
        super().check()
        if self.rows_per_shard is not None and self.rows_per_shard < 1:
            raise ParameterError(f"`rows_per_shard` of `{self.name}` must be at least 1, got {self.rows_per_shard}")
        given = self.members or {}
        for column, extension in given.items():
            if not _TEXT_EXTENSION.fullmatch(extension) or extension == "json" or media_kind(f"x.{extension}"):
                raise ParameterError(
                    f"`members` of `{self.name}` gives column `{column}` the extension {extension!r}",
                    hint='extensions of texts, in lower case and without the first dot: members={"text": "txt"}',
                )
            if list(given.values()).count(extension) > 1:
                raise ParameterError(f"`members` of `{self.name}` gives two columns the extension {extension!r}")

    @property
    def texts(self) -> dict[str, str]:
        """The extensions of columns that become text files."""
        given = dict(self.members or {})
        return {column: ext for column, ext in _TEXTS.items() if ext not in given.values()} | given

    def open_shard(self, folder: Path, stem: str, schema: pa.Schema) -> ShardWriter:
        return _Archives(folder, stem, self, schema)


class _Archives(Writer):
    """The archives of a partition."""

    def __init__(self, folder: Path, stem: str, sink: WebDatasetWriter, schema: pa.Schema) -> None:
        several = sink._target if sink._target is not None else sink.rows_per_shard
        super().__init__(folder, stem, sink.file_suffix, sink._selection, schema, several)
        self._size, self._most, self._compression = sink._target, sink.rows_per_shard, sink.compression
        self._texts = sink.texts
        self._stream: ByteStream | None = None
        self._names = _Keys()

    def _write(self, table: pa.Table) -> None:
        check_file_names([name for name in table.column_names if is_media(table.schema.field(name).type)], _part)
        for sample in samples(table, KEY, self._texts):
            if self._stream is None:
                self._stream = ByteStream(self._next_path(), self._compression)
                self._names = _Keys()
            self._add(sample, self._stream)
            self._rows += 1
            full = self._size is not None and self._stream.size >= self._size
            if full or (self._most is not None and self._rows >= self._most):
                self._finish()

    def _add(self, sample: Sample, stream: ByteStream) -> None:
        key = self._names.next(sample)
        for column, (data, extension, _) in sample.media.items():
            own = media_kind(f"x.{extension}") == column
            add_member(stream, f"{key}.{extension}" if own else f"{key}.{_part(column)}.{extension}", data)
            data.release()
        for extension, text in sample.texts.items():
            add_member(stream, f"{key}.{extension}", Content(pa.py_buffer(text)))
        fields = sample.fields
        if sample.key is not None and sample.key != key:  # so that the original key is not lost
            original = f'"{KEY}":{json.dumps(sample.key, ensure_ascii=False)}}}'.encode()
            fields = fields[:-1] + (b"," if fields != b"{}" else b"") + original
        if fields != b"{}" or not (sample.media or sample.texts):
            add_member(stream, f"{key}.json", Content(pa.py_buffer(fields)))

    def _finish(self) -> None:
        if self._stream is not None:
            self._stream.write(b"\0" * (2 * tarfile.BLOCKSIZE))
            self._shards.append(Shard(self._stream.path.name, self._rows, self._stream.close()))
            self._files += 1
            self._stream, self._rows = None, 0

    def _discard(self) -> None:
        if self._stream is not None:
            self._stream.abort()
            self._stream = None


def add_member(stream: ByteStream, name: str, data: Content) -> None:
    """Append a file to a tar archive."""
    stream.write(_header(name.encode("utf-8"), data.size))
    for piece in data.pieces():
        stream.write(piece)
    stream.write(b"\0" * (-data.size % tarfile.BLOCKSIZE))


_EMPTY = tarfile.TarInfo("").tobuf(tarfile.GNU_FORMAT)
_CHECKSUM = sum(_EMPTY) - sum(_EMPTY[124:136]) - sum(_EMPTY[148:156]) + 8 * 32


def _header(name: bytes, size: int) -> bytes:
    """The header of a member; `tarfile` takes ten times as long for it, and is used for long names and sizes from 8 GB on."""
    if len(name) > 100 or size >= 8**11:
        info = tarfile.TarInfo(name.decode())
        info.size = size
        return info.tobuf(tarfile.GNU_FORMAT, "utf-8")
    digits = b"%011o\0" % size
    checksum = b"%06o\0 " % (_CHECKSUM + sum(name) + sum(digits))
    return b"".join((name.ljust(100, b"\0"), _EMPTY[100:124], digits, _EMPTY[136:148], checksum, _EMPTY[156:]))


def _part(name: str) -> str:
    """A name as part of an extension."""
    return _UNSAFE.sub("_", name).replace("/", "_").lower()


class _Keys:
    """Names for the rows of an archive, each of which occurs once."""

    def __init__(self) -> None:
        self._used: dict[bytes, int] = {}  # by a hash of each key, the number to try for the next row that has it

    def next(self, sample: Sample) -> str:
        key = safe_key(sample.key or "") or sample.digest
        own = _hash(key)
        number = self._used.get(own)
        if number is None:
            self._used[own] = 1
            return key
        while (repeated := _hash(f"{key}-{number}")) in self._used:
            number += 1
        self._used[own] = number + 1
        self._used[repeated] = 1
        return f"{key}-{number}"


def _hash(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=8).digest()


def safe_key(key: str) -> str:
    """A key that is a relative path without dots; empty if nothing is left of it.

    >>> safe_key("/etc/../photos/cat.v2"), safe_key("..")
    ('etc/photos/cat_v2', '')
    """
    parts = [_UNSAFE.sub("_", part)[:100].strip() for part in key.split("/") if part not in (".", "..")]
    return "/".join(f"x{part}" if part.startswith("__") else part for part in parts[-8:] if part)
