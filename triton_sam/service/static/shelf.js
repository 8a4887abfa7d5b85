// All images of the user with their objects: the strip below the image, and projects as one file.

import { readCoco } from "./coco.js";
import { $, connect, enable, make } from "./dom.js";
import { Library } from "./library.js";
import { save } from "./saves.js";
import { hasPrompt, withObjects } from "./scene.js";
import { unzip, zip } from "./zip.js";

const THUMB = 96; // pixels of the longer side
const NOTE_PAUSE = 100; // ms
const FORMAT = "triton-sam project 1";

export class Shelf {
  #page;
  #library;
  #entries = [];
  #current = null;
  #timer = null;
  #written = ""; // the last written state of the current entry

  constructor(page) {
    this.#page = page;
    this.#library = new Library(() => page.warn("An image was changed in another tab, and is not saved here: reload the page."));
    connect({
      "image-back": () => this.step(-1),
      "image-next": () => this.step(1),
      "image-remove": () => this.remove(),
      "save-project": () => void this.save().catch((problem) => page.warn(`The project was not saved: ${problem.message}`)),
    });
    addEventListener("pagehide", () => this.note());
    addEventListener("beforeunload", (event) => {
      this.note();
      if (!this.#library.isSafe && this.#entries.some((entry) => entry.state?.hasObjects)) event.preventDefault();
    });
  }

  /** Return the last opened entry; null if there is none. */
  async start() {
    this.#entries = await this.#library.open();
    this.#update();
    return this.#entries.reduce((last, entry) => (entry.opened > (last?.opened ?? 0) ? entry : last), null);
  }

  fileOf(entry) {
    return this.#library.fileOf(entry.key);
  }

  /** Add files to the shelf without opening them, and return their entries. */
  async add(files) {
    const added = [];
    for (const file of files) {
      const picture = await createImageBitmap(file).catch(() => null);
      const entry = this.#newEntry({ name: file.name, path: pathOf(file), thumb: picture && thumbOf(picture) });
      added.push(entry);
      await this.#library.add(entry, file);
      picture?.close();
    }
    this.#update();
    return added;
  }

  /** Return the entry of an uploaded image: the given one, that of the same image, or a new one. */
  async keep(entry, info, file, picture) {
    const isSame = (each) => each.id === info.id && each !== entry;
    const same = entry?.state?.hasObjects ? null : this.#entries.find(isSame); // its objects stay its own
    if (same && entry) await this.#drop(entry);
    const kept = same ?? entry ?? this.#newEntry({ name: file.name || "image" });
    Object.assign(kept, { id: info.id, width: info.width, height: info.height, thumb: kept.thumb ?? thumbOf(picture) });
    if (same || entry) await this.#library.save(kept, false);
    else await this.#library.add(kept, file);
    return kept;
  }

  /** Write the shown image's objects before the page replaces them by another image's or a video's. */
  leave() {
    if (document.activeElement.matches("#objects input")) document.activeElement.blur(); // stores a name that is being typed
    this.note();
    this.#current = null;
    this.#update();
  }

  /** Mark the entry of the shown image. */
  show(entry) {
    this.#current = entry;
    entry.opened = Date.now();
    this.#written = JSON.stringify(entry.state);
    void this.#library.save(entry, false);
    this.note();
    this.#update();
  }

  /** Call note() soon, once for many changes. */
  noteSoon() {
    this.#timer ??= setTimeout(() => this.note(), NOTE_PAUSE);
  }

  /** Write the image's objects if they have changed. */
  note() {
    clearTimeout(this.#timer);
    this.#timer = null;
    const entry = this.#current;
    if (!entry) return;
    const { images: { scene }, everything } = this.#page;
    const labels = scene.objects.map((object) => object.label).filter(Boolean);
    const state = { ...scene.state, labels, hasObjects: scene.objects.length > 0 };
    const used = JSON.stringify(state).matchAll(/\\*"found\\*":(\d+)/g);
    state.found = everything.stateOf(new Set([...used].map((match) => Number(match[1]))));
    const text = JSON.stringify(state);
    if (text === this.#written) return;
    this.#written = text;
    entry.state = state;
    void this.#library.save(entry);
  }

  /** The images with visible objects: [{entry, objects, found}] with found objects by id. */
  get drawn() {
    this.note();
    const drawn = this.#entries.map((entry) => {
      const objects = entry.state ? JSON.parse(entry.state.now).objects : [];
      const found = new Map((entry.state?.found ?? []).map((item) => [item.id, item]));
      const isSeen = (object) => object.visible && (hasPrompt(object) || found.has(object.found));
      return { entry, found, objects: objects.filter(isSeen) };
    });
    return drawn.filter(({ objects }) => objects.length);
  }

  /** All labels of objects on the shelf, sorted. */
  get labels() {
    return [...new Set(this.#entries.flatMap((entry) => entry.state?.labels ?? []))].sort();
  }

  /**
   * Add a COCO file's objects to the images of the same path in a folder, or of the same name if only one image has it.
   * Return a sentence about skipped objects, or "".
   */
  async importCoco(file) {
    const images = readCoco(await file.text()).map(([path, objects]) => ({ path, name: path.split("/").at(-1), objects }));
    const [paths, names] = [countsOf(images.map(({ path }) => path)), countsOf(images.map(({ name }) => name))];
    const [missing, unclear, other] = [[], [], []];
    for (const { path, name, objects } of images) {
      const named = this.#entries.filter((each) => each.name === name);
      const whole = named.filter((each) => each.path === path);
      const [[entry, ...others], count] = whole.length ? [whole, paths.get(path)] : [named, names.get(name)];
      if (!entry) missing.push(name);
      else if (others.length || count > 1) unclear.push(path);
      else if (!(await this.#fits(entry, objects))) other.push(name);
      else if (objects.length) await this.#take(entry, objects);
    }
    const parts = [];
    if (missing.length) parts.push(`not open: ${listed(missing)}`);
    if (unclear.length) parts.push(`not the only ones of their name: ${listed(unclear)}`);
    if (other.length) parts.push(`of another size: ${listed(other)}`);
    return parts.length && `${file.name}: left out images that are ${parts.join("; and ")}`;
  }

  async #fits(entry, objects) {
    if (!objects.length) return true;
    if (!entry.width) {
      const picture = await createImageBitmap(await this.fileOf(entry)).catch(() => null);
      if (picture) Object.assign(entry, { width: picture.width, height: picture.height });
    }
    return objects.every(({ rle }) => rle.size[0] === entry.height && rle.size[1] === entry.width);
  }

  async #take(entry, objects) {
    this.note();
    entry.state = withObjects(entry.state, objects);
    this.#showAgain(entry);
    await this.#library.save(entry);
  }

  /** Show the objects that an entry got, if its image is shown. */
  #showAgain(entry) {
    if (entry !== this.#current) return;
    this.#written = "";
    this.#page.pictures.restore(entry);
    this.note();
    void this.#page.masks.refresh();
  }

  get count() {
    return this.#entries.length;
  }

  step(by) {
    const count = this.#entries.length;
    const at = this.#entries.indexOf(this.#current);
    if (count > 1 || (count && at < 0)) void this.#page.pictures.openEntry(this.#entries[at < 0 ? 0 : (at + by + count) % count]);
  }

  /** Remove the image and its objects from the shelf. */
  async remove() {
    const entry = this.#current;
    if (!entry || this.#entries.length < 2) return;
    if (entry.state?.hasObjects && !confirm(`Remove ${entry.name} and its objects from this page?`)) return;
    this.step(1);
    this.#current = null;
    await this.#drop(entry);
    this.#update();
  }

  /** Save all images and their objects as one file. */
  async save() {
    this.note();
    const files = [];
    for (const [index, entry] of this.#entries.entries()) {
      files.push({ name: `images/${index + 1}/${entry.name}`, content: await this.fileOf(entry) });
    }
    const images = this.#entries.map(({ id, name, path, width, height, thumb, state }, index) => {
      return { file: files[index].name, type: files[index].content.type, id, name, path, width, height, thumb, state };
    });
    files.unshift({ name: "project.json", content: JSON.stringify({ format: FORMAT, images }) });
    save(await zip(files), "project.triton-sam.zip");
  }

  /** Put a project's images on the shelf, and return their entries. Images that are on the shelf get its objects. */
  async load(file) {
    const files = await unzip(file);
    const images = imagesOf((await files.get("project.json")?.text()) ?? "", files);
    this.note();
    const [loaded, known] = [[], new Set(this.#entries)];
    for (const { file: path, type, ...facts } of images) {
      const same = [...known].find((entry) => facts.id && entry.id === facts.id);
      known.delete(same); // a project may hold an image twice
      if (same?.state?.hasObjects && !confirm(`Replace the objects of ${same.name} with those of the project?`)) continue;
      const entry = same ? Object.assign(same, facts) : this.#newEntry(facts);
      this.#showAgain(entry);
      await this.#library.add(entry, new File([files.get(path)], facts.name, { type }));
      loaded.push(entry);
    }
    this.#update();
    return loaded;
  }

  #newEntry(facts) {
    const order = (this.#entries.at(-1)?.order ?? 0) + 1;
    const key = `${Date.now()}-${Math.random()}`;
    const entry = { key, order, id: null, width: 0, height: 0, opened: 0, thumb: null, state: null, ...facts };
    this.#entries.push(entry);
    return entry;
  }

  async #drop(entry) {
    this.#entries = this.#entries.filter((each) => each !== entry);
    await this.#library.remove(entry.key);
  }

  #update() {
    $("strip").hidden = this.#entries.length < 2;
    const at = this.#entries.indexOf(this.#current);
    $("image-number").textContent = `${at < 0 ? "–" : at + 1} / ${this.#entries.length}`;
    enable({ "image-remove": at >= 0 });
    $("thumbs").replaceChildren(...this.#entries.map((entry) => this.#thumb(entry)));
    $("thumbs").querySelector('[aria-current="true"]')?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  #thumb(entry) {
    const isCurrent = entry === this.#current;
    const picture = make("img", { alt: "", ...(entry.thumb && { src: entry.thumb }) });
    const onclick = () => !isCurrent && void this.#page.pictures.openEntry(entry);
    const names = { title: entry.name, ariaLabel: entry.name, ariaCurrent: String(isCurrent) };
    return make("button", { type: "button", ...names, onclick }, picture);
  }
}

/** Return the images of a project if all have files. */
function imagesOf(text, files) {
  let project = null;
  try {
    project = JSON.parse(text);
  } catch {
    // as without any project
  }
  const images = project?.format === FORMAT && Array.isArray(project.images) ? project.images : null;
  if (!images?.every((image) => files.has(image?.file))) {
    throw new Error("not a project of this page, or damaged");
  }
  return images;
}

function listed(names) {
  return names.slice(0, 3).join(", ") + (names.length > 3 ? ` and ${names.length - 3} more` : "");
}

/** Return the path of a file in the folder that the user has opened; empty for other files. */
function pathOf(file) {
  return file.webkitRelativePath.split("/").slice(1).join("/");
}

function countsOf(texts) {
  const counts = new Map();
  for (const text of texts) counts.set(text, 1 + (counts.get(text) ?? 0));
  return counts;
}

function thumbOf(picture) {
  const scale = Math.min(1, THUMB / Math.max(picture.width, picture.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(picture.width * scale));
  canvas.height = Math.max(1, Math.round(picture.height * scale));
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.8);
}
