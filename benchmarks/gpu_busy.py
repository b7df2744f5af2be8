"""How busy a GPU is while a benchmark runs."""

from __future__ import annotations

import subprocess
import threading

import numpy as np


class Busy:
    """The share of time in which a kernel runs on the GPU, as nvidia-smi reports it twice a second."""

    def __enter__(self) -> Busy:
        self._shares: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-i", "0"]
        while not self._stop.wait(0.5):
            try:
                self._shares.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
            except (OSError, ValueError, subprocess.CalledProcessError):
                return

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def share(self) -> str:
        """The mean without the first reading, which includes the time before."""
        return f"{np.mean(self._shares[1:]):.0f} %" if len(self._shares) > 1 else "unknown"

    @property
    def readings(self) -> str:
        """All readings, in order."""
        return " ".join(f"{share:.0f}" for share in self._shares)
