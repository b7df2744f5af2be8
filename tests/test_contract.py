"""What every registered operator promises, checked through the engine's own `apply_step`.

A new operator is tested here as soon as it is registered. Operators with required parameters need an example in
`EXAMPLES`; sources and sinks have test suites of their own.
"""

import doctest
import functools
import importlib
import inspect
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

from tamis.audio.transcribe import WORDS
from tamis.batch import Batch, as_array
from tamis.context import Context
from tamis.errors import OperatorError
from tamis.executors.opening import opened
from tamis.executors.steps import Applied, apply_step, observed, verdicts_of
from tamis.operators import ALL, Filter, Gather, Map, Operator, Sink, Source
from tamis.registry import build_operator, registered
from tamis.text.classifiers import PublishedClassifier
from tests.audio.sounds import silence, sound, tone
from tests.language_server import shared_server
from tests.video.make_videos import plain, scene, video
from tests.web import make_documents

TEXTS = [
    "A short text.",
    "",
    None,
    "   \n\t ",
    "x",
    "Bonjour tout le monde, voici une phrase. Et encore une autre phrase.",
    "你好世界。这是一个句子。",
    "שלום עולם، مرحبا بالعالم",
    "e\u0301\u0301 \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 ﬀ",
    "line one\r\nline two\rline three\u2028line four\x00\x07",
    "a" * 5000,
    "spam " * 800,
    '#!/usr/bin/python\n# comment\ndef f(x):\n    """Doc."""\n    return x  # more\n',
    "<html><body><p>Hello { lorem ipsum } javascript</p></body></html>",
]

DATA = Path(__file__).parent / "text" / "data"
EXAMPLES = {
    "to_backend": {"backend": "cpu"},
    "download": {"column": "text"},  # no text is a URL
    "wikitext_extract": {"column": "text"},
    "html_extract": {"column": "text", "to": "content", "extractor": "fast"},
    "latex_extract": {"column": "text", "to": "content"},
    "sample": {"rows": 3},
    "id_filter": {"ids": str(DATA / "ids.txt"), "column": "text"},
    "diverse": {"rows": 3},
    "outliers": {"share": 0.1},
    "substring": {"substring": "A"},
    "histogram": {"path": str(DATA / "histogram.txt")},
    "sample_by_group": {"by": "text", "rows": 3},
    "balance": {"by": "text", "epochs": {"x": 1}},
    "repeat": {"by": "text"},
    "where": {"include": "length(text) >= 2", "exclude": "text contains 'spam'"},
    "replace_spans": {"spans": "spans"},
    "join_attributes": {"paths": str(DATA / "attributes.parquet"), "id": "text"},
    "regex": {"pattern": "[0-9]+"},
    "regex_replacement": {"pattern": "[0-9]+", "replacement": "0"},
    "token_count": {"tokenizer": str(DATA / "tokenizer.json")},
    "token_ids": {"tokenizer": str(DATA / "tokenizer.json")},
    "tokenizer_fertility": {"tokenizer": str(DATA / "tokenizer.json")},
    "general_comment_to_code": {"language": "shell"},
    "per_extension": {"language": "python", "extension": "py", "metadata_file": str(DATA / "code_meta.csv")},
    "fast_text_score": {"model": "lid.176.ftz", "label": "__label__en"},
    "fast_text_quality": {"model": "lid.176.ftz", "label": "__label__en"},
    "fast_text_label": {"model": "lid.176.ftz"},
    "classifier": {"model": str(DATA / "classifier")},
    "tokenize": {"model": str(DATA / "classifier")},
    "embed": {"model": str(DATA / "classifier")},
    "generate": {"model": str(DATA / "causal"), "prompt": "{text} and", "max_new_tokens": 5},
    "neural_perplexity": {"model": str(DATA / "causal")},
    "embedding_classifier": {"model": str(DATA / "embedding.head"), "embeddings": str(DATA / "classifier")},
    "linear_classifier": {"model": str(DATA / "tiny.model")},
    "perplexity": {"model": str(DATA / "language.arpa")},
    "ask": {"prompt": "Rate {text}", "endpoint": shared_server().url, "cache": None},
    "ask_score": {"prompt": "Rate {text}", "endpoint": shared_server().url, "cache": None},
    "ask_rows": {"prompt": "Rate {text}", "endpoint": shared_server().url, "cache": None},
    "image_convert": {"format": "PNG"},
    "image_crop": {"width": 50, "height": 60},
    "image_format": {"keep": ["JPEG"]},
    "image_metadata_removal": {"others": "keep"},
    "image_resize": {"width": 64, "height": 64},
    "image_mode": {"keep": ["RGB"]},
    "decontaminate": {"benchmarks": str(DATA / "benchmark.jsonl")},
    "image_tensor": {"model": "small/vit"},
    "image_embed": {"model": "small/vit"},
    "image_classifier": {"model": "small/labels"},
    "video_embed": {"model": "small/videomae"},
    "video_tensor": {"model": "small/videomae"},
    "image_tags": {"model": "small/labels"},
    "watermark": {"model": "small/labels"},
    "image_text_similarity": {"model": "small/clip", "min_similarity": 0.1},
    "aesthetics": {"model": "small/clip", "head": "aesthetics.safetensors"},
    "faces": {"max_faces": 0},
    "video_codec": {"keep": ["h264"]},
    "caption": {"endpoint": shared_server().url, "cache": None},
    "frame_filter": {"step": {"image_brightness": {}}, "number": 2},
    "frame_columns": {"step": {"image_hash": {}}, "number": 2},
    "audio_codec": {"keep": ["flac"]},
    "audio_windows": {"window_s": 0.4},
    "audio_normalize": {"loudness": -30.0},
    "audio_slice": {"verify": False},
    "nemo_manifest": {"verify": False},
    "lhotse_manifest": {"verify": False},
    **{
        name: {"max_chars": 60}  # reading more takes longer
        for name, cls in registered().items()
        if issubclass(cls, PublishedClassifier)
    },
}

