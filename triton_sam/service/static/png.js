// Writes masks as 8-bit greyscale PNG, because a canvas can only write colours.

import { bitmapOf } from "./bitmap.js";
import { checksum } from "./zip.js";
import { spansOf } from "./spans.js";

const SIGNATURE = [137, 80, 78, 71, 13, 10, 26, 10];

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
