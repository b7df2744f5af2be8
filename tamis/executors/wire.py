"""Connections between the driver and the nodes of a cluster: TCP, and both sides prove that they know a token of the run.

    driver    Door: accepts connections in a thread, and keeps those whose first message says who they are
    node      connect(address, token)

What passes is pickled, so nobody without the token is listened to. Messages are not encrypted, as in Ray and Dask themselves.
"""

from __future__ import annotations

import os
import pickle
import queue
import secrets
import socket
import struct
import threading
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any, TypeAlias

Address: TypeAlias = tuple[str, int]

GREETING_S = 10
"""How long the other side may take to prove that it knows the token."""

SILENCE_S = 30
"""A connection whose other side confirms nothing for this long is lost, as the kernel sees it, however busy a program is."""


def connect(address: Address, token: bytes, *hello: Any) -> Connection:
    """Connect to a door, and say who this is."""
    opened = socket.create_connection(address, timeout=GREETING_S)
    opened.settimeout(None)
    connection = _tuned(opened)
    try:
        answer_challenge(connection, token)
        deliver_challenge(connection, token)
        _limit_reads(connection, 0)
        connection.send_bytes(pickle.dumps(hello))
    except BaseException:
        connection.close()
        raise
    return connection


class Door:
    """Where the agents and workers of a run connect. `arrived` has each connection with its first message."""

    def __init__(self, host: str) -> None:
        self.token = secrets.token_bytes(32)
        self.arrived: queue.SimpleQueue[tuple[Connection, tuple[Any, ...]]] = queue.SimpleQueue()
        self.wake, self._wake_write = os.pipe()
        """Readable when something has arrived."""
        os.set_blocking(self._wake_write, False)
        self._socket = socket.create_server((host, 0), backlog=1024)
        self.address: Address = self._socket.getsockname()[:2]
        self._lock = threading.Lock()
        self._closed = False
        threading.Thread(target=self._accept, name="tamis-door", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                opened, _ = self._socket.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._greet, args=(opened,), name="tamis-greeting", daemon=True).start()

    def _greet(self, opened: socket.socket) -> None:
        """In a thread, because a connection that says nothing must not keep others out."""
        connection = _tuned(opened)
        try:
            deliver_challenge(connection, self.token)
            answer_challenge(connection, self.token)
            hello = pickle.loads(connection.recv_bytes())
            _limit_reads(connection, 0)
        except (OSError, EOFError, AuthenticationError):
            connection.close()
            return
        with self._lock:
            if self._closed:
                connection.close()
                return
            self.arrived.put((connection, hello))
            with suppress(BlockingIOError):
                os.write(self._wake_write, b".")

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # ends the thread that accepts
            self._socket.close()
            while not self.arrived.empty():
                self.arrived.get()[0].close()
            os.close(self.wake)
            os.close(self._wake_write)


def _tuned(opened: socket.socket) -> Connection:
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", SILENCE_S // 3),
        ("TCP_KEEPINTVL", SILENCE_S // 6),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", SILENCE_S * 1000),
    ):
        if hasattr(socket, name):  # on Linux
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    connection = Connection(opened.detach())
    _limit_reads(connection, GREETING_S)
    return connection


def _limit_reads(connection: Connection, seconds: int) -> None:
    """Make reads fail that take longer; with 0, let them wait."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))
