"""Build the documentation site and take screenshots of it: docs/screenshots/site*.webp."""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from pathlib import Path

from find_browser import find_browser
from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent
SHOTS = {  # name: page, width and height, colours
    "site": ("index.html", (1280, 900), "light"),
    "site-concepts": ("concepts.html", (1280, 1500), "light"),
    "site-dark": ("coming_from/nemo_curator.html", (1280, 900), "dark"),
    "site-phone": ("start.html", (390, 844), "light"),
}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", folder], cwd=ROOT, check=True
        )
        browser = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        for name, (page, (width, height), scheme) in SHOTS.items():
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
            view = context.new_page()
            view.goto((Path(folder) / page).as_uri())
            picture = Image.open(io.BytesIO(view.screenshot(animations="disabled")))
            picture.save(ROOT / "docs" / "screenshots" / f"{name}.webp", quality=80, method=6)
            context.close()
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
