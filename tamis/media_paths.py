"""Paths of media columns: what they refer to, what it is called, and where relative ones lead. See `media.py`."""

from __future__ import annotations

import functools
import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from tamis.formats import CODECS, codec_of
from tamis.segments import Segment, cut_name, split_segment

MEDIA_SUFFIX = ".media"
"""The suffix of the file next to a file of JSON lines that holds the binaries of its rows. It is a tar archive."""

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_RANGE = re.compile(r"(?P<file>.*?)@(?P<start>\d{1,19})\+(?P<length>\d{1,19})(?:#(?P<name>.*))?", re.DOTALL)
_MEMBER = re.compile(r"(?P<file>.+?\.(?:tar|zip))#(?P<member>.+)", re.DOTALL | re.IGNORECASE)
_FRAME = re.compile(r"(.*)@\d+", re.DOTALL)


@dataclass(frozen=True)
class MediaAccess:
    """What the user allows references to reach, and how to open it."""

    roots: tuple[str, ...] = ()
    """Folders and URLs: "/data/images", "s3://bucket/images/", "https://" for all of the web."""
    storage_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reference:
    """A parsed path: a file, or a part of one."""

    file: str
    """Empty for the `.media` file that belongs to the source file."""
    start: int | None = None
    length: int | None = None
    member: str | None = None
    name: str | None = None
    """What the data was called before it became part of the file."""
    segment: Segment | None = None
    """A part in time of what the rest leads to."""

    @staticmethod
    def parse(path: str) -> Reference:
        """
        >>> Reference.parse("a.tar@512+10#cat.png")
        Reference(file='a.tar', start=512, length=10, member=None, name='cat.png', segment=None)
        >>> Reference.parse("a.tar#cat.png").member, Reference.parse("a#b.png").file
        ('cat.png', 'a#b.png')
        >>> Reference.parse("a.tar#1.mp3#t=1,2").segment
        Segment(begin=1.0, end=2.0, track=None, channels=())
        """
        path, segment = split_segment(path)
        if found := _RANGE.fullmatch(path):
            start, length = int(found["start"]), int(found["length"])
            return Reference(found["file"], start, length, name=found["name"], segment=segment)
        if found := _MEMBER.fullmatch(path):
            return Reference(found["file"], member=found["member"], name=found["member"], segment=segment)
        return Reference(path, name=path, segment=segment)

    @property
    def suffix(self) -> str:
        """What follows the file in the path."""
        part = "" if self.segment is None else self.segment.suffix
        if self.start is not None:
            return f"@{self.start}+{self.length}" + ("" if self.name is None else f"#{self.name}") + part
        return part if self.member is None else f"#{self.member}{part}"


def media_name(path: str) -> str:
    """What data is called: the name of a member of an archive, or the last part of a path.

    >>> media_name("/data/a.tar@512+10#cats/1.png"), media_name("https://example.org/cat.png?size=2")
    ('cats/1.png', 'cat.png')
    >>> media_name("/data/talk.mp3#t=12.5,20")  # what it is called once it is cut out
    'talk_12.5-20.flac'
    """
    whole, segment = split_segment(path)
    if segment is not None:
        return cut_name(media_name(whole), segment)
    reference = Reference.parse(path)
    if reference.member is not None or reference.start is not None:
        return reference.name or posixpath.basename(reference.file)
    return posixpath.basename(path.partition("?")[0].partition("#")[0] if is_remote(path) else path)


def media_file_of(place: str) -> str:
    """The `.media` file that belongs to a source file, or to a frame of one.

    >>> media_file_of("out/part-000000.jsonl"), media_file_of("out/part-000001.jsonl.zst@1048576")
    ('out/part-000000.media', 'out/part-000001.media')
    """
    found = _FRAME.fullmatch(place)
    path = found[1] if found and codec_of(found[1]) else place
    for suffix in CODECS:
        path = path.removesuffix(suffix)
    return posixpath.splitext(path)[0] + MEDIA_SUFFIX


def joined(file: str, place: str) -> str | None:
    """The full path of a file relative to the folder of a source file; None if there can be none.

    A local path may lead out of the folder, and is then read only if `media_roots` allows it. In a store, where `..` has no
    one meaning, none may.
    """
    if not file:
        file = posixpath.basename(media_file_of(place))
    inside = posixpath.normpath(file)
    if inside == "." or inside.startswith("/") or "\0" in file or is_chained(file, place):
        return None
    if not is_remote(place):
        return os.path.normpath(os.path.join(folder_of(place), inside))  # noqa: PTH118
    return None if ".." in unquote(file).replace("\\", "/").split("/") else f"{folder_of(place)}/{inside}"


def is_chained(file: str, place: str) -> bool:
    """Whether fsspec would take a path for a file system within another one, such as `zip://a::s3://b/c.zip`.

    Local files are opened without fsspec, so that their names may contain `::`.
    """
    return "::" in file and ("://" in file.removeprefix("file://") or is_remote(place))


@functools.lru_cache(maxsize=1024)
def folder_of(place: str) -> str:
    folder = posixpath.dirname(place.removeprefix("file://"))
    return posixpath.dirname(place) if is_remote(place) else os.path.abspath(folder)  # noqa: PTH100


def is_remote(path: str) -> bool:
    return bool(URL.match(path)) and not path.startswith("file://")
