// The masks of a video, and its objects in the service. refresh() sends the changes to the service.

import { pathOf } from "./spans.js";
import * as rest from "./rest.js";
import { framesOf } from "./video-scene.js";

const MAX_PATHS = 400;

export class VideoMasks {
  #scene;
  #page;
  #found = new Map(); // frame -> Map(object -> {rle, score, object_score})
  #paths = new Map(); // mask -> Path2D
  #sent = new Map(); // object -> Map(frame -> prompt as text), as last sent to the service
  #errors = new Map(); // prompt as text -> message
  #working = null;

  constructor(scene, page = null) {
    [this.#scene, this.#page] = [scene, page];
  }

  reset() {
    this.#found.clear();
    this.#paths.clear();
    this.#sent.clear();
    this.#errors.clear();
    this.#working = null; // it belongs to another video
  }

  /** Whether a frame without a prompt has a mask. */
  get hasTracked() {
    const prompted = this.#scene.promptedFrames;
    return [...this.#found].some(([frame, masks]) => masks.size && !prompted.includes(frame));
  }

  maskOf(object, frame = this.#scene.frame) {
    return this.#found.get(frame)?.get(object.id) ?? null;
  }

  /** Return an object's entry for the list: {scores} or {error}. */
  resultOf(object) {
    const error = this.#errors.get(this.#keyOf(object, this.#scene.frame));
    if (error) return { error };
    const mask = this.maskOf(object);
    return mask && { scores: [mask.score], logits: true };
  }

  choiceOf() {
    return 0;
  }

  describe(object) {
    const result = this.resultOf(object);
    if (result?.error) return result.error;
    const frames = framesOf(object);
    if (!frames.length) return "click on it in a frame";
    const parts = [`prompted in ${frames.length > 4 ? `${frames.length} frames` : frames.join(", ")}`];
    const mask = this.maskOf(object);
    if (!mask) parts.push(this.#isSent(object) ? "not tracked here" : "waiting …");
    else parts.push(mask.area ? `score ${mask.score.toFixed(2)}` : "not visible here");
    return parts.join(" · ");
  }

  pathOf(object) {
    const mask = this.maskOf(object);
    if (!mask?.area) return null;
    if (!this.#paths.has(mask)) {
      if (this.#paths.size >= MAX_PATHS) this.#paths.delete(this.#paths.keys().next().value);
      this.#paths.set(mask, pathOf(mask.rle));
    }
    return this.#paths.get(mask);
  }

  measureOf(object) {
    return this.maskOf(object);
  }

  /** Objects with a mask in any frame. */
  get finished() {
    const known = new Set([...this.#found.values()].flatMap((masks) => [...masks.keys()]));
    return this.#scene.objects.filter((object) => known.has(object.id));
  }

  /** Return the frames with a mask of an object, as ranges [first, last]. */
  rangesOf(object) {
    const ranges = [];
    const frames = [...this.#found.entries()].filter(([, masks]) => masks.has(object.id)).map(([frame]) => frame);
    for (const frame of frames.sort((a, b) => a - b)) {
      if (ranges.length && ranges.at(-1)[1] === frame - 1) ranges.at(-1)[1] = frame;
      else ranges.push([frame, frame]);
    }
    return ranges;
  }

  /** Store the masks of one frame. */
  keep({ frame, objects }) {
    const masks = this.#found.get(frame) ?? new Map();
    for (const object of objects) masks.set(object.object_id, object);
    this.#found.set(frame, masks);
  }

  /** Send the changes. ``time`` is that of the click that caused them. */
  refresh(time) {
    this.#page.show();
    if (this.#working) return this.#working;
    const working = (this.#working = this.#send(time).finally(() => {
      if (this.#working === working) this.#working = null;
    }));
    return working;
  }

  async #send(time) {
    const video = this.#page.video.info;
    const isOpen = () => this.#page.video.info === video; // answers to another video change nothing
    if (video && this.#next()) await this.#page.video.stop(); // the service rejects prompts while it tracks
    for (let step = video && this.#next(); step; step = this.#next()) {
      try {
        const took = await step(video.id);
        if (!isOpen()) return;
        took();
        if (time) this.#page.clicked(time, performance.now() - time);
        time = undefined;
      } catch (problem) {
        if (isOpen()) void this.#page.fail(problem, () => this.refresh());
        return;
      }
      this.#page.show();
    }
  }

  /**
   * Return the next call that brings the service up to date, the active object's first; null if none is needed.
   *
   * The call returns a function that notes the service's answer.
   */
  #next() {
    const objects = [...this.#scene.objects].sort((a, b) => this.#isActive(b) - this.#isActive(a));
    for (const id of this.#sent.keys()) {
      const object = objects.find((each) => each.id === id);
      if (!object || !framesOf(object).length) return (video) => this.#remove(video, id);
    }
    for (const object of objects) {
      const known = this.#sent.get(object.id) ?? new Map();
      const changed = framesOf(object).find((frame) => known.get(frame) !== this.#keyOf(object, frame));
      if (changed !== undefined) return (video) => this.#prompt(video, object, changed);
      const gone = [...known.keys()].find((frame) => !object.prompts[frame]);
      if (gone !== undefined) return (video) => this.#clear(video, object.id, gone);
    }
    return null;
  }

  async #prompt(video, object, frame) {
    const key = this.#keyOf(object, frame);
    const { points, box } = object.prompts[frame];
    let note;
    try {
      const answer = await rest.prompt(video, {
        ...{ frame, object_id: object.id, box },
        points: points.map((point) => [point.x, point.y]),
        labels: points.length ? points.map((point) => point.label) : null,
      });
      note = () => this.keep(answer);
    } catch (problem) {
      if (problem.status !== 422) throw problem;
      note = () => this.#errors.set(key, problem.message); // this prompt always fails: do not send it again
    }
    return () => {
      note();
      this.#sent.set(object.id, (this.#sent.get(object.id) ?? new Map()).set(frame, key));
    };
  }

  async #clear(video, id, frame) {
    await unlessGone(rest.clearPrompt(video, frame, id));
    return () => {
      this.#sent.get(id)?.delete(frame);
      this.#found.get(frame)?.delete(id);
    };
  }

  async #remove(video, id) {
    await unlessGone(rest.removeObject(video, id));
    return () => {
      this.#sent.delete(id);
      for (const masks of this.#found.values()) masks.delete(id);
    };
  }

  #isActive(object) {
    return Number(object.id === this.#scene.activeId);
  }

  #isSent(object) {
    const known = this.#sent.get(object.id);
    return framesOf(object).every((frame) => known?.get(frame) === this.#keyOf(object, frame));
  }

  #keyOf(object, frame) {
    return JSON.stringify([object.id, frame, object.prompts[frame] ?? null]);
  }
}

/** Ignore unknown objects and prompts: the service rejected them before, so there is nothing to remove. */
async function unlessGone(call) {
  try {
    await call;
  } catch (problem) {
    if (!["unknown_object", "unknown_prompt"].includes(problem.code)) throw problem;
  }
}
