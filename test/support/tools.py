"""Annotation tools: their requests, masks in their formats, and a row for each tool that the service supports."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from triton_sam.annotate.prompts import mask_logits
from triton_sam.masks import mask_to_box
from triton_sam.masks.polygons import fill_polygons, mask_to_polygons, trace_polygons
from triton_sam.masks.rle import BoolArray, rle_to_mask

CLICK, AWAY = [200, 180], [400, 300]
BOX = [88, 68, 312, 292]
RING = [[80, 180], [200, 60], [320, 180], [200, 300]]
"""A rough outline of the object at CLICK."""


LABEL_SETUP = """<View><Image name="image" value="$image"/>
<BrushLabels name="tag" toName="image"><Label value="cat"/></BrushLabels>
<KeyPointLabels name="kp" toName="image" smart="true"><Label value="cat"/></KeyPointLabels></View>"""
"""A labelling setup of Label Studio."""


def asked_of_label_studio(image64: str, *regions: Any, config: str = LABEL_SETUP, task: int = 1) -> dict[str, Any]:
    """Return a call of Label Studio with the regions drawn by a user in an image."""
    data = {"image": f"data:image/jpeg;base64,{image64}"}
    params = {"context": {"result": list(regions)}, "login": None, "password": None}
    return {"tasks": [{"id": task, "data": data}], "project": "1.2", "label_config": config, "params": params}


def stroke() -> BoolArray:
    """Return a brush stroke over the object at CLICK, in an image of 800 x 600 pixels."""
    mask = np.zeros((600, 800), bool)
    mask[170:190, 150:250] = True
    return mask


def drawn_prompts(client: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the client's prompts for the stroke and the outline."""
    outlined = fill_polygons([RING], (800, 600))
    return (
        {"point_coords": [[200, 180.5]], "mask_input": mask_logits(stroke(), client.family)},
        {"box": mask_to_box(outlined), "mask_input": mask_logits(outlined, client.family)},
    )


def base64_of(content: bytes) -> str:
    """Return bytes in the form that tools send."""
    return base64.b64encode(content).decode()


def waves(seed: int, size: float, shape: tuple[int, int] = (60, 80)) -> BoolArray:
    """Return a mask with parts, holes and thin places: noise whose waves are about ``size`` pixels long."""
    noise = np.random.default_rng(seed).normal(size=shape)
    frequencies = np.add.outer(*(np.fft.fftfreq(side) ** 2 for side in shape))
    return np.asarray(np.fft.ifft2(np.fft.fft2(noise) * np.exp(-frequencies * 20 * size**2)).real > 0)


def filled(rings: Iterable[Any], shape: tuple[int, int]) -> BoolArray:
    """Return the pixels whose centres are inside rings, by the even-odd rule; the origin of x and y is a corner."""
    inside = np.zeros(shape, bool)
    columns = np.arange(shape[1]) + 0.5
    for ring in rings:
        points = np.reshape(np.asarray(ring, float), (-1, 2))
        after = np.roll(points, -1, axis=0)
        for row in range(shape[0]):
            y = row + 0.5
            crosses = (points[:, 1] > y) != (after[:, 1] > y)
            (x1, y1), (x2, y2) = points[crosses].T, after[crosses].T
            edges = np.sort(x1 + (y - y1) * (x2 - x1) / (y2 - y1))
            inside[row] ^= (np.searchsorted(edges, columns) % 2).astype(bool)
    return inside


def without_holes(mask: BoolArray) -> BoolArray:
    """Return a mask with filled holes, for formats without holes."""
    return filled_each(mask_to_polygons(mask, 0), mask.shape)


