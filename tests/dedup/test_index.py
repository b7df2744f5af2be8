"""The index: used by the next dataset, updated, and rejected if its settings differ."""

import random

import pytest

from tamis import Pipeline, Rows
from tamis.dedup import ExactDedup, FuzzyDedup, Groups
from tamis.dedup.index import describe
from tamis.errors import ParameterError, TamisError
from tamis.sinks.tables import JsonlWriter


def texts(numbers, size=40):
    """Document n is always the same, and different from all others."""
    words = lambda n: ["".join(random.Random((n, i).__hash__()).choices("abcdefgh", k=6)) for i in range(size)]  # noqa: E731
    return [{"id": f"d{n}", "text": " ".join(words(n))} for n in numbers]


STEPS = [ExactDedup, FuzzyDedup, lambda **k: FuzzyDedup(verify="signature", **k)]


def run(rows, step, out):
    return Pipeline(Rows(rows, rows_per_partition=4), step, JsonlWriter(str(out))).run(executor="inline")


@pytest.mark.parametrize("make", STEPS)
def test_rows_in_the_index_are_dropped(tmp_path, make):
    index = str(tmp_path / "index")
    first = run(texts(range(10)), make(against=index, update=True), tmp_path / "one")
    assert first.kept == 10
    second = run(texts(range(5, 15)), make(against=index), tmp_path / "two")
    assert second.dropped == {f"in the index {index}": 5}
    row = Groups.load(tmp_path / "two").explain("d7")[0]
    assert (row["kept_id"], row["index"], row["similarity"]) == ("d7", index, 1.0)
    assert row["kept_address"] == "rows:7"


@pytest.mark.parametrize("make", STEPS)
def test_an_index_grows_and_a_repeated_run_ignores_its_own_rows(tmp_path, make):
    index = str(tmp_path / "index")
    for _ in range(2):
        assert run(texts(range(10)), make(against=index, update=True), tmp_path / "one").kept == 10
    report = Pipeline(
        Rows(texts(range(10)), rows_per_partition=4),
        make(against=index, update=True),
        JsonlWriter(str(tmp_path / "one")),
    ).run(executor="inline", fresh=True)
    assert report.kept == 10
    assert run(texts(range(5, 15)), make(against=index, update=True), tmp_path / "two").kept == 5
    assert run(texts(range(20)), make(against=index), tmp_path / "three").kept == 5
    assert sorted(describe(index)["rows"].values()) == [5, 10]


def test_near_duplicates_of_the_index_are_dropped_and_dissimilar_rows_kept(tmp_path):
    index = str(tmp_path / "index")
    rows = texts(range(3), size=100)
    run(rows, FuzzyDedup(against=index, update=True), tmp_path / "one")
    near = {"id": "n", "text": rows[1]["text"] + " and more"}
    far = {"id": "f", "text": " ".join(rows[1]["text"].split()[:50] + texts([9], size=50)[0]["text"].split())}
    report = run([near, far, far], FuzzyDedup(against=index), tmp_path / "two")
    assert (report.kept, sum(report.dropped.values())) == (1, 2)
    assert report.dropped[f"in the index {index}"] == 1


def test_a_run_resumed_after_the_index_changed_uses_the_new_index(tmp_path, monkeypatch):
    index = str(tmp_path / "index")
    run(texts(range(3)), ExactDedup(against=index, update=True), tmp_path / "one")
    step = ExactDedup(against=index)
    with monkeypatch.context() as patch:
        patch.setattr(ExactDedup, "resolve_rows", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(texts(range(6)), step, tmp_path / "two")
    run(texts(range(3, 5)), ExactDedup(against=index, update=True), tmp_path / "three")
    assert run(texts(range(6)), step, tmp_path / "two").kept == 1


def test_lines_in_the_index_are_cut(tmp_path):
    index = str(tmp_path / "index")
    line = "a line of boilerplate that everybody has"
    step = lambda **k: ExactDedup(unit="line", max_removed=0.9, against=index, **k)  # noqa: E731
    run([{"id": "1", "text": f"{line}\nsomething of its own here"}], step(update=True), tmp_path / "one")
    found = Pipeline(Rows([{"id": "2", "text": f"{line}\nand a text that is quite new"}]), step()).collect(
        executor="inline"
    )
    assert found["text"].to_pylist() == ["and a text that is quite new"]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda index: FuzzyDedup(against=index, ngram=3), "ngram is 5 in the index and 3 here"),
        (lambda index: FuzzyDedup(against=index, num_bands=20), "bands is 14 in the index and 20 here"),
        (lambda index: FuzzyDedup(against=index, lowercase=False, update=True), "normalisation is"),
        (lambda index: FuzzyDedup(against=index, verify="signature"), "verify is 'jaccard' in the index"),
        (lambda index: ExactDedup(against=index), "index for fuzzy duplicates"),
    ],
)
def test_an_index_with_other_settings_is_rejected(tmp_path, step, message):
    index = str(tmp_path / "index")
    run(texts(range(3)), FuzzyDedup(against=index, update=True), tmp_path / "one")
    with pytest.raises(ParameterError, match=message):
        step(index).check()


def test_a_folder_that_is_not_an_index_is_rejected(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ParameterError, match="there is no index"):
        ExactDedup(against=str(tmp_path)).check()
    with pytest.raises(ParameterError, match="is not an index, and not empty"):
        run(texts(range(2)), ExactDedup(against=str(tmp_path), update=True), tmp_path / "out")


