// Calls to /v1, with the token if there is one. Errors become Problems with the members of problem+json.

const TOKEN = "triton-sam-token";
const ROOT = new URL("../", import.meta.url).href; // a proxy may serve the service under a path

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
    // Without storage, the page requests the token again after a reload.
  }
}

/** Return the URL of a path of the service, such as "/v1/models". */
export function urlOf(path) {
  return ROOT + path.slice(1);
}

/** ``send`` sends the request instead of fetch(). */
export async function call(path, options = {}, send = fetch) {
  const headers = new Headers(options.headers);
  try {
    if (token()) headers.set("Authorization", `Bearer ${token()}`);
  } catch {
    throw new Problem({ status: 401, detail: "the token contains invalid characters" });
  }
  let answer;
  try {
    answer = await send(urlOf(path), { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ status: 0, detail: "the service cannot be reached" });
  }
  if (answer.ok) return answer;
  let members = { status: answer.status, detail: `the service answered ${answer.status}` };
  try {
    members = { ...members, ...(await answer.json()) };
  } catch {
    // The response is not the service's; it may be a proxy's error page.
  }
  throw new Problem(members);
}

/** The maximum bytes of an image and of a video, known after models(). */
const limits = {};

/** Return {models, image_urls, heic, max_image_bytes, max_video_bytes}. */
export async function models() {
  const answer = await (await call("/v1/models")).json();
  Object.assign(limits, { image: answer.max_image_bytes, video: answer.max_video_bytes });
  return answer;
}

/** Send JSON, and return the response. */
export function post(path, body, options = {}) {
  const headers = { "Content-Type": "application/json", Accept: options.accept ?? "application/json" };
  return call(path, { method: "POST", body: JSON.stringify(body), headers, signal: options.signal });
}

/** Upload an image or a video, given by ``kind``; ``heard(part)`` receives the sent part. */
export async function upload(kind, file, model, signal, heard = () => {}) {
  if (file.size > limits[kind]) {
    // A browser may send all of the file before it reads that the service rejects it.
    const size = Number((limits[kind] / 2 ** 20).toFixed(2));
    throw new Problem({ status: 413, detail: `the ${kind} is larger than ${size} MiB, the limit of this service` });
  }
  const body = new FormData();
  body.append(kind, file, file.name || kind);
  const send = (url, options) => sendWithProgress(url, options, heard);
  return (await call(`/v1/${kind}s${queryOf(model)}`, { method: "POST", body, signal }, send)).json();
}

/** Let the service fetch an image from a URL, and return its bytes. */
export async function fetchUrl(url, model, signal) {
  const { id } = await (await post(`/v1/images/url${queryOf(model)}`, { url }, { signal })).json();
  return (await call(`/v1/images/${id}/content`, { signal })).blob();
}

export async function preview(id, signal) {
  return (await call(`/v1/images/${id}/preview`, { signal })).blob();
}

export async function segment(id, prompt) {
  return (await post(`/v1/images/${id}/segment`, prompt)).json();
}

/** Return a ZIP with data set files; ``lines`` is a Blob with one image per line. */
export async function exported(format, lines) {
  const body = new FormData();
  body.append("images", lines, "images.jsonl");
  return (await call(`/v1/exports?format=${format}`, { method: "POST", body })).blob();
}

/** Find all objects of an image, and call ``heard(name, data)`` for each event. */
export async function everything(id, body, signal, heard) {
  await hear(await post(`/v1/images/${id}/everything`, body, { accept: "text/event-stream", signal }), heard);
}

/** Find all instances of words or example boxes. */
export async function find(id, body, signal) {
  return (await post(`/v1/images/${id}/find`, body, { signal })).json();
}

// The following are calls to /v1/videos; ``id`` is that of a video.

export async function frame(id, index, width, signal) {
  return (await call(`/v1/videos/${id}/frames/${index}?width=${width}`, { signal })).blob();
}

/** Tell the service that a video is in use, because it removes unused ones. */
export async function use(id) {
  await call(`/v1/videos/${id}`);
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

function queryOf(model) {
  return model ? `?model=${encodeURIComponent(model)}` : "";
}

/** Read server-sent events, and call ``heard(name, data)`` for each; the last one is "done". */
export async function hear(answer, heard) {
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
    if (error instanceof Problem || error.name === "AbortError") throw error;
  }
  throw new Problem({ status: 0, detail: "the connection to the service broke" });
}

function parse(block) {
  const name = /^event: (.*)$/m.exec(block)?.[1];
  const data = /^data: (.*)$/m.exec(block)?.[1];
  return name && data ? { name, data: JSON.parse(data) } : null; // comments have neither
}

/**
 * Send a body as fetch() does, and return its Response. Not every browser reports the progress of fetch().
 *
 * heard(part): called with the sent fraction of the body, from 0 to 1
 */
function sendWithProgress(path, { method, headers, body, signal }, heard) {
  return new Promise((resolve, reject) => {
    const stop = () => reject(new DOMException("the upload was cancelled", "AbortError"));
    if (signal?.aborted) return stop();
    const request = new XMLHttpRequest();
    request.open(method, path);
    request.responseType = "blob";
    for (const [name, value] of headers) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", ({ loaded, total }) => total && heard(loaded / total));
    request.upload.addEventListener("load", () => heard(1));
    request.addEventListener("load", () => {
      const headers = { "Content-Type": request.getResponseHeader("Content-Type") ?? "" };
      resolve(new Response(request.response, { status: request.status, headers }));
    });
    request.addEventListener("error", () => reject(new TypeError("the connection broke")));
    request.addEventListener("abort", stop);
    const abort = () => request.abort();
    signal?.addEventListener("abort", abort);
    request.addEventListener("loadend", () => signal?.removeEventListener("abort", abort));
    request.send(body);
  });
}
