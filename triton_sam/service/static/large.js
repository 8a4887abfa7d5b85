// The page of slides and maps: pan and zoom over a pyramid of tiles, clicks and boxes, masks as outlines.

import { saveFile } from "./large-files.js";
import { watchHands } from "./large-hands.js";
import { COLORS, drawBox, drawObjects, Objects } from "./large-objects.js";
import { Tiles } from "./large-tiles.js";
import { View } from "./large-view.js";
import { askToken, busy, check, say, warn } from "./notices.js";
import { call } from "./rest.js";
import { toggle } from "./theme.js";

const $ = (id) => document.getElementById(id);
const canvas = $("canvas");
const context = canvas.getContext("2d");
const page = { image: null, tiles: null, view: null, objects: new Objects(), tool: "add", drawn: null, corner: null };
let frame = 0;
const asked = new Map(); // requests on their way, by the number of their object
let hasKeys = false; // whether the keyboard moves the image, so that the middle is marked

/** Call the service; ask the user for a token as often as it wants one. */
async function ask(path, options) {
  for (;;) {
    try {
      return await call(path, options);
    } catch (error) {
      if (error.status !== 401) throw error;
      await (asking ??= askToken().finally(() => (asking = null)));
    }
  }
}
let asking = null;

async function showImages() {
  const { images } = await (await ask("/v1/large")).json();
  $("image").replaceChildren(...images.map(({ id, name }) => new Option(name, id)));
  $("image").disabled = !images.length;
  if (!images.length) return warn("The folder of the service has no slide and no map.");
  const wanted = images.find(({ name }) => name === decodeURIComponent(location.hash.slice(1))) ?? images[0];
  $("image").value = wanted.id;
  await show(wanted.id);
}

async function show(id) {
  stop();
  page.tiles?.close();
  [page.image, page.objects] = [null, new Objects()];
  warn("");
  const info = await (await ask(`/v1/large/${id}`)).json();
  page.image = info;
  page.view = new View(info);
  page.tiles = new Tiles(info, ask, draw, (error) => warn(error.message));
  history.replaceState(null, "", `#${encodeURIComponent(info.name)}`);
  $("picture-info").textContent = `${info.width} × ${info.height} pixels${info.epsg ? `, EPSG:${info.epsg}` : ""}`;
  resize();
  page.view.fit();
  changed();
}

function resize() {
  const { width, height } = $("stage").getBoundingClientRect();
  const ratio = devicePixelRatio || 1;
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  page.view?.resize(width, height);
  draw();
}

function draw() {
  frame ||= requestAnimationFrame(paint);
}

function paint() {
  frame = 0;
  context.clearRect(0, 0, canvas.width, canvas.height);
  if (!page.image) return;
  const ratio = devicePixelRatio || 1;
  page.tiles.draw(context, page.view, ratio);
  drawObjects(context, page.objects, page.view, ratio);
  context.save();
  context.scale(ratio, ratio);
  if (page.drawn) drawBox(context, page.drawn, page.view, COLORS[page.objects.active % COLORS.length]);
  if (hasKeys) drawMiddle();
  context.restore();
  $("zoom-level").textContent = `${(100 / page.view.scale).toPrecision(page.view.scale > 20 ? 1 : 3) * 1} %`;
}

function drawMiddle() {
  const [x, y] = [page.view.width / 2, page.view.height / 2];
  for (const [width, color] of [[4, "#000000"], [1.5, "#ffffff"]]) {
    context.beginPath();
    for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
      context.moveTo(x + 4 * dx, y + 4 * dy);
      context.lineTo(x + 14 * dx, y + 14 * dy);
    }
    [context.lineWidth, context.strokeStyle] = [width, color];
    context.stroke();
  }
}

function changed() {
  $("undo").disabled = !page.objects.past.length;
  $("new").disabled = !page.objects.current;
  $("save").disabled = !page.objects.all.some(({ mask }) => mask);
  const object = page.objects.current;
  const { mask } = object ?? {};
  const count = object ? object.points.length + (object.box ? 1 : 0) : 0;
  $("object-info").textContent = !object
    ? "Click on an object."
    : `object ${page.objects.active + 1} · ${count} prompt${count === 1 ? "" : "s"}` +
      (mask ? ` · score ${mask.score.toFixed(2)} · ${Math.round(mask.area).toLocaleString("en")} px` : "") +
      (mask?.is_cut ? " · cut at a border" : "");
  draw();
}

/** Drop the request of an object, or all requests. */
function stop(index = null) {
  for (const [number, request] of asked) {
    if (index !== null && number !== index) continue;
    request.abort();
    asked.delete(number);
  }
  busy(asked.size ? "segmenting" : "");
}

