"""CVAT's own agent (`cvat-cli function run-agent`) with the tracker: its shapes are those of the video client."""

from __future__ import annotations

import numpy as np
import pytest
from support import clip
from support.cvat_program import install_program, runner
from support.fake_cvat import FUNCTION, TASK, running_cvat

from triton_sam import SAM2VideoClient
from triton_sam.masks import mask_to_box
from triton_sam.service.adapters.nuclio_masks import box_runs, mask_of_points

pytestmark = [pytest.mark.slow, pytest.mark.export, pytest.mark.timeout(600)]

FRAMES = 4
SIZE = clip.WIDTH, clip.HEIGHT
BOXES = [[x - 30, y - 30, x + 30, y + 30] for x in (60, 160) for y in (90, 140)]
"""The random weights of the fixture see the mask in the first frame alone, and these boxes nowhere."""


def test_an_agent_tracks_rectangles_and_a_mask(video_server, tmp_path):
    frames = clip.write_frames(tmp_path, FRAMES)
    with SAM2VideoClient(video_server.grpc_url) as client, client.open(frames) as video:
        for number, box in enumerate(BOXES, 2):
            video.add(0, number, box=box)
        video.add(0, 1, mask=clip.disc(0))
        expected = [masks for _, masks in video.propagate(start=0)]
    run = runner(install_program(tmp_path), tmp_path)
    parameters = {"kind": "tracker", "url": video_server.grpc_url}
    drawn = [{"type": "mask", "points": box_runs(clip.disc(0))}]
    drawn += [{"type": "rectangle", "points": box} for box in BOXES]
    with running_cvat(frames, "object") as cvat:
        run(cvat.url, "function", "create-native", "SAM2 tracker", **parameters)
        cvat.asked += [
            {"type": "init_tracking", "task": TASK, "frame": 0, "shapes": drawn},
            *({"type": "track", "task": TASK, "frame": frame, "states": "last"} for frame in range(FRAMES)),
        ]
        run(cvat.url, "function", "run-agent", str(FUNCTION), "--burst", **parameters)
    assert (cvat.unknown, cvat.asked) == ([], [])
    assert expected[0][1].mask.any()
    for result, masks in zip(cvat.results[1:], expected, strict=True):
        mask, *rectangles = result["shapes"]
        boxes = [mask_to_box(masks[number].mask) for number in range(2, len(BOXES) + 2)]
        assert [each and each["points"] for each in rectangles] == [box and list(box) for box in boxes]
        shown = np.zeros_like(masks[1].mask) if mask is None else mask_of_points(mask["points"], SIZE)
        assert np.array_equal(shown, masks[1].mask)
