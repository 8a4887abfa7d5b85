// Objects with their points and boxes, and the undo history. This module depends on neither the page nor the service.

const COLORS = ["#1e90ff", "#ff9500", "#af52de", "#00c7be", "#ffd60a", "#ff3782", "#7ccd32", "#5e5ce6"];
const GOLDEN_ANGLE = 137.508; // degrees: consecutive hues differ clearly

/** Return an object's colour by its number, from 1, as "#rrggbb": eight chosen colours, then generated ones. */
export function colorOf(number) {
  if (number <= COLORS.length) return COLORS[number - 1];
  const lightness = [0.5, 0.62, 0.42][number % 3];
  const [hue, span] = [(number * GOLDEN_ANGLE) % 360, 0.75 * Math.min(lightness, 1 - lightness)];
  const channel = (place) => {
    const turn = (place + hue / 30) % 12;
    const value = lightness - span * Math.max(-1, Math.min(turn - 3, 9 - turn, 1)); // HSL, as in CSS Color 4
    return Math.round(255 * value).toString(16).padStart(2, "0");
  };
  return `#${channel(0)}${channel(8)}${channel(4)}`;
}

export const UNPRINTABLE = /[\p{Cc}\ufffe\uffff]/gu;
const KEPT_STEPS = 50; // stored steps of the history

export class Scene {
  objects = [];
  activeId = null;
  gone = []; // ids of found objects that the user has deleted or merged; see everything.js
  multimask = false; // whether new objects request three candidates
  merged = []; // ids of found objects that came from merging
  #undo = [];
  #redo = [];
  #count = 0;

  get active() {
    return this.objects.find((object) => object.id === this.activeId) ?? null;
  }

  get canUndo() {
    return this.#undo.length > 0;
  }

  get canRedo() {
    return this.#redo.length > 0;
  }

  reset() {
    this.objects = [];
    this.activeId = null;
    this.gone = [];
    this.merged = [];
    this.#undo = [];
    this.#redo = [];
    this.#count = 0;
  }

  /** Everything that restore() needs, as a JSON-compatible object. */
  get state() {
    return { now: this.#snapshot(), undo: this.#undo.slice(-KEPT_STEPS), redo: this.#redo.slice(-KEPT_STEPS) };
  }

  restore({ now, undo, redo }) {
    this.#undo = [...undo];
    this.#redo = [...redo];
    this.#take(now);
  }

  /** Change the objects with ``act``; undo() restores the previous state. */
  change(act) {
    this.#undo.push(this.#snapshot());
    this.#redo = [];
    act();
  }

  undo() {
    this.#step(this.#undo, this.#redo);
  }

  redo() {
    this.#step(this.#redo, this.#undo);
  }

  /** Return the active object; create one if there is none. Call it inside change(). */
  current() {
    return this.active ?? this.begin();
  }

  /** Create a new object. Call it inside change(). */
  begin() {
    const number = ++this.#count;
    const object = {
      id: number,
      name: `Object ${number}`,
      label: "", // the class in data sets; if empty, the name is used
      color: colorOf(number),
      points: [],
      box: null,
      choice: null,
      multimask: this.multimask,
      found: null, // the id of a found object, whose mask is used without a prompt
      visible: true,
    };
    this.objects.push(object);
    this.activeId = object.id;
    return object;
  }

  /** Add a copy after an object, and make it active. Call it inside change(). */
  duplicate(object) {
    const copy = this.begin();
    const { id, color } = copy;
    Object.assign(copy, structuredClone(object), { id, color, name: lineOf(`${object.name} copy`), visible: true });
    this.move(id, this.objects.indexOf(object) + 1);
  }

  /** Move an object to a position in the list. Later objects are on top. Call it inside change(). */
  move(id, place) {
    const object = this.objects.find((each) => each.id === id);
    this.objects.splice(this.objects.indexOf(object), 1);
    this.objects.splice(place, 0, object);
  }

  remove(id) {
    this.objects = this.objects.filter((object) => object.id !== id);
    if (this.activeId === id) this.activeId = this.objects.at(-1)?.id ?? null;
  }

  #snapshot() {
    const { objects, activeId, gone, merged } = this;
    return JSON.stringify({ objects, activeId, gone, merged, count: this.#count });
  }

  #step(from, to) {
    const earlier = from.pop();
    if (earlier === undefined) return;
    to.push(this.#snapshot());
    this.#take(earlier);
  }

  #take(text) {
    const state = JSON.parse(text);
    this.#count = state.count;
    for (const name of ["objects", "activeId", "gone", "merged"]) this[name] = state[name];
  }
}

/** Return a state (null: an empty image's) with added objects that have masks; undo removes them. */
export function withObjects(state, objects) {
  const scene = new Scene();
  if (state) scene.restore(state);
  const found = [...(state?.found ?? [])];
  const first = 1 + (state ? highestFound(state) : 0);
  scene.change(() => {
    objects.forEach(({ label, name, ...mask }, index) => {
      const object = scene.begin();
      Object.assign(object, { label, name: name || object.name, found: first + index });
      found.push({ id: first + index, kind: "imported", points: [], color: object.color, ...mask });
    });
  });
  const labels = scene.objects.map((object) => object.label).filter(Boolean);
  return { ...scene.state, found, labels, hasObjects: true };
}

/** Return the highest id of a found object in a state, among them deleted ones that undo and redo know. */
export function highestFound({ now, undo, redo, found = [] }) {
  let highest = 0;
  for (const item of found) highest = Math.max(highest, item.id);
  for (const text of [now, ...undo, ...redo]) {
    const { gone, merged } = JSON.parse(text);
    highest = Math.max(highest, ...gone, ...merged);
  }
  return highest;
}

/** Return the class of an object: its label, or its name if it has none. */
export function classOf(object) {
  return object.label || object.name;
}

/** Return a text as a label or a name that data sets accept: a line of at most 60 characters. */
export function lineOf(text) {
  return [...String(text ?? "").replace(UNPRINTABLE, " ")].slice(0, 60).join("");
}

/** Whether an object has a prompt; in a video (``prompts``), it may be in another frame. */
export function hasPrompt(object) {
  return Boolean(object && (object.points.length || object.box || Object.keys(object.prompts ?? {}).length));
}

/** Whether an object has no source of a mask yet. */
export function isBlank(object) {
  return Boolean(object && !hasPrompt(object) && !object.found);
}

/** Return an object's prompt for the service; ``extra`` is the point under the mouse, if it is included. */
export function promptOf(object, extra) {
  const points = [...(object?.points ?? []), ...(extra ? [extra] : [])];
  return {
    points: points.map((point) => [point.x, point.y]),
    labels: points.map((point) => point.label),
    box: object?.box ?? null,
  };
}
