// The WebSocket: it sends positions and receives masks, in two lanes, "hover" and "click". In each lane, the newest
// request replaces older ones.
//
// From the event of a mouse position to the mask on the screen:
//  1. Stage.#move (stage.js)              the pointer's position in image pixels
//  2. preview.hover (preview.js)          the active object's prompt with this position
//  3. Live.hover                          the newest position waits for the previous mask, and is then sent
//  4. _Page._read (service/api/live.py)   JSON
//  5. _Page._handle                       a validated SegmentMessage; its task replaces the lane's earlier one
//  6. _Page._answer                       the image's embeddings, or their id at Triton
//  7. predict_async (client/speculative.py) a validated click; the newest of its lane waits for a place
//  8. Dispatcher._send                    a thread sends the click
//  9. Transport.infer                     the deadline; HTTP or gRPC
// 10. the session model at Triton         the decoder's logits
// 11. SessionClick.read                   validated logits and scores, back in _answer
// 12. clean_previews (service/answers.py) holes and specks, in a thread
// 13. pack (service/messages.py)          int8
// 14. _Outbox.send                        the newest mask of each lane
// 15. Live.#receive                       unpacked; the next position is sent
// 16. preview.show                        outline() and Stage.draw(), without waiting for a frame

import { models, Problem, token, urlOf } from "./rest.js";

const VERSION = 2; // of the messages; must equal VERSION in service/messages.py
const FIRST_PAUSE = 300;
const LAST_PAUSE = 4000;
const FIRST_PAUSE_REFUSED = 30_000;
const LAST_PAUSE_REFUSED = 60_000;
const SLOW_LINE = 60;

export class Live {
  #on;
  #socket = null;
  #seq = 0;
  #pause = FIRST_PAUSE;
  #isRefused = false; // the service responds, but rejects the WebSocket
  #newestClick = 0;
  #waiting = null;
  #hovers = new Map(); // number of each unanswered hover request -> {time of its event, time when it was sent}
  #next = null; // the newest position, not sent yet
  #lag = 0; // milliseconds of the network for one round trip

  /** on: {status(message), masks(message), hoverError(message), lost(), refused(), outdated(), token()} */
  constructor(on) {
    this.#on = on;
  }

  get isOpen() {
    return this.#socket?.readyState === WebSocket.OPEN;
  }

  connect() {
    const socket = new WebSocket(urlOf("/live").replace(/^http/, "ws"), protocols(token()));
    let opened = false;
    socket.binaryType = "arraybuffer";
    this.#socket = socket;
    socket.addEventListener("open", () => {
      opened = true;
      this.#isRefused = false;
      this.#send({ type: "hello", version: VERSION });
    });
    socket.addEventListener("message", (event) => this.#receive(event.data));
    socket.addEventListener("close", async (event) => {
      if (event.reason === "version") {
        this.#give(null, new Problem({ status: 0, detail: "reload the page" }));
        return this.#on.outdated();
      }
      this.#hovers.clear();
      this.#give(null, new Problem({ status: 0, detail: "the connection broke" }));
      // A browser does not report why a WebSocket was rejected; the REST API does. One call, because it costs quota.
      if (!opened && !this.#isRefused) {
        const status = await statusOfRest();
        if (status === 401) return this.#on.token();
        this.#isRefused = status !== 0;
      }
      if (this.#isRefused) this.#on.refused();
      else this.#on.lost();
      this.#connectLater();
    });
  }

  #connectLater() {
    const [first, last] = this.#isRefused ? [FIRST_PAUSE_REFUSED, LAST_PAUSE_REFUSED] : [FIRST_PAUSE, LAST_PAUSE];
    const pause = Math.min(Math.max(this.#pause, first), last);
    setTimeout(() => this.connect(), pause);
    this.#pause = pause * 2;
  }

  /**
   * Request the mask under the mouse. on.masks() receives the response with the ``time`` of its request.
   *
   * While a request is under way, the newest position waits here, and is sent when the response arrives, so that it is
   * as recent as possible. Over a slow network, two requests are under way, so that the service is never idle.
   */
  hover(request, time) {
    this.#next = { request, time };
    this.#sendHover();
  }

  /** The mouse has left the image: cancel pending previews, here and at Triton. */
  stopHover() {
    this.#next = null;
    if (!this.#hovers.size) return;
    this.#hovers.clear();
    if (this.isOpen) this.#send({ type: "cancel", lane: "hover" });
  }

  /** Request masks. The promise resolves to null when a newer call replaces this one. */
  click(request) {
    this.#give(null);
    if (!this.isOpen) return Promise.reject(new Problem({ status: 0, detail: "there is no connection to the service" }));
    const seq = ++this.#seq;
    this.#newestClick = seq;
    this.#send({ type: "segment", lane: "click", seq, ...request });
    return new Promise((resolve, reject) => (this.#waiting = { resolve, reject }));
  }

  #send(message) {
    this.#socket.send(JSON.stringify(message));
  }

  #give(result, error) {
    const waiting = this.#waiting;
    this.#waiting = null;
    if (error) waiting?.reject(error);
    else waiting?.resolve(result);
  }

  #receive(data) {
    const message = typeof data === "string" ? JSON.parse(data) : unpack(data);
    if (message.type === "status") {
      this.#pause = FIRST_PAUSE;
      this.#on.status(message);
    } else if (message.lane === "click" && message.seq === this.#newestClick) {
      if (message.type === "error") this.#give(null, new Problem(message));
      else this.#give(message);
    } else if (message.lane === "hover" && this.#hovers.has(message.seq)) {
      const { time, sent } = this.#hovers.get(message.seq);
      // The service only sends the newest masks of a lane, so older requests remain unanswered.
      for (const seq of this.#hovers.keys()) if (seq <= message.seq) this.#hovers.delete(seq);
      if (message.ms) this.#lag = performance.now() - sent - message.ms;
      this.#sendHover();
      if (message.type === "error") this.#on.hoverError(message);
      else this.#on.masks(message, time);
    }
  }

  #sendHover() {
    if (!this.#next || !this.isOpen || this.#hovers.size >= (this.#lag > SLOW_LINE ? 2 : 1)) return;
    const { request, time } = this.#next;
    this.#next = null;
    const seq = ++this.#seq;
    this.#hovers.set(seq, { time, sent: performance.now() });
    this.#send({ type: "segment", lane: "hover", seq, ...request });
  }
}

/** The WebSocket's subprotocols. One contains the token, because a browser sends no custom header. */
function protocols(token) {
  if (!token) return ["triton-sam"];
  const text = String.fromCharCode(...new TextEncoder().encode(token));
  const name = btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  return ["triton-sam", `triton-sam.token.${name}`];
}

/** The HTTP status of a REST call; 0 when the service cannot be reached. */
async function statusOfRest() {
  try {
    await models();
  } catch (problem) {
    return problem.status;
  }
  return 200;
}

/** Read a binary message: uint32 length of the JSON header, the header, int8 logits [candidates, side, side]. */
function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const area = header.side * header.side;
  header.logits = header.scores.map((_, index) => new Int8Array(buffer, 4 + length + index * area, area));
  return header;
}
