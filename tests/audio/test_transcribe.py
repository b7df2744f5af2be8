"""Recognizers: real ones on real speech, and small ones of other architectures against transformers' own output."""

import json
import logging
import mmap
import re
import resource
import shutil

import numpy as np
import pyarrow as pa
import pytest
import torch

from tamis import Pipeline, Rows
from tamis.audio import AudioEmbed, AudioSamples, SentenceSegments, Transcribe, TranscriptAlignment, WordErrorRate
from tamis.audio.decode import RATE
from tamis.audio.files import encoded
from tamis.audio.transcribe import recognizer_resources
from tamis.batch import Batch
from tamis.context import Context
from tamis.dedup import SemanticDedup
from tamis.errors import ParameterError
from tamis.kernels.ctc import align
from tamis.models import mel
from tamis.models.files import ModelError
from tamis.models.moonshine import Moonshine
from tamis.models.recognizers import Wish, find_recognizer, open_recognizer, pieces
from tests.audio.speech import TEXT, seconds, speech


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    torch.set_num_threads(1)


def batch_of(*waves: np.ndarray, **columns: list) -> Batch:
    rows = [{"bytes": encoded(wave.reshape(1, -1), RATE, "flac"), "path": f"{n}.flac"} for n, wave in enumerate(waves)]
    media = pa.array(rows, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    return Batch(pa.table({"audio": media, **columns}))


def words_of(text):
    return "".join(letter for letter in text.lower() if letter.isalnum() or letter == " ").split()


def test_the_default_recognizer_reads_a_long_recording_in_pieces():
    found = Transcribe().open(Context()).apply(batch_of(speech(), seconds(1, 4)))
    rows = Batch.from_rows([{"transcript": found["transcript"][0].as_py(), "text": TEXT}])
    assert WordErrorRate().open(Context()).score(rows)["wer"][0] < 0.08
    assert found["transcript"][1].as_py().lower().startswith("it was the best of times")
    assert found["transcript_language"].to_pylist() == ["en", "en"]
    assert all(0.5 < value <= 1 for value in found["transcript_confidence"].to_pylist())


def test_the_fast_decoder_computes_what_the_graph_of_moonshine_computes():
    model = Moonshine(find_recognizer("moonshine-tiny"))
    decoder, clip = model._decoder, seconds(1, 4)
    assert decoder is not None
    model._decoder = None  # the graph alone
    tokens, expected = model._tokens(clip)
    scores, following = model._begin(clip, 30)
    model._decoder = decoder
    own_scores, own_following = model._begin(clip, 30)
    assert np.array_equal(own_scores, scores)
    # A number that lies between two 8-bit values may be rounded to the other one, which changes scores by a few tenths.
    for token in tokens:
        np.testing.assert_allclose(own_following(token), following(token), atol=1)
    found, logarithms = model._tokens(clip)
    assert found == tokens
    np.testing.assert_allclose(logarithms, expected, atol=0.1)


@pytest.mark.parametrize("model", ["moonshine-tiny", "whisper-tiny.en"])
def test_transcripts_do_not_depend_on_the_other_clips_of_a_batch(model):
    waves = [seconds(1, 4), seconds(4.5, 13), seconds(21, 25), seconds(1, 1.05)]
    step = Transcribe(model).open(Context())
    together = step.apply(batch_of(*waves))
    backwards = step.apply(batch_of(*waves[::-1]))
    for row, wave in enumerate(waves):
        alone = step.apply(batch_of(wave))
        for name, column in alone.items():
            assert column[0] == together[name][row] == backwards[name][len(waves) - 1 - row], (row, name)


def test_whisper_computes_one_clip_after_another_in_the_same_memory():
    recognizer = open_recognizer(find_recognizer("whisper-tiny.en"))
    clips = [seconds(1, 3)] * 4
    recognizer.transcribe(clips, Wish(max_tokens=2))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    recognizer.transcribe(clips, Wish(max_tokens=2))
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    attention = 4 * 6 * 1500 * 1500  # bytes of one layer: heads, positions, positions
    assert faults * mmap.PAGESIZE < len(clips) * attention


def test_whisper_gives_times_and_does_not_mix_rows():
    step = Transcribe("whisper-tiny.en", times=True).open(Context())
    together = step.apply(batch_of(seconds(1, 8), seconds(8.5, 13)))
    alone = step.apply(batch_of(seconds(8.5, 13)))
    assert together["transcript"][1] == alone["transcript"][0]
    words = together["words"][0].as_py()
    assert words_of(" ".join(word["text"] for word in words)) == words_of(together["transcript"][0].as_py())
    assert [word["start"] for word in words] == sorted(word["start"] for word in words)
    assert words[-1]["end"] <= 7.01


def test_pieces_are_cut_where_it_is_quiet_and_cover_the_recording():
    blocks = np.array_split(speech(), 11)
    found = list(pieces(blocks, 10))
    assert np.array_equal(np.concatenate([samples for _, samples in found]), speech())
    assert max(len(samples) for _, samples in found) <= 10 * RATE
    assert [begin for begin, _ in found] == pytest.approx(np.cumsum([0, *(len(s) for _, s in found[:-1])]) / RATE)


def test_a_text_is_checked_against_its_recording_and_cut_into_sentences():
    first, second = "It was the best of times. It was the worst of times.", "Nobody ever said anything like this here."
    batch = batch_of(seconds(0.8, 5.1), seconds(0.8, 5.1), text=pa.array([first, second]))
    step = TranscriptAlignment()
    scores = step.open(Context()).score(batch)
    good, bad = scores["alignment"].to_pylist()
    assert good > 0.6 > 0.1 > bad
    table, parents = SentenceSegments().expand(Batch(batch.table.append_column("words", scores["words"])))
    assert parents.tolist() == [0, 0]
    assert table["text"].to_pylist() == ["It was the best of times.", "It was the worst of times."]


def test_vectors_of_sound_find_recordings_with_the_same_words():
    waves = [seconds(1, 5), seconds(1, 5) * 0.6, seconds(21, 25)]
    rows = [{"id": n, **row} for n, row in enumerate(batch_of(*waves).rows())]
    report = Pipeline(Rows(rows), AudioEmbed(), SemanticDedup(threshold=0.99)).run(workers=1)
    assert report.kept == 2


# -------------------------------------------------------------------------------------- small models of other architectures


@pytest.fixture(scope="module")
def small_whisper(tmp_path_factory):
    from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

    folder = tmp_path_factory.mktemp("whisper")
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=51864, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, decoder_start_token_id=50257, eos_token_id=50256, pad_token_id=50256,
        bos_token_id=50256, suppress_tokens=[], begin_suppress_tokens=[220, 50256],
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config)
    model.save_pretrained(folder)
    settings = GenerationConfig(
        decoder_start_token_id=50257, eos_token_id=50256, pad_token_id=50256, bos_token_id=50256,
        no_timestamps_token_id=50362, is_multilingual=False, return_timestamps=False, max_length=448,
    )  # fmt: skip
    settings.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({"feature_size": 80}))
    shutil.copy(find_recognizer("whisper-tiny.en").folder / "tokenizer.json", folder / "tokenizer.json")
    return folder, WhisperForConditionalGeneration.from_pretrained(folder).eval()  # with its generation settings


