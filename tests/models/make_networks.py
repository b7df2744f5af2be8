"""Small networks in the layouts of published classifiers, written to disk as their authors publish them."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

TEXT = [
    "The first text explains how rain falls from clouds onto mountains, rivers and fields.",
    "Buy now!!! Cheap watches, cheap pills, click here to win a free prize.",
    "A function takes arguments and returns a value; a loop repeats statements.",
    "safe unsafe O1 O2 O3 O13 violence conversation user agent policy categories assessment",
]

DEBERTA = {
    "model_type": "deberta-v2",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    "max_relative_positions": -1,
    "position_buckets": 16,
    "relative_attention": True,
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "layer_norm_eps": 1e-7,
    "type_vocab_size": 0,
    "vocab_size": 300,
}
"""DeBERTa v3 with fewer and smaller layers."""

QUALITY = ["High", "Medium", "Low"]
TARGETS = {
    "task_type": 12,
    "creativity_scope": 3,
    "reasoning": 2,
    "contextual_knowledge": 2,
    "number_of_few_shots": 6,
    "domain_knowledge": 4,
    "no_label_reason": 1,
    "constraint_ct": 2,
}
TASKS = ["Brainstorming", "Chatbot", "Classification", "Closed QA", "Code Generation", "Extraction", "Open QA", "Other",
         "Rewrite", "Summarization", "Text Generation", "Unknown"]  # fmt: skip


def put_in_cache(cache: Path, name: str) -> Path:
    """The folder of a model in a Hugging Face cache, which is created."""
    root, commit = cache / f"models--{name.replace('/', '--')}", "0" * 40
    (root / "refs").mkdir(parents=True, exist_ok=True)
    (root / "refs" / "main").write_text(commit)
    folder = root / "snapshots" / commit
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2))


def random_values(module: torch.nn.Module, seed: int, scale: float = 0.3) -> dict[str, torch.Tensor]:
    """Values for all weights, larger than usual ones, so that the outputs of small networks differ."""
    generator = torch.Generator().manual_seed(seed)
    values = {}
    for name, value in module.state_dict().items():
        noise = torch.randn(value.shape, generator=generator) * scale
        values[name] = noise + 1 if "norm" in name.lower() and name.endswith("weight") else noise
    return values


# ------------------------------------------------------------------------------------------------------------ tokenizers


def write_wordpiece(folder: Path, vocabulary: int = 300) -> int:
    """A tokenizer that puts [CLS] before and [SEP] after a text; returns the size of its vocabulary."""
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    split = pre_tokenizers.BertPreTokenizer()
    # Trained ones differ between processes: the trainer visits its tables in any order.
    words = sorted({word for text in TEXT for word, _ in split.pre_tokenize_str(text)})
    letters = sorted({letter for word in words for letter in word})
    pieces = dict.fromkeys([*special, *letters, *(f"##{letter}" for letter in letters), *words])
    numbers = {piece: number for number, piece in enumerate(list(pieces)[:vocabulary])}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = split
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {f"{name.strip('[]').lower()}_token": name for name in special}
    write_json(folder / "tokenizer_config.json", names | {"tokenizer_class": "PreTrainedTokenizerFast"})
    return tokenizer.get_vocab_size()


def write_llama_tokenizer(folder: Path) -> int:
    """A byte-level tokenizer that puts <s> before a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    )
    return tokenizer.get_vocab_size()


# --------------------------------------------------------------------------------------------------------------- encoders


def deberta() -> transformers.DebertaV2Model:
    return transformers.DebertaV2Model(transformers.DebertaV2Config(**DEBERTA)).eval()


def write_backbone(cache: Path, name: str = "microsoft/deberta-v3-base") -> None:
    """The configuration of a backbone in a Hugging Face cache, without weights."""
    write_json(put_in_cache(cache, name) / "config.json", DEBERTA)


def write_first_token_head(
    folder: Path, labels: list[str], *, base: str = "microsoft/deberta-v3-base", sizes: bool = False, seed: int = 1
) -> transformers.DebertaV2Model:
    """A classifier in the layout of nvidia/quality-classifier-deberta; returns its backbone."""
    write_wordpiece(folder)
    backbone = deberta()
    backbone.load_state_dict(random_values(backbone, seed), strict=True)
    weights = {f"model.{name}": value for name, value in backbone.state_dict().items()}
    head = torch.nn.Linear(DEBERTA["hidden_size"], len(labels))
    weights |= {f"fc.{name}": value for name, value in random_values(head, seed + 1, 1.0).items()}
    save_file({name: value.contiguous() for name, value in weights.items()}, folder / "model.safetensors")
    config = {
        "base_model": base,
        "model_type": "deberta-v2",
        "fc_dropout": 0.2,
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }
    write_json(folder / "config.json", config | (DEBERTA if sizes else {}))
    return backbone


