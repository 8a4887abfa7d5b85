"""Strategies for made-up bodies of each adapter: path, headers and bodies, by the name of the adapter."""

from __future__ import annotations

import base64
import json

import numpy as np
from hypothesis import strategies as st
from support import clip
from support.tools import base64_of

from triton_sam.service.adapters.brush_rle import encode_brush

FORM = {"content-type": "multipart/form-data"}
"""Stands for a form, whose own header names its boundary."""
CONFIG = '<View><Image name="i" value="$image"/><BrushLabels name="b" toName="i"/></View>'
NUMBERS = st.one_of(st.integers(-10, 900), st.floats(), st.booleans())
LEAVES = st.one_of(st.none(), NUMBERS, st.text(max_size=8))
INSIDE = st.lists(st.integers(0, 50), min_size=2, max_size=2)
BOX = INSIDE.map(lambda point: [*point, point[0] + 9, point[1] + 9])
ODD_POINTS = st.lists(st.lists(NUMBERS, max_size=4), max_size=4)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
)
POINTS = st.integers(0, 3).flatmap(
    lambda number: ODD_POINTS if number == 0 else st.lists(INSIDE, min_size=1, max_size=2)
)


def mostly(kind, other=ANYTHING):
    """Return values of a kind, and at times others."""
    return st.integers(0, 9).flatmap(lambda number: other if number == 0 else kind)


def members(**known):
    """Return objects with these members; at times, one is left out or replaced by anything."""
    some = st.fixed_dictionaries({}, optional={name: mostly(kind) for name, kind in known.items()})
    return mostly(st.fixed_dictionaries({name: mostly(kind) for name, kind in known.items()}), some)


BRUSH_CODE = st.one_of(
    st.just(encode_brush(np.tri(60, 80, dtype=bool))),
    st.binary(max_size=12).map(lambda tail: [0, 0, 75, 0, 57, 189, 254, *tail]),  # the head for 80 x 60 pixels
    st.lists(st.one_of(st.integers(0, 255), LEAVES), max_size=12),
)
PERCENT = st.lists(st.integers(0, 100), min_size=2, max_size=2)
DRAWN = st.one_of(
    st.fixed_dictionaries({"type": st.just("brushlabels"), "value": members(rle=BRUSH_CODE)}),
    st.fixed_dictionaries(
        {
            "type": st.just("polygonlabels"),
            "value": members(points=st.one_of(st.lists(PERCENT, min_size=3, max_size=5), ODD_POINTS)),
        }
    ),
)
REGION = st.fixed_dictionaries(
    {"type": st.sampled_from(["keypointlabels", "rectanglelabels", "brushlabels"])},
    optional={
        "value": st.dictionaries(
            st.sampled_from(["x", "y", "width", "height", "keypointlabels"]), st.one_of(NUMBERS, ANYTHING)
        ),
        "is_positive": LEAVES,
    },
)
MARK = st.fixed_dictionaries(
    {"type": st.sampled_from(["point", "rectangle", "line"]), "data": st.lists(NUMBERS, max_size=5)},
    optional={"label": LEAVES},
)
PROMPT = st.fixed_dictionaries(
    {},
    optional={
        "points": st.lists(
            st.fixed_dictionaries({"x": NUMBERS, "y": NUMBERS}, optional={"positive": LEAVES}), max_size=3
        ),
        "box": st.fixed_dictionaries({"x": NUMBERS, "y": NUMBERS, "width": NUMBERS, "height": NUMBERS}),
    },
)
RIGHT_PROMPT = INSIDE.map(lambda point: {"points": [{"x": point[0], "y": point[1], "positive": True}]})


