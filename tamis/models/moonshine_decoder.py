"""The decoder of Moonshine without onnxruntime, with the weights of its quantised graph.

The graph takes a thousand small operations for each token, and copies all keys and values; they take most of its time.
`kernels/moonshine.py` computes the same, with the same integers, in one call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tamis.kernels.moonshine import Matrices, Weights, logits, step

_TYPES = {1: np.float32, 2: np.uint8}
"""Types of tensors, by their numbers in ONNX."""

_MATRICES = (
    "self_attn/q_proj", "self_attn/k_proj", "self_attn/v_proj", "self_attn/o_proj", "encoder_attn/q_proj",
    "encoder_attn/o_proj", "mlp/fc1", "mlp/fc2",
)  # fmt: skip
_NORMS = ("input_layernorm", "post_attention_layernorm", "final_layernorm")


class UnknownGraph(Exception):
    """The graph is not a quantised decoder of Moonshine in the format of onnxruntime."""


class _Graph:
    """The nodes and tensors of the branch that continues a text."""

    def __init__(self, path: Path) -> None:
        from onnxruntime.tools.ort_format_model.ort_flatbuffers_py.fbs.InferenceSession import InferenceSession

        data = path.read_bytes()
        if data[4:8] != b"ORTM":
            raise UnknownGraph
        graph = InferenceSession.GetRootAs(data, 0).Model().Graph()
        nodes = [graph.Nodes(number) for number in range(graph.NodesLength())]
        attributes = [node.Attributes(number) for node in nodes for number in range(node.AttributesLength())]
        branch = next((each.G() for each in attributes if each.Name() == b"then_branch"), None)
        if branch is None:
            raise UnknownGraph
        self._tensors = {
            tensor.Name().decode(): tensor
            for each in (graph, branch)
            for tensor in (each.Initializers(number) for number in range(each.InitializersLength()))
        }
        self._inputs = {
            node.Name().decode(): [node.Inputs(place).decode() for place in range(node.InputsLength())]
            for node in (branch.Nodes(number) for number in range(branch.NodesLength()))
        }

    def inputs(self, name: str) -> list[str]:
        """The names of what an operation takes."""
        if name not in self._inputs:
            raise UnknownGraph
        return self._inputs[name]

    def tensor(self, name: str) -> np.ndarray:
        found = self._tensors.get(name)
        if found is None or found.DataType() not in _TYPES:
            raise UnknownGraph
        values = np.frombuffer(found.RawDataAsNumpy().tobytes(), _TYPES[found.DataType()])
        return values.reshape(found.DimsAsNumpy() if found.DimsLength() else ())

    def matrices(self, names: Sequence[str]) -> Matrices:
        """The matrices of products of the same shape."""
        parts = [self._matrix(self.inputs(f"{name}/MatMul_quant")) for name in names]
        return Matrices(*(np.stack([part[place] for part in parts]) for place in range(4)))

    def _matrix(self, inputs: Sequence[str]) -> tuple[np.ndarray, np.int32, np.float32, np.ndarray]:
        # DynamicQuantizeMatMul has (values, matrix, scale, zero, bias). MatMulIntegerToFloat also has scale and zero of the
        # values, before those of the matrix; the bias may be left out.
        matrix, scale, zero = (self.tensor(inputs[place]) for place in ((1, 2, 3) if len(inputs) == 5 else (1, 3, 5)))
        if matrix.dtype != np.uint8 or scale.size != 1 or zero.size != 1:
            raise UnknownGraph
        bias = "" if len(inputs) == 6 else inputs[-1]
        shift = self.tensor(bias) if bias else np.zeros(matrix.shape[1], np.float32)
        return np.ascontiguousarray(matrix.T), np.int32(zero.item()), np.float32(scale.item()), shift

    def norms(self, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Gains and shifts of layer normalisations."""
        inputs = [self.inputs(f"{name}/LayerNormalization") for name in names]
        return np.stack([self.tensor(gain) for _, gain, _ in inputs]), np.stack(
            [self.tensor(each) for _, _, each in inputs]
        )


class Decoder:
    """The weights of a decoder."""

    def __init__(self, path: Path, layers: int, heads: int, size: int) -> None:
        """Raises UnknownGraph if the file is none that is read here."""
        graph = _Graph(path)
        self._shape = (layers, heads, size)
        root = "/model/decoder"
        parts = [graph.matrices([f"{root}/layers.{n}/{name}" for n in range(layers)]) for name in _MATRICES]
        gains, shifts = graph.norms([f"{root}/layers.{n}/{name}" for n in range(layers) for name in _NORMS])
        self._weights = Weights._make([*parts, gains.reshape(layers, 3, -1), shifts.reshape(layers, 3, -1)])
        gains, shifts = graph.norms([f"{root}/norm"])
        self._last = (graph.matrices(["/proj_out"]), gains[0], shifts[0])
        _, scale, zero = graph.inputs(f"{root}/embed_tokens/Gather_output_0_DequantizeLinear")
        self._embedding = graph.tensor(graph.inputs(f"{root}/embed_tokens/Gather")[0])
        self._zero, self._scale = np.float32(graph.tensor(zero).item()), graph.tensor(scale).reshape(())[()]
        self._frequencies = graph.tensor(graph.inputs(f"{root}/rotary_emb/Expand")[0]).reshape(-1)

    def start(self, present: Mapping[str, np.ndarray], most: int) -> Text:
        """A text of up to `most` tokens, after what the graph returned for the first one: [1, heads, time, size] by name."""
        return Text(self, present, most)


class Text:
    """A text that is being decoded."""

    def __init__(self, decoder: Decoder, present: Mapping[str, np.ndarray], most: int) -> None:
        self._decoder, self._place = decoder, 1
        layers, *shape = decoder._shape
        state = []
        for part, times in (("decoder", most), ("encoder", present["present.0.encoder.key"].shape[2])):
            for name in ("key", "value"):
                target = np.empty((layers, *shape, times), np.float32)
                for layer in range(layers):
                    found = present[f"present.{layer}.{part}.{name}"][0].transpose(0, 2, 1)
                    target[layer, :, :, : found.shape[2]] = found
                state.append(target)
        self._state = (*state, times)
        self._logits = np.empty(len(decoder._embedding), np.float32)

    def next(self, token: int) -> np.ndarray:
        """The scores of all tokens after `token`; valid until the next call."""
        decoder = self._decoder
        values = (decoder._embedding[token].astype(np.float32) - decoder._zero) * decoder._scale
        angles = np.float32(self._place) * decoder._frequencies
        step(decoder._weights, values, self._place, np.cos(angles), np.sin(angles), *self._state)
        words, gain, shift = decoder._last
        logits(words, values, gain, shift, self._logits)
        self._place += 1
        return self._logits
