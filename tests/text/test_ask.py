"""Steps that ask a language model, against a server on loopback that misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tamis import JsonlReader, JsonlWriter, ParquetWriter, Pipeline, Rows
from tamis.errors import ColumnError, EndpointError, ParameterError
from tamis.models.answers import AnswerStore
from tamis.recipes.load import load_recipe, shipped
from tamis.report import Report
from tamis.text import Ask, AskRows, AskScore
from tests.language_server import LanguageServer, answer_to, instance

ROOT = Path(__file__).parent.parent.parent
SCORE = {"score": {"type": "integer", "minimum": 0, "maximum": 5}}
FAST = {"retry_wait_s": 0.001, "timeout_s": 20}


@pytest.fixture
def server():
    with LanguageServer() as running:
        yield running


@pytest.fixture
def cache(tmp_path: Path) -> str:
    return str(tmp_path / "cache")


def run(*steps: Any, **settings: Any) -> Report:
    """Run in this process, with failed rows in the report."""
    report = Pipeline(*steps).run(executor="inline", on_error="isolate", **settings)
    assert report.balances
    return report


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.glob("part-*")) for line in file.read_text().splitlines()]


def write_inputs(folder: Path, texts: list[str], files: int) -> Path:
    folder.mkdir()
    for number in range(files):
        lines = [json.dumps({"id": i, "text": text}) for i, text in enumerate(texts) if i % files == number]
        (folder / f"{number}.jsonl").write_text("".join(line + "\n" for line in lines))
    return folder


def counts(report: Report) -> dict[str, float]:
    return dict(next(op["counts"] for op in report.operators if op["counts"]))


# ----------------------------------------------------------------------------------------------------- servers that fail


@pytest.mark.parametrize(
    "kind",
    [
        "429:2",
        "500:2",
        "502:1",
        "503:3",
        "reset:2",
        "half:2",
        "garbage:1",
        "twice:1",
        "null:1",
        "empty:1",
        "silent",
        "overcounted",
    ],
)
def test_problems_that_pass_cost_nothing_but_time(server, cache, tmp_path, kind):
    texts = ["plain", f"[[{kind}]] text"]
    run(
        Rows([{"text": text} for text in texts]),
        Ask("Say {text}", endpoint=server.url, cache=cache, **FAST),
        JsonlWriter(str(tmp_path / "out")),
    )
    assert [row["answer"] for row in rows_of(tmp_path / "out")] == [answer_to(f"Say {text}") for text in texts]
    times = int(kind.partition(":")[2] or 0)
    assert Counter(server.prompts()) == {"Say plain": 1, f"Say {texts[1]}": 1 + times}


@pytest.mark.parametrize("kind", ["hang:1", "drip:1"])
def test_a_reply_that_takes_too_long_is_requested_again(server, cache, kind):
    # The model is named because a request for it would not be repeated. On a busy machine, any reply may take long.
    step = Ask("Say {text}", endpoint=server.url, cache=cache, model="echo", timeout_s=1, retry_wait_s=0.001)
    assert run(Rows([{"text": f"[[{kind}]]"}]), step).kept == 1
    assert len(server.requests) >= 2


@pytest.mark.parametrize(
    ("kind", "message", "requests"),
    [
        ("400", "the endpoint refused the request with status 400", 1),
        ("413", "the endpoint refused the request with status 413", 1),
        ("500", "no usable answer in 3 attempts, the last one: status 500", 3),
        ("reset", "no usable answer in 3 attempts, the last one: ClientOSError", 3),
        ("half", "no usable answer in 3 attempts, the last one: ClientPayloadError", 3),
        ("garbage", "the reply is not JSON", 3),
        ("nested", "the reply is not JSON (maximum recursion depth exceeded", 3),
        ("null", "the reply is not a JSON object: null", 3),
        ("surrogate", "the answer is not valid Unicode", 3),
        ("length", "the answer was cut off after 2 tokens (max_tokens is 1024): answer ", 1),
        ("filter", "the answer was withheld by a content filter", 1),
    ],
)
def test_a_row_that_gets_no_answer_fails_alone(server, cache, tmp_path, kind, message, requests):
    rows = [{"text": text} for text in ("a", f"[[{kind}]]", "b", "c")]
    step = Ask("Say {text}", endpoint=server.url, cache=cache, retries=2, **FAST)
    report = run(Rows(rows), step, JsonlWriter(str(tmp_path / "out")))
    assert (report.read, report.kept, report.failed) == (4, 3, 1)
    assert report.errors[0]["error"].startswith("AnswerError: ")
    (failed,) = (tmp_path / "out" / ".tamis" / "failed").iterdir()
    assert message in json.loads(failed.read_text())["error"]
    assert Counter(server.prompts())[f"Say [[{kind}]]"] == requests


def test_a_server_that_fails_every_request_ends_the_run_and_a_resumed_run_completes_it(server, cache, tmp_path):
    source = JsonlReader(str(write_inputs(tmp_path / "in", [f"text {n}" for n in range(20)], files=2)))
    step = Ask("Say {text}", endpoint=server.url, cache=cache, model="echo", retries=1, concurrency=4, **FAST)
    pipeline = Pipeline(source, step, JsonlWriter(str(tmp_path / "out")))
    server.refuses_all = 500
    with pytest.raises(EndpointError, match=r"cannot be reached or fails: .* status 500") as raised:
        pipeline.run(executor="inline", on_error="isolate")
    assert raised.value.hint == "check the server, then rerun the same command to resume"
    server.refuses_all = None
    report = pipeline.run(executor="inline", on_error="isolate")
    assert (report.kept, report.failed) == (20, 0)
    assert len(server.prompts()) == 20


@pytest.mark.parametrize(
    ("status", "message"), [(429, "is too busy"), (403, "refuses access"), (404, "does not serve")]
)
def test_a_refusal_of_everything_ends_the_run(server, cache, status, message):
    server.refuses_all = status
    step = Ask("Say {text}", endpoint=server.url, cache=cache, model="echo", retries=1, **FAST)
    with pytest.raises(EndpointError, match=f"{message}.*status {status}"):
        run(Rows([{"text": "a"}, {"text": "b"}]), step)


def test_a_server_that_requests_a_wait_of_hours_ends_the_run(server, cache):
    server.retry_after = "7200"
    with pytest.raises(EndpointError, match="requests a wait of 7200 s") as raised:
        run(Rows([{"text": "[[429]]"}]), Ask("{text}", endpoint=server.url, cache=cache, **FAST))
    assert raised.value.hint == "rerun the same command later to resume"


def test_a_server_that_does_not_exist_ends_the_run(cache):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        step = Ask("{text}", endpoint=f"http://127.0.0.1:{taken.getsockname()[1]}/v1", cache=cache, retries=1, **FAST)
        with pytest.raises(EndpointError, match="cannot reach"):
            run(Rows([{"text": "a"}]), step)
        with pytest.raises(EndpointError, match=r"cannot be reached or fails: .*ClientConnectorError"):
            run(Rows([{"text": "a"}]), step.changed(model="echo"))


def test_the_model_need_not_be_named_if_there_is_only_one(server, cache):
    assert run(Rows([{"text": "a"}]), Ask("{text}", endpoint=server.url, cache=cache)).kept == 1
    assert server.requests[0]["model"] == "echo"
    with LanguageServer(models=("small", "large")) as two:
        with pytest.raises(EndpointError, match="does not serve exactly one model") as raised:
            run(Rows([{"text": "a"}]), Ask("{text}", endpoint=two.url, cache=cache))
        assert raised.value.hint == "name one with `model`; it lists small, large"
        with pytest.raises(EndpointError, match="for the model `medium`: status 404"):
            run(Rows([{"text": "a"}]), Ask("{text}", endpoint=two.url, cache=cache, model="medium"))


# ------------------------------------------------------------------------------------------------------------ the prompt


def test_only_columns_are_replaced_and_braces_in_data_mean_nothing(server, cache):
    rows = [{"text": "{title} {0} {{x}} %s $y", "title": "T", "number": 3, "tags": ["a", "b"]}]
    step = Ask('{title}: {text} {number} {tags} as {{"a": 1}}', system="Be {title}", endpoint=server.url, cache=cache)
    assert step.reads() == ("title", "text", "number", "tags")
    run(Rows(rows), step)
    assert server.requests[0]["messages"] == [
        {"role": "system", "content": "Be T"},
        {"role": "user", "content": 'T: {title} {0} {{x}} %s $y 3 ["a", "b"] as {"a": 1}'},
    ]


def test_a_column_that_does_not_exist_is_found_before_the_run(server, cache):
    with pytest.raises(ColumnError, match="`ask`, reads column `body`"):
        run(Rows([{"text": "a"}]), Ask("{body}", endpoint=server.url, cache=cache))
    assert not server.requests


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"prompt": "no column"}, "names no column"),
        ({"prompt": '{text} as {"a": 1}'}, "has a brace that names no column"),
        ({"prompt": "{text} {"}, "has a brace that names no column"),
        ({"prompt": "{text}", "endpoint": "127.0.0.1:8000"}, "must be a URL"),
        ({"prompt": "{text}", "endpoint": "http://user:secret@host/v1"}, "without user, password or parameters"),
        ({"prompt": "{text}", "endpoint": "http://host/v1?key=secret"}, "without user, password or parameters"),
        ({"prompt": "{text}", "max_cost": 1.0}, "needs prices"),
        ({"prompt": "{text}", "max_total_tokens": 10, "cache": None}, "needs a `cache`"),
        ({"prompt": "{text}", "concurrency": 0}, "must be at least 1"),
        ({"prompt": "{text}", "extra_body": {"messages": []}}, "cannot set `messages`"),
        ({"prompt": "{text}", "extra_body": {"stop": {"a"}}}, "cannot be written as JSON: Object of type set"),
        ({"prompt": "{text}", "extra_body": {"top_p": float("nan")}}, "cannot be written as JSON: Out of range"),
        ({"prompt": "{text}", "extra_body": {"max_completion_tokens": "many"}}, "at least 1, got 'many'"),
        ({"prompt": "{text}", "extra_body": {"max_completion_tokens": None}}, "at least 1, got None"),
        ({"prompt": "{text}", "cache": "s3://bucket/answers"}, "must be a folder on a local disk, got 's3:"),
        ({"prompt": "{text}", "output": ""}, "cannot add a column named ''"),
        ({"prompt": "{text}", "output": "_tamis_lines"}, "cannot add a column named '_tamis_lines'"),
        ({"prompt": "{text}", "schema": {"_tamis_a": "string"}}, "cannot add a column named '_tamis_a'"),
        ({"prompt": "{text}", "api": "completions", "system": "x"}, "has no `system`"),
        ({"prompt": "{text}", "schema": {}}, "names no columns"),
        ({"prompt": "{text}", "schema": {"a": {"type": "float"}}}, "has the type 'float'"),
        ({"prompt": "{text}", "schema": {"a": {"type": "string", "anyOf": []}}}, "keyword `anyOf`"),
    ],
)  # fmt: skip
def test_mistakes_are_found_before_the_run(parameters, message):
    with pytest.raises(ParameterError, match=message) as raised:
        run(Rows([{"text": "a"}]), Ask(**parameters))
    assert "secret" not in str(raised.value)


def test_rows_with_a_null_are_not_sent_and_equal_questions_are_asked_once(server, cache):
    rows = Rows([{"text": text} for text in ("a", None, "a", "b", "a")])
    table = Pipeline(rows, Ask("{text}", endpoint=server.url, cache=cache)).collect(executor="inline")
    assert table.column("answer").to_pylist() == [answer_to("a"), None, answer_to("a"), answer_to("b"), answer_to("a")]
    assert sorted(server.prompts()) == ["a", "b"]


def test_base_models_get_the_prompt_itself(server, cache):
    step = Ask(
        "Once {text}", endpoint=server.url, cache=cache, api="completions", temperature=None, extra_body={"top_p": 0.5}
    )
    assert run(Rows([{"text": "a"}]), step).kept == 1
    assert server.requests == [{"model": "echo", "prompt": "Once a", "max_tokens": 1024, "top_p": 0.5}]


# ------------------------------------------------------------------------------------------------------ structured answers


def test_the_columns_have_the_types_of_the_schema(server, cache):
    schema = {
        "label": {"enum": ["good", "bad"]},
        "share": "number",
        "is_spam": "boolean",
        "note": {"type": ["string", "null"]},
        "pairs": {"type": "array", "items": {"type": "object", "properties": {"q": "string", "n": "integer"}}},
    }
    step = Ask("{text}", schema={**SCORE, **schema}, endpoint=server.url, cache=cache)
    table = Pipeline(Rows([{"text": "a"}, {"text": None}]), step).collect(executor="inline")
    assert {name: str(table.schema.field(name).type) for name in step.writes()} == {
        "score": "int64", "label": "string", "share": "double", "is_spam": "bool", "note": "string",
        "pairs": "list<item: struct<q: string, n: int64>>",
    }  # fmt: skip
    first, second = table.to_pylist()
    assert 0 <= first["score"] <= 5
    assert set(second.values()) == {None}
    assert server.requests[0]["response_format"]["json_schema"]["schema"]["required"] == list(step.writes())


@pytest.mark.parametrize("kind", ["broken:1", "wrong:2"])
def test_an_answer_that_does_not_match_is_requested_again(server, cache, kind):
    step = Ask("{text}", schema=SCORE, endpoint=server.url, cache=cache, **FAST)
    assert run(Rows([{"text": f"[[{kind}]]"}]), step).kept == 1
    assert len(server.requests) == 1 + int(kind[-1])


@pytest.mark.parametrize(
    ("kind", "message"),
    [("broken", "the answer is not JSON"), ("wrong", 'the schema does not describe: {"unexpected": true}')],
)
def test_an_answer_that_never_matches_fails_the_row_and_is_quoted(server, cache, kind, message):
    step = Ask("{text}", schema=SCORE, endpoint=server.url, cache=cache, retries=1, **FAST)
    report = run(Rows([{"text": "a"}, {"text": f"[[{kind}]]"}]), step)
    assert (report.kept, report.failed) == (1, 1)
    assert message in report.errors[0]["error"]


def test_a_server_without_schemas_is_asked_without_them(cache):
    with LanguageServer(schemas=False) as plain:
        step = Ask("{text}", schema=SCORE, endpoint=plain.url, cache=cache, concurrency=1, **FAST)
        report = run(Rows([{"text": text} for text in ("a", "b", "[[400]]", "c")]), step)
        assert (report.kept, report.failed) == (3, 1)
        sent = ["response_format" in request for request in plain.requests]
        assert sent == [True, False, False, False, False]  # found out with the first request


def test_scores_filter_and_can_be_kept_as_a_column(server, cache):
    texts = [f"text {n}" for n in range(12)]
    step = AskScore("Rate {text}", endpoint=server.url, cache=cache, min_score=3)
    report = run(Rows([{"text": text} for text in texts]), step)
    prompts = server.prompts()
    scores = {
        prompt: instance({"type": "integer", "minimum": 0, "maximum": 5}, f"{prompt}/score") for prompt in prompts
    }
    low = sum(score < 3 for score in scores.values())
    assert 0 < low < 12
    assert report.dropped == {"ask_score < 3": low}
    table = Pipeline(Rows([{"text": text} for text in texts]), step.changed(score_only=True)).collect(executor="inline")
    assert table.column("ask_score").type == pa.int64()
    assert sorted(table.column("ask_score").to_pylist()) == sorted(scores.values())
    assert len(server.requests) == 12  # the second run finds all answers


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"min_score": 9}, "is 9, and no score is above `highest`, 5"),
        ({"min_score": float("nan")}, "is nan, and no score is above `highest`, 5"),
        ({"max_score": 0, "lowest": 1}, "is 0, and no score is below `lowest`, 1"),
        ({"score_column": "text", "score_only": True}, "would replace the column `text`, which it reads"),
    ],
)
def test_mistakes_about_scores_are_found_before_the_run(parameters, message):
    with pytest.raises(ParameterError, match=message):
        AskScore("Rate {text}", **parameters).check()


def test_a_list_of_answers_becomes_rows(server, cache, tmp_path):
    rows = [{"id": 1, "text": "a"}, {"id": 2, "text": None}, {"id": 3, "text": "b"}]
    step = AskRows("Ask about {text}", endpoint=server.url, cache=cache, max_rows=4)
    report = run(Rows(rows), step, JsonlWriter(str(tmp_path / "out")))
    found = rows_of(tmp_path / "out")
    assert {row["id"] for row in found} == {1, 3}
    assert all(row.keys() == {"id", "text", "question", "answer"} for row in found)
    assert report.dropped == {"ask_rows: nothing left": 1}
    assert report.created == len(found) - 2


# --------------------------------------------------------------------------------------------------- stored answers, resume


def test_stored_answers_make_random_ones_repeatable(server, cache, tmp_path):
    rows = Rows([{"text": f"text {n}"} for n in range(6)])
    step = Ask("{text}", endpoint=server.url, cache=cache, temperature=1.0)
    first, second = (Pipeline(rows, step).collect(executor="inline") for _ in range(2))
    assert first.equals(second)
    assert len(server.requests) == 6
    other = Pipeline(rows, step.changed(cache=str(tmp_path / "other"))).collect(executor="inline")
    assert not other.equals(first)
    Pipeline(rows, step.changed(max_tokens=7)).collect(executor="inline")
    assert len(server.requests) == 18  # other parameters, other questions


def test_a_damaged_answer_is_asked_once_more(server, cache):
    rows, step = Rows([{"text": "a"}, {"text": "b"}]), Ask("{text}", endpoint=server.url, cache=cache)
    run(rows, step)
    with contextlib.closing(sqlite3.connect(Path(cache) / "answers.sqlite")) as database, database:
        database.execute("UPDATE answers SET answer = x'00' WHERE key = (SELECT min(key) FROM answers)")
    requests = []
    for _ in range(2):
        run(rows, step)
        requests.append(len(server.requests))
    assert requests == [3, 3]


def test_the_same_rows_for_any_number_of_workers_and_batch_size(server, tmp_path):
    texts = [f"text {n}" + (" [[500:1]]" if n % 7 == 0 else " [[400]]" if n % 11 == 5 else "") for n in range(60)]
    source = write_inputs(tmp_path / "in", texts, files=3)
    results = []
    for name, settings in {"one": {"executor": "inline", "on_error": "isolate"}, "two": {"workers": 2}}.items():
        for blocksize in (1_000, 100_000):
            step = Ask(
                "{text}", endpoint=server.url, cache=str(tmp_path / f"{name}-{blocksize}"), concurrency=5, **FAST
            )
            out = tmp_path / f"out-{name}-{blocksize}"
            reader = JsonlReader(str(source), blocksize=blocksize)
            report = Pipeline(reader, step, JsonlWriter(str(out))).run(max_failed=60, **settings)
            assert report.balances
            results.append((rows_of(out), report.failed))
    assert results[0][1] == sum("[[400]]" in text for text in texts)
    assert all(result == results[0] for result in results)


def test_the_requests_of_all_workers_together_are_bounded(cache, tmp_path):
    source = write_inputs(tmp_path / "in", [f"text {n}" for n in range(40)], files=4)
    with LanguageServer(latency_s=0.02) as slow:
        step = Ask("{text}", endpoint=slow.url, cache=cache, concurrency=3)
        report = Pipeline(JsonlReader(str(source)), step, JsonlWriter(str(tmp_path / "out"))).run(workers=2)
        assert report.kept == 40
        assert 1 < slow.most_at_a_time <= 3


SCRIPT = """
import sys
from tamis import JsonlReader, JsonlWriter, Pipeline
from tamis.text import Ask

