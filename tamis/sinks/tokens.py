"""Write tokens in the formats of trainers: the last step of a corpus for pre-training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tamis.context import Context
from tamis.errors import ParameterError, SinkError
from tamis.operators import Operator, Resources, Shard, ShardWriter, Sink, operator
from tamis.sinks.packing import Packer
from tamis.sinks.packing import Sequence as Tokens
from tamis.sinks.token_files import FORMATS, TokenFile
from tamis.sinks.writers import Selection, Writer
from tamis.text.lists import check_files, identify_files
from tamis.text.token_ids import VOCABULARY, TokenIds, Vocabulary, find_token

IDS = "input_ids"
WITHOUT_TOKENIZER = 1 << 31
"""Ids that come from a column may be as large as int32 allows."""


@operator()
class TokenWriter(Sink):
    """Write the tokens of documents in the format of a trainer, one shard per partition.

    `format` is `megatron` (.bin and .idx), `nanogpt` (numbers alone), `olmo` (numbers alone, with a table of the documents),
    `datatrove` (.ds with an index) or `arrow` (lists of numbers). `tokenizer` is a `tokenizer.json` or a SentencePiece
    `.model`; without one, the column `input_ids` has the tokens. `end_token` follows every document; formats without an index
    of documents need one.

    With `sequence_length`, documents are packed into sequences of this many tokens: longer ones are cut, then each piece is put
    where the least space is left (Ding et al. 2024). In Megatron's format, a packed sequence is a document with a sequence
    for each piece; in Arrow files, `sizes` has the tokens of each piece; in the others, it is filled up with `pad_token` (by
    default `end_token`), and a mask marks what is padding.

    `tokens_per_shard` starts a new file after this many tokens; no file is written for documents without tokens alone. The
    report has the number of tokens, by the values of column `source` if it is given. To write lists of tokens as Parquet or
    Arrow, use `TokenIds` before another sink. Needs `tamis[text]`.

        TokenWriter("tokens/", tokenizer="tokenizer.json", end_token="<|endoftext|>", sequence_length=4096)
    """

    path: str | Path
    tokenizer: str | None = None
    format: Literal["megatron", "nanogpt", "olmo", "datatrove", "arrow"] = "megatron"
    end_token: str | None = None
    pad_token: str | None = None
    sequence_length: int | None = None
    tokens_per_shard: int | None = None
    source: str | None = None
    column: str = "text"
    mode: Literal["error", "overwrite", "resume"] = "resume"
    storage_options: Mapping[str, Any] | None = None

    preload = ("tamis.kernels.packing",)

    @property
    def folder(self) -> str:
        return str(self.path)

    @property
    def file_suffix(self) -> str:
        return FORMATS[self.format].suffix

    def reads(self) -> tuple[str, ...]:
        return (IDS,)

    def optional_reads(self) -> tuple[str, ...]:
        return ("id",)

    def without(self, column: str) -> str:
        return "name a `tokenizer` (--tokenizer), or use TokenIds in a step before"

    def parts(self) -> Sequence[Operator]:
        if self.tokenizer is None:
            return (self,)
        step = TokenIds(self.tokenizer, end_token=self.end_token, output=IDS, source=self.source, column=self.column)
        return (step, self)

    def check(self) -> None:
        if not str(self.path).strip():
            raise ParameterError(f"`path` of `{self.name}` is empty", hint="name the folder to write to")
        for name in ("sequence_length", "tokens_per_shard"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ParameterError(f"`{name}` of `{self.name}` must be at least 1, got {value}")
        if self.tokenizer is None:
            given = [name for name in ("end_token", "pad_token", "source") if getattr(self, name) is not None]
            if given:
                raise ParameterError(
                    f"`{self.name}` has no `tokenizer`, so it cannot use `{given[0]}`",
                    hint="name the tokenizer, or add the token to the column input_ids in a step before",
                )
            if self.sequence_length is not None and FORMATS[self.format].padded:
                raise ParameterError(
                    f"`{self.name}` needs a `tokenizer` to fill sequences in the format {self.format}",
                    hint='name the tokenizer and its `pad_token`, or write format="megatron"',
                )
            return
        check_files(self.name, [self.tokenizer])
        if self.format in ("nanogpt", "olmo") and self.end_token is None:
            raise ParameterError(
                f"the format {self.format} does not say where documents end, so `{self.name}` needs an `end_token`",
                hint='for example end_token="<|endoftext|>", a token of the tokenizer',
            )
        if self.sequence_length is not None and FORMATS[self.format].padded and not (self.pad_token or self.end_token):
            raise ParameterError(f"`{self.name}` needs a `pad_token` to fill sequences", hint="or an `end_token`")

    def identity(self) -> dict[str, Any]:
        return identify_files(super().identity(), [self.tokenizer] if self.tokenizer is not None else [])

    @property
    def resources(self) -> Resources:
        return Resources() if self.tokenizer is None else VOCABULARY.resources(self.tokenizer)

    def open(self, context: Context) -> _TokenShards:
        if self.tokenizer is None:
            return _TokenShards(self, WITHOUT_TOKENIZER, None)
        vocabulary = VOCABULARY.open(self.tokenizer, context)
        return _TokenShards(self, vocabulary.size, self._pad(vocabulary))

    def _pad(self, vocabulary: Vocabulary) -> int | None:
        named = "pad_token" if self.pad_token is not None else "end_token"
        token = getattr(self, named)
        return None if token is None else find_token(vocabulary, token, named, str(self.tokenizer))


@dataclass(frozen=True)
class _TokenShards:
    sink: TokenWriter
    vocabulary: int
    pad: int | None

    def open_shard(self, folder: Path, stem: str, schema: pa.Schema) -> ShardWriter:
        return _TokenShard(folder, stem, schema, self)


class _TokenShard(Writer):
    """The files of a partition."""

    def __init__(self, folder: Path, stem: str, schema: pa.Schema, shards: _TokenShards) -> None:
        sink = shards.sink
        selection = Selection(None, {})
        super().__init__(folder, stem, sink.file_suffix, selection, schema, sink.tokens_per_shard)
        self._sink, self._shards_of = sink, shards
        self._packer = Packer(sink.sequence_length)
        self._file: TokenFile | None = None

    def _write(self, table: pa.Table) -> None:
        ids = _combined(table.column(IDS))
        names: list[str | None] = [None] * len(ids)
        if "id" in table.column_names and self._sink.sequence_length is None:
            names = [None if value is None else str(value) for value in table.column("id").to_pylist()]
        for row in range(len(ids)):
            tokens = ids[row].values
            found = np.empty(0, np.int32) if tokens is None else tokens.to_numpy(zero_copy_only=False)
            self._rows += 1
            for sequence in self._packer.add(_checked(found, self._shards_of.vocabulary)):
                self._append(sequence, [names[row]] * len(sequence.sizes))

    def _append(self, sequence: Tokens, names: list[str | None]) -> None:
        file = self._open_file()
        file.add(sequence, names)
        if self._target is not None and file.count >= self._target:
            self._close_file()

    def _open_file(self) -> TokenFile:
        if self._file is None:
            sink, shards = self._sink, self._shards_of
            name = Path(sink.tokenizer or "").name
            self._file = FORMATS[sink.format](
                self._next_path(), name, shards.vocabulary, shards.pad, sink.sequence_length
            )
            self._paths.extend(self._file.paths[1:])
        return self._file

    def _close_file(self) -> None:
        if self._file is None:
            return
        if self._file.is_empty:
            self._file.abort()
        else:
            for number, (path, size) in enumerate(self._file.close()):
                self._shards.append(Shard(path.name, 0 if number else self._rows, size))
            self._files += 1
        self._file, self._rows = None, 0

    def _finish(self) -> None:
        for sequence in self._packer.finish():
            self._append(sequence, [None] * len(sequence.sizes))
        self._close_file()

    def _discard(self) -> None:
        if self._file is not None:
            self._file.abort()
            self._file = None


def _combined(column: pa.ChunkedArray) -> pa.Array:
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        raise SinkError(
            f"column `{IDS}` has type {column.type}, not a list of token ids",
            hint="name a `tokenizer`, or use TokenIds",
        )
    ids = column.cast(pa.large_list(pa.int32())).combine_chunks()
    if ids.flatten().null_count:
        raise SinkError(
            f"column `{IDS}` has nulls within lists", hint="remove them in a step before, or drop those rows"
        )
    return ids


def _checked(ids: np.ndarray, vocabulary: int) -> np.ndarray:
    if len(ids) and (ids.min() < 0 or ids.max() >= vocabulary):
        raise SinkError(f"token ids must be from 0 to {vocabulary - 1}, found {ids.min()} to {ids.max()}")
    return ids
