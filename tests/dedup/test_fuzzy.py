"""Near-duplicates: candidates by banding, decisions by comparison, the same for any division of the work."""

import json
import os
import random
import shutil
import signal
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import JsonlReader, JsonlWriter, Pipeline, Rows, placement
from tamis.batch import Batch
from tamis.dedup import FuzzyDedup, Groups
from tamis.dedup.fuzzy import best_split
from tamis.dedup.shuffle import column_to_matrix
from tamis.errors import BudgetError, OperatorError, ParameterError
from tamis.events import CallsFinished, WorkerDied
from tamis.executors import driver
from tamis.kernels import groups as groups_kernel
from tamis.memory.budget import PoolNeed
from tamis.memory.governor import Learned, pool_needs
from tamis.models import devices
from tests.dedup.deduplicate import kept_and_pairs

VOCABULARY = ["".join(random.Random(n).choices("abcdefghijklmnopqrstuvwxyz", k=3 + n % 6)) for n in range(4000)]


def document(rng, size=60):
    return [rng.choice(VOCABULARY) for _ in range(size)]


def changed(words, count, rng):
    words = list(words)
    for place in rng.sample(range(len(words)), count):
        words[place] = rng.choice(VOCABULARY)
    return words


def shingles(text, n=5):
    words = text.split()
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)} or {tuple(words)}


def jaccard(left, right):
    a, b = shingles(left), shingles(right)
    return len(a & b) / len(a | b)


def planted(num, seed=0, size=100, most=4):
    """Rows, most of them copies of others with a few words changed."""
    rng = random.Random(seed)
    originals = [document(rng, size) for _ in range(num // 4)]
    texts = [" ".join(words) for words in originals]
    texts += [" ".join(changed(rng.choice(originals), rng.randint(0, most), rng)) for _ in range(num - len(texts))]
    rng.shuffle(texts)
    return [{"id": f"d{number}", "text": text} for number, text in enumerate(texts)]


def fates(rows, step, per_partition=50, **options):
    """(ids of the kept rows, pairs as {id: (kept id, similarity)})."""
    kept, pairs = kept_and_pairs(rows, step, per_partition, **options)
    return kept, {row["id"]: (row["kept_id"], row["similarity"]) for row in pairs}


# ------------------------------------------------------------------------------------------------------ decisions


def naive(rows, step):
    """Greedy in source order within each component of rows that share band keys; the keys are the step's own."""
    facts = step.facts(Batch.from_rows(rows))
    keys = column_to_matrix(facts["keys"], np.uint64)
    sets = [set(each) for each in facts["shingles"].to_pylist()]
    component = list(range(len(rows)))
    for row in range(len(rows)):
        for other in range(row):
            if (keys[row] == keys[other]).any() and component[row] != component[other]:
                component = [component[other] if each == component[row] else each for each in component]
    kept, pairs = [], {}
    for row in range(len(rows)):
        others = [other for other in kept if component[other] == component[row]]
        alike = {other: len(sets[row] & sets[other]) / len(sets[row] | sets[other]) for other in others}
        linked = [other for other in others if (keys[row] == keys[other]).any()]
        unlinked = [other for other in others if other not in linked]
        best = max(linked, key=lambda other: (alike[other], -other), default=None)
        if best is None or alike[best] < step.threshold:
            best = next((other for other in unlinked if alike[other] >= step.threshold), None)
        if best is None:
            kept.append(row)
        else:
            pairs[rows[row]["id"]] = (rows[best]["id"], pytest.approx(alike[best]))
    return [rows[row]["id"] for row in kept], pairs


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.3, 0.5, 0.7, 0.8, 0.95]), st.integers(5, 60))
def test_survivors_and_pairs_are_those_of_the_naive_reference(seed, threshold, per_partition):
    rows = planted(60, seed, size=30, most=4)
    step = FuzzyDedup(threshold=threshold)
    assert fates(rows, step, per_partition) == naive(rows, step)


def test_rows_of_a_component_are_compared_even_if_they_share_no_band(monkeypatch):
    rows = planted(60, 4, size=30)
    step = FuzzyDedup(threshold=0.4)
    kept, _ = fates(rows, step)
    assert kept == naive(rows, step)[0]
    monkeypatch.setattr(groups_kernel, "MAX_UNLINKED", 0)
    assert len(fates(rows, step)[0]) == len(kept) + 3


