"""The page of a contact sheet: one file of HTML with its styles and thumbnails, without scripts or anything from elsewhere."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from tamis.report import Report

if TYPE_CHECKING:
    from tamis.image.contact_sheet import Card, Section

SIDE = 180
"""The longest side of a thumbnail, in pixels."""

MAX_BYTES = 40_000_000
"""Beyond this size of the page, cards have no picture."""

LONGEST = 160
"""Characters of a text on a card."""

_STYLES = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --kept: #2a8f4e; --dropped: #c0392b; }
* { box-sizing: border-box; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 1280px; padding: 24px; }
h1 { font-size: 22px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 36px 0 2px; }
p { margin: 0 0 12px; opacity: .75; }
table { border-collapse: collapse; margin: 16px 0; } td { padding: 2px 18px 2px 0; } td:nth-child(n+2) { text-align: right; }
.cards { display: flex; flex-wrap: wrap; gap: 14px; align-items: flex-start; }
.group { display: flex; flex-wrap: wrap; gap: 10px; padding: 10px; border: 1px solid var(--line); border-radius: 10px; }
figure { margin: 0; width: 188px; }
figure div { height: 188px; display: flex; align-items: center; justify-content: center; background: var(--soft);
  border-radius: 6px; border: 2px solid transparent; text-align: center; padding: 2px; font-size: 12px; overflow: hidden; }
figure.kept div { border-color: var(--kept); } figure.dropped div { border-color: var(--dropped); }
figure.dropped img { opacity: .9; } img { max-width: 180px; max-height: 180px; border-radius: 3px; }
figcaption { font-size: 12px; line-height: 1.35; margin-top: 4px; overflow-wrap: anywhere; }
figcaption b { display: block; font-weight: 600; } figcaption span { display: block; opacity: .75; }
"""


def thumbnail(picture: np.ndarray) -> bytes:
    """A picture as a small JPEG."""
    from PIL import Image

    small = Image.fromarray(picture)
    small.thumbnail((SIDE, SIDE))
    target = io.BytesIO()
    small.save(target, "JPEG", quality=80)
    return target.getvalue()


def page(report: Report, output: str, sections: Sequence[Section]) -> str:
    """The page as text."""
    dropped = sum(report.dropped.values())
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        f"<title>Contact sheet of {escape(output)}</title><style>{_STYLES}</style></head><body>",
        f"<h1>{escape(output)}</h1>",
        f"<p>{report.read:,} rows read, {report.kept:,} kept, {dropped:,} dropped, {report.failed:,} failed</p>",
        _counts(report),
    ]
    size = 0
    for section in sections:
        parts += [
            f"<h2>{_text(section.title)}</h2>",
            f"<p>{_text(section.explanation, 1000)}</p>",
            '<div class="cards">',
        ]
        for cards in section.groups:
            shown = "".join(_figure(card, with_picture=size < MAX_BYTES) for card in cards)
            size += len(shown)
            parts.append(f'<div class="group">{shown}</div>' if len(cards) > 1 else shown)
        parts.append("</div>")
    return "\n".join([*parts, "</body></html>\n"])


def _counts(report: Report) -> str:
    lines = [("kept", report.kept), *report.dropped.items(), ("failed", report.failed)]
    rows = "".join(
        f"<tr><td>{_text(name)}</td><td>{count:,}</td><td>{100 * count / max(1, report.read):.1f} %</td></tr>"
        for name, count in lines
    )
    return f"<table>{rows}</table>"


def _figure(card: Card, *, with_picture: bool) -> str:
    fate = {True: ' class="kept"', False: ' class="dropped"', None: ""}[card.kept]
    if card.picture is not None and with_picture:
        shown = f'<img alt="" src="data:image/jpeg;base64,{b64encode(card.picture).decode()}">'
    else:
        shown = f"<span>{_text(card.note or 'no picture')}</span>"
    details = "".join(f"<span>{_text(each)}</span>" for each in card.details)
    return f"<figure{fate}><div>{shown}</div><figcaption><b>{_text(card.title)}</b>{details}</figcaption></figure>"


def _text(text: str, longest: int = LONGEST) -> str:
    """Text for the page: it comes from the data, so nothing in it is markup."""
    short = text if len(text) <= longest else text[: longest - 3] + "..."
    return escape("".join(each if each.isprintable() else " " for each in short))
