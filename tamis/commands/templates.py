"""The files that `tamis new-operator` writes."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass

from tamis.errors import ParameterError
from tamis.operators import snake_case

_HEAD = '''"""The operator `{name}`.

To use it in recipes, register this module in the pyproject.toml of your package:

    [project.entry-points."tamis.operators"]
    {name} = "your_package.{name}"
"""

from __future__ import annotations

'''

_FILTER = '''import numpy as np

from tamis import Batch, Filter, Rule, Scores, between, operator


@operator(reads="text", writes="{name}")
class {title}(Filter):
    """Keep texts of which at most 30 % of the characters are capital letters.

    Replace the measure and its bounds by yours. `score` measures all rows of a batch, `rules` decide.
    """

    min_{name}: float | None = None
    max_{name}: float | None = 0.3
    column: str = "text"

    def score(self, batch: Batch) -> Scores:
        texts = batch["text"].to_pylist()
        return {{"{name}": np.array([_share(text or "") for text in texts], np.float64)}}

    def rules(self) -> list[Rule]:
        return [between("{name}", self.min_{name}, self.max_{name})]


def _share(text: str) -> float:
    return sum(letter.isupper() for letter in text) / len(text) if text else 0.0
'''

_FILTER_TEST = '''"""Tests of `{name}`."""

from tamis import Pipeline, Rows

from {name} import {title}

ROWS = [{{"text": "a quiet text"}}, {{"text": "A LOUD TEXT"}}, {{"text": ""}}]


def test_it_says_why_it_drops_a_row():
    report = Pipeline(Rows(ROWS), {title}()).run(executor="inline")
    assert (report.read, report.kept, report.failed) == (3, 2, 0)
    assert report.dropped == {{"{name} > 0.3": 1}}


def test_without_bounds_all_rows_are_kept():
    report = Pipeline(Rows(ROWS), {title}(max_{name}=None)).run(executor="inline")
    assert report.kept == 3
'''

_MAP = '''import pyarrow as pa

from tamis import Batch, Column, Map, operator


@operator(reads="text", writes="{name}")
class {title}(Map):
    """Add the number of characters of each text as the column `{name}`.

    Replace it by what you need. `apply` returns the new columns, with one value per row.
    """

    column: str = "text"

    def apply(self, batch: Batch) -> dict[str, Column]:
        texts = batch["text"].to_pylist()
        return {{"{name}": pa.array([len(text or "") for text in texts], pa.int64())}}
'''

_MAP_TEST = '''"""Tests of `{name}`."""

from tamis import Batch

from {name} import {title}


def test_it_adds_a_column():
    added = {title}().apply(Batch.from_rows([{{"text": "four"}}, {{"text": None}}]))
    assert added["{name}"].to_pylist() == [4, 0]
'''

_EXPAND = '''import numpy as np
import pyarrow as pa

from tamis import Batch, Expand, operator


@operator(reads="text", writes="text")
class {title}(Expand):
    """Replace each row by one row per line of its text.

    Replace it by what you need. `expand` returns the new columns, and the number of the row that each comes from.
    """

    column: str = "text"

    def expand(self, batch: Batch) -> tuple[pa.Table, np.ndarray]:
        lines, parents = [], []
        for number, text in enumerate(batch["text"].to_pylist()):
            for line in (text or "").splitlines():
                lines.append(line)
                parents.append(number)
        return pa.table({{"text": pa.array(lines, pa.string())}}), np.array(parents, np.int64)
'''

_EXPAND_TEST = '''"""Tests of `{name}`."""

from tamis import Batch

from {name} import {title}


def test_each_line_becomes_a_row():
    table, parents = {title}().expand(Batch.from_rows([{{"text": "one\\ntwo"}}, {{"text": "three"}}]))
    assert table["text"].to_pylist() == ["one", "two", "three"]
    assert parents.tolist() == [0, 0, 1]
'''

KINDS = {"filter": (_FILTER, _FILTER_TEST), "map": (_MAP, _MAP_TEST), "expand": (_EXPAND, _EXPAND_TEST)}


@dataclass(frozen=True)
class NewOperator:
    """The two files of a new operator."""

    name: str
    module: str
    test: str


def new_operator(name: str, kind: str) -> NewOperator:
    """The files of an operator; `name` is its class name or its name in recipes."""
    from tamis.registry import known_names

    snake = snake_case(name).replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", snake) or keyword.iskeyword(snake):
        raise ParameterError(f"{name!r} is not a name for an operator", hint="use letters, digits and _: shout_share")
    if snake in known_names():
        raise ParameterError(f"there is an operator `{snake}` already", hint=f"`tamis ops {snake}` describes it")
    title = "".join(word.capitalize() for word in snake.split("_"))
    if snake_case(title) != snake:
        raise ParameterError(f"{name!r} is not a name for an operator", hint=f"`{snake_case(title)}` would be one")
    module, test = (text.format(name=snake, title=title) for text in KINDS[kind])
    return NewOperator(snake, _HEAD.format(name=snake) + module, test)
