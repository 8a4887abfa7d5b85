// Calls to /v1/videos.

import { call, Problem } from "./rest.js";

const JSON_TYPE = { "Content-Type": "application/json" };

export async function upload(file, model, signal) {
  const body = new FormData();
  body.append("video", file, file.name || "video");
  const query = model ? `?model=${encodeURIComponent(model)}` : "";
  return (await call(`/v1/videos${query}`, { method: "POST", body, signal })).json();
}

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

/** Forget a video; also when the page is being closed. */
export function forget(id) {
  void call(`/v1/videos/${id}`, { method: "DELETE", keepalive: true }).catch(() => {}); // it goes away by itself later
}

/** Track, and call ``heard(name, data)`` for each event; the last one is "done". */
export async function propagate(id, body, heard) {
  const answer = await post(`/v1/videos/${id}/propagate`, body);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const blocks = (text + value).split("\n\n");
      text = blocks.pop();
      for (const block of blocks) {
        const found = parse(block);
        if (found?.name === "error") throw new Problem(found.data);
        if (found) heard(found.name, found.data);
        if (found?.name === "done") return;
      }
    }
  } catch (error) {
    if (error instanceof Problem) throw error;
  }
  throw new Problem({ status: 0, detail: "the connection to the service broke" });
}

function post(path, body) {
  return call(path, { method: "POST", body: JSON.stringify(body), headers: JSON_TYPE });
}

function parse(block) {
  const name = /^event: (.*)$/m.exec(block)?.[1];
  const data = /^data: (.*)$/m.exec(block)?.[1];
  return name && data ? { name, data: JSON.parse(data) } : null; // a comment is neither
}
