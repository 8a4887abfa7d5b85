// The canvas of both pages: it shows image and masks, zooms and pans, and converts mouse, pen and touch to prompts.

const DRAG_PIXELS = 8; // screen pixels; a shorter move is a click, because hands and pens tremble
const SMALLEST_BOX = 8; // minimum screen pixels per side
const EDGE = 4; // screen pixels between the keyboard cursor and the edge
const MAX_ZOOM = 32;
const WHEEL = 0.0016;
const REACH = { mouse: 9, pen: 12, touch: 22 }; // screen pixels around a point or a corner

export class Stage {
  tool = "add";
  /** Handlers of canvas events: {hover, leave, point, box, pick, movePoint, removePoint, view}. */
  on = {};
  /** Whether dragging pans the image unless the box tool is chosen; otherwise it draws a box with every tool. */
  dragsMove = false;
  picture = null;
  size = null;
  #canvas;
  /** Returns the point that can be grabbed at a position of the image, as {label, ...}; null without one. */
  handleAt = () => null;
  #frame;
  #paint;
  #paintPicture;
  #view = { scale: 1, x: 0, y: 0 };
  #fitted = true;
  #pointers = new Map();
  #drag = null;
  #pinch = null;
  #space = false;
  #queued = false;
  #ratio = 1; // canvas pixels per window pixel

