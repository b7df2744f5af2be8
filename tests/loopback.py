"""A server on loopback, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from typing import Self


class LoopbackServer:
    """Serves HTTP while it is entered. `_reply` answers a request."""

    url: str

    def __init__(self) -> None:
        self.most_at_a_time = self._at_a_time = 0
        self._tasks: set[asyncio.Task[None]] = set()
        """Connections that are open."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        start = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(start, self._loop).result()
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            self._server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self._at_a_time += 1
                self.most_at_a_time = max(self.most_at_a_time, self._at_a_time)
                try:
                    await self._reply(head.decode("latin-1"), writer)
                finally:
                    self._at_a_time -= 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _reply(self, head: str, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError
