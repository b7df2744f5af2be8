"""The published classifiers: labels, columns and filters, on small networks in the published layouts."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from tamis import Pipeline, Rows
from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import ParameterError
from tamis.models.devices import why_not_gpu
from tamis.models.files import ModelError
from tamis.registry import build_operator
from tamis.text.classifiers import (
    ContentTypeClassifier,
    DomainClassifier,
    FineMathClassifier,
    FineWebEduClassifier,
    FineWebMixtralEduClassifier,
    FineWebNemotronEduClassifier,
    MultilingualDomainClassifier,
    PromptTaskComplexityClassifier,
    QualityClassifier,
)
from tamis.text.neural import Tokenize
from tamis.text.safety import LLAMA_GUARD, AegisClassifier, InstructionDataGuardClassifier, answer_label
from tests.models.make_networks import DEBERTA, PROMPT, QUALITY, TARGETS, TASKS, TEXT, put_in_cache

ALL = [
    QualityClassifier, DomainClassifier, MultilingualDomainClassifier, ContentTypeClassifier, FineWebEduClassifier,
    FineWebMixtralEduClassifier, FineWebNemotronEduClassifier, AegisClassifier, InstructionDataGuardClassifier,
    PromptTaskComplexityClassifier, FineMathClassifier,
]  # fmt: skip

TEXTS = [*TEXT, "", "x", "Rain falls! On rivers!", "watches and pills " * 40, "free", "loops; loops, loops?", "a text."]


@pytest.fixture(autouse=True)
def cache(small_classifiers, monkeypatch):
    """All networks are in the Hugging Face cache."""
    monkeypatch.setenv("HF_HUB_CACHE", str(small_classifiers))
    return small_classifiers


def scored(step, texts, device="cpu"):
    context = Context(device=device)
    try:
        found = step.open(context).score(Batch(pa.table({"text": pa.array(texts, pa.string())})))
        return {step.score_columns()[name]: pa.array(values).to_pylist() for name, values in found.items()}
    finally:
        context.close()


def encoded(folder, text, most):
    """The ids of one text, by the tokenizer alone."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(most)
    return torch.tensor([tokenizer.encode(text).ids])


def deberta_states(folder, prefix, text, most):
    """The hidden states of a backbone for one text, by transformers' own module."""
    weights = load_file(folder / "model.safetensors")
    backbone = transformers.DebertaV2Model(transformers.DebertaV2Config(**DEBERTA)).eval()
    backbone.load_state_dict({k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)})
    with torch.inference_mode():
        return backbone(encoded(folder, text, most)).last_hidden_state[0], weights


@pytest.mark.parametrize(
    ("step", "most"), [(QualityClassifier, 1024), (DomainClassifier, 512), (ContentTypeClassifier, 1024)]
)
def test_labels_and_probabilities_are_those_of_transformers(cache, step, most):
    folder = put_in_cache(cache, step().model)
    texts = [*TEXTS, "pills now free prize " * 600]
    found = scored(step(score_field="probs", max_chars=None), texts)
    label_field = step().label_field
    assert list(found) == [label_field, "probs"]
    names = json.loads((folder / "config.json").read_text())["id2label"]
    for row, text in enumerate(texts):
        states, weights = deberta_states(folder, "model.", text, most)
        expected = torch.softmax(weights["fc.weight"] @ states[0] + weights["fc.bias"], 0)
        np.testing.assert_allclose(found["probs"][row], expected, atol=1e-5)
        assert found[label_field][row] == names[str(int(expected.argmax()))]
    assert len(set(found[label_field])) > 1


def test_max_chars_limits_what_the_network_reads():
    long = "Cheap watches, cheap pills, click here. " * 100
    short, whole = scored(QualityClassifier(score_field="p", max_chars=30), [long, long[:30]])["p"]
    assert short == pytest.approx(whole, abs=1e-5)
    assert scored(QualityClassifier(score_field="p"), [long])["p"][0] != pytest.approx(short, abs=1e-3)


