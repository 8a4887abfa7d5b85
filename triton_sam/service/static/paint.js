// Draws masks, boxes and points on the image. Lines and points keep their screen size at any zoom.

const GOOD = "#28b450";
const BAD = "#e13237";

/** Call ``draw`` for each line [width in screen pixels, colour]: two lines are visible on bright and dark images. */
export function drawLines(context, unit, lines, draw) {
  for (const [width, color] of lines) {
    context.lineWidth = width * unit;
    context.strokeStyle = color;
    draw();
  }
}

/** Draw a disc with a white border. */
export function drawDisc(context, x, y, radius, color, border) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fillStyle = color;
  context.fill();
  drawLines(context, border, [[1, "#fff"]], () => context.stroke());
}

/** Draw all masks and prompts, found objects, the preview, the keyboard cursor, and the dragged box. */
export function paintScene(context, { scene, masks, everything, preview, settings, stage, cursor, handTools }) {
  const { unit } = stage;
  everything.paint(context, unit);
  for (const object of scene.objects) {
    const path = object.visible ? masks.pathOf(object) : null;
    if (path) paintMask(context, path, object.color, settings.opacity, unit);
  }
  const active = scene.active;
  const color = active?.color ?? "#1e90ff";
  if (preview.path) paintMask(context, preview.path, color, settings.opacity * 0.55, unit, true);
  paintPrompts(context, scene.objects, active, unit);
  if (stage.moving) paintPoint(context, stage.moving, unit);
  if (stage.box) paintBox(context, stage.box, color, unit, true);
  if (cursor.corner) paintBox(context, [cursor.corner.x, cursor.corner.y, cursor.place.x, cursor.place.y], color, unit, true);
  if (cursor.place) paintCursor(context, cursor.place, unit);
  handTools.paint(context, unit);
}

/** Draw a cross at the keyboard cursor, visible on any background. */
export function paintCursor(context, { x, y }, unit) {
  context.save();
  context.lineCap = "round";
  context.beginPath();
  for (const [right, down] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
    context.moveTo(x + 5 * right * unit, y + 5 * down * unit);
    context.lineTo(x + 17 * right * unit, y + 17 * down * unit);
  }
  drawLines(context, unit, [[6, "#000"], [2.5, "#fff"]], () => context.stroke());
  context.restore();
}

/** Fill and outline one mask. ``unit`` is the number of image pixels per screen pixel. */
export function paintMask(context, path, color, alpha, unit, isPreview = false) {
  context.save();
  context.globalAlpha = alpha;
  context.fillStyle = color;
  context.fill(path, "evenodd");
  context.globalAlpha = 1;
  context.lineJoin = "round";
  context.lineWidth = (isPreview ? 2.5 : 3) * unit;
  context.strokeStyle = "rgb(255 255 255 / 70%)";
  context.stroke(path);
  context.lineWidth = (isPreview ? 1.25 : 1.75) * unit;
  context.strokeStyle = color;
  if (isPreview) context.setLineDash([5 * unit, 3 * unit]);
  context.stroke(path);
  context.restore();
}

export function paintBox(context, box, color, unit, isPreview = false) {
  const [x1, y1, x2, y2] = box;
  context.save();
  if (isPreview) context.setLineDash([6 * unit, 4 * unit]);
  drawLines(context, unit, [[4, "rgb(255 255 255 / 80%)"], [2, color]], () => context.strokeRect(x1, y1, x2 - x1, y2 - y1));
  context.restore();
}

/** Draw all visible objects' boxes and points; the active object's stand out. */
export function paintPrompts(context, objects, active, unit) {
  for (const object of objects) {
    if (!object.visible) continue;
    if (object.box) paintBox(context, object.box, object.color, unit);
    for (const point of object.points) paintPoint(context, point, unit, object !== active);
  }
}

/** Draw a disc: green with a plus is foreground, red with a minus is background. */
function paintPoint(context, point, unit, isFaint = false) {
  const radius = 7 * unit;
  context.save();
  context.globalAlpha = isFaint ? 0.6 : 1;
  drawDisc(context, point.x, point.y, radius, point.label ? GOOD : BAD, 1.5 * unit);
  context.lineWidth = 2 * unit;
  context.lineCap = "round";
  context.beginPath();
  context.moveTo(point.x - radius * 0.5, point.y);
  context.lineTo(point.x + radius * 0.5, point.y);
  if (point.label) {
    context.moveTo(point.x, point.y - radius * 0.5);
    context.lineTo(point.x, point.y + radius * 0.5);
  }
  context.stroke();
  context.restore();
}
