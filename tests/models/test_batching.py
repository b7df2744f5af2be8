"""Batches by length: every row once, within the budget, in a fixed order."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tamis.models.batching import SMALLEST_TOKENS, TokenBudget, pad, plan_batches, round_up

LENGTHS = st.lists(st.integers(0, 600), max_size=200)


@given(LENGTHS, st.integers(1, 5000), st.sampled_from([1, 8, 64]), st.none() | st.integers(1, 20))
def test_every_row_is_in_one_batch_within_the_budget(lengths, most_tokens, multiple, most_rows):
    batches = plan_batches(np.array(lengths, np.int64), most_tokens, most_rows, multiple)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    for batch in batches:
        width = round_up(max(1, max(lengths[row] for row in batch)), multiple)
        assert len(batch) == 1 or len(batch) * width <= most_tokens
        assert most_rows is None or len(batch) <= most_rows


@given(LENGTHS, st.integers(1, 5000))
def test_longer_texts_come_first(lengths, most_tokens):
    flat = [lengths[row] for batch in plan_batches(np.array(lengths, np.int64), most_tokens) for row in batch]
    assert flat == sorted(lengths, reverse=True)


@given(st.lists(st.lists(st.integers(1, 99), max_size=9), min_size=1, max_size=9))
def test_padding_is_on_the_right(rows):
    ids = np.array([token for row in rows for token in row], np.int32)
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    order = np.arange(len(rows))[::-1]
    found = pad(ids, offsets, order, 10, 0)
    assert found.tolist() == [rows[row] + [0] * (10 - len(rows[row])) for row in order]


def test_a_budget_is_halved_for_texts_at_least_as_long():
    budget = TokenBudget(8192)
    assert budget.most(100) == 8192
    assert budget.halve(256, 8192) == 4096
    assert (budget.most(100), budget.most(256), budget.most(512)) == (8192, 4096, 4096)
    for _ in range(20):
        tokens = budget.halve(256, budget.most(256))
    assert tokens == SMALLEST_TOKENS
