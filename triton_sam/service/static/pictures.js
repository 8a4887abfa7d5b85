// The open image: opening it, sending it to the service, and switching between the user's images.

import { busy, askToken, sending } from "./notices.js";
import * as rest from "./rest.js";
import { Shelf } from "./shelf.js";
import { isVideo } from "./video.js";

const ENCODING = "Encoding the image …";
const OPENING = "Opening the video …";

export class Pictures {
  /** {key, id, name, stem, width, height, file}; null without an image. */
  image = null;
  shelf;
  #page;
  #opening = null; // an AbortController
  #reuploading = null; // the result of reupload() if it is the one that opens
  #sentFor = null; // the model for which the service has the image

  constructor(page) {
    this.#page = page;
    this.shelf = new Shelf(page);
  }

  get isOpening() {
    return this.#opening !== null;
  }

  get isSent() {
    return this.#sentFor === this.#page.settings.model;
  }

  /** Open the image that was open when the page was closed. */
  async start() {
    const entry = await this.shelf.start();
    if (entry && !this.image && !this.#page.video.isOpen && !this.#opening) await this.openEntry(entry);
  }

  /** Open a video, a project, or images (showing the first); COCO files add objects to open images. */
  async open(files) {
    const [first, ...others] = files.filter((file) => !isCoco(file));
    if (first && this.#mayCloseVideo()) await this.#openFiles(first, others);
    for (const file of files.filter(isCoco)) await this.#import(file);
  }

  /** Open an image at a URL, which the service fetches. */
  async openUrl(url) {
    if (!this.#mayCloseVideo()) return;
    let file = null;
    const name = nameOf(url);
    const problem = await this.#opens("Fetching the image …", name, async (_, signal) => {
      file = new File([await rest.fetchUrl(url, this.#page.settings.model, signal)], name);
    });
    if (problem?.status === 401) void askToken().then(() => this.openUrl(url));
    if (!problem) await this.#openFile(file);
  }

  async #openFiles(first, others) {
    if (isVideo(first)) return this.#openVideo(first);
    if (/\.zip$/i.test(first.name)) return this.#openProject(first);
    if (!others.length) return this.#openFile(first);
    const entries = await this.shelf.add([first, ...others].filter(isImage));
    if (entries.length) await this.#openEntry(entries[0]);
    else this.#page.warn("None of these files is an image.");
  }

  /** Open an image of the shelf. */
  async openEntry(entry) {
    if (this.#mayCloseVideo()) await this.#openEntry(entry);
  }

  /** Whether the user agrees to lose the objects of the open video, which the page does not store. */
  #mayCloseVideo() {
    const { info, scene } = this.#page.video;
    return !info || !scene.objects.length || confirm(`Close ${info.name} and lose its objects and masks?`);
  }

  /** Open an image of the shelf. A previously open one is shown at once, and sent to the service afterwards. */
  async #openEntry(entry) {
    let file = null;
    const problem = await this.#opens("Opening the image …", entry.name, async (isCurrent) => {
      file = await this.shelf.fileOf(entry);
      const local = entry.id && (await createImageBitmap(file).catch(() => null));
      if (!isCurrent()) return;
      if (!local) return void (entry.id = null);
      this.#show(entry, file, local);
      this.#sentFor = null;
    });
    if (problem) return;
    if (!entry.id) await this.#openFile(file, entry);
    else if (this.image?.key === entry.key) await this.reupload();
  }