def test_every_removal_is_verified_against_a_kept_row():
    rows = planted(400, 1)
    texts = {row["id"]: row["text"] for row in rows}
    kept, pairs = fates(rows, FuzzyDedup())
    assert len(pairs) > 100
    for name, (survivor, similarity) in pairs.items():
        assert survivor in kept
        assert similarity == pytest.approx(jaccard(texts[name], texts[survivor]))
        assert similarity >= 0.8


def hard_pairs(count, least, most, seed=5):
    """Rows a0, b0, a1, b1, ... and the similarity of each pair: from about 0.5 to 1, many of them close to the threshold."""
    rng = random.Random(seed)
    rows, truth = [], []
    for number in range(count):
        words = document(rng, rng.randint(least, most))
        other = changed(words, rng.randint(0, len(words) // 14), rng)
        rows += [{"id": f"a{number}", "text": " ".join(words)}, {"id": f"b{number}", "text": " ".join(other)}]
        truth.append(jaccard(rows[-2]["text"], rows[-1]["text"]))
    return rows, np.array(truth)


def assert_recall_and_precision(step, rows, truth, precision):
    """Recall is at least that of the banding curve, less three binomial standard deviations."""
    _, pairs = fates(rows, step, per_partition=200)
    gone = {int(name[1:]) for name in pairs}
    close = {int(number) for number in np.flatnonzero(truth >= step.threshold)}
    promised = np.array([step.probability(truth[number]) for number in close])
    assert len(close) > 150
    assert len(gone & close) >= promised.sum() - 3 * np.sqrt((promised * (1 - promised)).sum())
    assert len(gone & close) >= precision * len(gone)


@pytest.mark.parametrize(("verify", "precision"), [("jaccard", 1.0), ("signature", 0.99)])
@pytest.mark.parametrize("settings_name", ["fineweb", "dolma3"])
def test_recall_is_what_the_banding_curve_promises(settings_name, verify, precision):
    step = FuzzyDedup(settings=settings_name, verify=verify)
    assert_recall_and_precision(step, *hard_pairs(1000, 60, 400), precision)


@pytest.mark.parametrize(("least", "most", "count"), [(20, 60, 2000), (1000, 3000, 500)], ids=["short", "long"])
@pytest.mark.parametrize("threshold", [0.6, 0.8])
def test_packed_sets_are_precise_for_texts_of_any_length(least, most, count, threshold):
    # With these bands almost all pairs are candidates, so the comparison decides.
    step = FuzzyDedup(verify="signature", threshold=threshold, num_bands=30, hashes_per_band=4)
    assert_recall_and_precision(step, *hard_pairs(count, least, most), 0.99)


def chain(length=12, step=6, size=60):
    """Documents of which each is similar to the next, while the first and the last are not."""
    rng = random.Random(9)
    words, rows = document(rng, size), []
    for number in range(length):
        rows.append({"id": f"c{number}", "text": " ".join(words)})
        words = words[:]
        at = number * step % size
        words[at : at + step] = document(rng, step)
    return rows


def test_a_chain_of_similar_texts_loses_only_rows_similar_to_a_kept_one():
    rows = chain()
    texts = {row["id"]: row["text"] for row in rows}
    assert jaccard(rows[0]["text"], rows[-1]["text"]) < 0.3
    chained, _ = fates(rows, FuzzyDedup(threshold=0.6, verify="none", num_bands=40, hashes_per_band=3))
    assert chained == ["c0"]  # without verification, a component is one group
    for verify in ("jaccard", "signature"):
        kept, pairs = fates(rows, FuzzyDedup(threshold=0.6, verify=verify, num_bands=40, hashes_per_band=3))
        assert len(kept) > 3
        assert all(jaccard(texts[name], texts[survivor]) >= 0.6 for name, (survivor, _) in pairs.items())


def test_short_texts_are_dropped_by_exact_match_with_a_reason_of_their_own():
    rows = [{"text": text} for text in ["Hello there", "hello, there!", "hello you", "", None, "", "!!"]]
    report = Pipeline(Rows(rows), FuzzyDedup()).run(executor="inline")
    assert report.dropped == {"exact duplicate, too short for 5-grams": 1}


@pytest.mark.parametrize("keep", ["longest", "best", "newest", "none"])
def test_keep_policies(keep):
    text = " ".join(document(random.Random(3), 50))
    rows = [
        {"id": "a", "text": text, "score": 0.1, "date": "2024-05-01"},
        {"id": "b", "text": text + " more", "score": 0.9, "date": "2023-01-01"},
        {"id": "c", "text": text + " than that", "score": 0.5, "date": "2025-01-01"},
        {"id": "d", "text": "something else that has a few words", "score": 0.0, "date": None},
    ]
    by = {"best": "score", "newest": "date"}.get(keep)
    kept, _ = fates(rows, FuzzyDedup(keep=keep, by=by))
    assert kept == {"longest": ["c", "d"], "best": ["b", "d"], "newest": ["c", "d"], "none": ["d"]}[keep]


def test_character_ngrams_and_other_languages():
    rng = random.Random(4)
    chinese = "".join(chr(0x4E00 + rng.randrange(2000)) for _ in range(200))
    thai = "".join(chr(0x0E01 + rng.randrange(40)) for _ in range(200))
    rows = [{"id": str(n), "text": text} for n, text in enumerate([chinese, chinese[:-3] + "。", thai, thai + "ก"])]
    for step in (FuzzyDedup(), FuzzyDedup(settings="nemo")):
        assert fates(rows, step)[0] == ["0", "2"]


# ------------------------------------------------------------------------------------------- independent of the division


@pytest.mark.parametrize(
    "verify", ["jaccard", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("signature", "none"))]
)
def test_result_does_not_depend_on_partitions_workers_or_budget(verify):
    rows = planted(600, 11)
    step = FuzzyDedup(verify=verify, keep="longest")
    expected = fates(rows, step, per_partition=600)
    assert len(expected[1]) > 60
    assert fates(rows, step, per_partition=37) == expected
    assert fates(rows, step, per_partition=90, executor="local", workers=3, memory="4GB") == expected
    assert fates(rows, step, per_partition=90, executor="local", workers=1, memory="1600MB") == expected


def test_result_does_not_depend_on_the_executor(executor):
    rows = planted(300, 12)
    step = FuzzyDedup(keep="longest")
    assert fates(rows, step, per_partition=90, executor=executor) == fates(rows, step, per_partition=300)


def test_result_does_not_depend_on_the_number_of_buckets(monkeypatch):
    rows = planted(600, 12)
    expected = fates(rows, FuzzyDedup(), per_partition=600)
    from tamis.dedup import shuffle

    monkeypatch.setattr(shuffle, "bytes_per_call", lambda worker_bytes: 20_000)
    assert fates(rows, FuzzyDedup(), per_partition=100) == expected


def test_a_component_larger_than_a_workers_memory_is_processed_from_disk(monkeypatch):
    from tamis.dedup import shuffle

    rows = [{"id": str(n), "text": " ".join(document(random.Random(1), 60))} for n in range(300)]
    monkeypatch.setattr(shuffle, "bytes_per_call", lambda worker_bytes: 5000)
    kept, pairs = fates(rows, FuzzyDedup(), per_partition=100)
    assert (kept, len(pairs)) == (["0"], 299)


def test_dissimilar_pages_of_a_template_are_all_kept():
    rng = random.Random(8)
    frame = document(rng, 40)
    rows = [{"id": str(n), "text": " ".join(frame + document(rng, 25))} for n in range(900)]
    step = FuzzyDedup(num_bands=60, hashes_per_band=2)  # every row shares a band with every other
    kept, pairs = fates(rows, step, per_partition=300)
    assert (len(kept), len(pairs)) == (900, 0)


def write_rows(folder, rows, per_file=100):
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(0, len(rows), per_file):
        lines = "".join(json.dumps(row) + "\n" for row in rows[number : number + per_file])
        (folder / f"{number:06d}.jsonl").write_text(lines)
    return str(folder)


def output_of(folder):
    return [line for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]


def test_workers_killed_while_resolving_change_nothing(tmp_path, monkeypatch):
    rows = planted(300, 13)
    source = write_rows(tmp_path / "in", rows)
    options = {"workers": 2, "memory": "3GB"}
    reader = JsonlReader(source, blocksize="30kB")
    Pipeline(reader, FuzzyDedup(), JsonlWriter(str(tmp_path / "calm"))).run(**options)
    marks = tmp_path / "marks"
    marks.mkdir()
    plain = driver._GatherWork.map

    def killing(self, name, function, items):
        def once(*item):
            mark = marks / name.replace(" ", "-")
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*item)

        return plain(self, name, once, items)

    monkeypatch.setattr(driver._GatherWork, "map", killing)
    events = []
    pipeline = Pipeline(reader, FuzzyDedup(), JsonlWriter(str(tmp_path / "killed")))
    report = pipeline.run(**options, on_event=events.append)
    assert sum(isinstance(event, WorkerDied) for event in events) >= 5
    assert report.balances
    assert output_of(tmp_path / "killed") == output_of(tmp_path / "calm")
    assert Groups.load(tmp_path / "killed").table().equals(Groups.load(tmp_path / "calm").table())


