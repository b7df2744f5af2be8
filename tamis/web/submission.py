"""The files of a paper: a TeX file, or an archive of all its files, as arXiv has them.

2401.00001.gz   a TeX file, or a tar file, compressed      -->  files by name, and the one that includes the others
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from tamis.parameters import format_bytes
from tamis.sources.tar import ByteWindow, TarDamage, leads_out, members
from tamis.web.charset import is_nearly_utf8
from tamis.web.packages import Unacceptable

_TEXTS = (".tex", ".ltx", ".latex", ".sty", ".cls", ".def", ".txt", "")
_MOST_FILES = 5_000
GZIP = b"\x1f\x8b"
_CHARSET = re.compile(
    rb"\\(?:usepackage|RequirePackage)\s*\[([a-zA-Z0-9-]{2,12})\]\s*\{inputenc\}|\\begin\s*\{CJK\*?\}(?:\[\w*\])?\{(\w{2,5})\}"
)
_CHARSETS = {
    "ansinew": "cp1252", "applemac": "mac_roman", "macce": "mac_latin2", "decmulti": "latin-1", "latin2": "iso8859-2",
    "latin3": "iso8859-3", "latin4": "iso8859-4", "latin5": "iso8859-9", "latin9": "iso8859-15", "latin10": "iso8859-16",
    "latin1": "cp1252",
    "gbk": "gb18030", "gb": "gb18030", "bg5": "big5", "sjis": "shift_jis", "jis": "euc_jp", "ks": "euc_kr",
}  # fmt: skip
"""Names of packages for what Python calls otherwise. Files that say latin1 may have quotation marks of Windows."""
_TEX = b"\\begin{document}"
_CLASS = re.compile(r"^[^%\n]*\\document(?:class|style)", re.MULTILINE)
_BEGIN = re.compile(r"^[^%\n]*\\begin\s*\{document\}", re.MULTILINE)
_WITHDRAWN = re.compile(r"\s*%auto-ignore")
_USUAL = ("main.tex", "ms.tex", "paper.tex", "article.tex", "manuscript.tex")
_SECONDARY = re.compile(
    r"(?:^|[-_/])(?:supp|appendix|cover|letter|response|reply|rebuttal|template|sample|si\b)", re.IGNORECASE
)
_INCLUDES = re.compile(r"^[^%\n]*?\\(?:input|include|subfile|import\s*\{[^{}\n]*\})\s*\{([^{}\n]+)\}", re.MULTILINE)
_NOTES = re.compile(r"(?:.*/)?00readme(?:\.xxx|\.json|\.txt)?", re.IGNORECASE)
_TOPLEVEL = re.compile(r"^\s*(\S+)\s+toplevelfile", re.MULTILINE)


@dataclass(frozen=True)
class Submission:
    """A paper: its main file, and those that it may include."""

    source: str
    files: dict[str, str]


def unpack(data: bytes | memoryview, max_bytes: int) -> Submission:
    """The files of a paper. Nothing is written to a disk, and members that lead out of the archive are not read."""
    content = bytes(data)
    for _ in range(2):  # some files are compressed twice
        if content[:2] == GZIP:
            content = gunzipped(content, max_bytes)
    if len(content) > max_bytes:
        raise Unacceptable(f"larger than {format_bytes(max_bytes)}")
    if content[:5] == b"%PDF-" or content[:4] == b"%!PS" or content[:4] == b"PK\3\4":
        raise Unacceptable("not LaTeX")
    if content[257:262] != b"ustar" and not is_old_tar(content):
        return Submission(_decoded(content, _charset_of([content])), {})
    found = _files_of(content)
    notes = {name: found.pop(name) for name in [*found] if _NOTES.fullmatch(name)}
    if not found:
        raise Unacceptable("not LaTeX")
    charset = _charset_of(found.values())
    files = {name: _decoded(data, charset) for name, data in found.items()}
    main = _toplevel(notes, files) or _main_of(files)
    return Submission(files[main], files)


def is_withdrawn(source: str) -> bool:
    """Whether arXiv marked a file as not to be processed."""
    return _WITHDRAWN.match(source) is not None


def gunzipped(data: bytes, most: int) -> bytes:
    """Decompressed bytes, if there are not more than `most`."""
    decoder = zlib.decompressobj(31)
    try:
        content = decoder.decompress(data, most + 1)
    except zlib.error as error:
        raise Unacceptable("damaged") from error
    if len(content) > most:
        raise Unacceptable(f"larger than {format_bytes(most)} when unpacked")
    if not decoder.eof:
        raise Unacceptable("truncated")
    return content


def is_old_tar(content: bytes) -> bool:
    """Whether the first block is a header of a tar file from before POSIX."""
    if len(content) < 512 or b"\0" not in content[:100]:
        return False
    try:
        return next(members(ByteWindow.of(io.BytesIO(content))), None) is not None
    except TarDamage:
        return False


def _files_of(content: bytes) -> dict[str, bytes]:
    """The TeX files, by name; a name that is there twice means the last, as for tar."""
    window = ByteWindow.of(io.BytesIO(content))
    files: dict[str, bytes] = {}
    try:
        for count, member in enumerate(members(window, len(content))):
            if count >= _MOST_FILES:
                raise Unacceptable(f"more than {_MOST_FILES:,} files")
            name = member.name.removeprefix("./")
            last = name.rpartition("/")[2].lower()
            suffix = last[last.rfind(".") :] if "." in last else ""
            wanted = suffix in _TEXTS or _NOTES.fullmatch(name)
            if member.kind == "file" and wanted and not leads_out(name):
                found = window.read(member.size)
                if b"\0" not in found[:1000]:
                    files[name] = found
    except TarDamage as damage:
        raise Unacceptable("truncated" if "truncated" in damage.message else "damaged") from damage
    return files


# ------------------------------------------------------------------------------------------------------------ the main file


def _toplevel(notes: dict[str, bytes], files: dict[str, str]) -> str | None:
    """The file that the submission itself names as the document, in `00README.XXX` or `00README.json`."""
    for name, data in notes.items():
        text = data.decode("utf-8", "replace")
        names = _TOPLEVEL.findall(text)
        if name.lower().endswith(".json"):
            with contextlib.suppress(ValueError, TypeError, AttributeError, RecursionError):
                sources = json.loads(text).get("sources", [])
                names = [each["filename"] for each in sources if each.get("usage") == "toplevel" and "filename" in each]
        found = next((each for each in names if isinstance(each, str) and each in files), None)
        if found is not None:
            return found
    return None


def _main_of(files: dict[str, str]) -> str:
    """The file that is the document: it begins the document and names a class. Of several, the longest, with its parts."""
    includes = {name: _includes(source, files) for name, source in files.items()}
    within = {inner for name, inners in includes.items() for inner in inners - {name}}

    def rank(name: str) -> tuple[bool, bool, bool, bool, bool, bool, int, str]:
        source = files[name]
        style = not name.lower().endswith((".sty", ".cls", ".def"))
        begins = style and _BEGIN.search(source) is not None
        return (
            style and not is_withdrawn(source),
            begins,
            style and _CLASS.search(source) is not None,
            name not in within and not _SECONDARY.search(name),
            style,
            name.lower() in _USUAL,
            sum(len(files[each]) for each in _reached(name, includes)) if begins else len(source),
            name,
        )

    return max(files, key=rank)


def _includes(source: str, files: dict[str, str]) -> set[str]:
    names = {name.strip().removeprefix("./") for name in _INCLUDES.findall(source)}
    return {each for name in names for each in (name, f"{name}.tex") if each in files}


def _reached(name: str, includes: dict[str, set[str]]) -> set[str]:
    """A file, and the files that it includes, directly or not; not all if there are very many."""
    found, waiting = {name}, [name]
    while waiting and len(found) < 1_000:
        new = includes[waiting.pop()] - found
        found |= new
        waiting += sorted(new)
    return found


# ---------------------------------------------------------------------------------------------------------------- characters


def _charset_of(sources: Iterable[bytes]) -> str | None:
    """The codec of the charset that one of the files declares, if it is not UTF-8."""
    declared = (found[1] or found[2] for source in sources for found in _CHARSET.finditer(source))
    return next((codec for label in declared if (codec := _codec_of(label.decode().lower()))), None)


def _codec_of(label: str) -> str | None:
    """The codec for the name of a charset; None if it is UTF-8, or none in which TeX can be written, as UTF-16 and `hex`."""
    name = _CHARSETS.get(label, label)
    with contextlib.suppress(LookupError, UnicodeError):
        known = codecs.lookup(name).name not in ("utf-8", "ascii")
        if known and (_TEX + b"\xff").decode(name, "replace").startswith(_TEX.decode()):
            return name
    return None


def _decoded(data: bytes, charset: str | None) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        usual = "utf-8-sig" if is_nearly_utf8(data) else "cp1252"
        text = data.decode(charset or usual, "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")
