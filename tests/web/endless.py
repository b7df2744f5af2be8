"""A function that may not return, for tests of limits."""


def loop(forever: bool) -> str:
    while forever:
        pass
    return "done"
