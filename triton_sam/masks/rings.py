"""Geometry of rings: closed polygonal lines, float64 (N,2) x, y, without a repeated first point."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FloatPoints = npt.NDArray[np.float64]

EXACT = 0.5
"""The largest tolerance in pixels for which a ring contains exactly the pixel centres of the mask."""
_LEAST = 1e-6
_PAIRS_AT_ONCE = 1 << 20


def area_of(ring: FloatPoints) -> float:
    """Return the area inside a ring."""
    x, y = ring.T
    return abs(float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2


def simplified(ring: FloatPoints, tolerance: float) -> FloatPoints:
    """Drop points of an exact outline within a tolerance.

    A point may be dropped if the edge that replaces it passes through its gate. With a tolerance of at most 0.5, the
    gate is between the centres of the foreground and the background pixel that the point divides. No centre then
    changes sides, and rings never cross themselves or each other. With a larger tolerance, the gate is perpendicular
    to the edge.

    Args:
        ring: an outline at level 0.5 of a mask of zeros and ones, with foreground on the left. Each point is half-way
            between the centres of two neighbouring pixels, which have integer coordinates.
        tolerance: maximum distance between dropped points and the ring.

    Returns:
        At least three points of the ring.
    """
    tolerance = max(tolerance, _LEAST)
    closed = np.concatenate((ring, ring[:1]))
    gates = _gates(ring) * tolerance if tolerance <= EXACT else None
    xs, ys = closed.T.tolist()
    gxs, gys = (None, None) if gates is None else np.concatenate((gates, gates[:1])).T.tolist()
    kept, start = [], 0
    while start < len(ring):
        kept.append(start)
        start = _next(xs, ys, gxs, gys, tolerance, start)
    return ring[kept] if len(kept) >= 3 else simplified(ring, EXACT)


def _gates(ring: FloatPoints) -> FloatPoints:
    """Return the vector from each point towards its foreground pixel, of length 1."""
    along = np.sign(np.roll(ring, -1, axis=0) - np.roll(ring, 1, axis=0))
    is_between_columns = ring[:, 1] % 1 == 0  # its two pixels are in one row
    gates = np.zeros_like(ring)
    gates[:, 0] = np.where(is_between_columns, -along[:, 1], 0)
    gates[:, 1] = np.where(is_between_columns, 0, along[:, 0])
    return gates


def _next(
    xs: list[float],
    ys: list[float],
    gxs: list[float] | None,
    gys: list[float] | None,
    tolerance: float,
    start: int,
) -> int:
    """Return the farthest point that a straight edge from ``start`` reaches through all gates in between.

    From the start, the gates limit the edge to a wedge between two vectors: r on the right, l on the left. Plain
    numbers are faster here than arrays. The last point is the first one again.
    """
    x0, y0 = xs[start], ys[start]
    reach, following = 0.0, start + 1
    fx, fy = xs[following] - x0, ys[following] - y0
    rx = ry = lx = ly = 0.0
    for index in range(start + 1, len(xs)):
        x, y = xs[index] - x0, ys[index] - y0
        distance = x * x + y * y
        if distance <= reach or x * fx + y * fy < 0:
            break  # the outline turns back
        reach = distance
        if gxs is None or gys is None:
            gx, gy = _across(x, y, tolerance)
        else:
            gx, gy = gxs[index], gys[index]
        right_x, right_y, left_x, left_y = x - gx, y - gy, x + gx, y + gy
        if index == start + 1:
            rx, ry, lx, ly = right_x, right_y, left_x, left_y
        elif rx * y - ry * x > 1e-9 and x * ly - y * lx > 1e-9:
            following, fx, fy = index, x, y
        if rx * right_y - ry * right_x > 0:
            rx, ry = right_x, right_y
        if left_x * ly - left_y * lx > 0:
            lx, ly = left_x, left_y
        if rx * ly - ry * lx <= 0:
            break  # the wedge is closed
    return following


def _across(x: float, y: float, length: float) -> tuple[float, float]:
    """Return a vector of the given length, perpendicular to x, y on its left."""
    scale = length / (x * x + y * y) ** 0.5
    return -y * scale, x * scale


def bridged(ring: FloatPoints, other: FloatPoints) -> FloatPoints:
    """Join two rings by a bridge between their nearest points."""
    # Only points that are as close to the box of the other ring as any is to its first point can be the nearest ones.
    beyond = np.maximum(np.maximum(other.min(axis=0) - ring, ring - other.max(axis=0)), 0)
    reach = ((ring - other[0]) ** 2).sum(axis=1).min()
    near = np.flatnonzero((beyond**2).sum(axis=1) <= reach)
    step = max(1, _PAIRS_AT_ONCE // len(other))
    least, place, start = np.inf, 0, 0
    for begin in range(0, len(near), step):
        points = ring[near[begin : begin + step], None]
        distances = (points[:, :, 0] - other[:, 0]) ** 2 + (points[:, :, 1] - other[:, 1]) ** 2
        one, some = divmod(int(np.argmin(distances)), len(other))
        if distances[one, some] < least:
            least, place, start = distances[one, some], int(near[begin + one]), some
    return np.concatenate((ring[: place + 1], other[start:], other[: start + 1], ring[place:]))


def form_a_polygon(rings: Sequence[FloatPoints]) -> bool:
    """Return whether the first ring contains all other rings, side by side, and no edges cross or touch."""
    starts, ends = np.concatenate(rings), np.concatenate([np.roll(ring, -1, axis=0) for ring in rings])
    lengths = [len(ring) for ring in rings]
    return not _cross(starts, ends, lengths) and _lie_inside(starts, ends, lengths)


def _lie_inside(starts: FloatPoints, ends: FloatPoints, lengths: Sequence[int]) -> bool:
    """Return whether all rings but the first are inside an odd number of other rings."""
    (x1, y1), (x2, y2) = starts.T, ends.T
    first = lengths[0]
    for length in lengths[1:]:
        x, y = starts[first]
        crossed = (y1 <= y) != (y2 <= y)
        crossed[first : first + length] = False  # its own edges
        left, top, right, bottom = x1[crossed], y1[crossed], x2[crossed], y2[crossed]
        if np.count_nonzero(left + (y - top) * (right - left) / (bottom - top) > x) % 2 == 0:
            return False
        first += length
    return True


def _cross(starts: FloatPoints, ends: FloatPoints, lengths: Sequence[int]) -> bool:
    """Return whether any two edges cross or touch, except consecutive edges."""
    numbers = np.arange(len(starts))
    following = np.concatenate([np.roll(part, -1) for part in np.split(numbers, np.cumsum(lengths)[:-1])])
    low, high = np.minimum(starts, ends), np.maximum(starts, ends)
    # From left to right, an edge can only cross edges that begin before it ends.
    order = np.argsort(low[:, 0], kind="stable")
    counts = np.searchsorted(low[order, 0], high[order, 0], "right") - numbers - 1
    totals, begin = np.concatenate(([0], np.cumsum(counts))), 0
    while begin < len(order):
        end = max(begin + 1, int(np.searchsorted(totals, totals[begin] + _PAIRS_AT_ONCE, "right")) - 1)
        places = np.repeat(numbers[begin:end], counts[begin:end])
        one, other = order[places], order[places + 1 + np.arange(len(places)) - (totals[places] - totals[begin])]
        near = (low[other, 1] <= high[one, 1]) & (low[one, 1] <= high[other, 1])
        near &= (following[one] != other) & (following[other] != one)
        one, other = one[near], other[near]
        apart = _turn(starts[one], ends[one], starts[other]) * _turn(starts[one], ends[one], ends[other])
        across = _turn(starts[other], ends[other], starts[one]) * _turn(starts[other], ends[other], ends[one])
        if bool(((apart <= 0) & (across <= 0)).any()):
            return True
        begin = end
    return False


def _turn(start: FloatPoints, end: FloatPoints, point: FloatPoints) -> npt.NDArray[np.float64]:
    """Return the side of an edge on which a point is: positive, negative, or 0 on its line."""
    along, to = end - start, point - start
    return np.asarray(np.sign(along[:, 0] * to[:, 1] - along[:, 1] * to[:, 0]))
