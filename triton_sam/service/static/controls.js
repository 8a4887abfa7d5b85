// The page's buttons and fields, dropped and pasted files, and the actions that they start.

import { keep } from "./choices.js";
import { $, connect } from "./dom.js";
import { warn } from "./notices.js";
import { urlOf } from "./rest.js";
import { saveCoco, saveCutout, saveDataSet, saveMask, saveOverlay, saveVideo } from "./saves.js";
import { toggle as toggleTheme } from "./theme.js";

export function connectControls(page) {
  const { actions, settings, stage, pictures } = page;

  connect({
    open: actions.open,
    choose: actions.open,
    "choose-folder": actions.openFolder,
    "open-url": actions.openUrl,
    "choose-url": actions.openUrl,
    "url-cancel": () => $("url-dialog").close(""),
    camera: () => $("photo").click(),
    undo: actions.undo,
    redo: actions.redo,
    clear: actions.clear,
    "zoom-in": () => actions.zoom(1.25),
    "zoom-out": () => actions.zoom(0.8),
    "zoom-fit": actions.fit,
    "new-object": actions.newObject,
    "busy-cancel": () => pictures.cancel(),
    "banner-close": () => warn(""),
    theme: toggleTheme,
    keys: actions.help,
  });
  const each = (selector, act) => {
    for (const button of document.querySelectorAll(selector)) button.addEventListener("click", () => act(button));
  };
  each("[data-sample]", (button) => openSample(pictures, button.dataset.sample));
  each("[data-tool]", (button) => actions.tool(button.dataset.tool));
  each("[data-multi]", (button) => actions.multimask(button.dataset.multi === "1"));
  $("url-dialog").addEventListener("close", () => {
    const url = $("url").value.trim();
    $("url").value = "";
    if ($("url-dialog").returnValue === "open" && url) void pictures.openUrl(url);
    $("url-dialog").returnValue = "";
  });
  for (const input of [$("file"), $("folder"), $("photo")]) {
    input.addEventListener("change", () => {
      void pictures.open([...input.files]);
      input.value = "";
    });
  }

  const choose = (name, value) => {
    settings[name] = value;
    keep(settings);
    page.show();
    void page.masks.refresh();
  };
  const slider = (id, output, act) => {
    $(id).addEventListener("input", () => ($(output).textContent = $(id).value));
    $(id).addEventListener("change", () => act(Number($(id).value)));
  };
  slider("cleanup-area", "cleanup-value", (area) => choose("cleanupArea", area));
  slider("threshold", "threshold-value", (logit) => choose("threshold", logit));
  $("opacity").addEventListener("input", () => {
    settings.opacity = $("opacity").value / 100;
    $("opacity-value").textContent = `${$("opacity").value} %`;
    stage.redraw();
  });
  const changed = {
    cleanup: () => choose("cleanup", $("cleanup").checked),
    model() {
      const { isOpen, masks, info } = page.video;
      const isKept = isOpen && masks.hasTracked && !confirm(`Change the model and lose the tracked masks of ${info.name}?`);
      if (isKept) return void ($("model").value = settings.model);
      settings.model = $("model").value;
      keep(settings);
      page.preview.end();
      void pictures.reupload();
    },
    hover() {
      settings.hover = $("hover").checked;
      if (!settings.hover) page.preview.end();
    },
  };
  connect(changed, "change");

  const saving = (act) => async (button) => {
    button.classList.add("is-busy");
    try {
      await page.masks.refresh(); // those of the newest clicks may be missing
      await act(button);
    } catch (problem) {
      warn(`The download failed: ${problem.message}`);
    }
    button.classList.remove("is-busy");
  };
  each("#save-mask", saving(() => saveMask(page.image, page.scene.active, page.masks)));
  each("#save-cutout", saving(() => saveCutout(page.image, stage.picture, page.scene.active, page.masks)));
  each("#save-overlay", saving(() => saveOverlay(page.image, stage.picture, page.masks, settings.opacity)));
  each("#save-coco", saving(() => saveCoco(page.image, page.masks, settings)));
  each("[data-save]", saving((button) => saveVideo(page.video.info, button.dataset.save)));
  each("#export", saving(() => saveDataSet(pictures.shelf, page.images.masks, $("export-format").value)));

  addEventListener("dragover", (event) => {
    event.preventDefault();
    $("stage").classList.add("dropping");
  });
  addEventListener("dragleave", (event) => event.relatedTarget || $("stage").classList.remove("dropping"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    $("stage").classList.remove("dropping");
    void droppedFiles(event.dataTransfer).then((files) => pictures.open(files));
  });
  addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    const text = event.clipboardData?.getData("text/plain").trim() ?? "";
    if (files.length) void pictures.open(files);
    else if (/^https?:\/\/\S+$/.test(text) && document.body.dataset.urls === "1" && !event.target.matches?.("input, textarea")) {
      void pictures.openUrl(text);
    }
  });
  addEventListener("pointerdown", () => (document.body.dataset.by = "pointer"), true);
  addEventListener("keydown", (event) => event.key === "Tab" && (document.body.dataset.by = "keys"), true);
}

async function openSample(pictures, name) {
  try {
    const answer = await fetch(urlOf(`/static/samples/${name}`));
    if (!answer.ok) throw new Error();
    await pictures.open([new File([await answer.blob()], name, { type: "image/jpeg" })]);
  } catch {
    warn("The sample cannot be loaded: the service does not answer.");
  }
}

/** Return all dropped files, including those in folders, which are sorted by name. */
async function droppedFiles(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.some((entry) => entry.isDirectory)) return [...transfer.files];
  return (await Promise.all(entries.map(filesOf))).flat();
}

async function filesOf(entry) {
  if (entry.isFile) return [await new Promise((resolve, reject) => entry.file(resolve, reject))];
  const reader = entry.createReader();
  const entries = [];
  for (let some = [0]; some.length; ) {
    some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject)); // at most 100 at once
    entries.push(...some);
  }
  entries.sort((a, b) => a.name.localeCompare(b.name));
  return (await Promise.all(entries.map(filesOf))).flat();
}
