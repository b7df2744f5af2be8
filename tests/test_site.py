"""The documentation site builds and fetches nothing from outside.

`tests/test_docs.py` checks its navigation and its links.
"""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).parent.parent


class Fetched(HTMLParser):
    """Collects what a browser fetches on its own when it shows a page."""

    def __init__(self):
        super().__init__()
        self.urls = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        names = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
        url = given.get(names.get(tag, ""))
        if url and given.get("rel") != "canonical":
            self.urls.append(url)


def test_the_site_builds_and_fetches_nothing_from_outside(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        fetched = Fetched()
        fetched.feed(page.read_text(encoding="utf-8"))
        outside = [url for url in fetched.urls if re.match(r"(https?:)?//", url)]
        assert not outside, f"{page.name} fetches {outside}"
    for style in (tmp_path / "site").rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text(encoding="utf-8"))
