"""Files of tokens: read back as the formats describe them, packed without loss, the same after an interruption."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from tamis import JsonlReader, LocalExecutor, Pipeline, Rows, TokenWriter
from tamis.errors import ColumnError, ParameterError, SinkError
from tamis.recipes.rethreshold import rethreshold
from tamis.sinks.packing import Packer
from tamis.sinks.token_files import FORMATS
from tamis.sinks.tokens import IDS
from tamis.text import WordCount

WORDS = [f"w{number}" for number in range(50)]
END = "<end>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A tokenizer of fifty words, whose ids are their numbers."""
    found = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(WORDS)}, WORDS[0]))
    found.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    found.add_special_tokens([END])
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    found.save(str(path))
    return str(path)


def documents(num=40, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 50, rng.integers(0, 30)).tolist() for _ in range(num)]


def rows_of(found):
    return [{"id": f"doc {n}", "text": " ".join(f"w{id}" for id in ids)} for n, ids in enumerate(found)]


def written(tokenizer, tmp_path, **settings):
    found = documents()
    sink = TokenWriter(tmp_path / "out", tokenizer=tokenizer, end_token=END, **settings)
    report = Pipeline(Rows(rows_of(found), rows_per_partition=15), sink).run(executor="inline")
    assert (report.kept, report.failed) == (len(found), 0)
    return [[*ids, 50] for ids in found], tmp_path / "out"


