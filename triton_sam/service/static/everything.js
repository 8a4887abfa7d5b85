// Found objects: the service finds everything, or words; the user keeps, merges, refines or deletes the objects.

import { $, connect, enable, reveal } from "./dom.js";
import { paintMask } from "./paint.js";
import * as rest from "./rest.js";
import { colorOf, highestFound, lineOf } from "./scene.js";
import { contains, measure, pathOf, spansOf, toRle, union } from "./spans.js";

const FAINT = 0.55; // factor of the objects' opacity
const STRONG = 1.5;

export class Everything {
  #page;
  #found = new Map(); // id -> {id, number, run, isMerged, rle, bbox, area, score, points}; includes kept objects
  #run = 0;
  #count = 0;
  #selected = new Set();
  #hovered = null;
  #search = null; // an AbortController during a search
  #progress = { done: 0, total: 1 }; // null: the search reports no progress
  #isRefining = false;
  #threshold = 0;

  constructor(page) {
    this.#page = page;
    connect({
      find: () => this.find(),
      "found-stop": () => this.stop(),
      "found-keep": () => this.keep(),
      "found-merge": () => this.merge(),
      "found-refine": () => this.refine(),
      "found-delete": () => this.remove(),
      "found-back": () => this.#refining(false),
      "found-close": () => this.close(),
    });
  }

  /** Found objects that the user has not kept, merged or deleted. */
  get items() {
    return this.#open.filter((item) => this.isShown(item));
  }

  /** Objects found by a search for words, including those below the threshold. */
  get ofWords() {
    return this.#open.filter((item) => item.label !== undefined);
  }

  /** The score below which a word search's objects are hidden. */
  get threshold() {
    return this.#threshold;
  }

