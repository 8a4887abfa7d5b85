"""The page keeps the user's work: over a reload, between images, and in one file."""

import io
import json
import zipfile

import pytest
from PIL import Image
from support.running_browser import STORED, drag, edited, open_page

FACTS = "tritonSam.scene.objects.map((object) => [object.name, object.label])"
CHOICES = "[document.querySelector('[data-multi=\"1\"]').ariaChecked, document.getElementById('cleanup').checked]"
SLOW_DECODER = """() => { const plain = createImageBitmap;
  globalThis.createImageBitmap = (file) => new Promise((done) => {
    globalThis.createImageBitmap = plain;
    globalThis.decode = async () => done(await plain(file));
  }); }"""
"""The next image is decoded when the test calls decode()."""
LABELS = "tritonSam.pictures.shelf.drawn.map(({ objects }) => objects.map((object) => object.label))"
"""Of the stored objects, by image."""
DRAWN_PATHS = "tritonSam.pictures.shelf.drawn.map(({ entry }) => entry.path)"
UNCLEAR = "document.getElementById('banner').textContent.includes('not the only ones of their name')"
LONG = "x" * 240 + ".jpg"
"""The name of a file that is too long for data sets."""
DAMAGED = (
    "{",
    "null",
    '{"format": "triton-sam project 1"}',
    '{"format": "triton-sam project 1", "images": [{"file": "images/1/gone.jpg"}]}',
)


@pytest.mark.slow
def test_a_reload_and_other_images_lose_nothing(two_objects, images):
    """The objects themselves are compared in test_page_person.py."""
    page = two_objects
    page.page.locator(".object .label").nth(0).fill("blob")
    page.page.keyboard.press("Enter")
    page.wait(STORED)
    page.page.reload()
    page.opened("shapes.jpg")
    assert page.page.evaluate(FACTS) == [["Object 1", "blob"], ["Object 2", ""]]
    page.page.click("#undo")  # the history is kept, too
    assert page.page.evaluate(FACTS) == [["Object 1", ""], ["Object 2", ""]]
    page.page.click("#undo")
    assert page.facts()[1] == "click on it in the image"
    page.page.click("#redo")
    page.page.click("#redo")

    page.open(images / "coffee.jpg")
    assert page.facts() == []
    assert page.page.eval_on_selector_all("#labels option", "all => all.map((each) => each.value)") == ["blob"]
    page.click(300, 200)
    page.settled()
    page.page.keyboard.press("PageUp")
    page.opened("shapes.jpg")
    assert page.page.evaluate(FACTS) == [["Object 1", "blob"], ["Object 2", ""]]
    page.page.click("#image-next")
    page.opened("coffee.jpg")
    assert len(page.facts()) == 1
    page.open(images / "shapes.jpg")  # the same file again is the same image
    assert page.page.locator("#thumbs button").count() == 2
    page.page.evaluate(SLOW_DECODER)
    page.page.keyboard.press("PageDown")
    page.wait("Boolean(globalThis.decode)")
    page.open(images / "shapes.jpg")
    page.page.evaluate("decode().then(() => new Promise(requestAnimationFrame))")
    assert page.page.evaluate("[tritonSam.pictures.isOpening, tritonSam.image.name]") == [False, "shapes.jpg"]

    assert page.page.evaluate(CHOICES) == ["false", True]
    page.page.keyboard.press("n")
    page.page.click('[data-multi="1"]')
    page.uncheck("#cleanup")
    page.wait(STORED)
    page.page.reload()
    page.opened("shapes.jpg")
    assert page.page.evaluate(CHOICES) == ["true", False]


