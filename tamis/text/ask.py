"""Steps that ask a language model about each row: new columns, a score to filter by, or new rows.

    prompt "Rate this text: {text}"  +  row  -->  question  -->  OpenAI-compatible endpoint  -->  answer  -->  columns

A question contains the values of columns where the prompt names them in braces, and nothing else is replaced: braces in data
have no meaning, and nothing is evaluated.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tamis.batch import Batch, Column
from tamis.context import Context
from tamis.errors import ParameterError
from tamis.models.answers import Answer, Limit, default_folder
from tamis.models.endpoint import (
    Api,
    Endpoint,
    EndpointSettings,
    Question,
    check_cache,
    check_extra_body,
    check_url,
    is_loopback,
    read_key,
)
from tamis.models.outputs import check_names
from tamis.models.structured import AnswerError, arrow_type, instruction, object_schema, read_answer
from tamis.operators import Expand, Filter, Map, Operator, Resources, Rule, Scores, between, operator

_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_MEMORY = "48MB"
"""The HTTP client, its event loop and its connections; measured."""
_BATCH_ROWS = 4096
"""Bounds the answers in memory."""


# ---------------------------------------------------------------------------------------------------------- the prompt


@dataclass(frozen=True)
class Template:
    """A text with the names of columns in braces; `{{` and `}}` are braces.

    >>> Template.parse("Rate {text} as {{0}}", "prompt").filled({"text": "{x}"})
    'Rate {x} as {0}'
    """

    parts: tuple[tuple[str, str | None], ...]
    """Literal text, and the column that follows it."""

    @staticmethod
    def parse(text: str, where: str) -> Template:
        parts: list[tuple[str, str | None]] = []
        literal, position = "", 0
        for match in _PART.finditer(text):
            literal += text[position : match.start()]
            position = match.end()
            if match[0] in ("{{", "}}"):
                literal += match[0][0]
            elif match[1] is None or not match[1].strip() or re.search(r"[\"':\n]", match[1]):
                shown = match[0] if len(match[0]) < 40 else f"{match[0][:40]}..."
                hint = "a column is named as {text}; write {{ and }} for braces"
                raise ParameterError(f"{where} has a brace that names no column: {shown!r}", hint=hint)
            else:
                parts.append((literal, match[1]))
                literal = ""
        return Template((*parts, (literal + text[position:], None)))

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(column for _, column in self.parts if column is not None))

    def filled(self, row: Mapping[str, str]) -> str:
        return "".join(literal + ("" if column is None else row[column]) for literal, column in self.parts)


def as_prompt_text(value: object) -> str:
    """A value of a column as a prompt shows it: texts as they are, everything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        raise AnswerError("a prompt cannot contain binary data")
    return json.dumps(value, ensure_ascii=False, default=str)


def filled_prompts(batch: Batch, templates: Sequence[Template]) -> list[tuple[str, ...] | None]:
    """By row, the text of each template; None if a column that they name is null."""
    names = list(dict.fromkeys(column for template in templates for column in template.columns))
    result: list[tuple[str, ...] | None] = []
    for values in zip(*(batch[name].to_pylist() for name in names), strict=True):
        if any(value is None for value in values):
            result.append(None)
            continue
        row = {name: as_prompt_text(value) for name, value in zip(names, values, strict=True)}
        result.append(tuple(template.filled(row) for template in templates))
    return result


# ------------------------------------------------------------------------------------------------- what all steps share


