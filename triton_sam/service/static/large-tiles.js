// The tiles of a large image: fetched when a view needs them, a few at a time; the most recently used are kept.

const AT_A_TIME = 6;
const PAUSE = 1000; // ms before a tile is fetched again
const TEMPORARY = [0, 429, 502, 503, 504]; // the status of errors that pass; 0: the service cannot be reached
const BUSY = [429, 503];
const KEPT = 256; // about 256 MB as bitmaps of 512 x 512 pixels

export class Tiles {
  /**
   * @param {object} info - response of GET /v1/large/ID
   * @param {(path: string, options: object) => Promise<Response>} fetchTile
   * @param {() => void} changed - called when a tile has arrived
   * @param {(problem: Error) => void} failed
   */
  constructor(info, fetchTile, changed, failed) {
    Object.assign(this, { info, fetchTile, changed, failed });
    this.kept = new Map(); // by key: a bitmap, or null while loading or after a failure
    this.wanted = [];
    this.running = 0;
    this.isDown = false; // whether the user knows that the service cannot be reached
    this.abort = new AbortController();
  }

  close() {
    this.abort.abort();
    for (const bitmap of this.kept.values()) bitmap?.close();
    this.kept.clear();
    this.wanted = [];
  }

  /** Return the level whose pixels are at most as large as the screen's, which cover ``unit`` image pixels. */
  levelFor(unit) {
    const level = Math.floor(Math.log2(Math.max(1, unit * 1.2)));
    return Math.min(this.info.levels.length - 1, level);
  }

  /** Draw a Stage's view, and fetch missing tiles. Coarser tiles stand in for them. */
  draw(context, view, ratio) {
    const level = this.levelFor(view.unit / ratio);
    const last = this.info.levels.length - 1;
    this.wanted = [];
    for (let number = last; number >= level; number--) {
      if (number !== level && number !== last && !this.#hasAny(number)) continue;
      for (const tile of this.#inside(view, number)) {
        const bitmap = this.#take(tile.key);
        if (bitmap) {
          const [x, y] = view.toScreen(tile.x, tile.y);
          const [right, bottom] = view.toScreen(tile.right, tile.bottom);
          // Whole screen pixels leave no seams between neighbours.
          const [left, top] = [Math.round(x * ratio), Math.round(y * ratio)];
          context.drawImage(bitmap, left, top, Math.round(right * ratio) - left, Math.round(bottom * ratio) - top);
        } else if (bitmap === undefined && (number === level || number === last)) {
          this.wanted.push(tile);
        }
      }
    }
    const [middleX, middleY] = view.middle();
    const far = ({ x, y, right, bottom }) => Math.hypot((x + right) / 2 - middleX, (y + bottom) / 2 - middleY);
    this.wanted.sort((a, b) => (b.level === last) - (a.level === last) || far(a) - far(b));
    this.#fetch();
  }

  /** Whether all tiles of a view have arrived. */
  isComplete(view, ratio) {
    return this.#inside(view, this.levelFor(view.unit / ratio)).every(({ key }) => this.kept.get(key));
  }

  #hasAny(level) {
    for (const [key, bitmap] of this.kept) if (bitmap && key.startsWith(`${level}/`)) return true;
    return false;
  }

  #inside(view, level) {
    const { tile, levels, width, height } = this.info;
    const side = tile * 2 ** level;
    const [left, top, right, bottom] = view.shown();
    const found = [];
    const lastRow = Math.min(levels[level].rows - 1, Math.floor(bottom / side));
    const lastColumn = Math.min(levels[level].columns - 1, Math.floor(right / side));
    for (let row = Math.max(0, Math.floor(top / side)); row <= lastRow; row++) {
      for (let column = Math.max(0, Math.floor(left / side)); column <= lastColumn; column++) {
        const [x, y] = [column * side, row * side];
        const key = `${level}/tiles/${column}/${row}`;
        found.push({ key, level, x, y, right: Math.min(width, x + side), bottom: Math.min(height, y + side) });
      }
    }
    return found;
  }

  #take(key) {
    const bitmap = this.kept.get(key);
    if (bitmap) {
      this.kept.delete(key); // most recently used tiles are last
      this.kept.set(key, bitmap);
    }
    return bitmap;
  }

  #fetch() {
    while (this.running < AT_A_TIME && this.wanted.length) {
      const { key } = this.wanted.shift();
      this.running++;
      this.kept.set(key, null);
      this.#load(key).finally(() => {
        this.running--;
        this.#trim();
        this.changed();
      });
    }
  }

  async #load(key) {
    const { signal } = this.abort;
    try {
      const answer = await this.fetchTile(`/v1/large/${this.info.id}/levels/${key}?version=${this.info.version}`, { signal });
      const bitmap = await createImageBitmap(await answer.blob());
      this.isDown = false;
      if (signal.aborted) bitmap.close();
      else this.kept.set(key, bitmap);
    } catch (error) {
      if (error.name === "AbortError") return;
      const isTemporary = TEMPORARY.includes(error.status) || error.name === "TypeError"; // the connection broke
      if (!isTemporary) return this.failed(error);
      setTimeout(() => (this.kept.delete(key), this.changed()), PAUSE);
      if (BUSY.includes(error.status) || this.isDown) return;
      this.isDown = true;
      this.failed(error);
    }
  }

  #trim() {
    for (const [key, bitmap] of this.kept) {
      if (this.kept.size <= KEPT) return;
      if (!bitmap) continue;
      bitmap.close();
      this.kept.delete(key);
    }
  }
}
