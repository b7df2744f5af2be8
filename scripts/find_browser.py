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


def install() -> str:
    """Install Debian's package; returns what apt-get said if that failed."""
    subprocess.run(["apt-get", "update", "-q"], capture_output=True, check=False)
    # Another apt-get may hold the lock for a while.
    command = ["apt-get", "-o", "DPkg::Lock::Timeout=600", "install", "-qy", "--no-install-recommends", "chromium"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


def main() -> int:
    found, problem = find_browser(), "that needs apt-get and root"
    if found is None and shutil.which("apt-get") and hasattr(os, "geteuid") and os.geteuid() == 0:
        sys.stdout.write("installing Chromium for the tests of pages\n")
        problem = install()
        found = find_browser()
    if found is not None:
        sys.stdout.write(f"the tests of pages use {found}\n")
        return 0
    sys.stderr.write(
        f"There is no Chromium, and it cannot be installed here ({problem}). The tests of pages will fail.\n"
        "Install it with `apt-get install chromium`, or name a browser of its family in TAMIS_BROWSER.\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