@dataclass(frozen=True)
class _Asking(Operator):
    """The parameters of all steps that ask a model."""

    path_parameters: ClassVar[frozenset[str]] = frozenset({"cache"})
    incidental: ClassVar[frozenset[str]] = frozenset({
        "endpoint", "api_key_env", "concurrency", "timeout_s", "retries", "retry_wait_s", "cache",
        "max_total_tokens", "max_cost", "price_per_million_input", "price_per_million_output",
    })  # fmt: skip
    batch_rows: ClassVar[int | None] = _BATCH_ROWS
    cost: ClassVar[float] = 1000.0
    declared_resources: ClassVar[Resources] = Resources(memory=_MEMORY)

    prompt: str
    system: str | None = None
    endpoint: str = "http://127.0.0.1:8000/v1"
    model: str | None = None
    api: Api = "chat"
    api_key_env: str | None = None
    temperature: float | None = 0
    max_tokens: int = 1024
    extra_body: Mapping[str, Any] = field(default_factory=dict, hash=False)
    concurrency: int = 16
    timeout_s: float = 300
    retries: int = 5
    retry_wait_s: float = 1
    cache: str | Path | None = "auto"
    max_total_tokens: int | None = None
    max_cost: float | None = None
    price_per_million_input: float = 0
    price_per_million_output: float = 0

    def packages(self) -> Mapping[str, str]:
        return {"aiohttp": "llm"}

    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(column for template in self._templates() for column in template.columns))

    def _templates(self) -> list[Template]:
        texts = {"prompt": self.prompt, "system": self.system}
        return [Template.parse(text, f"`{name}` of `{self.name}`") for name, text in texts.items() if text is not None]

    def answer_schema(self) -> dict[str, Any] | None:
        """The form of an answer; None for text."""
        return None

    def check(self) -> None:
        if not self.reads():
            raise ParameterError(
                f"`prompt` of `{self.name}` names no column, so all rows would get the same answer",
                hint="name the column to ask about in braces: 'Summarize this text: {text}'",
            )
        self.answer_schema()
        check_url(self.endpoint, self.name)
        least: dict[str, float] = {
            "concurrency": 1,
            "max_tokens": 1,
            "retries": 0,
            "timeout_s": 0.001,
            "retry_wait_s": 0,
        }
        for name in ("price_per_million_input", "price_per_million_output", "max_cost", "max_total_tokens"):
            least[name] = 0
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and not bound <= value < math.inf:
                raise ParameterError(f"`{name}` of `{self.name}` must be at least {bound:g}, got {value}")
        check_extra_body(self.extra_body, self.name)
        check_cache(self.cache, self.name)
        if self.api == "completions" and self.system is not None:
            raise ParameterError(
                f"`{self.name}` with api='completions' has no `system` message", hint="put it into `prompt`"
            )
        if self.max_cost is not None and not (self.price_per_million_input or self.price_per_million_output):
            raise ParameterError(
                f"`max_cost` of `{self.name}` needs prices",
                hint="set price_per_million_input and price_per_million_output, in the same currency",
            )
        if self.cache is None and not (self.max_cost is None and self.max_total_tokens is None):
            raise ParameterError(
                f"`{self.name}` needs a `cache` to keep a budget", hint="it holds what all workers have spent"
            )
        read_key(self.api_key_env)

    def notes(self) -> list[str]:
        if self.api_key_env and self.endpoint.startswith("http:") and not is_loopback(self.endpoint):
            return [f"`{self.name}` sends the key in {self.api_key_env} to {self.endpoint} without encryption"]
        return []

    def asker(self, context: Context) -> _Asker:
        limit = Limit(self.max_total_tokens, None if self.max_cost is None else round(self.max_cost * 10**9))
        settings = EndpointSettings(
            self.endpoint, self.model, self.api, self.api_key_env, self.concurrency, self.timeout_s, self.retries,
            self.retry_wait_s, limit, self.price_per_million_input, self.price_per_million_output,
        )  # fmt: skip
        folder = None if self.cache is None else default_folder() if self.cache == "auto" else Path(self.cache)
        scope = json.dumps([context.run, self.measuring_identity()], sort_keys=True, default=str)
        return _Asker(self, Endpoint(settings, folder.expanduser() if folder else None, scope))


