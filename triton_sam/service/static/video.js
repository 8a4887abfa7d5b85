// The page's video mode: it opens a video, shows and plays its frames, and tracks the objects.

import { $, connect, enable, reveal, setIcon } from "./dom.js";
import * as rest from "./rest.js";
import { Timeline } from "./timeline.js";
import { Frames } from "./video-frames.js";
import { VideoMasks } from "./video-masks.js";
import { VideoScene } from "./video-scene.js";

const LARGEST = 1280; // width of loaded frames
const AHEAD = 6; // frames that are preloaded for playing
const VIDEO_NAME = /\.(mp4|m4v|mov|webm|mkv|avi)$/i;

export function isVideo(file) {
  return file.type.startsWith("video/") || VIDEO_NAME.test(file.name ?? "");
}

export class Video {
  scene = new VideoScene();
  masks;
  /** The open video as the service describes it, with name, stem and file; null without a video. */
  info = null;
  isTracking = false;
  /** How often tracking has ended. */
  ended = 0;
  #page;
  #frames = null;
  #timeline;
  #wanted = 0; // the frame to show when it is loaded
  #playing = null;
  #follows = true; // whether the page shows each tracked frame
  #newest = 0; // the last tracked frame
  #tracked = null; // resolves when tracking has ended
  #isStopping = false;
  #used = 0; // when the service was last told that the video is in use

  constructor(page) {
    this.#page = page;
    this.masks = new VideoMasks(this.scene, page);
    this.#timeline = new Timeline($("marks"), $("seek"), (frame) => this.goTo(frame));
    addEventListener("pagehide", () => this.info && rest.forget(this.info.id));
    addEventListener("beforeunload", (event) => {
      if (this.info && this.scene.objects.length) event.preventDefault(); // the page does not store videos
    });
    connect({
      play: () => this.togglePlay(),
      "step-back": () => this.step(-1),
      "step-forward": () => this.step(1),
      "track-back": () => void this.track("back"),
      "track-both": () => void this.track("both"),
      "track-forward": () => void this.track("forward"),
      "track-stop": () => void this.stop(),
    });
  }

  get isOpen() {
    return this.info !== null;
  }

  get last() {
    return this.info.num_frames - 1;
  }

  /** Upload a video and show its first frame. */
  async open(file, signal, heard) {
    const { info, frames, picture } = await this.#upload(file, 0, signal, heard);
    this.close();
    this.#take(info, file, frames);
    this.scene.reset();
    this.masks.reset();
    this.scene.view(0);
    this.#wanted = 0;
    this.#page.stage.show(picture, { width: info.width, height: info.height });
  }

  /** Upload the video again, and send all prompts, for another model, or because the service has dropped it. */
  async reopen(signal, heard) {
    const [{ file, id }, shown] = [this.info, this.scene.frame];
    const { info, frames, picture } = await this.#upload(file, shown, signal, heard);
    const isAnother = info.model !== this.info.model;
    this.#take(info, file, frames);
    this.scene.view(shown);
    this.#page.stage.swap(picture); // the pictures of the former frames are closed
    if (this.#wanted !== shown) void this.#showFrame(this.#wanted);
    rest.forget(id); // after its frames, which are no longer requested
    const hadTracked = this.masks.hasTracked;
    this.masks.reset();
    await this.masks.refresh();
    if (hadTracked && !isAnother) {
      this.#page.warn("The service no longer had this video. Your prompts were sent again: track again for the masks of the other frames.");
    }
  }

  close() {
    if (!this.info) return;
    this.pause();
    this.#frames.close();
    this.#timeline.close();
    rest.forget(this.info.id); // after its frames, which are no longer requested
    this.info = this.#tracked = null;
    this.isTracking = false;
  }

  /** Show a frame. */
  goTo(frame) {
    this.pause();
    this.#follows = false;
    void this.#showFrame(frame);
  }

  step(by) {
    if (this.info) this.goTo(Math.min(this.last, Math.max(0, this.#wanted + by)));
  }

  /** Go to the next (``by`` 1) or previous (-1) frame with a prompt. */
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
    this.show();
  }

  /** Whether clicks count: the visible image is that of the frame. */
  get isAtRest() {
    return this.scene.frame === this.#wanted;
  }

  /** Track all objects from the visible frame on. */
  async track(direction) {
    if (!this.info || this.isTracking || !this.scene.promptedFrames.length) return;
    this.pause();
    await this.masks.refresh(); // the service needs the newest clicks
    if (this.isTracking) return;
    const start = this.scene.frame;
    const ways = { forward: [false], back: [true], both: [false, true] }[direction];
    this.isTracking = true;
    this.#isStopping = false;
    this.#page.warn("");
    const tracked = (this.#tracked = this.#trackWays(ways, start).finally(() => {
      this.ended++;
      if (tracked !== this.#tracked) return; // the user has closed the video
      this.isTracking = false;
      this.#page.show();
    }));
    this.#page.show();
    await tracked;
  }

  /** Stop tracking, and wait until it has stopped. */
  async stop() {
    if (!this.isTracking) return;
    this.#isStopping = true;
    $("track-stop").disabled = true;
    await this.#cancel();
    await this.#tracked;
  }

  async #cancel() {
    try {
      await rest.cancel(this.info.id);
    } catch (problem) {
      this.#fail(problem);
    }
  }

  /** Update everything around the canvas. */
  show() {
    $("timeline").hidden = !this.info;
    if (!this.info) return;
    this.#timeline.show(this.scene, this.masks, this.#wanted);
    $("frame-number").textContent = `${this.#wanted} / ${this.last}`;
    const label = this.#playing ? "Pause" : "Play";
    $("play").setAttribute("aria-label", label);
    $("play").title = `${label} (Space)`;
    setIcon($("play"), this.#playing ? "pause" : "play");
    const [isFirst, isLast, isPrompted] = [this.#wanted === 0, this.#wanted === this.last, this.scene.promptedFrames.length > 0];
    enable({
      "step-back": !isFirst,
      "step-forward": !isLast,
      "track-back": isPrompted && !isFirst,
      "track-forward": isPrompted && !isLast,
      "track-both": isPrompted,
      "track-stop": true,
    });
    reveal({ "track-ways": !this.isTracking, "track-running": this.isTracking });
  }

  #fail(problem) {
    void this.#page.fail(problem, () => this.masks.refresh());
  }

  /** Upload a video, and return its description, its frames, and the picture of one of them. */
  async #upload(file, index, signal, heard) {
    const info = await rest.upload("video", file, this.#page.settings.model, signal, heard);
    const frames = this.#framesOf(info);
    try {
      const picture = await frames.get(index);
      signal.throwIfAborted();
      return { info, frames, picture };
    } catch (error) {
      frames.close();
      rest.forget(info.id);
      throw error;
    }
  }

  #take(info, file, frames) {
    const name = file.name || "video";
    this.#frames?.close();
    this.#frames = frames;
    this.info = { ...info, name, stem: name.replace(/\.[^.]*$/, ""), file };
    this.#timeline.open(info, async (index, width) =>
      createImageBitmap(await rest.frame(info.id, index, width, frames.signal)),
    );
  }