def write_pooled_heads(folder: Path, seed: int = 5) -> transformers.DebertaV2Model:
    """A classifier in the layout of nvidia/prompt-task-and-complexity-classifier."""
    write_wordpiece(folder)
    backbone = deberta()
    backbone.load_state_dict(random_values(backbone, seed), strict=True)
    weights = {f"backbone.{name}": value for name, value in backbone.state_dict().items()}
    for number, size in enumerate(TARGETS.values()):
        head = random_values(torch.nn.Linear(DEBERTA["hidden_size"], size), seed + number + 1, 1.0)
        weights |= {f"head_{number}.fc.{name}": value for name, value in head.items()}
    save_file({name: value.contiguous() for name, value in weights.items()}, folder / "model.safetensors")
    write_json(
        folder / "config.json",
        {
            "base_model": "microsoft/deberta-v3-base",
            "target_sizes": TARGETS,
            "task_type_map": {str(number): task for number, task in enumerate(TASKS)},
            "weights_map": {name: list(range(size)) for name, size in TARGETS.items() if name != "task_type"},
            "divisor_map": {name: max(1, size - 1) for name, size in TARGETS.items() if name != "task_type"},
        },
    )
    return backbone


def write_regression(folder: Path, bias: float = 2.0, seed: int = 9) -> transformers.PreTrainedModel:
    """A classifier in the layout of HuggingFaceFW/fineweb-edu-classifier: BERT with one output."""
    config = transformers.BertConfig(
        vocab_size=write_wordpiece(folder), hidden_size=32, intermediate_size=48, num_attention_heads=2,
        num_hidden_layers=2, max_position_embeddings=64, num_labels=1, problem_type="regression",
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).eval()
    model.load_state_dict(random_values(model, seed), strict=True)
    with torch.no_grad():
        model.classifier.weight.mul_(4)
        model.classifier.bias.fill_(bias)
    model.save_pretrained(folder)
    return model


# ------------------------------------------------------------------------------------------------------------------ Aegis

PROMPT = (
    "[INST] Task: say whether the conversation is unsafe.\n<BEGIN UNSAFE CONTENT CATEGORIES>\nO1: violence\n"
    "<END UNSAFE CONTENT CATEGORIES>\n<BEGIN CONVERSATION>\n\nUser: ...\n\n<END CONVERSATION>\nassessment: [/INST]"
)


