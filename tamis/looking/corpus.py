"""What a corpus contains beside its texts: missing values, domains, and figures for groups of rows; and all of it as a page.

Memory is bounded: of names that occur in data, such as domains, the most frequent are counted, and the rest together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.batch import HIDDEN, as_array
from tamis.dashboard.charts import columns as column_chart
from tamis.dashboard.charts import share_bar
from tamis.dashboard.markup import Html, element, figures, number, page, percent, section, table
from tamis.errors import ParameterError
from tamis.inert import inert, one_line
from tamis.looking.rows import read_rows

if TYPE_CHECKING:
    from tamis.text.statistics import Description

MOST_NAMES = 100_000
"""Different domains or groups that are counted; when there are more, the rarest are joined."""
SHOWN_NAMES = 50
OTHERS = "(others)"
DOMAIN = "domain"
_HOST = r"^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#@]*@)?(?:www\.)?(?P<domain>[^/?#:\[\]]+)"


def domains_of(urls: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The host of each URL in lower case, without `www.`; null if there is none.

    >>> domains_of(pa.array(["https://www.Example.org:8080/a", "no url"])).to_pylist()
    ['example.org', None]
    """
    found = pc.extract_regex(as_array(urls).cast(pa.large_string()), _HOST)
    return pc.utf8_lower(pc.struct_field(found, "domain"))


class Counts:
    """How often each name occurs, in bounded memory."""

    def __init__(self, most: int = MOST_NAMES) -> None:
        self._most = most
        self.counts: dict[str, int] = {}
        self.others = 0

    def add(self, names: pa.Array) -> None:
        for item in pc.value_counts(names.drop_null()).to_pylist():
            name = one_line(item["values"], 200)
            self.counts[name] = self.counts.get(name, 0) + item["counts"]
        if len(self.counts) > 2 * self._most:
            ordered = self.ordered()
            self.others += sum(count for _, count in ordered[self._most :])
            self.counts = dict(ordered[: self._most])

    def ordered(self) -> list[tuple[str, int]]:
        return sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))

    def top(self, most: int) -> dict[str, int]:
        """The most frequent names; the rest is counted as "(others)"."""
        ordered = self.ordered()
        rest = self.others + sum(count for _, count in ordered[most:])
        return dict(ordered[:most]) | ({OTHERS: rest} if rest else {})


def columns_of(
    paths: str | Path | Sequence[str | Path], url_column: str, storage_options: Mapping[str, Any] | None = None
) -> tuple[dict[str, int], dict[str, int]]:
    """Rows without a value by column, and rows by domain; reads the files once."""
    rows, present, hosts = 0, {}, Counts()  # type: tuple[int, dict[str, int], Counts]
    listed = [paths] if isinstance(paths, (str, Path)) else list(paths)
    for path in listed:
        for seen in read_rows(path, ["kept"], storage_options=storage_options):
            rows += seen.table.num_rows
            for name in seen.table.column_names:
                column = seen.table.column(name)
                present[name] = present.get(name, 0) + len(column) - column.null_count
            if url_column in seen.table.column_names and _is_text(seen.table.column(url_column).type):
                hosts.add(domains_of(seen.table.column(url_column)))
    nulls = {name: rows - count for name, count in present.items() if not name.startswith(HIDDEN)}
    return nulls, hosts.top(SHOWN_NAMES)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


# -------------------------------------------------------------------------------------------------------------- groups


def groups_of(files: Sequence[Path], by: str, *, domain: bool) -> dict[str, dict[str, int]]:
    """Figures for each value of a column, or for each domain of its URLs, the groups with the most documents first."""
    found: dict[str, dict[str, int]] = {}
    for batch in _batches(files):
        keys = batch.column(by)
        try:
            names = domains_of(keys) if domain else keys.cast(pa.large_string())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:  # bytes that are not UTF-8; lists and structs
            raise ParameterError(
                f"rows cannot be grouped by column `{inert(by, 100)}`, which holds {one_line(keys.type, 100)}",
                hint="name a column of strings, numbers, times or booleans",
            ) from error
        names = pc.fill_null(names, "(none)").cast(pa.large_string())
        measured = batch.column("statistics")
        columns = {name: measured.field(name) for name in ("bytes", "chars", "words")}
        if "tokens" in batch.schema.names:
            columns["tokens"] = batch.column("tokens")
        summed = (
            pa.table({"key": names, **columns})
            .group_by("key")
            .aggregate([([], "count_all"), *((name, "sum") for name in columns)])
        )
        for row in summed.to_pylist():
            name = one_line(row["key"], 200)
            group = found.setdefault(name, dict.fromkeys(["documents", *columns], 0))
            group["documents"] += row["count_all"]
            for column in columns:
                group[column] += row[f"{column}_sum"] or 0
        if len(found) > 2 * MOST_NAMES:
            found = _joined(found, MOST_NAMES)
    return _joined(found, SHOWN_NAMES)


