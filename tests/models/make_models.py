"""Write small models of real architectures with random weights to disk, as their libraries save them.

python tests/models/make_models.py     writes the classifier in tests/text/data
"""

from __future__ import annotations

import importlib
import json
import string
import warnings
from pathlib import Path
from typing import Any

WORDS = (
    "the",
    "cat",
    "sat",
    "on",
    "mat",
    "and",
    "ran",
    "to",
    "old",
    "mill",
    "by",
    "river",
    "good",
    "bad",
    "one",
    "two",
    "three",
)
LABELS = ("low", "medium", "high")


def write_tokenizer(folder: Path, *, special: tuple[str, str] = ("[CLS]", "[SEP]"), extra: int = 0) -> int:
    """A word-piece tokenizer of letters and some words; returns its size."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    pieces = [
        *string.ascii_lowercase,
        *string.digits,
        *(f"##{letter}" for letter in string.ascii_lowercase + string.digits),
    ]
    tokens = [
        "[PAD]",
        "[UNK]",
        *special,
        "[MASK]",
        *string.punctuation,
        *pieces,
        *(word for word in WORDS if len(word) > 1),
    ]
    tokens += [f"[extra{number}]" for number in range(extra)]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    begin, end = special
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}", special_tokens=[(begin, vocabulary[begin]), (end, vocabulary[end])]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64, "pad_token": "[PAD]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return len(vocabulary)


SIZES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"pad_token_id": 0},
    "xlm-roberta": {"pad_token_id": 0},
    "distilbert": {"dim": 32, "hidden_dim": 64, "n_heads": 4, "n_layers": 2},
    "deberta-v2": {
        "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16, "position_biased_input": False,
        "norm_rel_ebd": "layer_norm", "share_att_key": True, "pooler_hidden_size": 32, "type_vocab_size": 0,
    },
}  # fmt: skip


def write_classifier(
    folder: Path, architecture: str = "bert", labels: tuple[str, ...] = LABELS, **settings: Any
) -> Path:
    """A sequence classifier of transformers with random weights."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForSequenceClassification

    warnings.simplefilter("ignore")  # some architectures use deprecated parts of torch; pytest restores the filters

    size = write_tokenizer(folder)
    shape = {} if architecture == "distilbert" else {
        "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64,
    }  # fmt: skip
    names = dict(enumerate(labels))
    config = CONFIG_MAPPING[architecture](
        vocab_size=size,
        max_position_embeddings=66,
        id2label=names,
        label2id={label: number for number, label in names.items()},
        **{**shape, **SIZES.get(architecture, {}), **settings},
    )
    torch.manual_seed(1)
    model = AutoModelForSequenceClassification.from_config(config)
    for weights in model.parameters():  # the default is so small that all texts get the same label
        torch.nn.init.normal_(weights, std=0.3) if weights.dim() > 1 else None
    model.eval().save_pretrained(folder)
    return folder


def write_encoder(folder: Path, architecture: str = "bert", **settings: Any) -> Path:
    """An encoder of transformers with random weights."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModel

    size = write_tokenizer(folder)
    config = CONFIG_MAPPING[architecture](
        vocab_size=size, hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=64,
        max_position_embeddings=66, **{**SIZES.get(architecture, {}), **settings},
    )  # fmt: skip
    torch.manual_seed(2)
    AutoModel.from_config(config).eval().save_pretrained(folder)
    return folder


def write_language_model(folder: Path, architecture: str = "llama", **settings: Any) -> Path:
    """A causal language model of transformers with random weights."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    size = write_tokenizer(folder)
    shape = (
        {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 256}
        if architecture == "gpt2"
        else {
            "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
            "intermediate_size": 64, "max_position_embeddings": 256,
        }
    )  # fmt: skip
    special = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    config = CONFIG_MAPPING[architecture](vocab_size=size, **special, **{**shape, **settings})
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config)
    for weights in model.parameters():  # the default is so small that all tokens are almost equally probable
        torch.nn.init.normal_(weights, std=0.3) if weights.dim() > 1 else None
    model.eval().save_pretrained(folder)
    most = getattr(config, "max_position_embeddings", 256)
    limits = json.loads((folder / "tokenizer_config.json").read_text()) | {"model_max_length": most}
    (folder / "tokenizer_config.json").write_text(json.dumps(limits))
    return folder


def write_masked_language_model(folder: Path) -> Path:
    """A BERT of transformers that predicts masked words, with random weights."""
    from transformers import BertConfig, BertForMaskedLM

    size = write_tokenizer(folder)
    shape = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 64}
    BertForMaskedLM(BertConfig(vocab_size=size, **shape)).eval().save_pretrained(folder)
    return folder


