"""Digests of texts and other values, which exact deduplication compares."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Column
from tamis.errors import OperatorError
from tamis.kernels import digests as kernel
from tamis.media import is_media, read_bytes

_NULL_SEED, _VALUE_SEED, _ROW_SEED = 1, 0, 2
"""Different seeds, so that digests of nulls, values and rows of several columns do not collide."""


def text_buffers(column: Column, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The bytes and int64 offsets of a column of text, read-only; a null becomes an empty row."""
    kind = column.type
    if pa.types.is_null(kind):
        column = column.cast(pa.string())
    elif pa.types.is_dictionary(kind) or pa.types.is_string_view(kind):
        column = column.cast(pa.large_string())
    elif not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise OperatorError(f"`{name}` is {kind}, not text", hint="name a column of text, column=...")
    return byte_buffers(column)


def byte_buffers(column: Column) -> tuple[np.ndarray, np.ndarray]:
    """The bytes and int64 offsets of a column of strings or bytes."""
    if column.null_count:
        column = column.fill_null(
            b"" if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type) else ""
        )
    _, spans, text = column.buffers()
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    data = np.frombuffer(text, np.uint8) if text is not None and text.size else np.zeros(0, np.uint8)
    offsets = np.zeros(len(column) + 1, np.int64)
    if spans is not None and len(column):
        kind = np.int64 if wide else np.int32
        offsets[:] = np.frombuffer(spans, kind)[column.offset : column.offset + len(column) + 1]
    data.flags.writeable = offsets.flags.writeable = False  # always, so that kernels are compiled once
    return data, offsets


def comparable(batch: Batch, name: str) -> Column:
    """A column with values that can be compared: for media, a hash of the bytes of each row."""
    column = batch[name]
    if not is_media(column.type):
        return column
    found = [None if data is None else blake2b(data, digest_size=16).digest() for data in read_bytes(batch, name)]
    return pa.array(found, pa.binary())


def lengths_of(batch: Batch, name: str) -> np.ndarray:
    """The number of bytes of each value."""
    column = batch[name]
    if is_media(column.type):
        return np.array([0 if data is None else len(data) for data in read_bytes(batch, name)], np.int64)
    return np.diff(value_buffers(column, name)[1])


def value_buffers(column: Column, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The bytes and offsets of any flat column; numbers, dates and booleans become text."""
    kind = column.type
    if pa.types.is_nested(kind):
        raise OperatorError(
            f"`{name}` is {kind}, which cannot be compared",
            hint="name a column of text or numbers, column=...",
        )
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return byte_buffers(column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return byte_buffers(column)
    return byte_buffers(column.cast(pa.large_string()))


@dataclass(frozen=True)
class Normalization:
    """Differences that a comparison ignores."""

    ignore_case: bool = False
    ignore_whitespace: bool = False
    unicode: Literal["NFC", "NFKC"] | None = None

    @property
    def is_exact(self) -> bool:
        return not (self.ignore_case or self.ignore_whitespace or self.unicode)

    def apply(self, text: str) -> str:
        """The normalised text. For ASCII, `fold_ascii` gives the same result faster."""
        if self.unicode and not unicodedata.is_normalized(self.unicode, text):
            text = unicodedata.normalize(self.unicode, text)
        if self.ignore_case:
            text = text.casefold()
            if self.unicode and not unicodedata.is_normalized(self.unicode, text):
                text = unicodedata.normalize(self.unicode, text)
        return " ".join(text.split()) if self.ignore_whitespace else text


def digest_spans(data: np.ndarray, starts: np.ndarray, stops: np.ndarray, normalization: Normalization) -> np.ndarray:
    """uint64[spans, 2]: the digest of each span of text after normalisation."""
    out = np.empty((len(starts), 2), np.uint64)
    if normalization.is_exact or not len(starts):
        kernel.digest_spans(data, starts, stops, _VALUE_SEED, out)
        return out
    plain = _gathered(data, starts, stops)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(stops - starts)])
    is_ascii = np.empty(len(starts), np.bool_)
    kernel.ascii_rows(plain, offsets, is_ascii)
    folded, spans = np.empty(len(plain), np.uint8), np.empty(len(starts) + 1, np.int64)
    kernel.fold_ascii(
        plain, offsets, is_ascii, normalization.ignore_case, normalization.ignore_whitespace, folded, spans
    )
    kernel.digest_spans(folded, spans[:-1], spans[1:], _VALUE_SEED, out)
    others = np.flatnonzero(~is_ascii)
    if len(others):
        raw = plain.tobytes()
        texts = [
            normalization.apply(raw[offsets[i] : offsets[i + 1]].decode("utf-8", "replace")).encode() for i in others
        ]
        ends = np.cumsum(np.array([len(text) for text in texts], np.int64))
        found = np.empty((len(others), 2), np.uint64)
        joined = np.frombuffer(b"".join(texts), np.uint8)
        kernel.digest_spans(
            joined, np.concatenate([[0], ends[:-1]]).astype(np.int64), ends.astype(np.int64), _VALUE_SEED, found
        )
        out[others] = found
    return out


def _gathered(data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """The bytes of the spans, concatenated; no copy if they are adjacent."""
    if np.array_equal(starts[1:], stops[:-1]):
        return data[starts[0] : stops[-1]]
    return np.concatenate([data[start:stop] for start, stop in zip(starts, stops, strict=True)])


def digest_columns(columns: list[tuple[str, Column]], normalization: Normalization) -> tuple[np.ndarray, np.ndarray]:
    """(uint64[rows, 2] digest of each row, whether any of its values is not null).

    Several columns are digested separately and then together, so that ("ab", "c") differs from ("a", "bc") and null from "".
    """
    parts, known = [], np.zeros(len(columns[0][1]), np.bool_)
    for name, column in columns:
        data, offsets = value_buffers(column, name)
        digest = digest_spans(data, offsets[:-1], offsets[1:], normalization)
        null = column.is_null().to_numpy(zero_copy_only=False)
        digest[null] = _digest_of(b"", _NULL_SEED)
        known |= ~null
        parts.append(digest)
    if len(parts) == 1:
        return parts[0], known
    joined = np.ascontiguousarray(np.concatenate(parts, axis=1)).view(np.uint8).reshape(-1)
    width = 16 * len(parts)
    starts = np.arange(0, len(joined), width, dtype=np.int64)
    out = np.empty((len(known), 2), np.uint64)
    kernel.digest_spans(joined, starts, starts + width, _ROW_SEED, out)
    return out, known


def _digest_of(data: bytes, seed: int) -> np.ndarray:
    out = np.empty((1, 2), np.uint64)
    kernel.digest_spans(
        np.frombuffer(data, np.uint8), np.zeros(1, np.int64), np.array([len(data)], np.int64), seed, out
    )
    return out[0]
