// Calls to /v1, with the token if the service needs one. Errors become Problems with the members of problem+json.

const TOKEN = "triton-sam-token";

export class Problem extends Error {
  constructor(members) {
    super(members.detail ?? "the service answered with an error");
    this.status = members.status ?? 0;
    this.code = members.code;
  }
}

export function token() {
  try {
    return sessionStorage.getItem(TOKEN);
  } catch {
    return null;
  }
}

export function rememberToken(text) {
  try {
    sessionStorage.setItem(TOKEN, text.trim());
  } catch {
    // Without storage, the page asks for the token again after a reload.
  }
}

export async function call(path, options = {}) {
  const headers = new Headers(options.headers);
  try {
    if (token()) headers.set("Authorization", `Bearer ${token()}`);
  } catch {
    throw new Problem({ status: 401, detail: "the token has characters that no token of the service has" });
  }
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ status: 0, detail: "the service cannot be reached" });
  }
  if (answer.ok) return answer;
  let members = { status: answer.status, detail: `the service answered ${answer.status}` };
  try {
    members = { ...members, ...(await answer.json()) };
  } catch {
    // This is not the service's answer but, for example, the error page of a proxy.
  }
  throw new Problem(members);
}

export async function models() {
  return (await (await call("/v1/models")).json()).models;
}

export async function upload(file, model, signal) {
  const body = new FormData();
  body.append("image", file, file.name || "image");
  const query = model ? `?model=${encodeURIComponent(model)}` : "";
  return (await call(`/v1/images${query}`, { method: "POST", body, signal })).json();
}

export async function preview(id, signal) {
  return (await call(`/v1/images/${id}/preview`, { signal })).blob();
}

export async function segment(id, prompt) {
  const body = JSON.stringify(prompt);
  const headers = { "Content-Type": "application/json", Accept: "application/json" };
  return (await call(`/v1/images/${id}/segment`, { method: "POST", body, headers })).json();
}
