// The open video with its prompts and masks, in the browser's own database, so that a reload loses nothing.

const NAME = "triton-sam-video";
const VERSION = 1;
const STORES = ["videos", "files", "masks"];

/**
 * There is one video at a time: {key, opened, name, model, state}, where ``state`` is {frame, scene, answered} as text. Its
 * file and the masks of each frame lie in stores of their own. Writes of a tab whose video another tab has replaced do nothing.
 */
export class KeptVideo {
  #db = null;
  #key = null;
  #writes = 0;
  #hasFailed = false;

  /** Whether everything that was given to this object has been written. */
  get isSafe() {
    return this.#db !== null && !this.#hasFailed && this.#writes === 0;
  }

  /** Open the database and return the video in it, with its ``file`` and ``masks``; null if there is none. */
  async open() {
    try {
      const opening = indexedDB.open(NAME, VERSION);
      opening.addEventListener("upgradeneeded", () => {
        for (const name of ["videos", "files"]) opening.result.createObjectStore(name, { keyPath: "key" });
        opening.result.createObjectStore("masks", { keyPath: ["key", "frame"] });
      });
      this.#db = await answerOf(opening);
      const stores = this.#stores("readonly");
      const [videos, files, masks] = await Promise.all(stores.map((store) => answerOf(store.getAll())));
      const [video] = videos;
      const file = files.find(({ key }) => key === video?.key)?.file;
      return file ? { ...video, file, masks: masks.filter(({ key }) => key === video.key) } : null;
    } catch {
      return null; // A private window may refuse the database. Then everything lasts until the page is closed.
    }
  }

  /** Keep a video in place of the one before. */
  begin(file, name, model) {
    const key = (this.#key = `${Date.now()}-${Math.random()}`);
    this.#write((videos, files, masks) => {
      for (const store of [videos, files, masks]) store.clear();
      videos.put({ key, opened: Date.now(), name, model, state: null });
      files.put({ key, file });
    });
  }

  /** Go on with a video that open() has returned. */
  resume({ key }) {
    this.#key = key;
  }

  /** Keep the state of the video. */
  note(state) {
    this.#change((video, videos) => videos.put({ ...video, opened: Date.now(), state }));
  }

  /** Keep the masks of one frame in place of those before. */
  keep(frame, objects) {
    this.#change((video, videos, masks) => masks.put({ key: video.key, frame, objects }));
  }

  /** Forget the masks of all frames: another model has taken over. */
  forgetMasks(model) {
    this.#change((video, videos, masks) => (masks.clear(), videos.put({ ...video, model })));
  }

  /** Forget the video. */
  end() {
    this.#change((video, videos, masks, files) => [videos, masks, files].forEach((store) => store.clear()));
    this.#key = null;
  }

  #change(act) {
    const key = this.#key;
    if (key === null) return;
    this.#write((videos, files, masks) => {
      videos.get(key).addEventListener("success", ({ target }) => target.result && act(target.result, videos, masks, files));
    });
  }

  /** A write that fails (the disk is full, say) is no error: the page asks before it is closed, see isSafe. */
  #write(act) {
    if (!this.#db) return;
    this.#writes++;
    const ended = (hasFailed) => {
      this.#writes--;
      this.#hasFailed ||= hasFailed;
    };
    try {
      const stores = this.#stores("readwrite");
      stores[0].transaction.addEventListener("complete", () => ended(false));
      stores[0].transaction.addEventListener("abort", () => ended(true));
      act(...stores);
    } catch {
      ended(true);
    }
  }

  #stores(mode) {
    const transaction = this.#db.transaction(STORES, mode);
    return STORES.map((name) => transaction.objectStore(name));
  }
}

function answerOf(request) {
  return new Promise((resolve, reject) => {
    request.addEventListener("success", () => resolve(request.result));
    request.addEventListener("error", () => reject(request.error));
    request.addEventListener("blocked", () => reject(new Error("another tab holds the database")));
  });
}