OURS = {name: cls for name, cls in registered().items() if cls.__module__.startswith("tamis.")}
STEPS = {name: cls for name, cls in OURS.items() if not issubclass(cls, (Source, Sink))}
FILTERS = sorted(name for name, cls in STEPS.items() if issubclass(cls, Filter))


def make(name: str, **parameters: object) -> Operator:
    return build_operator(name, {**EXAMPLES.get(name, {}), **parameters})


def thresholds(name: str) -> dict[str, int | float]:
    """The numeric thresholds of a filter."""
    step = make(name)
    assert isinstance(step, Filter)
    return {
        parameter: value
        for parameter, value in vars(step).items()
        if step.is_threshold(parameter) and isinstance(value, (int, float)) and not isinstance(value, bool)
    }


THRESHOLDS = [(name, parameter) for name in FILTERS for parameter in thresholds(name)]


def is_stateful(step: Operator) -> bool:
    return type(step).open is not Operator.open


@pytest.fixture(autouse=True)
def _weights(small_classifiers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Classifiers find weights of their layout under the names of the published models."""
    monkeypatch.setenv("HF_HUB_CACHE", str(small_classifiers))
    monkeypatch.setenv("TAMIS_MODELS", str(small_classifiers / "files"))


@pytest.fixture(params=sorted(STEPS))
def step(request: pytest.FixtureRequest) -> Operator:
    """Each step in turn; filters score rows and drop none."""
    return make(request.param, **({"score_only": True} if request.param in FILTERS else {}))


@pytest.fixture(params=sorted(name for name in STEPS if is_stateful(make(name))))
def stateful(request: pytest.FixtureRequest) -> Operator:
    return make(request.param, **({"score_only": True} if request.param in FILTERS else {}))


def batch_for(step: Operator, texts: list[str | None] = TEXTS) -> Batch:
    columns: dict[str, pa.Array] = {}
    for real in step.real_names().values():
        if real == "url":
            columns[real] = pa.array([f"https://example.org/{number}" for number in range(len(texts))], pa.string())
        elif real == "embedding":
            lists = [None if text is None else [len(text), text.count("e"), 1.0] for text in texts]
            columns[real] = pa.array(lists, pa.list_(pa.float32(), 3))
        elif real == "image":
            columns[real] = images()[: len(texts)]
        elif real in ("audio", "reference") and step.cost >= 2000:
            columns[real] = few_sounds()[: len(texts)]
        elif real == "words":
            times = [None if text is None else timed_words(text) for text in texts]
            columns[real] = pa.array(times, WORDS)
        elif real == "audio":
            columns[real] = sounds()[: len(texts)]
        elif real in ("offset", "duration"):
            columns[real] = pa.array([0.1 if text else None for text in texts], pa.float64())
        elif real == "spans":
            columns[real] = pa.array(
                [None if text is None else [{"start": 1, "end": 3, "score": 0.5}] for text in texts]
            )
        elif real == "recording":
            columns[real] = pa.array([None if not text else {"sources": [{"source": "a.wav"}]} for text in texts])
        elif real == "supervisions":
            columns[real] = pa.array([None if text is None else [{"text": text}] for text in texts])
        elif real == "video":
            columns[real] = videos()[: len(texts)]
        elif real == "document":
            columns[real] = documents()[: len(texts)]
        elif real == "segments":
            parts = [[{"begin": 0.0, "end": 0.1, "text": text}] for text in texts]
            kind = pa.struct([("begin", pa.float64()), ("end", pa.float64()), ("text", pa.string())])
            columns[real] = pa.array(parts, pa.list_(kind))
        elif real != ALL:
            columns[real] = pa.array(texts, pa.string())
    return Batch(pa.table(columns or {"text": pa.array(texts, pa.string())}))


@functools.cache
def few_sounds() -> pa.Array:
    """As many rows as there are texts; few have sound, because networks take long."""
    from tests.audio.sounds import silence, sound, tone

    rows: list[dict[str, Any] | None] = [None] * len(TEXTS)
    rows[0] = {"bytes": sound(tone(1.2, 8000, 2), 8000), "path": "a.wav"}
    rows[3] = {"bytes": None, "path": None}
    rows[4] = {"bytes": sound(silence(0.05)), "path": "b.wav"}
    rows[5] = {"bytes": sound(tone(1.0, 44_100), 44_100, "flac"), "path": "c.flac"}
    return pa.array(rows, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))


def timed_words(text: str) -> list[dict[str, Any]]:
    """The words of a text, each a tenth of a second after the other."""
    return [
        {"text": word, "start": place / 10, "end": place / 10 + 0.1, "confidence": 1.0}
        for place, word in enumerate(text.split()[:8])
    ]


@functools.cache
def images() -> pa.Array:
    """As many images as there are texts, of all kinds that decoders handle in different ways, and rows without any."""
    from PIL import Image

    def file(kind: str, mode: str = "RGB", size: tuple[int, int] = (300, 200), **options: Any) -> dict[str, Any]:
        noise = np.random.default_rng(0).integers(0, 255, (*size[::-1], 3), np.uint8)
        target = io.BytesIO()
        Image.fromarray(noise).resize((size[0] // 8 + 1, size[1] // 8 + 1)).resize(size).convert(mode).save(
            target, kind, **options
        )
        return {"bytes": target.getvalue(), "path": f"a.{kind.lower()}"}

    turned = Image.Exif()
    turned[0x0112] = 6
    rows = [
        file("JPEG", size=(1200, 800), quality=80),
        file("PNG", "RGBA"),
        None,
        {"bytes": None, "path": None},
        file("PNG", size=(1, 1)),
        file("JPEG", exif=turned),
        file("JPEG", "CMYK"),
        file("JPEG", "L", progressive=True),
        file("GIF", "P"),
        file("PNG", "1"),
        file("WEBP"),
        file("AVIF"),
        file("TIFF", size=(700, 300)),
        file("BMP"),
    ]
    assert len(rows) == len(TEXTS)
    return pa.array(rows, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))


@functools.cache
def sounds() -> pa.Array:
    """As many sounds as there are texts, of formats that decoders handle in different ways, and rows without any."""

    def file(kind: str, seconds: float = 0.8, rate: int = 16_000, channels: int = 1, **options: Any) -> dict[str, Any]:
        return {"bytes": sound(tone(seconds, rate, channels), rate, kind, **options), "path": f"a.{kind}"}

    rows = [
        file("wav"),
        file("flac", rate=44_100, channels=2),
        None,
        {"bytes": None, "path": None},
        file("wav", 0.2, 8_000),
        {"bytes": sound(silence(0.5)), "path": "silence.wav"},
        file("mp3", rate=44_100, channels=2),
        file("opus", rate=48_000),
        file("m4a", rate=44_100),
        file("wav8", rate=8_000),
        file("wav", rate=48_000, bits=24),
        file("flac", rate=96_000, channels=8, bits=24),
        file("wav", bits=32),
        file("aac", rate=22_050),
    ]
    assert len(rows) == len(TEXTS)
    return pa.array(rows, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))


@functools.cache
def videos() -> pa.Array:
    """As many small videos as there are texts, and rows without any."""
    files = [
        {"bytes": video([(scene(1, (64, 48)), 5), (scene(2, (64, 48)), 4)], sound="aac"), "path": "a.mp4"},
        None,
        {"bytes": video([(plain(0, (48, 64)), 6)], codec="mpeg4", container="avi"), "path": "b.avi"},
        {"bytes": None, "path": None},
        {"bytes": video([(scene(3, (64, 48)), 4)], container="matroska"), "path": "c.mkv"},
    ]
    return pa.array((files * 3)[: len(TEXTS)], pa.struct([("bytes", pa.binary()), ("path", pa.string())]))


@functools.cache
def documents() -> pa.Array:
    """As many documents as there are texts, of all kinds, and rows without any."""
    page = make_documents.pdf([make_documents.paragraph(make_documents.WORDS * 4)] * 2)
    files = [
        ("a.pdf", page),
        None,
        ("b.docx", make_documents.docx("<w:p><w:r><w:t>Text</w:t></w:r></w:p>")),
        ("c.epub", make_documents.epub(["<p>One</p>", "<p>Two</p>"])),
        ("d.odt", make_documents.odt("<text:p>Text</text:p>")),
        ("e.tex", make_documents.paper(1).encode()),
        make_documents.submission(2),
        ("f.html", b"<html><body><p>" + make_documents.WORDS.encode() * 3 + b"</p></body></html>"),
        ("g.pdf", page[:-200]),
        ("h.html", make_documents.packed({"a": b"x"})),
        ("i.txt", b"plain text"),
        ("j.bin", bytes(20)),
        ("k.pdf", b""),
        ("l.xlsx", make_documents.xlsx("<row><c><v>1</v></c></row>", [])),
    ]
    assert len(files) == len(TEXTS)
    rows = [each and {"bytes": each[1], "path": each[0]} for each in files]
    return pa.array(rows, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))


def applied(step: Operator, batch: Batch) -> Applied:
    with opened(step) as runner:
        return apply_step(step, batch, runner=runner)


def result(step: Operator, batch: Batch, runner: Any) -> pa.Table:
    if isinstance(step, Gather):
        return observed(step, batch, runner)
    return apply_step(step, batch, runner=runner).batch.table


def apply(step: Operator, batch: Batch) -> pa.Table:
    """What the engine makes of a batch: its rows afterwards, or what a Gather observes of them."""
    with opened(step) as runner:
        return result(step, batch, runner)


def test_rows_after_a_step_are_those_before_and_what_it_accounts_for(step):
    batch = batch_for(step)
    if isinstance(step, Gather):
        assert apply(step, batch).num_rows == len(batch)
    else:
        done = applied(step, batch)
        dropped = sum(int(mask.sum()) for _, mask in done.verdicts)
        assert len(done.batch) == len(batch) + done.created - dropped
        assert len(done.batch.origin) == len(done.batch)
        assert set(step.writes()) <= {*done.batch.columns, ALL}


def test_a_batch_without_rows_gives_none(step):
    assert apply(step, batch_for(step, [])).num_rows == 0


def test_rows_do_not_influence_each_other(step):
    batch = batch_for(step)
    with opened(step) as runner:
        together = result(step, batch, runner)
        alone = [
            result(step, Batch(batch.table.slice(row, 1), batch.origin.select(slice(row, row + 1))), runner)
            for row in range(len(batch))
        ]
    for name in together.column_names:
        values = [value for table in alone if table.num_rows for value in table.column(name).to_pylist()]
        if step.tolerance:
            assert values == [almost(value, step.tolerance) for value in together.column(name).to_pylist()], name
        else:
            assert repr(values) == repr(together.column(name).to_pylist()), name


def almost(value: Any, tolerance: float) -> Any:
    """A value that equals others that differ by less than the tolerance."""
    if isinstance(value, float) or (isinstance(value, list) and value and isinstance(value[0], float)):
        return pytest.approx(value, abs=tolerance)
    return value


def test_the_same_rows_give_the_same_result(step):
    assert repr(apply(step, batch_for(step)).to_pydict()) == repr(apply(step, batch_for(step)).to_pydict())


ON_IMAGES = sorted(
    name
    for name, cls in STEPS.items()
    if issubclass(cls, (Filter, Map)) and make(name).real_names() == {"image": "image"}
)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        *((name, {}) for name in ON_IMAGES),
        ("image_hash", {"hash": "pdq"}),
        ("image_hash", {"exact": True}),
        ("image_blur", {"side": None}),
        ("brisque", {"side": None}),
    ],
)
def test_steps_on_images_work_on_frames_of_videos(name, parameters):
    outer = {"step": {name: {**EXAMPLES.get(name, {}), **parameters}}, "number": 2}
    step = build_operator("frame_filter" if name in FILTERS else "frame_columns", outer)
    data = video([(scene(1, (640, 560)), 4)])
    batch = Batch.from_rows([{"video": {"bytes": data, "path": "a.mp4"}}, {"video": None}])
    with opened(step) as runner:
        found = runner.score(batch) if name in FILTERS else runner.apply(batch)
    assert set(found) >= set(step.writes())
    values = [as_array(column).to_pylist() for column in found.values()]
    assert any(first is not None for first, _ in values)
    assert all(second is None for _, second in values)


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_drops_the_rows_that_break_its_rules(name):
    step = make(name)
    assert isinstance(step, Filter)
    batch = batch_for(step)
    scored = apply(make(name, score_only=True), batch)
    assert set(scored.column_names) == {*batch.columns, *step.score_columns().values()}
    assert {rule.score for rule in step.rules()} <= set(step.score_columns())
    done = applied(step, batch)
    gone = np.zeros(len(batch), np.bool_)
    for reason, mask in done.verdicts:
        assert reason
        assert not (gone & mask).any(), "each row is dropped for one reason"
        gone |= mask
    broken = np.zeros(len(batch), np.bool_)
    for rule in step.rules():
        for _, mask in rule.verdicts(as_array(scored.column(step.score_columns()[rule.score]))):
            broken |= mask
    assert gone.tolist() == broken.tolist()
    expected = scored if step.adds_scores else batch.table
    assert done.batch.table.equals(expected.filter(pa.array(~gone)))
    scores = {rule.score: as_array(scored.column(step.score_columns()[rule.score])) for rule in step.rules()}
    inverted = verdicts_of(step.changed(invert=True), scores, np.ones(len(batch), np.bool_))
    assert [mask.tolist() for _, mask in inverted] == ([(~gone).tolist()] if not gone.all() else [])


@pytest.mark.parametrize(("name", "parameter"), THRESHOLDS)
def test_a_threshold_does_not_change_what_is_measured(name, parameter):
    """Stored scores are reused with other thresholds, so these must not matter to `score`."""
    value = thresholds(name)[parameter]
    other = type(value)(value * 2 + 1 if parameter.startswith("max_") else value / 2)
    step = make(name, score_only=True)
    changed = step.changed(**{parameter: other})
    before, after = apply(step, batch_for(step)), apply(changed, batch_for(changed))
    assert repr(after.to_pydict()) == repr(before.to_pydict())


def test_opening_and_running_changes_nothing_in_the_step(step):
    before, size = dict(vars(step)), len(pickle.dumps(step))
    with opened(step) as runner:
        result(step, batch_for(step), runner)
        assert vars(step) == before
        assert len(pickle.dumps(step)) == size
    assert vars(step) == before


def test_a_step_can_be_opened_again_after_pickling(step):
    expected = repr(apply(step, batch_for(step)).to_pydict())
    assert repr(apply(pickle.loads(pickle.dumps(step)), batch_for(step)).to_pydict()) == expected


def test_a_step_opened_twice_gives_independent_runners(stateful):
    batch = batch_for(stateful)
    expected = repr(apply(stateful, batch).to_pydict())
    with opened(stateful) as second:
        with opened(stateful) as first:
            assert first is not second
            assert repr(result(stateful, batch, first).to_pydict()) == expected
        assert repr(result(stateful, batch, second).to_pydict()) == expected, "the first one is closed"


def test_a_stateful_step_that_is_not_open_says_so(stateful):
    with pytest.raises(OperatorError, match=f"`{stateful.name}` is not open"):
        result(stateful, batch_for(stateful), None)


def test_steps_that_use_the_same_file_share_what_they_load(stateful):
    keys = []

    class Watched(Context):
        def shared(self, key, load):
            keys.append(key)
            return super().shared(key, load)

    stateful.open(Watched())
    assert stateful.resources.shared.keys() == set(keys), "the memory it declares is that of what it loads"
    assert all(size > 0 for size in stateful.resources.shared.values())


def test_it_can_be_pickled_and_written_as_a_recipe(step):
    assert pickle.loads(pickle.dumps(step)) == step
    text = yaml.safe_dump({step.name: step.parameters()})
    assert build_operator(step.name, yaml.safe_load(text)[step.name]) == step


@pytest.mark.parametrize("name", sorted(OURS))
def test_it_says_what_it_does(name):
    doc = inspect.getdoc(OURS[name]) or ""
    assert doc
    assert not doc.startswith(f"{OURS[name].__name__}("), "the docstring is the one dataclass makes"


MODULES = sorted(
    {cls.__module__ for cls in OURS.values()}
    | {f"tamis.{name}" for name in ("parameters", "batch", "context", "operators", "pipeline")}
)


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_run(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed, _ = doctest.testmod(importlib.import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0
