"""The page's video mode in headless Chromium, over a real service and a real video model in this process."""

import io
import re
import zipfile

import numpy as np
import pytest
from PIL import Image
from support import clip
from support.conditions import PATIENCE, wait_until
from support.drawn_server import let_go_on, propagation_of
from support.running_browser import covered, go_to, open_clip, open_page, segmented, shown, track

FRAMES = 40


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return clip.write_clip(tmp_path_factory.mktemp("clip") / "clip.mp4", FRAMES)


@pytest.fixture
def page(browser, running, path):
    """A page with the clip open."""
    with open_page(browser, running.service.url) as page:
        open_clip(page, path)
        yield page


def test_a_click_is_tracked_drawn_and_saved(page):
    assert page.page.is_hidden('[data-save="png"]')
    bare = page.pixel(90, 110)
    page.click(*clip.START)
    segmented(page)
    assert page.facts() == ["prompted in 0 · score 0.90"]
    track(page)
    assert covered(page) == [[0, FRAMES - 1]]
    assert shown(page) == FRAMES - 1
    go_to(page, 10)
    page.page.fill("#opacity", "100")
    inside, outside = clip.START[0] + 10 * clip.STEP, clip.START[0] - 20
    page.wait("tritonSam.video.isAtRest")
    wait_until(lambda: page.pixel(inside, 120)[2] > 200)  # blue, the colour of the first object
    assert page.pixel(outside, 120)[2] < 180
    assert bare[3] == 255
    name, content = page.download('[data-save="png"]')
    assert name == "clip-masks.zip"
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert len(archive.namelist()) == FRAMES
        labels = np.asarray(Image.open(io.BytesIO(archive.read("00004.png"))))
    assert np.mean((labels == 1) == clip.disc(4)) > 0.98
    for form, name in (("coco", "clip-coco.json"), ("overlay", "clip-overlay.mp4")):
        assert page.download(f'[data-save="{form}"]')[0] == name
    page.page.click('[data-role="eye"]')
    wait_until(lambda: page.pixel(inside, 120)[2] < 200)


@pytest.mark.slow
def test_frames_by_keys_buttons_the_slider_and_playing(page):
    page.page.keyboard.press("Shift+ArrowRight")
    page.wait("tritonSam.scene.frame === 10")
    page.page.focus("#seek")
    page.page.keyboard.press("ArrowRight")  # the slider moves once, not twice
    page.wait("tritonSam.scene.frame === 11")
    assert page.page.get_attribute("#seek", "aria-valuetext") == f"frame 11 of {FRAMES - 1}"
    page.page.focus("#opacity")
    page.page.keyboard.press("ArrowRight")
    assert (page.page.input_value("#opacity"), shown(page)) == ("51", 11)
    page.page.focus("#seek")
    page.page.keyboard.press("End")
    page.wait(f"tritonSam.scene.frame === {FRAMES - 1}")
    assert page.page.is_disabled("#step-forward")
    box = page.page.locator("#seek").bounding_box()
    page.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 20)
    page.wait(f"Math.abs(tritonSam.scene.frame - {FRAMES // 2}) <= 1")
    pixel = page.pixel(clip.START[0] + shown(page) * clip.STEP, clip.START[1])
    assert np.abs(np.subtract(pixel[:3], (230, 170, 60))).max() < 40  # the disc of this frame
    page.page.focus("#canvas")
    go_to(page, 0)
    with page.held("/frames/12[?]"):  # the video cannot end before it is paused
        page.page.keyboard.press("Space")
        assert page.page.get_attribute("#play", "aria-label") == "Pause"
        page.wait("tritonSam.scene.frame >= 3")
        page.page.click("#play")
        assert page.page.get_attribute("#play", "aria-label") == "Play"
    page.wait("tritonSam.video.isAtRest")
    at_rest = shown(page)
    page.page.wait_for_timeout(300)
    assert shown(page) == at_rest
    go_to(page, FRAMES - 2)
    page.page.click("#play")
    page.wait("document.getElementById('play').getAttribute('aria-label') === 'Play'")
    assert shown(page) == FRAMES - 1