@pytest.mark.parametrize("step", [FineWebEduClassifier, FineWebMixtralEduClassifier, FineWebNemotronEduClassifier])
def test_points_are_clipped_rounded_and_labelled(cache, step):
    folder = put_in_cache(cache, step().model)
    model = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
    found = scored(step(), TEXTS)
    name = step().label_field.removesuffix("-label")
    assert list(found) == [f"{name}-label", f"{name}-float", f"{name}-int"]
    seen = set()
    for row, text in enumerate(TEXTS):
        with torch.inference_mode():
            points = float(model(encoded(folder, text, 64)).logits[0, 0])
        assert found[f"{name}-float"][row] == pytest.approx(min(5.0, max(0.0, points)), abs=1e-4)
        assert found[f"{name}-int"][row] == round(found[f"{name}-float"][row])
        assert found[f"{name}-label"][row] == ("high_quality" if points >= 2.5 else "low_quality")
        seen.add(round(points, 3))
    assert len(seen) > 1


def test_points_on_a_bound():
    points = np.array([[-3.0], [0.5], [1.5], [2.5], [2.4999], [4.6], [9.0]], np.float32)
    label, number, whole = FineWebEduClassifier().columns(points).values()
    assert label.to_pylist() == ["low_quality"] * 3 + ["high_quality", "low_quality"] + ["high_quality"] * 2
    assert number.tolist() == pytest.approx([0, 0.5, 1.5, 2.5, 2.4999, 4.6, 5.0])
    assert whole.tolist() == [0, 0, 2, 2, 2, 5, 5]  # halves to the even number, as Python rounds


class TestFineMath:
    def test_it_reads_the_middle_of_a_long_text(self):
        text = "a" * 300 + "Cheap watches, cheap pills" + "b" * 304
        step = FineMathClassifier(center_crop_chars=10)
        assert step.texts(pa.array([text, "short", None, "c" * 20, "d" * 21])).to_pylist() == [
            text[315 - 10 : 315 + 10], "short", None, "c" * 20, "d" * 20,
        ]  # fmt: skip
        assert FineMathClassifier(center_crop_chars=None).texts(pa.array([text])).to_pylist() == [text]

    def test_columns(self):
        found = scored(FineMathClassifier(), TEXTS)
        assert list(found) == ["finemath_scores", "finemath_int_scores"]
        assert found["finemath_int_scores"] == [round(points) for points in found["finemath_scores"]]


class TestPromptTaskComplexity:
    def test_it_follows_the_formulas_of_the_model_card(self, cache):
        folder = put_in_cache(cache, PromptTaskComplexityClassifier().model)
        found = scored(PromptTaskComplexityClassifier(), TEXTS)
        assert list(found) == list(PromptTaskComplexityClassifier.declared_writes)
        for row, text in enumerate(TEXTS):
            states, weights = deberta_states(folder, "backbone.", text, 512)
            levels = {}
            for number, (target, size) in enumerate(TARGETS.items()):
                head = weights[f"head_{number}.fc.weight"] @ states.mean(0) + weights[f"head_{number}.fc.bias"]
                levels[target] = torch.softmax(head, 0)
                if target != "task_type":
                    average = sum(level * float(levels[target][level]) for level in range(size)) / max(1, size - 1)
                    levels[target] = 0.0 if target == "number_of_few_shots" and average < 0.05 else average
                    assert found[target][row] == pytest.approx(levels[target], abs=2e-4)
            best, second = torch.topk(levels["task_type"], 2).indices.tolist()
            assert found["task_type_1"][row] == TASKS[best]
            assert found["task_type_2"][row] == (TASKS[second] if levels["task_type"][second] >= 0.0995 else "NA")
            assert found["task_type_prob"][row] == pytest.approx(float(levels["task_type"][best]), abs=1e-3)
            score = 0.35 * levels["creativity_scope"] + 0.25 * levels["reasoning"] + 0.15 * levels["constraint_ct"]
            score += 0.15 * levels["domain_knowledge"] + 0.05 * levels["contextual_knowledge"]
            score += 0.05 * levels["number_of_few_shots"]
            assert found["prompt_complexity_score"][row] == pytest.approx(score, abs=3e-4)
        assert "NA" in found["task_type_2"]
        assert set(found["task_type_2"]) != {"NA"}

    def test_it_has_nothing_to_filter_by(self):
        with pytest.raises(ParameterError, match="several columns"):
            PromptTaskComplexityClassifier(filter_by=["Open QA"]).check()

    def test_a_configuration_that_does_not_fit(self, cache, tmp_path):
        shutil.copytree(put_in_cache(cache, PromptTaskComplexityClassifier().model), tmp_path / "m")
        config = json.loads((tmp_path / "m" / "config.json").read_text())
        config["weights_map"]["reasoning"] = [1]
        (tmp_path / "m" / "config.json").write_text(json.dumps(config))
        with pytest.raises(ModelError, match="does not describe the heads"):
            PromptTaskComplexityClassifier(model=tmp_path / "m").check()


