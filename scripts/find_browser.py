"""Find Chromium for the tests of pages, or install Debian's package where that is possible.

Prints what it did. Without a browser the tests of pages fail and say so; all other tests run.
"""

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_browser() -> str | None:
    """The path of a browser of the Chromium family; None if there is none."""
    given = os.environ.get("TAMIS_BROWSER")
    return given or next((path for path in map(shutil.which, NAMES) if path is not None), None)


def main() -> int:
    found = find_browser()
    if found is None and shutil.which("apt-get") and hasattr(os, "geteuid") and os.geteuid() == 0:
        sys.stdout.write("installing Chromium for the tests of pages\n")
        for command in (
            ["apt-get", "update", "-q"],
            ["apt-get", "install", "-qy", "--no-install-recommends", "chromium"],
        ):
            subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        found = find_browser()
    if found is not None:
        sys.stdout.write(f"the tests of pages use {found}\n")
        return 0
    sys.stderr.write(
        "There is no Chromium, and it cannot be installed here (that needs apt-get and root). The tests of pages will fail.\n"
        "Install it with `apt-get install chromium`, or name a browser of its family in TAMIS_BROWSER.\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
