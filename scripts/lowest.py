"""Print the lowest versions that pyproject.toml admits, as constraints for pip.

python scripts/lowest.py [EXTRA ...] > lowest.txt
pip install --constraint lowest.txt '.[EXTRA,...]'

Without extras: what the package itself needs. An extra that names others (`tamis[s3,pandas]`) brings theirs along.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[(?P<extras>[\w,\s-]+)\])?\s*(?P<bounds>[^;]*)")


def lowest(project: dict, extras: list[str]) -> dict[str, str]:
    """Package to lowest version, for the project and the extras asked for."""
    pending = list(project["dependencies"])
    options = project.get("optional-dependencies", {})
    for extra in extras:
        if extra not in options:
            raise SystemExit(f"there is no extra `{extra}`: {', '.join(options)}")
        pending += options[extra]
    found: dict[str, str] = {}
    while pending:
        requirement = pending.pop(0)
        match = REQUIREMENT.fullmatch(requirement.split(";")[0].strip())
        if match is None:
            raise SystemExit(f"cannot read the requirement `{requirement}`")
        if match["name"] == project["name"]:
            for extra in match["extras"].split(","):
                pending += options[extra.strip()]
            continue
        bound = re.search(r"(>=|==|~=)\s*([\w.]+)", match["bounds"])
        if bound is None:
            raise SystemExit(f"`{requirement}` has no lower bound")
        found[match["name"]] = bound[2]
    return found


def main() -> None:
    file = Path(__file__).parent.parent / "pyproject.toml"
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    for name, version in sorted(lowest(project, sys.argv[1:]).items(), key=lambda item: item[0].lower()):
        sys.stdout.write(f"{name}=={version}\n")


if __name__ == "__main__":
    main()
