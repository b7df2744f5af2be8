"""A client of OpenAI-compatible servers: vLLM, llama.cpp, SGLang, Ollama, TGI, and services on the internet.

    questions --> known already? --> a place among `concurrency` --> budget reserved --> POST --> checked --> stored
                                           ^                                              |
                                           +---- wait, longer each time, with jitter -----+  429, 5xx, time-outs, resets,
                                                                                             half answers, invalid JSON

Requests run in the event loop of a thread, so that the client works in workers and notebooks. What a problem costs:

    the row      400, 413, 422; an answer that was cut off, refused, or is still invalid after the last attempt; a server that
                 answers other requests but not this one
    the run      401, 402, 403, 404; 429 after the last attempt; a server that cannot be reached; a budget that is spent.
                 Answers are stored as they arrive, so a resumed run continues with the requests that are missing.
"""

from __future__ import annotations

import asyncio
import email.utils
import hashlib
import json
import os
import random
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from tamis.errors import EndpointError, ParameterError, require
from tamis.models.answers import LOOK_AGAIN_S, Amount, Answer, AnswerStore, Limit, Places
from tamis.models.structured import AnswerError, is_unicode, quoted

_T = TypeVar("_T")
MAX_WAIT_S = 60.0
"""The longest wait between two attempts, unless the server requests a longer one."""
MAX_RETRY_AFTER_S = 600.0
"""A server that requests a longer wait ends the run."""
MAX_BODY_BYTES = 32_000_000
MAX_TOKENS = 10**12
"""A server that counts more tokens than this has not counted them."""
TOKENS_PER_MESSAGE = 64
"""An upper bound for the tokens that a chat template adds to a message."""

TOKENS_PER_IMAGE = 16_384
"""What the largest image becomes at most: the limit of the processor of Qwen2.5-VL."""
_OWN_KEYS = frozenset({"model", "messages", "prompt", "temperature", "max_tokens", "stream", "n", "response_format"})
_BILLION = 10**9
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_COUNTS = ("requests", "retries", "cached", "input_tokens", "output_tokens", "cost")
Api = Literal["chat", "completions"]


@dataclass(frozen=True)
class EndpointSettings:
    """How to reach a server, and how much to request of it."""

    url: str
    model: str | None
    api: Api
    api_key_env: str | None
    concurrency: int
    timeout_s: float
    retries: int
    retry_wait_s: float
    limit: Limit
    price_per_million_input: float
    price_per_million_output: float

    def cost(self, input_tokens: int, output_tokens: int) -> Amount:
        price = input_tokens * self.price_per_million_input + output_tokens * self.price_per_million_output
        return Amount(input_tokens + output_tokens, round(price * _BILLION / 10**6))


@dataclass(frozen=True)
class Question:
    """The body of a request without the name of the model, and the schema that its answer should have."""

    body: Mapping[str, Any]
    most_output_tokens: int
    schema: Mapping[str, Any] | None = None

    def key(self, model: str, api: Api) -> bytes:
        """The hash of everything that decides the answer."""
        known = [api, model, self.body, self.schema]
        text = json.dumps(known, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).digest()

    @property
    def most_input_tokens(self) -> int:
        """An upper bound: no tokenizer makes more tokens than there are bytes."""
        texts = [message["content"] for message in self.body.get("messages", ())] or [self.body["prompt"]]
        return sum(_most_tokens(text) + TOKENS_PER_MESSAGE for text in texts) + (
            len(json.dumps(self.schema)) if self.schema is not None else 0
        )


def _most_tokens(content: str | Sequence[Mapping[str, Any]]) -> int:
    """Of a message: a text, or texts and images."""
    if isinstance(content, str):
        return len(content.encode("utf-8", "replace"))
    return sum(_most_tokens(part["text"]) if part["type"] == "text" else TOKENS_PER_IMAGE for part in content)


class _Retry(Exception):
    """An attempt that may succeed if it is repeated."""

    def __init__(
        self, problem: str, kind: Literal["busy", "server", "answer"] = "server", after_s: float | None = None
    ) -> None:
        super().__init__(problem)
        self.problem, self.kind, self.after_s = problem, kind, after_s


