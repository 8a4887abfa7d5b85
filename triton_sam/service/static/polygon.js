// Polygons: corners are set one by one, and the closed outline is added to or cut from the active object's mask.

import { fillRings } from "./bitmap.js";
import { drawDisc, drawLines } from "./paint.js";
import { distanceOf, reachOf } from "./stage.js";

const SMALLEST = 3; // corners
const DRAG = 4; // screen pixels; a corner moved by less is clicked

export class Polygon {
  #page;
  #image = null; // the key of the corners' image
  #corners = []; // {x, y} in image pixels
  #held = null; // the corner under the pointer, {index, isNew, from, hasMoved}
  #at = null; // the mouse position

  constructor(page) {
    this.#page = page;
  }

  /** Whether it is the chosen tool. */
  get isOn() {
    return Boolean(this.#page.image) && ["polygon", "cut-polygon"].includes(this.#page.stage.tool);
  }

  /** The open image's corners, {x, y}. */
  get corners() {
    if (this.#image !== this.#page.image?.key) [this.#image, this.#corners, this.#held] = [this.#page.image?.key, [], null];
    return this.#corners;
  }

  get isClosable() {
    return this.corners.length >= SMALLEST;
  }

  get #cuts() {
    return this.#page.stage.tool === "cut-polygon";
  }

  /** Enter closes the polygon, Backspace removes the last corner, and Escape removes all corners. */
  key(key) {
    if (key === "enter") return this.isClosable && this.close();
    if (key === "escape") return this.discard();
    return (key === "backspace" || key === "delete") && this.takeBack();
  }

  /** Add a corner; the first or last one again closes the polygon. */
  set(point, pointer = "mouse") {
    const index = this.#cornerAt(point, pointer);
    if (index === null) this.#add(point);
    else if (this.#closes(index)) this.close();
  }

  down(point, event) {
    const index = this.#cornerAt(point, event.pointerType);
    if (event.button === 2) return index !== null && this.#remove(index);
    if (index === null && !this.#add(point)) return;
    const at = index ?? this.corners.length - 1;
    this.#held = { index: at, isNew: index === null, from: this.corners[at], start: point, hasMoved: false };
    this.hover(point);
  }

  move(point) {
    const held = this.#held;
    if (held && distanceOf(point, held.start) * this.#page.stage.scale > DRAG) held.hasMoved = true;
    if (held?.hasMoved) this.corners[held.index] = point;
    this.hover(point);
  }

  up() {
    const held = this.#held;
    this.#held = null;
    if (held && !held.isNew && !held.hasMoved && this.#closes(held.index)) this.close();
  }

  hover(point) {
    this.#at = point;
    this.#page.stage.redraw();
  }

  /** Undo the changes of the pressed pointer. */
  abort() {
    const held = this.#held;
    this.#held = null;
    if (held?.isNew) this.#remove(held.index);
    else if (held) this.corners[held.index] = held.from;
    this.hover(null);
  }

  /** Remove the last corner; return whether there was one. */
  takeBack() {
    return this.corners.length > 0 && this.#remove(this.corners.length - 1);
  }

  discard() {
    if (!this.corners.length) return false;
    this.#replace([]);
    return true;
  }

  /** Edit the active object's mask. The corners are restored if that fails. */
  close() {
    if (!this.isClosable) return false;
    const [corners, target, value] = [this.corners, this.#page.edits.active, this.#cuts ? 0 : 1];
    const key = this.#page.image.key;
    this.#replace([]);
    const { edits } = this.#page;
    void edits.attempt(async () => {
      try {
        const inside = await edits.bitmapOf(target);
        fillRings(inside, edits.size, [corners.flatMap(({ x, y }) => [x, y])], value);
        edits.give(target, inside);
      } catch (problem) {
        if (this.#page.image?.key === key && !this.corners.length) this.#replace(corners);
        throw problem;
      }
    });
    return true;
  }

  /** Draw the outline, its corners, and the line to the mouse. */
  paint(context, unit) {
    const corners = this.corners;
    if (!corners.length) return;
    const color = this.#cuts ? "#e13237" : (this.#page.edits.active?.color ?? "#1e90ff");
    const outline = new Path2D();
    for (const { x, y } of corners) outline.lineTo(x, y);
    if (this.#at && !this.#held) outline.lineTo(this.#at.x, this.#at.y);
    const area = new Path2D(outline);
    area.closePath();
    context.save();
    context.fillStyle = color;
    context.globalAlpha = 0.25;
    context.fill(area, "evenodd");
    context.globalAlpha = 1;
    context.lineJoin = "round";
    drawLines(context, unit, [[4, "rgb(0 0 0 / 60%)"], [2, "#fff"]], () => context.stroke(outline));
    corners.forEach(({ x, y }, index) => drawDisc(context, x, y, (index ? 4 : this.isClosable ? 7 : 5) * unit, color, 1.5 * unit));
    context.restore();
  }

  #closes(index) {
    return this.isClosable && (index === 0 || index === this.corners.length - 1);
  }

  #cornerAt(point, pointer) {
    const reach = reachOf(pointer) / this.#page.stage.scale;
    const distances = this.corners.map((corner) => distanceOf(corner, point));
    const nearest = distances.indexOf(Math.min(...distances));
    return nearest >= 0 && distances[nearest] <= reach ? nearest : null;
  }

  #add(point) {
    if (this.#cuts && !this.#page.edits.active) {
      void this.#page.edits.attempt(() => Promise.reject(new Error("select an object that has a mask and is shown")));
      return false;
    }
    this.#replace([...this.corners, point]);
    return true;
  }

  #remove(index) {
    this.#replace(this.corners.filter((_, at) => at !== index));
    return true;
  }

  #replace(corners) {
    [this.#image, this.#corners, this.#held] = [this.#page.image?.key, corners, null];
    this.#page.show();
  }
}
