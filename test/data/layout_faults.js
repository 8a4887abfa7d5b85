// What is wrong with the layout of the page, in words: parts that stick out, are cut, lie on each other, or are pale.
(() => {
  const faults = [];
  const shown = (e) => { const b = e.getBoundingClientRect(); return b.width > 0 && b.height > 0 && e.checkVisibility() && !e.closest("dialog"); };
  const name = (e) => e.id || e.getAttribute("aria-label") || e.textContent.trim().slice(0, 20);
  if (document.documentElement.scrollWidth > innerWidth) faults.push("wider than the window");
  const controls = [...document.querySelectorAll("button, select, input, a, output, .pill, .hint, .facts, h2")];
  const visible = controls.filter(shown);
  for (const e of visible) {
    const box = e.getBoundingClientRect();
    if (box.left < -0.5 || box.right > innerWidth + 0.5) faults.push(`${name(e)} sticks out`);
    if (!/INPUT|SELECT/.test(e.tagName) && e.scrollWidth > e.clientWidth + 1 && e.clientWidth) faults.push(`${name(e)} is cut`);
  }
  for (const box of [".top", ".tools", ".zoom", ".transport", ".panel", ".status"]) {
    const parts = [...document.querySelectorAll(`${box} button, ${box} select, ${box} .pill, ${box} a, ${box} > span`)];
    const boxes = parts.filter((e) => shown(e) && !e.matches(".space")).map((e) => [e, e.getBoundingClientRect()]);
    for (const [i, [a, p]] of boxes.entries()) for (const [b, q] of boxes.slice(i + 1)) {
      if (a.contains(b) || b.contains(a)) continue;
      if (p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 1 && q.top < p.bottom - 1)
        faults.push(`${name(a)} lies on ${name(b)}`);
    }
  }
  const luminance = (color) => {
    const [r, g, b] = color.match(/[\d.]+/g).slice(0, 3).map((v) => (v / 255 <= 0.04045 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (!/, 0\)|transparent/.test(c)) return c; } return "rgb(0,0,0)"; };
  for (const e of visible.filter((e) => e.textContent.trim() && !e.disabled && !/INPUT|SELECT/.test(e.tagName))) {
    const [a, b] = [luminance(getComputedStyle(e).color), luminance(ground(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) faults.push(`${name(e)}: contrast ${((a + 0.05) / (b + 0.05)).toFixed(2)}`);
  }
  return faults;
})()