@pytest.mark.parametrize("step", ["bands", "candidate pairs", "components", "candidates, ", "comparisons", "decisions"])
def test_a_run_interrupted_while_resolving_resumes_there(tmp_path, monkeypatch, step):
    rows = planted(200, 14)
    source = write_rows(tmp_path / "in", rows)
    expected = Pipeline(JsonlReader(source), FuzzyDedup(), JsonlWriter(str(tmp_path / "calm"))).run(executor="inline")
    plain = driver._GatherWork.map
    calls = []

    def breaking(self, name, function, items):
        def counted(*item):
            calls.append(name)
            return function(*item)

        result = plain(self, name, counted, items)
        if name.startswith(step) and not broken:
            broken.append(name)
            raise RuntimeError("broken off")
        return result

    broken = []
    monkeypatch.setattr(driver._GatherWork, "map", breaking)
    pipeline = Pipeline(JsonlReader(source), FuzzyDedup(), JsonlWriter(str(tmp_path / "out")))
    with pytest.raises(RuntimeError, match="broken off"):
        pipeline.run(executor="inline")
    done = list(calls)
    report = pipeline.run(executor="inline")
    assert broken
    assert not [name for name in calls[len(done) :] if name in done]
    assert (report.kept, report.dropped) == (expected.kept, expected.dropped)
    assert output_of(tmp_path / "out") == output_of(tmp_path / "calm")