def _joined(groups: Mapping[str, dict[str, int]], most: int) -> dict[str, dict[str, int]]:
    """The largest groups, and the others as one."""
    ordered = sorted(groups.items(), key=lambda item: (item[0] == OTHERS, -item[1]["documents"], item[0]))
    result = dict(ordered[:most])
    for name, group in ordered[most:]:
        if name == OTHERS or OTHERS in result:
            others = result.setdefault(OTHERS, dict.fromkeys(group, 0))
            result[OTHERS] = {key: others[key] + group[key] for key in group}
        else:
            result[OTHERS] = dict(group)
    return result


def _batches(files: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    for file in files:
        with pa.OSFile(str(file)) as source, pa.ipc.open_file(source) as reader:
            for number_ in range(reader.num_record_batches):
                batch = reader.get_batch(number_)
                if batch.num_rows:
                    yield batch


def total_tokens(files: Sequence[Path]) -> int:
    """The sum of the column `tokens`."""
    return sum(int(np.sum(batch.column("tokens").to_numpy(zero_copy_only=False))) for batch in _batches(files))


# ---------------------------------------------------------------------------------------------------------------- page


def corpus_page(found: Description, title: str) -> Html:
    """A description as a page that opens offline."""
    facts: list[tuple[str, str, str]] = [
        ("documents", number(found.rows), f"{found.empty:,} of them empty"),
        ("bytes", number(found.num_bytes), "of text"),
        ("words", number(found.num_words), f"{found.num_chars:,} characters"),
        ("exact duplicates", number(found.exact_duplicates), percent(found.exact_duplicates, found.rows)),
        ("near duplicates", number(found.near_duplicates), f"{percent(found.near_duplicates, found.rows)}, estimated"),
    ]
    if found.num_tokens is not None:
        facts.insert(3, ("tokens", number(found.num_tokens), ""))
    parts = [figures(facts), _measures(found)]
    for name, counts in (("languages", found.languages), ("scripts", found.scripts), ("domains", found.domains)):
        if counts:
            parts.append(section(name, name.capitalize(), _counted(counts, found.rows, name[:-1])))
    if found.nulls:
        rows = [(one_line(name, 200), number(count), percent(count, found.rows)) for name, count in found.nulls.items()]
        parts.append(
            section(
                "missing",
                "Missing values",
                table(
                    ["column", "rows without a value", "share"],
                    rows,
                    right=[1, 2],
                    caption="Rows without a value by column",
                ),
            )
        )
    if found.groups:
        parts.append(section("groups", f"By {one_line(found.by, 100)}", _groups(found.groups)))
    if found.notes:
        parts.append(
            section(
                "notes",
                "Notes",
                table(["note"], [(note,) for note in found.notes], caption="What to know about the figures"),
            )
        )
    return page(
        f"Corpus: {one_line(title, 150)}", *parts, head=[element("h1", "Corpus"), element("p", one_line(title, 500))]
    )


_LABELS = {"chars": "characters", "upper": "upper case, share of letters", "repeated_5grams": "repeated 5-grams"}


def _measures(found: Description) -> Html:
    from tamis.text.statistics import SHARES  # not at the top: it imports this module

    def label(name: str) -> str:
        words = _LABELS.get(name, name.replace("_", " "))
        return f"{words}, share" if name in SHARES and name != "upper" else words

    header = ["per document", "mean", "min", "5 %", "median", "95 %", "max"]
    rows = [
        (
            label(name),
            *(
                f"{value:,.3f}" if name in SHARES else f"{value:,.0f}"
                for value in (
                    measure.mean,
                    measure.minimum,
                    measure.quantiles[1],
                    measure.quantiles[3],
                    measure.quantiles[5],
                    measure.maximum,
                )
            ),
        )
        for name, measure in found.measures.items()
    ]
    counts = list(found.word_histogram.values())
    ticks = [
        (place / max(1, len(counts)), str(bound)) for place, bound in enumerate(found.word_histogram) if not place % 2
    ]
    words = "Documents by number of words"
    chart = (
        element("div", element("h3", words), column_chart(counts, label=f"{words}, by powers of two", ticks=ticks))
        if counts
        else None
    )
    return section(
        "lengths", "Lengths and shares", chart, table(header, rows, right=range(1, len(header)), caption="Per document")
    )


def _counted(counts: Mapping[str, int], rows: int, name: str) -> Html:
    lines = [
        (one_line(key, 200), number(count), percent(count, rows), share_bar([(count, "kept")], rows))
        for key, count in list(counts.items())[:SHOWN_NAMES]
    ]
    return table([name, "documents", "share", ""], lines, right=[1, 2], caption=f"Documents by {name}")


def _groups(groups: Mapping[str, Mapping[str, int]]) -> Html:
    names = list(next(iter(groups.values())))
    rows = [(one_line(key, 200), *(number(group[name]) for name in names)) for key, group in groups.items()]
    header = ["group", *(_LABELS.get(name, name) for name in names)]
    return table(header, rows, right=range(1, len(header)), caption="Figures by group")
