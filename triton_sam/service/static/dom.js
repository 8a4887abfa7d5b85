// Finds, creates and connects elements of the document.

export const $ = (id) => document.getElementById(id);

/** Return a new element with properties and children; null children are left out. */
export function make(tag, options = {}, ...children) {
  const element = Object.assign(document.createElement(tag), options);
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** Call the functions of {id: act} on events of the elements with these ids. */
export function connect(acts, type = "click") {
  for (const [id, act] of Object.entries(acts)) $(id).addEventListener(type, act);
}

/** Show or hide elements, {id: isShown}. */
export function reveal(shown) {
  for (const [id, isShown] of Object.entries(shown)) {
    if (!isShown && $(id).contains(document.activeElement)) focusImage();
    $(id).hidden = !isShown;
  }
}

/** Give the focus of a control that goes to the image, so that keys do not start again at the top of the page. */
export function focusImage() {
  $("canvas").focus({ preventScroll: true });
}

/** Enable or disable controls, {id: isOn}. */
export function enable(controls) {
  for (const [id, isOn] of Object.entries(controls)) $(id).disabled = !isOn;
}

/** Mark the chosen buttons of a group. */
export function check(selector, isOn) {
  for (const button of document.querySelectorAll(selector)) button.setAttribute("aria-checked", String(isOn(button)));
}

/** Set a button's icon, from icons.svg. */
export function setIcon(button, name) {
  const href = `static/icons.svg#${name}`;
  if (button.querySelector("use")?.getAttribute("href") === href) return;
  const namespace = "http://www.w3.org/2000/svg";
  const drawing = document.createElementNS(namespace, "svg");
  drawing.append(document.createElementNS(namespace, "use"));
  drawing.firstChild.setAttribute("href", href);
  button.replaceChildren(drawing);
}
