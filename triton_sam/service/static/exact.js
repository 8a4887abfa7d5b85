// Draws masks at image size, pixel by pixel, because the outlines on the screen only have the logits' resolution, and
// writes them as 8-bit greyscale PNG, because a canvas can only write colours.

import { bitmapOf } from "./bitmap.js";
import { measure, spansOf } from "./spans.js";
import { checksum } from "./zip.js";

const SIGNATURE = [137, 80, 78, 71, 13, 10, 26, 10];

/** Return the image as PNG with its masks drawn. ``shown``: [{rle, color}] with colours as "#rrggbb". */
export function overlayOf(image, picture, shown, opacity) {
  const canvas = drawn(image, picture);
  const context = canvas.getContext("2d");
  const pixels = context.getImageData(0, 0, image.width, image.height);
  const thickness = Math.ceil(Math.max(image.width, image.height) / 1000);
  for (const { rle, color } of shown) tint(pixels, bitmapOf(spansOf(rle), rle.size), color, opacity, thickness);
  context.putImageData(pixels, 0, 0);
  return pngOf(canvas);
}

/** Return one object as PNG, cropped to its box, with transparent background. */
export function cutoutOf(image, picture, rle) {
  const spans = spansOf(rle);
  const { bbox } = measure(spans, rle.size);
  if (!bbox) throw new Error("the mask is empty, so there is nothing to cut out");
  const canvas = drawn(image, picture);
  const [left, top, width, height] = bbox;
  const pixels = canvas.getContext("2d").getImageData(left, top, width, height);
  const inside = bitmapOf(spans, rle.size);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      if (!inside[(left + x) * image.height + top + y]) pixels.data.fill(0, 4 * (y * width + x), 4 * (y * width + x) + 4);
    }
  }
  [canvas.width, canvas.height] = [width, height];
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return pngOf(canvas);
}

function drawn(image, picture) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width, image.height];
  canvas.getContext("2d", { willReadFrequently: true }).drawImage(picture, 0, 0, image.width, image.height);
  return canvas;
}

/** Blend the colour into the pixels of a mask; its edge, which is inside the mask, gets the full colour. */
function tint({ data, width, height }, inside, color, opacity, thickness) {
  const rgb = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  const isInside = (x, y) => x >= 0 && y >= 0 && x < width && y < height && inside[x * height + y];
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      if (!inside[x * height + y]) continue;
      const isDeep = isInside(x - thickness, y) && isInside(x + thickness, y) && isInside(x, y - thickness) && isInside(x, y + thickness);
      const share = isDeep ? opacity : 1;
      const at = 4 * (y * width + x);
      for (let i = 0; i < 3; i++) data[at + i] = Math.round(data[at + i] * (1 - share) + rgb[i] * share);
      data[at + 3] = Math.round(data[at + 3] * (1 - share) + 255 * share);
    }
  }
}

async function pngOf(canvas) {
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  if (!blob) throw new Error("the browser cannot write an image of this size");
  return blob;
}

/** Return a mask, a compressed COCO encoding, as PNG: 255 inside, 0 outside. */
export async function maskToPng(rle) {
  const [height, width] = rle.size;
  const rows = new Uint8Array(height * (width + 1)); // each row begins with its filter, 0
  const inside = bitmapOf(spansOf(rle), rle.size);
  for (let pixel = 0; pixel < inside.length; pixel++) {
    if (inside[pixel]) rows[(pixel % height) * (width + 1) + Math.floor(pixel / height) + 1] = 255;
  }
  const packed = new Blob([rows]).stream().pipeThrough(new CompressionStream("deflate"));
  const header = new Uint8Array([...number(width), ...number(height), 8, 0, 0, 0, 0]);
  const chunks = [
    chunk("IHDR", header),
    chunk("IDAT", new Uint8Array(await new Response(packed).arrayBuffer())),
    chunk("IEND", new Uint8Array(0)),
  ];
  return new Blob([new Uint8Array(SIGNATURE), ...chunks.flat()], { type: "image/png" });
}

function chunk(name, data) {
  const body = new Uint8Array([...new TextEncoder().encode(name), ...data]);
  return [number(data.length), body, number(checksum(body))];
}

function number(value) {
  return new Uint8Array([value >>> 24, (value >>> 16) & 255, (value >>> 8) & 255, value & 255]);
}
