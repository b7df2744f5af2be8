"""The page of a contact sheet: one file of HTML with its styles and thumbnails, without scripts or anything from elsewhere."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tamis.dashboard.markup import Html, element, join, percent, plain, section, table
from tamis.dashboard.markup import page as frame
from tamis.parameters import plural
from tamis.report import Report

if TYPE_CHECKING:
    from tamis.image.contact_sheet import Card, Section

SIDE = 180
"""The longest side of a thumbnail, in pixels."""

MAX_BYTES = 40_000_000
"""Beyond this size of the page, cards have no picture."""

LONGEST = 160
"""Characters of a text on a card."""


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
    counts = f"{plural(report.read, 'row')} read, {report.kept:,} kept, {dropped:,} dropped, {report.failed:,} failed"
    head = [
        element("div", element("b", "tamis"), element("span", "contact sheet"), class_="brand"),
        element("h1", plain(output, 1000)),
        element("p", counts, class_="state"),
    ]
    shown, size = [_counts(report)], 0
    for number, part in enumerate(sections):
        figures = []
        for cards in part.groups:
            group = join(_figure(card, with_picture=size < MAX_BYTES) for card in cards)
            size += len(group)
            figures.append(element("div", group, class_="group") if len(cards) > 1 else group)
        title, lead = plain(part.title, LONGEST), plain(part.explanation, 1000)
        shown.append(section(f"part-{number}", title, element("div", figures, class_="cards"), lead=lead))
    return frame(f"Contact sheet of {output}", shown, head=head, script=False)


def _counts(report: Report) -> Html:
    lines = [("kept", report.kept), *report.dropped.items(), ("failed", report.failed)]
    rows = [(plain(name, LONGEST), f"{count:,}", percent(count, report.read + report.created)) for name, count in lines]
    return table(("rows", "number", "share"), rows, right=(1, 2), caption="Rows by what happened to them")


def _figure(card: Card, *, with_picture: bool) -> Html:
    fate = {True: "kept", False: "dropped", None: None}[card.kept]
    if card.picture is not None and with_picture:
        shown = element("img", alt="", src=Html(f"data:image/jpeg;base64,{b64encode(card.picture).decode()}"))
    else:
        shown = element("span", plain(card.note or "no picture", LONGEST))
    if card.sound is not None and with_picture:
        source = Html(f"data:audio/ogg;base64,{b64encode(card.sound).decode()}")
        shown = join([shown, element("audio", controls=True, preload="none", src=source)])
    details = [element("span", plain(each, LONGEST)) for each in card.details]
    caption = element("figcaption", element("b", plain(card.title, LONGEST)), details)
    return element("figure", element("div", shown), caption, class_=fate)
