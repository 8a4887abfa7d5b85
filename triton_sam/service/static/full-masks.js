// Full-size masks, computed by the service as for any API client, and never taken from the screen.

import * as rest from "./rest.js";
import { promptOf } from "./scene.js";

/** Return an object's mask on the open image, in a format of the service: {rle or png, area, bbox, score}. */
export async function fullMask(image, object, masks, format) {
  return masks.resultOf(object).found ?? exactMask(image.id, object, masks.optionsOf(object), format);
}

/** Return the mask of a prompt on any image that the service has. */
export async function exactMask(id, object, options, format) {
  const prompt = promptOf(object);
  if (!prompt.box) delete prompt.box;
  const { masks } = await rest.segment(id, { ...prompt, ...options, format });
  const best = masks.reduce((best, mask) => (mask.score > best.score ? mask : best));
  return masks[object.choice] ?? best;
}
