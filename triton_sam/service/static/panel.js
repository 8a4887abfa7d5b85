// The panel: the list of objects, and the currently possible actions.

import { $, check, enable, focusImage, make, reveal, setIcon } from "./dom.js";
import { drawLines } from "./paint.js";
import { hasPrompt, isBlank } from "./scene.js";

const MARGIN = 0.15; // of the surrounding part of a thumbnail, on each side
const drawn = new WeakMap(); // canvas of a thumbnail -> its content

/** Show the objects, and the controls that can act. */
export function showPanel(page) {
  const { scene, masks, image, video, settings, everything } = page;
  const active = scene.active;
  showObjects(page);
  check("[data-multi]", (button) => (button.dataset.multi === "1") === masks.optionsOf?.(active ?? scene).multimask);
  enable({ undo: scene.canUndo, redo: scene.canRedo, clear: scene.objects.length, "cleanup-area": settings.cleanup });
  const hasOne = image && active?.visible && masks.hasMask(active);
  const hasAny = (image ? masks.shown : masks.finished).length > 0;
  const waits = image && scene.objects.some((object) => hasPrompt(object) && !masks.resultOf(object));
  const stays = (id) => waits && !$(id).hidden; // no button disappears while the mask of a click is computed
  const hint = hintFor(scene, image, video.isOpen, everything.takesClicks);
  const shelf = page.pictures.shelf;
  reveal({
    hint,
    "new-object": (image || video.isOpen) && scene.objects.length && !isBlank(active),
    "save-one": hasOne || (hasPrompt(active) && stays("save-one")),
    "save-all": image && (hasAny || stays("save-all")),
    "save-video": hasAny,
    save: hasAny || stays("save") || shelf.count > (image ? 1 : 0),
    "save-project": shelf.count,
  });
  $("hint").textContent = hint;
  offerLabels(shelf.labels);
}

/** Return a hint for the user's next step, "" if none is needed. */
function hintFor({ objects, active }, image, isVideo, hasFound) {
  if (hasFound) return "Click on found objects to select them. Then keep, merge, refine or delete them.";
  if (objects.length > 1) return "";
  const isFirst = !objects.length || isBlank(active);
  if (isVideo) return isFirst ? "Click on an object in any frame, or drag a box around it. Then track it." : "";
  if (!image) return "";
  if (isFirst) return "Click on an object in the image, or drag a box around it.";
  const isTouched = matchMedia("(pointer: coarse)").matches;
  return isTouched ? "Tap a part with the tool − to exclude it. New begins another object." : "Right-click a part to exclude it. Press N for the next object.";
}

/**
 * Show the list of objects.
 *
 * Existing rows and buttons stay in the document, so that the focus of a name field or a candidate is kept. If keys
 * remove the row with the focus, the next row takes it.
 */
function showObjects(page) {
  const { scene, actions } = page;
  const list = $("objects");
  const rows = new Map([...list.children].map((row) => [Number(row.dataset.id), row]));
  const ids = new Set(scene.objects.map((object) => object.id));
  const focused = document.activeElement;
  const place = [...list.children].findIndex((row) => row.contains(focused));
  const part = place < 0 || !focused.matches(":focus-visible") ? -1 : [...list.children[place].children].indexOf(focused);
  for (const [id, row] of rows) if (!ids.has(id)) row.remove();
  scene.objects.forEach((object, index) => {
    const row = rows.get(object.id) ?? newRow(object.id, actions);
    const there = list.children[index] ?? null;
    if (there !== row) list.insertBefore(row, there); // moving a row loses the focus
    update(row, object, page);
  });
  if (place >= 0 && !focused.isConnected) {
    const next = list.children[Math.min(place, list.children.length - 1)]?.children[part];
    if (next) next.focus();
    else focusImage();
  }
  const row = list.querySelector('[aria-current="true"]');
  const active = `${scene.activeId} ${row?.lastChild.children.length}`; // its candidates make it higher
  if (list.dataset.active !== active) {
    list.dataset.active = active;
    if (row) list.scrollTop = Math.max(0, row.offsetTop + row.offsetHeight - list.offsetTop - list.clientHeight);
  }
}

/** Suggest the labels of other objects. */
function offerLabels(labels) {
  const list = $("labels");
  if (labels.join("\n") === [...list.children].map((option) => option.value).join("\n")) return;
  list.replaceChildren(...labels.map((label) => new Option(label, label)));
}

function newRow(id, actions) {
  const swatch = make("span", { className: "swatch" });
  swatch.style.touchAction = "none"; // it is dragged in the list, see hand-tools.js
  const name = field("Name of the object", (text) => actions.rename(id, text));
  const label = field("Label (class) of the object", (text) => actions.label(id, text), "label for-image");
  label.placeholder = "Label";
  label.setAttribute("list", "labels");
  const eye = mini("eye", () => actions.toggle(id));
  const bin = mini("bin", () => actions.remove(id));
  setIcon(bin, "trash");
  const candidates = make("div", { className: "candidates", role: "radiogroup", ariaLabel: "Candidates" });
  const parts = [swatch, name, label, eye, bin, make("span", { className: "facts" }), candidates];
  const row = make("li", { className: "object", onclick: () => actions.select(id) }, ...parts);
  row.dataset.id = id;
  return row;
}

