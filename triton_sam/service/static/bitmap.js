// Masks with one byte per image pixel, column by column as in COCO RLE, for edits by hand.

/** Return a mask as 1 inside and 0 outside. ``spans``: see spans.js; ``size``: [height, width]. */
export function bitmapOf(spans, [height, width]) {
  const inside = new Uint8Array(width * height);
  for (let i = 0; i < spans.length; i += 2) inside.fill(1, spans[i], spans[i + 1]);
  return inside;
}

/** Return the spans of a bitmap. */
export function spansOfBitmap(inside) {
  const spans = [];
  for (let at = 0; at < inside.length; at++) {
    if (inside[at] !== (at ? inside[at - 1] : 0)) spans.push(at);
  }
  if (spans.length % 2) spans.push(inside.length);
  return Int32Array.from(spans);
}

/** Set all pixels whose centre is within ``radius`` of the line between two points {x, y}. */
export function stroke(inside, [height, width], from, to, radius, value) {
  const reach = (low, high, end) => [Math.max(0, Math.floor(low - radius)), Math.min(end, Math.ceil(high + radius))];
  const [left, right] = reach(Math.min(from.x, to.x), Math.max(from.x, to.x), width);
  const [top, bottom] = reach(Math.min(from.y, to.y), Math.max(from.y, to.y), height);
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const length = dx * dx + dy * dy;
  for (let x = left; x < right; x++) {
    for (let y = top; y < bottom; y++) {
      const [px, py] = [x + 0.5 - from.x, y + 0.5 - from.y];
      const along = length ? Math.min(1, Math.max(0, (px * dx + py * dy) / length)) : 0;
      if ((px - along * dx) ** 2 + (py - along * dy) ** 2 <= radius * radius) inside[x * height + y] = value;
    }
  }
}

/** Set all pixels whose centre is inside rings [x, y, x, y, ...]. A ring inside another one is a hole. */
export function fillRings(inside, [height, width], rings, value = 1) {
  for (let column = 0; column < width; column++) {
    const cuts = rings.flatMap((ring) => cutsOf(ring, column + 0.5)).sort((a, b) => a - b);
    for (let i = 0; i + 1 < cuts.length; i += 2) {
      const [top, bottom] = [cuts[i], cuts[i + 1]].map((y) => Math.min(height, Math.max(0, Math.ceil(y - 0.5))));
      inside.fill(value, column * height + top, column * height + bottom);
    }
  }
}

/** Return the intersections of a vertical line with the sides of a ring. */
function cutsOf(ring, x) {
  const cuts = [];
  for (let i = 0; i < ring.length; i += 2) {
    const [x1, y1] = [ring[i], ring[i + 1]];
    const [x2, y2] = [ring[(i + 2) % ring.length], ring[(i + 3) % ring.length]];
    if (x1 <= x !== x2 <= x) cuts.push(y1 + ((x - x1) / (x2 - x1)) * (y2 - y1));
  }
  return cuts;
}
