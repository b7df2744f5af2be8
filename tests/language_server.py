"""An OpenAI-compatible server on loopback that misbehaves when a prompt says so.

A prompt that contains [[500:2]] is answered twice with status 500, and then well; without a number, always. Kinds:

    429 500 502 503 400 413    this status; 429 comes with Retry-After, 400 repeats the headers of the request
    reset half hang drip       the connection is reset, ends early, is silent, or sends a byte at a time
    garbage twice nested       a body that is not JSON, two replies in one body, JSON too deep to read
    null empty                 a reply that is not an object, or without choices
    surrogate                  an answer with half a surrogate pair
    broken wrong               an answer that is half a JSON object, or does not match the schema
    length filter              an answer that was cut off, or withheld
    silent overcounted         no usage, or one that no integer of a database can hold

Answers depend on the prompt only, unless the temperature is above 0.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import hashlib
import json
import re
import socket
import struct
import threading
from collections import Counter
from typing import Any

DIRECTIVE = re.compile(r"\[\[(\w+)(?::(\d+))?\]\]")


class LanguageServer:
    """Runs in a thread; use as a context manager."""

    def __init__(
        self,
        *,
        models: tuple[str, ...] = ("echo",),
        key: str | None = None,
        schemas: bool = True,
        latency_s: float = 0,
        hold_after: int | None = None,
        num_words: int = 2,
    ) -> None:
        """Requests after the first `hold_after` are not answered until `released` is set."""
        self.models, self.key, self.schemas, self.latency_s, self.hold_after = (
            models,
            key,
            schemas,
            latency_s,
            hold_after,
        )
        self.num_words = num_words
        self.held, self.released = threading.Event(), threading.Event()
        self.requests: list[dict[str, Any]] = []
        self.most_at_a_time = 0
        self.refuses_all: int | None = None
        self.retry_after = "0.01"
        self._at_a_time = 0
        self._seen: Counter[tuple[str, str]] = Counter()
        self._answers = 0

    def __enter__(self) -> LanguageServer:
        self._loop = asyncio.new_event_loop()
        started = threading.Event()

        async def start() -> None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.port = self._server.sockets[0].getsockname()[1]
            started.set()

        async def end() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        def run() -> None:
            self._loop.run_until_complete(start())
            self._loop.run_forever()
            self._loop.run_until_complete(end())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        started.wait()
        return self

    def __exit__(self, *exc: object) -> None:
        def stop() -> None:
            self._server.close()
            self._loop.stop()

        self._loop.call_soon_threadsafe(stop)
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def prompts(self) -> list[str]:
        """The prompts of all requests, in order of arrival."""
        return [prompt_of(request) for request in list(self.requests)]

    # ------------------------------------------------------------------------------------------------------- connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, path, _ = head.split(" ", 2)
                length = re.search(r"(?im)^content-length: *(\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                self._at_a_time += 1
                self.most_at_a_time = max(self.most_at_a_time, self._at_a_time)
                try:
                    if not await self._reply(method, path, head, body, reader, writer):
                        return
                finally:
                    self._at_a_time -= 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _reply(
        self,
        method: str,
        path: str,
        head: str,
        body: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Whether the connection can be used again."""
        if self.refuses_all is not None:
            return await self._send(writer, self.refuses_all, {"error": {"message": "not now"}})
        if self.key is not None and f"Bearer {self.key}" not in head:
            return await self._send(writer, 401, {"error": {"message": f"invalid key in: {head}"}})
        if path == "/v1/models":
            return await self._send(writer, 200, {"data": [{"id": name} for name in self.models]})
        if method != "POST" or path not in ("/v1/chat/completions", "/v1/completions"):
            return await self._send(writer, 404, {"error": {"message": "not found"}})
        request = json.loads(body)
        self.requests.append(request)
        if self.hold_after is not None and len(self.requests) > self.hold_after and not self.released.is_set():
            self.held.set()
            await reader.read()  # until the client gives up
            return False
        await asyncio.sleep(self.latency_s)
        if request["model"] not in self.models:
            return await self._send(writer, 404, {"error": {"message": "no such model"}})
        if "response_format" in request and not self.schemas:
            return await self._send(writer, 400, {"error": {"message": "response_format is not supported"}})
        prompt = prompt_of(request)
        kind = self._kind(prompt)
        if kind.isdigit():
            headers = f"Retry-After: {self.retry_after}\r\n" if kind == "429" else ""
            return await self._send(
                writer, int(kind), {"error": {"message": f"requested failure; you sent {head}"}}, headers
            )
        if kind == "reset":
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            return False
        if kind == "hang":
            await reader.read()  # until the client gives up
            return False
        reply = json.dumps(self._answer(request, prompt, kind, path)).encode()
        if kind == "half":
            writer.write(_head(200, len(reply)) + reply[: len(reply) // 2])
            await writer.drain()
            return False
        if kind == "drip":
            writer.write(_head(200, len(reply)))
            gone = asyncio.create_task(reader.read())
            for byte in reply:
                writer.write(bytes([byte]))
                await asyncio.wait([gone], timeout=0.05)
                if gone.done():
                    return False
            return False
        content = {
            "garbage": b"<html>busy</html>",
            "twice": reply + reply,
            "nested": b"[" * 100_000,
            "null": b"null",
            "empty": b'{"choices": []}',
        }.get(kind, reply)
        writer.write(_head(200, len(content)) + content)
        await writer.drain()
        return True

    def _kind(self, prompt: str) -> str:
        for kind, times in DIRECTIVE.findall(prompt):
            self._seen[prompt, kind] += 1
            if not times or self._seen[prompt, kind] <= int(times):
                return str(kind)
        return "well"

    async def _send(self, writer: asyncio.StreamWriter, status: int, body: dict[str, Any], headers: str = "") -> bool:
        content = json.dumps(body).encode()
        writer.write(_head(status, len(content), headers) + content)
        await writer.drain()
        return True

    # ----------------------------------------------------------------------------------------------------------- answers

    def _answer(self, request: dict[str, Any], prompt: str, kind: str, path: str) -> dict[str, Any]:
        self._answers += 1
        seed = prompt if not request.get("temperature") else f"{prompt} {self._answers}"
        question, _, schema = prompt.rpartition("and nothing else:\n")
        text = json.dumps(instance(json.loads(schema), seed)) if question else answer_to(seed, self.num_words)
        text = {
            "broken": text[: len(text) // 2], "wrong": '{"unexpected": true}', "surrogate": f"{text} \ud83d"
        }.get(kind, text)  # fmt: skip
        reason = {"length": "length", "filter": "content_filter"}.get(kind, "stop")
        choice = {"index": 0, "finish_reason": reason}
        choice |= {"text": text} if path == "/v1/completions" else {"message": {"role": "assistant", "content": text}}
        prompt_tokens = 10**30 if kind == "overcounted" else len(prompt.split())
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(text.split())}
        return {"choices": [choice], "model": request["model"]} | ({} if kind == "silent" else {"usage": usage})


@functools.cache
def shared_server() -> LanguageServer:
    """A server for all tests of a process."""
    server = LanguageServer().__enter__()
    atexit.register(server.__exit__)
    return server


def answer_to(prompt: str, num_words: int = 2) -> str:
    """The answer to a prompt without a schema."""
    return " ".join([*["answer"] * (num_words - 1), hashlib.sha256(prompt.encode()).hexdigest()[:8]])


def instance(schema: dict[str, Any], seed: str) -> Any:
    """A value that matches a schema, decided by the seed."""
    number = int(hashlib.sha256(seed.encode()).hexdigest()[:8], 16)
    if "enum" in schema:
        return schema["enum"][number % len(schema["enum"])]
    kind = schema["type"] if isinstance(schema["type"], str) else schema["type"][0]
    if kind == "object":
        return {name: instance(part, f"{seed}/{name}") for name, part in schema["properties"].items()}
    if kind == "array":
        count = 1 + number % min(3, schema.get("maxItems", 3))
        return [instance(schema["items"], f"{seed}/{item}") for item in range(count)]
    if kind == "integer":
        low, high = schema.get("minimum", 0), schema.get("maximum", 100)
        return low + number % (high - low + 1)
    if kind == "boolean":
        return bool(number % 2)
    return number / 2**32 if kind == "number" else f"word{number % 1000}"


def prompt_of(request: dict[str, Any]) -> str:
    """The last message of a request."""
    return str(request["messages"][-1]["content"] if "messages" in request else request["prompt"])


def _head(status: int, length: int, headers: str = "") -> bytes:
    return (
        f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{headers}\r\n".encode()
    )
