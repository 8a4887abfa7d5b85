// Objects of a video with the points and boxes of each frame. An object's ``points`` and ``box`` are those of the shown
// frame, so that code for images also works for videos.

import { Scene } from "./scene.js";

export class VideoScene extends Scene {
  /** The shown frame. */
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

  /** Return the frames with a prompt of any object, sorted. */
  get promptedFrames() {
    return [...new Set(this.objects.flatMap(framesOf))].sort((a, b) => a - b);
  }
}

/** Return the frames with a prompt of an object, sorted. */
export function framesOf(object) {
  return Object.keys(object.prompts).map(Number).sort((a, b) => a - b);
}