def write_onnx(
    folder: Path, target: Path, kind: str = "AutoModel", outputs: tuple[str, ...] = ("last_hidden_state",)
) -> Path:
    """A folder of transformers as an ONNX graph, with its tokenizer, as exported for other runtimes."""
    import torch
    import transformers

    warnings.simplefilter(
        "ignore"
    )  # the exporter that needs no other package is deprecated; pytest restores the filters

    class Outputs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = getattr(transformers, kind).from_pretrained(folder, attn_implementation="eager").eval()

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            found = self.inner(input_ids, attention_mask)
            return tuple(found[name] for name in outputs)

    target.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (target / name).write_bytes((folder / name).read_bytes())
    # Only used for functions of onnxscript, of which there are none; it would import the package onnx.
    utilities = importlib.import_module("torch.onnx._internal.torchscript_exporter.onnx_proto_utils")
    vars(utilities)["_add_onnxscript_fn"] = lambda content, _: content
    ids = torch.ones((2, 5), dtype=torch.long)
    axes = {0: "rows", 1: "tokens"}
    whole = {name: axes if name == "last_hidden_state" else {0: "rows"} for name in outputs}
    torch.onnx.export(
        Outputs(), (ids, ids), str(target / "model.onnx"), dynamo=False, input_names=["input_ids", "attention_mask"],
        output_names=list(outputs), dynamic_axes={"input_ids": axes, "attention_mask": axes, **whole},
    )  # fmt: skip
    return target / "model.onnx"


def message(*fields: tuple[int, int | str | bytes]) -> bytes:
    """A message of protocol buffers, in which ONNX files are written. The package onnx is not needed for anything else."""
    out = b""
    for number, value in fields:
        content = value.encode() if isinstance(value, str) else value
        out += _varint(number << 3 | (0 if isinstance(content, int) else 2))
        out += _varint(content) if isinstance(content, int) else _varint(len(content)) + content
    return out


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


FLOAT, INT64, STRING = 1, 7, 8
"""Types of tensors in ONNX."""


def _node(kind: str, inputs: str, outputs: str, *attributes: bytes) -> tuple[int, bytes]:
    named = [(1, name) for name in inputs.split()] + [(2, name) for name in outputs.split()]
    return 1, message(*named, (4, kind), *((5, attribute) for attribute in attributes))


def _attribute(name: str, field: int, kind: int, *values: int | str) -> bytes:
    return message((1, name), *((field, value) for value in values), (20, kind))


def _tensor(name: str, kind: int, *sizes: str) -> bytes:
    shape = message(*((1, message((2, size))) for size in sizes))
    return message((1, name), (2, message((1, message((1, kind), (2, shape))))))


def _write_graph(path: Path, nodes: list[tuple[int, bytes]], given: bytes, result: bytes, *constants: bytes) -> Path:
    graph = message(*nodes, (2, "graph"), *((5, each) for each in constants), (11, given), (12, result))
    path.write_bytes(message((1, 9), (8, message((2, 20))), (7, graph)))
    return path


def write_word_counts(path: Path, words: tuple[str, ...]) -> Path:
    """An ONNX graph that takes texts and counts these words in them: a tokenizer within the graph, in its simplest form."""
    one, many, numbers = 2, 8, 7
    count = _node(
        "TfIdfVectorizer", "words", "counts", _attribute("mode", 4, 3, "TF"),
        _attribute("min_gram_length", 3, one, 1), _attribute("max_gram_length", 3, one, 1),
        _attribute("max_skip_count", 3, one, 0), _attribute("ngram_counts", 8, numbers, 0),
        _attribute("ngram_indexes", 8, numbers, *range(len(words))), _attribute("pool_strings", 9, many, *words),
    )  # fmt: skip
    split = _node("StringSplit", "inputs", "words lengths")
    given, result = _tensor("inputs", STRING, "rows"), _tensor("counts", FLOAT, "rows", "counted")
    return _write_graph(path, [split, count], given, result)


def write_quantising(folder: Path) -> Path:
    """An ONNX graph whose output is the mean token id of each text, in steps of a 255th of the largest id in the batch."""
    write_tokenizer(folder)
    nodes = [
        _node("Cast", "input_ids", "exact", _attribute("to", 3, 2, FLOAT)),
        _node("DynamicQuantizeLinear", "exact", "steps scale zero"),
        _node("DequantizeLinear", "steps scale zero", "rounded"),
        _node("ReduceMean", "rounded axis", "means", _attribute("keepdims", 3, 2, 1)),
    ]
    given, result = _tensor("input_ids", INT64, "rows", "tokens"), _tensor("means", FLOAT, "rows", "one")
    axis = message((1, 1), (2, INT64), (7, 1), (8, "axis"))  # a tensor with the number 1
    return _write_graph(folder / "model.onnx", nodes, given, result, axis)


if __name__ == "__main__":
    write_classifier(Path(__file__).parent.parent / "text" / "data" / "classifier", num_hidden_layers=1)
    small = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32}
    data = Path(__file__).parent.parent / "text" / "data" / "causal"
    write_language_model(data, num_hidden_layers=1, max_position_embeddings=8192, **small)
