// The outlines of masks as rings of corners, and masks that follow corners that were moved.

import { fillRings, stroke } from "./bitmap.js";

const FINEST = 1; // pixels of the image between an outline and its simple form
const SIDES = 150; // the diagonal of the box of a mask, for each pixel between its outline and the simple form

/**
 * Return how far the simple outline of a mask with a box [x, y, width, height] may lie from its pixels, in pixels.
 *
 * Each step of ``detail`` halves it, and each step below 0 doubles it.
 */
export function toleranceOf([, , width, height], detail = 0) {
  return Math.max(FINEST, Math.hypot(width, height) / SIDES / 2 ** detail);
}

/** Return the simple outlines of a bitmap as rings of corners {x, y}. Parts that are smaller than the tolerance have none. */
export function ringsOf(inside, size, tolerance) {
  return edgesOf(inside, size).map((ring) => simple(ring, tolerance)).filter((ring) => ring.length > 2);
}

/**
 * Change a bitmap where rings have changed; elsewhere it keeps its pixels, which the rings follow only roughly.
 *
 * Pixels within ``reach`` of a side that has changed are changed, too: nothing of the former outline is left there.
 * Corners that stayed are the same objects before and after.
 */
export function fillChange(inside, size, before, after, reach) {
  const [old, now, near] = [before, after, []].map((rings) => {
    const filled = new Uint8Array(inside.length);
    fillRings(filled, size, rings.map((ring) => ring.flatMap(({ x, y }) => [x, y])));
    return filled;
  });
  const kept = new Map(after.flatMap(sidesOf));
  for (const [from, to] of before.flatMap(sidesOf)) if (kept.get(from) !== to) stroke(near, size, from, to, reach, 1);
  for (let at = 0; at < inside.length; at++) if (near[at] || old[at] !== now[at]) inside[at] = now[at];
}

function sidesOf(ring) {
  return ring.map((corner, index) => [corner, ring[(index + 1) % ring.length]]);
}

/** Return the closed lines between pixels inside and outside, as rings of points {x, y} where they turn. */
function edgesOf(inside, [height, width]) {
  const next = new Map(); // by the number of a point: those that follow, with the inside on the right
  const add = (x1, y1, x2, y2) => {
    const [from, to] = [x1 * (height + 1) + y1, x2 * (height + 1) + y2];
    if (next.has(from)) next.get(from).push(to);
    else next.set(from, [to]);
  };
  const value = (x, y) => (x < 0 || y < 0 || x >= width || y >= height ? 0 : inside[x * height + y]);
  for (let x = 0; x <= width; x++) {
    for (let y = 0; y <= height; y++) {
      const here = value(x, y);
      if (here !== value(x, y - 1)) here ? add(x, y, x + 1, y) : add(x + 1, y, x, y);
      if (here !== value(x - 1, y)) here ? add(x, y + 1, x, y) : add(x, y, x, y + 1);
    }
  }
  const rings = [];
  for (const [start, ways] of next) while (ways.length) rings.push(turnsOf(follow(next, start), height + 1));
  return rings;
}

function follow(next, start) {
  const ring = [];
  let at = start;
  do {
    ring.push(at);
    at = next.get(at).pop();
  } while (at !== start);
  return ring;
}

/** Return the points of a ring where it turns, by the step from number to number. */
function turnsOf(ring, column) {
  const turns = ring.filter((at, index) => at - ring.at(index - 1) !== ring[(index + 1) % ring.length] - at);
  return turns.map((at) => ({ x: Math.floor(at / column), y: at % column }));
}

/** Simplify a ring by Douglas and Peucker, in two halves that meet at the first point and at the one farthest from it. */
function simple(ring, tolerance) {
  const away = ring.map((point) => Math.hypot(point.x - ring[0].x, point.y - ring[0].y));
  const half = away.reduce((best, distance, index) => (distance > away[best] ? index : best), 0);
  const closed = [...ring, ring[0]];
  const kept = new Set([0, half]);
  const parts = [[0, half], [half, ring.length]];
  while (parts.length) {
    const [first, last] = parts.pop();
    let [worst, distance] = [-1, tolerance];
    for (let at = first + 1; at < last; at++) {
      const off = offLine(closed[at], closed[first], closed[last]);
      if (off > distance) [worst, distance] = [at, off];
    }
    if (worst < 0) continue;
    kept.add(worst);
    parts.push([first, worst], [worst, last]);
  }
  const corners = ring.filter((_, index) => kept.has(index));
  const isNeeded = corners.length > 3 && offLine(corners[0], corners.at(-1), corners[1]) > tolerance;
  return isNeeded || corners.length < 4 ? corners : corners.slice(1); // the first point is a corner by chance
}

/** Return the distance of a point from the line between two others, which may be one point. */
export function offLine(point, from, to) {
  const { x, y } = nearestOn(point, from, to);
  return Math.hypot(point.x - x, point.y - y);
}

/** Return the point of a line that is nearest to a point. */
export function nearestOn(point, from, to) {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const length = dx * dx + dy * dy;
  const along = length ? Math.min(1, Math.max(0, ((point.x - from.x) * dx + (point.y - from.y) * dy) / length)) : 0;
  return { x: from.x + along * dx, y: from.y + along * dy };
}
