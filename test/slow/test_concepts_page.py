"""Words through the service on a real Triton: the page in Chromium, examples by REST, adapters of other tools."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

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
from support.tools import brushed  # noqa: E402

from triton_sam import SAM2TritonClient  # noqa: E402
from triton_sam.concepts.instances import Instance  # noqa: E402
from triton_sam.local_server import LocalServer  # noqa: E402
from triton_sam.masks.rle import mask_to_rle, rle_to_mask  # noqa: E402
from triton_sam.service.adapters import bridge  # noqa: E402
from triton_sam.service.adapters.registry import ADAPTERS  # noqa: E402
from triton_sam.service.concepts import FindRequest  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SIZE = (160, 120)
LOWEST = 0.1  # the score from which the page asks
ENCODERS = ("sam3_encoder", "sam3_concept_encoder")
LABELS = '<BrushLabels name="b" toName="i"><Label value="Dog"/></BrushLabels>'
SEARCHED = "!tritonSam.everything.isSearching && tritonSam.everything.ofWords.length > 0"


class Found(NamedTuple):
    """Instances in a picture, and a threshold that they pass and no other instance does."""

    content: bytes
    instances: list[Instance]
    threshold: float


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


@pytest.mark.nightly
def test_several_words_on_the_page(browser, service: RunningService, client: SAM2TritonClient, tmp_path: Path) -> None:
    """Two words in one search; then "more like this" on an instance of the second word keeps both words."""
    from support.running_browser import open_page

    content = picture(2, tmp_path)
    with open_page(browser, service.url) as page:
        bodies = []
        page.page.on("request", lambda sent: bodies.append(sent.post_data) if sent.url.endswith("/find") else None)
        page.page.uncheck("#hover")
        page.open(tmp_path / "photo.png")
        page.page.fill("#words-text", "dog, red ball")
        page.page.press("#words-text", "Enter")
        page.wait(SEARCHED, 200)
        items = "tritonSam.everything.ofWords.map(({label, rle}) => [label, rle.counts])"
        expected = client.find(["dog", "red ball"], image=content, threshold=LOWEST)
        shown = [[each.label, each.to_rle()["counts"]] for each in expected if each.box is not None]
        assert page.page.evaluate(items) == shown
        assert {label for label, _ in shown} == {"dog", "red ball"}
        assert [json.loads(body)["text"] for body in bodies] == [["dog", "red ball"]]
        slide(page, LOWEST)
        assert page.page.evaluate("tritonSam.everything.items.length") == len(shown)
        page.click(*middle(largest(page)))
        page.page.click("#words-more")
        page.wait(SEARCHED, 200)
        body = json.loads(bodies[-1])
        assert (body["text"], body["box_labels"]) == (["dog", "red ball"], [1])
        alike = client.find(body["text"], boxes=body["boxes"], box_labels=[1], image=content, threshold=LOWEST)
        assert page.page.evaluate(items) == [
            [each.label, each.to_rle()["counts"]] for each in alike if each.box is not None
        ]


@pytest.mark.nightly
def test_examples_and_thresholds_by_rest(service: RunningService, client: SAM2TritonClient) -> None:
    contents = [picture(shift) for shift in (2, 3)]
    image, other = (service.upload(content, model="sam3")["id"] for content in contents)
    boxes = {"boxes": [[10, 20, 70, 90], [100, 10, 150, 60]], "box_labels": [1, 0]}
    everything = client.find("dog", image=contents[0], threshold=0)
    middling = float(np.median([each.score for each in everything]))
    for body in ({"text": "dog", "threshold": middling}, {**boxes, "threshold": 0, "limit": 3}):
        answer = service.http.post(f"/v1/images/{image}/find", json={**body, "model": "sam3"}, timeout=200)
        assert answer.status_code == 200, answer.text
        found = client.find(body.pop("text", None), image=contents[0], **body)
        assert [each["rle"] for each in answer.json()["objects"]] == [each.to_rle() for each in found]
        assert 0 < len(found) < len(everything)
    body = {**boxes, "example_image": other, "threshold": 0, "limit": 3, "model": "sam3"}
    answer = service.http.post(f"/v1/images/{image}/find", json=body, timeout=200)
    across = client.find(**boxes, image=contents[0], example=contents[1], threshold=0, limit=3)
    assert [each["rle"] for each in answer.json()["objects"]] == [each.to_rle() for each in across]
    shown = [np.zeros(SIZE[::-1], bool) for _ in range(2)]
    for mask, (x1, y1, x2, y2) in zip(shown, boxes["boxes"], strict=True):
        mask[y1:y2, x1:x2] = True
    body = {key: value for key, value in body.items() if key not in boxes}
    body |= {"masks": [mask_to_rle(mask) for mask in shown], "mask_labels": [1, 0]}
    by_masks = service.http.post(f"/v1/images/{image}/find", json=body, timeout=200)
    assert by_masks.json()["objects"] == answer.json()["objects"]
    same = client.find(masks=shown, mask_labels=[1, 0], image=contents[0], example=contents[1], threshold=0, limit=3)
    assert [each.to_rle() for each in same] == [each.to_rle() for each in across]


@pytest.fixture(scope="module")
def found(server: LocalServer) -> Found:
    """The three best instances of "dog" in a picture, as a client finds them."""
    content = picture(4)
    with SAM2TritonClient(server.grpc_url, "sam3", timeout=300) as client:
        *best, fourth = client.find("dog", image=content, threshold=0, limit=4)
    assert best[2].score > fourth.score
    return Found(content, best, (best[2].score + fourth.score) / 2)


def test_adapters_find_what_the_client_finds(service: RunningService, found: Found) -> None:
    image, threshold = base64.b64encode(found.content).decode(), found.threshold
    scores = [each.score for each in found.instances]

    prompts = [{"type": "text", "text": "dog"}]
    body = {"image": {"type": "base64", "value": image}, "prompts": prompts, "format": "rle"}
    (result,) = post(service, "/sam3/concept_segment", {**body, "output_prob_thresh": threshold})["prompt_results"]
    masks = [each["masks"]["counts"] for each in result["predictions"]]
    assert masks == [each.to_rle()["counts"] for each in found.instances]

    body = {"model": "sam3", "image": image, "params": {"text_prompt": "dog", "conf_threshold": threshold}}
    shapes = post(service, "/x-anylabeling/v1/predict", body)["data"]["shapes"]
    assert {each["label"] for each in shapes} == {"dog"}
    assert sorted({round(each["score"], 4) for each in shapes}) == sorted({round(each, 4) for each in scores})

    body = {"type": "sam3", "b64img": image, "text_prompt": "dog", "confidence_threshold": threshold}
    features = post(service, "/sam/sam3/", body)
    qualities = {each["properties"]["quality"] for each in features}
    assert sorted(qualities) == pytest.approx(sorted(set(scores)), abs=1e-4)

    prompt = {"texts": ["dog"], "iou_threshold": 1.0, "score_threshold": threshold}
    answer = post(service, "/api/generate", {"model": "sam3:latest", "image": image, "prompt": prompt})
    assert [each["score"] for each in answer["annotations"]] == pytest.approx(scores, abs=1e-4)


def test_labelling_tools_get_the_masks_that_the_client_finds(
    service: RunningService, found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = base64.b64encode(found.content).decode()
    masks = [each.mask for each in found.instances if each.box is not None]
    headers = {"x-nuclio-function-name": "triton-sam-sam3-words"}
    body = {"image": image, "threshold": found.threshold}
    shapes = post(service, "/api/function_invocations", body, headers)
    assert [each["label"] for each in shapes] == ["dog"] * len(masks)
    for each, mask in zip(shapes, masks, strict=True):
        *bits, x1, y1, x2, y2 = each["mask"]
        assert np.array_equal(np.reshape(bits, (y2 - y1 + 1, x2 - x1 + 1)), mask[y1 : y2 + 1, x1 : x2 + 1])
        assert sum(bits) == mask.sum()

    # Label Studio sends no threshold, and the scores of random weights are below the default one.
    monkeypatch.setattr(bridge, "FindRequest", partial(FindRequest, threshold=found.threshold))
    config = f'<View><Image name="i" value="$image"/>{LABELS}</View>'
    tasks = [{"id": 1, "data": {"image": f"data:image/png;base64,{image}"}}]
    (made,) = post(service, "/label-studio/predict", {"tasks": tasks, "label_config": config})["results"]
    assert [each["value"]["brushlabels"] for each in made["result"]] == [["Dog"]] * len(masks)
    assert np.array_equal([brushed(each) for each in made["result"]], masks)


def post(service: RunningService, path: str, body: dict, headers: dict | None = None):
    answer = service.http.post(path, json=body, headers=headers, timeout=200)
    assert answer.status_code == 200, answer.text
    return answer.json()