def test_a_mask_stays_until_the_next_one_is_there_and_goes_when_that_fails(shapes):
    def painted():
        shapes.page.evaluate("new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))")
        return shapes.pixel(200, 150)

    shapes.uncheck("#hover")
    bare = painted()
    shapes.click(200, 180)
    shapes.settled()
    masked = painted()
    assert masked != bare
    shapes.page.evaluate("""() => { const { live } = tritonSam, click = live.click.bind(live);
        live.click = (request) => new Promise((go) => (globalThis.end = (problem) => go(problem))).then(
            (problem) => problem ? Promise.reject(problem) : click(request)); }""")
    shapes.click(230, 200)
    shapes.wait("globalThis.end && !tritonSam.masks.shown.length")
    assert painted() == masked
    shapes.page.evaluate("end(); delete globalThis.end")
    shapes.settled()
    assert painted() == masked
    shapes.click(210, 220)
    shapes.wait("Boolean(globalThis.end)")
    shapes.page.evaluate("end({ status: 422, message: 'no' })")
    shapes.wait("Boolean(tritonSam.masks.resultOf(tritonSam.scene.active)?.error)")
    assert painted() == bare
    shapes.page.keyboard.press("Control+z")  # to the mask of two clicks
    assert painted() == masked
    shapes.page.keyboard.press("Control+z")
    shapes.page.keyboard.press("Control+z")
    assert painted() == bare
    shapes.click(600, 450)  # another object with the number of the first one
    shapes.wait("tritonSam.scene.objects.length === 1 && !tritonSam.masks.resultOf(tritonSam.scene.active)")
    assert painted() == bare


def test_downloads_stay_and_wait_for_the_mask_of_the_newest_click(shapes):
    shapes.uncheck("#hover")
    shapes.click(200, 180)
    shapes.settled()
    shapes.page.evaluate("""() => { const { live } = tritonSam, click = live.click.bind(live);
        live.click = (request) => new Promise((go) => (globalThis.letGo = go)).then(() => click(request)); }""")
    shapes.click(230, 200)
    shapes.wait("globalThis.letGo && !tritonSam.masks.shown.length")
    for button in ("#save-mask", "#save-overlay", "#save-project"):
        assert shapes.page.is_visible(button), button
    shapes.page.evaluate("delete globalThis.letGo")
    with shapes.page.expect_download() as waiting:
        shapes.page.click("#save-coco")
        shapes.wait("Boolean(globalThis.letGo)")
        shapes.page.evaluate("letGo()")
    [annotation] = json.loads(waiting.value.path().read_text())["annotations"]
    assert annotation["area"] > 1000


def test_edits_and_downloads_of_an_image_that_the_service_has_dropped(two_objects, service):
    def drop():
        assert service.http.delete(f"/v1/images/{page.page.evaluate('tritonSam.image.id')}").status_code == 204

    page = two_objects
    page.page.evaluate("tritonSam.actions.label(1, 'red\\tblob')")  # pasted from a spreadsheet
    page.page.keyboard.press("p")
    drop()
    drag(page, (100, 560), (300, 560))
    edited(page, 1)
    # Without previews, for example while the WebSocket is refused, the first object has no mask on the page.
    page.page.evaluate("tritonSam.live.click = () => Promise.reject({ status: 503 }); tritonSam.masks.reset()")
    drop()
    coco = json.loads(page.download("#save-coco")[1])
    assert [each["name"] for each in coco["annotations"]] == ["Object 1", "Object 2"]
    assert [each["name"] for each in coco["categories"]] == ["red blob", "Object 2"]
    page.refused(404)


def test_objects_of_a_file_do_not_replace_a_change_of_the_same_moment(page, images, tmp_path):
    names = ("coffee.jpg", "shapes.jpg")
    page.page.set_input_files("#file", [images / name for name in reversed(names)])
    page.opened("shapes.jpg")
    coco = {"images": [], "annotations": [], "categories": []}
    for number, name in enumerate(names):
        with Image.open(images / name) as picture:
            size = {"width": picture.width, "height": picture.height}
        coco["images"].append({"id": number, "file_name": name, **size})
        polygon = {"category_id": 1, "segmentation": [[9, 9, 90, 9, 9, 90]]}
        coco["annotations"].append({"image_id": number, **polygon})
    file = tmp_path / "coco.json"
    file.write_text(json.dumps(coco))
    page.page.evaluate(SLOW_DECODER)
    page.page.set_input_files("#file", file)
    page.wait("Boolean(globalThis.decode)")  # for the size of the first image, which was never opened
    page.page.evaluate("tritonSam.change(() => tritonSam.scene.begin()); void decode()")
    page.wait("tritonSam.pictures.shelf.drawn.length === 2")
    assert page.objects() == 2


