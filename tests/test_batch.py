import numpy as np
import pyarrow as pa
import pytest

from tamis.batch import Batch, Origin


def batch() -> Batch:
    return Batch.from_rows([{"text": "a", "n": 1}, {"text": "b", "n": 2}, {"text": "c"}])


def test_missing_keys_become_nulls():
    assert batch()["n"].to_pylist() == [1, 2, None]


@pytest.mark.parametrize("index", [np.array([True, False, True]), np.array([0, 2])])
def test_selected_rows_keep_their_origin(index):
    chosen = batch().select(index)
    assert chosen["text"].to_pylist() == ["a", "c"]
    assert [chosen.origin.address(row) for row in range(2)] == ["rows:0", "rows:2"]


def test_slices_share_the_columns():
    assert batch().select(slice(1, None)).rows() == [{"text": "b", "n": 2}, {"text": "c", "n": None}]


def test_facts_are_computed_once_and_shrink_with_the_rows():
    calls = []

    def lengths(column: pa.Array) -> dict[str, np.ndarray]:
        calls.append(len(column))
        return {"length": np.array([len(text) for text in column.to_pylist()])}

    whole = Batch.from_rows([{"text": "a"}, {"text": "bb"}, {"text": "ccc"}])
    whole.facts("text", lengths)
    part = whole.select(np.array([False, True, True]))
    assert part.facts("text", lengths)["length"].tolist() == [2, 3]
    assert calls == [3]


def test_facts_about_a_replaced_column_are_discarded():
    def upper(column: pa.Array) -> dict[str, np.ndarray]:
        return {"upper": np.array([text.upper() for text in column.to_pylist()])}

    first = Batch.from_rows([{"text": "a"}])
    first.facts("text", upper)
    assert first.with_columns({"text": pa.array(["b"])}).facts("text", upper)["upper"].tolist() == ["B"]


def test_a_view_shows_a_column_under_another_name_and_shares_its_facts():
    def first_letters(column: pa.Array) -> dict[str, np.ndarray]:
        return {"letter": np.array([text[0] for text in column.to_pylist()])}

    whole = Batch.from_rows([{"prompt": "xy", "other": 1}])
    view = whole.view({"text": "prompt"})
    assert view.columns == ["text"]
    view.facts("text", first_letters)
    assert ("prompt", f"{__name__}.{first_letters.__qualname__}") in whole.memo


def test_a_view_without_columns_keeps_the_number_of_rows():
    assert len(batch().view({})) == 3


def test_origins_of_several_files_are_joined():
    joined = Origin.concat([Origin.of("a", [0, 5]), Origin.of("b", [0]), Origin.of("a", [9])])
    assert [joined.address(row) for row in range(4)] == ["a:0", "a:5", "b:0", "a:9"]
    assert joined.places == ("a", "b")


def test_joining_batches_fills_missing_columns():
    joined = Batch.concat([Batch.from_rows([{"a": 1}]), Batch.from_rows([{"a": 2, "b": "x"}])])
    assert joined.rows() == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]


def test_rows_without_columns_are_neither_lost_nor_invented():
    whole = batch().without(["text", "n"])
    for index in (slice(1, 3), slice(1, None), np.array([True, False, True]), np.array([2, 0])):
        assert len(whole.select(index)) == 2
    assert len(whole.select(slice(0, 100))) == 3
    assert Batch.concat([whole, whole.select(slice(1))]).rows() == [{}] * 4
    assert Batch.concat([whole, Batch.from_rows([{"a": 1}])]).rows() == [{"a": None}] * 3 + [{"a": 1}]
    assert len(Batch.from_rows([{}, {}])) == 2


def test_values_that_python_cannot_hold_are_shown_by_their_type():
    table = pa.table(
        {"late": pa.array([2**60], pa.timestamp("s")), "nowhere": pa.array([0], pa.timestamp("us", "No/Where"))}
    )
    assert Batch(table).shown_rows() == [{"late": "<timestamp[s]>", "nowhere": "<timestamp[us, tz=No/Where]>"}]
