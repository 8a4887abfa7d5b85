// The page for slides and maps: a tile pyramid on the page's stage, clicks and boxes, masks as outlines.

import { $, check, connect, enable } from "./dom.js";
import { Tiles } from "./large-tiles.js";
import { askToken, busy, say, warn } from "./notices.js";
import { paintBox, paintCursor, paintMask, paintPrompts } from "./paint.js";
import { call, post } from "./rest.js";
import { save } from "./saves.js";
import { hasPrompt, promptOf, Scene } from "./scene.js";
import { Stage } from "./stage.js";
import { toggle } from "./theme.js";

const OPACITY = 0.22;
const scene = new Scene();
const stage = new Stage($("stage"), $("canvas"), paint, (context, ratio) => page.tiles.draw(context, stage, ratio));
const answers = new Map(); // by object and prompt: {mask, path}
const scales = new Map(); // by object and prompt: image pixels per screen pixel when the prompt was set
const latest = new Map(); // by object: the same, shown until the newest prompt has its mask
const asked = new Map(); // pending requests, by object id
const page = { image: null, tiles: null, corner: null, stage, scene, maskOf: (object) => answers.get(keyOf(object))?.mask ?? null };
let hasKeys = false; // whether the keyboard moves the image, so that the middle is marked
let asking = null;
let opened = 0; // calls of open(), the last of which counts
const work = new Map(); // by image id: {state, answers, scales} of the objects of images that were open before

/** Return the result of ``send()``; request a token from the user as often as the service requires one. */
async function ask(send) {
  for (;;) {
    try {
      return await send();
    } catch (error) {
      if (error.status !== 401) throw error;
      await (asking ??= askToken().finally(() => (asking = null)));
    }
  }
}

async function showImages() {
  const { images } = await (await ask(() => call("/v1/large"))).json();
  $("image").replaceChildren(...images.map(({ id, name }) => new Option(name, id)));
  enable({ image: images.length });
  if (!images.length) return warn("The folder of the service contains no slides or maps.");
  const wanted = images.find(({ name }) => name === decodeURIComponent(location.hash.slice(1))) ?? images[0];
  $("image").value = wanted.id;
  await open(wanted.id);
}

async function open(id) {
  const number = ++opened;
  stop();
  if (scene.objects.length) work.set(page.image.id, { state: scene.state, answers: [...answers], scales: [...scales] });
  page.tiles?.close();
  page.image = page.corner = stage.picture = null; // without an image, the stage ignores clicks
  scene.reset();
  for (const each of [answers, scales, latest]) each.clear();
  warn("");
  const info = await (await ask(() => call(`/v1/large/${id}`))).json();
  if (number !== opened) return;
  page.image = info;
  page.tiles = new Tiles(info, (path, options) => ask(() => call(path, options)), () => stage.redraw(), (error) => warn(error.message));
  history.replaceState(null, "", `#${encodeURIComponent(info.name)}`);
  $("picture-info").textContent = `${info.width} × ${info.height} pixels${info.epsg ? `, EPSG:${info.epsg}` : ""}`;
  stage.show(page.tiles, info);
  restore(info.id);
}

/** Show the objects that an image had when another one was opened. */
function restore(id) {
  const earlier = work.get(id);
  work.delete(id);
  if (earlier) {
    scene.restore(earlier.state);
    for (const [key, answer] of earlier.answers) answers.set(key, answer);
    for (const [key, scale] of earlier.scales) scales.set(key, scale);
  }
  segment();
}

function keyOf(object) {
  return JSON.stringify([object.id, promptOf(object)]);
}

/** Draw outlines, points and boxes. */
function paint(context) {
  for (const object of scene.objects) {
    const answer = answers.get(keyOf(object)) ?? latest.get(object.id);
    if (answer && object.points.length + Boolean(object.box)) paintMask(context, answer.path, object.color, OPACITY, stage.unit);
  }
  paintPrompts(context, scene.objects, scene.active, stage.unit);
  const [x, y] = stage.middle();
  const corner = page.corner && [page.corner[0], page.corner[1], x, y];
  if (stage.box ?? corner) paintBox(context, stage.box ?? corner, scene.active?.color ?? "#1e90ff", stage.unit, true);
  if (hasKeys) paintCursor(context, { x, y }, stage.unit);
}

