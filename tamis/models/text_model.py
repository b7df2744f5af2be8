"""Runs a network on texts: tokens, batches, and one row of outputs per text, in the order of the input.

    texts --tokens.py--> pieces --batching.py--> batches by length --network.py--> outputs --mean per text--> float32[rows, n]

On a GPU, texts are tokenized by other workers (`Tokenize`), and a batch is copied while the one before is computed. If memory
runs out, batches are halved, down to one text. If other processes fill up the GPU, the last resort is to wait a little.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.batch import Column
from tamis.context import Context
from tamis.errors import BudgetError, is_shortage
from tamis.models.batching import SMALLEST_TOKENS, TokenBudget, pad, plan_batches, round_up
from tamis.models.devices import open_torch, release_cached
from tamis.models.encoders import dimensions_of, graph_pooling
from tamis.models.files import ModelError, ModelFiles
from tamis.models.network import Build, Network, TorchNetwork, sequence_classifier
from tamis.models.onnx import OnnxNetwork
from tamis.models.tokens import LongTexts, Pieces, TextTokenizer, load_tokenizer, longest_input

RUNTIME = "torch and transformers"
"""The key of the libraries in `Context.shared`, so that their memory is counted once per worker."""

RUNTIME_BYTES = 320_000_000
"""What importing torch and transformers takes, as measured: 265 MB, and address space of 315 MB."""

GPU_RUNTIME_BYTES = 2_500_000_000
"""Host memory of a process that uses CUDA: libraries, context, pinned buffers."""

CPU_TOKENS = 1024
"""Tokens per batch on a CPU: larger batches leave its caches."""

GPU_TOKENS = 131_072
"""Tokens per batch on a GPU: larger batches are no faster."""

GPU_SHARE = 0.8
"""How much of the free GPU memory a batch may take; the rest is lost to fragmentation."""

PROBED_LENGTHS = 64
"""Memory per token is measured for lengths that are a multiple of this."""

DEFAULT_TOKENS = 512
"""The longest input of a model that does not state one."""

WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""How long to wait for GPU memory that another process holds."""


@dataclass
class Loaded:
    """A network and its tokenizer, shared by all steps of a worker that use the model."""

    network: Network
    tokenizer: TextTokenizer
    most_tokens: int | None
    """The longest input; None if the model states no limit."""
    budgets: dict[str, TokenBudget] = field(default_factory=dict)

    def close(self) -> None:
        self.network.close()


def open_runtime(context: Context) -> Any:
    """torch, with the number of threads of the worker."""
    torch = open_torch(context)
    if context.cpus is not None:
        torch.set_num_threads(context.cpus)
    return torch


def _load(found: ModelFiles, build: Build, context: Context) -> Loaded:
    tokenizer = load_tokenizer(found)
    network: Network = TorchNetwork(build(found.folder, found.config), context.device)
    if network.vocabulary is not None and tokenizer.size > network.vocabulary:
        raise ModelError(
            f"the tokenizer of {found.name} has {tokenizer.size} tokens, but the network only {network.vocabulary}",
            hint="tokenizer.json and the weights must be of the same model",
        )
    return Loaded(network, tokenizer, longest_input(found))


def load_onnx(found: ModelFiles, session: Any) -> Loaded:
    """A graph over token ids, with the tokenizer beside it."""
    network = OnnxNetwork(session, found.name)
    network.dimensions = dimensions_of(found.folder)
    if network.has_token_vectors:
        network.pooling = graph_pooling(found.folder)
    return Loaded(network, load_tokenizer(found), longest_input(found))


def input_length(limit: int | None, max_tokens: int | None) -> int:
    """The longest input in tokens, with special tokens: what a step requests, within the limit of its model."""
    most = limit or max_tokens or DEFAULT_TOKENS
    return min(max_tokens or most, most)


def key_of(found: ModelFiles, build: Build) -> str:
    """The key of a loaded model in `Context.shared`."""
    return found.key(f"{build.__module__}.{build.__qualname__}")


