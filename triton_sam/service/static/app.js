// The main module of the page: it connects the user's actions, the answers of the service, and the drawing.

import { actionsOf } from "./actions.js";
import { kept } from "./choices.js";
import { connectControls } from "./controls.js";
import { connectEditing } from "./editing.js";
import { Cursor } from "./cursor.js";
import { Everything } from "./everything.js";
import { connectHandTools } from "./hand-tools.js";
import { Live } from "./live.js";
import { Masks } from "./masks.js";
import { askToken, check, hintFor, say, setState, warn } from "./notices.js";
import { outline } from "./outline.js";
import { paintScene } from "./paint.js";
import { offerLabels, showButtons, showObjects } from "./panel.js";
import { Pictures } from "./pictures.js";
import * as rest from "./rest.js";
import { promptOf, Scene } from "./scene.js";
import { Stage } from "./stage.js";
import { Video } from "./video.js";
import { Words } from "./words.js";

const $ = (id) => document.getElementById(id);
const live = new Live();
const settings = { model: null, multimask: false, cleanup: true, cleanupArea: 32, threshold: 0, opacity: 0.5, hover: true, ...kept() };
const forImages = { scene: new Scene() };
forImages.scene.multimask = settings.multimask;
forImages.masks = new Masks(forImages.scene, live, settings);
let { scene, masks } = forImages; // or those of the video
const stats = { hover: [], clicks: [] }; // for measurements: [{moved, painted, ms}]
let models = [];
let preview = null; // {path}
let serviceIsUp = false;

const paint = (context) => {
  paintScene(context, { scene, masks, everything, preview, settings, stage, cursor });
  handTools.paint(context);
};
const stage = new Stage($("stage"), $("canvas"), paint);
const cursor = new Cursor({
  ...{ stage, canvas: $("canvas"), endHover },
  takesClicks: () => takesClicks() && !everything.takesClicks,
  get polygon() {
    return handTools.polygon;
  },
});
const video = new Video({ stage, settings, show, warn, problem: videoProblem });
const everything = new Everything({
  ...forImages,
  stage,
  settings,
  change,
  show: () => show(),
  warn,
  problem: everythingProblem,
  currentImage: () => pictures.image,
  finds: () => chosenModel()?.finds_everything ?? false,
});
const words = new Words({
  ...forImages,
  settings,
  everything,
  show: () => show(),
  warn,
  currentImage: () => pictures.image,
  findsConcepts: () => chosenModel()?.finds_concepts ?? false,
});
const pictures = new Pictures({
  forImages,
  everything,
  video,
  stage,
  settings,
  begin,
  show: () => show(),
  warn,
  endHover,
  isUp: () => serviceIsUp,
});
forImages.masks.foundOf = (id) => everything.of(id);
// Tests, measurements, and people at the browser's console use this object.
globalThis.tritonSam = {
  stats,
  settings,
  video,
  everything,
  words,
  get scene() {
    return scene;
  },
  resultOf: (object) => masks.resultOf(object),
  choiceOf: (object) => masks.choiceOf(object),
  screenOf: (x, y) => stage.screenOf(x, y),
  get image() {
    return pictures.image;
  },
  get preview() {
    return preview;
  },
};

// --- masks -----------------------------------------------------------------------------------------------------------

for (const source of [forImages.masks, video.masks]) {
  source.addEventListener("changed", () => show());
  source.addEventListener("unknown-image", () => void pictures.reupload());
  source.addEventListener("clicked", ({ detail }) => {
    stage.draw();
    const total = performance.now() - detail.time;
    stats.clicks.push({ total, ms: detail.ms });
    $("click-info").textContent = `last click: ${Math.round(total)} ms`;
    $("service-info").textContent = `service: ${Math.round(detail.ms)} ms`;
    setTimeout(() => say(`${scene.active?.name}: ${activeFacts()}`)); // the list shows them next
  });
}
video.masks.addEventListener("failed", ({ detail }) => videoProblem(detail));

