"""The page keeps the user's work: over a reload, between images, and in one file."""

import zipfile

import pytest

pytest.importorskip("playwright.sync_api")
pytest.importorskip("fastapi")

NAMES = "tritonSam.scene.objects.map((object) => object.name)"
PROMPTS = "tritonSam.scene.objects.map(({points, box}) => ({points, box}))"
LOGITS = "tritonSam.scene.objects.map((o) => [...tritonSam.resultOf(o).logits[tritonSam.choiceOf(o)]].join())"
WRITTEN = 300
"""ms; the page writes changes after 100 ms."""


def masks_of(page):
    page.settled()
    page.wait("tritonSam.scene.objects.length > 0")
    return page.page.evaluate(LOGITS)


@pytest.fixture
def two_objects(shapes):
    shapes.click(200, 180)
    shapes.settled()
    shapes.page.keyboard.press("n")
    shapes.click(620, 420)
    shapes.settled()
    return shapes


def test_a_reload_loses_nothing(two_objects):
    page = two_objects
    before = page.page.evaluate(PROMPTS), masks_of(page)
    page.page.wait_for_timeout(WRITTEN)
    page.page.reload()
    page.opened("shapes.jpg")
    assert (page.page.evaluate(PROMPTS), masks_of(page)) == before
    page.page.click("#undo")  # the history is kept, too
    assert page.facts()[1] == "click on it in the image"


def test_a_reload_keeps_candidates_and_clean_up(page):
    choices = "[document.querySelector('[data-multi=\"1\"]').ariaChecked, document.getElementById('cleanup').checked]"
    assert page.page.evaluate(choices) == ["false", True]
    page.page.click('[data-multi="1"]')
    page.page.uncheck("#cleanup")
    page.page.reload()
    page.ready()
    assert page.page.evaluate(choices) == ["true", False]


def test_every_image_keeps_its_objects(two_objects, images):
    page = two_objects
    before = page.page.evaluate(PROMPTS), masks_of(page)
    page.open(images / "coffee.jpg")
    assert page.facts() == []
    page.click(300, 200)
    page.settled()
    page.page.keyboard.press("PageUp")
    page.opened("shapes.jpg")
    assert (page.page.evaluate(PROMPTS), masks_of(page)) == before
    page.page.click("#image-next")
    page.opened("coffee.jpg")
    assert len(page.facts()) == 1
    page.open(images / "shapes.jpg")  # the same file again is the same image
    assert (page.page.evaluate(PROMPTS), page.page.locator("#thumbs button").count()) == (before[0], 2)


def test_several_files_at_once(page, images):
    page.page.set_input_files("#file", [images / "shapes.jpg", images / "coffee.jpg"])
    page.opened("shapes.jpg")
    assert page.page.inner_text("#image-number") == "1 / 2"
    page.page.locator("#thumbs button").nth(1).click()
    page.opened("coffee.jpg")
    assert page.page.inner_text("#image-number") == "2 / 2"


def test_a_folder_of_which_one_file_is_no_image(page, images, tmp_path):
    for name in ("shapes.jpg", "coffee.jpg"):
        (tmp_path / name).write_bytes((images / name).read_bytes())
    (tmp_path / "notes.txt").write_text("nothing")
    page.page.set_input_files("#folder", tmp_path)
    page.wait("tritonSam.image && document.getElementById('busy').hidden")
    assert page.page.locator("#thumbs button").count() == 2


def test_a_project_is_one_file(two_objects, browser, service, images, tmp_path):
    from support.running_browser import open_page

    page = two_objects
    page.open(images / "coffee.jpg")
    page.page.keyboard.press("PageUp")
    page.opened("shapes.jpg")
    before = page.page.evaluate(PROMPTS), masks_of(page)
    name, content = page.download("#save-project")
    path = tmp_path / name
    path.write_bytes(content)
    with zipfile.ZipFile(path) as project:
        assert project.testzip() is None
        assert project.read("images/1/shapes.jpg") == (images / "shapes.jpg").read_bytes()
    with open_page(browser, service.url) as other:
        other.page.set_input_files("#file", path)
        other.opened("shapes.jpg")
        assert (other.page.evaluate(PROMPTS), masks_of(other)) == before
        assert other.page.locator("#thumbs button").count() == 2
        path.write_bytes(content[: len(content) // 2])
        other.page.set_input_files("#file", path)
        other.page.wait_for_selector("#banner:not([hidden])")
        assert "damaged" in other.page.inner_text("#banner")


@pytest.mark.parametrize(
    "project",
    [
        "{",
        "null",
        '{"format": "triton-sam project 1"}',
        '{"format": "triton-sam project 1", "images": [{"file": "images/1/gone.jpg"}]}',
    ],
)
def test_a_project_that_is_damaged_is_refused_in_plain_words(page, tmp_path, project):
    path = tmp_path / "project.triton-sam.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("project.json", project)
    page.page.set_input_files("#file", path)
    page.page.wait_for_selector("#banner:not([hidden])")
    assert "the file is no project of this page, or it is damaged" in page.page.inner_text("#banner")


@pytest.mark.slow
def test_the_page_asks_before_it_is_closed_only_when_the_browser_keeps_nothing(browser, service, images):
    from support.running_browser import open_page

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
