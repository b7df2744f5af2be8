"""`ToBackend`: where the steps after it run, on a GPU or on the CPU.

    clean, ToBackend("gpu"), embed, filter, classify, ToBackend("cpu"), write
           |-- one worker per GPU, with all three --|

Between the two, rows stay in one worker, so that what one step leaves on the device the next one can use there.
"""

from __future__ import annotations

from typing import Literal

from tamis.batch import Batch
from tamis.models.devices import choose, why_not_gpu
from tamis.operators import Filter, Resources, Rule, Scores, operator


@operator()
class ToBackend(Filter):
    """Run the steps that follow on a GPU, or on the CPU again; rows pass unchanged.

    After `ToBackend("gpu")`, all steps up to the next `ToBackend`, or to the next step that needs all rows, run in one
    worker per GPU. Steps with `device="auto"` use the GPU, functions and other steps may use it, and filters in between do
    not send rows back. After `ToBackend("cpu")`, steps with `device="auto"` run on the CPU. "cudf" is the same as "gpu", and
    "pandas" the same as "cpu", as in NeMo Curator.

    Without a GPU, `ToBackend("gpu")` has no effect, which `explain` and the report note; `run(device="gpu")` makes it an
    error. Rows do not depend on it, so that adding or removing it does not repeat committed work.
    """

    backend: Literal["gpu", "cpu", "cudf", "pandas"]
    device: Literal["auto", "cpu", "gpu"] = "auto"

    kind = "move"
    incidental = frozenset({"backend", "device", "score_only"})

    @property
    def to_gpu(self) -> bool:
        return self.backend in ("gpu", "cudf")

    @property
    def is_on_gpu(self) -> bool:
        """Whether the steps that follow run on a GPU."""
        return self.to_gpu and choose(self.device, library=None) == "gpu"

    @property
    def decides(self) -> bool:
        return False

    @property
    def resources(self) -> Resources:
        return Resources(gpus=1) if self.is_on_gpu else Resources()

    def notes(self) -> list[str]:
        if not self.to_gpu or self.is_on_gpu:
            return []
        reason = why_not_gpu()
        why = reason[0] if reason is not None else 'the run has device="cpu"'
        return [f"{why}; the steps after it run on the CPU"]

    def score(self, batch: Batch) -> Scores:
        return {}

    def rules(self) -> list[Rule]:
        return []