def without_specks(mask: BoolArray, share_of_mean: float = 0.0) -> BoolArray:
    """Return a mask without small parts and with filled small holes, for formats for manual editing.

    Args:
        share_of_mean: parts and holes below this share of the mean area of the parts are small; 0: those below a
            hundredth of the largest part, or below ten pixels.
    """
    size = mask.shape[0], mask.shape[1]
    polygons = trace_polygons(mask, 0)
    areas = [int(filled([polygon.exterior, *polygon.holes], size).sum()) for polygon in polygons]
    least = share_of_mean * float(np.mean(areas or 0)) if share_of_mean else max(areas, default=0) / 100
    least = max(least, 10)
    kept = np.zeros(size, bool)
    for polygon, area in zip(polygons, areas, strict=True):
        if area >= least:
            holes = [hole for hole in polygon.holes if filled([hole], size).sum() >= least]
            kept |= filled([polygon.exterior, *holes], size)
    return kept


def filled_each(rings: Iterable[Any], shape: tuple[int, ...]) -> BoolArray:
    """Return the pixels inside any of the rings."""
    return np.logical_or.reduce([filled([ring], (shape[0], shape[1])) for ring in rings])


def near(mask: BoolArray, other: BoolArray, pixels: int = 1) -> bool:
    """Return whether masks differ only within some pixels of an edge. The border of the image is also an edge."""
    grown, shrunk = mask.copy(), mask.copy()
    for _ in range(pixels):
        grown, shrunk = _dilated(grown), ~_dilated(~shrunk, True)
    return bool((other <= grown).all() and (shrunk <= other).all())


def _dilated(mask: BoolArray, outside: bool = False) -> BoolArray:
    padded = np.pad(mask, 1, constant_values=outside)
    parts = [padded[y : y + mask.shape[0], x : x + mask.shape[1]] for y in range(3) for x in range(3)]
    return np.logical_or.reduce(parts)


def brushed(result: dict[str, Any]) -> BoolArray:
    """Decode a mask of Label Studio bit by bit, as its own decoder does."""
    bits = "".join(f"{byte:08b}" for byte in result["value"]["rle"])
    place = 0

    def read(count: int) -> int:
        nonlocal place
        place += count
        return int(bits[place - count : place], 2)

    total, size = read(32), read(5) + 1
    sizes = [read(4) + 1 for _ in range(4)]
    values = np.zeros(total, np.uint8)
    start = 0
    while start < total:
        repeats = read(1)
        end = start + read(sizes[read(2)]) + 1
        if repeats:
            values[start:end] = read(size)
        else:
            values[start:end] = [read(size) for _ in range(start, end)]
        start = end
    rgba = values.reshape(result["original_height"], result["original_width"], 4)
    return np.asarray(rgba[:, :, 3] > 0)


# --- One row for each tool whose protocol the service supports -------------------------------------------------------


Json = Any
X1, Y1, X2, Y2 = BOX
WORDS = "dog, nothing"
"""Words of which a search finds only the first one, see support/drawn_server.py."""


@dataclass(frozen=True)
class Tool:
    """A tool. Members that begin with `word` are for its searches for words.

    Args:
        path: path of requests for masks.
        click: returns its request for the object at CLICK, with an image in base64.
        box: the same for BOX.
        mask: reads the mask of an answer, in the size of the image.
        word_request: returns the path and the request of a search for WORDS, of instances above the score 0.7.
        word_answer: reads labels and scores of an answer.
        fault: the member with the text of an error; empty: the whole answer is the text.
        headers: headers of a request for masks.
        word_headers: headers of a search.
        token: the tool's form of authentication with TOKEN.
        listed: a path for which a service with a token requires it.
        tolerance: distance in pixels from its edge within which the mask may differ, for tools that get polygons.
        drawn: returns the part of a mask that the tool receives.
    """

    path: str
    click: Callable[[str], Json]
    box: Callable[[str], Json]
    mask: Callable[[Json, tuple[int, int]], BoolArray]
    word_request: Callable[[str], tuple[str, Json]]
    word_answer: Callable[[Json], list[tuple[str, float]]]
    fault: str
    headers: Mapping[str, str] = field(default_factory=dict)
    word_headers: Mapping[str, str] = field(default_factory=dict)
    token: Mapping[str, Any] = field(default_factory=dict)
    listed: str = ""
    tolerance: int = 0
    drawn: Callable[[BoolArray], BoolArray] = lambda mask: mask

    def agrees(self, found: BoolArray, expected: BoolArray) -> bool:
        """Return whether the tool received the expected mask."""
        wanted = self.drawn(expected)
        return near(found, wanted, self.tolerance) if self.tolerance else np.array_equal(found, wanted)


