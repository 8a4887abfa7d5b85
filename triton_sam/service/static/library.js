// The user's images with their objects, in the browser's database, so that a reload loses nothing.

const NAME = "triton-sam";
const VERSION = 1;

/**
 * An entry is {key, order, id, name, width, height, opened, thumb, state}. ``id`` is the service's, null before the
 * first upload; ``state`` is that of a Scene and its found objects. The image's bytes are in a separate store.
 */
export class Library {
  #db = null;
  #files = new Map(); // those that the database rejected
  #writes = 0;
  #hasFailed = false;

  /** Whether everything has been written to the database. */
  get isSafe() {
    return this.#db !== null && !this.#hasFailed && this.#writes === 0;
  }

  /** Open the database and return all entries, in the order in which they were added. */
  async open() {
    try {
      const opening = indexedDB.open(NAME, VERSION);
      opening.addEventListener("upgradeneeded", () => {
        for (const store of ["entries", "files"]) opening.result.createObjectStore(store, { keyPath: "key" });
      });
      this.#db = await answerOf(opening);
      const entries = await answerOf(this.#db.transaction("entries").objectStore("entries").getAll());
      return entries.sort((a, b) => a.order - b.order);
    } catch {
      return []; // A private window may reject the database. Then everything lasts until the page is closed.
    }
  }

  async fileOf(key) {
    if (this.#files.has(key)) return this.#files.get(key);
    return (await answerOf(this.#db.transaction("files").objectStore("files").get(key))).file;
  }

  async add(entry, file) {
    const put = (entries, files) => (entries.put(entry), files.put({ key: entry.key, file }));
    if (this.#db) await this.#write(["entries", "files"], put);
    if (!this.#db || this.#hasFailed) this.#files.set(entry.key, file);
  }

  async save(entry) {
    if (this.#db) await this.#write(["entries"], (entries) => entries.put(entry));
  }

  async remove(key) {
    this.#files.delete(key);
    if (this.#db) await this.#write(["entries", "files"], (entries, files) => (entries.delete(key), files.delete(key)));
  }

  /** A failed write (for example a full disk) is not an error: the page warns before it is closed, see isSafe. */
  async #write(stores, act) {
    this.#writes++;
    try {
      const transaction = this.#db.transaction(stores, "readwrite");
      const done = new Promise((resolve, reject) => {
        transaction.addEventListener("complete", resolve);
        transaction.addEventListener("abort", () => reject(transaction.error));
      });
      act(...stores.map((store) => transaction.objectStore(store)));
      await done;
      this.#hasFailed = false;
    } catch {
      this.#hasFailed = true;
    } finally {
      this.#writes--;
    }
  }
}

function answerOf(request) {
  return new Promise((resolve, reject) => {
    request.addEventListener("success", () => resolve(request.result));
    request.addEventListener("error", () => reject(request.error));
    request.addEventListener("blocked", () => reject(new Error("another tab has locked the database")));
  });
}
