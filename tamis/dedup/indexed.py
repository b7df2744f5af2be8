"""What deduplications of whole rows share: a keep policy, and an index of earlier rows to compare with and to add to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tamis.dedup.index import Index, add_generation, contents_of, own_generation
from tamis.dedup.rows import RowNumbers
from tamis.dedup.shuffle import retry_with_less_memory
from tamis.errors import ParameterError
from tamis.exchange import Exchange
from tamis.operators import Decide, Gather, Observations, Work


class IndexedDedup(Gather):
    """Keeps one of the rows that a step takes for duplicates. Subclasses have the parameters, and find the duplicates."""

    by: str | None
    prefer: Sequence[str] | None
    prefer_column: str | None
    across_sources: bool
    against: str | None
    update: bool
    storage_options: Mapping[str, Any] | None

    incidental = frozenset({"storage_options"})
    path_parameters = frozenset({"against"})

    index_kind: ClassVar[str]
    """What an index of such rows is called; one of another kind is refused."""

    def index_settings(self) -> Mapping[str, Any]:
        """Everything that decides whether rows are duplicates and is stored with them. An index must have the same."""
        raise NotImplementedError

    def resolve_rows(
        self, rows: RowNumbers, decide: Decide, work: Work, index: Index | None, call_bytes: int
    ) -> Exchange | None:
        """Decide about all rows with calls that take `call_bytes`; returns the entries for the index, with `update`."""
        raise NotImplementedError

    def check_index(self) -> None:
        if self.update and self.against is None:
            raise ParameterError("`update` needs an index", hint='against="index/"')
        self._index(check_only=True)

    def optional_reads(self) -> tuple[str, ...]:
        return ("id",)

    def identity(self) -> dict[str, Any]:
        """With the content of the index, unless the step itself changes it."""
        known = super().identity()
        if self.against is None or self.update:
            return known
        return known | {"index": contents_of(self.against, self.storage_options)}

    def resolve(self, observed: Observations, decide: Decide, work: Work) -> None:
        rows = RowNumbers(observed)
        own = own_generation(work) if self.update else ""
        index = self.index_for(work, own)
        entries = retry_with_less_memory(
            lambda call_bytes: self.resolve_rows(rows, decide, work, index, call_bytes), work.worker_bytes
        )
        if entries is not None and self.against is not None:
            add_generation(self.against, own, entries, self.storage_options)

    def index_for(self, work: Work, own: str) -> Index | None:
        """The index without the generation of this output, within reach of the workers."""
        index = self._index(own)
        return index.for_work(work.exchange, self.storage_options, pin=self.update) if index is not None else None

    def _index(self, own: str = "", *, check_only: bool = False) -> Index | None:
        if self.against is None:
            return None
        return Index.open(
            self.against,
            self.index_kind,
            self.index_settings(),
            self.storage_options,
            own=own,
            create=self.update,
            check_only=check_only,
        )
