"""The energy of sound as it is heard: two filters per channel and a sum of squares (ITU-R BS.1770-4, annex 1).

samples float32[channels, samples]; filters float64[2, 5]: b0, b1, b2, a1, a2 of the shelf and of the high-pass filter;
state float64[channels, 4]; weights float64[channels].
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from tamis.kernels.jit import kernel


@kernel
def weighted_energy(samples, filters, state, weights, hop, open_sum, out):
    """out[i] = the mean weighted square of the i-th `hop` samples; returns how many are complete.

    open_sum float64[2] has the sum and the number of samples of the block that is not complete, and `state` that of the
    filters, for the next call.
    """
    channels, count = samples.shape
    done = 0
    at = 0
    while at < count:
        take = min(count - at, hop - int(open_sum[1]))
        total = 0.0
        for channel in range(channels):
            s0, s1, s2, s3 = state[channel, 0], state[channel, 1], state[channel, 2], state[channel, 3]
            own = 0.0
            for index in range(at, at + take):
                value = float(samples[channel, index])
                shelf = filters[0, 0] * value + s0
                s0 = filters[0, 1] * value - filters[0, 3] * shelf + s1
                s1 = filters[0, 2] * value - filters[0, 4] * shelf
                heard = filters[1, 0] * shelf + s2
                s2 = filters[1, 1] * shelf - filters[1, 3] * heard + s3
                s3 = filters[1, 2] * shelf - filters[1, 4] * heard
                own += heard * heard
            state[channel, 0], state[channel, 1], state[channel, 2], state[channel, 3] = s0, s1, s2, s3
            total += weights[channel] * own
        open_sum[0] += total
        open_sum[1] += take
        at += take
        if open_sum[1] >= hop:
            out[done] = open_sum[0] / hop
            done += 1
            open_sum[0] = 0.0
            open_sum[1] = 0.0
    return done
