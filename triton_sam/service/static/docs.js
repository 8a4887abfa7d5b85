// Shows /openapi.json: every operation with its parameters, a curl line, and its responses.
// It uses no library and loads nothing from other sites.

import { copyButton, tryForm } from "./docs-try.js";
import { $, make } from "./dom.js";
import { rememberToken, token, urlOf } from "./rest.js";

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
