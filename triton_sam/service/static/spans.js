// Masks as spans: an Int32Array of [start, end) pairs of foreground pixels, counted column by column as in COCO RLE, and
// the outlines of COCO run-length encodings.

import { outline } from "./outline.js";

const BITS = 5;
const SIDE = 512; // cells of an outline

/** Return the alternating numbers of background and foreground pixels of a compressed encoding, column by column. */
export function runsOf(counts) {
  const runs = [];
  for (let at = 0; at < counts.length; ) {
    let value = 0;
    let shift = 0;
    let more = true;
    while (more) {
      const code = counts.charCodeAt(at++) - 48;
      value |= (code & 31) << shift;
      shift += 5;
      more = (code & 32) !== 0;
      if (!more && code & 16) value |= -1 << shift;
    }
    if (runs.length > 2) value += runs[runs.length - 2]; // the third and later numbers are differences
    runs.push(value);
  }
  return runs;
}

/**
 * Return a mask's outline as Path2D in frame pixels. Its cells hold their covered fraction.
 *
 * ``bbox`` [x, y, width, height], if given, contains the mask: then cells are only inside it, and smaller.
 */
export function pathOf(rle, bbox = [0, 0, rle.size[1], rle.size[0]]) {
  const tall = rle.size[0];
  const [left, top, width, height] = bbox;
  const cells = { wide: Math.min(SIDE, width), high: Math.min(SIDE, height) };
  const columns = Int32Array.from({ length: width }, (_, x) => Math.floor((x * cells.wide) / width));
  const rows = Int32Array.from({ length: height }, (_, y) => Math.floor((y * cells.high) / height));
  const side = Math.max(cells.wide, cells.high);
  const covered = new Int32Array(side * side);
  const spans = spansOf(rle);
  for (let i = 0; i < spans.length; i += 2) {
    for (let pixel = spans[i]; pixel < spans[i + 1]; pixel++) {
      covered[rows[(pixel % tall) - top] * side + columns[Math.floor(pixel / tall) - left]]++;
    }
  }
  const [inColumn, inRow] = [counted(columns, side), counted(rows, side)];
  const logits = new Int8Array(side * side);
  for (let y = 0; y < cells.high; y++) {
    for (let x = 0; x < cells.wide; x++) {
      const share = covered[y * side + x] / (inColumn[x] * inRow[y]);
      logits[y * side + x] = Math.round(share * 254) - 127;
    }
  }
  const path = outline(logits, side, [cells.wide / side, cells.high / side], { width, height });
  if (!left && !top) return path;
  const moved = new Path2D();
  moved.addPath(path, new DOMMatrix([1, 0, 0, 1, left, top]));
  return moved;
}

/** Return the number of pixels in each cell of a row or column. */
function counted(cellOf, side) {
  const found = new Int32Array(side);
  for (const cell of cellOf) found[cell]++;
  return found;
}

/** Return the spans of a compressed COCO encoding. */
export function spansOf(rle) {
  return spansOfRuns(runsOf(rle.counts));
}

/** Return the spans of alternating numbers of background and foreground pixels. */
export function spansOfRuns(runs) {
  const spans = new Int32Array(2 * Math.floor(runs.length / 2));
  let at = 0;
  runs.forEach((length, index) => {
    if (index % 2) spans.set([at, at + length], index - 1);
    at += length;
  });
  return spans;
}

/** Whether a mask contains the pixel under a point of the image. */
export function contains(spans, rle, { x, y }) {
  const [height, width] = rle.size;
  const pixel = Math.min(width - 1, Math.floor(x)) * height + Math.min(height - 1, Math.floor(y));
  let low = 0;
  let high = spans.length / 2; // the first span that ends after the pixel is in low..high
  while (low < high) {
    const middle = (low + high) >> 1;
    if (spans[2 * middle + 1] > pixel) high = middle;
    else low = middle + 1;
  }
  return 2 * low < spans.length && spans[2 * low] <= pixel;
}

/** Return the spans of the union of several masks. */
export function union(masks) {
  const pairs = masks.flatMap((spans) => Array.from({ length: spans.length / 2 }, (_, i) => [spans[2 * i], spans[2 * i + 1]]));
  pairs.sort((a, b) => a[0] - b[0]);
  const joined = [];
  for (const [start, end] of pairs) {
    if (joined.length && start <= joined.at(-1)) joined[joined.length - 1] = Math.max(joined.at(-1), end);
    else joined.push(start, end);
  }
  return Int32Array.from(joined);
}

/** Return area and box [x, y, width, height] of a mask; the box is null if the mask is empty. */
export function measure(spans, size) {
  const height = size[0];
  let area = 0;
  let [top, bottom] = [height, 0];
  for (let i = 0; i < spans.length; i += 2) {
    const [start, end] = [spans[i], spans[i + 1]];
    area += end - start;
    const isInOneColumn = Math.floor(start / height) === Math.floor((end - 1) / height);
    top = Math.min(top, isInOneColumn ? start % height : 0);
    bottom = Math.max(bottom, isInOneColumn ? ((end - 1) % height) + 1 : height);
  }
  if (!area) return { area, bbox: null };
  const [left, right] = [Math.floor(spans[0] / height), Math.floor((spans.at(-1) - 1) / height) + 1];
  return { area, bbox: [left, top, right - left, bottom - top] };
}

/** Return spans as compressed COCO encoding, identical to pycocotools (rleToString of maskApi.c). */
export function toRle(spans, size) {
  const edges = [0, ...spans, size[0] * size[1]];
  const runs = edges.slice(1).map((edge, index) => edge - edges[index]);
  if (runs.length > 1 && runs.at(-1) === 0) runs.pop();
  const text = [];
  runs.forEach((run, index) => {
    let value = index > 2 ? run - runs[index - 2] : run;
    for (let more = true; more; ) {
      const group = value & 31;
      value >>= BITS;
      more = group & 16 ? value !== -1 : value !== 0;
      text.push(String.fromCharCode((group | (more ? 32 : 0)) + 48));
    }
  });
  return { size, counts: text.join("") };
}