# --------------------------------------------------------------------------------------------------- groups


def test_groups_near_misses_and_closest_calls(tmp_path):
    rows = planted(500, 15, most=6)
    source = write_rows(tmp_path / "in", rows)
    Pipeline(JsonlReader(source), FuzzyDedup(), JsonlWriter(str(tmp_path / "out"))).run(executor="inline")
    groups = Groups.load(tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / ".tamis" / "groups")
    assert {"id", "kept_id", "address", "kept_address", "similarity", "bands"} <= set(table.column_names)
    assert min(table["bands"].to_pylist()) >= 0
    closest = groups.closest(5)
    assert [pair["similarity"] for pair in closest["above"]] == sorted(table["similarity"].to_pylist())[:5]
    assert all(0.6 < pair["similarity"] < 0.8 for pair in closest["below"])
    assert len(closest["below"]) == 5
    histogram = groups.histogram()
    assert sum((size - 1) * count for size, count in histogram.items()) == table.num_rows
    assert groups.largest(1)[0]["size"] == max(histogram)
    name = table["id"][0].as_py()
    (entry,) = [entry for entry in groups.explain(name) if entry["fate"] == "dropped"]
    assert entry["kept_id"] == table["kept_id"][0].as_py()


@pytest.mark.parametrize("verify", ["jaccard", "signature"])
def test_reused_hashes_with_another_threshold_give_the_result_of_a_new_run(tmp_path, verify, monkeypatch):
    rows = planted(500, 16, most=6)
    source = write_rows(tmp_path / "in", rows)
    out = [str(tmp_path / name) for name in ("loose", "strict", "reused")]
    for threshold, folder in ((0.7, out[0]), (0.9, out[1])):
        step = FuzzyDedup(threshold=threshold, verify=verify)
        Pipeline(JsonlReader(source), step, JsonlWriter(folder)).run(executor="inline")
    monkeypatch.setattr(FuzzyDedup, "signed", None)  # nothing is hashed again
    step = FuzzyDedup(threshold=0.9, verify=verify, reuse=out[0])
    Pipeline(JsonlReader(source, blocksize="20kB"), step, JsonlWriter(out[2])).run(executor="inline")
    assert output_of(tmp_path / "reused") == output_of(tmp_path / "strict")
    columns = ["id", "kept_id", "similarity"]
    assert Groups.load(out[2]).table().select(columns).equals(Groups.load(out[1]).table().select(columns))
    assert len(output_of(tmp_path / "strict")) > len(output_of(tmp_path / "loose"))


