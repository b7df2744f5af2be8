"""Marks the passages of sampled rows that a filter looked at, by asking the filter (`Filter.passages`)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tamis.dashboard.samples import Sample
from tamis.operators import Filter, Operator

MOST_PASSAGES = 200
_SCORE = re.compile(r"\w+")


def mark_passages(samples: Sequence[Sample], steps: Sequence[Operator]) -> None:
    """Fill in the passages of dropped rows. A filter that raises has none: pages are made after the run, from any text."""
    filters = {step.name: step for step in reversed(steps) if isinstance(step, Filter)}
    for sample in samples:
        step = filters.get(sample.step)
        score = _SCORE.match(sample.reason)
        if step is not None and score is not None and sample.text:
            try:
                found = step.passages(sample.text, score[0])
            except Exception:  # noqa: BLE001 - also of other packages, and without a mark the row is shown all the same
                continue
            sample.passages = found[:MOST_PASSAGES]
