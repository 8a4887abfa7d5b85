// The main module of the page: it connects the user's actions, the answers of the service, and the drawing.

import { connectControls } from "./controls.js";
import { Live } from "./live.js";
import { Masks } from "./masks.js";
import { outline } from "./outline.js";
import { paintBox, paintMask, paintPoint } from "./paint.js";
import { showObjects } from "./panel.js";
import * as rest from "./rest.js";
import { hasPrompt, promptOf, Scene } from "./scene.js";
import { Stage } from "./stage.js";

const $ = (id) => document.getElementById(id);
const scene = new Scene();
const live = new Live();
const settings = { model: null, multimask: false, opacity: 0.5, hover: true };
const masks = new Masks(scene, live, settings);
const stats = { hover: [], clicks: [] }; // for measurements: [{moved, painted, ms}]
let models = [];
let image = null; // {id, name, stem, width, height, file}
let preview = null; // {path}
let opening = null;
let serviceIsUp = false;
let uploadFor = null;

const stage = new Stage($("stage"), $("canvas"), paint);
// Tests, measurements, and people at the browser's console use this object.
globalThis.tritonSam = {
  stats,
  scene,
  settings,
  resultOf: (object) => masks.resultOf(object),
  choiceOf: (object) => masks.choiceOf(object),
  screenOf: (x, y) => stage.screenOf(x, y),
  get image() {
    return image;
  },
  get preview() {
    return preview;
  },
};

// --- masks -----------------------------------------------------------------------------------------------------------

masks.addEventListener("changed", () => show());
masks.addEventListener("unknown-image", () => void reupload());
masks.addEventListener("clicked", ({ detail }) => {
  stage.draw();
  const total = performance.now() - detail.time;
  stats.clicks.push({ total, ms: detail.ms });
  $("click-info").textContent = `last click: ${Math.round(total)} ms`;
  $("service-info").textContent = `service ${Math.round(detail.ms)} ms`;
});

live.addEventListener("masks", ({ detail }) => {
  if (!image || detail.image !== image.id) return;
  const choice = detail.scores.indexOf(Math.max(...detail.scores));
  preview = { path: outline(detail.logits[choice], detail.side, detail.used, image) };
  stage.draw(); // at once, not in the next frame: the user waits for this preview
  const painted = performance.now();
  stats.hover.push({ moved: detail.time, painted, ms: detail.ms });
  $("hover-info").textContent = `preview: ${Math.round(painted - detail.time)} ms`;
});

live.addEventListener("hover-error", ({ detail }) => {
  if (detail.code === "unknown_image") void reupload();
});

stage.addEventListener("hover", ({ detail }) => {
  if (!settings.hover || !image || opening || !serviceIsUp) return;
  live.hover(masks.requestFor(promptOf(scene.active, detail)), detail.time);
});

stage.addEventListener("leave", endHover);

function endHover() {
  live.stopHover();
  if (preview) {
    preview = null;
    stage.redraw();
  }
}

// --- actions of the user ---------------------------------------------------------------------------------------------

stage.addEventListener("point", ({ detail }) => {
  if (!image || opening) return;
  endHover();
  const point = { x: round2(detail.x), y: round2(detail.y), label: detail.label };
  change(() => scene.current().points.push(point), detail.time);
});

stage.addEventListener("box", ({ detail }) => {
  if (!image || opening) return;
  endHover();
  change(() => (scene.current().box = detail.box.map(round2)), detail.time);
});

stage.addEventListener("view", () => ($("zoom-level").textContent = `${Math.round(stage.scale * 100)} %`));

function change(act, time) {
  scene.change(act);
  void masks.refresh(time);
}

function round2(value) {
  return Math.round(value * 100) / 100;
}

