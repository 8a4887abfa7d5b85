// The browser side of triton_sam.integrations.notebook.Clicker. It sends {kind, x, y, label} with x and y in pixels of
// the original image, and shows the JPEG that Python draws.

function button(text, act) {
  const element = document.createElement("button");
  element.textContent = text;
  element.addEventListener("click", act);
  return element;
}

function render({ model, el }) {
  const image = document.createElement("img");
  image.alt = "the image to click in";
  image.draggable = false;
  Object.assign(image.style, { maxWidth: "100%", cursor: "crosshair", display: "block", touchAction: "manipulation" });
  const status = document.createElement("div");
  status.setAttribute("role", "status");
  let address = "";
  let asked = 0;

  function show() {
    if (!model.get("shown").byteLength) return; // not drawn by Python yet
    URL.revokeObjectURL(address);
    address = URL.createObjectURL(new Blob([model.get("shown")], { type: "image/jpeg" }));
    image.src = address;
  }

  function place(event) {
    const box = image.getBoundingClientRect();
    const [width, height] = model.get("size");
    return { x: ((event.clientX - box.left) / box.width) * width, y: ((event.clientY - box.top) / box.height) * height };
  }

  function forgetMove() {
    cancelAnimationFrame(asked);
    asked = 0;
  }

  function click(event, label) {
    event.preventDefault();
    forgetMove();
    model.send({ kind: "click", label, ...place(event) });
  }

  image.addEventListener("click", (event) => click(event, event.shiftKey ? 0 : 1));
  image.addEventListener("contextmenu", (event) => click(event, 0));
  image.addEventListener("pointermove", (event) => {
    if (event.pointerType === "touch") return;
    const here = place(event);
    forgetMove();
    asked = requestAnimationFrame(() => model.send({ kind: "hover", ...here }));
  });
  image.addEventListener("pointerleave", () => {
    forgetMove();
    model.send({ kind: "leave" });
  });

  const tell = () => (status.textContent = model.get("status"));
  model.on("change:shown", show);
  model.on("change:status", tell);
  const buttons = document.createElement("div");
  Object.assign(buttons.style, { display: "flex", gap: "4px", margin: "4px 0" });
  for (const [text, kind] of [["Undo", "undo"], ["New object", "next_object"], ["Clear", "clear"]]) {
    buttons.append(button(text, () => model.send({ kind })));
  }
  el.replaceChildren(image, buttons, status);
  show();
  tell();
  return () => {
    forgetMove();
    model.off("change:shown", show);
    model.off("change:status", tell);
    URL.revokeObjectURL(address);
  };
}

export default { render };
