// Dark or light: what was chosen here, else what the system says. Runs before the rest, so that nothing flashes.
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
    // Private windows may refuse: the choice then lasts as long as the page.
  }
  document.documentElement.dataset.theme = next;
}

system.addEventListener("change", apply);
apply();
