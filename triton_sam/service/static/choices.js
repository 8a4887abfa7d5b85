// The user's choices of model, candidates and clean-up, stored across reloads.

const KEY = "triton-sam-choices";
const NAMES = ["model", "multimask", "cleanup", "cleanupArea", "threshold"];

/** Return the stored choices, without those that were never made. */
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
    // Private windows may reject storage; the choices then last until the page is closed.
  }
}
