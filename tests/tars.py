"""Tar archives for tests."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path


def tar_bytes(members: Iterable[tuple[str | tarfile.TarInfo, bytes]], form: int = tarfile.GNU_FORMAT) -> bytes:
    """An archive of members, given by their names or headers and their content."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for member, data in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            if info.isreg():
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def write_tar(path: Path, members: Iterable[tuple[str | tarfile.TarInfo, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(members))
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    """The header of a link, a device or the like."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info
