// Shows /openapi.json: every operation with its parameters, its responses, a curl line, and a form that sends the
// request. It uses no library and loads nothing from other sites.

import { $, make } from "./dom.js";
import { rememberToken, token, urlOf } from "./rest.js";

const SHOWN = 20_000; // characters of a response
const ids = new Map(); // of the last upload, by the name of the parameter
const place = $("document");

/** Return the parts of a text; text in backquotes becomes `code` elements. */
function prose(text) {
  return text.split("`").map((part, index) => (index % 2 ? make("code", { textContent: part }) : part));
}

function resolve(api, schema) {
  if (!schema?.$ref) return schema ?? {};
  return schema.$ref.split("/").slice(1).reduce((part, key) => part[key], api);
}

function typeOf(api, schema) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return choices.map((choice) => typeOf(api, choice)).filter((name) => name !== "null").join(" or ");
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.type === "array") return `list of ${typeOf(api, schema.items ?? {})}`;
  if (schema.contentMediaType || schema.format === "binary") return "file";
  return schema.type ?? "any";
}

function table(api, rows) {
  const body = make("tbody");
  for (const { name, schema, required, description } of rows) {
    const note = [description ?? schema.description, schema.default !== undefined && schema.default !== null ? `Default: ${JSON.stringify(schema.default)}.` : ""];
    body.append(
      make("tr", {},
        make("td", {}, make("code", { textContent: name + (required ? " *" : "") })),
        make("td", { textContent: typeOf(api, schema) }),
        make("td", {}, ...prose(note.filter(Boolean).join(" ")))),
    );
  }
  return make("table", {}, body);
}

function fields(api, schema) {
  const object = resolve(api, schema);
  return Object.entries(object.properties ?? {}).map(([name, part]) => ({
    name,
    schema: part,
    required: object.required?.includes(name),
  }));
}

function curl(api, verb, path, kind, schema) {
  const target = urlOf(path).replace(/\{(image|video)_id\}/, "$ID");
  const parts = ["curl -s"];
  if (verb !== "get") parts.push(`-X ${verb.toUpperCase()}`);
  if (kind === "application/json") {
    const example = resolve(api, schema).examples?.[0] ?? {};
    parts.push(`-H 'Content-Type: application/json' -d '${JSON.stringify(example)}'`);
  } else if (kind) {
    for (const { name, schema: part, required } of fields(api, schema)) {
      if (required || name === "image") parts.push(typeOf(api, part).includes("file") ? `-F ${name}=@image.jpg` : `-F ${name}=1`);
    }
  }
  return [...parts, target].join(" ");
}

function operation(api, path, verb, what) {
  const [kind, content] = Object.entries(what.requestBody?.content ?? {})[0] ?? [];
  const inside = make("div", { className: "inside" });
  for (const text of what.description?.split("\n\n") ?? []) inside.append(make("p", {}, ...prose(text)));
  if (what.parameters?.length) {
    inside.append(make("h3", { textContent: "Parameters" }), table(api, what.parameters));
  }
  if (content) inside.append(make("h3", { textContent: kind }), table(api, fields(api, content.schema)));
  const line = curl(api, verb, path, kind, content?.schema);
  inside.append(make("h3", { textContent: "Try" }), make("pre", { tabIndex: 0, textContent: line }), tries(api, path, verb, what, line));
  const answers = Object.entries(what.responses).map(([status, answer]) => ({
    name: status,
    schema: { type: Object.keys(answer.content ?? {}).join(", ") || "no body" },
    description: answer.description,
  }));
  inside.append(make("h3", { textContent: "Answers" }), table(api, answers));
  return make("details", {},
    make("summary", {},
      make("span", { className: `verb ${verb}`, textContent: verb.toUpperCase() }),
      make("code", { textContent: path }),
      make("span", { className: "about", textContent: what.summary ?? "" })),
    inside);
}

/** Return the buttons below the curl line. WebSockets (101) have no form. */
function tries(api, path, verb, what, line) {
  const row = make("div", { className: "tries" }, copyButton(line));
  if (what.responses["101"]) return row;
  const button = make("button", { type: "button", className: "button", textContent: "Try it here" });
  button.addEventListener("click", () => button.replaceWith(form()));
  row.append(button);
  return row;

  function form() {
    const [kind, content] = Object.entries(what.requestBody?.content ?? {})[0] ?? [];
    const schema = content && resolve(api, content.schema);
    const parts = kind?.includes("form") ? fields(api, content.schema) : [];
    return tryForm({
      ...{ verb, path, kind, parameters: what.parameters, example: schema?.examples?.[0] ?? {} },
      fields: parts.map(({ name, schema: part, required }) => ({ name, required, isFile: typeOf(api, part).includes("file") })),
    });
  }
}

/** Return a field for the token that the forms send. */
function tokenField() {
  const field = make("input", { type: "password", autocomplete: "off", value: token() ?? "" });
  field.addEventListener("input", () => rememberToken(field.value));
  return make("label", { className: "field" }, "Token", field);
}

/** Return a button that copies a text, and confirms it. */
function copyButton(text) {
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
function tryForm(what) {
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

async function show() {
  const api = await (await fetch(urlOf("/openapi.json"))).json();
  place.replaceChildren(
    make("h1", { textContent: `${api.info.title} ${api.info.version}` }),
    ...api.info.description.trim().split("\n\n").map((text) => make("p", {}, ...prose(text))),
    ...(api.components?.securitySchemes ? [tokenField()] : []),
  );
  const tags = new Map();
  for (const [path, verbs] of Object.entries(api.paths)) {
    for (const [verb, what] of Object.entries(verbs)) {
      const tag = what.tags?.[0] ?? "other";
      tags.set(tag, [...(tags.get(tag) ?? []), operation(api, path, verb, what)]);
    }
  }
  for (const tag of [...tags.keys()].sort((a, b) => Number(b === "v1") - Number(a === "v1"))) {
    place.append(make("h2", { textContent: tag }), ...tags.get(tag));
  }
  place.querySelector("details").open = true;
}

show().catch((error) => place.replaceChildren(make("p", { textContent: `The API's description cannot be loaded: ${error.message}` })));