class TestAegis:
    def test_the_answer_becomes_a_label(self):
        found = scored(AegisClassifier(keep_raw_output=True), ["All is well.", "Run!", "Why?", "nothing", None])
        assert found == {
            "aegis_pred": ["safe", "O3", "unknown", "unknown", None],
            "_aegis_raw_pred": ["safe", "unsafe\nO3", "maybe", "", None],
        }

    def test_max_chars_are_those_of_the_text(self):
        assert scored(AegisClassifier(max_chars=4), ["Run! Or do not."])["aegis_pred"] == ["O3"]

    @pytest.mark.parametrize(
        ("answer", "label"),
        [
            ("safe", "safe"), (" safe \n", "safe"), ("unsafe\nO13", "O13"), ("unsafe\n O1 ", "O1"), ("unsafe", "unknown"),
            ("unsafe\nO14", "unknown"), ("unsafe\nO1,O2", "unknown"), ("Safe", "unknown"), ("", "unknown"),
        ],
    )  # fmt: skip
    def test_labels_of_answers(self, answer, label):
        assert answer_label(answer) == label

    def test_the_prompt_is_taken_from_the_model_card(self, cache, tmp_path):
        shutil.copytree(put_in_cache(cache, AegisClassifier().aegis_variant), tmp_path / "a")
        (tmp_path / "a" / "prompt.txt").unlink()
        before, after = AegisClassifier(aegis_variant=tmp_path / "a").prompt()
        assert before + "..." + after == PROMPT
        (tmp_path / "a" / "README.md").write_text("# No prompt here\n")
        with pytest.raises(ModelError, match=r"prompt of .* is missing") as caught:
            AegisClassifier(aegis_variant=tmp_path / "a").check()
        assert "prompt.txt" in str(caught.value.hint)

    def test_another_adapter_is_another_step(self, cache, tmp_path):
        shutil.copytree(put_in_cache(cache, AegisClassifier().aegis_variant), tmp_path / "a")
        same, other = AegisClassifier(), AegisClassifier(aegis_variant=tmp_path / "a")
        assert same.identity() == other.identity()
        weights = load_file(tmp_path / "a" / "adapter_model.safetensors")
        save_file({name: value + 1 for name, value in weights.items()}, tmp_path / "a" / "adapter_model.safetensors")
        assert same.identity() != other.identity()

    def test_data_guard(self):
        found = scored(InstructionDataGuardClassifier(), TEXTS)
        assert list(found) == ["is_poisoned", "instruction_data_guard_poisoning_score"]
        scores = found["instruction_data_guard_poisoning_score"]
        assert found["is_poisoned"] == [score >= 0.5 for score in scores]
        assert len({round(score, 4) for score in scores}) > 1
        assert len(set(found["is_poisoned"])) == 2