const actions = {
  select(id) {
    if (scene.activeId === id) return;
    scene.activeId = id;
    show();
  },
  rename(id, name) {
    const object = scene.objects.find((each) => each.id === id);
    if (object && name.trim()) change(() => (object.name = name.trim()));
    else show();
  },
  toggle(id) {
    const object = scene.objects.find((each) => each.id === id);
    object.visible = !object.visible;
    show();
  },
  remove: (id) => change(() => scene.remove(id)),
  choose(id, index) {
    const object = scene.objects.find((each) => each.id === id);
    change(() => (object.choice = index));
  },
  newObject() {
    if (!image || (scene.active && !hasPrompt(scene.active))) return;
    change(() => scene.begin());
  },
  removeActive: () => scene.active && actions.remove(scene.activeId),
  nextObject() {
    const index = scene.objects.findIndex((object) => object.id === scene.activeId);
    if (scene.objects.length) actions.select(scene.objects[(index + 1) % scene.objects.length].id);
  },
  candidate(index) {
    const count = scene.active ? (masks.resultOf(scene.active)?.scores?.length ?? 0) : 0;
    if (count > 1 && index < count) actions.choose(scene.activeId, index);
  },
  undo() {
    scene.undo();
    void masks.refresh();
  },
  redo() {
    scene.redo();
    void masks.refresh();
  },
  clear: () => scene.objects.length && change(() => ((scene.objects = []), (scene.activeId = null))),
  tool(name) {
    stage.tool = name;
    check("[data-tool]", (button) => button.dataset.tool === name);
    stage.cursor();
    endHover();
  },
  multimask(on) {
    settings.multimask = on;
    check("[data-multi]", (button) => (button.dataset.multi === "1") === on);
    void masks.refresh();
  },
  toggleMultimask: () => actions.multimask(!settings.multimask),
  open: () => $("file").click(),
  zoom: (factor) => stage.zoom(factor),
  fit: () => stage.fit(),
  space: (held) => stage.holdSpace(held),
  escape() {
    stage.abort();
    endHover();
  },
  help: () => $("keys-dialog").showModal(),
};

function check(selector, isOn) {
  for (const button of document.querySelectorAll(selector)) {
    button.setAttribute("aria-checked", String(isOn(button)));
  }
}

// --- images --------------------------------------------------------------------------------------------------------

async function open(file) {
  if (!file) return;
  opening?.abort();
  const mine = (opening = new AbortController());
  endHover();
  warn("");
  $("busy").hidden = false;
  try {
    const local = await createImageBitmap(file).catch(() => null); // browsers show no TIFF or 16-bit images
    const info = await rest.upload(file, settings.model, mine.signal);
    const picture = local ?? (await createImageBitmap(await rest.preview(info.id, mine.signal)));
    if (opening !== mine) return; // the user has opened a newer image
    const name = file.name || "image";
    image = masks.image = { ...info, name, stem: name.replace(/\.[^.]*$/, ""), file };
    uploadFor = settings.model;
    scene.reset();
    masks.reset();
    preview = null;
    $("stage").classList.remove("is-empty");
    $("empty").hidden = true;
    stage.show(picture, { width: info.width, height: info.height });
  } catch (problem) {
    if (opening !== mine) return;
    if (problem.status === 401) return void askToken().then(() => open(file));
    warn(`${file.name || "The image"}: ${problem.message}`);
  } finally {
    if (opening === mine) {
      opening = null;
      $("busy").hidden = true;
      show();
    }
  }
}

/** Upload the image again: for another model, or for a service that has forgotten it. */
async function reupload() {
  if (!image || opening) return;
  const mine = (opening = new AbortController());
  $("busy").hidden = false;
  try {
    const info = await rest.upload(image.file, settings.model, mine.signal);
    if (opening !== mine) return;
    image = masks.image = { ...image, ...info };
    uploadFor = settings.model;
    warn("");
  } catch (problem) {
    if (opening === mine && serviceIsUp) warn(problem.message);
    return;
  } finally {
    if (opening === mine) {
      opening = null;
      $("busy").hidden = true;
    }
  }
  await masks.refresh();
}

async function openSample(name) {
  try {
    const answer = await fetch(`/static/samples/${name}`);
    if (!answer.ok) throw new Error();
    await open(new File([await answer.blob()], name, { type: "image/jpeg" }));
  } catch {
    warn("The sample cannot be loaded: the service does not answer.");
  }
}

