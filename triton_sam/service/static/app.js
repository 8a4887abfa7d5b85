// The main module: the page's only state, `page`, which every other module reads, and show(), which renders it.

import { actionsOf } from "./actions.js";
import { kept } from "./choices.js";
import { connectClicks } from "./clicks.js";
import { connectControls } from "./controls.js";
import { Cursor } from "./cursor.js";
import { $, enable, reveal } from "./dom.js";
import { Edits } from "./edits.js";
import { Everything } from "./everything.js";
import { HandTools } from "./hand-tools.js";
import { installKeys } from "./keys.js";
import { Live } from "./live.js";
import { Masks } from "./masks.js";
import { askToken, say, setState, warn } from "./notices.js";
import { paintScene } from "./paint.js";
import { showPanel } from "./panel.js";
import { Pictures } from "./pictures.js";
import { Preview } from "./preview.js";
import * as rest from "./rest.js";
import { Scene } from "./scene.js";
import { Stage } from "./stage.js";
import { Video } from "./video.js";
import { Words } from "./words.js";

const page = {
  settings: { model: null, multimask: false, cleanup: true, cleanupArea: 32, threshold: 0, opacity: 0.5, hover: true, ...kept() },
  models: [],
  isUp: false, // whether the service can compute masks
  stats: { hover: [], clicks: [] }, // for measurements: [{moved, painted, ms}]
  /** The image's objects and their masks; a video's have the same interface. */
  images: { scene: new Scene() },
  /** The current view: images, or the video. */
  mode: null,
  get scene() {
    return page.mode.scene;
  },
  get masks() {
    return page.mode.masks;
  },
  get image() {
    return page.pictures.image;
  },
  get model() {
    return page.models.find(({ name }) => name === page.settings.model) ?? {};
  },
  /** Whether clicks on the image count. */
  get takesClicks() {
    return Boolean((page.image || (page.video.isOpen && page.video.isAtRest)) && !page.pictures.isOpening);
  },
  ...{ show, begin, change, clicked, fail, warn },
};
page.images.masks = new Masks(page, page.images.scene);
page.images.scene.multimask = page.settings.multimask;
page.mode = page.images;
page.live = new Live({
  status: serviceChanged,
  masks: (message, time) => page.preview.show(message, time),
  hoverError: ({ code }) => code === "unknown_image" && page.pictures.isSent && void page.pictures.reupload(),
  lost: () => down("offline", "The service does not answer. Trying again …"),
  refused: () => down("refused", "The service has too many open pages, or refuses this client. Trying again in a minute …"),
  outdated: () => down("reload", "The service has another version than this page: reload the page."),
  token: () => void askToken().then(() => page.live.connect()),
});
page.stage = new Stage($("stage"), $("canvas"), (context) => paintScene(context, page));
page.preview = new Preview(page);
page.cursor = new Cursor(page);
page.video = new Video(page);
page.everything = new Everything(page);
page.words = new Words(page);
page.pictures = new Pictures(page);
page.edits = new Edits(page);
page.handTools = new HandTools(page);
page.actions = actionsOf(page);
Object.assign(page.stage.on, {
  hover: (place) => page.preview.hover(place),
  leave: () => page.preview.end(),
  view: () => ($("zoom-level").textContent = `${Math.round(page.stage.scale * 100)} %`),
});
connectClicks(page);
connectControls(page);
installKeys(page.actions, $("key-list"), (key) => page.handTools.tool?.key(key) ?? false);
// For tests, measurements, and the browser's console.
globalThis.tritonSam = page;

/** Render the state: everything around the canvas at once, the canvas in the next frame. */
function show() {
  const { image, video, pictures } = page;
  const shown = image ?? video.info;
  const size = shown && `${shown.name} · ${shown.width} × ${shown.height}`;
  $("picture-info").textContent = video.isOpen ? `${size} · ${video.info.fps} frames/s` : (size ?? "no image");
  reveal({ demo: page.model.demo });
  showPanel(page);
  for (const part of [video, page.everything, page.words, page.handTools]) part.show();
  page.stage.redraw();
  pictures.shelf.noteSoon();
}

/** Show the image's objects, or the video's. */
function begin(mode) {
  page.mode = mode;
  page.preview.end();
  for (const part of [page.stage, page.cursor, page.handTools]) part.abort(); // what has begun belongs to the image before
  document.body.dataset.mode = mode === page.video ? "video" : "image";
  $("stage").classList.remove("is-empty");
  reveal({ empty: false });
}

/** Change the objects with ``act``; ``time`` is the click's. */
function change(act, time) {
  page.scene.change(act);
  void page.masks.refresh(time);
}

/** Record a click's mask, computed by the service in ``ms``. */
function clicked(time, ms) {
  page.stage.draw();
  const total = performance.now() - time;
  page.stats.clicks.push({ total, ms });
  $("click-info").textContent = `last click: ${Math.round(total)} ms`;
  $("service-info").textContent = `service: ${Math.round(ms)} ms`;
  const facts = () => document.querySelector('.object[aria-current="true"] .facts')?.textContent ?? "";
  setTimeout(() => say(`${page.scene.active?.name}: ${facts()}`)); // after the list shows them
}

/** Show a problem. Request a token, or send again what the service has dropped, and then call ``again()``. */
async function fail(problem, again) {
  if (problem.status === 401) await askToken();
  else if (!["unknown_image", "unknown_video"].includes(problem.code)) return warn(problem.message);
  else if (!(await page.pictures.reupload())) return;
  await again();
}

function serviceChanged(status) {
  const wasUp = page.isUp;
  const wasDown = $("state").dataset.state === "down";
  page.isUp = status.up;
  setState(status.up ? "up" : "down", status.up ? "ready" : "no Triton");
  if (!status.up) {
    page.preview.end();
    return warn(`Segmentation is unavailable; reconnecting automatically. (${status.detail ?? "no model is ready"})`);
  }
  if (wasDown) warn("");
  if (wasUp && page.models.map((model) => model.name).join() === status.models.join()) return;
  void loadModels().then(() => {
    if (page.model.name && (page.image || page.video.isOpen)) return page.pictures.isSent ? page.masks.refresh() : page.pictures.reupload();
  });
}

function down(state, text) {
  page.isUp = false;
  page.preview.end();
  setState("down", state);
  warn(text);
}

async function loadModels() {
  const { settings } = page;
  try {
    const answer = await rest.models();
    page.models = answer.models;
    document.body.dataset.urls = answer.image_urls ? "1" : "0";
    // Without HEIC in this list, phones may send JPEG instead.
    if (answer.heic && !$("file").accept.includes(".heic")) $("file").accept += ",.heic,.heif";
  } catch (problem) {
    if (problem.status === 401) return askToken().then(loadModels);
    return;
  }
  if (!settings.model || (!page.model.name && !page.image && !page.video.isOpen)) {
    settings.model = (page.models.find((model) => model.default) ?? page.models[0])?.name;
  }
  const options = page.models.map(({ name, demo }) => new Option(demo ? `${name} (demo)` : name, name));
  if (!page.model.name && page.models.length) options.push(new Option(`${settings.model} (not ready)`, settings.model));
  $("model").replaceChildren(...options);
  $("model").value = settings.model;
  enable({ model: page.models.length });
  show();
}

$("cleanup").checked = page.settings.cleanup;
$("cleanup-area").value = $("cleanup-value").textContent = page.settings.cleanupArea;
$("threshold").value = $("threshold-value").textContent = page.settings.threshold;
show();
await loadModels();
await page.pictures.start().catch((problem) => warn(`The stored images cannot be opened: ${problem.message}`));
page.live.connect();
