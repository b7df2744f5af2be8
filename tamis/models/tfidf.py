"""Linear classifiers on the words of a text, as scikit-learn exports them to ONNX: TF-IDF and logistic regression.

    lower case -> words -> counts x idf -> length 1 -> one linear layer -> softmax

onnxruntime runs such a file only where the locale en_US.UTF-8 is installed, and processes one text at a time. The weights are
therefore read from the file, which is a protobuf message, and applied here. Nothing in the file is executed.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tamis.errors import TamisError

# Field numbers of onnx.proto.
_MODEL_GRAPH, _GRAPH_NODE, _GRAPH_INITIALIZER = 7, 1, 5
_NODE_TYPE, _NODE_ATTRIBUTE = 4, 5
_ATTRIBUTE_NAME, _ATTRIBUTE_VALUES = 1, (2, 3, 4, 7, 8, 9)
_TENSOR_FLOATS, _TENSOR_NAME, _TENSOR_RAW = 4, 8, 9

_STEPS = ("StringNormalizer", "Tokenizer", "TfIdfVectorizer", "Mul", "Normalizer", "LinearClassifier")


@dataclass(frozen=True, eq=False)
class TfidfClassifier:
    """Words with their weights. `predict` returns the probability of each class."""

    words: Mapping[str, int]
    pattern: re.Pattern[str]
    idf: np.ndarray
    """float32[words]"""
    coefficients: np.ndarray
    """float32[classes, words]"""
    intercepts: np.ndarray

    def predict(self, texts: Sequence[str]) -> np.ndarray:
        """float32[texts, classes]."""
        rows: list[int] = []
        columns: list[int] = []
        counts: list[int] = []
        for number, text in enumerate(texts):
            # U+0130 becomes two characters in Python's lower case, and one in that of the C library.
            words = self.pattern.findall(text.replace("\u0130", "i").lower())
            found = Counter(self.words[word] for word in words if word in self.words)
            rows += [number] * len(found)
            columns += found.keys()
            counts += found.values()
        row, column = np.array(rows, np.int64), np.array(columns, np.int64)
        values = np.array(counts, np.float64) * self.idf[column]
        norms = np.sqrt(np.bincount(row, values**2, minlength=len(texts)))
        values /= np.maximum(norms[row], 1e-30)
        logits = np.stack(
            [np.bincount(row, values * weights[column], minlength=len(texts)) for weights in self.coefficients], axis=1
        )
        logits = logits + self.intercepts  # without rows, bincount returns integers
        powers = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
        return (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)

    @staticmethod
    def load(path: Path) -> TfidfClassifier:
        """Read the weights of an ONNX file, or raise a TamisError with what is wrong with it."""
        try:
            graph = dict(_fields(path.read_bytes()))[_MODEL_GRAPH]
            nodes: dict[str, dict[str, list[Any]]] = {}
            constants: dict[str, np.ndarray] = {}
            for number, value in _fields(graph):
                if number == _GRAPH_NODE:
                    kind, attributes = _node(value)
                    nodes.setdefault(kind, attributes)
                elif number == _GRAPH_INITIALIZER:
                    name, numbers = _tensor(value)
                    constants[name] = numbers
            return _checked(nodes, constants)
        except (KeyError, IndexError, ValueError, TypeError, AttributeError, struct.error, re.error) as error:
            raise TamisError(
                f"{path} is not a TF-IDF classifier in the layout of skl2onnx: {error!r}", hint="install it again"
            ) from error


def memory_bytes(path: Path) -> int:
    """The memory that loading a classifier needs: its words as Python strings, and the lists that it is parsed into."""
    return 30 * path.stat().st_size


def _checked(nodes: Mapping[str, Mapping[str, list[Any]]], constants: Mapping[str, np.ndarray]) -> TfidfClassifier:
    lacking = [step for step in _STEPS if step not in nodes]
    if lacking:
        raise ValueError(f"it has no {lacking[0]}")
    vectorizer, linear = nodes["TfIdfVectorizer"], nodes["LinearClassifier"]
    expected = {
        "LOWER": nodes["StringNormalizer"]["case_change_action"],
        "TF": vectorizer["mode"],
        "L2": nodes["Normalizer"]["norm"],
        "SOFTMAX": linear["post_transform"],
    }
    for value, found in expected.items():
        if found != [value.encode()]:
            raise ValueError(f"it has {found} instead of {value}")
    if vectorizer["max_gram_length"] != [1]:
        raise ValueError("it counts n-grams of words")
    words = {
        word.decode(): place
        for word, place in zip(vectorizer["pool_strings"], vectorizer["ngram_indexes"], strict=True)
    }
    intercepts = np.array(linear["intercepts"], np.float32)
    coefficients = np.array(linear["coefficients"], np.float32).reshape(len(intercepts), len(words))
    idf = next(values for values in constants.values() if values.shape == (len(words),))
    if sorted(words.values()) != list(range(len(words))) or not np.isfinite(coefficients).all():
        raise ValueError("its weights do not fit its words")
    return TfidfClassifier(
        words, re.compile(nodes["Tokenizer"]["tokenexp"][0].decode(), re.ASCII), idf, coefficients, intercepts
    )


# -------------------------------------------------------------------------------------------------------------- protobuf


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, value) of a protobuf message: integers, floats, and bytes for strings and nested messages."""
    place = 0

    def varint() -> int:
        nonlocal place
        result = shift = 0
        while True:
            byte = message[place]
            place += 1
            result |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return result

    while place < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
        elif kind == 2:
            size = varint()
            if place + size > len(message):
                raise ValueError("it is truncated")
            yield number, message[place : place + size]
            place += size
        elif kind == 5:
            yield number, struct.unpack_from("<f", message, place)[0]
            place += 4
        elif kind == 1:
            yield number, struct.unpack_from("<d", message, place)[0]
            place += 8
        else:
            raise ValueError(f"it has a field of unknown type {kind}")


def _node(message: bytes) -> tuple[str, dict[str, list[Any]]]:
    """The operator of a node, and the values of its attributes by name."""
    kind, attributes = "", {}
    for number, value in _fields(message):
        if number == _NODE_TYPE:
            kind = value.decode()
        elif number == _NODE_ATTRIBUTE:
            parts = list(_fields(value))
            name = next(part.decode() for field, part in parts if field == _ATTRIBUTE_NAME)
            attributes[name] = [part for field, part in parts if field in _ATTRIBUTE_VALUES]
    return kind, attributes


def _tensor(message: bytes) -> tuple[str, np.ndarray]:
    """The name and the numbers of a constant; empty if it does not hold float32."""
    name, numbers = "", np.zeros(0, np.float32)
    for field, value in _fields(message):
        if field == _TENSOR_NAME:
            name = value.decode()
        elif field in (_TENSOR_RAW, _TENSOR_FLOATS) and isinstance(value, bytes) and len(value) % 4 == 0:
            numbers = np.frombuffer(value, "<f4").astype(np.float32)
    return name, numbers