def runtime_bytes(device: str) -> int:
    """Host memory of the libraries that run a network."""
    return RUNTIME_BYTES if device == "cpu" else GPU_RUNTIME_BYTES


class TextModel:
    """A network on texts, with the settings of one step."""

    def __init__(
        self,
        loaded: Loaded,
        context: Context,
        *,
        max_tokens: int | None = None,
        max_chars: int | None = None,
        long_texts: LongTexts = "truncate",
        batch_size: int | None = None,
        name: str = "",
    ) -> None:
        self._loaded, self._context = loaded, context
        self.max_tokens = input_length(loaded.most_tokens, max_tokens)
        self._max_chars, self._long_texts, self._batch_size = max_chars, long_texts, batch_size
        self._on_gpu = context.device != "cpu"
        limit = GPU_TOKENS if self._on_gpu else CPU_TOKENS
        self._key = f"{name}, {self._place()}"
        if "tokens" not in loaded.budgets:
            loaded.budgets["tokens"] = TokenBudget(limit, self._remembered(context.limits))
        self._budget = loaded.budgets["tokens"]
        self._told = dict(self._budget.known)

    def _place(self) -> str:
        """Where batches have to fit: the device, and the share of its memory."""
        share = self._context.gpu_memory_bytes if self._on_gpu else self._context.memory_bytes
        network = self._loaded.network
        device = network.device_name() if self._on_gpu and isinstance(network, TorchNetwork) else "cpu"
        return device if share is None else f"{device} with {share / 1e9:.1f} GB"

    def _remembered(self, limits: Mapping[str, int]) -> dict[int, int]:
        """By length, what an earlier run found for this model in this place."""
        start = f"{self._key}, "
        found = {name.removeprefix(start): most for name, most in limits.items() if name.startswith(start)}
        return {int(length.removesuffix(" tokens")): most for length, most in found.items()}

    def take_limits(self) -> dict[str, int]:
        """What was learned since the last call: tokens per batch, by model, device and length."""
        new = {length: most for length, most in self._budget.known.items() if self._told.get(length) != most}
        self._told |= new
        return {f"{self._key}, {length} tokens": most for length, most in new.items()}

    @staticmethod
    def open(
        found: ModelFiles,
        context: Context,
        *,
        build: Build = sequence_classifier,
        max_tokens: int | None = None,
        max_chars: int | None = None,
        long_texts: LongTexts = "truncate",
        batch_size: int | None = None,
    ) -> TextModel:
        """Load a model once per worker. `build` makes the torch module; by default the logits of a classifier are returned."""
        context.shared(RUNTIME, lambda: open_runtime(context))
        loaded = context.shared(key_of(found, build), lambda: _load(found, build, context))
        return TextModel(
            loaded,
            context,
            max_tokens=max_tokens,
            max_chars=max_chars,
            long_texts=long_texts,
            batch_size=batch_size,
            name=key_of(found, build),
        )

    def predict(self, texts: Column) -> np.ndarray:
        """The outputs of the network for each text, float32[rows, outputs]. A null is treated as an empty text.

        Raises a ValueError if an output is not a number; the engine then finds the row that causes it.
        """
        tokenizer = self._loaded.tokenizer
        return self._outputs(tokenizer.pieces(texts, self.max_tokens, self._long_texts, self._max_chars))

    def predict_tokens(self, contents: pa.ListArray) -> np.ndarray:
        """The same from the tokens of texts, which `Tokenize` found in other workers."""
        return self._outputs(self._loaded.tokenizer.pieces_of(contents, self.max_tokens, self._long_texts))

    def _outputs(self, pieces: Pieces) -> np.ndarray:
        vocabulary = self._loaded.network.vocabulary
        if vocabulary is not None and len(pieces.ids) and int(pieces.ids.max()) >= vocabulary:
            raise ModelError(
                f"a token has number {int(pieces.ids.max())}, but the network only knows {vocabulary}",
                hint="tokenizer.json and the weights must be of the same model",
            )
        result = pieces.mean_by_row(self._run(pieces))
        wrong = ~np.isfinite(result).all(axis=1)
        if wrong.any():
            raise ValueError(
                f"the model returned a value that is not a number for {int(wrong.sum())} of {len(result)} rows"
            )
        return result

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        return self._loaded.tokenizer.decode(ids)

    def close(self) -> None:
        """The network is closed with the stage."""

    # ----------------------------------------------------------------------------------------------------------- batches

    def _run(self, pieces: Pieces) -> np.ndarray:
        network, lengths = self._loaded.network, pieces.lengths
        if not len(lengths):
            return network.start(np.zeros((1, 1), np.int64), np.ones(1, np.int64))()[:0]
        multiple = 8 if self._on_gpu else 1
        queue = deque(plan_batches(lengths, self._most(int(lengths.max())), self._batch_size, multiple))
        running: deque[tuple[np.ndarray, Callable[[], np.ndarray]]] = deque()
        out: np.ndarray | None = None
        failures = 0
        while queue or running:
            if queue and len(running) < (2 if self._on_gpu else 1):
                rows = queue.popleft()
                width = round_up(int(lengths[rows].max()), multiple)
                try:
                    wait = network.start(pad(pieces.ids, pieces.offsets, rows, width, 0), lengths[rows])
                except Exception as error:
                    if not is_shortage(error):
                        raise
                    error.__traceback__ = None  # its frames hold the memory
                    if running:
                        queue.appendleft(rows)  # once the batches before it have ended, there is more memory
                        while running:
                            out = _put(out, *running.popleft(), len(lengths))
                        continue
                    failures = self._smaller(queue, rows, width, failures, error)
                    continue
                failures = 0
                running.append((rows, wait))
            else:
                out = _put(out, *running.popleft(), len(lengths))
        assert out is not None
        return out

    def _smaller(self, queue: deque[np.ndarray], rows: np.ndarray, width: int, failures: int, error: Exception) -> int:
        """Put a batch that ran out of memory back into the queue, in halves; wait if it has one row only."""
        release_cached()
        if len(rows) > 1:
            self._budget.halve(width, len(rows) * width)
            half = -(-len(rows) // 2)
            queue.extendleft([rows[half:], rows[:half]])
            return failures
        if not self._on_gpu:
            raise error
        if failures == len(WAITS_S):
            raise BudgetError(
                f"the GPU has not enough memory for a single text of {width} tokens: {error}",
                hint="another process may be using the GPU; end it, or set device='cpu' or a smaller max_tokens",
            )
        time.sleep(WAITS_S[failures])
        queue.appendleft(rows)
        return failures + 1

    def _most(self, width: int) -> int:
        """The most tokens per batch for texts of this length, measured on a GPU before the first batch."""
        network = self._loaded.network
        width = round_up(width, PROBED_LENGTHS) if self._on_gpu else width
        if self._on_gpu and width not in self._budget.known and isinstance(network, TorchNetwork):
            self._budget.known[width] = self._measured(network, min(width, self.max_tokens))
        return self._budget.most(width)

    def _measured(self, network: TorchNetwork, width: int) -> int:
        rows = max(1, 4096 // width)
        try:
            each = network.bytes_per_token(width, rows)
        except Exception as error:
            if not is_shortage(error):
                raise
            release_cached()
            return SMALLEST_TOKENS
        free = network.free_bytes()
        share = self._context.gpu_memory_bytes
        return int(GPU_SHARE * (free if share is None else min(free, share)) / 2 / max(each, 1.0))


def _put(out: np.ndarray | None, rows: np.ndarray, wait: Callable[[], np.ndarray], total: int) -> np.ndarray:
    values = wait()
    if out is None:
        out = np.empty((total, values.shape[1]), np.float32)
    out[rows] = values
    return out