TOKEN = "sesame-open"
BEARER = {"headers": {"Authorization": f"Bearer {TOKEN}"}}


def osam_mask(annotation: Json, shape: tuple[int, int]) -> BoolArray:
    """Return the mask of an annotation of osam at full size."""
    box = annotation["bounding_box"]
    with Image.open(io.BytesIO(base64.b64decode(annotation["mask"]))) as part:
        pixels = np.asarray(part) > 0
    assert pixels.shape == (box["ymax"] - box["ymin"] + 1, box["xmax"] - box["xmin"] + 1)
    mask = np.zeros(shape, bool)
    mask[box["ymin"] : box["ymax"] + 1, box["xmin"] : box["xmax"] + 1] = pixels
    return mask


def geojson_mask(feature: Json, shape: tuple[int, int]) -> BoolArray:
    """Return the mask of a feature of QuPath."""
    geometry = feature["geometry"]
    parts = geometry["coordinates"] if geometry["type"] == "MultiPolygon" else [geometry["coordinates"]]
    return np.logical_or.reduce([filled(part, shape) for part in parts])


def _osam(image: str, points: Json, labels: Json) -> Json:
    return {"model": "sam2:latest", "image": image, "prompt": {"points": points, "point_labels": labels}}


def _qupath(image: str, **prompt: Any) -> Json:
    return {"type": "sam2_bp", "b64img": image, "multimask_output": False, **prompt}


def _roboflow(image: str, prompt: Json) -> Json:
    body = {"image": {"type": "base64", "value": image}, "prompts": [prompt], "format": "rle"}
    return {**body, "multimask_output": False}


def _x_anylabeling(image: str, kind: str, data: Json) -> Json:
    params = {"marks": [{"type": kind, "data": data, "label": 1}]}
    return {"model": "sam2", "image": f"data:image/jpeg;base64,{image}", "params": params}


def _label_studio(image: str, kind: str, **value: Any) -> Json:
    place = {"x": 100 * value.pop("x") / 800, "y": 100 * value.pop("y") / 600, **value, kind: ["cat"]}
    return asked_of_label_studio(image, {"type": kind, "is_positive": 1, "value": place})


def _words_of_label_studio(image: str) -> Json:
    config = """<View><Image name="image" value="$image"/><BrushLabels name="tag" toName="image">
<Label value="dog"/></BrushLabels><TextArea name="words" toName="image"/></View>"""
    return asked_of_label_studio(image, {"type": "textarea", "value": {"text": [WORDS]}}, config=config)


