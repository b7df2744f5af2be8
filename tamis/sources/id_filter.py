"""Keep or drop rows by a list of ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import ParameterError, TamisError
from tamis.operators import Filter, Resources, Rule, Scores, at_least, at_most, digest, operator
from tamis.sources.files import fingerprint, list_files
from tamis.sources.id_lists import IdList, build_once

LEAST_BYTES = 1_000_000
"""What a short list is taken to hold in memory; a long one holds less than a two hundredth of its files."""


@operator(reads="id", writes="listed", resources=Resources(memory="96MB"), version=1)
class IdFilter(Filter):
    """Drop the rows whose id is in a list; with `keep=True`, keep only these.

    `ids` names files: text with one id per line, or JSON Lines, CSV, Parquet or Arrow with the ids in `id_column` (default
    "id"). Any column can be compared, such as a URL: `column="url"`. Numbers are compared as text. A row without an id is not
    in the list. The score `listed` is 1 or 0.

    The list may be larger than memory: sorted digests, 16 bytes per id, are written to the scratch folder of the run once per
    machine, and each worker holds about 0.03 bytes per id.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "remove.txt"
    >>> _ = path.write_text("doc-1\\ndoc-3\\n")
    >>> from tamis import Pipeline, Rows
    >>> rows = [{"id": f"doc-{n}"} for n in range(5)]
    >>> Pipeline(Rows(rows), IdFilter(str(path))).collect()["id"].to_pylist()
    ['doc-0', 'doc-2', 'doc-4']
    """

    ids: str | Path | Sequence[str | Path]
    keep: bool = False
    id_column: str | None = None
    column: str = "id"

    path_parameters = frozenset({"ids"})
    verdict_parameters = frozenset({"keep"})

    def check(self) -> None:
        self._files()

    def _files(self) -> list[Any]:
        try:
            return list_files(self.ids, None)
        except ParameterError as error:
            error.add_note(f"in `ids` of `{self.name}`")
            raise

    def identity(self) -> dict[str, Any]:
        known = super().identity()
        return known | {"files": digest([fingerprint(file)[1:] for file in self._files()])}

    @property
    def resources(self) -> Resources:
        try:
            files = self._files()
        except TamisError:
            return super().resources  # `check` says what is wrong
        held = max(LEAST_BYTES, sum(file.size for file in files) // 200)
        return Resources(shared={self._key(files): held})

    def _key(self, files: Sequence[Any]) -> str:
        return f"ids {digest([self.id_column, [fingerprint(file) for file in files]])}"

    def open(self, context: Context) -> _Listed:
        paths = [str(path) for path in ([self.ids] if isinstance(self.ids, (str, Path)) else self.ids)]
        files = self._files()
        key = self._key(files)
        folder = context.shared_folder() / f"ids-{digest(key)}"
        num_bytes = sum(file.size for file in files)
        given = paths[0] if len(paths) == 1 else paths
        return _Listed(context.shared(key, lambda: build_once(given, self.id_column, folder, num_bytes)))

    def rules(self) -> list[Rule]:
        return [at_least("listed", 1) if self.keep else at_most("listed", 0)]


class _Listed:
    def __init__(self, ids: IdList) -> None:
        self._ids = ids

    def score(self, batch: Batch) -> Scores:
        return {"listed": self._ids.contains(batch["id"]).astype(np.int64)}
