"""Words through the service on a real Triton: the page in Chromium, examples by REST, adapters of other tools."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.export]
pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("fastapi")

from PIL import Image  # noqa: E402
from support.conditions import settled  # noqa: E402
from support.family_exports import sam3_concepts  # noqa: E402
from support.running_service import RunningService, running_service  # noqa: E402

from triton_sam import SAM2TritonClient  # noqa: E402
from triton_sam.local_server import LocalServer  # noqa: E402
from triton_sam.masks.rle import rle_to_mask  # noqa: E402
from triton_sam.service.adapters.registry import ADAPTERS  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SIZE = (160, 120)
LOWEST = 0.1  # the score from which the page asks
ENCODERS = ("sam3_encoder", "sam3_concept_encoder")
SEARCHED = "!tritonSam.everything.isSearching && tritonSam.everything.ofWords.length > 0"


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    exported = sam3_concepts()
    shutil.copytree(ROOT / "model_repository/sam3", exported.repository / "sam3", dirs_exist_ok=True)
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    with LocalServer(exported.repository, models=["sam3"], **ports) as running:
        yield running


@pytest.fixture(scope="module")
def service(server: LocalServer) -> Iterator[RunningService]:
    with running_service(server.grpc_url, model="sam3", adapters=tuple(ADAPTERS), cvat_words=("dog",)) as running:
        yield running


@pytest.fixture
def client(server: LocalServer) -> Iterator[SAM2TritonClient]:
    with SAM2TritonClient(server.grpc_url, "sam3", timeout=300) as made:
        yield made


def picture(shift: int, folder: Path | None = None) -> bytes:
    """Return a small photograph as a PNG file, another one for each shift; write it into a folder if there is one."""
    with Image.open(ROOT / "test/images/shapes.jpg") as photo:
        small = np.asarray(photo.convert("RGB").resize(SIZE))
    buffer = io.BytesIO()
    Image.fromarray(np.roll(small, shift, axis=1)).save(buffer, "PNG")
    if folder is not None:
        (folder / "photo.png").write_bytes(buffer.getvalue())
    return buffer.getvalue()


def computed(client: SAM2TritonClient, *models: str) -> list[int]:
    """Return the number of requests that models have answered."""
    count = client._transport.statistics
    return settled(lambda: [int(count(model)["inference_count"]) for model in models])


def counts(found) -> list[str]:
    """Return the masks of a client's instances as text. The page leaves out empty ones."""
    return [each.to_rle()["counts"] for each in found if each.box is not None]


def test_the_page_searches_shows_and_refines(
    browser, service: RunningService, client: SAM2TritonClient, tmp_path: Path
) -> None:
    from support.running_browser import open_page

    content = picture(1, tmp_path)
    with open_page(browser, service.url) as page:
        bodies = []
        page.page.on("request", lambda sent: bodies.append(sent.post_data) if sent.url.endswith("/find") else None)
        page.page.uncheck("#hover")
        page.page.uncheck("#cleanup")  # the client below asks for plain masks
        page.open(tmp_path / "photo.png")
        page.page.fill("#words-text", "dog")
        page.page.press("#words-text", "Enter")
        page.wait(SEARCHED, 200)
        items = page.page.evaluate("tritonSam.everything.ofWords.map(({label, score, rle}) => ({label, score, rle}))")
        expected = client.find("dog", image=content, threshold=LOWEST)
        assert [each["rle"]["counts"] for each in items] == counts(expected)
        assert {each["label"] for each in items} == {"dog"}

        scores = np.array([each["score"] for each in items])
        steps = np.arange(0.1, 0.96, 0.05).round(2)
        chosen = float(steps[np.argmin([abs((scores >= step).mean() - 0.5) for step in steps])])
        slide(page, chosen)
        shown = page.page.evaluate("tritonSam.everything.items.length")
        assert shown == (scores >= chosen).sum()
        assert 0 < shown < len(scores)  # the weights are random, but their seed is not
        assert len(bodies) == 1

        before = computed(client, *ENCODERS)
        mask = largest(page)
        page.click(*middle(mask))
        assert page.page.evaluate("tritonSam.everything.selected.length") == 1
        bbox = page.page.evaluate("tritonSam.everything.selected[0].bbox")
        for button, label in (("#words-more", 1), ("#words-less", 0)):
            if not label:
                slide(page, LOWEST)
                page.click(*middle(largest(page)))
            page.page.click(button)
            page.wait(SEARCHED, 200)
            body = json.loads(bodies[-1])
            assert body["box_labels"][-1] == label
            alike = client.find(
                body["text"], boxes=body["boxes"], box_labels=body["box_labels"], image=content, threshold=LOWEST
            )
            found = page.page.evaluate("tritonSam.everything.ofWords.map((item) => item.rle.counts)")
            assert found == counts(alike)
        x, y, width, height = bbox
        assert json.loads(bodies[1])["boxes"] == [[x, y, x + width, y + height]]
        assert len(bodies) == 3

        slide(page, LOWEST)
        mask = largest(page)
        page.click(*middle(mask))
        decoded = computed(client, "sam3_decoder")
        page.page.click("#found-refine")
        page.click(3, 3, button="right")
        page.wait("tritonSam.scene.active?.points.length >= 1")
        page.settled()
        assert computed(client, "sam3_decoder") > decoded
        assert computed(client, *ENCODERS) == before
        active = page.page.evaluate("tritonSam.scene.active")
        assert active["label"] == "dog"
        coco = json.loads(page.download("#save-coco")[1])
        points = [[each["x"], each["y"]] for each in active["points"]]
        (refined,) = client.segment(
            points, [each["label"] for each in active["points"]], box=active["box"], image=client.encode(content)
        )
        (annotation,) = coco["annotations"]
        assert (rle_to_mask(annotation["segmentation"]) != refined.mask).sum() <= 1


def slide(page, value: float) -> None:
    page.page.evaluate(
        "(value) => { const e = document.getElementById('words-threshold'); e.value = value;"
        " e.dispatchEvent(new Event('input')); }",
        value,
    )


def largest(page) -> np.ndarray:
    """Return the mask of the largest instance that the page shows."""
    return rle_to_mask(page.page.evaluate("tritonSam.everything.items.reduce((a, b) => (b.area > a.area ? b : a)).rle"))


def middle(mask: np.ndarray) -> tuple[int, int]:
    """Return x and y of a pixel of a mask."""
    rows, columns = np.nonzero(mask)
    return int(columns[len(rows) // 2]), int(rows[len(rows) // 2])
