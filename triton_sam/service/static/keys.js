// Keyboard shortcuts: one list, for key events and for the dialog that explains them.

import { make } from "./dom.js";

/** [keys in brackets, and gestures; description; functions of (actions, event) by key, false if they did nothing]. */
const SHORTCUTS = [
  ["[Click]", "foreground point"],
  ["[Right click], [Alt] or [Shift] click", "background point"],
  ["[Ctrl] click", "select the object of a mask"],
  ["[Drag]", "box; from a point: move it"],
  ["[Right click] on a point", "remove it"],
  ["[Wheel], [+] [-]", "zoom", { "+": (act) => act.zoom(1.25), "=": (act) => act.zoom(1.25), "-": (act) => act.zoom(0.8) }],
  ["[Space] drag", "move the image"],
  ["[0]", "fit the image", { 0: (act) => act.fit() }],
  [
    "[A] [D] [B] [S] [H]",
    "point, background point, box, select, move",
    {
      ...{ a: (act) => act.tool("add"), d: (act) => act.tool("cut"), b: (act) => act.tool("box") },
      ...{ s: (act) => act.tool("select"), h: (act) => act.tool("pan") },
    },
  ],
  ["[N]", "new object", { n: (act) => act.newObject() }],
  ["[E]", "next object", { e: (act) => act.nextObject() }],
  ["[Delete]", "delete the object", { delete: (act) => act.removeActive(), backspace: (act) => act.removeActive() }],
  ["[P] [X]", "brush, eraser", { p: (act) => act.tool("brush"), x: (act) => act.tool("erase") }],
  ["[G], [Shift] [G]", "polygon, cut polygon", { g: (act) => act.tool("polygon"), "shift+g": (act) => act.tool("cut-polygon") }],
  ["[Enter] [Backspace] [Esc]", "close the polygon, remove its last corner, discard it", { escape: (act) => act.escape() }],
  ["[[] []]", "smaller, larger brush; in a video, frame with a prompt", { "[": (act) => act.jump(-1), "]": (act) => act.jump(1) }],
  ["[Ctrl] [D]", "duplicate the object", { "ctrl+d": (act) => act.edits.duplicate() }],
  [
    "[Alt] [↑] [↓]",
    "move the object in the list",
    { "alt+arrowup": (act) => act.edits.reorder(-1), "alt+arrowdown": (act) => act.edits.reorder(1) },
  ],
  [
    "[Ctrl] [C], [Shift] [C]",
    "copy the cut-out, the mask as JSON",
    { "ctrl+c": (act) => !String(getSelection()) && act.edits.copyCutout(), "shift+c": (act) => act.edits.copyRle() },
  ],
  ["[F]", "find everything", { f: (act) => act.find() }],
  ["[/]", "search for words (needs a model for words)", { "/": (act) => act.search() }],
  [
    "[←] [→], [K] [J] [R]",
    "found object; keep, merge, refine",
    { k: (act) => act.keep(), j: (act) => act.merge(), r: (act) => act.trackBackOrRefine() },
  ],
  ["[M]", "one mask or three", { m: (act) => act.toggleMultimask() }],
  ["[1] [2] [3]", "choose a candidate", { 1: (act) => act.candidate(0), 2: (act) => act.candidate(1), 3: (act) => act.candidate(2) }],
  ["[Ctrl] [Z]", "undo", { "ctrl+z": (act) => act.undo() }],
  ["[Ctrl] [Shift] [Z]", "redo", { "ctrl+shift+z": (act) => act.redo(), "ctrl+y": (act) => act.redo() }],
  ["[O], [Ctrl] [V]", "open, paste images", { o: (act) => act.open() }],
  ["[Shift] [O]", "open a folder", { "shift+o": (act) => act.openFolder() }],
  ["[U]", "open an image at a URL; pasting a URL works too", { u: (act) => act.openUrl() }, "for-urls"],
  ["[Page up] [Page down]", "previous, next image", { pageup: (act) => act.otherImage(-1), pagedown: (act) => act.otherImage(1) }],
  ["[Space]", "play a video"],
  [
    "[←] [→], with [Shift]",
    "one frame, ten frames",
    {
      ...{ arrowleft: (act) => act.step(-1), "shift+arrowleft": (act) => act.step(-10) },
      ...{ arrowright: (act) => act.step(1), "shift+arrowright": (act) => act.step(10) },
    },
  ],
  ["[T] [R] [Esc]", "track forward, back, stop", { t: (act) => act.track("forward") }],
  ["[Enter], arrow keys", "cursor; with [Shift] by one pixel"],
  ["[Enter], [Shift] [Enter]", "point, background point at the cursor"],
  ["[?]", "this list", { "?": (act) => act.help() }],
  ["Two fingers", "zoom and move"],
];
const FIELDS = "input[type=text], input[type=password], input[type=url], textarea, select"; // typed letters are no shortcuts
export const ACTS = Object.assign({}, ...SHORTCUTS.map(([, , acts]) => acts));

/** ``tool(key)`` handles a key with the chosen hand tool first; it returns false if the tool does not use the key. */
export function installKeys(actions, list, tool) {
  for (const [keys, what, , className = ""] of SHORTCUTS) {
    list.append(make("dt", { className }, ...parts(keys)), make("dd", { className }, ...parts(what)));
  }
  addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]") || event.target.matches?.(FIELDS)) return;
    const key = event.key.toLowerCase();
    if (key.startsWith("arrow") && !event.altKey && event.target.matches?.("input[type=range]")) return; // moves the slider
    if (press(key, event) !== false) event.preventDefault();
  });
  addEventListener("keyup", (event) => event.key === " " && actions.space(false));
  addEventListener("blur", () => actions.space(false));

  function press(key, event) {
    const held = (event.ctrlKey || event.metaKey ? "ctrl+" : "") + (event.altKey ? "alt+" : "");
    const isOnControl = event.target.closest?.("button, summary, select, a, input");
    const presses = key === " " || (key === "enter" && document.body.dataset.by === "keys");
    if (!held && isOnControl && presses) return false; // the browser presses the control
    if (!held && tool(key) !== false) return true;
    if (!held && key === " ") return event.repeat || actions.space(true);
    const act = ACTS[`${held}${event.shiftKey ? "shift+" : ""}${key}`] ?? (held ? null : ACTS[key]);
    return act ? act(actions, event) : false;
  }
}

/** Return the parts of a text; text in brackets becomes keys. */
function parts(text) {
  return text.split(/\[(.+?)\](?!\])/).map((part, index) => (index % 2 ? make("kbd", { textContent: part }) : part));
}
