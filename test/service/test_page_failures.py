"""The page when Triton or the service goes away, and pages that need a token or another model."""

import contextlib
import re

import pytest
from support.conditions import wait_until
from support.in_process import made_up_triton
from support.large_images import draw, write_tiff
from support.running_browser import Page, open_page, window
from support.running_service import running_service

from triton_sam.service.messages import VERSION


def test_a_token_is_asked_for_and_a_service_that_dies_is_missed(browser, service_triton, tmp_path):
    write_tiff(tmp_path / "slide.tif", draw([(100, 100, 400, 300)], (800, 600)), levels=1)
    with contextlib.ExitStack() as windows:
        with running_service(service_triton.grpc_url, token="open sesame", large_images=str(tmp_path)) as guarded:
            page = windows.enter_context(window(browser, guarded.url))
            page.page.wait_for_selector("#token-dialog[open]")
            assert page.page.is_hidden("#token-problem")
            page.page.fill("#token", "open poppy")
            page.page.keyboard.press("Enter")
            page.page.wait_for_selector("#token-problem:not([hidden])")
            assert "does not accept this token" in page.page.inner_text("#token-dialog[open]")
            page.page.fill("#token", " open sesame ")
            page.page.keyboard.press("Enter")
            page.ready()
            page.page.click('[data-sample="shapes.jpg"]')
            page.opened("shapes.jpg")
            page.click(200, 180)
            page.settled()

            slides = Page(page.page.context.new_page())
            slides.page.goto(f"{guarded.url}/large")
            slides.page.wait_for_selector("#token-dialog[open]")
            slides.page.fill("#token", "open sesame")
            slides.page.keyboard.press("Enter")
            slides.wait("tritonSam.image && tritonSam.tiles.isComplete(tritonSam.stage, devicePixelRatio)")
        page.page.wait_for_selector('#state[data-state="down"]')
        assert "Trying again" in page.banner()


def test_the_mouse_does_not_send_an_image_again_whose_upload_failed(shapes, service):
    uploads, sent = re.compile("/v1/images[?]"), []

    def refuse(route):
        sent.append(route)
        route.fulfill(status=429, json={"status": 429, "detail": "over the quota"})

    shapes.page.route(uploads, refuse)
    service.http.delete(f"/v1/images/{shapes.page.evaluate('tritonSam.image.id')}")
    for x in (200, 300, 400, 500):
        shapes.page.mouse.move(*shapes.at(x, 200))
        assert "over the quota" in shapes.banner()
        shapes.page.wait_for_timeout(100)
    assert len(sent) == 1
    shapes.refused(429)
    shapes.click(200, 180)
    shapes.until(lambda: len(sent) == 2)
    shapes.refused(429)
    shapes.wait("!tritonSam.pictures.isOpening")
    shapes.page.unroute(uploads)
    shapes.click(210, 190)
    shapes.settled()


def test_a_page_without_triton_says_so(browser):
    with running_service("http://127.0.0.1:9") as service, window(browser, service.url) as page:
        page.page.wait_for_selector('#state[data-state="down"]')
        page.wait("document.getElementById('banner').textContent.includes('Segmentation is unavailable')")
        answer = service.http.get("/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "unavailable")
        refused = service.http.post("/prediction", files={"image": b"GIF89a"}, data={"x": "1", "y": "1"})
        assert refused.status_code == 503
        assert refused.headers["retry-after"]


@pytest.mark.slow
def test_a_page_of_another_version_asks_to_be_reloaded(browser, service, monkeypatch):
    with window(browser, service.url) as page:
        page.ready()
        with monkeypatch.context() as later:
            later.setattr("triton_sam.service.messages.VERSION", VERSION + 1)
            page.page.reload()  # the files of this page are still those of the old version
            page.page.wait_for_selector("#banner:not([hidden])")
            assert "reload the page" in page.page.inner_text("#banner")
            assert page.page.get_attribute("#state", "data-state") == "down"
        page.page.reload()
        page.ready()
        assert page.page.is_hidden("#banner")


@pytest.mark.slow
def test_another_model_answers_after_a_switch(browser, images):
    """The same objects, asked of the other pair, which gets the picture by itself; and back again."""
    with (
        made_up_triton({"sam2": "sam2", "twin": "sam2"}, []) as triton,
        running_service(triton.url) as service,
        open_page(browser, service.url) as page,
    ):
        assert page.page.locator("#model option").all_inner_texts() == ["sam2", "twin"]
        page.uncheck("#hover")
        page.open(images / "shapes.jpg")
        page.click(200, 180)
        page.settled()
        facts = page.facts()
        assert "twin_decoder" not in triton.asked
        page.page.select_option("#model", "twin")
        wait_until(lambda: "twin_decoder" in triton.asked)
        page.settled()
        assert page.facts() == facts  # the same networks
        page.page.select_option("#model", "sam2")
        page.wait("document.getElementById('busy').hidden")
        before = triton.asked.count("twin_decoder")
        page.click(230, 200)
        wait_until(lambda: page.facts()[0].startswith("2 points · score"))
        assert triton.asked.count("twin_decoder") == before
        with page.held("/v1/images[?]model=sam2") as held:
            page.page.set_input_files("#file", images / "coffee.jpg")
            page.until(lambda: held)
            page.page.select_option("#model", "twin")
        page.opened("coffee.jpg")
        page.wait("tritonSam.pictures.isSent")
        away = {name: triton.models.pop(name) for name in ("twin_encoder", "twin_decoder")}
        page.wait("document.getElementById('model').textContent === 'sam2twin (not ready)'")
        triton.models.update(away)
        page.wait("document.getElementById('model').textContent === 'sam2twin'")
        assert page.page.input_value("#model") == "twin"
