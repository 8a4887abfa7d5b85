// Texts around the image: state, banner, progress, and the token dialog.

import { $ } from "./dom.js";
import { rememberToken, token } from "./rest.js";

export function askToken() {
  const dialog = $("token-dialog");
  $("token-problem").hidden = !token(); // a stored token means that the service has rejected it
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => (rememberToken($("token").value), resolve()), { once: true });
  });
}

export function setState(state, text) {
  $("state").dataset.state = state;
  $("state").lastElementChild.textContent = text;
}

export function busy(text) {
  $("busy").hidden = !text;
  $("busy-text").textContent = text;
  for (const part of document.querySelectorAll("#busy-part, #busy-sent")) part.hidden = true; // /large sends no files
}

/** Show the sent part of a file, from 0 to 1, and then ``then``, which describes the service's work. */
export function sending(kind, part, then) {
  if (part >= 1) return busy(then);
  const text = `Sending the ${kind} …`;
  if ($("busy-text").textContent !== text) busy(text); // a screen reader reads it once
  $("busy-part").hidden = $("busy-sent").hidden = false;
  $("busy-part").value = part;
  $("busy-sent").textContent = `${Math.floor(100 * part)} %`;
}

export function warn(text) {
  $("banner").firstElementChild.textContent = text;
  $("banner").hidden = !text;
}

/** Announce to screen readers a text that is visible elsewhere on the page. */
export function say(text) {
  $("said").textContent = text;
}
