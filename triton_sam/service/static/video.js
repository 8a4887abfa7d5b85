// The video mode of the page: it opens a video, shows and plays its frames, and tracks the objects.

import { KeptVideo } from "./kept-video.js";
import { Timeline } from "./timeline.js";
import { Frames } from "./video-frames.js";
import { VideoMasks } from "./video-masks.js";
import * as rest from "./video-rest.js";
import { VideoScene } from "./video-scene.js";

const $ = (id) => document.getElementById(id);
const LARGEST = 1280; // width of the pictures of frames
const NOTE_PAUSE = 100; // ms
const AHEAD = 6; // frames that are loaded before they are played
const VIDEO_NAME = /\.(mp4|m4v|mov|webm|mkv|avi)$/i;

export function isVideo(file) {
  return file.type.startsWith("video/") || VIDEO_NAME.test(file.name ?? "");
}

export class Video {
  scene = new VideoScene();
  masks = new VideoMasks(this.scene);
  /** The open video as the service describes it, with name, stem and file; null when none is open. */
  info = null;
  isTracking = false;
  /** How often tracking has ended. */
  ended = 0;
  #page;
  #keeper = new KeptVideo();
  #noting = null; // a timer
  #noted = ""; // the state that was kept last
  #frames = null;
  #timeline;
  #wanted = 0; // the frame that is shown as soon as its picture is there
  #playing = null;
  #follows = true; // whether the page shows each frame that is tracked
  #newest = 0; // the frame that was tracked last
  #tracked = null; // resolves when tracking has ended

