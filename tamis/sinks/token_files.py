"""Files of tokens in the formats of trainers.

    megatron    part-000000.bin  .idx              Megatron-LM's IndexedDataset: an index of sequences and documents
    nanogpt     part-000000.bin                    numbers alone, as nanoGPT maps them
    olmo        part-000000.npy  .csv.gz           numbers alone, and where each document begins and ends (dolma)
    datatrove   part-000000.ds   .ds.index  .ds.metadata   numbers, ends of documents, tokenizer and count
    arrow       part-000000.arrow                  a list of numbers per sequence, and the sizes of its documents

Numbers are little-endian: 16 bits where the vocabulary fits, else 32. With loss masks, a file `.mask` (`.ds.loss` in datatrove)
has a byte per token: 0 for padding.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence as Items
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from tamis.errors import SinkError
from tamis.sinks.packing import Sequence
from tamis.sinks.streams import ByteStream

MEGATRON_MAGIC, MEGATRON_VERSION = b"MMIDIDX\x00\x00", 1
MEGATRON_TYPES = {np.dtype("<u2"): 8, np.dtype("<i4"): 4}
"""Codes of Megatron-LM's DType."""


ARROW_TOKENS = 1 << 20
"""Tokens in a record batch."""


class TokenFile:
    """A file of tokens with the files that belong to it; its first path is that of the tokens."""

    suffix: ClassVar[str] = ".bin"
    mask_suffix: ClassVar[str] = ".mask"
    padded: ClassVar[bool] = True
    """Whether sequences are filled up to their length, since the file does not say where they end."""

    def __init__(self, path: Path, tokenizer: str, vocabulary: int, pad: int | None, length: int | None) -> None:
        self.path, self.tokenizer = path, tokenizer
        self.dtype = self.type_for(vocabulary)
        self._pad, self._length = pad, length
        self._tokens = ByteStream(path, None)
        self._mask: ByteStream | None = None
        if length is not None and self.padded:
            self._mask = ByteStream(path.with_name(path.name + self.mask_suffix), None)
        self.count = 0
        """Tokens, with padding."""

    @staticmethod
    def type_for(vocabulary: int) -> np.dtype:
        return np.dtype("<u2") if vocabulary <= 1 << 16 else np.dtype("<u4")

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read: trainers map files into memory, which an empty one cannot be."""
        return self.count == 0

    @property
    def paths(self) -> list[Path]:
        """All files, the one with the tokens first."""
        return [self.path, *([self._mask.path] if self._mask is not None else []), *self.other_paths()]

    def other_paths(self) -> list[Path]:
        return []

    def add(self, sequence: Sequence, names: Items[str | None]) -> None:
        """Append a sequence; `names` are those of its documents, where they are known."""
        ids = sequence.ids
        if self._mask is not None:
            assert self._length is not None
            assert self._pad is not None
            self._mask.write(np.repeat(np.array([1, 0], np.uint8), [len(ids), self._length - len(ids)]).tobytes())
            ids = np.concatenate([ids, np.full(self._length - len(ids), self._pad, ids.dtype)])
        self._tokens.write(ids.astype(self.dtype).tobytes())
        self.index(sequence, self.count, names)
        self.count += len(ids)

    def index(self, sequence: Sequence, start: int, names: Items[str | None]) -> None:
        """Note where the documents of a sequence are that begins at a token."""

    def close(self) -> list[tuple[Path, int]]:
        """Sync all files; their paths and sizes."""
        closed = [(stream.path, stream.close()) for stream in (self._tokens, self._mask) if stream is not None]
        return closed + self.close_others()

    def close_others(self) -> list[tuple[Path, int]]:
        return []

    def abort(self) -> None:
        """Delete all files."""
        for stream in (self._tokens, self._mask):
            if stream is not None:
                stream.abort()
        for path in self.other_paths():
            path.unlink(missing_ok=True)


def _written(path: Path, *parts: bytes, compression: str | None = None) -> tuple[Path, int]:
    stream = ByteStream(path, compression)
    for part in parts:
        stream.write(part)
    return path, stream.close()


class MegatronFile(TokenFile):
    """Megatron-LM's pair of files. With packing, a sequence of the trainer is a document of several sequences."""

    padded = False

    def __init__(self, path: Path, tokenizer: str, vocabulary: int, pad: int | None, length: int | None) -> None:
        super().__init__(path, tokenizer, vocabulary, pad, length)
        self._sizes: list[np.ndarray] = []
        self._documents = [0]

    @staticmethod
    def type_for(vocabulary: int) -> np.dtype:
        return np.dtype("<u2") if vocabulary < 65500 else np.dtype("<i4")  # as Megatron-LM's own tools choose

    def other_paths(self) -> list[Path]:
        return [self.path.with_suffix(".idx")]

    def index(self, sequence: Sequence, start: int, names: Items[str | None]) -> None:
        self._sizes.append(sequence.sizes)
        self._documents.append(self._documents[-1] + len(sequence.sizes))

    def close_others(self) -> list[tuple[Path, int]]:
        sizes = np.concatenate(self._sizes) if self._sizes else np.empty(0, np.int64)
        if len(sizes) and sizes.max() >= 1 << 31:
            raise SinkError("Megatron's format cannot hold a document of 2**31 tokens or more")
        pointers = (np.cumsum(sizes) - sizes) * self.dtype.itemsize
        head = struct.pack("<QBQQ", MEGATRON_VERSION, MEGATRON_TYPES[self.dtype], len(sizes), len(self._documents))
        arrays = (sizes.astype("<i4"), pointers.astype("<i8"), np.array(self._documents, "<i8"))
        return [_written(self.other_paths()[0], MEGATRON_MAGIC, head, *(array.tobytes() for array in arrays))]


