// Thumbnails of candidates: the surrounding part of the image with one candidate drawn.

import { drawLines } from "./paint.js";

const MARGIN = 0.15; // of the part, on each side
const drawn = new WeakMap(); // canvas -> its content

/** Draw a mask on its part of the image. ``box`` [x, y, width, height] is the common part of all candidates. */
export function drawThumbnail(canvas, picture, size, box, path, color) {
  const shown = drawn.get(canvas);
  if (shown?.path === path && shown.color === color && shown.picture === picture) return;
  drawn.set(canvas, { path, color, picture });
  const context = canvas.getContext("2d");
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, canvas.width, canvas.height);
  const [x, y, width, height] = box;
  const scale = Math.min(canvas.width / width, canvas.height / height) / (1 + 2 * MARGIN);
  const [left, top] = [x + width / 2 - canvas.width / 2 / scale, y + height / 2 - canvas.height / 2 / scale];
  context.setTransform(scale, 0, 0, scale, -left * scale, -top * scale);
  context.drawImage(picture, 0, 0, size.width, size.height);
  context.globalAlpha = 0.65;
  context.fillStyle = color;
  context.fill(path, "evenodd");
  context.globalAlpha = 1;
  drawLines(context, 1 / scale, [[5, "#fff"], [2, color]], () => context.stroke(path));
}

/** Return the box around boxes [x, y, width, height], ignoring null boxes; null if all are null. */
export function boxAround(boxes) {
  const known = boxes.filter(Boolean);
  if (!known.length) return null;
  const [left, top] = [Math.min(...known.map(([x]) => x)), Math.min(...known.map(([, y]) => y))];
  const right = Math.max(...known.map(([x, , width]) => x + width));
  return [left, top, right - left, Math.max(...known.map(([, y, , height]) => y + height)) - top];
}
