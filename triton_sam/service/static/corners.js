// The corners of masks that are there: they are moved, added and removed, and the mask follows.

import { spansOfBitmap } from "./bitmap.js";
import { fillChange, nearestOn, ringsOf, toleranceOf } from "./contours.js";
import { say } from "./notices.js";
import { fillArea, paintCorner, strokeOutline } from "./polygon.js";
import { hasPrompt } from "./scene.js";
import { measure } from "./spans.js";
import { distanceOf, reachOf } from "./stage.js";

const DRAG = 4; // pixels of the screen; a shorter move is a click
const TWICE = 400; // ms between the two clicks of a double click
const STEP = 10; // pixels of the screen for an arrow key; with Shift it is one
const KEPT = 100; // outlines, for undo
const ARROWS = { arrowleft: [-1, 0], arrowright: [1, 0], arrowup: [0, -1], arrowdown: [0, 1] };
const NONE = { rings: [], reach: 0 };

export class Corners {
  #page;
  #edits;
  #known = new Map(); // {rings, reach} by the mask that they outline, see #keyOf
  #mask = { key: null, inside: null }; // the bitmap that was outlined last: its change waits for no request
  #key = null; // the mask of the outline that is shown
  #outline = NONE; // {rings, reach}: rings of corners {x, y}; a changed ring is a new one
  #chosen = null; // a corner, [number of the ring, number in the ring]
  #held = null; // the pointer that is down, {target, before, from, start, isNew, hasMoved}
  #pushed = null; // the arrow key that is down, {target, before}
  #added = []; // outlines before corners that were added since the mask has changed, for undo
  #waiting = 0; // changes that wait for the mask
  #clicked = null; // the last click on a side, {time, point}
  #detail = 0; // of outlines, see toleranceOf()