class NanoGptFile(TokenFile):
    """Numbers alone."""


class OlmoFile(TokenFile):
    """Numbers alone in a file named .npy, and a table with start, end, id, source file and number of each document."""

    suffix = ".npy"

    def __init__(self, path: Path, tokenizer: str, vocabulary: int, pad: int | None, length: int | None) -> None:
        super().__init__(path, tokenizer, vocabulary, pad, length)
        self._lines: list[str] = []

    def other_paths(self) -> list[Path]:
        return [self.path.with_suffix(".csv.gz")]

    def index(self, sequence: Sequence, start: int, names: Items[str | None]) -> None:
        for size, name in zip(sequence.sizes.tolist(), names, strict=True):
            quoted = '"' + (name or "").replace('"', '""') + '"'
            self._lines.append(f"{start},{start + size},{quoted},{self.path.name},{len(self._lines)}\n")
            start += size

    def close_others(self) -> list[tuple[Path, int]]:
        lines = "".join(self._lines).encode("utf-8", "replace")
        return [_written(self.other_paths()[0], lines, compression="gz")]


class DatatroveFile(TokenFile):
    """datatrove's tokens, the ends of its documents, and a note about the tokenizer."""

    suffix = ".ds"
    mask_suffix = ".loss"

    def __init__(self, path: Path, tokenizer: str, vocabulary: int, pad: int | None, length: int | None) -> None:
        super().__init__(path, tokenizer, vocabulary, pad, length)
        self._ends: list[np.ndarray] = []

    def other_paths(self) -> list[Path]:
        return [self.path.with_name(f"{self.path.name}.{each}") for each in ("index", "metadata")]

    def index(self, sequence: Sequence, start: int, names: Items[str | None]) -> None:
        ends = start + np.cumsum(sequence.sizes)
        if self._length is not None:
            ends[-1] = start + self._length  # padding belongs to the last document
        self._ends.append(ends)

    def close_others(self) -> list[tuple[Path, int]]:
        ends = np.concatenate(self._ends) if self._ends else np.empty(0, np.int64)
        index, metadata = self.other_paths()
        note = f"{self.tokenizer}|{self.dtype.itemsize}\n{self.count}\n{self.count:,} tokens"
        return [_written(index, ends.astype("<u8").tobytes()), _written(metadata, note.encode())]


class ArrowFile(TokenFile):
    """Lists of tokens in an Arrow file, a row per sequence. With packing, `sizes` has the number of tokens of each document."""

    suffix = ".arrow"
    padded = False

    def __init__(self, path: Path, tokenizer: str, vocabulary: int, pad: int | None, length: int | None) -> None:
        super().__init__(path, tokenizer, vocabulary, pad, length)
        names = ["input_ids", *(["sizes"] if length is not None else [])]
        self._schema = pa.schema([(name, pa.list_(pa.int32())) for name in names])
        self._waiting: list[Sequence] = []
        self._waiting_tokens = 0
        self._writer = pa.ipc.new_file(pa.PythonFile(_Sink(self._tokens), mode="w"), self._schema)

    @property
    def is_empty(self) -> bool:
        return False  # an empty list is a row

    def add(self, sequence: Sequence, names: Items[str | None]) -> None:
        self._waiting.append(sequence)
        self._waiting_tokens += len(sequence.ids)
        self.count += len(sequence.ids)
        if self._waiting_tokens >= ARROW_TOKENS:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            columns = [[each.ids for each in self._waiting], [each.sizes for each in self._waiting]]
            arrays = [_lists(parts) for parts in columns[: len(self._schema)]]
            self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))
        self._waiting, self._waiting_tokens = [], 0

    def close(self) -> list[tuple[Path, int]]:
        self._flush()
        self._writer.close()
        return super().close()


def _lists(parts: Items[np.ndarray]) -> pa.ListArray:
    offsets = np.cumsum([0, *map(len, parts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(parts).astype(np.int32)))


class _Sink:
    """A stream as Arrow writes to it; the stream is closed by its owner, who syncs it."""

    closed = False

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream

    def write(self, data: bytes) -> int:
        self._stream.write(bytes(data))
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


FORMATS: dict[str, type[TokenFile]] = {
    "megatron": MegatronFile,
    "nanogpt": NanoGptFile,
    "olmo": OlmoFile,
    "datatrove": DatatroveFile,
    "arrow": ArrowFile,
}
