// The page's buttons, fields, dropped files and keys, and the actions that they start.

import { keep } from "./choices.js";
import { saveDataSet } from "./data-sets.js";
import { droppedFiles } from "./files.js";
import { installKeys } from "./keys.js";
import { urlOf } from "./rest.js";
import { saveCoco, saveCutout, saveMask, saveOverlay, saveVideo } from "./saves.js";
import { toggle as toggleTheme } from "./theme.js";

const $ = (id) => document.getElementById(id);

/**
 * Connect every control of the page with its action.
 *
 * page: {actions, settings, scene, masks, video, stage, shelf, open, openUrl, cancel, reupload, endHover, warn, currentImage()}
 */
export function connectControls(page) {
  const { actions, settings, scene, masks, stage } = page; // of images; the video has its own
  async function saving(act) {
    try {
      await act();
    } catch (problem) {
      page.warn(`The download failed: ${problem.message}`);
    }
  }

  $("open").addEventListener("click", actions.open);
  $("choose").addEventListener("click", actions.open);
  $("choose-folder").addEventListener("click", actions.openFolder);
  for (const id of ["open-url", "choose-url"]) $(id).addEventListener("click", actions.openUrl);
  $("url-cancel").addEventListener("click", () => $("url-dialog").close(""));
  $("url-dialog").addEventListener("close", () => {
    const url = $("url").value.trim();
    $("url").value = "";
    if ($("url-dialog").returnValue === "open" && url) void page.openUrl(url);
    $("url-dialog").returnValue = "";
  });
  $("camera").addEventListener("click", () => $("photo").click());
  for (const input of [$("file"), $("folder"), $("coco"), $("photo")]) {
    input.addEventListener("change", () => {
      void page.open([...input.files]);
      input.value = "";
    });
  }
  for (const button of document.querySelectorAll("[data-sample]")) {
    button.addEventListener("click", () => openSample(page, button.dataset.sample));
  }
  for (const button of document.querySelectorAll("[data-tool]")) {
    button.addEventListener("click", () => actions.tool(button.dataset.tool));
  }
  for (const button of document.querySelectorAll("[data-multi]")) {
    button.addEventListener("click", () => actions.multimask(button.dataset.multi === "1"));
  }
  $("undo").addEventListener("click", actions.undo);
  $("redo").addEventListener("click", actions.redo);
  $("clear").addEventListener("click", actions.clear);
  $("zoom-in").addEventListener("click", () => actions.zoom(1.25));
  $("zoom-out").addEventListener("click", () => actions.zoom(0.8));
  $("zoom-fit").addEventListener("click", actions.fit);
  $("new-object").addEventListener("click", actions.newObject);
  $("busy-cancel").addEventListener("click", page.cancel);
  $("banner-close").addEventListener("click", () => page.warn(""));
  $("theme").addEventListener("click", toggleTheme);
  $("keys").addEventListener("click", actions.help);
  $("model").addEventListener("change", () => {
    settings.model = $("model").value;
    keep(settings);
    page.endHover();
    void page.reupload();
  });
  $("opacity").addEventListener("input", () => {
    settings.opacity = $("opacity").value / 100;
    $("opacity-value").textContent = `${$("opacity").value} %`;
    stage.redraw();
  });
  $("hover").addEventListener("change", () => {
    settings.hover = $("hover").checked;
    if (!settings.hover) page.endHover();
  });
  $("cleanup").addEventListener("change", () => actions.cleanup($("cleanup").checked));
  $("cleanup-area").addEventListener("input", () => ($("cleanup-value").textContent = $("cleanup-area").value));
  $("cleanup-area").addEventListener("change", () => actions.cleanupArea(Number($("cleanup-area").value)));
  $("threshold").addEventListener("input", () => ($("threshold-value").textContent = $("threshold").value));
  $("threshold").addEventListener("change", () => actions.threshold(Number($("threshold").value)));
  $("save-mask").addEventListener("click", () => saving(() => saveMask(page.currentImage(), scene.active, masks)));
  $("save-coco").addEventListener("click", () => saving(() => saveCoco(page.currentImage(), masks.shown, masks, settings)));
  for (const button of document.querySelectorAll("[data-save]")) {
    button.addEventListener("click", async () => {
      button.classList.add("is-busy");
      await saving(() => saveVideo(page.video.info, button.dataset.save));
      button.classList.remove("is-busy");
    });
  }
  $("save-overlay").addEventListener("click", () =>
    saving(() => saveOverlay(page.currentImage(), stage.picture, masks.shown, masks, settings.opacity)),
  );
  $("export").addEventListener("click", async () => {
    $("export").classList.add("is-busy");
    await saving(() => saveDataSet(page.shelf, masks, settings.model, $("export-format").value));
    $("export").classList.remove("is-busy");
  });
  $("import").addEventListener("click", () => $("coco").click());
  $("save-cutout").addEventListener("click", () =>
    saving(() => saveCutout(page.currentImage(), stage.picture, scene.active, masks)),
  );

  addEventListener("dragover", (event) => {
    event.preventDefault();
    $("stage").classList.add("dropping");
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) $("stage").classList.remove("dropping");
  });
  addEventListener("drop", (event) => {
    event.preventDefault();
    $("stage").classList.remove("dropping");
    void droppedFiles(event.dataTransfer).then(page.open);
  });
  addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    const text = event.clipboardData?.getData("text/plain").trim() ?? "";
    if (files.length) void page.open(files);
    else if (/^https?:\/\/\S+$/.test(text) && document.body.dataset.urls === "1" && !event.target.matches?.("input, textarea")) {
      void page.openUrl(text);
    }
  });
  addEventListener("pointerdown", () => (document.body.dataset.by = "pointer"), true);
  addEventListener("keydown", (event) => event.key === "Tab" && (document.body.dataset.by = "keys"), true);
  installKeys(actions);
}

async function openSample(page, name) {
  try {
    const answer = await fetch(urlOf(`/static/samples/${name}`));
    if (!answer.ok) throw new Error();
    await page.open([new File([await answer.blob()], name, { type: "image/jpeg" })]);
  } catch {
    page.warn("The sample cannot be loaded: the service does not answer.");
  }
}
