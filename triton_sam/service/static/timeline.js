// A video's timeline: thumbnails, frames with masks for each object, marks of prompts, and the position.

import { drawDisc } from "./paint.js";
import { framesOf } from "./video-scene.js";

const LANES = 24; // height of all objects' rows, constant so that the image does not move; the thumbnails have the rest
const GAP = 6;
const MAX_LANE = 8;
const EDGE = 6; // room for marks at the first and last frame

export class Timeline {
  #canvas;
  #seek;
  #video = null;
  #load = null;
  #thumbs = new Map(); // index -> thumbnail
  #state = null; // {scene, masks, frame}
  #queued = false;
  #round = 0;

  /** ``goTo(frame)`` shows a frame. */
  constructor(canvas, seek, goTo) {
    this.#canvas = canvas;
    this.#seek = seek;
    seek.addEventListener("input", () => goTo(Number(seek.value)));
    new ResizeObserver(() => {
      void this.#loadThumbs();
      this.redraw();
    }).observe(canvas.parentElement);
  }

  /** Show another video; ``load(index, width)`` returns a thumbnail. */
  open(video, load) {
    this.#video = video;
    this.#load = load;
    this.#thumbs.clear();
    this.#seek.max = video.num_frames - 1;
    this.#seek.value = 0;
    void this.#loadThumbs();
  }

  close() {
    this.#video = null;
    this.#round++;
  }

  show(scene, masks, frame) {
    this.#state = { scene, masks, frame };
    this.#seek.value = frame;
    const isPrompted = scene.promptedFrames.includes(frame);
    this.#seek.setAttribute("aria-valuetext", `frame ${frame} of ${this.#seek.max}${isPrompted ? ", with a prompt" : ""}`);
    this.redraw();
  }

  redraw() {
    if (this.#queued) return;
    this.#queued = true;
    requestAnimationFrame(() => {
      this.#queued = false;
      this.#draw();
    });
  }

  get #width() {
    return this.#canvas.parentElement.clientWidth;
  }

  get #thumbHeight() {
    return this.#canvas.parentElement.clientHeight - LANES - GAP;
  }

  /** Return the positions of the thumbnails: [{index, x}]. */
  #places() {
    const wide = Math.max(24, (this.#thumbHeight * this.#video.width) / this.#video.height);
    const count = Math.max(1, Math.ceil((this.#width - 2 * EDGE) / wide));
    const last = this.#video.num_frames - 1;
    return Array.from({ length: count }, (_, n) => ({
      index: Math.min(last, Math.round(((n + 0.5) / count) * last)),
      x: EDGE + n * wide,
      wide,
    }));
  }

  /** Load the thumbnails one by one in frame order, so that the service decodes the video once. */
  async #loadThumbs() {
    const mine = ++this.#round;
    if (!this.#video || !this.#width) return;
    for (const { index, wide } of this.#places()) {
      if (this.#thumbs.has(index)) continue;
      try {
        const picture = await this.#load(index, Math.max(16, Math.round(wide * Math.min(2, devicePixelRatio || 1))));
        if (mine !== this.#round) return;
        this.#thumbs.set(index, picture);
        this.redraw();
      } catch {
        return; // another part of the page reports that the service is unavailable
      }
    }
  }

  #xOf(frame) {
    return EDGE + (frame / Math.max(1, this.#video.num_frames - 1)) * (this.#width - 2 * EDGE);
  }

  #draw() {
    if (!this.#video || !this.#state) return;
    const { clientWidth: width, clientHeight: height } = this.#canvas.parentElement;
    const ratio = devicePixelRatio || 1;
    this.#canvas.width = Math.max(1, Math.round(width * ratio));
    this.#canvas.height = Math.max(1, Math.round(height * ratio));
    const context = this.#canvas.getContext("2d");
    context.scale(ratio, ratio);
    this.#drawThumbs(context, width);
    const { objects } = this.#state.scene;
    const lane = Math.min(MAX_LANE, LANES / objects.length);
    const top = height - LANES - 1;
    objects.forEach((object, row) => this.#drawLane(context, object, top + lane * (row + 0.5), lane / MAX_LANE));
    this.#drawPosition(context, height);
  }

  #drawThumbs(context, width) {
    context.save();
    context.beginPath();
    context.roundRect(EDGE, 0, width - 2 * EDGE, this.#thumbHeight, 6);
    context.clip();
    for (const { index, x, wide } of this.#places()) {
      const picture = this.#thumbs.get(index);
      if (picture) context.drawImage(picture, x, 0, wide, this.#thumbHeight);
    }
    context.restore();
  }

  #drawLane(context, object, y, size) {
    const { masks, scene } = this.#state;
    context.lineCap = "round";
    context.globalAlpha = object.visible ? 1 : 0.4;
    context.strokeStyle = object.color;
    context.lineWidth = (object.id === scene.activeId ? 4 : 3) * size;
    for (const [first, last] of masks.rangesOf(object)) {
      context.beginPath();
      context.moveTo(this.#xOf(first), y);
      context.lineTo(this.#xOf(last), y);
      context.stroke();
    }
    for (const frame of framesOf(object)) {
      drawDisc(context, this.#xOf(frame), y, 1 + 3 * size, object.color, 1.5);
    }
    context.globalAlpha = 1;
  }

  #drawPosition(context, height) {
    const x = this.#xOf(this.#state.frame);
    const style = getComputedStyle(this.#canvas);
    for (const [wide, color] of [[5, style.getPropertyValue("--panel")], [2, style.color]]) {
      context.fillStyle = color;
      context.fillRect(x - wide / 2, 0, wide, height);
    }
  }
}
