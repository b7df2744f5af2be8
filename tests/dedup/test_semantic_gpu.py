"""Semantic deduplication on a GPU, or with the same code on a CPU: the same groups as without one."""

from dataclasses import replace

import numpy as np
import pytest

from tamis import ParquetWriter, Pipeline, Rows
from tamis.dedup import SemanticDedup, semantic, similar
from tamis.errors import ParameterError
from tamis.events import CallsFinished
from tamis.kernels import clusters_gpu
from tamis.models.devices import choose
from tests.dedup.embeddings import EXACT, fates, planted, rows_of


@pytest.fixture(
    params=[
        "torch",
        pytest.param("gpu", marks=[pytest.mark.gpu, pytest.mark.skipif(choose("auto") == "cpu", reason="no GPU")]),
    ]
)
def resident(request, monkeypatch):
    """Vectors are compared with PyTorch, on a GPU or as it would be there."""
    pytest.importorskip("torch")
    if request.param == "torch":
        monkeypatch.setattr(clusters_gpu, "DEVICE", "cpu")
        monkeypatch.setattr(SemanticDedup, "_on_gpu", lambda step, count, work: step.device == "gpu")
        monkeypatch.setattr(semantic, "choose", lambda device: "cpu")
    return SemanticDedup(device="gpu")


def calls_on_a_gpu(events):
    return [event.name for event in events if isinstance(event, CallsFinished) and "on a GPU" in event.name]


@pytest.mark.parametrize("keep", ["hard", "random", "first"])
@pytest.mark.parametrize("neighbours", [2, None])
def test_a_gpu_gives_the_same_groups(resident, keep, neighbours, monkeypatch):
    rows = rows_of(planted(500, seed=41))
    step = replace(resident, keep=keep, neighbours=neighbours, threshold=0.85)
    expected = fates(rows, replace(step, device="cpu"), per_partition=170)
    assert len(expected[1]) > 100
    seen = []
    assert fates(rows, step, per_partition=170, on_event=seen.append) == expected
    assert calls_on_a_gpu(seen) == ["similar rows on a GPU, round 0"]
    monkeypatch.setattr(similar, "MAX_LISTED", 1)  # several rounds
    assert fates(rows, step, per_partition=170, on_event=seen.append)[0] == expected[0]
    assert len(calls_on_a_gpu(seen)) > 2 or keep != "hard"  # in another order, one round may suffice


def test_vectors_that_do_not_fit_on_a_gpu_are_compared_in_blocks(resident, monkeypatch):
    rows = rows_of(planted(300, seed=42))
    expected = fates(rows, replace(resident, device="cpu"))
    from tamis.dedup import resident as module

    monkeypatch.setattr(module, "fits", lambda count, dimension: False)
    seen = []
    assert fates(rows, resident, on_event=seen.append) == expected
    assert len(calls_on_a_gpu(seen)) == 1


def test_an_index_and_preferred_sources_on_a_gpu(resident, tmp_path):
    vectors = planted(240, noise=0.1, seed=43, kind=np.float16)
    names = np.where(np.arange(240) % 3, "a", "b").tolist()
    rows = rows_of(vectors, source=names)
    index = str(tmp_path / "index")
    first = SemanticDedup(against=index, update=True, **EXACT)
    Pipeline(Rows(rows[:100]), first, ParquetWriter(str(tmp_path / "first"))).run(executor="inline")
    for more in ({}, {"prefer": ["b", "a"], "prefer_column": "source", "across_sources": True}):
        step = replace(resident, against=index, threshold=0.9, **EXACT, **more)
        seen = []
        found = [fates(rows[100:], each, 60, on_event=seen.append) for each in (step, replace(step, device="cpu"))]
        assert found[0] == found[1]
        assert found[0][1]
        assert len(calls_on_a_gpu(seen)) == 1


def test_no_gpu_is_an_error_only_if_one_is_demanded():
    if choose("auto") == "gpu":
        pytest.skip("this machine has a GPU")
    with pytest.raises(ParameterError, match="GPU"):
        SemanticDedup(device="gpu").check()
    SemanticDedup(device="auto").check()


@pytest.mark.gpu
@pytest.mark.skipif(choose("auto") == "cpu", reason="no GPU")
@pytest.mark.parametrize("stages", [(32, 512, 2**31 - 1), (4, 20, 2**31 - 1)])
def test_kernels_that_do_not_write_products_find_the_same(stages, monkeypatch):
    rng = np.random.default_rng(44)
    vectors = planted(6000, dimension=100, noise=0.2, seed=44)
    vectors[rng.integers(0, 6000, 500)] = vectors[0]  # a crowd of equal rows
    rows = rows_of(vectors)
    step = SemanticDedup(device="gpu", num_clusters=20, neighbours=4)
    monkeypatch.setattr(clusters_gpu, "STAGES", stages)
    seen = []
    found = [fates(rows, replace(step, device=device), 2000, on_event=seen.append) for device in ("gpu", "cpu")]
    assert calls_on_a_gpu(seen)
    assert not clusters_gpu._unsupported
    monkeypatch.setattr(clusters_gpu, "FUSED", False)
    found.append(fates(rows, step, 2000))
    assert found[0] == found[1] == found[2]
    assert len(found[0][1]) > 2000
