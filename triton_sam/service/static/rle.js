// Converts COCO run-length encodings to outlines.

import { outline } from "./outline.js";

const SIDE = 512;

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
  let at = 0;
  runsOf(rle.counts).forEach((length, index) => {
    if (index % 2) {
      for (let pixel = at; pixel < at + length; pixel++) {
        covered[rows[(pixel % tall) - top] * side + columns[Math.floor(pixel / tall) - left]]++;
      }
    }
    at += length;
  });
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