def cases(image: str):
    """Return the path, the headers and the bodies of each adapter."""
    images = st.sampled_from([*[image] * 8, f"data:image/jpeg;base64,{image}", "", "AAAA", "%"])
    nuclio = {"x-nuclio-function-name": "triton-sam-sam2"}
    tasks = st.just([{"id": 1, "data": {"image": f"data:image/jpeg;base64,{image}"}}])
    return {
        "osam": (
            "/api/generate",
            {},
            members(
                model=st.sampled_from(["sam2", "sam2:tiny", "sam:100m", "x"]),
                image=images,
                prompt=st.one_of(
                    INSIDE.map(lambda point: {"points": [point], "point_labels": [1]}),
                    members(points=POINTS, point_labels=st.lists(st.integers(-1, 4), max_size=4), texts=ANYTHING),
                ),
            ),
        ),
        "qupath": (
            "/sam/",
            {},
            members(
                type=st.sampled_from(["sam2_t", "sam2_l", "sam2_bp", "vit_h", "x"]),
                b64img=images,
                b64mask=st.one_of(st.none(), images),
                bbox=st.one_of(st.none(), BOX, st.lists(NUMBERS, max_size=5)),
                point_coords=POINTS,
                point_labels=st.lists(st.integers(-1, 2), max_size=4),
                multimask_output=st.booleans(),
            ),
        ),
        "roboflow": (
            "/sam2/segment_image",
            {},
            members(
                image=members(type=st.just("base64"), value=images),
                prompts=st.lists(mostly(RIGHT_PROMPT, PROMPT), max_size=3),
                image_id=st.one_of(st.none(), st.text(max_size=4)),
                format=st.sampled_from(["rle", "json", "x"]),
                multimask_output=st.booleans(),
                save_logits_to_cache=st.booleans(),
                load_logits_from_cache=st.booleans(),
            ),
        ),
        "x-anylabeling": (
            "/x-anylabeling/v1/predict",
            {},
            members(
                model=st.sampled_from(["sam2", "x"]),
                image=images,
                params=members(marks=st.lists(MARK, max_size=3), epsilon_factor=NUMBERS, show_boxes=LEAVES),
            ),
        ),
        "cvat": (
            "/api/function_invocations",
            nuclio,
            members(image=images, pos_points=POINTS, neg_points=POINTS, obj_bbox=st.one_of(st.none(), POINTS)),
        ),
        "label-studio": (
            "/label-studio/predict",
            {},
            members(
                tasks=tasks,
                label_config=st.sampled_from([CONFIG, "<View/>", "<"]),
                params=members(context=members(result=st.lists(st.one_of(REGION, DRAWN), max_size=3))),
            ),
        ),
    }


def cases_of_words(image: str):
    """Return the path, the headers and the bodies of each adapter that finds words."""
    images = st.sampled_from([*[image] * 8, "", "%"])
    texts = mostly(st.sampled_from(["dog", "cat", "nothing", "a\nb, c", " "]))
    labels = st.one_of(st.none(), st.lists(st.one_of(st.booleans(), st.integers(-1, 2)), max_size=3))
    sizes = {"x": NUMBERS, "y": NUMBERS, "width": NUMBERS, "height": NUMBERS}
    corners = {"x0": NUMBERS, "y0": NUMBERS, "x1": NUMBERS, "y1": NUMBERS}
    box = st.one_of(st.fixed_dictionaries(sizes), st.fixed_dictionaries(corners))
    prompt = st.fixed_dictionaries(
        {"text": texts},
        optional={"boxes": st.lists(box, max_size=2), "box_labels": labels, "output_prob_thresh": NUMBERS},
    )
    regions = st.fixed_dictionaries({"type": st.just("textarea"), "value": members(text=st.lists(texts, max_size=3))})
    boxes = st.one_of(st.none(), st.lists(st.lists(NUMBERS, min_size=3, max_size=4), max_size=2))
    return {
        "qupath": (
            "/sam/sam3/",
            {},
            members(
                b64img=images,
                text_prompt=texts,
                positive_bboxes=boxes,
                negative_bboxes=boxes,
                confidence_threshold=st.one_of(st.just(0.5), NUMBERS),
            ),
        ),
        "roboflow": (
            "/sam3/concept_segment",
            {},
            members(
                image=members(value=images),
                prompts=st.lists(prompt, max_size=3),
                output_prob_thresh=st.one_of(st.none(), st.just(0.5), NUMBERS),
                nms_iou_threshold=st.one_of(st.none(), st.just(0.5), NUMBERS),
                format=st.sampled_from(["rle", "polygon", "x"]),
            ),
        ),
        "cvat": (
            "/api/function_invocations",
            {"x-nuclio-function-name": "triton-sam-sam3-words"},
            members(image=images, threshold=st.one_of(st.just(0.94), st.just(0.99), st.floats())),
        ),
        "label-studio": (
            "/label-studio/predict",
            {},
            members(
                tasks=st.just([{"id": 1, "data": {"image": f"data:image/jpeg;base64,{image}"}}]),
                label_config=st.sampled_from([CONFIG, "<View/>", "<"]),
                params=members(context=members(result=st.lists(regions, max_size=3))),
            ),
        ),
        "qupath: series": (
            "/sam/sam3video/",
            {},
            members(
                type=st.just("sam3"),
                b64imgs=st.lists(images, min_size=1, max_size=2),
                axes=st.sampled_from(["XYT", "XYZ", "x"]),
                objs=mostly(
                    texts.map(lambda text: {"0": [{"text": text}]}),
                    st.dictionaries(st.integers(-1, 2).map(str), st.lists(sought(), max_size=2), max_size=2),
                ),
            ),
        ),
    }