@pytest.mark.slow
def test_several_objects_a_box_and_points_in_two_frames(page, drawing):
    page.click(*clip.START)
    page.page.keyboard.press("n")
    page.page.mouse.move(*page.at(180, 150))
    page.page.mouse.down()
    page.page.mouse.move(*page.at(240, 200), steps=4)
    page.page.mouse.up()
    segmented(page)
    page.page.locator(".object input:not(.label)").nth(1).fill("cup")
    page.page.keyboard.press("Enter")
    go_to(page, 5)
    assert page.facts()[1] == "prompted in 0 · not tracked here"
    page.page.keyboard.down("Shift")
    page.click(100, 60)
    page.page.keyboard.up("Shift")
    page.page.keyboard.down("Alt")
    page.click(110, 60)
    page.page.keyboard.up("Alt")
    page.click(200, 170)
    segmented(page)
    wait_until(lambda: len(drawing.points(2, 5)) == 3)
    memory = drawing.sessions[-1].tracker.objects[2]
    assert (memory.points[0].labels.tolist(), memory.points[5].labels.tolist()) == ([2, 3], [0, 0, 1])
    np.testing.assert_allclose(drawing.points(2, 0), [[180, 150], [240, 200]], atol=2)
    np.testing.assert_allclose(drawing.points(1, 0), [clip.START], atol=1)
    page.page.keyboard.press("[")
    page.wait("tritonSam.scene.frame === 0")
    page.page.keyboard.press("]")
    page.wait("tritonSam.scene.frame === 5")
    track(page, "both")
    assert covered(page, 0) == covered(page, 1) == [[0, FRAMES - 1]]
    assert shown(page) == 5
    page.page.locator('[data-role="bin"]').nth(0).click()
    wait_until(lambda: list(drawing.prompts()) == [2])


@pytest.mark.slow
def test_undo_reaches_the_service_and_a_service_that_has_forgotten_the_video_gets_it_again(page, running, drawing):
    page.click(*clip.START)
    page.click(70, 120)
    segmented(page)
    wait_until(lambda: len(drawing.points(1, 0)) == 2)
    page.page.keyboard.press("Control+z")
    wait_until(lambda: len(drawing.points(1, 0)) == 1)
    page.page.keyboard.press("Control+z")
    wait_until(lambda: not drawing.prompts())
    assert page.facts() == []
    page.page.keyboard.press("Control+Shift+z")
    wait_until(drawing.prompts)
    segmented(page)

    before = page.page.evaluate("tritonSam.video.info.id")
    session = drawing.sessions[-1]
    running.service.http.delete(f"/v1/videos/{before}")
    page.click(70, 125)
    wait_until(lambda: session not in drawing.sessions and drawing.prompts())
    wait_until(lambda: len(drawing.points(1, 0)) == 2)
    page.wait("document.getElementById('busy').hidden")
    assert page.page.evaluate("tritonSam.video.info.id") != before
    assert page.page.is_hidden("#banner")
    page.refused(404)

    segmented(page)
    track(page)
    session = drawing.sessions[-1]
    running.service.http.delete(f"/v1/videos/{page.page.evaluate('tritonSam.video.info.id')}")
    page.click(70, 130)
    wait_until(lambda: session not in drawing.sessions and drawing.prompts())
    page.wait("document.getElementById('banner').textContent.includes('track again')")
    assert covered(page) == [[0, 0], [FRAMES - 1, FRAMES - 1]]  # as in downloads: the frames with a prompt
    page.refused(404)


