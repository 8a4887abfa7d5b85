// Uploads with progress, through XMLHttpRequest, because not every browser reports it for fetch().

/**
 * Send a body as fetch() does, and return its Response.
 *
 * heard(part): called with the sent fraction of the body, from 0 to 1
 */
export function sendWithProgress(path, { method, headers, body, signal }, heard) {
  return new Promise((resolve, reject) => {
    const stop = () => reject(new DOMException("the upload was cancelled", "AbortError"));
    if (signal?.aborted) return stop();
    const request = new XMLHttpRequest();
    request.open(method, path);
    request.responseType = "blob";
    for (const [name, value] of headers) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", ({ loaded, total }) => total && heard(loaded / total));
    request.upload.addEventListener("load", () => heard(1));
    request.addEventListener("load", () => resolve(responseOf(request)));
    request.addEventListener("error", () => reject(new TypeError("the connection broke")));
    request.addEventListener("abort", stop);
    const abort = () => request.abort();
    signal?.addEventListener("abort", abort);
    request.addEventListener("loadend", () => signal?.removeEventListener("abort", abort));
    request.send(body);
  });
}

function responseOf(request) {
  const headers = { "Content-Type": request.getResponseHeader("Content-Type") ?? "" };
  return new Response(request.response, { status: request.status, headers });
}