def cases_of_videos(running, image: str):
    """Return the path, the headers and the bodies of each adapter that tracks objects."""
    images = st.sampled_from([*[image] * 8, base64_of(clip.png(1)), "", "%"])
    numbers = st.lists(NUMBERS, max_size=8)
    kinds = st.sampled_from(["rectangle", "polygon", "mask", "points", "x"])
    shape = st.one_of(BOX, BOX, numbers, st.none(), members(type=kinds, points=st.one_of(BOX, numbers)))
    tracker = {"x-nuclio-function-name": "triton-sam-sam2-tracker"}
    start = {"image": image, "shapes": [[10, 10, 90, 90]], "states": []}
    known = sent(running.http, "/api/function_invocations", tracker, start).json()["states"]
    states = st.one_of(st.none(), st.none(), st.none(), st.sampled_from(known), ANYTHING)
    return {
        "cvat": (
            "/api/function_invocations",
            tracker,
            members(image=images, shapes=st.lists(shape, max_size=2), states=st.lists(states, max_size=2)),
        ),
        "x-anylabeling": ("/x-anylabeling/v1/video/prompt", {}, video_prompts(running, image)),
        "x-anylabeling: frames": (
            "/x-anylabeling/v1/video/init",
            {},
            members(
                model=st.sampled_from(["sam2-video", "sam2-video", "x"]),
                frames=st.lists(images, min_size=1, max_size=2),
                start_frame_index=st.integers(-1, 2),
            ),
        ),
        "qupath: uploads": (
            "/sam/upload/",
            FORM,
            st.fixed_dictionaries({"file": images}, optional={"dirname": mostly(st.just("d"), st.text(max_size=8))}),
        ),
        "qupath": (
            "/sam/video/",
            {},
            members(
                type=st.just("sam2_t"),
                b64imgs=st.lists(images, min_size=1, max_size=2),
                axes=st.sampled_from(["XYT", "XYZ"]),
                objs=mostly(
                    INSIDE.map(lambda point: {"0": [{"obj_id": 1, "point_coords": [point]}]}),
                    st.dictionaries(st.integers(-1, 2).map(str), st.lists(clicked(), max_size=2), max_size=2),
                ),
                start_frame_idx=mostly(st.sampled_from([None, 0]), NUMBERS),
                max_frame_num_to_track=mostly(st.sampled_from([None, 1]), NUMBERS),
            ),
        ),
    }


def sought():
    """Return words and examples in a frame of QuPath."""
    boxes = st.lists(st.one_of(BOX, ANYTHING), max_size=2)
    labels = st.lists(st.integers(-1, 2), max_size=2)
    return members(obj_id=st.integers(-1, 5), text=st.just("dog"), boxes_xywh=boxes, box_labels=labels)


def clicked():
    """Return objects of QuPath."""
    box = st.one_of(BOX, ANYTHING)
    return members(obj_id=st.integers(-1, 5), point_coords=POINTS, point_labels=st.just([1]), bbox=box)


def video_prompts(running, image: str):
    """Return prompts of X-AnyLabeling in a session of two frames."""
    start = {"model": "sam2-video", "frames": [image] * 2}
    session = sent(running.http, "/x-anylabeling/v1/video/init", {}, start).json()["data"]["session_id"]
    share = st.lists(st.floats(0, 1), min_size=2, max_size=2)
    return members(
        session_id=st.sampled_from([*[session] * 8, "", "x"]),
        model=st.just("sam2-video"),
        frame_index=st.integers(-1, 2),
        points=mostly(share.map(lambda point: [point]), ODD_POINTS),
        point_labels=mostly(st.just([1])),
        obj_id=st.one_of(st.none(), st.integers(-1, 60)),
        params=members(epsilon_factor=st.one_of(st.just(0.001), NUMBERS)),
    )


def sent(http, path, headers, body):
    """Send a body as the tool does: JSON, or a form with a file."""
    if headers is FORM:
        fields = {name: value for name, value in body.items() if name != "file"}
        content = base64.b64decode(body["file"]) if body["file"] not in ("%", "") else b""
        return http.post(path, files={"file": ("image", content)}, data=fields)
    return http.post(path, content=json.dumps(body), headers={"content-type": "application/json", **headers})