  /** page: {stage, scene, masks, show(), warn(text)} */
  constructor(page, edits) {
    [this.#page, this.#edits] = [page, edits];
  }

  /** Whether it is the chosen tool. */
  get isOn() {
    return Boolean(this.#edits.image) && this.#page.stage.tool === "corners";
  }

  /** The place of the chosen corner, [number of the ring, number in the ring]; null if there is none. */
  get chosen() {
    return this.#chosen && this.#rings[this.#chosen[0]]?.[this.#chosen[1]] ? this.#chosen : null;
  }

  get canTakeBack() {
    return this.isOn && this.#added.length > 0;
  }

  /** How far the outline may lie from the mask, in pixels of the image; 0 without an outline. */
  get tolerance() {
    return Math.max(0, this.#outline.reach - 1);
  }

  /** Outline all masks anew, with more corners or with fewer. */
  set detail(value) {
    this.abort();
    this.#detail = value;
    this.#known.clear();
    this.#key = null;
    void this.refresh();
  }

  get #rings() {
    return this.#outline.rings;
  }

  /** The active object, for changes that come later: {key, id}. */
  get #target() {
    return { key: this.#edits.image?.key, id: this.#edits.active?.id };
  }

  /** Outline the mask of the active object, unless it is outlined or being changed. */
  async refresh() {
    if (!this.isOn) this.abort(); // the pointer or the arrow key that is down does not reach this tool any more
    if (!this.isOn || this.#waiting || this.#held || this.#pushed) return;
    const key = this.#keyOf(this.#edits.active);
    if (key === this.#key) return;
    this.#take(key, this.#known.get(key));
    if (!key || this.#known.has(key)) return;
    try {
      const size = this.#edits.size;
      const detail = this.#detail;
      const inside = this.#mask.key === key ? this.#mask.inside : await this.#edits.bitmapOf(this.#edits.active);
      this.#mask = { key, inside };
      if (detail !== this.#detail) return; // another outline is being made
      const { bbox } = measure(spansOfBitmap(inside), size);
      const reach = bbox ? toleranceOf(bbox, detail) : 0;
      this.#remember(key, { rings: bbox ? ringsOf(inside, size, reach) : [], reach: reach + 1 });
    } catch (problem) {
      if (key === this.#keyOf(this.#edits.active)) this.#page.warn(`The corners cannot be shown: ${problem.message}`);
      return;
    }
    if (key !== this.#key) return;
    this.#take(key, this.#known.get(key));
    this.#page.show();
  }

  /** Keys: , and . choose a corner, arrows move it until settle(), I adds one, Delete removes it, Escape lets it go. */
  key(key, event) {
    const isSlider = event.target.matches?.("input[type=range]"); // the arrow keys are its own
    if (this.chosen && ARROWS[key]) return !isSlider && this.#push(ARROWS[key], event.shiftKey ? 1 : STEP);
    this.settle();
    if (key === "," || key === ".") return this.#step(key === "." ? 1 : -1);
    if (!this.chosen) return false;
    if (key === "escape") return this.#choose(null);
    if (key === "i") return this.add();
    return (key === "delete" || key === "backspace") && this.remove();
  }

  down(point, event) {
    this.settle();
    if (!this.#rings.length) this.#tryAgain();
    const corner = this.#cornerAt(point, event.pointerType);
    if (event.button === 2) return corner && (this.#choose(corner), this.remove());
    if (corner) this.#choose(corner);
    const isNew = !corner && this.#clickSide(point, event);
    const from = this.chosen && this.#cornerOf(this.chosen);
    this.#held = { target: this.#target, before: this.#outline, from, start: point, isNew, hasMoved: false };
  }

  move(point) {
    const held = this.#held;
    const { stage } = this.#page;
    if (held && distanceOf(point, held.start) * stage.scale > DRAG) held.hasMoved = true;
    if (held?.hasMoved && held.from) this.#moveTo({ x: held.from.x + point.x - held.start.x, y: held.from.y + point.y - held.start.y });
    stage.redraw();
  }

  /** Change the mask, or select the object under a click beside the corners. */
  up() {
    const held = this.#held;
    this.#held = null;
    if (held?.hasMoved && held.from) this.#change(held.target, held.before);
    else if (held && !held.from && !this.#clicked && !held.hasMoved) {
      this.#page.stage.dispatchEvent(new CustomEvent("pick", { detail: held.start }));
    }
    this.#page.show();
  }

  hover() {}

  /** Undo what the pointer or the arrow key that is down has done. */
  abort() {
    const now = this.#held ?? this.#pushed;
    if (!now) return;
    [this.#held, this.#pushed, this.#outline] = [null, null, now.before];
    if (now.isNew) this.takeBack();
    this.#page.stage.redraw();
  }

  /** Take back a corner that was added, if the mask has not changed since; return whether there was one. */
  takeBack() {
    if (!this.canTakeBack) return false;
    this.#outline = this.#added.pop();
    this.#remember(this.#key, this.#outline);
    return this.#choose(null);
  }

  /** Let the mask follow what an arrow key has done: it is up again. */
  settle() {
    const pushed = this.#pushed;
    this.#pushed = null;
    if (pushed) this.#change(pushed.target, pushed.before);
  }

  /** Add a corner in the middle of the side that follows the chosen corner, and choose it; return whether there was one. */
  add() {
    if (!this.chosen || this.#held) return false;
    const [at, index] = this.chosen;
    const [from, to] = [this.#rings[at][index], this.#rings[at][(index + 1) % this.#rings[at].length]];
    return this.#insert({ corner: { x: (from.x + to.x) / 2, y: (from.y + to.y) / 2 }, place: [at, index + 1] });
  }

  /** Remove the chosen corner; a ring of three goes as a whole. Return whether there was one. */
  remove() {
    if (!this.chosen || this.#held) return false;
    const [[at, index], before] = [this.chosen, this.#outline];
    const ring = this.#rings[at].filter((_, other) => other !== index);
    this.#chosen = ring.length < 3 ? null : [at, (index || ring.length) - 1];
    this.#replace(at, ring.length < 3 ? [] : [ring]);
    this.#change(this.#target, before);
    this.#page.show();
    return true;
  }

  /** Draw the outline and its corners. */
  paint(context, unit) {
    const path = new Path2D();
    for (const ring of this.#rings) {
      ring.forEach(({ x, y }, index) => (index ? path.lineTo(x, y) : path.moveTo(x, y)));
      path.closePath();
    }
    const color = this.#edits.active?.color ?? "#1e90ff";
    context.save();
    if (this.#held?.hasMoved || this.#pushed || this.#waiting) fillArea(context, path, color);
    strokeOutline(context, path, unit);
    const chosen = this.chosen && this.#cornerOf(this.chosen);
    for (const corner of this.#rings.flat()) paintCorner(context, corner.x, corner.y, (corner === chosen ? 7 : 4) * unit, color, unit);
    context.restore();
  }

  /** Return the mask of an object, as text that is another one for another mask; null without an object. */
  #keyOf(object) {
    if (!object) return null;
    const { id, points, box, choice, found } = object;
    const options = hasPrompt(object) && this.#page.masks.optionsOf(object);
    return JSON.stringify([this.#edits.image.key, id, points, box, choice, found, options]);
  }

  #take(key, outline = NONE) {
    [this.#key, this.#outline, this.#chosen, this.#clicked, this.#added] = [key, outline, null, null, []];
    this.#page.stage.redraw();
  }

  #remember(key, outline) {
    this.#known.set(key, outline);
    if (this.#known.size > KEPT) this.#known.delete(this.#known.keys().next().value);
  }

  /** Let the mask of an object follow the corners, after all earlier changes. */
  #change({ key, id }, { rings: before }) {
    const outline = this.#outline;
    this.#added = [];
    this.#waiting++;
    void this.#edits.attempt(async () => {
      try {
        const target = this.#edits.image?.key === key && this.#page.scene.objects.find((object) => object.id === id);
        if (!target) return void (this.#key = null); // the user has deleted it, or has gone on to another image
        const isOutlined = this.#mask.key === this.#keyOf(target);
        const inside = isOutlined ? this.#mask.inside.slice() : await this.#edits.bitmapOf(target);
        fillChange(inside, this.#edits.size, before, outline.rings, outline.reach);
        this.#edits.give(target, inside, () => this.#followed(outline));
      } catch (problem) {
        this.#key = null; // the corners go back to the mask
        throw problem;
      } finally {
        this.#waiting--;
        void this.refresh();
      }
    });
  }

  /** The mask of the active object follows an outline now, so undo comes back to it. */
  #followed(outline) {
    this.#key = this.#keyOf(this.#edits.active);
    this.#remember(this.#key, outline);
  }

  /** Outline the mask again: that may have failed before. */
  #tryAgain() {
    this.#key = null;
    void this.refresh();
  }

  #cornerOf([at, index]) {
    return this.#rings[at][index];
  }

  #choose(corner) {
    this.#chosen = corner;
    if (corner) {
      const { x, y } = this.#cornerOf(corner);
      const number = this.#rings.slice(0, corner[0]).flat().length + corner[1] + 1;
      say(`Corner ${number} of ${this.#rings.flat().length}: ${Math.round(x)}, ${Math.round(y)}`);
    }
    this.#page.show();
    return true;
  }

  /** Choose the next corner, or the one before. */
  #step(by) {
    const all = this.#rings.flatMap((ring, at) => ring.map((_, index) => [at, index]));
    if (!all.length) return false;
    const [at, index] = this.chosen ?? [0, by > 0 ? -1 : 0];
    const place = this.#rings.slice(0, at).flat().length + index;
    const corner = all.at((place + by) % all.length);
    this.#choose(corner);
    this.#page.stage.reveal(this.#cornerOf(corner));
    return true;
  }

  #push([right, down], step) {
    if (this.#held) return true;
    const { scale } = this.#page.stage;
    const { x, y } = this.#cornerOf(this.chosen);
    this.#pushed ??= { target: this.#target, before: this.#outline };
    this.#moveTo({ x: x + (right * step) / scale, y: y + (down * step) / scale });
    return this.#choose(this.chosen);
  }

  #moveTo({ x, y }) {
    const [height, width] = this.#edits.size;
    const limit = (value, high) => Math.min(high, Math.max(0, value));
    const [at, index] = this.chosen;
    this.#replace(at, [this.#rings[at].with(index, { x: limit(x, width), y: limit(y, height) })]);
    this.#page.stage.redraw();
  }

  #replace(at, rings) {
    this.#outline = { ...this.#outline, rings: this.#rings.toSpliced(at, 1, ...rings) };
  }

  /** The second click on a side adds a corner; return whether it did. */
  #clickSide(point, { timeStamp: time, pointerType }) {
    const [side, last] = [this.#sideAt(point, pointerType), this.#clicked];
    const isSecond = side && last && time - last.time < TWICE && this.#isNear(point, last.point, pointerType);
    this.#chosen = null;
    this.#clicked = side && !isSecond ? { time, point } : null;
    return Boolean(isSecond) && this.#insert(side);
  }

  /** Add a corner {x, y} at a place. The mask changes only when the corner moves. */
  #insert({ corner, place }) {
    const [at, index] = place;
    this.#added.push(this.#outline);
    this.#replace(at, [this.#rings[at].toSpliced(index, 0, corner)]);
    if (!this.#waiting) this.#remember(this.#key, this.#outline);
    return this.#choose(place);
  }

  #isNear(a, b, pointer) {
    return distanceOf(a, b) * this.#page.stage.scale <= reachOf(pointer);
  }

  #cornerAt(point, pointer) {
    const all = this.#rings.flatMap((ring, at) => ring.map((corner, index) => ({ corner, place: [at, index] })));
    return nearest(point, all.filter(({ corner }) => this.#isNear(point, corner, pointer)))?.place ?? null;
  }

  /** Return the place for a corner on a side under the pointer, {corner, place}; null if there is no side. */
  #sideAt(point, pointer) {
    const all = this.#rings.flatMap((ring, at) =>
      ring.map((from, index) => ({ corner: nearestOn(point, from, ring[(index + 1) % ring.length]), place: [at, index + 1] })),
    );
    return nearest(point, all.filter(({ corner }) => this.#isNear(point, corner, pointer)));
  }
}

function nearest(point, places) {
  const distances = places.map(({ corner }) => distanceOf(point, corner));
  return places[distances.indexOf(Math.min(...distances))] ?? null;
}
