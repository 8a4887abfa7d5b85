// Brush and eraser: each stroke edits the active object's mask at full size, as one undo step.

import { stroke } from "./bitmap.js";
import { $ } from "./dom.js";
import { drawLines } from "./paint.js";
import { distanceOf } from "./stage.js";

const STEP = 1.25;
const SIZES = [2, 400]; // screen pixels
const COARSE = 2; // screen pixels between two points of a stroke

export class Brush {
  size = 24; // diameter in screen pixels, at any zoom
  #page;
  #points = [];
  #radius = 0;
  #target = null;
  #at = null; // the mouse position

  constructor(page) {
    this.#page = page;
  }

  get #isEraser() {
    return this.#page.stage.tool === "erase";
  }

  resize(by) {
    this.size = Math.round(Math.min(SIZES[1], Math.max(SIZES[0], by > 0 ? this.size * STEP + 1 : this.size / STEP)));
    this.#page.stage.redraw();
  }

  /** The keys [ and ] change the size. */
  key(key) {
    if (key !== "[" && key !== "]") return false;
    this.resize(key === "]" ? 1 : -1);
    $("brush-size").value = this.size;
    return true;
  }

  down(point) {
    if (this.#isEraser && !this.#page.edits.active) return;
    this.#target = this.#page.edits.active;
    this.#radius = this.size / 2 / this.#page.stage.scale;
    this.#points = [point];
    this.hover(point);
  }

  move(point) {
    const last = this.#points.at(-1);
    const isFar = last && distanceOf(point, last) * this.#page.stage.scale >= COARSE;
    if (isFar) this.#points.push(point);
    this.hover(point);
  }

  /** Edit the mask. A stroke drawn while an earlier one waits for its mask is applied after it. */
  up() {
    const [points, radius, value] = [this.#points, this.#radius, this.#isEraser ? 0 : 1];
    const id = this.#target?.id;
    this.#points = [];
    if (!points.length) return;
    const { scene, edits } = this.#page;
    const before = scene.activeId;
    void edits.attempt(async () => {
      const wanted = id ?? (scene.activeId !== before ? scene.activeId : null);
      const target = scene.objects.find((object) => object.id === wanted) ?? null;
      if (id && !target) return; // the user has deleted it
      const inside = await edits.bitmapOf(target);
      points.forEach((point, i) => stroke(inside, edits.size, points[Math.max(0, i - 1)], point, radius, value));
      edits.give(target, inside);
    });
  }

  hover(point) {
    this.#at = point;
    this.#page.stage.redraw();
  }

  abort() {
    this.#points = [];
    this.hover(null);
  }

  /** Draw the stroke, and a ring as large as the brush. */
  paint(context, unit) {
    context.save();
    context.lineCap = context.lineJoin = "round";
    if (this.#points.length) {
      context.globalAlpha = 0.6;
      context.strokeStyle = this.#isEraser ? "#fff" : (this.#target?.color ?? "#1e90ff");
      context.lineWidth = 2 * this.#radius;
      context.beginPath();
      for (const { x, y } of [this.#points[0], ...this.#points]) context.lineTo(x, y);
      context.stroke();
    }
    if (this.#at) {
      context.globalAlpha = 1;
      context.beginPath();
      context.arc(this.#at.x, this.#at.y, (this.size / 2) * unit, 0, 2 * Math.PI);
      drawLines(context, unit, [[3, "rgb(0 0 0 / 60%)"], [1.5, "#fff"]], () => context.stroke());
    }
    context.restore();
  }
}
