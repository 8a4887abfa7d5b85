// Mouse, pen and fingers over a large image: clicks, boxes, moves, and zooms by wheel or by two fingers.

const SLACK = 5; // pixels that a click may move

/**
 * @param {HTMLCanvasElement} canvas
 * @param {object} to - view(), isBox(), moved(isDone), boxed(from, to, isDone), clicked(place, isBackground)
 */
export function watchHands(canvas, to) {
  const down = new Map(); // by pointer: where it went down, and where it is
  let began = null;

  const placeOf = (event) => {
    const frame = canvas.getBoundingClientRect();
    return [event.clientX - frame.x, event.clientY - frame.y];
  };
  const inImage = (place) => to.view().inside(to.view().toImage(...place));

  canvas.addEventListener("pointerdown", (event) => {
    if (!to.view() || event.button > 2) return;
    canvas.setPointerCapture(event.pointerId);
    canvas.focus({ preventScroll: true });
    const place = placeOf(event);
    down.set(event.pointerId, place);
    const isBackground = event.button === 2 || event.altKey || event.shiftKey;
    const isBox = to.isBox() && !isBackground && down.size === 1 && event.button === 0;
    began = { place, isBackground, isBox, hasMoved: down.size > 1, onImage: to.view().isOn(...place) };
  });

  canvas.addEventListener("pointermove", (event) => {
    const before = down.get(event.pointerId);
    if (!before || !to.view()) return;
    const place = placeOf(event);
    if (!began.hasMoved && Math.hypot(place[0] - began.place[0], place[1] - began.place[1]) <= SLACK) return;
    const isFirst = !began.hasMoved;
    began.hasMoved = true;
    if (down.size === 2) pinch(event.pointerId, before, place);
    else if (began.isBox) to.boxed(inImage(began.place), inImage(place), false);
    else {
      const from = isFirst ? began.place : before;
      to.view().move(place[0] - from[0], place[1] - from[1]);
      to.moved(false);
    }
    down.set(event.pointerId, place);
  });

  function pinch(id, before, place) {
    const [other] = [...down].filter(([key]) => key !== id).map(([, each]) => each);
    const far = (each) => Math.max(1, Math.hypot(each[0] - other[0], each[1] - other[1]));
    const middle = (each) => [(each[0] + other[0]) / 2, (each[1] + other[1]) / 2];
    const [from, now] = [middle(before), middle(place)];
    to.view().move(now[0] - from[0], now[1] - from[1]);
    to.view().zoom(far(place) / far(before), ...now);
    began.isBox = false;
    to.moved(false);
  }

  canvas.addEventListener("pointerup", (event) => {
    if (!down.delete(event.pointerId) || down.size || !to.view()) return;
    const { place, isBackground, isBox, hasMoved, onImage } = began;
    if (hasMoved && isBox) to.boxed(inImage(place), inImage(placeOf(event)), true);
    else if (hasMoved) to.moved(true);
    else if (onImage) to.clicked(to.view().toImage(...place), isBackground);
  });

  canvas.addEventListener("pointercancel", (event) => (down.delete(event.pointerId), to.view() && to.moved(true)));
  canvas.addEventListener("contextmenu", (event) => event.preventDefault());
  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      if (!to.view()) return;
      const lines = event.deltaMode === 1 ? 16 : 1;
      to.view().zoom(Math.exp(-event.deltaY * lines * 0.002), ...placeOf(event));
      to.moved(true);
    },
    { passive: false },
  );
}