// --- the service -----------------------------------------------------------------------------------------------------

live.addEventListener("status", ({ detail }) => {
  const wasUp = serviceIsUp;
  serviceIsUp = detail.up;
  setState(detail.up ? "up" : "down", detail.up ? "ready" : "no Triton");
  if (!detail.up) {
    endHover();
    warn(`Triton does not answer. Masks come back as soon as it does. (${detail.detail ?? "no model is ready"})`);
    return;
  }
  warn("");
  if (wasUp && models.map((model) => model.name).join() === detail.models.join()) return;
  void loadModels().then(() => image && (uploadFor === settings.model ? masks.refresh() : reupload()));
});

live.addEventListener("lost", () => {
  serviceIsUp = false;
  endHover();
  setState("down", "offline");
  warn("The service does not answer. Trying again …");
});

live.addEventListener("refused", () => {
  serviceIsUp = false;
  endHover();
  setState("down", "refused");
  warn("The service has too many open pages, or this address is not allowed. Trying again in a minute …");
});

live.addEventListener("outdated", () => {
  serviceIsUp = false;
  endHover();
  setState("down", "reload");
  warn("The service has another version than this page: reload the page.");
});

live.addEventListener("token", () => void askToken().then(() => live.connect()));

async function loadModels() {
  try {
    models = await rest.models();
  } catch (problem) {
    if (problem.status === 401) return askToken().then(loadModels);
    return;
  }
  const select = $("model");
  select.replaceChildren(...models.map((model) => new Option(model.name, model.name)));
  const names = models.map((model) => model.name);
  if (!names.includes(settings.model)) settings.model = models.find((model) => model.default)?.name ?? names[0];
  select.value = settings.model;
  select.disabled = models.length === 0;
}

function askToken() {
  const dialog = $("token-dialog");
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => (rest.rememberToken($("token").value), resolve()), { once: true });
  });
}

function setState(state, text) {
  $("state").dataset.state = state;
  $("state").lastElementChild.textContent = text;
}

function warn(text) {
  $("banner").textContent = text;
  $("banner").hidden = !text;
}

// --- showing ---------------------------------------------------------------------------------------------------------

function paint(context) {
  const unit = 1 / stage.scale;
  for (const object of scene.objects) {
    const path = object.visible ? masks.pathOf(object) : null;
    if (path) paintMask(context, path, object.color, settings.opacity, unit);
  }
  const active = scene.active;
  const color = active?.color ?? "#1e90ff";
  if (preview?.path) paintMask(context, preview.path, color, settings.opacity * 0.55, unit, true);
  for (const object of scene.objects) {
    if (!object.visible) continue;
    if (object.box) paintBox(context, object.box, object.color, unit);
    for (const point of object.points) paintPoint(context, point, unit, object !== active);
  }
  if (stage.box) paintBox(context, stage.box, color, unit, true);
}

function show() {
  showObjects($("objects"), scene, masks, actions);
  $("undo").disabled = !scene.canUndo;
  $("redo").disabled = !scene.canRedo;
  $("clear").disabled = scene.objects.length === 0;
  $("new-object").disabled = !image || Boolean(scene.active && !hasPrompt(scene.active));
  $("save-mask").disabled = !(scene.active && masks.resultOf(scene.active)?.logits);
  $("save-overlay").disabled = $("save-coco").disabled = masks.finished.length === 0;
  $("hint").hidden = scene.objects.length > 0;
  $("hint").textContent = image ? "Click on an object in the image, or drag a box around it." : "Open an image first.";
  $("picture-info").textContent = image ? `${image.name} · ${image.width} × ${image.height}` : "no image";
  stage.redraw();
}

connectControls({
  actions,
  settings,
  scene,
  masks,
  stage,
  open,
  openSample,
  reupload,
  endHover,
  warn,
  currentImage: () => image,
});

$("stage").classList.add("is-empty");
show();
await loadModels();
live.connect();