def write_llama(folder: Path, seed: int = 3, heads: int = 2) -> transformers.LlamaForCausalLM:
    """A language model in the layout of meta-llama/LlamaGuard-7b."""
    config = transformers.LlamaConfig(
        vocab_size=write_llama_tokenizer(folder), hidden_size=32, intermediate_size=48, num_attention_heads=heads,
        num_key_value_heads=heads, num_hidden_layers=2, max_position_embeddings=512, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    model.load_state_dict(random_values(model, seed), strict=True)
    model.save_pretrained(folder)
    return model


def write_adapter(
    folder: Path, model: transformers.LlamaForCausalLM, rank: int = 4, alpha: int = 16, seed: int = 4
) -> None:
    """A LoRA adapter in the layout of nvidia/Aegis-AI-Content-Safety-LlamaGuard-Defensive-1.0."""
    folder.mkdir(parents=True, exist_ok=True)
    generator, weights, targets = torch.Generator().manual_seed(seed), {}, ["q_proj", "v_proj"]
    for name, value in model.named_parameters():
        if name.split(".")[-2] in targets:
            rows, columns = value.shape
            key = f"base_model.model.{name.removesuffix('.weight')}"
            weights[f"{key}.lora_A.weight"] = torch.randn((rank, columns), generator=generator) / math.sqrt(columns)
            weights[f"{key}.lora_B.weight"] = torch.randn((rows, rank), generator=generator)
    save_file(weights, folder / "adapter_model.safetensors")
    write_json(
        folder / "adapter_config.json",
        {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": targets, "bias": "none",
         "base_model_name_or_path": "meta-llama/LlamaGuard-7b", "task_type": "CAUSAL_LM", "lora_dropout": 0.1},
    )  # fmt: skip
    (folder / "README.md").write_text(f"# A card\n\nThe prompt:\n\n```\n{PROMPT}\n```\n")


def write_guard(folder: Path, inputs: int = 32, seed: int = 6) -> torch.nn.Module:
    """A network in the layout of nvidia/instruction-data-guard; returns the same network made of torch's own layers."""
    layers = {
        "input_layer": torch.nn.Linear(inputs, inputs),
        "hidden_layer_0": torch.nn.Linear(inputs, 2000),
        "hidden_layer_1": torch.nn.Linear(2000, 500),
        "hidden_layer_2": torch.nn.Linear(500, 1),
    }
    weights = {}
    for number, layer in enumerate(layers.values()):
        layer.load_state_dict(random_values(layer, seed + number, 3 / math.sqrt(layer.in_features)))
    for name, layer in layers.items():
        layer.bias.data.mul_(0.1)  # so that the inputs decide
        weights |= {f"{name}.{part}": value for part, value in layer.state_dict().items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    write_json(folder / "config.json", {"dropout": 0.7, "input_dim": inputs})
    relu = torch.nn.ReLU()
    first, *rest = layers.values()
    return torch.nn.Sequential(first, *(part for layer in rest for part in (relu, layer)))


def write_answering_llama(folder: Path, answers: dict[str, str]) -> None:
    """A language model that continues a prompt by its last token: the text `answers` has for it, and then the end.

    Attention and feed-forward layers add nothing; each token has a direction of its own, which the output layer maps to the
    next token.
    """
    size = write_llama_tokenizer(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = transformers.LlamaConfig(
        vocab_size=size, hidden_size=size, intermediate_size=8, num_attention_heads=2, num_key_value_heads=2,
        num_hidden_layers=1, max_position_embeddings=4096, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    following = dict.fromkeys(range(size), 2)
    for last, answer in answers.items():
        chain = [tokenizer.encode(last, add_special_tokens=False).ids[-1]]
        chain += [*tokenizer.encode(answer, add_special_tokens=False).ids, 2]
        following |= dict(itertools.pairwise(chain))
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.fill_(1.0 if "norm" in name else 0.0)
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        for token, then in following.items():
            model.lm_head.weight[then, token] = 1
    model.save_pretrained(folder)


def write_published(cache: Path) -> None:
    """Small networks under the names of all published classifiers, in a Hugging Face cache."""
    write_backbone(cache)
    write_backbone(cache, "microsoft/mdeberta-v3-base")
    domains = [f"Domain_{number}" for number in range(26)]
    types = [f"Type {number}" for number in range(11)]
    multilingual = "microsoft/mdeberta-v3-base"
    write_first_token_head(put_in_cache(cache, "nvidia/quality-classifier-deberta"), QUALITY)
    write_first_token_head(put_in_cache(cache, "nvidia/domain-classifier"), domains, seed=11)
    write_first_token_head(
        put_in_cache(cache, "nvidia/multilingual-domain-classifier"), domains, base=multilingual, seed=12
    )
    write_first_token_head(put_in_cache(cache, "nvidia/content-type-classifier-deberta"), types, seed=16)
    for number, name in enumerate(
        (
            "HuggingFaceFW/fineweb-edu-classifier",
            "nvidia/nemocurator-fineweb-mixtral-edu-classifier",
            "nvidia/nemocurator-fineweb-nemotron-4-edu-classifier",
            "HuggingFaceTB/finemath-classifier",
        )
    ):
        write_regression(put_in_cache(cache, name), seed=20 + number)
    write_pooled_heads(put_in_cache(cache, "nvidia/prompt-task-and-complexity-classifier"))
    base = put_in_cache(cache, "meta-llama/LlamaGuard-7b")
    write_answering_llama(base, {".": "safe", "!": "unsafe\nO3", "?": "maybe"})
    adapter = put_in_cache(cache, "nvidia/Aegis-AI-Content-Safety-LlamaGuard-Defensive-1.0")
    model = transformers.LlamaForCausalLM.from_pretrained(base)
    write_adapter(adapter, model)
    (adapter / "prompt.txt").write_text("Is this safe? {text}")
    write_guard(put_in_cache(cache, "nvidia/instruction-data-guard"), inputs=model.config.hidden_size)
