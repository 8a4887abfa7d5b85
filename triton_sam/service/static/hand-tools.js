// The tools that change masks by hand: pointers over the image, the section "Edit" of the panel, and their keys.

import { Brush } from "./brush.js";
import { Edits } from "./edits.js";
import { Polygon } from "./polygon.js";

const $ = (id) => document.getElementById(id);
const ALL = "all";
const TOOLS = ["brush", "erase", "polygon", "cut-polygon"];

/** page: as Edits takes it, and {actions, show()}. Return {polygon, paint(context), takeCornerBack(), update()}. */
export function connectHandTools(page) {
  const { stage, scene, actions } = page;
  const edits = new Edits(page);
  const brush = new Brush(edits, stage, scene);
  const polygon = new Polygon(edits, stage, page.show);
  const tools = { brush, erase: brush, polygon, "cut-polygon": polygon };
  const tool = () => (edits.image ? (tools[stage.tool] ?? null) : null);
  connectPointers(stage, tool);
  connectPanel(edits, brush, polygon, scene);
  connectKeys(edits, tool, actions);
  return {
    polygon,
    paint: (context) => tool()?.paint(context, 1 / stage.scale),
    takeCornerBack: () => polygon.isOn && polygon.takeBack(),
    update() {
      update(edits, brush, scene);
      updatePolygon(edits, polygon, stage);
    },
  };
}

/** Give pointers on the image to the tool, before the stage takes them for points and boxes. */
function connectPointers(stage, tool) {
  const canvas = $("canvas");
  const first = { event: null, isForwarded: false };
  const pixelOf = (event) => {
    const [left, top] = stage.screenOf(0, 0);
    return { x: (event.clientX - left) / stage.scale, y: (event.clientY - top) / stage.scale };
  };
  const isMine = (event) => event.target === canvas && !first.isForwarded && tool() && $("stage").dataset.cursor === "cross";
  const listen = (type, act) => {
    const take = (event) => isMine(event) && act(event, tool(), pixelOf(event)) !== false && event.stopPropagation();
    $("stage").addEventListener(type, take, true);
  };
  listen("pointerdown", (event, tool, point) => {
    if (event.button === 1) return false; // moves the image
    if (first.event) return handOver(event, tool);
    event.preventDefault();
    canvas.focus({ preventScroll: true }); // so that Enter does not press a button again
    canvas.setPointerCapture(event.pointerId);
    first.event = event;
    tool.down(point, event);
  });
  listen("pointermove", (event, tool, point) => {
    if (first.event?.pointerId === event.pointerId) tool.move(point);
    else if (!first.event && event.buttons === 0 && event.pointerType !== "touch") tool.hover(point);
    else return false;
  });
  listen("pointerup", (event, tool) => {
    if (first.event?.pointerId !== event.pointerId) return false;
    first.event = null;
    tool.up();
    if (event.pointerType === "touch") tool.hover(null);
  });
  listen("pointercancel", (event, tool) => ((first.event = null), tool.abort(), false));
  canvas.addEventListener("pointerleave", () => tool()?.hover(null));

  /** A second finger zooms: the stage gets both, and the stroke ends without a change. */
  function handOver(event, tool) {
    const { pointerId, pointerType, clientX, clientY, button, buttons } = first.event;
    tool.abort();
    first.isForwarded = true;
    first.event = null;
    const down = { pointerId, pointerType, clientX, clientY, button, buttons, bubbles: true, cancelable: true };
    canvas.dispatchEvent(new PointerEvent("pointerdown", down));
    first.isForwarded = false;
    return false;
  }
}

function connectPanel(edits, brush, polygon, scene) {
  const chosen = () => {
    const others = edits.others;
    return $("edit-other").value === ALL ? others : others.filter((each) => String(each.id) === $("edit-other").value);
  };
  const on = (id, act, type = "click") => $(id).addEventListener(type, act);
  on("edit-duplicate", () => edits.duplicate());
  on("edit-merge", () => void edits.merge(chosen()));
  on("edit-subtract", () => void edits.subtract(chosen()));
  on("edit-up", () => edits.reorder(-1));
  on("edit-down", () => edits.reorder(1));
  on("edit-color", () => edits.recolor($("edit-color").value), "change");
  on("copy-cutout", () => void edits.copyCutout());
  on("copy-rle", () => void edits.copyRle());
  on("brush-size", () => (brush.size = Number($("brush-size").value)), "input");
  on("polygon-close", () => polygon.close());
  on("polygon-discard", () => polygon.discard());
  connectRows(edits, scene);
}

