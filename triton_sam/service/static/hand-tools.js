// Tools for editing masks by hand: they handle pointers on the image, and have the panel's section "Edit".

import { Brush } from "./brush.js";
import { $, connect, enable, reveal } from "./dom.js";
import { Polygon } from "./polygon.js";

const ALL = "all";

export class HandTools {
  polygon;
  #page;
  #brush;
  #first = null; // the event of the pressed pointer

  constructor(page) {
    this.#page = page;
    this.#brush = new Brush(page);
    this.polygon = new Polygon(page);
    this.#takePointers();
    this.#connectPanel();
    connectRows(page);
  }

  /** The chosen hand tool; null if another tool is chosen. */
  get tool() {
    const tools = { brush: this.#brush, erase: this.#brush, polygon: this.polygon, "cut-polygon": this.polygon };
    return this.#page.image ? (tools[this.#page.stage.tool] ?? null) : null;
  }

  /** Whether a tool of this name is a hand tool. */
  static has(name) {
    return ["brush", "erase", "polygon", "cut-polygon"].includes(name);
  }

  /** Discard a stroke, because its image is no longer open. */
  abort() {
    this.#brush.abort();
    if (!this.tool) this.#first = null; // no tool handles the end of the stroke
  }

  paint(context, unit) {
    this.tool?.paint(context, unit);
  }

  /** Pass pointers on the image to the tool before the stage treats them as points and boxes. */
  #takePointers() {
    const { stage } = this.#page;
    const canvas = $("canvas");
    let isForwarded = false;
    const pixelOf = (event) => {
      const [left, top] = stage.screenOf(0, 0);
      return { x: (event.clientX - left) / stage.scale, y: (event.clientY - top) / stage.scale };
    };
    const isMine = (event) => event.target === canvas && !isForwarded && this.tool && $("stage").dataset.cursor === "cross";
    const listen = (type, act) => {
      const take = (event) => isMine(event) && act(event, this.tool, pixelOf(event)) !== false && event.stopPropagation();
      $("stage").addEventListener(type, take, true);
    };
    listen("pointerdown", (event, tool, point) => {
      if (event.button === 1) return false; // pans the image
      if (this.#first) return handOver(tool);
      event.preventDefault();
      canvas.focus({ preventScroll: true }); // so that Enter does not press a button again
      canvas.setPointerCapture(event.pointerId);
      this.#first = event;
      tool.down(point, event);
    });
    listen("pointermove", (event, tool, point) => {
      if (this.#first?.pointerId === event.pointerId) tool.move(point);
      else if (!this.#first && event.buttons === 0 && event.pointerType !== "touch") tool.hover(point);
      else return false;
    });
    listen("pointerup", (event, tool) => {
      if (this.#first?.pointerId !== event.pointerId) return false;
      this.#first = null;
      tool.up();
      if (event.pointerType === "touch") tool.hover(null);
    });
    listen("pointercancel", (event, tool) => ((this.#first = null), tool.abort(), false));
    canvas.addEventListener("pointerleave", () => this.tool?.hover(null));

    /** A second finger zooms: the stage receives both fingers, and the stroke is discarded. */
    const handOver = (tool) => {
      const { pointerId, pointerType, clientX, clientY, button, buttons } = this.#first;
      tool.abort();
      isForwarded = true;
      this.#first = null;
      const down = { pointerId, pointerType, clientX, clientY, button, buttons, bubbles: true, cancelable: true };
      canvas.dispatchEvent(new PointerEvent("pointerdown", down));
      isForwarded = false;
      return false;
    };
  }

  #connectPanel() {
    const { edits } = this.#page;
    const chosen = () => edits.others.filter(({ id }) => [ALL, String(id)].includes($("edit-other").value));
    connect({
      "edit-duplicate": () => edits.duplicate(),
      "edit-merge": () => void edits.merge(chosen()),
      "edit-subtract": () => void edits.subtract(chosen()),
      "edit-up": () => edits.reorder(-1),
      "edit-down": () => edits.reorder(1),
      "copy-cutout": () => void edits.copyCutout(),
      "copy-rle": () => void edits.copyRle(),
      "polygon-close": () => this.polygon.close(),
      "polygon-discard": () => this.polygon.discard(),
    });
    connect({ "edit-color": () => edits.recolor($("edit-color").value) }, "change");
    connect({ "brush-size": () => (this.#brush.size = Number($("brush-size").value)) }, "input");
  }

  /** Enable the currently possible actions. */
  show() {
    const { edits, image, scene, stage } = this.#page;
    const active = image ? scene.active : null;
    const others = edits.active ? edits.others : [];
    const place = scene.objects.indexOf(active);
    const isPolygon = this.polygon.isOn;
    const count = isPolygon ? this.polygon.corners.length : 0;
    reveal({
      "edit-object": active,
      "edit-join": others.length,
      "copy-cutout": edits.active,
      "copy-rle": edits.active,
      "brush-row": this.tool === this.#brush,
      "polygon-hint": isPolygon,
      "polygon-buttons": count,
    });
    enable({
      "edit-up": place > 0,
      "edit-down": active && place < scene.objects.length - 1,
      "polygon-close": this.polygon.isClosable,
    });
    if (active) $("edit-color").value = active.color;
    if (count) $("undo").disabled = false;
    $("brush-size").value = this.#brush.size;
    const end = stage.tool === "cut-polygon" ? "take it out of the mask" : edits.active ? "add it to the mask" : "begin an object";
    $("polygon-hint").textContent = this.polygon.isClosable
      ? `${count} corners. Enter, or the first corner again, closes the polygon to ${end}.`
      : `Click at least three corners around an area to ${end}.`;
    offer($("edit-other"), others);
  }
}

/** Rows of the list are dragged by their colour, also by touch. */
function connectRows(page) {
  const list = $("objects");
  let dragged = null; // a row
  const rowAt = ({ clientX, clientY }) => document.elementFromPoint(clientX, clientY)?.closest("#objects .object");
  list.addEventListener("pointerdown", (event) => {
    const swatch = page.image && event.target.closest(".swatch");
    if (!swatch) return;
    event.preventDefault();
    dragged = swatch.closest(".object");
    swatch.setPointerCapture(event.pointerId);
  });
  list.addEventListener("pointerup", (event) => {
    const [from, to] = [dragged, dragged && rowAt(event)];
    dragged = null;
    if (!to || to === from) return;
    page.edits.move(Number(from.dataset.id), page.scene.objects.findIndex((object) => String(object.id) === to.dataset.id));
  });
  list.addEventListener("pointercancel", () => (dragged = null));
}

/** List objects, and an entry for all of them; the list keeps its selection. */
function offer(select, others) {
  const options = others.map((object) => [String(object.id), object.name]);
  if (options.length > 1) options.push([ALL, "all other objects"]);
  if (JSON.stringify(options) === select.dataset.options) return;
  select.dataset.options = JSON.stringify(options);
  const before = select.value;
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  if (options.some(([value]) => value === before)) select.value = before;
}