function pathOf({ polygons }) {
  const path = new Path2D();
  for (const ring of polygons.flat()) {
    for (const [x, y] of ring) path.lineTo(x, y);
    path.closePath();
  }
  return path;
}

/** Render everything around the canvas, and the canvas in the next frame. */
function show() {
  const object = scene.active;
  const mask = object && page.maskOf(object);
  const count = object ? object.points.length + (object.box ? 1 : 0) : 0;
  enable({ undo: scene.canUndo, new: count, save: scene.objects.some(page.maskOf) });
  const facts = [`object ${scene.objects.indexOf(object) + 1}`, `${count} prompt${count === 1 ? "" : "s"}`];
  if (mask) facts.push(`score ${mask.score.toFixed(2)}`, `${Math.round(mask.area).toLocaleString("en")} px`);
  if (mask?.is_cut) facts.push("cut at a border");
  $("object-info").textContent = count ? facts.join(" · ") : "Click on an object.";
  stage.redraw();
}

/** Abort the request of an object, or all requests. */
function stop(id = null) {
  for (const [number, request] of asked) {
    if (id !== null && number !== id) continue;
    request.abort();
    asked.delete(number);
  }
  busy(asked.size ? "segmenting" : "");
}

function isMissing(object) {
  return Boolean(object && hasPrompt(object) && !page.maskOf(object));
}

/** Request the active object's mask, unless it is known; a newer prompt replaces the request. */
function segment() {
  stop(scene.active?.id ?? null);
  show();
  if (isMissing(scene.active)) void request(scene.active);
  else segmentOther();
}

/** Request a mask whose request was aborted or failed. */
function segmentOther() {
  const object = scene.objects.find((each) => isMissing(each) && !asked.has(each.id));
  if (object) void request(object);
}

async function request(object) {
  const [{ id }, key, mine] = [object, keyOf(object), new AbortController()];
  asked.set(id, mine);
  if (!scales.has(key)) scales.set(key, Math.max(1, stage.unit));
  busy("segmenting");
  const { box, ...prompt } = promptOf(object);
  const body = { ...prompt, ...(box && { box }), scale: scales.get(key) };
  try {
    const path = `/v1/large/${page.image.id}/segment`;
    const { masks: [mask] } = await (await ask(() => post(path, body, { signal: mine.signal }))).json();
    answers.set(key, { mask, path: pathOf(mask) });
    latest.set(id, answers.get(key));
    warn("");
    say(`mask of object ${scene.objects.findIndex((each) => each.id === id) + 1}, score ${mask.score.toFixed(2)}`);
    segmentOther();
  } catch (error) {
    if (error.name !== "AbortError") latest.delete(id), warn(error.message);
  } finally {
    if (asked.get(id) === mine) asked.delete(id);
    busy(asked.size ? "segmenting" : "");
    show();
  }
}

function change(act) {
  scene.change(act);
  segment();
}

function addPoint([x, y], label) {
  change(() => scene.current().points.push({ x, y, label }));
}

function addBox(box) {
  change(() => (scene.current().box = box));
}

function use(tool) {
  stage.tool = tool;
  page.corner = null;
  check("[data-tool]", (button) => button.dataset.tool === tool);
  stage.redraw();
}

function undo() {
  scene.undo();
  for (const id of latest.keys()) if (!scene.objects.some((object) => object.id === id)) latest.delete(id);
  segment();
}

function begin() {
  if (scene.active?.points.length || scene.active?.box) scene.change(() => scene.begin());
  show();
}

/** Use the middle of the stage as a point or as a corner of a box. */
function markMiddle(label) {
  const place = inside(stage.middle());
  if (stage.tool !== "box") return addPoint(place, label);
  if (!page.corner) return say("first corner of the box"), (page.corner = place);
  const [a, b] = [page.corner, place];
  page.corner = null;
  addBox([Math.min(a[0], b[0]), Math.min(a[1], b[1]), Math.max(a[0], b[0]), Math.max(a[1], b[1])]);
}

