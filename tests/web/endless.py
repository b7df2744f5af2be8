"""A function that may not return, for tests of limits."""


def loop(forever: bool) -> str:
    while forever:
        pass
    return "done"


def crash(how: str, data: bytes) -> int:
    import ctypes
    import os

    if how == "segfault":
        ctypes.string_at(0)
    elif how == "exit":
        os._exit(3)
    elif how == "memory":
        return len(bytearray(1_000_000_000))
    elif how == "loop":
        while True:
            pass
    return len(data)