  /** ``paint(context)`` draws on the image, in image pixels; ``paintPicture(context, ratio)`` draws tiles. */
  constructor(frame, canvas, paint, paintPicture = null) {
    this.#frame = frame;
    this.#canvas = canvas;
    this.#paint = paint;
    this.#paintPicture = paintPicture;
    new ResizeObserver(() => this.#resize()).observe(frame);
    this.#watchRatio();
    canvas.addEventListener("pointerdown", (event) => this.#down(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    canvas.addEventListener("pointerup", (event) => this.#up(event));
    canvas.addEventListener("pointercancel", (event) => this.#cancel(event));
    canvas.addEventListener("pointerleave", () => this.tell("leave"));
    canvas.addEventListener("contextmenu", (event) => event.preventDefault());
    canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    this.cursor();
  }

  get scale() {
    return this.#view.scale;
  }

  /** Image pixels per window pixel. */
  get unit() {
    return 1 / this.#view.scale;
  }

  get box() {
    return this.#drag?.kind === "box" ? rectangle(this.#drag.from, this.#drag.to, this.size) : null;
  }

  /** The moved point, {x, y, label}; null without one. */
  get moving() {
    return this.#drag?.kind === "handle" ? { ...this.#drag.to, label: this.#drag.handle.label } : null;
  }

  show(picture, size) {
    this.picture = picture;
    this.size = size;
    this.fit();
    this.draw();
  }

  /** Show another frame of the same size, without changing the view. */
  swap(picture) {
    this.picture = picture;
    this.draw();
  }

  fit() {
    if (!this.size) return;
    const { width, height } = this.#frame.getBoundingClientRect();
    const room = roomBeside();
    const fitting = Math.min(
      (width - room.left - room.right) / this.size.width,
      (height - room.top - room.bottom) / this.size.height,
      4,
    );
    const scale = Math.max(this.#smallest, fitting); // a small window may have no room beside the buttons
    this.#view = {
      scale,
      x: room.left + (width - room.left - room.right - this.size.width * scale) / 2,
      y: room.top + (height - room.top - room.bottom - this.size.height * scale) / 2,
    };
    this.#fitted = true;
    this.#changed();
  }

  get #smallest() {
    return Math.min(0.05, 60 / Math.max(this.size.width, this.size.height));
  }

  /** Zoom around a point of the screen, or around the middle of the stage. */
  zoom(factor, at) {
    if (!this.size) return;
    const { width, height } = this.#frame.getBoundingClientRect();
    const { x, y } = at ?? { x: width / 2, y: height / 2 };
    const scale = Math.min(MAX_ZOOM, Math.max(this.#smallest, this.#view.scale * factor));
    const by = scale / this.#view.scale;
    this.#view = { scale, x: x - (x - this.#view.x) * by, y: y - (y - this.#view.y) * by };
    this.#fitted = false;
    this.#changed();
  }

  /** Return an image pixel's position on the canvas. */
  toScreen(x, y) {
    return [this.#view.x + x * this.#view.scale, this.#view.y + y * this.#view.scale];
  }

  /** Return an image pixel's position in the window. */
  screenOf(x, y) {
    const frame = this.#canvas.getBoundingClientRect();
    const [left, top] = this.toScreen(x, y);
    return [frame.x + left, frame.y + top];
  }

  /** Return left, top, right and bottom of the canvas in image pixels. */
  shown() {
    const { width, height } = this.#frame.getBoundingClientRect();
    const [from, to] = [this.#pixel({ x: 0, y: 0 }), this.#pixel({ x: width, y: height })];
    return [from.x, from.y, to.x, to.y];
  }

  /** Return the image position in the middle of the canvas, [x, y]. */
  middle() {
    const [left, top, right, bottom] = this.shown();
    return [(left + right) / 2, (top + bottom) / 2];
  }

  /** Pan the image by window pixels. */
  move(right, down) {
    this.#view = { ...this.#view, x: this.#view.x + right, y: this.#view.y + down };
    this.#fitted = false;
    this.redraw();
  }

  /** Pan if an image pixel is outside the view or at its edge. */
  reveal({ x, y }) {
    const { width, height } = this.#frame.getBoundingClientRect();
    const inside = (at, side) => Math.min(side - EDGE, Math.max(EDGE, at)) - at;
    const by = [inside(this.#view.x + x * this.#view.scale, width), inside(this.#view.y + y * this.#view.scale, height)];
    if (by[0] || by[1]) this.move(...by);
    else this.redraw();
  }

  holdSpace(held) {
    this.#space = held;
    this.cursor();
  }

  abort() {
    this.#drag = null;
    this.redraw();
  }

  cursor() {
    const panning = this.tool === "pan" || this.#space;
    this.#frame.dataset.cursor = this.#drag?.kind === "pan" ? "grabbing" : panning ? "grab" : "cross";
  }

  redraw() {
    if (this.#queued) return;
    this.#queued = true;
    requestAnimationFrame(() => {
      this.#queued = false;
      this.draw();
    });
  }

  /** Draw now. */
  draw() {
    const context = this.#canvas.getContext("2d");
    const ratio = this.#ratio;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.#canvas.width, this.#canvas.height);
    if (!this.picture) return;
    const { scale, x, y } = this.#view;
    this.#paintPicture?.(context, ratio);
    context.setTransform(ratio * scale, 0, 0, ratio * scale, ratio * x, ratio * y);
    if (!this.#paintPicture) {
      context.imageSmoothingEnabled = scale < 4;
      context.imageSmoothingQuality = "medium"; // "high" takes three times as long, and every preview draws this
      context.drawImage(this.picture, 0, 0, this.size.width, this.size.height);
    }
    this.#paint(context);
  }

  #resize() {
    const { width, height } = this.#frame.getBoundingClientRect();
    this.#ratio = devicePixelRatio || 1;
    this.#canvas.width = Math.max(1, Math.round(width * this.#ratio));
    this.#canvas.height = Math.max(1, Math.round(height * this.#ratio));
    if (this.#fitted) this.fit();
    this.draw();
  }

  /** Watch the pixel ratio: on another monitor it changes without the size, so ResizeObserver does not fire. */
  #watchRatio() {
    const changed = () => (this.#resize(), this.#watchRatio());
    matchMedia(`(resolution: ${devicePixelRatio}dppx)`).addEventListener("change", changed, { once: true });
  }

  #changed() {
    this.tell("view");
    this.redraw();
  }

  /** Call a handler of canvas events. */
  tell(type, detail) {
    this.on[type]?.(detail);
  }

  #screen(event) {
    const frame = this.#canvas.getBoundingClientRect();
    return { x: event.clientX - frame.left, y: event.clientY - frame.top };
  }

  #pixel(screen) {
    return { x: (screen.x - this.#view.x) / this.#view.scale, y: (screen.y - this.#view.y) / this.#view.scale };
  }

  #inside(point) {
    return point.x >= 0 && point.y >= 0 && point.x <= this.size.width && point.y <= this.size.height;
  }

  #label(event) {
    const cut = this.tool === "cut";
    const other = event.button === 2 || (event.buttons & 2) !== 0 || event.altKey || event.shiftKey;
    return cut !== other ? 0 : 1;
  }

  #down(event) {
    if (!this.picture) return;
    event.preventDefault();
    const screen = this.#screen(event);
    this.#pointers.set(event.pointerId, screen);
    this.#canvas.setPointerCapture(event.pointerId);
    if (this.#pointers.size === 2) return this.#startPinch();
    const pans = this.tool === "pan" || this.#space || event.button === 1;
    const from = this.#pixel(screen);
    const handle = pans ? null : this.handleAt(from, event.pointerType);
    const picks = this.tool === "select" || event.ctrlKey || event.metaKey;
    this.#drag = { kind: pans ? "pan" : "press", screen, last: screen, from, to: from, label: this.#label(event), handle, picks };
    this.cursor();
  }

  #move(event) {
    if (!this.picture) return;
    const screen = this.#screen(event);
    if (this.#pointers.has(event.pointerId)) this.#pointers.set(event.pointerId, screen);
    if (this.#pinch) return this.#movePinch();
    if (this.#drag) return this.#dragTo(screen, event.pointerType === "touch");
    const point = this.#pixel(screen);
    if (event.pointerType === "touch") return;
    if (["pan", "box", "select"].includes(this.tool) || this.#space || !this.#inside(point)) this.tell("leave");
    else this.tell("hover", { ...point, label: this.#label(event), time: event.timeStamp });
  }

  #dragTo(screen, byTouch) {
    const drag = this.#drag;
    if (drag.kind === "press" && distanceOf(screen, drag.screen) > DRAG_PIXELS) {
      // A moving finger pans the image, unless the box tool is chosen; with the select tool, any drag does.
      const pans = this.tool === "select" || ((byTouch || this.dragsMove) && this.tool !== "box");
      drag.kind = drag.handle ? "handle" : pans ? "pan" : "box";
      this.tell("leave");
      this.cursor();
    }
    if (drag.kind === "pan") this.move(screen.x - drag.last.x, screen.y - drag.last.y);
    drag.last = screen;
    drag.to = this.#pixel(screen);
    this.redraw();
  }

  #up(event) {
    this.#pointers.delete(event.pointerId);
    const drag = this.#drag;
    this.#drag = null;
    this.cursor();
    const time = event.timeStamp;
    if (this.#pinch) {
      if (this.#pointers.size === 0) this.#pinch = null;
      return;
    }
    if (!drag) return;
    if (drag.kind === "handle") {
      if (this.#inside(drag.to)) this.tell("movePoint", { x: rounded(drag.to.x), y: rounded(drag.to.y), handle: drag.handle, time });
    } else if (drag.kind === "press" && drag.picks) {
      this.tell("pick", drag.from);
    } else if (drag.kind === "press" && drag.handle) {
      if (!drag.label) this.tell("removePoint", { handle: drag.handle, time });
    } else if (drag.kind === "press" && this.tool !== "box" && this.#inside(drag.from)) {
      this.tell("point", { ...drag.from, label: drag.label, time });
    } else if (drag.kind === "box") {
      const box = rectangle(drag.from, drag.to, this.size);
      const sides = [box[2] - box[0], box[3] - box[1]];
      if (Math.min(...sides) * this.scale >= SMALLEST_BOX) this.tell("box", { box, time });
    }
    this.redraw();
  }

  #cancel(event) {
    this.#pointers.delete(event.pointerId);
    this.#pinch = null;
    this.abort();
  }

  #startPinch() {
    this.#drag = null;
    this.tell("leave");
    this.#pinch = fingers(this.#pointers);
  }

  #movePinch() {
    if (this.#pointers.size < 2) return;
    const now = fingers(this.#pointers);
    this.#view.x += now.x - this.#pinch.x;
    this.#view.y += now.y - this.#pinch.y;
    this.zoom(now.distance / this.#pinch.distance, now);
    this.#pinch = now;
  }

  #wheel(event) {
    if (!this.picture) return;
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 16 : 1;
    this.zoom(Math.exp(-event.deltaY * lines * WHEEL * (event.ctrlKey ? 4 : 1)), this.#screen(event));
  }
}

/** Return the space around the image for the buttons, whose positions style.css chooses by the same conditions. */
function roomBeside() {
  const isLow = matchMedia("(max-height: 500px)").matches;
  if (isLow && matchMedia("(min-aspect-ratio: 11/10)").matches) return { left: 128, top: 8, right: 8, bottom: 8 };
  if (matchMedia("(max-width: 860px)").matches) return { left: 8, top: isLow ? 60 : 68, right: 8, bottom: isLow ? 8 : 68 };
  return { left: 68, top: 16, right: 16, bottom: 64 };
}

/** Return the reach of a kind of pointer around a point or a corner, in screen pixels. */
export function reachOf(pointer) {
  return REACH[pointer] ?? REACH.mouse;
}

/** Return the distance of two points {x, y}. */
export function distanceOf(a, b) {
  return Math.hypot(a.x - b.x, a.y - b.y);
}

/** Round a position to a hundredth of a pixel. */
export function rounded(value) {
  return Math.round(value * 100) / 100;
}

function fingers(pointers) {
  const [a, b] = [...pointers.values()];
  return { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2, distance: Math.max(1, distanceOf(a, b)) };
}

/** Return the box between two points {x, y}, [x1, y1, x2, y2], within an image of this size. */
export function rectangle(from, to, size) {
  const limit = (value, high) => Math.min(high, Math.max(0, value));
  return [
    limit(Math.min(from.x, to.x), size.width),
    limit(Math.min(from.y, to.y), size.height),
    limit(Math.max(from.x, to.x), size.width),
    limit(Math.max(from.y, to.y), size.height),
  ];
}