@pytest.mark.slow
def test_hidden_objects_are_left_out_of_data_sets_and_files_that_cannot_be_read_are_told(two_objects, images, tmp_path):
    page = two_objects
    page.page.locator('[data-role="eye"]').nth(1).click()
    content = page.download("#save-project")[1]
    data_set = page.download("#export")[1]
    with zipfile.ZipFile(io.BytesIO(data_set)) as archive:
        coco = json.loads(archive.read("coco.json"))
    assert [each["name"] for each in coco["annotations"]] == ["Object 1"]
    path = tmp_path / "project.triton-sam.zip"
    path.write_bytes(content)
    with zipfile.ZipFile(path) as project:
        assert project.read("images/1/shapes.jpg") == (images / "shapes.jpg").read_bytes()
    path.write_bytes(content[: len(content) // 2])
    page.page.set_input_files("#file", path)
    assert "damaged" in page.banner()
    for text in DAMAGED:
        page.page.click("#banner-close")
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("project.json", text)
        page.page.set_input_files("#file", path)
        assert "not a project of this page, or damaged" in page.banner()
    with zipfile.ZipFile(io.BytesIO(content)) as project, zipfile.ZipFile(path, "w") as broken:
        document = json.loads(project.read("project.json"))
        other = {"id": None, "state": None, "file": "1", "name": "broken.png"}
        document["images"].insert(0, {**document["images"][0], **other})
        broken.writestr("project.json", json.dumps(document))
        broken.writestr("1", b"no image")
        broken.writestr("images/1/shapes.jpg", project.read("images/1/shapes.jpg"))
    page.page.click("#banner-close")
    page.page.once("dialog", lambda dialog: dialog.accept())
    page.page.set_input_files("#file", path)
    assert "broken.png: unsupported or damaged image" in page.banner()
    page.refused(415)
    page.page.locator(".object .label").nth(0).fill("blob")  # of the image that stays open
    page.page.keyboard.press("Enter")
    assert page.page.evaluate(LABELS) == [["blob"]]
    coco["images"][0]["file_name"] = "coffee.jpg"
    for document, words in (({"images": 1}, "not a COCO data set"), (coco, "not open: coffee.jpg")):
        (tmp_path / "coco.json").write_text(json.dumps(document))
        page.page.set_input_files("#file", tmp_path / "coco.json")
        page.wait(f"document.getElementById('banner').textContent.includes('{words}')")
    for _ in range(2):
        page.page.locator('[data-role="bin"]').nth(0).click()
    page.open(images / "street.jpg")
    page.page.click("#export")
    page.wait("document.getElementById('banner').textContent.includes('no image has an object')")

    for folder in ("a", "b"):
        (tmp_path / "all" / folder).mkdir(parents=True)
        (tmp_path / "all" / folder / LONG).write_bytes((images / "shapes.jpg").read_bytes() + b"another")
    page.page.set_input_files("#folder", tmp_path / "all")
    page.opened(LONG)
    coco["categories"][0]["name"] = "dog" * 30
    for path, found in ((LONG, set()), (f"b/{LONG}", {f"b/{LONG}"}), (f"a/{LONG}", {f"a/{LONG}", f"b/{LONG}"})):
        coco["images"][0]["file_name"] = path
        (tmp_path / "coco.json").write_text(json.dumps(coco))
        page.page.set_input_files("#file", tmp_path / "coco.json")
        page.wait(f"{UNCLEAR} === {str(not found).lower()} && {DRAWN_PATHS}.length === {len(found)}")
        assert set(page.page.evaluate(DRAWN_PATHS)) == found
    with zipfile.ZipFile(io.BytesIO(page.download("#export")[1])) as archive:
        coco = json.loads(archive.read("coco.json"))
    assert (coco["images"][0]["file_name"], coco["categories"][0]["name"]) == (f"a/{'x' * 196}.jpg", "dog" * 20)
    thumb = page.page.locator("#thumbs button").last
    assert thumb.get_attribute("aria-current") == "false"
    thumb.click()  # the same image again
    page.page.wait_for_selector('#thumbs button:last-child[aria-current="true"]')
    assert set(page.page.evaluate(DRAWN_PATHS)) == found


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
            if not breaks:
                page.wait(STORED)
            page.page.reload()
            page.ready()
    assert asked == [True]
