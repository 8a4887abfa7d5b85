// The masks of all objects, cached by all values that they depend on; missing masks are requested.

import { measureLogits, outline } from "./outline.js";
import { hasPrompt, promptOf } from "./scene.js";

/** Return the clean-up, null for none; docs/reference/rest.md explains the members. */
function cleanupOf({ cleanup, cleanupArea: area, threshold }) {
  const members = cleanup ? { max_hole_area: area, max_sprinkle_area: area, keep_clicked: true } : {};
  if (threshold) members.mask_threshold = threshold;
  return Object.keys(members).length ? members : null;
}

export class Masks {
  #results = new Map(); // kept, so that undo needs no request
  #shown = new Map(); // id of an object -> its newest outline
  #round = 0; // number of the newest call of refresh(), which ends older ones
  #page;
  #scene;

  constructor(page, scene) {
    [this.#page, this.#scene] = [page, scene];
  }

  reset() {
    this.#results.clear();
    this.#shown.clear();
  }

  /** Return an object's result: {scores, logits, ...}, {scores, found}, {error}, or null while it is pending. */
  resultOf(object) {
    const found = hasPrompt(object) ? null : this.#page.everything.of(object.found);
    if (found) return { scores: [found.score], found };
    return this.#results.get(this.#keyOf(object)) ?? null;
  }

  /** Return the index of the candidate to show: the user's choice, else the one with the best score. */
  choiceOf(object) {
    const scores = this.resultOf(object)?.scores ?? [0];
    const chosen = object.choice !== null && object.choice < scores.length;
    return chosen ? object.choice : scores.indexOf(Math.max(...scores));
  }

  hasMask(object) {
    const result = object && this.resultOf(object);
    return Boolean(result?.logits || result?.found);
  }

  /** Return the outline of a mask, or of a candidate; while a new mask is computed, the outline before. */
  pathOf(object, candidate = null) {
    const result = this.resultOf(object);
    if (!result && hasPrompt(object)) return this.#shown.get(object.id) ?? null;
    const choice = candidate ?? this.choiceOf(object);
    let path = result?.found?.path ?? null;
    if (result?.logits) {
      path = result.paths[choice] ??= outline(result.logits[choice], result.side, result.used, this.#page.image);
    }
    if (candidate === null) this.#shown.set(object.id, path);
    return path;
  }

  /** Return a candidate's area in pixels and box [x, y, width, height], from the preview or the found object. */
  measureOf(object, choice = this.choiceOf(object)) {
    const result = this.resultOf(object);
    if (result?.found) return result.found;
    if (!result?.logits) return null;
    result.measures ??= [];
    return (result.measures[choice] ??= measureLogits(result.logits[choice], result.side, result.used, this.#page.image));
  }

  /** Objects with a mask. */
  get finished() {
    return this.#scene.objects.filter((object) => this.hasMask(object));
  }

  /** Visible objects with a mask. */
  get shown() {
    return this.finished.filter((object) => object.visible);
  }

  /** Objects in downloads: visible ones that have a mask, or whose mask the service computes. It refused some prompts. */
  get drawn() {
    const mayHaveMask = (object) => this.hasMask(object) || (hasPrompt(object) && !this.resultOf(object)?.error);
    return this.#scene.objects.filter((object) => object.visible && mayHaveMask(object));
  }

  /** Options of mask requests. */
  get options() {
    const { settings } = this.#page;
    return { model: settings.model, multimask: settings.multimask, cleanup: cleanupOf(settings) };
  }

  /** Options of an object's mask request. */
  optionsOf(object) {
    return { ...this.options, multimask: object?.multimask ?? this.#page.settings.multimask };
  }

  requestFor(object, prompt) {
    return { image: this.#page.image.id, ...this.optionsOf(object), ...prompt };
  }

  /** Request missing masks, the active object's first. ``time`` is that of the click that caused it. */
  async refresh(time) {
    const mine = ++this.#round;
    for (const id of this.#shown.keys()) if (!this.#scene.objects.some((object) => object.id === id)) this.#shown.delete(id);
    this.#page.show();
    const missing = this.#scene.objects.filter((object) => hasPrompt(object) && !this.hasMask(object));
    const isActive = (object) => Number(object.id === this.#scene.activeId);
    missing.sort((a, b) => isActive(b) - isActive(a));
    for (const object of missing) {
      const key = this.#keyOf(object);
      try {
        const answer = await this.#page.live.click(this.requestFor(object, promptOf(object)));
        if (answer) this.#results.set(key, { ...answer, paths: [] });
        if (mine !== this.#round || !answer) return;
        if (time) this.#page.clicked(time, answer.ms);
        time = undefined;
      } catch (problem) {
        if (mine !== this.#round) return;
        if (problem.code === "unknown_image") return void this.#page.pictures.reupload();
        // If the service is unavailable, the mask stays missing, and is requested when the service is back.
        if (problem.status !== 0 && problem.status !== 503) this.#results.set(key, { error: problem.message });
      }
      this.#page.show();
    }
  }

  #keyOf(object) {
    return JSON.stringify([this.#page.image?.id, this.optionsOf(object), promptOf(object)]);
  }
}
