// Changes of what is there, with the mouse or a finger: points are moved and removed, objects are selected by their masks.

import { distanceOf, reachOf } from "./stage.js";

/** page: {stage, scene, masks, everything, actions, change(act, time), takesClicks(), endHover()} */
export function connectEditing(page) {
  const { stage, actions } = page;

  /** The stage asks for the point of the active object that lies under the pointer. */
  stage.handleAt = (place, pointer) => {
    const object = page.scene.active;
    if (!object?.visible || page.everything.takesClicks || !page.takesClicks()) return null;
    const reach = reachOf(pointer) / stage.scale;
    const near = object.points.map((point, index) => ({ index, label: point.label, distance: distanceOf(point, place) }));
    const [nearest] = near.filter(({ distance }) => distance <= reach).sort((a, b) => a.distance - b.distance);
    return nearest ? { id: object.id, index: nearest.index, label: nearest.label } : null;
  };

  const pointsOf = ({ id, index }) => {
    const points = page.scene.objects.find((object) => object.id === id)?.points;
    return points?.[index] && points;
  };

  stage.addEventListener("move-point", ({ detail: { handle, x, y, time } }) => {
    if (!page.takesClicks() || !pointsOf(handle)) return;
    page.endHover();
    page.change(() => Object.assign(pointsOf(handle)[handle.index], { x, y }), time);
  });

  stage.addEventListener("remove-point", ({ detail: { handle, time } }) => {
    if (!page.takesClicks() || !pointsOf(handle)) return;
    page.endHover();
    page.change(() => pointsOf(handle).splice(handle.index, 1), time);
  });

  stage.addEventListener("pick", ({ detail }) => {
    const object = objectAt(page, detail);
    if (object) actions.select(object.id);
  });
}

/** Return the visible object with the smallest mask at a point of the image; null if there is none. */
function objectAt({ scene, masks }, { x, y }) {
  const context = document.createElement("canvas").getContext("2d");
  const isHit = (object) => {
    const path = object.visible && masks.pathOf(object);
    return path && context.isPointInPath(path, x, y, "evenodd");
  };
  const hit = scene.objects.filter(isHit).map((object) => ({ object, area: masks.measureOf(object)?.area ?? 0 }));
  return hit.reduce((best, each) => (best && best.area <= each.area ? best : each), null)?.object ?? null;
}
