"""Forced alignment of a text with the outputs of a CTC network.

found    float32[frames, characters], log-probabilities
ids      int64[n], the characters of the text
path     int64[frames], out: the position in the text that each frame says, or -1 for a blank
"""

from __future__ import annotations

import numpy as np

from tamis.kernels.jit import kernel


@kernel
def align(found, ids, blank, path):
    """Find the most likely path; False if the text is longer than the frames can say."""
    frames, states = len(found), 2 * len(ids) + 1
    worst = np.float64(-1e30)
    score = np.full(states, worst)
    came = np.zeros((frames, states), np.int8)
    score[0] = found[0, blank]
    score[1] = found[0, ids[0]]
    before = np.empty(states)
    for frame in range(1, frames):
        before[:] = score
        first = max(0, states - 2 * (frames - frame))
        for state in range(states):
            if state < first or state > 2 * frame + 1:
                score[state] = worst
                continue
            best, step = before[state], 0
            if state >= 1 and before[state - 1] > best:
                best, step = before[state - 1], 1
            if state >= 3 and state % 2 == 1 and ids[state // 2] != ids[state // 2 - 1] and before[state - 2] > best:
                best, step = before[state - 2], 2
            said = ids[state // 2] if state % 2 == 1 else blank
            score[state] = best + found[frame, said]
            came[frame, state] = step
    state = states - 1
    if states > 1 and score[states - 2] > score[state]:
        state = states - 2
    if score[state] <= worst / 2:
        return False
    for frame in range(frames - 1, -1, -1):
        path[frame] = state // 2 if state % 2 == 1 else -1
        state -= came[frame, state]
    return True