  set threshold(score) {
    this.#threshold = score;
    for (const item of this.#found.values()) if (!this.isShown(item)) this.#selected.delete(item.id);
  }

  isShown(item) {
    return item.label === undefined || item.score >= this.#threshold;
  }

  get #open() {
    const { objects, gone, merged } = this.#page.scene;
    const taken = new Set([...gone, ...objects.map((object) => object.found)]);
    const isOpen = (item) => (item.isMerged ? merged.includes(item.id) : !item.isReplaced) && !taken.has(item.id);
    return [...this.#found.values()].filter((item) => item.run === this.#run && isOpen(item));
  }

  get selected() {
    return this.items.filter((item) => this.#selected.has(item.id));
  }

  get isSearching() {
    return this.#search !== null;
  }

  /** Whether clicks select found objects. */
  get takesClicks() {
    return !this.#isRefining && this.items.length > 0;
  }

  /** Return the found object of an id, with its path; null if there is none. */
  of(id) {
    const item = this.#found.get(id) ?? null;
    if (item) this.pathOf(item); // a restored one has no path yet
    return item;
  }

  /** Clear everything, for another image. */
  reset() {
    this.stop();
    this.#found.clear();
    this.#run++;
    this.#refining(false);
  }

  /** Return found objects with these ids as JSON. */
  stateOf(ids) {
    const items = [...ids].map((id) => this.#found.get(id)).filter(Boolean);
    return items.map(({ path, spans, ...item }) => ({ ...item, run: 0 }));
  }

  /** Take the found objects of a stored state. */
  restore(state) {
    for (const item of state.found) this.#found.set(item.id, { ...item, run: 0, spans: spansOf(item.rle) });
    this.#count = Math.max(this.#count, highestFound(state));
  }

  /** Find everything. */
  async find() {
    if (!this.#canSearch) return;
    await this.search(
      async (image, signal, hear) => {
        const { model, cleanup } = this.#page.masks.options;
        const { mask_threshold, ...others } = cleanup ?? {}; // a search has its own parameter for it
        await rest.everything(image.id, { model, mask_threshold, cleanup: others }, signal, hear);
      },
      { done: 0, total: 1 },
    );
  }

  /**
   * Run a search, replacing the previous results.
   *
   * ask: called as ask(image, signal, hear); it calls hear(name, data) for events, or finally returns
   * {objects, detail}.
   * progress: null if the search reports no progress.
   */
  async search(ask, progress = null) {
    const { image } = this.#page;
    if (!image || this.#search) return;
    const mine = (this.#search = new AbortController());
    const run = ++this.#run;
    this.#progress = progress;
    this.#refining(false);
    const hear = (name, data) => run === this.#run && this.#hear(name, data);
    try {
      const answer = await ask(image, mine.signal, hear);
      if (answer) hear("objects", { objects: answer.objects, removed: [] });
      if (answer) hear("done", answer);
    } catch (problem) {
      const again = () => this.search(ask, progress);
      if (problem.name !== "AbortError" && run === this.#run) void this.#page.fail(problem, again);
    } finally {
      if (this.#search === mine) this.#search = null;
      this.#page.show();
    }
  }

  stop() {
    this.#search?.abort();
    this.#search = null;
    this.#page.show();
  }

  /** Delete all found objects that were not kept. */
  close() {
    this.stop();
    const items = this.#open;
    if (items.length) this.#change((scene) => scene.gone.push(...items.map((item) => item.id)));
    this.#refining(false);
  }

  escape() {
    if (this.isSearching) this.stop();
    else if (this.#isRefining) this.#refining(false);
    else this.close();
  }

  /** Select the smallest found object under a point, or deselect it. */
  pick(point) {
    const item = this.#at(point);
    if (!item) this.#selected.clear();
    else if (!this.#selected.delete(item.id)) this.#selected.add(item.id);
    this.#page.show();
  }

  hover(point) {
    const id = (point && this.#at(point)?.id) ?? null;
    if (id === this.#hovered) return;
    this.#hovered = id;
    this.#page.stage.redraw();
  }

  /** Select only the next or the previous object. */
  step(by) {
    const items = this.items;
    if (!items.length) return;
    const last = items.findLastIndex((item) => this.#selected.has(item.id));
    const next = last < 0 && by < 0 ? items.length - 1 : (last + Math.sign(by) + items.length) % items.length;
    this.#selected = new Set([items[next].id]);
    this.#page.show();
  }

  /** Keep the selected objects, or all. */
  keep() {
    const items = this.selected.length ? this.selected : this.items;
    if (!items.length) return;
    this.#change((scene) => {
      for (const item of items) Object.assign(scene.begin(), { found: item.id, label: labelOf(item) });
    });
  }

  merge() {
    const items = this.selected;
    if (items.length < 2) return;
    const size = items[0].rle.size;
    const spans = union(items.map((item) => item.spans));
    const whole = this.#add({
      isMerged: true,
      rle: toRle(spans, size),
      ...measure(spans, size),
      score: Math.min(...items.map((item) => item.score)),
      points: items.flatMap((item) => item.points),
      mergedLabel: items.every((item) => labelOf(item) === labelOf(items[0])) ? labelOf(items[0]) : "",
    });
    this.#change((scene) => {
      scene.gone.push(...items.map((item) => item.id));
      scene.merged.push(whole.id);
    });
    this.#selected.add(whole.id);
    this.#page.show();
  }

  remove() {
    const items = this.selected;
    if (items.length) this.#change((scene) => scene.gone.push(...items.map((item) => item.id)));
  }

  /** Keep one object, and let clicks refine it until the user returns to the others. */
  refine() {
    if (this.selected.length !== 1) return;
    this.keep();
    this.#refining(true);
  }

  /** Give a kept object a prompt that clicks can refine. Call it inside scene.change(). */
  prompt(object) {
    const item = this.of(object.found);
    if (!item || object.points.length || object.box) return;
    const [x, y, width, height] = item.bbox;
    object.box = [x, y, x + width, y + height];
    object.points = item.points.map(([x, y]) => ({ x, y, label: 1 }));
  }

  paint(context, unit) {
    if (this.#isRefining) return;
    const isStrong = (item) => this.#selected.has(item.id) || item.id === this.#hovered;
    // Objects contain each other; selected objects and the one under the mouse must stay visible.
    for (const item of this.items.sort((a, b) => isStrong(a) - isStrong(b))) {
      const alpha = Math.min(1, this.#page.settings.opacity * (isStrong(item) ? STRONG : FAINT));
      paintMask(context, this.pathOf(item), item.color, alpha, unit, !this.#selected.has(item.id));
    }
  }

  pathOf(item) {
    return (item.path ??= item.bbox ? pathOf(item.rle, item.bbox) : new Path2D());
  }

  /** Show the state below the image. */
  show() {
    const [items, selected] = [this.items, this.selected];
    $("find").title = this.#page.model.finds_everything ? "Find all objects (F)" : "This model cannot search for everything";
    reveal({
      found: this.isSearching || items.length || this.#isRefining,
      "found-stop": this.isSearching,
      "found-progress": this.isSearching,
      "found-choose": !this.#isRefining && items.length,
      "found-back": this.#isRefining,
      "found-merge": selected.length > 1,
      "found-refine": selected.length === 1,
      "found-delete": selected.length,
    });
    enable({ find: this.#canSearch && !this.isSearching });
    if (this.#progress) $("found-progress").value = this.#progress.done / this.#progress.total;
    else $("found-progress").removeAttribute("value"); // indeterminate
    let text = this.isSearching && !this.#progress ? "Searching …" : `${items.length} found`;
    if (selected.length) text = `${selected.length} of ${items.length} selected`;
    if (this.#isRefining) text = "Click to refine";
    if ($("found-info").textContent !== text) $("found-info").textContent = text;
    $("found-keep").lastElementChild.textContent = selected.length ? "Keep" : "Keep all";
    $("found-keep").setAttribute("aria-label", selected.length ? "Keep the selected objects" : "Keep all objects");
  }

  get #canSearch() {
    return Boolean(this.#page.image && this.#page.model.finds_everything);
  }

  #hear(name, data) {
    if (name === "objects") this.#receive(data);
    else if (name === "progress") this.#progress = data;
    else if (name === "done" && data.detail) this.#page.warn(data.detail);
    this.#page.show();
  }

  /** Add found objects. ``removed`` are numbers of this search that better objects replace. */
  #receive({ objects, removed }) {
    for (const item of this.#found.values()) {
      if (item.run === this.#run && removed.includes(item.number)) item.isReplaced = true; // the user may have kept it
    }
    for (const { id, point, ...object } of objects) this.#add({ ...object, number: id, points: point ? [point] : [] });
  }

  #add(object) {
    const id = ++this.#count;
    const item = { ...object, id, run: this.#run, color: colorOf(id) };
    item.spans = spansOf(item.rle);
    this.#found.set(id, item);
    return item;
  }

  /** Return a new item for a mask that the user made; searches never show it. {rle, area, bbox, score, kind}. */
  addEdited(object) {
    return this.#add({ ...object, points: [], isMerged: true }); // a merged one is open only if the scene lists it
  }

  #at(point) {
    const hit = this.items.filter((item) => contains(item.spans, item.rle, point));
    return hit.reduce((best, item) => (best && best.area <= item.area ? best : item), null);
  }

  #change(act) {
    this.#page.change(() => act(this.#page.scene));
    this.#selected.clear();
    this.#page.show();
  }

  #refining(on) {
    this.#isRefining = on;
    if (!on) this.#selected.clear();
    this.#page.show();
  }
}

function labelOf(item) {
  return lineOf(item.label ?? item.mergedLabel);
}