def read_megatron(path: Path):
    """Documents as lists of sequences, from the published layout of the index."""
    data = path.with_suffix(".idx").read_bytes()
    assert data[:9] == b"MMIDIDX\x00\x00"
    version, code, num, num_documents = struct.unpack_from("<QBQQ", data, 9)
    assert (version, code) == (1, 8)
    at = 9 + 25
    sizes = np.frombuffer(data, "<i4", num, at)
    pointers = np.frombuffer(data, "<i8", num, at + 4 * num)
    ends = np.frombuffer(data, "<i8", num_documents, at + 12 * num)
    assert len(data) == at + 12 * num + 8 * num_documents
    tokens = np.fromfile(path, "<u2")
    sequences = [tokens[start // 2 : start // 2 + size].tolist() for start, size in zip(pointers, sizes, strict=True)]
    return [sequences[begin:end] for begin, end in itertools.pairwise(ends)]


def test_megatron(tokenizer, tmp_path):
    expected, out = written(tokenizer, tmp_path)
    found = [document for path in sorted(out.glob("*.bin")) for document in read_megatron(path)]
    assert found == [[ids] for ids in expected]


def test_numbers_alone_for_nanogpt(tokenizer, tmp_path):
    expected, out = written(tokenizer, tmp_path, format="nanogpt")
    found = np.concatenate([np.memmap(path, "<u2", "r") for path in sorted(out.glob("*.bin"))])
    assert found.tolist() == list(itertools.chain(*expected))


def test_numbers_and_a_table_for_olmo(tokenizer, tmp_path):
    expected, out = written(tokenizer, tmp_path, format="olmo")
    found, names = [], []
    for path in sorted(out.glob("*.npy")):
        tokens = np.memmap(path, "<u2", "r")
        with gzip.open(path.with_suffix(".csv.gz"), "rt", newline="") as lines:
            for start, end, name, source, _ in csv.reader(lines):
                assert source == path.name
                found.append(tokens[int(start) : int(end)].tolist())
                names.append(name)
    assert (found, names) == (expected, [f"doc {n}" for n in range(len(expected))])


def test_numbers_and_an_index_for_datatrove(tokenizer, tmp_path):
    expected, out = written(tokenizer, tmp_path, format="datatrove")
    found = []
    for path in sorted(out.glob("*.ds")):
        tokens, ends = np.fromfile(path, "<u2"), np.fromfile(f"{path}.index", "<u8")
        found += [tokens[a:b].tolist() for a, b in zip([0, *ends.tolist()], ends.tolist(), strict=False)]
        note = Path(f"{path}.metadata").read_text().splitlines()
        assert note[:2] == ["tokenizer.json|2", str(len(tokens))]
    assert found == expected


def test_packed_sequences_are_filled_and_masked(tokenizer, tmp_path):
    expected, out = written(tokenizer, tmp_path, format="nanogpt", sequence_length=16, pad_token="w0")
    kept = []
    for path in sorted(out.glob("*.bin")):
        tokens = np.fromfile(path, "<u2").reshape(-1, 16)
        mask = np.fromfile(f"{path}.mask", np.uint8).reshape(-1, 16)
        assert (tokens[mask == 0] == 0).all()
        assert (np.diff(mask.astype(int)) <= 0).all()  # padding is at the end
        kept.append(tokens[mask == 1])
    assert sorted(np.concatenate(kept).tolist()) == sorted(list(itertools.chain(*expected)))


def test_a_packed_sequence_is_a_document_for_megatron(tokenizer, tmp_path):
    expected, out = written(tokenizer, tmp_path, sequence_length=16)
    packed = [document for path in sorted(out.glob("*.bin")) for document in read_megatron(path)]
    assert all(sum(map(len, pieces)) <= 16 for pieces in packed)
    pieces = [ids[start : start + 16] for ids in expected for start in range(0, len(ids), 16)]
    assert sorted(piece for pieces in packed for piece in pieces) == sorted(pieces)


def test_files_end_after_a_number_of_tokens(tokenizer, tmp_path):
    expected, out = written(tokenizer, tmp_path, tokens_per_shard=50)
    paths = sorted(out.glob("*.bin"))
    sizes = [path.stat().st_size // 2 for path in paths]
    partitions = [len([path for path in paths if path.name.startswith(f"part-{n:06d}")]) for n in range(3)]
    assert sum(sizes) == sum(map(len, expected))
    assert max(sizes) < 50 + 31
    assert min(partitions) > 1


def test_columns_of_tokens_need_no_tokenizer(tmp_path):
    rows = [{"input_ids": [1, 2, 70_000]}, {"input_ids": []}, {"input_ids": None}]
    report = Pipeline(Rows(rows), TokenWriter(tmp_path / "out")).run(executor="inline")
    assert report.kept == 3
    data = (tmp_path / "out" / "part-000000.idx").read_bytes()
    assert struct.unpack_from("<QBQQ", data, 9) == (1, 4, 3, 4)
    assert np.fromfile(tmp_path / "out" / "part-000000.bin", "<i4").tolist() == [1, 2, 70_000]


@pytest.mark.parametrize("form", FORMATS)
def test_a_null_among_token_ids_is_an_error(tmp_path, form):
    rows = [{"input_ids": [1, 2]}, {"input_ids": [1, None, 2]}]
    with pytest.raises(SinkError, match="has nulls within lists"):
        Pipeline(Rows(rows), TokenWriter(tmp_path / "out", format=form)).run(executor="inline")
    assert not list((tmp_path / "out").glob("part-*"))


@pytest.mark.parametrize(
    ("form", "settings"),
    [
        *itertools.product(FORMATS, [{}, {"tokens_per_shard": 2}]),
        *itertools.product(["megatron", "arrow"], [{"sequence_length": 4}]),
    ],
    ids=str,
)
def test_documents_without_tokens_make_no_file_that_a_trainer_cannot_open(tmp_path, form, settings):
    texts = ["", "", "w1 w2", "", "", "", "w3 w4 w5", ""]  # four partitions; nothing is in the first and the third
    columns = [[int(word[1:]) for word in text.split()] for text in texts]
    sink = TokenWriter(tmp_path / "out", format=form, **settings)
    report = Pipeline(Rows([{IDS: ids} for ids in columns], rows_per_partition=2), sink).run(executor="inline")
    assert (report.kept, report.failed) == (8, 0)
    if form == "arrow":
        rows = [row[IDS] for row in read_arrow(tmp_path / "out")]
        assert rows == ([ids for ids in columns if ids] if "sequence_length" in settings else columns)
        return
    suffix = sink.file_suffix
    shards = sorted((tmp_path / "out").glob(f"part-*{suffix}"))
    kind = "<i4" if form == "megatron" else "<u4"
    assert [np.memmap(path, kind, "r").tolist() for path in shards] == [[1, 2], [3, 4, 5]]
    assert {path.name.partition(".")[0] for path in (tmp_path / "out").glob("part-*")} == {
        path.name.removesuffix(suffix) for path in shards
    }


def test_texts_without_a_tokenizer_are_an_error_before_the_run(tmp_path):
    with pytest.raises(ColumnError, match="reads column `input_ids`") as caught:
        Pipeline(Rows([{"text": "w1"}]), TokenWriter(tmp_path / "out")).run(executor="inline")
    assert "--tokenizer" in str(caught.value.hint)


def test_files_do_not_depend_on_workers(tokenizer, tmp_path):
    found = []
    for number, executor in enumerate(("inline", LocalExecutor(workers=2))):
        sink = TokenWriter(tmp_path / str(number), tokenizer=tokenizer, end_token=END, sequence_length=16)
        Pipeline(Rows(rows_of(documents()), rows_per_partition=7), sink).run(executor=executor, memory="1GB")
        found.append({path.name: path.read_bytes() for path in (tmp_path / str(number)).glob("part-*")})
    assert found[0] == found[1]
    assert len(found[0]) == 12


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"format": "nanogpt"}, "needs an `end_token`"),
        ({"sequence_length": 0}, "must be at least 1"),
        ({"tokenizer": None, "end_token": END}, "cannot use `end_token`"),
        ({"tokenizer": None, "format": "datatrove", "sequence_length": 8}, "needs a `tokenizer`"),
    ],
)
def test_settings_that_do_not_fit_are_errors(tokenizer, tmp_path, settings, message):
    with pytest.raises(ParameterError, match=message):
        TokenWriter(tmp_path, **{"tokenizer": tokenizer, **settings}).check()


