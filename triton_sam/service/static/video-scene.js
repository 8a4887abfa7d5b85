// Objects of a video with the points and boxes of each frame. ``points`` and ``box`` of an object are those of the frame
// that is shown, so that everything that knows objects of an image knows these, too.

import { Scene } from "./scene.js";

export class VideoScene extends Scene {
  /** The frame that is shown. */
  frame = 0;

  reset() {
    super.reset();
    this.frame = 0;
  }

  /** Show the points and boxes of a frame. */
  view(frame) {
    this.frame = frame;
    for (const object of this.objects) {
      const prompt = object.prompts[frame];
      object.points = (prompt?.points ?? []).map((point) => ({ ...point }));
      object.box = prompt?.box ?? null;
    }
  }

  begin() {
    const object = super.begin();
    object.prompts = {};
    return object;
  }

  change(act) {
    super.change(() => {
      act();
      for (const object of this.objects) {
        if (object.points.length || object.box) object.prompts[this.frame] = { points: object.points, box: object.box };
        else delete object.prompts[this.frame];
      }
      this.view(this.frame);
    });
  }

  undo() {
    super.undo();
    this.view(this.frame);
  }

  redo() {
    super.redo();
    this.view(this.frame);
  }

  /** Return the frames that have a prompt of any object, in order. */
  get promptedFrames() {
    return [...new Set(this.objects.flatMap(framesOf))].sort((a, b) => a - b);
  }
}

/** Return the frames in which an object has a prompt, in order. */
export function framesOf(object) {
  return Object.keys(object.prompts).map(Number).sort((a, b) => a - b);
}
