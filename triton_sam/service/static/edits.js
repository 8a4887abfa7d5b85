// Edits of masks by hand, at full size: copy, join and subtract objects, and set masks drawn with tools.

import { bitmapOf, spansOfBitmap } from "./bitmap.js";
import { $ } from "./dom.js";
import { cutout, fullMask } from "./saves.js";
import { classOf, isBlank } from "./scene.js";
import { measure, spansOf, toRle } from "./spans.js";

const CHANGED = "the objects have changed meanwhile; try again";

export class Edits {
  #page;
  #queue = Promise.resolve();

  constructor(page) {
    this.#page = page;
  }

  get image() {
    return this.#page.image;
  }

  /** The open image's size, [height, width]. */
  get size() {
    return [this.image.height, this.image.width];
  }

  /** The active object, if it has a mask and is visible. */
  get active() {
    const { scene, masks } = this.#page;
    return this.image && scene.active?.visible && masks.hasMask(scene.active) ? scene.active : null;
  }

  /** Objects to join with the active one. */
  get others() {
    return this.#page.masks.shown.filter((object) => object !== this.active);
  }

  /** Return an object's mask as bitmap; empty without a mask. */
  async bitmapOf(object) {
    const size = this.size;
    if (!object || !this.#page.masks.hasMask(object)) return new Uint8Array(size[0] * size[1]);
    return bitmapOf(spansOf((await this.#maskOf(object)).rle), size);
  }

  /**
   * Edit the masks of objects with ``act``, after all earlier edits; an error if another image is open by then.
   *
   * It may wait for full-size masks; the banner shows errors.
   */
  attempt(act) {
    const key = this.image?.key;
    const actHere = () => {
      if (this.image?.key !== key) throw new Error(CHANGED);
      return act();
    };
    this.#queue = this.#queue.then(actHere).catch((problem) => this.#page.warn(`The mask was not changed: ${problem.message}`));
    return this.#queue;
  }

  /**
   * Replace an object's prompt by a mask, as one undo step.
   *
   * object: null creates a new one. more: a further change of the scene in the same step.
   */
  give(object, inside, more = () => {}) {
    const { scene, everything, change } = this.#page;
    if (object && !scene.objects.includes(object)) throw new Error(CHANGED);
    const spans = spansOfBitmap(inside);
    const facts = measure(spans, this.size);
    if (!facts.area) throw new Error("nothing would be left; delete the object instead");
    const item = everything.addEdited({ rle: toRle(spans, this.size), ...facts, score: 1, kind: "edited" });
    change(() => {
      const target = object ?? (isBlank(scene.active) ? scene.active : scene.begin());
      Object.assign(target, { points: [], box: null, choice: null, found: item.id });
      more(scene);
    });
    return item;
  }

  duplicate() {
    const { scene, change } = this.#page;
    if (!this.image) return false;
    if (scene.active) change(() => scene.duplicate(scene.active));
  }

  /** Join objects with the active one; the joined ones are removed. */
  merge(others) {
    return this.#combine(others, 1, (scene) => others.forEach((other) => scene.remove(other.id)));
  }

  /** Subtract other objects' pixels from the active one. The others stay. */
  subtract(others) {
    return this.#combine(others, 0);
  }

  /** Move the active object up or down in the list. */
  reorder(by) {
    const { scene } = this.#page;
    const place = scene.objects.indexOf(scene.active) + by;
    if (!this.image) return false;
    if (scene.active && place >= 0 && place < scene.objects.length) this.move(scene.activeId, place);
  }

  move(id, place) {
    const { scene, change } = this.#page;
    if (scene.objects.findIndex((object) => object.id === id) !== place) change(() => scene.move(id, place));
  }

  recolor(color) {
    const { scene, change } = this.#page;
    if (this.image && scene.active && scene.active.color !== color) change(() => (scene.active.color = color));
  }

  /** Copy the cut-out of the active object as PNG. */
  copyCutout() {
    const { active, image } = this;
    if (!active) return false;
    const png = cutout(image, this.#page.stage.picture, active, this.#page.masks);
    return this.#copy({ "image/png": png }, "The cut-out is in the clipboard.");
  }

  /** Copy the active object as JSON: name, label, and its mask as COCO RLE. */
  copyRle() {
    const { active, image } = this;
    if (!active) return false;
    const json = this.#maskOf(active).then(({ rle, bbox, area, score }) => {
      const facts = { file_name: image.name, name: active.name, label: classOf(active), area, bbox, score };
      return new Blob([JSON.stringify({ ...facts, segmentation: rle })], { type: "text/plain" });
    });
    return this.#copy({ "text/plain": json }, "The mask is in the clipboard, as RLE in JSON.");
  }

  async #copy(item, done) {
    try {
      if (!navigator.clipboard?.write) throw new Error("browsers allow it only over HTTPS or on localhost");
      await navigator.clipboard.write([new ClipboardItem(item)]);
      $("edit-info").textContent = done;
    } catch (problem) {
      this.#page.warn(`Nothing was copied: ${problem.message}`);
    }
  }

  async #combine(others, value, more) {
    const { active } = this;
    if (!active || !others.length) return;
    await this.attempt(async () => {
      const inside = await this.bitmapOf(active);
      for (const other of others) {
        const taken = await this.bitmapOf(other);
        if (!this.#page.scene.objects.includes(other)) throw new Error(CHANGED);
        for (let at = 0; at < inside.length; at++) if (taken[at]) inside[at] = value;
      }
      this.give(active, inside, more);
    });
  }

  async #maskOf(object) {
    const image = this.image;
    const before = JSON.stringify(object);
    const mask = await fullMask(image, object, this.#page.masks, "rle");
    if (this.image?.id !== image.id || JSON.stringify(object) !== before) throw new Error(CHANGED);
    return mask;
  }
}