# -------------------------------------------------------------------------------------------------------------- packing


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 17), st.integers(1, 200))
def test_packing_keeps_every_token_and_follows_the_definition(sizes, length, window):
    """Best fit decreasing, compared with a loop over all sequences."""
    starts = np.cumsum([0, *sizes])
    given_ids = [np.arange(start, start + size, dtype=np.int32) for start, size in zip(starts, sizes, strict=False)]
    packer = Packer(length, window)
    found = [sequence for ids in given_ids for sequence in packer.add(ids)] + list(packer.finish())
    assert sorted(np.concatenate([s.ids for s in found]).tolist() if found else []) == list(range(sum(sizes)))
    assert all(len(sequence.ids) == sequence.sizes.sum() <= length for sequence in found)
    if sum(sizes) < max(window, 64 * length):
        pieces = sorted((min(length, size - at) for size in sizes for at in range(0, size, length)), reverse=True)
        left: list[int] = []
        for piece in pieces:
            fits = [space for space in left if space >= piece]
            if fits:
                left.remove(min(fits))
            left.append((min(fits) if fits else length) - piece)
        assert sorted(length - len(sequence.ids) for sequence in found) == sorted(left)


def read_arrow(out):
    for path in sorted(out.glob("*.arrow")):
        yield from pa.ipc.open_file(path).read_all().to_pylist()


def test_lists_of_tokens_in_arrow_files(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr("tamis.sinks.token_files.ARROW_TOKENS", 30)
    expected, out = written(tokenizer, tmp_path, format="arrow")
    assert [row["input_ids"] for row in read_arrow(out)] == expected


def test_packed_lists_have_the_sizes_of_their_documents(tokenizer, tmp_path):
    expected, out = written(tokenizer, tmp_path, format="arrow", sequence_length=16)
    rows = list(read_arrow(out))
    assert all(sum(row["sizes"]) == len(row["input_ids"]) <= 16 for row in rows)
    pieces = []
    for row in rows:
        ends = list(itertools.accumulate(row["sizes"]))
        pieces += [tuple(row["input_ids"][end - size : end]) for size, end in zip(row["sizes"], ends, strict=True)]
    cut = [tuple(ids[start : start + 16]) for ids in expected for start in range(0, len(ids), 16)]
    assert sorted(pieces) == sorted(cut)


def test_other_thresholds_tokenize_each_row_once(tokenizer, tmp_path):
    """A run records the steps into which it divides a sink; a run of the recorded steps does not divide it again."""
    rows = [{"text": " ".join(WORDS[1:count])} for count in range(2, 30)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source, sink = JsonlReader(str(tmp_path / "in.jsonl")), TokenWriter(str(tmp_path / "out"), tokenizer=str(tokenizer))
    Pipeline(source, WordCount(min_words=5), sink).run(executor="inline", scores=True, progress=False)
    rethreshold(tmp_path / "out", ["word_count.min_words=20"], to=tmp_path / "other", executor="inline", progress=False)
    manifest = json.loads((tmp_path / "other/.tamis/manifest.json").read_text())
    steps = [next(iter(step)) for step in manifest["recipe"]["steps"]]
    assert steps == ["jsonl_reader", "word_count", "token_ids", "token_writer"]
