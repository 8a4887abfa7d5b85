// Downloads of the open image, of a video, and of all images on the shelf. The service computes full-size masks as for
// any API client: they are never taken from the screen.

import { cutoutOf, maskToPng, overlayOf } from "./exact.js";
import * as rest from "./rest.js";
import { classOf, hasPrompt, promptOf, UNPRINTABLE } from "./scene.js";

const LONGEST = 200; // bytes of an image's name in a data set
const ENDINGS = { png: "masks.zip", rle: "masks.jsonl", coco: "coco.json", overlay: "overlay.mp4" };

/** Save the mask of one object as PNG: 255 inside, 0 outside. */
export async function saveMask(image, object, masks) {
  save(await png(image, object, masks), `${image.stem}-${fileName(object.name)}.png`);
}

/** Save the image with all objects' masks drawn, at image size. */
export async function saveOverlay(image, picture, masks, opacity) {
  const shown = [];
  for await (const { object, mask } of fullMasks(image, masks)) shown.push({ rle: mask.rle, color: object.color });
  save(await overlayOf(image, picture, shown, opacity), `${image.stem}-overlay.png`);
}

/** Save one object as PNG, cropped to its box, with transparent background. */
export async function saveCutout(image, picture, object, masks) {
  save(await cutout(image, picture, object, masks), `${image.stem}-${fileName(object.name)}-cutout.png`);
}

/** Return one object as PNG, cropped to its box, with transparent background. */
export async function cutout(image, picture, object, masks) {
  return cutoutOf(image, picture, (await fullMask(image, object, masks, "rle")).rle);
}

/** Save all objects as COCO annotations with compressed RLE and one category for each label. */
export async function saveCoco(image, masks, settings) {
  const [names, annotations] = [[], []];
  for await (const { object, mask } of fullMasks(image, masks)) {
    if (!mask.area) continue; // readers of COCO files reject empty masks
    const name = classOf(object);
    if (!names.includes(name)) names.push(name);
    annotations.push({
      id: annotations.length + 1,
      image_id: 1,
      category_id: names.indexOf(name) + 1,
      segmentation: mask.rle,
      area: mask.area,
      bbox: mask.bbox,
      iscrowd: 0,
      score: mask.score,
      name: object.name,
    });
  }
  const coco = {
    info: { description: `${image.name}, segmented with ${settings.model}` },
    images: [{ id: 1, file_name: image.name, width: image.width, height: image.height }],
    categories: names.map((name, index) => ({ id: index + 1, name })),
    annotations,
  };
  save(new Blob([JSON.stringify(coco, null, 1)], { type: "application/json" }), `${image.stem}-coco.json`);
}

/** Save the masks of all frames of a video in a format of the service. */
export async function saveVideo(video, format) {
  save(await rest.download(video.id, format), `${video.stem}-${ENDINGS[format]}`);
}

/** Save all images' visible objects as ZIP in a format of the service. Return what is missing. */
export async function saveDataSet(shelf, masks, format) {
  const [lines, taken] = [[], new Set()];
  for (const { entry, objects, found } of shelf.drawn) {
    const name = fresh(entry.path || entry.name.replaceAll("/", "_"), taken);
    const image = { name, width: entry.width, height: entry.height, objects: [] };
    for (const object of objects) {
      const file = () => shelf.fileOf(entry);
      const mask = (!hasPrompt(object) && found.get(object.found)) || (await exactMask(entry.id, file, object, masks, "rle"));
      image.objects.push({ label: classOf(object), name: object.name, score: mask.score, rle: mask.rle });
    }
    lines.push(JSON.stringify(image));
  }
  if (!lines.length) throw new Error("no image has an object that is shown");
  save(await rest.exported(format, new Blob([lines.join("\n")])), `objects-${format}.zip`);
}

async function png(image, object, masks) {
  const found = masks.resultOf(object)?.found;
  if (found) return maskToPng(found.rle);
  const mask = await fullMask(image, object, masks, "png");
  const bytes = Uint8Array.from(atob(mask.png), (character) => character.charCodeAt(0));
  return new Blob([bytes], { type: "image/png" });
}

function fileName(text) {
  return text.trim().replace(/[^\p{L}\p{N}_-]+/gu, "-").toLowerCase() || "mask";
}

export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Return an object's mask on the open image, in a format of the service: {rle or png, area, bbox, score}. */
export async function fullMask(image, object, masks, format) {
  return masks.resultOf(object)?.found ?? exactMask(image.id, () => image.file, object, masks, format);
}

/** Yield each visible object with its mask. */
async function* fullMasks(image, masks) {
  const drawn = masks.drawn.map((object) => ({ object, found: masks.resultOf(object)?.found })); // before another image opens
  for (const { object, found } of drawn) {
    yield { object, mask: found ?? (await exactMask(image.id, () => image.file, object, masks, "rle")) };
  }
}

/** Return the mask of a prompt on any image; its ``file()`` is sent again if the service has dropped the image. */
async function exactMask(id, file, object, masks, format) {
  const options = masks.optionsOf(object);
  const prompt = promptOf(object);
  if (!prompt.box) delete prompt.box;
  const ask = () => rest.segment(id, { ...prompt, ...options, format });
  const answer = await ask().catch(async (problem) => {
    if (problem.code !== "unknown_image") throw problem;
    ({ id } = await rest.upload("image", await file(), options.model));
    return ask();
  });
  const best = answer.masks.reduce((best, mask) => (mask.score > best.score ? mask : best));
  return answer.masks[object.choice] ?? best;
}

/** Return a path that the service accepts, with a unique part before the suffix: formats name their files after it. */
function fresh(path, taken) {
  const printable = path.replace(UNPRINTABLE, " ").replaceAll("\\", "_");
  const [, folders = "", stem, suffix = ""] = /^(.*\/)?([^/]*?)(\.[^./]*)?$/.exec(printable);
  const names = folders.split("/");
  const isTooLong = bytesOf(folders) > 4 * LONGEST || names.length > 17 || names.some((name) => bytesOf(name) > LONGEST);
  const folder = isTooLong ? "" : folders;
  for (let number = 1; ; number++) {
    const ending = number > 1 ? `-${number}` : "";
    const letters = [...stem];
    while (letters.length && bytesOf(letters.join("") + ending + suffix) > LONGEST) letters.pop();
    const free = folder + letters.join("") + ending;
    if (taken.has(free)) continue;
    taken.add(free);
    return free + suffix;
  }
}

function bytesOf(text) {
  return new TextEncoder().encode(text).length;
}
