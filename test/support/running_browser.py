"""The page in headless Chromium, its modules without the page, and helper functions for tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright import sync_api as playwright
from support.conditions import wait_until

from triton_sam import Cleanup
from triton_sam.masks.rle import rle_to_mask
from triton_sam.service.page import STATIC

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDE = {"width": 1280, "height": 800}
NARROW, ASIDE = {"width": 390, "height": 844}, {"width": 844, "height": 390}
"""A phone, upright and on its side."""
SWITCHED_ON = Cleanup(max_hole_area=32, max_sprinkle_area=32, keep_clicked=True)
"""The default clean-up of the page, see cleanupOf() in static/masks.js."""
FINGER = 44
"""Minimum size of a touch target in pixels."""
SLOW = 20_000
"""Bytes per second of a slow connection."""
SMALL_TARGETS = f"""[...document.querySelectorAll("button, select, input:not([type=file]), a, summary")]
    .filter((control) => control.checkVisibility()).map((control) => {{
  const box = (control.closest("label") ?? control).getBoundingClientRect();
  return [control.id || control.ariaLabel || control.textContent, Math.round(box.width), Math.round(box.height)];
}}).filter(([, width, height]) => width && (width < {FINGER} || height < {FINGER}))"""
"""Controls that are too small for touch, with their widths and heights."""
LAYOUT_FAULTS = (Path(__file__).parents[1] / "data" / "layout_faults.js").read_text(encoding="utf-8")
GRAVE = """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations
  .filter(({ impact }) => impact === "serious" || impact === "critical")
  .map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.target).join(" ")}`)"""
"""Serious findings of axe-core."""
NAMELESS = """[...document.querySelectorAll("button, select, input")]
    .filter((e) => e.getBoundingClientRect().width && e.checkVisibility() && !e.closest("dialog"))
    .filter((e) => !(e.getAttribute("aria-label") || e.labels?.length || e.innerText?.trim()))
    .map((e) => e.outerHTML)"""


class Page:
    """A page with an image."""

    def __init__(self, page):
        self.page = page
        self.faults: list[str] = []
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", lambda message: self.faults.append(message.text) if message.type == "error" else None)

    def wait(self, expression, seconds=60):
        wait_until(lambda: self.page.evaluate(expression), seconds)

    def until(self, condition):
        """Wait until ``condition()`` is true. Playwright handles events and requests during its own calls only."""
        wait_until(lambda: self.page.wait_for_timeout(20) or condition())

    def ready(self):
        try:
            self.page.wait_for_selector('#state[data-state="up"]')
        except playwright.TimeoutError:
            pytest.fail(f"the page says {self.page.inner_text('body')[:500]!r}; its errors: {self.faults}")

    def open(self, path):
        self.page.set_input_files("#file", path)
        self.opened(path.name)

    def opened(self, name):
        self.wait(f"tritonSam.image?.name === {name!r} && document.getElementById('busy').hidden")

    def unfold(self):
        """Show the folded parts of the panel."""
        self.page.evaluate("for (const each of document.querySelectorAll('.panel details')) each.open = true")

    def uncheck(self, selector):
        """Switch a setting off, even if it is folded."""
        self.page.eval_on_selector(selector, "(each) => each.checked && each.click()")

    def at(self, x, y):
        return self.page.evaluate(f"tritonSam.stage.screenOf({x}, {y})")

    def click(self, x, y, **options):
        self.page.mouse.click(*self.at(x, y), **options)

    def settled(self):
        """Wait until all objects have their masks."""
        self.wait("tritonSam.scene.objects.every((o) => !(o.points.length || o.box) || tritonSam.masks.hasMask(o))")

    def facts(self):
        return self.page.locator(".object .facts").all_inner_texts()

    def pixel(self, x, y):
        """Return the colour of the canvas at a pixel of the image."""
        return self.page.evaluate(
            """([x, y]) => { const c = document.getElementById("canvas"), f = c.getBoundingClientRect();
            const [px, py] = tritonSam.stage.screenOf(x, y), r = c.width / f.width;
            return [...c.getContext("2d").getImageData((px - f.x) * r, (py - f.y) * r, 1, 1).data]; }""",
            [x, y],
        )

    @contextlib.contextmanager
    def held(self, pattern):
        """Hold requests whose URLs match a pattern. At the end, the service receives those that were not aborted."""
        held = []

        def keep(route):
            held.append(route)

        urls = re.compile(pattern)
        self.page.route(urls, keep)
        try:
            yield held
        finally:
            self.page.unroute(urls, keep)
            for route in held:
                with contextlib.suppress(playwright.Error):  # the page has aborted this request
                    route.continue_()

    def refused(self, status):
        """Forget the browser's reports of answers with this status, which the page handles. Other faults stay."""
        report = f"the server responded with a status of {status} "
        self.until(lambda: any(report in fault for fault in self.faults))
        self.page.evaluate("0")  # after it, the reports of all answers that the page has received are here
        self.faults[:] = [fault for fault in self.faults if report not in fault]

    def banner(self):
        """Wait for a message and return it."""
        self.page.wait_for_selector("#banner:not([hidden])")
        return self.page.inner_text("#banner")

    def objects(self):
        return self.page.evaluate("tritonSam.scene.objects.length")

    def download(self, button):
        with self.page.expect_download() as waiting:
            self.page.click(button)
        return waiting.value.suggested_filename, waiting.value.path().read_bytes()


class Chromium:
    """Chromium, shared by many tests in turn."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._loop = asyncio.get_running_loop()  # the driver's, which it marks as running in this thread
        self._browser = self._launch()
        asyncio._set_running_loop(None)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[Any]:
        """Use it in a test. Before and after, tests may run their own event loops in this thread."""
        asyncio._set_running_loop(self._loop)
        try:
            if not self._browser.is_connected():
                self._browser = self._launch()
            yield self._browser
        finally:
            asyncio._set_running_loop(None)

    def _launch(self) -> Any:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        return self._driver.chromium.launch(executable_path=CHROMIUM, args=arguments)


@contextlib.contextmanager
def running_browser() -> Iterator[Chromium]:
    """Run Chromium; skip the test if it is not installed."""
    if CHROMIUM is None:
        pytest.skip("no chromium: apt-get install chromium")
    manager = playwright.sync_playwright()
    chromium = Chromium(manager.__enter__())
    try:
        yield chromium
    finally:
        with chromium.in_use() as browser:
            browser.close()
            manager.__exit__()


@contextlib.contextmanager
def window(browser: Any, url: str, **options: Any) -> Iterator[Page]:
    """Open a URL in a new window until the end of the block. The options are those of `new_context`."""
    context = browser.new_context(**{"viewport": WIDE, **options})
    try:
        page = Page(context.new_page())
        page.page.goto(url)
        yield page
    finally:
        context.close()  # the page of a failed test must not continue during the next tests


@contextlib.contextmanager
def open_page(browser: Any, url: str, **options: Any) -> Iterator[Page]:
    """Open the page in a new window; errors on the page fail the test."""
    with window(browser, url, **options) as page:
        page.ready()
        yield page
        assert page.faults == [], page.faults


@contextlib.contextmanager
def slow_line(page: Page) -> Iterator[None]:
    """Limit the browser to SLOW bytes per second."""
    session = page.page.context.new_cdp_session(page.page)
    session.send("Network.enable")
    conditions = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": SLOW}
    session.send("Network.emulateNetworkConditions", conditions)
    yield
    session.send("Network.emulateNetworkConditions", {**conditions, "uploadThroughput": -1})
    session.detach()


STORED = """(async () => {
  const answer = (request) => new Promise((done) => { request.onsuccess = () => done(request.result); });
  const database = await answer(indexedDB.open("triton-sam"));
  const entry = await answer(database.transaction("entries").objectStore("entries").get(tritonSam.image.key));
  database.close();
  return JSON.stringify(entry.state).startsWith(JSON.stringify(tritonSam.scene.state).slice(0, -1));
})()"""
"""Whether the browser's database has the newest objects of the open image."""
KINDS = "tritonSam.scene.objects.map((object) => tritonSam.masks.resultOf(object)?.found?.kind ?? null)"


def masks_of(page: Any) -> dict[str, np.ndarray]:
    """Return the masks of the objects by name, from the page's COCO download."""
    coco = json.loads(page.download("#save-coco")[1])
    return {each["name"]: rle_to_mask(each["segmentation"]).astype(bool) for each in coco["annotations"]}


def drag(page: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    page.page.mouse.move(*page.at(*start))
    page.page.mouse.down()
    page.page.mouse.move(*page.at(*end), steps=5)
    page.page.mouse.up()


def edited(page: Any, index: int) -> None:
    page.wait(f"{KINDS}[{index}] === 'edited'")


CANVAS_FITS = """(() => { const canvas = document.getElementById("canvas");
    return Math.abs(canvas.getBoundingClientRect().height * devicePixelRatio - canvas.height) < 1; })()"""


def open_clip(page, path):
    page.page.set_input_files("#file", path)
    page.wait("tritonSam.video.isOpen && document.getElementById('busy').hidden")
    page.wait(CANVAS_FITS)  # the timeline is laid out


def shown(page):
    return page.page.evaluate("tritonSam.scene.frame")


def go_to(page, frame):
    page.page.evaluate(f"tritonSam.video.goTo({frame})")
    page.wait(f"tritonSam.scene.frame === {frame}")


def segmented(page):
    """Wait until every prompt on the page has its mask from the service."""
    page.wait("""tritonSam.scene.objects.every((o) => Object.keys(o.prompts)
        .every((frame) => tritonSam.video.masks.maskOf(o, Number(frame))))""")


def track(page, direction="forward"):
    before = page.page.evaluate("tritonSam.video.ended")
    page.page.click(f"#track-{direction}")
    page.wait(f"tritonSam.video.ended > {before}")


def covered(page, object_index=0):
    """Return the frames with a mask as ranges."""
    return page.page.evaluate(f"tritonSam.video.masks.rangesOf(tritonSam.scene.objects[{object_index}])")


# --- Modules of the page without the page ----------------------------------------------------------------------------


ROOT = "http://localhost/"
"""An origin that browsers trust like HTTPS. The test answers its requests without a server."""
RUN = """async ([names, source, text]) => {
  const modules = await Promise.all(names.map((name) => import(`/static/${name}.js`)));
  const act = (0, eval)(source);
  const results = [];
  for (const input of JSON.parse(text)) results.push(await act(input, Object.assign({}, ...modules)));
  return JSON.stringify(results);
}"""
RECORD_PATHS = """() => {
  const plain = globalThis.Path2D;
  globalThis.Path2D = class extends plain {
    rings = [];
    moveTo(x, y) { this.rings.push([[x, y]]); super.moveTo(x, y); }
    lineTo(x, y) { this.rings.at(-1).push([x, y]); super.lineTo(x, y); }
  };
}"""
"""Paths store their corners in `rings`, because a Path2D does not return them."""


class Modules:
    """A tab that imports the modules of the folder `static`."""

    def __init__(self, chromium: Chromium, page: Any) -> None:
        self._chromium = chromium
        self._page = page

    def run(self, modules: str, source: str, inputs: Sequence[Any]) -> list[Any]:
        """Return what a JavaScript function returns for each input, in one call of the browser.

        The source is a function of an input and of everything that the modules export.
        """
        with self._chromium.in_use():
            return json.loads(self._page.evaluate(RUN, [modules.split(), source, json.dumps(inputs)]))


@contextlib.contextmanager
def open_modules(chromium: Chromium) -> Iterator[Modules]:
    """Open a tab with only the modules."""
    with chromium.in_use() as browser:
        context = browser.new_context()
        page = context.new_page()
        page.route(f"{ROOT}**", _answer)
        page.goto(ROOT, timeout=120_000)
        page.evaluate(RECORD_PATHS)
    try:
        yield Modules(chromium, page)
    finally:
        with chromium.in_use():
            context.close()


def _answer(route: Any) -> None:
    path = route.request.url.removeprefix(f"{ROOT}static/")
    if (STATIC / path).is_file():
        route.fulfill(path=STATIC / path)
    else:
        route.fulfill(body="<!doctype html>", content_type="text/html")
