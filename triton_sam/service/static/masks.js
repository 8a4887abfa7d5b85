// The masks of all objects: asked for where they are missing, kept by everything that they depend on.

import { outline } from "./outline.js";
import { hasPrompt, promptOf } from "./scene.js";

export class Masks extends EventTarget {
  #results = new Map(); // so that undo needs no server
  #round = 0; // of refresh(): a newer one ends the older
  #scene;
  #live;
  #settings;

  /** The picture that is open: {id, width, height}; null for none. */
  image = null;

  constructor(scene, live, settings) {
    super();
    this.#scene = scene;
    this.#live = live;
    this.#settings = settings;
  }

  reset() {
    this.#results.clear();
  }

  /** {scores, logits, ...} of an object, {error}, or null while there is nothing. */
  resultOf(object) {
    return this.#results.get(this.#keyOf(object)) ?? null;
  }

  /** Which candidate is shown: the one that was chosen, else the best scored. */
  choiceOf(object) {
    const scores = this.resultOf(object)?.scores ?? [0];
    const chosen = object.choice !== null && object.choice < scores.length;
    return chosen ? object.choice : scores.indexOf(Math.max(...scores));
  }

  pathOf(object) {
    const result = this.resultOf(object);
    if (!result?.logits) return null;
    const choice = this.choiceOf(object);
    result.paths[choice] ??= outline(result.logits[choice], result.side, result.used, this.image);
    return result.paths[choice];
  }

  /** Objects that have a mask. */
  get finished() {
    return this.#scene.objects.filter((object) => this.resultOf(object)?.logits);
  }

  requestFor(prompt) {
    return { image: this.image.id, model: this.#settings.model, multimask: this.#settings.multimask, ...prompt };
  }

  /**
   * Ask for the masks that are missing, the active object's first. ``time``: of the click that wants it.
   *
   * Tells "changed" when there is something to show, "clicked" when the click has its mask, and "unknown-image".
   */
  async refresh(time) {
    const mine = ++this.#round;
    this.#tell("changed");
    const missing = this.#scene.objects.filter((object) => hasPrompt(object) && !this.resultOf(object)?.logits);
    const isActive = (object) => Number(object.id === this.#scene.activeId);
    missing.sort((a, b) => isActive(b) - isActive(a));
    for (const object of missing) {
      const key = this.#keyOf(object);
      try {
        const answer = await this.#live.click(this.requestFor(promptOf(object)));
        if (answer) this.#results.set(key, { ...answer, paths: [] });
        if (mine !== this.#round || !answer) return;
        if (time) this.#tell("clicked", { time, ms: answer.ms });
        time = undefined;
      } catch (problem) {
        if (mine !== this.#round) return;
        if (problem.code === "unknown_image") return void this.#tell("unknown-image");
        // What is missing because nobody answers is asked for again when somebody does.
        if (problem.status !== 0 && problem.status !== 503) this.#results.set(key, { error: problem.message });
      }
      this.#tell("changed");
    }
  }

  #keyOf(object) {
    return JSON.stringify([this.image?.id, this.#settings.model, this.#settings.multimask, promptOf(object)]);
  }

  #tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}
