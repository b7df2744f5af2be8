"""The published classifiers of unsafe texts: Aegis, a language model with an adapter, and a network on top of it.

texts --prompt--> LlamaGuard 7B with an adapter --answer--> label                      AegisClassifier
                                                --last hidden state--> probability     InstructionDataGuardClassifier
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import Column
from tamis.context import Context
from tamis.models.files import ModelError, ModelFiles, find, find_folder
from tamis.models.network import Build
from tamis.models.outputs import sigmoid
from tamis.models.text_model import TextModel
from tamis.operators import operator
from tamis.text.classifiers import ClassifierRunner, Columns, PublishedClassifier

LLAMA_GUARD = "meta-llama/LlamaGuard-7b"
AEGIS = "nvidia/Aegis-AI-Content-Safety-LlamaGuard-Defensive-1.0"
AEGIS_LABELS = ("unknown", "safe", *(f"O{number}" for number in range(1, 14)))
"""O1 to O13 are the categories of the policy in the prompt (Ghosh et al. 2024)."""
AEGIS_TOKENS = 4096


class _AegisBuild:
    """Makes the network of Aegis from its folders. It is also the key under which the steps of a worker share it."""

    def __init__(self, adapter: Path, guard: Path | None = None) -> None:
        self.adapter, self.guard = adapter, guard
        files = [adapter / "adapter_model.safetensors", *([guard / "model.safetensors"] if guard is not None else [])]
        stats = [(file.absolute().as_posix(), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        self.__qualname__ = f"Aegis {stats}"

    def __call__(self, folder: Path, config: dict[str, Any]) -> Any:
        from tamis.models import architectures

        if self.guard is None:
            return architectures.build_aegis(folder, self.adapter)
        return architectures.build_guarded_aegis(folder, self.adapter, self.guard)


def _adapter(variant: str | Path) -> Path:
    return find_folder(variant, ("adapter_config.json", "adapter_model.safetensors"))


def prompt_around(card: str) -> tuple[str, str] | None:
    """What comes before and after the text in the prompt of a model card: from [INST] to [/INST], around a conversation."""
    start = card.find("[INST]")
    end = card.find("[/INST]", start)
    prompt = card[start : end + len("[/INST]")] if 0 <= start < end else ""
    opening, closing = "<BEGIN CONVERSATION>", "<END CONVERSATION>"
    if opening not in prompt or closing not in prompt.partition(opening)[2]:
        return None
    before, _, rest = prompt.partition(opening)
    return f"{before}{opening}\n\nUser: ", f"\n\n{closing}{rest.partition(closing)[2]}"


@operator(reads="text", writes="aegis_pred")
class AegisClassifier(PublishedClassifier):
    """Add whether each document is safe: "safe", one of the categories "O1" to "O13", or "unknown" if the answer is neither.

    LlamaGuard 7B (`base_model`) with the adapter `aegis_variant`, the defensive or the permissive one of Aegis (Ghosh et al.
    2024). The first `max_chars` characters of a text are put into the prompt that the adapter was trained with, which is in
    its model card: README.md in its folder, or `prompt.txt` with {text} in place of the text. The label is the second line
    of the answer if the first is "unsafe". `keep_raw_output` adds the answer. Needs `tamis[models]` and, for the published
    weights, 14 GB of GPU memory; both folders must be on this machine.

    >>> AegisClassifier(filter_by=["safe"]).rules()[0].score
    'aegis_pred'
    """

    aegis_variant: str | Path = AEGIS
    base_model: str | Path = LLAMA_GUARD
    label_field: str = "aegis_pred"
    raw_output_field: str = "_aegis_raw_pred"
    keep_raw_output: bool = False
    max_chars: int | None = 6000

    max_tokens = AEGIS_TOKENS
    reads_texts_as_they_are = False

    def check(self) -> None:
        super().check()
        self.prompt()

    def files(self) -> ModelFiles:
        return find(self.base_model)

    def build(self) -> Build:
        return _AegisBuild(_adapter(self.aegis_variant))

    def labels(self) -> Sequence[str]:
        return AEGIS_LABELS

    def identity(self) -> dict[str, Any]:
        return _with_adapter(super().identity(), self.aegis_variant) | {"prompt": self.prompt()}

    def prompt(self) -> tuple[str, str]:
        """What comes before and after the text."""
        folder = _adapter(self.aegis_variant)
        own, card = folder / "prompt.txt", folder / "README.md"
        if own.is_file():
            before, found, after = own.read_text(encoding="utf-8").partition("{text}")
            if found:
                return before, after
        around = prompt_around(card.read_text(encoding="utf-8")) if card.is_file() else None
        if around is None:
            raise ModelError(
                f"the prompt of {self.aegis_variant} is missing: neither its model card nor prompt.txt contains it",
                hint=f"put README.md of the model into {folder}, or prompt.txt with {{text}} in place of the text",
            )
        return around

    def open(self, context: Context) -> ClassifierRunner:
        model = TextModel.open(
            self.files(),
            context,
            build=self.build(),
            max_tokens=self.max_tokens,
            batch_size=self.model_inference_batch_size,
        )
        before, after = self.prompt()
        decode = model.decode

        def prompts(column: Column) -> Column:
            cut = column if self.max_chars is None else pc.utf8_slice_codeunits(column, 0, self.max_chars)
            texts = pc.fill_null(cut, "").to_pylist()
            return pa.array([f"{before}{text}{after}" for text in texts], pa.large_string())

        def columns(outputs: np.ndarray) -> Columns:
            answers = [decode([int(token) for token in row if token >= 0]) for row in outputs]
            found: dict[str, np.ndarray | Column] = {"aegis_pred": pa.array(map(answer_label, answers), pa.string())}
            return found | ({"raw": pa.array(answers, pa.string())} if self.keep_raw_output else {})

        return ClassifierRunner(model, prompts, columns)

    def score_columns(self) -> dict[str, str]:
        return {"aegis_pred": self.label_field} | ({"raw": self.raw_output_field} if self.keep_raw_output else {})


def answer_label(answer: str) -> str:
    """The label in an answer of Aegis.

    >>> answer_label(" unsafe\\nO3"), answer_label("safe"), answer_label("unsafe\\nO3,O4"), answer_label("I cannot say")
    ('O3', 'safe', 'unknown', 'unknown')
    """
    first, *rest = (line.strip() for line in answer.split("\n"))
    if first == "safe":
        return "safe"
    return rest[0] if first == "unsafe" and rest and rest[0] in AEGIS_LABELS[2:] else "unknown"


@operator(reads="text", writes=("is_poisoned", "instruction_data_guard_poisoning_score"))
class InstructionDataGuardClassifier(PublishedClassifier):
    """Add how probable it is that an instruction with its response carries a poisoning attack, and whether it exceeds 0.5.

    nvidia/instruction-data-guard: a small network on the last hidden state of Aegis (`base_model` with `aegis_variant`). It
    expects English texts such as "Instruction: ... Input: ... Response: ...". Review what it finds: it also finds harmless
    texts. Needs `tamis[models]` and, for the published weights, 14 GB of GPU memory.
    """

    model: str | Path = "nvidia/instruction-data-guard"
    aegis_variant: str | Path = AEGIS
    base_model: str | Path = LLAMA_GUARD
    label_field: str = "is_poisoned"
    score_field: str = "instruction_data_guard_poisoning_score"
    filter_by: Sequence[bool] = ()  # type: ignore[assignment]

    max_tokens = AEGIS_TOKENS
    reads_texts_as_they_are = False

    def files(self) -> ModelFiles:
        return find(self.base_model)

    def build(self) -> Build:
        return _AegisBuild(_adapter(self.aegis_variant), self._guard())

    def labels(self) -> Sequence[Any]:
        return (True, False)

    def identity(self) -> dict[str, Any]:
        return _with_adapter(super().identity(), self.aegis_variant, self._guard() / "model.safetensors")

    def _guard(self) -> Path:
        return find_folder(self.model, ("config.json", "model.safetensors"))

    def score_columns(self) -> dict[str, str]:
        return dict(zip(self.declared_writes, (self.label_field, self.score_field), strict=True))

    def columns(self, outputs: np.ndarray) -> Columns:
        chance = sigmoid(outputs[:, 0])
        return {"is_poisoned": chance >= 0.5, "instruction_data_guard_poisoning_score": chance}


def _with_adapter(identity: dict[str, Any], variant: str | Path, *more: Path) -> dict[str, Any]:
    """The identity of a step, with the names of folders replaced by what they contain."""
    from tamis.models.fasttext import fingerprint

    files = [_adapter(variant) / "adapter_model.safetensors", _adapter(variant) / "adapter_config.json", *more]
    named = ("aegis_variant", "base_model")
    parameters = {name: value for name, value in identity["parameters"].items() if name not in named}
    return identity | {"parameters": parameters, "adapter": [fingerprint(file) for file in files]}