/** Ask for the mask of the active object; a newer prompt replaces the request. */
async function segment() {
  const [object, index] = [page.objects.current, page.objects.active];
  stop(index);
  changed();
  if (!object || !(object.points.length || object.box)) return;
  const mine = new AbortController();
  asked.set(index, mine);
  busy("segmenting");
  const { points, labels, box } = object;
  const body = { points, labels, ...(box ? { box } : {}), scale: Math.max(1, page.view.scale) };
  const headers = { "Content-Type": "application/json" };
  const options = { method: "POST", body: JSON.stringify(body), headers, signal: mine.signal };
  try {
    const { masks } = await (await ask(`/v1/large/${page.image.id}/segment`, options)).json();
    if (page.objects.answer(object, masks[0])) {
      warn("");
      say(`mask of object ${index + 1}, score ${masks[0].score.toFixed(2)}`);
    }
  } catch (error) {
    if (error.name !== "AbortError") warn(error.message);
  } finally {
    if (asked.get(index) === mine) asked.delete(index);
    busy(asked.size ? "segmenting" : "");
    changed();
  }
}

function addPoint(place, label) {
  page.objects.add(page.view.inside(place), label);
  void segment();
}

function addBox([x1, y1], [x2, y2]) {
  page.objects.setBox([Math.min(x1, x2), Math.min(y1, y2), Math.max(x1, x2), Math.max(y1, y2)]);
  void segment();
}

function use(tool) {
  page.tool = tool;
  page.corner = page.drawn = null;
  check("[data-tool]", (button) => button.dataset.tool === tool);
  draw();
}

function undo() {
  if (!page.objects.undo()) return;
  if (page.objects.current && !page.objects.current.isAnswered) void segment();
  else (stop(page.objects.active), changed());
}

function begin() {
  page.objects.begin();
  changed();
}

/** Take the middle of the stage as a point or as a corner of a box. */
function markMiddle(label) {
  const place = page.view.inside(page.view.middle());
  if (page.tool !== "box") return addPoint(place, label);
  if (!page.corner) return say("first corner of the box"), (page.corner = place), (page.drawn = [...place, ...place]);
  addBox(page.corner, place);
  page.corner = page.drawn = null;
}

const KEYS = {
  a: () => use("add"),
  d: () => use("cut"),
  b: () => use("box"),
  n: begin,
  0: () => page.view.fit(),
  "+": () => page.view.zoom(1.5),
  "=": () => page.view.zoom(1.5),
  "-": () => page.view.zoom(1 / 1.5),
  "?": () => $("keys-dialog").showModal(),
};
const ARROWS = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

function press(event) {
  if (!page.image || document.querySelector("dialog[open]") || event.target.closest("select, input")) return;
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z") undo();
  else if (event.ctrlKey || event.metaKey || event.altKey) return;
  else if (ARROWS[event.key] && event.target === canvas) {
    const step = event.shiftKey ? 8 : 64;
    page.view.move(...ARROWS[event.key].map((way) => way * step));
    if (page.corner) page.drawn = [...page.corner, ...page.view.inside(page.view.middle())];
    hasKeys = true;
  } else if (event.key === "Enter" && event.target === canvas) markMiddle(event.shiftKey || page.tool === "cut" ? 0 : 1);
  else if (KEYS[event.key.toLowerCase()]) KEYS[event.key.toLowerCase()]();
  else return;
  event.preventDefault();
  draw();
}

watchHands(canvas, {
  view: () => (page.image ? page.view : null),
  isBox: () => page.tool === "box",
  moved: (isDone) => ((hasKeys = false), ($("stage").dataset.cursor = isDone ? "cross" : "grabbing"), draw()),
  boxed: (from, to, isDone) => {
    page.drawn = isDone ? null : [...from, ...to];
    if (isDone) addBox(from, to);
    draw();
  },
  clicked: (place, isBackground) => {
    hasKeys = false;
    if (page.tool !== "box" || isBackground) addPoint(place, isBackground || page.tool === "cut" ? 0 : 1);
  },
});
// Only people who use the keyboard see a frame around the focused canvas, see style.css.
document.addEventListener("pointerdown", () => (document.body.dataset.by = "pointer"), true);
document.addEventListener("keydown", () => (document.body.dataset.by = "keys"), true);
document.addEventListener("keydown", press);
canvas.addEventListener("focus", () => ((hasKeys = canvas.matches(":focus-visible")), draw()));
canvas.addEventListener("blur", () => ((hasKeys = false), draw()));
for (const button of document.querySelectorAll("[data-tool]")) button.addEventListener("click", () => use(button.dataset.tool));
for (const [id, action] of Object.entries({
  new: begin,
  undo,
  keys: () => $("keys-dialog").showModal(),
  theme: toggle,
  "banner-close": () => warn(""),
  "zoom-in": () => (page.view?.zoom(1.5), draw()),
  "zoom-out": () => (page.view?.zoom(1 / 1.5), draw()),
  "zoom-fit": () => (page.view?.fit(), draw()),
  save: () => saveFile(`${page.image.name.split("/").pop()}.geojson`, page.objects.toGeoJson()),
})) {
  $(id).addEventListener("click", action);
}
$("image").addEventListener("change", () => show($("image").value).catch((error) => warn(error.message)));
new ResizeObserver(resize).observe($("stage"));
window.tritonSam = page; // for tests, and for people who look into the page
showImages().catch((error) => warn(error.message));