/** Rows of the list are dragged by their colour, also by touch. */
function connectRows(edits, scene) {
  const list = $("objects");
  let dragged = null; // a row
  const rowAt = ({ clientX, clientY }) => document.elementFromPoint(clientX, clientY)?.closest("#objects .object");
  list.addEventListener("pointerdown", (event) => {
    const swatch = edits.image && event.target.closest(".swatch");
    if (!swatch) return;
    event.preventDefault();
    dragged = swatch.closest(".object");
    swatch.setPointerCapture(event.pointerId);
  });
  list.addEventListener("pointerup", (event) => {
    const [from, to] = [dragged, dragged && rowAt(event)];
    dragged = null;
    if (!to || to === from) return;
    edits.move(Number(from.dataset.id), scene.objects.findIndex((object) => String(object.id) === to.dataset.id));
  });
  list.addEventListener("pointercancel", () => (dragged = null));
}

const LETTERS = { p: "brush", x: "erase", g: "polygon" };

function connectKeys(edits, tool, actions) {
  const act = (event) => {
    const key = event.key.toLowerCase();
    if (event.ctrlKey || event.metaKey) {
      if (key === "d") return edits.duplicate();
      if (key === "c" && !event.shiftKey && edits.active && !String(getSelection())) return edits.copyCutout();
      return false;
    }
    if (event.altKey) return key === "arrowup" ? edits.reorder(-1) : key === "arrowdown" ? edits.reorder(1) : false;
    if (key === "c" && event.shiftKey) return edits.copyRle();
    if (key === "g" && event.shiftKey) return actions.tool("cut-polygon");
    if (LETTERS[key]) return actions.tool(LETTERS[key]);
    return tool()?.key?.(key, event) ?? false;
  };
  addEventListener(
    "keydown",
    (event) => {
      const isTyping = event.target.matches?.("input[type=text], input[type=password], select, textarea");
      if (!edits.image || isTyping || document.querySelector("dialog[open]") || act(event) === false) return;
      event.preventDefault();
      event.stopImmediatePropagation();
    },
    true,
  );
}

/** Show what the tools can do now. */
function update(edits, brush, scene) {
  const active = edits.image ? scene.active : null;
  const others = edits.active ? edits.others : [];
  const place = scene.objects.indexOf(active);
  for (const name of TOOLS) document.querySelector(`[data-tool=${name}]`).disabled = !edits.image;
  $("edit-duplicate").disabled = $("edit-color").disabled = !active;
  $("edit-up").disabled = !(place > 0);
  $("edit-down").disabled = !active || place === scene.objects.length - 1;
  $("edit-merge").disabled = $("edit-subtract").disabled = $("edit-other").disabled = !others.length;
  $("copy-cutout").disabled = $("copy-rle").disabled = !edits.active;
  if (active) $("edit-color").value = active.color;
  $("brush-size").value = brush.size;
  offer($("edit-other"), others);
}

/** Say what the polygon needs next. */
function updatePolygon(edits, polygon, stage) {
  const count = polygon.isOn ? polygon.corners.length : 0;
  const isCut = stage.tool === "cut-polygon";
  const end = isCut ? "take it out of the mask" : edits.active ? "add it to the mask" : "begin an object";
  $("polygon-hint").hidden = !polygon.isOn;
  $("polygon-hint").textContent = polygon.isClosable
    ? `${count} corners. Enter, or the first corner again, closes the polygon to ${end}.`
    : `Click at least three corners around an area to ${end}.`;
  $("polygon-buttons").hidden = !count;
  $("polygon-close").disabled = !polygon.isClosable;
  if (count) $("undo").disabled = false;
}

function offer(select, others) {
  const options = others.map((object) => [String(object.id), object.name]);
  if (options.length > 1) options.push([ALL, "all other objects"]);
  if (JSON.stringify(options) === select.dataset.options) return;
  select.dataset.options = JSON.stringify(options);
  const before = select.value;
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  if (options.some(([value]) => value === before)) select.value = before;
}