function field(ariaLabel, act, className = "") {
  const input = make("input", { type: "text", maxLength: 60, className, ariaLabel });
  input.addEventListener("change", () => act(input.value));
  input.addEventListener("keydown", (event) => {
    event.stopPropagation(); // typed letters are not shortcuts here
    if (event.key === "Enter") input.blur();
  });
  return input;
}

function update(row, object, { scene, masks, actions, image, stage }) {
  const result = masks.resultOf(object);
  const choice = masks.choiceOf(object);
  const [swatch, name, label, eye, bin, facts, candidates] = row.children;
  const isActive = object.id === scene.activeId;
  row.setAttribute("aria-current", String(isActive));
  swatch.style.background = object.color;
  if (document.activeElement !== name) name.value = object.name;
  if (document.activeElement !== label) label.value = object.label ?? "";
  setIcon(eye, object.visible ? "eye" : "hidden");
  eye.setAttribute("aria-label", `${object.visible ? "Hide" : "Show"} ${object.name}`);
  eye.setAttribute("aria-pressed", String(!object.visible));
  bin.setAttribute("aria-label", `Delete ${object.name}`);
  const measured = isActive && image && masks.measureOf(object);
  facts.textContent = masks.describe?.(object) ?? describe(object, result, choice, measured);
  facts.classList.toggle("bad", Boolean(result?.error));

  const box = boxAround((result?.scores ?? []).map((_, index) => masks.measureOf(object, index)?.bbox));
  const scores = isActive && result?.scores?.length > 1 ? result.scores : [];
  candidates.hidden = scores.length === 0;
  while (candidates.children.length > scores.length) candidates.lastElementChild.remove();
  scores.forEach((score, index) => {
    const button = candidates.children[index] ?? candidates.appendChild(newCandidate(object.id, index, actions));
    button.setAttribute("aria-checked", String(index === choice));
    button.setAttribute("aria-label", `Candidate ${index + 1}, score ${score.toFixed(2)}`);
    button.lastChild.data = score.toFixed(2);
    button.firstChild.hidden = !(image && box);
    if (image && box) drawThumbnail(button.firstChild, stage.picture, image, box, masks.pathOf(object, index), object.color);
  });
}

function newCandidate(id, index, actions) {
  const thumbnail = make("canvas", { width: 144, height: 66 });
  const onclick = (event) => (event.stopPropagation(), actions.choose(id, index));
  return make("button", { type: "button", role: "radio", onclick }, thumbnail, make("b", { textContent: index + 1 }), "");
}

function describe(object, result, choice, measured) {
  const parts = [];
  const count = object.points.length;
  if (object.box) parts.push("box");
  if (count) parts.push(`${count} point${count === 1 ? "" : "s"}`);
  if (result?.found) parts.push(result.found.kind ?? "found");
  if (!parts.length) return "click on it in the image";
  if (result?.error) parts.push(result.error);
  else if (!result) parts.push("waiting …");
  else parts.push(`score ${result.scores[choice].toFixed(2)}`);
  if (measured?.bbox) {
    const [x, y, width, height] = measured.bbox;
    parts.push(`${result.found ? "" : "≈ "}${measured.area} px`, `${width} × ${height} at ${x}, ${y}`);
  }
  return parts.join(" · ");
}

function mini(role, act) {
  const button = make("button", { type: "button", className: "mini", onclick: (event) => (event.stopPropagation(), act()) });
  button.dataset.role = role;
  return button;
}

/** Draw a mask on its part of the image. ``box`` [x, y, width, height] is the common part of all candidates. */
function drawThumbnail(canvas, picture, size, box, path, color) {
  const shown = drawn.get(canvas);
  if (shown?.path === path && shown.color === color && shown.picture === picture) return;
  drawn.set(canvas, { path, color, picture });
  const context = canvas.getContext("2d");
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, canvas.width, canvas.height);
  const [x, y, width, height] = box;
  const scale = Math.min(canvas.width / width, canvas.height / height) / (1 + 2 * MARGIN);
  const [left, top] = [x + width / 2 - canvas.width / 2 / scale, y + height / 2 - canvas.height / 2 / scale];
  context.setTransform(scale, 0, 0, scale, -left * scale, -top * scale);
  context.drawImage(picture, 0, 0, size.width, size.height);
  context.globalAlpha = 0.65;
  context.fillStyle = color;
  context.fill(path, "evenodd");
  context.globalAlpha = 1;
  drawLines(context, 1 / scale, [[5, "#fff"], [2, color]], () => context.stroke(path));
}

/** Return the box around boxes [x, y, width, height], ignoring null boxes; null if all are null. */
function boxAround(boxes) {
  const known = boxes.filter(Boolean);
  if (!known.length) return null;
  const [left, top] = [Math.min(...known.map(([x]) => x)), Math.min(...known.map(([, y]) => y))];
  const right = Math.max(...known.map(([x, , width]) => x + width));
  return [left, top, right - left, Math.max(...known.map(([, y, , height]) => y + height)) - top];
}
