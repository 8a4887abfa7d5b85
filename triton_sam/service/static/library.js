// The user's images with their objects, in the browser's database, so that a reload loses nothing.

const NAME = "triton-sam";
const VERSION = 1;

/**
 * An entry is {key, order, id, name, path, width, height, opened, thumb, state, revision}. ``id`` is the service's, null
 * before the first upload; ``path`` is that in an opened folder; ``state`` is that of a Scene and its found objects. The
 * image's bytes are in a separate store.
 */
export class Library {
  #db = null;
  #files = new Map(); // those that the database rejected
  #unsaved = new Set(); // keys of entries whose last write failed
  #seen = new Set(); // revisions that this tab has read or written
  #writes = 0;
  #outdated;

  /** outdated: called when another tab has changed or removed an entry; this tab's state of it is not written. */
  constructor(outdated) {
    this.#outdated = outdated;
  }

  /** Whether everything has been written to the database. */
  get isSafe() {
    return this.#db !== null && this.#unsaved.size === 0 && this.#writes === 0;
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
      for (const { revision } of entries) this.#seen.add(revision);
      return entries.sort((a, b) => a.order - b.order);
    } catch {
      return []; // A private window may reject the database. Then everything lasts until the page is closed.
    }
  }

  async fileOf(key) {
    const stored = this.#db && (await answerOf(this.#db.transaction("files").objectStore("files").get(key)));
    const file = stored?.file ?? this.#files.get(key);
    if (!file) throw new Error("its file has been removed in another tab: reload the page");
    return file;
  }

  async add(entry, file) {
    this.#revise(entry);
    const put = (entries, files) => (entries.put(entry), files.put({ key: entry.key, file }));
    if (!(await this.#write(entry.key, put))) this.#files.set(entry.key, file);
  }

  /** Write an entry. ``isChanged`` is false if other tabs need not notice. */
  async save(entry, isChanged = true) {
    if (isChanged) this.#revise(entry);
    await this.#update(entry.key, (entries) => entries.put(entry));
  }

  async remove(key) {
    await this.#update(key, (entries, files) => (entries.delete(key), files.delete(key)));
    this.#files.delete(key);
    this.#unsaved.delete(key);
  }

  #revise(entry) {
    entry.revision = Math.random();
    this.#seen.add(entry.revision);
  }

  /** Change a stored entry, unless another tab has changed or removed it. */
  async #update(key, act) {
    await this.#write(key, (entries, files) => {
      const reading = entries.get(key);
      reading.addEventListener("success", () => {
        if (reading.result && this.#seen.has(reading.result.revision)) return act(entries, files);
        if (!this.#unsaved.has(key)) this.#outdated();
        reading.transaction.abort();
      });
    });
  }

  /** Return whether the write succeeded. A failure, such as a full disk, is not an error: see isSafe. */
  async #write(key, act) {
    if (!this.#db) return false;
    this.#writes++;
    try {
      const transaction = this.#db.transaction(["entries", "files"], "readwrite");
      const done = new Promise((resolve, reject) => {
        transaction.addEventListener("complete", resolve);
        transaction.addEventListener("abort", () => reject(transaction.error));
      });
      act(transaction.objectStore("entries"), transaction.objectStore("files"));
      await done;
      this.#unsaved.delete(key);
      return true;
    } catch {
      this.#unsaved.add(key);
      return false;
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
