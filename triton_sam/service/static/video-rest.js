// Calls to /v1/videos.

import { call, hear, post } from "./rest.js";

export async function frame(id, index, width, signal) {
  return (await call(`/v1/videos/${id}/frames/${index}?width=${width}`, { signal })).blob();
}

export async function prompt(id, body) {
  return (await post(`/v1/videos/${id}/prompts`, body)).json();
}

export async function clearPrompt(id, index, object) {
  await call(`/v1/videos/${id}/prompts?frame=${index}&object_id=${object}`, { method: "DELETE" });
}

export async function removeObject(id, object) {
  await call(`/v1/videos/${id}/objects/${object}`, { method: "DELETE" });
}

export async function cancel(id) {
  await call(`/v1/videos/${id}/cancel`, { method: "POST" });
}

export async function download(id, format) {
  return (await call(`/v1/videos/${id}/masks?format=${format}`)).blob();
}

/** Delete a video; this also works while the page is being closed. */
export function forget(id) {
  void call(`/v1/videos/${id}`, { method: "DELETE", keepalive: true }).catch(() => {}); // the service removes it later
}

/** Track, and call ``heard(name, data)`` for each event; the last one is "done". */
export async function propagate(id, body, heard) {
  await hear(await post(`/v1/videos/${id}/propagate`, body, { accept: "*/*" }), heard);
}
