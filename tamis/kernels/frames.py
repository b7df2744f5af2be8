"""Kernels on video frames: planes of brightness and colour, reduced frames, and what is measured on each of them.

    plane      uint8 or uint16[height, stride], as a decoder returns it; only `width` columns are pixels
    small      uint8[SIDE, SIDE], the brightness of a whole frame, 0 (black) to 255 (white)

All sums are integers, so that results are the same on every machine.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from tamis.kernels.jit import kernel, part

SIDE = 64
"""Frames are measured at 64 x 64 pixels, whatever their shape."""

PATCHES = 4
"""Changes are also recorded for each of 4 x 4 parts of a frame."""

BINS = 64
"""Bins of the histogram of brightness."""

REACH = 8
"""Shifts between two frames are looked for up to this many of the 64 rows or columns."""

HASH_SIDE = 32


@kernel
def small_frame(plane, width, shift, full_range, out):
    """out uint8[SIDE, SIDE] = the mean brightness of each part of a plane; `shift` bits of its values are below 8 bits.

    Rows are added up first: that is a loop over contiguous values, which compilers turn into vector instructions.
    """
    height = plane.shape[0]
    line = np.empty(width, np.uint32)
    for row in range(SIDE):
        top, bottom = row * height // SIDE, (row + 1) * height // SIDE
        if bottom <= top:
            top = min(top, height - 1)
            bottom = top + 1
        line[:] = 0
        for above in range(top, bottom):
            values = plane[above]
            for column in range(width):
                line[column] += np.uint32(values[column])
        for column in range(SIDE):
            left, right = column * width // SIDE, (column + 1) * width // SIDE
            if right <= left:
                left = min(left, width - 1)
                right = left + 1
            total = np.int64(0)
            for index in range(left, right):
                total += line[index]
            count = np.int64((right - left) * (bottom - top)) << shift
            if full_range:
                value = (total + count // 2) // count
            else:  # 16 is black and 235 is white (ITU-R BT.601)
                value = (255 * (total - 16 * count) + 219 * count // 2) // (219 * count)
            out[row, column] = np.uint8(min(255, max(0, value)))


@kernel
def shrink_plane(plane, width, shift, out):
    """out uint8[h, w] = a plane reduced or kept by area averaging, rounded to nearest; not larger than the plane."""
    height = plane.shape[0]
    new_height, new_width = out.shape
    line = np.empty(width, np.int64)
    area = np.int64(height * width) << shift
    for row in range(new_height):
        line[:] = 0
        begin, end = row * height, (row + 1) * height
        for above in range(begin // new_height, (end - 1) // new_height + 1):
            weight = np.int64(min(end, (above + 1) * new_height) - max(begin, above * new_height))
            values = plane[above]
            for index in range(width):
                line[index] += weight * np.int64(values[index])
        for column in range(new_width):
            total = area // 2
            for left in range(column * width // new_width, ((column + 1) * width - 1) // new_width + 1):
                weight = np.int64(
                    min((column + 1) * width, (left + 1) * new_width) - max(column * width, left * new_width)
                )
                total += weight * line[left]
            out[row, column] = np.uint8(min(255, total // area))


@kernel
def to_rgb(luma, blue, red, weights, full_range, out):
    """out uint8[h, w, 3] = RGB of three planes uint8[h, w]; weights int64[2] = 65536 times the shares of red and blue."""
    height, width = luma.shape
    share_red, share_blue = weights[0], weights[1]
    share_green = np.int64(65536) - share_red - share_blue
    for row in range(height):
        for column in range(width):
            if full_range:
                y = np.int64(luma[row, column]) << 16
                u = (np.int64(blue[row, column]) - 128) * 65536 // 255 * 2
                v = (np.int64(red[row, column]) - 128) * 65536 // 255 * 2
            else:
                y = (np.int64(luma[row, column]) - 16) * 65536 * 255 // 219
                u = (np.int64(blue[row, column]) - 128) * 65536 // 224 * 2
                v = (np.int64(red[row, column]) - 128) * 65536 // 224 * 2
            r = y + ((65536 - share_red) * v >> 16) * 255
            b = y + ((65536 - share_blue) * u >> 16) * 255
            g = ((y << 16) - share_red * r - share_blue * b) // share_green
            out[row, column, 0] = np.uint8(min(255, max(0, (r + 32768) >> 16)))
            out[row, column, 1] = np.uint8(min(255, max(0, (g + 32768) >> 16)))
            out[row, column, 2] = np.uint8(min(255, max(0, (b + 32768) >> 16)))


@part
def _shift_of(before, now):
    """How far a profile int64[SIDE] has moved, in hundredths of a place; the shift with the least mean difference counts."""
    errors = np.empty(2 * REACH + 1, np.int64)
    best = REACH
    for index in range(2 * REACH + 1):
        shift = index - REACH
        total, count = np.int64(0), np.int64(0)
        for place in range(max(0, shift), min(SIDE, SIDE + shift)):
            total += abs(now[place] - before[place - shift])
            count += 1
        errors[index] = total * SIDE // count
    for index in range(2 * REACH + 1):
        if errors[index] < errors[best]:
            best = index
    if best == 0 or best == 2 * REACH:
        return np.int64(best - REACH) * 100
    low, middle, high = errors[best - 1], errors[best], errors[best + 1]
    curve = low - 2 * middle + high
    fraction = 50 * (low - high) // curve if curve > 0 else 0
    return np.int64(best - REACH) * 100 + fraction


@part
def _profiles(small, rows, columns):
    for place in range(SIDE):
        rows[place] = 0
        columns[place] = 0
    for row in range(SIDE):
        for column in range(SIDE):
            value = np.int64(small[row, column])
            rows[row] += value
            columns[column] += value


@part
def _histogram(small, counts):
    for index in range(BINS):
        counts[index] = 0
    for row in range(SIDE):
        for column in range(SIDE):
            counts[small[row, column] * BINS // 256] += 1


@part
def _dark_bars(small, dark, bars):
    """bars = dark rows at the top and bottom, dark columns at the left and right of a frame."""
    for side in range(4):
        bars[side] = 0
        for place in range(SIDE):
            darkest = True
            for along in range(SIDE):
                if side == 0:
                    value = small[place, along]
                elif side == 1:
                    value = small[SIDE - 1 - place, along]
                elif side == 2:
                    value = small[along, place]
                else:
                    value = small[along, SIDE - 1 - place]
                if value > dark:
                    darkest = False
                    break
            if not darkest:
                break
            bars[side] += 1


@kernel
def measure_frame(small, before, first, dark, basis, numbers, patches, bars):
    """What is measured on a frame, and how it differs from the one before it; returns its 64-bit hash.

        numbers   float32[8]: mean and standard deviation of brightness; the share of dark pixels; the mean change of
                  brightness per pixel; the change of the histogram (0 to 1); the shift in rows and in columns, in
                  percent of the frame; the share of pixels that changed by more than 20 levels
        patches   uint8[PATCHES, PATCHES]: mean change of brightness in parts of the frame, in eighths of a level
        bars      uint8[4]: dark rows and columns at the edges

    The hash is the sign of the lowest 8 x 8 frequencies of the frame at 32 x 32 pixels, against their median, as in pHash
    (Zauner 2010). `basis` float64[8, 32] are the cosines.
    """
    total, squares, darks = np.int64(0), np.int64(0), np.int64(0)
    for row in range(SIDE):
        for column in range(SIDE):
            value = np.int64(small[row, column])
            total += value
            squares += value * value
            if value <= dark:
                darks += 1
    pixels = np.int64(SIDE * SIDE)
    numbers[0] = total / pixels
    numbers[1] = np.sqrt((pixels * squares - total * total) / pixels / pixels)
    numbers[2] = darks / pixels
    numbers[3:8] = 0
    patches[:] = 0
    _dark_bars(small, dark, bars)
    if not first:
        width = SIDE // PATCHES
        changed, strong = np.int64(0), np.int64(0)
        for top in range(PATCHES):
            for left in range(PATCHES):
                within = np.int64(0)
                for row in range(top * width, (top + 1) * width):
                    for column in range(left * width, (left + 1) * width):
                        change = abs(np.int64(small[row, column]) - np.int64(before[row, column]))
                        within += change
                        if change > 20:
                            strong += 1
                changed += within
                patches[top, left] = np.uint8(min(255, 8 * within // (width * width)))
        numbers[3] = changed / pixels
        now, old = np.empty(BINS, np.int64), np.empty(BINS, np.int64)
        _histogram(small, now)
        _histogram(before, old)
        numbers[4] = np.abs(now - old).sum() / (2 * pixels)
        rows, columns = np.empty(SIDE, np.int64), np.empty(SIDE, np.int64)
        old_rows, old_columns = np.empty(SIDE, np.int64), np.empty(SIDE, np.int64)
        _profiles(small, rows, columns)
        _profiles(before, old_rows, old_columns)
        numbers[5] = _shift_of(old_rows, rows) / SIDE
        numbers[6] = _shift_of(old_columns, columns) / SIDE
        numbers[7] = strong / pixels
    return _hash_of(small, basis)


@kernel
def vector_motion(vectors, width, height, out):
    """out float32[PATCHES, PATCHES] = the mean length of the motion vectors in parts of a frame, over width + height.

    `vectors` int32[vectors, 10] are the structures of FFmpeg (AVMotionVector) on a little-endian machine. A block counts
    where its centre is. Blocks without a vector count as 0; of blocks with two, both count half.
    """
    sums = np.zeros((PATCHES, PATCHES))
    areas = np.zeros((PATCHES, PATCHES))
    for index in range(len(vectors)):
        block, place = np.int64(vectors[index, 1]), np.int64(vectors[index, 2])
        area = (block & 255) * (block >> 8 & 255)
        down = np.int64(np.int16(vectors[index, 3] & 0xFFFF))
        left = min(PATCHES - 1, max(0, (place >> 16) * PATCHES // width))
        top = min(PATCHES - 1, max(0, down * PATCHES // height))
        x, y = np.int64(vectors[index, 6]), np.int64(vectors[index, 7])
        scale = max(1, np.int64(vectors[index, 8]) & 0xFFFF)
        sums[top, left] += area * np.sqrt(np.float64(x * x + y * y)) / scale
        areas[top, left] += area
    whole = width * height / (PATCHES * PATCHES)
    for top in range(PATCHES):
        for left in range(PATCHES):
            out[top, left] = np.float32(sums[top, left] / max(whole, areas[top, left]) / (width + height))


@kernel
def estimated_motion(small, before, shift_y, shift_x, width, height, out):
    """out float32[PATCHES, PATCHES] = how far parts of a frame have moved, in pixels over width + height.

    For codecs that give no motion vectors. Each part starts at the shift of the whole frame (in percent of it) or at none,
    whichever differs less, and the rest is the least-squares solution for its gradients (Lucas and Kanade 1981). Parts
    without gradients do not move.
    """
    size = SIDE // PATCHES
    down, right = np.int64(np.rint(shift_y * SIDE / 100)), np.int64(np.rint(shift_x * SIDE / 100))
    for top in range(PATCHES):
        for left in range(PATCHES):
            same, moved, count = np.int64(0), np.int64(0), np.int64(0)
            for row in range(top * size, (top + 1) * size):
                for column in range(left * size, (left + 1) * size):
                    above, aside = row - down, column - right
                    if 0 <= above < SIDE and 0 <= aside < SIDE:
                        same += abs(np.int64(small[row, column]) - np.int64(before[row, column]))
                        moved += abs(np.int64(small[row, column]) - np.int64(before[above, aside]))
                        count += 1
            starts = count > 0 and moved < same
            start_y, start_x = (down if starts else np.int64(0)), (right if starts else np.int64(0))
            yy, xy, xx, yt, xt = np.int64(0), np.int64(0), np.int64(0), np.int64(0), np.int64(0)
            for row in range(max(1, top * size), min(SIDE - 1, (top + 1) * size)):
                for column in range(max(1, left * size), min(SIDE - 1, (left + 1) * size)):
                    above, aside = row - start_y, column - start_x
                    if 0 <= above < SIDE and 0 <= aside < SIDE:
                        y = np.int64(small[row + 1, column]) - np.int64(small[row - 1, column])
                        x = np.int64(small[row, column + 1]) - np.int64(small[row, column - 1])
                        t = np.int64(small[row, column]) - np.int64(before[above, aside])
                        yy += y * y
                        xy += x * y
                        xx += x * x
                        yt += y * t
                        xt += x * t
            # Gradients are differences over two pixels. The constant keeps noise in a plain part from looking like motion.
            steady = 4 * size * size
            determinant = np.float64(yy + steady) * np.float64(xx + steady) - np.float64(xy) * np.float64(xy)
            move_y = -2.0 * (np.float64(xx + steady) * yt - np.float64(xy) * xt) / determinant
            move_x = -2.0 * (np.float64(yy + steady) * xt - np.float64(xy) * yt) / determinant
            y_pixels = (start_y + min(1.0, max(-1.0, move_y))) * height / SIDE
            x_pixels = (start_x + min(1.0, max(-1.0, move_x))) * width / SIDE
            out[top, left] = np.float32(np.sqrt(y_pixels * y_pixels + x_pixels * x_pixels) / (width + height))


@part
def _hash_of(small, basis):
    size = HASH_SIDE
    half = np.empty((size, size), np.float64)
    for row in range(size):
        for column in range(size):
            total = np.int64(0)
            for down in range(2):
                for right in range(2):
                    total += small[2 * row + down, 2 * column + right]
            half[row, column] = total
    lines = np.zeros((8, size), np.float64)
    for frequency in range(8):
        for row in range(size):
            weight = basis[frequency, row]
            for column in range(size):
                lines[frequency, column] += weight * half[row, column]
    found = np.zeros(64, np.float64)
    for down in range(8):
        for right in range(8):
            total = 0.0
            for column in range(size):
                total += lines[down, column] * basis[right, column]
            found[8 * down + right] = np.rint(total)  # rounding errors decide no bit
    middle = np.median(found[1:])
    result = np.uint64(0)
    for index in range(64):
        result = result << np.uint64(1)
        if index and found[index] > middle:
            result |= np.uint64(1)
    return result


def cosines() -> np.ndarray:
    """float64[8, 32]: the basis of the transform that `measure_frame` takes."""
    place, frequency = np.arange(HASH_SIDE), np.arange(8)[:, None]
    return np.cos(np.pi * (2 * place + 1) * frequency / (2 * HASH_SIDE))