def test_hashes_of_other_settings_or_other_input_are_not_reused(tmp_path):
    rows = planted(50, 17)
    source = write_rows(tmp_path / "in", rows)
    Pipeline(JsonlReader(source), FuzzyDedup(), JsonlWriter(str(tmp_path / "out"))).run(executor="inline")
    with pytest.raises(ParameterError, match="only `threshold` may differ"):
        FuzzyDedup(reuse=str(tmp_path / "out"), ngram=3).check()
    with pytest.raises(ParameterError, match="not the output of a fuzzy"):
        FuzzyDedup(reuse=str(tmp_path)).check()
    with pytest.raises(ParameterError, match="was made from 50 rows"):
        Pipeline(Rows(rows[:40]), FuzzyDedup(reuse=str(tmp_path / "out"))).run(executor="inline")


# -------------------------------------------------------------------------------------------------------------- mistakes


def test_text_of_another_type_is_rejected():
    with pytest.raises(OperatorError, match="is int64, not text"):
        Pipeline(Rows([{"text": 3}]), FuzzyDedup()).run(executor="inline")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"threshold": 0.0}, "above 0"),
        ({"threshold": 1.5}, "at most 1"),
        ({"ngram": 0}, "from 1 to 64"),
        ({"num_hashes": 100, "num_bands": 3}, "cannot be combined"),
        ({"update": True}, "needs an index"),
        ({"keep": "best"}, "needs a column"),
    ],
)
def test_invalid_parameters_are_rejected(parameters, message):
    with pytest.raises(ParameterError, match=message):
        FuzzyDedup(**parameters).check()


def test_too_little_disk_space_is_reported_before_the_work_begins(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=100, used=90, free=10))
    with pytest.raises(BudgetError, match="of disk"):
        Pipeline(Rows(planted(20)), FuzzyDedup()).run(executor="inline")


def test_a_disk_that_fills_up_is_reported(monkeypatch):
    from tamis.dedup import shuffle
    from tamis.errors import SinkError

    def full(self, *args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shuffle.ShuffleWriter, "write_ordered", full)
    with pytest.raises(SinkError, match="the disk is full"):
        Pipeline(Rows(planted(20)), FuzzyDedup()).run(executor="inline")


def test_the_split_into_bands_follows_the_threshold():
    assert FuzzyDedup(num_hashes=112, threshold=0.8).bands == best_split(0.8, 112)
    low, high = best_split(0.5, 128), best_split(0.9, 128)
    assert low[1] < high[1]
    assert all(bands * rows <= 128 for bands, rows in (low, high))


def test_an_empty_input_and_one_row():
    table = pa.table({"text": pa.array([], pa.string())})
    assert Pipeline(Rows(table), FuzzyDedup()).run(executor="inline").read == 0
    assert Pipeline(Rows([{"text": "alone"}]), FuzzyDedup()).run(executor="inline").kept == 1


def test_disk_is_estimated_from_rows_and_bytes():
    step = FuzzyDedup()
    assert 3e9 < step.disk_bytes(10_000_000, 5_000_000_000) < 12e9
    assert FuzzyDedup(verify="signature").disk_bytes(10_000_000, 50_000_000_000) < step.disk_bytes(
        10_000_000, 50_000_000_000
    )