def test_tracking_is_stopped_corrected_and_goes_on(page, running, drawing):
    page.click(*clip.START)
    segmented(page)
    drawing.frames.seconds, drawing.frames.limit = 0.08, FRAMES - 4
    page.page.keyboard.press("t")
    page.wait("tritonSam.video.isTracking && tritonSam.scene.frame >= 4")  # live: the page shows the frames that come
    assert page.page.is_visible("#track-stop")
    assert page.page.is_hidden("#track-forward")
    page.wait("document.getElementById('track-info').textContent.includes('frames/s')")
    path = page.page.evaluate("tritonSam.video.info.id")
    with let_go_on(drawing, propagation_of(running.service, path)):
        page.page.click("#track-stop")
    page.wait("!tritonSam.video.isTracking")
    (first, last), *others = covered(page)
    assert (first, others) == (0, [])
    assert 4 <= last < FRAMES - 1
    at_rest = len(drawing.tracked())
    go_to(page, 3)
    drawing.frames.seconds = 0.0
    page.click(100, 130)
    segmented(page)
    track(page)
    assert drawing.tracked()[at_rest] == 3
    assert covered(page) == [[0, FRAMES - 1]]

    drawing.frames.seconds, drawing.frames.limit = 0.08, FRAMES - 4
    at_rest = len(drawing.tracked())
    go_to(page, 0)
    page.page.click("#track-forward")
    page.wait("tritonSam.video.isTracking && tritonSam.scene.frame >= 2")
    page.page.evaluate("tritonSam.video.goTo(1)")
    page.wait("tritonSam.scene.frame === 1")
    with let_go_on(drawing, propagation_of(running.service, path)):
        page.click(70, 130)
    page.wait("!tritonSam.video.isTracking")
    wait_until(lambda: drawing.points(1, 1))
    assert len(drawing.tracked()) - at_rest < FRAMES

    drawing.frames.seconds, drawing.frames.limit = 0.0, FRAMES - 2  # at the last frame of the first pass
    at_rest = len(drawing.tracked())
    drawing.frames.reached.clear()
    page.page.click("#track-both")
    assert drawing.frames.reached.wait(PATIENCE)
    with let_go_on(drawing, propagation_of(running.service, path)):
        page.page.click("#track-stop")
    page.wait("!tritonSam.video.isTracking")
    assert drawing.tracked()[at_rest:] == list(range(1, FRAMES))

    drawing.frames.limit = 5
    at_rest = len(drawing.tracked())
    earlier = propagation_of(running.service, path)
    with page.held("/propagate"), page.page.expect_response(re.compile("/cancel")):
        page.page.click("#track-forward")
        page.page.click("#track-stop")
    wait_until(lambda: propagation_of(running.service, path) is not earlier)
    with let_go_on(drawing, propagation_of(running.service, path)):
        pass
    page.wait("!tritonSam.video.isTracking")
    assert len(drawing.tracked()) - at_rest < FRAMES - 1
    assert page.page.is_hidden("#banner")


def test_another_video_ends_tracking_and_gets_nothing_of_it(page, running, drawing, path):
    page.click(*clip.START)
    segmented(page)
    drawing.frames.limit = 5
    page.page.keyboard.press("t")
    page.wait("tritonSam.video.masks.hasTracked")
    first = page.page.evaluate("tritonSam.video.info.id")
    page.page.once("dialog", lambda dialog: dialog.accept())
    page.page.set_input_files("#file", path)
    page.wait(f"tritonSam.video.info.id !== '{first}' && document.getElementById('busy').hidden")
    assert not page.page.evaluate("tritonSam.video.isTracking")
    second = page.page.evaluate("tritonSam.video.info.id")
    drawing.frames.limit = None
    page.wait("tritonSam.video.ended === 1")
    page.wait("document.getElementById('busy').hidden")
    assert page.page.evaluate("tritonSam.video.info.id") == second
    assert not page.page.evaluate("tritonSam.video.masks.hasTracked")
    assert page.page.is_hidden("#banner")