live.addEventListener("masks", ({ detail }) => {
  const image = pictures.image;
  if (!image || detail.image !== image.id) return;
  const choice = detail.scores.indexOf(Math.max(...detail.scores));
  preview = { path: outline(detail.logits[choice], detail.side, detail.used, image) };
  stage.draw(); // at once, not in the next frame: the user waits for this preview
  const painted = performance.now();
  stats.hover.push({ moved: detail.time, painted, ms: detail.ms });
  $("hover-info").textContent = `preview: ${Math.round(painted - detail.time)} ms`;
});

live.addEventListener("hover-error", ({ detail }) => {
  if (detail.code === "unknown_image") void pictures.reupload();
});

stage.addEventListener("hover", ({ detail }) => {
  if (everything.takesClicks) return everything.hover(detail);
  if (!settings.hover || !pictures.image || pictures.isOpening || !serviceIsUp) return;
  live.hover(masks.requestFor(scene.active ?? scene, promptOf(scene.active, detail)), detail.time);
});

stage.addEventListener("leave", endHover);

function endHover() {
  live.stopHover();
  everything.hover(null);
  if (preview) {
    preview = null;
    stage.redraw();
  }
}

// --- actions of the user ---------------------------------------------------------------------------------------------

stage.addEventListener("point", ({ detail }) => {
  if (!takesClicks()) return;
  endHover();
  if (everything.takesClicks) return everything.pick(detail);
  const point = { x: round2(detail.x), y: round2(detail.y), label: detail.label };
  change(() => (everything.prompt(scene.current()), scene.active.points.push(point)), detail.time);
});

stage.addEventListener("box", ({ detail }) => {
  if (!takesClicks() || everything.takesClicks) return;
  endHover();
  change(() => {
    // A second box is another object. The box of a found object comes from the search, so the user's replaces it.
    const { box, found } = scene.current();
    const object = box && !found ? scene.begin() : scene.active;
    object.box = detail.box.map(round2);
  }, detail.time);
});

stage.addEventListener("view", () => ($("zoom-level").textContent = `${Math.round(stage.scale * 100)} %`));

function takesClicks() {
  return (pictures.image || (video.isOpen && video.isAtRest)) && !pictures.isOpening;
}

function change(act, time) {
  scene.change(act);
  void masks.refresh(time);
}

function round2(value) {
  return Math.round(value * 100) / 100;
}

const actions = actionsOf({
  get scene() {
    return scene;
  },
  get masks() {
    return masks;
  },
  ...{ pictures, video, everything, words, stage, settings, change, endHover },
  show: () => show(),
  toolChosen: () => (cursor.follow(), show()),
  takeCornerBack: () => handTools.takeCornerBack(),
});

/** Show the objects of the image, or those of the video. */
function begin(mode) {
  ({ scene, masks } = mode);
  preview = null;
  document.body.dataset.mode = mode === video ? "video" : "image";
  $("stage").classList.remove("is-empty");
  $("empty").hidden = true;
}

// --- the service -----------------------------------------------------------------------------------------------------

live.addEventListener("status", ({ detail }) => {
  const wasUp = serviceIsUp;
  serviceIsUp = detail.up;
  setState(detail.up ? "up" : "down", detail.up ? "ready" : "no Triton");
  if (!detail.up) {
    endHover();
    warn(`There are no masks for now; they come back by themselves. (${detail.detail ?? "no model is ready"})`);
    return;
  }
  warn("");
  if (wasUp && models.map((model) => model.name).join() === detail.models.join()) return;
  void loadModels().then(() => {
    if (pictures.image || video.isOpen) return pictures.isSent ? masks.refresh() : pictures.reupload();
  });
});

