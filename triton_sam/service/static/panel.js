// The list of objects, and the buttons that depend on it.

import { isBlank } from "./scene.js";
import { boxAround, drawThumbnail } from "./thumbnails.js";

const $ = (id) => document.getElementById(id);

/**
 * Show the objects. ``shown`` is {picture, size} of the image, null for a video. ``actions``: select, rename, label, toggle, remove, choose.
 *
 * Rows and buttons that exist stay in the document, so that a name being typed keeps the focus, and so does a candidate.
 */
export function showObjects(list, scene, masks, actions, shown) {
  const rows = new Map([...list.children].map((row) => [Number(row.dataset.id), row]));
  const ids = new Set(scene.objects.map((object) => object.id));
  for (const [id, row] of rows) if (!ids.has(id)) row.remove();
  scene.objects.forEach((object, index) => {
    const row = rows.get(object.id) ?? newRow(object, actions);
    const there = list.children[index] ?? null;
    if (there !== row) list.insertBefore(row, there); // a row that is moved loses the focus
    update(row, object, scene, masks, actions, shown);
  });
  const active = String(scene.activeId);
  if (list.dataset.active !== active) {
    list.dataset.active = active;
    const row = list.querySelector('[aria-current="true"]');
    if (row) list.scrollTop = Math.max(0, row.offsetTop - list.offsetTop - list.clientHeight / 2);
  }
}

/** Offer the labels that other objects have. */
export function offerLabels(labels) {
  const list = $("labels");
  if (labels.join("\n") === [...list.children].map((option) => option.value).join("\n")) return;
  list.replaceChildren(...labels.map((label) => new Option(label, label)));
}

/** Enable the buttons that have something to do. */
export function showButtons(scene, masks, image, isVideo) {
  $("undo").disabled = !scene.canUndo;
  $("redo").disabled = !scene.canRedo;
  $("clear").disabled = scene.objects.length === 0;
  $("new-object").disabled = !(image || isVideo) || isBlank(scene.active);
  const canSaveOne = !isVideo && scene.active?.visible && masks.hasMask(scene.active);
  $("save-mask").disabled = $("save-cutout").disabled = !canSaveOne;
  const nothing = (isVideo ? masks.finished : masks.shown).length === 0;
  for (const button of document.querySelectorAll("#save-overlay, #save-coco, [data-save]")) button.disabled = nothing;
}

function newRow(object, actions) {
  const row = document.createElement("li");
  row.className = "object";
  row.dataset.id = object.id;
  row.addEventListener("click", () => actions.select(object.id));

  const swatch = document.createElement("span");
  swatch.className = "swatch";
  swatch.style.touchAction = "none"; // it is dragged to another place of the list, see hand-tools.js
  const name = document.createElement("input");
  name.type = "text";
  name.maxLength = 60;
  name.setAttribute("aria-label", "Name of the object");
  const label = document.createElement("input");
  label.type = "text";
  label.className = "label for-image";
  label.maxLength = 60;
  label.placeholder = "Label";
  label.setAttribute("list", "labels");
  label.setAttribute("aria-label", "Label (class) of the object");
  for (const [field, act] of [[name, actions.rename], [label, actions.label]]) {
    field.addEventListener("change", () => act(object.id, field.value));
    field.addEventListener("keydown", (event) => {
      event.stopPropagation(); // letters are letters here, not shortcuts
      if (event.key === "Enter") field.blur();
    });
  }
  const eye = mini(() => actions.toggle(object.id));
  eye.dataset.role = "eye";
  const bin = mini(() => actions.remove(object.id));
  bin.dataset.role = "bin";
  icon(bin, "i-trash");
  const facts = document.createElement("span");
  facts.className = "facts";
  const candidates = document.createElement("div");
  candidates.className = "candidates";
  candidates.setAttribute("role", "radiogroup");
  candidates.setAttribute("aria-label", "Candidates");
  row.append(swatch, name, label, eye, bin, facts, candidates);
  return row;
}

function update(row, object, scene, masks, actions, shown) {
  const result = masks.resultOf(object);
  const choice = masks.choiceOf(object);
  const [swatch, name, label, eye, bin, facts, candidates] = row.children;
  const isActive = object.id === scene.activeId;
  row.setAttribute("aria-current", String(isActive));
  swatch.style.background = object.color;
  if (document.activeElement !== name) name.value = object.name;
  if (document.activeElement !== label) label.value = object.label ?? "";
  icon(eye, object.visible ? "i-eye" : "i-hidden");
  eye.setAttribute("aria-label", `${object.visible ? "Hide" : "Show"} ${object.name}`);
  eye.setAttribute("aria-pressed", String(!object.visible));
  bin.setAttribute("aria-label", `Delete ${object.name}`);
  const measured = isActive && shown && masks.measureOf(object);
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
    button.firstChild.hidden = !(shown && box);
    if (shown && box) drawThumbnail(button.firstChild, shown.picture, shown.size, box, masks.pathOf(object, index), object.color);
  });
}

function newCandidate(id, index, actions) {
  const button = document.createElement("button");
  button.type = "button";
  button.setAttribute("role", "radio");
  const number = document.createElement("b");
  number.textContent = index + 1;
  const thumbnail = document.createElement("canvas");
  [thumbnail.width, thumbnail.height] = [144, 66];
  button.append(thumbnail, number, document.createTextNode(""));
  button.addEventListener("click", (event) => {
    event.stopPropagation();
    actions.choose(id, index);
  });
  return button;
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

function mini(act) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "mini";
  button.addEventListener("click", (event) => {
    event.stopPropagation();
    act();
  });
  return button;
}

function icon(button, name) {
  if (button.dataset.icon === name) return;
  button.dataset.icon = name;
  const namespace = "http://www.w3.org/2000/svg";
  const drawing = document.createElementNS(namespace, "svg");
  const use = document.createElementNS(namespace, "use");
  use.setAttribute("href", `#${name}`);
  drawing.append(use);
  button.replaceChildren(drawing);
}