TOOLS = {
    "osam": Tool(
        path="/api/generate",
        click=lambda image: _osam(image, [CLICK], [1]),
        box=lambda image: _osam(image, [BOX[:2], BOX[2:]], [2, 3]),
        mask=lambda answer, shape: osam_mask(answer["annotations"][0], shape),
        word_request=lambda image: (
            "/api/generate",
            {
                "model": "sam3:latest",
                "image": image,
                "prompt": {"texts": WORDS.split(", "), "score_threshold": 0.7},
            },
        ),
        word_answer=lambda answer: [(each["text"], each["score"]) for each in answer["annotations"]],
        fault="detail",
        token=BEARER,
    ),
    "qupath": Tool(
        path="/sam/",
        click=lambda image: _qupath(image, point_coords=[CLICK], point_labels=[1], bbox=None),
        box=lambda image: _qupath(image, bbox=BOX),
        mask=lambda answer, shape: geojson_mask(answer[0], shape),
        word_request=lambda image: (
            "/sam/sam3/",
            {"type": "sam3", "b64img": image, "text_prompt": "dog", "confidence_threshold": 0.7},
        ),
        word_answer=lambda answer: [("dog", each["properties"]["quality"]) for each in answer],
        fault="detail",
        token={"auth": ("anyone", TOKEN)},
        listed="/sam/weights/",
        tolerance=1,
        drawn=without_specks,
    ),
    "roboflow": Tool(
        path="/sam2/segment_image",
        click=lambda image: _roboflow(image, {"points": [{"x": CLICK[0], "y": CLICK[1], "positive": True}]}),
        box=lambda image: _roboflow(
            image, {"box": {"x": (X1 + X2) / 2, "y": (Y1 + Y2) / 2, "width": X2 - X1, "height": Y2 - Y1}}
        ),
        mask=lambda answer, shape: rle_to_mask(answer["predictions"][0]["masks"]),
        word_request=lambda image: (
            "/sam3/concept_segment",
            {
                "image": {"value": image},
                "prompts": [{"type": "text", "text": text} for text in WORDS.split(", ")],
                "output_prob_thresh": 0.7,
                "format": "rle",
            },
        ),
        word_answer=lambda answer: [
            (result["echo"]["text"], each["confidence"])
            for result in answer["prompt_results"]
            for each in result["predictions"]
        ],
        fault="message",
        token={"params": {"api_key": TOKEN}},
    ),
    "x-anylabeling": Tool(
        path="/x-anylabeling/v1/predict",
        click=lambda image: _x_anylabeling(image, "point", CLICK),
        box=lambda image: _x_anylabeling(image, "rectangle", BOX),
        mask=lambda answer, shape: filled_each([each["points"] for each in answer["data"]["shapes"]], shape),
        word_request=lambda image: (
            "/x-anylabeling/v1/predict",
            {"model": "sam3", "image": image, "params": {"text_prompt": f"{WORDS}.", "conf_threshold": 0.7}},
        ),
        word_answer=lambda answer: [(each["label"], each["score"]) for each in answer["data"]["shapes"]],
        fault="error",
        token={"headers": {"Token": TOKEN}},
        listed="/x-anylabeling/v1/models",
        tolerance=2,
        drawn=lambda mask: without_holes(without_specks(mask, 0.2)),
    ),
    "cvat": Tool(
        path="/api/function_invocations",
        click=lambda image: {"image": image, "pos_points": [CLICK], "neg_points": [], "obj_bbox": None},
        box=lambda image: {"image": image, "pos_points": [], "neg_points": [], "obj_bbox": [BOX[:2], BOX[2:]]},
        mask=lambda answer, shape: np.array(answer["mask"], bool),
        word_request=lambda image: ("/api/function_invocations", {"image": image, "threshold": 0.7}),
        word_answer=lambda answer: [(each["label"], float(each["confidence"])) for each in answer],
        fault="error",
        headers={"x-nuclio-function-name": "triton-sam-sam2"},
        word_headers={"x-nuclio-function-name": "triton-sam-sam3-words"},
        token={"auth": ("triton", TOKEN)},
        listed="/api/functions",
    ),
    "label-studio": Tool(
        path="/label-studio/predict",
        click=lambda image: _label_studio(image, "keypointlabels", x=CLICK[0], y=CLICK[1]),
        box=lambda image: _label_studio(
            image, "rectanglelabels", x=X1, y=Y1, width=(X2 - X1) / 8, height=(Y2 - Y1) / 6
        ),
        mask=lambda answer, shape: brushed(answer["results"][0]["result"][0]),
        word_request=lambda image: ("/label-studio/predict", _words_of_label_studio(image)),
        word_answer=lambda answer: [
            (each["value"]["brushlabels"][0], each["score"])
            for each in answer["results"][0]["result"]
            if each["score"] >= 0.7  # the tool sends no threshold
        ],
        fault="",
        token={"auth": ("anyone", TOKEN)},
        listed="/label-studio/versions",
    ),
}
