"""The page in Chromium searches for words on a real Triton. test_page_searches.py tests what it shows."""

import json
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.export]
pytest.importorskip("torch")

from PIL import Image  # noqa: E402
from support.conditions import settled  # noqa: E402
from support.family_exports import sam3_concepts  # noqa: E402
from support.running_service import running_service  # noqa: E402

from triton_sam import SAM2TritonClient  # noqa: E402
from triton_sam.families import get_family  # noqa: E402
from triton_sam.local_server import LocalServer  # noqa: E402
from triton_sam.masks.rle import rle_to_mask  # noqa: E402
from triton_sam.sessions.configs import write_programs  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SIZE = (160, 120)
LOWEST = 0.1  # the score from which the page asks
ENCODERS = ("sam3_encoder", "sam3_concept_encoder")
SEARCHED = "!tritonSam.everything.isSearching && tritonSam.everything.ofWords.length > 0"


@pytest.fixture(scope="module")
def server():
    exported = sam3_concepts()
    write_programs(exported.repository, get_family("sam3"), video=False)
    with LocalServer(exported.repository, models=["sam3"]) as running:
        yield running


def computed(client: SAM2TritonClient, *models: str) -> list[int]:
    """Return the number of requests that models have answered."""
    count = client._transport.statistics
    return settled(lambda: [int(count(model)["inference_count"]) for model in models])


def counts(found) -> list[str]:
    """Return the masks of a client's instances as text. The page leaves out empty ones."""
    return [each.to_rle()["counts"] for each in found if each.box is not None]


def found(page) -> list[str]:
    """Return the masks of the instances that the page has."""
    return page.page.evaluate("tritonSam.everything.ofWords.map((item) => item.rle.counts)")


def select_largest(page) -> None:
    """Show all instances, and click on the largest one."""
    page.page.evaluate(
        "(value) => { const e = document.getElementById('words-threshold'); e.value = value;"
        " e.dispatchEvent(new Event('input')); }",
        LOWEST,
    )
    largest = "tritonSam.everything.items.reduce((a, b) => (b.area > a.area ? b : a)).rle"
    rows, columns = np.nonzero(rle_to_mask(page.page.evaluate(largest)))
    page.click(int(columns[len(rows) // 2]), int(rows[len(rows) // 2]))
    assert page.page.evaluate("tritonSam.everything.selected.length") == 1


def test_the_page_searches_shows_and_refines(browser, server, tmp_path):
    """Its instances are those of the client, and neither examples nor clicks encode the image again."""
    from support.running_browser import open_page

    photo = tmp_path / "photo.png"
    with Image.open(ROOT / "test/images/shapes.jpg") as image:
        image.convert("RGB").resize(SIZE).save(photo)
    with (
        SAM2TritonClient(server.grpc_url, "sam3", timeout=300) as client,
        running_service(server.grpc_url, model="sam3") as service,
        open_page(browser, service.url) as page,
    ):
        bodies = []
        page.page.on("request", lambda sent: bodies.append(sent.post_data) if sent.url.endswith("/find") else None)
        page.uncheck("#hover")
        page.uncheck("#cleanup")  # the client below asks for plain masks
        page.open(photo)
        page.page.fill("#words-text", "dog")
        page.page.press("#words-text", "Enter")
        page.wait(SEARCHED, 200)
        assert found(page) == counts(client.find("dog", image=photo, threshold=LOWEST))

        before = computed(client, *ENCODERS)
        for button, label in (("#words-more", 1), ("#words-less", 0)):
            select_largest(page)
            page.page.click(button)
            page.wait(SEARCHED, 200)
            body = json.loads(bodies[-1])
            assert body["box_labels"][-1] == label
            examples = {name: body[name] for name in ("boxes", "box_labels")}
            assert found(page) == counts(client.find(body["text"], **examples, image=photo, threshold=LOWEST))
        assert len(bodies) == 3

        select_largest(page)
        page.page.click("#found-refine")
        page.click(3, 3, button="right")
        page.wait("tritonSam.scene.active?.points.length >= 1")
        page.settled()
        assert computed(client, *ENCODERS) == before
        active = page.page.evaluate("tritonSam.scene.active")
        assert active["label"] == "dog"
        (annotation,) = json.loads(page.download("#save-coco")[1])["annotations"]
        points = [[each["x"], each["y"]] for each in active["points"]]
        labels = [each["label"] for each in active["points"]]
        (refined,) = client.segment(points, labels, box=active["box"], image=client.encode(photo))
        assert (rle_to_mask(annotation["segmentation"]) != refined.mask).sum() <= 1
