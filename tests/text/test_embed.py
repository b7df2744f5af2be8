"""Embeddings: equal to sentence-transformers, in input order, as columns that other libraries read."""

import json
import warnings

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tamis import ArrowWriter, ParquetWriter, Pipeline, Rows
from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import ParameterError, TooManyFailed
from tamis.executors.opening import opened
from tamis.models.files import ModelError, find
from tamis.text import Classifier, Embed, Tokenize
from tests.models.make_models import write_classifier, write_encoder, write_onnx, write_quantising, write_word_counts

TEXTS = [
    "The cat sat on a mat.",
    "",
    "one",
    "two three " * 400,
    "A kitten sits on the rug.",
    "Stocks fell.",
    "x" * 3000,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_encoder(tmp_path_factory.mktemp("models") / "encoder")


def sentence_transformer(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(str(path), device="cpu")


def vectors_of(step, texts):
    with opened(step) as runner:
        return runner.vectors(pa.array(texts, pa.string()))


def cosine(one, other):
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def test_minilm_equals_sentence_transformers_and_knows_what_texts_mean():
    found = vectors_of(Embed(), TEXTS)
    expected = sentence_transformer(find("minilm").folder).encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert cosine(found[0], found[4]) > 0.5 > cosine(found[0], found[5])


@pytest.mark.parametrize("mode", ["cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"])
def test_pooling_and_dense_layers_are_those_of_the_folder(folder, tmp_path, mode):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer import modules

        parts = [
            modules.Transformer(str(folder)),
            modules.Pooling(32, pooling_mode=mode),
            modules.Dense(32, 8),
        ]
        model = SentenceTransformer(modules=parts, device="cpu")
    model.save(str(tmp_path / "model"))
    found = vectors_of(Embed(tmp_path / "model", normalize=False), TEXTS)
    np.testing.assert_allclose(found, model.encode(TEXTS), atol=1e-5)


def write_sentence_model(encoder, out, *later, pooling="mean", settings=None, **parameters):
    """A model of sentence-transformers in a folder; `settings` are added to those of its Transformer module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer import modules

        parts = [modules.Transformer(str(encoder)), modules.Pooling(32, pooling_mode=pooling), *later]
        SentenceTransformer(modules=parts, device="cpu", **parameters).save(str(out))
    if settings:
        change_json(out / "sentence_bert_config.json", **settings)
    return out


def change_json(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def assert_equal_to_sentence_transformers(path, texts=TEXTS):
    expected = sentence_transformer(path).encode(texts)
    np.testing.assert_allclose(vectors_of(Embed(path, normalize=False), texts), expected, atol=1e-5)


def test_texts_are_lowercased_where_the_folder_says_so(folder, tmp_path):
    model = write_sentence_model(folder, tmp_path / "model", settings={"do_lower_case": True})
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    for normalizer in ({"type": "NFC"}, None, {"type": "Sequence", "normalizers": [{"type": "NFC"}]}):
        tokenizer["normalizer"] = normalizer
        (model / "tokenizer.json").write_text(json.dumps(tokenizer))
        assert_equal_to_sentence_transformers(model, ["The CAT sat", "the cat sat", "MAT", ""])
        upper, lower = vectors_of(Embed(model), ["The CAT sat", "the cat sat"])
        np.testing.assert_array_equal(upper, lower)
    (model / "sentence_bert_config.json").rename(model / "sentence_roberta_config.json")
    assert_equal_to_sentence_transformers(model, ["The CAT sat", "MAT"])


def test_the_default_prompt_of_the_folder_precedes_each_text(folder, tmp_path):
    prompts = {"query": "the old mill: ", "other": "river"}
    model = write_sentence_model(folder, tmp_path / "model", prompts=prompts, default_prompt_name="query")
    assert_equal_to_sentence_transformers(model)
    plain = vectors_of(Embed(folder), [prompts["query"] + text for text in TEXTS])
    np.testing.assert_allclose(vectors_of(Embed(model), TEXTS), plain, atol=1e-5)
    np.testing.assert_allclose(vectors_of(Embed(model, max_chars=3), TEXTS[:1]), vectors_of(Embed(model), ["The"]))
    rows = Rows([{"text": text} for text in [*TEXTS, None]])
    found = Pipeline(rows, Tokenize(model, output="ids"), Embed(model, tokens="ids")).collect(executor="inline")
    assert found["embedding"][len(TEXTS)].as_py() is None
    np.testing.assert_allclose(found["embedding"].to_pylist()[:-1], plain, atol=1e-5)
    change_json(model / "config_sentence_transformers.json", default_prompt_name=None)
    assert_equal_to_sentence_transformers(model)
    change_json(model / "config_sentence_transformers.json", default_prompt_name="missing")
    with pytest.raises(ModelError, match="'missing', for which `prompts` has no text"):
        vectors_of(Embed(model), ["a"])


def test_normalization_before_a_dense_layer_and_fewer_dimensions_are_those_of_the_folder(folder, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sentence_transformers.sentence_transformer import modules

    pooling = ("max", "cls", "mean")
    later = [modules.Normalize(), modules.Dense(96, 8)]
    model = write_sentence_model(folder, tmp_path / "model", *later, pooling=pooling, truncate_dim=5)
    assert_equal_to_sentence_transformers(model)
    older = {f"pooling_mode_{name}": True for name in ("mean_tokens", "max_tokens", "cls_token")}
    (model / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **older}))
    assert_equal_to_sentence_transformers(model)


@pytest.mark.parametrize(
    ("file", "values", "error"),
    [
        ("1_Pooling/config.json", {"include_prompt": False}, "excludes the prompt from pooling"),
        ("1_Pooling/config.json", {"pooling_mode": "median"}, "pooling 'median' in .* is not supported"),
        ("1_Pooling/config.json", {"pooling_mode": []}, "chooses no pooling"),
        ("2_Dense/config.json", {"use_residual": True}, "adds its input to its output"),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "is 'token_embeddings'"),
        ("2_Dense/config.json", {"activation_function": "own.GELU"}, "activation own.GELU"),
        ("config_sentence_transformers.json", {"truncate_dim": 0}, "`truncate_dim` in .* is 0"),
    ],
)
def test_settings_of_a_folder_that_are_not_supported_are_named(folder, tmp_path, file, values, error):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sentence_transformers.sentence_transformer import modules

    model = write_sentence_model(
        folder, tmp_path / "model", modules.Dense(32, 8), prompts={"query": "the "}, default_prompt_name="query"
    )
    change_json(model / file, **values)
    with pytest.raises(ModelError, match=error):
        vectors_of(Embed(model), ["a"])


def test_vectors_do_not_depend_on_batches(folder):
    together = vectors_of(Embed(folder), TEXTS)
    for step in (Embed(folder, batch_size=1), Embed(folder, batch_size=3)):
        np.testing.assert_allclose(vectors_of(step, TEXTS), together, atol=1e-5)
    alone = np.concatenate([vectors_of(Embed(folder), [text]) for text in TEXTS])
    np.testing.assert_allclose(alone, together, atol=1e-5)


def test_windows_are_averaged(folder):
    whole = "the cat sat on the mat and ran to the old mill by the river " * 20
    step = Embed(folder, normalize=False, max_tokens=22)
    found = vectors_of(step.changed(long_texts="windows"), [whole])
    words = whole.split()
    assert len(words) == 300
    parts = [" ".join(words[start : start + 20]) for start in range(0, 300, 20)]
    np.testing.assert_allclose(found[0], vectors_of(step, parts).mean(axis=0), atol=1e-5)


def test_head_and_tail_are_read(folder):
    words = [f"{'the' if number % 2 else 'mat'}" for number in range(200)]
    step = Embed(folder, max_tokens=18)
    found = vectors_of(step.changed(long_texts="head_tail"), [" ".join(words)])
    np.testing.assert_allclose(found, vectors_of(step, [" ".join(words[:4] + words[-12:])]), atol=1e-5)


def test_tokens_of_another_worker_give_the_same_vectors(folder):
    for long_texts in ("truncate", "head_tail", "windows"):
        first = Tokenize(folder, output="ids", max_tokens=20, long_texts=long_texts)
        second = Embed(folder, tokens="ids", max_tokens=20, long_texts=long_texts)
        rows = Rows([{"text": text} for text in [*TEXTS, None]])
        found = Pipeline(rows, first, second).collect(executor="inline")
        expected = Pipeline(rows, second.changed(tokens=None)).collect(executor="inline")
        assert found.column_names == expected.column_names == ["text", "embedding"]
        for one, other in zip(found["embedding"].to_pylist(), expected["embedding"].to_pylist(), strict=True):
            assert one == (None if other is None else pytest.approx(other, abs=1e-5))


@pytest.mark.parametrize("make", [Embed, lambda folder: Classifier(folder, label_field="embedding")])
def test_tokens_of_another_worker_replace_no_column(make, tmp_path, monkeypatch):
    with monkeypatch.context() as gpu:
        gpu.setattr("tamis.text.neural.why_not_gpu", lambda library: None)
        first, second = make(write_classifier(tmp_path / "model")).parts()
    assert isinstance(first, Tokenize)
    names = ("embedding_tokens", "embed_tokens", "classifier_tokens", "tokens")
    table = Pipeline(Rows([{"text": "a cat", **dict.fromkeys(names, 7)}]), first, second).collect(executor="inline")
    assert all(table[name].to_pylist() == [7] for name in names)
    assert set(table.column_names) == {"text", "embedding", *names} | set(second.writes())


def test_a_long_text_is_embedded_like_its_start(folder):
    text = "the cat sat on the mat " * 500_000
    assert len(text) > 10_000_000
    found = vectors_of(Embed(folder), [text, text[:5000]])
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_other_libraries_read_the_vectors(folder, tmp_path, dtype):
    rows = [{"id": number, "text": text} for number, text in enumerate(TEXTS)]
    Pipeline(Rows(rows), Embed(folder, dtype=dtype), ParquetWriter(str(tmp_path / "out"))).run(executor="inline")
    Pipeline(Rows(rows), Embed(folder, dtype=dtype), ArrowWriter(str(tmp_path / "arrow"))).run(executor="inline")
    expected = vectors_of(Embed(folder), TEXTS).astype(dtype)
    (file,) = (tmp_path / "arrow").glob("*.arrow")
    kind = pa.ipc.open_file(pa.OSFile(str(file))).schema.field("embedding").type
    assert kind == pa.list_(getattr(pa, dtype)(), 32)
    pattern = str(tmp_path / "out" / "*.parquet")
    pandas = pq.read_table(tmp_path / "out").to_pandas()
    np.testing.assert_array_equal(np.stack(pandas["embedding"].to_list()), expected)
    np.testing.assert_array_equal(np.stack(pl.read_parquet(pattern)["embedding"].to_list()).astype(dtype), expected)
    listed = duckdb.sql(f"select embedding from '{pattern}' order by id").fetchall()
    np.testing.assert_array_equal(np.array([row[0] for row in listed], dtype), expected)


def test_faiss_finds_the_nearest_text(folder, tmp_path):
    import faiss

    Pipeline(Rows([{"text": text} for text in TEXTS]), Embed(folder), ParquetWriter(str(tmp_path))).run(
        executor="inline"
    )
    column = pq.read_table(tmp_path)["embedding"].combine_chunks()
    matrix = np.ascontiguousarray(column.flatten().to_numpy().reshape(len(column), -1))
    index = faiss.IndexFlatIP(matrix.shape[1])
    index.add(matrix)
    _, nearest = index.search(matrix, 1)
    assert nearest[:, 0].tolist() == list(range(len(TEXTS)))


def test_a_text_whose_vector_is_not_a_number_fails_alone(folder, tmp_path):
    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    broken.mkdir()
    for file in folder.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    tensors = load_file(broken / "model.safetensors")
    vocabulary = json.loads((broken / "tokenizer.json").read_text())["model"]["vocab"]
    tensors["embeddings.word_embeddings.weight"][vocabulary["river"]] = float("nan")
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    texts = ["the cat", "old mill by the river", "one", "two"]
    with opened(Embed(broken)) as runner, pytest.raises(ValueError, match="not a number for 1 of 4 rows"):
        runner.apply(Batch(pa.table({"text": texts})))
    rows = Rows([{"text": text} for text in texts])
    report = Pipeline(rows, Embed(broken)).run(executor="inline", on_error="isolate", max_failed="100%")
    assert (report.kept, report.failed) == (3, 1)
    with pytest.raises(TooManyFailed):
        Pipeline(rows, Embed(broken)).run(executor="inline", on_error="isolate", max_failed=0)


def test_an_onnx_export_gives_the_vectors_of_its_network(folder, tmp_path):
    path = write_onnx(folder, tmp_path)
    np.testing.assert_allclose(vectors_of(Embed(path), TEXTS), vectors_of(Embed(folder), TEXTS), atol=1e-4)


def test_a_graph_with_a_pooler_gives_the_mean_of_its_tokens(folder, tmp_path):
    path = write_onnx(folder, tmp_path, outputs=("pooler_output", "last_hidden_state"))
    np.testing.assert_allclose(vectors_of(Embed(path), TEXTS), vectors_of(Embed(folder), TEXTS), atol=1e-4)


def test_a_graph_pools_and_cuts_vectors_as_its_folder_says(folder, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sentence_transformers.sentence_transformer import modules

    model = write_sentence_model(folder, tmp_path / "model", pooling="cls", truncate_dim=5)
    expected = vectors_of(Embed(model), TEXTS)
    identity = Embed(write_onnx(folder, tmp_path / "plain")).identity()
    write_onnx(folder, model)
    np.testing.assert_allclose(vectors_of(Embed(model / "model.onnx"), TEXTS), expected, atol=1e-4)
    (model / "model.safetensors").unlink()
    np.testing.assert_allclose(vectors_of(Embed(model), TEXTS), expected, atol=1e-4)
    assert Embed(model / "model.onnx").identity() != identity
    other = write_sentence_model(folder, tmp_path / "dense", modules.Dense(32, 8))
    with pytest.raises(ModelError, match="has steps after it that are not supported"):
        vectors_of(Embed(write_onnx(folder, other)), ["a"])


def test_a_graph_that_quantises_as_it_runs_gives_each_text_its_own_vector(tmp_path):
    path = write_quantising(tmp_path)
    texts = ["a b", "river cat", "the mat", "x good"]  # of as many tokens
    alone = [vectors_of(Embed(path, normalize=False), [text])[0].tolist() for text in texts]
    assert vectors_of(Embed(path, normalize=False), texts).tolist() == alone


@pytest.fixture
def word_counts(tmp_path):
    return write_word_counts(tmp_path / "counts.onnx", ("cat", "mat"))


def test_the_multilingual_model_puts_translations_near_each_other():
    texts = [
        "The cat sat on the mat.",
        "Die Katze sitzt auf der Matte.",
        "猫がマットの上に座った。",
        "Stocks fell on Monday.",
    ]
    found = vectors_of(Embed("use-multilingual"), texts)
    assert found.shape == (4, 512)
    similarity = found @ found.T
    assert similarity[0, 1:3].min() > 0.7
    assert similarity[:3, 3].max() < 0.4


def test_a_graph_of_raw_texts_gives_the_vector_of_each_text(word_counts):
    rows = [{"text": text} for text in ["cat mat cat", "a mat", "", None, "dog"]]
    table = Pipeline(Rows(rows), Embed(word_counts, normalize=False)).collect(executor="inline")
    assert table["embedding"].to_pylist() == [[2, 1], [0, 1], [0, 0], None, [0, 0]]
    unit = Pipeline(Rows(rows[:2]), Embed(word_counts)).collect(executor="inline")["embedding"].to_pylist()
    assert unit == [pytest.approx([0.8944, 0.4472], abs=1e-4), [0, 1]]


def test_long_texts_of_a_graph_of_raw_texts(word_counts, monkeypatch):
    monkeypatch.setattr("tamis.models.onnx.RAW_CHARS", 8)  # "cat cat " and so on

    def counted(**parameters):
        return vectors_of(Embed(word_counts, normalize=False, **parameters), ["cat cat mat mat mat mat"])[0].tolist()

    assert counted() == [2, 0]
    assert counted(max_chars=4) == [1, 0]
    assert counted(long_texts="head_tail") == [0, 1]  # "ca" and "at mat": 2 and 6 characters
    # "cat cat", " mat", " mat" and " mat mat", weighted by their characters
    expected = np.average([[2, 0], [0, 1], [0, 1], [0, 2]], axis=0, weights=[7, 4, 4, 8])
    assert counted(long_texts="windows") == pytest.approx(expected.tolist(), abs=1e-6)


def test_static_vectors_are_means(tmp_path, monkeypatch):
    from safetensors.numpy import save_file

    folder = tmp_path / "wordllama"
    write_encoder(folder)
    table = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float16)
    save_file({"embedding.weight": table}, folder / "l2_supercat_256.safetensors")
    (folder / "tokenizer.json").rename(folder / "l2_supercat_tokenizer_config.json")
    monkeypatch.setenv("TAMIS_MODELS", str(tmp_path))
    step = Embed("wordllama", normalize=False)
    if step._found().folder != folder:
        pytest.fail("the packaged model was found first")
    vocabulary = json.loads((folder / "l2_supercat_tokenizer_config.json").read_text())["model"]["vocab"]
    found = vectors_of(step, ["the cat the", ""])
    rows = [vocabulary[word] for word in ("the", "cat", "the")]
    np.testing.assert_allclose(found[0], table[rows].astype(np.float32).mean(axis=0), atol=1e-6)
    assert not found[1].any()


def test_the_identity_follows_the_content_of_the_model(folder, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert Embed(copy).identity() == Embed(folder).identity()
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (copy / "model.safetensors").write_bytes(data)
    assert Embed(copy).identity() != Embed(folder).identity()
    assert Embed(folder, batch_size=7, device="cpu").identity() == Embed(folder).identity()
    assert Embed(folder, max_tokens=7).identity() != Embed(folder).identity()


def test_wrong_parameters_are_explained(folder, tmp_path):
    with pytest.raises(ParameterError, match="`max_tokens` of `embed` must be at least 1"):
        Embed(folder, max_tokens=0).check()
    with pytest.raises(ModelError, match=r"there is no model 'minilmm'[\s\S]*did you mean `minilm`"):
        Embed("minilmm").check()
    with pytest.raises(ParameterError, match="no GPU"):
        Embed(folder, device="gpu").check()


def test_a_gpu_is_needed_only_if_requested(folder):
    assert Embed(folder, device="cpu").resources.gpus == 0
    assert Embed(folder).open(Context()).vectors(pa.array(["a"])).shape == (1, 32)
