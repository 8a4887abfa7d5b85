// Decoded frames of a video: loaded on demand, and cached within a memory limit.

const KEPT_BYTES = 192 << 20;
const AT_A_TIME = 3;

export class Frames {
  #load;
  #limit;
  #kept = new Map(); // index -> bitmap, the most recently used last
  #waiting = new Map(); // index -> promise
  #queue = [];
  #running = 0;
  #end = new AbortController();

  /** ``load(index, signal)`` returns a frame as Blob; ``pixels`` is the size of a frame. */
  constructor(load, pixels) {
    this.#load = load;
    this.#limit = Math.max(8, Math.floor(KEPT_BYTES / (4 * pixels)));
  }

  /** Stop all loading when the video is closed. */
  get signal() {
    return this.#end.signal;
  }

  /** Return a frame. The newest requests are loaded first. */
  get(index) {
    const kept = this.#kept.get(index);
    if (kept) {
      this.#kept.delete(index);
      this.#kept.set(index, kept);
      return Promise.resolve(kept);
    }
    if (!this.#waiting.has(index)) {
      this.#waiting.set(index, new Promise((resolve, reject) => this.#queue.push({ index, resolve, reject })));
      this.#next();
    }
    return this.#waiting.get(index);
  }

  /** Preload frames. */
  prefetch(indexes) {
    for (const index of indexes) this.get(index).catch(() => {});
  }

  close() {
    this.#end.abort(new Error("the video was closed"));
    for (const job of this.#queue.splice(0)) job.reject(this.signal.reason);
    for (const picture of this.#kept.values()) picture.close();
    this.#kept.clear();
  }

  #next() {
    while (this.#running < AT_A_TIME && this.#queue.length) {
      this.#running++;
      void this.#run(this.#queue.pop());
    }
  }

  async #run({ index, resolve, reject }) {
    try {
      const picture = await createImageBitmap(await this.#load(index, this.signal));
      if (!this.signal.aborted) this.#keep(index, picture);
      resolve(picture);
    } catch (error) {
      reject(error);
    } finally {
      this.#waiting.delete(index);
      this.#running--;
      this.#next();
    }
  }

  #keep(index, picture) {
    this.#kept.set(index, picture);
    while (this.#kept.size > this.#limit) {
      const [oldest] = this.#kept.keys();
      this.#kept.delete(oldest); // not closed: it may still be on the screen
    }
  }
}