def test_hashes_of_other_texts_are_not_reused(tmp_path):
    rows = planted(50, 18)
    Pipeline(Rows(rows), FuzzyDedup(), JsonlWriter(str(tmp_path / "out"))).run(executor="inline")
    swapped = [rows[1], rows[0], *rows[2:]]
    for others in (swapped, [{**row, "text": row["text"] + " x"} for row in rows]):
        with pytest.raises(ParameterError, match="made from different texts"):
            Pipeline(Rows(others), FuzzyDedup(reuse=str(tmp_path / "out"))).run(executor="inline")
    Pipeline(Rows(rows, rows_per_partition=7), FuzzyDedup(reuse=str(tmp_path / "out"))).run(executor="inline")


def test_packed_sets_of_equal_texts_reach_a_threshold_of_one():
    text = " ".join(document(random.Random(3), 3000))
    rows = [{"id": str(n), "text": text} for n in range(3)]
    assert fates(rows, FuzzyDedup(verify="signature", threshold=1.0))[0] == ["0"]


def test_a_run_reports_the_phases_of_a_deduplication():
    rng = random.Random(5)
    rows = [{"text": " ".join(document(rng))} for _ in range(20)]
    phases = []
    Pipeline(Rows(rows), FuzzyDedup()).run(
        executor="inline", on_event=lambda event: phases.append(event) if isinstance(event, CallsFinished) else None
    )
    names = [event.name.split(",")[0] for event in phases]
    assert names == [
        "bands by range",
        "candidate pairs",
        "components",
        "candidates",
        "comparisons",
        "survivors",
        "decisions",
    ]
    assert all(event.calls >= 1 and event.seconds >= 0 and event.stage == 0 for event in phases)


class TestWhereItRuns:
    """The plan on a machine that seems to have a GPU; that it computes the same there is tested on one that has."""

    @pytest.fixture
    def corpus(self, tmp_path, monkeypatch):
        monkeypatch.setattr(devices, "why_not_gpu", lambda library=None: None)
        monkeypatch.setattr(placement, "gpu_count", lambda: 1)
        monkeypatch.setattr(placement, "usable_cpus", lambda: 4)
        path = tmp_path / "a.jsonl"
        path.write_text('{"text": "some words"}\n' * 100)
        return JsonlReader(path)

    def test_a_small_input_is_not_worth_a_gpu(self, corpus):
        (_, step) = placement.placed_on([corpus, FuzzyDedup()], "auto")
        assert step.device == "cpu"
        assert not step.resources.uses_gpu
        (_, step) = placement.placed_on([Rows([{"text": "a"}]), FuzzyDedup()], "auto")
        assert step.device == "cpu", "the size is unknown"

    def test_a_large_input_is(self, corpus, monkeypatch):
        monkeypatch.setattr(FuzzyDedup, "worth_gpu_bytes", property(lambda step: 2000))
        (_, step) = placement.placed_on([corpus, FuzzyDedup()], "auto")
        assert step.resources.gpus == pytest.approx(1 / 3)
        assert placement.resource_runs([], 10**9, step) == [(), ()], "readers, and workers that observe"
        light, heavy = pool_needs([(), ()], Learned(), step)
        assert light.batches_after == heavy.batches == 4
        assert heavy.worker_bytes(16_000_000) - PoolNeed(heavy.memory_bytes).worker_bytes(16_000_000) == 6 * 48_000_000
        (_, step) = placement.placed_on([corpus, FuzzyDedup()], "cpu")
        assert not step.resources.uses_gpu

    def test_many_cores_hash_words_as_fast(self, corpus, monkeypatch):
        monkeypatch.setattr(FuzzyDedup, "worth_gpu_bytes", property(lambda step: 2000))
        monkeypatch.setattr(placement, "usable_cpus", lambda: 16)
        for name, device in (("fineweb", "cpu"), ("nemo", "auto")):
            (_, step) = placement.placed_on([corpus, FuzzyDedup(settings=name)], "auto")
            assert step.device == device

    def test_reused_hashes_need_none(self, corpus):
        step = FuzzyDedup(device="gpu")
        assert step.resources.uses_gpu
        assert not step.changed(reuse="somewhere").resources.uses_gpu
