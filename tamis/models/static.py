"""Static vectors: the vector of a text is the mean of the vectors of its tokens; no network runs (WordLlama, Miller 2024)."""

from __future__ import annotations

import numpy as np

from tamis.batch import Column
from tamis.context import Context
from tamis.errors import is_shortage, require
from tamis.kernels.static_vectors import mean_rows
from tamis.models.files import ModelError, ModelFiles
from tamis.models.tokens import LongTexts, TextTokenizer, load_tokenizer

ALL_TOKENS = 2**30


class StaticModel:
    """A table of vectors and a tokenizer."""

    def __init__(self, table: np.ndarray, tokenizer: TextTokenizer) -> None:
        self.table, self.tokenizer = table, tokenizer

    @staticmethod
    def load(found: ModelFiles) -> StaticModel:
        library = require("safetensors.numpy", extra="embeddings", purpose=f"loading {found.name}")
        try:
            tensors = library.load_file(found.weights[0])
        except Exception as error:
            if is_shortage(error):
                raise
            raise ModelError(f"{found.weights[0]} cannot be loaded: {error}", hint="download the file again") from error
        tables = [value for value in tensors.values() if value.ndim == 2]
        if len(tables) != 1:
            raise ModelError(f"{found.weights[0]} must contain one table of vectors, it has {len(tables)}")
        tokenizer = load_tokenizer(found)
        if tokenizer.size > len(tables[0]):
            raise ModelError(
                f"the tokenizer of {found.name} has {tokenizer.size} tokens, but there are {len(tables[0])} vectors",
                hint="both files must be of the same model",
            )
        return StaticModel(np.ascontiguousarray(tables[0], np.float32), tokenizer.without_special())


class StaticTexts:
    """A table of vectors on texts, with the settings of one step."""

    def __init__(
        self, model: StaticModel, max_tokens: int | None, max_chars: int | None, long_texts: LongTexts
    ) -> None:
        self._model, self._max_tokens, self._max_chars, self._long_texts = model, max_tokens, max_chars, long_texts

    @staticmethod
    def open(
        found: ModelFiles, context: Context, max_tokens: int | None, max_chars: int | None, long_texts: LongTexts
    ) -> StaticTexts:
        model = context.shared(key_of(found), lambda: StaticModel.load(found))
        return StaticTexts(model, max_tokens, max_chars, long_texts)

    def predict(self, texts: Column) -> np.ndarray:
        """The mean vector of each text, float32[rows, dimensions]; zeros for a text without tokens."""
        # All tokens of a text are one window, unless the user limits them.
        how: LongTexts = "windows" if self._max_tokens is None else self._long_texts
        pieces = self._model.tokenizer.pieces(
            texts, self._max_tokens or ALL_TOKENS, how, self._max_chars, pad_empty=False
        )
        out = np.zeros((len(pieces.row), self._model.table.shape[1]), np.float32)
        mean_rows(pieces.ids, pieces.offsets, self._model.table, out)
        return pieces.mean_by_row(out)

    def close(self) -> None:
        """The table is closed with the stage."""


def key_of(found: ModelFiles) -> str:
    """The key of a table in `Context.shared`."""
    return found.key("static vectors")


def memory_bytes(found: ModelFiles) -> int:
    """The table as float32, which may be stored as float16, and the tokenizer."""
    return 2 * found.num_bytes + 12 * sum(path.stat().st_size for path in found.others)
