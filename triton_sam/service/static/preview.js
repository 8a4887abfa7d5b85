// The preview: the mask under the mouse. live.js lists all steps of a preview.

import { $ } from "./dom.js";
import { outline } from "./outline.js";
import { promptOf } from "./scene.js";

export class Preview {
  /** Path2D of the mask under the mouse; null without one. */
  path = null;
  #page;

  constructor(page) {
    this.#page = page;
  }

  hover(place) {
    const { everything, settings, image, pictures, isUp, live, masks, scene } = this.#page;
    if (everything.takesClicks) return everything.hover(place);
    if (!settings.hover || !image || pictures.isOpening || !isUp) return;
    live.hover(masks.requestFor(scene.active ?? scene, promptOf(scene.active, place)), place.time);
  }

  show(message, time) {
    const { image, stage, stats } = this.#page;
    if (message.image !== image?.id) return;
    const choice = message.scores.indexOf(Math.max(...message.scores));
    this.path = outline(message.logits[choice], message.side, message.used, image);
    stage.draw(); // at once, not in the next frame: the user waits for this preview
    const painted = performance.now();
    stats.hover.push({ moved: time, painted, ms: message.ms });
    $("hover-info").textContent = `preview: ${Math.round(painted - time)} ms`;
  }

  end() {
    this.#page.live.stopHover();
    this.#page.everything.hover(null);
    if (!this.path) return;
    this.path = null;
    this.#page.stage.redraw();
  }
}