  async #openFile(file, entry = null) {
    const problem = await this.#opens(ENCODING, file.name, async (isCurrent, signal) => {
      const model = this.#page.settings.model;
      const local = await createImageBitmap(file).catch(() => null); // browsers do not show TIFF or 16-bit images
      const info = await rest.upload("image", file, model, signal, (part) => isCurrent() && sending("image", part, ENCODING));
      const picture = local ?? (await createImageBitmap(await rest.preview(info.id, signal)));
      if (!isCurrent()) return;
      const kept = await this.shelf.keep(entry, info, file, picture);
      if (!isCurrent()) return;
      this.#show(kept, file, picture);
      this.#sentFor = model;
    });
    if (problem?.status === 401) void askToken().then(() => this.#openFile(file, entry));
    else this.#page.show();
    if (!problem) await (this.isSent ? this.#page.images.masks.refresh() : this.reupload());
  }

  async #openVideo(file) {
    const problem = await this.#opens(OPENING, file.name, async (isCurrent, signal) => {
      const { model } = this.#page.settings;
      await this.#page.video.open(file, signal, (part) => isCurrent() && sending("video", part, OPENING));
      this.shelf.leave();
      this.image = null;
      this.#page.everything.reset();
      this.#page.begin(this.#page.video);
      this.#sentFor = model;
    });
    if (problem?.status === 401) void askToken().then(() => this.#openVideo(file));
    else this.#page.show();
    if (!problem && !this.isSent) await this.reupload(); // the user has chosen another model meanwhile
  }

  async #openProject(file) {
    try {
      const entries = await this.shelf.load(file);
      if (entries.length) await this.#openEntry(entries[0]);
    } catch (problem) {
      this.#page.warn(`${file.name}: ${problem.message}`);
    }
  }

  async #import(file) {
    try {
      this.#page.warn((await this.shelf.importCoco(file)) || "");
    } catch (problem) {
      this.#page.warn(`${file.name}: ${problem.message}`);
    }
    this.#page.show();
  }

  /** Cancel opening. The previous image stays open. */
  cancel() {
    if (!this.#opening) return;
    this.#opening.abort();
    this.#opening = null;
    busy("");
    this.#page.show();
  }

  /**
   * Upload the image or the video again, for another model, or because the service has dropped it.
   *
   * Return whether the service has it; false while something else opens.
   */
  async reupload() {
    if (this.#opening) return this.#reuploading ?? false;
    if (!(this.image || this.#page.video.isOpen)) return false;
    this.#reuploading = this.#uploadAgain();
    return this.#reuploading;
  }

  async #uploadAgain() {
    const { video, settings, images } = this.#page;
    const mine = (this.#opening = new AbortController());
    const model = settings.model;
    const [kind, text] = this.image ? ["image", ENCODING] : ["video", OPENING];
    const heard = (part) => this.#opening === mine && sending(kind, part, text);
    let isDone = false;
    this.#sentFor = null;
    busy(text);
    try {
      if (video.isOpen) {
        await video.stop();
        await video.reopen(mine.signal, heard);
      } else {
        const info = await rest.upload("image", this.image.file, model, mine.signal, heard);
        if (this.#opening !== mine) return false;
        this.image = { ...this.image, ...info };
        this.#page.warn("");
      }
      this.#sentFor = model;
      isDone = true;
    } catch (problem) {
      if (this.#opening === mine && this.#page.isUp) this.#page.warn(problem.message);
    }
    if (this.#opening !== mine) return isDone;
    this.#opening = null;
    busy("");
    if (settings.model !== model) return this.reupload();
    if (isDone && this.image) void images.masks.refresh();
    return isDone;
  }

  /** Run ``act(isCurrent, signal)`` unless something newer is opened. Return its problem, or null. */
  async #opens(text, name, act) {
    this.#opening?.abort();
    const mine = (this.#opening = new AbortController());
    this.#reuploading = null;
    const isCurrent = () => this.#opening === mine;
    this.#page.preview.end();
    this.#page.warn("");
    busy(text);
    try {
      await act(isCurrent, mine.signal);
      return isCurrent() ? null : new rest.Problem({ detail: "something newer is open" });
    } catch (problem) {
      if (isCurrent() && problem.status !== 401) this.#page.warn(`${name || "The image"}: ${problem.message}`);
      return isCurrent() ? problem : new rest.Problem({ detail: "something newer is open" });
    } finally {
      if (isCurrent()) {
        this.#opening = null;
        busy("");
        this.#page.show();
      }
    }
  }

  #show(entry, file, picture) {
    const { images, video, stage } = this.#page;
    this.shelf.leave();
    const { key, id, name, width, height } = entry;
    video.close();
    this.image = { key, id, name, stem: name.replace(/\.[^.]*$/, ""), width, height, file };
    this.#page.begin(images);
    this.restore(entry);
    this.shelf.show(entry);
    stage.show(picture, { width, height });
  }

  /** Show the objects of a shelf entry instead of the image's. */
  restore(entry) {
    const { images, everything } = this.#page;
    images.scene.reset();
    images.masks.reset();
    everything.reset();
    if (!entry.state) return;
    everything.restore(entry.state);
    images.scene.restore(entry.state);
  }
}

/** Return the last part of a URL as a file name. */
function nameOf(url) {
  try {
    const { hostname, pathname } = new URL(url);
    const last = decodeURIComponent(pathname.split("/").filter(Boolean).at(-1) ?? hostname);
    return last.split("/").filter(Boolean).at(-1) ?? "image";
  } catch {
    return "image";
  }
}

function isCoco(file) {
  return /\.json$/i.test(file.name);
}

function isImage(file) {
  return file.type.startsWith("image/") || /\.(tiff?|hei[cf]|jfif|avif|jp2|j2k|jpf|jpx)$/i.test(file.name);
}