  #framesOf(info) {
    const width = Math.min(info.width, LARGEST);
    const height = (width * info.height) / info.width;
    return new Frames((index, signal) => rest.frame(info.id, index, width, signal), width * height);
  }

  async #showFrame(frame) {
    const frames = this.#frames;
    this.#wanted = frame;
    this.#use();
    this.show();
    try {
      const picture = await frames.get(frame);
      if (this.#wanted !== frame || frames !== this.#frames) return;
      this.scene.view(frame);
      this.#page.stage.swap(picture);
      this.#page.show();
    } catch (problem) {
      if (frames === this.#frames) this.#fail(problem);
    }
  }

  /** Tell the service now and then that the video is in use: its frames may come from the browser's cache. */
  #use() {
    const now = performance.now();
    if (now - this.#used < 250 * this.info.expires_in) return; // ms: a quarter of its time
    this.#used = now;
    void rest.use(this.info.id).catch(() => {}); // the next click reports the problem
  }

  async #play() {
    const mine = (this.#playing = {});
    const frames = this.#frames;
    const seconds = 1 / this.info.fps;
    let frame = this.#wanted === this.last ? -1 : this.#wanted;
    let due = performance.now();
    this.show();
    while (this.#playing === mine && frame < this.last) {
      frame++;
      frames.prefetch(Array.from({ length: Math.min(AHEAD, this.last - frame) }, (_, n) => frame + AHEAD - n).filter((n) => n <= this.last));
      await this.#showFrame(frame);
      due = Math.max(performance.now(), due + 1000 * seconds);
      await new Promise((resolve) => setTimeout(resolve, due - performance.now()));
    }
    if (this.#playing === mine) this.pause();
  }

  async #trackWays(ways, start) {
    const { info } = this;
    const isOpen = () => this.info === info; // the last events of a video may come after it was closed
    for (const reverse of ways) {
      this.#follows = true;
      this.#newest = start;
      this.#tell({ done: 0, total: reverse ? start + 1 : this.info.num_frames - start });
      let [isFirst, isCancelled] = [true, false];
      try {
        await rest.propagate(info.id, { start, reverse }, (name, data) => {
          if (!isOpen()) return;
          if (isFirst && this.#isStopping) void this.#cancel(); // the service may have received stop()'s request first
          isFirst = false;
          if (name === "frame") this.#keep(data);
          else if (name === "progress") this.#tell(data);
          else if (name === "done") isCancelled = data.cancelled;
        });
      } catch (problem) {
        if (isOpen()) this.#fail(problem);
        return;
      }
      if (!isOpen()) return;
      if (isCancelled || this.#isStopping) break;
    }
    if (this.#follows) await this.#showFrame(ways.length > 1 ? start : this.#newest);
  }

  #keep(data) {
    this.masks.keep(data);
    this.#newest = data.frame;
    if (this.#follows && this.isAtRest) void this.#showFrame(data.frame); // a slow connection skips frames
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
