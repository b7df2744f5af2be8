"""Build a Dockerfile without a container engine: its steps run in root file systems, one per stage, with chroot.

sudo python scripts/try_dockerfile.py docker/Dockerfile --base ROOT --work FOLDER --arg EXTRAS=text --bind PATH -- COMMAND

ROOT is a root file system that stands for the base image, such as one of debootstrap with Python in /usr/local. At the end,
the health check and COMMAND run as the user of the image, and the size of what the build added is printed. Networks, cgroups
and layers are those of this machine: it shows that the steps work, not how an engine runs them. Only what our Dockerfiles
use is understood.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    line: int
    name: str
    text: str


@dataclass
class Stage:
    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "0:0"
    healthcheck: list[str] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)


def parse(text: str) -> list[Instruction]:
    """The instructions, with continued lines joined and comments left out."""
    found, current, start = [], "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not line.strip() and not current):
            continue
        start = start if current else number
        current += line.rstrip().removesuffix("\\")
        if line.rstrip().endswith("\\"):
            continue
        name, _, rest = current.strip().partition(" ")
        found.append(Instruction(start, name.upper(), rest.strip()))
        current = ""
    return found


def expand(text: str, values: dict[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)\}?", lambda match: values.get(match[1], ""), text)


class Builder:
    def __init__(self, context: Path, base: Path, work: Path, arguments: dict[str, str], binds: list[str]) -> None:
        self.context, self.base, self.work, self.given, self.binds = context, base, work, arguments, binds
        self.arguments: dict[str, str] = {}
        self.stages: dict[str, Stage] = {}
        self.stage = Stage(base)

    def build(self, instructions: list[Instruction]) -> Stage:
        for each in instructions:
            say(f"line {each.line}: {each.name} {each.text}")
            getattr(self, f"do_{each.name.lower()}")(each.text)
        return self.stage

    def do_arg(self, text: str) -> None:
        name, _, default = text.partition("=")
        self.arguments[name] = self.given.get(name, default)

    def do_from(self, text: str) -> None:
        image, _, name = expand(text, self.arguments).partition(" AS ")
        before = self.stages.get(image)
        stage = Stage(self.work / (name or "final"))
        if before is not None:
            stage.environment = dict(before.environment)
        copy_tree(before.root if before is not None else self.base, stage.root)
        stage.environment.setdefault("PATH", "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin")
        self.stage = self.stages[name or "final"] = stage

    def do_env(self, text: str) -> None:
        for word in shlex.split(text):
            name, _, value = word.partition("=")
            self.stage.environment[name] = expand(value, self.arguments | self.stage.environment)

    def do_workdir(self, text: str) -> None:
        self.stage.folder = text
        (self.stage.root / text.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def do_user(self, text: str) -> None:
        self.stage.user = text

    def do_copy(self, text: str) -> None:
        words = shlex.split(text)
        root = self.context
        if words[0].startswith("--from="):
            root = self.stages[words.pop(0).removeprefix("--from=")].root
        *sources, target = words
        place = self.stage.root / str(Path(self.stage.folder) / target).lstrip("/")
        for source in sources:
            origin = root / source.lstrip("/")
            if root == self.context:
                assert not ignored(self.context, source), f"{source} is in .dockerignore"
            if origin.is_dir():
                shutil.copytree(
                    origin, place, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
                )
            else:
                several = target.endswith("/") or len(sources) > 1
                (place if several else place.parent).mkdir(parents=True, exist_ok=True)
                shutil.copy2(origin, place / origin.name if several else place)

    def do_run(self, text: str) -> None:
        self.run(self.stage, ["/bin/sh", "-c", text])

    def do_healthcheck(self, text: str) -> None:
        self.stage.healthcheck = json.loads(text.partition("CMD ")[2])

    def do_entrypoint(self, text: str) -> None:
        self.stage.entrypoint = json.loads(text)

    def do_label(self, text: str) -> None:
        pass

    do_cmd = do_label

    def run(self, stage: Stage, command: list[str]) -> None:
        """Run a command inside a stage, in a mount namespace of its own."""
        mounts = ["mount -t proc proc proc", "mount --bind /dev dev"]
        for path in self.binds:
            inside = stage.root / path.lstrip("/")
            if Path(path).is_dir():
                inside.mkdir(parents=True, exist_ok=True)
            else:
                inside.parent.mkdir(parents=True, exist_ok=True)
                inside.touch()
            mounts.append(f"mount --bind {shlex.quote(path)} {shlex.quote(path.lstrip('/'))}")
        home = "/root" if stage.user == "0:0" else "/home/tamis"
        variables = {**self.arguments, **stage.environment, "HOME": home}
        settings = " ".join(shlex.quote(f"{name}={value}") for name, value in variables.items())
        inner = shlex.join(["/bin/sh", "-c", f"cd {stage.folder} && exec {shlex.join(command)}"])
        script = " && ".join(
            ["mkdir -p proc dev", *mounts, f"exec chroot --userspec={stage.user} . env -i {settings} {inner}"]
        )
        subprocess.run(["unshare", "--mount", "/bin/sh", "-ec", script], cwd=stage.root, check=True)


def ignored(context: Path, name: str) -> bool:
    """Whether .dockerignore excludes a path; the last line that matches decides."""
    result = False
    for line in (context / ".dockerignore").read_text().split():
        pattern = line.removeprefix("!").rstrip("/")
        if fnmatch(name, pattern) or name.startswith(f"{pattern}/") or (pattern == "*"):
            result = not line.startswith("!")
    return result


def copy_tree(source: Path, target: Path) -> None:
    if target.exists():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "--archive", "--reflink=auto", source, target], check=True)


def size(root: Path) -> int:
    return sum(file.lstat().st_size for file in root.rglob("*") if file.is_file() and not file.is_symlink())


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dockerfile", type=Path)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--arg", action="append", default=[])
    parser.add_argument("--bind", action="append", default=[])
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    given, command = parser.parse_args(words[:split]), words[split + 1 :]
    context = given.dockerfile.resolve().parent.parent
    arguments = dict(each.split("=", 1) for each in given.arg)
    builder = Builder(context, given.base, given.work, arguments, given.bind)
    final = builder.build(parse(given.dockerfile.read_text()))
    added = size(final.root) - size(given.base)
    for each in (final.healthcheck, [*final.entrypoint, *command] if command else []):
        if each:
            say(f"as {final.user}: {shlex.join(each)}")
            builder.run(final, each)
    say(f"the build adds {added / 1e6:,.0f} MB to the base image")
    return 0


if __name__ == "__main__":
    sys.exit(main())
