"""`tamis doctor`: what this machine has, what is missing for which extra, and what would keep a run from working.

facts --> Finding(name, value, problem)      a problem makes the command exit with 4; a missing extra is not a problem
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from tamis.parameters import format_bytes, plural

LEAST_DISK = 1_000_000_000
LEAST_SHARED = 256_000_000
"""Docker gives a container 64 MB of shared memory, which few packets between stages fit into."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
TOOLS = {
    "chromium": (BROWSERS, "tests of pages"),
    "ray": (("ray",), "clusters started by deploy/slurm_ray.sh"),
    "prometheus": (("prometheus",), "tests of metrics"),
    "nvidia-smi": (("nvidia-smi",), "memory of GPUs, if the package nvidia-ml-py is missing"),
}


@dataclass(frozen=True)
class Finding:
    """One thing about this machine."""

    name: str
    value: str
    problem: str | None = None
    """Why a run may fail; None if all is well."""


@dataclass(frozen=True)
class Extra:
    """An extra of the package, with the packages that it needs."""

    name: str
    installed: dict[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    old: tuple[str, ...] = ()
    """Packages whose version is lower than required."""

    @property
    def ready(self) -> bool:
        return not self.missing and not self.old


@dataclass(frozen=True)
class Examination:
    machine: tuple[Finding, ...]
    extras: tuple[Extra, ...]

    @property
    def problems(self) -> list[str]:
        return [finding.problem for finding in self.machine if finding.problem]

    def as_dict(self) -> dict[str, Any]:
        return {
            "ok": not self.problems,
            "problems": self.problems,
            "machine": [asdict(finding) for finding in self.machine],
            "extras": [asdict(extra) | {"ready": extra.ready} for extra in self.extras],
        }

    def __str__(self) -> str:
        from tamis.console import table, terminal_width

        width = terminal_width()
        facts = [[each.name, each.value + (f" ({each.problem})" if each.problem else "")] for each in self.machine]
        extras = [[each.name, "ready" if each.ready else "missing", _packages(each)] for each in self.extras]
        end = "no problems found"
        if self.problems:
            end = f"{plural(len(self.problems), 'problem')}:\n" + "\n".join(f"  {each}" for each in self.problems)
        missing = [each.name for each in self.extras if not each.ready]
        hint = ""
        if missing:
            hint = "\n\nextras are optional: a step that needs one names it\n"
            hint += f"pip install 'tamis[{','.join(missing)}]' installs all that are missing"
        return (
            table(["machine", ""], facts, width=width)
            + "\n\n"
            + table(["extra", "", "packages"], extras, width=width)
            + f"{hint}\n\n{end}"
        )


def _packages(extra: Extra) -> str:
    if extra.ready:
        return ", ".join(f"{name} {version}" for name, version in extra.installed.items())
    return ", ".join([*(f"{name} is not installed" for name in extra.missing), *extra.old])


def examine(folder: str | Path = ".") -> Examination:
    """Look at this machine; `folder` is where a run would write."""
    return Examination(tuple(_machine(Path(folder))), tuple(extras()))


def _machine(folder: Path) -> Iterator[Finding]:
    from tamis import __version__
    from tamis.memory.budget import usable_cpus

    yield Finding("tamis", f"{__version__}, in {Path(__file__).parent.parent}")
    yield Finding("python", f"{platform.python_version()}, {sys.executable}")
    linux = sys.platform == "linux"
    yield Finding(
        "system",
        f"{platform.system()} {platform.release()}, {platform.machine()}",
        None if linux else "Tamis is tested on Linux only; memory limits of workers need it",
    )
    cpus, count = usable_cpus(), os.cpu_count() or 1
    yield Finding("cores", f"{cpus} of {count}" + (", limited by a container or an affinity" if cpus < count else ""))
    yield from _memory()
    yield from _disks(folder)
    yield _gpus()
    yield _kernels()
    for package in core_packages():
        if not package.ready:
            yield Finding("packages", _packages(package), f"the installation is incomplete: {_packages(package)}")
    for name, (commands, purpose) in TOOLS.items():
        found = next((path for path in map(shutil.which, commands) if path), None)
        yield Finding(name, found or f"not found; only for {purpose}")


def _memory() -> Iterator[Finding]:
    import psutil

    from tamis.memory.budget import DEFAULT_SHARE, cgroup_memory, usable_memory

    system = psutil.virtual_memory()
    usable = usable_memory()
    yield Finding("memory", f"{format_bytes(system.available)} available of {format_bytes(system.total)}")
    limit, used = cgroup_memory()
    if limit is not None:
        yield Finding("container limit", f"{format_bytes(used)} used of {format_bytes(limit)}")
    else:
        yield Finding("container limit", "none")
    budget = int(usable * DEFAULT_SHARE)
    short = None if budget > 500_000_000 else f"a run would get {format_bytes(budget)} of memory; it needs about 500 MB"
    yield Finding("budget of a run", f"{format_bytes(budget)}, {100 * DEFAULT_SHARE:.0f} % of what can be used", short)


def _disks(folder: Path) -> Iterator[Finding]:
    here = next(each for each in (folder.absolute(), *folder.absolute().parents) if os.path.exists(each))  # noqa: PTH110
    for name, place in (("disk", here), ("temporary files", Path(tempfile.gettempdir()))):
        problem = None
        if not place.is_dir():
            yield Finding(name, str(place), f"{place} is not a folder")
            continue
        try:
            free = shutil.disk_usage(place).free
        except OSError as error:
            yield Finding(name, str(place), f"{place} cannot be read: {error.strerror}")
            continue
        if not os.access(place, os.W_OK):
            problem = f"{place.absolute()} cannot be written"
        elif free < LEAST_DISK:
            problem = f"{place.absolute()} has only {format_bytes(free)} of disk space left"
        yield Finding(name, f"{format_bytes(free)} free in {place.absolute()}", problem)
    shared = Path("/dev/shm")
    if shared.is_dir():
        size = shutil.disk_usage(shared).total
        few = "; more with --shm-size 1g or --ipc host, otherwise rows pass between stages through the disk"
        yield Finding("shared memory", format_bytes(size) + (few if size < LEAST_SHARED else ""))


def _gpus() -> Finding:
    from tamis.models.devices import visible_gpus, why_not_gpu

    names = visible_gpus()
    if not names:
        reason = why_not_gpu()
        return Finding("GPUs", f"none: {reason[0]}" if reason else "none")
    from tamis.memory.gpu import find_reader

    sizes = [f"{gpu.name} with {format_bytes(gpu.total_bytes)}" for gpu in find_reader()()]
    unused = [f"{library}: {reason[0]}" for library in ("torch", "cupy") if (reason := why_not_gpu(library))]
    text = f"{len(names)}: {', '.join(sizes) or ', '.join(names)}"
    return Finding("GPUs", text + (f" ({'; '.join(unused)})" if unused else ""))


def kernel_cache() -> Path:
    """The folder in which numba stores compiled kernels: beside the modules, or if that cannot be written, the user's."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given:
        return Path(given)
    beside = Path(__file__).parent.parent / "kernels" / "__pycache__"
    writable = os.access(beside if beside.is_dir() else beside.parent, os.W_OK)
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return beside if writable else base / "numba"


def _kernels() -> Finding:
    folder = kernel_cache()
    files = list(folder.rglob("*.nbc")) if folder.is_dir() else []
    size = sum(file.stat().st_size for file in files)
    parent = next(each for each in (folder, *folder.parents) if each.is_dir())
    problem = None
    if not os.access(parent, os.W_OK):
        problem = (
            f"compiled kernels cannot be stored in {folder}; set NUMBA_CACHE_DIR, or every run compiles them again"
        )
    return Finding("compiled kernels", f"{len(files)} files, {format_bytes(size)}, in {folder}", problem)


# -------------------------------------------------------------------------------------------------------------- packages

_REQUIREMENT = re.compile(r"^\s*([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*([^;]*?)\s*(?:;\s*(.*))?$")


def core_packages() -> list[Extra]:
    """The packages that Tamis always needs."""
    return [_checked("core", [text for text in _requirements() if "extra ==" not in text])]


def extras() -> list[Extra]:
    """Every extra but those that combine others."""
    by_extra: dict[str, list[str]] = {}
    for text in _requirements():
        for name in re.findall(r"extra == ['\"]([^'\"]+)['\"]", text):
            by_extra.setdefault(name, []).append(text)
    return [_checked(name, texts) for name, texts in by_extra.items() if name not in ("all", "test")]


def _requirements() -> list[str]:
    try:
        return metadata.requires("tamis") or []
    except metadata.PackageNotFoundError:  # run from a source tree that is not installed
        return []


def _checked(name: str, requirements: list[str]) -> Extra:
    installed, missing, old = {}, [], []
    for text in requirements:
        match = _REQUIREMENT.match(text)
        if match is None or match[1] == "tamis":
            continue
        try:
            version = metadata.version(match[1])
        except metadata.PackageNotFoundError:
            missing.append(match[1])
            continue
        installed[match[1]] = version
        for lowest in re.findall(r">=\s*([^,\s)]+)", match[2]):
            if _numbers(version) < _numbers(lowest):
                old.append(f"{match[1]} {version} is older than {lowest}")
    return Extra(name, installed, tuple(missing), tuple(old))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])
