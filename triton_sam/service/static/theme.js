// Dark or light: the user's choice, else the system's. This module runs first, to avoid a flash.
const KEY = "triton-sam-theme";
const system = matchMedia("(prefers-color-scheme: light)");

function stored() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

export function current() {
  return stored() ?? (system.matches ? "light" : "dark");
}

export function apply() {
  document.documentElement.dataset.theme = current();
}

export function toggle() {
  const next = current() === "dark" ? "light" : "dark";
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // Private windows may reject storage; the choice then lasts until the page is closed.
  }
  document.documentElement.dataset.theme = next;
}

system.addEventListener("change", apply);
apply();
