"""The JSON kernels against json.dumps."""

import json

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.kernels.json import measure, write
from tamis.sinks.encode import _buffers


def escape(array: pa.Array, *, raw: bool = False, prefix: bytes = b"") -> list[bytes]:
    values = (*_buffers(array), raw)
    lengths = np.full(len(array), len(prefix), dtype=np.int64)
    measure(*values, lengths)
    ends = np.cumsum(lengths)
    cursor = ends - lengths
    out = np.zeros(int(lengths.sum()), dtype=np.uint8)
    write(*values, np.frombuffer(prefix, dtype=np.uint8), out, cursor)
    assert (cursor == ends).all(), "every byte that was measured is written, and no other"
    return [out[end - length : end].tobytes() for end, length in zip(ends, lengths, strict=True)]


def reference(text: str | None) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode()


texts = st.lists(
    st.none() | st.text(max_size=40) | st.text(alphabet='ab"\\\n\t\x00\x1f\x7fé€😀', max_size=40), max_size=12
)


@settings(deadline=None, max_examples=150)
@given(texts, st.integers(0, 5), st.sampled_from([pa.string(), pa.large_string()]))
def test_text_is_escaped_as_json_dumps_does(rows, skipped, kind):
    array = pa.array(rows, type=kind).slice(skipped)
    assert escape(array) == [reference(text) for text in rows[skipped:]]


def test_every_control_character_is_escaped():
    rows = [chr(code) for code in range(256)] + ["".join(map(chr, range(128)))]
    assert escape(pa.array(rows)) == [reference(text) for text in rows]


def test_an_escape_is_found_at_every_place_of_a_word():
    rows = ["." * before + special + "." * after for special in '"\\\n\x01' for before in range(17) for after in (0, 9)]
    assert escape(pa.array(rows)) == [reference(text) for text in rows]


def test_bytes_next_to_the_escaped_ones_are_left_alone():
    rows = ["!#[] \x7f" * 5, "\u2028\u2029é\u0301" * 5, "\ufffe\U0010ffff" * 4]
    assert escape(pa.array(rows)) == [reference(text) for text in rows]


def test_raw_values_are_copied_and_nulls_written():
    assert escape(pa.array(["1.5", None, ""]), raw=True, prefix=b'{"n":') == [b'{"n":1.5', b'{"n":null', b'{"n":']


def test_one_compilation_serves_strings_large_strings_and_slices():
    for array in (
        pa.array(["a", None]),
        pa.array(["b"], pa.large_string()),
        pa.array(["c", "d"]).slice(1),
        pa.array([], pa.string()),
    ):
        escape(array)
    assert len(measure.signatures) == 1
    assert len(write.signatures) == 1


def test_a_buffer_cut_out_of_another_is_read_all_the_same():
    whole = pa.py_buffer(b"xyz" + b'hello "you" there, and so on')
    offsets = pa.py_buffer(np.array([0, 11, 28], dtype=np.int32))
    array = pa.StringArray.from_buffers(2, offsets, whole.slice(3))
    assert escape(array) == [b'"hello \\"you\\""', b'" there, and so on"']
