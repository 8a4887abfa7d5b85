"""The page's JavaScript modules in a browser without the page. Tests call them with many inputs in one call."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from support.running_browser import Chromium

from triton_sam.service.page import STATIC

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

        Args:
            modules: names of modules, separated by spaces.
            source: a function of an input and of everything that the modules export.
            inputs: JSON values.
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
        page.goto(ROOT)
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