def test_a_changed_index_invalidates_earlier_decisions(tmp_path):
    index = str(tmp_path / "index")
    run(texts(range(3)), ExactDedup(against=index, update=True), tmp_path / "one")
    assert run(texts(range(2, 6)), ExactDedup(against=index), tmp_path / "out").kept == 3
    run(texts(range(5, 6)), ExactDedup(against=index, update=True), tmp_path / "two")
    report = run(texts(range(2, 6)), ExactDedup(against=index), tmp_path / "out")
    assert report.kept == 2
    assert report.notes == ["step 2, `exact_dedup`: its index changed"]


def test_another_output_at_the_same_path_does_not_replace_the_generation(tmp_path):
    index = str(tmp_path / "index")
    run(texts(range(5)), ExactDedup(against=index, update=True), tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "monday")
    assert run(texts(range(3, 8)), ExactDedup(against=index, update=True), tmp_path / "out").kept == 3
    assert sorted(describe(index)["rows"].values()) == [3, 5]


def test_a_rebuilt_generation_invalidates_earlier_decisions(tmp_path):
    index = str(tmp_path / "index")
    run(texts(range(3)), ExactDedup(against=index, update=True), tmp_path / "one")
    assert run(texts(range(6)), ExactDedup(against=index), tmp_path / "out").kept == 3
    run(texts(range(3, 7)), ExactDedup(against=index, update=True), tmp_path / "one")
    assert run(texts(range(6)), ExactDedup(against=index), tmp_path / "out").kept == 3
    assert Groups.load(tmp_path / "out").explain("d0") == []


def test_an_index_of_another_version_or_a_damaged_one_is_rejected(tmp_path):
    index = tmp_path / "index"
    run(texts(range(3)), ExactDedup(against=str(index), update=True), tmp_path / "one")
    about = index / "index.json"
    plain = about.read_text()
    about.write_text(plain.replace('"version": 2', '"version": 1'))
    with pytest.raises(ParameterError, match="index version 1, but version 2 is needed"):
        ExactDedup(against=str(index)).check()
    about.write_text(plain[:20])
    with pytest.raises(ParameterError, match="is damaged"):
        ExactDedup(against=str(index)).check()


@pytest.mark.parametrize("make", STEPS)
def test_an_index_in_an_object_store(tmp_path, s3_server, make):
    index, options = f"{s3_server.url}/index", {"storage_options": s3_server.storage_options}
    for _ in range(2):  # a repeated run replaces its own generation
        first = run(texts(range(10)), make(against=index, update=True, **options), tmp_path / "one")
        assert first.kept == 10
    assert run(texts(range(5, 15)), make(against=index, update=True, **options), tmp_path / "two").kept == 5
    third = run(texts(range(12, 18)), make(against=index, **options), tmp_path / "three")
    assert third.dropped == {f"in the index {index}": 3}
    row = Groups.load(tmp_path / "three").explain("d13")[0]
    assert (row["kept_id"], row["index"], row["similarity"]) == ("d13", index, 1.0)
    assert not list((tmp_path / "three").rglob("index-copies"))
    report = (tmp_path / "three" / ".tamis" / "manifest.json").read_text()
    assert s3_server.storage_options["endpoint_url"] not in report


def test_an_index_in_an_object_store_changes_atomically(tmp_path, s3_server):
    import s3fs

    index, options = f"{s3_server.url}/index", {"storage_options": s3_server.storage_options}
    step = ExactDedup(against=index, **options)
    with pytest.raises(ParameterError, match="there is no index"):
        step.check()
    run(texts(range(4)), step.changed(update=True), tmp_path / "one")
    before = step.identity()
    system = s3fs.S3FileSystem(**s3_server.storage_options, use_listings_cache=False)
    (content,) = system.glob(f"{index}/*/content")
    (entries, *_) = system.glob(f"{index}/*/entries-*")
    part, checksum = system.cat_file(entries), system.cat_file(content)

    system.pipe_file(entries, part[:-1] + b"x")
    with pytest.raises(TamisError, match="changed while it was read"):
        run(texts(range(6)), step, tmp_path / "two")
    system.pipe_file(entries, part)
    system.rm_file(content)  # as it is while a generation is being written
    assert run(texts(range(6)), step, tmp_path / "two").kept == 6
    system.pipe_file(content, checksum)
    assert step.identity() == before
    assert run(texts(range(6)), step, tmp_path / "two").kept == 2


def test_groups_in_an_object_store_can_be_read(tmp_path, s3_server):
    rows = texts([0, 1, 2, 1, 1], size=100)
    rows[3]["text"] += " and more"
    out = {"remote": f"{s3_server.url}/out", "local": str(tmp_path / "out")}
    found = {}
    for name, path in out.items():
        options = s3_server.storage_options if name == "remote" else None
        sink = JsonlWriter(path, storage_options=options)
        Pipeline(Rows(rows), FuzzyDedup(), sink).run(executor="inline")
        groups = Groups.load(path, options)
        found[name] = [
            groups.summary["dropped"],
            groups.table(),
            groups.explain("d1"),
            groups.closest(),
            groups.largest(),
        ]
    assert found["remote"] == found["local"]
    assert found["remote"][0] == 2
    with pytest.raises(TamisError, match="no groups of duplicates"):
        Groups.load(f"{s3_server.url}/elsewhere", s3_server.storage_options)


def test_data_in_an_object_store_is_deduplicated_against_a_local_index(tmp_path, s3_server):
    index = str(tmp_path / "index")
    out = JsonlWriter(f"{s3_server.url}/out", storage_options=s3_server.storage_options)
    for _ in range(2):
        step = FuzzyDedup(against=index, update=True)
        report = Pipeline(Rows(texts(range(6)), rows_per_partition=2), step, out).run(executor="inline", fresh=True)
        assert report.kept == 6  # a repeated run ignores its own generation
    assert run(texts(range(4, 8)), FuzzyDedup(against=index), tmp_path / "two").kept == 2