@pytest.mark.gpu
@pytest.mark.skipif(why_not_gpu("torch") is not None, reason="there is no GPU that torch can use")
@pytest.mark.parametrize("step", ALL)
def test_a_gpu_gives_nearly_the_same_result(step):
    """Numbers up to the precision of bfloat16, which random weights amplify; labels where they are not close."""
    texts = [*TEXTS, None]
    expected, found = scored(step(), texts), scored(step(), texts, "cuda:0")
    for name, values in expected.items():
        assert [value is None for value in found[name]] == [value is None for value in values]
        pairs = [(value, other) for value, other in zip(values, found[name], strict=True) if value is not None]
        if isinstance(pairs[0][0], float):
            assert max(abs(value - other) for value, other in pairs) < 0.25
        else:
            assert sum(value == other for value, other in pairs) >= 0.7 * len(pairs)
    if step is AegisClassifier:
        assert found == expected


class TestAsSteps:
    @pytest.mark.parametrize("step", ALL)
    def test_batch_size_and_order_do_not_matter(self, step):
        texts = [*TEXTS, None]
        expected = scored(step(), texts)
        for found in (scored(step(model_inference_batch_size=1), texts), scored(step(), texts[::-1])):
            for name, values in expected.items():
                ordered = found[name] if found[name][-1] is None else found[name][::-1]
                assert ordered[-1] is None
                for value, other in zip(values[:-1], ordered[:-1], strict=True):
                    assert other == (pytest.approx(value, abs=1e-4) if isinstance(value, float) else value)

    @pytest.mark.parametrize(
        ("step", "label"),
        [(QualityClassifier, "High"), (FineWebEduClassifier, "high_quality"), (AegisClassifier, "safe")],
    )
    def test_filter_by_keeps_labelled_rows_and_says_why_others_are_dropped(self, step, label):
        rows = [{"text": text, "n": n} for n, text in enumerate([*TEXTS, None])]
        field = step().label_field
        every = Pipeline(Rows(rows), step()).collect(executor="inline").to_pylist()
        assert [row["n"] for row in every] == list(range(len(rows)))
        kept = Pipeline(Rows(rows), step(filter_by=[label])).collect(executor="inline").to_pylist()
        assert kept == [row for row in every if row[field] == label]
        assert 0 < len(kept) < len(rows) - 1
        report = Pipeline(Rows(rows), step(filter_by=[label])).run(executor="inline")
        assert report.balances
        assert report.dropped == {
            f"{step.declared_writes[0]} is missing": 1,
            f"{step.declared_writes[0]} not in {label}": len(rows) - len(kept) - 1,
        }
        only = Pipeline(Rows(rows), step(filter_by=[label], score_only=True)).collect(executor="inline").to_pylist()
        assert only == every

    @pytest.mark.parametrize("step", [QualityClassifier, FineWebEduClassifier, PromptTaskComplexityClassifier])
    def test_tokens_that_cpu_workers_make_give_the_same_labels(self, step):
        """On a GPU, this is how a run divides the step."""
        rows = [{"text": text} for text in [*TEXTS, None]]
        plain = step(max_chars=50)
        divided = [
            Tokenize(plain.model, output="t", max_tokens=plain.max_tokens, max_chars=50),
            plain.changed(tokens="t"),
        ]
        expected = Pipeline(Rows(rows), plain).collect(executor="inline").to_pylist()
        found = Pipeline(Rows(rows), *divided).collect(executor="inline").to_pylist()
        for row, other in zip(found, expected, strict=True):
            assert row.keys() == other.keys()
            for name, value in row.items():
                assert value == (pytest.approx(other[name], abs=1e-4) if isinstance(value, float) else other[name])

    def test_data_guard_filters_by_true_or_false(self):
        rows = [{"text": text} for text in TEXTS]
        kept = (
            Pipeline(Rows(rows), InstructionDataGuardClassifier(filter_by=[False]))
            .collect(executor="inline")
            .to_pylist()
        )
        assert 0 < len(kept) < len(rows)
        assert {row["is_poisoned"] for row in kept} == {False}

    def test_other_columns_and_names(self):
        step = QualityClassifier(column="body", label_field="q", score_field="p")
        row = Pipeline(Rows([{"body": TEXT[0], "text": "x"}]), step).collect(executor="inline").to_pylist()[0]
        assert row.keys() == {"body", "text", "q", "p"}
        assert row["q"] in QUALITY
        assert sum(row["p"]) == pytest.approx(1)

    def test_a_row_whose_output_is_not_a_number_fails_alone(self, cache, tmp_path):
        folder = tmp_path / "m"
        shutil.copytree(put_in_cache(cache, QualityClassifier().model), folder)
        word = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("prize").ids[1]
        weights = load_file(folder / "model.safetensors")
        weights["model.embeddings.word_embeddings.weight"][word] = torch.nan
        save_file(weights, folder / "model.safetensors")
        rows = [{"text": text} for text in ["rain", "a prize", "rivers", "fields"]]
        report = Pipeline(Rows(rows), QualityClassifier(model=folder)).run(
            executor="inline", on_error="isolate", max_failed=1
        )
        assert (report.kept, report.failed) == (3, 1)
        assert report.balances

    def test_more_labels_than_outputs(self, cache, tmp_path):
        folder = tmp_path / "m"
        shutil.copytree(put_in_cache(cache, QualityClassifier().model), folder)
        config = json.loads((folder / "config.json").read_text())
        config["id2label"]["3"] = "Perfect"
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(ModelError, match="has the shape"):
            QualityClassifier(model=folder).open(Context())
        config["id2label"] = {"0": "High", "2": "Low", "5": "Lower"}
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(ModelError, match="no names of labels"):
            QualityClassifier(model=folder).check()

    def test_a_model_with_several_outputs_is_not_a_regression(self):
        with pytest.raises(ModelError, match="has 3 outputs"):
            FineWebEduClassifier().columns(np.zeros((2, 3), np.float32))

    def test_an_unknown_label_is_found_before_the_run(self):
        with pytest.raises(ParameterError, match="no label 'Hihg'") as caught:
            QualityClassifier(filter_by=["Hihg"]).check()
        assert "High" in str(caught.value.hint)

    @pytest.mark.parametrize(
        ("step", "message"),
        [
            (QualityClassifier(label_field="x", score_field="x"), "would add two columns named `x`"),
            (QualityClassifier(label_field="text"), "would replace the column `text`, which it reads"),
            (QualityClassifier(label_field="text", tokens="t"), "would replace the column `text`, which it reads"),
            (FineWebEduClassifier(column="body", int_score_column="body"), "would replace the column `body`"),
            (PromptTaskComplexityClassifier(column="reasoning"), "would replace the column `reasoning`"),
            (QualityClassifier(score_field=""), "cannot add a column named ''"),
        ],
    )
    def test_columns_that_would_be_lost_are_found_before_the_run(self, step, message):
        with pytest.raises(ParameterError, match=message):
            step.check()

    @pytest.mark.parametrize("step", ALL)
    def test_missing_weights_are_named_with_their_place(self, step, tmp_path, monkeypatch):
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty"))
        monkeypatch.setenv("TAMIS_MODELS", str(tmp_path / "models"))
        with pytest.raises(ModelError) as caught:
            step().check()
        text = str(caught.value)
        assert (LLAMA if hasattr(step(), "base_model") else str(step().model)) in text
        assert "safetensors" in text
        assert str(tmp_path / "models") in text or ".cache" in text

    def test_the_snippet_of_the_memory_guide_runs(self):
        from tamis.text import QualityClassifier as Named

        classifier = Named(model_inference_batch_size=64, max_chars=3000)
        assert (
            Pipeline(Rows([{"text": TEXT[0]}]), classifier).collect(executor="inline")["quality_pred"][0].as_py()
            in QUALITY
        )

    def test_recipes_name_published_models(self, tmp_path):
        step = build_operator(
            "quality_classifier", {"filter_by": ["High"], "model": "nvidia/quality-classifier-deberta"}
        )
        assert step == QualityClassifier(filter_by=["High"])

    def test_parameters_of_nemo_curator_that_are_not_needed_are_explained(self):
        with pytest.raises(ParameterError, match="autocast") as caught:
            QualityClassifier(autocast=True)
        assert "remove it" in str(caught.value.hint)


LLAMA = LLAMA_GUARD
