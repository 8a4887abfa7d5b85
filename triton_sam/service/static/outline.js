// Converts logits to outlines by marching squares with interpolation, so that edges are smooth at any zoom.

let next = new Int32Array(0);

// TL=8 TR=4 BR=2 BL=1 -> pairs of sides (0 top, 1 right, 2 bottom, 3 left), with the inside on the right.
const TURNS = [
  [], [3, 2], [2, 1], [3, 1], [1, 0], [1, 0, 3, 2], [2, 0], [3, 0],
  [0, 3], [0, 2], [0, 3, 2, 1], [0, 1], [1, 3], [1, 2], [2, 3], [],
];

/**
 * Return the closed rings where logits change sign, as a Path2D in image pixels.
 *
 * @param {Int8Array} logits - side x side, row by row
 * @param {number} side
 * @param {number[]} used - part of the logits that shows the image, in fractions of width and height
 * @param {{width: number, height: number}} size - of the image
 */
export function outline(logits, side, used, size) {
  const wide = Math.max(1, Math.round(side * used[0]));
  const high = Math.max(1, Math.round(side * used[1]));
  const step = wide + 2; // a border of background, so that every outline closes
  const rows = high + 2;
  const value = (x, y) =>
    x < 1 || y < 1 || x > wide || y > high ? -1 : logits[(y - 1) * side + (x - 1)];

  const edges = 2 * step * rows;
  if (next.length < edges) next = new Int32Array(edges);
  next.fill(-1, 0, edges);
  const starts = [];
  for (let y = 0; y < rows - 1; y++) {
    let left = (value(0, y) > 0 ? 8 : 0) | (value(0, y + 1) > 0 ? 1 : 0);
    for (let x = 0; x < step - 1; x++) {
      const right = (value(x + 1, y) > 0 ? 4 : 0) | (value(x + 1, y + 1) > 0 ? 2 : 0);
      const turns = TURNS[left | right];
      left = ((right & 4) << 1) | ((right & 2) >> 1);
      for (let i = 0; i < turns.length; i += 2) {
        const from = edge(x, y, turns[i], step);
        next[from] = edge(x, y, turns[i + 1], step);
        starts.push(from);
      }
    }
  }

  const scaleX = size.width / (side * used[0]);
  const scaleY = size.height / (side * used[1]);
  const path = new Path2D();
  for (const start of starts) {
    if (next[start] < 0) continue;
    let at = start;
    let first = true;
    while (next[at] >= 0) {
      const upright = at & 1;
      const cell = at >> 1;
      const x = cell % step;
      const y = (cell - x) / step;
      const a = value(x, y);
      const b = upright ? value(x, y + 1) : value(x + 1, y);
      const t = a / (a - b);
      const px = clamp((x - 0.5 + (upright ? 0 : t)) * scaleX, size.width);
      const py = clamp((y - 0.5 + (upright ? t : 0)) * scaleY, size.height);
      if (first) path.moveTo(px, py);
      else path.lineTo(px, py);
      first = false;
      const following = next[at];
      next[at] = -1;
      at = following;
    }
    path.closePath();
  }
  return path;
}

function edge(x, y, side, step) {
  if (side === 0) return 2 * (y * step + x);
  if (side === 1) return 2 * (y * step + x + 1) + 1;
  if (side === 2) return 2 * ((y + 1) * step + x);
  return 2 * (y * step + x) + 1;
}

function clamp(value, high) {
  return value < 0 ? 0 : value > high ? high : value;
}

/** Return area and box [x, y, width, height] where logits are above 0, in whole image pixels; see outline(). */
export function measureLogits(logits, side, used, size) {
  const wide = Math.max(1, Math.round(side * used[0]));
  const high = Math.max(1, Math.round(side * used[1]));
  let [cells, left, top, right, bottom] = [0, wide, high, 0, 0];
  for (let y = 0; y < high; y++) {
    for (let x = 0; x < wide; x++) {
      if (logits[y * side + x] <= 0) continue;
      cells++;
      [left, top, right, bottom] = [Math.min(left, x), Math.min(top, y), Math.max(right, x + 1), Math.max(bottom, y + 1)];
    }
  }
  if (!cells) return { area: 0, bbox: null };
  const [across, down] = [size.width / wide, size.height / high];
  const bbox = [left * across, top * down, (right - left) * across, (bottom - top) * down].map(Math.round);
  return { area: Math.round(cells * across * down), bbox };
}
