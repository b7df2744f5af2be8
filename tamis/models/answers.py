"""Answers of language models on disk, what they cost, and places for requests, shared by the workers of a machine.

    FOLDER/answers.sqlite     answers by the hash of everything that decides them; what each run spent, and what requests
                              in flight may spend
    FOLDER/opening            a lock for opening the file
    FOLDER/requests-*/0 ...   one lock per request that may be in flight

Both survive `kill -9`: SQLite writes ahead to a log, and the kernel releases locks. SQLite needs a local disk.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import sqlite3
import sys
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from tamis.errors import EndpointError

FILE = "answers.sqlite"
BUSY_S = 60.0
LOOK_AGAIN_S = 0.02
"""How often to look for a free place for a request, and for budget that other requests release."""

_AMOUNT = "tokens INTEGER NOT NULL, cost INTEGER NOT NULL"
_TABLES = (
    "CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, answer BLOB NOT NULL) WITHOUT ROWID",
    f"CREATE TABLE IF NOT EXISTS spent (scope TEXT PRIMARY KEY, {_AMOUNT}) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS reserved (scope TEXT, pid INTEGER, started REAL, "
    f"{_AMOUNT}, PRIMARY KEY (scope, pid, started)) WITHOUT ROWID",
)


def default_folder() -> Path:
    """The user's folder for answers: ~/.cache/tamis/answers, or its equivalent on the platform."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tamis" / "answers"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tamis" / "answers"


@dataclass(frozen=True)
class Answer:
    """What a model answered, why it stopped, and how many tokens that was."""

    text: str
    finish_reason: str | None
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Amount:
    """Tokens, and money in billionths of the currency of the prices; whole numbers, so that sums are exact."""

    tokens: int = 0
    cost: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.tokens + other.tokens, self.cost + other.cost)


@dataclass(frozen=True)
class Limit:
    """The most that may be spent; None for no limit."""

    tokens: int | None = None
    cost: int | None = None

    def allows(self, amount: Amount) -> bool:
        fits_tokens = self.tokens is None or amount.tokens <= self.tokens
        return fits_tokens and (self.cost is None or amount.cost <= self.cost)


class AnswerStore:
    """Answers and spending in one SQLite file. Several processes may use the same file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with self._alone():
                self._db = sqlite3.connect(folder / FILE, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
                self._do("PRAGMA journal_mode = WAL")
                self._do("PRAGMA synchronous = NORMAL")
                for table in _TABLES:
                    self._do(table)
        except (OSError, sqlite3.Error) as error:
            raise self._failure(error) from error
        self._me = (os.getpid(), psutil.Process().create_time())

    def get(self, key: bytes) -> Answer | None:
        row = self._do("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
        try:
            return Answer(**json.loads(zlib.decompress(row[0]))) if row is not None else None
        except (zlib.error, ValueError, TypeError):  # damaged: ask again
            # Another worker may have stored a new one meanwhile.
            self._do("DELETE FROM answers WHERE key = ? AND answer = ?", (key, row[0]))
            return None

    def put(self, key: bytes, answer: Answer) -> Answer:
        """Store an answer, and return the one that is stored: another worker may have been first."""
        packed = zlib.compress(json.dumps(asdict(answer)).encode())
        self._do("INSERT OR IGNORE INTO answers VALUES (?, ?)", (key, packed))
        return self.get(key) or answer

    def spent(self, scope: str) -> Amount:
        """What requests of this scope cost so far."""
        row = self._do("SELECT tokens, cost FROM spent WHERE scope = ?", (scope,)).fetchone()
        return Amount(*row) if row is not None else Amount()

    def reserve(self, scope: str, most: Amount, limit: Limit) -> bool | None:
        """Reserve what a request may cost at most.

        Returns False if it must wait for requests in flight, and None if the limit leaves less than that.
        """
        with self._transaction():
            spent = self.spent(scope)
            if not limit.allows(spent + most):
                return None
            held = "SELECT COALESCE(SUM(tokens), 0), COALESCE(SUM(cost), 0) FROM reserved WHERE scope = ?"
            if not limit.allows(spent + Amount(*self._do(held, (scope,)).fetchone()) + most):
                self._release_dead(scope)
                return False
            self._add("reserved", (scope, *self._me), most)
            return True

    def settle(self, scope: str, most: Amount, actual: Amount) -> None:
        """Replace what a request reserved, if anything, by what it cost."""
        with self._transaction() if most != Amount() else nullcontext():
            if most != Amount():
                self._add("reserved", (scope, *self._me), Amount(-most.tokens, -most.cost))
            self._add("spent", (scope,), actual)

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Open the file while no other process does: SQLite does not wait for a change of the journal mode."""
        lock = os.open(self._folder / "opening", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _add(self, table: str, key: tuple[object, ...], amount: Amount) -> None:
        values = (*key, amount.tokens, amount.cost)
        self._do(
            f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))}) ON CONFLICT DO UPDATE SET "
            "tokens = tokens + excluded.tokens, cost = cost + excluded.cost",
            values,
        )

    def _release_dead(self, scope: str) -> None:
        """Release what was reserved by processes that no longer exist."""
        for pid, started in self._do("SELECT pid, started FROM reserved WHERE scope = ?", (scope,)).fetchall():
            try:
                alive = abs(psutil.Process(pid).create_time() - started) < 1
            except psutil.NoSuchProcess:
                alive = False
            if not alive:
                found = "scope = ? AND pid = ? AND started = ?"
                self._do(f"DELETE FROM reserved WHERE {found}", (scope, pid, started))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._do("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise
        self._do("COMMIT")

    def _do(self, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        try:
            return self._db.execute(statement, values)
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> EndpointError:
        return EndpointError(
            f"cannot store answers in {self._folder}: {error}",
            hint="name a folder on a local disk with free space with `cache`; if the file is damaged, remove it",
        )


class Places:
    """At most `number` requests at a time over all processes that use the same folder; without a folder, in this process."""

    def __init__(self, folder: Path | None, number: int) -> None:
        self._files: list[int] = []
        self._free = list(range(number))
        self._looking = asyncio.Lock()
        self._freed = asyncio.Semaphore(number)
        if folder is None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for place in range(number):
                self._files.append(os.open(folder / str(place), os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            self.close()
            raise EndpointError(
                f"cannot open {number} files in {folder}: {error}",
                hint="lower `concurrency`, raise `ulimit -n`, or name a folder that can be written to with `cache`",
            ) from error

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Hold one of the places."""
        async with self._freed:
            place = await self._take()
            try:
                yield
            finally:
                self._give(place)

    async def _take(self) -> int:
        async with self._looking:  # one coroutine looks for all that wait
            while True:
                for index, place in enumerate(self._free):
                    if self._locked(place):
                        del self._free[index]
                        return place
                await asyncio.sleep(LOOK_AGAIN_S)

    def _locked(self, place: int) -> bool:
        if not self._files:
            return True
        try:
            fcntl.flock(self._files[place], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _give(self, place: int) -> None:
        if self._files:
            fcntl.flock(self._files[place], fcntl.LOCK_UN)
        self._free.append(place)

    def close(self) -> None:
        for file in self._files:
            os.close(file)
