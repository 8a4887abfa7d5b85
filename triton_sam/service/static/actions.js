// What the user can do: each action by its name, for buttons, keys, and the rows of the list.

import { keep } from "./choices.js";
import { check } from "./notices.js";
import { isBlank } from "./scene.js";

const $ = (id) => document.getElementById(id);

/** page: {scene, masks, pictures, video, everything, words, stage, settings, change(act, time), show(), endHover(), toolChosen(), takeCornerBack()} */
export function actionsOf(page) {
  const { video, everything, words, stage, settings, pictures } = page;
  const { change, show, endHover } = page;
  const actions = {
    select(id) {
      if (page.scene.activeId === id) return;
      page.scene.activeId = id;
      show();
    },
    rename(id, name) {
      const object = page.scene.objects.find((each) => each.id === id);
      if (object && name.trim()) change(() => (object.name = name.trim()));
      else show();
    },
    label(id, label) {
      const object = page.scene.objects.find((each) => each.id === id);
      if (object) change(() => (object.label = label.trim()));
    },
    toggle(id) {
      const object = page.scene.objects.find((each) => each.id === id);
      object.visible = !object.visible;
      show();
    },
    remove: (id) => change(() => page.scene.remove(id)),
    choose(id, index) {
      const object = page.scene.objects.find((each) => each.id === id);
      change(() => (object.choice = index));
    },
    newObject() {
      if (!(pictures.image || video.isOpen) || isBlank(page.scene.active)) return;
      change(() => page.scene.begin());
    },
    removeActive() {
      if (everything.takesClicks) everything.remove();
      else if (page.scene.active) actions.remove(page.scene.activeId);
    },
    nextObject() {
      const index = page.scene.objects.findIndex((object) => object.id === page.scene.activeId);
      if (page.scene.objects.length) actions.select(page.scene.objects[(index + 1) % page.scene.objects.length].id);
    },
    candidate(index) {
      const count = page.scene.active ? (page.masks.resultOf(page.scene.active)?.scores?.length ?? 0) : 0;
      if (count > 1 && index < count) actions.choose(page.scene.activeId, index);
    },
    undo() {
      if (page.takeCornerBack()) return;
      page.scene.undo();
      void page.masks.refresh();
    },
    redo() {
      page.scene.redo();
      void page.masks.refresh();
    },
    clear: () => page.scene.objects.length && change(() => ((page.scene.objects = []), (page.scene.activeId = null))),
    tool(name) {
      stage.tool = name;
      check("[data-tool]", (button) => button.dataset.tool === name);
      stage.cursor();
      endHover();
      page.toolChosen();
    },
    multimask(on) {
      settings.multimask = page.scene.multimask = on;
      keep(settings);
      if (video.isOpen || !page.scene.active) return show();
      change(() => Object.assign(page.scene.active, { multimask: on, choice: null }));
    },
    cleanup(on) {
      settings.cleanup = on;
      keep(settings);
      show();
      void page.masks.refresh();
    },
    cleanupArea(area) {
      settings.cleanupArea = area;
      keep(settings);
      void page.masks.refresh();
    },
    threshold(logit) {
      settings.threshold = logit;
      keep(settings);
      void page.masks.refresh();
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
      endHover();
    },
    help: () => $("keys-dialog").showModal(),
  };
  return actions;
}
