// Mouse and touch on the image: set, move and remove points and boxes, and select objects.

import { distanceOf, reachOf, rounded } from "./stage.js";

export function connectClicks(page) {
  const { stage, everything } = page;

  /** The stage requests the active object's point under the pointer. */
  stage.handleAt = (place, pointer) => {
    const object = page.scene.active;
    if (!object?.visible || everything.takesClicks || !page.takesClicks) return null;
    const reach = reachOf(pointer) / stage.scale;
    const near = object.points.map((point, index) => ({ index, label: point.label, distance: distanceOf(point, place) }));
    const [nearest] = near.filter(({ distance }) => distance <= reach).sort((a, b) => a.distance - b.distance);
    return nearest ? { id: object.id, index: nearest.index, label: nearest.label } : null;
  };

  const pointsOf = ({ id, index }) => {
    const points = page.scene.objects.find((object) => object.id === id)?.points;
    return page.takesClicks && points?.[index] ? points : null;
  };
  const change = (act, time) => {
    page.preview.end();
    page.change(act, time);
  };

  Object.assign(stage.on, {
    point({ x, y, label, time }) {
      if (!page.takesClicks) return;
      if (everything.takesClicks) return page.preview.end(), everything.pick({ x, y });
      const point = { x: rounded(x), y: rounded(y), label };
      change(() => (everything.prompt(page.scene.current()), page.scene.active.points.push(point)), time);
    },
    box({ box: corners, time }) {
      if (!page.takesClicks || everything.takesClicks) return;
      change(() => {
        // A second box is another object. A found object's box comes from the search, so the user's box replaces it.
        const { box, found } = page.scene.current();
        const object = box && !found ? page.scene.begin() : page.scene.active;
        object.box = corners.map(rounded);
      }, time);
    },
    movePoint({ handle, x, y, time }) {
      const points = pointsOf(handle);
      if (points) change(() => Object.assign(points[handle.index], { x, y }), time);
    },
    removePoint({ handle, time }) {
      const points = pointsOf(handle);
      if (points) change(() => points.splice(handle.index, 1), time);
    },
    pick(place) {
      const object = objectAt(page, place);
      if (object) page.actions.select(object.id);
    },
  });
}

/** Return the visible object with the smallest mask at a point of the image; null without one. */
function objectAt({ scene, masks }, { x, y }) {
  const context = document.createElement("canvas").getContext("2d");
  const isHit = (object) => {
    const path = object.visible && masks.pathOf(object);
    return path && context.isPointInPath(path, x, y, "evenodd");
  };
  const hit = scene.objects.filter(isHit).map((object) => ({ object, area: masks.measureOf(object)?.area ?? 0 }));
  return hit.reduce((best, each) => (best && best.area <= each.area ? best : each), null)?.object ?? null;
}