class _Asker:
    """Asks one question per row."""

    def __init__(self, step: _Asking, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.schema = step.answer_schema()
        self._templates = step._templates()
        self._step = step
        self._known: dict[tuple[str, ...], Answer | AnswerError] = {}
        self.take_counts, self.close = endpoint.take_counts, endpoint.close

    def answers(self, batch: Batch) -> list[Any]:
        """By row, the text or the values of its answer; None for a row in which a column of the prompt is null.

        Raises the error of the first row without an answer. The engine then calls again with halves of the batch until
        that row is alone, so results are kept until other rows come.
        """
        texts = filled_prompts(batch, self._templates)
        new = [text for text in dict.fromkeys(texts) if text is not None]
        if any(text not in self._known for text in new):
            found = self.endpoint.answers([self._question(text) for text in new], self._value)
            self._known = dict(zip(new, found, strict=True))
        return [None if text is None else self._value(self._known[text]) for text in texts]

    def _question(self, texts: tuple[str, ...]) -> Question:
        step, (prompt, *system) = self._step, texts
        if self.schema is not None:
            prompt = f"{prompt}\n\n{instruction(self.schema)}"
        body: dict[str, Any] = {}
        if step.api == "chat":
            messages = [{"role": "system", "content": text} for text in system]
            body["messages"] = [*messages, {"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        if step.temperature is not None:
            body["temperature"] = step.temperature
        if "max_completion_tokens" not in step.extra_body:  # the name that some services require
            body["max_tokens"] = step.max_tokens
        most = step.extra_body.get("max_completion_tokens", step.max_tokens)
        return Question({**body, **step.extra_body}, most, self.schema)

    def _value(self, found: Answer | AnswerError) -> Any:
        if isinstance(found, AnswerError):
            raise AnswerError(found.message)
        return found.text if self.schema is None else read_answer(found.text, self.schema)


# ------------------------------------------------------------------------------------------------------------- the steps


@operator()
class Ask(_Asking, Map):
    """Ask a language model about each row, and add its answer as columns.

    `prompt` is sent as the message of the user, with the values of the columns that it names in braces; write `{{` and `}}`
    for braces. `system` is the message before it. The answer is a text in the column `output`, or, with a `schema`, one column
    per property:

        schema={"score": {"type": "integer", "minimum": 0, "maximum": 5}, "reason": {"type": "string"}}

    `schema` uses the JSON Schema keywords type, enum, minimum, maximum, minLength, maxLength, pattern, items, minItems,
    maxItems and properties. The server is requested to enforce it (`response_format`); if it cannot, the prompt alone
    describes it. An answer that does not match is requested again, up to `retries` times; then the row fails. An answer that
    is cut off at `max_tokens` also fails its row. A row in which a column of the prompt is null is not sent, and its answer
    is null.

    `endpoint` is the address of an OpenAI-compatible server up to `/v1`; `api` is "chat" or, for base models, "completions".
    `model` is not needed if the server has only one. `api_key_env` names the environment variable of the key, which is not
    recorded anywhere. `extra_body` adds parameters of the server, such as `top_p` or `seed`.

    At most `concurrency` requests are in flight over all workers with the same `cache`. Errors of the server, time-outs and
    half answers are repeated up to `retries` times, after a wait that starts at `retry_wait_s` and doubles, or the one that the
    server requests. A server that cannot be reached or refuses access ends the run, and so does a request that might exceed
    `max_total_tokens` or `max_cost`, which count what all runs with the same output spent for this step. Rerun the same
    command to resume, after a spent budget with a larger one: answers are stored as they arrive, in the folder `cache`, by
    default in ~/.cache/tamis/answers, and no question is asked twice. That also makes answers with a `temperature` above 0
    repeatable. Stored answers are found by model, messages and parameters, not by the address of the server.

    >>> Ask("Summarize: {text}", output="summary").reads()
    ('text',)
    """

    output: str = "answer"
    schema: Mapping[str, Any] | None = field(default=None, hash=False)

    def check(self) -> None:
        super().check()
        check_names(self.name, self.writes())

    def answer_schema(self) -> dict[str, Any] | None:
        return None if self.schema is None else object_schema(self.schema, self.name)

    def writes(self) -> tuple[str, ...]:
        schema = self.answer_schema()
        return (self.output,) if schema is None else tuple(schema["properties"])

    def open(self, context: Context) -> _ColumnAsker:
        return _ColumnAsker(self.asker(context), self.output)


class _ColumnAsker:
    def __init__(self, asker: _Asker, output: str) -> None:
        self._asker, self._output = asker, output
        self.take_counts, self.close = asker.take_counts, asker.close

    def apply(self, batch: Batch) -> dict[str, Column]:
        found = self._asker.answers(batch)
        if self._asker.schema is None:
            return {self._output: pa.array(found, pa.string())}
        return _columns(found, self._asker.schema)


@operator(writes="ask_score")
class AskScore(_Asking, Filter):
    """Ask a language model to score each row, and keep rows whose score is within bounds.

    The answer is a whole number from `lowest` to `highest`; the prompt says what it means. `tamis rethreshold` applies other
    bounds without asking again. All other parameters are those of `ask`. A row in which a column of the prompt is null has no
    score and is dropped.

    >>> AskScore("How useful is this for a student, from 0 to 5? {text}", min_score=3).rules()[0].minimum
    3
    """

    lowest: int = 0
    highest: int = 5
    min_score: float | None = None
    max_score: float | None = None
    score_column: str = "ask_score"

    measuring_parameters = frozenset({"max_tokens"})

    def check(self) -> None:
        super().check()
        if self.lowest >= self.highest:
            raise ParameterError(f"`lowest` of `{self.name}` must be less than `highest`")
        if self.min_score is not None and not self.min_score <= self.highest:
            raise ParameterError(
                f"`min_score` of `{self.name}` is {self.min_score:g}, and no score is above `highest`, {self.highest}"
            )
        if self.max_score is not None and not self.max_score >= self.lowest:
            raise ParameterError(
                f"`max_score` of `{self.name}` is {self.max_score:g}, and no score is below `lowest`, {self.lowest}"
            )
        check_names(self.name, self.writes(), self.reads())
        if self.min_score is None and self.max_score is None and not self.score_only:
            raise ParameterError(
                f"`{self.name}` has neither `min_score` nor `max_score`",
                hint="set one of them, or score_only=True to add the score only",
            )

    def answer_schema(self) -> dict[str, Any] | None:
        score = {"type": "integer", "minimum": self.lowest, "maximum": self.highest}
        return object_schema({"score": score}, self.name)

    def rules(self) -> list[Rule]:
        return [between("ask_score", self.min_score, self.max_score)]

    def score_columns(self) -> dict[str, str]:
        return {"ask_score": self.score_column}

    def open(self, context: Context) -> _ScoreAsker:
        return _ScoreAsker(self.asker(context))


class _ScoreAsker:
    def __init__(self, asker: _Asker) -> None:
        self._asker = asker
        self.take_counts, self.close = asker.take_counts, asker.close

    def score(self, batch: Batch) -> Scores:
        found = self._asker.answers(batch)
        return {"ask_score": pa.array([None if values is None else values["score"] for values in found], pa.int64())}


@operator()
class AskRows(_Asking, Expand):
    """Ask a language model for a list, and make a row of each entry, such as questions with answers about a text.

    `schema` describes one entry: a column per property, as for `ask`; by default a question and an answer. There are at most
    `max_rows` entries; a row for which the list is empty, or in which a column of the prompt is null, is dropped. Other
    columns are repeated from the original row. All other parameters are those of `ask`.

    >>> AskRows("Write up to ten questions with answers about this text: {text}").writes()
    ('question', 'answer')
    """

    schema: Mapping[str, Any] = field(default_factory=lambda: {"question": "string", "answer": "string"}, hash=False)
    max_rows: int = 10

    def check(self) -> None:
        super().check()
        check_names(self.name, self.writes())
        if self.max_rows < 1:
            raise ParameterError(f"`max_rows` of `{self.name}` must be at least 1, got {self.max_rows}")

    def row_schema(self) -> dict[str, Any]:
        return object_schema(self.schema, self.name)

    def answer_schema(self) -> dict[str, Any] | None:
        return object_schema(
            {"rows": {"type": "array", "items": self.row_schema(), "maxItems": self.max_rows}}, self.name
        )

    def writes(self) -> tuple[str, ...]:
        return tuple(self.row_schema()["properties"])

    def open(self, context: Context) -> _RowAsker:
        return _RowAsker(self.asker(context), self.row_schema())


class _RowAsker:
    def __init__(self, asker: _Asker, schema: Mapping[str, Any]) -> None:
        self._asker, self._schema = asker, schema
        self.take_counts, self.close = asker.take_counts, asker.close

    def expand(self, batch: Batch) -> tuple[pa.Table, np.ndarray]:
        lists = [values["rows"] if values is not None else [] for values in self._asker.answers(batch)]
        parents = np.repeat(np.arange(len(lists)), [len(rows) for rows in lists])
        return pa.table(_columns([row for rows in lists for row in rows], self._schema)), parents


def _columns(found: Sequence[Mapping[str, Any] | None], schema: Mapping[str, Any]) -> dict[str, Column]:
    return {
        name: pa.array([None if values is None else values[name] for values in found], arrow_type(part))
        for name, part in schema["properties"].items()
    }