def test_a_video_is_kept_while_it_is_looked_at_and_until_the_user_agrees_to_lose_it(page, images):
    def refuse(dialog):
        asked.append(dialog.message)
        dialog.dismiss()

    page.page.evaluate("tritonSam.video.info.expires_in = 0")
    is_use = re.compile("/v1/videos/[0-9a-f]{32}$")
    with page.page.expect_request(lambda request: request.method == "GET" and is_use.search(request.url)):
        go_to(page, 1)  # the browser may have the frame, so that the service does not notice
    page.click(*clip.START)
    segmented(page)
    track(page)
    asked = []
    page.page.on("dialog", refuse)
    page.page.dispatch_event("#model", "change")
    page.page.set_input_files("#file", images / "shapes.jpg")
    page.until(lambda: len(asked) == 2)
    assert asked == [
        "Change the model and lose the tracked masks of clip.mp4?",
        "Close clip.mp4 and lose its objects and masks?",
    ]
    assert page.page.evaluate("[tritonSam.video.masks.hasTracked, tritonSam.pictures.isOpening]") == [True, False]
    page.page.remove_listener("dialog", refuse)
    page.page.once("dialog", lambda dialog: dialog.accept())
    page.open(images / "shapes.jpg")
    assert not page.page.evaluate("tritonSam.video.isOpen")


def test_a_video_that_is_sent_again_gets_all_prompts_though_one_is_under_way(page, running, drawing):
    first = page.page.evaluate("tritonSam.video.info.id")
    with page.held(f"{first}/prompts") as held:
        page.click(*clip.START)
        page.until(lambda: held)
        page.page.evaluate("void tritonSam.pictures.reupload()")
        page.until(lambda: running.service.http.get(f"/v1/videos/{first}").status_code == 404)
    segmented(page)
    page.wait("document.getElementById('busy').hidden")
    assert drawing.points(1, 0)
    page.page.evaluate("tritonSam.stage.draw()")
    page.refused(404)


def test_a_video_is_sent_again_for_another_model_and_once_if_that_fails(page, running, path):
    with page.held("/v1/videos[?]model") as held:
        page.page.set_input_files("#file", path)
        page.until(lambda: held)
        page.page.evaluate("tritonSam.settings.model = 'another'")
    assert "another" in page.banner()
    page.refused(404)
    sent = []
    page.page.on("request", lambda request: sent.append(request.url) if "/v1/videos?model" in request.url else None)
    running.service.http.delete(f"/v1/videos/{page.page.evaluate('tritonSam.video.info.id')}")
    page.page.click("#banner-close")
    page.click(*clip.START)
    assert "another" in page.banner()
    page.page.wait_for_timeout(100)
    assert len(sent) == 1
    page.page.evaluate("tritonSam.settings.model = 'sam2'")
    with page.page.expect_response(lambda answer: answer.request.method == "DELETE" and answer.status == 404):
        page.click(70, 120)
        segmented(page)
    page.refused(404)


@pytest.mark.slow
def test_images_and_videos_take_turns_and_forget_each_other(page, running, images, path, tmp_path):
    page.click(*clip.START)
    segmented(page)
    video = page.page.evaluate("tritonSam.video.info.id")
    page.page.once("dialog", lambda dialog: dialog.accept())
    page.open(images / "shapes.jpg")
    wait_until(lambda: page.page.is_hidden("#timeline"))
    assert page.page.is_visible("#edit")
    assert page.facts() == []
    wait_until(lambda: running.service.http.get(f"/v1/videos/{video}").status_code == 404)
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no video")
    page.page.set_input_files("#file", broken)
    assert "broken.mp4: unsupported or damaged video" in page.banner()
    page.refused(415)
    with page.held("/frames/(?!0[?])") as held:  # frames that still load are given up with their video
        open_clip(page, path)
        assert page.page.is_visible("#timeline")
        assert page.page.is_hidden("#edit")
        assert page.page.evaluate("tritonSam.image") is None
        page.until(lambda: held)
        page.open(images / "shapes.jpg")
    page.page.wait_for_timeout(300)
    open_clip(page, path)
    video = page.page.evaluate("tritonSam.video.info.id")
    page.page.goto("about:blank")  # a page that closes forgets its video
    wait_until(lambda: running.service.http.get(f"/v1/videos/{video}").status_code == 404)
