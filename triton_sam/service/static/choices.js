// The user's choice of model, candidates and clean-up, kept over a reload.

const KEY = "triton-sam-choices";
const NAMES = ["model", "multimask", "cleanup", "cleanupArea", "threshold"];

/** Return the kept choices; members that were never chosen are missing. */
export function kept() {
  try {
    const stored = JSON.parse(localStorage.getItem(KEY)) ?? {};
    return Object.fromEntries(NAMES.filter((name) => name in stored).map((name) => [name, stored[name]]));
  } catch {
    return {};
  }
}

export function keep(settings) {
  try {
    localStorage.setItem(KEY, JSON.stringify(Object.fromEntries(NAMES.map((name) => [name, settings[name]]))));
  } catch {
    // Private windows may refuse storage: the choices then last until the page is closed.
  }
}