  /** page: {stage, settings, show, warn, problem} */
  constructor(page) {
    this.#page = page;
    this.masks.before = () => this.stop();
    this.masks.changed = (frame, objects) => this.#keeper.keep(frame, objects);
    this.#timeline = new Timeline($("marks"), $("seek"), (frame) => this.goTo(frame));
    addEventListener("pagehide", () => {
      this.#note();
      if (this.info) rest.forget(this.info.id);
    });
    addEventListener("beforeunload", (event) => {
      this.#note();
      if (this.info && this.scene.objects.length && !this.#keeper.isSafe) event.preventDefault();
    });
    $("play").addEventListener("click", () => this.togglePlay());
    $("step-back").addEventListener("click", () => this.step(-1));
    $("step-forward").addEventListener("click", () => this.step(1));
    $("track-back").addEventListener("click", () => void this.track("back"));
    $("track-both").addEventListener("click", () => void this.track("both"));
    $("track-forward").addEventListener("click", () => void this.track("forward"));
    $("track-stop").addEventListener("click", () => void this.stop());
  }

  get isOpen() {
    return this.info !== null;
  }

  /** Whether prompts and masks are in the browser's database. */
  get isSafe() {
    return this.#noting === null && this.#keeper.isSafe;
  }

  get last() {
    return this.info.num_frames - 1;
  }

  /** Return the video that was open when the page was closed; null if there is none. */
  kept() {
    return this.#keeper.open();
  }

  /** Upload a video and show its first frame; with what kept() has returned, the frame that was shown, prompts and masks. */
  async open(file, signal, heard, kept = null) {
    const info = await rest.upload(file, this.#page.settings.model, signal, heard);
    const frames = this.#framesOf(info);
    const state = kept?.state ? JSON.parse(kept.state) : null;
    const frame = Math.min(state?.frame ?? 0, info.num_frames - 1);
    let first;
    try {
      first = await frames.get(frame);
      signal.throwIfAborted();
    } catch (error) {
      frames.close();
      rest.forget(info.id);
      throw error;
    }
    this.close();
    this.#take(info, file, frames);
    this.scene.reset();
    this.masks.reset();
    if (kept) this.#keeper.resume(kept);
    else this.#keeper.begin(file, this.info.name, info.model);
    if (state) {
      this.scene.restore(state.scene);
      if (kept.model === info.model) this.masks.restore(kept.masks, state.answered);
      else this.#keeper.forgetMasks(info.model);
    }
    this.scene.view(frame);
    this.#wanted = frame;
    this.#page.stage.show(first, { width: info.width, height: info.height });
  }

  /** Upload the video again, and send all prompts: for another model, or for a service that has forgotten it. */
  async reopen(signal, heard) {
    const { file, id } = this.info;
    const info = await rest.upload(file, this.#page.settings.model, signal, heard);
    const isAnother = info.model !== this.info.model;
    this.#take(info, file, this.#framesOf(info));
    rest.forget(id); // after its frames: none of them is asked for any more
    if (isAnother) {
      this.masks.reset();
      this.#keeper.forgetMasks(info.model);
    } else this.masks.forgetSent();
    await this.masks.refresh();
  }

  close() {
    if (!this.info) return;
    this.pause();
    this.#frames.close();
    this.#timeline.close();
    rest.forget(this.info.id); // after its frames: none of them is asked for any more
    this.info = this.masks.video = null;
    this.#keeper.end();
    this.#noted = "";
  }

  /** Show a frame. */
  goTo(frame) {
    this.pause();
    this.#follows = false;
    void this.#show(frame);
  }

  step(by) {
    if (this.info) this.goTo(Math.min(this.last, Math.max(0, this.#wanted + by)));
  }

  /** Go to the next frame with a prompt (``by`` 1), or to the one before (-1). */
  jump(by) {
    const frames = this.scene.promptedFrames.filter((frame) => (frame - this.#wanted) * by > 0);
    if (frames.length) this.goTo(by > 0 ? frames[0] : frames.at(-1));
  }

  togglePlay() {
    if (!this.info) return;
    if (this.#playing) this.pause();
    else void this.#play();
  }

  pause() {
    if (!this.#playing) return;
    this.#playing = null;
    this.update();
  }

  /** Whether a click counts: the picture on the screen is that of the frame. */
  get isAtRest() {
    return this.scene.frame === this.#wanted;
  }

  /** Track all objects from the frame on the screen. */
  async track(direction) {
    if (!this.info || this.isTracking || !this.scene.promptedFrames.length) return;
    this.pause();
    await this.masks.refresh(); // the service must know the newest clicks
    if (this.isTracking) return;
    const start = this.scene.frame;
    const ways = { forward: [false], back: [true], both: [false, true] }[direction];
    this.isTracking = true;
    this.#page.warn("");
    this.#tracked = this.#trackWays(ways, start).finally(() => {
      this.isTracking = false;
      this.ended++;
      this.#page.show();
    });
    this.#page.show();
    await this.#tracked;
  }

  /** Stop tracking, and wait until it has stopped. */
  async stop() {
    if (!this.isTracking) return;
    $("track-stop").disabled = true;
    try {
      await rest.cancel(this.info.id);
    } catch (problem) {
      this.#page.problem(problem);
    }
    await this.#tracked;
  }

  /** Show the state of everything around the canvas. */
  update() {
    $("timeline").hidden = !this.info;
    if (!this.info) return;
    this.#noting ??= setTimeout(() => this.#note(), NOTE_PAUSE);
    this.#timeline.show(this.scene, this.masks, this.#wanted);
    $("frame-number").textContent = `${this.#wanted} / ${this.last}`;
    const label = this.#playing ? "Pause" : "Play";
    $("play").setAttribute("aria-label", label);
    $("play").title = `${label} (Space)`;
    $("play").querySelector("use").setAttribute("href", this.#playing ? "#i-pause" : "#i-play");
    $("step-back").disabled = this.#wanted === 0;
    $("step-forward").disabled = this.#wanted === this.last;
    const nothing = this.scene.promptedFrames.length === 0;
    $("track-back").disabled = nothing || this.#wanted === 0;
    $("track-forward").disabled = nothing || this.#wanted === this.last;
    $("track-both").disabled = nothing;
    $("track-ways").hidden = this.isTracking;
    $("track-running").hidden = !this.isTracking;
    $("track-stop").disabled = false;
  }

  /** Keep the prompts and the frame that is shown, if they have changed. */
  #note() {
    clearTimeout(this.#noting);
    this.#noting = null;
    if (!this.info) return;
    const { scene, masks } = this;
    const state = JSON.stringify({ frame: this.#wanted, scene: scene.state, answered: masks.answered });
    if (state === this.#noted) return;
    this.#noted = state;
    this.#keeper.note(state);
  }

  #take(info, file, frames) {
    const name = file.name || "video";
    this.#frames?.close();
    this.#frames = frames;
    this.info = this.masks.video = { ...info, name, stem: name.replace(/\.[^.]*$/, ""), file };
    this.#timeline.open(info, async (index, width) =>
      createImageBitmap(await rest.frame(info.id, index, width, frames.signal)),
    );
  }

  #framesOf(info) {
    const width = Math.min(info.width, LARGEST);
    const height = (width * info.height) / info.width;
    return new Frames((index, signal) => rest.frame(info.id, index, width, signal), width * height);
  }

  async #show(frame) {
    const frames = this.#frames;
    this.#wanted = frame;
    this.update();
    try {
      const picture = await frames.get(frame);
      if (this.#wanted !== frame || frames !== this.#frames) return;
      this.scene.view(frame);
      this.#page.stage.swap(picture);
      this.#page.show();
    } catch (problem) {
      if (frames === this.#frames) this.#page.problem(problem);
    }
  }

  async #play() {
    const mine = (this.#playing = {});
    const frames = this.#frames;
    const seconds = 1 / this.info.fps;
    let frame = this.#wanted === this.last ? -1 : this.#wanted;
    let due = performance.now();
    this.update();
    while (this.#playing === mine && frame < this.last) {
      frame++;
      frames.prefetch(Array.from({ length: Math.min(AHEAD, this.last - frame) }, (_, n) => frame + AHEAD - n).filter((n) => n <= this.last));
      await this.#show(frame);
      due = Math.max(performance.now(), due + 1000 * seconds);
      await new Promise((resolve) => setTimeout(resolve, due - performance.now()));
    }
    if (this.#playing === mine) this.pause();
  }

  async #trackWays(ways, start) {
    for (const reverse of ways) {
      this.#follows = true;
      this.#newest = start;
      this.#tell({ done: 0, total: reverse ? start + 1 : this.info.num_frames - start });
      let isCancelled = false;
      try {
        await rest.propagate(this.info.id, { start, reverse }, (name, data) => {
          if (name === "frame") this.#keep(data);
          else if (name === "progress") this.#tell(data);
          else if (name === "done") isCancelled = data.cancelled;
        });
      } catch (problem) {
        this.#page.problem(problem);
        return;
      }
      if (isCancelled) break;
    }
    if (this.#follows) await this.#show(ways.length > 1 ? start : this.#newest);
  }

  #keep(data) {
    this.masks.keep(data);
    this.#newest = data.frame;
    if (this.#follows && this.isAtRest) void this.#show(data.frame); // a slow line skips frames
    else this.#page.show();
  }

  #tell({ done, total, frames_per_second: rate, seconds_left: left }) {
    $("track-progress").max = total;
    $("track-progress").value = done;
    const [count, speed, time] = $("track-info").children;
    count.textContent = `${done} of ${total}`;
    speed.textContent = rate ? ` · ${rate < 10 ? rate.toFixed(1) : Math.round(rate)} frames/s` : "";
    time.textContent = left >= 1 ? ` · ${Math.round(left)} s left` : "";
  }
}
