// The user's actions, by name, for buttons, keys, and the rows of the list.

import { keep } from "./choices.js";
import { $, check } from "./dom.js";
import { HandTools } from "./hand-tools.js";
import { isBlank, lineOf } from "./scene.js";

export function actionsOf(page) {
  const { video, everything, words, stage, settings, pictures, edits } = page;
  const objectOf = (id) => page.scene.objects.find((object) => object.id === id);
  const actions = {
    edits,
    select(id) {
      if (page.scene.activeId === id) return;
      page.scene.activeId = id;
      page.show();
    },
    rename(id, name) {
      const object = objectOf(id);
      if (object && name.trim()) page.change(() => (object.name = lineOf(name.trim())));
      else page.show();
    },
    label(id, label) {
      const object = objectOf(id);
      if (object) page.change(() => (object.label = lineOf(label.trim())));
    },
    toggle(id) {
      const object = objectOf(id);
      object.visible = !object.visible;
      page.show();
    },
    remove: (id) => page.change(() => page.scene.remove(id)),
    choose: (id, index) => page.change(() => (objectOf(id).choice = index)),
    newObject() {
      if (!(page.image || video.isOpen) || isBlank(page.scene.active)) return;
      page.change(() => page.scene.begin());
    },
    removeActive() {
      if (everything.takesClicks) everything.remove();
      else if (page.scene.active) actions.remove(page.scene.activeId);
    },
    nextObject() {
      const { objects, activeId } = page.scene;
      const index = objects.findIndex((object) => object.id === activeId);
      if (objects.length) actions.select(objects[(index + 1) % objects.length].id);
    },
    candidate(index) {
      const count = page.scene.active ? (page.masks.resultOf(page.scene.active)?.scores?.length ?? 0) : 0;
      if (count > 1 && index < count) actions.choose(page.scene.activeId, index);
    },
    undo() {
      const { polygon } = page.handTools;
      if (polygon.isOn && polygon.takeBack()) return;
      page.scene.undo();
      void page.masks.refresh();
    },
    redo() {
      page.scene.redo();
      void page.masks.refresh();
    },
    clear: () => page.scene.objects.length && page.change(() => ((page.scene.objects = []), (page.scene.activeId = null))),
    tool(name) {
      if (HandTools.has(name) && !page.image) return false;
      stage.tool = name;
      if (HandTools.has(name)) $("edit").open = true;
      check("[data-tool]", (button) => button.dataset.tool === name);
      stage.cursor();
      page.preview.end();
      page.cursor.follow();
      page.show();
    },
    multimask(on) {
      settings.multimask = page.scene.multimask = on;
      keep(settings);
      if (video.isOpen || !page.scene.active) return page.show();
      page.change(() => Object.assign(page.scene.active, { multimask: on, choice: null }));
    },
    toggleMultimask: () => actions.multimask(!(page.scene.active ?? page.scene).multimask),
    open: () => $("file").click(),
    openFolder: () => $("folder").click(),
    openUrl: () => document.body.dataset.urls === "1" && $("url-dialog").showModal(),
    otherImage: (by) => pictures.shelf.step(by),
    zoom: (factor) => stage.zoom(factor),
    fit: () => stage.fit(),
    space(held) {
      if (!video.isOpen) stage.holdSpace(held);
      else if (held) video.togglePlay();
    },
    step: (by) => (video.isOpen ? video.step(by) : everything.step(by)),
    find: () => void everything.find(),
    search: () => words.focus(),
    keep: () => everything.takesClicks && everything.keep(),
    merge: () => everything.takesClicks && everything.merge(),
    trackBackOrRefine: () => (video.isOpen ? actions.track("back") : everything.refine()),
    jump: (by) => video.isOpen && video.jump(by),
    track: (direction) => void video.track(direction),
    escape() {
      pictures.cancel();
      void video.stop();
      everything.escape();
      stage.abort();
      page.preview.end();
    },
    help: () => $("keys-dialog").showModal(),
  };
  return actions;
}
