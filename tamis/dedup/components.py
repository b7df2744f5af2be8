"""From band keys to components on a GPU, in one call that replaces several phases on the CPU.

    CPU   keys by range -> candidate pairs -> components         (candidates.py, joining.py)
    GPU   all keys -> components                                 if they fit in its memory

Both write the same components.
"""

from __future__ import annotations

import numpy as np

from tamis.context import Context
from tamis.dedup.candidates import KEY_COLUMNS, NO_TOTALS, add_totals
from tamis.dedup.rows import RowNumbers
from tamis.dedup.shuffle import as_numpy, check_free_space, column_to_matrix, handles_shortage
from tamis.exchange import Blob
from tamis.kernels import components_gpu
from tamis.models import devices

WORTH_A_GPU = 20_000_000
"""Below this number of rows, opening a GPU takes longer than it saves."""

USED_SHARE = 0.9
"""How much of its share of GPU memory the call plans for."""

_LABELS_AT_A_TIME = 2**22


@handles_shortage
def join_on_gpu(rows: RowNumbers, num_bands: int, blob: Blob, chunk: int) -> dict[str, int] | None:
    """What `shuffle_bands`, `candidate_pairs` and `join_in_one_call` find together; None if this worker's GPU is too small."""
    where = devices.assigned()
    if where.device == "cpu":
        return None
    cupy = devices.open_cupy(Context(where.device, None, where.gpu_memory_bytes))
    free = cupy.cuda.runtime.memGetInfo()[0]
    memory = int(USED_SHARE * min(free, where.gpu_memory_bytes or free))
    if components_gpu.gpu_bytes(rows.total, num_bands) > memory:
        return None
    totals = dict(NO_TOTALS)
    try:
        found = components_gpu.KeyComponents(rows.total, num_bands, memory)
        for part in range(rows.num_partitions):
            for start, facts in rows.chunks(part, KEY_COLUMNS, chunk):
                chosen = np.flatnonzero(as_numpy(facts.column("count")))
                keys = column_to_matrix(facts.column("keys"), np.uint64)
                found.add(start + chosen, keys if len(chosen) == len(keys) else keys[chosen])
                add_totals(totals, facts, start)
        totals["candidate_pairs"] = found.join()
    except cupy.cuda.memory.OutOfMemoryError:
        return None
    check_free_space(blob.exchange, 8 * rows.total)
    totals |= {"candidates": 0, "components": 0}
    with blob.writing() as path, path.open("wb") as file:
        for start in range(0, rows.total, _LABELS_AT_A_TIME):
            labels = found.labels(start, start + _LABELS_AT_A_TIME)
            file.write(labels.tobytes())
            totals["candidates"] += int(np.count_nonzero(labels >= 0))
            totals["components"] += int(np.count_nonzero(labels == np.arange(start, start + len(labels))))
    return totals
