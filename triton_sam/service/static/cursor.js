// A keyboard cursor: Enter starts it, the arrow keys move it, and Enter sets a point or the corner of a box.

import { $ } from "./dom.js";
import { say } from "./notices.js";
import { rectangle } from "./stage.js";

const STEP = 10; // screen pixels; 1 with Shift
const TOOLS = ["add", "cut", "box", "select"];
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const SPEECH_PAUSE = 400; // ms: a screen reader reads where the cursor stops, not each step

export class Cursor {
  /** {x, y} in image pixels; null without a cursor. */
  place = null;
  /** The first corner of a box, {x, y}. */
  corner = null;
  #page;
  #saying = null;

  constructor(page) {
    this.#page = page;
    const canvas = $("canvas");
    addEventListener("keydown", (event) => this.#press(event), true); // before the shortcuts, which also use arrows
    canvas.addEventListener("pointerdown", () => this.end());
    canvas.addEventListener("blur", () => this.end());
  }

  end() {
    if (!this.place) return false;
    this.place = this.corner = null;
    this.#page.preview.end();
    this.#page.stage.redraw();
    return true;
  }

  /** Discard the first corner of a box. */
  abort() {
    this.corner = null;
  }

  /** End the cursor if the chosen tool has none, because the tool uses the arrow keys. */
  follow() {
    if (!TOOLS.includes(this.#page.stage.tool) && !this.#page.handTools.polygon.isOn) this.end();
  }

  #press(event) {
    if (document.querySelector("dialog[open]") || ![$("canvas"), document.body].includes(event.target)) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (!this.#handle(event)) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  }

  #handle(event) {
    if (event.key === "Enter" && this.#takesEnter()) return this.place ? this.#set(event) : this.#begin();
    if (!this.place) return false;
    if (event.key === "Escape") return this.end();
    return Boolean(ARROWS[event.key]) && this.#move(ARROWS[event.key], event.shiftKey ? 1 : STEP, event.timeStamp);
  }

  /** Without a cursor, Enter closes a polygon that has enough corners. */
  #takesEnter() {
    const { stage, everything, takesClicks, handTools: { polygon } } = this.#page;
    return takesClicks && !everything.takesClicks && (polygon.isOn ? this.place !== null || !polygon.isClosable : TOOLS.includes(stage.tool));
  }

  #begin() {
    const { stage } = this.#page;
    const { width, height } = stage.size;
    $("canvas").focus();
    this.place = { x: width / 2, y: height / 2 };
    stage.reveal(this.place);
    const effect = stage.tool === "select" ? "selects the object of a mask" : "sets a point";
    say(`Cursor in the middle of the image, ${width} by ${height} pixels. Arrow keys move it, Enter ${effect}, Escape ends.`);
    return true;
  }

  #move([right, down], step, time) {
    const { stage, handTools: { polygon } } = this.#page;
    const limit = (value, high) => Math.min(high, Math.max(0, value));
    this.place = {
      x: limit(this.place.x + (right * step) / stage.scale, stage.size.width),
      y: limit(this.place.y + (down * step) / stage.scale, stage.size.height),
    };
    stage.reveal(this.place);
    if (polygon.isOn) polygon.hover(this.place);
    else if (!["box", "select"].includes(stage.tool)) stage.tell("hover", { ...this.place, label: stage.tool === "cut" ? 0 : 1, time });
    clearTimeout(this.#saying);
    this.#saying = setTimeout(() => this.place && say(`${Math.round(this.place.x)}, ${Math.round(this.place.y)}`), SPEECH_PAUSE);
    return true;
  }

  #set(event) {
    const { stage, handTools: { polygon } } = this.#page;
    const time = event.timeStamp;
    if (polygon.isOn) {
      polygon.set(this.place);
      say(`${polygon.corners.length} corners.`);
    } else if (stage.tool === "select") {
      stage.tell("pick", this.place);
    } else if (stage.tool !== "box") {
      stage.tell("point", { ...this.place, label: (stage.tool === "cut") !== event.shiftKey ? 0 : 1, time });
    } else if (!this.corner) {
      this.corner = this.place;
      say("First corner of the box.");
    } else {
      const box = rectangle(this.corner, this.place, stage.size);
      this.corner = null;
      if (box[2] - box[0] >= 1 && box[3] - box[1] >= 1) stage.tell("box", { box, time });
    }
    stage.redraw();
    return true;
  }
}