def check_url(url: str, owner: str) -> None:
    """Raise if the address of a server is not one, or holds a secret, which would be recorded with the run."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ParameterError(f"`endpoint` of `{owner}` must be a URL, got {url!r}", hint="http://127.0.0.1:8000/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ParameterError(
            f"`endpoint` of `{owner}` must be an address without user, password or parameters",
            hint="put the key into an environment variable and name that with `api_key_env`",
        )


def check_extra_body(given: Mapping[str, Any], owner: str) -> None:
    """Raise if the fields that a step adds to its requests cannot be sent, or are its own."""
    taken = sorted(_OWN_KEYS & set(given))
    if taken:
        raise ParameterError(f"`extra_body` of `{owner}` cannot set `{taken[0]}`")
    try:
        json.dumps({"model": "", **given}, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"`extra_body` of `{owner}` cannot be written as JSON: {error}") from None
    most = given.get("max_completion_tokens", 1)
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise ParameterError(
            f"`max_completion_tokens` in `extra_body` of `{owner}` must be a whole number of at least 1, got {most!r}"
        )


def check_cache(folder: str | Path | None, owner: str) -> None:
    """Raise if the folder for answers is not on a disk of this machine."""
    if "://" in str(folder):
        raise ParameterError(
            f"`cache` of `{owner}` must be a folder on a local disk, got {str(folder)!r}",
            hint="give its path, without ://",
        )


def read_key(variable: str | None) -> str | None:
    """The key in an environment variable. Keys are never parameters, so they are in no recipe, manifest or log."""
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise EndpointError(
            f"the environment variable {variable} is not set", hint=f"export {variable}=... before the run"
        )
    if not (key.isascii() and key.isprintable()):
        raise EndpointError(f"the key in {variable} has characters that a header cannot hold")
    return key


def is_loopback(url: str) -> bool:
    return urlsplit(url).hostname in _LOOPBACK


class Endpoint:
    """Answers questions. The thread, the connections and the store of answers are opened with the first question."""

    def __init__(self, settings: EndpointSettings, folder: Path | None, scope: str) -> None:
        """`folder` keeps answers, if any; `scope` names what the budget is for, the same if a run is resumed."""
        self._aiohttp = require("aiohttp", extra="llm", purpose="a step that sends requests to a language model")
        self.settings, self._folder = settings, folder
        self._scope = hashlib.sha256(scope.encode()).hexdigest()
        self._key = read_key(settings.api_key_env)
        self._thread: threading.Thread | None = None
        self._store: AnswerStore | None = None
        self._counts: dict[str, float] = {}
        self._enforces_schemas = True
        self._answered = 0
        self._resume_at = 0.0
        self._fatal: EndpointError | None = None
        self.model = settings.model or ""

    # ------------------------------------------------------------------------------------------------ for the operator

    def answers(self, questions: Sequence[Question], check: Callable[[Answer], object]) -> list[Answer | AnswerError]:
        """One answer per question, or the reason why there is none. Equal questions are asked once.

        `check` raises an `AnswerError` for an answer that cannot be used; the question is then asked again.
        """
        self._start()
        self._fatal = None
        keys = [question.key(self.model, self.settings.api) for question in questions]
        distinct = dict(zip(keys, questions, strict=True))
        found = self._run(self._all(distinct, check))
        return [found[key] for key in keys]

    def take_counts(self) -> dict[str, float]:
        """What was requested and spent since the last call."""
        taken, self._counts = self._counts, {}
        return {name: taken[name] for name in _COUNTS if taken.get(name)}

    def close(self) -> None:
        if self._thread is not None:
            self._run(self._session.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._places.close()
            self._thread = None
        if self._store is not None:
            self._store.close()
            self._store = None

    # -------------------------------------------------------------------------------------------------------- the thread

    def _start(self) -> None:
        if self._thread is not None:
            return
        place = hashlib.sha256(self.settings.url.encode()).hexdigest()[:16]
        if self._folder is not None:
            self._store = AnswerStore(self._folder)
        self._places = Places(
            self._folder / f"requests-{place}" if self._folder is not None else None, self.settings.concurrency
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tamis-endpoint", daemon=True)
        self._thread.start()
        self._run(self._connect())

    async def _connect(self) -> None:
        aiohttp = self._aiohttp
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=aiohttp.ClientTimeout(total=self.settings.timeout_s),  # of the whole reply, not of each byte
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=not is_loopback(self.settings.url),  # a proxy does not reach this machine
        )
        if not self.model:
            self.model = await self._only_model()

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    # ------------------------------------------------------------------------------------------------------ all questions

    async def _all(
        self, questions: Mapping[bytes, Question], check: Callable[[Answer], object]
    ) -> dict[bytes, Answer | AnswerError]:
        found: dict[bytes, Answer | AnswerError] = {}
        missing: dict[bytes, Question] = {}
        for key, question in questions.items():
            known = self._store.get(key) if self._store is not None else None
            if known is None:
                missing[key] = question
            else:
                found[key] = known
                self._count("cached", 1)
        waiting = iter(missing.items())
        workers = [self._work(waiting, found, check) for _ in range(min(self.settings.concurrency, len(missing)))]
        for error in await asyncio.gather(*workers, return_exceptions=True):  # after all of them have ended
            if error is not None:
                raise error
        if self._fatal is not None:
            raise self._fatal
        return found

    async def _work(
        self,
        waiting: Iterator[tuple[bytes, Question]],
        found: dict[bytes, Answer | AnswerError],
        check: Callable[[Answer], object],
    ) -> None:
        """Ask one question after the other. After an error that ends the run, requests in flight are still completed."""
        for key, question in waiting:
            if self._fatal is not None:
                return
            try:
                found[key] = await self._ask(key, question, check)
            except AnswerError as error:
                found[key] = error
            except EndpointError as error:
                self._fatal = self._fatal or error

    async def _ask(self, key: bytes, question: Question, check: Callable[[Answer], object]) -> Answer:
        before = self._answered
        for attempt in range(self.settings.retries + 1):
            try:
                async with self._places.one():
                    answer = await self._attempt(question, check)
            except _Retry as problem:
                last = problem
            else:
                return self._store.put(key, answer) if self._store is not None else answer
            if attempt < self.settings.retries:
                if self._fatal is not None:
                    raise self._fatal
                await self._wait(key, attempt, last)
                self._count("retries", 1)
        raise await self._given_up(last, before)

    async def _wait(self, key: bytes, attempt: int, problem: _Retry) -> None:
        """Exponential back-off. The jitter depends on the question only, so runs do not differ."""
        jitter = random.Random(key + bytes([attempt])).uniform(0.5, 1.5)
        wait_s = min(MAX_WAIT_S, self.settings.retry_wait_s * 2**attempt * jitter)
        if problem.after_s is not None:
            if problem.after_s > MAX_RETRY_AFTER_S:
                raise EndpointError(
                    f"{self.settings.url} requests a wait of {problem.after_s:.0f} s ({problem.problem})",
                    hint="rerun the same command later to resume",
                )
            wait_s = max(wait_s, problem.after_s)
            if problem.kind == "busy":  # others need not find out
                self._resume_at = max(self._resume_at, time.monotonic() + problem.after_s)
        await asyncio.sleep(wait_s)

    async def _given_up(self, last: _Retry, answered_before: int) -> EndpointError | AnswerError:
        """The error after the last attempt: of the row if the server is well otherwise, else of the run."""
        attempts = self.settings.retries + 1
        text = f"no usable answer in {attempts} attempts, the last one: {last.problem}"
        if last.kind == "answer":
            return AnswerError(last.problem)
        if last.kind == "busy":
            return EndpointError(
                f"{self.settings.url} is too busy: {text}",
                hint="lower `concurrency`, or rerun the same command later to resume",
            )
        if self._answered > answered_before or await self._is_well():
            return AnswerError(text)
        return EndpointError(
            f"{self.settings.url} cannot be reached or fails: {text}",
            hint="check the server, then rerun the same command to resume",
        )

    # ------------------------------------------------------------------------------------------------------- one request

    async def _attempt(self, question: Question, check: Callable[[Answer], object]) -> Answer:
        while (pause_s := self._resume_at - time.monotonic()) > 0:
            await asyncio.sleep(pause_s)
        most = self.settings.cost(question.most_input_tokens, question.most_output_tokens)
        await self._reserve(most)
        actual = Amount()
        try:
            enforced = question.schema is not None and self._enforces_schemas
            data = await self._post(question, enforced=enforced)
            if data is None:  # refused; perhaps because the server does not know `response_format`
                data = await self._post(question, enforced=False)
                self._enforces_schemas = False
            assert data is not None
            answer = self._read(data, question)
            actual = self.settings.cost(answer.input_tokens, answer.output_tokens)
            self._count("input_tokens", answer.input_tokens)
            self._count("output_tokens", answer.output_tokens)
            self._count("cost", actual.cost / _BILLION)
            _check_end(answer, question.most_output_tokens)
            try:
                if not is_unicode(answer.text):
                    raise AnswerError("the answer is not valid Unicode")
                check(answer)
            except AnswerError as error:
                raise _Retry(error.message, "answer") from None
        finally:
            self._settle(most, actual)
        self._answered += 1
        return answer

    async def _post(self, question: Question, *, enforced: bool) -> dict[str, Any] | None:
        """The JSON object of a reply; None if the server refuses a request with a schema."""
        body = {"model": self.model, **question.body}
        if enforced:
            form = {"name": "answer", "schema": question.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        path = "chat/completions" if self.settings.api == "chat" else "completions"
        self._count("requests", 1)
        status, headers, content = await self._send("POST", path, json.dumps(body).encode())
        if status == 200:
            try:
                reply = json.loads(content)
            except (ValueError, RecursionError) as error:
                raise _Retry(f"the reply is not JSON ({error}): {self._shown(content)}") from None
            if not isinstance(reply, dict):
                raise _Retry(f"the reply is not a JSON object: {self._shown(content)}")
            return reply
        if enforced and status in (400, 422, 501):
            return None
        raise self._refusal(status, headers, content)

    async def _send(self, method: str, path: str, content: bytes | None = None) -> tuple[int, Mapping[str, str], bytes]:
        aiohttp = self._aiohttp
        url = f"{self.settings.url.rstrip('/')}/{path}"
        headers = {"Content-Type": "application/json"} if content is not None else {}
        parts, size = [], 0
        try:
            # A redirect is refused: the key is for this server only.
            async with self._session.request(
                method, url, data=content, headers=headers, allow_redirects=False
            ) as reply:
                async for part in reply.content.iter_any():
                    size += len(part)
                    if size > MAX_BODY_BYTES:
                        raise _Retry(f"the reply is longer than {MAX_BODY_BYTES} bytes")
                    parts.append(part)
                return reply.status, reply.headers, b"".join(parts)
        except TimeoutError:
            raise _Retry(f"no reply within {self.settings.timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise _Retry(f"{type(error).__name__}: {self._hidden(str(error))}".rstrip(": ")) from None

    def _refusal(self, status: int, headers: Mapping[str, str], content: bytes) -> Exception:
        text = f"status {status}: {self._shown(content)}"
        if status in (408, 409, 425, 429) or status >= 500:
            return _Retry(text, "busy" if status == 429 else "server", retry_after_s(headers.get("retry-after")))
        url = self.settings.url
        if status in (401, 402, 403):
            known = self.settings.api_key_env
            hint = f"check the key in {known}" if known else "name the environment variable of the key: api_key_env=..."
            return EndpointError(f"{url} refuses access with {text}", hint=hint)
        if status in (404, 405) or status < 400:
            return EndpointError(
                f"{url} does not serve {self.settings.api} requests for the model `{self.model}`: {text}",
                hint="the address usually ends with /v1; `model` must be a name that the server lists under /v1/models",
            )
        return AnswerError(f"the endpoint refused the request with {text}")

    def _read(self, data: dict[str, Any], question: Question) -> Answer:
        try:
            choice = data["choices"][0]
            text = choice["message"]["content"] if self.settings.api == "chat" else choice["text"]
            refusal = choice.get("message", {}).get("refusal")
            reason = choice.get("finish_reason")
        except (KeyError, IndexError, TypeError, AttributeError):
            raise _Retry(f"the reply has no answer: {quoted(self._hidden(json.dumps(data)))}") from None
        if text is None and isinstance(refusal, str):
            raise AnswerError(f"the model refused to answer: {quoted(self._hidden(refusal))}")
        if not isinstance(text, str):
            raise _Retry(f"the reply has no text: {quoted(self._hidden(json.dumps(data)))}")
        text = self._hidden(text)
        usage = data.get("usage")
        counted = [
            usage.get(name) if isinstance(usage, dict) else None for name in ("prompt_tokens", "completion_tokens")
        ]
        bounds = (question.most_input_tokens, min(question.most_output_tokens, len(text.encode("utf-8", "replace"))))
        tokens = [
            value if isinstance(value, int) and 0 <= value <= MAX_TOKENS else most
            for value, most in zip(counted, bounds, strict=True)
        ]
        return Answer(text, reason if isinstance(reason, str) else None, tokens[0], tokens[1])

    async def _is_well(self) -> bool:
        """Whether the server answers anything."""
        try:
            status, _, _ = await self._send("GET", "models")
        except _Retry:
            return False
        return status < 500

    async def _only_model(self) -> str:
        try:
            status, headers, content = await self._send("GET", "models")
        except _Retry as problem:
            raise EndpointError(
                f"cannot reach {self.settings.url}: {problem.problem}", hint="start the server, or correct `endpoint`"
            ) from None
        if status in (401, 402, 403):
            raise self._refusal(status, headers, content)
        try:
            names = [str(entry["id"]) for entry in json.loads(content)["data"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            names = []
        if len(names) != 1:
            listed = ", ".join(names[:10]) if names else "none"
            raise EndpointError(
                f"{self.settings.url} does not serve exactly one model",
                hint=f"name one with `model`; it lists {listed}",
            )
        return names[0]

    # ------------------------------------------------------------------------------------------------------- the budget

    async def _reserve(self, most: Amount) -> None:
        limit = self.settings.limit
        if self._store is None or limit == Limit():
            return
        while True:
            reserved = self._store.reserve(self._scope, most, limit)
            if reserved:
                return
            if reserved is None:
                raise self._spent(self._store.spent(self._scope), most)
            await asyncio.sleep(LOOK_AGAIN_S)

    def _settle(self, most: Amount, actual: Amount) -> None:
        if self._store is not None:
            held = Amount() if self.settings.limit == Limit() else most
            self._store.settle(self._scope, held, actual)

    def _spent(self, spent: Amount, most: Amount) -> EndpointError:
        limit = self.settings.limit
        if limit.tokens is not None and spent.tokens + most.tokens > limit.tokens:
            what = (
                f"{spent.tokens:,} of {limit.tokens:,} tokens are spent, and the next request may need {most.tokens:,}"
            )
            name = "max_total_tokens"
        else:
            assert limit.cost is not None
            name = "max_cost"
            what = (
                f"{spent.cost / _BILLION:.4f} of {limit.cost / _BILLION:.4f} are spent, "
                f"and the next request may cost {most.cost / _BILLION:.4f}"
            )
        return EndpointError(
            f"the budget of the step is spent: {what}",
            hint=f"rerun with a larger `{name}` to resume; answers so far are stored",
        )

    # --------------------------------------------------------------------------------------------------------------- text

    def _count(self, name: str, number: float) -> None:
        self._counts[name] = self._counts.get(name, 0) + number

    def _shown(self, content: bytes) -> str:
        return quoted(self._hidden(content.decode("utf-8", "replace"))) or "(empty)"

    def _hidden(self, text: str) -> str:
        """A text of the server without the key: some servers repeat what they received."""
        return text.replace(self._key, "***") if self._key else text


def _check_end(answer: Answer, most_output: int) -> None:
    if answer.finish_reason == "length":
        raise AnswerError(
            f"the answer was cut off after {answer.output_tokens} tokens (max_tokens is {most_output}): "
            f"{quoted(answer.text)}"
        )
    if answer.finish_reason == "content_filter":
        raise AnswerError("the answer was withheld by a content filter of the server")


def retry_after_s(value: str | None) -> float | None:
    """The wait that a Retry-After header requests, as seconds or as a date.

    >>> retry_after_s("2.5"), retry_after_s("soon"), retry_after_s("Thu, 01 Jan 1970 00:00:00 GMT")
    (2.5, None, 0.0)
    """
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0.0, seconds) if seconds == seconds else None
