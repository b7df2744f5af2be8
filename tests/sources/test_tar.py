"""The reader of tar headers, compared with that of Python, and on damaged archives."""

import contextlib
import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.sources.tar import END, ByteWindow, TarDamage, members
from tests.tars import special, tar_bytes

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
names = st.text(
    st.characters(codec="utf-8", exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=90
)


def found(data, *, stream=0):
    """(name, kind, start, size) of all members, from a file or from a stream of chunks of `stream` bytes."""
    if stream:
        window = ByteWindow.over(iter([data[at : at + stream] for at in range(0, len(data), stream)]))
        return [(each.name, each.kind, each.start, each.size) for each in members(window) if each.kind != END]
    window = ByteWindow.of(io.BytesIO(data))
    return [(each.name, each.kind, each.start, each.size) for each in members(window, len(data)) if each.kind != END]


def expected(data):
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [(each.name, "file", each.offset_data, each.size) for each in archive]


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.lists(names, min_size=1, max_size=4).map("/".join), st.binary(max_size=2000)), max_size=6),
    st.sampled_from(FORMATS[1:]),
    st.integers(1, 3000),
)
def test_members_are_those_that_python_finds(content, form, chunk):
    content = [(name.rstrip("/"), data) for name, data in content]
    data = tar_bytes(content, form)
    assert found(data) == found(data, stream=chunk) == expected(data)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", ["a.txt", "f/" * 60 + "a.txt", "ä/" * 40 + "日本.jpg", "x" * 99 + "/" + "y" * 40])
def test_long_names_in_all_formats(form, name):
    data = tar_bytes([(name, b"content"), ("b.txt", b"")], form)
    assert found(data) == expected(data)


def test_what_is_not_a_file_is_named():
    kinds = [
        (tarfile.DIRTYPE, "folder"), (tarfile.SYMTYPE, "symbolic link"), (tarfile.LNKTYPE, "hard link"),
        (tarfile.CHRTYPE, "device"), (tarfile.BLKTYPE, "device"), (tarfile.FIFOTYPE, "named pipe"),
    ]  # fmt: skip
    data = tar_bytes([(special(f"m{number}", kind, "x"), b"") for number, (kind, _) in enumerate(kinds)])
    assert [kind for _, kind, _, _ in found(data)] == [name for _, name in kinds]


def test_archives_that_were_concatenated_are_read_to_the_end():
    one, two = tar_bytes([("a.txt", b"1")]), tar_bytes([("b.txt", b"2")])
    assert [name for name, _, _, _ in found(one + two)] == ["a.txt", "b.txt"]
    assert [name for name, _, _, _ in found(one + two, stream=700)] == ["a.txt", "b.txt"]


@pytest.mark.parametrize("stream", [0, 100])
def test_an_archive_without_an_end_is_truncated(stream):
    data = tar_bytes([("a.txt", b"1" * 512)])
    assert found(data[: 1024 + 512], stream=stream) == found(data)  # one block of zeros is enough
    with pytest.raises(TarDamage, match="the archive has no end"):
        found(data[:1024], stream=stream)
    assert found(b"") == found(b"\0" * 10240) == []


@pytest.mark.parametrize("stream", [0, 300])
def test_a_truncated_archive_gives_its_whole_members_and_then_an_error(stream):
    data = tar_bytes([("a.txt", b"1" * 600), ("b.txt", b"2" * 600)])
    for cut in range(1, 2 * (512 + 1024), 37):
        part, got = data[:cut], []
        chunks = iter([part[at : at + (stream or 1)] for at in range(0, cut, stream or 1)])
        window = ByteWindow.over(chunks) if stream else ByteWindow.of(io.BytesIO(part))

        def read(window=window, got=got, size=None if stream else cut):
            for each in members(window, size):
                if len(window.read(each.size)) == each.size:
                    got.append(each.name)

        with pytest.raises(TarDamage, match="truncated"):
            read()
        assert got == ["a.txt"] * (cut >= 1112) + ["b.txt"] * (cut >= 2648), cut


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"this is not a tar archive" * 100, "not a tar header"),
        (lambda data: data[:100] + b"\xff" + data[101:], "checksum is wrong"),
        (lambda data: data[:512] + b"\xff" + data[513:1024] + b"garbage" + data[1031:], "checksum is wrong"),
        (lambda data: data[:-1024] + b"trailing bytes", "within a header"),
    ],
)
def test_damage_is_an_error(damage, message):
    data = damage(tar_bytes([("a.txt", b"1"), ("b.txt", b"2")]))
    with pytest.raises(TarDamage, match=message):
        found(data)


@pytest.mark.parametrize("kind", [b"x", b"L"])
def test_an_extended_header_of_gigabytes_is_not_read(kind):
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, 8 * 2**30 - 1
    with pytest.raises(TarDamage, match="an extended header of 8,589,934,591 bytes"):
        found(info.tobuf(tarfile.GNU_FORMAT) + b"\0" * 2048)


@given(st.binary(max_size=3000), st.integers(0, 10**6))
@settings(max_examples=100)
def test_any_bytes_give_members_or_damage(noise, seed):
    whole = bytearray(tar_bytes([("a/" * 80 + "a.txt", b"1" * 700), ("b.txt", b"2")], FORMATS[1 + seed % 2]))
    at = seed % len(whole)
    whole[at : at + len(noise) % 50] = noise[: len(noise) % 50]
    for data in (noise, bytes(whole)):
        for stream in (0, 111):
            with contextlib.suppress(TarDamage):
                found(data, stream=stream)
