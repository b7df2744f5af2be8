"""Code and values are identified by what they do and hold, and by nothing else."""

import datetime
import enum
import functools
import os
import random
import re
import subprocess
import sys
import textwrap
import threading
from dataclasses import dataclass
from pathlib import Path

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest

from tamis import Filter, Map, operator, step
from tamis.functions import as_operator
from tamis.identity import identify


def digests_of(folder, source, names=("step",), *, seed="0", helper=None, file="script.py"):
    """The identities of names in a script, found in a process of its own."""
    folder.mkdir(exist_ok=True)
    if helper is not None:
        (folder / "helper.py").write_text(textwrap.dedent(helper))
    (folder / file).write_text(textwrap.dedent(source))
    tail = f"\nfrom tamis.identity import identify\nprint(*(identify(eval(n)).digest for n in {list(names)!r}))\n"
    code = f"exec(compile(open({file!r}).read() + {tail!r}, {file!r}, 'exec'))"
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTHONPATH"] = f"{folder}{os.pathsep}{Path(__file__).parents[1]}"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def made(source, name="step"):
    """What a piece of source defines."""
    scope = {"__name__": "__main__"}
    exec(compile(textwrap.dedent(source), "<source>", "exec"), scope)
    return scope[name]


def same(before, after):
    return identify(made(before)) == identify(made(after))


PROGRAM = """
    import functools, re
    from dataclasses import dataclass
    from enum import Enum

    WORDS = {"alpha", "beta", "gamma", ("nested", 1), frozenset({"x", "y"})}
    PATTERN = re.compile("a+", re.I)

    class Level(Enum):
        LOW = 1
        HIGH = 2

    @dataclass
    class Limits:
        low: int = 1
        words: frozenset = frozenset({"one", "two", "three"})

    LIMITS = Limits()

    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    def step(row, *, strict=True, words=frozenset({"p", "q", "r"})):
        return row["text"] in {"u", "v", "w"} and even(len(WORDS)) and PATTERN and Level.LOW and LIMITS

    class Callable:
        def __init__(self):
            self.words = {"k", "l", "m"}
        def __call__(self, row):
            return row["text"] in self.words

    called = Callable()
    bound = functools.partial(step, strict=False)
"""


class TestStable:
    def test_across_processes_hash_seeds_and_folders(self, tmp_path):
        names = ("step", "called", "bound", "Limits", "called.__call__")
        one = digests_of(tmp_path / "a", PROGRAM, names, seed="1")
        assert one == digests_of(tmp_path / "b", PROGRAM, names, seed="2", file="elsewhere.py")
        assert len(set(one)) == len(names)

    def test_comments_docstrings_and_lines_make_no_difference(self):
        before = """
            def step(row):
                return inner(row)

            def inner(row):
                class Local:
                    limit = 3
                return len(row["text"]) > Local.limit
        """
        after = '''
            # a comment


            def inner(row):
                """A docstring."""
                class Local:
                    """Another."""
                    limit = 3

                # another
                return len(row["text"]) > Local.limit

            def step(row):
                """A docstring."""
                return inner(row)
        '''
        assert same(before, after)

    def test_globals_that_are_not_used_make_no_difference(self):
        assert same("LIMIT = 1\nOTHER = 1\nstep = lambda row: LIMIT", "LIMIT = 1\nOTHER = 2\nstep = lambda row: LIMIT")


