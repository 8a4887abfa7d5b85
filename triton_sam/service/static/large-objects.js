// The objects of a large image: prompts, their masks, and undo. All places are in pixels of the image.

export const COLORS = ["#ff5d8f", "#35c9ff", "#ffc233", "#5ee27a", "#c78bff", "#ff8a3d"];

export class Objects {
  constructor() {
    this.all = [];
    this.active = 0;
    this.past = [];
  }

  get isEmpty() {
    return this.all.every((object) => !object.points.length && !object.box);
  }

  get current() {
    return this.all[this.active];
  }

  add(point, label) {
    this.#change((object) => ({ ...object, points: [...object.points, point], labels: [...object.labels, label] }));
  }

  setBox(box) {
    this.#change((object) => ({ ...object, box }));
  }

  /** Let the next prompt begin another object. */
  begin() {
    if (this.all.length > this.active) this.active = this.all.length;
  }

  undo() {
    const before = this.past.pop();
    if (before) [this.all, this.active] = before;
    return Boolean(before);
  }

  /** Put a mask, if the prompt of its object is still the one that it answers. */
  answer(object, mask) {
    const index = this.all.indexOf(object);
    if (index >= 0) Object.assign(object, { mask, isAnswered: true });
    return index >= 0;
  }

  /** Return all masks as a FeatureCollection. */
  toGeoJson() {
    const features = this.all.flatMap(({ mask }, index) => {
      if (!mask) return [];
      const coordinates = mask.polygons.map((rings) => rings.map((ring) => [...ring, ring[0]]));
      const properties = { object: index + 1, score: mask.score, area: mask.area };
      return [{ type: "Feature", geometry: { type: "MultiPolygon", coordinates }, properties }];
    });
    return { type: "FeatureCollection", features };
  }

  #change(change) {
    this.past.push([[...this.all], this.active]);
    const before = this.current ?? { points: [], labels: [], box: null, mask: null };
    this.all[this.active] = { ...change(before), isAnswered: false }; // shows the earlier mask until the new one is there
  }
}

/** Draw the outlines, points and boxes of all objects. */
export function drawObjects(context, objects, view, ratio) {
  context.save();
  context.scale(ratio, ratio);
  for (const [index, object] of objects.all.entries()) {
    const color = COLORS[index % COLORS.length];
    if (object.mask) drawMask(context, object.mask, view, color, index === objects.active);
    if (object.box) drawBox(context, object.box, view, color);
    if (index !== objects.active) continue;
    object.points.forEach((point, number) => drawPoint(context, view.toScreen(...point), object.labels[number]));
  }
  context.restore();
}

function drawMask(context, mask, view, color, isActive) {
  const path = new Path2D();
  for (const rings of mask.polygons) {
    for (const ring of rings) {
      ring.forEach((point, number) => path[number ? "lineTo" : "moveTo"](...view.toScreen(...point)));
      path.closePath();
    }
  }
  context.globalAlpha = 0.22;
  context.fillStyle = color;
  context.fill(path, "evenodd");
  context.globalAlpha = 1;
  context.lineJoin = "round";
  context.strokeStyle = "rgb(0 0 0 / 60%)";
  context.lineWidth = isActive ? 5 : 3.5;
  context.stroke(path);
  context.strokeStyle = color;
  context.lineWidth = isActive ? 2.5 : 1.5;
  context.stroke(path);
}

export function drawBox(context, [x1, y1, x2, y2], view, color) {
  const [left, top] = view.toScreen(x1, y1);
  const [right, bottom] = view.toScreen(x2, y2);
  context.setLineDash([6, 4]);
  context.lineWidth = 1.5;
  context.strokeStyle = color;
  context.strokeRect(left, top, right - left, bottom - top);
  context.setLineDash([]);
}

function drawPoint(context, [x, y], label) {
  context.beginPath();
  context.arc(x, y, 6, 0, 2 * Math.PI);
  context.fillStyle = label ? "#1f9d55" : "#d64545";
  context.fill();
  context.lineWidth = 2;
  context.strokeStyle = "#ffffff";
  context.stroke();
}
