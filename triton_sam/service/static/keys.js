// Keyboard shortcuts. index.html lists them twice: the common ones in the panel, all of them in the dialog.

const LETTERS = {
  a: (act) => act.tool("add"),
  d: (act) => act.tool("cut"),
  b: (act) => act.tool("box"),
  h: (act) => act.tool("pan"),
  s: (act) => act.tool("select"),
  n: (act) => act.newObject(),
  e: (act) => act.nextObject(),
  m: (act) => act.toggleMultimask(),
  f: (act) => act.find(),
  k: (act) => act.keep(),
  j: (act) => act.merge(),
  "/": (act) => act.search(),
  o: (act, event) => (event.shiftKey ? act.openFolder() : act.open()),
  u: (act) => act.openUrl(),
  pageup: (act) => act.otherImage(-1),
  pagedown: (act) => act.otherImage(1),
  1: (act) => act.candidate(0),
  2: (act) => act.candidate(1),
  3: (act) => act.candidate(2),
  0: (act) => act.fit(),
  "+": (act) => act.zoom(1.25),
  "=": (act) => act.zoom(1.25),
  "-": (act) => act.zoom(0.8),
  "?": (act) => act.help(),
  delete: (act) => act.removeActive(),
  backspace: (act) => act.removeActive(),
  escape: (act) => act.escape(),
  arrowleft: (act, event) => act.step(event.shiftKey ? -10 : -1),
  arrowright: (act, event) => act.step(event.shiftKey ? 10 : 1),
  "[": (act) => act.jump(-1),
  "]": (act) => act.jump(1),
  t: (act) => act.track("forward"),
  r: (act) => act.trackBackOrRefine(),
};

export function installKeys(actions) {
  addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]") || isTyping(event.target)) return;
    const key = event.key.toLowerCase();
    if (key.startsWith("arrow") && event.target.matches?.("input[type=range]")) return; // it moves by itself
    if (event.ctrlKey || event.metaKey) {
      if (key === "z") (event.shiftKey ? actions.redo : actions.undo)();
      else if (key === "y") actions.redo();
      else return;
    } else if (key === " ") {
      if (event.target.closest("button, select, a, input")) return;
      if (!event.repeat) actions.space(true);
    } else if (LETTERS[key] && !event.altKey) {
      LETTERS[key](actions, event);
    } else {
      return;
    }
    event.preventDefault();
  });
  addEventListener("keyup", (event) => {
    if (event.key === " ") actions.space(false);
  });
  addEventListener("blur", () => actions.space(false));
}

function isTyping(target) {
  return target.matches?.("input[type=text], input[type=password], select");
}
