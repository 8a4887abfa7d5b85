// Reads COCO files with masks as run lengths, compressed or not, or as polygons.

import { fillRings, spansOfBitmap } from "./bitmap.js";
import { lineOf } from "./scene.js";
import { measure, runsOf, spansOf, spansOfRuns, toRle } from "./spans.js";

/** Return a COCO file's images, as [[path, [{label, name, rle, area, bbox, score}]]]. */
export function readCoco(text) {
  const { images, annotations, categories } = parsed(text);
  const labels = new Map((categories ?? []).map(({ id, name }) => [id, lineOf(name)]));
  const sizes = new Map(images.map(({ id, width, height }) => [id, [height, width]]));
  const objects = new Map(images.map(({ id }) => [id, []]));
  annotations.forEach((annotation, index) => {
    try {
      const rle = rleOf(annotation.segmentation, sizes.get(annotation.image_id));
      const facts = measure(spansOf(rle), rle.size);
      if (!facts.area) return; // an empty mask
      const label = labels.get(annotation.category_id) ?? "";
      const score = Number.isFinite(annotation.score) ? annotation.score : 1;
      objects.get(annotation.image_id).push({ label, name: lineOf(annotation.name), rle, ...facts, score });
    } catch (problem) {
      throw new Error(`annotation ${index + 1}: ${problem.message}`);
    }
  });
  return images.map(({ id, file_name: path }) => [String(path).replaceAll("\\", "/"), objects.get(id)]);
}

function parsed(text) {
  let document;
  try {
    document = JSON.parse(text);
  } catch {
    throw new Error("the file is not valid JSON");
  }
  const isCoco = Array.isArray(document?.images) && Array.isArray(document.annotations);
  if (!isCoco) throw new Error("the file is not a COCO data set: it needs images and annotations");
  return document;
}

function rleOf(segmentation, size) {
  if (!size) throw new Error("its image_id is unknown");
  if (Array.isArray(segmentation)) return toRle(spansOfPolygons(segmentation, size), size);
  if (String(segmentation?.size) !== String(size)) throw new Error("its mask is missing, or has another size than the image");
  const { counts } = segmentation;
  if (typeof counts !== "string" && !Array.isArray(counts)) throw new Error("its mask has no run lengths");
  const runs = typeof counts === "string" ? runsOf(counts) : counts;
  const isWhole = runs.every((run) => run >= 0) && runs.reduce((sum, run) => sum + run, 0) === size[0] * size[1];
  if (!isWhole) throw new Error("its run lengths are damaged");
  return typeof counts === "string" ? { size, counts } : toRle(spansOfRuns(runs), size);
}

/** Return the pixels whose centre is inside any of the polygons [x, y, x, y, ...], as spans in each column. */
function spansOfPolygons(polygons, size) {
  const inside = new Uint8Array(size[0] * size[1]);
  for (const polygon of polygons) fillRings(inside, size, [polygon]);
  return spansOfBitmap(inside);
}
