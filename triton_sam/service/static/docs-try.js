// The interactive parts of /docs: a button that copies the curl line, and a form that sends the request.

import { make } from "./dom.js";
import { token, urlOf } from "./rest.js";

const SHOWN = 20_000; // characters of a response
const ids = new Map(); // of the last upload, by the name of the parameter

/** Return a button that copies a text, and confirms it. */
export function copyButton(text) {
  const button = make("button", { type: "button", className: "button", textContent: "Copy" });
  button.addEventListener("click", async () => {
    button.textContent = (await copied(text)) ? "Copied" : "Copying is not allowed";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Browsers offer the clipboard only to https:// and localhost; execCommand works everywhere.
    const field = make("textarea", { value: text });
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}

/**
 * Return a form that sends one request.
 *
 * what: {verb, path, parameters, kind, example, fields}: ``parameters`` are OpenAPI's, and ``kind`` is the type of the
 * body, if there is one. It has an ``example`` in JSON, or the ``fields`` {name, required, isFile} of a form.
 */
export function tryForm(what) {
  const places = (what.parameters ?? []).filter((each) => each.in === "path" || each.in === "query");
  const inputs = places.map((each) => input(each.name, { required: each.in === "path", value: ids.get(each.name) ?? "" }));
  const isJson = what.kind === "application/json";
  const body = isJson ? make("textarea", { rows: 4, value: JSON.stringify(what.example, null, 1), ariaLabel: "Body" }) : null;
  const parts = isJson ? [] : (what.fields ?? []).map((each) => input(each.name, { required: each.required, type: each.isFile ? "file" : "text" }));
  const send = make("button", { className: "button primary", textContent: "Send" });
  const answer = make("div", { className: "answer", role: "status" });
  const form = make("form", {}, ...[...inputs, ...parts].map((each) => make("label", {}, each.name, each)), body, send, answer);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    answer.replaceChildren("waiting …");
    try {
      answer.replaceChildren(...(await asked(what, request(what, places, inputs, body, parts))));
    } catch (problem) {
      answer.replaceChildren(`The request failed: ${problem.message}`);
    }
    send.disabled = false;
  });
  return form;
}

function input(name, options) {
  return make("input", { name, type: "text", autocomplete: "off", ...options });
}

/** Return [url, options] for fetch(). */
function request({ verb, path, kind }, places, inputs, body, parts) {
  let address = path;
  const query = new URLSearchParams();
  places.forEach((place, index) => {
    const value = inputs[index].value.trim();
    if (place.in === "path") address = address.replace(`{${place.name}}`, encodeURIComponent(value));
    else if (value) query.set(place.name, value);
  });
  const headers = new Headers(token() ? { Authorization: `Bearer ${token()}` } : {});
  const options = { method: verb.toUpperCase(), headers };
  if (body) {
    headers.set("Content-Type", kind);
    options.body = body.value;
  } else if (parts.length) {
    options.body = new FormData();
    for (const part of parts) {
      if (part.type === "file" && part.files[0]) options.body.append(part.name, part.files[0]);
      else if (part.type !== "file" && part.value) options.body.append(part.name, part.value);
    }
  }
  return [`${address}${query.size ? `?${query}` : ""}`, options];
}

async function asked({ path }, [address, options]) {
  const started = performance.now();
  const answer = await fetch(urlOf(address), options);
  const content = await answer.blob();
  const took = Math.round(performance.now() - started);
  const kind = answer.headers.get("Content-Type") ?? "no body";
  const shown = [make("p", {}, `${answer.status} ${answer.statusText} · ${kind} · ${content.size} bytes · ${took} ms`)];
  if (kind.startsWith("image/")) return [...shown, make("img", { alt: "The answer", src: URL.createObjectURL(content) })];
  if (!/json|text/.test(kind)) return shown;
  let text = await content.text();
  if (kind.includes("json") && !kind.includes("lines")) {
    const value = JSON.parse(text);
    if (answer.status === 201 && path === "/v1/images") fillIn("image_id", value.id);
    if (answer.status === 201 && path === "/v1/videos") fillIn("video_id", value.id);
    text = JSON.stringify(value, null, 1);
  }
  if (text.length > SHOWN) text = `${text.slice(0, SHOWN)} …`;
  return [...shown, make("pre", { tabIndex: 0, textContent: text })];
}

/** Write the id of the last upload into the other forms. */
function fillIn(name, id) {
  ids.set(name, id);
  for (const field of document.querySelectorAll(`input[name="${name}"]`)) field.value = id;
}
