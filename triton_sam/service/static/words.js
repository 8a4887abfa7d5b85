// The search for words and examples: the service finds every instance, and the slider sets the minimum score.

import { $, connect, enable, reveal } from "./dom.js";
import * as rest from "./rest.js";

const LOWEST = 0.1; // the minimum score of requested instances; the slider hides some of them without a request

export class Words {
  #page;
  #examples = []; // {box: [x1, y1, x2, y2], label: 1 or 0} in pixels of the image
  #image = null; // the key of the examples' image

  constructor(page) {
    this.#page = page;
    $("words").addEventListener("submit", (event) => {
      event.preventDefault();
      this.start();
    });
    $("words-text").addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      if (page.everything.isSearching) page.everything.stop();
      else event.target.blur();
    });
    connect({ "words-more": () => this.#example(1), "words-less": () => this.#example(0) });
    connect({ "words-text": () => this.show(), "words-threshold": () => this.#filter() }, "input");
    page.everything.threshold = Number($("words-threshold").value);
  }

  /** The words in the field; commas separate them. */
  get texts() {
    return $("words-text").value.split(",").map((word) => word.trim()).filter(Boolean);
  }

  /** Focus the field, if there is one. */
  focus() {
    if (!$("words").hidden) $("words-text").select();
  }

  /** Search for the words in the field, without examples. */
  start() {
    if (!this.#canSearch) return;
    if (!this.texts.length) return void $("words-text").focus();
    $("words-text").blur(); // enables letter shortcuts again, and hides a phone's keyboard
    this.#examples = [];
    void this.#search();
  }

  show() {
    const { everything, image, model } = this.#page;
    if (this.#image !== (image?.key ?? null)) [this.#image, this.#examples] = [image?.key ?? null, []];
    $("words").hidden = !model.finds_concepts || !image;
    if ($("words").hidden) return;
    const boxes = this.#boxes.length > 0;
    const isSaid = this.texts.length || this.#examples.some((example) => example.label);
    enable({
      "words-find": this.#canSearch,
      "words-more": this.#canSearch && boxes,
      "words-less": this.#canSearch && boxes && isSaid,
    });
    const [count, all] = [everything.ofWords.filter((item) => everything.isShown(item)).length, everything.ofWords.length];
    $("words-count").textContent = `${count} of ${all}`;
    $("words-info").textContent = counted(this.#examples);
    reveal({ "words-info": this.#examples.length, "words-found": all, "words-examples": boxes || all });
  }

  get #canSearch() {
    return Boolean(this.#page.image && this.#page.model.finds_concepts && !this.#page.everything.isSearching);
  }

  /** The boxes of the selected instances, or else of the active object. */
  get #boxes() {
    const { everything, scene, masks } = this.#page;
    const selected = everything.selected.map((item) => corners(item.bbox));
    if (selected.length || !scene.active) return selected;
    const measured = masks.measureOf(scene.active)?.bbox;
    const box = scene.active.box ?? (measured && corners(measured));
    return box ? [box] : [];
  }

  /** Search again, with the selected instances as examples. */
  #example(label) {
    const added = this.#boxes.map((box) => ({ box, label }));
    if (!this.#canSearch || !added.length) return;
    const isSame = (a, b) => a.box.join() === b.box.join();
    this.#examples = [...this.#examples.filter((old) => !added.some((each) => isSame(old, each))), ...added];
    void this.#search();
  }

  async #search() {
    const { everything, settings, warn } = this.#page;
    const texts = this.texts;
    const examples = this.#examples;
    const body = {
      model: settings.model,
      text: texts.length ? texts : null,
      boxes: examples.map((example) => example.box),
      box_labels: examples.length ? examples.map((example) => example.label) : null,
      threshold: LOWEST,
    };
    warn("");
    await everything.search(async (image, signal) => {
      const { objects } = await rest.find(image.id, body, signal);
      const seen = objects.filter((object) => object.bbox); // an empty mask has no box
      return {
        objects: seen.map(({ box, text_index, ...object }, id) => ({ ...object, id })),
        detail: seen.length ? this.#hint(seen) : `Nothing was found for ${named(texts)}.`,
      };
    });
  }

  /** Report that the slider hides all instances; null if some are visible. */
  #hint(found) {
    const highest = Math.max(...found.map((object) => object.score));
    const { threshold } = this.#page.everything;
    if (highest >= threshold) return null;
    return `${found.length} found, all below the score ${threshold.toFixed(2)}: the highest is ${highest.toFixed(2)}. Move Score to see them.`;
  }

  #filter() {
    const threshold = Number($("words-threshold").value);
    $("words-value").textContent = threshold.toFixed(2);
    this.#page.everything.threshold = threshold;
    this.#page.show();
  }
}

function corners([x, y, width, height]) {
  return [x, y, x + width, y + height];
}

function counted(examples) {
  const more = examples.filter((example) => example.label).length;
  const parts = [more && `${more} like this`, examples.length - more && `${examples.length - more} not`];
  return `By examples: ${parts.filter(Boolean).join(", ")}`;
}

function named(texts) {
  return texts.length ? texts.map((text) => `“${text}”`).join(", ") : "the examples";
}