for (const [event, state, text] of [
  ["lost", "offline", "The service does not answer. Trying again …"],
  ["refused", "refused", "The service has too many open pages, or this address is not allowed. Trying again in a minute …"],
  ["outdated", "reload", "The service has another version than this page: reload the page."],
]) {
  live.addEventListener(event, () => {
    serviceIsUp = false;
    endHover();
    setState("down", state);
    warn(text);
  });
}

live.addEventListener("token", () => void askToken().then(() => live.connect()));

async function loadModels() {
  try {
    const answer = await rest.models();
    models = answer.models;
    document.body.dataset.urls = answer.image_urls ? "1" : "0";
    if (answer.heic) acceptHeic();
  } catch (problem) {
    if (problem.status === 401) return askToken().then(loadModels);
    return;
  }
  const select = $("model");
  select.replaceChildren(...models.map((model) => new Option(model.demo ? `${model.name} (demo)` : model.name, model.name)));
  const names = models.map((model) => model.name);
  if (!names.includes(settings.model)) settings.model = models.find((model) => model.default)?.name ?? names[0];
  select.value = settings.model;
  select.disabled = models.length === 0;
  show();
}

/** Let the dialog for files offer HEIC photographs. A phone that is not asked for them may send JPEG instead. */
function acceptHeic() {
  const input = $("file");
  if (!input.accept.includes(".heic")) input.accept += ",.heic,.heif";
}

function chosenModel() {
  return models.find((model) => model.name === settings.model);
}

function everythingProblem(problem) {
  if (problem.status === 401) void askToken().then(() => everything.again());
  else if (problem.code === "unknown_image") void pictures.reupload().then(() => everything.again());
  else warn(problem.message);
}

function videoProblem(problem) {
  if (problem.status === 401) void askToken().then(() => masks.refresh());
  else if (problem.code === "unknown_video") void pictures.reupload();
  else warn(problem.message);
}

function activeFacts() {
  return document.querySelector('.object[aria-current="true"] .facts')?.textContent ?? "";
}

// --- showing ---------------------------------------------------------------------------------------------------------

function show() {
  const image = pictures.image;
  $("cleanup-area").disabled = !settings.cleanup;
  $("demo").hidden = !chosenModel()?.demo;
  showObjects($("objects"), scene, masks, actions, image && { picture: stage.picture, size: image });
  check("[data-multi]", (button) => (button.dataset.multi === "1") === masks.optionsOf?.(scene.active ?? scene).multimask);
  showButtons(scene, masks, image, video.isOpen);
  $("hint").hidden = scene.objects.length > 0;
  $("hint").textContent = hintFor(image, video.isOpen, everything.takesClicks);
  const shown = image ?? video.info;
  const size = shown && `${shown.name} · ${shown.width} × ${shown.height}`;
  $("picture-info").textContent = video.isOpen ? `${size} · ${video.info.fps} frames/s` : (size ?? "no image");
  video.update();
  everything.update();
  words.update();
  handTools.update();
  stage.redraw();
  pictures.shelf.noteSoon();
  offerLabels(pictures.shelf.labels);
}

const handTools = connectHandTools({
  ...forImages,
  ...{ stage, everything, actions, change, warn },
  show: () => show(),
  currentImage: () => pictures.image,
});
connectEditing({
  get scene() {
    return scene;
  },
  get masks() {
    return masks;
  },
  ...{ stage, everything, actions, change, takesClicks, endHover },
});
connectControls({
  actions,
  settings,
  ...forImages,
  video,
  stage,
  shelf: pictures.shelf,
  open: (files) => pictures.open(files),
  cancel: () => pictures.cancel(),
  openUrl: (url) => pictures.openUrl(url),
  reupload: () => pictures.reupload(),
  endHover,
  warn,
  currentImage: () => pictures.image,
});

$("stage").classList.add("is-empty");
$("cleanup").checked = settings.cleanup;
$("cleanup-area").value = $("cleanup-value").textContent = settings.cleanupArea;
$("threshold").value = $("threshold-value").textContent = settings.threshold;
show();
await loadModels();
await pictures.start();
live.connect();