def test_a_whisper_folder_gives_what_transformers_gives(small_whisper):
    folder, model = small_whisper
    waves = [seconds(1, 4), seconds(5, 9)]
    found = Transcribe(str(folder), max_tokens=12).open(Context()).apply(batch_of(*waves))
    # The clips were stored with 16 bits.
    given = torch.from_numpy(np.stack([mel.whisper_features(np.round(wave * 32768) / 32768) for wave in waves]))
    with torch.inference_mode():
        expected = model.generate(given, max_new_tokens=12)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [tokenizer.decode([t for t in row.tolist() if t < 50256]).strip() for row in expected]
    assert found["transcript"].to_pylist() == texts
    assert all(0 < value < 1 for value in found["transcript_confidence"].to_pylist())
    assert found["transcript_language"].to_pylist() == ["en", "en"]


def test_a_whisper_folder_of_many_languages_says_which_one_it_recognized(small_whisper, tmp_path):
    from transformers import GenerationConfig

    shutil.copytree(small_whisper[0], tmp_path, dirs_exist_ok=True)
    settings = GenerationConfig.from_pretrained(tmp_path)
    settings.is_multilingual = True
    settings.lang_to_id = {"<|en|>": 50258, "<|de|>": 50260, "<|fr|>": 50264}
    settings.task_to_id = {"translate": 50357, "transcribe": 50358}
    settings.save_pretrained(tmp_path)
    waves = [seconds(1, 4), seconds(5, 9)]
    found = Transcribe(str(tmp_path), max_tokens=4).open(Context()).apply(batch_of(*waves))
    given = torch.from_numpy(np.stack([mel.whisper_features(np.round(wave * 32768) / 32768) for wave in waves]))
    names = {number: name[2:-2] for name, number in settings.lang_to_id.items()}
    expected = [names[each] for each in small_whisper[1].detect_language(given, generation_config=settings).tolist()]
    assert found["transcript_language"].to_pylist() == expected
    named = Transcribe(str(tmp_path), max_tokens=4, language="de").open(Context()).apply(batch_of(*waves))
    assert named["transcript_language"].to_pylist() == ["de", "de"]


def test_advice_of_transformers_to_its_programmers_is_not_printed(small_whisper):
    folder, model = small_whisper
    printed: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = printed.append
    logging.getLogger("transformers").addHandler(handler)
    try:
        recognizer = open_recognizer(find_recognizer(folder))
        recognizer.transcribe([seconds(1, 2)], Wish(max_tokens=4))
        assert not printed
        model.generate(torch.zeros(1, 80, 3000), max_new_tokens=4)
        assert printed, "without care it is printed for each batch"
    finally:
        logging.getLogger("transformers").removeHandler(handler)


