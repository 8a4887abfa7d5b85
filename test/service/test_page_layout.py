"""The page's layout while it finds everything, finds words and tracks a video: with a mouse and on a phone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api")
pytest.importorskip("fastapi")
pytest.importorskip("av")

from support import clip
from support.running_browser import (
    ASIDE,
    CANVAS_FITS,
    LAYOUT_FAULTS,
    NAMELESS,
    NARROW,
    SMALL_TARGETS,
    WIDE,
    Page,
    open_clip,
    open_page,
    segmented,
)

pytestmark = pytest.mark.slow

SMALL, LOW = {"width": 900, "height": 600}, {"width": 360, "height": 390}
"""A small window, and a phone whose keyboard is open."""


FAKES = {"words": True}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clip.write_clip(tmp_path_factory.mktemp("clip") / "clip.mp4")


def find(page: Page, button: str) -> None:
    page.page.click(button)
    page.wait("!tritonSam.everything.isSearching && tritonSam.everything.items.length > 0")
    page.page.keyboard.press("ArrowRight")
    page.wait("tritonSam.everything.selected.length === 1")


def everything(page: Page, path: Path, images: Path) -> None:
    page.open(images / "shapes.jpg")
    find(page, "#find")


def words(page: Page, path: Path, images: Path) -> None:
    page.page.select_option("#model", "sam3")
    page.open(images / "shapes.jpg")
    page.page.fill("#words-text", "dog")
    find(page, "#words-find")


def video(page: Page, path: Path, images: Path) -> None:
    open_clip(page, path)
    for x in (60, 200):
        page.click(x, 120)
        segmented(page)
        page.page.keyboard.press("n")
    page.page.click("#track-forward")
    page.wait("tritonSam.video.ended === 1")


@pytest.mark.parametrize("views", [[WIDE, SMALL], [NARROW, ASIDE, LOW]], ids=["mouse", "phone"])
@pytest.mark.parametrize("mode", [everything, words, video])
def test_nothing_overlaps_everything_has_a_name_and_fingers_hit(
    browser: Any,
    fakes: Any,
    images: Path,
    path: Path,
    mode: Callable[[Page, Path, Path], None],
    views: list[dict[str, int]],
) -> None:
    is_phone = NARROW in views
    options = {"color_scheme": "light" if is_phone else "dark", "has_touch": is_phone, "is_mobile": is_phone}
    with open_page(browser, fakes.service.url, viewport=views[0], **options) as page:
        page.uncheck("#hover")  # which asks a Triton
        mode(page, path, images)
        for view in views:
            page.page.set_viewport_size(view)
            page.wait(CANVAS_FITS)
            assert page.page.evaluate(LAYOUT_FAULTS) == []
            assert page.page.evaluate(NAMELESS) == []
            assert page.page.evaluate("document.documentElement.scrollWidth") == view["width"]
            assert not is_phone or page.page.evaluate(SMALL_TARGETS) == []
