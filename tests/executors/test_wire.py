"""Connections of a run: who is let in, and that one who says nothing keeps nobody out."""

import os
import pickle
import select
import socket
from multiprocessing import AuthenticationError

import pytest

from tamis.executors import wire
from tamis.executors.wire import Door, connect


@pytest.fixture
def door():
    opened = Door("127.0.0.1")
    yield opened
    opened.close()


def arrival(door):
    """The next connection, and its first message."""
    select.select([door.wake], [], [], 30)
    os.read(door.wake, 1)
    return door.arrived.get(timeout=30)


def test_both_sides_talk_after_the_greeting(door):
    with connect(door.address, door.token, "agent", "node 1") as mine:
        theirs, hello = arrival(door)
        assert hello == ("agent", "node 1")
        with theirs:
            theirs.send_bytes(b"x" * 1_000_000)
            assert len(mine.recv_bytes()) == 1_000_000
            mine.send_bytes(b"answer")
            assert theirs.recv_bytes() == b"answer"


def test_without_the_token_nothing_is_read(door, tmp_path):
    class Harmful:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "made"),))

    with pytest.raises((AuthenticationError, EOFError, OSError)):
        connect(door.address, b"another token", Harmful())
    with socket.create_connection(door.address) as raw:
        raw.sendall(pickle.dumps(Harmful()))
    with connect(door.address, door.token, "agent", "node 1"):
        assert arrival(door)[1] == ("agent", "node 1")
    assert not (tmp_path / "made").exists()


def test_one_who_says_nothing_keeps_nobody_out(door):
    with socket.create_connection(door.address), connect(door.address, door.token, "agent", "node 1"):
        theirs, hello = arrival(door)
        theirs.close()
        assert hello == ("agent", "node 1")


def test_a_door_that_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(wire, "GREETING_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(OSError):
        connect(silent.getsockname()[:2], b"token", "agent")


def test_after_it_is_closed_nobody_is_let_in(door):
    early = connect(door.address, door.token, "agent", "node 1")
    select.select([door.wake], [], [], 30)
    door.close()
    door.close()
    with early, pytest.raises((EOFError, OSError)):
        early.recv_bytes()
    with pytest.raises(OSError):
        connect(door.address, door.token, "agent", "node 2")
