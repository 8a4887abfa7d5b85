// Data sets of all images on the shelf: the service writes the files from masks that it has computed.

import { exactMask, save } from "./saves.js";
import { classOf, hasPrompt } from "./scene.js";
import * as rest from "./rest.js";

/** Save all images' visible objects as ZIP in a format of the service. Return what is missing. */
export async function saveDataSet(shelf, masks, model, format) {
  const [lines, taken] = [[], new Set()];
  for (const { entry, objects, found } of shelf.drawn) {
    const image = { name: fresh(entry.name, taken), width: entry.width, height: entry.height, objects: [] };
    for (const object of objects) {
      const mask = (!hasPrompt(object) && found.get(object.found)) || (await known(shelf, entry, object, masks, model));
      image.objects.push({ label: classOf(object), name: object.name, score: mask.score, rle: mask.rle });
    }
    lines.push(JSON.stringify(image));
  }
  if (!lines.length) throw new Error("no image has an object that is shown");
  save(await rest.exported(format, new Blob([lines.join("\n")])), `objects-${format}.zip`);
}

/** Return a mask; send the image again if the service has dropped it. */
async function known(shelf, entry, object, masks, model) {
  const ask = () => exactMask(entry.id, object, masks.optionsOf(object), "rle");
  try {
    return await ask();
  } catch (problem) {
    if (problem.code !== "unknown_image") throw problem;
    await rest.upload("image", await shelf.fileOf(entry), model);
    return ask();
  }
}

/** Return a name with a unique part before the suffix, because formats name their files after it. */
function fresh(name, taken) {
  const [, stem, suffix] = /^(.*?)(\.[^.]*)?$/.exec(name);
  let free = stem;
  for (let number = 2; taken.has(free); number++) free = `${stem}-${number}`;
  taken.add(free);
  return free + (suffix ?? "");
}