DECORATED = """
import functools
def outer(f):
    @functools.wraps(f)
    def wrapper(row): return f(row)
    return wrapper
@outer
def step(row): return 1
"""
CHANGES = {
    "its own code": ("def step(row): return row['n'] > 1", "def step(row): return row['n'] < 1"),
    "a constant": ("def step(row): return row['n'] > 1", "def step(row): return row['n'] > 2"),
    "a default": ("def step(row, n=1): return n", "def step(row, n=2): return n"),
    "a keyword default": ("def step(row, *, n=1): return n", "def step(row, *, n=2): return n"),
    "a generator expression": (
        "step = lambda row: all(len(w) > 3 for w in row['text'])",
        "step = lambda row: all(len(w) > 100 for w in row['text'])",
    ),
    "a comprehension": ("step = lambda row: [w + 1 for w in row]", "step = lambda row: [w + 2 for w in row]"),
    "a lambda inside": (
        "def step(row): return sorted(row, key=lambda w: w + 1)",
        "def step(row): return sorted(row, key=lambda w: w + 2)",
    ),
    "a function two levels down": (
        "def step(row):\n def a():\n  def b(): return 1\n  return b\n return a",
        "def step(row):\n def a():\n  def b(): return 2\n  return b\n return a",
    ),
    "where a try block ends": (
        "def step(row):\n try:\n  a = 1\n except ValueError:\n  a = 2\n b = 3\n return a, b",
        "def step(row):\n try:\n  a = 1\n  b = 3\n except ValueError:\n  a = 2\n return a, b",
    ),
    "a closure": (
        "def make(n): return lambda row: n\nstep = make(1)",
        "def make(n): return lambda row: n\nstep = make(2)",
    ),
    "a helper": ("def h(): return 1\ndef step(row): return h()", "def h(): return 2\ndef step(row): return h()"),
    "a helper of a helper": (
        "def g(): return 1\ndef h(): return g()\ndef step(row): return h()",
        "def g(): return 2\ndef h(): return g()\ndef step(row): return h()",
    ),
    "a helper used inside a nested function": (
        "def h(): return 1\ndef step(row): return [h() for _ in row]",
        "def h(): return 2\ndef step(row): return [h() for _ in row]",
    ),
    "one of two that call each other": (
        "def a(n): return b(n)\ndef b(n): return a(n - 1)\nstep = a",
        "def a(n): return b(n)\ndef b(n): return a(n - 2)\nstep = a",
    ),
    "a global number": ("N = 1\nstep = lambda row: N", "N = 2\nstep = lambda row: N"),
    "a global of another type": ("N = 1\nstep = lambda row: N", "N = True\nstep = lambda row: N"),
    "a global list": ("N = [1, [2]]\nstep = lambda row: N", "N = [1, [3]]\nstep = lambda row: N"),
    "a global set": ("N = {1, 2}\nstep = lambda row: N", "N = {1, 3}\nstep = lambda row: N"),
    "a value in a dict": ("N = {'a': 1}\nstep = lambda row: N", "N = {'a': 2}\nstep = lambda row: N"),
    "the order of a dict": ("N = {1: 1, 2: 2}\nstep = lambda row: N", "N = {2: 2, 1: 1}\nstep = lambda row: N"),
    "a pattern": (
        "import re\nN = re.compile('a')\nstep = lambda row: N",
        "import re\nN = re.compile('a', re.I)\nstep = lambda row: N",
    ),
    "an array": (
        "import numpy as np\nN = np.array([1, 2])\nstep = lambda row: N",
        "import numpy as np\nN = np.array([1, 3])\nstep = lambda row: N",
    ),
    "a lookup in a dict of functions": (
        "T = {'a': lambda x: x + 1}\nstep = lambda row: T['a'](row)",
        "T = {'a': lambda x: x + 2}\nstep = lambda row: T['a'](row)",
    ),
    "the method of a class it uses": (
        "class C:\n def f(self): return 1\nstep = lambda row: C().f()",
        "class C:\n def f(self): return 2\nstep = lambda row: C().f()",
    ),
    "a property": (
        "class C:\n @property\n def f(self): return 1\nstep = lambda row: C().f",
        "class C:\n @property\n def f(self): return 2\nstep = lambda row: C().f",
    ),
    "a static method": (
        "class C:\n @staticmethod\n def f(): return 1\nstep = lambda row: C.f()",
        "class C:\n @staticmethod\n def f(): return 2\nstep = lambda row: C.f()",
    ),
    "a base class": (
        "class B:\n def f(self): return 1\nclass C(B): pass\nstep = lambda row: C().f()",
        "class B:\n def f(self): return 2\nclass C(B): pass\nstep = lambda row: C().f()",
    ),
    "the state of a callable object": (
        "class C:\n def __init__(self, n): self.n = n\n def __call__(self, row): return self.n\nstep = C(1)",
        "class C:\n def __init__(self, n): self.n = n\n def __call__(self, row): return self.n\nstep = C(2)",
    ),
    "the code of a callable object": (
        "class C:\n def __call__(self, row): return 1\nstep = C()",
        "class C:\n def __call__(self, row): return 2\nstep = C()",
    ),
    "the object of a bound method": (
        "class C:\n def __init__(self, n): self.n = n\n def f(self, row): return self.n\nstep = C(1).f",
        "class C:\n def __init__(self, n): self.n = n\n def f(self, row): return self.n\nstep = C(2).f",
    ),
    "a slot": (
        "class C:\n __slots__ = ('n',)\n def __call__(self, row): return self.n\nstep = C()\nstep.n = 1",
        "class C:\n __slots__ = ('n',)\n def __call__(self, row): return self.n\nstep = C()\nstep.n = 2",
    ),
    "the default of a dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass C:\n n: int = 1\nstep = lambda row: C().n",
        "from dataclasses import dataclass\n@dataclass\nclass C:\n n: int = 2\nstep = lambda row: C().n",
    ),
    "the value of an enum": (
        "from enum import Enum\nclass E(Enum):\n A = 1\nstep = lambda row: E.A",
        "from enum import Enum\nclass E(Enum):\n A = 2\nstep = lambda row: E.A",
    ),
    "an argument of a partial": (
        "import functools\ndef f(n, row): return n\nstep = functools.partial(f, 1)",
        "import functools\ndef f(n, row): return n\nstep = functools.partial(f, 2)",
    ),
    "the function of a partial": (
        "import functools\ndef f(n, row): return n\nstep = functools.partial(f, 1)",
        "import functools\ndef f(n, row): return -n\nstep = functools.partial(f, 1)",
    ),
    "a decorated function": (DECORATED, DECORATED.replace("return 1", "return 2")),
    "a decorator": (DECORATED, DECORATED.replace("return f(row)", "return -f(row)")),
    "a cached function": (
        "import functools\n@functools.lru_cache\ndef f(n): return 1\nstep = lambda row: f(row)",
        "import functools\n@functools.lru_cache\ndef f(n): return 2\nstep = lambda row: f(row)",
    ),
    "a function of the standard library": (
        "import math\nf = math.floor\nstep = lambda row: f(row)",
        "import math\nf = math.ceil\nstep = lambda row: f(row)",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_an_edit_is_noticed_in(what):
    before, after = CHANGES[what]
    assert same(before, before)
    assert not same(before, after)


def test_numba_functions_are_identified_by_their_python_code():
    before = "import numba\n@numba.njit\ndef f(n): return n + 1\nstep = lambda row: f(1)"
    assert same(before, before)
    assert not same(before, before.replace("n + 1", "n + 2"))


@dataclass
class Point:
    x: int
    y: object = None


class Colour(enum.Flag):
    RED = 1
    BLUE = 2


VALUES = [
    None, True, 1, 1.0, -0.0, 0.0, 1j, "1", b"1", bytearray(b"1"), [1], (1,), {1}, {1: 1}, {"1": 1}, {(1, "a"), (2, "b")},
    float("inf"), 2**70, "\ud800", range(3), slice(1, 2), datetime.date(2024, 1, 1), datetime.timedelta(1), Path("a/b"),
    re.compile("a"), re.compile(b"a"), Point(1), Point(1, Point(1)), Colour.RED, Colour.RED | Colour.BLUE, Colour, Point,
    np.arange(3), np.arange(3.0), np.arange(3).reshape(3, 1), np.float32(1), np.array(["a", None], dtype=object),
    np.array(["2024"], dtype="datetime64[D]"), np.dtype("i4"), pa.array([1, 2]), pa.array([1, None]), pa.array(["a"]),
    pa.scalar(1), pa.table({"a": [1]}), pa.table({"b": [1]}), pa.schema([("a", pa.int8())]), pa.int8(), random.Random(1),
    random.Random(2), os.path.join, "x".join, "y".join, len, str.lower, str.upper, str, os, functools.partial(len, "a"),
]  # fmt: skip


def test_values_are_distinguished_and_recognized(tmp_path):
    import copy

    found = [identify(value) for value in VALUES]
    assert all(not one.opaque for one in found), found
    assert len({one.digest for one in found}) == len(VALUES)
    for value, one in zip(VALUES, found, strict=True):
        if not isinstance(value, (type, type(os))):
            assert identify(copy.deepcopy(value)) == one, value


def test_slices_of_arrays_are_the_values_they_hold():
    assert identify(np.arange(6)[::2]) == identify(np.array([0, 2, 4]))
    assert identify(pa.array([1, 2, 3])[1:]) == identify(pa.array([2, 3]))


def test_values_that_contain_themselves():
    def ring(end):
        first = [1]
        first.append({"again": first, "end": end})
        return first

    assert identify(ring(1)) == identify(ring(1)) != identify(ring(2))


def test_sharing_a_list_makes_no_difference():
    shared = [1]
    assert identify([shared, shared]) == identify([[1], [1]])


def test_pickling_an_operator_does_not_change_it():
    """`copyreg` leaves a list on the class."""

    @operator(reads="text", writes="text")
    class PickledForTests(Map):
        def apply(self, batch):
            return {"text": batch["text"]}

    before = PickledForTests().identity()
    cloudpickle.dumps(PickledForTests())
    assert "__slotnames__" in vars(PickledForTests)
    assert PickledForTests().identity() == before


def test_long_chains_of_functions_are_followed():
    lines = [f"def f{n}(row): return f{n + 1}(row)" for n in range(3000)]
    source = "\n".join(lines) + "\ndef f3000(row): return LAST\nLAST = 1\nstep = f0"
    assert not identify(made(source)).opaque
    assert not same(source, source.replace("LAST = 1", "LAST = 2"))


class TestModules:
    SCRIPT = "import helper\ndef step(row): return helper.clean(row)"

    def digest(self, folder, script, helper):
        return digests_of(folder, script, helper=helper)

    def test_a_function_of_an_imported_module(self, tmp_path):
        one = self.digest(tmp_path, self.SCRIPT, "def clean(row): return 1\ndef other(): return 1")
        two = self.digest(tmp_path, self.SCRIPT, "def clean(row): return 2\ndef other(): return 1")
        three = self.digest(tmp_path, self.SCRIPT, "# here\ndef clean(row): return 1\ndef other(): return 2")
        assert one == three != two

    def test_a_value_of_an_imported_module(self, tmp_path):
        script = "from helper import LIMIT\nimport helper as h\nstep = lambda row: row['n'] > h.LIMIT"
        assert self.digest(tmp_path, script, "LIMIT = 1") != self.digest(tmp_path, script, "LIMIT = 2")

    @pytest.mark.parametrize(
        "script",
        [
            "import helper\ndef step(row): return vars(helper)['clean'](row)",
            "def step(row):\n    import helper\n    return helper.clean(row)",
            "def step(row):\n    from helper import clean\n    return clean(row)",
        ],
        ids=["as a value", "imported inside", "imported from inside"],
    )
    def test_a_module_that_is_not_used_by_attribute_counts_as_a_whole(self, tmp_path, script):
        (tmp_path / "deep.py").write_text("LIMIT = 1\n")
        helper = "from deep import LIMIT\ndef clean(row):\n    return LIMIT"
        one = self.digest(tmp_path, script, helper)
        assert one == self.digest(tmp_path, script, '"""Docs."""\n' + helper + "  # a comment")
        assert one != self.digest(tmp_path, script, helper + " + 1")
        (tmp_path / "deep.py").write_text("LIMIT = 2\n")
        assert one != self.digest(tmp_path, script, helper)


class TestOpaque:
    def test_locks_and_files_are_named(self, tmp_path):
        lock, file = threading.Lock(), (tmp_path / "a").open("w")
        with file:

            def clean(row):
                with lock:
                    return file.write(row)

            found = identify(clean, "clean")
        assert set(found.opaque) == {"`clean.lock` (_thread.lock)", "`clean.file` (_io.TextIOWrapper)"}

    def test_the_attribute_of_an_object_is_named(self):
        class Counter:
            def __init__(self):
                self.lock = threading.Lock()

            def __call__(self, row):
                return True

        assert as_operator(Counter()).identity()["opaque"] == ["`counter.lock` (_thread.lock)"]

    def test_a_class_decides_what_of_it_counts(self):
        class Counter:
            def __init__(self, n):
                self.n, self.lock = n, threading.Lock()

            def __getstate__(self):
                return {"n": self.n}

        assert not identify(Counter(1)).opaque
        assert identify(Counter(1)) == identify(Counter(1)) != identify(Counter(2))


class TestSteps:
    def test_a_version_by_hand_is_all_that_counts(self):
        lock = threading.Lock()
        one = step(lambda row: lock.locked(), name="clean", version=3)
        two = step(lambda row: True, name="clean", version=3)
        assert one.identity() == two.identity()
        assert "opaque" not in one.identity()
        assert one.identity() != step(lambda row: True, name="clean", version=4).identity()
        assert one.identity() != step(lambda row: True, name="clean", version=3, reason="x").identity()

    def test_partials_and_objects_have_names(self):
        class DropShort:
            def __call__(self, row):
                return True

        assert as_operator(functools.partial(max, 1)).name == "max"
        assert as_operator(DropShort()).name == "drop_short"

    def test_the_methods_of_an_operator_count(self):
        def length(add, limit=3):
            @operator(reads="text", writes="length")
            class LengthOfOwn(Filter):
                min_length: int = limit

                def score(self, batch):
                    return {"length": [len(text) + add for text in batch["text"].to_pylist()]}

                def rules(self):
                    return []

            return LengthOfOwn()

        assert length(0).identity() == length(0).identity()
        assert length(0).identity() != length(1).identity()
        assert length(0).identity() != length(0, limit=4).identity()
        assert length(0).measuring_identity() != length(1).measuring_identity()

    def test_an_operator_with_a_version_is_not_identified_by_code(self):
        def doubled(by, version=None):
            @operator(writes="n", version=version)
            class DoubledOwn(Map):
                key: object = None

                def apply(self, batch):
                    return {"n": batch["n"].to_numpy() * by}

            return DoubledOwn

        assert doubled(1, 7)().identity() == doubled(2, 7)().identity() != doubled(2, 8)().identity()
        assert doubled(1)().identity() != doubled(2)().identity()
        assert doubled(1)(key={"a", "b"}).identity() != doubled(1)(key={"a", "c"}).identity()

    def test_operators_of_tamis_are_identified_by_name(self):
        from tamis.text.quality import WordCount

        assert set(WordCount().identity()) == {"step", "version", "parameters"}