def test_fewer_clips_at_a_time_are_transcribed_when_gpu_memory_runs_out(small_whisper):
    folder, _ = small_whisper
    recognizer = open_recognizer(find_recognizer(folder))
    waves = [seconds(begin, begin + 2) for begin in range(5)]
    expected = recognizer.transcribe(waves, Wish(max_tokens=4))
    generate, sizes = recognizer._module.generate, []

    def with_little_memory(features, **options):
        sizes.append(len(features))
        if len(features) > 2:
            raise torch.cuda.OutOfMemoryError
        return generate(features, **options)

    recognizer._module.generate = with_little_memory
    found = recognizer.transcribe(waves, Wish(max_tokens=4))
    assert [each.text for each in found] == [each.text for each in expected]
    assert sizes == [5, 2, 2, 1]
    recognizer.transcribe(waves[:3], Wish(max_tokens=4))
    assert sizes[4:] == [2, 1], "what fits is remembered"


def test_a_recognizer_on_a_gpu_asks_for_a_part_of_it(small_whisper):
    for model in (small_whisper[0], "whisper-tiny.en"):
        found = find_recognizer(model)
        assert not recognizer_resources(found, on_gpu=False).uses_gpu
        assert 0 < recognizer_resources(found, on_gpu=True).gpus < 1


@pytest.fixture(scope="module", params=["group", "layer"])
def small_ctc(request, tmp_path_factory):
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    folder = tmp_path_factory.mktemp("ctc")
    torch.manual_seed(1)
    letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ'"]
    config = Wav2Vec2Config(
        vocab_size=len(letters), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        conv_dim=(16,) * 7, feat_extract_norm=request.param, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2,
        pad_token_id=0, do_stable_layer_norm=request.param == "layer",
    )  # fmt: skip
    model = Wav2Vec2ForCTC(config)
    model.save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({letter: number for number, letter in enumerate(letters)}))
    masked = request.param == "layer"
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"do_normalize": True, "return_attention_mask": masked, "sampling_rate": RATE})
    )
    return folder, model.eval()


def test_a_ctc_folder_gives_what_transformers_gives(small_ctc):
    from transformers import Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor

    folder, model = small_ctc
    waves = [seconds(1, 3), seconds(5, 8.3)]
    found = Transcribe(str(folder), times=True).open(Context()).apply(batch_of(*waves))
    extractor = Wav2Vec2FeatureExtractor(do_normalize=True)
    tokenizer = Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))
    for row, wave in enumerate(waves):
        given = extractor(np.round(wave * 32768) / 32768, sampling_rate=RATE, return_tensors="pt").input_values
        with torch.inference_mode():
            best = model(given).logits.argmax(dim=-1)
        said = re.sub("<[^<>]+>", "", tokenizer.decode(best[0]))  # special tokens are no letters
        assert found["transcript"][row].as_py().split() == said.split()
    scores = TranscriptAlignment(str(folder)).open(Context()).score(batch_of(waves[0], text=pa.array(["It was best"])))
    words = scores["words"][0].as_py()
    assert [word["text"] for word in words] == ["It", "was", "best"]
    assert all(word["start"] < word["end"] for word in words)


def test_forced_alignment_finds_the_most_likely_path():
    rng = np.random.default_rng(0)
    for text in ([1], [1, 2], [1, 1], [2, 1, 2]):
        found = np.log(rng.dirichlet(np.ones(3), 5)).astype(np.float32)
        path = np.full(5, -1, np.int64)
        assert align(found, np.array(text), 0, path)
        best = max(_paths(5, text), key=lambda each: sum(found[t, 0 if p < 0 else text[p]] for t, p in enumerate(each)))
        assert path.tolist() == best
    assert not align(found[:2], np.array([1, 1]), 0, path[:2])


def _paths(frames, text):
    """All ways to say a text: positions per frame, -1 for a blank."""
    import itertools

    for choice in itertools.product(range(-1, len(text)), repeat=frames):
        said = [p for p, _ in itertools.groupby(choice) if p >= 0]
        repeated = any(a != b and a >= 0 and b >= 0 and text[a] == text[b] for a, b in itertools.pairwise(choice))
        if said == list(range(len(text))) and not repeated:
            yield list(choice)


def test_samples_that_cpu_workers_decode_give_the_same_transcript():
    batch = batch_of(seconds(1, 5))
    samples = AudioSamples().apply(batch)["samples"]
    direct = Transcribe().open(Context()).apply(batch)["transcript"]
    passed = Transcribe(samples="samples").open(Context()).apply(Batch(pa.table({"samples": samples})))["transcript"]
    assert direct == passed


@pytest.mark.parametrize(("model", "language"), [("moonshine-tiny", "de"), ("whisper-tiny.en", "german")])
def test_a_language_that_the_model_does_not_know_is_an_error(model, language):
    with pytest.raises(ParameterError, match=f"{model} does not know '{language}'"):
        Transcribe(model, language=language).open(Context())
    assert Transcribe(model, language="en").open(Context())


def test_a_folder_that_is_no_recognizer_is_refused(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match="incomplete"):
        Transcribe(str(tmp_path)).check()
    with pytest.raises(ModelError, match="no times"):
        TranscriptAlignment("moonshine-tiny").check()