function inside([x, y]) {
  return [Math.min(page.image.width, Math.max(0, x)), Math.min(page.image.height, Math.max(0, y))];
}

function saveMasks() {
  save(toGeoJson(), `${page.image.name.split("/").pop()}.geojson`);
  const count = scene.objects.filter(isMissing).length;
  if (!count) return;
  warn(`The file lacks ${count} object${count === 1 ? "" : "s"} without a mask. Save again when they have their masks.`);
  segmentOther();
}

/** Return all masks as a FeatureCollection, in image pixels. */
function toGeoJson() {
  const features = scene.objects.flatMap((object, index) => {
    const mask = page.maskOf(object);
    if (!mask) return [];
    const coordinates = mask.polygons.map((rings) => rings.map((ring) => [...ring, ring[0]]));
    const properties = { object: index + 1, score: mask.score, area: mask.area };
    return [{ type: "Feature", geometry: { type: "MultiPolygon", coordinates }, properties }];
  });
  return new Blob([JSON.stringify({ type: "FeatureCollection", features })], { type: "application/geo+json" });
}

const KEYS = {
  a: () => use("add"),
  d: () => use("cut"),
  b: () => use("box"),
  n: begin,
  0: () => stage.fit(),
  "+": () => stage.zoom(1.5),
  "=": () => stage.zoom(1.5),
  "-": () => stage.zoom(1 / 1.5),
  "?": () => $("keys-dialog").showModal(),
};
const ARROWS = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

function press(event) {
  if (!page.image || document.querySelector("dialog[open]") || event.target.closest("select, input")) return;
  const isOnCanvas = event.target === $("canvas");
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z") undo();
  else if (event.ctrlKey || event.metaKey || event.altKey) return;
  else if (ARROWS[event.key] && isOnCanvas) {
    stage.move(...ARROWS[event.key].map((way) => way * (event.shiftKey ? 8 : 64)));
    hasKeys = true;
  } else if (event.key === "Enter" && isOnCanvas) markMiddle(event.shiftKey || stage.tool === "cut" ? 0 : 1);
  else if (KEYS[event.key.toLowerCase()]) KEYS[event.key.toLowerCase()]();
  else return;
  event.preventDefault();
  stage.redraw();
}

stage.dragsMove = true;
stage.on = {
  point: ({ x, y, label }) => addPoint([x, y], label),
  box: ({ box }) => addBox(box),
  view: () => ($("zoom-level").textContent = `${(100 * stage.scale).toPrecision(stage.unit > 20 ? 1 : 3) * 1} %`),
};
// Only keyboard users see a frame around the focused canvas, see style.css.
addEventListener("pointerdown", () => ((document.body.dataset.by = "pointer"), (hasKeys = false)), true);
addEventListener("keydown", () => (document.body.dataset.by = "keys"), true);
addEventListener("keydown", press);
$("canvas").addEventListener("focus", () => ((hasKeys = $("canvas").matches(":focus-visible")), stage.redraw()));
$("canvas").addEventListener("blur", () => ((hasKeys = false), stage.redraw()));
for (const button of document.querySelectorAll("[data-tool]")) button.addEventListener("click", () => use(button.dataset.tool));
connect({
  new: begin,
  undo,
  keys: () => $("keys-dialog").showModal(),
  theme: toggle,
  "banner-close": () => warn(""),
  "zoom-in": () => stage.zoom(1.5),
  "zoom-out": () => stage.zoom(1 / 1.5),
  "zoom-fit": () => stage.fit(),
  save: saveMasks,
});
addEventListener("beforeunload", (event) => (scene.objects.length || work.size) && event.preventDefault());
connect({ image: () => open($("image").value).catch((error) => warn(error.message)) }, "change");
globalThis.tritonSam = page; // for tests, and for the browser's console
showImages().catch((error) => warn(error.message));
