"""The page keeps the user's work: over a reload, between images, and in one file."""

import zipfile

import pytest

pytest.importorskip("playwright.sync_api")
pytest.importorskip("fastapi")
from support.running_browser import open_page

PROMPTS = "tritonSam.scene.objects.map(({points, box}) => ({points, box}))"
LOGITS = "tritonSam.scene.objects.map((o) => [...tritonSam.resultOf(o).logits[tritonSam.choiceOf(o)]].join())"
CHOICES = "[document.querySelector('[data-multi=\"1\"]').ariaChecked, document.getElementById('cleanup').checked]"
WRITTEN = 300
"""ms; the page writes changes after 100 ms."""
DAMAGED = (
    "{",
    "null",
    '{"format": "triton-sam project 1"}',
    '{"format": "triton-sam project 1", "images": [{"file": "images/1/gone.jpg"}]}',
)


def work_of(page):
    """Return the prompts of all objects, and their masks."""
    page.settled()
    page.wait("tritonSam.scene.objects.length > 0")
    return page.page.evaluate(PROMPTS), page.page.evaluate(LOGITS)


@pytest.mark.slow
def test_a_reload_and_other_images_lose_nothing(two_objects, images):
    page = two_objects
    before = work_of(page)
    page.page.wait_for_timeout(WRITTEN)
    page.page.reload()
    page.opened("shapes.jpg")
    assert work_of(page) == before
    page.page.click("#undo")  # the history is kept, too
    assert page.facts()[1] == "click on it in the image"
    page.page.click("#redo")
    assert work_of(page) == before

    page.open(images / "coffee.jpg")
    assert page.facts() == []
    page.click(300, 200)
    page.settled()
    page.page.keyboard.press("PageUp")
    page.opened("shapes.jpg")
    assert work_of(page) == before
    page.page.click("#image-next")
    page.opened("coffee.jpg")
    assert len(page.facts()) == 1
    page.open(images / "shapes.jpg")  # the same file again is the same image
    assert page.page.locator("#thumbs button").count() == 2
    assert work_of(page) == before

    assert page.page.evaluate(CHOICES) == ["false", True]
    page.page.keyboard.press("n")
    page.page.click('[data-multi="1"]')
    page.uncheck("#cleanup")
    page.page.wait_for_timeout(WRITTEN)
    page.page.reload()
    page.opened("shapes.jpg")
    assert page.page.evaluate(CHOICES) == ["true", False]


@pytest.mark.slow
def test_a_project_is_one_file(two_objects, browser, service, images, tmp_path):
    page = two_objects
    page.open(images / "coffee.jpg")
    page.page.keyboard.press("PageUp")
    page.opened("shapes.jpg")
    before = work_of(page)
    name, content = page.download("#save-project")
    path = tmp_path / name
    path.write_bytes(content)
    with zipfile.ZipFile(path) as project:
        assert project.testzip() is None
        assert project.read("images/1/shapes.jpg") == (images / "shapes.jpg").read_bytes()
    with open_page(browser, service.url) as other:
        other.page.set_input_files("#file", path)
        other.opened("shapes.jpg")
        assert work_of(other) == before
        assert other.page.locator("#thumbs button").count() == 2
        path.write_bytes(content[: len(content) // 2])
        other.page.set_input_files("#file", path)
        assert "damaged" in other.banner()
        for text in DAMAGED:
            other.page.click("#banner-close")
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("project.json", text)
            other.page.set_input_files("#file", path)
            assert "not a project of this page, or damaged" in other.banner()
        assert work_of(other) == before


@pytest.mark.slow
def test_the_page_asks_before_it_is_closed_only_when_the_browser_keeps_nothing(browser, service, images):
    asked = []
    for breaks in (False, True):
        with open_page(browser, service.url) as page:
            page.page.on("dialog", lambda dialog, breaks=breaks: (asked.append(breaks), dialog.accept()))
            if breaks:
                page.page.add_init_script("Object.defineProperty(window, 'indexedDB', {value: undefined})")
                page.page.reload()
                page.ready()
            page.open(images / "shapes.jpg")
            page.click(200, 180)
            page.settled()
            page.page.wait_for_timeout(WRITTEN)
            page.page.reload()
            page.ready()
    assert asked == [True]