source, out, cache, endpoint = sys.argv[1:]
step = Ask("{text}", endpoint=endpoint, cache=cache, concurrency=4, temperature=1.0)
Pipeline(JsonlReader(source, files_per_partition=1), step, JsonlWriter(out)).run(workers=2)
"""


def test_nothing_is_asked_twice_after_kill_9_except_what_was_in_flight(cache, tmp_path):
    source = write_inputs(tmp_path / "in", [f"text {n}" for n in range(48)], files=4)
    with LanguageServer(hold_after=20) as server:
        command = [sys.executable, "-c", SCRIPT, str(source), str(tmp_path / "out"), cache, server.url]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        first = subprocess.Popen(command, env=environment, start_new_session=True)
        assert server.held.wait(60)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        server.released.set()
        subprocess.run(command, env=environment, check=True, timeout=60)
        asked = Counter(server.prompts())
    assert asked.keys() == {f"text {n}" for n in range(48)}
    twice = {prompt for prompt, times in asked.items() if times > 1}
    assert set(asked.values()) <= {1, 2}
    assert len(twice) <= 4
    assert len(rows_of(tmp_path / "out")) == 48


# ----------------------------------------------------------------------------------------------------------------- budgets


def test_a_budget_of_tokens_ends_the_run_and_a_larger_one_completes_it(cache, tmp_path):
    source = write_inputs(tmp_path / "in", [f"text {n}" for n in range(60)], files=3)
    writer = JsonlWriter(str(tmp_path / "out"))
    with LanguageServer() as server:
        # The server counts 2 + 2 tokens per question; 7 bytes + 64 + 10 are reserved.
        step = Ask("{text}", endpoint=server.url, cache=cache, max_tokens=10, max_total_tokens=160, concurrency=6)
        reader = JsonlReader(str(source), files_per_partition=1)
        with pytest.raises(EndpointError, match=r"the budget of the step is spent: \d+ of 160 tokens") as raised:
            Pipeline(reader, step, writer).run(workers=2)
        assert "rerun with a larger `max_total_tokens`" in str(raised.value)
        asked = len(server.requests)
        assert 15 <= asked <= 40
        with pytest.raises(EndpointError):
            Pipeline(reader, step, writer).run(workers=2)
        assert len(server.requests) <= asked + 6, "the budget counts what earlier runs spent"
        report = Pipeline(reader, step.changed(max_total_tokens=500), writer).run(workers=2)
        assert report.kept == 60
        assert len(set(server.prompts())) == 60
        assert len(server.requests) <= 60 + 6, "requests in flight when a run ends may be repeated"


def test_a_budget_of_money_is_not_exceeded(server, cache, tmp_path):
    prices = {"price_per_million_input": 1_000.0, "price_per_million_output": 2_000.0}
    step = Ask("{text}", endpoint=server.url, cache=cache, max_tokens=10, max_cost=0.2, concurrency=3, **prices)
    rows = Rows([{"text": f"text {n}"} for n in range(100)])
    with pytest.raises(EndpointError, match=r"0\.\d+ of 0\.2000 are spent, and the next request may cost 0\.09"):
        run(rows, step, JsonlWriter(str(tmp_path / "out")))
    answered = len(server.requests)
    assert 0.1 < answered * (2 * 0.001 + 2 * 0.002) <= 0.2
    report = run(rows, step.changed(max_cost=5.0), JsonlWriter(str(tmp_path / "out")))
    assert counts(report)["cached"] == answered
    assert counts(report)["cost"] == pytest.approx((100 - answered) * 0.006)
    assert len(server.requests) == 100


def test_the_report_counts_requests_and_tokens(server, cache, tmp_path):
    rows = Rows([{"text": text} for text in ("one two", "one two", "three [[500:1]]")])
    step = Ask("{text}", endpoint=server.url, cache=cache, **FAST)
    report = run(rows, step, JsonlWriter(str(tmp_path / "out")))
    assert counts(report) == {"requests": 3, "retries": 1, "input_tokens": 4, "output_tokens": 4}
    assert "ask: requests 3, retries 1, input tokens 4, output tokens 4" in str(report)
    assert counts(run(rows, step, JsonlWriter(str(tmp_path / "again")))) == {"cached": 2}


# ----------------------------------------------------------------------------------------------------------------- secrets


def test_the_key_is_in_no_file_and_no_message(cache, tmp_path, monkeypatch, capfd):
    secret = "sk-verysecret0123456789"
    monkeypatch.setenv("MY_KEY", f"{secret}\n")
    out = tmp_path / "out"
    with LanguageServer(key=secret) as server:
        step = Ask("{text}", endpoint=server.url, cache=cache, api_key_env="MY_KEY", **FAST)
        rows = Rows([{"text": text} for text in ("a", "[[400]]", "[[500:1]]")])
        events: list[str] = []
        report = Pipeline(rows, step, ParquetWriter(str(out))).run(
            workers=1, on_event=lambda event: events.append(repr(event))
        )
        assert (report.kept, report.failed) == (2, 1)  # the server repeats the headers in its error
        assert secret not in f"{report}{report.as_dict()}{events}{step.parameters()}{capfd.readouterr()}"
        monkeypatch.setenv("MY_KEY", "sk-wrong")
        with pytest.raises(EndpointError, match="refuses access with status 401") as raised:
            run(Rows([{"text": "new"}]), step.changed(model="echo"))
        assert raised.value.hint == "check the key in MY_KEY"
        assert "sk-wrong" not in str(raised.value)
        monkeypatch.delenv("MY_KEY")
        with pytest.raises(EndpointError, match="MY_KEY is not set"):
            run(Rows([{"text": "new"}]), step)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) > 5
    assert not [file for file in files if secret.encode() in file.read_bytes()]


def test_it_works_where_an_event_loop_is_running(server, cache):
    async def notebook() -> int:
        return run(Rows([{"text": "a"}]), Ask("{text}", endpoint=server.url, cache=cache)).kept

    assert asyncio.run(notebook()) == 1


def test_a_folder_that_cannot_hold_answers_is_an_error(server, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(EndpointError, match="cannot store answers in"):
        run(Rows([{"text": "a"}]), Ask("{text}", endpoint=server.url, cache=str(tmp_path / "file")))
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "answers.sqlite").write_text("not a database" * 1000)
    with pytest.raises(EndpointError, match="cannot store answers in"):
        AnswerStore(tmp_path / "damaged")


# ----------------------------------------------------------------------------------------------------------------- recipes

RECIPES = {
    "educational_value": ["text"],
    "nemotron_rephrase": ["text", "rephrased"],
    "nemotron_qa": ["text", "question", "answer"],
    "nemotron_distill": ["text", "distilled"],
    "nemotron_extract": ["text", "knowledge"],
    "nemotron_list": ["text", "knowledge"],
    "judge_pairs": ["question", "answer_a", "answer_b", "reason", "winner", "reason_swapped", "winner_swapped"],
}


def test_every_recipe_that_asks_a_model_is_listed_here():
    asks = {name for name, recipe in shipped().items() if any(step.name.startswith("ask") for step in recipe.steps)}
    assert asks == set(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs_with_the_address_of_a_server(name, cache, tmp_path):
    recipe = load_recipe(name)
    columns = [column for column in RECIPES[name] if column in ("text", "question", "answer_a", "answer_b")]
    columns = ["text"] if "text" in columns else columns
    rows = [{column: f"A text of {column} number {n}. " * 10 for column in columns} for n in range(8)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    places = [place for place, step in enumerate(recipe.steps, 1) if step.name.startswith("ask")]
    with LanguageServer(num_words=40) as server:
        settings = [f"{place}.{key}" for place in places for key in (f"endpoint={server.url}", f"cache={cache}")]
        recipe = recipe.with_overrides(settings)
        recipe = recipe.with_paths(input=tmp_path / "in.jsonl", output=tmp_path / "out")
        report = recipe.build().run(executor="inline")
        assert len(server.requests) == 8 * len(places)
    assert report.failed == 0
    assert report.kept > 0
    assert list(rows_of(tmp_path / "out")[0]) == RECIPES[name]
